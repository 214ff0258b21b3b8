"""Iteration time as the largest of a few weighted sums of stage seconds: one form for every way to overlap stages.

A *timing* of a structure says in which order stages that share GPUs run, and which sums (rows) the iteration time is
the maximum of:

- synchronous: each path through stages, dependencies and order, as one sum;
- asynchronous: the cycles of the recurrence that relates the batches to each other, each divided by the number of
  batches that it spans (max-plus cycle ratio, Karp 1978). The trainer's device groups finish a batch before they
  start the next one; the rollout runs ahead by up to the staleness;
- fused: paths in which an assessor has only the last share of its work left when the rollout ends.

Everything above (bounds, enumeration, CP-SAT, ILP) sees rows only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from planner.cost.worker import Moment
from planner.domain.execution import (
    GATHER_SHARE,
    GATHERED_LEFT_RATIO,
    Execution,
    ExecutionMode,
    Fusion,
    SchedulingPolicy,
)
from planner.domain.stages import ROLLOUT_ENGINES, ROLLOUTS, StageGraph, StageKind, StageName, Worker, WorkerName
from planner.search.cycles import Cycle, Lead, Recurrence
from planner.search.orders import Arc, Order, OrderBook, maximal_paths, orientations, sequence
from planner.search.structures import Structure

Part = tuple[StageName, Moment | None]
"""A stage's duration, or another of its moments."""
Row = tuple[tuple[Part, float], ...]
"""Coefficients of a sum, sorted by part."""

