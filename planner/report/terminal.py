"""A plan for a terminal: answer first, then where, how, why it takes that long, what fits, and what was assumed."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from planner.domain.plan import HostRam, Placement, Plan, ScheduledStage, Status
from planner.domain.stages import StageName, WorkerName
from planner.domain.verdict import Verdict
from planner.errors import printable
from planner.files.plan import gpu_hours
from planner.report.words import (
    MISFIT,
    arrangement,
    counted,
    is_fixed,
    largest,
    misfits,
    one_line,
    percent,
    quantity,
    rests_on_defaults,
    strategy_words,
    term_words,
)
from planner.units import format_bytes, format_range, format_seconds

MAX_WIDTH = 100
MIN_WIDTH = 60
_BAR = 10
_SHOWN_TERMS = 5
_SHOWN_REASONS = 6
ROUNDING_GAP_RATIO = 1e-5
"""The search counts time in ticks; a gap below this is their rounding."""
_STATUS_STYLE = {Status.OPTIMAL: "bold green", Status.FEASIBLE: "bold yellow"}
_SHORT = {
    "reference log-prob": "ref",
    "old log-prob": "old",
    "actor update": "actor",
    "critic update": "critic",
    "critic value": "value",
    "weight sync": "sync",
}


class _SafeConsole(Console):
    """A console on which text is only text: no markup, and nothing that a terminal would act on."""

    def __init__(self, stream: TextIO, width: int, *, has_colours: bool) -> None:
        # The kind of terminal is found out by rich itself where there is one.
        super().__init__(
            file=stream, width=width, highlight=False, markup=False, emoji=False,
            color_system="auto" if has_colours else None, force_terminal=None if has_colours else False,
        )  # fmt: skip

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


_INDENT = 2
"""Columns before the text of a section."""
_CUT = "…"
"""What stands for text that a column has no room for."""


def print_plan(plan: Plan, stream: TextIO, *, width: int = MAX_WIDTH) -> None:
    """Writes the report; with colours only to a terminal, and never wider than `width` columns."""
    width = max(MIN_WIDTH, width)
    print_renderable(render(plan, width=width), stream, width=width)


def print_renderable(renderable: RenderableType, stream: TextIO, *, width: int = MAX_WIDTH) -> None:
    """Writes any renderable of `width` columns: to a terminal with colours, elsewhere as plain text."""
    width = max(MIN_WIDTH, width)
    for table in _tables([renderable]):
        _fold_if_narrow(table, width)
    if stream.isatty():
        _SafeConsole(stream, width, has_colours=True).print(renderable)
    else:
        stream.write(plain(renderable, width=width))


def plan_report(plan: Plan, *, width: int = MAX_WIDTH) -> str:
    """The report as plain text without trailing spaces."""
    return plain(render(plan, width=width), width=width)


def plain(renderable: RenderableType, *, width: int = MAX_WIDTH) -> str:
    """Any renderable as plain text without trailing spaces."""
    buffer = io.StringIO()
    _SafeConsole(buffer, width, has_colours=False).print(renderable)
    return "".join(line.rstrip() + "\n" for line in buffer.getvalue().splitlines())


def render(plan: Plan, *, width: int = MAX_WIDTH) -> Group:
    """The whole report."""
    plan = one_line(plan)
    sections: list[RenderableType] = [_headline(plan)]
    sections += _section("Device groups", _device_groups(plan))
    sections += _section("Stages", _stages(plan))
    sections += _section("Timeline", _timeline(plan, width))
    sections += _section("GPU memory at each stage's worst instant", _gpu_memory(plan))
    sections += _section("Host RAM", _host_ram(plan))
    sections += _section("Search", _search(plan))
    sections += _section("Frameworks", _frameworks(plan))
    sections += _section("Alternatives", _alternatives(plan))
    sections += _section("Assumptions (not given, so assumed)", _assumptions(plan))
    for body in _tables(sections):
        _fold_if_narrow(body, width - _INDENT)
    return Group(*sections)


def _tables(parts: Iterable[RenderableType]) -> Iterable[Table]:
    """All tables in sections, at any depth."""
    for part in parts:
        if isinstance(part, Table):
            yield part
        elif isinstance(part, Padding):
            yield from _tables([part.renderable])
        elif isinstance(part, Group):
            yield from _tables(part.renderables)


def _fold_if_narrow(table: Table, width: int) -> None:
    """Lets all columns of a table break where it would lose text in `width` columns; a timeline is drawn to fit."""
    is_drawn = any(column.overflow == "crop" for column in table.columns)
    if is_drawn or _CUT not in plain(table, width=width):
        return
    for column in table.columns:
        column.no_wrap, column.overflow = False, "fold"


def _section(title: str, body: RenderableType | None) -> list[RenderableType]:
    """A titled block, or nothing for an empty body."""
    return [] if body is None else [Text(), Text(title, style="bold cyan"), Padding(body, (0, 0, 0, _INDENT))]


def _table(*, header: bool = False) -> Table:
    return Table(box=None, show_header=header, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")


# ---------------------------------------------------------------------------------------------- headline


def _headline(plan: Plan) -> Group:
    work = plan.workload
    pools = " + ".join(f"{pool.num_gpus} x {pool.node.gpu.id}" for pool in plan.cluster.pools)
    title = Text.assemble(
        (f"{work.algorithm.title} on {work.actor.id}", "bold"),
        f" · {pools}",
        f" · for {plan.limits.framework}" if plan.limits.framework else "",
        f" · {arrangement(plan)}, synchronous" if arrangement(plan) else "",
    )
    job = Text(
        f"{work.num_prompts:,} prompts x {work.group_size}; prompt up to {work.prompt_max_tokens:,}, "
        f"response up to {work.response.max_tokens:,} (mean {work.response.mean_tokens:,.0f}) tokens",
        style="dim",
    )
    lines = [title, job, Text(), _answer(plan), *_time_band(plan), _proof(plan), *_limits(plan), *_no_framework(plan)]
    lines += _few_sizes(plan)
    lines += [Text(f"does not fit: {problem}", "bold red") for problem in misfits(plan)]
    if rests_on_defaults(plan):
        lines.append(
            Text("This plan rests on defaults alone: check the assumptions below before you rely on it.", "yellow")
        )
    return Group(*lines)


def _answer(plan: Plan) -> Text:
    parts = [
        Text.assemble((format_seconds(plan.time_s), "bold"), " per iteration"),
        Text.assemble((f"{plan.tokens_per_s_per_gpu:,.0f}", "bold"), " tokens/s/GPU"),
        Text.assemble((_cost(plan), "bold"), " per iteration", _whole_cost(plan)),
    ]
    if plan.num_gpus != plan.cluster.num_gpus:
        parts.append(Text(f"{plan.num_gpus} of {plan.cluster.num_gpus} GPUs used"))
    return Text(" · ").join(parts)


def _cost(plan: Plan) -> str:
    """What the nodes cost that the plan uses."""
    return f"{plan.usd:,.2f} USD" if plan.usd is not None else f"{gpu_hours(plan):.2f} GPU-hours (no price known)"


def _whole_cost(plan: Plan) -> str:
    """What the whole cluster costs, where nodes are left idle."""
    if plan.num_nodes_used == {pool.name: pool.num_nodes for pool in plan.cluster.pools}:
        return ""
    if plan.usd is not None and plan.cluster_usd is not None:
        return f" ({plan.cluster_usd:,.2f} USD with idle nodes)"
    return f" ({plan.time_s * plan.cluster.num_gpus / 3600.0:.2f} GPU-hours with idle nodes)"


def _time_band(plan: Plan) -> list[Text]:
    """Where the measured time should lie, and what that rests on."""
    band = plan.time_band
    if band is None:
        return []
    span = format_range(band.low_ratio * plan.time_s, band.high_ratio * plan.time_s)
    return [Text(f"{percent(band.coverage_ratio)} band {span}; {band.basis}", style="dim")]


def _limits(plan: Plan) -> list[Text]:
    """The user's limits, all of which the plan keeps."""
    limits = plan.limits
    parts = [
        f"{format_seconds(limits.max_iteration_s)} per iteration" if limits.max_iteration_s is not None else "",
        f"{limits.max_usd_per_iteration:,.2f} USD per iteration" if limits.max_usd_per_iteration is not None else "",
        f"{limits.max_gpus:,} GPUs" if limits.max_gpus is not None else "",
    ]
    given = [part for part in parts if part]
    return [Text(f"within the limits: at most {', '.join(given)}", style="dim")] if given else []


