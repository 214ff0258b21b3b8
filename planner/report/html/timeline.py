"""The iteration over time: one lane per part of the GPUs, stages as blocks, idle time hatched."""

from __future__ import annotations

from planner.domain.plan import Placement, Plan
from planner.domain.stages import StageName
from planner.report.html.axis import grid, time_ticks, x_axis
from planner.report.html.marks import Bar, bar, chart
from planner.report.html.markup import Html, details, figure, join, legend, ratio, slug, table, tag
from planner.report.occupancy import Lane, Part, Slot, busy_s, idle_ratio, lanes, parts, tracks, window_s
from planner.report.words import counted, percent
from planner.units import format_seconds

TRACK = 38
GAP = 4
STRIP = 9
"""Height of what marks setup and waiting, so that the label above it stays readable."""
SHORT = {
    StageName.REFERENCE_LOGPROB: "ref",
    StageName.OLD_LOGPROB: "old",
    StageName.ACTOR_UPDATE: "actor",
    StageName.CRITIC_UPDATE: "critic",
    StageName.CRITIC_VALUE: "value",
    StageName.WEIGHT_SYNC: "sync",
}
_PART_WORDS = {
    Part.SETUP: "switching to the stage: waking up, loading states",
    Part.WAITING: "waiting: pipeline bubbles and slower ranks (spread over the stage, drawn together)",
    Part.TAIL: "rollout tail: the last responses decode almost alone",
}


def timeline_figure(plan: Plan) -> Html:
    """The Gantt chart of one iteration, or of the steady state of an asynchronous plan."""
    shown = lanes(plan)
    length = window_s(plan)
    if not shown or length <= 0:
        return figure("timeline", "Timeline", "The plan has no schedule.")
    placements = {placement.stage: placement for placement in plan.placements}
    ticks = time_ticks(length)
    pictures = [_lane(plan, lane, placements, ticks, length) for lane in shown]
    stages = [item.stage for item in plan.schedule if item.end_s > item.start_s]
    return figure(
        "timeline", "Timeline", _note(plan),
        legend(_legend(plan, shown, placements, stages)),
        *pictures, tag("div", {"class": "axis"}, x_axis(ticks, length)),
        details("Timeline as a table", _slot_table(plan, shown), _busy_table(plan, shown)),
    )  # fmt: skip


def _note(plan: Plan) -> str:
    if plan.period_s is None:
        return f"One iteration of {format_seconds(plan.time_s)}. Each lane is a set of GPUs that do the same."
    return (
        f"Steady state: a weight sync every {format_seconds(plan.time_s)}, and {format_seconds(plan.makespan_s)} from "
        f"the start of a batch's rollout to the weights that it leads to. Batch n is drawn in full colour, those "
        f"before and after it pale; notches mark periods. Staleness up to {plan.execution.staleness}."
    )


def _legend(
    plan: Plan, shown: tuple[Lane, ...], placements: dict[StageName, Placement], stages: list[StageName]
) -> list[tuple[str, str]]:
    entries = [(f"s-{slug(stage.value)}", stage.value) for stage in dict.fromkeys(stages)]
    present = {part for stage in stages if stage in placements for part, _ in parts(placements[stage])}
    for part, words in _PART_WORDS.items():
        if part in present:
            entries.append((f"{'tail' if part is Part.TAIL else 'blank'}+p-{part.value}", words))
    if any(idle_ratio(plan, lane) > 0.0005 for lane in shown):
        entries.append(("p-idle", "idle"))
    return entries


def lane_title(lane: Lane) -> Html:
    """Which GPUs: `h100/0  GPU 0-31 of h100, 32 x h100-sxm`."""
    if lane.is_host:
        return join([tag("b", {}, "host"), " CPUs only"])
    last = lane.first_gpu + lane.num_gpus - 1
    gpus = f"GPU {lane.first_gpu}-{last}" if lane.num_gpus > 1 else f"GPU {last}"
    others = "" if lane.groups == (lane.name,) else f" in {' + '.join(lane.groups)}"
    return join([tag("b", {}, lane.name), f" {gpus} of {lane.pool}{others}, {lane.num_gpus:,} × {lane.gpu}"])


def _lane(
    plan: Plan, lane: Lane, placements: dict[StageName, Placement], ticks: list[tuple[float, str]], length: float
) -> Html:
    rows = tracks(lane.slots) or ((),)
    height = len(rows) * (TRACK + GAP) - GAP
    marks: list[Html] = grid(ticks, length, height)
    for index, row in enumerate(rows):
        y = index * (TRACK + GAP)
        if index == 0 and not lane.is_host:
            marks += [_idle(start, end, length, y) for start, end in _gaps(lane.slots, length)]
        marks += [_slot(slot, placements.get(slot.stage), length, y, plan) for slot in row]
    for period in range(1, round(length / plan.period_s) if plan.period_s else 0):
        # A notch: a line across would go through labels.
        at = ratio(period * (plan.period_s or 0.0) / length)
        marks.append(tag("line", {"class": "period", "x1": at, "x2": at, "y1": -5, "y2": 4}))
    idle = idle_ratio(plan, lane)
    told = "" if lane.is_host else "always busy" if idle < 0.0005 else f"idle {percent(idle)}"
    return tag(
        "div", {"class": "lane"},
        tag("p", {"class": "row"}, tag("span", {}, lane_title(lane)), tag("span", {"class": "value"}, told)),
        chart(f"Timeline of {lane.name}", height, *marks),
    )  # fmt: skip


