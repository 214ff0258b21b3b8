"""GPU memory against capacity: over the iteration, and per stage at its worst instant by term."""

from __future__ import annotations

from planner.domain.plan import GpuMemory, NamedValue, Placement, Plan
from planner.domain.verdict import Verdict
from planner.report.html.axis import grid, size_ticks, time_ticks, x_axis
from planner.report.html.marks import Bar, bar, chart
from planner.report.html.markup import Html, details, figure, legend, ratio, slug, table, tag
from planner.report.html.timeline import lane_title
from planner.report.memory_kinds import Kind, bytes_by_kind, kind_of
from planner.report.occupancy import Lane, Slot, lanes, window_s
from planner.report.words import percent, term_words
from planner.units import format_bytes, format_seconds

HEIGHT = 28
PROFILE = 96
"""Height of the picture over time; it stands for all memory of the device."""


def memory_figure(plan: Plan) -> Html:
    """Profiles over time, then one bar per stage."""
    held = [(placement, placement.gpu_memory) for placement in plan.placements if placement.gpu_memory is not None]
    if not held:
        return figure("memory", "GPU memory", "No stage holds GPU memory.")
    length = max([device_bytes(plan, placement) for placement, _ in held] + [m.peak_bytes for _, m in held])
    ticks = size_ticks(length)
    present = {kind_of(term.name) for _, memory in held for term in memory.terms if term.value > 0}
    keys = [(f"m-{slug(kind.value)}", kind.value) for kind in Kind if kind in present]
    band = plan.memory_band
    spread = (
        ""
        if band is None
        else (
            f" The whisker is the {percent(band.coverage_ratio)} band of peaks, {band.low_ratio:.2f} to "
            f"{band.high_ratio:.2f} times; {band.basis}."
        )
    )
    return figure(
        "memory", "GPU memory",
        "Per GPU, everything that is on it at the worst instant of each stage. The dashed line is what plans may use, "
        f"the solid one is the device.{spread}",
        legend(keys),
        tag("h3", {}, "Over the iteration"), *_profiles(plan),
        tag("h3", {}, "By stage, at its worst instant"),
        *(_row(plan, placement, memory, ticks, length) for placement, memory in held),
        tag("div", {"class": "axis"}, x_axis(ticks, length)),
        details("Memory as a table", _term_table(plan, held)),
    )  # fmt: skip


def device_bytes(plan: Plan, placement: Placement) -> float:
    """What the device of a stage has."""
    group = next((item for item in plan.device_groups if item.id == placement.device_group), None)
    if group is None:
        return placement.gpu_memory.usable_bytes if placement.gpu_memory is not None else 0.0
    return plan.cluster.pool(group.pool).node.gpu.memory_bytes


def _ordered(memory: GpuMemory) -> list[NamedValue]:
    order = list(Kind)
    terms = [term for term in memory.terms if term.value > 0]
    return sorted(terms, key=lambda term: (order.index(kind_of(term.name)), -term.value, term.name))


# ---------------------------------------------------------------------------------------------- over time


def _profiles(plan: Plan) -> list[Html]:
    length = window_s(plan)
    if length <= 0:
        return []
    by_stage = {placement.stage: placement for placement in plan.placements}
    ticks = time_ticks(length)
    found = []
    for lane in lanes(plan):
        if lane.is_host:
            continue
        marks = grid(ticks, length, PROFILE)
        for slot in lane.slots:
            placement = by_stage.get(slot.stage)
            # A weight sync occupies two groups and states the memory of one.
            if placement is None or placement.device_group not in lane.groups:
                continue
            if placement.gpu_memory is not None:
                marks.append(_column(plan, slot, placement.gpu_memory, lane, length))
        device, usable = plan.cluster.pool(lane.pool).node.gpu.memory_bytes, _usable_bytes(plan, lane)
        marks += _limits_across(device, usable)
        said = f"device {format_bytes(device)}, usable {format_bytes(usable)}"
        found.append(
            tag("div", {"class": "lane"},
                tag("p", {"class": "row"}, tag("span", {}, lane_title(lane)), tag("span", {"class": "value"}, said)),
                chart(f"GPU memory over time on {lane.name}", PROFILE, *marks))
        )  # fmt: skip
    return [*found, tag("div", {"class": "axis"}, x_axis(ticks, length))]


