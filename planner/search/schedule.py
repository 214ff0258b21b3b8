"""When each stage runs, in floats, from a stage graph, durations and an order; knows nothing of any solver.

The search's objective value is what this module computes, in ways of its own: by simulating one iteration, by
checking that a period of an asynchronous plan can be kept and no shorter one, and by serving the lumps of a fused one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from planner.cost.worker import Moment
from planner.domain.execution import GATHERED_LEFT_RATIO, Execution, ExecutionMode, Fusion, SchedulingPolicy
from planner.domain.plan import ScheduledStage
from planner.domain.stages import ROLLOUTS, StageGraph, StageKind, StageName
from planner.domain.strategy import FloatArray
from planner.search.timing import (
    ASSESSING,
    GATHERED_FREE_RATIO,
    LUMPS,
    UPDATES,
    Part,
    Timing,
)

_ROUNDING = 1e-9

Groups = Mapping[StageName, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The stages of one batch in order of start, and the seconds of an iteration."""

    items: tuple[ScheduledStage, ...]
    time_s: float


def timeline(
    graph: StageGraph,
    execution: Execution,
    timing: Timing,
    seconds: Mapping[Part, float],
    groups: Groups,
    overlapping: Sequence[tuple[str, str]],
) -> Timeline:
    """The schedule of a plan, whatever its execution. `seconds` holds the durations (moment None) and moments.

    Raises ValueError if the timing contradicts the graph, two stages would use the same GPUs at once, or the claimed
    period of an asynchronous plan cannot be kept.
    """
    if execution.is_asynchronous:
        return _steady(graph, execution, timing, seconds, groups, overlapping)
    if timing.fusions:
        return _fused(graph, timing, seconds, groups, _pairs(overlapping))
    duration_s = {stage.name: seconds[stage.name, None] for stage in graph.stages}
    items = evaluate(graph, duration_s, groups, timing.arcs, overlapping)
    return Timeline(items=items, time_s=makespan_s(items))


def evaluate(
    graph: StageGraph,
    duration_s: Mapping[StageName, float],
    groups: Groups,
    arcs: Sequence[tuple[StageName, StageName]],
    overlapping: Sequence[tuple[str, str]] = (),
) -> tuple[ScheduledStage, ...]:
    """Every stage as early as the graph's edges and the order's `arcs` allow, in order of start.

    `groups` are the device groups that each stage occupies (none for host stages); `overlapping` are pairs of
    different groups that share GPUs. Raises ValueError if the arcs contradict the graph or if two stages would use
    the same GPUs at the same time.
    """
    before = _before(graph, arcs)
    start: dict[StageName, float] = {}
    end: dict[StageName, float] = {}
    for name in _sorted(before):
        start[name] = max((end[earlier] for earlier in before[name]), default=0.0)
        end[name] = start[name] + duration_s[name]
    items = _items(graph, start, end, groups)
    _check_exclusive(items, _pairs(overlapping))
    return items


def makespan_s(items: Sequence[ScheduledStage]) -> float:
    """End of the last stage; a synchronous iteration ends with a barrier."""
    return max((item.end_s for item in items), default=0.0)


def _before(graph: StageGraph, arcs: Sequence[tuple[StageName, StageName]]) -> dict[StageName, list[StageName]]:
    before: dict[StageName, list[StageName]] = {stage.name: [] for stage in graph.stages}
    for first, second in [*graph.edges, *arcs]:
        before[second].append(first)
    return before


def _sorted(before: Mapping[StageName, Sequence[StageName]]) -> list[StageName]:
    try:
        return list(TopologicalSorter(before).static_order())
    except CycleError as error:
        raise ValueError(f"the order contradicts the stage graph: {error.args[1]}") from error


def _items(
    graph: StageGraph, start: Mapping[StageName, float], end: Mapping[StageName, float], groups: Groups
) -> tuple[ScheduledStage, ...]:
    rank = {stage.name: i for i, stage in enumerate(graph.stages)}
    return tuple(
        ScheduledStage(stage=name, device_groups=groups[name], start_s=start[name], end_s=end[name])
        for name in sorted(start, key=lambda name: (start[name], rank[name]))
    )


