"""The answer of a sweep for a terminal and as JSON: what to rent, what else is worth it, and what that rests on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.domain.bands import Band
from planner.domain.budget import Point, Row, RunTotal, Sweep, SweepHead, run_total
from planner.domain.plan import Plan, StalenessGain
from planner.files.plan import Json
from planner.files.prices import price_words
from planner.report.words import counted, one_line
from planner.sweep.smallest import SmallestFit
from planner.units import HOUR_S, format_seconds
from planner.whatif import Choice, Effect, Entry, Sensitivity, choose

_NONE = "-"
SHOWN_FRONT = 24
"""Rows of the front that a terminal shows; JSON and CSV have all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetView:
    """Everything that is shown of a sweep. `plans` are those of the picks."""

    sweep: Sweep
    choice: Choice
    plans: tuple[Plan, ...]
    smallest: tuple[SmallestFit, ...]
    sensitivity: Sensitivity | None
    given_up: tuple[Point, ...]
    unknown_gpus: tuple[str, ...]
    """In the user's price file, and in no catalog."""


def budget_report(view: BudgetView) -> Group:
    """The whole answer."""
    view = one_line(view)
    head, choice = view.sweep.head, view.choice
    sections: list[RenderableType] = [_headline(view)]
    if choice.picks:
        sections += _section("Cheapest, fastest, smallest", _picks(view))
        sections += _section(f"Pareto front: {_dimensions(choice)}", _front(choice))
    if view.smallest:
        sections += _section("Smallest cluster that fits at all", _smallest(view.smallest))
    if view.sensitivity is not None:
        sections += _section(f"If it is not as assumed: {_name(view.sensitivity.entry)}", _effects(view.sensitivity))
    if len(head.response_means) > 1:
        sections += _section("By mean response", _by_length(view.sweep))
    sections += _section("Prices", _lines([f"{p.kind}: {price_words(p.price)}" for p in head.prices]))
    sections += _section("Assumptions", _lines(head.assumptions))
    return Group(*sections)


def _section(title: str, body: RenderableType) -> list[RenderableType]:
    return [Text(), Text(title, style="bold cyan"), Padding(body, (0, 0, 0, 2))]


