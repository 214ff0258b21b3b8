"""Options that no iteration short enough can have, found before anything is pruned.

Pruning compares options with each other and takes most of a search's time; a lower bound on the iteration of each
option takes little. Where a good plan is known, which is so for every question that is asked about a plan, few options
are left.

The bound of an option is the smallest of three cases. All workers meet on the same GPUs, and their stages add up. Or
the option's worker is apart from another one, on numbers of GPUs that add up to no more than a pool has or on different
pools; then an iteration takes at least the longest path through the stage graph, all others with their fastest options,
that one with the fastest of such sizes. Or it meets all others while two of these are apart: then its stages and those
of any other one add up. Sums are those of `planner.search.timing`: fused stages overlap as far as streaming to other
GPUs or gathering the tail can hide one assessor; asynchronous iterations take at least what any worker does in them,
and a path over the batches that it spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from planner.cost.worker import Moment
from planner.domain.execution import GATHERED_LEFT_RATIO, Execution, ExecutionMode, Fusion
from planner.domain.stages import ROLLOUT_ENGINES, StageGraph, StageKind, StageName, Worker, WorkerName
from planner.domain.strategy import FloatArray, IntArray
from planner.search.orders import maximal_paths
from planner.search.problem import OptionTable
from planner.search.timing import ASSESSING, GATHERED_FREE_RATIO, LUMPS, UPDATES, Part

ROUNDING = 1e-9
"""Sums of seconds are added in another order than those of the search."""
_ANY_SIZE = int(np.iinfo(np.int64).max)
_SLOWED = (1.0 - GATHERED_LEFT_RATIO) / GATHERED_FREE_RATIO + GATHERED_LEFT_RATIO
_SYNC: Part = (StageName.WEIGHT_SYNC, None)

Sum = dict[Part, float]
"""Coefficients of stages and moments."""
Ways = tuple[tuple[Sum, ...], ...]
"""Ways in which stages may overlap; an iteration takes at least all sums of one of them."""


def bounds_s(
    tables: Sequence[OptionTable], num_gpus: Mapping[str, int], graph: StageGraph, execution: Execution
) -> tuple[FloatArray, ...]:
    """A lower bound in seconds on the iteration of any plan with each option; shape (num_options,) per table.

    `num_gpus` are those of each pool.
    """
    case = _Bounds(tables, num_gpus, graph, execution)
    return tuple(case.of(index) for index in range(len(tables)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    """What the options of a worker contribute to sums: `seconds` of shape (num_different, num_options), and for each
    sum the `number` of its row there. Most sums have the same stages of one worker."""

    seconds: FloatArray
    number: IntArray


class _Bounds:
    """Least seconds of each worker in each sum, by pool and size of its group."""

    def __init__(
        self, tables: Sequence[OptionTable], num_gpus: Mapping[str, int], graph: StageGraph, execution: Execution
    ) -> None:
        self._tables = tables
        self._num_gpus = num_gpus
        self._workers = tuple(worker.name for worker in graph.workers)
        self._may_meet = not execution.is_asynchronous
        together = _together(graph, execution) if self._may_meet else ()
        apart = tuple(_apart(graph, execution))
        meeting = [worker for worker in graph.workers if worker.name is not WorkerName.SECOND_ENGINE]
        pairs = {
            frozenset((one.name, two.name)): _both(one, two, graph, execution) for one, two in combinations(meeting, 2)
        }
        self._ways = (together, *apart, *pairs.values())
        self._pair_ways = {pair: 1 + len(apart) + number for number, pair in enumerate(pairs)}
        self._num_apart = len(apart)
        self._is_asynchronous = execution.is_asynchronous
        self._sums = tuple(item for ways in self._ways for sums in ways for item in sums)
        self._numbers = _numbered(self._ways)
        self._shares = [_shares(table, self._sums) for table in tables]
        self._sizes = [np.unique(table.num_gpus).tolist() for table in tables]
        self._best: dict[tuple[WorkerName, str | None, int], FloatArray] = {}

    def of(self, index: int) -> FloatArray:
        """The bound of every option of one table."""
        table, mine = self._tables[index], self._shares[index]
        others = [name for name in self._workers if name is not table.worker]
        meeting = [name for name in others if name is not WorkerName.SECOND_ENGINE]
        least = np.full(len(table), np.inf)
        if table.worker is WorkerName.SECOND_ENGINE or not meeting:
            # Which of the others meet is open.
            return self._time(mine, self._added(others, {}), self._numbers[1 : 1 + self._num_apart])
        paths = self._numbers[1 : 1 + self._num_apart]
        if self._may_meet:
            rest = self._added(others, {name: self._least(name, table.pool, _ANY_SIZE) for name in meeting})
            least = self._time(mine, rest, self._numbers[:1])
        if not self._is_asynchronous or table.worker not in (WorkerName.ACTOR_TRAINER, WorkerName.ROLLOUT_ENGINE):
            # Engines and trainer of asynchronous plans never meet.
            sums = [self._numbers[self._pair_ways[frozenset((table.worker, name))]] for name in meeting]
            pairs = (pair for two in combinations(meeting, 2) for pair in self._pairs(*two, table.pool))
            here: dict[WorkerName, FloatArray] = {n: self._least(n, table.pool, _ANY_SIZE) for n in meeting}
            for rest in _distinct(self._added(others, here | pair) for pair in pairs):
                least = np.minimum(least, self._time(mine, rest, [*paths, *sums]))
        for size in self._sizes[index]:
            rows = np.flatnonzero(table.num_gpus == size)
            some = _Shares(seconds=mine.seconds[:, rows], number=mine.number)
            for rest in _distinct(self._beside(table.pool, size, meeting, others)):
                least[rows] = np.minimum(least[rows], self._time(some, rest, paths))
        return least

    def _beside(
        self, mine: str, size: int, meeting: Sequence[WorkerName], others: Sequence[WorkerName]
    ) -> Iterator[FloatArray]:
        """Least seconds of all others in every sum where one of them is apart from a group of `size` GPUs."""
        for name in meeting:
            for pool, num_gpus in self._num_gpus.items():
                left = num_gpus - size if pool == mine else _ANY_SIZE
                yield self._added(others, {name: self._least(name, pool, left)})

    def _time(self, mine: _Shares, rest: FloatArray, numbers: Sequence[Sequence[IntArray]]) -> FloatArray:
        """The largest of what several overlaps take, each in its best way."""
        result = np.zeros(mine.seconds.shape[1])
        for ways in numbers:
            # Of sums to which the option contributes the same only the largest counts.
            best = np.full(len(result), np.inf)
            for sums in ways:
                most: dict[int, float] = {}
                for own, seconds in zip(mine.number[sums].tolist(), rest[sums].tolist(), strict=True):
                    most[own] = max(seconds, most.get(own, 0.0))
                best = np.minimum(best, np.max([mine.seconds[own] + most[own] for own in most], axis=0))
            result = np.maximum(result, best)
        return result

    def _added(self, names: Sequence[WorkerName], known: Mapping[WorkerName, FloatArray]) -> FloatArray:
        result = np.zeros(len(self._sums))
        for name in names:
            result = result + (known[name] if name in known else self._least(name, None, _ANY_SIZE))
        return result

    def _pairs(self, first: WorkerName, second: WorkerName, pool: str) -> Iterator[dict[WorkerName, FloatArray]]:
        """Least seconds of two workers that are apart in a pool, with sizes that fit side by side."""
        num_gpus = self._num_gpus[pool]
        sizes = {size for i in self._places(first, pool) for size in self._sizes[i]}
        for size in sorted(size for size in sizes if size < num_gpus):
            yield {first: self._least(first, pool, size), second: self._least(second, pool, num_gpus - size)}

    def _least(self, name: WorkerName, pool: str | None, size: int) -> FloatArray:
        """Least seconds of a worker in every sum, on at most `size` GPUs of a pool (None: of any pool)."""
        key = (name, pool, size)
        if key not in self._best:
            best = np.full(len(self._sums), np.inf)
            for i in self._places(name, pool):
                shares = self._shares[i]
                fits = slice(None) if size == _ANY_SIZE else self._tables[i].num_gpus <= size
                least = np.min(shares.seconds[:, fits], axis=1, initial=np.inf)
                best = np.minimum(best, least[shares.number])
            self._best[key] = best
        return self._best[key]

    def _places(self, name: WorkerName, pool: str | None) -> Iterator[int]:
        for index, table in enumerate(self._tables):
            if table.worker is name and pool in (None, table.pool):
                yield index


def _distinct(rests: Iterator[FloatArray]) -> list[FloatArray]:
    """Those that are nowhere larger than another one: the others bound nothing."""
    kept: list[FloatArray] = []
    for rest in rests:
        if not np.isfinite(rest).all() or any((other <= rest).all() for other in kept):
            continue
        kept = [other for other in kept if not (rest <= other).all()]
        kept.append(rest)
    return kept


# ---------------------------------------------------------------------------------------------- sums


def _together(graph: StageGraph, execution: Execution) -> Ways:
    """All stages on the same GPUs: one after the other, or with the tail gathered beside one assessor."""
    stages = [stage for stage in graph.stages if stage.kind is not StageKind.HOST]
    names = [stage.name for stage in stages if stage.name is not StageName.SECOND_ROLLOUT]
    plain: Sum = {(name, _moment(name, execution)): 1.0 for name in names}
    ways: list[tuple[Sum, ...]] = [(plain,)]
    if Fusion.INTER_STAGE in execution.fusions:
        ways += [_gathered(plain, name) for name in names if name in ASSESSING]
    return tuple(ways)


def _both(one: Worker, two: Worker, graph: StageGraph, execution: Execution) -> Ways:
    """All stages of two workers on the same GPUs."""
    names = [*one.stages, *two.stages]
    if {one.name, two.name} & {WorkerName.ACTOR_TRAINER, *ROLLOUT_ENGINES} and graph.has_stage(StageName.WEIGHT_SYNC):
        names.append(StageName.WEIGHT_SYNC)
    plain: Sum = {(name, _moment(name, execution)): 1.0 for name in names}
    ways: list[tuple[Sum, ...]] = [(plain,)]
    if Fusion.INTER_STAGE in execution.fusions and StageName.ROLLOUT in names:
        ways += [_gathered(plain, name) for name in names if name in ASSESSING]
    return tuple(ways)


def _moment(name: StageName, execution: Execution) -> Moment | None:
    """Updates in one pipeline fill each other's bubbles."""
    is_joint = Fusion.INTRA_STAGE in execution.fusions and name in UPDATES
    return Moment.WITHOUT_BUBBLE if is_joint else None


