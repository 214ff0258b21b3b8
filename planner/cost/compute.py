"""Kernel times on one GPU: rooflines for matrix products and attention, on arrays of candidates.

time = max(flop / (peak * flop_ratio), bytes / (HBM * hbm_ratio)); the ratios are fitted per GPU and precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from planner.domain.hardware import Gpu, Precision
from planner.domain.model import Attention
from planner.domain.strategy import FloatArray

Tokens = TypeVar("Tokens", float, FloatArray)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRates:
    """Sustained rates of one GPU and precision, as reciprocals because formulas multiply by them.

    `gemm_s_per_flop`, `moe_gemm_s_per_flop`: matrix products; `attention_s_per_flop`: attention of infinitely
    long sequences; `hbm_s_per_byte`: streaming from GPU memory.
    """

    gemm_s_per_flop: float
    moe_gemm_s_per_flop: float
    attention_s_per_flop: float
    attention_half_tokens: float
    hbm_s_per_byte: float
    elementwise_s_per_byte: float
    """Streaming of 16-bit element-wise kernels."""
    moe_hbm_s_per_byte: float
    weight_bytes_per_param: float


def kernel_rates(gpu: Gpu, precision: Precision, *, is_training: bool) -> KernelRates:
    """Rates of isolated kernels, or of those of training loops.

    KeyError when the GPU has no such precision. Attention runs in 16 bit whatever the matrix precision.
    """
    kernel = gpu.kernel(precision)
    attention = gpu.kernel(Precision.BF16) if gpu.supports(Precision.BF16) else kernel
    attention_peak = gpu.peak(Precision.BF16) if gpu.supports(Precision.BF16) else gpu.peak(precision)
    peak = gpu.peak(precision)
    dense_ratio = kernel.training_flop_ratio if is_training else kernel.gemm_flop_ratio
    moe_ratio = kernel.training_moe_flop_ratio if is_training else kernel.moe_gemm_flop_ratio
    # What power and library take from matrix products in training they take from attention too.
    attention_loss = attention.training_flop_ratio / attention.gemm_flop_ratio if is_training else 1.0
    return KernelRates(
        gemm_s_per_flop=1.0 / (peak * dense_ratio),
        moe_gemm_s_per_flop=1.0 / (peak * moe_ratio),
        attention_s_per_flop=1.0 / (attention_peak * attention.attention_flop_ratio * attention_loss),
        attention_half_tokens=attention.attention_half_tokens,
        hbm_s_per_byte=1.0 / (gpu.hbm_bytes_per_s * kernel.gemm_hbm_ratio),
        elementwise_s_per_byte=1.0 / (gpu.hbm_bytes_per_s * attention.gemm_hbm_ratio),
        moe_hbm_s_per_byte=1.0 / (gpu.hbm_bytes_per_s * kernel.moe_hbm_ratio),
        weight_bytes_per_param=precision.num_bytes,
    )


def roofline_s(
    flop: FloatArray | float, s_per_flop: float, num_bytes: FloatArray | float, s_per_byte: float
) -> FloatArray:
    """max(compute time, memory time) in seconds, elementwise."""
    return np.maximum(flop * s_per_flop, num_bytes * s_per_byte)


def attention_pairs_per_token(mean_tokens: Tokens, mean_square_tokens: Tokens, window_tokens: int | None) -> Tokens:
    """Mean number of keys that a query attends to under a causal mask, over a batch of unequal sequences.

    Without window: E[L**2] / (2 E[L]). With window w only `L**2 - max(L - w, 0)**2` counts; it is evaluated at
    the length-biased mean length E[L**2] / E[L], exact for equal lengths.
    """
    biased = mean_square_tokens / mean_tokens
    if window_tokens is None:
        return 0.5 * biased
    seen: Tokens = np.minimum(window_tokens, biased)
    return seen - seen**2 / (2.0 * biased)


def attention_flop_per_token(attention: Attention, mean_tokens: Tokens, mean_square_tokens: Tokens) -> Tokens:
    """Forward FLOP per token of softmax attention and recurrent state updates of one layer, projections excluded."""
    pairs = attention_pairs_per_token(mean_tokens, mean_square_tokens, attention.window_tokens)
    return attention.score_flop_per_pair * pairs + attention.state_flop_per_token
