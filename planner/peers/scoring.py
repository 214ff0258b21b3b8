"""Time and memory of one configuration, fast enough to be asked a hundred thousand times a second or nearly so.

The same sums as in the search, on plain Python numbers; what a peer finds with them is priced again by the search
itself before anyone sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from planner.domain.stages import StageName, WorkerName
from planner.peers.meshes import Mesh, structure_of_pairs
from planner.peers.task import PeerTask
from planner.search import mesh as degrees
from planner.search.problem import SLACK_BYTES, OptionTable
from planner.search.structures import Structure
from planner.search.timing import Part, TimingBook
from planner.search.units import host_parts

_COLOCATED, _APART, _ACROSS = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Seconds per iteration, and by how much memory or rules are exceeded, as a share of what is there."""

    time_s: float
    excess_ratio: float

    @property
    def fits(self) -> bool:
        return self.excess_ratio <= 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """A row of an option table, in numbers of parts."""

    part_s: tuple[tuple[int, float], ...]
    sync_s: tuple[float, float, float]
    num_gpus: int
    active_bytes: float
    idle_bytes: float
    sync_bytes: float
    host_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """What a structure means for a score. Groups are worker numbers that meet on the same GPUs, with their pool."""

    timings: tuple[tuple[tuple[tuple[int, float], ...], ...], ...]
    """Per timing its rows: parts, as numbers, with their coefficients."""
    groups: tuple[tuple[str, tuple[int, ...], bool], ...]
    sync: int
    refused: bool


