"""`solve`: from a search problem to the best plan with its proof. Read this first, then `minimise` and `leaf`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from planner.domain.execution import Execution
from planner.domain.plan import Objective, ScheduledStage, Status
from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import IntArray
from planner.search import schedule
from planner.search.bounds import sync_share_s
from planner.search.capacity import NEVER, CapacitySearch, Goal, Key
from planner.search.clock import Clock
from planner.search.minimise import Found, Progress, TimeSearch, UnitSpace, unit_space
from planner.search.polish import polish
from planner.search.problem import SearchLimits, SearchProblem
from planner.search.structures import Structure
from planner.search.timing import Part, Timing
from planner.search.units import host_parts

_TIE_CALLS = 16
_OPTIMAL_GAP_RATIO = 1e-5
"""CP-SAT and the ILP count time in ticks; a gap below this is their rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The option of one worker. `row` is the caller's candidate number, `option` the row of the option table."""

    worker: WorkerName
    pool: str
    group: str
    num_gpus: int
    row: int
    option: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenGroup:
    """A device group: its id (`pool/0`, `pool/whole`), its workers and its GPUs. The pool-wide group contains the
    blocks of its pool."""

    id: str
    pool: str
    workers: tuple[WorkerName, ...]
    is_whole: bool
    num_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A complete plan of the search: `time_s` and `schedule` are recomputed in floats from the chosen options."""

    structure: Structure
    groups: tuple[ChosenGroup, ...]
    choices: tuple[Choice, ...]
    timing: Timing
    """The order of stages that share GPUs, and how they overlap."""
    execution: Execution
    schedule: tuple[ScheduledStage, ...]
    time_s: float
    num_gpus: int
    usd: float | None
    """Per iteration, of the whole nodes used; None without prices."""
    headroom_ratio: float
    """Smallest free share of usable GPU memory."""

    def choice(self, worker: WorkerName) -> Choice:
        return next(item for item in self.choices if item.worker is worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternativeStructure:
    """Another structure: its best plan as far as searched, and a lower bound on its time."""

    structure: Structure
    time_s: float
    bound_s: float
    num_gpus: int


class Cause(StrEnum):
    """Why nothing was found."""

    NO_OPTION = "no option"
    """A worker has no option at all: nothing legal, or too large even alone."""
    NO_STRUCTURE = "no structure"
    """The structure filter excluded everything."""
    MEMORY = "memory"
    """Options exist, but no combination fits on the GPUs and in the memory given."""
    LIMITS = "limits"
    """Plans exist beyond the limits on time, GPUs or USD."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """A memory row that fails by least on its pool: the worker's smallest peak beside the smallest idle states of
    those that always share its GPUs in that structure. `excess_bytes` is negative if the row itself would fit."""

    worker: WorkerName
    pool: str
    least_active_bytes: float
    least_idle_bytes_of_others: float
    usable_bytes: float

    @property
    def excess_bytes(self) -> float:
        return self.least_active_bytes + self.least_idle_bytes_of_others - self.usable_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The answer and its proof. `value` and `bound` are in seconds (TIME), USD or GPU-hours (COST) or GPUs (GPUS)."""

    status: Status
    solution: Solution | None
    part: int
    """Which problem of a union the options of the solution belong to; 0 for a single problem."""
    value: float
    bound: float
    unit: str
    num_structures: int
    num_excluded: tuple[tuple[str, int], ...]
    """Structures that the filter excluded, by reason."""
    num_solved: int
    """Structures that bounds did not decide, over all capacities tried."""
    solver: str
    """What proved the result, for instance `bounds + enumeration`."""
    time_to_first_s: float
    time_s: float
    alternatives: tuple[AlternativeStructure, ...]
    cause: Cause | None
    """Set for INFEASIBLE."""
    workers_without_options: tuple[WorkerName, ...]
    shortfalls: tuple[Shortfall, ...]
    best_beyond_limits: Solution | None
    """For cause LIMITS: the fastest plan when no limit is set."""


def solve(problem: SearchProblem, limits: SearchLimits) -> SearchResult:
    """The best plan in the space of `problem`, with status, bound and what to say about it.

    OPTIMAL and INFEASIBLE are proven; FEASIBLE (with a bound) and UNKNOWN mean that the time limit ended the search.
    """
    return solve_union((problem,), limits)


