"""Points of which none beats another in both time and cost, among all that were planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor

from planner.report.html.axis import round_ticks
from planner.report.html.marks import chart
from planner.report.html.markup import Html, details, figure, join, ratio, table, tag

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
    series: str = ""
    """What its colour stands for, such as the GPU type."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plane:
    """Where values are in the picture, as shares of it. Axes begin at 0 unless all values are far from it."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (value - self.x_low) / (self.x_high - self.x_low)

    def y(self, value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (value - self.y_low) / (self.y_high - self.y_low)


def pareto_figure(points: Sequence[ParetoPoint], *, title: str = "Time against cost", note: str = "") -> Html:
    """The front as a line among all points; hovering or the keyboard names each."""
    if not points:
        return figure("pareto", title, "There are no points.")
    cost, best = _cost_of(points), front(points)
    x_low, x_high = _limits([point.hours for point in points])
    y_low, y_high = _limits([cost(point) for point in points])
    plane = _Plane(x_low=x_low, x_high=x_high, y_low=y_low, y_high=y_high)
    on_front = set(best)
    series = sorted({point.series for point in points})
    ordered = [*_thinned([point for point in points if point not in on_front], plane, cost), *best]
    marks = [*_axes(plane, cost.unit), *_steps(best, plane, cost)]
    marks += [_mark(point, plane, cost, series, is_best=point in on_front) for point in ordered]
    return figure(
        "pareto", title,
        f"Lower left is better. {len(best)} of {len(points):,} points are on the front, the line: no other is both "
        f"faster and cheaper than one of them. {note}",
        _legend(series) if len(series) > 1 else "",
        chart(title, HEIGHT, *marks),
        details("Points as a table", _point_table(best, points, cost)),
    )  # fmt: skip


_LEFT, _RIGHT, _TOP, _BOTTOM = 0.11, 0.98, 0.03, 0.88
"""Plot area as shares of the picture."""
NUM_COLOURS = 8
MAX_DRAWN = 2000
"""Beyond this number, points that would cover each other are drawn once."""


def _limits(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high <= 0:
        return 0.0, 1.0
    if low < 0.6 * high:
        return 0.0, 1.08 * high
    margin = 0.2 * (high - low) or 0.1 * high
    return low - margin, high + margin


def _thinned(points: list[ParetoPoint], plane: _Plane, cost: _Cost) -> list[ParetoPoint]:
    if len(points) <= MAX_DRAWN:
        return points
    cells = {(round(120 * plane.x(p.hours)), round(60 * plane.y(cost(p))), p.series): p for p in reversed(points)}
    return list(cells.values())


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between two limits."""
    step = round_ticks(high - low)
    size = step[1] if len(step) > 1 else high - low
    return [i * size for i in range(ceil(low / size - 1e-9), floor(high / size + 1e-9) + 1)]


def _axes(plane: _Plane, unit: str) -> list[Html]:
    marks = []
    top, bottom, left, right = ratio(_TOP), ratio(_BOTTOM), ratio(_LEFT), ratio(_RIGHT)
    for value in _ticks(plane.x_low, plane.x_high):
        at = ratio(plane.x(value))
        marks.append(tag("line", {"class": "grid", "x1": at, "x2": at, "y1": top, "y2": bottom}))
        marks.append(
            tag("text", {"class": "label", "x": at, "y": bottom, "dy": 16, "text-anchor": "middle"}, f"{value:,.6g}")
        )
    for value in _ticks(plane.y_low, plane.y_high):
        at = ratio(plane.y(value))
        marks.append(tag("line", {"class": "grid", "x1": left, "x2": right, "y1": at, "y2": at}))
        place: dict[str, str | int] = {"x": left, "dx": -6, "y": at, "dy": 4}
        marks.append(tag("text", {"class": "label", **place, "text-anchor": "end"}, f"{value:,.6g}"))
    marks.append(tag("text", {"class": "label", "x": right, "y": "100%", "dy": -5, "text-anchor": "end"}, "hours"))
    marks.append(tag("text", {"class": "label halo", "x": left, "y": 12, "dx": 4}, unit))
    return marks


def _steps(best: tuple[ParetoPoint, ...], plane: _Plane, cost: _Cost) -> list[Html]:
    """What can be had for each time: flat until the next point of the front."""
    marks = []
    for before, after in pairwise(best):
        x1, x2 = ratio(plane.x(before.hours)), ratio(plane.x(after.hours))
        y1, y2 = ratio(plane.y(cost(before))), ratio(plane.y(cost(after)))
        marks.append(tag("line", {"class": "front", "x1": x1, "x2": x2, "y1": y1, "y2": y1}))
        marks.append(tag("line", {"class": "front", "x1": x2, "x2": x2, "y1": y1, "y2": y2}))
    return marks


def _mark(point: ParetoPoint, plane: _Plane, cost: _Cost, series: list[str], *, is_best: bool) -> Html:
    tip = f"{point.label}: {point.hours:,.4g} h, {cost(point):,.2f} {cost.unit}, {point.gpus:,} GPUs"
    told = tip + (", on the front" if is_best else "")
    place = {"x": ratio(plane.x(point.hours)), "y": ratio(plane.y(cost(point)))}
    symbol = _symbol(series.index(point.series), 6 if is_best else 4, is_best=is_best)
    return tag("g", {"class": "mark", "role": "img", "aria-label": told},
               tag("svg", {**place, "class": "symbol"}, symbol))  # fmt: skip


_SYMBOLS = (
    "M-{r} 0 A{r} {r} 0 1 1 {r} 0 A{r} {r} 0 1 1 -{r} 0 Z",
    "M-{r} -{r} H{r} V{r} H-{r} Z",
    "M0 -{r} L{r} {r} H-{r} Z",
    "M0 -{r} L{r} 0 L0 {r} L-{r} 0 Z",
    "M0 {r} L{r} -{r} H-{r} Z",
)
"""Circle, square, triangle, diamond, triangle upside down: kinds differ in shape as well as in colour."""


def _symbol(index: int, radius: int, *, is_best: bool = False) -> Html:
    path = _SYMBOLS[index % len(_SYMBOLS)].format(r=radius)
    return tag("path", {"class": f"point d{index % NUM_COLOURS}" + (" best" if is_best else ""), "d": path})


def _legend(series: list[str]) -> Html:
    keys = (
        tag(
            "li", {}, tag("svg", {"class": "key", "viewBox": "-8 -8 16 16", "aria-hidden": "true"}, _symbol(i, 6)), name
        )
        for i, name in enumerate(series)
    )
    return tag("ul", {"class": "legend"}, *keys)


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