def _pairs(overlapping: Sequence[tuple[str, str]]) -> set[frozenset[str]]:
    return {frozenset(pair) for pair in overlapping}


def _share(first: Sequence[str], second: Sequence[str], overlapping: set[frozenset[str]]) -> bool:
    return any(a == b or frozenset((a, b)) in overlapping for a in first for b in second)


def _check_exclusive(items: Sequence[ScheduledStage], overlapping: set[frozenset[str]]) -> None:
    for i, first in enumerate(items):
        for second in items[i + 1 :]:
            apart = first.end_s <= second.start_s or second.end_s <= first.start_s
            if not apart and _share(first.device_groups, second.device_groups, overlapping):
                raise ValueError(f"{first.stage.value} and {second.stage.value} overlap on the same GPUs")


def mean_time_s(
    graph: StageGraph,
    execution: Execution,
    timing: Timing,
    seconds: Mapping[Part, FloatArray],
    groups: Groups,
    overlapping: Sequence[tuple[str, str]],
    *,
    warm_up: int,
) -> float:
    """Mean seconds per iteration when the seconds of every batch are given, arrays of shape (num_batches,).

    Asynchronous batches wait for each other as `timing` says; the first `warm_up` of them do not count.
    """
    num_batches = len(next(iter(seconds.values())))
    if not execution.is_asynchronous:
        batches = ({part: float(values[i]) for part, values in seconds.items()} for i in range(num_batches))
        return sum(timeline(graph, execution, timing, b, groups, overlapping).time_s for b in batches) / num_batches
    streams = execution.mode is ExecutionMode.STREAMING
    duration_s = {stage.name: seconds[stage.name, None] for stage in graph.stages}
    if streams:
        duration_s |= {name: seconds[name, Moment.LONGEST_RESPONSE] for name in _rollouts(graph)}
    waits = _waits(graph, execution, timing, groups, _pairs(overlapping))
    mean = {name: float(values.mean()) for name, values in duration_s.items()}
    period_s = _shortest_period_s(waits, mean)
    steady = _starts(waits, mean, period_s * (1.0 + _ROUNDING))
    assert steady is not None
    end = {name: [0.0] * num_batches for name in duration_s}
    ranks = {name: i for i, name in enumerate(_sorted_by_graph(graph, timing))}
    by_time = sorted(
        ((steady[name] + i * period_s, ranks[name], name, i) for name in duration_s for i in range(num_batches)),
    )
    before: dict[StageName, list[_Wait]] = {name: [] for name in duration_s}
    for wait in waits:
        before[wait.after].append(wait)
    busy_until = dict.fromkeys(ROLLOUTS, 0.0)
    for _, _, name, i in by_time:
        ready = max(
            (end[w.before][i - w.batches] for w in before[name] if 0 <= i - w.batches < num_batches), default=0.0
        )
        if streams and name in ROLLOUTS:
            # Engines take up a batch when they have worked off the one before, interrupted by its sync.
            busy_until[name] = max(busy_until[name], ready) + float(
                seconds[name, None][i] + seconds[StageName.WEIGHT_SYNC, None][i]
            )
            ready = max(ready, busy_until[name] - float(duration_s[name][i]))
        end[name][i] = ready + float(duration_s[name][i])
    ends = end[StageName.WEIGHT_SYNC]
    last = num_batches - 1 - (0 if timing.lead is None else timing.lead.num_batches)
    return (ends[last] - ends[warm_up]) / (last - warm_up)


# ---------------------------------------------------------------------------------------------- fused


