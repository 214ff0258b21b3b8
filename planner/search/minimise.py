"""Minimal iteration time at given pool capacities: bound all structures, find a good plan, discard what cannot beat
it, close the rest exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import product

import numpy as np

from planner.domain.stages import WorkerName
from planner.domain.strategy import BoolArray, IntArray
from planner.search.bounds import Tables, UnitArrays, UnitBounds, UnitIndex
from planner.search.clock import Clock
from planner.search.integer import IntegerProblem, IntegerResult, discretise
from planner.search.leaf import LeafProblem, LeafResult, build_leaf, enumerate_leaf, without_dominated
from planner.search.problem import OptionTable, SearchLimits, SearchProblem, Solver
from planner.search.structures import Structure, enumerate_structures, with_second_engine
from planner.search.units import Frame, Unit, UnitBuilder

_DIVE_UNITS = 12
_DIVE_RATIOS = (1.01, 1.05, 1.15, 1.4, 2.0, 4.0, np.inf)
_DIVE_WORK = 200_000
_ALTERNATIVE_RATIO = 1.1
_FEW_RATIO = 0.4
_LEAF_WORK = 40_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A plan: a unit, the option row of each worker, and the iteration time."""

    unit: Unit
    rows: tuple[int, ...]
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Minimum:
    """Outcome of one minimisation of time at fixed capacities: nothing below `bound_s` exists."""

    found: Found | None
    bound_s: float


def _structures(
    problem: SearchProblem, workers: Sequence[WorkerName], pools: Sequence[str], available: Set[tuple[WorkerName, str]]
) -> Iterator[Structure]:
    """Structures of the pools on which the workers have options. A second group of engines is added to those of the
    other workers: it has a place of its own."""
    placed = [worker for worker in workers if worker is not WorkerName.SECOND_ENGINE]
    names = [[pool for pool in pools if (worker, pool) in available] for worker in placed]
    structures = enumerate_structures(product(*names), placed, nested_single=problem.equal_size)
    if WorkerName.SECOND_ENGINE not in workers:
        yield from structures
        return
    second = [pool for pool in pools if (WorkerName.SECOND_ENGINE, pool) in available]
    for structure in structures:
        extended = (with_second_engine(structure, pool) for pool in second)
        yield from (item for item in extended if item is not None)


class UnitSpace:
    """All structures and timings of a problem. They depend on its graph, pools, rules and execution only, so problems
    that differ in their options share one."""

    def __init__(self, problem: SearchProblem, available: Set[tuple[WorkerName, str]]) -> None:
        self.frame = Frame(problem.graph, problem.execution)
        pools = [pool.name for pool in problem.pools]
        self._builder = UnitBuilder(self.frame, pools, dict(problem.host_stage_s), problem.host_least_s)
        self.num_structures = 0
        self.num_excluded: dict[str, int] = {}
        self.units: list[Unit] = []
        exclude = problem.structure_filter
        for structure in _structures(problem, self.frame.workers, pools, available):
            reason = exclude(structure) if exclude is not None else None
            if reason is not None:
                self.num_excluded[reason] = self.num_excluded.get(reason, 0) + 1
                continue
            units = self._builder.units(structure)
            self.units += units
            self.num_structures += bool(units)

    @cached_property
    def index(self) -> UnitIndex:
        """All units without regard to co-residents: the same for all problems that share the space."""
        return UnitIndex(self.units, len(self.frame.workers), alone=True)

    def exact(self, unit: Unit) -> list[Unit]:
        """The units with real timings that a unit stands for."""
        return self._builder.exact(unit)


