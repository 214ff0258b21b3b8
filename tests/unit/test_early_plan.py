"""The plan that comes before all is priced, and what a time limit leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner import pipeline, solving
from planner.domain.execution import Execution, ExecutionMode
from planner.domain.framework import FrameworkRules
from planner.domain.hardware import Cluster
from planner.domain.plan import Limits, Objective, Status
from planner.domain.request import PlanRequest
from planner.errors import NoPlanFoundError
from planner.parts import Shop
from planner.pipeline import EARLY_PLAN_PLACES, make_plan
from planner.search.solve import SearchResult
from planner.search.space import COARSE, WHOLE, SizeGrid
from planner.solving import Outcome, StalenessResult, best_within, first_plan, search, search_limits
from tests.unit.test_pipeline import qwen_workload, request_on

LARGE = request_on(qwen_workload(), EARLY_PLAN_PLACES)


def found(request: PlanRequest) -> Outcome:
    assert request.cluster is not None
    early = first_plan(request, request.cluster, None)
    assert early is not None
    return early


def test_an_early_plan_is_one_of_the_whole_space() -> None:
    early, plan = found(LARGE), make_plan(LARGE)
    assert early.result.status is Status.FEASIBLE
    assert early.result.bound <= plan.bound <= early.result.value
    assert plan.run is not None and plan.run.time_to_first_s < plan.run.time_s / 2


def test_the_coarse_part_is_part_of_the_whole_space() -> None:
    node = LARGE.cluster.pools[0].node  # type: ignore[union-attr]
    for num_nodes in (1, 3, 8, 13, 64):
        coarse, whole = (set(SizeGrid.of(node, num_nodes, coverage).sizes) for coverage in (COARSE, WHOLE))
        assert coarse <= whole and max(whole) in coarse
    for name in COARSE.__slots__:
        if name != "pool_parts":
            assert set(getattr(COARSE, name)) <= set(getattr(WHOLE, name))


def out_of_time(request: PlanRequest, cluster: Cluster, rules: FrameworkRules | None) -> Outcome:
    raise NoPlanFoundError("no plan found within 1 s")


def test_the_early_plan_is_the_answer_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "search", out_of_time)
    plan = make_plan(LARGE)
    assert plan.status is Status.FEASIBLE
    assert 0.0 < plan.bound < plan.objective_value == pytest.approx(found(LARGE).result.value)


def test_the_better_of_an_ended_search_and_the_early_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    early = found(LARGE)

    def ended(request: PlanRequest, cluster: Cluster, rules: FrameworkRules | None) -> Outcome:
        outcome = search(request, cluster, rules)
        worse = replace(outcome.result, status=Status.FEASIBLE, value=early.result.value * 2)
        return replace(outcome, result=worse)

    monkeypatch.setattr(pipeline, "search", ended)
    plan = make_plan(LARGE)
    assert plan.status is Status.FEASIBLE
    assert plan.objective_value == pytest.approx(early.result.value)


def test_no_time_is_no_plan() -> None:
    with pytest.raises(NoPlanFoundError, match="--time-limit"):
        make_plan(replace(LARGE, limits=Limits(time_limit_s=1e-9)))


def test_staleness_steps_that_the_time_does_not_reach_are_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    request = replace(request_on(qwen_workload(), 2), limits=Limits(max_staleness=2))
    assert request.cluster is not None

    def late(*_: object) -> None:
        raise NoPlanFoundError("no plan found within 1 s")

    monkeypatch.setattr(solving, "_step", late)
    outcome = search(request, request.cluster, None)
    assert outcome.result.status is Status.FEASIBLE
    assert outcome.result.solution is not None and not outcome.result.solution.execution.is_asynchronous
    assert outcome.result.bound < search(replace(request, limits=Limits()), request.cluster, None).result.value


def test_a_mode_that_is_not_permitted_takes_no_proof_away(monkeypatch: pytest.MonkeyPatch) -> None:
    request = replace(request_on(qwen_workload(), 2), limits=Limits(max_staleness=1))
    assert request.cluster is not None
    whole, step = search(request, request.cluster, None), solving._step

    def late(shop: Shop, staleness: int, executions: tuple[Execution, ...], *args: object) -> StalenessResult:
        if any(execution.mode is ExecutionMode.STREAMING for execution in executions):
            raise NoPlanFoundError("no plan found within 1 s")
        return step(shop, staleness, executions, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(solving, "_step", late)
    outcome = search(request, request.cluster, None)
    assert [item.staleness for item in outcome.by_staleness] == [0, 1]
    assert (outcome.result.status, outcome.result.value) == (Status.OPTIMAL, whole.result.value)


def test_other_limits_are_searched_on_what_is_priced() -> None:
    request = request_on(qwen_workload(), 2)
    assert request.cluster is not None
    outcome = search(request, request.cluster, None)
    limits = replace(request.limits, objective=Objective.GPUS)
    fresh = search(replace(request, limits=limits), request.cluster, None)
    assert best_within(outcome, search_limits(limits)).value == fresh.result.value


def test_one_time_limit_for_all_searches_of_the_smallest_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = request_on(qwen_workload("qwen3-32b"))
    assert fixed.cluster is not None
    request = replace(fixed, cluster=None, gpu_type_when_open=fixed.cluster.pools[0].node)
    given: list[float] = []

    def nothing(request: PlanRequest, cluster: Cluster, rules: FrameworkRules | None) -> Outcome:
        given.append(request.limits.time_limit_s)
        if len(given) == 3:
            raise NoPlanFoundError(f"no plan found within {request.limits.time_limit_s} s")
        outcome = search(fixed, cluster, rules)
        return replace(outcome, result=replace(outcome.result, solution=None))

    monkeypatch.setattr(pipeline, "search", nothing)
    with pytest.raises(NoPlanFoundError, match="within 60 s"):
        make_plan(request)
    assert 60.0 > given[0] > given[1] > given[2]


def test_what_the_time_ended_is_no_best_plan_of_any_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_on(qwen_workload(), limits=Limits(framework="verl"))
    plan, best_result = make_plan(request), solving.best_result
    assert plan.unrestricted_value is not None and plan.unrestricted_value <= plan.objective_value

    def ended(*args: object) -> SearchResult | None:
        result = best_result(*args)  # type: ignore[arg-type]
        return None if result is None else replace(result, status=Status.FEASIBLE)

    monkeypatch.setattr(pipeline, "best_result", ended)
    assert make_plan(request).unrestricted_value is None
