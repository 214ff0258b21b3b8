"""More strategies of trainers never make the optimum worse, and the optimum is that of the parts of the space."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.domain.fixed import FixedField
from planner.domain.plan import Limits
from planner.domain.stages import WorkerName
from planner.files.catalog import load_model
from planner.search.solve import Solution
from planner.solving import best_solution
from tests.property.test_techniques import SLACK, asked

ACTOR, REFERENCE = WorkerName.ACTOR_TRAINER, WorkerName.REFERENCE
TIGHT = {"qwen3-8b": 2, "qwen3-30b-a3b": 8}
"""GPUs of one node on which a model has to save memory."""
LEVELS = ("none", "selective", "full", "partial")


def optimum(model: str, *fixed: tuple[WorkerName, str, str]) -> Solution | None:
    """The best plan that has what is fixed; None where there is none."""
    fields = tuple(FixedField(worker=worker, field=field, value=value) for worker, field, value in fixed)
    request = asked("grpo", gpus=TIGHT[model], limits=Limits(fixed=fields))
    request = replace(request, workload=replace(request.workload, actor=load_model(model)))
    assert request.cluster is not None
    return best_solution(request, request.cluster, None, ())


def seconds(found: Solution | None) -> float:
    return float("inf") if found is None else found.time_s


@pytest.mark.parametrize("model", TIGHT)
def test_the_optimum_is_the_best_of_all_levels_of_recomputation(model: str) -> None:
    levels = {level: seconds(optimum(model, (ACTOR, "recompute", level))) for level in LEVELS}
    best = min(levels.values())
    assert best < float("inf")
    assert seconds(optimum(model)) == pytest.approx(best, rel=SLACK - 1)


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_spreading_experts_never_hurts(sharding: str) -> None:
    model = "qwen3-30b-a3b"
    narrow = seconds(optimum(model, (ACTOR, "sharding", sharding), (ACTOR, "ep", "1"), (REFERENCE, "ep", "1")))
    wide = seconds(optimum(model, (ACTOR, "sharding", sharding)))
    assert wide < narrow
