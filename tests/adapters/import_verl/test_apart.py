"""verl's asynchronous trainers read back: what they do, what breaks, and plans through an export and back."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from planner.adapters.findings import Severity
from planner.adapters.import_source import open_source
from planner.adapters.imported import Imported
from planner.adapters.importers import import_source
from planner.domain.execution import IN_STEP, Execution, ExecutionMode
from planner.domain.stages import WorkerName
from planner.domain.strategy import EngineIdle, RolloutStrategy
from tests.adapters.imports import messages
from tests.adapters.round_trips import rollout, round_trip, strategies
from tests.adapters.variants import with_strategy
from tests.adapters.verl_cases import apart_cases

PLANS = apart_cases()
SAME = 1e-6
LOST = {"reference.micro_batch_tokens", "reward model.micro_batch_tokens", "critic trainer.inference_tokens"}
"""Forward-only workers have no first budget, and a critic has one for both."""

COMMON = (
    "actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.rollout.name=vllm algorithm.adv_estimator=grpo "
    "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.rollout.n=8 actor_rollout_ref.hybrid_engine=False "
    "trainer.nnodes=1 actor_rollout_ref.actor.ppo_mini_batch_size=64 "
)
SEPARATE = (
    COMMON + "trainer.v1.trainer_mode=separate_async trainer.v1.separate_async.parameter_sync_step=2 "
    "actor_rollout_ref.rollout.nnodes=1 actor_rollout_ref.rollout.checkpoint_engine.backend=nccl "
    "algorithm.rollout_correction.rollout_is=token data.train_batch_size=128 "
)
ONE_STEP = COMMON + "data.train_batch_size=128 rollout.nnodes=2 rollout.n_gpus_per_node=8 "
FULLY = COMMON + "data.train_batch_size=0 rollout.nnodes=1 rollout.n_gpus_per_node=8 "


def read(tmp_path: Path, words: str, module: str = "verl.trainer.main_ppo") -> Imported:
    file = tmp_path / "run.sh"
    file.write_text(f"python3 -m {module} {words}\n")
    return import_source(open_source(file))


def one_step_off(tmp_path: Path, words: str = "") -> Imported:
    return read(tmp_path, ONE_STEP + words, "verl.experimental.one_step_off_policy.main_ppo")


def fully_asynchronous(tmp_path: Path, words: str = "") -> Imported:
    return read(tmp_path, FULLY + words, "verl.experimental.fully_async_policy.fully_async_main")


def errors(imported: Imported) -> str:
    return messages(imported, Severity.ERROR)


def test_batches_ahead_are_the_staleness(tmp_path: Path) -> None:
    assert read(tmp_path, SEPARATE).execution == Execution(mode=ExecutionMode.STREAMING, staleness=1)
    ahead = "trainer.v1.separate_async.num_warmup_batches="
    assert read(tmp_path, SEPARATE + ahead + "3").execution.staleness == 3
    between = read(tmp_path, SEPARATE + ahead + "1.5")
    assert between.execution.staleness == 2 and "1.5 batches ahead" in messages(between)
    without = read(tmp_path, SEPARATE + ahead + "0")
    assert without.execution == IN_STEP and "synchronous" in messages(without)


def test_engines_that_run_ahead_never_sleep(tmp_path: Path) -> None:
    found = read(tmp_path, SEPARATE + "actor_rollout_ref.rollout.free_cache_engine=True")
    strategy = next(item.strategy for item in found.workers if item.worker is WorkerName.ROLLOUT_ENGINE)
    assert isinstance(strategy, RolloutStrategy) and strategy.idle is EngineIdle.RESIDENT
    assert "on GPUs of their own" in next(item.value for item in found.settings if item.what == "engines")


def test_late_keys_beside_old_ones_are_of_the_late_version(tmp_path: Path) -> None:
    found = read(tmp_path, SEPARATE + "+actor_rollout_ref.actor.megatron.grad_offload=True")
    assert found.version == "0.9.1" and "grad_offload is gone" in messages(found)


def test_teachers_are_named_as_left_out(tmp_path: Path) -> None:
    words = "distillation.enabled=True +distillation.teacher_models.math.key=openai/gsm8k"
    found = read(tmp_path, SEPARATE + words)
    assert "no part of the prediction" in messages(found) and not found.has_errors


def test_one_step_off_keeps_its_own_defaults(tmp_path: Path) -> None:
    found = one_step_off(tmp_path)
    assert found.execution == Execution(mode=ExecutionMode.BATCHES, staleness=1)
    assert found.recomputes_old_logprob is False and not found.has_errors
    recomputes = one_step_off(tmp_path, "algorithm.rollout_correction.bypass_mode=False")
    assert recomputes.recomputes_old_logprob is True and "no off-policy correction" in messages(recomputes)
    engines = next(item for item in found.workers if item.worker is WorkerName.ROLLOUT_ENGINE)
    assert (engines.first_gpu, engines.num_gpus) == (8, 16)


def test_fully_asynchronous_modes(tmp_path: Path) -> None:
    found = fully_asynchronous(tmp_path)
    assert found.execution == Execution(mode=ExecutionMode.STREAMING, staleness=1)
    assert "0.1 batches ahead" in messages(found) and not found.has_errors
    whole = fully_asynchronous(tmp_path, "async_training.partial_rollout=False async_training.staleness_threshold=1")
    assert whole.execution == Execution(mode=ExecutionMode.BATCHES, staleness=1)
    assert fully_asynchronous(tmp_path, "async_training.staleness_threshold=0").execution == IN_STEP


RULES = {
    "trainer.v1.sampler.max_off_policy_threshold=1": "every response is too old",
    "actor_rollout_ref.actor.fsdp_config.param_offload=True": "updates are overwritten",
    "actor_rollout_ref.model.lora_rank=16": "without the adapters",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=naive": "naive cannot reach",
    "data.train_batch_size=256": "is not parameter_sync_step x ppo_mini_batch_size",
    "reward.reward_model.enable=True reward.reward_model.model_path=Qwen/Qwen3-8B": "never pause for a reward model",
}


@pytest.mark.parametrize("words", RULES)
def test_broken_rules_of_the_separate_trainer(words: str, tmp_path: Path) -> None:
    assert errors(read(tmp_path, SEPARATE)) == ""
    assert RULES[words] in errors(read(tmp_path, SEPARATE + words))


def test_what_makes_the_same_settings_legal(tmp_path: Path) -> None:
    offload = "actor_rollout_ref.actor.fsdp_config.param_offload=True "
    assert not errors(read(tmp_path, SEPARATE + offload + "algorithm.rollout_correction.bypass_mode=True"))
    assert not errors(read(tmp_path, SEPARATE + "trainer.v1.sampler.max_off_policy_threshold=1 "
                                     "trainer.v1.sampler.max_off_policy_strategy=wait"))  # fmt: skip
    merged = "actor_rollout_ref.model.lora_rank=16 actor_rollout_ref.model.lora.merge=True"
    assert not errors(read(tmp_path, SEPARATE + merged))


def test_broken_rules_of_one_step_off(tmp_path: Path) -> None:
    assert "engines that are awake" in errors(
        one_step_off(tmp_path, "actor_rollout_ref.rollout.free_cache_engine=True")
    )
    reward = "reward.reward_model.enable=True reward.reward_model.model_path=Qwen/Qwen3-8B"
    assert "no workers for a reward model" in errors(one_step_off(tmp_path, reward))
    filters = one_step_off(tmp_path, "algorithm.filter_groups.enable=True")
    assert "filters no groups" in messages(filters) and not filters.has_errors


@pytest.mark.parametrize("name", PLANS)
def test_an_export_prices_like_its_plan(name: str, tmp_path: Path) -> None:
    plan = PLANS[name]
    if plan.execution.mode is ExecutionMode.BATCHES:
        plan = with_strategy(plan, WorkerName.ROLLOUT_ENGINE, replace(rollout(plan), idle=EngineIdle.RESIDENT))
    trip = round_trip("verl", plan, tmp_path)
    assert not trip.imported.unresolved and not trip.imported.has_errors, messages(trip.imported)
    # The order of stages is the framework's, and no configuration says it.
    assert replace(trip.imported.execution, policy=plan.execution.policy) == plan.execution
    assert trip.imported.recomputes_old_logprob is True
    after = {item.worker: item.strategy for item in trip.imported.workers}
    dense = not plan.workload.actor.is_moe
    different = {
        f"{worker.value}.{field.name}"
        for worker, strategy in strategies(trip.plan).items()
        for field in fields(strategy)
        if getattr(strategy, field.name) != getattr(after[worker], field.name) and not (dense and field.name == "etp")
    }
    assert different <= LOST
    if different <= {"reference.micro_batch_tokens"}:
        assert trip.again.time_s == pytest.approx(trip.plan.time_s, rel=SAME)
    assert trip.again.execution.is_asynchronous == (trip.again.period_s is not None)