class _Shape:
    """A problem as its space sees it: equal for problems that differ in their options or in the split of a rollout."""

    def __init__(self, problem: SearchProblem, options: Sequence[OptionTable]) -> None:
        # Options are not kept: spaces outlive them.
        self.problem = replace(problem, options=())
        self.available = frozenset((table.worker, table.pool) for table in options if len(table))
        execution = problem.execution
        share = 0.0 if not execution.is_split else 1.0
        pools = tuple((pool.name, pool.num_nodes, pool.gpus_per_node) for pool in problem.pools)
        self._key = (
            problem.graph, replace(execution, second_share_ratio=0.0), share, pools, problem.host_stage_s,
            problem.host_least_s, problem.equal_size, id(problem.structure_filter), self.available,
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shape) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def unit_space(problem: SearchProblem, options: Sequence[OptionTable]) -> UnitSpace:
    """The space of a problem whose workers have `options`; problems of one request share a few."""
    return _unit_space(_Shape(problem, options))


@lru_cache(maxsize=6)
def _unit_space(shape: _Shape) -> UnitSpace:
    return UnitSpace(shape.problem, shape.available)


@dataclass(slots=True, kw_only=True)
class Progress:
    """What a search has done so far; shared by the parts of a union of problems."""

    clock: Clock
    num_solved: int = 0
    time_to_first_s: float = 0.0
    used_solvers: set[str] = field(default_factory=set)


