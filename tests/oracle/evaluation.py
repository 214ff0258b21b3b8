"""What every plan of a small problem takes, by brute force; shares no code with the search.

All placements, all options, all sequences of the stages of a batch, all places of the weight sync. What a plan takes
follows the meaning that `planner.domain.execution` and the documents give to modes, fusions and policies: synchronous
iterations are simulated, and the period of asynchronous ones is the largest mean of all elementary cycles of the waits
that are read off the written-out sequence of each GPU. `simulated_period_s` replays the same waits.

Options are columns of arrays: index c is the c-th combination of one option per worker.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.cost.worker import Moment
from planner.domain.execution import ExecutionMode, Fusion, SchedulingPolicy
from planner.domain.stages import StageGraph, StageKind, StageName, WorkerName
from planner.domain.strategy import BoolArray, FloatArray, IntArray
from planner.search.problem import SearchProblem

Place = tuple[str, int]
"""Pool and block; -1 is the whole pool."""
Placement = dict[WorkerName, Place]
Part = tuple[StageName, Moment | None]
Seconds = dict[Part, FloatArray]
Wait = tuple[StageName, StageName, int]
"""(a, b, n): b of batch i waits for a of batch i - n."""

ROLLOUT, SYNC = StageName.ROLLOUT, StageName.WEIGHT_SYNC
UPDATES = (StageName.CRITIC_UPDATE, StageName.ACTOR_UPDATE)
FORWARD = {StageName.REWARD, StageName.REFERENCE_LOGPROB, StageName.OLD_LOGPROB, StageName.CRITIC_VALUE}
ENDED = (Moment.NINE_TENTHS_LEFT, Moment.HALF_LEFT, Moment.FIFTH_LEFT)
LAST = (Moment.LAST_HALF, Moment.LAST_FIFTH, Moment.LAST_FIFTIETH)
LAST_SHARES = (0.5, 0.2, 0.02)
SLACK_BYTES = 1.0


@dataclass(frozen=True, slots=True)
class Plans:
    """All feasible plans of one placement: least seconds, and GPUs used per pool, shape (num_plans,) each."""

    placement: Placement
    time_s: FloatArray
    used: dict[str, IntArray]


def all_plans(problem: SearchProblem) -> Iterator[Plans]:
    """Every placement with its feasible combinations of options, each timed at its best."""
    workers = [worker.name for worker in problem.graph.workers]
    tables = {(t.worker, t.pool): t for t in problem.options}
    for placement in _placements(workers, [pool.name for pool in problem.pools]):
        if any((w, placement[w][0]) not in tables for w in workers) or not _runs(problem, placement):
            continue
        ranges = [range(len(tables[w, placement[w][0]])) for w in workers]
        rows = np.array(list(itertools.product(*ranges)), dtype=np.int64).reshape(-1, len(workers))
        columns = {w: _Column(tables[w, placement[w][0]], rows[:, i]) for i, w in enumerate(workers)}
        used, fits = _used(problem, placement, columns)
        fits &= _memory_fits(problem, placement, columns)
        if fits.any():
            seconds = {part: s[fits] for part, s in _seconds(problem, placement, columns).items()}
            time_s = least_s(problem, placement, seconds)
            if np.isfinite(time_s).any():
                yield Plans(placement, time_s, {name: n[fits] for name, n in used.items()})


def least_s(problem: SearchProblem, placement: Placement, seconds: Seconds) -> FloatArray:
    """The best that orders, leads and fusions make of one placement."""
    if problem.execution.is_asynchronous:
        return _steady_s(problem, placement, seconds)
    return _iteration_s(problem, placement, seconds)


# ---------------------------------------------------------------------------------------------- placements


def _placements(workers: Sequence[WorkerName], pools: Sequence[str]) -> Iterator[Placement]:
    seen = set()
    for places in itertools.product(itertools.product(pools, range(-1, len(workers))), repeat=len(workers)):
        number: dict[Place, int] = {}
        key = tuple((p, b if b < 0 else number.setdefault((p, b), len(number))) for p, b in places)
        if key not in seen:
            seen.add(key)
            yield dict(zip(workers, key, strict=True))


def meet(a: Place, b: Place) -> bool:
    return a[0] == b[0] and (a[1] == b[1] or -1 in (a[1], b[1]))


def _runs(problem: SearchProblem, placement: Placement) -> bool:
    """Asynchronous engines share no GPU with the trainer whose weights they get, and streaming ones with nobody."""
    if not problem.execution.is_asynchronous:
        return True
    engine = placement[WorkerName.ROLLOUT_ENGINE]
    beside = [w for w, place in placement.items() if w is not WorkerName.ROLLOUT_ENGINE and meet(place, engine)]
    if problem.execution.mode is ExecutionMode.STREAMING:
        return not beside
    return WorkerName.ACTOR_TRAINER not in beside


class _Column:
    """The options of one worker, one per combination."""

    def __init__(self, table, rows: IntArray) -> None:  # type: ignore[no-untyped-def]
        self.table, self.rows = table, rows
        self.num_gpus: IntArray = table.num_gpus[rows]
        self.active: FloatArray = table.active_bytes[rows]
        self.idle: FloatArray = table.idle_bytes[rows]
        self.at_sync: FloatArray = table.sync_bytes[rows]
        self.host: FloatArray = table.host_bytes[rows]


_Columns = dict[WorkerName, _Column]


def _used(problem: SearchProblem, placement: Placement, columns: _Columns) -> tuple[dict[str, IntArray], BoolArray]:
    num = len(next(iter(columns.values())).rows)
    fits = np.ones(num, dtype=bool)
    used = {}
    for pool in problem.pools:
        blocks: dict[int, list[IntArray]] = {}
        for w, (name, block) in placement.items():
            if name == pool.name:
                blocks.setdefault(block, []).append(columns[w].num_gpus)
        if problem.equal_size:
            for sizes in blocks.values():
                fits &= np.ptp(sizes, axis=0) == 0
        has_whole = -1 in blocks
        whole = np.max(blocks.pop(-1, [np.zeros(num, dtype=np.int64)]), axis=0)
        total = np.sum([np.max(sizes, axis=0) for sizes in blocks.values()] or [np.zeros(num, dtype=np.int64)], axis=0)
        if problem.equal_size and has_whole:
            fits &= total <= whole
        used[pool.name] = np.maximum(whole, total)
        fits &= used[pool.name] <= pool.num_gpus
    return used, fits


def _memory_fits(problem: SearchProblem, placement: Placement, columns: _Columns) -> BoolArray:
    pools = {pool.name: pool for pool in problem.pools}
    synced = {WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER}
    fits = np.ones(len(next(iter(columns.values())).rows), dtype=bool)
    for members in groups_of(placement):
        pool = pools[placement[members[0]][0]]
        limit = pool.usable_bytes + SLACK_BYTES
        for w in members:
            fits &= columns[w].active + sum(columns[v].idle for v in members if v is not w) <= limit
        if synced & set(members):
            fits &= sum(columns[w].at_sync if w in synced else columns[w].idle for w in members) <= limit
        fits &= sum(columns[w].host for w in members) <= pool.host_ram_bytes + SLACK_BYTES
    return fits


def groups_of(placement: Placement) -> list[list[WorkerName]]:
    """Sets of workers that meet on the same GPUs: each block with what is on its whole pool."""
    places = set(placement.values())
    return [
        [w for w, place in placement.items() if place in ((name, block), (name, -1))]
        for name, block in sorted(places)
        if block >= 0 or all(p != name or b < 0 for p, b in places)
    ]


def _seconds(problem: SearchProblem, placement: Placement, columns: _Columns) -> Seconds:
    num = len(next(iter(columns.values())).rows)
    seconds: Seconds = {(stage.name, None): np.zeros(num) for stage in problem.graph.stages}
    for name, host_s in problem.host_stage_s:
        seconds[name, None] = np.full(num, host_s)
        for moment, share in zip(LAST, LAST_SHARES, strict=True):
            least = min(host_s, problem.host_least_s)
            seconds[name, moment] = np.full(num, max(least, share * host_s))
    engine, trainer = placement[WorkerName.ROLLOUT_ENGINE], placement[WorkerName.ACTOR_TRAINER]
    for w, column in columns.items():
        table = column.table
        for i, stage in enumerate(table.stages):
            seconds[stage, None] = table.stage_time_s[i, column.rows]
        for i, part in enumerate(table.moments):
            seconds[part] = table.moment_s[i, column.rows]
        if w in (WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER):
            apart_s = table.sync_disaggregated_s if engine[0] == trainer[0] else table.sync_cross_pool_s
            share_s = table.sync_colocated_s if meet(engine, trainer) else apart_s
            seconds[SYNC, None] = seconds[SYNC, None] + share_s[column.rows]
    return seconds


# ---------------------------------------------------------------------------------------------- orders


def sequences(nodes: Sequence[StageName], edges: set[tuple[StageName, StageName]]) -> Iterator[tuple[StageName, ...]]:
    """All ways to write `nodes` one after the other such that edges point forward."""
    if not nodes:
        yield ()
    for first in nodes:
        if not any(b is first and a in nodes for a, b in edges):
            rest = [n for n in nodes if n is not first]
            yield from ((first, *others) for others in sequences(rest, edges))


@lru_cache(maxsize=64)
def _all_sequences(
    nodes: tuple[StageName, ...], edges: frozenset[tuple[StageName, StageName]]
) -> tuple[tuple[StageName, ...], ...]:
    return tuple(sequences(nodes, set(edges)))


def program(graph: StageGraph) -> tuple[StageName, ...]:
    """Stages in the order in which a controller names them: that of the graph, but critics are updated first."""
    names = [stage.name for stage in graph.stages if stage.name is not StageName.CRITIC_UPDATE]
    if graph.has_stage(StageName.CRITIC_UPDATE):
        names.insert(names.index(StageName.ACTOR_UPDATE), StageName.CRITIC_UPDATE)
    return tuple(names)


def conflicts_of(graph: StageGraph, placement: Placement) -> set[frozenset[StageName]]:
    """Pairs of stages that have a GPU in common."""
    places = {stage.name: [placement[w] for w in graph.workers_of(stage.name)] for stage in graph.stages}
    return {
        frozenset((a, b))
        for a, b in itertools.combinations(places, 2)
        if any(meet(x, y) for x in places[a] for y in places[b])
    }


def _distinct(
    candidates: Sequence[tuple[StageName, ...]], conflicts: set[frozenset[StageName]]
) -> list[tuple[StageName, ...]]:
    """One sequence for each way to order the stages that share GPUs."""
    found = {}
    for sequence in candidates:
        key = frozenset((a, b) for a, b in itertools.combinations(sequence, 2) if frozenset((a, b)) in conflicts)
        found.setdefault(key, sequence)
    return list(found.values())


# ---------------------------------------------------------------------------------------------- synchronous


def _iteration_s(problem: SearchProblem, placement: Placement, seconds: Seconds) -> FloatArray:
    graph, execution = problem.graph, problem.execution
    names, edges = tuple(stage.name for stage in graph.stages), frozenset(graph.edges)
    conflicts = conflicts_of(graph, placement)
    if execution.policy is SchedulingPolicy.FIFO:
        return _first_come_s(problem, conflicts, seconds)
    if execution.policy is SchedulingPolicy.SEQUENTIAL:
        total: FloatArray = np.sum([seconds[name, None] for name in names], axis=0)
        return total
    best = np.full(len(seconds[ROLLOUT, None]), np.inf)
    streams = Fusion.INTER_STAGE in execution.fusions
    trainers = [placement.get(w) for w in (WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER)]
    may_join = Fusion.INTRA_STAGE in execution.fusions and trainers[0] == trainers[1]
    for joint in (False, True) if may_join else (False,):
        some = tuple(n for n in names if not (joint and n is StageName.CRITIC_UPDATE))
        between = {(_joint(a, joint), _joint(b, joint)) for a, b in edges} - {(UPDATES[1], UPDATES[1])}
        meets = {frozenset(_joint(n, joint) for n in pair) for pair in conflicts}
        for sequence in _distinct(_all_sequences(some, frozenset(between)), meets):
            for gathers in (False, True) if streams else (False,):
                one = _Iteration(graph, seconds, between, meets, streams=streams, gathers=gathers, joint=joint)
                best = np.minimum(best, one.run(sequence))
    return best


def _joint(name: StageName, joint: bool) -> StageName:
    return StageName.ACTOR_UPDATE if joint and name is StageName.CRITIC_UPDATE else name


class _Iteration:
    """One iteration with a given sequence: each stage as early as its inputs and its GPUs allow."""

    def __init__(  # type: ignore[no-untyped-def]
        self, graph, seconds: Seconds, edges, conflicts, *, streams: bool, gathers: bool, joint: bool
    ) -> None:
        self._graph, self._seconds, self._edges, self._conflicts = graph, seconds, edges, conflicts
        self._streams, self._gathers, self._joint = streams, gathers, joint

    def run(self, sequence: Sequence[StageName]) -> FloatArray:
        end: dict[StageName, FloatArray] = {}
        zero = np.zeros(len(self._seconds[ROLLOUT, None]))
        for name in sequence:
            waits = {a for a, b in self._edges if b is name} | {
                a for a in end if frozenset((a, name)) in self._conflicts
            }
            if name is ROLLOUT:
                end[name] = self._seconds[name, Moment.GATHERED_END if self._gathers else None]
            elif self._streams and waits == {ROLLOUT} and self._is_forward(name):
                end[name] = self._beside_rollout(name, end[ROLLOUT])
            else:
                ready = zero
                for other in waits:
                    ready = np.maximum(ready, end[other])
                end[name] = ready + self._alone(name)
        latest: FloatArray = np.max(list(end.values()), axis=0)
        return latest

    def _is_forward(self, name: StageName) -> bool:
        return name in FORWARD and self._graph.stage(name).kind in (StageKind.INFERENCE, StageKind.HOST)

    def _alone(self, name: StageName) -> FloatArray:
        if not (self._joint and name is StageName.ACTOR_UPDATE):
            return self._seconds[name, None]
        # Bubbles of one update are filled with work of the other, so neither their work nor each alone is undercut.
        work = self._seconds[UPDATES[0], Moment.WITHOUT_BUBBLE] + self._seconds[UPDATES[1], Moment.WITHOUT_BUBBLE]
        longer = np.maximum(self._seconds[UPDATES[0], None], self._seconds[UPDATES[1], None])
        return np.maximum(work, longer)

    def _beside_rollout(self, name: StageName, rollout_end: FloatArray) -> FloatArray:
        """An assessor that takes responses as they come."""
        s, whole = self._seconds, self._seconds[name, None]
        if frozenset((name, ROLLOUT)) in self._conflicts:
            if not self._gathers:
                return rollout_end + whole
            # Four fifths of the responses on three quarters of the GPUs, then the rest on all of them.
            first = s[ROLLOUT, Moment.GATHERED] + 0.8 * whole / 0.75
            return np.maximum(first, rollout_end) + 0.2 * whole
        # A queue: all work from when a tenth has ended, the last half from when half has, a fifth, and a fiftieth.
        arrivals = [s[ROLLOUT, m] for m in ENDED] + [rollout_end]
        left = [whole] + [s[name, m] for m in LAST]
        done = np.zeros_like(whole)
        for i, arrival in enumerate(arrivals):
            work = left[i] - (left[i + 1] if i + 1 < len(left) else 0.0)
            done = np.maximum(done, arrival) + work
        return done


def _first_come_s(problem: SearchProblem, conflicts: set[frozenset[StageName]], seconds: Seconds) -> FloatArray:
    """Whoever has its inputs first gets the GPUs first; of equals the first of the program."""
    graph, rank = problem.graph, program(problem.graph)
    times = []
    for c in range(len(seconds[ROLLOUT, None])):
        end: dict[StageName, float] = {}
        while len(end) < len(rank):
            ready = {
                name: max((end[a] for a, b in graph.edges if b is name), default=0.0)
                for name in rank
                if name not in end and all(a in end for a, b in graph.edges if b is name)
            }
            name = min(ready, key=lambda n: (ready[n], rank.index(n)))
            free = max((end[other] for other in end if frozenset((other, name)) in conflicts), default=0.0)
            end[name] = max(ready[name], free) + float(seconds[name, None][c])
        times.append(max(end.values()))
    return np.array(times)


# ---------------------------------------------------------------------------------------------- asynchronous


def _steady_s(problem: SearchProblem, placement: Placement, seconds: Seconds) -> FloatArray:
    """The shortest period over all orders within a batch and all places of the sync on the engines' GPUs."""
    streams = problem.execution.mode is ExecutionMode.STREAMING
    weights = {name: s for (name, moment), s in seconds.items() if moment is None}
    floor = np.zeros(len(weights[ROLLOUT]))
    if streams:
        # Engines are busy so long per batch, and stop for the sync; a batch is complete with its longest response.
        floor = weights[ROLLOUT] + weights[SYNC]
        weights[ROLLOUT] = seconds[ROLLOUT, Moment.LONGEST_RESPONSE]
    best = np.full(len(floor), np.inf)
    for waits in set(recurrences(problem, placement)):
        cycles = elementary_cycles(waits)
        if cycles is not None:
            period = floor
            for members, batches in cycles:
                period = np.maximum(period, sum(weights[n] for n in members) / batches)
            best = np.minimum(best, period)
    return best


