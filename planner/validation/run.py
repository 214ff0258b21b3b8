"""Prices whole tables of measurements and judges the predictions: what `rlplan validate` shows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner.domain.bands import ResidualTable
from planner.errors import InvalidInputError, nearest
from planner.files.residuals import ResidualFile, load_residuals
from planner.units import GIB
from planner.validation import anchors, bands, read
from planner.validation.records import Priced, Table, TableResult, Unpriced, Verdict
from planner.validation.statistics import (
    ErrorStatistics,
    NoiseFloor,
    RankStatistics,
    errors,
    group_by,
    log_residual,
    noise_floor,
    rank,
)

LARGE_BYTES = 10 * GIB
"""Peaks from here on decide what fits; smaller ones check formulas."""
QUALITIES = ("A", "B", "C")
BANDED = frozenset((Table.TRAIN, Table.RL, Table.RL_STAGES, Table.MEMORY, Table.GENERATION))
"""Tables of quantities; the table of fits has verdicts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to price. Empty texts and None mean everything; `directory` None means the tables that come with rlplan."""

    tables: tuple[Table, ...] = tuple(Table)
    gpu: str = ""
    model: str = ""
    directory: Path | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all rows that come with rlplan are meant."""
        return set(self.tables) == set(Table) and not (self.gpu or self.model or self.directory)


