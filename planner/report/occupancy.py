"""Who is busy when: GPUs cut where device groups begin and end, and what runs on each part.

Device groups may overlap (a rollout on all GPUs, two trainers on a half each), so that pictures and shares of cost
follow parts of the GPUs that never differ in what they do, called lanes here. In an asynchronous plan the schedule
follows one batch, and batches start at distances of the period; a lane shows all batches that meet in a window.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import ceil, floor, fsum

from planner.domain.plan import Placement, Plan, ScheduledStage
from planner.domain.stages import StageName

HOST = "host"
"""Name of the lane of stages that occupy no GPU."""
NUM_SHOWN_PERIODS = 2
"""Least number of periods in the window of an asynchronous plan: enough to see that batches repeat."""


class Part(StrEnum):
    """What a stage does with its time, in the order in which a picture shows it."""

    SETUP = "setup"
    """Switching to the stage: waking the engine, loading states."""
    WORK = "work"
    WAITING = "waiting"
    """Pipeline bubbles, and ranks that wait for the slowest one; spread over the stage, drawn near its end."""
    TAIL = "tail"
    """The last responses of a rollout decode almost alone."""


PART_OF_TERM = {
    "switch": Part.SETUP,
    "wake": Part.SETUP,
    "reload": Part.SETUP,
    "pp_bubble": Part.WAITING,
    "imbalance": Part.WAITING,
    "tail": Part.TAIL,
}
"""Terms of a stage's time that are not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One run of a stage on a lane. `batch` counts from the batch that the schedule follows, which is 0."""

    stage: StageName
    start_s: float
    end_s: float
    batch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """GPUs of one pool that all do the same at any time, or the host (`pool` empty, no GPUs).

    `slots` are the runs of stages within the window, in order of their start.
    """

    name: str
    pool: str
    gpu: str
    first_gpu: int
    num_gpus: int
    groups: tuple[str, ...]
    slots: tuple[Slot, ...]

    @property
    def is_host(self) -> bool:
        return not self.num_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """GPU-seconds and USD per iteration that go to a stage, or to none. `usd` is None without a price."""

    what: str
    gpu_s: float
    usd: float | None


def window_s(plan: Plan) -> float:
    """Seconds that a picture shows: the iteration; of an asynchronous plan the whole of a batch and whole periods."""
    if plan.period_s is None or plan.period_s <= 0:
        return plan.time_s
    return plan.period_s * max(NUM_SHOWN_PERIODS, ceil(plan.makespan_s / plan.period_s - 1e-9))


def lanes(plan: Plan) -> tuple[Lane, ...]:
    """All lanes, pool by pool in the order of their GPUs, and the host's last if a stage runs there."""
    found = [
        _lane(plan, pool.name, first, last)
        for pool in plan.cluster.pools
        for first, last in _cuts(plan, pool.name)
        if any(_covers(group.ranks, first) for group in plan.device_groups if group.pool == pool.name)
    ]
    ids = {group.id for group in plan.device_groups}
    on_host = [s for s in plan.schedule if not ids & set(s.device_groups) and s.end_s > s.start_s]
    if on_host:
        found.append(Lane(name=HOST, pool="", gpu="", first_gpu=0, num_gpus=0, groups=(), slots=_slots(plan, on_host)))
    return tuple(found)


def parts(placement: Placement) -> tuple[tuple[Part, float], ...]:
    """What a stage does with its time, as shares that sum to 1; nothing for a stage without time."""
    total = placement.time_s
    if total <= 0:
        return ()
    sums = {
        part: fsum(t.value for t in placement.time_terms if PART_OF_TERM.get(t.name, Part.WORK) is part)
        for part in Part
    }
    return tuple((part, value / total) for part, value in sums.items() if value > 0)


def tracks(slots: tuple[Slot, ...]) -> tuple[tuple[Slot, ...], ...]:
    """Slots divided into rows without overlap, as few as possible; the first one is the fullest."""
    rows: list[list[Slot]] = []
    for slot in sorted(slots, key=lambda item: (item.start_s, item.end_s)):
        # Stages that touch may differ in the last digits of their sums, and periods are rounded up.
        tolerance_s = 1e-6 * max(1.0, abs(slot.start_s))
        row = next((row for row in rows if row[-1].end_s <= slot.start_s + tolerance_s), None)
        if row is None:
            rows.append([slot])
        else:
            row.append(slot)
    return tuple(tuple(row) for row in rows)


def busy_s(plan: Plan, lane: Lane) -> dict[StageName, float]:
    """Seconds of one iteration that each stage takes on a lane; where stages overlap the earlier one counts.

    Their sum is at most `plan.time_s`; the rest is idle time.
    """
    length = plan.time_s
    items = _scheduled(plan, lane)
    pieces = sorted((start, index, end) for index, item in enumerate(items) for start, end in _wrapped(item, length))
    result: dict[StageName, float] = {item.stage: 0.0 for item in items}
    clock = 0.0
    for start, index, end in pieces:
        result[items[index].stage] += max(0.0, end - max(start, clock))
        clock = max(clock, end)
    return result


