"""NeMo-RL exports against the frozen keys of its checkout and against what the plan says.

`make test-frameworks` (tests/adapters/nemo_rl_check.py) loads the same exports with NeMo-RL's own code.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from planner.adapters.nemo_rl import export_plan, exported_files
from planner.adapters.nemo_rl_config import supported_algorithms
from planner.domain.execution import Execution, ExecutionMode, Fusion
from planner.domain.hardware import Precision
from planner.domain.plan import Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import EngineIdle, Offload, Sharding
from planner.domain.workload import RewardKind
from planner.errors import InvalidInputError
from planner.files.framework import load_framework
from tests.adapters.nemo_rl_cases import cases, dtensor, hostile_case
from tests.adapters.nemo_rl_check import config_text, leaves, unknown_keys
from tests.adapters.plans import HOSTILE, engine, megatron
from tests.adapters.variants import BATCHES, STREAMING, shared_plan, split_plan, with_strategy
from tests.factories import workload

PLANS = cases()


def config(plan: Plan) -> dict[str, object]:
    """Leaves of the exported YAML by dotted key."""
    return dict(leaves(yaml.load(config_text(plan), Loader=yaml.CSafeLoader)))


def refusal(plan: Plan) -> str:
    with pytest.raises(InvalidInputError) as caught:
        exported_files(plan)
    return str(caught.value)


def test_there_are_enough_plans() -> None:
    assert len(PLANS) >= 40


@pytest.mark.parametrize("name", PLANS)
def test_every_key_exists_in_nemo_rl(name: str) -> None:
    text = config_text(PLANS[name])
    assert unknown_keys(text) == []
    assert len(dict(leaves(yaml.load(text, Loader=yaml.CSafeLoader)))) > 70


@pytest.mark.parametrize("name", ["megatron-cp", "ppo-dtensor", "ppo-streaming"])
def test_a_letter_lost_in_any_key_is_found(name: str) -> None:
    for key in config(PLANS[name]):
        if key == "defaults":
            continue
        parent, _, last = key.rpartition(".")
        mutated = f"{parent}.{last[:-2]}{last[-1]}"
        nested: object = 1
        for part in reversed(mutated.split(".")):
            nested = {part: nested}
        assert unknown_keys(yaml.safe_dump(nested)) == [mutated]


def test_every_algorithm_of_the_rules_has_a_loss() -> None:
    assert set(supported_algorithms()) == load_framework("nemo-rl").algorithms


def test_a_colocated_megatron_plan() -> None:
    values = config(PLANS["qwen3-32b-4n-shared"])
    assert values["defaults"] == "${oc.env:NEMO_RL}/examples/configs/grpo_math_1B.yaml"
    assert (values["cluster.num_nodes"], values["cluster.gpus_per_node"]) == (4, 8)
    assert values["policy.generation.colocated.enabled"] is True
    assert values["policy.generation.colocated.resources.num_nodes"] is None
    assert values["policy.megatron_cfg.tensor_model_parallel_size"] == 4
    assert values["policy.megatron_cfg.expert_tensor_parallel_size"] == 4
    assert values["policy.megatron_cfg.sequence_parallel"] is True
    assert values["policy.dtensor_cfg.enabled"] is False
    # 256 prompts x 16 responses in 4 steps.
    assert values["policy.train_global_batch_size"] == 1024
    assert values["policy.sequence_packing.train_mb_tokens"] == 18432
    assert values["policy.sequence_packing.logprob_mb_tokens"] == 36864
    assert values["policy.generation.vllm_cfg.gpu_memory_utilization"] == 0.6
    assert values["policy.generation.vllm_kwargs.max_num_seqs"] == 256
    assert values["policy.generation.vllm_cfg.max_model_len"] == 9216
    assert values["grpo.async_grpo.enabled"] is False
    assert values["loss_fn.use_importance_sampling_correction"] is False


def test_nodes_of_the_rollout_count_in_the_cluster() -> None:
    values = config(PLANS["qwen3-32b-8n-split"])
    assert values["cluster.num_nodes"] == 8
    assert values["policy.generation.colocated.enabled"] is False
    assert values["policy.generation.colocated.resources.num_nodes"] == 4
    assert values["policy.generation.colocated.resources.gpus_per_node"] == 8
    one = config(PLANS["one-node-split"])
    assert (one["cluster.num_nodes"], one["cluster.gpus_per_node"]) == (1, 8)
    assert one["policy.generation.colocated.resources.num_nodes"] == 1
    assert one["policy.generation.colocated.resources.gpus_per_node"] == 4
    part = config(PLANS["one-node-part"])
    assert (part["cluster.num_nodes"], part["cluster.gpus_per_node"]) == (1, 4)


@pytest.mark.parametrize(("name", "in_flight", "age"), [("batches", False, 1), ("streaming", True, 3)])
def test_asynchrony_comes_with_its_correction(name: str, in_flight: bool, age: int) -> None:
    values = config(PLANS[f"qwen3-32b-4n-{name}"])
    assert values["grpo.async_grpo.enabled"] is True
    assert values["grpo.async_grpo.max_trajectory_age_steps"] == age
    assert values["grpo.async_grpo.in_flight_weight_updates"] is in_flight
    assert values["policy.generation.vllm_cfg.async_engine"] is True
    assert values["loss_fn.use_importance_sampling_correction"] is True
    assert values["loss_fn.truncated_importance_sampling_type"] == "tis"


def test_ppo_has_a_value_model_and_its_own_program(tmp_path: Path) -> None:
    values = config(PLANS["ppo-streaming"])
    assert values["ppo.async_ppo.enabled"] is True
    assert values["ppo.max_num_epochs"] == -1
    assert values["value.megatron_cfg.tensor_model_parallel_size"] == 4
    assert values["loss_fn.use_kl_in_reward"] is True
    assert not [key for key in values if key.startswith("grpo.")]
    script = export_plan(PLANS["ppo-streaming"], tmp_path / "out")[0].read_text()
    assert "uv run examples/run_ppo.py" in script
    dtensor_value = config(PLANS["ppo-dtensor"])
    assert dtensor_value["value.sequence_packing.enabled"] is False
    assert dtensor_value["value.dynamic_batching.enabled"] is False
    # A budget of 36,864 tokens holds 4 sequences of 9,216.
    assert dtensor_value["value.train_micro_batch_size"] == 4
    assert config(PLANS["ppo-epochs"])["ppo.ppo_epochs"] == 2


def test_strategies_become_their_keys() -> None:
    hsdp = config(PLANS["dtensor-hsdp"])
    assert hsdp["policy.dtensor_cfg.dp_replicate_size"] == 4
    assert hsdp["policy.dtensor_cfg.activation_checkpointing"] is False
    ring = config(PLANS["dtensor-cp"])
    assert ring["policy.sequence_packing.enabled"] is False
    assert ring["policy.dynamic_batching.enabled"] is True
    assert ring["policy.dtensor_cfg.sequence_parallel"] is False
    assert ring["policy.make_sequence_length_divisible_by"] == 16
    uneven = config(PLANS["megatron-uneven"])
    assert uneven["policy.megatron_cfg.num_layers_in_first_pipeline_stage"] == 7
    host = config(PLANS["megatron-cpu-optimizer"])
    assert host["policy.megatron_cfg.optimizer.optimizer_cpu_offload"] is True
    assert host["policy.megatron_cfg.optimizer.optimizer_offload_fraction"] == 1.0
    ddp = config(PLANS["megatron-ddp"])
    assert ddp["policy.megatron_cfg.optimizer.use_distributed_optimizer"] is False
    assert ddp["policy.megatron_cfg.activation_checkpointing"] is False
    selective = config(PLANS["moe-selective"])
    assert selective["policy.megatron_cfg.recompute_granularity"] == "selective"
    assert selective["policy.megatron_cfg.recompute_modules"] == ["layernorm", "moe_act"]
    etp = config(PLANS["moe-etp"])
    assert etp["policy.megatron_cfg.expert_tensor_parallel_size"] == 2
    assert config(PLANS["lora-dtensor"])["policy.dtensor_cfg.lora_cfg.dim"] == 32
    assert config(PLANS["lora-megatron"])["policy.megatron_cfg.peft.dim"] == 64
    assert config(PLANS["fp8-rollout"])["policy.generation.vllm_cfg.precision"] == "fp8"
    assert config(PLANS["fp8-rollout"])["loss_fn.use_importance_sampling_correction"] is True
    assert config(PLANS["rollout-pp"])["policy.generation.vllm_cfg.async_engine"] is True
    assert config(PLANS["on-policy"])["loss_fn.force_on_policy_ratio"] is True


@pytest.mark.parametrize("name", PLANS)
def test_budgets_hold_the_longest_sequence_after_padding(name: str) -> None:
    values = config(PLANS[name])
    longest = PLANS[name].workload.max_tokens
    for path in ("policy", "value"):
        divisor = values.get(f"{path}.make_sequence_length_divisible_by", 1)
        assert isinstance(divisor, int)
        padded = -(-longest // divisor) * divisor
        for kind in ("sequence_packing", "dynamic_batching"):
            for budget in ("train_mb_tokens", "logprob_mb_tokens"):
                value = values.get(f"{path}.{kind}.{budget}", padded)
                assert isinstance(value, int) and value >= padded


def test_user_text_stays_data(tmp_path: Path) -> None:
    values = config(hostile_case())
    assert values["policy.model_name"] == values["value.model_name"] == HOSTILE.replace("${", r"\${")


def test_the_script_starts_the_program_with_the_configuration_beside_it(tmp_path: Path) -> None:
    out = tmp_path / "an $(touch pwned) 'export'"
    script = export_plan(PLANS["qwen3-32b-4n-shared"], out)[0]
    checkout, scratch = tmp_path / "Ne Mo", tmp_path / "bin"
    for directory in (checkout, scratch):
        directory.mkdir()
    (tmp_path / "data $x.jsonl").write_text("")
    recorder = scratch / "uv"
    recorder.write_text('#!/bin/sh\nprintf \'%s\\0\' "$PWD" "$NEMO_RL" "$TRAIN_DATA" "$@"\n')
    recorder.chmod(0o755)
    environment = {
        "PATH": f"{scratch}{os.pathsep}/usr/bin{os.pathsep}/bin",
        "NEMO_RL": "Ne Mo",
        "TRAIN_DATA": "data $x.jsonl",
    }
    result = subprocess.run([script, "a=$(b) c"], env=environment, cwd=tmp_path, capture_output=True, check=True)
    expected = [str(checkout), str(checkout), str(tmp_path / "data $x.jsonl")]
    expected += ["run", "examples/run_grpo.py", "--config", str(out / "config.yaml"), "a=$(b) c"]
    assert result.stdout.decode().split("\0")[:-1] == expected
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["Ne Mo", "bin", "data $x.jsonl", out.name])
    missing = subprocess.run(
        [script], env={"PATH": environment["PATH"]}, cwd=tmp_path, capture_output=True, check=False
    )
    assert missing.returncode != 0 and b"NEMO_RL" in missing.stderr


def test_every_block_names_its_decision_and_the_readme_the_command(tmp_path: Path) -> None:
    paths = {path.name: path.read_text() for path in export_plan(PLANS["ppo"], tmp_path / "out")}
    assert set(paths) == {"run.sh", "config.yaml", "README.md"}
    for worker in (WorkerName.ACTOR_TRAINER, WorkerName.ROLLOUT_ENGINE, WorkerName.CRITIC_TRAINER):
        assert f"# {worker.value} on device group g0: " in paths["config.yaml"]
    for text in paths.values():
        assert "NeMo-RL main-2026-08" in text
    assert "TRAIN_DATA=train.jsonl ./run.sh" in paths["README.md"]


def test_differences_are_named(tmp_path: Path) -> None:
    def readme(name: str) -> str:
        return export_plan(PLANS[name], tmp_path / name)[2].read_text()

    assert "always moves the weights" in readme("no-swap")
    assert "padded to their longest" in readme("dtensor-cp")
    assert "value model on DTensor neither packs" in readme("ppo-dtensor")
    assert "until enough groups are left" in readme("dapo")
    assert "None known" in readme("megatron-cp")


def test_what_cannot_be_expressed_is_refused_with_the_reason_and_a_way_out() -> None:
    grpo, trainer, rollout = workload(), megatron(16, etp=4), engine(16)
    assert "no Dr.GRPO" in refusal(shared_plan(workload("dr-grpo"), trainer, rollout))
    message = refusal(shared_plan(grpo, megatron(16, etp=4, sharding=Sharding.ZERO2), rollout))
    assert "zero2 is not offered" in message and "--framework nemo-rl" in message
    cpu = megatron(16, etp=4, sharding=Sharding.DDP, offload=Offload.CPU_OPTIMIZER)
    assert "optimizer step on the host needs zero1" in refusal(shared_plan(grpo, cpu, rollout))
    assert "passes over a batch once" in refusal(shared_plan(replace(grpo, num_epochs=2), trainer, rollout))
    left_out = shared_plan(workload(old_logprob=False), trainer, rollout)
    assert "recomputes old log-probs for this workload" in refusal(left_out)
    resident = engine(16, idle=EngineIdle.RESIDENT)
    assert "engines always sleep while others run" in refusal(shared_plan(grpo, trainer, resident))
    fp8 = replace(grpo, train_precision=Precision.FP8)
    assert "megatron" in refusal(shared_plan(fp8, dtensor(16), rollout))
    ring = dtensor(16, tp=1, cp=2)
    assert "cp is 2, at most 1" in refusal(shared_plan(workload("ppo"), ring, rollout))
    assert "no reward model on GPUs" in refusal(shared_plan(workload(reward=RewardKind.MODEL), trainer, rollout))
    assert "equally many GPUs" in refusal(split_plan(grpo, megatron(8, etp=4, pp=1), engine(4)))


def test_execution_that_does_not_exist_is_refused() -> None:
    grpo = workload()
    split = split_plan(grpo, megatron(16, etp=4), engine(16), mode=BATCHES, staleness=1)
    exported_files(split)
    fused = replace(split, execution=Execution(mode=BATCHES, staleness=1, fusions=(Fusion.INTER_STAGE,)))
    assert "no inter-stage fusion" in refusal(fused)
    old = replace(split, execution=Execution(mode=STREAMING, staleness=5000))
    assert "lag at most 1024 versions behind, the plan allows 5000" in refusal(old)
    shared = shared_plan(grpo, megatron(16, etp=4), engine(16))
    together = replace(shared, execution=Execution(mode=ExecutionMode.BATCHES, staleness=1), period_s=1.0)
    assert "needs GPUs of its own for the rollout" in refusal(together)
    filtered = split_plan(workload("dapo"), megatron(16, etp=4), engine(16), mode=BATCHES, staleness=1)
    assert "no dynamic sampling" in refusal(filtered)


def test_one_budget_holds_for_old_and_reference_log_probs(tmp_path: Path) -> None:
    plan = PLANS["qwen3-32b-4n-shared"]
    reference = next(p.strategy for p in plan.placements if p.worker is WorkerName.REFERENCE)
    assert reference is not None
    smaller = with_strategy(plan, WorkerName.REFERENCE, replace(reference, inference_tokens=18432))  # type: ignore[type-var,call-arg]
    assert config(smaller)["policy.sequence_packing.logprob_mb_tokens"] == 18432
    assert "the smaller one (18432 tokens)" in export_plan(smaller, tmp_path / "out")[2].read_text()
