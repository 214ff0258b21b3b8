"""Closed loops, maximum load and formats of engines: limits and how they must scale."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.decode import EngineLayout, decode_step_terms, distinct_experts, engine_layout
from planner.cost.formats import WeightFormats, expert_launch_s, expert_rates, uniform
from planner.cost.serving import (
    CacheBudget,
    CacheRule,
    ClosedLoop,
    MaximumLoad,
    cache_slots,
    closed_loop_terms,
    maximum_load_terms,
)
from planner.domain.hardware import Precision
from planner.domain.model import Model
from planner.domain.overheads import Overheads
from tests.unit.cost.engines import DENSE, LATENT, OVERHEADS, SPARSE, node

ONE = np.ones(1)
BF16 = uniform(Precision.BF16)


def layout(tp: int = 4, ep: int = 1, attention_dp: int = 1) -> EngineLayout:
    return engine_layout(ONE * tp, ONE, ONE * ep, node(), ONE * attention_dp)


def token_terms(
    model: Model, concurrency: float, *, prompt: float = 1024.0, overheads: Overheads = OVERHEADS
) -> dict[str, float]:
    load = ClosedLoop(
        concurrency=ONE * concurrency,
        prompt_tokens=ONE * prompt,
        output_tokens=ONE * 1000.0,
        batched_tokens=ONE * 8192.0,
    )
    terms = closed_loop_terms(model, BF16, node(), overheads, layout(), load)
    return {name: float(np.broadcast_to(seconds, (1,))[0]) for name, seconds in terms.items()}


def test_a_single_request_is_not_interrupted_by_prompts() -> None:
    alone = token_terms(DENSE, 1.0)
    step = decode_step_terms(DENSE, BF16, node(), OVERHEADS, layout(), ONE, ONE * 1524.0)
    assert alone.pop("prefill") == 0.0
    assert sum(alone.values()) == pytest.approx(float(sum(s for s in step.values())[0]), rel=1e-9)  # type: ignore[index]


def test_prompts_cost_more_where_decoding_stops_for_them() -> None:
    stops = replace(OVERHEADS, engine_mixes_prefill=False)
    assert token_terms(DENSE, 32.0, overheads=stops)["prefill"] > token_terms(DENSE, 32.0)["prefill"] > 0
    assert token_terms(DENSE, 32.0, prompt=4096.0)["prefill"] > 2 * token_terms(DENSE, 32.0)["prefill"]


def test_streaming_shows_only_where_it_takes_longer_than_the_gpu() -> None:
    slow = replace(OVERHEADS, engine_stream_per_sequence_s=1e-3)
    assert token_terms(DENSE, 4.0, overheads=slow)["engine_host"] == pytest.approx(OVERHEADS.engine_step_s)
    assert token_terms(DENSE, 64.0, overheads=slow)["engine_host"] > 0.03


def test_waves_of_a_maximum_load() -> None:
    def total(requests: float) -> float:
        load = MaximumLoad(
            requests=ONE * requests,
            slots=ONE * 100.0,
            prompt_tokens=ONE * 8.0,
            output_tokens=ONE * 1000.0,
            batched_tokens=ONE * 8192.0,
        )
        return float(sum(maximum_load_terms(DENSE, BF16, node(), OVERHEADS, layout(), load).values())[0])  # type: ignore[index]

    assert total(200.0) == pytest.approx(2 * total(100.0), rel=1e-6)
    assert 1.3 * total(100.0) < total(101.0) < total(200.0)


def test_popular_experts_leave_more_of_the_others_idle() -> None:
    tokens = np.array([1.0, 16.0, 1e7])
    uniform_routing = distinct_experts(128, 8, tokens)
    skewed = distinct_experts(128, 8, tokens, 0.5)
    assert skewed[0] == pytest.approx(8.0)
    assert skewed[1] < uniform_routing[1]
    assert distinct_experts(128, 8, tokens, 1e-9) == pytest.approx(uniform_routing, rel=1e-6)


def test_formats_without_matrix_units_are_widened() -> None:
    gpu = node().gpu
    four_bit = WeightFormats(dense=Precision.BF16, experts=Precision.FP4)
    rates = expert_rates(gpu, four_bit)
    assert rates.weight_bytes_per_param == 0.5
    assert rates.moe_hbm_s_per_byte == pytest.approx(1 / (3.35e12 * 0.8))
    assert expert_launch_s(gpu, four_bit) == gpu.kernel(Precision.BF16).weight_only_launch_s
    widened = WeightFormats(dense=Precision.BF16, experts=Precision.FP8, arithmetic=Precision.BF16)
    native = WeightFormats(dense=Precision.BF16, experts=Precision.FP8)
    assert expert_rates(gpu, widened).moe_gemm_s_per_flop > expert_rates(gpu, native).moe_gemm_s_per_flop


def test_attention_groups_divide_a_latent_cache_that_tp_repeats() -> None:
    def kv(layout_of: EngineLayout) -> float:
        terms = decode_step_terms(LATENT, BF16, node(), OVERHEADS, layout_of, ONE * 64.0, ONE * 4096.0)
        return float(terms["kv_read"][0])

    assert kv(layout(tp=4)) > 3 * kv(layout(tp=1, attention_dp=4))


def test_attention_groups_gather_tokens_for_experts_only() -> None:
    split = layout(tp=1, ep=4, attention_dp=4)
    sparse = decode_step_terms(SPARSE, BF16, node(), OVERHEADS, split, ONE * 64.0, ONE * 1024.0)
    dense = decode_step_terms(DENSE, BF16, node(), OVERHEADS, split, ONE * 64.0, ONE * 1024.0)
    assert float(sparse["ep_scale_up"][0]) > 0
    assert float(dense["ep_scale_up"][0]) == 0


@pytest.mark.parametrize("rule", list(CacheRule))
def test_slots_follow_memory_and_context(rule: CacheRule) -> None:
    def slots(fraction: float, context: float) -> float:
        budget = CacheBudget(memory_fraction=fraction, rule=rule)
        return float(cache_slots(DENSE, BF16, node(), OVERHEADS, layout(), budget, ONE * context)[0])

    assert slots(0.9, 2048.0) > slots(0.8, 2048.0) > 0
    assert slots(0.9, 4096.0) == pytest.approx(slots(0.9, 2048.0) / 2)
    assert slots(0.05, 2048.0) == 0.0 or rule is CacheRule.FREE
