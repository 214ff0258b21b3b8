"""Pictures for a terminal, in ASCII so that they survive pipes, logs and any encoding; colours only add to them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import accumulate

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.domain.plan import GpuMemory, Placement, Plan
from planner.domain.stages import StageName
from planner.report.memory_kinds import Kind, bytes_by_kind
from planner.report.occupancy import HOST, Lane, Part, Slot, idle_ratio, lanes, parts, tracks, window_s
from planner.report.words import percent
from planner.units import format_bytes, format_seconds

MIN_CELLS = 30
_TAIL, _IDLE = "~", "."
_SHORT = {
    StageName.SECOND_ROLLOUT: "rollout",
    StageName.REFERENCE_LOGPROB: "ref",
    StageName.OLD_LOGPROB: "old",
    StageName.ACTOR_UPDATE: "actor",
    StageName.CRITIC_UPDATE: "critic",
    StageName.CRITIC_VALUE: "value",
    StageName.WEIGHT_SYNC: "sync",
}
_STAGE_STYLES = {
    StageName.ROLLOUT: "white on blue",
    StageName.SECOND_ROLLOUT: "white on blue",
    StageName.REWARD: "black on bright_white",
    StageName.REFERENCE_LOGPROB: "black on cyan",
    StageName.OLD_LOGPROB: "black on green",
    StageName.CRITIC_VALUE: "white on magenta",
    StageName.ACTOR_UPDATE: "black on yellow",
    StageName.CRITIC_UPDATE: "black on bright_magenta",
    StageName.WEIGHT_SYNC: "black on white",
}
_KIND_LETTERS = {
    Kind.WEIGHTS: ("w", "black on cyan"),
    Kind.GRADIENTS: ("g", "black on green"),
    Kind.OPTIMIZER: ("o", "white on magenta"),
    Kind.ACTIVATIONS: ("a", "black on yellow"),
    Kind.KV_CACHE: ("k", "white on blue"),
    Kind.BUFFERS: ("b", "black on bright_white"),
    Kind.CONTEXT: ("c", "black on white"),
    Kind.IDLE: ("i", "dim"),
}


def timeline(plan: Plan, width: int) -> RenderableType | None:
    """One iteration on every part of the GPUs, or the steady state of an asynchronous plan, in `width` columns.

    `[rollout-----~~~~][ref----]....`: `~` is the rollout tail, dots are idle time. None without a schedule.
    """
    length = window_s(plan)
    shown = lanes(plan)
    if not shown or length <= 0:
        return None
    cells = max(MIN_CELLS, width - max(len(_name(lane)) for lane in shown) - 2)
    tails = {p.stage: dict(parts(p)).get(Part.TAIL, 0.0) for p in plan.placements}
    table = _lane_table()
    for lane in shown:
        rows = [row for row in tracks(lane.slots) if any(_cells(slot, length, cells) for slot in row)]
        for index, row in enumerate(rows):
            # A first row alone says what is idle: below it are stages that overlap with its own.
            others = () if index else tuple(slot for other in rows[1:] for slot in other)
            filler = " " if index else _IDLE
            table.add_row("" if index else _name(lane), _lane(row, others, filler, tails, length, cells))
    end = format_seconds(length)
    table.add_row("", Text("0 s" + " " * (cells - 3 - len(end)) + end, style="dim"))
    notes = _notes(plan, shown, tails)
    return Group(table, Text(notes, style="dim")) if notes else table


def _lane_table() -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True, overflow="crop")
    return table


def _name(lane: Lane) -> str:
    """Short: the GPUs of parts of groups are said by number."""
    return lane.name if lane.name in (*lane.groups, HOST) else f"{lane.pool} {lane.first_gpu}+{lane.num_gpus}"


def _notes(plan: Plan, shown: Sequence[Lane], tails: dict[StageName, float]) -> str:
    notes = []
    if plan.period_s is not None:
        notes.append(
            f"steady state, weight sync every {format_seconds(plan.period_s)}; numbers count batches, 0 is followed "
            f"for {format_seconds(plan.makespan_s)}"
        )
    if any(tails.values()):
        notes.append(f"{_TAIL} rollout tail")
    idle = {_name(lane): idle_ratio(plan, lane) for lane in shown if not lane.is_host}
    if any(ratio >= 0.005 for ratio in idle.values()):
        said = ", ".join(f"{percent(ratio)} of {name}" for name, ratio in idle.items() if ratio >= 0.005)
        notes.append(f"{_IDLE} idle: {said}")
    return "; ".join(notes)


def _cells(slot: Slot, length: float, cells: int) -> range:
    """The columns that a slot takes."""
    return range(round(slot.start_s / length * cells), round(slot.end_s / length * cells))


def _lane(
    row: Sequence[Slot],
    others: Sequence[Slot],
    filler: str,
    tails: dict[StageName, float],
    length: float,
    cells: int,
) -> Text:
    """One row of blocks with `filler` between them, but for times when `others` run."""
    busy = {cell for slot in others for cell in _cells(slot, length, cells)}
    lane, position = Text(), 0
    for slot in row:
        columns = _cells(slot, length, cells)
        start = max(columns.start, position)
        if columns.stop <= start:
            continue
        lane.append(_between(position, start, filler, busy), style="dim")
        lane.append_text(_block(slot, columns.stop - start, tails.get(slot.stage, 0.0)))
        position = columns.stop
    lane.append(_between(position, cells, filler, busy), style="dim")
    return lane


def _between(start: int, stop: int, filler: str, busy: Set[int]) -> str:
    return "".join(" " if cell in busy else filler for cell in range(start, stop))


def _block(slot: Slot, size: int, tail_ratio: float) -> Text:
    """`[old log-prob----]`, shorter where there is no room; the tail of a rollout has its own letters and shade."""
    style = _STAGE_STYLES.get(slot.stage, "reverse") + (" dim" if slot.batch else "")
    if size < 3:
        return Text("|" * size, style=style)
    inner = size - 2
    short = _SHORT.get(slot.stage, slot.stage.value)
    batch = f" {slot.batch:+d}" if slot.batch else ""
    label = next((name + batch for name in (slot.stage.value, short) if len(name + batch) <= inner), short)[:inner]
    tail = min(round(tail_ratio * size), inner - len(label))
    block = Text(f"[{label:-<{inner - tail}}", style=style)
    block.append(_TAIL * tail, style=f"{style} dim" if tail else style)
    block.append("]", style=style)
    return block


# ---------------------------------------------------------------------------------------------- memory


def memory_bars(plan: Plan, width: int) -> RenderableType | None:
    """GPU memory of each stage at its worst instant against the device, one letter per kind of content.

    `wwwkkkkkkkkkb....|..]`: the bar is the device, `|` is what plans may use. None where no stage holds any.
    """
    held = [(placement, placement.gpu_memory) for placement in plan.placements if placement.gpu_memory is not None]
    if not held:
        return None
    cells = max(MIN_CELLS, width - max(len(placement.stage.value) for placement, _ in held) - 2)
    table = _lane_table()
    used: dict[Kind, float] = {}
    for placement, memory in held:
        table.add_row(placement.stage.value, _bar(plan, placement, memory, cells))
        used |= dict(bytes_by_kind(memory.terms))
    letters = ", ".join(f"{_KIND_LETTERS[kind][0]} {kind.value}" for kind in Kind if kind in used)
    sizes = sorted({(_device_bytes(plan, placement, memory), memory.usable_bytes) for placement, memory in held})
    limits = ", ".join(f"{format_bytes(usable)} of {format_bytes(device)}" for device, usable in sizes)
    return Group(table, Text(f"{letters}; | usable: {limits}", style="dim"))


def _device_bytes(plan: Plan, placement: Placement, memory: GpuMemory) -> float:
    group = next((item for item in plan.device_groups if item.id == placement.device_group), None)
    return memory.usable_bytes if group is None else plan.cluster.pool(group.pool).node.gpu.memory_bytes


def _bar(plan: Plan, placement: Placement, memory: GpuMemory, cells: int) -> Text:
    """Brackets at both ends; a peak above the device ends in `>`."""
    device = _device_bytes(plan, placement, memory)
    inner = cells - 2
    kinds = bytes_by_kind(memory.terms)
    borders = [round(total / device * inner) for total in accumulate(value for _, value in kinds)]
    letters: list[tuple[str, str]] = []
    for (kind, _), border in zip(kinds, borders, strict=True):
        letters += [_KIND_LETTERS[kind]] * (border - len(letters))
    is_over = len(letters) > inner
    letters = letters[:inner] + [(" ", "")] * (inner - len(letters))
    at = min(inner - 1, round(memory.usable_bytes / device * inner))
    letters[at] = ("|", "bold")
    bar = Text("[")
    for letter, style in letters:
        bar.append(letter, style=style)
    bar.append(">" if is_over else "]", style="bold red" if is_over else "")
    return bar
