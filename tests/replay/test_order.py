"""The replay as an independent judge: finalists of a search keep their order."""

from collections.abc import Callable

import pytest

from benchmarks.finalists import MARGIN_RATIO, finalists, request_of
from benchmarks.replay import TARGET_REGRET_RATIO, judge, kendall_tau
from planner.domain.request import PlanRequest


def grpo() -> PlanRequest:
    return request_of(
        model="qwen3-8b", gpus="16xh100", num_prompts=64, group_size=8, response_mean=1000, response_max=4096
    )


def ppo() -> PlanRequest:
    return request_of(
        model="qwen3-8b", algorithm="ppo", reward="model", gpus="16xh100", num_prompts=128, group_size=4,
        response_mean=1000,
    )  # fmt: skip


@pytest.mark.parametrize("make", [grpo, ppo])
def test_picking_by_the_cost_model_costs_little(make: Callable[[], PlanRequest]) -> None:
    found = judge(make(), number=12, num_iterations=3)
    assert found.num_finalists >= 8
    assert found.regret_ratio <= TARGET_REGRET_RATIO
    assert found.clear_tau >= 0.6
    assert found.worst_difference_ratio < 0.10, f"plan and replay disagree: {found.worst_origin}"


def test_finalists_are_different_plans_within_the_margin() -> None:
    items = finalists(grpo(), 12, seed=0)
    times = [item.plan.time_s for item in items]
    assert items[0].origin == "the plan"
    assert max(times) <= min(times) * (1.0 + MARGIN_RATIO) * 1.01
    assert len({tuple((p.stage, p.device_group, p.strategy) for p in item.plan.placements) for item in items}) == len(
        items
    )


def test_tau_counts_pairs() -> None:
    assert kendall_tau([1.0, 2.0, 3.0], [10.0, 20.0, 30.0], least_ratio=0.0) == 1.0
    assert kendall_tau([1.0, 2.0, 3.0], [30.0, 20.0, 10.0], least_ratio=0.0) == -1.0
    assert kendall_tau([1.0, 2.0, 3.0], [10.0, 30.0, 20.0], least_ratio=0.0) == pytest.approx(1 / 3)
    assert kendall_tau([1.0, 1.001, 2.0], [10.0, 9.0, 20.0], least_ratio=0.01) == 1.0, "the close pair does not count"
