"""Hardware files: bare numbers, unknown keys and missing sources are refused; laws scale with the link."""

from __future__ import annotations

import copy
from importlib.resources import files
from math import sqrt
from typing import Any

import pytest
import yaml

from planner.domain.hardware import CollectiveOp, Precision
from planner.errors import InvalidInputError
from planner.files.fields import Fields
from planner.files.hardware_files import read_gpu, read_node, read_overheads

FILES = {
    path.name: yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    for path in files("hardware_catalog").iterdir()
    if path.name.endswith(".yaml")
}


class Store:
    """The catalog in memory, with changes."""

    def __init__(self) -> None:
        self.files: dict[str, Any] = copy.deepcopy(FILES)

    def __call__(self, name: str) -> Fields:
        return Fields(self.files[name], where=name)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("memory", 80, "has no unit"),
        ("memory", "80", "has no unit"),
        ("memory", "80 GB/s", "not a unit of bytes"),
        ("memory", "-80 GiB", "must be positive"),
        ("memory", None, "'memory' is null"),
        ("memory_bandwidth", "3350 GiB", "not a unit of bytes/s"),
        ("host_link", 63, "has no unit"),
        ("confidence", "sure", "low, medium, high"),
        ("source", [], "no source"),
        ("date", "", "date"),
        ("colour", "green", "'colour' is not known here"),
    ],
)
def test_wrong_gpu_entries(key: str, value: object, message: str) -> None:
    store = Store()
    store.files["gpu-h100-sxm.yaml"][key] = value
    with pytest.raises(InvalidInputError, match=message):
        read_gpu(store, "h100-sxm")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("nic", "50", "has no unit"),
        ("host_ram", 2048, "has no unit"),
        ("gpus_per_node", 0, "gpus_per_node"),
        ("fabric", "pigeons", "'pigeons' is missing"),
        ("prices", [{"kind": "on-demand", "per_gpu": 3.0, "date": "2026-01-01"}], "has no unit"),
    ],
)
def test_wrong_node_entries(key: str, value: object, message: str) -> None:
    store = Store()
    store.files["node-generic-h100-sxm.yaml"][key] = value
    with pytest.raises(InvalidInputError, match=message):
        read_node(store, "generic-h100-sxm")


def test_wrong_efficiencies() -> None:
    store = Store()
    store.files["efficiency-h100-sxm.yaml"]["kernels"]["bf16"]["gemm_flop_ratio"] = 1.2
    with pytest.raises(InvalidInputError, match="gemm_flop_ratio"):
        read_gpu(store, "h100-sxm")
    store = Store()
    store.files["efficiency-h100-sxm.yaml"]["collectives"]["all_gather"].reverse()
    with pytest.raises(InvalidInputError, match="ranks must ascend"):
        read_gpu(store, "h100-sxm")


def test_every_overhead_needs_its_reason() -> None:
    store = Store()
    del store.files["overheads.yaml"]["engine_wake"]["why"]
    with pytest.raises(InvalidInputError, match="engine_wake: key 'why' is missing"):
        read_overheads(store)


def test_collectives_scale_with_the_link() -> None:
    store = Store()
    h100, h800 = read_gpu(store, "h100-sxm"), read_gpu(store, "h800-sxm")
    base, scaled = (gpu.collective(CollectiveOp.ALL_GATHER) for gpu in (h100, h800))
    assert scaled.bytes_per_s[-1] == pytest.approx(base.bytes_per_s[-1] * 200 / 450)
    assert scaled.gamma_s[-1] == pytest.approx(base.gamma_s[-1] * sqrt(450 / 200))
    assert scaled.alpha_s == base.alpha_s


def test_vendor_ratio_scales_all_matrix_kernels() -> None:
    store = Store()
    h100 = read_gpu(store, "h100-sxm").kernel(Precision.BF16)
    mi300x = read_gpu(store, "mi300x").kernel(Precision.BF16)
    scale = 0.51 / h100.gemm_flop_ratio
    assert mi300x.gemm_flop_ratio == pytest.approx(0.51)
    assert mi300x.attention_flop_ratio == pytest.approx(h100.attention_flop_ratio * scale)
    assert mi300x.gemm_hbm_ratio == h100.gemm_hbm_ratio


def test_a_precision_without_measured_kernels_is_not_supported() -> None:
    gpu = read_gpu(Store(), "rtx-5090")
    assert gpu.peak(Precision.FP4) > gpu.peak(Precision.FP8)
    assert not gpu.supports(Precision.FP4)
    assert gpu.supports(Precision.FP8)
    assert read_gpu(Store(), "b200-sxm").supports(Precision.FP4)