class Scorer:
    """Scores configurations of one task."""

    def __init__(self, task: PeerTask) -> None:
        graph, problem = task.problem.graph, task.problem
        self._task = task
        self._names = task.workers
        self._book = TimingBook(graph, problem.execution)
        has_sync = graph.has_stage(StageName.WEIGHT_SYNC)
        self._synced = graph.workers_of(StageName.WEIGHT_SYNC) if has_sync else ()
        self._host: dict[Part, float] = {}
        for stage, seconds in problem.host_stage_s:
            self._host |= host_parts(stage, seconds, problem.host_least_s)
        known: list[Part] = [*((stage.name, None) for stage in graph.stages), *self._host]
        known += [part for table in problem.options for part in table.moments]
        self._part = {part: number for number, part in enumerate(dict.fromkeys(known))}
        self._sync_part = self._part.get((StageName.WEIGHT_SYNC, None), -1)
        self._start_s = [self._host.get(part, 0.0) for part in self._part]
        self._capacity = {pool.name: (pool.usable_bytes, pool.host_ram_bytes) for pool in problem.pools}
        self._options = {(table.worker, table.pool): _options(table, self._part) for table in problem.options}
        self._shapes: dict[tuple[tuple[str, ...], int], _Shape] = {}
        rules = task.inputs.rules
        self._base = {} if rules is None else degrees.option_keys(rules, task.priced, with_vpp=False)
        self._fine = {} if rules is None else degrees.option_keys(rules, task.priced, with_vpp=True)

    def score(self, choices: Sequence[tuple[str, int]], meshes: Sequence[Mesh]) -> Score:
        """The score of (pool, option row) and a range of GPUs per worker, in the order of the task's workers."""
        shape = self._shape(meshes)
        options = [self._options[name, pool][row] for name, (pool, row) in zip(self._names, choices, strict=True)]
        excess = self._excess(shape, options)
        if shape.refused:
            # The search has no such plan: any plan of it is better.
            return Score(time_s=inf, excess_ratio=excess + len(self._names))
        if self._base:
            excess += self._unequal(choices)
        return Score(time_s=self._time_s(shape, options), excess_ratio=excess)

    def _time_s(self, shape: _Shape, options: Sequence[_Option]) -> float:
        seconds = self._start_s.copy()
        for name, option in zip(self._names, options, strict=True):
            for part, value in option.part_s:
                seconds[part] = value
            if name in self._synced:
                seconds[self._sync_part] += option.sync_s[shape.sync]
        return min(max(sum([c * seconds[part] for part, c in row]) for row in rows) for rows in shape.timings)

    def _excess(self, shape: _Shape, options: Sequence[_Option]) -> float:
        excess = 0.0
        for pool, members, has_sync in shape.groups:
            usable, ram = self._capacity[pool]
            here = [options[w] for w in members]
            idle = sum([o.idle_bytes for o in here])
            need = idle + max([o.active_bytes - o.idle_bytes for o in here])
            if has_sync:
                at_sync = idle
                for w in members:
                    if self._names[w] in self._synced:
                        at_sync += options[w].sync_bytes - options[w].idle_bytes
                need = max(need, at_sync)
            if need > usable + SLACK_BYTES:
                excess += need / usable - 1.0
            host = sum([o.host_bytes for o in here])
            if host > ram + SLACK_BYTES:
                excess += host / ram - 1.0
            if self._task.problem.equal_size and len({o.num_gpus for o in here}) > 1:
                excess += 1.0
        return excess

    def _unequal(self, choices: Sequence[tuple[str, int]]) -> float:
        """Workers whose degrees differ although the framework makes them equal."""
        fine, base = set(), set()
        for name, (pool, row) in zip(self._names, choices, strict=True):
            if (name, pool) not in self._base:
                continue
            base.add(int(self._base[name, pool][row]))
            if name is not WorkerName.REFERENCE:
                fine.add(int(self._fine[name, pool][row]))
        return max(0.0, len(base) - 1.0) + max(0.0, len(fine) - 1.0)

    def _shape(self, meshes: Sequence[Mesh]) -> _Shape:
        overlaps, bit = 0, 1
        for i, first in enumerate(meshes):
            for second in meshes[i + 1 :]:
                if first.overlaps(second):
                    overlaps |= bit
                bit <<= 1
        key = (tuple([m.pool for m in meshes]), overlaps)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = self._shape_of(structure_of_pairs(self._names, key[0], overlaps))
        return shape

    def _shape_of(self, structure: Structure) -> _Shape:
        number = {name: w for w, name in enumerate(self._names)}
        refuses = self._task.problem.structure_filter
        timings = tuple(
            tuple(tuple((self._part[part], coefficient) for part, coefficient in row) for row in timing.rows)
            for timing in self._book.timings(structure)
        )
        groups = tuple(
            (pool.pool, tuple(number[name] for name in members), any(name in self._synced for name in members))
            for pool in structure.pools
            for members in pool.memory_groups
        )
        return _Shape(
            timings=timings,
            groups=groups,
            sync=self._sync(structure),
            refused=not timings or (refuses is not None and refuses(structure) is not None),
        )

    def _sync(self, structure: Structure) -> int:
        if not self._synced or structure.overlap(*self._synced):
            return _COLOCATED
        first, second = self._synced
        return _APART if structure.pool_of(first) == structure.pool_of(second) else _ACROSS


def _options(table: OptionTable, part: Mapping[Part, int]) -> tuple[_Option, ...]:
    numbers = [part[stage, None] for stage in table.stages] + [part[moment] for moment in table.moments]
    parts = [*table.stage_time_s, *(table.moment_s if table.moments else ())]
    columns = np.array(parts).reshape(len(parts), len(table)).T.tolist()
    return tuple(
        _Option(
            part_s=tuple(zip(numbers, columns[row], strict=True)),
            sync_s=(
                float(table.sync_colocated_s[row]),
                float(table.sync_disaggregated_s[row]),
                float(table.sync_cross_pool_s[row]),
            ),
            num_gpus=int(table.num_gpus[row]),
            active_bytes=float(table.active_bytes[row]),
            idle_bytes=float(table.idle_bytes[row]),
            sync_bytes=float(table.sync_bytes[row]),
            host_bytes=float(table.host_bytes[row]),
        )
        for row in range(len(table))
    )