class TimeSearch:
    """Minimises the iteration time at given pool capacities; reused for many capacities."""

    def __init__(self, problem: SearchProblem, limits: SearchLimits, space: UnitSpace, progress: Progress) -> None:
        self.problem = problem
        self.limits = limits
        self.progress = progress
        self.clock = progress.clock
        self.tables = Tables(problem, space.frame)
        self._space = space
        self._has_tables = space.index.with_tables(self.tables)
        self._relaxed: UnitArrays | None = None
        self._all: UnitArrays | None = None

    @property
    def units(self) -> list[Unit]:
        """The units whose workers have options where they are."""
        return [self._space.units[i] for i in np.flatnonzero(self._has_tables)]

    @property
    def has_units(self) -> bool:
        return bool(self._has_tables.any())

    def bounds(self, capacity: IntArray, cutoff_s: float) -> UnitBounds:
        """Root bounds of the units that can reach the cutoff.

        Bounds that ignore co-residents need few tables, so they go first; all contexts are tabulated only when that
        leaves much of the space.
        """
        if self._all is None:
            if self._relaxed is None:
                self._relaxed = UnitArrays(self.tables, self._space.index)
            reachable = self._has_tables & (UnitBounds(self._relaxed, capacity).bound <= cutoff_s)
            if np.count_nonzero(reachable) < _FEW_RATIO * np.count_nonzero(self._has_tables):
                return UnitBounds(self._arrays(reachable), capacity)
            self._all = self._arrays(self._has_tables)
        return UnitBounds(self._all, capacity)

    def _arrays(self, chosen: BoolArray) -> UnitArrays:
        units = [self._space.units[i] for i in np.flatnonzero(chosen)]
        return UnitArrays(self.tables, UnitIndex(units, len(self.tables.workers)))

    def minimise(self, capacity: IntArray, cutoff_s: float, *, first_only: bool = False) -> Minimum:
        """The fastest plan with at most `cutoff_s`, or proof that there is none; with `first_only` any such plan."""
        bounds = self.bounds(capacity, cutoff_s)
        best = self._dive(bounds, cutoff_s)
        if best is not None:
            cutoff_s = _below(best.time_s)
            if first_only:
                return Minimum(found=best, bound_s=0.0)
        alive = np.flatnonzero(bounds.bound <= cutoff_s)
        alive = bounds.shave(alive, cutoff_s)
        open_s = np.inf
        while alive.size:
            if self.clock.left_s <= 0:
                open_s = min(open_s, float(bounds.bound[alive].min()))
                break
            position = int(np.argmin(bounds.bound[alive]))
            unit = int(alive[position])
            alive = np.delete(alive, position)
            if not bounds.shave(np.array([unit]), cutoff_s).size:
                continue
            self.progress.num_solved += 1
            for exact in self._space.exact(bounds.units[unit]):
                result = self._close(self._leaf(bounds, unit, exact, cutoff_s))
                open_s = min(open_s, max(float(bounds.bound[unit]), result.bound_s))
                if result.rows is not None:
                    best = self._found(exact, result.rows, result.time_s)
                    cutoff_s = _below(best.time_s)
                    if first_only:
                        return Minimum(found=best, bound_s=0.0)
            alive = alive[bounds.bound[alive] <= cutoff_s]
        return Minimum(found=best, bound_s=min(open_s, best.time_s if best is not None else np.inf))

    def _dive(self, bounds: UnitBounds, cutoff_s: float) -> Found | None:
        """A good plan, quickly: pretend that the optimum is little above the least bound, so that almost everything
        can be discarded, and relax that until something is found."""
        bound_s = bounds.bound
        least = float(bound_s.min(initial=np.inf))
        best: Found | None = None
        for ratio in _DIVE_RATIOS:
            guess = min(cutoff_s, least * ratio)
            if best is not None or not np.isfinite(least) or least > cutoff_s or self.clock.left_s <= 0:
                break
            trial = bounds.fresh()
            units = trial.shave(np.flatnonzero(bound_s <= guess), guess)
            for unit in units[np.argsort(trial.bound[units], kind="stable")][:_DIVE_UNITS]:
                if trial.bound[unit] <= guess:
                    found = self.quick(trial, int(unit), guess)
                    if found is not None:
                        best = found
                        guess = _below(best.time_s)
            if guess >= cutoff_s:
                break
        return best

    def used_gpus(self, found: Found) -> IntArray:
        """GPUs that a plan occupies, per pool: its blocks, or its pool-wide workers where they need more."""
        tables, unit = self.tables, found.unit
        blocks = np.zeros(unit.num_slots, dtype=np.int64)
        whole = np.zeros(len(tables.pools), dtype=np.int64)
        for w, (context, row) in enumerate(zip(unit.contexts, found.rows, strict=True)):
            num_gpus = tables.table[w, context.pool].num_gpus[row]
            if unit.slot[w] >= 0:
                blocks[unit.slot[w]] = max(blocks[unit.slot[w]], num_gpus)
            else:
                whole[context.pool] = max(whole[context.pool], num_gpus)
        used = np.zeros_like(whole)
        np.add.at(used, np.array(unit.slot_pool, dtype=np.int64), blocks)
        result: IntArray = np.maximum(used, whole)
        return result

    def headroom_ratio(self, found: Found) -> float:
        """Smallest free share of usable GPU memory over all groups and instants."""
        tables, unit = self.tables, found.unit
        result = 1.0
        for pool, members in unit.groups:
            idle = {w: float(tables.table[w, pool].idle_bytes[found.rows[w]]) for w in members}
            resident = sum(idle.values())
            peaks = [resident - idle[w] + float(tables.table[w, pool].active_bytes[found.rows[w]]) for w in members]
            if any(tables.syncs[w] for w in members):
                synced = [w for w in members if tables.syncs[w]]
                held = sum(float(tables.table[w, pool].sync_bytes[found.rows[w]]) for w in synced)
                peaks.append(resident - sum(idle[w] for w in synced) + held)
            result = min(result, 1.0 - max(peaks) / tables.pools[pool].usable_bytes)
        return result

    def best_per_structure(self, capacity: IntArray, chosen: Found, num: int) -> list[tuple[Found, float]]:
        """The best plans of the `num` other structures with the least bounds, as far as little work finds them, each
        with its structure's bound in seconds."""
        bounds = self.bounds(capacity, np.inf)
        result: list[tuple[Found, float]] = []
        seen = {chosen.unit.structure}
        tried = 0
        for position in np.argsort(bounds.bound, kind="stable"):
            unit = int(position)
            structure = bounds.units[unit].structure
            if len(result) >= num or tried >= 2 * num or not np.isfinite(bounds.bound[unit]) or self.clock.left_s <= 0:
                break
            if structure in seen:
                continue
            seen.add(structure)
            tried += 1
            cutoff_s = float(bounds.bound[unit]) * _ALTERNATIVE_RATIO
            if not bounds.shave(np.array([unit]), cutoff_s).size:
                continue
            found = self.quick(bounds, unit, cutoff_s)
            if found is not None:
                result.append((found, float(bounds.bound[unit])))
        return result

    def quick(
        self, bounds: UnitBounds, unit: int, cutoff_s: float, *, work: int = _DIVE_WORK, usable_ratio: float = 1.0
    ) -> Found | None:
        """The best plan of one unit that little work finds, with at most `cutoff_s`."""
        best: Found | None = None
        for exact in self._space.exact(bounds.units[unit]):
            leaf = self._leaf(bounds, unit, exact, cutoff_s, usable_ratio=usable_ratio)
            result = enumerate_leaf(leaf, work)
            if result.rows is not None:
                best = self._found(exact, result.rows, result.time_s)
                cutoff_s = _below(best.time_s)
        return best

    def _found(self, unit: Unit, rows: tuple[int, ...], time_s: float) -> Found:
        if not self.progress.time_to_first_s:
            self.progress.time_to_first_s = self.clock.elapsed_s
        return Found(unit=unit, rows=rows, time_s=time_s)

    def _leaf(
        self, bounds: UnitBounds, unit: int, exact: Unit, cutoff_s: float, *, usable_ratio: float = 1.0
    ) -> LeafProblem:
        """An exact unit within the sizes that the bounds of the unit which stands for it leave open."""
        low, high = bounds.low[unit], bounds.high[unit]
        return build_leaf(self.tables, exact, low, high, bounds.capacity, cutoff_s, usable_ratio=usable_ratio)

    def _close(self, leaf: LeafProblem) -> LeafResult:
        if leaf.is_empty:
            return LeafResult(rows=None, time_s=np.inf, bound_s=np.inf, is_complete=True)
        if self.limits.solver is Solver.AUTO:
            result = enumerate_leaf(leaf, _LEAF_WORK)
            self.progress.used_solvers.add("enumeration")
            if result.is_complete:
                return result
        return self._close_in_integers(leaf)

    def _close_in_integers(self, leaf: LeafProblem) -> LeafResult:
        leaf = without_dominated(leaf)
        problem = discretise(leaf)
        result = self._solve_integers(problem)
        bound_s = np.inf if result.bound_ticks is None else problem.lower_bound_s(result.bound_ticks)
        rows, time_s = None, np.inf
        if result.choice is not None:
            chosen = list(zip(leaf.options, result.choice, strict=True))
            length = leaf.unit.host_s + sum(item.path_s[:, i] for item, i in chosen)
            # Rounding can admit a choice that misses the cutoff by a few ticks: no improvement then.
            if float(length.max()) <= leaf.cutoff_s:
                rows, time_s = tuple(int(item.rows[i]) for item, i in chosen), float(length.max())
        return LeafResult(rows=rows, time_s=time_s, bound_s=bound_s, is_complete=result.is_complete)

    def _solve_integers(self, problem: IntegerProblem) -> IntegerResult:
        # Imported here because loading a solver takes longer than most searches.
        limit_s, seed = self.clock.left_s, self.limits.seed
        if self.limits.solver is Solver.ILP:
            from planner.search import ilp

            self.progress.used_solvers.add("ilp")
            return ilp.solve_leaf(problem, time_limit_s=limit_s, seed=seed)
        from planner.search import cpsat

        self.progress.used_solvers.add("cp-sat")
        return cpsat.solve_leaf(problem, time_limit_s=limit_s, seed=seed)


def _below(value: float) -> float:
    """The next smaller float: later finds must be strictly better."""
    return float(np.nextafter(value, 0.0))
