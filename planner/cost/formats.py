"""Number formats of one model inside an inference engine, and the kernel rates that follow from them.

Published quantised checkpoints rarely use one format throughout: experts of DeepSeek, Kimi and gpt-oss come in
four bits while attention stays in 8 or 16, and the KV cache has a format of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from planner.cost.compute import KernelRates, kernel_rates
from planner.domain.hardware import Gpu, KernelEfficiency, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormats:
    """Formats of projections and dense MLPs, of routed experts, and bytes per cached element.

    A format that the GPU has no matrix unit for is *weight-only*: its bytes are read, then products run in 16 bit.
    Embedding and output head stay in 16 bit.
    """

    dense: Precision
    experts: Precision
    cache_bytes: float = 2.0
    is_weight_only: bool = False
    """Products run in 16 bit even where the GPU has a matrix unit for the format (INT4 checkpoints)."""


def uniform(precision: Precision) -> WeightFormats:
    """One format for all matrices, a 16-bit cache."""
    return WeightFormats(dense=precision, experts=precision)


def _has_units(gpu: Gpu, precision: Precision, is_weight_only: bool) -> bool:
    """The GPU multiplies in this format, and the checkpoint asks for it."""
    return gpu.supports(precision) and not is_weight_only


@lru_cache(maxsize=256)
def engine_kernel(gpu: Gpu, precision: Precision) -> KernelEfficiency:
    """Efficiencies of the kernels that multiply with dense weights of `precision`."""
    return gpu.kernel(precision if gpu.supports(precision) else Precision.BF16)


@lru_cache(maxsize=256)
def engine_rates(gpu: Gpu, precision: Precision) -> KernelRates:
    """Rates of isolated kernels with dense weights of `precision`; weight-only where the GPU lacks the format."""
    if gpu.supports(precision):
        return kernel_rates(gpu, precision, is_training=False)
    dequantised = kernel_rates(gpu, Precision.BF16, is_training=False)
    return replace(dequantised, weight_bytes_per_param=precision.num_bytes)


@lru_cache(maxsize=256)
def expert_rates(gpu: Gpu, formats: WeightFormats) -> KernelRates:
    """Rates of the grouped products of routed experts."""
    if _has_units(gpu, formats.experts, formats.is_weight_only):
        return kernel_rates(gpu, formats.experts, is_training=False)
    dequantised = kernel_rates(gpu, Precision.BF16, is_training=False)
    kernel = gpu.kernel(Precision.BF16)
    return replace(
        dequantised,
        moe_hbm_s_per_byte=1.0 / (gpu.hbm_bytes_per_s * kernel.weight_only_hbm_ratio),
        moe_gemm_s_per_flop=1.0 / (gpu.peak(Precision.BF16) * kernel.weight_only_flop_ratio),
        weight_bytes_per_param=formats.experts.num_bytes,
    )


def expert_launch_s(gpu: Gpu, formats: WeightFormats) -> float:
    """Fixed time of the routed experts of one layer."""
    if _has_units(gpu, formats.experts, formats.is_weight_only):
        return gpu.kernel(formats.experts).moe_launch_s
    return gpu.kernel(Precision.BF16).weight_only_launch_s
