"""`rlplan report` writes a whole page or nothing, and never over what it reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cli import run
from planner.files.plan import write_plan
from planner.report.html.page import plan_page
from tests.golden.sample import grpo_plan


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    write_plan(grpo_plan(), path)
    return path


def test_the_page_lands_beside_the_plan_or_where_told(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(saved)]) == 0
    assert (saved.parent / "plan.html").read_text(encoding="utf-8") == plan_page(grpo_plan())
    assert "saved" in capsys.readouterr().err
    other = saved.parent / "other.html"
    assert run(["report", str(saved), "-o", str(other)]) == 0
    assert other.read_text(encoding="utf-8") == plan_page(grpo_plan())


def test_the_input_is_never_overwritten(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = saved.read_bytes()
    assert run(["report", str(saved), "-o", str(saved)]) == 2
    assert "is the input itself" in capsys.readouterr().err
    assert saved.read_bytes() == before


@pytest.mark.parametrize("name", ["missing.json", "missing.jsonl", "broken.json", "broken.jsonl"])
def test_bad_input_is_named_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    path = tmp_path / name
    if name.startswith("broken"):
        path.write_text("{}\n", encoding="utf-8")
    assert run(["report", str(path)]) == 2
    assert name in capsys.readouterr().err
    assert not path.with_suffix(".html").exists()


def test_a_place_that_cannot_be_written_is_said_first(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(saved), "-o", str(saved.parent / "no" / "x.html")]) == 2
    assert "does not exist" in capsys.readouterr().err
