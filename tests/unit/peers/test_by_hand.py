"""Recipes of practitioners."""

from dataclasses import replace

import pytest

from planner.domain.stages import WorkerName
from planner.domain.strategy import RolloutStrategy
from planner.domain.verdict import Verdict
from planner.peers.by_hand import COLOCATED, EQUAL_SHARES, RECIPES, SPLIT_50, SPLIT_75, by_hand, run_recipe, shares
from planner.peers.task import PeerPlan
from planner.search.pricing import broken_rules
from tests.unit.peers.cases import task_of

PPO_16 = ("ppo", ("a100-80gb", 2))
PPO_32 = ("ppo", ("a100-80gb", 4))


def plans(*case: object) -> dict[str, PeerPlan]:
    return {plan.name: plan for plan in by_hand(task_of(*case))}  # type: ignore[arg-type]


def test_colocated_puts_everything_on_all_gpus_with_tp_8() -> None:
    plan = plans(*PPO_16)[COLOCATED]
    assert plan.time_s is not None
    assert {choice.group for choice in plan.choices} == {"a100-80gb/0"}
    for choice in plan.choices:
        assert (choice.num_gpus, choice.strategy.tp, choice.strategy.pp) == (16, 8, 1)


def test_a_split_gives_the_engine_its_share_and_everyone_else_the_rest() -> None:
    for name, sizes in ((SPLIT_50, {16}), (SPLIT_75, {24, 8})):
        plan = plans(*PPO_32)[name]
        by_group = {choice.group: choice.num_gpus for choice in plan.choices}
        assert set(by_group.values()) == sizes
        engine = next(choice for choice in plan.choices if choice.worker is WorkerName.ROLLOUT_ENGINE)
        assert isinstance(engine.strategy, RolloutStrategy)
        assert [c.worker for c in plan.choices if c.group == engine.group] == [WorkerName.ROLLOUT_ENGINE]
        assert engine.num_gpus == max(sizes)


def test_equal_shares_keep_engine_and_trainer_of_the_actor_together() -> None:
    plan = plans(*PPO_32)[EQUAL_SHARES]
    group = {choice.worker: choice.group for choice in plan.choices}
    assert group[WorkerName.ROLLOUT_ENGINE] == group[WorkerName.ACTOR_TRAINER]
    assert len(set(group.values())) == 4
    assert {choice.num_gpus for choice in plan.choices} == {8}


@pytest.mark.parametrize(
    ("num_nodes", "ratios", "expected"),
    [
        (4, (0.5, 0.5), (16, 16)),
        (4, (0.75, 0.25), (24, 8)),
        (3, (0.5, 0.5), (16, 8)),
        (1, (0.75, 0.25), (6, 2)),
        (2, (0.25,) * 4, (4, 4, 4, 4)),
        (16, (0.25,) * 4, (32, 32, 32, 32)),
    ],
)
def test_shares_are_whole_nodes_where_each_has_one(
    num_nodes: int, ratios: tuple[float, ...], expected: tuple[int, ...]
) -> None:
    pool = replace(task_of(*PPO_16).pools[0], num_nodes=num_nodes)
    assert shares(pool, ratios) == expected


def test_a_single_gpu_cannot_be_shared_out() -> None:
    (pool,) = task_of(*PPO_16).pools
    single = replace(pool, num_nodes=1, node=pool.node.with_gpus(1))
    assert shares(single, (0.5, 0.5)) is None


def test_what_does_not_fit_says_so() -> None:
    task = task_of("ppo", ("rtx-4090", 1))
    found = [run_recipe(task, recipe) for recipe in RECIPES]
    assert any(plan.time_s is None for plan in found)
    for plan in found:
        assert (plan.time_s is None) == bool(plan.problem)


def test_a_plan_has_a_memory_verdict_and_legal_strategies() -> None:
    task = task_of(*PPO_16)
    found = [plan for plan in by_hand(task) if plan.time_s is not None]
    assert len(found) >= 3
    for plan in found:
        assert plan.verdict in (Verdict.FITS, Verdict.MARGINAL)
        for choice in plan.choices:
            worker = task.inputs.graph.worker(choice.worker)
            assert broken_rules(worker, task.pools[0], choice.strategy, task.inputs) == ()