def tables_named(names: Sequence[str]) -> tuple[Table, ...]:
    """The tables of `--table`; all of them for no names. RL steps bring their stages."""
    known = {table.value: table for table in Table if table is not Table.RL_STAGES}
    found: set[Table] = set()
    for name in names:
        table = known.get(name.strip().lower())
        if table is None:
            raise InvalidInputError(
                f"{name[:60]!r} is no table",
                where="--table",
                accepted=", ".join(known),
                suggestion=nearest(name, known),
            )
        found.add(table)
    if not found or Table.RL in found:
        found.add(Table.RL_STAGES)
    return tuple(table for table in Table if table in found) if names else tuple(Table)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """Everything about one group of rows. `anchored` figures come from predictions with anchors."""

    plain: ErrorStatistics
    anchored: ErrorStatistics
    order: RankStatistics
    anchored_order: RankStatistics
    coverage_ratio: float | None
    width_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FitStatistics:
    """Verdicts on configurations that are known to work or to run out of memory. None without rows."""

    num_determinable: int
    num_works: int
    num_oom: int
    works_accepted_ratio: float | None
    """Share of working configurations with the verdict fits or marginal."""
    oom_rejected_ratio: float | None
    """Share of out-of-memory configurations with the verdict does not fit or marginal."""
    marginal_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A priced table with what anchors and bands add; sequences run over `result.priced`."""

    result: TableResult
    corrections: tuple[float, ...]
    judged: bands.JudgedBands

    @property
    def table(self) -> Table:
        return self.result.table

    @property
    def rows(self) -> tuple[Priced, ...]:
        return self.result.priced

    def statistics(self, chosen: Sequence[int]) -> GroupStatistics:
        """Figures of the rows with these indices."""
        rows = [self.rows[index] for index in chosen]
        corrections = [self.corrections[index] for index in chosen]
        return GroupStatistics(
            plain=errors(rows),
            anchored=errors(rows, corrections),
            order=rank(rows),
            anchored_order=rank(rows, corrections),
            coverage_ratio=self.judged.coverage_ratio(chosen),
            width_ratio=self.judged.median_width_ratio(chosen),
        )

    def by_quality(self) -> Mapping[str, tuple[int, ...]]:
        """Indices of rows by quality; A, B and C are always there."""
        found = group_by(self.rows, lambda row: row.quality)
        return {**{name: found.get(name, ()) for name in QUALITIES}, **found}

    def of_quality(self, qualities: str) -> tuple[int, ...]:
        return tuple(index for index, row in enumerate(self.rows) if row.quality in qualities)

    def large(self) -> tuple[int, ...]:
        """Memory rows of 10 GiB and more."""
        return tuple(index for index, row in enumerate(self.rows) if row.measured >= LARGE_BYTES)

    def worst(self, num: int, *, qualities: str = "A") -> tuple[Priced, ...]:
        """The rows that are furthest off, as factors."""
        chosen = [self.rows[index] for index in self.of_quality(qualities)]
        return tuple(sorted(chosen, key=lambda row: (-abs(log_residual(row)), row.row))[:num])

    def reasons(self) -> Mapping[str, int]:
        """How many rows are not priced, by reason."""
        counts = Counter(item.reason for item in self.result.unpriced)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def noise(self) -> NoiseFloor:
        """Spread of repeated measurements of quality A."""
        return noise_floor([self.rows[index] for index in self.of_quality("A")])

    def wrong_verdicts(self) -> tuple[Priced, ...]:
        """Rows of the table of fits whose verdict contradicts what happened."""
        return tuple(row for row in self.rows if is_wrong(row))

    def fits(self) -> FitStatistics:
        """Verdicts; only meaningful for the table of fits."""
        return fit_statistics(self.rows)


GROUPINGS: Mapping[str, Callable[[Priced], str]] = {
    "subset": lambda row: row.keys.subset,
    "gpu": lambda row: row.keys.gpu,
    "precision": lambda row: row.keys.precision,
    "family": lambda row: row.keys.family,
    "framework": lambda row: row.keys.framework,
}
"""By what errors are broken down."""


def validate(request: Request) -> tuple[Evaluation, ...]:
    """Prices every row of the tables and judges the predictions.

    Raises InvalidInputError when there is no such table, file, model or GPU.
    """
    files = {Table.RL if table is Table.RL_STAGES else table for table in request.tables}
    found = read.read_tables(request.directory, [table for table in Table if table in files])
    chosen = {table: _filtered(raw, request) for table, raw in found.items()}
    if not any(raw.rows or raw.malformed for raw in chosen.values()):
        raise _no_rows(found, request)
    shipped = load_residuals() if request.directory is not None else None
    results = [result for table, raw in chosen.items() for result in price_table(table, raw)]
    return tuple(evaluate(result, shipped) for result in results if result.table in request.tables)


def price_table(table: Table, raw: read.RawTable) -> tuple[TableResult, ...]:
    """Prices one file; the file of whole RL steps gives two results. Every row is in the result."""
    results = tuple(_sound(result) for result in _price(table, raw.rows))
    first = results[0]
    if first.num_rows != len(raw.rows):
        # A row that is neither priced nor listed would make every figure below a lie.
        raise RuntimeError(f"{table.value}: {len(raw.rows)} rows were read, {first.num_rows} came back")
    return (replace(first, unpriced=(*raw.malformed, *first.unpriced)), *results[1:])


def _price(table: Table, rows: Sequence[read.Row]) -> tuple[TableResult, ...]:
    """Prices rows together; values that the cost model refuses cost their own row only, found by halving."""
    try:
        return _pricer(table)(rows)
    except (ValueError, ArithmeticError, LookupError, InvalidInputError) as error:
        if len(rows) == 1:
            row = rows[0]
            reason = f"values that cannot be: {error}"
            if isinstance(error, LookupError):
                # a gap of rlplan and not of the row; named as such, and the other rows still count
                reason = f"fault in rlplan: {type(error).__name__} {error}"
            refused = Unpriced(table=table, row=read.text(row, "id"), quality=read.quality(row), reason=reason)
            return tuple(
                TableResult(table=part, priced=(), unpriced=(replace(refused, table=part),)) for part in _parts(table)
            )
    half = len(rows) // 2
    return tuple(
        TableResult(table=a.table, priced=a.priced + b.priced, unpriced=a.unpriced + b.unpriced)
        for a, b in zip(_price(table, rows[:half]), _price(table, rows[half:]), strict=True)
    )


def _parts(table: Table) -> tuple[Table, ...]:
    """The tables that come from one file."""
    return (Table.RL, Table.RL_STAGES) if table is Table.RL else (table,)


def _pricer(table: Table) -> Callable[[Sequence[read.Row]], tuple[TableResult, ...]]:
    match table:
        case Table.TRAIN:
            from planner.validation import train

            return lambda rows: (train.price(rows),)
        case Table.RL | Table.RL_STAGES:
            from planner.validation import rl

            return rl.price
        case Table.MEMORY:
            from planner.validation import memory

            return lambda rows: (memory.price(rows),)
        case Table.GENERATION:
            from planner.validation import generation

            return lambda rows: (generation.price(rows),)
        case Table.FITS:
            from planner.validation import fits

            return lambda rows: (fits.price(rows),)


def _sound(result: TableResult) -> TableResult:
    """Moves rows without a usable prediction to the unpriced ones: their error has no meaning."""
    if result.table is Table.FITS:
        return result
    good: list[Priced] = []
    bad: list[Unpriced] = []
    for row in result.priced:
        if all(math.isfinite(value) and value > 0.0 for value in (row.predicted, row.measured)):
            good.append(row)
            continue
        reason = f"prediction {row.predicted:g} against {row.measured:g} {row.unit} gives no error"
        bad.append(Unpriced(table=result.table, row=row.row, quality=row.quality, reason=reason))
    return replace(result, priced=tuple(good), unpriced=(*result.unpriced, *bad))


def evaluate(result: TableResult, shipped: ResidualFile | None) -> Evaluation:
    """A priced table with anchors and bands.

    `shipped` residuals judge rows of another directory; rows that come with rlplan judge each other.
    """
    name = result.table.value
    if result.table is Table.FITS:
        nothing = bands.judge((), ResidualTable(name=name, stretch_ratio=1.0, residuals=()))
        return Evaluation(result=result, corrections=(0.0,) * len(result.priced), judged=nothing)
    pool = shipped.table(name) if shipped is not None else None
    if pool is None:
        pool = bands.residual_table(name, result.priced)
    return Evaluation(
        result=result,
        corrections=tuple(anchors.corrections(result.priced)),
        judged=bands.judge(result.priced, pool),
    )


def residual_file(evaluations: Sequence[Evaluation]) -> ResidualFile:
    """The residuals that plans take their bands from."""
    tables = []
    for item in evaluations:
        if item.table in BANDED:
            table = bands.residual_table(item.table.value, item.rows)
            # Only plans name their nearest row; without the other names the file is half as large.
            is_named = item.table in (Table.RL, Table.MEMORY)
            kept = tuple(entry if is_named else replace(entry, row="") for entry in table.residuals)
            tables.append(replace(table, residuals=kept))
    return ResidualFile(tables=tuple(tables), families=read.families())


def is_wrong(row: Priced) -> bool:
    """Whether a verdict contradicts what happened; a marginal one never does."""
    return row.verdict is (Verdict.DOES_NOT_FIT if row.measured > 0.5 else Verdict.FITS)


def fit_statistics(rows: Sequence[Priced]) -> FitStatistics:
    """Shares of right verdicts."""
    works = [row.verdict for row in rows if row.measured > 0.5]
    oom = [row.verdict for row in rows if row.measured <= 0.5]
    marginal = [verdict for verdict in (*works, *oom) if verdict is Verdict.MARGINAL]
    return FitStatistics(
        num_determinable=len(rows),
        num_works=len(works),
        num_oom=len(oom),
        works_accepted_ratio=_share(verdict is not Verdict.DOES_NOT_FIT for verdict in works),
        oom_rejected_ratio=_share(verdict is not Verdict.FITS for verdict in oom),
        marginal_ratio=len(marginal) / len(rows) if rows else None,
    )


def _share(flags: Iterable[bool]) -> float | None:
    values = list(flags)
    return sum(values) / len(values) if values else None


# ---------------------------------------------------------------------------------------------- filters


def _filtered(raw: read.RawTable, request: Request) -> read.RawTable:
    """Rows whose GPU and model names contain the given texts."""
    if not request.gpu and not request.model:
        return raw
    rows = tuple(
        row
        for row in raw.rows
        if request.gpu.lower() in row["gpu"].lower() and request.model.lower() in row["model"].lower()
    )
    # What a malformed row is about is not known, so a filter leaves it out.
    return read.RawTable(rows=rows, malformed=())


def _no_rows(found: Mapping[Table, read.RawTable], request: Request) -> InvalidInputError:
    rows = [row for raw in found.values() for row in raw.rows]
    wanted, column = (request.gpu, "gpu") if request.gpu else (request.model, "model")
    known = {row[column] for row in rows if row[column]}
    given = [f"{name} {text[:60]!r}" for name, text in (("gpu", request.gpu), ("model", request.model)) if text]
    if not given:
        return InvalidInputError("the tables have no rows", where=str(request.directory))
    return InvalidInputError(f"no row has {' and '.join(given)}", suggestion=nearest(wanted, known))
