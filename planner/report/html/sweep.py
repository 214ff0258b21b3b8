"""The page of a sweep: what to rent, time against cost of all points, and what that rests on."""

from __future__ import annotations

from collections import Counter

from planner.domain.budget import RunTotal, Sweep
from planner.files.prices import price_words
from planner.report.html.markup import Html, details, figure, table, tag
from planner.report.html.page import document
from planner.report.html.pareto import ParetoPoint, pareto_figure
from planner.report.words import counted, one_line
from planner.units import HOUR_S, format_seconds
from planner.whatif import Choice, Entry, choose


def sweep_page(sweep: Sweep) -> str:
    """The HTML document of a sweep at the workload's own mean response length, others as a table."""
    sweep = one_line(sweep)
    choice = choose(sweep)
    points = pareto_figure(
        sweep_points(choice),
        title="Time against cost of the whole run",
        note="Colour and shape are the kind of node." if len(sweep.head.kinds) > 1 else "",
    )
    sections = [_headline(sweep, choice), points, *([_picks(sweep, choice)] if choice.picks else [])]
    sections += [_sizes(sweep, choice), _lengths(sweep), _failed(sweep), _prices(sweep), _assumptions(sweep)]
    return document(sweep.head.title, sections)


def sweep_points(choice: Choice) -> list[ParetoPoint]:
    """Runs within the limits as points; those that never end are left out."""
    return [
        ParetoPoint(
            hours=entry.run.hours, usd=entry.run.usd, gpus=entry.row.billed_gpus, label=cluster_words(entry),
            series=entry.point.kind,
        )
        for entry in choice.allowed
        if entry.run.is_finite
    ]  # fmt: skip


def cluster_words(entry: Entry) -> str:
    return f"{entry.row.billed_gpus:,} × {entry.point.kind}"


def _money(run: RunTotal) -> str:
    return f"{run.gpu_hours:,.0f} GPU-hours" if run.usd is None else f"{run.usd:,.0f} USD"


def _headline(sweep: Sweep, choice: Choice) -> Html:
    head = sweep.head
    title, _, rest = head.title.partition(" · ")
    status = Counter("with a plan" if row.time_s is not None else row.status.value for row in sweep.rows)
    told = ", ".join(f"{count:,} {name}" for name, count in status.items())
    limits = [
        f"within {format_seconds(head.max_time_s)}" if head.max_time_s is not None else "",
        f"within {head.max_usd:,.0f} USD" if head.max_usd is not None else "",
    ]
    given = " and ".join(limit for limit in limits if limit)
    kept = f" {len(choice.allowed):,} of {len(choice.entries):,} runs are {given}." if given else ""
    missing = head.num_points - len(sweep.rows)
    tiles = (
        tag("div", {"class": "tile"}, tag("dt", {}, pick.name), tag("dd", {}, cluster_words(pick.entry)),
            tag("dd", {"class": "note"}, f"{pick.entry.run.hours:,.1f} h, {_money(pick.entry.run)}"))
        for pick in choice.picks
    )  # fmt: skip
    return tag(
        "header", {},
        tag("h1", {}, title),
        tag("p", {"class": "note"}, rest) if rest else "",
        tag("p", {"class": "lead"}, f"{counted(head.rates.num_steps, 'iteration')} on {', '.join(head.kinds)}"),
        tag("p", {"class": "note"}, f"{counted(len(sweep.rows), 'point')}: {told or 'none'}; mean response "
            f"{choice.response_mean_tokens:,.0f} tokens.{kept}"),
        tag("dl", {"class": "tiles three"}, *tiles) if choice.picks else "",
        tag("p", {"class": "warning"}, "No run is within the limits.") if not choice.picks else "",
        tag("p", {"class": "warning"}, f"{counted(missing, 'point')} of the sweep not planned yet.") if missing else "",
    )  # fmt: skip


_PARTS = (
    ("iterations", "iterations_s"), ("start-up", "startup_s"), ("validation", "validation_s"),
    ("checkpoints", "checkpoint_s"), ("failures", "failure_s"),
)  # fmt: skip