def _gaps(slots: tuple[Slot, ...], length: float) -> list[tuple[float, float]]:
    """Times in which nothing runs."""
    found, clock = [], 0.0
    for slot in slots:
        if slot.start_s - clock > 5e-4 * length:
            found.append((clock, slot.start_s))
        clock = max(clock, slot.end_s)
    if length - clock > 5e-4 * length:
        found.append((clock, length))
    return found


def _idle(start: float, end: float, length: float, y: int) -> Html:
    tip = f"idle: {format_seconds(end - start)}, from {format_seconds(start)} to {format_seconds(end)}"
    return bar(Bar(start=start / length, end=end / length, y=y, height=TRACK, fills=("p-idle",), tip=tip,
                   labels=(f"idle {format_seconds(end - start)}", "idle"), ink="on-idle"))  # fmt: skip


def _slot(slot: Slot, placement: Placement | None, length: float, y: int, plan: Plan) -> Html:
    """A stage in its colour, with the parts of it that are no work drawn over its beginning and end."""
    fill = f"s-{slug(slot.stage.value)}"
    pale = " pale" if slot.batch else ""
    span = slot.end_s - slot.start_s
    name, short = slot.stage.value, SHORT.get(slot.stage, slot.stage.value)
    batch = "" if plan.period_s is None else " n" if not slot.batch else f" n{slot.batch:+d}"
    pieces = parts(placement) if placement is not None else ()
    tip = f"{name}{', batch' + batch if batch else ''}: {format_seconds(span)}, "
    tip += f"from {format_seconds(slot.start_s)} to {format_seconds(slot.end_s)}"
    # A run that the window cuts has lost its beginning or end: its parts are said, not drawn.
    is_whole = placement is not None and abs(span - _full_s(plan, slot.stage)) < 1e-6 * length
    told = [f"{part.value} {format_seconds(share * _full_s(plan, slot.stage))}" for part, share in pieces]
    tip += f" ({', '.join(told)})" if len(told) > 1 else ""
    tail = dict(pieces).get(Part.TAIL, 0.0) * span if is_whole else 0.0
    block = bar(Bar(start=slot.start_s / length, end=slot.end_s / length, y=y, height=TRACK,
                    fills=(fill + pale,), tip=tip, ink=f"on-{fill}{pale}", label_end=(slot.end_s - tail) / length,
                    labels=(f"{name}{batch} · {format_seconds(span)}", name + batch, short + batch,
                            short)))  # fmt: skip
    if not is_whole:
        return block
    # Its own shade, and an entry of its own for pointer and keyboard.
    rest = "" if not tail else bar(
        Bar(start=(slot.end_s - tail) / length, end=slot.end_s / length, y=y, height=TRACK,
            fills=(f"tail{pale}", "p-tail"), tip=f"{name} tail: {format_seconds(tail)} of {format_seconds(span)}",
            labels=(f"tail {format_seconds(tail)}", "tail"), ink=f"on-tail{pale}")
    )  # fmt: skip
    return tag("g", {}, block, rest, *_overlays(slot, pieces, length, y))


def _full_s(plan: Plan, stage: StageName) -> float:
    return next(item.end_s - item.start_s for item in plan.schedule if item.stage is stage)


def _overlays(slot: Slot, pieces: tuple[tuple[Part, float], ...], length: float, y: int) -> list[Html]:
    """Strips along the lower edge for setup and waiting."""
    found, clock = [], slot.start_s
    for part, share in pieces:
        end = clock + share * (slot.end_s - slot.start_s)
        if part in (Part.SETUP, Part.WAITING):
            found.append(
                tag("rect", {
                    "class": f"over p-{part.value}", "x": ratio(clock / length), "width": ratio((end - clock) / length),
                    "y": y + TRACK - STRIP, "height": STRIP,
                })
            )  # fmt: skip
        clock = end
    return found


def _slot_table(plan: Plan, shown: tuple[Lane, ...]) -> Html:
    rows = []
    for lane in shown:
        for slot in lane.slots:
            if not slot.batch:
                rows.append((lane.name, slot.stage.value, format_seconds(slot.start_s), format_seconds(slot.end_s),
                             format_seconds(slot.end_s - slot.start_s)))  # fmt: skip
    what = "batch n" if plan.period_s is not None else "one iteration"
    return table(("lane", "stage", "start", "end", "duration"), rows, caption=f"Stages of {what}", numeric=3)


def _busy_table(plan: Plan, shown: tuple[Lane, ...]) -> Html:
    rows = []
    for lane in shown:
        if lane.is_host:
            continue
        busy = sum(busy_s(plan, lane).values())
        idle = max(0.0, plan.time_s - busy)
        rows.append((lane.name, counted(lane.num_gpus, "GPU"), format_seconds(busy), format_seconds(idle),
                     percent(idle_ratio(plan, lane))))  # fmt: skip
    return table(("lane", "GPUs", "busy", "idle", "idle share"), rows, caption="Busy and idle per iteration",
                 numeric=4)  # fmt: skip
