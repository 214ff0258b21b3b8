"""The Pareto front of a request, for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.files.plan import Json, encode
from planner.pareto import FrontPoint
from planner.report.words import one_line
from planner.units import format_seconds_like

TITLE = "Time against money: nothing is both faster and cheaper"


def pareto_report(points: Sequence[FrontPoint]) -> Group:
    """One row per plan of the front, fastest first."""
    points = one_line(tuple(points))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("time", points[0].unit if points else "cost", "GPUs"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("vs fastest")
    table.add_column("placement", overflow="fold")
    for point in points:
        slower = point.time_s / points[0].time_s - 1.0
        cheaper = point.value / points[0].value - 1.0
        table.add_row(
            format_seconds_like(point.time_s, points[0].time_s),
            f"{point.value:,.2f}",
            str(point.num_gpus),
            "" if point is points[0] else f"{slower:+.0%} time, {cheaper:+.0%} cost",
            f"{point.structure}; {point.execution}" + ("" if point.is_proven else " (not proven)"),
        )
    return Group(Text(), Text(TITLE, style="bold cyan"), Padding(table, (0, 0, 0, 2)))


def pareto_document(points: Sequence[FrontPoint]) -> Json:
    """The front as a list of objects."""
    return [encode(point) for point in points]