def _picks(sweep: Sweep, choice: Choice) -> Html:
    header = ("", *(pick.name for pick in choice.picks))
    entries = [pick.entry for pick in choice.picks]
    rows = [
        ("by", *(pick.why for pick in choice.picks)),
        ("cluster", *(f"{cluster_words(e)}, {counted(e.row.num_nodes, 'node')}" for e in entries)),
        ("whole run", *(f"{e.run.hours:,.1f} h" for e in entries)),
        ("cost", *("no price known" if e.run.usd is None else f"{e.run.usd:,.0f} USD" for e in entries)),
        ("GPU-hours", *(f"{e.run.gpu_hours:,.0f}" for e in entries)),
        ("per iteration", *(format_seconds(e.row.time_s or 0.0) for e in entries)),
        *((name, *(f"{getattr(e.run, field) / HOUR_S:,.1f} h" for e in entries)) for name, field in _PARTS),
        ("price", *(price_words(sweep.head.price(e.point.kind)) for e in entries)),
        ("execution", *(e.row.execution for e in entries)),
        ("layout", *("; ".join(e.row.layouts) for e in entries)),
    ]
    return figure(
        "picks", "Cheapest, fastest, smallest", "Whole runs, with everything beyond the iterations.",
        table(header, rows, caption="Cheapest, fastest and smallest cluster"),
    )  # fmt: skip


def _sizes(sweep: Sweep, choice: Choice) -> Html:
    rows = [
        (entry.point.kind, f"{entry.row.billed_gpus:,}", format_seconds(entry.row.time_s or 0.0),
         f"{entry.run.hours:,.1f}" if entry.run.is_finite else "never ends",
         "-" if entry.run.usd is None or not entry.run.is_finite else f"{entry.run.usd:,.0f}",
         f"{entry.run.gpu_hours:,.0f}" if entry.run.is_finite else "-")
        for entry in sorted(choice.entries, key=lambda e: (e.point.kind, e.row.billed_gpus))
    ]  # fmt: skip
    if not rows:
        return Html("")
    return figure(
        "points", "All points", f"At a mean response of {choice.response_mean_tokens:,.0f} tokens.",
        details("All points as a table",
                table(("type", "GPUs", "per iteration", "hours", "USD", "GPU-hours"), rows, caption="Points",
                      numeric=5)),
    )  # fmt: skip


def _lengths(sweep: Sweep) -> Html:
    """What the answer becomes when responses are shorter or longer."""
    if len(sweep.head.response_means) < 2:
        return Html("")
    rows = []
    for mean in sorted(sweep.head.response_means):
        choice = choose(sweep, mean)
        told = [f"{cluster_words(p.entry)}: {p.entry.run.hours:,.1f} h, {_money(p.entry.run)}" for p in choice.picks]
        rows.append((f"{mean:,.0f} tokens", *(told or ["nothing within the limits", "-", "-"])))
    return figure(
        "lengths", "By mean response", "Response lengths decide more than anything else; measure yours.",
        table(("mean response", "cheapest", "fastest", "smallest"), rows, caption="Answer by mean response length"),
    )  # fmt: skip


def _failed(sweep: Sweep) -> Html:
    rows = [
        (f"{row.point.num_gpus:,} × {row.point.kind}", f"{row.point.response_mean_tokens:,.0f}", row.status.value,
         row.reason or "-")
        for row in sweep.rows
        if row.time_s is None
    ]  # fmt: skip
    if not rows:
        return Html("")
    return figure(
        "failed", "Points without a plan", "What fits nowhere, and why.",
        details("Points without a plan as a table",
                table(("cluster", "mean response", "status", "reason"), rows, caption="Points without a plan")),
    )  # fmt: skip


def _prices(sweep: Sweep) -> Html:
    rows = [(item.kind, price_words(item.price)) for item in sweep.head.prices]
    return figure("prices", "Prices", "", table(("type", "price"), rows, caption="Prices")) if rows else Html("")


def _assumptions(sweep: Sweep) -> Html:
    if not sweep.head.assumptions:
        return Html("")
    items = (tag("li", {}, text) for text in sweep.head.assumptions)
    return figure("assumptions", "Assumptions", "", tag("ul", {"class": "plain"}, *items))