def _proof(plan: Plan) -> Text:
    if is_fixed(plan):
        return Text("Priced as given; nothing was searched.", "dim")
    kind, bound = plan.limits.objective.value, quantity(plan.bound, plan.objective_unit)
    style = _STATUS_STYLE.get(plan.status, "bold red")
    gap = f"{kind}: lower bound {bound}, gap {percent(plan.gap_ratio)}"
    if plan.status is not Status.OPTIMAL:
        return Text.assemble((plan.status.value, style), f", best found but not proven optimal, {gap}")
    if plan.gap_ratio <= ROUNDING_GAP_RATIO:
        return Text.assemble(("proven optimal", style), f" in the declared space, {kind}: lower bound {bound}")
    return Text.assemble(
        (f"within {percent(plan.gap_ratio)} of the proven optimum", style),
        f" ({kind} {bound}); preferred for fewer GPUs, headroom or simplicity",
    )


def _few_sizes(plan: Plan) -> list[Text]:
    """Said of several nodes whose GPUs are no power of two: parts of such nodes pack badly."""
    if is_fixed(plan):
        return []
    return [
        Text(
            f"{pool.name}: groups below a node of {pool.node.gpus_per_node} GPUs take the whole node (docs/search.md); "
            f"nodes of {1 << (pool.node.gpus_per_node.bit_length() - 1)} may plan faster.",
            "yellow",
        )
        for pool in plan.cluster.pools
        if pool.num_nodes > 1 and pool.node.gpus_per_node & (pool.node.gpus_per_node - 1)
    ]