LUMPS: tuple[tuple[Moment | None, Moment | None], ...] = (
    (Moment.NINE_TENTHS_LEFT, None),
    (Moment.HALF_LEFT, Moment.LAST_HALF),
    (Moment.FIFTH_LEFT, Moment.LAST_FIFTH),
    (None, Moment.LAST_FIFTIETH),
)
"""An assessor works on responses as they end: at each of these moments of the rollout, at least so much of its work is
still to be done. It cannot end earlier than at any of them plus that work, and ends at the latest of these, because
the responses that end between two moments come more and more slowly, so that the worst moment is one of the two."""
LAST_SHARE = {Moment.LAST_HALF: 0.5, Moment.LAST_FIFTH: 0.2, Moment.LAST_FIFTIETH: 0.02}
"""Share of an assessor's work in each of its moments."""
GATHERED_FREE_RATIO = 1.0 - 1.0 / GATHER_SHARE
"""Share of the GPUs that is free for an assessor once the tail has been gathered on the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """`arcs` are the chosen directions (before, after) of stages that share GPUs; the iteration takes the largest of
    `rows`. `lead` is None for synchronous plans and for streaming engines, which are not interrupted."""

    arcs: tuple[Arc, ...]
    rows: tuple[Row, ...]
    lead: Lead | None = None
    gathers: bool = False
    """The tail of the rollout is gathered on a quarter of the engines."""
    fusions: tuple[Fusion, ...] = ()


def moments_of(execution: Execution, worker: Worker) -> tuple[Part, ...]:
    """Moments that rows of this execution need of a worker, beside the durations of its stages."""
    parts: list[Part] = []
    is_engine = worker.name in ROLLOUT_ENGINES
    if is_engine and execution.mode is ExecutionMode.STREAMING:
        parts += [(stage, Moment.LONGEST_RESPONSE) for stage in worker.stages]
    if Fusion.INTER_STAGE in execution.fusions:
        if is_engine:
            lumps = [first for first, _ in LUMPS if first is not None]
            parts += [(StageName.ROLLOUT, moment) for moment in (*lumps, Moment.GATHERED, Moment.GATHERED_END)]
        elif worker.kind is not StageKind.GENERATION:
            rest = [second for _, second in LUMPS if second is not None]
            parts += [(stage, moment) for stage in worker.stages if stage in ASSESSING for moment in rest]
    if Fusion.INTRA_STAGE in execution.fusions:
        parts += [(stage, Moment.WITHOUT_BUBBLE) for stage in worker.stages if stage in UPDATES]
    return tuple(parts)


ASSESSING = frozenset({StageName.REWARD, StageName.REFERENCE_LOGPROB, StageName.OLD_LOGPROB, StageName.CRITIC_VALUE})
"""Stages that look at one finished response at a time."""
_ENGINE_STAGES = frozenset({*ROLLOUTS, StageName.WEIGHT_SYNC})
UPDATES = (StageName.CRITIC_UPDATE, StageName.ACTOR_UPDATE)


Pattern = tuple[tuple[int, int], ...]
"""Number of the pool and of the place of each worker; equal numbers for those on the whole pool."""


class TimingBook:
    """Timings of structures under one execution; they depend on which workers meet, so they are made once per
    pattern."""

    def __init__(self, graph: StageGraph, execution: Execution) -> None:
        self._graph = graph
        self._execution = execution
        self._names = [stage.name for stage in graph.stages]
        self._book = OrderBook(graph)
        self._meeting = [worker.name for worker in graph.workers if worker.name is not WorkerName.SECOND_ENGINE]
        self._timings: dict[Pattern, tuple[Timing, ...]] = {}
        self._relaxed: dict[Pattern, tuple[Timing, ...]] = {}
        self._by_first: dict[tuple[Arc, ...], tuple[Order, ...]] = {}
        self._ranks: dict[tuple[Arc, ...], list[StageName]] = {}

    def relaxed(self, structure: Structure) -> tuple[Timing, ...]:
        """Timings of which one is never slower than any real one; they are real themselves in synchronous plans.

        Orders of asynchronous plans are many, and only needed where this bound is not enough. None where the
        execution is not for the structure.
        """
        if not self._execution.is_asynchronous:
            return self.timings(structure)
        pattern = self._pattern(structure)
        if pattern not in self._relaxed:
            waits = self._recurrence(structure)
            least = () if waits is None else (Timing(arcs=(), rows=self._cycle_rows(waits.least())),)
            self._relaxed[pattern] = least
        return self._relaxed[pattern]

    def timings(self, structure: Structure) -> tuple[Timing, ...]:
        """Undominated timings of a structure; none where this execution is not for it."""
        pattern = self._pattern(structure)
        if pattern not in self._timings:
            is_asynchronous = self._execution.is_asynchronous
            found = self._asynchronous(structure) if is_asynchronous else self._synchronous(structure)
            self._timings[pattern] = tuple(found)
        return self._timings[pattern]

    def _pattern(self, structure: Structure) -> Pattern:
        """Which workers meet, whatever the names of pools and blocks: places numbered as they come. A second group of
        engines meets nobody."""
        places = structure.places()
        numbers: dict[tuple[str, int], int] = {}
        return tuple(
            (
                numbers.setdefault((place[0], -1), len(numbers)),
                numbers.setdefault(place, len(numbers)),
            )
            for place in (places[name] for name in self._meeting)
        )

    def _asynchronous(self, structure: Structure) -> list[Timing]:
        waits = self._recurrence(structure)
        found = () if waits is None else waits.solutions()
        return [Timing(arcs=s.arcs, rows=self._cycle_rows(s.cycles), lead=s.lead) for s in found]

    def _synchronous(self, structure: Structure) -> list[Timing]:
        result = []
        for order in self._orders(structure):
            plain = Timing(arcs=order.arcs, rows=_path_rows(self._names, order.paths))
            result += [self._fused(structure, order, plain, kind) for kind in self._fusion_kinds(structure)]
        return _undominated(result)

    # ------------------------------------------------------------------------------------------ orders

    def _orders(self, structure: Structure) -> tuple[Order, ...]:
        policy = self._execution.policy
        if policy is SchedulingPolicy.PLANNED:
            streams = Fusion.INTER_STAGE in self._execution.fusions
            return self._orders_by_first(structure) if streams else self._book.orders(structure)
        conflicts = self._book.conflicts(structure)
        if policy is SchedulingPolicy.FIFO:
            arcs = tuple(self._first_ready(a, b) for a, b in conflicts)
        else:
            program = self._program_order()
            arcs = tuple(pair for pair in pairwise(program) if pair not in self._graph.edges)
        return (Order(arcs=arcs, paths=maximal_paths(self._names, [*self._graph.edges, *arcs])),)

    def _orders_by_first(self, structure: Structure) -> tuple[Order, ...]:
        """Orders of which none beats another when it also matters which assessor on a path takes responses as they
        come: that of a longer path can save more."""
        edges, conflicts = self._graph.edges, tuple(self._book.conflicts(structure))
        if conflicts not in self._by_first:
            found: dict[frozenset[tuple[int, StageName | None]], Order] = {}
            for arcs in orientations(self._names, edges, conflicts):
                order = Order(arcs=arcs, paths=maximal_paths(self._names, [*edges, *arcs]))
                paths = frozenset((path, self._first_assessor(order, self._members(path))) for path in order.paths)
                if not any(_beats_by_first(other, paths) for other in found):
                    found = {other: o for other, o in found.items() if not _beats_by_first(paths, other)}
                    found[paths] = order
            self._by_first[conflicts] = tuple(found.values())
        return self._by_first[conflicts]

    def _program_order(self) -> list[StageName]:
        """Stages in the order in which a controller starts them: as in the graph, the critic's update first."""
        names = list(self._names)
        if StageName.CRITIC_UPDATE in names:
            names.remove(StageName.CRITIC_UPDATE)
            names.insert(names.index(StageName.ACTOR_UPDATE), StageName.CRITIC_UPDATE)
        return names

    def _first_ready(self, a: StageName, b: StageName) -> tuple[StageName, StageName]:
        """Which of two stages becomes ready first: the one whose inputs are all inputs of the other too."""
        before_a, before_b = self._ancestors(a), self._ancestors(b)
        program = self._program_order()
        if before_a < before_b:
            return a, b
        if before_b < before_a:
            return b, a
        return (a, b) if program.index(a) < program.index(b) else (b, a)

    def _ancestors(self, name: StageName) -> frozenset[StageName]:
        found: set[StageName] = set()
        frontier = [name]
        while frontier:
            node = frontier.pop()
            for before, after in self._graph.edges:
                if after is node and before not in found:
                    found.add(before)
                    frontier.append(before)
        return frozenset(found)

    # ------------------------------------------------------------------------------------------ fusion

    def _fusion_kinds(self, structure: Structure) -> Iterator[_Fused]:
        """Ways to fuse; the plain one is left out where streaming to assessors on other GPUs can only be better."""
        fusions = self._execution.fusions
        streams = Fusion.INTER_STAGE in fusions
        gathers = streams and any(self._shares_engine(structure, name) for name in self._names if name in ASSESSING)
        joint = Fusion.INTRA_STAGE in fusions and self._updates_share(structure)
        for joint_updates in sorted({False, joint}):
            for gather in sorted({False, gathers}):
                yield _Fused(streams=streams, gathers=gather, joint_updates=joint_updates)

    def _updates_share(self, structure: Structure) -> bool:
        both = (WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER)
        if not all(self._graph.has_worker(name) for name in both):
            return False
        places = structure.places()
        return places[both[0]] == places[both[1]]

    def _shares_engine(self, structure: Structure, stage: StageName) -> bool:
        worker = self._graph.stage(stage).worker
        return worker is not None and structure.overlap(worker, WorkerName.ROLLOUT_ENGINE)

    def _fused(self, structure: Structure, order: Order, plain: Timing, kind: _Fused) -> Timing:
        rows: list[Row] = []
        is_joined = is_streamed = False
        for path in plain.rows:
            stages = [part[0] for part, _ in path]
            ways = _joined(stages) if kind.joint_updates else [dict(path)]
            is_joined |= len(ways) > 1
            for parts in ways:
                lumped = list(self._streamed(structure, order, parts, kind)) if kind.streams else [_row(parts)]
                is_streamed |= len(lumped) > 1
                rows += lumped
        used = ((Fusion.INTER_STAGE, is_streamed), (Fusion.INTRA_STAGE, is_joined))
        fusions = tuple(fusion for fusion, is_used in used if is_used)
        return Timing(arcs=plain.arcs, rows=_maximal(rows), gathers=kind.gathers, fusions=fusions) if fusions else plain

    def _streamed(self, structure: Structure, order: Order, parts: dict[Part, float], kind: _Fused) -> Iterator[Row]:
        """A path with its first assessor working on what is finished while the rollout still runs."""
        whole: Part = (StageName.ROLLOUT, None)
        last: Part = (StageName.ROLLOUT, Moment.GATHERED_END if kind.gathers else None)
        if whole not in parts:
            yield _row(parts)
            return
        assessor = self._first_assessor(order, [name for name, _ in parts])
        rest = {part: c for part, c in parts.items() if part not in (whole, (assessor, None))}
        if assessor is None:
            yield _row({**rest, last: 1.0})
        elif not self._shares_engine(structure, assessor):
            for moment, left in LUMPS:
                part = last if moment is None else (StageName.ROLLOUT, moment)
                yield _row({**rest, part: 1.0, (assessor, left): 1.0})
        elif kind.gathers:
            slowed = (1.0 - GATHERED_LEFT_RATIO) / GATHERED_FREE_RATIO + GATHERED_LEFT_RATIO
            yield _row({**rest, (StageName.ROLLOUT, Moment.GATHERED): 1.0, (assessor, None): slowed})
            yield _row({**rest, last: 1.0, (assessor, None): GATHERED_LEFT_RATIO})
        else:
            yield _row(parts)

    def _first_assessor(self, order: Order, path: list[StageName]) -> StageName | None:
        """The stage that follows the rollout on a path, if it can work on one response at a time."""
        following = [name for name in path if name in ASSESSING]
        if not following:
            return None
        if order.arcs not in self._ranks:
            self._ranks[order.arcs] = sequence(self._names, [*self._graph.edges, *order.arcs])
        first = min(following, key=self._ranks[order.arcs].index)
        return first if self._graph.stage(first).kind in (StageKind.INFERENCE, StageKind.HOST) else None

    # ------------------------------------------------------------------------------------------ asynchronous

    def _recurrence(self, structure: Structure) -> Recurrence | None:
        """The pattern of waits of a structure; None where this execution is not for it."""
        engine = self._engine_group(structure)
        streams = self._execution.mode is ExecutionMode.STREAMING
        if StageName.ACTOR_UPDATE in engine or (streams and set(engine) - _ENGINE_STAGES):
            return None
        cliques = tuple(self._cliques(structure))
        # The sync's place on the engines' group is the lead, not an order.
        pairs = tuple(
            (a, b)
            for a, b in self._book.open_pairs
            if any(a in c and b in c for c in cliques)
            and not (StageName.WEIGHT_SYNC in (a, b) and {a, b} <= set(engine))
        )
        is_planned = self._execution.policy is SchedulingPolicy.PLANNED
        return Recurrence(
            names=tuple(self._names),
            edges=self._graph.edges,
            cliques=cliques,
            engine=engine,
            open_pairs=pairs,
            staleness=self._execution.staleness,
            streams=streams,
            orders=None if is_planned else (tuple(self._first_ready(a, b) for a, b in pairs),),
        )

    def _cycle_rows(self, cycles: Iterable[Cycle]) -> tuple[Row, ...]:
        streams = self._execution.mode is ExecutionMode.STREAMING
        moment = Moment.LONGEST_RESPONSE if streams else None
        rows = [
            _row({(n, moment if n in ROLLOUTS else None): 1.0 / batches for n in self._members(bits)})
            for bits, batches in cycles
        ]
        if streams:
            present = [name for name in ROLLOUTS if name in self._names]
            rows += [_row({(rollout, None): 1.0, (StageName.WEIGHT_SYNC, None): 1.0}) for rollout in present]
        return tuple(rows)

    def _members(self, bits: int) -> list[StageName]:
        return [name for i, name in enumerate(self._names) if bits >> i & 1]

    # ------------------------------------------------------------------------------------------ groups

    def _cliques(self, structure: Structure) -> list[tuple[StageName, ...]]:
        """Sets of stages of which no two can ever run at the same time: those that meet on some GPU."""
        result = []
        for pool in structure.pools:
            for members in pool.memory_groups:
                here = set(members)
                result.append(tuple(name for name in self._names if here.intersection(self._graph.workers_of(name))))
        if self._execution.policy is SchedulingPolicy.SEQUENTIAL:
            # Nothing is split then. A controller that waits for each stage; asynchronous rollouts run beside it.
            result.append(
                tuple(n for n in self._names if not (self._execution.is_asynchronous and n is StageName.ROLLOUT))
            )
        return sorted({clique for clique in result if clique})

    def _engine_group(self, structure: Structure) -> tuple[StageName, ...]:
        """Stages that meet the rollout engine on some GPU."""
        return tuple(
            name
            for name in self._names
            if any(structure.overlap(w, WorkerName.ROLLOUT_ENGINE) for w in self._graph.workers_of(name))
        )


