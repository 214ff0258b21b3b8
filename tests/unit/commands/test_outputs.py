"""No command writes over what it reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planner.cli import run
from planner.files.plan import write_plan
from tests.golden.sample import grpo_plan

EXAMPLES = Path(__file__).parents[3] / "examples"
COMMANDS = (
    ("plan", "{}", "-o", "{}"),
    ("plan", "qwen3-8b", "--cluster", "{}", "-o", "{}"),
    ("plan", "qwen3-8b", "--profile", "{}", "-o", "{}"),
    ("estimate", "{}", "-o", "{}"),
    ("calibrate", "{}", "-o", "{}"),
    ("calibrate", "other.log", "--config", "{}", "-o", "{}"),
    ("budget", "qwen3-8b", "--prices", "{}", "--csv", "{}"),
    ("budget", "qwen3-8b", "-o", "{}", "--csv", "{}"),
)


def given(command: tuple[str, ...], read: str, written: str) -> list[str]:
    """The command with its last place for a file written to, and the other one read."""
    *first, last = command
    return [read if word == "{}" else word for word in first] + [written if last == "{}" else last]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_input_is_no_output(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (EXAMPLES / "grpo-qwen3-32b.yaml").read_text(encoding="utf-8")
    Path("in.yaml").write_text(text, encoding="utf-8")
    Path("link.yaml").symlink_to("in.yaml")
    os.link("in.yaml", "hard.yaml")
    for written in ("in.yaml", "./in.yaml", "link.yaml", "hard.yaml"):
        assert run(given(command, "in.yaml", written)) == 2
        assert "is the input itself" in capsys.readouterr().err
    assert Path("in.yaml").read_text(encoding="utf-8") == text


def test_a_trace_does_not_replace_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    write_plan(grpo_plan(), path)
    before = path.read_bytes()
    assert run(["simulate", str(path), "--trace", str(path)]) == 2
    assert "--trace" in capsys.readouterr().err
    assert path.read_bytes() == before
