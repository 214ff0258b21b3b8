"""`rlplan budget` at the command line: bad input ends with a message and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cli import run

ASK = ["budget", "qwen3-0.6b", "--prompts", "64", "--response", "2048", "--response-mean", "700"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--types", "h999"], "'h999' is in no catalog"),
        (["--types", "p5.48xlarge"], "is a node type; accepted: --nodes"),
        (["--nodes", "h100x"], "--nodes: 'h100x' is in no catalog"),
        (["--types", ","], "names nothing"),
        (["--gpus", "512..8"], "'512..8' is empty"),
        (["--gpus", "0"], "out of range"),
        (["--gpus", "8..1000000"], "out of range"),
        (["--gpus", "32xh100"], "not understood"),
        (["--gpus", "8..64:0"], "out of range"),
        (["--gpus", "16..64", "--max-gpus", "8"], "no size of --gpus 16..64 is within --max-gpus 8"),
        (["--deadline", "5min"], "over before the start-up"),
        (["--deadline", "7"], "no unit"),
        (["--budget", "5000usd", "--types", "gb200"], "--price gb200=2.50"),
        (["--budget", "5000usd", "--spot", "--types", "gb200"], "no spot price is known for gb200"),
        (["--price", "h20=1"], "no type of this sweep is called 'h20'"),
        (["--prices", "/no/such/file.csv"], "does not exist"),
        (["--lengths", "100,-5"], "'-5' is no length"),
        (["--lengths", "99999"], "above the longest response"),
        (["--steps", "0"], "out of range"),
        (["--failure-rate", "-1"], "out of range"),
        (["--failure-rate", "nan"], "out of range"),
        (["--checkpoint-every", "0"], "out of range"),
        (["--checkpoint-rate", "2"], "no unit"),
        (["--startup", "soon"], "not a quantity"),
        (["--workers", "0"], "--workers"),
        (["--workers", "many"], "not a whole number"),
        (["--executor", "slurm"], "accepted: local, ray, dask"),
        (["--resume"], "--output FILE"),
        (["-o", "/no/such/dir/a.jsonl"], "does not exist"),
        (["--csv", "/no/such/dir/a.csv"], "does not exist"),
    ],
)
def test_bad_input_is_refused_before_anything_is_planned(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*ASK, *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert not captured.out


def test_what_nothing_meets_ends_with_what_comes_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ASK, "--gpus", "8", "--types", "h100", "--budget", "0.01usd"]) == 3
    captured = capsys.readouterr()
    assert "no plan stays within 0 USD" in captured.err
    assert "the cheapest takes" in captured.err


def test_an_answer_a_table_and_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, table = tmp_path / "a.jsonl", tmp_path / "a.csv"
    options = [
        "--gpus",
        "8,16",
        "--types",
        "h100",
        "--nodes",
        "p5.48xlarge",
        "--spot",
        "-o",
        str(rows),
        "--csv",
        str(table),
    ]
    assert run([*ASK, *options, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["entries"]) == 4
    # each with its own spot price
    assert len({entry["price"] for entry in document["entries"]}) == 2
    assert all("spot" in entry["price"] for entry in document["entries"])
    assert len(rows.read_text().splitlines()) == 5
    assert len(table.read_text().splitlines()) == 5
    assert any("spot interruptions" in text for text in document["assumptions"])


def test_a_workload_file_may_name_a_cluster_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "work.yaml"
    file.write_text("model: qwen3-0.6b\ngpus: 8xh200\nlimits: {steps: 7}\nbatch: {prompts: 64}\n")
    assert run(["budget", str(file), "--gpus", "8", "--types", "h100", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["steps"] == 7
    assert [entry["point"]["type"] for entry in document["entries"]] == ["h100"]