@lru_cache(maxsize=16)
def timing_book(graph: StageGraph, execution: Execution) -> TimingBook:
    """The book of a graph and an execution; searches of changed lengths or clusters share it."""
    return TimingBook(graph, execution)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fused:
    streams: bool
    gathers: bool
    joint_updates: bool


def _beats_by_first(
    first: frozenset[tuple[int, StageName | None]], second: frozenset[tuple[int, StageName | None]]
) -> bool:
    """Whether each path of `first` is part of one of `second` with the same assessor behind the rollout."""
    return all(any(p & q == p and a is b for q, b in second) for p, a in first)


def _joined(stages: list[StageName]) -> list[dict[Part, float]]:
    """Both updates as one stage: it takes as long as the longer one, or as the work of both without bubbles."""
    rest: dict[Part, float] = {(name, None): 1.0 for name in stages if name not in UPDATES}
    if not set(stages) & set(UPDATES):
        return [rest]
    alone: list[dict[Part, float]] = [{**rest, (name, None): 1.0} for name in UPDATES]
    return [*alone, {**rest, **{(name, Moment.WITHOUT_BUBBLE): 1.0 for name in UPDATES}}]


def _row(parts: dict[Part, float]) -> Row:
    order = {name: i for i, name in enumerate(StageName)}
    return tuple(sorted(parts.items(), key=lambda item: (order[item[0][0]], item[0][1] or "")))


def _path_rows(names: Sequence[StageName], paths: Iterable[int]) -> tuple[Row, ...]:
    return tuple(_row({(name, None): 1.0 for i, name in enumerate(names) if path >> i & 1}) for path in paths)


def _covers(first: Row, second: Row) -> bool:
    """Whether `first` is never smaller than `second`."""
    more = dict(first)
    return all(more.get(part, 0.0) >= coefficient for part, coefficient in second)


def _maximal(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Without rows that another covers, in a fixed order."""
    distinct = sorted(set(rows), key=repr)
    return tuple(r for r in distinct if not any(s != r and _covers(s, r) for s in distinct))


def _undominated(timings: Sequence[Timing]) -> list[Timing]:
    """Without timings that cannot be faster than another; of equal ones the first stays."""
    kept: list[Timing] = []
    for timing in timings:
        if any(_beats(other, timing) for other in kept):
            continue
        kept = [other for other in kept if not _beats(timing, other)]
        kept.append(timing)
    return kept


def _beats(first: Timing, second: Timing) -> bool:
    return all(any(_covers(row, mine) for row in second.rows) for mine in first.rows)