def _gathered(plain: Sum, assessor: StageName) -> tuple[Sum, ...]:
    rest = {part: c for part, c in plain.items() if part not in ((StageName.ROLLOUT, None), (assessor, None))}
    return (
        {**rest, (StageName.ROLLOUT, Moment.GATHERED): 1.0, (assessor, None): _SLOWED},
        {**rest, (StageName.ROLLOUT, Moment.GATHERED_END): 1.0, (assessor, None): GATHERED_LEFT_RATIO},
    )


def _streamed(plain: Sum, assessor: StageName) -> tuple[Sum, ...]:
    rest = {part: c for part, c in plain.items() if part not in ((StageName.ROLLOUT, None), (assessor, None))}
    return tuple({**rest, (StageName.ROLLOUT, moment): 1.0, (assessor, left): 1.0} for moment, left in LUMPS)


def _apart(graph: StageGraph, execution: Execution) -> Iterator[Ways]:
    """Paths through the stage graph, and of asynchronous iterations what each worker does in one."""
    names = [stage.name for stage in graph.stages]
    on_gpus = {stage.name for stage in graph.stages if stage.kind is not StageKind.HOST}
    paths = [{n for i, n in enumerate(names) if bits >> i & 1} for bits in maximal_paths(names, graph.edges)]
    for path in sorted({tuple(n for n in names if n in path and n in on_gpus) for path in paths}):
        if not execution.is_asynchronous:
            yield from _path_ways(path, execution)
        elif execution.mode is not ExecutionMode.STREAMING:
            yield (({(name, None): 1.0 / (execution.staleness + 1) for name in path},),)
    for worker in graph.workers if execution.is_asynchronous else ():
        syncs = worker.name in (WorkerName.ACTOR_TRAINER, *ROLLOUT_ENGINES)
        yield (({**{(stage, None): 1.0 for stage in worker.stages}, **({_SYNC: 1.0} if syncs else {})},),)


