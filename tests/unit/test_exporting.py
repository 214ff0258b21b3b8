"""Exports say what they are predicted to do beside the plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.adapters.export import README
from planner.adapters.registry import exported_files
from planner.cli import run
from planner.domain.plan import Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import EngineIdle, Offload
from planner.exporting import AsExported, export, price_as_exported
from planner.files.catalog import find_catalog_model
from planner.files.plan import write_plan
from tests.adapters.framework_requests import planned, request_for
from tests.adapters.round_trips import plan_cases, priced
from tests.adapters.split_plans import apart, engine, load, megatron, together

FRAMEWORKS = ("verl", "nemo-rl", "openrlhf", "areal", "slime")
FEW = 9
"""Every so manieth plan of those that exports are tested with."""


def as_exported(framework: str, plan: Plan) -> AsExported:
    return price_as_exported(framework, plan, exported_files(framework, plan))


def readme(framework: str, plan: Plan, directory: Path) -> str:
    written = export(framework, plan, directory / "out")
    assert written.as_exported is not None
    return next(path for path in written.paths if path.name == README).read_text(encoding="utf-8")


def keeping() -> Plan:
    """States that stay on GPUs where engines run, as NeMo-RL never has them."""
    trainer = megatron(16, tp=4, pp=2, offload=Offload.NONE)
    return priced(together(load("qwen3-8b"), trainer, engine(16, idle=EngineIdle.SLEEP)))


def test_a_plan_for_the_framework_does_what_was_planned(tmp_path: Path) -> None:
    plan = planned(request_for("slime", "apart-one-node"))
    assert isinstance(plan, Plan)
    found = as_exported("slime", plan)
    assert found.is_same and not found.fields and not found.stages and not found.misfits
    assert found.planned_s == pytest.approx(plan.time_s, rel=1e-6)
    assert "per iteration predicted as exported, as planned." in readme("slime", plan, tmp_path)


def test_states_that_leave_the_gpus_in_any_case_cost_seconds(tmp_path: Path) -> None:
    found = as_exported("nemo-rl", keeping())
    assert found.exported_s > found.planned_s and not found.is_same
    assert "actor trainer: offload state-swap instead of none" in found.fields
    changed = {item.stage: item.exported_s - item.planned_s for item in found.stages}
    assert sum(changed.values()) == pytest.approx(found.exported_s - found.planned_s, rel=1e-6)
    text = readme("nemo-rl", keeping(), tmp_path)
    section = text.partition("## Predicted as exported")[2]
    assert " s as planned (+" in section and "- actor trainer: offload state-swap instead of none" in section
    assert "- actor update: " in section


def test_engines_that_stay_gain_what_waking_costs() -> None:
    plan = priced(apart(load("qwen3-8b"), megatron(16, tp=4, pp=2), engine(16, idle=EngineIdle.SLEEP)))
    found = as_exported("nemo-rl", plan)
    assert found.exported_s < found.planned_s and "(-" in found.summary
    assert "rollout engine: idle resident instead of sleep" in found.fields


def test_one_token_budget_where_the_plan_has_two() -> None:
    actor = megatron(16, tp=4, pp=2)
    reference = replace(actor, inference_tokens=4 * actor.inference_tokens)
    plan = together(load("qwen3-8b"), actor, engine(16, idle=EngineIdle.SLEEP))
    items = tuple(
        replace(item, strategy=replace(item.strategy, inference_tokens=reference.inference_tokens))  # type: ignore[type-var]
        if item.worker is WorkerName.REFERENCE and item.strategy is not None
        else item
        for item in plan.placements
    )
    found = as_exported("slime", priced(replace(plan, placements=items)))
    assert any(text.startswith("reference: inference tokens 16,384 instead of 65,536") for text in found.fields)
    assert [item.stage for item in found.stages] == ["reference log-prob"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_exports_of_known_models_can_be_priced(framework: str) -> None:
    plans = {name: plan for name, plan in plan_cases(framework).items() if find_catalog_model(plan.workload.actor.id)}
    assert len(plans) > FEW
    for name in list(plans)[::FEW]:
        assert as_exported(framework, priced(plans[name])).exported_s > 0, name


def test_a_model_that_is_not_at_hand_is_exported_without_a_price(tmp_path: Path) -> None:
    plan = together(load("qwen3-8b"), megatron(16), engine(16, idle=EngineIdle.SLEEP))
    mine = replace(plan.workload.actor, id="mine", hf_repo="/elsewhere/mine")
    moved = priced(replace(plan, workload=replace(plan.workload, actor=mine)))
    written = export("nemo-rl", moved, tmp_path / "out")
    assert written.as_exported is None and "no model is known by" in written.why_not
    text = next(path for path in written.paths if path.name == README).read_text(encoding="utf-8")
    assert "Not priced: policy.model_name cannot be read here" in text


def test_what_does_not_fit_is_said() -> None:
    found = AsExported(
        title="slime", planned_s=100.0, exported_s=100.0, stages=(), fields=(), misfits=("too large",), saved_s=100.0
    )
    assert not found.is_same and found.summary.endswith("; it does not fit")


def test_the_command_prints_paths_for_programs_and_the_price_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, directory = tmp_path / "plan.json", tmp_path / "out"
    write_plan(keeping(), file)
    assert run(["export", str(file), "--to", "nemo-rl", "-o", str(directory)]) == 0
    printed = capsys.readouterr()
    assert all(Path(line).is_file() for line in printed.out.splitlines()) and printed.out
    assert "per iteration predicted as exported" in printed.err
