"""A plan for a terminal: answer first, then where, how, why it takes that long, what fits, and what was assumed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.domain.plan import HostRam, Placement, Plan, Status
from planner.domain.stages import StageName, WorkerName
from planner.domain.verdict import Verdict
from planner.report.console import MAX_WIDTH, MIN_WIDTH, fold_if_narrow, plain, print_renderable, tables
from planner.report.facts import (
    band_words,
    cost_words,
    execution_words,
    limit_words,
    proof_words,
    restriction_words,
    whole_cost_words,
)
from planner.report.pictures import memory_bars, timeline
from planner.report.staleness import staleness_table
from planner.report.words import (
    MISFIT,
    arrangement,
    counted,
    is_fixed,
    largest,
    misfits,
    one_line,
    percent,
    rests_on_defaults,
    strategy_words,
    term_words,
)
from planner.units import format_bytes, format_seconds

_BAR = 10
_SHOWN_TERMS = 5
_SHOWN_REASONS = 6
_STATUS_STYLE = {Status.OPTIMAL: "bold green", Status.FEASIBLE: "bold yellow"}
_INDENT = 2
"""Columns before the text of a section."""


def print_plan(plan: Plan, stream: TextIO, *, width: int = MAX_WIDTH, has_pictures: bool = False) -> None:
    """Writes the report; with colours only to a terminal, and never wider than `width` columns."""
    width = max(MIN_WIDTH, width)
    print_renderable(render(plan, width=width, has_pictures=has_pictures), stream, width=width)


def plan_report(plan: Plan, *, width: int = MAX_WIDTH) -> str:
    """The report as plain text without trailing spaces."""
    return plain(render(plan, width=width), width=width)


def render(plan: Plan, *, width: int = MAX_WIDTH, has_pictures: bool = False) -> Group:
    """The whole report; with bars of GPU memory by content where there is room for pictures."""
    plan = one_line(plan)
    sections: list[RenderableType] = [_headline(plan)]
    sections += _section("Device groups", _device_groups(plan))
    sections += _section("Stages", _stages(plan))
    sections += _section("Timeline", timeline(plan, width - _INDENT))
    sections += _section("What staleness buys", staleness_table(plan))
    sections += _section("GPU memory at each stage's worst instant", _gpu_memory(plan))
    if has_pictures:
        sections += _section("GPU memory against the device", memory_bars(plan, width - _INDENT))
    sections += _section("Host RAM", _host_ram(plan))
    sections += _section("Search", _search(plan))
    sections += _section("Frameworks", _frameworks(plan))
    sections += _section("Alternatives", _alternatives(plan))
    sections += _section("Assumptions (not given, so assumed)", _assumptions(plan))
    for body in tables(sections):
        fold_if_narrow(body, width - _INDENT)
    return Group(*sections)


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
        f" · {arrangement(plan)}, {execution_words(plan)}" if arrangement(plan) else "",
    )
    job = Text(
        f"{work.num_prompts:,} prompts x {work.group_size}; prompt up to {work.prompt_max_tokens:,}, "
        f"response up to {work.response.max_tokens:,} (mean {work.response.mean_tokens:,.0f}) tokens",
        style="dim",
    )
    lines = [title, job, Text(), _answer(plan), *_time_band(plan), _proof(plan), *_limits(plan)]
    restriction = restriction_words(plan)
    lines += [Text(restriction, style="dim")] if restriction else []
    lines += [*_no_framework(plan), *_few_sizes(plan)]
    lines += [Text(f"does not fit: {problem}", "bold red") for problem in misfits(plan)]
    if rests_on_defaults(plan):
        lines.append(
            Text("This plan rests on defaults alone: check the assumptions below before you rely on it.", "yellow")
        )
    return Group(*lines)


def _answer(plan: Plan) -> Text:
    whole = whole_cost_words(plan)
    parts = [
        Text.assemble((format_seconds(plan.time_s), "bold"), " per iteration"),
        Text.assemble((f"{plan.tokens_per_s_per_gpu:,.0f}", "bold"), " tokens/s/GPU"),
        Text.assemble((cost_words(plan), "bold"), " per iteration", f" ({whole})" if whole else ""),
    ]
    if plan.num_gpus != plan.cluster.num_gpus:
        parts.append(Text(f"{plan.num_gpus} of {plan.cluster.num_gpus} GPUs used"))
    return Text(" · ").join(parts)


def _time_band(plan: Plan) -> list[Text]:
    return [Text(band_words(plan), style="dim")] if plan.time_band is not None else []


def _limits(plan: Plan) -> list[Text]:
    words = limit_words(plan)
    return [Text(words, style="dim")] if words else []


def _proof(plan: Plan) -> Text:
    verdict, rest = proof_words(plan)
    return Text.assemble((verdict, _STATUS_STYLE.get(plan.status, "bold red")), rest) if verdict else Text(rest, "dim")


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
