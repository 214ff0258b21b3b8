"""Every GPU and node of the catalog: units, ranges, sources, and relations between entries."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
import yaml

from planner.domain.hardware import CollectiveLaw, CollectiveOp, Gpu, Precision
from planner.files.catalog import generic_node, list_gpus, list_nodes, load_gpu, load_node, load_overheads
from planner.units import GB, GIB

GPUS = [entry.id for entry in list_gpus()]
NODES = [entry.id for entry in list_nodes()]
ISO_DATE = re.compile(r"\d{4}-\d{2}(-\d{2})?")
NO_BF16 = {"v100-sxm2-16g", "v100-sxm2-32g"}  # Volta has fp16 only
QUANTITY = re.compile(r"[\d.]+ [A-Za-z/]+")


def _raw(name: str) -> dict[str, object]:
    value = yaml.load(files("hardware_catalog").joinpath(name).read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    assert isinstance(value, dict)
    return value


def test_the_catalog_is_complete() -> None:
    assert len(GPUS) == 41
    assert len(NODES) == 61 + 41
    listed = {f"gpu-{g}.yaml" for g in GPUS} | {f"node-{n}.yaml" for n in NODES}
    stored = {p.name for p in files("hardware_catalog").iterdir() if p.name.startswith(("gpu-", "node-"))}
    assert listed == stored


@pytest.mark.parametrize("gpu_id", GPUS)
def test_gpu_values_are_plausible(gpu_id: str) -> None:
    gpu = load_gpu(gpu_id)
    assert gpu.id == gpu_id
    assert 10 * GIB < gpu.memory_bytes < 400 * GIB
    assert 200 * GB < gpu.hbm_bytes_per_s < 10_000 * GB
    assert 10 * GB < gpu.scale_up_bytes_per_s <= 1000 * GB
    assert 10 * GB < gpu.host_link_bytes_per_s <= 500 * GB
    assert ISO_DATE.fullmatch(gpu.provenance.date)
    assert gpu.provenance.confidence in {"low", "medium", "high"}
    assert len(gpu.provenance.source) > 20
    assert gpu.supports(Precision.BF16) is (gpu_id not in NO_BF16)


@pytest.mark.parametrize("gpu_id", GPUS)
def test_peaks_do_not_fall_with_fewer_bits(gpu_id: str) -> None:
    peaks = [flops for _, flops in load_gpu(gpu_id).peak_flop_per_s]
    assert peaks == sorted(peaks)
    assert all(50e12 < flops < 2e16 for flops in peaks)


@pytest.mark.parametrize("gpu_id", GPUS)
def test_quantities_carry_units(gpu_id: str) -> None:
    raw = _raw(f"gpu-{gpu_id}.yaml")
    scale_up, peak = raw["scale_up"], raw["peak"]
    assert isinstance(scale_up, dict) and isinstance(peak, dict)
    values = [raw["memory"], raw["memory_bandwidth"], raw["host_link"], scale_up["bandwidth"]]
    values += [value for value in peak.values() if value is not None]
    assert all(isinstance(value, str) and QUANTITY.fullmatch(value) for value in values)


@pytest.mark.parametrize("gpu_id", GPUS)
def test_collective_laws_stay_below_the_link(gpu_id: str) -> None:
    gpu = load_gpu(gpu_id)
    for op in CollectiveOp:
        law = gpu.collective(op)
        assert len(law.num_ranks) == len(law.alpha_s) == len(law.bytes_per_s) == len(law.gamma_s)
        assert all(0 < alpha < 1e-3 for alpha in law.alpha_s)
        # In-switch reduction lets the bus bandwidth of an all-reduce exceed the link a little.
        limit = 1.15 if op is CollectiveOp.ALL_REDUCE else 1.0
        assert all(0 < rate <= limit * gpu.scale_up_bytes_per_s for rate in law.bytes_per_s)


def _bus_bytes_per_s(law: CollectiveLaw, bus_bytes: float) -> float:
    seconds = law.alpha_s[-1] + bus_bytes / law.bytes_per_s[-1] + law.gamma_s[-1] * bus_bytes**0.5
    return bus_bytes / seconds


@pytest.mark.parametrize(
    ("gpu_id", "expected"),
    # NCCL bus bandwidth of an all-reduce of 512 MiB over 8 GPUs, PyPI aiconfigurator-core 0.12.0; the law has a
    # mean error of 4-8 % over all sizes
    [("h100-sxm", 445 * GB), ("h200-sxm", 460 * GB), ("b200-sxm", 704 * GB), ("a100-sxm-80g", 222 * GB)],
)
def test_measured_all_reduce_is_reproduced(gpu_id: str, expected: float) -> None:
    law = load_gpu(gpu_id).collective(CollectiveOp.ALL_REDUCE)
    assert _bus_bytes_per_s(law, 1.75 * 512 * 2**20) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("gpu_id", "plateau"),
    # bf16 GEMM plateau in FLOP/s, the same source
    [("h100-sxm", 785e12), ("b200-sxm", 1564e12), ("a100-sxm-80g", 256e12), ("l40s", 216e12), ("mi300x", 668e12)],
)
def test_measured_gemm_plateau_is_reproduced(gpu_id: str, plateau: float) -> None:
    gpu = load_gpu(gpu_id)
    kernel = gpu.kernel(Precision.BF16)
    assert kernel.gemm_flop_ratio * gpu.peak(Precision.BF16) == pytest.approx(plateau, rel=0.01)


def test_pcie_cards_are_slower_than_switched_ones() -> None:
    def rate(gpu_id: str) -> float:
        return _bus_bytes_per_s(load_gpu(gpu_id).collective(CollectiveOp.ALL_REDUCE), 1e9)

    assert rate("rtx-4090") < 0.5 * load_gpu("rtx-4090").host_link_bytes_per_s
    assert rate("h800-sxm") < rate("h100-sxm")


@pytest.mark.parametrize("gpu_id", GPUS)
def test_each_gpu_has_a_generic_node_with_stated_assumptions(gpu_id: str) -> None:
    node = generic_node(gpu_id)
    assert node.gpu.id == gpu_id
    assert node.provenance.confidence == "low"
    assert all(f"assumed: {what}" in node.provenance.source for what in ("generic node", "nic", "host_ram"))


@pytest.mark.parametrize("node_id", NODES)
def test_node_values_are_plausible(node_id: str) -> None:
    node = load_node(node_id)
    assert node.id == node_id
    assert 1 <= node.gpus_per_node <= 8
    assert node.scale_up_domain_gpus >= node.gpus_per_node
    assert 0.1 * GB < node.nic_bytes_per_s <= 100 * GB
    assert 100 * GIB < node.host_ram_bytes < 5000 * GIB
    assert ISO_DATE.fullmatch(node.provenance.date)
    assert node.provenance.confidence in {"low", "medium", "high"}
    assert node.provenance.source
    network = node.network
    assert 0 < network.nic_ratio <= 1 and 0 < network.host_link_ratio <= 1
    assert network.host_node_bytes_per_s > 0 and network.host_memory_bytes_per_s > 0
    if node.price is not None:
        assert 0.2 < node.price.usd_per_gpu_hour < 20
        assert ISO_DATE.fullmatch(node.price.date) or node.price.date.startswith("undated")
        assert node.price.kind == "on-demand" and node.price.provider and node.price.region


@pytest.mark.parametrize("gpu_id", GPUS)
def test_generic_price_is_the_cheapest_dated_one(gpu_id: str) -> None:
    dated = [
        entry.usd_per_gpu_hour
        for entry in list_nodes()
        if entry.gpu == gpu_id
        and entry.usd_per_gpu_hour is not None
        and ISO_DATE.fullmatch(entry.price_date)
        and not entry.id.startswith("generic-")
    ]
    price = generic_node(gpu_id).price
    assert (price.usd_per_gpu_hour if price else None) == (min(dated) if dated else None)


def test_rack_scale_trays_share_one_domain() -> None:
    for gpu in ("gb200", "gb300"):
        node = generic_node(gpu)
        assert (node.gpus_per_node, node.scale_up_domain_gpus) == (4, 72)


def test_names_are_unique() -> None:
    for entries in (list_gpus(), list_nodes()):
        names = [name.lower() for entry in entries for name in (entry.id, *entry.aliases)]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("alias", "gpu_id"),
    [
        ("h100", "h100-sxm"),
        ("A100", "a100-sxm-80g"),
        ("h20", "h20-96g"),
        ("4090", "rtx-4090"),
        ("MI300X", "mi300x"),
        ("h200", "h200-sxm"),
        ("b200", "b200-sxm"),
    ],
)
def test_gpu_aliases(alias: str, gpu_id: str) -> None:
    assert load_gpu(alias).id == gpu_id


@pytest.mark.parametrize(
    ("alias", "node_id"),
    [
        ("p5.48xlarge", "aws-p5.48xlarge"),
        ("nd96isr-h100-v5", "azure-nd96isr-h100-v5"),
        ("Standard_ND96isr_H100_v5", "azure-nd96isr-h100-v5"),
        ("a3-highgpu-8g", "gcp-a3-highgpu-8g"),
    ],
)
def test_node_aliases(alias: str, node_id: str) -> None:
    assert load_node(alias).id == node_id


def test_nic_law_follows_the_measured_table() -> None:
    """4 x 8 B200 with EFA: each NIC carries 3/16 of the payload (stas00/ml-engineering@744d01e)."""
    network = load_node("aws-p6-b200.48xlarge").network
    for mib, share in ((64, 0.304), (128, 0.383), (256, 0.44), (512, 0.633), (1024, 0.70)):
        carried = mib * 2**20 * 3 / 16
        predicted = network.nic_ratio * carried / (carried + network.nic_half_bytes)
        assert predicted == pytest.approx(share, rel=0.25)


def test_efficiencies_are_stated_per_measured_gpu() -> None:
    for name in ("h100-sxm", "h200-sxm", "b200-sxm", "gb200", "a100-sxm-80g", "l40s", "pcie"):
        raw = _raw(f"efficiency-{name}.yaml")
        assert raw["source"] and raw["date"] and raw["confidence"] in {"low", "medium"}


def test_inherited_efficiencies_are_low_confidence() -> None:
    measured = {"h100-sxm", "h200-sxm", "b200-sxm", "gb200", "a100-sxm-80g"}
    gpus: list[Gpu] = [load_gpu(gpu_id) for gpu_id in GPUS]
    assert all(gpu.provenance.confidence == "low" for gpu in gpus if gpu.id not in measured)
    assert {gpu.id for gpu in gpus if gpu.provenance.confidence != "low"} <= measured


def test_overheads_are_plausible_and_explained() -> None:
    overheads = load_overheads()
    assert 0.5 * GIB <= overheads.context_bytes <= GIB
    assert 0.03 <= overheads.fragmentation_ratio <= 0.08
    assert 1e-3 <= overheads.engine_step_s + 256 * overheads.engine_step_per_sequence_s <= 4e-3
    assert 5e-3 <= overheads.optimizer_host_s <= 30e-3
    losses = overheads.step_losses
    assert all(
        1 <= ratio <= 3
        for ratio in (losses.rollout_ratio, losses.training_ratio, losses.moe_training_ratio, losses.sync_ratio)
    )
    assert 1e9 <= losses.swap_bytes_per_s <= 30e9
    assert losses.step_s <= 10 and losses.sequence_s <= 5e-3
    raw = _raw("overheads.yaml")
    nested = [*raw["step_losses"].values(), *raw["training_stacks"].values(), *raw["engines"]]
    skipped = {"source", "date", "confidence", "step_losses", "training_stacks", "engines"}
    entries = [*nested, *(value for key, value in raw.items() if key not in skipped)]
    assert all(isinstance(value, dict) and len(value["why"]) > 10 for value in entries)
