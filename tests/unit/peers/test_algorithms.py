"""The searches of peers: what they look at, what they count, what they keep."""

from __future__ import annotations

from itertools import product

import pytest

from planner.domain.stages import StageKind, StageName, WorkerName, build_graph
from planner.peers import rlinf as rlinf_module
from planner.peers.colocated import ColocatedTable
from planner.peers.hybridflow import best_mapping, hybridflow, partitions, realise
from planner.peers.real_heuristic import real_heuristic
from planner.peers.real_search import real_search
from planner.peers.rlinf import Cutter, first_parts, pipeline_s, rlinf
from tests.unit.peers.cases import grpo, ppo, task_of, with_memory

ENGINE, ACTOR, REFERENCE = WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER, WorkerName.REFERENCE
CRITIC, REWARD = WorkerName.CRITIC_TRAINER, WorkerName.REWARD_MODEL
PPO_16 = ("ppo", ("a100-80gb", 2))


# ---------------------------------------------------------------------------------------------- HybridFlow


def test_four_models_have_fifteen_partitions_and_the_actor_stays_whole() -> None:
    found = partitions(task_of(*PPO_16))
    assert len(set(found)) == len(found) == 15
    assert all(any({ENGINE, ACTOR} <= set(block) for block in partition) for partition in found)


def test_the_mapping_is_the_least_over_all_allocations() -> None:
    task = task_of(*PPO_16)
    (pool,) = task.pools
    table = ColocatedTable(task, pool)
    graph = task.inputs.graph
    least = float("inf")
    for partition in partitions(task):
        for sizes in product(table.sizes, repeat=len(partition)):
            if sum(sizes) > pool.num_gpus:
                continue
            sets = [table.best(frozenset(members), size) for members, size in zip(partition, sizes, strict=True)]
            if any(joint is None for joint in sets):
                continue
            cost = 0.0
            for kinds in ({StageKind.GENERATION}, {StageKind.INFERENCE}, {StageKind.TRAINING, StageKind.TRANSFER}):
                cost += max(
                    sum(seconds for name, seconds in joint.stage_s if graph.stage(name).kind in kinds)
                    for joint in sets
                    if joint is not None
                )
            least = min(least, cost)
    mapping, tried = best_mapping(task, pool, table)
    assert mapping is not None
    assert mapping.cost_s == pytest.approx(least)
    assert tried > 100


def test_barriers_between_stages_never_make_a_plan_look_faster_than_its_schedule() -> None:
    task = task_of(*PPO_16)
    (pool,) = task.pools
    table = ColocatedTable(task, pool)
    for partition in partitions(task):
        mapping, _ = best_mapping(task, pool, table, [partition])
        if mapping is None:
            continue
        found = realise(task, pool, table, mapping)
        assert found is not None
        assert found.solution.time_s <= mapping.cost_s * (1 + 1e-9)


def test_hybridflow_reports_its_own_objective_and_our_price() -> None:
    plan = hybridflow(task_of(*PPO_16))
    assert plan.time_s is not None and plan.own_objective_s is not None
    assert plan.time_s <= plan.own_objective_s * (1 + 1e-9)
    assert plan.problem == ""


# ---------------------------------------------------------------------------------------------- RLinf


def test_first_parts_are_closed_under_what_comes_before() -> None:
    found = set(first_parts(build_graph(grpo())))
    assert found == {frozenset({ENGINE}), frozenset({ENGINE, REFERENCE})}
    found = set(first_parts(build_graph(ppo())))
    assert frozenset({ENGINE, REWARD}) in found
    assert all(ENGINE in part for part in found)
    # Values do not wait for the reference, but the critic's update does.
    assert all(REFERENCE in part for part in found if CRITIC in part)


def test_the_pipeline_formula_is_warm_up_and_the_longer_stage_for_every_further_group() -> None:
    assert pipeline_s((30.0, 10.0), 1) == 40.0
    assert pipeline_s((30.0, 10.0), 4) == 10.0 + 3 * 7.5


def test_the_second_part_may_get_a_single_gpu() -> None:
    task = task_of("grpo", ("h100", 1))
    (pool,) = task.pools
    table = ColocatedTable(task, pool)
    cutter = Cutter(task, table, 4)
    asked: set[tuple[frozenset[WorkerName], int]] = set()
    real = cutter.best

    def noted(workers: frozenset[WorkerName], num_gpus: int) -> rlinf_module.Cut | None:
        asked.add((workers, num_gpus))
        return real(workers, num_gpus)

    cutter.best = noted  # type: ignore[method-assign]
    cutter.best(frozenset(task.workers), 2)
    assert (frozenset({ACTOR, REFERENCE}), 1) in asked


def test_a_pipeline_of_many_groups_is_cut_and_one_of_a_single_group_is_not() -> None:
    task = task_of("grpo", ("h100", 1))
    (pool,) = task.pools
    table = ColocatedTable(task, pool)
    everyone = frozenset(task.workers)
    one, many = Cutter(task, table, 1).best(everyone, 8), Cutter(task, table, 1000).best(everyone, 8)
    assert one is not None and many is not None
    assert len(one.leaves) == 1
    assert many.cost_s < one.cost_s * 1.5
    assert rlinf(task).time_s is not None


# ---------------------------------------------------------------------------------------------- ReaL


def test_the_heuristic_trains_actor_and_critic_side_by_side_under_pool_wide_generation() -> None:
    plan = real_heuristic(task_of(*PPO_16))
    choice = {item.worker: item for item in plan.choices}
    assert choice[ENGINE].num_gpus == 16
    assert (choice[ENGINE].strategy.tp, choice[ENGINE].strategy.pp) == (1, 2)
    assert choice[ACTOR].group != choice[CRITIC].group
    assert {choice[ACTOR].num_gpus, choice[CRITIC].num_gpus} == {8}
    assert choice[ACTOR].strategy.tp == 4


def test_equal_seeds_sample_equal_plans_and_more_moves_are_no_worse() -> None:
    task = task_of(*PPO_16)
    few = [real_search(task, search_s=60, seed=3, betas=(0.01,), max_moves=300) for _ in range(2)]
    many = real_search(task, search_s=60, seed=3, betas=(0.01,), max_moves=3000)
    assert few[0].choices == few[1].choices
    assert few[0].time_s == few[1].time_s
    assert few[0].evaluations == 600
    assert many.time_s is not None and few[0].time_s is not None
    assert many.time_s <= few[0].time_s


def test_a_start_that_does_not_fit_is_left_behind() -> None:
    # The fastest options of all workers keep their states on the GPU, which is too much for one GPU together.
    task = with_memory(task_of(*PPO_16), 0.5)
    plan = real_search(task, search_s=60, betas=(0.01,), max_moves=4000)
    assert plan.time_s is not None, plan.problem
    roomy = real_search(task_of(*PPO_16), search_s=60, betas=(0.01,), max_moves=4000)
    assert roomy.time_s is not None
    assert plan.time_s > roomy.time_s * 0.9


def test_stage_sums_of_a_set_cover_exactly_its_stages() -> None:
    task = task_of(*PPO_16)
    (pool,) = task.pools
    joint = ColocatedTable(task, pool).best(frozenset({ACTOR, REFERENCE}), 8)
    assert joint is not None
    assert {name for name, _ in joint.stage_s} == {
        StageName.OLD_LOGPROB,
        StageName.REFERENCE_LOGPROB,
        StageName.ACTOR_UPDATE,
    }