def _fused(
    graph: StageGraph,
    timing: Timing,
    seconds: Mapping[Part, float],
    groups: Groups,
    overlapping: set[frozenset[str]],
) -> Timeline:
    """One iteration in which assessors work on lumps of finished responses, and updates may share a pipeline.

    A stage that is fused is shown by its own seconds, up to its end.
    """
    before = _before(graph, timing.arcs)
    sequence = _sorted(before)
    joint = Fusion.INTRA_STAGE in timing.fusions
    streams = Fusion.INTER_STAGE in timing.fusions
    if joint:
        both = [name for name in before[UPDATES[0]] + before[UPDATES[1]] if name not in UPDATES]
        before |= dict.fromkeys(UPDATES, both)
        sequence = _sorted(before)
    last = Moment.GATHERED_END if timing.gathers else None
    end: dict[StageName, float] = {}
    for name in sequence:
        ready = max((end[earlier] for earlier in before[name]), default=0.0)
        if name is StageName.ROLLOUT:
            end[name] = seconds[name, last]
        elif streams and before[name] == [StageName.ROLLOUT] and _is_assessor(graph, name):
            beside = not _share(groups[name], groups[StageName.ROLLOUT], overlapping)
            end[name] = _assessed_s(name, timing, seconds, end[StageName.ROLLOUT], beside=beside)
        elif joint and name in UPDATES:
            work = sum(seconds[update, Moment.WITHOUT_BUBBLE] for update in UPDATES)
            end[name] = ready + max(work, *(seconds[update, None] for update in UPDATES))
        else:
            end[name] = ready + seconds[name, None]
    start = {name: max(0.0, end[name] - seconds[name, None]) for name in end}
    items = _items(graph, start, end, groups)
    return Timeline(items=items, time_s=max(end.values()))


def _is_assessor(graph: StageGraph, name: StageName) -> bool:
    return name in ASSESSING and graph.stage(name).kind in (StageKind.INFERENCE, StageKind.HOST)


def _assessed_s(
    name: StageName, timing: Timing, seconds: Mapping[Part, float], rollout_end_s: float, *, beside: bool
) -> float:
    """End of an assessor that serves lumps of responses one after the other as they are finished, on GPUs `beside`
    those of the rollout, or on those that are free once the tail has been gathered."""
    whole = seconds[name, None]
    if not beside:
        if not timing.gathers:
            return rollout_end_s + whole
        first_s = seconds[StageName.ROLLOUT, Moment.GATHERED]
        first_s += whole * (1.0 - GATHERED_LEFT_RATIO) / GATHERED_FREE_RATIO
        return max(first_s, rollout_end_s) + whole * GATHERED_LEFT_RATIO
    lumps = [(rollout_end_s if m is None else seconds[StageName.ROLLOUT, m], seconds[name, left]) for m, left in LUMPS]
    return max(arrival + work for arrival, work in lumps)


# ---------------------------------------------------------------------------------------------- asynchronous


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    """`after` of batch i starts when `before` of batch i - `batches` has ended."""

    before: StageName
    after: StageName
    batches: int


def _steady(
    graph: StageGraph,
    execution: Execution,
    timing: Timing,
    seconds: Mapping[Part, float],
    groups: Groups,
    overlapping: Sequence[tuple[str, str]],
) -> Timeline:
    """The shortest period that all waits between the stages of successive batches can keep."""
    duration_s = {stage.name: seconds[stage.name, None] for stage in graph.stages}
    least, rollouts = 0.0, _rollouts(graph)
    if execution.mode is ExecutionMode.STREAMING:
        least = max(duration_s[name] for name in rollouts) + duration_s[StageName.WEIGHT_SYNC]
        duration_s |= {name: seconds[name, Moment.LONGEST_RESPONSE] for name in rollouts}
    waits = _waits(graph, execution, timing, groups, _pairs(overlapping))
    period_s = max(least, _shortest_period_s(waits, duration_s))
    start = _starts(waits, duration_s, period_s * (1.0 + _ROUNDING))
    if start is None:
        raise ValueError(f"a period of {period_s} s cannot be kept")
    # What engines spend on a batch is shown where the batch ends.
    start |= {name: start[name] + max(0.0, duration_s[name] - seconds[name, None]) for name in rollouts}
    first_s = min(start[name] for name in rollouts)
    start = {name: max(0.0, at - first_s) for name, at in start.items()}
    end = {name: at + seconds[name, None] for name, at in start.items()}
    return Timeline(items=_items(graph, start, end, groups), time_s=period_s)


