"""A leaf in integers, the common input of CP-SAT and the ILP. The only place of the search that rounds.

Durations and demands are rounded up and capacities down, so every integer solution is feasible. A makespan in ticks
exceeds the true one by at most one tick per term of a path, which `lower_bound_s` takes off again. Memory is counted
in 2**-20 of a pool's capacity: options that fit by less than that share are lost, and no bound accounts for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.domain.strategy import FloatArray, IntArray
from planner.search.leaf import LeafProblem

_TICKS = 2**22
_MEMORY_UNITS = 2**20
_ROUNDING = 1e-9
"""Relative slack so that a demand equal to the capacity still fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerOptions:
    """Options of one worker; arrays over options, `path_ticks` of shape (num_paths, num_options)."""

    num_gpus: IntArray
    path_ticks: IntArray
    idle: IntArray
    active: IntArray
    at_sync: IntArray
    """Memory during the weight sync: sync state of those that take part, idle state of the others."""
    host: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerProblem:
    """Choose one option per worker; minimise the longest path, at most `cutoff_ticks`.

    For every memory group, at any of its members' turns: active + idle of the others <= `memory_capacity`; at the
    sync (if a member takes part) the sum of `at_sync`; on the host the sum of `host`. Block sizes add up to at most
    the pool, and are at least `low`.
    """

    tick_s: float
    options: tuple[IntegerOptions, ...]
    host_ticks: IntArray
    """Host stages on each path."""
    slot: tuple[int, ...]
    slot_pool: tuple[int, ...]
    worker_pool: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    group_syncs: tuple[bool, ...]
    low: IntArray
    capacity: IntArray
    memory_capacity: int
    cutoff_ticks: int
    num_terms: int
    equal_size: bool

    def lower_bound_s(self, ticks: float) -> float:
        """Seconds below which no plan exists if the integer optimum is at least `ticks`."""
        return max(0.0, ticks - self.num_terms) * self.tick_s


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerResult:
    """`choice` per worker (option index), or None. `bound_ticks` is a proven lower bound, None if the problem has
    no solution within its cutoff. `is_complete` is False when a limit ended the search."""

    choice: tuple[int, ...] | None
    bound_ticks: float | None
    is_complete: bool


def discretise(leaf: LeafProblem) -> IntegerProblem:
    """The integer form of a leaf that has at least one option per worker."""
    longest = sum(item.path_s.max(axis=1) for item in leaf.options) + leaf.unit.host_s
    horizon_s = min(leaf.cutoff_s, float(longest.max()))
    tick_s = max(horizon_s, 1e-9) / _TICKS
    num_terms = len(leaf.options) + 1
    pools = tuple(context.pool for context in leaf.unit.contexts)

    def memory(values: FloatArray, pool: int) -> IntArray:
        return _up(values * (_MEMORY_UNITS / leaf.usable_bytes[pool]))

    options = tuple(
        IntegerOptions(
            num_gpus=item.num_gpus,
            path_ticks=_up(item.path_s / tick_s),
            idle=memory(item.idle_bytes, pool),
            active=memory(item.active_bytes, pool),
            at_sync=memory(item.sync_bytes if synced else item.idle_bytes, pool),
            host=_up(item.host_bytes * (_MEMORY_UNITS / leaf.host_ram_bytes[pool])),
        )
        for item, pool, synced in zip(leaf.options, pools, leaf.syncs, strict=True)
    )
    return IntegerProblem(
        tick_s=tick_s,
        options=options,
        host_ticks=_up(leaf.unit.host_s / tick_s),
        slot=leaf.unit.slot,
        slot_pool=leaf.unit.slot_pool,
        worker_pool=pools,
        groups=tuple(members for _, members in leaf.unit.groups),
        group_syncs=tuple(any(leaf.syncs[w] for w in members) for _, members in leaf.unit.groups),
        low=leaf.low,
        capacity=leaf.capacity,
        memory_capacity=_MEMORY_UNITS,
        cutoff_ticks=int(np.floor(horizon_s / tick_s)) + num_terms,
        num_terms=num_terms,
        equal_size=leaf.equal_size,
    )


def _up(values: FloatArray) -> IntArray:
    rounded: IntArray = np.ceil(values * (1.0 - _ROUNDING)).astype(np.int64)
    return rounded
