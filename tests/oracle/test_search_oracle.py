"""The search against exhaustive search, on hundreds of small random problems, and its back ends against each other."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from planner.domain.plan import Objective, Status
from planner.domain.stages import WorkerName
from planner.search.clock import Clock
from planner.search.integer import discretise
from planner.search.leaf import build_leaf, enumerate_leaf, without_dominated
from planner.search.minimise import Progress, TimeSearch, unit_space
from planner.search.options import prune, take
from planner.search.problem import SearchLimits, SearchPool, SearchProblem, Solver
from planner.search.solve import SearchResult, solve, solve_union
from planner.units import HOUR_S
from tests.oracle.instances import exhaustive, random_problem

NUM_SEEDS = 40
SEEDS_PER_TEST = 10
SOLVER_TOLERANCE_RATIO = 1e-5


def make(seed: int) -> SearchProblem:
    rng = random.Random(seed)
    num_workers = rng.choice((2, 3, 3, 3, 4))
    num_pools = rng.choice((1, 1, 1, 2, 3) if num_workers < 4 else (1, 1, 1, 2))
    num_options = rng.choice((2, 3, 4)) if num_pools == 1 and num_workers < 4 else 2
    return random_problem(
        rng,
        num_workers=num_workers,
        num_pools=num_pools,
        num_options=num_options,
        equal_size=rng.random() < 0.3,
        random_edges=rng.random() < 0.3,
    )


def rate_per_s(problem: SearchProblem, used: dict[str, int]) -> float:
    return sum(
        math.ceil(used[pool.name] / pool.gpus_per_node) * pool.gpus_per_node * (pool.usd_per_gpu_hour or 0.0) / HOUR_S
        for pool in problem.pools
    )


def no_ties(objective: Objective = Objective.TIME, **given: float) -> SearchLimits:
    return SearchLimits(objective=objective, tie_tolerance_ratio=0.0, num_alternatives=0, **given)  # type: ignore[arg-type]


def seeds(chunk: int) -> range:
    return range(chunk * SEEDS_PER_TEST, (chunk + 1) * SEEDS_PER_TEST)


@pytest.mark.parametrize("chunk", range(NUM_SEEDS))
def test_least_time_is_that_of_exhaustive_search(chunk: int) -> None:
    for seed in seeds(chunk):
        problem = make(seed)
        truth = min((time_s for time_s, _ in exhaustive(problem)), default=math.inf)
        result = solve(problem, no_ties())
        if math.isinf(truth):
            assert result.status is Status.INFEASIBLE, seed
        else:
            assert result.status is Status.OPTIMAL, seed
            assert result.value == pytest.approx(truth, rel=1e-9), seed
            assert result.bound == pytest.approx(truth, rel=1e-9), seed


@pytest.mark.parametrize("chunk", range(8))
def test_cost_gpus_and_limits_are_those_of_exhaustive_search(chunk: int) -> None:
    for seed in seeds(100 + chunk):
        problem = make(seed)
        plans = [(time_s, sum(used.values()), rate_per_s(problem, used)) for time_s, used in exhaustive(problem)]
        if not plans:
            assert solve(problem, no_ties(Objective.COST)).status is Status.INFEASIBLE
            continue
        cost = solve(problem, no_ties(Objective.COST))
        assert cost.value == pytest.approx(min(t * rate for t, _, rate in plans), rel=1e-9), seed
        fewest = solve(problem, no_ties(Objective.GPUS))
        expected = min((n, t) for t, n, _ in plans)
        assert fewest.value == expected[0], seed
        assert fewest.solution is not None and fewest.solution.time_s == pytest.approx(expected[1], rel=1e-9), seed
        check_limits(problem, plans, random.Random(seed))


def check_limits(problem: SearchProblem, plans: list[tuple[float, int, float]], rng: random.Random) -> None:
    time_s, num_gpus, rate = rng.choice(plans)
    max_s, max_gpus, max_usd = time_s * 1.01, num_gpus, time_s * rate * 1.01
    allowed = [(t, n, r) for t, n, r in plans if t <= max_s and n <= max_gpus and t * r <= max_usd]
    for objective, values in (
        (Objective.TIME, [t for t, _, _ in allowed]),
        (Objective.COST, [t * r for t, _, r in allowed]),
        (Objective.GPUS, [n for _, n, _ in allowed]),
    ):
        limits = SearchLimits(
            objective=objective,
            max_iteration_s=max_s,
            max_gpus=max_gpus,
            max_usd_per_iteration=max_usd,
            tie_tolerance_ratio=0.0,
            num_alternatives=0,
        )
        result = solve(problem, limits)
        assert result.status is Status.OPTIMAL
        assert result.value == pytest.approx(min(values), rel=1e-9)


@pytest.mark.parametrize("chunk", range(3))
def test_enumeration_cpsat_and_ilp_agree_on_every_structure(chunk: int) -> None:
    from planner.search import cpsat, ilp

    compared = 0
    for seed in range(5000 + 5 * chunk, 5005 + 5 * chunk):
        problem = make(seed)
        space = unit_space(problem, problem.options)
        search = TimeSearch(problem, SearchLimits(), space, Progress(clock=Clock(60.0)))
        capacity = np.array([pool.num_gpus for pool in problem.pools])
        bounds = search.bounds(capacity, math.inf)
        for i, unit in enumerate(search.units[:20]):
            leaf = build_leaf(search.tables, unit, bounds.low[i], bounds.high[i], capacity, math.inf)
            if leaf.is_empty:
                continue
            expected = enumerate_leaf(leaf, 10**9)
            assert expected.is_complete
            reduced = without_dominated(leaf)
            assert enumerate_leaf(reduced, 10**9).time_s == expected.time_s
            integers = discretise(reduced)
            first = cpsat.solve_leaf(integers, time_limit_s=300.0, seed=0)
            second = ilp.solve_leaf(integers, time_limit_s=300.0, seed=0)
            assert first.is_complete and second.is_complete
            if expected.rows is None:
                assert first.choice is None and second.choice is None
                continue
            compared += 1
            assert first.bound_ticks is not None and second.bound_ticks is not None
            assert integers.lower_bound_s(first.bound_ticks) <= expected.time_s
            for bound in (first.bound_ticks, second.bound_ticks):
                assert bound * integers.tick_s == pytest.approx(expected.time_s, rel=SOLVER_TOLERANCE_RATIO)
    assert compared > 10


@pytest.mark.parametrize("solver", [Solver.CPSAT, Solver.ILP])
def test_whole_search_with_a_solver_agrees_with_the_default(solver: Solver) -> None:
    for seed in range(7000, 7025):
        problem = make(seed)
        expected = solve(problem, no_ties())
        limits = SearchLimits(solver=solver, tie_tolerance_ratio=0.0, num_alternatives=0)
        result = solve(problem, limits)
        assert result.status is expected.status, seed
        assert math.isclose(result.value, expected.value, rel_tol=SOLVER_TOLERANCE_RATIO), seed


def test_pruning_changes_no_optimum() -> None:
    for seed in range(9000, 9030):
        rng = random.Random(seed)
        equal_size = rng.random() < 0.4
        problem = random_problem(rng, num_workers=rng.choice((3, 4, 5)), num_options=25, equal_size=equal_size)
        pruned = SearchProblem(
            graph=problem.graph,
            pools=problem.pools,
            options=tuple(prune(table, across_sizes=not equal_size) for table in problem.options),
            host_stage_s=problem.host_stage_s,
            equal_size=equal_size,
        )
        assert sum(map(len, pruned.options)) < sum(map(len, problem.options))
        for objective in (Objective.TIME, Objective.GPUS):
            first, second = solve(problem, no_ties(objective)), solve(pruned, no_ties(objective))
            assert first.status is second.status, seed
            assert math.isclose(first.value, second.value, rel_tol=1e-9), seed


def with_pools(problem: SearchProblem, *, memory_ratio: float = 1.0, more_nodes: int = 0) -> SearchProblem:
    pools = tuple(
        SearchPool(
            name=pool.name,
            num_nodes=pool.num_nodes + more_nodes,
            gpus_per_node=pool.gpus_per_node,
            usable_bytes=pool.usable_bytes * memory_ratio,
            host_ram_bytes=pool.host_ram_bytes,
            usd_per_gpu_hour=pool.usd_per_gpu_hour,
        )
        for pool in problem.pools
    )
    return SearchProblem(
        graph=problem.graph,
        pools=pools,
        options=problem.options,
        host_stage_s=problem.host_stage_s,
        equal_size=problem.equal_size,
    )


def test_more_nodes_or_memory_never_hurt() -> None:
    for seed in range(11000, 11015):
        problem = random_problem(random.Random(seed), num_workers=5, num_options=12, equal_size=seed % 3 == 0)
        for objective in Objective:
            base = solve(problem, no_ties(objective)).value
            assert solve(with_pools(problem, more_nodes=1), no_ties(objective)).value <= base * (1 + 1e-12), seed
            assert solve(with_pools(problem, memory_ratio=1.2), no_ties(objective)).value <= base * (1 + 1e-12), seed


def used_gpus(result: SearchResult) -> int:
    assert result.solution is not None
    return result.solution.num_gpus


def test_near_equal_plans_save_gpus_and_keep_the_bound() -> None:
    saved = 0
    for seed in range(13000, 13040):
        problem = random_problem(random.Random(seed), num_workers=4, num_options=20)
        best = solve(problem, no_ties())
        near = solve(problem, SearchLimits(tie_tolerance_ratio=0.3))
        assert near.status is best.status
        if best.solution is None:
            continue
        assert near.bound == pytest.approx(best.bound, rel=1e-12)
        assert best.value <= near.value <= 1.3 * best.value * (1 + 1e-9)
        assert used_gpus(near) <= used_gpus(best)
        saved += used_gpus(near) < used_gpus(best)
    assert saved > 0


def test_equal_input_gives_equal_results() -> None:
    problem = random_problem(random.Random(1), num_workers=5, num_options=30)
    first, second = solve(problem, SearchLimits()), solve(problem, SearchLimits())
    assert first.solution == second.solution
    assert first.alternatives == second.alternatives


def test_a_union_of_problems_is_their_best() -> None:
    for seed in range(15000, 15030):
        problem = random_problem(random.Random(seed), num_workers=4, num_options=12, equal_size=seed % 2 == 0)
        parts = [only_rows(problem, remainder) for remainder in range(3)]
        for objective in Objective:
            single = [solve(part, no_ties(objective)) for part in parts]
            union = solve_union(parts, no_ties(objective))
            best = min(result.value for result in single)
            assert math.isclose(union.value, best, rel_tol=1e-12), seed
            if union.solution is not None:
                assert union.status is Status.OPTIMAL
                assert math.isclose(single[union.part].value, best, rel_tol=1e-12), seed


def only_rows(problem: SearchProblem, remainder: int) -> SearchProblem:
    """The problem with every third option of the actor trainer."""
    tables = tuple(
        take(table, table.row % 3 == remainder) if table.worker is WorkerName.ACTOR_TRAINER else table
        for table in problem.options
    )
    return SearchProblem(
        graph=problem.graph,
        pools=problem.pools,
        options=tables,
        host_stage_s=problem.host_stage_s,
        equal_size=problem.equal_size,
    )
