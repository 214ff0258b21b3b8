"""Two pipelines on the same GPUs: by hand, and between the bounds that any schedule has."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from planner.domain.execution import Fusion
from planner.domain.plan import Plan
from planner.domain.stages import StageName, WorkerName
from planner.errors import InvalidInputError
from planner.files.catalog import load_overheads
from planner.files.spec import WorkloadSpec
from planner.files.workload import build_request
from planner.pipeline import make_plan
from planner.simulate.interleaved import Pipeline, interleaved_s
from planner.simulate.pipeline_order import training_s
from planner.simulate.replay import ReplaySettings, replay


def pipeline(
    number: int, dp: int, *, ranks: int, chunks: int = 1, work_s: float = 3.0, spread: float = 0.0
) -> Pipeline:
    random = np.random.default_rng(number + dp)
    body = work_s * (1.0 + spread * random.uniform(-1.0, 1.0, (number, dp)))
    return Pipeline(body_s=body, head_s=np.zeros_like(body), num_ranks=ranks, num_chunks=chunks)


def alone_s(item: Pipeline) -> float:
    return float(training_s(item.body_s, item.head_s, item.num_ranks, item.num_chunks).max())


def test_two_single_micro_batches_fill_each_others_gaps() -> None:
    """Forward 1 s, backward 2 s, two ranks. Each model alone takes 6 s, half of it idle; in opposite directions rank 0
    runs F B' F' B without a gap, where ' is the other model, and so does rank 1."""
    one = pipeline(1, 1, ranks=2)
    assert alone_s(one) == pytest.approx(6.0)
    assert interleaved_s(one, one) == pytest.approx((6.0, 6.0))


def test_a_model_beside_one_without_work_is_undisturbed() -> None:
    one, nothing = pipeline(8, 2, ranks=4), pipeline(4, 2, ranks=4, work_s=1e-9)
    assert interleaved_s(one, nothing)[0] == pytest.approx(alone_s(one))
    assert interleaved_s(nothing, one)[1] == pytest.approx(alone_s(one))


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("chunks", "number"), [(1, 4), (1, 12), (2, 16), (2, 13)])
@pytest.mark.parametrize(("first_dp", "second_dp"), [(1, 1), (2, 1), (2, 4), (2, 3)])
def test_between_the_bounds_of_any_schedule(
    ranks: int, chunks: int, number: int, first_dp: int, second_dp: int
) -> None:
    """Not below the work of a rank or a model on its own; filled bubbles make it less than one after the other."""
    first = pipeline(number, first_dp, ranks=ranks, chunks=chunks, spread=0.2)
    second = pipeline(max(number // 2, 2), second_dp, ranks=ranks, work_s=2.0, spread=0.2)
    ends = interleaved_s(first, second)
    work = max(first.body_s.sum(axis=0).max(), second.body_s.sum(axis=0).max())
    if first_dp == second_dp:
        work = (first.body_s.sum(axis=0) + second.body_s.sum(axis=0)).max()
    assert max(ends) >= work * (1.0 - 1e-9)
    assert ends[0] >= alone_s(first) * (1.0 - 1e-9) or chunks > 1
    assert ends[1] >= alone_s(second) * (1.0 - 1e-9)
    # Slices that overlap only in part (2 beside 3 data-parallel ranks) can cost more than they fill.
    allowance = 1.1 if (first_dp, second_dp) == (2, 3) else 1.0
    assert max(ends) < (alone_s(first) + alone_s(second)) * allowance


def test_ranks_without_pipeline_run_one_after_the_other() -> None:
    one, two = pipeline(4, 1, ranks=1), pipeline(3, 1, ranks=1)
    assert max(interleaved_s(one, two)) == pytest.approx(21.0)


def test_different_numbers_of_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="ranks"):
        interleaved_s(pipeline(4, 1, ranks=2), pipeline(4, 1, ranks=4))


@lru_cache(maxsize=1)
def fused_plan() -> Plan:
    """PPO on boards without NVLink, where deep pipelines pay, with both trainers on one block."""
    request = build_request(
        WorkloadSpec(model="qwen3-8b", algorithm="ppo", gpus="16xl40s", response_mean=500, num_prompts=512)
    )
    together = ((WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER),)
    limits = replace(request.limits, fusions=(Fusion.INTRA_STAGE,), must_share=together)
    return make_plan(replace(request, limits=limits))


def test_a_found_plan_with_interleaved_updates_agrees_with_its_replay() -> None:
    plan = fused_plan()
    assert Fusion.INTRA_STAGE in plan.execution.fusions, "this test needs such a plan"
    report = replay(plan, load_overheads(), ReplaySettings(num_iterations=4))
    assert report.is_inside
    updates = [s for s in report.stages if s.stage in (StageName.ACTOR_UPDATE, StageName.CRITIC_UPDATE)]
    assert max(s.replayed_s.mean for s in updates) == pytest.approx(updates[0].planned_s, rel=0.08)
    plain = replace(plan, execution=replace(plan.execution, fusions=()))
    one_by_one = replay(plain, load_overheads(), ReplaySettings(num_iterations=4))
    assert report.iteration_s.mean < one_by_one.iteration_s.mean - 2.0, "bubbles of 5 s are filled"


def test_a_plan_whose_pipelines_cannot_meet_is_refused() -> None:
    plan = fused_plan()
    changed = tuple(
        replace(item, strategy=replace(item.strategy, pp=1)) if item.stage is StageName.CRITIC_UPDATE else item
        for item in plan.placements
    )
    with pytest.raises(InvalidInputError, match="1 and 4 pipeline ranks"):
        replay(replace(plan, placements=changed), load_overheads(), ReplaySettings(num_iterations=1))


def test_the_weight_sync_waits_for_both_updates() -> None:
    spans = replay(fused_plan(), load_overheads(), ReplaySettings(num_iterations=1)).recording.spans
    end_s = {span.stage: span.end_s for span in spans}
    sync = next(span for span in spans if span.stage is StageName.WEIGHT_SYNC)
    assert sync.start_s >= max(end_s[StageName.ACTOR_UPDATE], end_s[StageName.CRITIC_UPDATE]) - 1e-9
