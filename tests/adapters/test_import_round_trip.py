"""import(export(plan)) prices like the plan, for every framework but verl (see import_verl)."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from planner.domain.plan import Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import EngineIdle
from tests.adapters.imports import messages
from tests.adapters.round_trips import MODULES, RoundTrip, plan_cases, priced, rollout, round_trip, strategies
from tests.adapters.variants import with_strategy

SAME = 1e-6
LOST = {
    "openrlhf": frozenset({"reference.micro_batch_tokens"}),
    "nemo-rl": frozenset({"reference.micro_batch_tokens"}),
    "slime": frozenset({"reference.micro_batch_tokens"}),
    # One token budget for forward passes and update: what a search for AReaL finds has no other.
    "areal": frozenset({
        "reference.micro_batch_tokens", "actor trainer.inference_tokens", "critic trainer.inference_tokens",
    }),
}  # fmt: skip
"""Fields of hand-made plans that an export cannot say, by framework. A reference has no updates: its first budget is
never used."""
LOST_TIME_RATIO = {"openrlhf": SAME, "nemo-rl": SAME, "slime": SAME, "areal": 0.06}
CASES = {
    "openrlhf": (
        "qwen3-8b-2n-shared", "qwen3-32b-4n-split", "qwen3-32b-4n-batches", "qwen3-30b-a3b-2n-streaming",
        "llama-3.1-70b-8n-shared",
    ),
    "nemo-rl": (
        "qwen3-32b-4n-shared", "qwen3-32b-2n-split", "qwen3-32b-4n-batches", "qwen3-30b-a3b-4n-streaming",
        "qwen2.5-72b-8n-shared", "moe-selective", "moe-etp", "attention-dp",
        "moe-dtensor-ep", "moe-dtensor-tp",
    ),
    "slime": (
        "qwen3-8b-16-together", "qwen3-32b-64-apart", "qwen3-30b-a3b-16-ahead", "glm-4.5-air-64-together", "ppo",
        "fp8-rollout", "uneven-pipeline", "cpu-optimizer-swap", "context-parallel", "half-nodes", "no-reference",
        "attention-dp", "attention-dp-gather",
    ),
    "areal": (
        "qwen3-8b-16+16-sync", "qwen3-30b-a3b-64+32-streaming", "qwen3-0.6b-8+8-streaming", "ppo", "gspo",
        "reference-apart", "critic-apart", "fsdp-tp", "lora-fsdp", "context-parallel", "lag-8", "no-old-logprob",
        "attention-dp", "attention-dp-over-nodes",
    ),
}  # fmt: skip
PAIRS = [(framework, name) for framework, names in CASES.items() for name in names]


def as_run(framework: str, plan: Plan) -> Plan:
    """Engines with GPUs of their own never sleep, whatever a hand-made plan says."""
    engine = rollout(plan)
    is_alone = len(plan.device_groups) > 1
    if is_alone and engine.idle is EngineIdle.SLEEP:
        return with_strategy(plan, WorkerName.ROLLOUT_ENGINE, replace(engine, idle=EngineIdle.RESIDENT))
    return plan


def differences(trip: RoundTrip) -> set[str]:
    before = strategies(trip.plan)
    after = {item.worker: item.strategy for item in trip.imported.workers}
    assert set(before) == set(after)
    dense = not trip.plan.workload.actor.is_moe
    return {
        f"{name.value}.{field.name}"
        for name, strategy in before.items()
        for field in fields(strategy)
        if getattr(strategy, field.name) != getattr(after[name], field.name) and not (dense and field.name == "etp")
    }


@pytest.mark.parametrize(("framework", "name"), PAIRS)
def test_an_export_prices_like_its_plan(framework: str, name: str, tmp_path: Path) -> None:
    trip = round_trip(framework, as_run(framework, plan_cases(framework)[name]), tmp_path)
    assert not trip.imported.unresolved and not trip.imported.has_errors, messages(trip.imported)
    assert differences(trip) <= LOST[framework]
    assert trip.imported.execution == trip.plan.execution
    assert trip.again.time_s == pytest.approx(trip.plan.time_s, rel=LOST_TIME_RATIO[framework])
    if not differences(trip) - {"reference.micro_batch_tokens"}:
        assert trip.again.time_s == pytest.approx(trip.plan.time_s, rel=SAME)
    _compare_workload(trip)


def _compare_workload(trip: RoundTrip) -> None:
    spec, work = trip.imported.spec, trip.plan.workload
    assert (spec.algorithm, spec.num_prompts, spec.group_size) == (
        work.algorithm.name, work.num_prompts, work.group_size,
    )  # fmt: skip
    assert (spec.num_optimizer_steps, spec.num_epochs) == (work.num_optimizer_steps, work.num_epochs)
    assert (spec.prompt_max, spec.response_max) == (work.prompt_max_tokens, work.response.max_tokens)
    assert spec.kl_coefficient == work.kl_coefficient and spec.lora_rank == work.lora_rank
    assert spec.model == work.actor.hf_repo
    assert trip.imported.recomputes_old_logprob == work.needs_old_logprob
    assert trip.imported.framework in MODULES


def test_what_is_lost_is_what_makes_the_difference(tmp_path: Path) -> None:
    """With the fields that AReaL cannot say set back, the price is that of the plan."""
    trip = round_trip("areal", plan_cases("areal")["qwen3-30b-a3b-16+16-sync"], tmp_path)
    back = trip.plan
    for name, strategy in {item.worker: item.strategy for item in trip.imported.workers}.items():
        kept = {
            field.name: getattr(strategies(trip.plan)[name], field.name)
            for field in fields(strategy)
            if f"{name.value}.{field.name}" in LOST["areal"]
        }
        back = with_strategy(back, name, replace(strategy, **kept))
    assert trip.again.time_s != pytest.approx(trip.plan.time_s, rel=SAME)
    assert priced(back).time_s == pytest.approx(trip.plan.time_s, rel=SAME)