def solve_union(
    problems: Sequence[SearchProblem],
    limits: SearchLimits,
    *,
    bounds_s: Sequence[float] | None = None,
    beat: float | None = None,
) -> SearchResult:
    """The best plan over several problems on the same pools; `part` says whose options it uses. Problems may differ
    in their options, or in graph and execution.

    With `beat` only plans with an objective below it are of interest: no solution then means that there is none.
    `bounds_s` are known lower bounds on the iteration time of each problem; the most promising should come first.
    Raises ValueError for no problems, or problems with different pools.
    """
    _check_union(problems)
    union = _Union(problems, limits)
    union.beat = NEVER if beat is None else (beat, 0.0)
    goal = _goal(limits)
    for part in range(len(problems)):
        union.improve(part, goal, bounds_s[part] if bounds_s is not None else 0.0)
    if union.best is None:
        return _without_plan(union, wants_cause=beat is None)
    return _with_plan(union, goal, union.best)


def _check_union(problems: Sequence[SearchProblem]) -> None:
    if not problems:
        raise ValueError("a search needs at least one problem")
    if any(other.pools != problems[0].pools for other in problems[1:]):
        raise ValueError("problems of a union have the same pools")


def _timed_alike(first: Execution, second: Execution) -> bool:
    """How a split rollout is shared changes seconds, not structures or timings."""
    if first.is_split != second.is_split:
        return False
    return replace(first, second_share_ratio=0.0) == replace(second, second_share_ratio=0.0)


