"""Plans that overlap iterations or stages: what is found, what is saved, what each permission buys."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from planner import pipeline
from planner.domain.execution import Execution, ExecutionMode, Fusion, SchedulingPolicy
from planner.domain.fixed import FixedField
from planner.domain.plan import Limits, Objective, Plan, Status
from planner.domain.stages import StageName, WorkerName
from planner.errors import InfeasibleError
from planner.files.plan import parse_plan, plan_text
from planner.files.workload import WorkloadSpec, build_request
from planner.pareto import pareto_front
from planner.pipeline import make_plan, plan_with_search
from tests.unit.test_pipeline import qwen_workload, request_on

LAG = 2


def planned(nodes: int = 2, *, algorithm: str = "grpo", **limits: object) -> Plan:
    return make_plan(request_on(qwen_workload(algorithm=algorithm), nodes, limits=Limits(**limits)))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def streaming() -> Plan:
    return planned(max_staleness=LAG, allow_partial_rollouts=True)


@pytest.fixture(scope="module")
def batches() -> Plan:
    return planned(max_staleness=LAG)


def test_an_asynchronous_plan_is_saved_and_read_without_loss(streaming: Plan, batches: Plan) -> None:
    for plan in (streaming, batches):
        assert plan.status is Status.OPTIMAL
        assert parse_plan(plan_text(plan), where="p") == replace(plan, run=None)


def test_streaming_overlaps_and_says_so(streaming: Plan) -> None:
    assert streaming.execution.mode is ExecutionMode.STREAMING
    assert 1 <= streaming.execution.staleness <= LAG
    assert streaming.period_s == streaming.time_s < streaming.makespan_s
    rollout, update = streaming.placement(StageName.ROLLOUT), streaming.placement(StageName.ACTOR_UPDATE)
    assert rollout.device_group != update.device_group


def test_the_period_is_what_busy_groups_allow(streaming: Plan) -> None:
    """No group is busy for longer than a period per batch, the sync included."""
    busy: dict[str, float] = {}
    for item in streaming.schedule:
        for group in item.device_groups:
            busy[group] = busy.get(group, 0.0) + item.end_s - item.start_s
    assert max(busy.values()) <= streaming.time_s * (1 + 1e-6)
    assert max(busy.values()) == pytest.approx(streaming.time_s, rel=0.35)


def test_gains_never_fall_with_permission(streaming: Plan) -> None:
    times = [gain.time_s for gain in streaming.staleness_gains if gain.is_permitted]
    assert [gain.staleness for gain in streaming.staleness_gains] == [0, 1, 2]
    assert all(a is not None and b is not None and b <= a for a, b in pairwise(times))
    assert streaming.time_s <= min(t for t in times if t is not None) * 1.011


def test_streaming_that_is_not_permitted_is_shown_but_not_taken(batches: Plan) -> None:
    refused = [gain for gain in batches.staleness_gains if not gain.is_permitted]
    assert len(refused) == 1 and refused[0].mode == ExecutionMode.STREAMING.value
    assert batches.execution.mode is not ExecutionMode.STREAMING


def test_what_buys_nothing_is_not_offered() -> None:
    """A step that is refused is always faster than what is permitted."""
    for nodes in (1, 2, 4):
        gains = planned(nodes, max_staleness=1).staleness_gains
        permitted = min(gain.time_s for gain in gains if gain.is_permitted and gain.time_s is not None)
        assert all(gain.time_s is not None and gain.time_s < permitted for gain in gains if not gain.is_permitted)


def test_varying_lengths_are_simulated_for_every_step(streaming: Plan) -> None:
    for gain in streaming.staleness_gains:
        assert gain.time_s is not None and gain.varying_time_s is not None
        assert 0.9 * gain.time_s <= gain.varying_time_s <= 1.3 * gain.time_s


def test_off_policy_updates_recompute_log_probs() -> None:
    work = replace(qwen_workload(), needs_old_logprob=False, num_optimizer_steps=1)
    request = request_on(work, 2, limits=Limits(max_staleness=1, allow_partial_rollouts=True))
    plan = make_plan(request)
    assert plan.execution.is_asynchronous
    assert any(item.stage is StageName.OLD_LOGPROB for item in plan.placements)
    assert any("off-policy" in item.source for item in plan.assumptions)


def test_nothing_overlaps_unasked() -> None:
    plan = planned(fusions=())
    assert plan.execution == Execution() and plan.period_s is None and not plan.staleness_gains


def test_fusion_is_never_slower_and_its_gain_is_stated() -> None:
    plain, inter = planned(algorithm="ppo", fusions=()), planned(algorithm="ppo")
    every = planned(algorithm="ppo", fusions=(Fusion.INTER_STAGE, Fusion.INTRA_STAGE))
    assert every.bound <= inter.bound * (1 + 1e-9) <= plain.bound * (1 + 2e-9)
    if inter.execution.fusions:
        assert any(item.what == "stage fusion" and "saves" in item.effect for item in inter.assumptions)


@pytest.mark.parametrize("allowed_s", [None, 1.0, 1e-6])
def test_fusion_stays_where_a_plan_without_is_beyond_the_limit(
    monkeypatch: pytest.MonkeyPatch, allowed_s: float | None
) -> None:
    apart = ((WorkerName.ROLLOUT_ENGINE, WorkerName.REFERENCE),)
    request = request_on(qwen_workload(algorithm="ppo"), 2, limits=Limits(must_not_share=apart))
    fused = make_plan(request)
    assert fused.execution.fusions
    # What fusion saves here counts as nothing.
    monkeypatch.setattr(pipeline, "TIE_TOLERANCE_RATIO", 1.0)
    if allowed_s is None:
        plain = make_plan(request)
        assert not plain.execution.fusions and plain.time_s > fused.time_s
        return
    deadline_s = fused.time_s + allowed_s
    limits = replace(request.limits, max_iteration_s=deadline_s)
    if allowed_s < 1e-3:
        assert fused.usd is not None
        limits = replace(request.limits, max_usd_per_iteration=fused.usd * deadline_s / fused.time_s)
    plan = make_plan(replace(request, limits=limits))
    assert plan.execution.fusions and plan.time_s <= deadline_s


def test_policies_restrict() -> None:
    times = [planned(algorithm="ppo", fusions=(), policy=p).bound for p in SchedulingPolicy]
    planned_s, fifo_s, sequential_s = times
    assert planned_s <= fifo_s * (1 + 1e-9) <= sequential_s * (1 + 2e-9)
    one_by_one = planned(algorithm="ppo", policy=SchedulingPolicy.SEQUENTIAL, fusions=())
    ends = sorted((item.start_s, item.end_s) for item in one_by_one.schedule)
    assert all(after[0] >= before[1] - 1e-6 for before, after in pairwise(ends))


def groups_of(plan: Plan, worker: WorkerName) -> set[int]:
    placement = next(item for item in plan.placements if item.worker is worker)
    group = next(item for item in plan.device_groups if item.id == placement.device_group)
    return set(group.ranks)


def test_workers_share_or_stay_apart_as_asked() -> None:
    pair = (WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER)
    apart = planned(must_not_share=(pair,))
    assert not groups_of(apart, pair[0]) & groups_of(apart, pair[1])
    other = (WorkerName.ACTOR_TRAINER, WorkerName.REFERENCE)
    together = planned(must_share=(other,), must_not_share=(pair,))
    assert groups_of(together, other[0]) & groups_of(together, other[1])
    with pytest.raises(InfeasibleError):
        planned(must_share=(pair,), must_not_share=(pair,))


def test_what_is_fixed_stays() -> None:
    fixed = (
        FixedField(worker=WorkerName.ACTOR_TRAINER, field="tp", value="4"),
        FixedField(worker=WorkerName.ROLLOUT_ENGINE, field="dp", value="2"),
        FixedField(worker=WorkerName.ACTOR_TRAINER, field="recompute", value="full"),
    )
    free, plan = planned(), planned(fixed=fixed)
    update, rollout = plan.placement(StageName.ACTOR_UPDATE).strategy, plan.placement(StageName.ROLLOUT).strategy
    assert update is not None and update.tp == 4 and update.recompute.value == "full"  # type: ignore[union-attr]
    assert rollout is not None and rollout.num_engines == 2  # type: ignore[union-attr]
    assert plan.bound >= free.bound * (1 - 1e-9)


def test_a_front_trades_time_for_money() -> None:
    request = request_on(qwen_workload(), 4)
    found = plan_with_search(request)
    front = pareto_front(found.outcome, request.limits)
    assert len(front) > 1 and all(point.is_proven for point in front)
    for fast, cheap in pairwise(front):
        assert fast.time_s < cheap.time_s and fast.value > cheap.value
    cheapest = make_plan(replace(request, limits=Limits(objective=Objective.COST)))
    assert math.isclose(front[-1].value, cheapest.bound, rel_tol=1e-6)
    assert front[0].time_s <= found.plan.bound * 1.011


def test_the_number_of_alternatives_is_a_choice() -> None:
    assert not planned(num_alternatives=0).alternatives
    assert len(planned(algorithm="ppo", num_alternatives=2).alternatives) <= 2


def test_a_front_on_two_pools_is_proven_with_its_splits() -> None:
    request = build_request(WorkloadSpec(model="qwen3-8b", gpus="8xh100,16xh20", prices=("h100=3", "h20=1.2")))
    found = plan_with_search(request)
    front = pareto_front(found.outcome, request.limits)
    assert len(front) > 1 and all(point.is_proven for point in front)
    cheapest = make_plan(replace(request, limits=replace(request.limits, objective=Objective.COST)))
    assert front[-1].value <= cheapest.objective_value * (1 + 1e-9)
    assert front[0].time_s <= found.plan.bound * 1.011