def _no_framework(plan: Plan) -> list[Text]:
    """Said at the top: a plan that no framework runs as it is serves as a bound, not as a configuration."""
    if not plan.frameworks or any(verdict.can_run for verdict in plan.frameworks):
        return []
    advice = "" if is_fixed(plan) else "; --framework NAME plans for one"
    return [Text(f"No known framework can run this plan as it is (see below){advice}.", "yellow")]


# ---------------------------------------------------------------------------------------------- where and how


def _device_groups(plan: Plan) -> Table:
    table = _table()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for group in plan.device_groups:
        stages = [item.stage.value for item in plan.schedule if group.id in item.device_groups]
        last = group.first_gpu + group.num_gpus - 1
        ranks = f"{group.first_gpu}-{last}" if group.num_gpus > 1 else str(last)
        where = f"{group.num_gpus} x {group.gpu}, {counted(group.num_nodes, 'node')}, GPU {ranks} of {group.pool}"
        table.add_row(group.id, where, ", ".join(stages))
    return table


def _stages(plan: Plan) -> Table:
    table = _table(header=True)
    table.add_column("stage", style="bold", no_wrap=True)
    table.add_column("group", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("strategy, and below it what bounds the stage", ratio=1)
    shown: dict[tuple[WorkerName, str], StageName] = {}
    for placement in plan.placements:
        table.add_row(
            placement.stage.value,
            _groups_of(plan, placement),
            format_seconds(placement.time_s) if placement.time_s else "~0 s",
            percent(placement.time_s / plan.time_s) if plan.time_s else "",
            _how(placement, shown),
        )
    return table


def _how(placement: Placement, shown: dict[tuple[WorkerName, str], StageName]) -> Text:
    """Strategy and bound. A worker has one strategy: its later stages refer to the first in `shown`."""
    trains = placement.worker not in (WorkerName.REFERENCE, WorkerName.REWARD_MODEL)
    words = Text(strategy_words(placement.strategy, trains=trains))
    if placement.worker is not None:
        first = shown.setdefault((placement.worker, words.plain), placement.stage)
        if first is not placement.stage:
            words = Text(f"the same strategy as {first.value}", style="dim")
    bound = _bound_words(placement)
    return Text("\n").join([line for line in (words, bound) if line.plain])


def _groups_of(plan: Plan, placement: Placement) -> str:
    """All groups that the stage occupies: the weight sync occupies two when engine and trainer are apart."""
    scheduled = next((item for item in plan.schedule if item.stage is placement.stage), None)
    groups = scheduled.device_groups if scheduled is not None else ()
    return "+".join(groups) or placement.device_group or "host"


def _bound_words(placement: Placement) -> Text:
    top = largest(placement.time_terms, count=3, least_ratio=0.08)
    details = ", ".join(f"{name} {percent(share)}" for name, share in top)
    return Text.assemble((placement.bound_by, "magenta"), (f": {details}" if details else "", "dim"))


# ---------------------------------------------------------------------------------------------- when


def _timeline(plan: Plan, width: int) -> Table | None:
    if not plan.schedule or plan.time_s <= 0:
        return None
    names = [group.id for group in plan.device_groups]
    # Section indent, the column of names and the gap after it.
    cells = max(30, width - 2 - max(len(name) for name in [*names, "host"]) - 2)
    table = _table()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True, overflow="crop")
    rows = [(group.id, [s for s in plan.schedule if group.id in s.device_groups]) for group in plan.device_groups]
    ids = {group.id for group in plan.device_groups}
    on_host = [s for s in plan.schedule if not ids & set(s.device_groups) and s.end_s > s.start_s]
    for name, items in [*rows, *([("host", on_host)] if on_host else [])]:
        table.add_row(name, _lane(items, plan.time_s, cells))
    end = format_seconds(plan.time_s)
    table.add_row("", Text("0 s" + " " * (cells - 3 - len(end)) + end, style="dim"))
    return table


