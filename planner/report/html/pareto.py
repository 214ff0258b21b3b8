"""Points of which none beats another in both time and cost, among all that were planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner.report.html.axis import round_ticks
from planner.report.html.marks import chart
from planner.report.html.markup import Html, details, figure, join, legend, ratio, table, tag

HEIGHT = 340
MAX_TABLE_ROWS = 200
"""Points on the front are always listed; beyond this number the others are only drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    """A plan: total hours, USD (None without a price), GPUs, and what it is called."""

    hours: float
    usd: float | None
    gpus: int
    label: str


def front(points: Sequence[ParetoPoint]) -> tuple[ParetoPoint, ...]:
    """Points that no other is at least as good as in time and cost and better in one, from the fastest on.

    Cost is USD where every point has a price, else GPU-hours.
    """
    cost = _cost_of(points)
    found: list[ParetoPoint] = []
    for point in sorted(points, key=lambda p: (p.hours, cost(p), p.gpus, p.label)):
        if not found or cost(point) < cost(found[-1]):
            found.append(point)
    return tuple(found)


class _Cost:
    def __init__(self, has_prices: bool) -> None:
        self.has_prices = has_prices

    def __call__(self, point: ParetoPoint) -> float:
        if self.has_prices and point.usd is not None:
            return point.usd
        return point.hours * point.gpus

    @property
    def unit(self) -> str:
        return "USD" if self.has_prices else "GPU-hours"


def _cost_of(points: Sequence[ParetoPoint]) -> _Cost:
    return _Cost(all(point.usd is not None for point in points))


def pareto_figure(points: Sequence[ParetoPoint], *, title: str = "Time against cost") -> Html:
    """The front as a line among all points; hovering or the keyboard names each."""
    if not points:
        return figure("pareto", title, "There are no points.")
    cost, best = _cost_of(points), front(points)
    x_ticks = round_ticks(1.08 * max(point.hours for point in points))
    y_ticks = round_ticks(1.08 * max(cost(point) for point in points))
    x_max = 1.08 * max(point.hours for point in points)
    y_max = 1.08 * max(cost(point) for point in points)
    on_front = set(best)
    ordered = [*(point for point in points if point not in on_front), *best]
    marks = [*_axes(x_ticks, x_max, y_ticks, y_max, cost.unit), *_steps(best, x_max, y_max, cost)]
    marks += [_mark(point, x_max, y_max, cost, is_best=point in on_front) for point in ordered]
    return figure(
        "pareto", title,
        f"Lower left is better. {len(best)} of {len(points):,} points are on the front: none of the others is "
        f"faster and cheaper at once. Cost is in {cost.unit}.",
        legend([("dot-front", "on the front"), ("dot-other", "beaten by another point")]),
        chart(title, HEIGHT, *marks),
        details("Points as a table", _point_table(best, points, cost)),
    )  # fmt: skip


_LEFT, _RIGHT, _TOP, _BOTTOM = 0.11, 0.98, 0.03, 0.88
"""Plot area as shares of the picture."""


def _at(value: float, limit: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * value / limit


def _up(value: float, limit: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * value / limit


def _axes(x_ticks: list[float], x_max: float, y_ticks: list[float], y_max: float, unit: str) -> list[Html]:
    marks = []
    for value in x_ticks:
        at = ratio(_at(value, x_max))
        marks.append(tag("line", {"class": "grid", "x1": at, "x2": at, "y1": ratio(_TOP), "y2": ratio(_BOTTOM)}))
        marks.append(tag("text", {"class": "label", "x": at, "y": ratio(_BOTTOM), "dy": 16, "text-anchor": "middle"},
                         f"{value:g}"))  # fmt: skip
    for value in y_ticks:
        at = ratio(_up(value, y_max))
        marks.append(tag("line", {"class": "grid", "x1": ratio(_LEFT), "x2": ratio(_RIGHT), "y1": at, "y2": at}))
        marks.append(tag("text", {"class": "label", "x": ratio(_LEFT), "dx": -6, "y": at, "dy": 4,
                                  "text-anchor": "end"}, f"{value:,g}"))  # fmt: skip
    marks.append(tag("text", {"class": "label", "x": ratio(_RIGHT), "y": "100%", "dy": -5, "text-anchor": "end"},
                     "hours"))  # fmt: skip
    marks.append(tag("text", {"class": "label halo", "x": ratio(_LEFT), "y": 12, "dx": 4}, unit))
    return marks


def _steps(best: tuple[ParetoPoint, ...], x_max: float, y_max: float, cost: _Cost) -> list[Html]:
    """What can be had for each time: flat until the next point of the front."""
    marks = []
    for before, after in pairwise(best):
        x1, x2 = ratio(_at(before.hours, x_max)), ratio(_at(after.hours, x_max))
        y1, y2 = ratio(_up(cost(before), y_max)), ratio(_up(cost(after), y_max))
        marks.append(tag("line", {"class": "front", "x1": x1, "x2": x2, "y1": y1, "y2": y1}))
        marks.append(tag("line", {"class": "front", "x1": x2, "x2": x2, "y1": y1, "y2": y2}))
    return marks


def _mark(point: ParetoPoint, x_max: float, y_max: float, cost: _Cost, *, is_best: bool) -> Html:
    place = {"cx": ratio(_at(point.hours, x_max)), "cy": ratio(_up(cost(point), y_max))}
    tip = f"{point.label}: {point.hours:,.4g} h, {cost(point):,.2f} {cost.unit}, {point.gpus:,} GPUs"
    shape = {"class": "dot-front" if is_best else "dot-other", "r": 6 if is_best else 4}
    return tag("g", {"class": "mark", "role": "img", "aria-label": tip + (", on the front" if is_best else "")},
               tag("circle", {**place, **shape}))  # fmt: skip


def _point_table(best: tuple[ParetoPoint, ...], points: Sequence[ParetoPoint], cost: _Cost) -> Html:
    on_front = set(best)
    others = sorted((p for p in points if p not in on_front), key=lambda p: (p.hours, cost(p)))
    shown = others[: max(0, MAX_TABLE_ROWS - len(best))]
    rows = [
        (point.label, "yes" if point in on_front else "no", f"{point.gpus:,}", f"{point.hours:,.4g}",
         f"{cost(point):,.2f}")
        for point in (*best, *shown)
    ]  # fmt: skip
    left_out = len(others) - len(shown)
    more = f" ({left_out:,} more are only drawn)" if left_out else ""
    return join([table(("plan", "on the front", "GPUs", "hours", cost.unit), rows, caption=f"Points{more}",
                       numeric=3)])  # fmt: skip
