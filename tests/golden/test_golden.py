"""The report and the plan JSON of fixed plans, byte for byte."""

from __future__ import annotations

import pytest

from planner.files.plan import parse_plan, plan_text
from planner.report.difference import change_table, differences
from planner.report.terminal import plain, plan_report
from tests.conftest import GOLDEN, Golden
from tests.golden.sample import grpo_plan, split_plan


@pytest.mark.parametrize("width", [100, 80])
def test_report_of_a_colocated_plan(golden: Golden, width: int) -> None:
    golden(f"grpo-{width}.txt", plan_report(grpo_plan(run=True), width=width))


def test_report_of_a_split_plan(golden: Golden) -> None:
    golden("split-100.txt", plan_report(split_plan()))


def test_plan_json(golden: Golden) -> None:
    golden("grpo.plan.json", plan_text(grpo_plan()))


def test_golden_plan_is_readable() -> None:
    # Guards old files: a change that makes saved plans unreadable must raise the major format version.
    path = GOLDEN / "grpo.plan.json"
    assert parse_plan(path.read_text(encoding="utf-8"), where=str(path)) == grpo_plan()


def test_difference_of_plans(golden: Golden) -> None:
    changes = differences(grpo_plan(), split_plan())
    golden("difference.txt", plain(change_table(changes, before="a.json", after="b.json")))