_LANE_STYLES = ("white on blue", "black on cyan", "black on green", "black on yellow", "white on magenta")


def _lane(items: list[ScheduledStage], total_s: float, cells: int) -> Text:
    """One device group over time: `[rollout      ][ref][actor    ]`; dots are idle time."""
    lane, position = Text(), 0
    for index, item in enumerate(sorted(items, key=lambda s: (s.start_s, s.end_s))):
        start, end = round(item.start_s / total_s * cells), round(item.end_s / total_s * cells)
        start = max(start, position)
        if end <= start:
            continue
        lane.append("." * (start - position), style="dim")
        lane.append(_block(item.stage.value, end - start), style=_LANE_STYLES[index % len(_LANE_STYLES)])
        position = end
    lane.append("." * (cells - position), style="dim")
    return lane


def _block(name: str, size: int) -> str:
    if size < 3:
        return "|" * size
    label = name if len(name) <= size - 2 else _SHORT.get(name, name)
    return f"[{label[: size - 2]:-<{size - 2}}]"


# ---------------------------------------------------------------------------------------------- what fits


def _gpu_memory(plan: Plan) -> RenderableType | None:
    held = [(placement, placement.gpu_memory) for placement in plan.placements if placement.gpu_memory is not None]
    if not held:
        return None
    # One limit for all stages goes into the header; with several pools each row names its own.
    limits = {memory.usable_bytes for _, memory in held}
    table = _table(header=True)
    table.add_column("stage", style="bold", no_wrap=True)
    table.add_column("peak", justify="right", no_wrap=True)
    table.add_column(f"of {format_bytes(min(limits))} usable" if len(limits) == 1 else "of usable", no_wrap=True)
    table.add_column("instant: largest terms in GiB", ratio=1)
    for placement, memory in held:
        ratio = memory.peak_bytes / memory.usable_bytes
        limit = f" of {format_bytes(memory.usable_bytes)}" if len(limits) > 1 else ""
        verdict = plan.memory_verdict(placement)
        if verdict is not Verdict.FITS:
            limit += f" {verdict}"
        table.add_row(
            placement.stage.value,
            format_bytes(memory.peak_bytes),
            Text.assemble(_bar(ratio), f" {percent(ratio)}{limit}"),
            Text.assemble((memory.instant, "magenta"), (f": {_sizes((t.name, t.value) for t in memory.terms)}", "dim")),
        )
    return Group(table, *_memory_band(plan))


def _memory_band(plan: Plan) -> list[Text]:
    band = plan.memory_band
    if band is None:
        return []
    limits = f"{band.low_ratio:.2f} to {band.high_ratio:.2f} times the peak"
    return [Text(f"{percent(band.coverage_ratio)} band {limits}; {band.basis}", style="dim")]


def _sizes(terms: Iterable[tuple[str, float]]) -> str:
    """The largest terms in GiB, largest first, and the sum of the others."""
    ranked = sorted(terms, key=lambda term: (-term[1], term[0]))
    shown = [(name, value) for name, value in ranked[:_SHOWN_TERMS] if value >= 0.05 * 2**30]
    rest = sum(value for _, value in ranked[len(shown) :])
    words = [f"{term_words(name)} {value / 2**30:.1f}" for name, value in shown]
    return ", ".join([*words, *([f"others {rest / 2**30:.1f}"] if rest >= 0.05 * 2**30 else [])])


