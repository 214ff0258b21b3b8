"""The schedule starts stages as early as possible and refuses what cannot run."""

from __future__ import annotations

import pytest

from planner.domain.stages import StageName, WorkerName
from planner.search import schedule
from tests.oracle.instances import graph_of

GRAPH = graph_of((WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER, WorkerName.REFERENCE), host_reward=True)
SECONDS = {
    StageName.ROLLOUT: 10.0,
    StageName.REWARD: 7.0,
    StageName.REFERENCE_LOGPROB: 2.0,
    StageName.OLD_LOGPROB: 3.0,
    StageName.ACTOR_UPDATE: 5.0,
    StageName.WEIGHT_SYNC: 1.0,
}
APART = {
    StageName.ROLLOUT: ("p/0",),
    StageName.REWARD: (),
    StageName.REFERENCE_LOGPROB: ("p/2",),
    StageName.OLD_LOGPROB: ("p/1",),
    StageName.ACTOR_UPDATE: ("p/1",),
    StageName.WEIGHT_SYNC: ("p/0", "p/1"),
}
SHARED = {name: ("p/0",) if groups else () for name, groups in APART.items()}


def test_stages_on_disjoint_groups_run_side_by_side() -> None:
    items = schedule.evaluate(GRAPH, SECONDS, APART, ())
    start = {item.stage: item.start_s for item in items}
    assert start[StageName.OLD_LOGPROB] == start[StageName.REFERENCE_LOGPROB] == start[StageName.REWARD] == 10.0
    assert start[StageName.ACTOR_UPDATE] == 17.0
    assert schedule.makespan_s(items) == 23.0


def test_the_order_separates_stages_on_one_group() -> None:
    arcs = ((StageName.OLD_LOGPROB, StageName.REFERENCE_LOGPROB),)
    items = schedule.evaluate(GRAPH, SECONDS, SHARED, arcs)
    start = {item.stage: item.start_s for item in items}
    assert start[StageName.REFERENCE_LOGPROB] == 13.0


def test_overlap_on_the_same_gpus_is_refused() -> None:
    with pytest.raises(ValueError, match="same GPUs"):
        schedule.evaluate(GRAPH, SECONDS, SHARED, ())
    with pytest.raises(ValueError, match="same GPUs"):
        schedule.evaluate(GRAPH, SECONDS, APART, (), overlapping=[("p/1", "p/2")])


def test_an_order_against_the_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="contradicts"):
        schedule.evaluate(GRAPH, SECONDS, APART, ((StageName.ACTOR_UPDATE, StageName.ROLLOUT),))
