"""Whole tables: nothing is lost, garbage stays in its row, figures are those of the rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from planner.errors import InvalidInputError
from planner.files.residuals import load_residuals, parse_residuals, residuals_text
from planner.report.accuracy import accuracy_report
from planner.report.accuracy_docs import page
from planner.report.accuracy_json import accuracy_document
from planner.report.terminal import plain
from planner.validation import read, train
from planner.validation.records import Table, TableResult, Unpriced, Verdict
from planner.validation.run import (
    BANDED,
    Evaluation,
    Request,
    evaluate,
    fit_statistics,
    price_table,
    residual_file,
    tables_named,
    validate,
)
from planner.validation.statistics import errors
from planner.validation.targets import SETS, HeldOutError, Split, held_out_errors, outcomes
from tests.unit.validation.rows import priced

GARBAGE = ("garbage", "-1", "nan", "1e308", "0", "99999999999", "3.5", "1;2")
QUALITY_KEYS = {
    "num", "median_abs_error_ratio", "p90_abs_error_ratio", "bias_ratio", "rank_agreement_ratio",
    "band_coverage_ratio",
}  # fmt: skip


@cache
def everything() -> tuple[Evaluation, ...]:
    return validate(Request())


def document() -> dict[str, dict[str, dict[str, object]]]:
    """The JSON output, through JSON."""
    found = accuracy_document(everything(), (), num_worst=3, with_anchors=True)
    text = json.dumps(found, allow_nan=False)
    return json.loads(text)  # type: ignore[no-any-return]


def test_every_shipped_row_is_priced_or_listed() -> None:
    tables = read.read_tables(None, tuple(Table))
    by_table = {item.table: item for item in everything()}
    assert set(by_table) == set(Table)
    for table, raw in tables.items():
        result = by_table[table].result
        names = sorted([row.row for row in result.priced] + [row.row for row in result.unpriced])
        assert names == sorted(row["id"] for row in raw.rows)
        assert all(row.reason for row in result.unpriced)


@pytest.mark.parametrize("table", [table for table in Table if table is not Table.RL_STAGES])
def test_garbage_costs_its_own_row_only(table: Table) -> None:
    raw = read.read_tables(None, (table,))[table]
    good = [row for row in raw.rows if row["id"]][:: max(1, len(raw.rows) // 5)]
    columns = [name for name in raw.rows[0] if name not in ("id", "source", "note")]
    rows = [
        {**good[i % len(good)], name: GARBAGE[i % len(GARBAGE)], "id": f"bad-{i}"} for i, name in enumerate(columns * 2)
    ]
    with np.errstate(all="ignore"):
        first = price_table(table, read.RawTable(rows=(*good, *rows), malformed=()))[0]
        alone = price_table(table, read.RawTable(rows=tuple(good), malformed=()))[0]
    assert first.num_rows == len(good) + len(rows)
    expected = {row.row: row.predicted for row in alone.priced}
    # Rows that infer from others (lengths from another stage of the same run) may change with them.
    found = {row.row: row.predicted for row in first.priced if row.row in expected}
    assert found.keys() == expected.keys()


def test_an_empty_row_is_listed(tmp_path: Path) -> None:
    for name in read.FILES.values():
        (tmp_path / name).write_text("id,quality\nx,A\n,\n", encoding="utf-8")
    for item in validate(Request(directory=tmp_path)):
        if item.table is not Table.RL_STAGES:
            assert (len(item.rows), len(item.result.unpriced)) == (0, 2)


def test_json_has_the_documented_keys() -> None:
    tables = document()["tables"]
    assert set(tables) == {"train", "rl", "rl_stages", "memory", "generation", "fits"}
    for name, table in tables.items():
        assert table["num_rows"] == table["num_priced"] + table["num_unpriced"]  # type: ignore[operator]
        assert sum(table["unpriced_reasons"].values()) == table["num_unpriced"]  # type: ignore[attr-defined]
        if name == "fits":
            assert {"num_determinable", "works_accepted_ratio", "oom_rejected_ratio", "marginal_ratio"} <= set(table)
            continue
        by_quality = table["by_quality"]
        assert set("ABC") <= set(by_quality)  # type: ignore[arg-type, call-overload]
        for figures in by_quality.values():  # type: ignore[attr-defined]
            assert set(figures) >= QUALITY_KEYS
            assert {"median_abs_error_ratio", "p90_abs_error_ratio"} <= set(figures["anchored"])
    assert set(tables["memory"]["large"]) >= QUALITY_KEYS  # type: ignore[call-overload]


def test_anchors_can_be_left_out() -> None:
    found = accuracy_document(everything(), (), num_worst=0, with_anchors=False)
    assert "anchored" not in json.dumps(found)
    assert "anchored" not in plain(accuracy_report(everything(), (), num_worst=0, with_anchors=False))


def test_reports_show_worst_rows_with_their_terms() -> None:
    text = plain(accuracy_report(everything(), (), num_worst=1, with_anchors=True))
    worst = everything()[0].worst(1)[0]
    assert worst.row[:20] in text
    assert "Noise floor" in text
    markdown = page(everything(), ())
    assert markdown.count("\n## ") == 2 + len(Table)


def test_plans_read_the_residuals_of_this_cost_model() -> None:
    # `rlplan validate --write-residuals measurements/residuals.json` after every change of the cost model.
    shipped = load_residuals()
    now = parse_residuals(residuals_text(residual_file(everything())), where="now")
    assert [table.name for table in shipped.tables] == [table.name for table in now.tables]
    for old, new in zip(shipped.tables, now.tables, strict=True):
        assert old.stretch_ratio == pytest.approx(new.stretch_ratio, rel=0.1)
        assert [item.traits for item in old.residuals] == [item.traits for item in new.residuals]
        drift = [abs(a.log_ratio - b.log_ratio) for a, b in zip(old.residuals, new.residuals, strict=True)]
        assert np.quantile(drift, 0.9) < 0.02


def test_bands_of_shipped_rows_hold_about_what_they_say() -> None:
    for item in everything():
        if item.table in BANDED:
            coverage = item.judged.coverage_ratio(item.of_quality("AB"))
            assert coverage is not None
            assert 0.5 < coverage < 0.97, item.table


def test_filters() -> None:
    (item,) = validate(Request(tables=(Table.TRAIN,), gpu="H200", model="llama"))
    assert item.result.num_rows > 0
    assert all(row.keys.gpu == "h200" for row in item.rows)
    with pytest.raises(InvalidInputError, match="no row has gpu 'h1000'; did you mean"):
        validate(Request(tables=(Table.TRAIN,), gpu="h1000"))


def test_names_of_tables() -> None:
    assert tables_named(()) == tuple(Table)
    assert tables_named(["RL"]) == (Table.RL, Table.RL_STAGES)
    assert tables_named(["fits", "train"]) == (Table.TRAIN, Table.FITS)
    with pytest.raises(InvalidInputError, match="memory"):
        tables_named(["memry"])


def test_rows_without_a_usable_prediction_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ({"id": "a"}, {"id": "b"}, {"id": "c"})
    answers = (priced(1.0, float("nan"), row="a"), priced(1.0, 0.0, row="b"), priced(1.0, 2.0, row="c"))
    monkeypatch.setattr(
        train, "price", lambda rows: TableResult(table=Table.TRAIN, priced=answers[: len(rows)], unpriced=())
    )
    (result,) = price_table(Table.TRAIN, read.RawTable(rows=rows, malformed=()))
    assert [row.row for row in result.priced] == ["c"]
    assert [row.row for row in result.unpriced] == ["a", "b"]


def test_a_fault_costs_its_own_row_and_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = read.read_tables(None, (Table.TRAIN,))[Table.TRAIN]
    rows = raw.rows[:9]
    expected = train.price(rows)
    plain_price = train.price

    def faulty(some: Sequence[read.Row]) -> TableResult:
        if any(row["id"] == rows[4]["id"] for row in some):
            raise KeyError("gap")
        return plain_price(some)

    monkeypatch.setattr(train, "price", faulty)
    (result,) = price_table(Table.TRAIN, read.RawTable(rows=rows, malformed=()))
    assert result.priced == tuple(item for item in expected.priced if item.row != rows[4]["id"])
    assert (rows[4]["id"], "fault in rlplan: KeyError 'gap'") in [(item.row, item.reason) for item in result.unpriced]
    assert result.num_rows == len(rows)


def test_a_lost_row_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "price", lambda rows: TableResult(table=Table.TRAIN, priced=(), unpriced=()))
    with pytest.raises(RuntimeError, match="1 rows were read, 0 came back"):
        price_table(Table.TRAIN, read.RawTable(rows=({"id": "a"},), malformed=()))


def test_verdict_shares() -> None:
    fits, marginal, oom = Verdict.FITS, Verdict.MARGINAL, Verdict.DOES_NOT_FIT
    rows = [priced(works, 1.0, table=Table.FITS, verdict=verdict) for works, verdict in (
        (1, fits), (1, marginal), (1, oom), (1, fits), (0, oom), (0, fits),
    )]  # fmt: skip
    found = fit_statistics(rows)
    assert (found.num_works, found.num_oom) == (4, 2)
    assert found.works_accepted_ratio == pytest.approx(0.75)
    assert found.oom_rejected_ratio == pytest.approx(0.5)
    assert found.marginal_ratio == pytest.approx(1 / 6)


def test_targets_compare_held_out_errors_and_anchors() -> None:
    rows = tuple(priced(1.0, 1.1, row=str(i), configuration=str(i), subset="dense", gpu="h100") for i in range(20))
    item = evaluate(TableResult(table=Table.TRAIN, priced=rows, unpriced=()), None)
    known = HeldOutError(set_name=SETS[0].name, split=Split.CONFIGURATION, errors=errors(rows), date="2026-01-01")
    found = {outcome.criterion: outcome for outcome in outcomes([item], [known])}
    assert found[Split.CONFIGURATION].is_met is False
    assert found[Split.FAMILY].is_met is None
    assert found[Split.ANCHORS].is_met is True
    # One row explains two thirds of log(1.1); the rest is 3.2 %.
    assert (found[Split.ANCHOR_ROW].reached, found[Split.ANCHOR_ROW].is_met) == ("3.2 / 3.2 %", True)


def test_held_out_errors_name_known_sets() -> None:
    found = [(entry.set_name, entry.split) for entry in held_out_errors()]
    assert {name for name, _ in found} <= {item.name for item in SETS}
    assert len(found) == len(set(found))


def test_unpriced_reasons_are_counted() -> None:
    reasons = [Unpriced(table=Table.TRAIN, row=str(i), quality="A", reason="x" if i else "y") for i in range(3)]
    item = evaluate(TableResult(table=Table.TRAIN, priced=(), unpriced=tuple(reasons)), None)
    assert item.reasons() == {"x": 2, "y": 1}
