"""What `--framework` finds can be exported, and the export says exactly what was planned."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from planner.check import check, placed
from planner.domain.framework_verdict import ProblemKind, framework_problems, plan_problems
from planner.domain.plan import Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import Offload, Strategy, TrainerStrategy
from planner.files.framework import load_framework
from planner.pipeline import FixedPlan, price_fixed
from tests.adapters.framework_requests import REFUSED, REQUESTS, planned, request_for, same_request
from tests.adapters.imports import messages
from tests.adapters.round_trips import MODULES, imported_again, strategies
from tests.adapters.variants import with_strategy

SAME = 1e-6
FORWARD_ONLY = (WorkerName.REFERENCE, WorkerName.REWARD_MODEL)
CASES = [(framework, name) for framework in MODULES for name in REQUESTS]


@pytest.mark.parametrize(("framework", "name"), CASES)
def test_a_request_is_refused_with_a_reason_or_planned_and_exported_exactly(
    framework: str, name: str, tmp_path: Path
) -> None:
    plan = planned(request_for(framework, name))
    expected = REFUSED.get((framework, name))
    if isinstance(plan, str):
        assert expected is not None and expected in plan
        return
    assert expected is None, "the framework can do it now: take it out of REFUSED"
    assert framework_problems(load_framework(framework), plan) == ()
    again, differing = _round_trip(framework, plan, tmp_path)
    assert again.misfits == () and differing == set()
    assert again.plan.time_s == pytest.approx(plan.time_s, rel=SAME)
    peaks = [
        (a.stage, a.gpu_memory.peak_bytes, b.gpu_memory.peak_bytes)
        for a, b in zip(plan.placements, again.plan.placements, strict=True)
        if a.gpu_memory is not None and b.gpu_memory is not None
    ]
    assert peaks and all(before == pytest.approx(after, rel=SAME) for _, before, after in peaks)


def _round_trip(framework: str, plan: Plan, directory: Path) -> tuple[FixedPlan, set[str]]:
    """The price of what the export says, and the fields of strategies that came back otherwise."""
    found = imported_again(framework, plan, directory)
    assert not found.unresolved and not found.has_errors, messages(found)
    assert (found.execution.mode, found.execution.staleness) == (plan.execution.mode, plan.execution.staleness)
    request = same_request(plan)
    workers = placed(found, request)
    after = {item.worker: item.strategy for item in workers}
    again = price_fixed(request, workers, plan.execution)
    assert framework_problems(load_framework(framework), again.plan) == ()
    return again, _differences(strategies(plan), after)


def _differences(before: dict[WorkerName, Strategy], after: dict[WorkerName, Strategy]) -> set[str]:
    assert set(before) == set(after)
    return {
        f"{name.value}.{field.name}"
        for name, strategy in before.items()
        for field in fields(strategy)
        if getattr(strategy, field.name) != getattr(after[name], field.name)
        and not (name in FORWARD_ONLY and field.name == "micro_batch_tokens")
        and not (field.name == "context_parallel" and getattr(strategy, "cp", 0) == 1)
    }


def test_every_refusal_is_one_of_a_request() -> None:
    assert set(REFUSED) <= set(CASES)


def test_the_check_of_an_export_has_nothing_to_say(tmp_path: Path) -> None:
    """The whole way: the plan of a framework is the best one for it, and none of its rules is broken."""
    plan = planned(request_for("slime", "apart-one-node"))
    assert isinstance(plan, Plan)
    view = check(imported_again("slime", plan, tmp_path), same_request(plan))
    assert view.plan is not None and view.problems == () and view.changes == ()
    assert view.best is not None and view.best.time_s == pytest.approx(plan.time_s, rel=0.011)


def test_what_a_framework_does_anyway_is_told_and_not_refused(tmp_path: Path) -> None:
    """A plan that keeps states on the GPU starts in NeMo-RL, but is not priced as it runs: no search finds it."""
    plan = planned(request_for("nemo-rl", "dense-one-node"))
    assert isinstance(plan, Plan)
    actor = strategies(plan)[WorkerName.ACTOR_TRAINER]
    assert isinstance(actor, TrainerStrategy) and actor.offload is Offload.STATE_SWAP
    kept = with_strategy(plan, WorkerName.ACTOR_TRAINER, replace(actor, offload=Offload.NONE))
    rules = load_framework("nemo-rl")
    (problem,) = framework_problems(rules, kept)
    assert problem.kind is ProblemKind.OFFLOAD and "leave its GPUs whenever engines run there" in problem.text
    assert plan_problems(rules, kept) == ()
    imported_again("nemo-rl", kept, tmp_path)
    assert "always moves the weights" in (tmp_path / "README.md").read_text(encoding="utf-8")
