"""Rollouts that two groups of engines share, in every mode."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import pytest

from planner.domain.execution import Execution, ExecutionMode
from planner.domain.plan import Plan
from planner.domain.stages import ROLLOUTS, StageName
from planner.files.catalog import load_overheads
from planner.files.spec import WorkloadSpec
from planner.files.workload import build_request
from planner.pipeline import make_plan
from planner.simulate.record import ReplayReport
from planner.simulate.replay import ReplaySettings, replay

NUM_RESPONSES = 1024


def _spec(gpus: str) -> WorkloadSpec:
    return WorkloadSpec(model="qwen3-8b", gpus=gpus, num_prompts=64, group_size=16, response_mean=4000)


@lru_cache(maxsize=1)
def synchronous() -> Plan:
    """What the search finds for 8 H100 beside 16 H20."""
    return make_plan(build_request(_spec("8xh100,16xh20")))


@lru_cache(maxsize=1)
def one_step_off() -> Plan:
    """What it finds for three pools with a permitted staleness of 1."""
    request = build_request(_spec("16xh100,16xh20,8xa100"))
    return make_plan(replace(request, limits=replace(request.limits, max_staleness=1)))


def run(plan: Plan, num_iterations: int = 6) -> ReplayReport:
    return replay(plan, load_overheads(), ReplaySettings(num_iterations=num_iterations))


def mean_s(report: ReplayReport, stage: StageName) -> float:
    return next(item.replayed_s.mean for item in report.stages if item.stage is stage)


def test_both_groups_are_played_with_their_shares() -> None:
    plan = synchronous()
    assert plan.execution.is_split, "this test needs a split plan"
    report = run(plan)
    assert report.is_inside
    assert report.iteration_s.mean == pytest.approx(plan.time_s, rel=0.05)
    for name in ROLLOUTS:
        assert mean_s(report, name) == pytest.approx(plan.placement(name).time_s, rel=0.08), name
    assert report.staleness == ((0, 6 * NUM_RESPONSES),), "the parts add up to the batch"
    assert report.second_rollout is not None and report.second_rollout.tail_s is not None


def test_what_follows_waits_for_the_slower_group() -> None:
    """With nearly everything on the second group, its engines hold up the whole iteration."""
    plan = synchronous()
    execution = replace(plan.execution, second_share_ratio=15 / 16)
    report = run(replace(plan, execution=execution), num_iterations=2)
    assert mean_s(report, StageName.SECOND_ROLLOUT) > 2.0 * mean_s(report, StageName.ROLLOUT)
    spans = {span.stage: span for span in report.recording.spans if span.batch == 0}
    slower_end_s = spans[StageName.SECOND_ROLLOUT].end_s
    assert min(span.start_s for name, span in spans.items() if name not in ROLLOUTS) >= slower_end_s


def test_a_found_plan_of_batches_ahead_agrees_with_its_replay() -> None:
    plan = one_step_off()
    assert plan.execution.is_split and plan.execution.mode is ExecutionMode.BATCHES, "this test needs such a plan"
    report = run(plan)
    assert report.is_inside
    assert report.iteration_s.mean == pytest.approx(plan.time_s, rel=0.05)
    assert max(lag for lag, _ in report.staleness) == 1


@pytest.mark.parametrize("mode", [ExecutionMode.BATCHES, ExecutionMode.STREAMING])
@pytest.mark.parametrize("staleness", [1, 2])
def test_groups_of_engines_that_run_ahead_keep_to_the_staleness(mode: ExecutionMode, staleness: int) -> None:
    """The trainer on GPUs of its own, one engine pool of the same kind on either side."""
    plan = apart(staleness, mode)
    report = run(plan, num_iterations=8)
    # The throttle of a stream bounds what starts: a long response may be overtaken.
    overtaken = sum(number for lag, number in report.staleness if lag > staleness)
    assert overtaken <= (0.4 * 8 * NUM_RESPONSES if mode is ExecutionMode.STREAMING else 0)
    assert sum(number for _, number in report.staleness) == 8 * NUM_RESPONSES
    syncs = [span for span in report.recording.spans if span.stage is StageName.WEIGHT_SYNC]
    busy = [span for span in report.recording.spans if span.stage in ROLLOUTS]
    assert {span.stage for span in busy} == set(ROLLOUTS)
    if mode is ExecutionMode.BATCHES:
        for sync in syncs:
            assert not any(s.start_s < sync.end_s - 1e-9 and sync.start_s < s.end_s - 1e-9 for s in busy)
        for name in ROLLOUTS:
            own = sorted((span for span in busy if span.stage is name), key=lambda span: span.start_s)
            assert all(a.end_s <= b.start_s + 1e-9 for a, b in pairwise(own))


@pytest.mark.parametrize(
    ("num_prompts", "mode"),
    [(1, ExecutionMode.SYNCHRONOUS), (4, ExecutionMode.SYNCHRONOUS), (4, ExecutionMode.STREAMING)],
)
def test_few_prompts_are_divided_by_their_responses(num_prompts: int, mode: ExecutionMode) -> None:
    plan = synchronous() if mode is ExecutionMode.SYNCHRONOUS else apart(2, mode)
    work = replace(plan.workload, num_prompts=num_prompts, group_size=NUM_RESPONSES // num_prompts)
    few = run(replace(plan, workload=work))
    # Each prompt is read once or twice, not once per sixteen responses.
    assert few.iteration_s.mean == pytest.approx(run(plan).iteration_s.mean, rel=0.1)


def test_a_second_group_takes_work_off_streaming_engines() -> None:
    """With a fiftieth of the trainer's work the engines bind: two equal groups need half the time of one."""
    plan = apart(2, ExecutionMode.STREAMING)
    few = replace(plan, execution=replace(plan.execution, second_share_ratio=1 / 16))
    assert run(plan).iteration_s.mean < 0.8 * run(few).iteration_s.mean


def apart(staleness: int, mode: ExecutionMode) -> Plan:
    """The split plan as if its first engines had GPUs of their own, half of the prompts on either group, and a trainer
    that is quick."""
    plan = synchronous()
    first = next(group for group in plan.device_groups if group.id == plan.placement(StageName.ROLLOUT).device_group)
    trainer = replace(first, id="trainer", first_gpu=first.first_gpu + 8)
    renamed = tuple(
        replace(item, device_group="trainer", time_terms=tuple(replace(t, value=t.value / 50) for t in item.time_terms))
        if item.stage not in (*ROLLOUTS, StageName.WEIGHT_SYNC) and item.worker is not None
        else item
        for item in plan.placements
    )
    schedule = tuple(
        replace(item, device_groups=("trainer",))
        if item.device_groups == (first.id,) and item.stage not in ROLLOUTS
        else replace(item, device_groups=(*item.device_groups, "trainer"))
        if item.stage is StageName.WEIGHT_SYNC
        else item
        for item in plan.schedule
    )
    return replace(
        plan,
        device_groups=(*plan.device_groups, trainer),
        placements=renamed,
        schedule=schedule,
        execution=Execution(mode=mode, staleness=staleness, second_share_ratio=0.5),
        period_s=1.0,
    )
