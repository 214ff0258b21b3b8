"""Findings of the guidelines: what counts as a win, and that a rule is only stated where it tells something."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.guidelines.findings import Row, best_rule, compared, loses, read_rows, savings, wins
from benchmarks.guidelines.grid import RESULTS, command, read_grid
from docs.generation import guidelines_page as page
from planner import cli_options
from planner.commands.workload import OPTIONS

TIMES = {(8, 1000): (10.0, 12.0), (8, 4000): (10.0, 10.1), (32, 1000): (12.0, 10.0), (32, 4000): (10.0, None)}


def rows() -> list[Row]:
    found: list[Row] = []
    for (size, mean), (one, other) in TIMES.items():
        case = {
            "model": "m", "gpu": "h100", "num_gpus": size, "response_mean": mean, "algorithm": "grpo", "params": 8e9,
            "is_moe": False, "prompts": 256, "group": 16,
        }  # fmt: skip
        found += [
            {**case, "variant": "best", "time_s": one, "command": "a"},
            {**case, "variant": "rival", "time_s": other, "command": "b"},
        ]
    return found


def test_wins_ties_and_losses() -> None:
    points = compared(rows(), "best", "rival")
    assert [wins(point) for point in points] == [True, False, False, True]
    assert [loses(point) for point in points] == [False, False, True, False]
    assert savings(points) == pytest.approx([1 / 6, 0.1 / 10.1, -0.2])


def test_a_case_without_a_plan_is_no_point() -> None:
    given = [{**row, "time_s": None} if row["num_gpus"] == 8 else row for row in rows()]
    assert len(compared(given, "best", "rival")) == 2


def test_a_rule_has_to_tell_something() -> None:
    points = compared(rows(), "best", "rival")
    by_size = best_rule(points, lambda point: point.case["num_gpus"] == 32)
    assert by_size is not None
    assert (by_size.attribute, by_size.threshold, by_size.is_above, by_size.num_right) == ("num_gpus", 32, True, 4)
    assert best_rule(points, lambda point: True) is None
    # Wins on the diagonal: no single condition is right more often than always giving one answer.
    assert best_rule(points) is None


def test_commands_are_of_options_that_exist() -> None:
    cases, variants = read_grid()
    assert variants[0].name == "best"
    known = {"--gpus", "--algorithm", "--reward", "--prompts", "--group", "--response", "--response-mean"}
    known |= {cli_options.PLACES[name][0] for name in OPTIONS}
    for variant in variants:
        words = command(cases[-1], variant).split()
        assert words[:2] == ["rlplan", "plan"]
        assert {word for word in words if word.startswith("--")} <= known


def test_questions_are_about_variants_of_the_grid() -> None:
    names = {variant.name for variant in read_grid()[1]}
    asked = {name for item in (*page.PLACEMENT, *page.OVERLAP, *page.TRAINER) for name in (item.variant, item.other)}
    assert asked <= names


def test_the_page_is_made_of_the_results(tmp_path: Path) -> None:
    assert (Path(page.__file__).parents[1] / "guidelines.md").read_text(encoding="utf-8") == page.guidelines_page()
    assert len(read_rows(RESULTS)) > 100
    assert all(json.dumps(row) for row in read_rows(RESULTS)[:5])