def recurrences(problem: SearchProblem, placement: Placement) -> Iterator[frozenset[Wait]]:
    """The waits of every order within a batch and every place of the sync on the engines' GPUs."""
    graph, execution = problem.graph, problem.execution
    names, edges = tuple(stage.name for stage in graph.stages), frozenset(graph.edges)
    busy = [{n for n in names if set(members) & set(graph.workers_of(n))} for members in groups_of(placement)]
    if execution.policy is SchedulingPolicy.SEQUENTIAL:
        busy.append(set(names) - {ROLLOUT})
    with_engine = set().union(*(group for group in busy if ROLLOUT in group)) - {SYNC}
    streams = execution.mode is ExecutionMode.STREAMING
    base = {(a, b, 0) for a, b in edges} | {(SYNC, ROLLOUT, execution.staleness + 1)}
    planned = execution.policy is SchedulingPolicy.PLANNED
    candidates = _all_sequences(names, edges) if planned else (program(graph),)
    pairs = {frozenset(pair) for group in busy for pair in itertools.combinations(group, 2)}
    for sequence in _distinct(candidates, pairs) if with_engine <= {ROLLOUT} else candidates:
        apart = [group for group in busy if ROLLOUT not in group]
        fixed = base.union(*(_cyclic([(n, 0) for n in sequence if n in group]) for group in apart))
        if streams:
            yield frozenset(fixed)
            continue
        order = [n for n in sequence if n in with_engine]
        for ahead in range(execution.staleness + 1):
            for num in range(1, len(order) + 1):
                before = set(order[:num])
                waits = set(fixed)
                for group in busy:
                    if ROLLOUT in group:
                        chunk = [(n, 0) for n in order if n in group and n in before]
                        chunk += [(SYNC, -ahead)]
                        chunk += [(n, 0) for n in order if n in group and n not in before]
                        waits |= _cyclic(chunk)
                yield frozenset(waits)