def _column(plan: Plan, slot: Slot, memory: GpuMemory, lane: Lane, length: float) -> Html:
    device = plan.cluster.pool(lane.pool).node.gpu.memory_bytes
    x = {"x": ratio(slot.start_s / length), "width": ratio((slot.end_s - slot.start_s) / length)}
    # More than the device has is cut at its top; the bars below say by how much.
    shapes, top = [], float(PROFILE)
    for kind, value in bytes_by_kind(memory.terms):
        size = min(top, value / device * PROFILE)
        if size > 0:
            top -= size
            shapes.append(tag("rect", {"class": f"fill m-{slug(kind.value)}", **x, "y": f"{top:.2f}",
                                       "height": f"{size:.2f}"}))  # fmt: skip
    tip = (
        f"{slot.stage.value}: {format_bytes(memory.peak_bytes)} of {format_bytes(memory.usable_bytes)} usable, "
        f"{memory.instant}, from {format_seconds(slot.start_s)} to {format_seconds(slot.end_s)}"
    )
    return tag("g", {"class": "mark", "role": "img", "aria-label": tip}, *shapes)


def _limits_across(device: float, usable: float) -> list[Html]:
    y = f"{(1 - usable / device) * PROFILE:.2f}"
    return [
        tag("line", {"class": "usable", "x1": 0, "x2": "100%", "y1": y, "y2": y}),
        tag("line", {"class": "device", "x1": 0, "x2": "100%", "y1": 1, "y2": 1}),
    ]


def _usable_bytes(plan: Plan, lane: Lane) -> float:
    """What plans may use on the GPUs of a lane."""
    limits = [
        placement.gpu_memory.usable_bytes
        for placement in plan.placements
        if placement.gpu_memory is not None and placement.device_group in lane.groups
    ]
    return min(limits, default=plan.cluster.pool(lane.pool).node.gpu.memory_bytes)


# ---------------------------------------------------------------------------------------------- by stage


def _row(plan: Plan, placement: Placement, memory: GpuMemory, ticks: list[tuple[float, str]], length: float) -> Html:
    marks, clock = grid(ticks, length, HEIGHT), 0.0
    for term in _ordered(memory):
        words = term_words(term.name)
        tip = f"{placement.stage.value}: {words} {format_bytes(term.value)}, {kind_of(term.name).value}"
        marks.append(
            bar(Bar(start=clock / length, end=(clock + term.value) / length, y=2, height=HEIGHT - 4,
                    fills=(f"m-{slug(kind_of(term.name).value)}",), tip=tip,
                    labels=(f"{words} {term.value / 2**30:.1f}", words)))
        )  # fmt: skip
        clock += term.value
    for value, name in ((memory.usable_bytes, "usable"), (device_bytes(plan, placement), "device")):
        at = ratio(min(value / length, 0.999))
        marks.append(tag("line", {"class": name, "x1": at, "x2": at, "y1": 0, "y2": HEIGHT}))
    marks += _whisker(plan, memory, length)
    verdict = plan.memory_verdict(placement) or Verdict.FITS
    share = percent(memory.peak_bytes / memory.usable_bytes)
    return tag(
        "div", {"class": "lane"},
        tag("p", {"class": "row"},
            tag("span", {}, tag("b", {}, placement.stage.value),
                "" if memory.instant == placement.stage.value else f" {memory.instant}"),
            tag("span", {"class": "value"}, f"{format_bytes(memory.peak_bytes)}, {share} of "
                f"{format_bytes(memory.usable_bytes)} usable",
                tag("span", {"class": f"verdict v-{slug(verdict.value)}"}, verdict.value))),
        chart(f"GPU memory of {placement.stage.value}", HEIGHT, *marks),
    )  # fmt: skip


def _whisker(plan: Plan, memory: GpuMemory, length: float) -> list[Html]:
    band = plan.memory_band
    if band is None:
        return []
    low, high = (min(1.0, memory.peak_bytes * factor / length) for factor in (band.low_ratio, band.high_ratio))
    middle = HEIGHT // 2
    ends = [tag("line", {"class": "whisker", "x1": ratio(x), "x2": ratio(x), "y1": middle - 5, "y2": middle + 5})
            for x in (low, high) if x < 1.0]  # fmt: skip
    return [tag("line", {"class": "whisker", "x1": ratio(low), "x2": ratio(high), "y1": middle, "y2": middle}), *ends]


def _term_table(plan: Plan, held: list[tuple[Placement, GpuMemory]]) -> Html:
    rows = []
    for placement, memory in held:
        for term in _ordered(memory):
            rows.append((placement.stage.value, memory.instant, term_words(term.name), kind_of(term.name).value,
                         format_bytes(term.value)))  # fmt: skip
        rows.append((placement.stage.value, memory.instant, tag("b", {}, "peak"), "", format_bytes(memory.peak_bytes)))
    return table(("stage", "instant", "term", "kind", "size"), rows, caption="GPU memory at each stage's worst instant",
                 numeric=1)  # fmt: skip