def idle_ratio(plan: Plan, lane: Lane) -> float:
    """Share of an iteration in which nothing runs on the lane."""
    return max(0.0, 1.0 - fsum(busy_s(plan, lane).values()) / plan.time_s) if plan.time_s else 0.0


IDLE = "idle GPUs"
UNUSED = "unused GPUs of used nodes"
UNUSED_NODES = "nodes that the plan leaves free"


def bill(plan: Plan) -> tuple[Share, ...]:
    """Where the GPU-hours of an iteration go: stages in program order, idle time, unused GPUs, free nodes.

    Without the last entry the sum is what `plan.usd` bills, with it `plan.cluster_usd`.
    """
    gpu_s: dict[str, float] = {placement.stage.value: 0.0 for placement in plan.placements}
    gpu_s |= {IDLE: 0.0, UNUSED: 0.0, UNUSED_NODES: 0.0}
    usd = dict.fromkeys(gpu_s, 0.0)
    unpriced: set[str] = set()

    def add(what: str, pool: str, seconds: float) -> None:
        price = plan.cluster.pool(pool).usd_per_gpu_hour
        gpu_s[what] = gpu_s.get(what, 0.0) + seconds
        usd[what] = usd.get(what, 0.0) + seconds / 3600.0 * (price or 0.0)
        if price is None and seconds > 0:
            unpriced.add(what)

    used = dict.fromkeys((pool.name for pool in plan.cluster.pools), 0)
    for lane in lanes(plan):
        if lane.is_host:
            continue
        used[lane.pool] += lane.num_gpus
        busy = busy_s(plan, lane)
        for stage, seconds in busy.items():
            add(stage.value, lane.pool, seconds * lane.num_gpus)
        add(IDLE, lane.pool, max(0.0, plan.time_s - fsum(busy.values())) * lane.num_gpus)
    for pool in plan.cluster.pools:
        billed = plan.num_nodes_used.get(pool.name, 0) * pool.node.gpus_per_node
        add(UNUSED, pool.name, (billed - used[pool.name]) * plan.time_s)
        add(UNUSED_NODES, pool.name, (pool.num_gpus - billed) * plan.time_s)
    return tuple(
        Share(what=what, gpu_s=value, usd=None if what in unpriced else usd[what])
        for what, value in gpu_s.items()
        if value > 1e-9 * plan.time_s
    )


def _cuts(plan: Plan, pool: str) -> list[tuple[int, int]]:
    """(first, end) of the GPU ranges between all borders of groups."""
    groups = [group for group in plan.device_groups if group.pool == pool]
    borders = sorted({border for group in groups for border in (group.ranks.start, group.ranks.stop)})
    return list(pairwise(borders))


def _covers(ranks: range, gpu: int) -> bool:
    return ranks.start <= gpu < ranks.stop


def _lane(plan: Plan, pool: str, first: int, end: int) -> Lane:
    groups = [group for group in plan.device_groups if group.pool == pool and _covers(group.ranks, first)]
    same = next((group.id for group in groups if group.ranks == range(first, end)), None)
    ids = tuple(group.id for group in groups)
    items = [item for item in plan.schedule if set(ids) & set(item.device_groups)]
    return Lane(
        name=same or f"{pool} GPU {first}-{end - 1}",
        pool=pool,
        gpu=groups[0].gpu,
        first_gpu=first,
        num_gpus=end - first,
        groups=ids,
        slots=_slots(plan, items),
    )


def _scheduled(plan: Plan, lane: Lane) -> list[ScheduledStage]:
    return [item for item in plan.schedule if set(lane.groups) & set(item.device_groups) and item.end_s > item.start_s]


def _slots(plan: Plan, items: list[ScheduledStage]) -> tuple[Slot, ...]:
    """Runs of all batches that reach into the window, cut at its borders."""
    window, period = window_s(plan), plan.period_s
    found = []
    for item in items:
        batches = (
            range(1) if not period else range(floor(-item.end_s / period) + 1, ceil((window - item.start_s) / period))
        )
        for batch in batches:
            shift = batch * (period or 0.0)
            start, end = max(0.0, item.start_s + shift), min(window, item.end_s + shift)
            if end - start > 1e-12 * window:
                found.append(Slot(stage=item.stage, start_s=start, end_s=end, batch=batch))
    return tuple(sorted(found, key=lambda slot: (slot.start_s, slot.end_s)))


def _wrapped(item: ScheduledStage, length_s: float) -> list[tuple[float, float]]:
    """The run of a stage folded into one period, in at most two pieces; all of it if it is as long as the period."""
    if length_s <= 0:
        return []
    if item.end_s - item.start_s >= length_s:
        return [(0.0, length_s)]
    start = item.start_s % length_s
    end = start + item.end_s - item.start_s
    return [(start, end)] if end <= length_s else [(start, length_s), (0.0, end - length_s)]
