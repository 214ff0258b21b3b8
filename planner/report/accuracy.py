"""The result of `rlplan validate` for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from planner.report.words import largest, term_words
from planner.units import format_bytes, format_seconds
from planner.validation.records import Priced, Table
from planner.validation.run import GROUPINGS, Evaluation, GroupStatistics
from planner.validation.statistics import ErrorStatistics, NoiseFloor, group_by, term_shares
from planner.validation.targets import (
    ANCHOR_SPLITS,
    SETS,
    HeldOutError,
    Outcome,
    Split,
    error_words,
    members,
    outcomes,
    pair_words,
    reached_errors,
)

TITLES = {
    Table.TRAIN: "Training time",
    Table.RL: "RL steps",
    Table.RL_STAGES: "Stages of RL steps",
    Table.MEMORY: "Peak GPU memory",
    Table.GENERATION: "Generation",
    Table.FITS: "Fits or runs out of memory",
}
_TWO_LINES = {
    Split.CONFIGURATION: "held out:\nconfiguration",
    Split.FAMILY: "held out:\nfamily",
    Split.GPU: "held out:\nGPU",
    Split.ANCHOR_ROW: "one\nanchor row",
}
SHOWN_SUSPECTS = 5
SHOWN_REASONS = 12
SHOWN_GROUPS = 14
SHOWN_TERMS = 3
LEGEND = (
    "Errors: |predicted / measured - 1|, median / 90th percentile. Bias: median signed error, + predicts too much. "
    "Order: pairs of one workload that differ by 25 % or more, share in the right order. Regret: how much slower the "
    "chosen configuration was than the best measured. Bands: share of rows in the 80 % band made from other model "
    "families, and the band's median width."
)


def accuracy_report(
    evaluations: Sequence[Evaluation], known: Sequence[HeldOutError], *, num_worst: int, with_anchors: bool
) -> Group:
    """All tables, then held-out errors and targets; the figures of quality A rows are the ones that count."""
    parts: list[RenderableType] = [Text(LEGEND, style="dim")]
    for item in evaluations:
        parts += [Text(), _heading(item)]
        parts += _fits(item, num_worst) if item.table is Table.FITS else _errors(item, num_worst, with_anchors)
        parts += _unpriced(item)
    reached = outcomes(evaluations, known, with_anchors=with_anchors)
    if reached:
        parts += [
            Text(),
            Text("Errors by what the fit has seen", style="bold"),
            held_out_table(evaluations, known, with_anchors=with_anchors),
        ]
        parts += [Text(), Text("Targets (quality A)", style="bold"), target_table(reached)]
    return Group(*parts)


def _heading(item: Evaluation) -> Text:
    counts = f"  {item.result.num_rows:,} rows: {len(item.rows):,} priced, {len(item.result.unpriced):,} not"
    return Text.assemble((TITLES[item.table], "bold"), counts)


def _errors(item: Evaluation, num_worst: int, with_anchors: bool) -> list[RenderableType]:
    parts: list[RenderableType] = [quality_table(item, with_anchors=with_anchors)]
    for name in GROUPINGS:
        found = groups_table(item, name, with_anchors=with_anchors)
        if found is not None:
            parts.append(found)
    parts.append(Text(noise_words(item.noise())))
    tables = (suspects_table(item), worst_table(item, num_worst)) if num_worst else ()
    return [*parts, *(table for table in tables if table is not None)]


def _figures_table(first: str, with_anchors: bool) -> RichTable:
    table = _table()
    table.add_column(first, style="bold", no_wrap=True, max_width=34)
    for name in _columns(with_anchors):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _columns(with_anchors: bool) -> tuple[str, ...]:
    anchored = ("anchored",) if with_anchors else ()
    return ("rows", "error", "bias", *anchored, "order", "regret", "bands", "width")


def figures(found: GroupStatistics, *, with_anchors: bool) -> list[str]:
    """The cells of a row of figures, in the order of the columns."""
    order = found.order
    cells = [f"{found.plain.num:,}", error_words(found.plain), _bias(found.plain)]
    if with_anchors:
        cells.append(error_words(found.anchored))
    pairs = f"{_percent(order.agreement_ratio)} of {order.num_pairs:,}" if order.num_pairs else ""
    return [*cells, pairs, _percent(order.regret_median_ratio), _percent(found.coverage_ratio), _width(found)]


def _bias(found: ErrorStatistics) -> str:
    return f"{100 * found.bias_ratio:+.0f}%" if found.num else ""


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * ratio:.0f}%"


def _width(found: GroupStatistics) -> str:
    return "" if found.width_ratio is None else f"x{1.0 + found.width_ratio:.2f}"


def quality_table(item: Evaluation, *, with_anchors: bool) -> RichTable:
    """Figures by quality; for memory also those of large peaks."""
    table = _figures_table("quality", with_anchors)
    for name, part in item.by_quality().items():
        if part:
            _add(table, name or "not stated", *figures(item.statistics(part), with_anchors=with_anchors))
    if item.table is Table.MEMORY:
        large = set(item.large())
        part = tuple(index for index in item.of_quality("A") if index in large)
        _add(table, "A, 10 GiB and more", *figures(item.statistics(part), with_anchors=with_anchors))
    return table


def groups_table(item: Evaluation, grouping: str, *, with_anchors: bool) -> RichTable | None:
    """Figures of quality A rows by one key; None where all rows are alike."""
    chosen = item.of_quality("A")
    found = group_by([item.rows[index] for index in chosen], GROUPINGS[grouping])
    if len(found) < 2:
        return None
    table = _figures_table(f"quality A by {grouping}", with_anchors)
    for value, part in list(found.items())[:SHOWN_GROUPS]:
        statistics = item.statistics([chosen[i] for i in part])
        _add(table, value, *figures(statistics, with_anchors=with_anchors))
    if len(found) > SHOWN_GROUPS:
        _add(table, f"{len(found) - SHOWN_GROUPS} more: --json")
    return table


def noise_words(noise: NoiseFloor) -> str:
    """How far repeats of one configuration lie apart."""
    parts = [
        f"{name} {pair_words(median, p90)} ({num} pairs)"
        for name, num, median, p90 in (
            ("within a release", noise.num_same_release, noise.same_release_median_ratio, noise.same_release_p90_ratio),
            ("across", noise.num_other_release, noise.other_release_median_ratio, noise.other_release_p90_ratio),
        )
        if num
    ]
    return f"Noise floor, one configuration measured again: {'; '.join(parts) or 'no repeats'}"


def suspects_table(item: Evaluation) -> RichTable | None:
    """Terms that the worst tenths of quality A consist of more than other rows do; None with too few rows."""
    shares = term_shares([item.rows[index] for index in item.of_quality("A")])
    if not shares:
        return None
    table = _table()
    table.add_column("share of term", style="bold")
    for name in ("all rows", "tenth too low", "tenth too high"):
        table.add_column(name, justify="right")
    for share in shares[:SHOWN_SUSPECTS]:
        ratios = (share.all_ratio, share.too_low_ratio, share.too_high_ratio)
        _add(table, term_words(share.name), *(f"{100 * ratio:.0f}%" for ratio in ratios))
    return table


def worst_table(item: Evaluation, num_worst: int) -> RichTable | None:
    """The quality A rows that are furthest off, with their largest terms."""
    rows = item.worst(num_worst)
    if not rows:
        return None
    table = _table()
    for name in ("worst of quality A", "measured", "predicted", "off by", "largest terms"):
        table.add_column(name, no_wrap=name in ("measured", "predicted", "off by"), overflow="fold")
    for row in rows:
        _add(table, *worst_cells(row))
    return table


def worst_cells(row: Priced) -> tuple[str, str, str, str, str]:
    """Row, measured, predicted, error, largest terms."""
    amount = amount_words(row.unit)
    terms = ", ".join(f"{name} {share:.0%}" for name, share in largest(row.terms, count=SHOWN_TERMS, least_ratio=0.02))
    return row.row, amount(row.measured), amount(row.predicted), f"{row.error_ratio:+.0%}", terms


def amount_words(unit: str) -> Callable[[float], str]:
    """How values of a unit are written."""
    if unit == "s":
        return format_seconds
    if unit == "bytes":
        return format_bytes
    return lambda value: f"{value:,.4g} {unit}"


def _fits(item: Evaluation, num_worst: int) -> list[RenderableType]:
    found = item.fits()
    lines = [
        f"Determined by what they state: {found.num_determinable}",
        f"Works ({found.num_works}): {_percent(found.works_accepted_ratio)} get fits or marginal",
        f"OOM ({found.num_oom}): {_percent(found.oom_rejected_ratio)} get does not fit or marginal",
        f"Marginal: {_percent(found.marginal_ratio)} of all",
    ]
    table = _table()
    for name in ("wrong verdict", "happened", "verdict", "worst instant"):
        table.add_column(name, overflow="fold")
    wrong = item.wrong_verdicts()
    for row in wrong[: num_worst or None]:
        _add(table, row.row, "works" if row.measured > 0.5 else "OOM", row.verdict or "", row.note)
    return [Text("\n".join(lines)), *([table] if wrong and num_worst else [])]


def _unpriced(item: Evaluation) -> list[RenderableType]:
    reasons = item.reasons()
    if not reasons:
        return []
    rules = {row.reason for row in item.result.unpriced if row.is_rule}
    table = _table()
    table.add_column("not priced", justify="right")
    table.add_column("reason", overflow="fold", ratio=1)
    for reason, num in list(reasons.items())[:SHOWN_REASONS]:
        _add(table, f"{num:,}", f"{reason}{' (rule)' if reason in rules else ''}")
    if len(reasons) > SHOWN_REASONS:
        rest = sum(list(reasons.values())[SHOWN_REASONS:])
        _add(table, f"{rest:,}", f"{len(reasons) - SHOWN_REASONS} other reasons: --json")
    return [table]


def target_table(found: Sequence[Outcome]) -> RichTable:
    """Targets with what was reached."""
    table = _table()
    for name in ("set", "on", "wanted", "reached", "rows", ""):
        table.add_column(name, justify="right" if name == "rows" else "left")
    for outcome in found:
        style = {True: "green", False: "red", None: "dim"}[outcome.is_met]
        reached = outcome.reached or "no figure"
        _add(table,
            outcome.name, outcome.criterion, outcome.wanted, reached, f"{outcome.num:,}",
            Text(verdict_words(outcome), style=style),
        )  # fmt: skip
    return table


def held_out_table(
    evaluations: Sequence[Evaluation], known: Sequence[HeldOutError], *, with_anchors: bool
) -> RichTable:
    """Errors of quality A rows as fitted, held out and anchored, one line per set of rows."""
    table = _table()
    table.add_column("quality A", style="bold", max_width=34)
    splits = [split for split in Split if with_anchors or split not in ANCHOR_SPLITS]
    for name in ("rows", *(_TWO_LINES.get(split, split.value) for split in splits)):
        table.add_column(name, justify="right")
    for item in evaluations:
        for target_set in SETS:
            chosen = members(item, target_set) if target_set.table is item.table else ()
            if chosen:
                found = reached_errors(item, target_set, known)
                cells = (error_words(found[split]) if split in found else "" for split in splits)
                _add(table, target_set.name, f"{len(chosen):,}", *cells)
    return table


def verdict_words(outcome: Outcome) -> str:
    """met, missed or nothing."""
    return {True: "met", False: "missed", None: ""}[outcome.is_met]


def _add(table: RichTable, *cells: str | Text) -> None:
    """A row of plain text: cells come from files of the user and must not be read as markup or control codes."""
    table.add_row(*(_cell(cell) if isinstance(cell, str) else cell for cell in cells))


def _cell(text: str) -> Text:
    return Text("".join(c if c.isprintable() else " " for c in text))


def _table() -> RichTable:
    return RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
