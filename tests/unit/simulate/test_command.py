"""`rlplan simulate` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner import cli
from planner.files.plan import write_plan
from tests.unit.simulate.plans import synchronous_plan


def rlplan(*arguments: str) -> int:
    """The exit code of a command line."""
    return cli.run(list(arguments))


@pytest.fixture
def saved(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    write_plan(synchronous_plan(), path)
    return str(path)


def test_the_report_answers_first(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rlplan("simulate", saved, "--iterations", "4", "--seed", "7") == 0
    text = capsys.readouterr().out
    assert "4 iterations, seed 7" in text
    assert text.index("inside the 95 % band") < text.index("Stages") < text.index("Rollout")
    assert all(name in text for name in ("reference log-prob", "weight sync", "tail", "preempted"))


def test_json_and_trace(saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    assert rlplan("simulate", saved, "--iterations", "3", "--json", "--trace", str(trace)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_inside"] is True and len(found["iterations_s"]) == 3
    low, high = found["band_s"]
    assert low <= found["predicted_s"] <= high
    assert json.loads(trace.read_text())["traceEvents"]


def test_a_prediction_outside_the_band_is_exit_5(
    saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Responses of a tenth of the planned length."""
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("40\n50\n60\n", encoding="utf-8")
    assert rlplan("simulate", saved, "--iterations", "3", "--lengths", str(lengths)) == 5
    text = capsys.readouterr().out
    assert "OUTSIDE" in text and "responses of 50 tokens on average" in text


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--iterations", "0", "--iterations"),
        ("--seed", "x", "--seed"),
        ("--growth", "-1", "--growth"),
        ("--lengths", "/nonexistent.csv", "does not exist"),
        ("--trace", "/nonexistent/trace.json", "--trace"),
    ],
)
def test_bad_options_are_exit_2(
    saved: str, option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rlplan("simulate", saved, option, value) == 2
    assert message in capsys.readouterr().err
