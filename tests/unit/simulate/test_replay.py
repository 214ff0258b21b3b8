"""Whole replays: against the plan's own sums, against the recurrences of the modes, and against what a user gives."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from planner.cost.asynchronous import AsynchronousTimes, period_s
from planner.domain.execution import Execution, ExecutionMode, Fusion, SchedulingPolicy
from planner.domain.plan import Plan, Status
from planner.domain.stages import StageName
from planner.domain.workload import Reward, RewardKind
from planner.errors import InfeasibleError, InvalidInputError
from planner.files.catalog import load_overheads
from planner.simulate.lengths import Histogram
from planner.simulate.record import ReplayReport
from planner.simulate.replay import ReplaySettings, replay
from tests.unit.simulate.plans import NUM_RESPONSES, ahead, split_plan, synchronous_plan, with_lengths

TRAINER_STAGES = (
    StageName.REFERENCE_LOGPROB, StageName.OLD_LOGPROB, StageName.ACTOR_UPDATE, StageName.WEIGHT_SYNC,
)  # fmt: skip


def run(plan: Plan, **settings: int | float | bool | Histogram) -> ReplayReport:
    return replay(plan, load_overheads(), ReplaySettings(**{"num_iterations": 5, **settings}))  # type: ignore[arg-type]


def mean_s(report: ReplayReport, stage: StageName) -> float:
    return next(item.replayed_s.mean for item in report.stages if item.stage is stage)


def test_a_found_plan_agrees_with_its_replay() -> None:
    report = run(synchronous_plan(), num_iterations=8)
    assert report.is_inside
    assert report.iteration_s.mean == pytest.approx(report.predicted_s, rel=0.05)
    for stage in report.stages:
        assert stage.replayed_s.mean == pytest.approx(stage.planned_s, rel=0.08, abs=0.01), stage.stage
    assert report.staleness == ((0, 8 * NUM_RESPONSES),)
    assert report.mean_response_tokens == pytest.approx(500, rel=0.05)


def test_a_wrong_prediction_lies_outside_the_band() -> None:
    plan = synchronous_plan()
    later = tuple(replace(item, start_s=item.start_s * 1.3, end_s=item.end_s * 1.3) for item in plan.schedule)
    assert not run(replace(plan, schedule=later)).is_inside


def test_the_seed_decides_everything() -> None:
    plan = synchronous_plan()
    assert run(plan, seed=3).iterations_s == run(plan, seed=3).iterations_s
    assert run(plan, seed=3).iterations_s != run(plan, seed=4).iterations_s


def test_growing_responses_make_later_iterations_longer() -> None:
    times = run(synchronous_plan(), growth_factor=2.0).iterations_s
    assert list(times) == sorted(times) and times[-1] > 1.1 * times[0]


def test_observed_lengths_replace_the_law() -> None:
    report = run(synchronous_plan(), histogram=Histogram(tokens=(100, 300), counts=(1.0, 1.0)))
    assert report.mean_response_tokens == pytest.approx(200, rel=0.05)
    assert report.iteration_s.mean < report.predicted_s


def test_stages_of_one_group_never_overlap_and_follow_the_plan() -> None:
    plan = synchronous_plan()
    spans = [span for span in run(plan).recording.spans if span.groups and span.batch == 0]
    ordered = sorted(spans, key=lambda span: span.start_s)
    assert [span.stage for span in ordered] == [item.stage for item in plan.schedule if item.device_groups]
    assert all(a.end_s <= b.start_s + 1e-9 for a, b in pairwise(ordered))


@pytest.mark.parametrize("staleness", [1, 2, 3])
@pytest.mark.parametrize("engine_gpus", [1, 4])
def test_batches_ahead_follow_the_recurrence(staleness: int, engine_gpus: int) -> None:
    """Equal lengths make all stages equal: then the period is the cycle ratio of the stages as replayed. One engine
    GPU makes the rollout the longer part, four make it the trainer."""
    plan = ahead(split_plan(engine_gpus, cv=0.0), ExecutionMode.BATCHES, staleness)
    report = run(plan)
    stages = {item.stage: item.replayed_s.mean for item in report.stages}
    generation = np.array([stages[StageName.ROLLOUT]])
    training = sum(
        stages[name] for name in (StageName.REFERENCE_LOGPROB, StageName.OLD_LOGPROB, StageName.ACTOR_UPDATE)
    )
    times = AsynchronousTimes(
        generation_s=generation,
        rollout_busy_s=generation,
        training_s=np.array([training]),
        sync_s=np.array([stages[StageName.WEIGHT_SYNC]]),
    )
    expected = float(period_s(times, np.array([float(staleness)]))[0])
    assert report.iteration_s.mean == pytest.approx(expected, rel=0.01)
    assert max(lag for lag, _ in report.staleness) <= staleness


def test_engines_that_are_slower_than_the_trainer_bind_a_stream() -> None:
    """The engines never wait, and are quicker per batch than with batches that drain them."""
    plan = split_plan(1)
    streams = run(ahead(plan, ExecutionMode.STREAMING, 2), num_iterations=10)
    batches = run(ahead(plan, ExecutionMode.BATCHES, 2), num_iterations=10)
    assert streams.iteration_s.mean < 0.97 * batches.iteration_s.mean
    pauses_ratio = mean_s(streams, StageName.WEIGHT_SYNC) / streams.iteration_s.mean
    assert streams.rollout.idle_engine_ratio < pauses_ratio + 0.01
    assert streams.rollout.tail_s is None and batches.rollout.tail_s is not None


def test_a_slow_trainer_throttles_a_stream_to_the_staleness() -> None:
    plan = split_plan(8)
    for staleness in (1, 3):
        report = run(ahead(plan, ExecutionMode.STREAMING, staleness), num_iterations=6)
        assert report.iteration_s.mean == pytest.approx(sum(mean_s(report, name) for name in TRAINER_STAGES), rel=0.02)
        lags = dict(report.staleness)
        assert max(lags) == staleness, "responses wait for a trainer that lags"
        engines = next(
            group for group in report.groups if group.group == plan.placement(StageName.ROLLOUT).device_group
        )
        assert engines.idle_ratio > 0.1, "engines stop when they are too far ahead"


def test_reading_caches_again_costs_a_stream_time() -> None:
    plan = ahead(split_plan(1), ExecutionMode.STREAMING, 2)
    assert run(plan, rereads_cache=True).iteration_s.mean > run(plan, rereads_cache=False).iteration_s.mean


def test_sandboxes_score_in_waves_and_beside_a_stream() -> None:
    """256 responses in 64 sandboxes of 3 s: 12 s after a batch, hidden where responses end one after the other."""
    reward = Reward(kind=RewardKind.SANDBOX, latency_s=3.0, num_parallel=64)
    plan = split_plan(4)
    plan = replace(plan, workload=replace(plan.workload, reward=reward))
    assert mean_s(run(plan), StageName.REWARD) == pytest.approx(12.0)
    streams = run(ahead(plan, ExecutionMode.STREAMING, 1))
    assert mean_s(streams, StageName.REWARD) == 0.0


def test_assessors_beside_the_rollout_are_done_soon_after_it() -> None:
    plan = split_plan(4)
    fused = replace(plan, execution=Execution(fusions=(Fusion.INTER_STAGE,)))
    plain_s, fused_s = run(plan).iteration_s.mean, run(fused).iteration_s.mean
    assert mean_s(run(plan), StageName.REFERENCE_LOGPROB) > 1.0
    assert plain_s - fused_s > 0.5 * mean_s(run(plan), StageName.REFERENCE_LOGPROB)


def test_policies_order_stages_that_are_ready_together() -> None:
    """A sequential controller is never faster; all policies end the same work."""
    plan = split_plan(4)
    for policy in SchedulingPolicy:
        report = run(replace(plan, execution=Execution(policy=policy)))
        assert report.iteration_s.mean == pytest.approx(plan.time_s, rel=0.1), policy


def test_idle_shares_are_those_of_the_stages() -> None:
    plan = split_plan(4)
    report = run(plan)
    group = plan.placement(StageName.ROLLOUT).device_group
    idle = next(item.idle_ratio for item in report.groups if item.group == group)
    busy = mean_s(report, StageName.ROLLOUT) + mean_s(report, StageName.WEIGHT_SYNC)
    assert idle == pytest.approx(1.0 - busy / report.iteration_s.mean, rel=0.02)


def test_fixed_lengths_without_spread_still_have_a_band() -> None:
    report = run(with_lengths(split_plan(4, cv=0.0), mean_tokens=500.0, cv=0.0))
    low, high = report.band_s
    assert low < report.iteration_s.mean < high


def test_what_cannot_be_replayed_is_said() -> None:
    plan = split_plan(4)
    with pytest.raises(InfeasibleError, match="does not fit"):
        run(replace(plan, status=Status.INFEASIBLE))


@pytest.mark.parametrize(
    "settings", [{"num_iterations": 0}, {"seed": -1}, {"growth_factor": 0.0}, {"growth_factor": float("nan")}]
)
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match="accepted"):
        ReplaySettings(**settings)  # type: ignore[arg-type]