def _bar(ratio: float) -> Text:
    filled = min(_BAR, round(ratio * _BAR))
    style = "red" if ratio > 1 else "yellow" if ratio > 0.95 else "green"
    return Text("#" * filled, style=style) + Text("-" * (_BAR - filled), style="dim")


def _fullest_hosts(plan: Plan) -> list[tuple[str, HostRam]]:
    """Per pool, the placement whose nodes hold most; a placement counts all workers on its GPUs."""
    pool_of = {group.id: group.pool for group in plan.device_groups}
    result: dict[str, HostRam] = {}
    for placement in plan.placements:
        host, pool = placement.host_ram, pool_of.get(placement.device_group)
        if host is not None and pool is not None and (pool not in result or host.peak_bytes > result[pool].peak_bytes):
            result[pool] = host
    return sorted(result.items())


def _host_ram(plan: Plan) -> Table | None:
    hosts = _fullest_hosts(plan)
    if not hosts:
        return None
    table = _table()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for pool, host in hosts:
        ratio = host.peak_bytes / host.usable_bytes
        table.add_row(
            f"{pool}, per node",
            format_bytes(host.peak_bytes),
            Text.assemble(_bar(ratio), f" {percent(ratio)} of {format_bytes(host.usable_bytes)} usable"),
            Text(f"GiB: {_sizes((t.name, t.value) for t in host.terms)}" if host.peak_bytes else "", style="dim"),
        )
    return table


# ---------------------------------------------------------------------------------------------- proof and context


def _search(plan: Plan) -> Table | None:
    search = plan.search
    if is_fixed(plan):
        return None
    table = _table()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(ratio=1)
    rejected = sorted(search.num_rejected, key=lambda reason: (-reason.value, reason.name))
    table.add_row("priced", f"{search.num_priced:,} candidates, {search.num_pruned:,} of them pruned as never better")
    if rejected:
        total = sum(reason.value for reason in rejected)
        reasons = "; ".join(f"{reason.name} {reason.value:,.0f}" for reason in rejected[:_SHOWN_REASONS])
        if len(rejected) > _SHOWN_REASONS:
            others = sum(reason.value for reason in rejected[_SHOWN_REASONS:])
            reasons += f"; {counted(len(rejected) - _SHOWN_REASONS, 'other reason')} {others:,.0f} (all in --json)"
        table.add_row("rejected", f"{total:,.0f}: {reasons}")
    table.add_row(
        "solver",
        f"{counted(search.num_structures, 'grouping')} of stages; "
        f"{counted(search.num_structures_solved, 'sub-problem')} closed by {search.solver}, "
        "the rest excluded by bounds",
    )
    if plan.run is not None:
        table.add_row(
            "run",
            f"{format_seconds(plan.run.time_s)}, first plan after {format_seconds(plan.run.time_to_first_s)}, "
            f"peak {format_bytes(plan.run.peak_rss_bytes)} of RAM",
        )
    return table


def _frameworks(plan: Plan) -> Table | None:
    if not plan.frameworks:
        return None
    table = _table()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(ratio=1)
    for verdict in plan.frameworks:
        can = Text("can run this plan", style="green")
        cannot = Text.assemble(("cannot", "yellow"), ": " + "; ".join(verdict.reasons))
        table.add_row(verdict.framework, can if verdict.can_run else cannot)
    return table


def _alternatives(plan: Plan) -> Table | None:
    if not plan.alternatives:
        return None
    table = _table()
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for other in plan.alternatives:
        change = (other.time_s / plan.time_s - 1) if plan.time_s else 0.0
        table.add_row(
            format_seconds(other.time_s),
            f"{change:+.1%}",
            counted(other.num_gpus, "GPU"),
            other.description,
        )
    return table


def _assumptions(plan: Plan) -> Table | None:
    assumed = [item for item in plan.assumptions if item.what != MISFIT]
    if not assumed:
        return None
    table = _table()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(ratio=5)
    table.add_column(ratio=6, style="dim")
    for item in assumed:
        source = "" if item.source == "default" else f" ({item.source})"
        table.add_row(item.what, f"{item.value}{source}", item.effect)
    return table