def _waits(
    graph: StageGraph, execution: Execution, timing: Timing, groups: Groups, overlapping: set[frozenset[str]]
) -> list[_Wait]:
    sequence = _sorted_by_graph(graph, timing)
    waits = [_Wait(before=a, after=b, batches=0) for a, b in [*graph.edges, *timing.arcs]]
    ahead = execution.staleness + 1
    sync, rollouts = StageName.WEIGHT_SYNC, _rollouts(graph)
    waits += [_Wait(before=sync, after=name, batches=ahead) for name in rollouts]
    engine = [n for n in sequence if n is not sync and _share(groups[n], groups[StageName.ROLLOUT], overlapping)]
    streams = execution.mode is ExecutionMode.STREAMING
    sequential = execution.policy is SchedulingPolicy.SEQUENTIAL
    for i, first in enumerate(sequence):
        for second in sequence[i:]:
            if streams and not {first, second}.isdisjoint(rollouts):
                continue
            beside_rollout = StageName.ROLLOUT in (first, second) and first is not second
            meets = _share(groups[first], groups[second], overlapping) or (sequential and not beside_rollout)
            if sync in (first, second) and not {first, second}.isdisjoint((*engine, *rollouts)):
                continue
            if meets:
                waits.append(_Wait(before=second, after=first, batches=1))
                if first is not second:
                    # Arcs order stages on GPUs only; a controller waits for those on the host too.
                    waits.append(_Wait(before=first, after=second, batches=0))
    if timing.lead is not None:
        apart = [name for name in rollouts if name not in engine]
        before = {*engine[: timing.lead.num_before], *apart}
        for name in (*engine, *apart):
            lead = timing.lead.num_batches - (name not in before)
            waits.append(_Wait(before=name, after=sync, batches=-lead))
            waits.append(_Wait(before=sync, after=name, batches=lead + 1))
    return waits


def _rollouts(graph: StageGraph) -> tuple[StageName, ...]:
    """The rollout, or both parts of a split one."""
    return tuple(name for name in ROLLOUTS if graph.has_stage(name))


def _sorted_by_graph(graph: StageGraph, timing: Timing) -> list[StageName]:
    """Stages of a batch in the order in which they run; of ready ones the first of the graph first."""
    before = _before(graph, timing.arcs)
    names, done = [stage.name for stage in graph.stages], list[StageName]()
    while len(done) < len(names):
        done.append(next(n for n in names if n not in done and all(b in done for b in before[n])))
    return done


def _starts(
    waits: Sequence[_Wait], duration_s: Mapping[StageName, float], period_s: float
) -> dict[StageName, float] | None:
    """Earliest starts of a batch's stages after its rollout begins, one batch per period; None if that cannot be kept.

    Longest paths (Bellman-Ford); a cycle of positive length means that the period is too short.
    """
    start = dict.fromkeys(duration_s, float("-inf")) | {StageName.ROLLOUT: 0.0}
    for _ in range(len(duration_s) + 1):
        changed = False
        for wait in waits:
            at = start[wait.before] + duration_s[wait.before] - period_s * wait.batches
            if at > start[wait.after]:
                start[wait.after] = at
                changed = True
        if not changed:
            return start
    return None


def _shortest_period_s(waits: Sequence[_Wait], duration_s: Mapping[StageName, float]) -> float:
    """By bisection: a longer period can be kept whenever a shorter one can."""
    low, high = 0.0, max(sum(duration_s.values()), 1e-9)
    if _starts(waits, duration_s, high) is None:
        raise ValueError("the order of the stages contradicts itself")
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if _starts(waits, duration_s, middle) is None:
            low = middle
        else:
            high = middle
    return high