def _same_space(first: SearchProblem, second: SearchProblem) -> bool:
    """Whether two problems have the same structures and timings, so that they differ in their options only."""
    return (
        first.structure_filter is second.structure_filter
        and first.equal_size == second.equal_size
        and _timed_alike(first.execution, second.execution)
        and first.host_stage_s == second.host_stage_s
        and first.graph == second.graph
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Best:
    part: int
    search: TimeSearch
    capacities: CapacitySearch
    found: Found
    used: IntArray
    key: Key


class _Union:
    """The best plan of several problems so far, and a bound over all of them."""

    def __init__(self, problems: Sequence[SearchProblem], limits: SearchLimits) -> None:
        self.problems = problems
        self.limits = limits
        self.progress = Progress(clock=Clock(limits.time_limit_s))
        self._spaces: list[tuple[SearchProblem, UnitSpace]] = []
        """One for each kind of problem, made when the first of that kind is searched."""
        self.best: _Best | None = None
        self.beat: Key = NEVER
        self.bound: Key = NEVER

    def improve(self, part: int, goal: Goal, bound_s: float) -> None:
        """Searches one problem for plans that beat the best."""
        beat = self.best.key if self.best is not None else self.beat
        least = (bound_s, 0.0) if goal.objective is Objective.TIME else (0.0, 0.0)
        if bound_s > goal.max_iteration_s or least >= beat:
            return
        if self.progress.clock.left_s <= 0:
            self.bound = min(self.bound, least)
            return
        search = self.search(part)
        if not search.has_units:
            return
        capacities = CapacitySearch(search)
        result = capacities.run(goal, beat=beat)
        self.bound = min(self.bound, max(result.bound, least))
        if result.found is not None and result.used is not None:
            self.best = _Best(
                part=part, search=search, capacities=capacities, found=result.found, used=result.used, key=result.key
            )

    def search(self, part: int) -> TimeSearch:
        return TimeSearch(self.problems[part], self.limits, self._space(self.problems[part]), self.progress)

    def _space(self, problem: SearchProblem) -> UnitSpace:
        for known, space in self._spaces:
            if _same_space(known, problem):
                return space
        options = [table for other in self.problems if _same_space(problem, other) for table in other.options]
        self._spaces.append((problem, unit_space(problem, options)))
        return self._spaces[-1][1]

    @property
    def num_structures(self) -> int:
        """Structures of all kinds of problems searched so far."""
        return sum(space.num_structures for _, space in self._spaces)

    @property
    def num_excluded(self) -> tuple[tuple[str, int], ...]:
        """Structures that filters excluded, by reason."""
        counts: dict[str, int] = {}
        for _, space in self._spaces:
            for reason, number in space.num_excluded.items():
                counts[reason] = counts.get(reason, 0) + number
        return tuple(sorted(counts.items()))


def _with_plan(union: _Union, goal: Goal, best: _Best) -> SearchResult:
    limits, search, capacities, progress = union.limits, best.search, best.capacities, union.progress
    bound = min(union.bound[0], best.key[0])
    chosen = _prefer(search, capacities, goal, limits, best)
    solution = build_solution(search, capacities, chosen)
    value = _value(capacities, limits.objective, solution)
    optimal = best.key[0] - bound <= _OPTIMAL_GAP_RATIO * abs(best.key[0])
    return SearchResult(
        status=Status.OPTIMAL if optimal else Status.FEASIBLE,
        solution=solution,
        part=best.part,
        value=value,
        bound=min(bound, value),
        unit=_unit(capacities, limits.objective),
        num_structures=union.num_structures,
        num_excluded=union.num_excluded,
        num_solved=progress.num_solved,
        solver=" + ".join(["bounds", *sorted(progress.used_solvers)]),
        time_to_first_s=progress.time_to_first_s,
        alternatives=_alternatives(search, capacities, chosen, limits),
        time_s=progress.clock.elapsed_s,
        cause=None,
        workers_without_options=(),
        shortfalls=(),
        best_beyond_limits=None,
    )


def _goal(limits: SearchLimits) -> Goal:
    def given(value: float | None) -> float:
        return np.inf if value is None else float(value)

    return Goal(
        objective=limits.objective,
        max_iteration_s=given(limits.max_iteration_s),
        max_gpus=given(limits.max_gpus),
        max_value=given(limits.max_usd_per_iteration),
    )


def _prefer(search: TimeSearch, capacities: CapacitySearch, goal: Goal, limits: SearchLimits, best: _Best) -> Found:
    """Among plans within the tolerance: fewest GPUs, then most headroom, then fewest groups.

    A preference, not a proof: its effort is bounded by a number of steps, and the optimum stays the answer when
    nothing else qualifies.
    """
    if limits.tie_tolerance_ratio <= 0:
        return best.found
    slack = 1.0 + limits.tie_tolerance_ratio
    max_iteration_s, max_value = goal.max_iteration_s, goal.max_value
    if limits.objective is Objective.TIME:
        max_iteration_s = min(max_iteration_s, best.key[0] * slack)
    elif limits.objective is Objective.COST:
        max_value = min(max_value, best.key[0] * slack)
    else:
        max_iteration_s = min(max_iteration_s, best.found.time_s * slack)
    near = Goal(
        objective=Objective.GPUS,
        max_iteration_s=max_iteration_s,
        max_gpus=min(goal.max_gpus, float(best.used.sum())),
        max_value=max_value,
    )
    found, used = best.found, best.used
    if limits.objective is not Objective.GPUS:
        fewer = capacities.run(near, call_limit=_TIE_CALLS)
        if fewer.found is not None and fewer.used is not None and fewer.used.sum() < used.sum():
            found, used = fewer.found, fewer.used
    deadline_s = min(max_iteration_s, max_value / max(capacities.rate(used), 1e-300))
    return polish(search, used, deadline_s, found)


def _value(capacities: CapacitySearch, objective: Objective, solution: Solution) -> float:
    if objective is Objective.GPUS:
        return float(solution.num_gpus)
    if objective is Objective.COST:
        return capacities.rate(_used(capacities, solution)) * solution.time_s
    return solution.time_s


def _used(capacities: CapacitySearch, solution: Solution) -> IntArray:
    per_pool = [used_in_pool(solution.groups, name) for name in capacities.pool_names]
    return np.array(per_pool, dtype=np.int64)


def used_in_pool(groups: tuple[ChosenGroup, ...], pool: str) -> int:
    """GPUs of a pool that the groups occupy: the pool-wide group contains the blocks."""
    here = [group for group in groups if group.pool == pool]
    whole = [group.num_gpus for group in here if group.is_whole]
    return max([*whole, sum(group.num_gpus for group in here if not group.is_whole)])


def _unit(capacities: CapacitySearch, objective: Objective) -> str:
    if objective is Objective.GPUS:
        return "GPUs"
    if objective is Objective.COST:
        return "USD" if capacities.has_prices else "GPU-hours"
    return "s"


def build_solution(search: TimeSearch, capacities: CapacitySearch, found: Found) -> Solution:
    """Groups, choices and the schedule of a plan; raises ValueError if the schedule contradicts the search."""
    groups, group_of = _groups(search, found)
    choices = []
    for w, row in enumerate(found.rows):
        table = search.tables.table[w, found.unit.contexts[w].pool]
        choices.append(
            Choice(
                worker=table.worker,
                pool=table.pool,
                group=group_of[table.worker],
                num_gpus=int(table.num_gpus[row]),
                row=int(table.row[row]),
                option=row,
            )
        )
    line = _timeline(search, found, groups, group_of)
    time_s = line.time_s
    if abs(time_s - found.time_s) > 1e-9 * max(time_s, 1.0):
        raise ValueError(f"the schedule takes {time_s} s, the search says {found.time_s} s")
    used = search.used_gpus(found)
    return Solution(
        structure=found.unit.structure,
        groups=groups,
        choices=tuple(choices),
        timing=found.unit.timing,
        execution=search.problem.execution,
        schedule=line.items,
        time_s=time_s,
        num_gpus=int(used.sum()),
        usd=capacities.rate(used) * time_s if capacities.has_prices else None,
        headroom_ratio=search.headroom_ratio(found),
    )


def _groups(search: TimeSearch, found: Found) -> tuple[tuple[ChosenGroup, ...], dict[WorkerName, str]]:
    index = {name: w for w, name in enumerate(search.tables.workers)}
    tables = search.tables.table

    def largest(names: tuple[WorkerName, ...]) -> int:
        workers = [index[name] for name in names]
        return max(int(tables[w, found.unit.contexts[w].pool].num_gpus[found.rows[w]]) for w in workers)

    groups: list[ChosenGroup] = []
    group_of: dict[WorkerName, str] = {}
    for item in found.unit.structure.pools:
        blocks = []
        for i, block in enumerate(item.blocks):
            name = f"{item.pool}/{i}"
            blocks.append(ChosenGroup(id=name, pool=item.pool, workers=block, is_whole=False, num_gpus=largest(block)))
            group_of.update(dict.fromkeys(block, name))
        if item.whole:
            size = max(largest(item.whole), sum(block.num_gpus for block in blocks))
            name = f"{item.pool}/whole"
            groups.append(ChosenGroup(id=name, pool=item.pool, workers=item.whole, is_whole=True, num_gpus=size))
            group_of.update(dict.fromkeys(item.whole, name))
        groups += blocks
    return tuple(groups), group_of


def _timeline(
    search: TimeSearch, found: Found, groups: tuple[ChosenGroup, ...], group_of: dict[WorkerName, str]
) -> schedule.Timeline:
    """Seconds straight from the option tables, then the schedule of the chosen timing."""
    problem = search.problem
    seconds: dict[Part, float] = {}
    for stage, host_s in problem.host_stage_s:
        seconds |= host_parts(stage, host_s, problem.host_least_s)
    places: dict[StageName, tuple[str, ...]] = {}
    sync_s = 0.0
    for w, row in enumerate(found.rows):
        context = found.unit.contexts[w]
        table = search.tables.table[w, context.pool]
        for stage, values in zip(table.stages, table.stage_time_s[:, row], strict=True):
            seconds[stage, None] = float(values)
        for part, value in zip(table.moments, table.moment_s[:, row] if table.moments else (), strict=True):
            seconds[part] = float(value)
        sync_s += float(sync_share_s(table, context.sync)[row])
    for item in problem.graph.stages:
        workers = [name for name in problem.graph.workers_of(item.name) if name in group_of]
        places[item.name] = tuple(sorted({group_of[name] for name in workers}))
    if problem.graph.has_stage(StageName.WEIGHT_SYNC):
        seconds[StageName.WEIGHT_SYNC, None] = sync_s
    nested = [
        (whole.id, block.id)
        for whole in groups
        for block in groups
        if whole.is_whole and not block.is_whole and whole.pool == block.pool
    ]
    return schedule.timeline(problem.graph, problem.execution, found.unit.timing, seconds, places, nested)


def _alternatives(
    search: TimeSearch, capacities: CapacitySearch, chosen: Found, limits: SearchLimits
) -> tuple[AlternativeStructure, ...]:
    if limits.num_alternatives <= 0:
        return ()
    capacity = capacities.full if limits.objective is Objective.TIME else search.used_gpus(chosen)
    seen = {_shape(search, chosen)}
    result = []
    for found, bound_s in search.best_per_structure(capacity, chosen, limits.num_alternatives):
        shape = _shape(search, found)
        if shape not in seen:
            seen.add(shape)
            result.append(
                AlternativeStructure(
                    structure=found.unit.structure,
                    time_s=found.time_s,
                    bound_s=bound_s,
                    num_gpus=int(search.used_gpus(found).sum()),
                )
            )
    return tuple(sorted(result, key=lambda item: item.time_s))


def _shape(search: TimeSearch, found: Found) -> tuple[tuple[str, tuple[WorkerName, ...], int], ...]:
    """What distinguishes plans to a reader: workers by device group. A pool-wide group over a single block of the
    same size is one group."""
    groups, _ = _groups(search, found)
    result = []
    for pool in {group.pool for group in groups}:
        here = [group for group in groups if group.pool == pool]
        if len({group.num_gpus for group in here}) == 1 and any(group.is_whole for group in here) and len(here) == 2:
            members = tuple(sorted(here[0].workers + here[1].workers))
            result.append((f"{pool} block", members, here[0].num_gpus))
        else:
            kind = {True: "whole", False: "block"}
            result += [(f"{pool} {kind[g.is_whole]}", tuple(sorted(g.workers)), g.num_gpus) for g in here]
    return tuple(sorted(result))


def _without_plan(union: _Union, *, wants_cause: bool) -> SearchResult:
    limits, progress = union.limits, union.progress
    bound = union.bound[0]
    proven = union.bound >= union.beat
    workers = [worker.name for worker in union.problems[0].graph.workers]
    missing = (
        ()
        if not wants_cause
        else tuple(
            name
            for name in workers
            if not any(table.worker is name and len(table) for problem in union.problems for table in problem.options)
        )
    )
    cause = Cause.MEMORY
    beyond = None
    if missing:
        cause = Cause.NO_OPTION
    elif not wants_cause:
        cause = Cause.LIMITS
    elif not union.num_structures:
        cause = Cause.NO_STRUCTURE
    elif proven and _goal(limits) != Goal(objective=limits.objective):
        beyond = _beyond_limits(union)
        cause = Cause.LIMITS if beyond is not None else Cause.MEMORY
    capacities = CapacitySearch(union.search(0))
    return SearchResult(
        status=Status.INFEASIBLE if proven else Status.UNKNOWN,
        solution=None,
        part=0,
        value=np.inf,
        bound=bound,
        unit=_unit(capacities, limits.objective),
        num_structures=union.num_structures,
        num_excluded=union.num_excluded,
        num_solved=progress.num_solved,
        solver=" + ".join(["bounds", *sorted(progress.used_solvers)]),
        time_to_first_s=progress.time_to_first_s,
        time_s=progress.clock.elapsed_s,
        alternatives=(),
        cause=cause if proven else None,
        workers_without_options=missing,
        shortfalls=_shortfalls(union) if cause is Cause.MEMORY else (),
        best_beyond_limits=beyond,
    )


def _beyond_limits(union: _Union) -> Solution | None:
    """The fastest plan without any limit."""
    goal = Goal(objective=Objective.TIME)
    for part in range(len(union.problems)):
        union.improve(part, goal, 0.0)
    best = union.best
    return None if best is None else build_solution(best.search, best.capacities, best.found)


def _shortfalls(union: _Union) -> tuple[Shortfall, ...]:
    """For every worker and pool the memory row that fails by least, over all structures and problems."""
    least: dict[tuple[WorkerName, str], Shortfall] = {}
    for part in range(len(union.problems)):
        search = union.search(part)
        tables = search.tables.table
        for pool, members in sorted({group for unit in search.units for group in unit.groups}):
            for w in members:
                table = tables[w, pool]
                item = Shortfall(
                    worker=table.worker,
                    pool=table.pool,
                    least_active_bytes=float(table.active_bytes.min()),
                    least_idle_bytes_of_others=sum(float(tables[v, pool].idle_bytes.min()) for v in members if v != w),
                    usable_bytes=search.tables.pools[pool].usable_bytes,
                )
                key = (table.worker, table.pool)
                if key not in least or item.excess_bytes < least[key].excess_bytes:
                    least[key] = item
    return tuple(sorted(least.values(), key=lambda item: (-item.excess_bytes, item.worker.value, item.pool)))
