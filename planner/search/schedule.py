"""When each stage runs, in floats, from a stage graph, durations and an order; knows nothing of any solver.

The search's objective value is what this module computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from planner.domain.plan import ScheduledStage
from planner.domain.stages import StageGraph, StageName


def evaluate(
    graph: StageGraph,
    duration_s: Mapping[StageName, float],
    groups: Mapping[StageName, tuple[str, ...]],
    arcs: Sequence[tuple[StageName, StageName]],
    overlapping: Sequence[tuple[str, str]] = (),
) -> tuple[ScheduledStage, ...]:
    """Every stage as early as the graph's edges and the order's `arcs` allow, in order of start.

    `groups` are the device groups that each stage occupies (none for host stages); `overlapping` are pairs of
    different groups that share GPUs. Raises ValueError if the arcs contradict the graph or if two stages would use
    the same GPUs at the same time.
    """
    before: dict[StageName, list[StageName]] = {stage.name: [] for stage in graph.stages}
    for first, second in [*graph.edges, *arcs]:
        before[second].append(first)
    try:
        sequence = list(TopologicalSorter(before).static_order())
    except CycleError as error:
        raise ValueError(f"the order contradicts the stage graph: {error.args[1]}") from error
    start: dict[StageName, float] = {}
    end: dict[StageName, float] = {}
    for name in sequence:
        start[name] = max((end[earlier] for earlier in before[name]), default=0.0)
        end[name] = start[name] + duration_s[name]
    rank = {stage.name: i for i, stage in enumerate(graph.stages)}
    items = tuple(
        ScheduledStage(stage=name, device_groups=groups[name], start_s=start[name], end_s=end[name])
        for name in sorted(sequence, key=lambda name: (start[name], rank[name]))
    )
    _check_exclusive(items, {frozenset(pair) for pair in overlapping})
    return items


def makespan_s(items: Sequence[ScheduledStage]) -> float:
    """End of the last stage; the iteration ends with a barrier."""
    return max((item.end_s for item in items), default=0.0)


def _check_exclusive(items: Sequence[ScheduledStage], overlapping: set[frozenset[str]]) -> None:
    for i, first in enumerate(items):
        for second in items[i + 1 :]:
            shared = any(
                a == b or frozenset((a, b)) in overlapping for a in first.device_groups for b in second.device_groups
            )
            apart = first.end_s <= second.start_s or second.end_s <= first.start_s
            if shared and not apart:
                raise ValueError(f"{first.stage.value} and {second.stage.value} overlap on the same GPUs")
