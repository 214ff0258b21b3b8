"""Results files: what is read, what is refused, and tables for spreadsheets."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from planner.domain.budget import KindPrice, Point, Row, RunRates, Sweep, SweepHead, run_total
from planner.domain.hardware import Price
from planner.domain.plan import Status
from planner.errors import InvalidInputError
from planner.files.sweep import ResultsFile, csv_text, head_line, read_sweep, row_line, write_csv

HEAD = SweepHead(
    digest="d", version="0.1.0", title="GRPO on x", kinds=("h100", "h20"), sizes=(8, 16), response_means=(1000.0,),
    response_max_tokens=2000, num_points=4,
    rates=RunRates(
        num_steps=10, startup_s=60.0, checkpoint_bytes=1e9, checkpoint_bytes_per_s_per_node=1e9, checkpoint_every=5,
        validation_every=0, validation_prompts=1, failures_per_gpu_hour=1e-5, interruptions_per_node_hour=0.0,
    ),
    prices=(
        KindPrice(
            kind="h100", price=Price(usd_per_gpu_hour=2.0, provider="P", region="r", date="2026-01", kind="on-demand")
        ),
        KindPrice(kind="h20", price=None),
    ),
)  # fmt: skip


def row(kind: str, num_gpus: int, time_s: float | None) -> Row:
    point = Point(kind=kind, num_gpus=num_gpus, response_mean_tokens=1000.0)
    if time_s is None:
        return Row(point=point, status=Status.INFEASIBLE, reason="too small")
    return Row(
        point=point, status=Status.OPTIMAL, time_s=time_s, bound_s=time_s, num_gpus=num_gpus, num_nodes=num_gpus // 8,
        gpus_per_node=8, groups="all", layouts=("actor trainer: tp 8",),
    )  # fmt: skip


ROWS = (row("h100", 8, 0.1 + 0.2), row("h100", 16, 50.0), row("h20", 8, None), row("h20", 16, 75.0))


def write(path: Path, *rows: Row) -> Path:
    path.write_bytes(head_line(HEAD) + b"".join(row_line(item) for item in rows))
    return path


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    sweep = read_sweep(write(tmp_path / "a.jsonl", *reversed(ROWS)))
    assert sweep == Sweep(head=HEAD, rows=ROWS)
    assert sweep.is_complete


@pytest.mark.parametrize("cut", [1, 5, 100])
def test_a_last_line_that_was_cut_short_is_left_out(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "a.jsonl", *ROWS)
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_sweep(path).rows == ROWS[:3]
    with ResultsFile(path, HEAD, resume=True) as file:
        assert file.rows == ROWS[:3]
        file.append(ROWS[3])
    assert read_sweep(path).rows == ROWS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"{}", "first line is not whole"),
        (b"{}\n", "line 1"),
        (b"[]\n", "line 1"),
        (b"\xff\xfe\n", "not UTF-8"),
        (head_line(HEAD) + b"{}\n", "line 2"),
        (head_line(HEAD) + b'{"point": 1}\n', "line 2"),
        (head_line(HEAD) + row_line(ROWS[0]).replace(b'"time_s":0.3', b'"time_s":-0.3') + b"", "line 2"),
        (head_line(HEAD).replace(b'"format_version":1', b'"format_version":9'), "newer"),
        (head_line(HEAD).replace(b"rlplan-sweep", b"something"), "line 1"),
    ],
)
def test_what_is_no_results_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=message):
        read_sweep(path)


def test_the_table_has_the_totals_and_their_price() -> None:
    lines = list(csv.DictReader(io.StringIO(csv_text(Sweep(head=HEAD, rows=ROWS)))))
    assert [line["gpus"] for line in lines] == ["8", "16", "8", "16"]
    run = run_total(ROWS[1], HEAD.rates, HEAD.price("h100"))
    assert float(lines[1]["usd"]) == run.usd
    assert float(lines[1]["hours"]) == run.hours
    assert (lines[1]["price_provider"], lines[1]["price_date"]) == ("P", "2026-01")
    assert (lines[2]["status"], lines[2]["hours"], lines[2]["reason"]) == ("infeasible", "", "too small")
    # no price: GPU-hours only
    assert (lines[3]["usd"], lines[3]["price_provider"]) == ("", "")
    assert float(lines[3]["gpu_hours"]) > 0


def test_names_are_no_formulas_and_no_terminal_codes() -> None:
    evil = replace(ROWS[2], reason='=cmd|" /C calc"!A0\x1b[31m\nx')
    (line,) = csv.DictReader(io.StringIO(csv_text(Sweep(head=HEAD, rows=(evil,)))))
    assert line["reason"].startswith("'=cmd")
    assert "\x1b" not in line["reason"]


def test_a_table_is_whole_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="does not exist"):
        write_csv(Sweep(head=HEAD, rows=ROWS), tmp_path / "none" / "a.csv")
    write_csv(Sweep(head=HEAD, rows=ROWS), tmp_path / "a.csv")
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 5
