"""What `solve` says when there is no plan, and when time runs out."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from planner.domain.plan import Objective, Status
from planner.domain.stages import WorkerName
from planner.search.options import take
from planner.search.problem import SearchLimits, SearchPool, SearchProblem
from planner.search.solve import Cause, solve, solve_union, used_in_pool
from tests.oracle.instances import random_problem


def roomy(seed: int = 0, *, usable_ratio: float = 10.0) -> SearchProblem:
    problem = random_problem(random.Random(seed), num_workers=4, num_options=15)
    pools = tuple(
        replace(pool, usable_bytes=pool.usable_bytes * usable_ratio, host_ram_bytes=pool.host_ram_bytes * 10)
        for pool in problem.pools
    )
    return replace(problem, pools=pools)


def test_a_plan_is_complete_and_consistent() -> None:
    problem = roomy()
    result = solve(problem, SearchLimits())
    assert result.status is Status.OPTIMAL and result.solution is not None and result.cause is None
    solution = result.solution
    assert {choice.worker for choice in solution.choices} == {worker.name for worker in problem.graph.workers}
    for choice in solution.choices:
        table = problem.table(choice.worker, choice.pool)
        assert table is not None
        assert (int(table.row[choice.option]), int(table.num_gpus[choice.option])) == (choice.row, choice.num_gpus)
        group = next(group for group in solution.groups if group.id == choice.group)
        assert choice.worker in group.workers and choice.num_gpus <= group.num_gpus
    assert solution.num_gpus == sum(used_in_pool(solution.groups, pool.name) for pool in problem.pools)
    assert solution.time_s == max(item.end_s for item in solution.schedule)
    assert 0 <= solution.headroom_ratio <= 1
    assert result.bound <= result.value <= result.bound * 1.01 * (1 + 1e-9)


def test_a_worker_without_options_is_named() -> None:
    problem = roomy()
    tables = tuple(
        take(table, np.zeros(len(table), dtype=np.bool_)) if table.worker is WorkerName.ACTOR_TRAINER else table
        for table in problem.options
    )
    result = solve(replace(problem, options=tables), SearchLimits())
    assert result.status is Status.INFEASIBLE and result.cause is Cause.NO_OPTION
    assert result.workers_without_options == (WorkerName.ACTOR_TRAINER,)


def test_excluded_structures_are_counted_by_reason() -> None:
    result = solve(replace(roomy(), structure_filter=lambda structure: "not today"), SearchLimits())
    assert result.status is Status.INFEASIBLE and result.cause is Cause.NO_STRUCTURE
    assert result.num_structures == 0
    assert result.num_excluded[0][0] == "not today" and result.num_excluded[0][1] > 0


def test_the_structure_filter_is_obeyed() -> None:
    def one_block(structure) -> str | None:  # type: ignore[no-untyped-def]
        return None if structure.num_groups == 1 else "more than one group"

    result = solve(replace(roomy(), structure_filter=one_block), SearchLimits())
    assert result.solution is not None and len(result.solution.groups) == 1
    assert result.num_structures == 1


def test_too_little_memory_names_what_is_short() -> None:
    problem = roomy(usable_ratio=0.1)
    result = solve(problem, SearchLimits())
    assert result.status is Status.INFEASIBLE and result.cause is Cause.MEMORY
    assert result.shortfalls[0].excess_bytes > 0
    assert result.shortfalls[0].excess_bytes == max(item.excess_bytes for item in result.shortfalls)


def test_a_limit_that_excludes_every_plan_is_told_from_memory() -> None:
    problem = roomy()
    best = solve(problem, SearchLimits())
    result = solve(problem, SearchLimits(max_iteration_s=best.bound * 0.5))
    assert result.status is Status.INFEASIBLE and result.cause is Cause.LIMITS
    assert result.best_beyond_limits is not None
    assert result.best_beyond_limits.time_s == pytest.approx(best.bound)


def test_no_time_is_unknown_or_feasible_but_never_a_false_proof() -> None:
    problem = roomy()
    best = solve(problem, SearchLimits(tie_tolerance_ratio=0.0))
    result = solve(problem, SearchLimits(time_limit_s=0.0))
    assert result.status is Status.UNKNOWN
    assert result.bound <= best.value


def test_gpu_hours_stand_in_for_unknown_prices() -> None:
    problem = roomy()
    pools = tuple(replace(pool, usd_per_gpu_hour=None) for pool in problem.pools)
    result = solve(replace(problem, pools=pools), SearchLimits(objective=Objective.COST))
    assert result.unit == "GPU-hours"
    assert result.solution is not None and result.solution.usd is None


def test_sizes_that_do_not_pack_are_refused() -> None:
    problem = roomy()
    pool = problem.pools[0]
    odd = SearchPool(name=pool.name, num_nodes=2, gpus_per_node=3, usable_bytes=pool.usable_bytes, host_ram_bytes=1e12)
    with pytest.raises(ValueError, match="divisor chain"):
        replace(problem, pools=(odd,))


def test_a_union_needs_problems_on_the_same_pools() -> None:
    problem = roomy()
    other = replace(problem.pools[0], num_nodes=problem.pools[0].num_nodes + 1)
    with pytest.raises(ValueError, match="same pools"):
        solve_union((problem, replace(problem, pools=(other,))), SearchLimits())
    with pytest.raises(ValueError, match="at least one"):
        solve_union((), SearchLimits())
