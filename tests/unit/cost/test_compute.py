"""Kernel times: pair counts against enumeration, rates against published plateaus."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.compute import attention_flop_per_token, attention_pairs_per_token, kernel_rates, roofline_s
from planner.domain.hardware import Precision
from planner.files.catalog import load_gpu
from tests.unit.cost.trainer_cases import QWEN3_32B


@pytest.mark.parametrize("window", [None, 1, 100, 1000, 5000])
def test_pairs_match_enumeration(window: int | None) -> None:
    tokens = 1000
    queries = np.arange(1, tokens + 1)
    keys = queries if window is None else np.minimum(queries, window)
    counted = float(keys.sum()) / tokens
    # the formula counts the diagonal half
    assert attention_pairs_per_token(tokens, tokens**2, window) == pytest.approx(counted, abs=0.51)


def test_unequal_lengths_cost_more_than_their_mean() -> None:
    lengths = np.array([1000.0, 3000.0])
    pairs = attention_pairs_per_token(lengths.mean(), (lengths**2).mean(), None)
    assert pairs * lengths.sum() == pytest.approx((lengths**2).sum() / 2)


def test_attention_flop_of_qwen3_32b() -> None:
    """4 * 64 heads * 128 per pair, half of the square under the mask."""
    attention = QWEN3_32B.layers[0].attention
    assert attention_flop_per_token(attention, 4096, 4096**2) == pytest.approx(4 * 64 * 128 * 4096 / 2)


def test_gemm_rate_is_the_published_plateau() -> None:
    """785 TFLOP/s for bf16 on H100 (fit of aiconfigurator-core 0.12's tables); training is slower."""
    gpu = load_gpu("h100")
    isolated = kernel_rates(gpu, Precision.BF16, is_training=False)
    training = kernel_rates(gpu, Precision.BF16, is_training=True)
    assert 1 / isolated.gemm_s_per_flop == pytest.approx(785e12, rel=0.02)
    assert training.gemm_s_per_flop > isolated.gemm_s_per_flop
    assert kernel_rates(gpu, Precision.FP8, is_training=True).gemm_s_per_flop < training.gemm_s_per_flop


def test_roofline_takes_the_larger_side() -> None:
    assert roofline_s(np.array([1e12, 1e9]), 1e-15, np.array([1e6, 1e9]), 1e-12) == pytest.approx([1e-3, 1e-3])
