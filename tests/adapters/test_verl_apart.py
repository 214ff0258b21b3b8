"""verl exports whose engines have GPUs of their own: synchronous, streaming, one step off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.adapters.verl import export_plan
from planner.domain.framework_verdict import plan_problems
from planner.domain.plan import Plan
from planner.domain.strategy import Offload
from planner.errors import InvalidInputError
from planner.files.framework import load_framework
from tests.adapters.launch import overrides, recorded_arguments
from tests.adapters.split_plans import apart, engine, fsdp, load, megatron
from tests.adapters.split_plans import together as on_one_group
from tests.adapters.verl_cases import ONE_STEP_OFF, STREAMING, SYNCHRONOUS, apart_cases, with_reward_model

PLANS = apart_cases()
ROLLOUT = "actor_rollout_ref.rollout"
CORRECTION = "algorithm.rollout_correction"


def exported(plan: Plan, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """The module that the script starts, and its overrides."""
    script = export_plan(plan, tmp_path / "out")[0]
    arguments = recorded_arguments(script, tmp_path / "bin")
    return arguments[1], overrides(arguments)


def readme(tmp_path: Path) -> str:
    return (tmp_path / "out" / "README.md").read_text()


def refusal(plan: Plan, tmp_path: Path) -> str:
    with pytest.raises(InvalidInputError) as caught:
        export_plan(plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    return str(caught.value)


def test_there_are_forty_plans_with_engines_apart() -> None:
    asynchronous = [plan for plan in PLANS.values() if plan.execution.is_asynchronous]
    assert len(PLANS) >= 40 and len(asynchronous) >= 30


def test_streaming_runs_the_separate_trainer(tmp_path: Path) -> None:
    module, values = exported(PLANS["qwen3-32b-32+16-streaming"], tmp_path)
    assert module == "verl.trainer.main_ppo"
    assert values["trainer.v1.trainer_mode"] == "separate_async"
    assert (values["trainer.nnodes"], values["trainer.n_gpus_per_node"]) == ("4", "8")
    assert (values[f"{ROLLOUT}.nnodes"], values[f"{ROLLOUT}.n_gpus_per_node"]) == ("2", "8")
    # Two versions of lag: two batches ahead, and responses that span three versions.
    assert values["trainer.v1.separate_async.num_warmup_batches"] == "2"
    assert values["trainer.v1.sampler.max_off_policy_threshold"] == "3"
    assert values["trainer.v1.sampler.max_off_policy_strategy"] == "wait"
    steps, mini = values["trainer.v1.separate_async.parameter_sync_step"], "actor_rollout_ref.actor.ppo_mini_batch_size"
    assert int(values["data.train_batch_size"]) == int(steps) * int(values[mini])
    assert values["actor_rollout_ref.hybrid_engine"] == "False"
    assert values[f"{ROLLOUT}.checkpoint_engine.backend"] == "nccl"
    assert (values[f"{CORRECTION}.rollout_is"], values[f"{CORRECTION}.rollout_is_threshold"]) == ("token", "2.0")
    assert values[f"{CORRECTION}.bypass_mode"] == "False" and values[f"{ROLLOUT}.calculate_log_probs"] == "True"
    text = readme(tmp_path)
    assert "importance weights per token" in text and "CuPy" in text and "mini-batch by mini-batch" in text


def test_a_synchronous_plan_with_engines_apart_is_never_ahead(tmp_path: Path) -> None:
    module, values = exported(PLANS["qwen3-8b-8+8-sync"], tmp_path)
    assert module == "verl.trainer.main_ppo" and values["trainer.v1.trainer_mode"] == "separate_async"
    assert values["trainer.v1.separate_async.num_warmup_batches"] == "0"
    assert values["trainer.v1.sampler.max_off_policy_threshold"] == "1"
    assert f"{CORRECTION}.rollout_is" not in values
    assert "importance weights" not in readme(tmp_path)


def test_batches_of_one_version_run_one_step_off(tmp_path: Path) -> None:
    module, values = exported(PLANS["qwen3-30b-a3b-16+48-one-step-off"], tmp_path)
    assert module == "verl.experimental.one_step_off_policy.main_ppo"
    assert values["hydra.searchpath"] == "[pkg://verl.trainer.config]"
    assert (values["rollout.nnodes"], values["rollout.n_gpus_per_node"]) == ("6", "8")
    assert values[f"{ROLLOUT}.free_cache_engine"] == "False"
    assert not [key for key in values if key.startswith("trainer.v1")]
    assert values[f"{CORRECTION}.rollout_is"] == "token"
    assert "one-step-off" in readme(tmp_path)


def test_half_a_node_each(tmp_path: Path) -> None:
    _, values = exported(PLANS["half-a-node"], tmp_path)
    assert (values["trainer.nnodes"], values["trainer.n_gpus_per_node"]) == ("1", "4")
    assert (values[f"{ROLLOUT}.nnodes"], values[f"{ROLLOUT}.n_gpus_per_node"]) == ("1", "4")


def test_adapters_are_merged_for_engines_apart(tmp_path: Path) -> None:
    for index, name in enumerate(("lora-fsdp", "lora-megatron")):
        _, values = exported(PLANS[name], tmp_path / str(index))
        assert values["actor_rollout_ref.model.lora.merge"] == "True"
        assert "merged into whole weights" in readme(tmp_path / str(index))


def test_a_reward_model_needs_a_pool_when_engines_are_apart(tmp_path: Path) -> None:
    _, values = exported(PLANS["reward-model-apart"], tmp_path)
    assert values["reward.reward_model.enable_resource_pool"] == "True"
    shared = with_reward_model(SYNCHRONOUS, shares_trainer=True)
    assert "cannot place actor trainer, reference, critic trainer and reward model" in refusal(shared, tmp_path / "b")


def test_what_one_step_off_lacks_is_named(tmp_path: Path) -> None:
    assert "no reward model on GPUs with asynchronous batches" in refusal(with_reward_model(ONE_STEP_OFF), tmp_path)
    dapo = apart(load("qwen3-8b", "dapo"), megatron(16, pp=2), engine(16), execution=ONE_STEP_OFF)
    assert "no dynamic sampling with asynchronous batches" in refusal(dapo, tmp_path)
    far = replace(ONE_STEP_OFF, staleness=2)
    late = apart(load("qwen3-8b"), fsdp(8), engine(8), execution=far)
    assert "at most 1 version behind with asynchronous batches, the plan allows 2" in refusal(late, tmp_path)


def test_asynchronous_plans_on_the_same_gpus_are_refused(tmp_path: Path) -> None:
    plan = on_one_group(load("qwen3-8b"), fsdp(8, offload=Offload.STATE_SWAP), engine(8))
    stale = replace(plan, execution=STREAMING, period_s=plan.makespan_s)
    assert "needs GPUs of its own for the rollout" in refusal(stale, tmp_path)


def test_fsdp_weights_in_host_ram_are_refused_where_verl_would_lose_updates(tmp_path: Path) -> None:
    swapped = apart(load("qwen3-8b"), fsdp(8, offload=Offload.STATE_SWAP), engine(8), execution=STREAMING)
    text = refusal(swapped, tmp_path)
    assert "FSDP weights must stay on the GPUs" in text and "--framework verl" in text
    exported(PLANS["fsdp-swap-one-update"], tmp_path)


def test_the_rules_allow_what_is_exported() -> None:
    rules = load_framework("verl")
    assert [name for name, plan in PLANS.items() if plan_problems(rules, plan)] == []
