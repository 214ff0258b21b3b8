"""Axes: round steps, and labels that say the unit."""

from __future__ import annotations

from math import floor, log10

from planner.report.html.markup import Html, ratio, tag
from planner.units import GIB

MAX_TICKS = 6
_TIME_STEPS_S = (
    *(float(f"{base}e{power}") for power in range(-6, 1) for base in (1, 2, 5)),
    10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 21600.0, 43200.0, 86400.0,
)  # fmt: skip


def time_ticks(length_s: float) -> list[tuple[float, str]]:
    """(seconds, label) at round times from 0 up to `length_s`."""
    fallback = _round_step(length_s / MAX_TICKS)
    step = next((step for step in _TIME_STEPS_S if length_s / step <= MAX_TICKS), fallback)
    unit, size, digits = _time_unit(step, length_s)
    return [(i * step, f"{i * step / size:.{digits}f} {unit}") for i in range(floor(length_s / step + 1e-9) + 1)]


def _time_unit(step_s: float, length_s: float) -> tuple[str, float, int]:
    if step_s >= 3600.0 or (step_s >= 1800.0 and length_s >= 7200.0):
        return "h", 3600.0, 0 if step_s % 3600.0 == 0 else 1
    if step_s >= 60.0 or (step_s >= 30.0 and length_s > 120.0):
        return "min", 60.0, 0 if step_s % 60.0 == 0 else 1
    if step_s >= 1.0:
        return "s", 1.0, 0
    return "ms", 1e-3, 0 if step_s >= 1e-3 else 3


def size_ticks(length_bytes: float) -> list[tuple[float, str]]:
    """(bytes, label) at round GiB."""
    return [(value * GIB, f"{value:g} GiB" if value else "0") for value in round_ticks(length_bytes / GIB)]


def round_ticks(length: float) -> list[float]:
    """Round numbers from 0 up to `length`, in steps of 1, 2 or 5 times a power of ten."""
    if length <= 0:
        return [0.0]
    step = _round_step(length / MAX_TICKS)
    return [i * step for i in range(floor(length / step + 1e-9) + 1)]


def _round_step(least: float) -> float:
    power: float = 10.0 ** floor(log10(least)) if least > 0 else 1.0
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least * (1 - 1e-9))


def x_axis(ticks: list[tuple[float, str]], length: float) -> Html:
    """The labels of a horizontal axis, each under its place."""
    marks = []
    for value, label in ticks:
        at = value / length
        # What begins or ends at the border must not stick out of the picture.
        anchor = "start" if at < 0.03 else "end" if at > 0.94 else "middle"
        marks.append(tag("line", {"class": "tick", "x1": ratio(at), "x2": ratio(at), "y1": 0, "y2": 5}))
        marks.append(tag("text", {"class": "label", "x": ratio(at), "y": 18, "text-anchor": anchor}, label))
    return tag("svg", {"class": "chart", "height": 22, "aria-hidden": "true"}, *marks)


def grid(ticks: list[tuple[float, str]], length: float, height: int) -> list[Html]:
    """Fine lines across a picture at the ticks."""
    return [
        tag("line", {"class": "grid", "x1": ratio(v / length), "x2": ratio(v / length), "y1": 0, "y2": height})
        for v, _ in ticks
        if 0 < v < length
    ]