def _path_ways(path: Sequence[StageName], execution: Execution) -> Iterator[Ways]:
    """What a path of a synchronous iteration takes at least."""
    both = set(UPDATES)
    if Fusion.INTRA_STAGE in execution.fusions and both <= set(path):
        for left_out in UPDATES:
            yield from _path_ways([name for name in path if name is not left_out], execution)
        return
    plain: Sum = {(name, None): 1.0 for name in path}
    assessors = [name for name in path if name in ASSESSING]
    if Fusion.INTER_STAGE not in execution.fusions or StageName.ROLLOUT not in path or not assessors:
        yield ((plain,),)
        return
    yield tuple(way for name in assessors for way in (_streamed(plain, name), _gathered(plain, name)))


def _numbered(ways: Sequence[Ways]) -> tuple[tuple[IntArray, ...], ...]:
    """The positions of sums in one list of all."""
    result, number = [], 0
    for item in ways:
        numbered = []
        for sums in item:
            numbered.append(np.arange(number, number + len(sums)))
            number += len(sums)
        result.append(tuple(numbered))
    return tuple(result)


def _shares(table: OptionTable, sums: Sequence[Sum]) -> _Shares:
    parts: dict[Part, FloatArray] = {(s, None): v for s, v in zip(table.stages, table.stage_time_s, strict=True)}
    parts |= dict(zip(table.moments, table.moment_s, strict=False))
    if table.worker in (WorkerName.ACTOR_TRAINER, *ROLLOUT_ENGINES):
        parts[_SYNC] = np.min([table.sync_colocated_s, table.sync_disaggregated_s, table.sync_cross_pool_s], axis=0)
    own = [tuple(sorted((repr(part), c) for part, c in item.items() if part in parts)) for item in sums]
    known = dict(zip(own, sums, strict=True))
    numbers = {key: number for number, key in enumerate(known)}
    seconds = np.zeros((len(known), len(table)))
    for row, item in zip(seconds, known.values(), strict=True):
        for part, coefficient in item.items():
            if part in parts:
                row += parts[part] if coefficient == 1.0 else coefficient * parts[part]
    return _Shares(seconds=seconds, number=np.array([numbers[key] for key in own], dtype=np.int64))


def costless(table: OptionTable) -> OptionTable:
    """One option of a worker that takes no time, on one GPU."""
    zero = np.zeros(1)
    return replace(
        table, num_gpus=np.ones(1, dtype=np.int64), stage_time_s=np.zeros((len(table.stages), 1)),
        sync_colocated_s=zero, sync_disaggregated_s=zero, sync_cross_pool_s=zero, active_bytes=zero, sync_bytes=zero,
        idle_bytes=zero, host_bytes=zero, row=np.zeros(1, dtype=np.int64), moment_s=np.zeros((len(table.moments), 1)),
    )  # fmt: skip
