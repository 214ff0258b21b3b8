"""Lanes cover every GPU once, batches repeat at the period, and the bill adds up to what the plan costs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import fsum

import pytest

from planner.domain.plan import Plan
from planner.domain.stages import StageName
from planner.report.occupancy import (
    IDLE,
    UNUSED_NODES,
    Part,
    bill,
    busy_s,
    idle_ratio,
    lanes,
    parts,
    tracks,
    window_s,
)
from tests.golden.sample import grpo_plan, split_plan
from tests.unit.report.plans import PERIOD_S, asynchronous_plan, hybrid_plan, streaming_plan

PLANS = {
    "colocated": grpo_plan(),
    "split": split_plan(),
    "hybrid": hybrid_plan(),
    "batches": asynchronous_plan(),
    "streaming": streaming_plan(),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_lanes_cover_each_used_gpu_once(plan: Plan) -> None:
    gpus = [gpu for lane in lanes(plan) for gpu in range(lane.first_gpu, lane.first_gpu + lane.num_gpus)]
    assert sorted(gpus) == list(range(plan.num_gpus))


def test_overlapping_groups_are_cut_where_they_differ() -> None:
    first, second = lanes(hybrid_plan())
    assert (first.name, first.num_gpus, second.name, second.num_gpus) == ("g0", 16, "g1", 16)
    assert [slot.stage for slot in first.slots] == [
        StageName.ROLLOUT, StageName.REFERENCE_LOGPROB, StageName.WEIGHT_SYNC,
    ]  # fmt: skip
    assert StageName.REFERENCE_LOGPROB not in {slot.stage for slot in second.slots}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_busy_and_idle_make_up_the_iteration(plan: Plan) -> None:
    for lane in lanes(plan):
        busy = fsum(busy_s(plan, lane).values())
        assert 0 <= busy <= plan.time_s * (1 + 1e-12)
        assert idle_ratio(plan, lane) == pytest.approx(1 - busy / plan.time_s)


def test_idle_time_of_a_split_plan() -> None:
    plan = split_plan()
    of = {placement.stage: placement.time_s for placement in plan.placements}
    engine, trainer = lanes(plan)
    assert idle_ratio(plan, engine) == pytest.approx(
        1 - (of[StageName.ROLLOUT] + of[StageName.WEIGHT_SYNC]) / plan.time_s
    )
    assert idle_ratio(plan, trainer) == pytest.approx(of[StageName.ROLLOUT] / plan.time_s)


def test_batches_of_an_asynchronous_plan_repeat_at_the_period() -> None:
    plan = asynchronous_plan()
    assert window_s(plan) == 2 * PERIOD_S
    engine = next(lane for lane in lanes(plan) if lane.name == "g0")
    rollouts = [slot for slot in engine.slots if slot.stage is StageName.ROLLOUT]
    assert [slot.batch for slot in rollouts] == [0, 1]
    assert rollouts[1].start_s - rollouts[0].start_s == pytest.approx(PERIOD_S)
    # Batch -1 was generated before the window and is still trained on in it.
    trainer = next(lane for lane in lanes(plan) if lane.name == "g1")
    assert {slot.batch for slot in trainer.slots} == {-1, 0, 1}
    assert all(0 <= slot.start_s < slot.end_s <= window_s(plan) for slot in trainer.slots)


def test_overlapping_batches_get_rows_of_their_own() -> None:
    engine = next(lane for lane in lanes(streaming_plan()) if lane.name == "g0")
    rows = tracks(engine.slots)
    assert len(rows) > 1
    for row in rows:
        assert all(a.end_s <= b.start_s + 1e-6 for a, b in pairwise(row))
    assert sum(len(row) for row in rows) == len(engine.slots)
    # The engines never stop, however many batches overlap.
    assert busy_s(streaming_plan(), engine)[StageName.ROLLOUT] == pytest.approx(PERIOD_S, rel=0.02)


def test_stages_that_touch_share_a_row() -> None:
    assert [len(tracks(lane.slots)) for lane in lanes(grpo_plan())] == [1]


def test_parts_of_a_stage() -> None:
    rollout = next(p for p in grpo_plan().placements if p.stage is StageName.ROLLOUT)
    found = dict(parts(rollout))
    assert fsum(found.values()) == pytest.approx(1)
    assert found[Part.TAIL] == pytest.approx(12.0 / rollout.time_s)
    assert found[Part.SETUP] == pytest.approx((1.5 + 1.25) / rollout.time_s)
    reward = next(p for p in grpo_plan().placements if p.stage is StageName.REWARD)
    assert parts(reward) == ()


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_bill_is_what_the_plan_costs(plan: Plan) -> None:
    pool = replace(plan.cluster.pools[0], usd_per_gpu_hour=2.0, num_nodes=5)
    plan = replace(plan, cluster=replace(plan.cluster, pools=(pool,)))
    assert plan.usd is not None and plan.cluster_usd is not None
    shares = bill(plan)
    assert fsum(share.usd or 0.0 for share in shares) == pytest.approx(plan.cluster_usd)
    used = fsum(share.usd or 0.0 for share in shares if share.what != UNUSED_NODES)
    assert used == pytest.approx(plan.usd)


def test_a_bill_without_price_has_gpu_hours_only() -> None:
    shares = bill(split_plan())
    assert all(share.usd is None for share in shares)
    assert any(share.what == IDLE for share in shares)
    assert fsum(share.gpu_s for share in shares) == pytest.approx(split_plan().time_s * 32)


def test_unused_gpus_of_a_used_node_are_billed() -> None:
    plan = grpo_plan()
    part = replace(plan, device_groups=(replace(plan.device_groups[0], num_gpus=4, num_nodes=1),))
    unused = {share.what: share.gpu_s / plan.time_s for share in bill(part)}
    assert unused["unused GPUs of used nodes"] == pytest.approx(4)
    assert unused[UNUSED_NODES] == pytest.approx(24)
