"""Flips are where independent plans say that another plan is better, and not before."""

from dataclasses import replace

import pytest

from planner.explaining.sensitivity import FLIP_RATIO
from planner.pipeline import estimate
from planner.whatif import fixed_workers
from tests.unit.explaining.cases import REQUESTS, plan_of, planned, sensitivity_of


def _loss(name: str, mean: float) -> float:
    """What keeping the plan costs at a mean response, without any code of the package."""
    request = REQUESTS[name]
    law = replace(request.workload.response, mean_tokens=mean)
    other = replace(request, workload=replace(request.workload, response=law))
    best = planned(other)
    assert best is not None
    kept = estimate(other, fixed_workers(plan_of(name)), plan_of(name).execution)
    return kept.time_s / best.time_s - 1.0


@pytest.mark.parametrize("name", ["dense", "asynchronous"])
def test_flips_lie_between_plans_that_agree_and_disagree(name: str) -> None:
    found = sensitivity_of(name)
    assert [flip.is_upwards for flip in found.flips] == [False, True]
    mean = REQUESTS[name].workload.response.mean_tokens
    for flip in found.flips:
        if flip.mean_tokens is None:
            assert _loss(name, round(flip.searched_tokens)) <= FLIP_RATIO
            continue
        assert (flip.mean_tokens > mean) == flip.is_upwards
        assert flip.at is not None
        assert flip.at.kept is None or _loss(name, flip.mean_tokens) > FLIP_RATIO
        if flip.searched_tokens != mean:
            assert _loss(name, flip.searched_tokens) <= FLIP_RATIO


def test_points_cover_lengths_spread_links_and_efficiencies() -> None:
    found = sensitivity_of("asynchronous")
    words = " | ".join(item.what for item in found.points)
    for part in ("mean response", "spread", "NICs", "links within nodes"):
        assert part in words
    for item in found.points:
        if item.kept is not None:
            assert item.best is not None and item.best.time_s <= item.kept.time_s * (1 + 1e-9)
            assert item.loss_ratio is not None and item.loss_ratio >= 0


def test_growth_is_the_mean_over_the_run() -> None:
    found = sensitivity_of("dense").growth
    assert found is not None and found.kept_s is not None and found.best_s is not None
    assert found.best_s <= found.kept_s
    first = plan_of("dense").time_s
    request, plan = REQUESTS["dense"], plan_of("dense")
    law = replace(request.workload.response, mean_tokens=found.last_tokens)
    last = estimate(
        replace(request, workload=replace(request.workload, response=law)), fixed_workers(plan), plan.execution
    ).time_s
    assert first < found.kept_s < last
