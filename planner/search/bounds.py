"""Lower bounds of all structures at once.

A unit is a structure with one timing. Its iteration time is the maximum over rows of the sum over workers of what the
worker contributes to that row, so with every worker's fastest option per size (memory of co-residents counted at its
least) any upper limits on the group sizes give a lower bound. Fewer GPUs never help a bound, which makes *shaving*
possible: the smallest size of each block with which the unit can still beat the incumbent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import BoolArray, FloatArray, IntArray
from planner.search.problem import SLACK_BYTES, OptionTable, SearchProblem
from planner.search.timing import Part
from planner.search.units import Context, Frame, Sync, Unit


def sync_share_s(table: OptionTable, sync: Sync) -> FloatArray:
    """Seconds that each option adds to the weight sync, shape (num_options,)."""
    colocated, apart, across = table.sync_colocated_s, table.sync_disaggregated_s, table.sync_cross_pool_s
    match sync:
        case Sync.COLOCATED:
            return colocated
        case Sync.DISAGGREGATED:
            return apart
        case Sync.CROSS_POOL:
            return across
        case Sync.COLOCATED_AND_CROSS_POOL:
            return np.maximum(colocated, across)
        case Sync.DISAGGREGATED_AND_CROSS_POOL:
            return apart + across
        case Sync.CROSS_POOL_TWICE:
            return 2.0 * across
        case Sync.NONE:
            return np.zeros(len(table))


class Tables:
    """Option tables as arrays indexed by (worker, pool), with what contexts and paths need of them."""

    def __init__(self, problem: SearchProblem, frame: Frame) -> None:
        self.problem = problem
        self.frame = frame
        self.workers: tuple[WorkerName, ...] = frame.workers
        self.syncs = frame.syncs
        self.pools = problem.pools
        self.table: dict[tuple[int, int], OptionTable] = {}
        for w, worker in enumerate(problem.graph.workers):
            for p, pool in enumerate(problem.pools):
                table = problem.table(worker.name, pool.name)
                if table is not None and len(table):
                    self.table[w, p] = table
        sizes = {int(n) for table in self.table.values() for n in table.num_gpus}
        self.sizes: IntArray = np.array(sorted(sizes), dtype=np.int64)
        self.order: dict[tuple[int, int], IntArray] = {}
        """Rows by ascending size."""
        self._columns: dict[tuple[int, int, Sync], FloatArray] = {}
        self._num_combinations = frame.num_combinations
        self._rows: dict[Context, BoolArray] = {}
        self._fastest: dict[Context, FloatArray] = {}
        for key, table in self.table.items():
            self.order[key] = np.argsort(table.num_gpus, kind="stable")
        self._least: dict[tuple[int, int], tuple[float, float, float, float]] = {
            key: (
                float(t.idle_bytes.min()),
                float(t.active_bytes.min()),
                float(t.sync_bytes.min()),
                float(t.host_bytes.min()),
            )
            for key, t in self.table.items()
        }

    def row_times(self, worker: int, pool: int, sync: Sync, numbers: IntArray, rows: IntArray) -> FloatArray:
        """Seconds of combinations of a worker's columns, shape (len(numbers), len(rows))."""
        key = (worker, pool, sync)
        if key not in self._columns:
            table = self.table[worker, pool]
            known: dict[Part, FloatArray] = {
                (stage, None): table.stage_time_s[i] for i, stage in enumerate(table.stages)
            }
            known |= {part: table.moment_s[i] for i, part in enumerate(table.moments)}
            known[StageName.WEIGHT_SYNC, None] = sync_share_s(table, sync)
            self._columns[key] = np.array([known[part] for part in self.frame.columns[worker]])
        distinct, place = np.unique(numbers, return_inverse=True)
        # Not `@`: the threads of BLAS cost more than these small products, a hundred times more on busy cores.
        sums = np.einsum("ij,jk->ik", self.frame.coefficients(worker, distinct), self._columns[key][:, rows])
        result: FloatArray = sums[place]
        return result

    @property
    def num_rows(self) -> int:
        """Combinations that bounds know: those of the units of the space, not of their exact forms."""
        return max(self._num_combinations)

    def rows(self, context: Context) -> BoolArray:
        """Options that fit beside the least demanding options of their co-residents."""
        if context not in self._rows:
            table = self.table[context.worker, context.pool]
            result = np.ones(len(table), dtype=np.bool_)
            for mates in context.groups:
                result &= self._fits(table, context.worker, context.pool, mates)
            self._rows[context] = result
        return self._rows[context]

    def _fits(self, table: OptionTable, worker: int, pool: int, mates: int) -> BoolArray:
        usable, ram = self.pools[pool].usable_bytes + SLACK_BYTES, self.pools[pool].host_ram_bytes + SLACK_BYTES
        others = [w for w in range(len(self.workers)) if mates >> w & 1]
        least = {w: self._least[w, pool] for w in others}
        idle = sum(item[0] for item in least.values())
        result = table.active_bytes + idle <= usable
        for item in least.values():
            result &= table.idle_bytes + (idle - item[0]) + item[1] <= usable
        result &= table.host_bytes + sum(item[3] for item in least.values()) <= ram
        if self.syncs[worker] or any(self.syncs[w] for w in others):
            own = table.sync_bytes if self.syncs[worker] else table.idle_bytes
            result &= own + sum(item[2] if self.syncs[w] else item[0] for w, item in least.items()) <= usable
        return result

    def fastest(self, context: Context) -> FloatArray:
        """Least seconds per combination with at most so many GPUs; shape (num_combinations, num_sizes + 1).

        Column k allows sizes up to `sizes[k - 1]`; infinite where nothing fits, as in column 0.
        """
        if context not in self._fastest:
            key = (context.worker, context.pool)
            order = self.order[key]
            numbers = np.arange(self._num_combinations[context.worker])
            times = self.row_times(context.worker, context.pool, context.sync, numbers, order)
            times = np.where(self.rows(context)[order], times, np.inf)
            size = np.searchsorted(self.sizes, self.table[key].num_gpus[order])
            starts = np.flatnonzero(np.r_[True, np.diff(size) != 0])
            result = np.full((max(self._num_combinations), self.sizes.size + 1), np.inf)
            result[: times.shape[0], size[starts] + 1] = np.minimum.reduceat(times, starts, axis=1)
            np.minimum.accumulate(result, axis=1, out=result)
            self._fastest[context] = result
        return self._fastest[context]


