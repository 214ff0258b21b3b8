"""Requests that broke something once, as a random run of the commands found them: a saved plan can be read again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.adapters.nemo_rl import export_plan
from planner.domain.execution import Fusion
from planner.domain.plan import Plan
from planner.errors import InfeasibleError, InvalidInputError
from planner.files.plan import parse_plan, plan_text
from planner.files.plan_checks import value_problems
from planner.files.spec import WorkloadSpec
from planner.files.workload import build_request
from planner.pipeline import make_plan

SANDBOX = WorkloadSpec(
    model="deepseek-v2-lite", gpus="2xa100", algorithm="remax", reward="sandbox", reward_latency="30s",
    response_cv=1.5, lora_rank=8,
)  # fmt: skip
"""Its responses are judged while the rollout still runs."""
THREE_POOLS = WorkloadSpec(
    model="qwen3-1.7b", gpus="2xh100,2xa100,4xh200", algorithm="ppo", inter_pool="100 Gbit/s",
    apart=("actor+reference",), response_max=4096, num_prompts=32,
)  # fmt: skip
"""Reference and old log-probs work on the first responses, each on GPUs of its own."""
JOINT = WorkloadSpec(
    model="qwen3-0.6b", gpus="4xh100", algorithm="ppo", fusion="all", num_prompts=64, share=("actor+critic",),
    fix=("actor: pp=4", "critic: pp=4"),
)  # fmt: skip
SAVED = {"sandbox": SANDBOX, "three pools": THREE_POOLS, "updates in one pipeline": JOINT}


def planned(spec: WorkloadSpec) -> Plan:
    return make_plan(build_request(spec))


@pytest.mark.parametrize("name", SAVED)
def test_a_plan_with_fused_stages_is_read_as_it_was_saved(name: str) -> None:
    plan = planned(SAVED[name])
    assert plan.execution.fusions
    text = plan_text(plan)
    assert plan_text(parse_plan(text, where="p.json")) == text


def test_fusion_is_no_excuse_for_any_order() -> None:
    """Without it, or when the assessor ends before the last response, the schedule is refused."""
    plan = planned(SANDBOX)
    assert plan.execution.fusions == (Fusion.INTER_STAGE,)
    plain = replace(plan, execution=replace(plan.execution, fusions=()))
    assert any("'reward' starts before 'rollout' ends" in problem for problem in value_problems(plain))
    early = tuple(
        replace(item, start_s=0.0, end_s=item.end_s - item.start_s) if item.stage == "reward" else item
        for item in plan.schedule
    )
    with pytest.raises(InvalidInputError, match="'reward' ends before 'rollout' ends"):
        parse_plan(plan_text(replace(plan, schedule=early)), where="p.json")


EPOCHS = WorkloadSpec(model="qwen3-0.6b", gpus="2xh100", num_epochs=2, num_prompts=64)
"""NeMo-RL passes over a batch once."""


def test_nobody_is_sent_in_a_circle(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="with another one, as said above: rlplan plan") as refused:
        export_plan(planned(EPOCHS), tmp_path / "out")
    assert "--epochs 1" in str(refused.value)
    with pytest.raises(InfeasibleError, match="--epochs 1"):
        planned(replace(EPOCHS, framework="nemo-rl"))
    export_plan(planned(replace(EPOCHS, framework="nemo-rl", num_epochs=1)), tmp_path / "out")
