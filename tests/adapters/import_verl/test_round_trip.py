"""import(export(plan)) prices like the plan."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from planner.adapters.import_source import open_source
from planner.adapters.importers import import_source
from planner.adapters.verl import export_plan
from planner.check import as_run, placed
from planner.domain.execution import ExecutionMode
from planner.domain.plan import Plan
from planner.domain.stages import StageName
from planner.files.spec import WorkloadSpec, override
from planner.files.workload import build_request
from planner.pipeline import estimate, make_plan

BASE = WorkloadSpec(model="qwen3-8b", gpus="8xh100", framework="verl", response_mean=2000.0, response_max=4096)
APART, STREAMING = ("rollout+actor",), ("partial-rollouts",)
SPECS = {
    "grpo": BASE,
    "two nodes": replace(BASE, gpus="16xh100"),
    "mixture of experts": replace(BASE, model="qwen3-30b-a3b", gpus="16xh100"),
    "ppo": replace(BASE, algorithm="ppo"),
    "reward model": replace(BASE, algorithm="ppo", reward="model"),
    "dapo": replace(BASE, algorithm="dapo"),
    "gspo on a100": replace(BASE, algorithm="gspo", gpus="8xa100-80gb"),
    "rloo": replace(BASE, algorithm="rloo"),
    "dr-grpo with fp8": replace(BASE, algorithm="dr-grpo", rollout_precision="fp8"),
    "lora": replace(BASE, lora_rank=32),
    "one update": replace(BASE, num_optimizer_steps=1),
    "engines apart": replace(BASE, gpus="16xh100", apart=APART),
    "one step off": replace(BASE, gpus="16xh100", apart=APART, staleness=1),
    "streaming": replace(BASE, algorithm="dapo", gpus="16xh100", apart=APART, staleness=2, allow=STREAMING),
}
MODES = {"one step off": ExecutionMode.BATCHES, "streaming": ExecutionMode.STREAMING}


@cache
def plan_of(name: str) -> Plan:
    return make_plan(build_request(SPECS[name]))


@pytest.mark.parametrize("name", SPECS)
def test_an_export_prices_like_its_plan(name: str, tmp_path: Path) -> None:
    plan = plan_of(name)
    script = export_plan(plan, tmp_path / "launch")[0]
    imported = import_source(open_source(script))
    assert not imported.unresolved and not imported.has_errors, imported.findings
    # The search found a plan of the kind, and its export says so.
    assert plan.execution.mode is MODES.get(name, ExecutionMode.SYNCHRONOUS)
    assert replace(imported.execution, policy=plan.execution.policy) == plan.execution
    spec = SPECS[name]
    request = build_request(override(imported.spec, WorkloadSpec(gpus=spec.gpus, response_mean=spec.response_mean)))
    request = as_run(imported, request)
    again = estimate(request, placed(imported, request), plan.execution)
    assert request.workload.num_samples == plan.workload.num_samples
    if plan.workload.critic is None:
        assert again.time_s == pytest.approx(plan.time_s, rel=1e-6)
    for before in plan.placements:
        after = again.placement(before.stage)
        if before.stage is StageName.CRITIC_VALUE:
            # verl has one token budget for values and update: the export writes the smaller one and says so.
            continue
        assert after.time_s == pytest.approx(before.time_s, rel=1e-6), before.stage
        if before.gpu_memory is not None and after.gpu_memory is not None:
            assert after.gpu_memory.peak_bytes == pytest.approx(before.gpu_memory.peak_bytes, rel=1e-6), before.stage