class UnitIndex:
    """Many units as arrays of indices, whatever their options. `alone` ignores the memory of co-residents."""

    def __init__(self, units: Sequence[Unit], num_workers: int, *, alone: bool = False) -> None:
        self.units = list(units)
        num = len(units)
        num_paths = max((len(unit.host_s) for unit in units), default=1)
        surroundings = [tuple(c.without_mates() if alone else c for c in unit.contexts) for unit in units]
        self.contexts = {c: i for i, c in enumerate(dict.fromkeys(c for item in surroundings for c in item))}
        self.context = np.array([[self.contexts[c] for c in item] for item in surroundings], dtype=np.int64).reshape(
            num, num_workers
        )
        # Short path lists are padded by repeating the last path, which changes no maximum.
        padded = [np.minimum(np.arange(num_paths), len(unit.host_s) - 1) for unit in units]
        masks = np.array([u.masks[rows] for u, rows in zip(units, padded, strict=True)], dtype=np.int64)
        self.masks = masks.reshape(num, num_paths, num_workers)
        self.host_s = np.array([u.host_s[rows] for u, rows in zip(units, padded, strict=True)]).reshape(num, num_paths)
        self.slot = np.array([u.slot for u in units], dtype=np.int64).reshape(num, num_workers)
        worker_pool = np.array([[c.pool for c in u.contexts] for u in units], dtype=np.int64)
        self.worker_pool = worker_pool.reshape(num, num_workers)
        pools = [list(u.slot_pool) + [-1] * (num_workers - u.num_slots) for u in units]
        self.slot_pool = np.array(pools, dtype=np.int64).reshape(num, num_workers)

    def with_tables(self, tables: Tables) -> BoolArray:
        """Units whose workers all have options where they are."""
        has_table = np.zeros((len(tables.workers), len(tables.pools)), dtype=np.bool_)
        for key in tables.table:
            has_table[key] = True
        placed = has_table[np.arange(self.worker_pool.shape[1]), self.worker_pool]
        return np.asarray(placed.all(axis=1))


