"""Time and memory of one configuration, fast enough to be asked a hundred thousand times a second or nearly so.

The same sums as in the search, on plain Python numbers; what a peer finds with them is priced again by the search
itself before anyone sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.domain.stages import StageName, WorkerName
from planner.peers.meshes import Mesh, structure_of_pairs
from planner.peers.task import PeerTask
from planner.search import mesh as degrees
from planner.search.orders import OrderBook
from planner.search.problem import SLACK_BYTES, OptionTable
from planner.search.structures import Structure

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
    """A row of an option table, in stage numbers."""

    stage_s: tuple[tuple[int, float], ...]
    sync_s: tuple[float, float, float]
    num_gpus: int
    active_bytes: float
    idle_bytes: float
    sync_bytes: float
    host_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """What a structure means for a score. Groups are worker numbers that meet on the same GPUs, with their pool."""

    orders: tuple[tuple[tuple[int, ...], ...], ...]
    """Per order its maximal paths, as stage numbers."""
    groups: tuple[tuple[str, tuple[int, ...], bool], ...]
    sync: int
    refused: bool


class Scorer:
    """Scores configurations of one task."""

    def __init__(self, task: PeerTask) -> None:
        graph = task.inputs.graph
        self._task = task
        self._names = task.workers
        self._stages = [stage.name for stage in graph.stages]
        self._book = OrderBook(graph)
        self._host = [(self._stages.index(name), seconds) for name, seconds in task.problem.host_stage_s]
        self._synced = graph.workers_of(StageName.WEIGHT_SYNC) if graph.has_stage(StageName.WEIGHT_SYNC) else ()
        self._sync_stage = self._stages.index(StageName.WEIGHT_SYNC) if self._synced else -1
        self._capacity = {pool.name: (pool.usable_bytes, pool.host_ram_bytes) for pool in task.problem.pools}
        self._options = {(t.worker, t.pool): _options(t, self._stages) for t in task.problem.options}
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
            excess += 1.0
        if self._base:
            excess += self._unequal(choices)
        return Score(time_s=self._time_s(shape, options), excess_ratio=excess)

    def _time_s(self, shape: _Shape, options: Sequence[_Option]) -> float:
        duration = [0.0] * len(self._stages)
        for stage, seconds in self._host:
            duration[stage] = seconds
        for name, option in zip(self._names, options, strict=True):
            for stage, seconds in option.stage_s:
                duration[stage] = seconds
            if name in self._synced:
                duration[self._sync_stage] += option.sync_s[shape.sync]
        return min(max(sum([duration[s] for s in path]) for path in paths) for paths in shape.orders)

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
        orders = tuple(
            tuple(tuple(s for s in range(len(self._stages)) if path >> s & 1) for path in order.paths)
            for order in self._book.orders(structure)
        )
        groups = tuple(
            (pool.pool, tuple(number[name] for name in members), any(name in self._synced for name in members))
            for pool in structure.pools
            for members in pool.memory_groups
        )
        return _Shape(
            orders=orders,
            groups=groups,
            sync=self._sync(structure),
            refused=refuses is not None and refuses(structure) is not None,
        )

    def _sync(self, structure: Structure) -> int:
        if not self._synced or structure.overlap(*self._synced):
            return _COLOCATED
        first, second = self._synced
        return _APART if structure.pool_of(first) == structure.pool_of(second) else _ACROSS


def _options(table: OptionTable, stages: Sequence[StageName]) -> tuple[_Option, ...]:
    numbers = [stages.index(stage) for stage in table.stages]
    columns = table.stage_time_s.T.tolist()
    return tuple(
        _Option(
            stage_s=tuple(zip(numbers, columns[row], strict=True)),
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
