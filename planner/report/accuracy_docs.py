"""docs/accuracy.md and its plots, written by `rlplan validate --write-docs`."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from planner import __version__
from planner.errors import InvalidInputError
from planner.files.atomic import write_atomic
from planner.report.accuracy import (
    LEGEND,
    TITLES,
    groups_table,
    held_out_table,
    noise_words,
    quality_table,
    suspects_table,
    target_table,
    worst_cells,
)
from planner.validation.records import Table
from planner.validation.run import GROUPINGS, Evaluation
from planner.validation.targets import HeldOutError, outcomes

FILE_NAME = "accuracy.md"
PLOT_NAME = "accuracy-{table}.svg"
NUM_WORST = 8
_POINT_AREA = 6
_INCHES = 5.0


def write_accuracy(
    evaluations: Sequence[Evaluation], known: Sequence[HeldOutError], directory: Path
) -> tuple[Path, ...]:
    """Writes the page and one plot per table; returns the files. Raises InvalidInputError without matplotlib."""
    if not directory.is_dir():
        raise InvalidInputError("is no directory", where=str(directory))
    written = []
    for item in evaluations:
        if item.table is not Table.FITS:
            path = directory / PLOT_NAME.format(table=item.table.value)
            write_atomic(path, plot(item))
            written.append(path)
    path = directory / FILE_NAME
    write_atomic(path, page(evaluations, known).encode())
    return (*written, path)


def page(evaluations: Sequence[Evaluation], known: Sequence[HeldOutError]) -> str:
    """The whole page in Markdown."""
    parts = [
        "# How far the cost model can be trusted",
        f"Written by `rlplan validate --write-docs docs` of rlplan {__version__}; do not edit. Rules, groups and "
        "defaults: [validation-protocol.md](validation-protocol.md).",
        LEGEND,
        "Parameters are fitted on quality A rows, so errors in the tables per kind of run are fitted errors; the "
        "held-out errors are the ones to expect on something new.",
        "## Errors by what the fit has seen",
        _markdown(held_out_table(evaluations, known, with_anchors=True)),
        "## Targets",
        _markdown(target_table(outcomes(evaluations, known))),
    ]
    for item in evaluations:
        parts += _section(item)
    return "\n\n".join(parts) + "\n"


def _section(item: Evaluation) -> list[str]:
    counts = f"{item.result.num_rows:,} rows: {len(item.rows):,} priced, {len(item.result.unpriced):,} not."
    parts = [f"## {TITLES[item.table]}", counts]
    if item.table is Table.FITS:
        return [*parts, *_fits(item), *_unpriced(item)]
    parts += [
        f"![predicted against measured]({PLOT_NAME.format(table=item.table.value)})",
        _markdown(quality_table(item, with_anchors=True)),
    ]
    for name in GROUPINGS:
        found = groups_table(item, name, with_anchors=True)
        if found is not None:
            parts.append(_markdown(found))
    parts.append(f"{noise_words(item.noise())}.")
    suspects = suspects_table(item)
    if suspects is not None:
        parts += [
            "Terms to suspect: shares of the prediction in all rows and in the worst tenths.",
            _markdown(suspects),
        ]
    worst = [worst_cells(row) for row in item.worst(NUM_WORST)]
    if worst:
        parts += ["Furthest off:", _rows(("row", "measured", "predicted", "off by", "largest terms"), worst)]
    return [*parts, *_unpriced(item)]


def _fits(item: Evaluation) -> list[str]:
    found = item.fits()
    wrong = [
        (row.row, "works" if row.measured > 0.5 else "OOM", row.verdict or "", row.note)
        for row in item.wrong_verdicts()
    ]
    parts = [
        f"{found.num_determinable} rows state enough to determine a verdict: {found.num_works} that work and "
        f"{found.num_oom} that ran out of memory."
    ]
    return [*parts, _rows(("wrong verdict", "happened", "verdict", "worst instant"), wrong)] if wrong else parts


def _unpriced(item: Evaluation) -> list[str]:
    rules = {row.reason for row in item.result.unpriced if row.is_rule}
    rows = [(str(num), reason, "rule" if reason in rules else "") for reason, num in item.reasons().items()]
    return ["Not priced:", _rows(("rows", "reason", ""), rows)] if rows else []


def _rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def _markdown(table: RichTable) -> str:
    """A terminal table as Markdown: the cells are the same."""
    console = Console(file=io.StringIO(), width=400)
    columns = [[_plain(console, cell) for cell in column.cells] for column in table.columns]
    header = [_plain(console, column.header) for column in table.columns]
    return _rows(header, zip(*columns, strict=True))


def _plain(console: Console, cell: object) -> str:
    return " ".join("".join(segment.text for segment in console.render(cell)).split()) if cell else ""  # type: ignore[arg-type]


def plot(item: Evaluation) -> bytes:
    """Predicted against measured as SVG, quality A; raises InvalidInputError without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise InvalidInputError(
            "plots need matplotlib", where="--write-docs", accepted="pip install 'rlplan[docs]'"
        ) from None
    mpl.use("svg")
    # Fixed ids and no date: the same rows give the same file.
    mpl.rcParams["svg.hashsalt"] = "rlplan"
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_INCHES, _INCHES))
    axes = figure.subplots()
    rows = [item.rows[index] for index in item.of_quality("A")]
    units = sorted({row.unit for row in rows})
    for unit in units:
        chosen = [row for row in rows if row.unit == unit]
        axes.scatter([row.measured for row in chosen], [row.predicted for row in chosen], s=_POINT_AREA, label=unit)
    if rows:
        ends = [min(min(row.measured, row.predicted) for row in rows), max(max(r.measured, r.predicted) for r in rows)]
        for factor, style in ((1.0, "-"), (1.25, ":"), (1 / 1.25, ":")):
            axes.plot(ends, [factor * end for end in ends], style, color="0.5", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        if len(units) > 1:
            axes.legend()
    suffix = f", {units[0]}" if len(units) == 1 else ""
    axes.set_xlabel(f"measured{suffix}")
    axes.set_ylabel(f"predicted{suffix}")
    axes.set_title(f"{TITLES[item.table]} (quality A; dotted: 25 %)")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches="tight")
    return buffer.getvalue()