def _lines(lines: Sequence[str]) -> Table:
    """Lines that continue under their own text."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for line in lines:
        table.add_row("-", Text(line))
    return table


def _headline(view: BudgetView) -> Group:
    head, rows = view.sweep.head, view.sweep.rows
    status = Counter("a plan" if row.time_s is not None else row.status.value for row in rows)
    told = ", ".join(
        f"{count:,} with {name}" if name == "a plan" else f"{count:,} {name}" for name, count in status.items()
    )
    limits = []
    if head.max_time_s is not None:
        limits.append(f"within {format_seconds(head.max_time_s)}")
    if head.max_usd is not None:
        limits.append(f"within {head.max_usd:,.0f} USD")
    lines = [
        Text(head.title, style="bold"),
        Text(
            f"{counted(head.rates.num_steps, 'iteration')} · mean response {view.choice.response_mean_tokens:,.0f}"
            f" · {', '.join(head.kinds)} · {min(head.sizes):,} to {counted(max(head.sizes), 'GPU')}",
            style="dim",
        ),
        Text(f"{counted(len(rows), 'point')}: {told}" + (f"; {' and '.join(limits)}: "
             f"{len(view.choice.allowed):,} of {len(view.choice.entries):,}" if limits else ""), style="dim"),
    ]  # fmt: skip
    if view.given_up:
        names = ", ".join(f"{p.num_gpus} x {p.kind}" for p in view.given_up[:5])
        lines.append(Text(f"not planned, the worker died twice: {names}", style="bold red"))
    if view.unknown_gpus:
        lines.append(
            Text(f"GPUs of the price file that no catalog has: {', '.join(view.unknown_gpus[:8])}", style="dim")
        )
    return Group(*lines)


def _name(entry: Entry) -> str:
    return f"{entry.row.billed_gpus:,} x {entry.point.kind}"


def _money(run: RunTotal) -> str:
    return "no price" if run.usd is None else f"{run.usd:,.0f} USD"


def _hours(seconds: float) -> str:
    return f"{seconds / HOUR_S:,.1f} h"


def _picks(view: BudgetView) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("", style="dim", no_wrap=True)
    picks = view.choice.picks
    for pick in picks:
        table.add_column(pick.name)
    runs = [pick.entry.run for pick in picks]
    rows = [pick.entry.row for pick in picks]
    table.add_row("by", *(pick.why for pick in picks))
    table.add_row("cluster", *(f"{_name(p.entry)}, {counted(p.entry.row.num_nodes, 'node')}" for p in picks))
    table.add_row("run", *(Text(f"{run.hours:,.1f} h", style="bold") for run in runs))
    table.add_row("money", *(Text(_money(run), style="bold") for run in runs))
    table.add_row("GPU-hours", *(f"{run.gpu_hours:,.0f}" for run in runs))
    table.add_row("per iteration", *(format_seconds(row.time_s or 0.0) for row in rows))
    bands = {(plan.cluster.pools[0].name, plan.cluster.num_gpus): plan.time_band for plan in view.plans}
    shown = [bands.get((row.point.kind, row.point.num_gpus)) for row in rows]
    if any(shown):
        table.add_row("80% band", *(_band_words(view.sweep.head, *pair) for pair in zip(rows, shown, strict=True)))
    for label, name in (
        ("iterations", "iterations_s"), ("start-up", "startup_s"), ("validation", "validation_s"),
        ("checkpoints", "checkpoint_s"), ("failures", "failure_s"),
    ):  # fmt: skip
        table.add_row(f"  {label}", *(_hours(getattr(run, name)) for run in runs))
    table.add_row("interruptions", *(f"{run.num_interruptions:.2g} expected" for run in runs))
    table.add_row("checkpoint", *(f"every {run.checkpoint_every}" for run in runs))
    prices = [view.sweep.head.price(row.point.kind) for row in rows]
    table.add_row("price", *(price_words(price) for price in prices))
    if any(row.staleness for row in rows):
        table.add_row("execution", *(f"{row.execution}, lag {row.staleness}" for row in rows))
    table.add_row("proof", *(_proof(entry.entry) for entry in picks))
    table.add_row("layout", *("\n".join(row.layouts) for row in rows))
    return table


def _band_words(head: SweepHead, row: Row, band: Band | None) -> str:
    """Hours of the run at both ends of the error band of an iteration."""
    if band is None or row.time_s is None:
        return _NONE
    ends = [run_total(row, head.rates, None, time_s=row.time_s * r).hours for r in (band.low_ratio, band.high_ratio)]
    return f"{ends[0]:,.1f} to {ends[1]:,.1f} h"


def _proof(entry: Entry) -> str:
    row = entry.row
    if row.bound_s is None or not row.time_s:
        return row.status.value
    return f"{row.status.value}, within {max(0.0, 1.0 - row.bound_s / row.time_s):.2%}"


def _dimensions(choice: Choice) -> str:
    has_prices = any(entry.run.usd is not None for entry in choice.front)
    words = "hours, USD and GPU-hours" if has_prices else "hours and GPU-hours (no price is known)"
    if has_prices and choice.unpriced:
        words += f"; {', '.join(choice.unpriced)} compared in hours and GPU-hours only, without a price"
    return words


def _front(choice: Choice) -> Table:
    table = _table("cluster", "hours", "USD", "GPU-hours", "per iteration", "groups")
    chosen = {id(pick.entry): pick.name for pick in reversed(choice.picks)}
    shown = choice.front if len(choice.front) <= SHOWN_FRONT else choice.front[:SHOWN_FRONT]
    for entry in shown:
        run = entry.run
        mark = chosen.get(id(entry), "")
        table.add_row(
            _name(entry), f"{run.hours:,.1f}", _NONE if run.usd is None else f"{run.usd:,.0f}", f"{run.gpu_hours:,.0f}",
            format_seconds(entry.row.time_s or 0.0), mark,
        )  # fmt: skip
    if len(shown) < len(choice.front):
        table.add_row("...", "", "", "", "", f"{len(choice.front) - len(shown)} more: --csv or --json")
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(first, style="bold", no_wrap=True)
    for name in others[:-1]:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("" if others[-1] == "groups" else others[-1])
    return table


def _smallest(fits: Sequence[SmallestFit]) -> Table:
    table = _table("type", "GPUs", "what binds just below")
    for fit in fits:
        if fit.num_gpus is None:
            table.add_row(fit.kind, _NONE, f"nothing fits up to {fit.tried_gpus:,}: {fit.binding}")
        else:
            below = "" if fit.below_gpus is None else f"on {fit.below_gpus:,}: "
            table.add_row(fit.kind, f"{fit.num_gpus:,}", f"{below}{fit.binding}")
    return table


def _effects(found: Sensitivity) -> Group:
    table = _table("what", "hours", "USD", "GPU-hours", "note")
    base = found.entry.run
    table.add_row("as assumed", *_figures(base), "")
    for effect in found.effects:
        table.add_row(effect.what, *_figures(effect.run), Text(_effect_note(effect)))
    lines: list[RenderableType] = [table]
    if found.plan.time_band is not None:
        lines.append(Text(f"MFU: the band rests on this: {found.plan.time_band.basis}"))
    if found.break_even:
        lines.append(Text(f"price: {found.break_even}"))
    lines.append(Text(_staleness(found.staleness)))
    return Group(*lines)


def _figures(run: RunTotal | None) -> tuple[str, str, str]:
    if run is None:
        return _NONE, _NONE, _NONE
    return f"{run.hours:,.1f}", _NONE if run.usd is None else f"{run.usd:,.0f}", f"{run.gpu_hours:,.0f}"


def _effect_note(effect: Effect) -> str:
    if effect.run is None:
        return "this plan no longer fits: plan again"
    return "; ".join(part for part in ("" if effect.is_allowed else "beyond the limits", effect.note) if part)


def _staleness(gains: Sequence[StalenessGain]) -> str:
    if not gains:
        return "staleness: no asynchronous plan is open to this framework"
    times = [gain.time_s for gain in gains if gain.time_s is not None]
    if times and min(times) >= 0.999 * times[0]:
        return f"staleness: up to lag {max(gain.staleness for gain in gains)}, nothing is gained on this cluster"
    parts = [
        f"lag {gain.staleness} ({gain.mode}): "
        + (_NONE if gain.time_s is None else f"{format_seconds(gain.time_s)} per iteration")
        + ("" if gain.is_permitted else ", not permitted (--staleness, --allow)")
        for gain in gains
    ]
    return f"staleness: {'; '.join(parts)}"


def _by_length(sweep: Sweep) -> Table:
    table = _table("mean response", "cheapest", "USD", "hours", "fastest", "hours", "smallest")
    for mean in sweep.head.response_means:
        choice = choose(sweep, mean)
        cheap, fast, small = (choice.pick(name) for name in ("cheapest", "fastest", "smallest"))
        if cheap is None or fast is None or small is None:
            table.add_row(f"{mean:,.0f}", _NONE, _NONE, _NONE, _NONE, _NONE, "nothing within the limits")
            continue
        usd = _NONE if cheap.run.usd is None else f"{cheap.run.usd:,.0f}"
        table.add_row(
            f"{mean:,.0f}", _name(cheap), usd, f"{cheap.run.hours:,.1f}", _name(fast), f"{fast.run.hours:,.1f}",
            _name(small),
        )  # fmt: skip
    return table


# ---------------------------------------------------------------------------------------------- JSON


def budget_document(view: BudgetView) -> Json:
    """The same for programs."""
    head, choice = view.sweep.head, view.choice
    found = view.sensitivity
    return {
        "title": head.title,
        "steps": head.rates.num_steps,
        "response_mean_tokens": choice.response_mean_tokens,
        "picks": {pick.name: {"by": pick.why, **_entry(head, pick.entry)} for pick in choice.picks},
        "front": [_entry(head, entry) for entry in choice.front],
        "entries": [_entry(head, entry) for entry in choice.entries],
        "smallest": [
            {"type": fit.kind, "gpus": fit.num_gpus, "tried": fit.tried_gpus, "below": fit.below_gpus,
             "binding": fit.binding}
            for fit in view.smallest
        ],
        "sensitivity": None if found is None else {
            "of": _point(found.entry.point),
            "effects": [
                {"what": effect.what, "run": None if effect.run is None else _run(effect.run),
                 "within_limits": effect.is_allowed, "note": effect.note}
                for effect in found.effects
            ],
            "break_even": found.break_even,
            "staleness": _staleness(found.staleness),
        },
        "prices": {item.kind: None if item.price is None else price_words(item.price) for item in head.prices},
        "assumptions": list(head.assumptions),
        "not_planned": [_point(point) for point in view.given_up],
    }  # fmt: skip


def _point(point: Point) -> Json:
    return {"type": point.kind, "gpus": point.num_gpus, "response_mean_tokens": point.response_mean_tokens}


def _entry(head: SweepHead, entry: Entry) -> dict[str, Json]:
    row = entry.row
    price = head.price(row.point.kind)
    return {
        "point": _point(row.point), "iteration_s": row.time_s, "bound_s": row.bound_s, "status": row.status.value,
        "gpus_used": row.num_gpus, "nodes": row.num_nodes, "gpus_billed": row.billed_gpus, "run": _run(entry.run),
        "price": None if price is None else price_words(price), "groups": row.groups, "layouts": list(row.layouts),
        "execution": row.execution, "staleness": row.staleness,
    }  # fmt: skip


def _run(run: RunTotal) -> Json:
    if not run.is_finite:
        return {"ends": False}
    return {
        "ends": True, "hours": run.hours, "usd": run.usd, "gpu_hours": run.gpu_hours,
        "iterations_h": run.iterations_s / HOUR_S, "startup_h": run.startup_s / HOUR_S,
        "validation_h": run.validation_s / HOUR_S, "checkpoint_h": run.checkpoint_s / HOUR_S,
        "failures_h": run.failure_s / HOUR_S, "interruptions": run.num_interruptions,
        "checkpoint_every": run.checkpoint_every,
    }  # fmt: skip
