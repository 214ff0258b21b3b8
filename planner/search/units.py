"""Units: a structure with one timing, in numbers, and what repeats between units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from planner.domain.execution import Execution
from planner.domain.stages import ROLLOUT_ENGINES, StageGraph, StageName, WorkerName
from planner.domain.strategy import FloatArray, IntArray
from planner.search.structures import Structure
from planner.search.timing import LAST_SHARE, Part, Row, Timing, moments_of, timing_book


class Sync(IntEnum):
    """Which share of the weight sync a worker pays."""

    NONE = 0
    COLOCATED = 1
    DISAGGREGATED = 2
    CROSS_POOL = 3
    COLOCATED_AND_CROSS_POOL = 4
    """A trainer with one group of engines on its GPUs and another in a different pool: what is gathered for one is sent
    to the other, so that the longer share counts."""
    DISAGGREGATED_AND_CROSS_POOL = 5
    """A trainer that sends to a group of engines in its pool, then to one in another."""
    CROSS_POOL_TWICE = 6
    """A trainer that sends to two other pools, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """All about a worker's surroundings that decides which of its options can work at all. `groups` are the sets of
    co-residents (bit sets over workers), one per memory group that the worker is part of."""

    worker: int
    pool: int
    sync: Sync
    groups: tuple[int, ...]

    def without_mates(self) -> Context:
        return Context(worker=self.worker, pool=self.pool, sync=self.sync, groups=(0,))


def host_parts(stage: StageName, seconds: float, least_s: float) -> dict[Part, float]:
    """Seconds of a host stage and of its last shares, none of which takes less than `least_s`."""
    parts: dict[Part, float] = {(stage, None): seconds}
    for moment, share in LAST_SHARE.items():
        parts[stage, moment] = max(share * seconds, min(seconds, least_s))
    return parts


