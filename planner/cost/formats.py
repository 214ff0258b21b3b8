"""Number formats of one model inside an inference engine, and the kernel rates that follow from them.

Published quantised checkpoints rarely use one format throughout: experts of DeepSeek, Kimi and gpt-oss come in
four bits while attention stays in 8 or 16, and the KV cache has a format of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
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


def uniform(precision: Precision) -> WeightFormats:
    """One format for all matrices, a 16-bit cache."""
    return WeightFormats(dense=precision, experts=precision)


@lru_cache(maxsize=256)
def engine_kernel(gpu: Gpu, precision: Precision) -> KernelEfficiency:
    """Efficiencies of the kernels that multiply with weights of `precision`."""
    return gpu.kernel(precision if gpu.supports(precision) else Precision.BF16)


@lru_cache(maxsize=256)
def engine_rates(gpu: Gpu, precision: Precision) -> KernelRates:
    """Rates of isolated kernels with weights of `precision`; weight-only where the GPU lacks the format."""
    if gpu.supports(precision):
        return kernel_rates(gpu, precision, is_training=False)
    dequantised = kernel_rates(gpu, Precision.BF16, is_training=False)
    return KernelRates(
        gemm_s_per_flop=dequantised.gemm_s_per_flop,
        moe_gemm_s_per_flop=dequantised.moe_gemm_s_per_flop,
        attention_s_per_flop=dequantised.attention_s_per_flop,
        attention_half_tokens=dequantised.attention_half_tokens,
        hbm_s_per_byte=dequantised.hbm_s_per_byte,
        moe_hbm_s_per_byte=dequantised.moe_hbm_s_per_byte,
        weight_bytes_per_param=precision.num_bytes,
    )
