"""Where the time of each stage goes: its terms as a stacked bar, coloured by the resource that bounds each."""

from __future__ import annotations

from planner.cost.terms import TIME_TERMS, Resource, TermInfo
from planner.domain.plan import NamedValue, Placement, Plan
from planner.report.html.axis import grid, time_ticks, x_axis
from planner.report.html.marks import Bar, bar, chart
from planner.report.html.markup import Html, details, figure, legend, slug, table, tag
from planner.report.words import percent, term_words
from planner.units import format_seconds

HEIGHT = 28
_INFO = {info.name: info for info in TIME_TERMS}


def times_figure(plan: Plan) -> Html:
    """One stacked bar per stage, all on the scale of the longest."""
    timed = [placement for placement in plan.placements if placement.time_s > 0]
    if not timed:
        return figure("times", "Where the time goes", "No stage takes time.")
    length = max(placement.time_s for placement in timed)
    ticks = time_ticks(length)
    present = {_resource(term) for placement in timed for term in placement.time_terms if term.value > 0}
    keys = [(f"r-{slug(resource)}", resource) for resource in (r.value for r in Resource) if resource in present]
    return figure(
        "times", "Where the time goes",
        "Terms of each stage's time, coloured by the resource that bounds them. Terms are exposed time: what "
        "overlaps with something longer is not in them.",
        legend(keys), *(_row(plan, placement, ticks, length) for placement in timed),
        tag("div", {"class": "axis"}, x_axis(ticks, length)),
        details("Terms as a table", _term_table(timed)),
    )  # fmt: skip


def _resource(term: NamedValue) -> str:
    info = _info(term)
    return info.resource.value if info is not None else Resource.HOST.value


def _info(term: NamedValue) -> TermInfo | None:
    """The registered term; a plan of a newer minor version may have terms that this version does not know."""
    return _INFO.get(term.name)


def _ordered(placement: Placement) -> list[NamedValue]:
    """Largest first within a resource, resources in their own order, so that one colour is one block."""
    order = {resource.value: index for index, resource in enumerate(Resource)}
    terms = [term for term in placement.time_terms if term.value > 0]
    return sorted(terms, key=lambda term: (order[_resource(term)], -term.value, term.name))


def _row(plan: Plan, placement: Placement, ticks: list[tuple[float, str]], length: float) -> Html:
    marks, clock = grid(ticks, length, HEIGHT), 0.0
    for term in _ordered(placement):
        share = percent(term.value / placement.time_s)
        words = term_words(term.name)
        info = _info(term)
        meaning = f" ({info.title})" if info is not None and info.title != words else ""
        tip = f"{placement.stage.value}: {words}{meaning}, {format_seconds(term.value)}, {share}, {_resource(term)}"
        marks.append(
            bar(Bar(start=clock / length, end=(clock + term.value) / length, y=0, height=HEIGHT,
                    fills=(f"r-{slug(_resource(term))}",), tip=tip, labels=(f"{words} {share}", words)))
        )  # fmt: skip
        clock += term.value
    return tag(
        "div", {"class": "lane"},
        tag("p", {"class": "row"},
            tag("span", {}, tag("b", {}, placement.stage.value), f" bound by {placement.bound_by}"),
            tag("span", {"class": "value"}, f"{format_seconds(placement.time_s)}, "
                f"{percent(placement.time_s / plan.time_s) if plan.time_s else ''}")),
        chart(f"Time of {placement.stage.value}", HEIGHT, *marks),
    )  # fmt: skip


def _term_table(timed: list[Placement]) -> Html:
    rows = []
    for placement in timed:
        for term in sorted(placement.time_terms, key=lambda item: (-item.value, item.name)):
            if term.value > 0:
                info = _info(term)
                rows.append((placement.stage.value, term_words(term.name), info.title if info is not None else "",
                             _resource(term), info.source if info is not None else "", format_seconds(term.value),
                             percent(term.value / placement.time_s)))  # fmt: skip
    return table(("stage", "term", "meaning", "bound by", "source of the formula", "time", "share"), rows,
                 caption="Terms of each stage's time", numeric=2)  # fmt: skip