def _cyclic(chunk: Sequence[tuple[StageName, int]]) -> set[Wait]:
    """Waits of GPUs that run `chunk` for batch after batch; (name, n) stands for the stage of batch i + n."""
    following = [*chunk[1:], (chunk[0][0], chunk[0][1] + 1)]
    return {(a, b, at_b - at_a) for (a, at_a), (b, at_b) in zip(chunk, following, strict=True)}


Cycles = tuple[tuple[frozenset[StageName], int], ...]


@lru_cache(maxsize=100_000)
def elementary_cycles(waits: frozenset[Wait]) -> Cycles | None:
    """Stages and number of batches of each elementary cycle; None if a batch would wait for a later one or itself."""
    follow: dict[StageName, dict[StageName, int]] = {}
    for a, b, batches in waits:
        known = follow.setdefault(a, {})
        known[b] = min(batches, known.get(b, batches))
    least: dict[frozenset[StageName], int] = {}
    names = sorted(follow)

    def walk(start: StageName, node: StageName, path: tuple[StageName, ...], batches: int) -> bool:
        for after, more in follow.get(node, {}).items():
            if after is start:
                if batches + more <= 0:
                    return False
                key = frozenset(path)
                least[key] = min(least.get(key, batches + more), batches + more)
            elif after > start and after not in path and not walk(start, after, (*path, after), batches + more):
                return False
        return True

    if not all(walk(name, name, (name,), 0) for name in names):
        return None
    # A cycle of fewer stages over as many batches is never the largest.
    return tuple(
        (members, batches)
        for members, batches in least.items()
        if not any(members < other and batches >= n for other, n in least.items())
    )


def simulated_period_s(waits: frozenset[Wait], weights: dict[StageName, float], *, num_batches: int) -> float:
    """Mean period over the second half of so many batches, each stage as early as its waits allow."""
    end: dict[tuple[StageName, int], float] = {}
    waiting: dict[StageName, list[tuple[StageName, int]]] = {name: [] for name in weights}
    for a, b, batches in waits:
        waiting[b].append((a, batches))

    def finish(name: StageName, batch: int) -> float:
        if batch < 0 or batch >= 2 * num_batches:
            return 0.0
        if (name, batch) not in end:
            ready = max((finish(a, batch - n) for a, n in waiting[name]), default=0.0)
            end[name, batch] = ready + weights[name]
        return end[name, batch]

    for batch in range(num_batches):
        for name in weights:
            finish(name, batch)
    half = num_batches // 2
    return (end[ROLLOUT, num_batches - 1] - end[ROLLOUT, half - 1]) / (num_batches - half)
