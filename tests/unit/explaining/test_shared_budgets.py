"""Prices of explanations where a framework gives several workers one token budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.domain.plan import Limits
from planner.explaining.market import Market, Setting
from planner.explaining.watch import Watch
from tests.unit.explaining.cases import planned, request_on, work


@pytest.mark.parametrize(("framework", "model", "group"), [("nemo-rl", "qwen3-8b", 3), ("slime", "qwen3-8b", 1)])
def test_a_price_is_that_of_planning_again(framework: str, model: str, group: int) -> None:
    """A reference may need a forward budget that is not the best one for the actor alone."""
    base = replace(work(model), num_prompts=32, group_size=group, num_optimizer_steps=2)
    request = request_on(base, 1, "h200", Limits(framework=framework, fusions=()))
    found, best = Market(watch=Watch(60.0)).best(Setting.of(request)), planned(request)
    assert found is not None and best is not None
    assert found.score.time_s == pytest.approx(best.time_s, rel=1e-9)