class UnitArrays:
    """Units with the seconds of their workers' options, independent of capacities."""

    def __init__(self, tables: Tables, index: UnitIndex) -> None:
        self.index = index
        self.units = index.units
        self.sizes = tables.sizes
        shape = (tables.num_rows, tables.sizes.size + 1)
        self.fastest = np.array(
            [
                tables.fastest(context) if (context.worker, context.pool) in tables.table else np.full(shape, np.inf)
                for context in index.contexts
            ]
        ).reshape(len(index.contexts), *shape)


class UnitBounds:
    """Root bounds and shaving of many units at given capacities, all in array operations.

    `low` and `high` are GPU limits per block, shape (num_units, num_slots); the pool-wide workers may use the whole
    pool. `capacity[p]` is what pool p has.
    """

    def __init__(self, arrays: UnitArrays, capacity: IntArray) -> None:
        self._arrays = arrays
        self.units = arrays.units
        self.capacity = capacity
        self._index = arrays.index
        self._slot_pool = self._index.slot_pool
        num, num_workers = self._slot_pool.shape
        self._fastest, self._masks = arrays.fastest, self._index.masks
        self.low = np.zeros((num, num_workers), dtype=np.int64)
        self.high = np.where(self._slot_pool >= 0, capacity[self._slot_pool], 0)
        self.bound = self._evaluate(np.arange(num), self._size_index(self.high))

    def fresh(self) -> UnitBounds:
        """The same units before any shaving."""
        return UnitBounds(self._arrays, self.capacity)

    def _size_index(self, num_gpus: IntArray) -> IntArray:
        result: IntArray = np.searchsorted(self._arrays.sizes, num_gpus, side="right")
        return result

    def _evaluate(self, units: IntArray, slot_index: IntArray) -> FloatArray:
        """Lower bound with blocks limited to the given size indices, shape of `units`."""
        whole = self._size_index(self.capacity)[self._index.worker_pool[units]]
        slot = self._index.slot[units]
        index = np.where(slot >= 0, np.take_along_axis(slot_index, np.maximum(slot, 0), axis=1), whole)
        length = self._index.host_s[units].copy()
        for w in range(slot.shape[1]):
            context = self._index.context[units, w][:, None]
            length += self._fastest[context, self._masks[units, :, w], index[:, w][:, None]]
        result: FloatArray = length.max(axis=1)
        return result

    def shave(self, units: IntArray, cutoff_s: float) -> IntArray:
        """Raises `low`, lowers `high` and raises `bound` of the given units; returns those that can still reach a
        makespan of at most `cutoff_s`."""
        for _ in range(4):
            units = units[self.bound[units] <= cutoff_s]
            if not units.size:
                return units
            before = self.high[units]
            self._raise_low(units, cutoff_s)
            self._lower_high(units)
            fits = (self.high[units] >= self.low[units]).all(axis=1)
            self.bound[units[~fits]] = np.inf
            changed = (self.high[units] != before).any(axis=1)
            again = units[fits & changed]
            if again.size:
                self.bound[again] = self._evaluate(again, self._size_index(self.high[again]))
            units = units[fits]
            if not again.size:
                break
        return units[self.bound[units] <= cutoff_s]

    def _raise_low(self, units: IntArray, cutoff_s: float) -> None:
        top = self._size_index(self.high[units])
        for slot in range(self.low.shape[1]):
            used = self._slot_pool[units, slot] >= 0
            if not used.any():
                continue
            # The smallest index in [first, last] whose bound does not exceed the cutoff; `last` is known to pass.
            first = np.where(used, np.maximum(self._size_index(self.low[units, slot]), 1), 0)
            last = np.where(used, top[:, slot], 0)
            trial = top.copy()
            while (first < last).any():
                middle = (first + last) // 2
                trial[:, slot] = middle
                passes = self._evaluate(units, trial) <= cutoff_s
                last = np.where(passes, middle, last)
                first = np.where(passes, first, np.minimum(middle + 1, last))
            self.low[units, slot] = np.where(used, self._arrays.sizes[np.maximum(last - 1, 0)], 0)

    def _lower_high(self, units: IntArray) -> None:
        low, pool = self.low[units], self._slot_pool[units]
        for p in range(self.capacity.shape[0]):
            here = pool == p
            spare = self.capacity[p] - np.where(here, low, 0).sum(axis=1, keepdims=True)
            self.high[units] = np.where(here, np.minimum(self.high[units], low + spare), self.high[units])