class Frame:
    """What all units of one graph and execution share: workers, the seconds that each contributes (its columns), and
    the combinations of these that rows use."""

    def __init__(self, graph: StageGraph, execution: Execution) -> None:
        self.graph = graph
        self.execution = execution
        self.workers: tuple[WorkerName, ...] = tuple(worker.name for worker in graph.workers)
        synced = graph.workers_of(StageName.WEIGHT_SYNC) if graph.has_stage(StageName.WEIGHT_SYNC) else ()
        self.syncs: list[bool] = [name in synced for name in self.workers]
        self.columns: list[tuple[Part, ...]] = []
        """Per worker: its stages, its share of the weight sync if it has one, and its moments."""
        for worker, is_synced in zip(graph.workers, self.syncs, strict=True):
            stages: list[Part] = [(name, None) for name in worker.stages]
            share: list[Part] = [(StageName.WEIGHT_SYNC, None)] if is_synced else []
            self.columns.append((*stages, *share, *moments_of(execution, worker)))
        self._combinations: list[dict[tuple[float, ...], int]] = [
            {(0.0,) * len(columns): 0} for columns in self.columns
        ]

    @property
    def num_combinations(self) -> list[int]:
        """Combinations of each worker so far."""
        return [len(known) for known in self._combinations]

    def coefficients(self, worker: int, numbers: IntArray) -> FloatArray:
        """Coefficients of a worker's columns in some combinations, shape (len(numbers), num_columns)."""
        return np.array(list(self._combinations[worker]), dtype=np.float64)[numbers]

    def combination(self, worker: int, row: Row) -> int:
        """The number of the combination that a row takes of a worker's seconds."""
        given = dict(row)
        known = self._combinations[worker]
        return known.setdefault(tuple(given.get(part, 0.0) for part in self.columns[worker]), len(known))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A structure with one timing, in indices. `slot[w]` numbers the worker's block within the unit, -1 for workers
    on the whole pool; `slot_pool[s]` is the pool of block s; `groups` are the memory groups as (pool, workers)."""

    structure: Structure
    timing: Timing
    contexts: tuple[Context, ...]
    slot: tuple[int, ...]
    slot_pool: tuple[int, ...]
    groups: tuple[tuple[int, tuple[int, ...]], ...]
    masks: IntArray
    """Combination of each worker in each row, shape (num_rows, num_workers)."""
    host_s: FloatArray
    """Seconds of host stages in each row."""
    is_relaxed: bool = False
    """The timing is only a bound: `UnitBuilder.exact` has the real ones."""

    @property
    def num_slots(self) -> int:
        return len(self.slot_pool)


def _relation(trainer: tuple[str, int], engine: tuple[str, int]) -> Sync:
    """What a sync between two places is; block -1 is the whole pool."""
    if trainer[0] != engine[0]:
        return Sync.CROSS_POOL
    return Sync.COLOCATED if trainer[1] == engine[1] or -1 in (trainer[1], engine[1]) else Sync.DISAGGREGATED


def _of_trainer(engines: Sequence[Sync]) -> Sync:
    """The trainer's share, from those of the engines that it serves. Two groups of engines never share a pool: at least
    one of them is across."""
    kinds = sorted(engines)
    if len(kinds) == 1:
        return kinds[0]
    by_first = {
        Sync.COLOCATED: Sync.COLOCATED_AND_CROSS_POOL,
        Sync.DISAGGREGATED: Sync.DISAGGREGATED_AND_CROSS_POOL,
        Sync.CROSS_POOL: Sync.CROSS_POOL_TWICE,
    }
    return by_first[kinds[0]]


class UnitBuilder:
    """Turns structures into units; keeps what repeats."""

    def __init__(
        self, frame: Frame, pools: Sequence[str], host_stage_s: dict[StageName, float], host_least_s: float
    ) -> None:
        self._frame = frame
        self._book = timing_book(frame.graph, frame.execution)
        self._host_s: dict[Part, float] = {}
        for stage, seconds in host_stage_s.items():
            self._host_s |= host_parts(stage, seconds, host_least_s)
        self._position = {name: i for i, name in enumerate(frame.workers)}
        self._pool_position = {name: i for i, name in enumerate(pools)}
        self._masks: dict[tuple[Row, ...], tuple[IntArray, FloatArray]] = {}
        self._exact: dict[Structure, list[Unit]] = {}

    def units(self, structure: Structure) -> list[Unit]:
        """One unit per undominated timing, or a relaxed one for all of them."""
        return self._units(structure, self._book.relaxed(structure), is_relaxed=self._frame.execution.is_asynchronous)

    def exact(self, unit: Unit) -> list[Unit]:
        """The units with real timings that a unit stands for."""
        if not unit.is_relaxed:
            return [unit]
        if unit.structure not in self._exact:
            timings = self._book.timings(unit.structure)
            self._exact[unit.structure] = self._units(unit.structure, timings, is_relaxed=False)
        return self._exact[unit.structure]

    def _units(self, structure: Structure, timings: Sequence[Timing], *, is_relaxed: bool) -> list[Unit]:
        num = len(self._frame.workers)
        slot, pool_of = [-1] * num, [0] * num
        slot_pool: list[int] = []
        mates: list[list[int]] = [[] for _ in range(num)]
        groups: list[tuple[int, tuple[int, ...]]] = []
        for item in structure.pools:
            pool = self._pool_position[item.pool]
            for block in item.blocks:
                members = tuple(self._position[name] for name in block + item.whole)
                bits = sum(1 << w for w in members)
                groups.append((pool, members))
                for w in members:
                    pool_of[w] = pool
                    mates[w].append(bits & ~(1 << w))
                for w in members[: len(block)]:
                    slot[w] = len(slot_pool)
                slot_pool.append(pool)
        syncs = self._syncs(structure)
        contexts = tuple(
            Context(
                worker=w,
                pool=pool_of[w],
                sync=syncs[w],
                groups=tuple(sorted(set(mates[w]))),
            )
            for w in range(num)
        )
        units = []
        for timing in timings:
            masks, host_s = self._row_masks(timing.rows)
            units.append(
                Unit(
                    structure=structure,
                    timing=timing,
                    contexts=contexts,
                    slot=tuple(slot),
                    slot_pool=tuple(slot_pool),
                    groups=tuple(groups),
                    masks=masks,
                    host_s=host_s,
                    is_relaxed=is_relaxed,
                )
            )
        return units

    def _syncs(self, structure: Structure) -> list[Sync]:
        """Which share of the weight sync each worker pays: an engine by its place relative to the trainer, the trainer
        by those of all engines."""
        kinds = [Sync.DISAGGREGATED if takes_part else Sync.NONE for takes_part in self._frame.syncs]
        trainer = self._position.get(WorkerName.ACTOR_TRAINER)
        engines = [self._position[name] for name in ROLLOUT_ENGINES if name in self._position]
        if trainer is not None and kinds[trainer] is not Sync.NONE and engines:
            places = structure.places()
            source = places[WorkerName.ACTOR_TRAINER]
            for w in engines:
                kinds[w] = _relation(source, places[self._frame.workers[w]])
            kinds[trainer] = _of_trainer([kinds[w] for w in engines])
        return kinds

    def _row_masks(self, rows: tuple[Row, ...]) -> tuple[IntArray, FloatArray]:
        if rows not in self._masks:
            num_workers = len(self._frame.workers)
            masks = [[self._frame.combination(w, row) for w in range(num_workers)] for row in rows]
            host = self._host_s
            host_s = [sum(c * host[part] for part, c in row if part in host) for row in rows]
            self._masks[rows] = np.array(masks, dtype=np.int64), np.array(host_s, dtype=np.float64)
        return self._masks[rows]
