"""`rlplan validate`: options, exit codes, and text from files that must not act on the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner import cli
from planner.validation import read
from planner.validation.records import Table

HEADER = "id,source,model,gpu,n_gpus,precision,seq_len,gbs,mbs,tp,pp,cp,tokens_per_s_per_gpu,quality\n"
GOOD = "good,s,meta-llama/Meta-Llama-3-8B,h100-sxm,8,bf16,8192,128,1,1,1,1,12000,A\n"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "train.csv").write_text(HEADER + GOOD, encoding="utf-8")
    return tmp_path


def run(*arguments: str) -> int:
    return cli.run(["validate", *arguments])


def test_json_of_a_directory(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--data", str(data), "--json") == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    assert list(tables) == ["train"]
    assert tables["train"]["num_rows"] == 1


def test_rows_of_a_directory_are_judged_by_the_shipped_ones(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shipped,) = (row for row in read.read_tables(None, (Table.TRAIN,))[Table.TRAIN].rows if row["id"] == FIRST)
    lines = [",".join(shipped), ",".join(f'"{cell}"' for cell in shipped.values())]
    (data / "train.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert run("--data", str(data), "--json", "--worst", "1") == 0
    figures = json.loads(capsys.readouterr().out)["tables"]["train"]["by_quality"]["A"]
    assert figures["num"] == 1
    # Its own residual is among the shipped ones, but its family is left out.
    assert 0.05 < figures["band_median_width_ratio"] < 5.0


FIRST = "mb-26.08-pre-45-cur"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--table", "nothing"],
        ["--worst", "-1"],
        ["--worst", "x"],
        ["--data", "/nowhere"],
        ["--gpu", "h1000", "--table", "train"],
        ["--model", "no such model", "--table", "train"],
        ["--table", "train", "--write-residuals", "x.json"],
        ["--gpu", "h100", "--write-docs", "."],
    ],
)
def test_wrong_options_are_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize("content", [b"", b"\x00\x01", b"<html></html>", b'id,"x\n1,2\n', b"\xff\xfe1"])
def test_what_is_no_table_is_exit_code_2(content: bytes, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "train.csv").write_bytes(content)
    assert run("--data", str(data)) == 2
    assert "train.csv" in capsys.readouterr().err


def test_cells_neither_style_the_report_nor_reach_the_terminal(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = "\x1b[31m[bold][/]evil,s,[/red]model,h100-sxm,8,[/],8192,128,1,1,1,1,12000,[red]A\n"
    (data / "train.csv").write_text(HEADER + GOOD + bad + "short,row\n", encoding="utf-8")
    assert run("--data", str(data)) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[/red]model" in out
    assert "2 cells, the header has 14" in out


def test_without_anchors(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--data", str(data), "--no-anchors") == 0
    assert "anchor" not in capsys.readouterr().out
