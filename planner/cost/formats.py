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

    Products of experts run in `arithmetic` where it is given (INT4 checkpoints: BF16; MXFP4 weights with 8-bit
    activations: FP8), else in the format of their weights. Where the GPU has no matrix unit for a format its bytes
    are read and widened on the fly to 16 bit (*weight-only*). Embedding and output head stay in 16 bit.
    """

    dense: Precision
    experts: Precision
    cache_bytes: float = 2.0
    arithmetic: Precision | None = None


def uniform(precision: Precision) -> WeightFormats:
    """One format for all matrices, a 16-bit cache."""
    return WeightFormats(dense=precision, experts=precision)


def _is_weight_only(gpu: Gpu, formats: WeightFormats) -> bool:
    """Expert weights are widened to 16 bit before they are multiplied."""
    if formats.experts is Precision.BF16:
        return False
    return formats.arithmetic is Precision.BF16 or not gpu.supports(formats.experts)


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
    if _is_weight_only(gpu, formats):
        kernel = gpu.kernel(Precision.BF16)
        return replace(
            kernel_rates(gpu, Precision.BF16, is_training=False),
            moe_hbm_s_per_byte=1.0 / (gpu.hbm_bytes_per_s * kernel.weight_only_hbm_ratio),
            moe_gemm_s_per_flop=1.0 / (gpu.peak(Precision.BF16) * kernel.weight_only_flop_ratio),
            weight_bytes_per_param=formats.experts.num_bytes,
        )
    rates = kernel_rates(gpu, formats.experts, is_training=False)
    if formats.arithmetic is None or formats.arithmetic is formats.experts:
        return rates
    wide = kernel_rates(gpu, formats.arithmetic, is_training=False)
    return replace(rates, moe_gemm_s_per_flop=wide.moe_gemm_s_per_flop)


def expert_launch_s(gpu: Gpu, formats: WeightFormats) -> float:
    """Fixed time of the routed experts of one layer."""
    if _is_weight_only(gpu, formats):
        return gpu.kernel(Precision.BF16).weight_only_launch_s
    return gpu.kernel(formats.experts).moe_launch_s
