"""One unit (structure and order) solved exactly: reductions, then depth-first enumeration on arrays.

Partial choices of many states are extended by all options of the next worker at once; states whose path bound,
memory or sizes cannot lead to anything better are dropped. Complete within its work limit, and it says when the
limit ended it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from planner.domain.strategy import BoolArray, FloatArray, IntArray
from planner.search.bounds import Tables
from planner.search.options import pareto_rows
from planner.search.problem import SLACK_BYTES
from planner.search.units import Unit

_FIRST_CHUNK_PAIRS = 2_000
_MAX_CHUNK_PAIRS = 400_000
_QUICK_WORK = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What is left of a worker's options in a leaf; arrays over options. `path_s` has shape (num_paths, n)."""

    rows: IntArray
    num_gpus: IntArray
    path_s: FloatArray
    idle_bytes: FloatArray
    active_bytes: FloatArray
    sync_bytes: FloatArray
    host_bytes: FloatArray

    def take(self, keep: IntArray | BoolArray) -> Self:
        return type(self)(
            rows=self.rows[keep],
            num_gpus=self.num_gpus[keep],
            path_s=self.path_s[:, keep],
            idle_bytes=self.idle_bytes[keep],
            active_bytes=self.active_bytes[keep],
            sync_bytes=self.sync_bytes[keep],
            host_bytes=self.host_bytes[keep],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafProblem:
    """A unit with its reduced options, block limits and capacities; the common input of all leaf solvers.

    A solution picks one option per worker such that the longest path is at most `cutoff_s`.
    """

    unit: Unit
    syncs: tuple[bool, ...]
    options: tuple[WorkerOptions, ...]
    low: IntArray
    high: IntArray
    capacity: IntArray
    usable_bytes: FloatArray
    """Per pool."""
    host_ram_bytes: FloatArray
    cutoff_s: float
    equal_size: bool

    @property
    def is_empty(self) -> bool:
        return any(not len(item.rows) for item in self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafResult:
    """`rows` per worker and the makespan, or None if nothing reaches the cutoff; `is_complete` is False when the
    work limit ended the enumeration, and then `rows` is only the best seen."""

    rows: tuple[int, ...] | None
    time_s: float
    bound_s: float
    """Proven: the unit has nothing below it that is within the cutoff; infinite if it has nothing at all."""
    is_complete: bool


def build_leaf(
    tables: Tables,
    unit: Unit,
    low: IntArray,
    high: IntArray,
    capacity: IntArray,
    cutoff_s: float,
    *,
    usable_ratio: float = 1.0,
) -> LeafProblem:
    """The unit's options after exact reductions: memory, size limits, cutoff.

    `usable_ratio` below 1 asks for that much headroom on every GPU.
    """
    options = []
    for w, context in enumerate(unit.contexts):
        table = tables.table[w, context.pool]
        limit = high[unit.slot[w]] if unit.slot[w] >= 0 else capacity[context.pool]
        rows = np.flatnonzero(tables.rows(context) & (table.num_gpus <= limit))
        path_s = tables.row_times(w, context.pool, context.sync, unit.masks[:, w], rows)
        options.append(
            WorkerOptions(
                rows=rows,
                num_gpus=table.num_gpus[rows],
                path_s=path_s,
                idle_bytes=table.idle_bytes[rows],
                active_bytes=table.active_bytes[rows],
                sync_bytes=table.sync_bytes[rows],
                host_bytes=table.host_bytes[rows],
            )
        )
    pools = tables.pools
    leaf = LeafProblem(
        unit=unit,
        syncs=tuple(tables.syncs),
        options=tuple(options),
        low=low[: unit.num_slots],
        high=high[: unit.num_slots],
        capacity=capacity,
        usable_bytes=np.array([pool.usable_bytes * usable_ratio for pool in pools]),
        host_ram_bytes=np.array([pool.host_ram_bytes for pool in pools]),
        cutoff_s=cutoff_s,
        equal_size=tables.problem.equal_size,
    )
    return _with_options(leaf, _reduce(leaf))


def without_dominated(leaf: LeafProblem) -> LeafProblem:
    """The leaf without options that another dominates in all that this unit can notice."""
    return _with_options(leaf, _dominance(leaf, list(leaf.options)))


def enumerate_leaf(leaf: LeafProblem, work_limit: int) -> LeafResult:
    """The best choice, exactly, or the best within the work limit (in pairs of partial choices and options).

    Small leaves are searched as they are: finding their dominated options would take longer.
    """
    quick = min(work_limit, _QUICK_WORK)
    result = Enumerator(leaf, quick).run()
    if result.is_complete or quick == work_limit:
        return result
    return Enumerator(without_dominated(leaf), work_limit).run()


def _with_options(leaf: LeafProblem, options: list[WorkerOptions]) -> LeafProblem:
    return LeafProblem(
        unit=leaf.unit,
        syncs=leaf.syncs,
        options=tuple(options),
        low=leaf.low,
        high=leaf.high,
        capacity=leaf.capacity,
        usable_bytes=leaf.usable_bytes,
        host_ram_bytes=leaf.host_ram_bytes,
        cutoff_s=leaf.cutoff_s,
        equal_size=leaf.equal_size,
    )


def _reduce(leaf: LeafProblem) -> list[WorkerOptions]:
    """Drops options that fail with the best of everything else, until nothing changes."""
    options = list(leaf.options)
    while all(len(item.rows) for item in options):
        before = sum(len(item.rows) for item in options)
        for w, item in enumerate(options):
            fastest = leaf.unit.host_s + sum(o.path_s.min(axis=1) for v, o in enumerate(options) if v != w)
            keep = (item.path_s + fastest[:, None] <= leaf.cutoff_s).all(axis=0)
            for pool, members in leaf.unit.groups:
                if w in members:
                    keep &= _fits_beside(leaf, options, w, pool, members)
            options[w] = item.take(keep)
            if not keep.any():
                return options
        if sum(len(item.rows) for item in options) == before:
            break
    return options


def _fits_beside(
    leaf: LeafProblem, options: list[WorkerOptions], w: int, pool: int, members: tuple[int, ...]
) -> BoolArray:
    usable, item = leaf.usable_bytes[pool] + SLACK_BYTES, options[w]
    others = [options[v] for v in members if v != w]
    idle = sum(float(o.idle_bytes.min()) for o in others)
    keep: BoolArray = item.active_bytes + idle <= usable
    for other in others:
        rest = idle - float(other.idle_bytes.min())
        keep &= item.idle_bytes + rest + float(other.active_bytes.min()) <= usable
    host = sum(float(o.host_bytes.min()) for o in others)
    keep &= item.host_bytes + host <= leaf.host_ram_bytes[pool] + SLACK_BYTES
    if any(leaf.syncs[v] for v in members):
        own = _at_sync(item, leaf.syncs[w])
        rest = sum(float(_at_sync(options[v], leaf.syncs[v]).min()) for v in members if v != w)
        keep &= own + rest <= usable
    return keep


def _at_sync(item: WorkerOptions, synced: bool) -> FloatArray:
    """Bytes on the GPU during the weight sync: those that take part hold their sync state, the others idle."""
    return item.sync_bytes if synced else item.idle_bytes


def _dominance(leaf: LeafProblem, options: list[WorkerOptions]) -> list[WorkerOptions]:
    """Keeps the options that no other dominates in what this unit can notice."""
    unit = leaf.unit
    result = []
    for w, item in enumerate(options):
        if not len(item.rows):
            result.append(item)
            continue
        _, distinct = np.unique(unit.masks[:, w], return_index=True)
        columns = [item.path_s[np.sort(distinct)]]
        sharing = any(w in members and len(members) > 1 for _, members in unit.groups)
        if sharing:
            columns += [item.idle_bytes[None], item.active_bytes[None], item.host_bytes[None]]
            if leaf.syncs[w]:
                columns.append(item.sync_bytes[None])
        tied = leaf.equal_size and (sharing or unit.slot[w] < 0)
        result.append(item.take(pareto_rows(np.vstack(columns), item.num_gpus, across_sizes=not tied)))
    return result


@dataclass(slots=True, kw_only=True)
class _States:
    """Partial choices, arrays over states."""

    choice: IntArray
    """(num_states, num_chosen)"""
    path_s: FloatArray
    size: IntArray
    """GPUs of each block so far, (num_states, num_slots); with equal sizes -1 columns hold pool-wide sizes."""
    whole: IntArray
    """GPUs of the pool-wide workers of each pool so far."""
    idle: FloatArray
    gap: FloatArray
    """Largest active - idle bytes per memory group."""
    sync: FloatArray
    host: FloatArray
    bound: FloatArray

    def take(self, keep: IntArray | slice) -> _States:
        return _States(
            choice=self.choice[keep],
            path_s=self.path_s[keep],
            size=self.size[keep],
            whole=self.whole[keep],
            idle=self.idle[keep],
            gap=self.gap[keep],
            sync=self.sync[keep],
            host=self.host[keep],
            bound=self.bound[keep],
        )


class Enumerator:
    """Depth-first search over the workers of one leaf."""

    def __init__(self, leaf: LeafProblem, work_limit: int) -> None:
        self._leaf = leaf
        self._limit = work_limit
        self._work = 0
        self._cutoff = leaf.cutoff_s
        self._best: tuple[int, ...] | None = None
        self._time = float("inf")
        self._complete = True
        unit = leaf.unit
        weight = [float(item.path_s.min(axis=1).max()) if len(item.rows) else 0.0 for item in leaf.options]
        heaviest: dict[int, float] = {}
        for w, slot in enumerate(unit.slot):
            heaviest[slot] = max(heaviest.get(slot, 0.0), weight[w])
        heaviest[-1] = np.inf
        self._order = sorted(range(len(weight)), key=lambda w: (-heaviest[unit.slot[w]], unit.slot[w], -weight[w], w))

    def run(self) -> LeafResult:
        """The best choice within the cutoff."""
        if not self._leaf.is_empty:
            self._prepare()
            self._descend(self._root(), 0)
        bound_s = self._time if self._complete else 0.0
        return LeafResult(rows=self._best, time_s=self._time, bound_s=bound_s, is_complete=self._complete)

    def _prepare(self) -> None:
        leaf, order = self._leaf, self._order
        unit, num = leaf.unit, len(order)
        num_groups = len(unit.groups)
        self._sizes = np.unique(np.concatenate([item.num_gpus for item in leaf.options]))
        self._fast = [self._prefix_fastest(item) for item in leaf.options]
        idle = [float(item.idle_bytes.min()) for item in leaf.options]
        gap = [float((item.active_bytes - item.idle_bytes).min()) for item in leaf.options]
        sync = [
            float((o.sync_bytes if s else o.idle_bytes).min()) for o, s in zip(leaf.options, leaf.syncs, strict=True)
        ]
        host = [float(item.host_bytes.min()) for item in leaf.options]
        # Row d: the least that the workers after the first d still add to each memory group.
        self._rest_idle = np.zeros((num + 1, num_groups))
        self._rest_gap = np.full((num + 1, num_groups), -np.inf)
        self._rest_sync = np.zeros((num + 1, num_groups))
        self._rest_host = np.zeros((num + 1, num_groups))
        for d in range(num - 1, -1, -1):
            w = order[d]
            inside = np.array([w in members for _, members in unit.groups])
            self._rest_idle[d] = self._rest_idle[d + 1] + inside * idle[w]
            self._rest_gap[d] = np.where(inside, np.maximum(self._rest_gap[d + 1], gap[w]), self._rest_gap[d + 1])
            self._rest_sync[d] = self._rest_sync[d + 1] + inside * sync[w]
            self._rest_host[d] = self._rest_host[d + 1] + inside * host[w]
        self._group_synced = [any(leaf.syncs[w] for w in members) for _, members in unit.groups]
        fastest = [item.path_s.min(axis=1) for item in leaf.options]
        self._rest_path = [sum((fastest[w] for w in order[d:]), np.zeros(len(unit.host_s))) for d in range(num + 1)]

    def _prefix_fastest(self, item: WorkerOptions) -> FloatArray:
        """Least path seconds with at most `sizes[k - 1]` GPUs, shape (num_sizes + 1, num_paths)."""
        result = np.full((self._sizes.size + 1, item.path_s.shape[0]), np.inf)
        np.minimum.at(result, np.searchsorted(self._sizes, item.num_gpus) + 1, item.path_s.T)
        np.minimum.accumulate(result, axis=0, out=result)
        return result

    def _root(self) -> _States:
        unit = self._leaf.unit
        groups = len(unit.groups)
        return _States(
            choice=np.zeros((1, 0), dtype=np.int64),
            path_s=unit.host_s[None].copy(),
            size=np.zeros((1, unit.num_slots), dtype=np.int64),
            whole=np.zeros((1, self._leaf.capacity.size), dtype=np.int64),
            idle=np.zeros((1, groups)),
            gap=np.full((1, groups), -np.inf),
            sync=np.zeros((1, groups)),
            host=np.zeros((1, groups)),
            bound=np.zeros(1),
        )

    def _descend(self, states: _States, depth: int) -> None:
        num_options = len(self._leaf.options[self._order[depth]].rows)
        begin, pairs = 0, _FIRST_CHUNK_PAIRS
        total = states.bound.size
        while begin < total:
            if self._work > self._limit:
                self._complete = False
                return
            end = min(total, begin + max(1, pairs // num_options))
            chunk = states.take(slice(begin, end))
            # Only the first state has a bound that cannot exceed the cutoff for sure: states are sorted by it.
            if chunk.bound[0] > self._cutoff:
                return
            children = self._extend(chunk, depth)
            begin, pairs = end, min(2 * pairs, _MAX_CHUNK_PAIRS)
            if not children.bound.size:
                continue
            if depth + 1 == len(self._order):
                self._record(children)
            else:
                self._descend(children, depth + 1)

    def _record(self, states: _States) -> None:
        """Complete choices: their bound is their makespan."""
        best = int(np.argmin(states.bound))
        value = float(states.bound[best])
        if value <= self._cutoff:
            choice = states.choice[best]
            rows = {w: int(self._leaf.options[w].rows[choice[d]]) for d, w in enumerate(self._order)}
            self._best = tuple(rows[w] for w in range(len(self._order)))
            # Anything found later must be strictly better.
            self._time = value
            self._cutoff = float(np.nextafter(value, 0.0))

    def _extend(self, states: _States, depth: int) -> _States:
        leaf, w = self._leaf, self._order[depth]
        item, unit = leaf.options[w], leaf.unit
        self._work += states.bound.size * len(item.rows)
        rest = item.path_s + self._rest_path[depth + 1][:, None]
        keep = states.path_s[:, 0, None] + rest[0] <= self._cutoff
        for p in range(1, rest.shape[0]):
            keep &= states.path_s[:, p, None] + rest[p] <= self._cutoff
        for g, (pool, members) in enumerate(unit.groups):
            if w in members and len(members) > 1:
                keep &= self._memory(states, item, depth, g, pool, leaf.syncs[w])
        keep &= self._sizes_fit(states, item, w)
        parent, option = np.nonzero(keep)
        return self._children(states, parent, option, depth)

    def _memory(self, states: _States, item: WorkerOptions, depth: int, g: int, pool: int, synced: bool) -> BoolArray:
        usable = self._leaf.usable_bytes[pool] + SLACK_BYTES
        idle = states.idle[:, g, None] + item.idle_bytes + self._rest_idle[depth + 1, g]
        gap = np.maximum(states.gap[:, g, None], item.active_bytes - item.idle_bytes)
        result: BoolArray = idle + np.maximum(gap, self._rest_gap[depth + 1, g]) <= usable
        host = states.host[:, g, None] + item.host_bytes + self._rest_host[depth + 1, g]
        result &= host <= self._leaf.host_ram_bytes[pool] + SLACK_BYTES
        if self._group_synced[g]:
            own = _at_sync(item, synced)
            result &= states.sync[:, g, None] + own + self._rest_sync[depth + 1, g] <= usable
        return result

    def _sizes_fit(self, states: _States, item: WorkerOptions, w: int) -> BoolArray:
        leaf, unit = self._leaf, self._leaf.unit
        pool, slot = unit.contexts[w].pool, unit.slot[w]
        used = self._used(states, pool)
        if slot < 0:
            if not leaf.equal_size:
                return np.ones((states.bound.size, item.num_gpus.size), dtype=np.bool_)
            whole = states.whole[:, pool, None]
            fits: BoolArray = ((whole == 0) | (whole == item.num_gpus)) & (used[:, None] <= item.num_gpus)
            return fits
        size = states.size[:, slot, None]
        new = np.maximum(np.maximum(size, item.num_gpus), leaf.low[slot])
        others = used - np.maximum(states.size[:, slot], leaf.low[slot])
        limit = np.full(states.bound.size, leaf.capacity[pool])
        if leaf.equal_size:
            limit = np.where(states.whole[:, pool] > 0, states.whole[:, pool], limit)
        result: BoolArray = others[:, None] + new <= limit[:, None]
        if leaf.equal_size:
            result &= (size == 0) | (size == item.num_gpus)
        return result

    def _used(self, states: _States, pool: int) -> IntArray:
        """GPUs that the blocks of a pool take at least."""
        used = np.zeros(states.bound.size, dtype=np.int64)
        for slot, slot_pool in enumerate(self._leaf.unit.slot_pool):
            if slot_pool == pool:
                used += np.maximum(states.size[:, slot], self._leaf.low[slot])
        return used

    def _children(self, states: _States, parent: IntArray, option: IntArray, depth: int) -> _States:
        leaf, w = self._leaf, self._order[depth]
        item, unit = leaf.options[w], leaf.unit
        child = states.take(parent)
        child.choice = np.concatenate([child.choice, option[:, None]], axis=1)
        child.path_s = child.path_s + item.path_s.T[option]
        num_gpus = item.num_gpus[option]
        if unit.slot[w] >= 0:
            child.size[:, unit.slot[w]] = np.maximum(child.size[:, unit.slot[w]], num_gpus)
        else:
            pool = unit.contexts[w].pool
            child.whole[:, pool] = np.maximum(child.whole[:, pool], num_gpus)
        for g, (_, members) in enumerate(unit.groups):
            if w in members:
                child.idle[:, g] += item.idle_bytes[option]
                child.gap[:, g] = np.maximum(child.gap[:, g], (item.active_bytes - item.idle_bytes)[option])
                child.sync[:, g] += _at_sync(item, leaf.syncs[w])[option]
                child.host[:, g] += item.host_bytes[option]
        child.bound = self._bound(child, depth + 1)
        ranked = np.argsort(child.bound, kind="stable")
        return child.take(ranked[: np.searchsorted(child.bound[ranked], self._cutoff, side="right")])

    def _bound(self, states: _States, depth: int) -> FloatArray:
        """Longest path with the fastest options of the rest at the sizes that are still free."""
        leaf, unit = self._leaf, self._leaf.unit
        length = states.path_s.copy()
        for w in self._order[depth:]:
            pool, slot = unit.contexts[w].pool, unit.slot[w]
            free = np.full(states.bound.size, leaf.capacity[pool])
            if slot >= 0:
                own = np.maximum(states.size[:, slot], leaf.low[slot])
                free = np.minimum(free - self._used(states, pool) + own, leaf.high[slot])
            length += self._fast[w][np.searchsorted(self._sizes, free, side="right")]
        result: FloatArray = length.max(axis=1)
        return result
