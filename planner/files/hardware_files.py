"""Files of hardware_catalog -> Gpu, NodeType and Overheads. Which file is meant is decided in catalog.py.

A GPU file refers to measured efficiencies (`efficiency-<id>.yaml`) by name, and a node file to its GPU, its
fabric and its host (`networks.yaml`), so that each number stands in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt

from planner.domain.hardware import (
    CollectiveLaw,
    CollectiveOp,
    Gpu,
    KernelEfficiency,
    NetworkEfficiency,
    NodeType,
    Precision,
    Price,
    Provenance,
)
from planner.domain.overheads import EngineProfile, Overheads, StepLosses, TrainingStack
from planner.errors import InvalidInputError
from planner.files.fields import Fields
from planner.units import Dimension

Reader = Callable[[str], Fields]
"""From the name of a file in hardware_catalog to its content."""

CONFIDENCES = ("low", "medium", "high")
PCIE_LAW = "pcie"
_MEGABYTE_ROOT = sqrt(1e6)
_MAX_GPUS = 100_000


def read_gpu(open_file: Reader, gpu_id: str) -> Gpu:
    """The accelerator of `gpu-<id>.yaml` with its efficiencies."""
    fields = open_file(f"gpu-{gpu_id}.yaml")
    peaks = _peaks(fields.section("peak"))
    scale_up = fields.section("scale_up")
    kind, bandwidth = scale_up.text("kind"), scale_up.quantity("bandwidth", Dimension.BANDWIDTH)
    scale_up.count("max_domain_gpus", limit=_MAX_GPUS)
    scale_up.finish()
    efficiency = fields.section("efficiency")
    kernels = _kernels(open_file, efficiency, peaks)
    collectives = _collectives(open_file, efficiency, bandwidth)
    facts = _provenance(fields)
    note, confidence = efficiency.text("note"), _confidence(efficiency)
    efficiency.finish()
    gpu = Gpu(
        id=fields.text("id"),
        name=fields.text("name"),
        vendor=fields.text("vendor"),
        architecture=fields.text("architecture"),
        memory_bytes=fields.quantity("memory", Dimension.SIZE),
        hbm_bytes_per_s=fields.quantity("memory_bandwidth", Dimension.BANDWIDTH),
        peak_flop_per_s=peaks,
        scale_up_kind=kind,
        scale_up_bytes_per_s=bandwidth,
        host_link_bytes_per_s=fields.quantity("host_link", Dimension.BANDWIDTH),
        kernels=kernels,
        collectives=collectives,
        provenance=Provenance(
            source=f"{facts.source}; efficiencies: {note}",
            date=facts.date,
            confidence=min(facts.confidence, confidence, key=CONFIDENCES.index),
        ),
    )
    fields.skip(["host_kind"])
    fields.finish()
    return gpu


def read_node(open_file: Reader, node_id: str) -> NodeType:
    """The machine of `node-<id>.yaml`."""
    fields = open_file(f"node-{node_id}.yaml")
    gpu_id = fields.text("gpu")
    price = _price(fields)
    node = NodeType(
        id=fields.text("id"),
        name=fields.text("name"),
        gpu=read_gpu(open_file, gpu_id),
        gpus_per_node=fields.count("gpus_per_node", limit=1024),
        scale_up_domain_gpus=fields.count("scale_up_domain_gpus", limit=_MAX_GPUS),
        nic_bytes_per_s=fields.quantity("nic", Dimension.BANDWIDTH),
        host_ram_bytes=fields.quantity("host_ram", Dimension.SIZE),
        network=_network(open_file, fields.text("fabric"), fields.text("host")),
        price=price,
        provenance=_provenance(fields),
    )
    fields.skip(["provider", "fabric_name"])
    fields.finish()
    return node


def read_overheads(open_file: Reader) -> Overheads:
    """overheads.yaml: each line has a value and the reason for it."""
    fields = open_file("overheads.yaml")

    def entry(key: str) -> Fields:
        section = fields.section(key)
        section.text("why")
        return section

    def size(key: str) -> float:
        return entry(key).quantity("value", Dimension.SIZE)

    def seconds(key: str) -> float:
        return entry(key).quantity("value", Dimension.TIME)

    def number(key: str, limit: float) -> float:
        return entry(key).number("value", limit=limit)

    overheads = Overheads(
        context_bytes=size("context"),
        communicator_bytes=size("communicator"),
        first_communicator_bytes=size("first_communicator"),
        fragmentation_ratio=number("fragmentation_ratio", 1),
        engine_activation_factor=number("engine_activation_factor", 100),
        engine_batched_tokens=number("engine_batched_tokens", 1e7),
        engine_graph_bytes=size("engine_graph"),
        engine_sleep_bytes=size("engine_sleep"),
        engine_step_s=seconds("engine_step"),
        engine_step_per_sequence_s=seconds("engine_step_per_sequence"),
        engine_stream_per_sequence_s=seconds("engine_stream_per_sequence"),
        engine_multi_node_step_s=seconds("engine_multi_node_step"),
        engine_prefill_step_s=seconds("engine_prefill_step"),
        engine_mixes_prefill=True,
        engine_all_reduce_latency_ratio=number("engine_all_reduce_latency_ratio", 10),
        engine_launch_ratio=number("engine_launch_ratio", 10),
        expert_popularity_variance=number("expert_popularity_variance", 10),
        engine_wake_s=seconds("engine_wake"),
        elementwise_launch_s=seconds("elementwise_launch"),
        train_kernel_launch_s=seconds("train_kernel_launch"),
        optimizer_host_s=seconds("optimizer_host"),
        swap_transition_s=seconds("swap_transition"),
        sync_fixed_s=seconds("sync_fixed"),
        sync_per_tensor_s=seconds("sync_per_tensor"),
        sync_bucket_bytes=size("sync_bucket"),
        sync_gather_ratio=number("sync_gather_ratio", 1),
        stage_switch_s=seconds("stage_switch"),
        logits_bytes_per_element=number("logits_bytes_per_element", 100),
        host_process_bytes=size("host_process"),
        vocabulary_parallel_logits_bytes_per_element=number("vocabulary_parallel_logits_bytes_per_element", 100),
        logprob_logits_bytes_per_element=number("logprob_logits_bytes_per_element", 100),
        provenance=Provenance(source=fields.text("source"), date=fields.text("date"), confidence=_confidence(fields)),
        engines=tuple(_engine(section) for section in fields.sections("engines")),
        megatron=_training_stack(fields.section("training_stacks").section("megatron"), "megatron"),
        megatron_graphs=_training_stack(
            fields.section("training_stacks").section("megatron_graphs"), "megatron_graphs"
        ),
        fsdp=_training_stack(fields.section("training_stacks").section("fsdp"), "fsdp"),
        recurrent_ratio=number("recurrent_ratio", 1),
        block_scaled_ratio=number("block_scaled_ratio", 1),
        step_losses=_step_losses(fields.section("step_losses")),
        routing_imbalance_ratio=number("routing_imbalance_ratio", 10),
    )
    fields.finish()
    return overheads


def _step_losses(fields: Fields) -> StepLosses:
    def entry(key: str) -> Fields:
        section = fields.section(key)
        section.text("why")
        return section

    losses = StepLosses(
        rollout_ratio=entry("rollout_ratio").number("value", limit=10),
        training_ratio=entry("training_ratio").number("value", limit=10),
        moe_training_ratio=entry("moe_training_ratio").number("value", limit=10),
        sync_ratio=entry("sync_ratio").number("value", limit=10),
        swap_bytes_per_s=entry("swap").quantity("value", Dimension.BANDWIDTH),
        sequence_s=entry("sequence").quantity("value", Dimension.TIME),
        step_s=entry("step").quantity("value", Dimension.TIME),
    )
    fields.finish()
    return losses


def _engine(fields: Fields) -> EngineProfile:
    profile = EngineProfile(
        name=fields.text("name"),
        step_s=fields.quantity("step", Dimension.TIME),
        step_per_sequence_s=fields.quantity("step_per_sequence", Dimension.TIME),
        stream_per_sequence_s=fields.quantity("stream_per_sequence", Dimension.TIME),
        prefill_step_s=fields.quantity("prefill_step", Dimension.TIME),
        mixes_prefill=fields.text("prefill") == "mixed",
        all_reduce_latency_ratio=fields.number("all_reduce_latency_ratio", limit=10),
        launch_ratio=fields.number("launch_ratio", limit=10),
    )
    fields.text("why")
    fields.finish()
    return profile


def _training_stack(fields: Fields, name: str) -> TrainingStack:
    stack = TrainingStack(
        name=name,
        compute_ratio=fields.number("compute_ratio", limit=1),
        attention_ratio=fields.number("attention_ratio", limit=1),
        moe_ratio=fields.number("moe_ratio", limit=1),
        elementwise_passes=fields.number("elementwise_passes", limit=100),
        quantisation_passes=fields.number("quantisation_passes", limit=100),
        moe_layer_host_s=_optional_time(fields, "moe_layer_host"),
        recurrent_layer_host_s=_optional_time(fields, "recurrent_layer_host"),
        overlap_ratio=fields.number("overlap_ratio", limit=1),
        overlap_tax_ratio=fields.number("overlap_tax_ratio", limit=1),
        tp_overlap_ratio=_optional_ratio(fields, "tp_overlap_ratio"),
        ep_overlap_ratio=_optional_ratio(fields, "ep_overlap_ratio"),
    )
    fields.text("why")
    fields.finish()
    return stack


def _optional_time(fields: Fields, key: str) -> float:
    return fields.quantity(key, Dimension.TIME) if fields.has(key) else 0.0


def _optional_ratio(fields: Fields, key: str) -> float:
    """0 where the file does not say it."""
    return fields.number(key, limit=1) if fields.has(key) else 0.0


def _peaks(fields: Fields) -> tuple[tuple[Precision, float], ...]:
    peaks = tuple((p, fields.quantity(p.value, Dimension.RATE)) for p in Precision if fields.has(p.value))
    fields.finish()
    return peaks


def _kernels(
    open_file: Reader, efficiency: Fields, peaks: tuple[tuple[Precision, float], ...]
) -> tuple[tuple[Precision, KernelEfficiency], ...]:
    """Measured kernels for the precisions that this GPU has and the measured one had too."""
    measured = open_file(f"efficiency-{efficiency.text('kernels_from')}.yaml").section("kernels")
    override = efficiency.number("gemm_flop_ratio", limit=1) if efficiency.has("gemm_flop_ratio") else None
    training = efficiency.section("training_scale") if efficiency.has("training_scale") else None
    result: list[tuple[Precision, KernelEfficiency]] = []
    for precision, _ in peaks:
        if not measured.has(precision.value):
            continue
        kernel = _kernel(measured.section(precision.value))
        if override is not None:
            # All matrix kernels of a vendor that reaches less of its peak scale alike.
            scale = override / _kernel(measured.section(Precision.BF16.value)).gemm_flop_ratio
            kernel = replace(
                kernel,
                gemm_flop_ratio=kernel.gemm_flop_ratio * scale,
                attention_flop_ratio=kernel.attention_flop_ratio * scale,
                moe_gemm_flop_ratio=kernel.moe_gemm_flop_ratio * scale,
                training_flop_ratio=kernel.training_flop_ratio * scale,
                training_moe_flop_ratio=kernel.training_moe_flop_ratio * scale,
            )
        if training is not None and training.has(precision.value):
            # Sustained training differs from the measured GPU by power limits, not by kernels.
            scale = training.number(precision.value, limit=2)
            kernel = replace(
                kernel,
                training_flop_ratio=kernel.training_flop_ratio * scale,
                training_moe_flop_ratio=kernel.training_moe_flop_ratio * scale,
            )
        result.append((precision, kernel))
    return tuple(result)


def _kernel(fields: Fields) -> KernelEfficiency:
    kernel = KernelEfficiency(
        gemm_flop_ratio=fields.number("gemm_flop_ratio", limit=1),
        gemm_hbm_ratio=fields.number("gemm_hbm_ratio", limit=1),
        gemm_launch_s=fields.quantity("gemm_launch", Dimension.TIME),
        attention_flop_ratio=fields.number("attention_flop_ratio", limit=1),
        attention_half_tokens=fields.number("attention_half_tokens", limit=1e5),
        decode_attention_hbm_ratio=fields.number("decode_attention_hbm_ratio", limit=1),
        decode_attention_launch_s=fields.quantity("decode_attention_launch", Dimension.TIME),
        moe_gemm_flop_ratio=fields.number("moe_gemm_flop_ratio", limit=1),
        moe_hbm_ratio=fields.number("moe_hbm_ratio", limit=1),
        moe_launch_s=fields.quantity("moe_launch", Dimension.TIME),
        weight_only_hbm_ratio=fields.number("weight_only_hbm_ratio", limit=1),
        weight_only_flop_ratio=fields.number("weight_only_flop_ratio", limit=1),
        weight_only_launch_s=fields.quantity("weight_only_launch", Dimension.TIME),
        training_flop_ratio=fields.number("training_flop_ratio", limit=1),
        training_moe_flop_ratio=fields.number("training_moe_flop_ratio", limit=1),
    )
    fields.finish()
    return kernel


def _collectives(
    open_file: Reader, efficiency: Fields, bandwidth_bytes_per_s: float
) -> tuple[tuple[CollectiveOp, CollectiveLaw], ...]:
    """Laws of a measured GPU, scaled to this GPU's link.

    Bandwidth scales with the link. The square-root term comes from filling a pipeline of chunks, whose best
    chunk size makes it proportional to 1/sqrt(bandwidth). Latency does not scale.
    """
    source = efficiency.text("collectives_from")
    laws = open_file(f"efficiency-{source}.yaml").section("collectives")
    scale = 1.0
    if source != PCIE_LAW:
        link = open_file(f"gpu-{source}.yaml").section("scale_up").quantity("bandwidth", Dimension.BANDWIDTH)
        scale = bandwidth_bytes_per_s / link
    return tuple((op, _law(laws.sections(op.value), scale, bandwidth_bytes_per_s)) for op in CollectiveOp)


def _law(rows: tuple[Fields, ...], scale: float, link_bytes_per_s: float) -> CollectiveLaw:
    ranks = tuple(row.count("ranks", limit=_MAX_GPUS, minimum=2) for row in rows)
    if not ranks or list(ranks) != sorted(set(ranks)):
        raise InvalidInputError("ranks must ascend", where=rows[0].where if rows else "collectives")
    law = CollectiveLaw(
        num_ranks=ranks,
        alpha_s=tuple(row.quantity("latency", Dimension.TIME) for row in rows),
        bytes_per_s=tuple(_bus_bytes_per_s(row, scale, link_bytes_per_s) for row in rows),
        gamma_s=tuple(row.quantity("ramp_time_at_1MB", Dimension.TIME) / _MEGABYTE_ROOT / sqrt(scale) for row in rows),
    )
    for row in rows:
        row.finish()
    return law


def _bus_bytes_per_s(row: Fields, scale: float, link_bytes_per_s: float) -> float:
    if row.has("share_of_link"):
        return row.number("share_of_link", limit=1) * link_bytes_per_s
    return row.quantity("bandwidth", Dimension.BANDWIDTH) * scale


def _network(open_file: Reader, fabric: str, host: str) -> NetworkEfficiency:
    file = open_file("networks.yaml")
    nic, link = file.section("fabrics").section(fabric), file.section("hosts").section(host)
    network = NetworkEfficiency(
        nic_ratio=nic.number("nic_ratio", limit=1),
        nic_half_bytes=nic.quantity("nic_half_size", Dimension.SIZE),
        nic_small_half_bytes=nic.quantity("nic_small_half_size", Dimension.SIZE),
        nic_latency_s=nic.quantity("latency", Dimension.TIME),
        nic_latency_per_log2_s=nic.quantity("latency_per_doubling", Dimension.TIME),
        host_link_ratio=link.number("host_link_ratio", limit=1),
        host_node_bytes_per_s=link.quantity("node_bandwidth", Dimension.BANDWIDTH),
        host_memory_bytes_per_s=link.quantity("memory_bandwidth", Dimension.BANDWIDTH),
    )
    for section in (nic, link):
        section.skip(["source", "date", "confidence"])
        section.finish()
    return network


def _price(fields: Fields) -> Price | None:
    """The on-demand price; spot prices stand in the file for people only."""
    provider = fields.text("provider")
    for price in fields.sections("prices"):
        kind = price.text("kind")
        if kind == "on-demand":
            return Price(
                usd_per_gpu_hour=price.quantity("per_gpu", Dimension.MONEY_RATE),
                provider=price.optional_text("provider") or provider,
                region=price.optional_text("region") or "not stated",
                date=price.text("date"),
                kind=kind,
            )
    return None


def _provenance(fields: Fields) -> Provenance:
    parts = [*fields.texts("source"), *(f"assumed: {text}" for text in fields.texts("assumptions"))]
    fields.texts("notes")
    if not parts:
        raise InvalidInputError("no source is given", where=fields.where)
    return Provenance(source="; ".join(parts), date=fields.text("date"), confidence=_confidence(fields))


def _confidence(fields: Fields) -> str:
    value = fields.text("confidence")
    if value not in CONFIDENCES:
        raise fields.wrong("confidence", value, ", ".join(CONFIDENCES))
    return value
