"""Asynchronous and fused plans and scheduling policies: the search against brute force, on small random problems."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from planner.domain.execution import Execution, ExecutionMode, Fusion, SchedulingPolicy
from planner.domain.plan import Objective, Status
from planner.domain.stages import StageName
from planner.search.clock import Clock
from planner.search.integer import discretise
from planner.search.leaf import build_leaf, enumerate_leaf, without_dominated
from planner.search.minimise import Progress, TimeSearch, unit_space
from planner.search.options import prune
from planner.search.problem import SearchLimits, SearchProblem, Solver
from planner.search.solve import Solution, solve, solve_union
from planner.units import HOUR_S
from tests.oracle.evaluation import (
    ROLLOUT,
    SYNC,
    all_plans,
    conflicts_of,
    elementary_cycles,
    recurrences,
    simulated_period_s,
)
from tests.oracle.executions import random_execution_problem

SOLVER_TOLERANCE_RATIO = 1e-5
SEEDS_PER_TEST = 10
ASYNCHRONOUS = (ExecutionMode.BATCHES, ExecutionMode.STREAMING)


def ahead(mode: ExecutionMode, rng: random.Random, policy: SchedulingPolicy = SchedulingPolicy.PLANNED) -> Execution:
    return Execution(mode=mode, staleness=rng.randint(1, 3), policy=policy)


EXECUTIONS: dict[str, Callable[[random.Random], Execution]] = {
    "batches": lambda rng: ahead(ExecutionMode.BATCHES, rng),
    "streaming": lambda rng: ahead(ExecutionMode.STREAMING, rng),
    "inter-stage": lambda rng: Execution(fusions=(Fusion.INTER_STAGE,)),
    "intra-stage": lambda rng: Execution(fusions=(Fusion.INTRA_STAGE,)),
    "both fusions": lambda rng: Execution(fusions=(Fusion.INTER_STAGE, Fusion.INTRA_STAGE)),
    "fifo": lambda rng: Execution(policy=SchedulingPolicy.FIFO),
    "sequential": lambda rng: Execution(policy=SchedulingPolicy.SEQUENTIAL),
    "asynchronous fifo": lambda rng: ahead(rng.choice(ASYNCHRONOUS), rng, SchedulingPolicy.FIFO),
    "asynchronous sequential": lambda rng: ahead(rng.choice(ASYNCHRONOUS), rng, SchedulingPolicy.SEQUENTIAL),
}
NUM_CHUNKS = {
    "batches": 24,
    "streaming": 12,
    "inter-stage": 24,
    "intra-stage": 8,
    "both fusions": 16,
    "fifo": 8,
    "sequential": 6,
    "asynchronous fifo": 6,
    "asynchronous sequential": 8,
}


def make(kind: str, seed: int) -> SearchProblem:
    rng = random.Random(f"{kind} {seed}")
    execution = EXECUTIONS[kind](rng)
    num_workers = rng.choice((2, 3, 3, 4))
    num_pools = rng.choice((1, 1, 2)) if num_workers < 4 else 1
    # Which of two stages is ready first depends on durations when neither's inputs are among the other's.
    is_planned = execution.policy is SchedulingPolicy.PLANNED
    return random_execution_problem(
        rng,
        execution,
        num_workers=num_workers,
        num_pools=num_pools,
        num_options=rng.choice((2, 3)) if num_workers < 4 else 2,
        equal_size=rng.random() < 0.2,
        extra_edges=is_planned and rng.random() < 0.3,
    )


def rate_per_s(problem: SearchProblem, used: dict[str, int]) -> float:
    nodes = {pool.name: math.ceil(used[pool.name] / pool.gpus_per_node) for pool in problem.pools}
    return sum(
        nodes[pool.name] * pool.gpus_per_node * (pool.usd_per_gpu_hour or 0.0) / HOUR_S for pool in problem.pools
    )


def listed(problem: SearchProblem) -> list[tuple[float, int, float]]:
    """Seconds, GPUs and USD per second of every plan."""
    result = []
    for plans in all_plans(problem):
        for i, time_s in enumerate(plans.time_s.tolist()):
            used = {name: int(number[i]) for name, number in plans.used.items()}
            if math.isfinite(time_s):
                result.append((time_s, sum(used.values()), rate_per_s(problem, used)))
    return result


def least_s(problem: SearchProblem) -> float:
    return min((float(plans.time_s.min()) for plans in all_plans(problem)), default=math.inf)


def no_ties(objective: Objective = Objective.TIME, solver: Solver = Solver.AUTO) -> SearchLimits:
    return SearchLimits(objective=objective, solver=solver, tie_tolerance_ratio=0.0, num_alternatives=0)


CHUNKS = [(kind, chunk) for kind, number in NUM_CHUNKS.items() for chunk in range(number)]


@pytest.mark.parametrize(("kind", "chunk"), CHUNKS)
def test_least_time_is_that_of_brute_force(kind: str, chunk: int) -> None:
    for seed in range(chunk * SEEDS_PER_TEST, (chunk + 1) * SEEDS_PER_TEST):
        problem = make(kind, seed)
        truth = least_s(problem)
        result = solve(problem, no_ties())
        if math.isinf(truth):
            assert result.status is Status.INFEASIBLE, seed
            continue
        assert result.status is Status.OPTIMAL and result.solution is not None, seed
        assert result.value == pytest.approx(truth, rel=1e-9), seed
        assert result.bound == pytest.approx(truth, rel=1e-9), seed
        check_steady(problem, result.solution)


LARGE = {"batches": (4, 2), "inter-stage": (4, 2), "both fusions": (5, 1), "asynchronous sequential": (4, 2)}


@pytest.mark.parametrize("kind", list(LARGE))
def test_more_workers_and_pools_agree_with_brute_force_too(kind: str) -> None:
    """Engines on all of a pool, with others on its blocks and the trainer on another pool; five workers."""
    num_workers, num_pools = LARGE[kind]
    compared = 0
    for seed in range(3):
        rng = random.Random(f"large {kind} {seed}")
        problem = random_execution_problem(
            rng, EXECUTIONS[kind](rng), num_workers=num_workers, num_pools=num_pools, num_options=2, tightness=0.6
        )
        truth = least_s(problem)
        compared += math.isfinite(truth)
        assert solve(problem, no_ties()).value == pytest.approx(truth, rel=1e-9) or math.isinf(truth), seed
    assert compared >= 1


def check_steady(problem: SearchProblem, solution: Solution) -> None:
    """The schedule of a batch, repeated every period, keeps dependencies, staleness and one stage per GPU."""
    period, execution = solution.time_s, problem.execution
    if not execution.is_asynchronous:
        return
    slack = 1e-6 * period
    at = {item.stage: item for item in solution.schedule}
    streams = execution.mode is ExecutionMode.STREAMING
    for a, b in problem.graph.edges:
        assert at[a].end_s <= at[b].start_s + slack
    if not streams:
        assert at[SYNC].end_s <= at[ROLLOUT].start_s + (execution.staleness + 1) * period + slack
    for a, b in (tuple(pair) for pair in conflicts_of(problem.graph, dict(solution.structure.places()))):
        if streams and ROLLOUT in (a, b):
            continue
        after_s = (at[b].start_s - at[a].start_s) % period
        length_a, length_b = at[a].end_s - at[a].start_s, at[b].end_s - at[b].start_s
        if length_a > slack and length_b > slack and after_s < period - slack:
            assert length_a <= after_s + slack and after_s + length_b <= period + slack, (a, b)


@pytest.mark.parametrize("kind", list(EXECUTIONS))
def test_every_objective_and_limit_agrees_with_brute_force(kind: str) -> None:
    compared = 0
    for seed in range(1000, 1008):
        problem, rng = make(kind, seed), random.Random(seed)
        plans = listed(problem)
        if not plans:
            continue
        compared += 1
        assert solve(problem, no_ties(Objective.COST)).value == pytest.approx(min(t * r for t, _, r in plans), rel=1e-9)
        fewest = solve(problem, no_ties(Objective.GPUS))
        num_gpus, time_s = min((n, t) for t, n, _ in plans)
        assert fewest.value == num_gpus and fewest.solution is not None
        assert fewest.solution.time_s == pytest.approx(time_s, rel=1e-9)
        time_s, num_gpus, rate = rng.choice(plans)
        limits = replace(
            no_ties(), max_iteration_s=time_s * 1.01, max_gpus=num_gpus, max_usd_per_iteration=time_s * rate * 1.01
        )
        allowed = [
            (t, n, r) for t, n, r in plans if t <= time_s * 1.01 and n <= num_gpus and t * r <= time_s * rate * 1.01
        ]
        for objective, value in (
            (Objective.TIME, min(t for t, _, _ in allowed)),
            (Objective.COST, min(t * r for t, _, r in allowed)),
            (Objective.GPUS, min(n for _, n, _ in allowed)),
        ):
            result = solve(problem, replace(limits, objective=objective))
            assert result.status is Status.OPTIMAL and result.value == pytest.approx(value, rel=1e-9), (seed, objective)
    assert compared >= 3


def family(seed: int) -> list[SearchProblem]:
    """One problem without staleness, one with batches ahead, on the same options."""
    problem = make("batches", seed)
    return [replace(problem, execution=Execution()), problem]


def test_a_union_of_executions_is_the_best_of_them() -> None:
    won = [0, 0]
    for seed in range(2000, 2030):
        problems = family(seed)
        truth = [least_s(problem) for problem in problems]
        result = solve_union(problems, no_ties())
        if math.isinf(min(truth)):
            assert result.status is Status.INFEASIBLE, seed
            continue
        assert result.status is Status.OPTIMAL and result.value == pytest.approx(min(truth), rel=1e-9), seed
        assert truth[result.part] == pytest.approx(min(truth), rel=1e-9), seed
        won[result.part] += 1
    assert min(won) > 2


def test_the_largest_cycle_is_the_period_of_a_replay() -> None:
    """Brute force itself: the waits replayed batch by batch, for a hundred recurrences."""
    compared = 0
    for seed in range(3000, 3040):
        problem, rng = make(rng_kind(seed), seed), random.Random(seed)
        for plans in all_plans(problem):
            options = [waits for waits in set(recurrences(problem, plans.placement)) if elementary_cycles(waits)]
            waits = min(options, key=lambda w: sorted(w))
            weights = {stage.name: rng.uniform(0.5, 20.0) for stage in problem.graph.stages}
            cycles = elementary_cycles(waits)
            assert cycles is not None
            longest = max(sum(weights[n] for n in members) / batches for members, batches in cycles)
            replay = simulated_period_s(waits, weights, num_batches=240)
            assert replay == pytest.approx(longest, rel=2e-3), seed
            compared += 1
            break
    assert compared > 20


def rng_kind(seed: int) -> str:
    return ("batches", "asynchronous sequential", "asynchronous fifo")[seed % 3]


def leaves(problem: SearchProblem):  # type: ignore[no-untyped-def]
    """Leaves of exact units without a cutoff."""
    space = unit_space(problem, problem.options)
    search = TimeSearch(problem, SearchLimits(), space, Progress(clock=Clock(60.0)))
    capacity = np.array([pool.num_gpus for pool in problem.pools])
    bounds = search.bounds(capacity, math.inf)
    for i, unit in enumerate(bounds.units[:4]):
        for exact in space.exact(unit)[:2]:
            leaf = build_leaf(search.tables, exact, bounds.low[i], bounds.high[i], capacity, math.inf)
            if not leaf.is_empty:
                yield leaf


@pytest.mark.parametrize("kind", ["batches", "streaming", "inter-stage", "both fusions", "asynchronous sequential"])
def test_enumeration_cpsat_and_ilp_agree_on_leaves(kind: str) -> None:
    from planner.search import cpsat, ilp

    compared = 0
    for seed in range(4000, 4005):
        for leaf in leaves(make(kind, seed)):
            expected = enumerate_leaf(leaf, 10**9)
            reduced = without_dominated(leaf)
            assert expected.is_complete and enumerate_leaf(reduced, 10**9).time_s == expected.time_s
            integers = discretise(reduced)
            first = cpsat.solve_leaf(integers, time_limit_s=300.0, seed=0)
            second = ilp.solve_leaf(integers, time_limit_s=300.0, seed=0)
            assert first.is_complete and second.is_complete
            if expected.rows is None:
                assert first.choice is None and second.choice is None
                continue
            compared += 1
            for result in (first, second):
                assert result.bound_ticks is not None
                assert integers.lower_bound_s(result.bound_ticks) <= expected.time_s
                assert result.bound_ticks * integers.tick_s == pytest.approx(
                    expected.time_s, rel=SOLVER_TOLERANCE_RATIO
                )
    assert compared > 4


@pytest.mark.parametrize("solver", [Solver.CPSAT, Solver.ILP])
@pytest.mark.parametrize("kind", list(EXECUTIONS))
def test_a_whole_search_with_a_solver_agrees_with_the_default(kind: str, solver: Solver) -> None:
    for seed in range(5000, 5006):
        problem = make(kind, seed)
        expected, result = solve(problem, no_ties()), solve(problem, no_ties(solver=solver))
        assert result.status is expected.status, seed
        assert math.isclose(result.value, expected.value, rel_tol=SOLVER_TOLERANCE_RATIO), seed


@pytest.mark.parametrize("kind", ["batches", "streaming", "inter-stage", "both fusions"])
def test_pruning_changes_no_optimum(kind: str) -> None:
    for seed in range(6000, 6006):
        rng = random.Random(f"{kind} {seed}")
        problem = random_execution_problem(
            rng, EXECUTIONS[kind](rng), num_workers=rng.choice((3, 4, 5)), num_options=40, tightness=0.8
        )
        pruned = replace(problem, options=tuple(prune(table) for table in problem.options))
        assert sum(map(len, pruned.options)) < sum(map(len, problem.options))
        first, second = solve(problem, no_ties()), solve(pruned, no_ties())
        assert first.status is second.status, seed
        assert math.isclose(first.value, second.value, rel_tol=1e-9), seed


def value(problem: SearchProblem, execution: Execution) -> float:
    return solve(replace(problem, execution=execution), no_ties()).value


def not_worse(later: float, earlier: float) -> bool:
    return later <= earlier * (1 + 1e-9)


def test_what_is_permitted_never_hurts() -> None:
    better = dict.fromkeys(("staleness", "inter", "intra", "fifo", "planned"), 0)
    for seed in range(7000, 7030):
        rng = random.Random(seed)
        everything = Execution(fusions=(Fusion.INTER_STAGE, Fusion.INTRA_STAGE))
        problem = random_execution_problem(rng, everything, num_workers=rng.choice((3, 4)), num_options=6)
        steps = {
            "planned": (Execution(policy=SchedulingPolicy.FIFO), Execution()),
            "fifo": (Execution(policy=SchedulingPolicy.SEQUENTIAL), Execution(policy=SchedulingPolicy.FIFO)),
            "inter": (Execution(), Execution(fusions=(Fusion.INTER_STAGE,))),
            "intra": (Execution(fusions=(Fusion.INTER_STAGE,)), everything),
        }
        pairs = [(name, value(problem, a), value(problem, b)) for name, (a, b) in steps.items()]
        mode = ExecutionMode.BATCHES
        stale = [value(problem, Execution(mode=mode, staleness=k)) for k in (1, 2, 3)]
        pairs += [("staleness", stale[0], stale[1]), ("staleness", stale[1], stale[2])]
        sequential = value(problem, Execution(mode=mode, staleness=1, policy=SchedulingPolicy.SEQUENTIAL))
        pairs += [("planned", sequential, stale[0])]
        for name, before, after in pairs:
            assert not_worse(after, before), (seed, name)
            better[name] += after < before * (1 - 1e-6)
    assert all(number > 0 for number in better.values()), better


def test_more_of_everything_never_hurts_under_any_execution() -> None:
    for kind in EXECUTIONS:
        for seed in range(8000, 8004):
            problem = make(kind, seed)
            base = solve(problem, no_ties()).value
            for change in ({"memory": 1.2}, {"nodes": 1.0}, {"link": 0.5}):
                assert not_worse(solve(enlarged(problem, **change), no_ties()).value, base), (kind, seed, change)


def enlarged(problem: SearchProblem, *, memory: float = 1.0, nodes: float = 0.0, link: float = 1.0) -> SearchProblem:
    """More memory, nodes or bandwidth between pools (`link` times as many seconds for a sync between them)."""
    pools = tuple(
        replace(pool, usable_bytes=pool.usable_bytes * memory, num_nodes=pool.num_nodes + int(nodes))
        for pool in problem.pools
    )
    options = tuple(replace(table, sync_cross_pool_s=table.sync_cross_pool_s * link) for table in problem.options)
    return replace(problem, pools=pools, options=options)


def test_a_controller_waits_for_stages_on_the_host_too() -> None:
    """Found by brute force: the schedule let the reward run beside other stages, and so contradicted the search."""
    seen = 0
    for seed in range(9000, 9040):
        problem = make("asynchronous sequential", seed)
        result = solve(problem, no_ties())
        if result.solution is None or not problem.host_stage_s:
            continue
        seen += 1
        serial = [item for item in result.solution.schedule if item.stage is not StageName.ROLLOUT]
        assert sum(item.end_s - item.start_s for item in serial) <= result.solution.time_s * (1 + 1e-9)
        for first, second in pairwise(serial):
            assert first.end_s <= second.start_s + 1e-6
    assert seen > 3
