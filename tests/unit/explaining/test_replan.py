"""The fast way to plan a changed request gives what planning from scratch gives."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.domain.plan import Limits, Objective
from planner.explaining.case import open_case
from planner.explaining.relaxations import each_node, faster_nics, faster_scale_up, relax, with_memory
from planner.explaining.replan import World, best_in, world_of
from planner.explaining.sensitivity import kept_in
from planner.files.catalog import load_overheads
from planner.pipeline import estimate, make_plan
from planner.whatif import fixed_workers
from tests.unit.explaining.cases import REQUESTS, case_of, plan_of, planned


def _at_mean(world: World, factor: float) -> World:
    law = world.workload.response
    return replace(world, workload=replace(world.workload, response=replace(law, mean_tokens=law.mean_tokens * factor)))


def _slower_training(world: World) -> World:
    losses = world.overheads.step_losses
    return replace(
        world,
        overheads=replace(world.overheads, step_losses=replace(losses, training_ratio=losses.training_ratio * 1.7)),
    )


WORLDS: dict[str, tuple[Callable[[World], World], bool]] = {
    "shorter": (lambda world: _at_mean(world, 0.4), False),
    "longer": (lambda world: _at_mean(world, 1.6), False),
    "slower training": (_slower_training, False),
    "slow NICs": (lambda w: replace(w, cluster=each_node(w.cluster, lambda node: faster_nics(node, 0.3))), False),
    "fast links": (lambda w: replace(w, cluster=each_node(w.cluster, lambda node: faster_scale_up(node, 2.0))), False),
    "more memory": (
        lambda w: replace(w, cluster=each_node(w.cluster, lambda n: with_memory(n, n.gpu.memory_bytes * 1.2))),
        True,
    ),
    "less memory": (
        lambda w: replace(w, cluster=each_node(w.cluster, lambda n: with_memory(n, n.gpu.memory_bytes * 0.9))),
        True,
    ),
    "less host RAM": (
        lambda w: replace(w, cluster=each_node(w.cluster, lambda n: replace(n, host_ram_bytes=n.host_ram_bytes / 4))),
        True,
    ),
}


@pytest.mark.parametrize("world_name", WORLDS)
@pytest.mark.parametrize("name", ["dense", "asynchronous", "verl"])
def test_the_fast_way_is_exact(name: str, world_name: str) -> None:
    change, has_other_memory = WORLDS[world_name]
    case = case_of(name)
    world = change(world_of(case))
    fast = best_in(case, world, has_other_memory=has_other_memory)
    request = replace(REQUESTS[name], workload=world.workload, cluster=world.cluster, overheads=world.overheads)
    slow = planned(request)
    assert (fast is None) == (slow is None)
    if fast is not None and slow is not None:
        assert fast.time_s == pytest.approx(slow.time_s, rel=1e-9)
        # A guess leaves what is at most as slow, and nothing else; a guess that was too good changes no answer.
        for ratio, expected in ((1.0, fast), (0.999, None)):
            guess = fast.times(ratio)
            assert best_in(case, world, guess, has_other_memory=has_other_memory, at_least=True) == expected
        assert best_in(case, world, fast.times(0.9), has_other_memory=has_other_memory) == fast


def test_a_kept_plan_costs_what_estimate_says() -> None:
    case, plan = case_of("ppo"), plan_of("ppo")
    world = _at_mean(world_of(case), 1.3)
    kept = kept_in(case, world)
    priced = estimate(replace(REQUESTS["ppo"], workload=world.workload), fixed_workers(plan), plan.execution)
    assert kept is not None and kept.time_s == pytest.approx(priced.time_s, rel=1e-9)


def test_relaxations_are_planned_and_sorted_by_gain() -> None:
    request = replace(REQUESTS["dense"], limits=Limits(max_gpus=4))
    case = open_case(make_plan(request), load_overheads())
    found = relax(case)
    gains = [item.gain_ratio for item in found]
    assert gains == sorted(gains, reverse=True) and gains[0] > 0
    free = next(item for item in found if item.option == "without --max-gpus")
    solution = planned(replace(request, limits=Limits()))
    assert solution is not None and free.score is not None
    assert free.score.time_s == pytest.approx(solution.time_s, rel=1e-9)
    assert free.gain_ratio == pytest.approx(1 - solution.time_s / case.optimum.time_s)
    memory = next(item for item in found if item.what.startswith("4 GiB"))
    assert request.cluster is not None
    roomier = each_node(request.cluster, lambda n: with_memory(n, n.gpu.memory_bytes + 4 * 2**30))
    solution = planned(replace(request, cluster=roomier))
    assert solution is not None and memory.score is not None
    assert memory.score.time_s == pytest.approx(solution.time_s, rel=1e-9)


@pytest.mark.parametrize("objective", [Objective.COST, Objective.GPUS])
def test_other_objectives_are_explained_in_their_own_unit(objective: Objective) -> None:
    request = replace(REQUESTS["dense"], limits=Limits(objective=objective))
    plan = make_plan(request)
    case = open_case(plan, load_overheads())
    assert case.is_found_again
    assert case.base.value == pytest.approx(plan.objective_value) and case.base.unit == plan.objective_unit
    assert case.optimum.key <= case.base.key
    assert all(item.gain_ratio >= 0 for item in relax(case))
