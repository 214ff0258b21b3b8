"""The answer of a sweep in words and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest

from planner.domain.budget import Point
from planner.files.spec import WorkloadSpec
from planner.report.budget import BudgetView, budget_document, budget_report
from planner.report.terminal import plain
from planner.sweep.request import SweepOptions, prepare
from planner.sweep.service import run_sweep
from planner.sweep.smallest import smallest_fits
from planner.whatif import choose, full_plans, group_of, sensitivity


@cache
def view() -> BudgetView:
    spec = WorkloadSpec(model="qwen3-0.6b", num_prompts=64, response_max=4096, response_mean=1000)
    prepared = prepare(spec, SweepOptions(sizes="4,8,16", types="h100,gb200", response_means="500"))
    sweep = run_sweep(prepared).sweep
    choice = choose(sweep)
    plans = full_plans(prepared.tasks, choice)
    entry = choice.picks[0].entry
    request = group_of(prepared.tasks, entry.point).at(entry.point.num_gpus)
    return BudgetView(
        sweep=sweep, choice=choice, plans=plans, smallest=smallest_fits(prepared.tasks, sweep),
        sensitivity=sensitivity(sweep, choice, entry, plans[0], request), given_up=(), unknown_gpus=(),
    )  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_report_says_what_was_asked(width: int) -> None:
    text = plain(budget_report(view()), width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    for section in ("Cheapest, fastest, smallest", "Pareto front", "Smallest cluster that fits", "Prices",
                    "Assumptions", "If it is not as assumed", "By mean response"):  # fmt: skip
        assert section in text
    cheapest = view().choice.picks[0].entry
    assert f"{cheapest.run.usd:,.0f} USD" in text
    # where the money figure comes from
    assert "3.90" in text and "Crusoe" in text and "2025-12" in text
    assert "gb200: no price known" in text
    assert "arXiv:2407.21783" in text


def test_json_has_all_rows() -> None:
    document = json.loads(json.dumps(budget_document(view()), allow_nan=False))
    assert len(document["entries"]) == 6
    assert document["picks"]["cheapest"]["run"]["usd"] == view().choice.picks[0].entry.run.usd
    assert document["prices"]["gb200"] is None
    assert [fit["gpus"] for fit in document["smallest"]] == [1, 1]
    assert document["sensitivity"]["effects"]


def test_hostile_names_and_lost_points_are_shown_as_text() -> None:
    head = replace(view().sweep.head, title="GRPO on \x1b[31m<script>$(rm -rf /)")
    lost = Point(kind="h100", num_gpus=8, response_mean_tokens=1.0)
    bad = replace(view(), sweep=replace(view().sweep, head=head), given_up=(lost,), unknown_gpus=("K80",))
    text = plain(budget_report(bad), width=100)
    assert "\x1b" not in text
    assert "<script>$(rm -rf /)" in text
    assert "the worker died twice: 8 x h100" in text
    assert "K80" in text
