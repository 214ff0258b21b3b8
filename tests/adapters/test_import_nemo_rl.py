"""NeMo-RL's configurations: chains of defaults, markers, resolvers, overrides, placements, start-up rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.adapters.findings import Severity
from planner.adapters.imported import Imported
from planner.domain.execution import ExecutionMode
from planner.domain.stages import WorkerName
from planner.domain.strategy import Offload, Recompute, Sharding
from planner.errors import InvalidInputError
from tests.adapters.imports import engines, errors, first_gpu, messages, read, setting, trainer

CHAIN = {
    "recipes/async.yaml": """defaults: ./cp2.yaml
grpo:
  async_grpo: {enabled: true, in_flight_weight_updates: true, max_trajectory_age_steps: 2}
loss_fn: {use_importance_sampling_correction: true}
policy:
  generation:
    colocated: {enabled: false, resources: {num_nodes: 2, gpus_per_node: 8}}
    vllm_cfg: {async_engine: true}
cluster: {num_nodes: 10}
""",
    "recipes/cp2.yaml": """defaults: [../base.yaml]
policy:
  megatron_cfg: {context_parallel_size: 2}
  sequence_packing: {enabled: true}
""",
    "base.yaml": """defaults: ../grpo_math_1B.yaml
grpo: {num_prompts_per_step: 64, num_generations_per_prompt: 16}
policy:
  model_name: Qwen/Qwen3-30B-A3B
  train_global_batch_size: 512
  train_micro_batch_size: 1
  max_total_sequence_length: 4096
  make_sequence_length_divisible_by: ${mul:${policy.megatron_cfg.tensor_model_parallel_size}, 2}
  dtensor_cfg: {enabled: false}
  megatron_cfg:
    enabled: true
    tensor_model_parallel_size: 2
    expert_model_parallel_size: 8
    activation_checkpointing: true
    sequence_parallel: true
  sequence_packing:
    enabled: true
    train_mb_tokens: ${mul:${policy.max_total_sequence_length}, ${policy.train_micro_batch_size}}
  generation:
    max_new_tokens: 3072
    vllm_cfg: {tensor_parallel_size: 2, gpu_memory_utilization: 0.7}
    vllm_kwargs: {max_num_seqs: 512}
data: {max_input_seq_length: 1024}
cluster: {num_nodes: 8, gpus_per_node: 8}
""",
}


def chain(directory: Path, *given: str) -> Imported:
    return read(directory, CHAIN, *given)


def test_a_chain_of_files(tmp_path: Path) -> None:
    found = chain(tmp_path)
    assert not found.unresolved and not found.has_errors, messages(found)
    assert (found.framework, found.num_nodes, found.gpus_per_node) == ("nemo-rl", 10, 8)
    spec = found.spec
    assert (spec.model, spec.algorithm, spec.num_prompts, spec.group_size) == ("Qwen/Qwen3-30B-A3B", "grpo", 64, 16)
    assert (spec.num_optimizer_steps, spec.prompt_max, spec.response_max) == (2, 1024, 3072)
    actor = trainer(found)
    # cluster.num_nodes counts all nodes: 8 are left to train.
    assert (actor.num_gpus, actor.tp, actor.cp, actor.ep, actor.etp, actor.dp) == (64, 2, 2, 8, 1, 16)
    assert actor.micro_batch_tokens == 4096 and actor.sharding is Sharding.ZERO1
    assert actor.recompute is Recompute.FULL and actor.offload is Offload.NONE
    engine = engines(found)
    assert (engine.num_gpus, engine.tp, engine.engine_fraction, engine.max_num_seqs) == (16, 2, 0.7, 512)
    assert first_gpu(found, WorkerName.ROLLOUT_ENGINE) == 64
    assert (found.execution.mode, found.execution.staleness) == (ExecutionMode.STREAMING, 2)
    assert setting(found, "rollout GPUs") == "16 of them"
    assert "grpo_math_1B.yaml is taken as NeMo-RL main-2026-08 has it" in messages(found, Severity.NOTE)


def test_a_colocated_policy_swaps(tmp_path: Path) -> None:
    found = read(tmp_path, {"base.yaml": CHAIN["base.yaml"]})
    assert first_gpu(found, WorkerName.ROLLOUT_ENGINE) == 0 and found.num_gpus == 64
    assert trainer(found).offload is trainer(found, WorkerName.REFERENCE).offload is Offload.STATE_SWAP


def test_the_marker_replaces_a_section(tmp_path: Path) -> None:
    own = "defaults: base.yaml\npolicy:\n  megatron_cfg:\n    _override_: true\n    enabled: false\n"
    own += "  dtensor_cfg: {enabled: true, tensor_parallel_size: 2, dp_replicate_size: 4}\n"
    found = read(tmp_path, {"own.yaml": own, "base.yaml": CHAIN["base.yaml"]})
    actor = trainer(found)
    assert (actor.tp, actor.cp, actor.sharding, actor.shard_ranks) == (2, 1, Sharding.ZERO3, 8)
    assert not found.has_errors, errors(found)


def test_a_launch_with_overrides(tmp_path: Path) -> None:
    script = (
        "cd $(dirname $0)\nuv run examples/run_grpo.py --config base.yaml grpo.num_prompts_per_step=128 \\\n"
        '  ++policy.generation.vllm_kwargs.max_num_seqs=64 logger.wandb.name="a b" "$@" 2>&1 | tee run.log\n'
    )
    found = read(tmp_path, {"run.sh": script, "base.yaml": CHAIN["base.yaml"]})
    assert not found.unresolved and found.spec.num_prompts == 128 and engines(found).max_num_seqs == 64


def test_an_override_of_a_key_that_is_not_there(tmp_path: Path) -> None:
    script = "uv run examples/run_grpo.py --config base.yaml grpo.num_prompt_per_step=128\n"
    found = read(tmp_path, {"run.sh": script, "base.yaml": CHAIN["base.yaml"]})
    assert "refuses to change it -> did you mean grpo.num_prompts_per_step?" in errors(found)
    added = read(tmp_path, {"run.sh": script.replace("grpo.num_prompt", "+grpo.num_prompt")})
    assert not added.has_errors and "NeMo-RL says nothing" in messages(added)


def test_the_file_that_a_program_has_by_default(tmp_path: Path) -> None:
    found = read(tmp_path, {"run.sh": "uv run examples/run_grpo.py cluster.gpus_per_node=8\n"})
    assert found.spec.model == "Qwen/Qwen2.5-1.5B" and found.num_gpus == 8 and found.spec.num_optimizer_steps == 1


def test_ppo_with_a_value_model_of_its_own_layout(tmp_path: Path) -> None:
    own = """defaults: ../../ppo_math_1B_megatron.yaml
ppo: {num_prompts_per_step: 1024, num_generations_per_prompt: 1, ppo_epochs: 2}
policy:
  model_name: Qwen/Qwen2.5-1.5B-Instruct
  train_global_batch_size: 256
  max_total_sequence_length: 1024
  megatron_cfg: {tensor_model_parallel_size: 2, context_parallel_size: 2}
  generation: {max_new_tokens: 512, vllm_cfg: {gpu_memory_utilization: 0.4}}
value:
  model_name: Qwen/Qwen2.5-1.5B-Instruct
  train_micro_batch_size: 4
  megatron_cfg: {tensor_model_parallel_size: 4}
  dynamic_batching: {enabled: true}
data: {max_input_seq_length: 512}
cluster: {num_nodes: 2, gpus_per_node: 8}
"""
    found = read(tmp_path, {"ppo.yaml": own})
    assert not found.unresolved and not found.has_errors, messages(found)
    assert (found.spec.algorithm, found.spec.num_epochs, found.spec.num_optimizer_steps) == ("ppo", 2, 4)
    assert found.spec.critic == "Qwen/Qwen2.5-1.5B-Instruct" and found.spec.kl_coefficient == 0.0
    assert (trainer(found).tp, trainer(found).cp) == (2, 2)
    critic = trainer(found, WorkerName.CRITIC_TRAINER)
    assert (critic.tp, critic.dp, critic.micro_batch_tokens) == (4, 4, 4096)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("policy: {dtensor_cfg: {enabled: true}}", "DTensor and Megatron: both are enabled"),
        ("policy: {megatron_cfg: {tensor_model_parallel_size: 3}}", "= 3 does not divide 64 GPUs"),
        ("policy: {megatron_cfg: {expert_model_paralel_size: 4}}", "expert_model_parallel_size?"),
        ("policy: {dynamic_batching: {enabled: true}}", "cannot be combined with sequence packing"),
        ("policy: {sequence_packing: {enabled: false}}", "neither packed nor batched by tokens"),
        ("policy: {megatron_cfg: {tensor_model_parallel_size: 4}, logprob_batch_size: 4}", "of 4 and more"),
        ("policy: {generation: {vllm_cfg: {pipeline_parallel_size: 2}}}", "needs the asynchronous engine"),
        ("grpo: {async_grpo: {enabled: true}}", "asynchronous training asserts it"),
        ("grpo: {skip_reference_policy_logprobs_calculation: true}", "needs a KL penalty of 0"),
        ("policy: {train_global_batch_size: 2048}", "2048 is more than the 1024 samples of a step"),
        ("policy: {generation: {colocated: {enabled: false}}}", "generation has GPUs of its own"),
        ("policy: {generation: {vllm_cfg: {tensor_parallel_size: 5}}}", "engines of 5 GPUs do not fill 64 GPUs"),
    ],
)
def test_broken_rules(tmp_path: Path, own: str, expected: str) -> None:
    files = {"own.yaml": f"defaults: base.yaml\n{own}\n", "base.yaml": CHAIN["base.yaml"]}
    assert expected in messages(read(tmp_path, files))


def test_files_that_are_not_there_are_asked_for(tmp_path: Path) -> None:
    found = read(
        tmp_path, {"own.yaml": "defaults: ../elsewhere/mine.yaml\ngrpo: {num_prompts_per_step: 8}\npolicy: {}\n"}
    )
    assert "--root: a directory above ../elsewhere/mine.yaml" in found.unresolved and not found.workers


def test_missing_values_and_aliases(tmp_path: Path) -> None:
    own = "defaults: base.yaml\npolicy:\n  model_name: ???\nenv: {a: &x [1, 2], b: *x}\nslurm: {time: 00:03:45:00}\n"
    assert read(tmp_path, {"own.yaml": own, "base.yaml": CHAIN["base.yaml"]}).spec.model == "Qwen/Qwen3-30B-A3B"


def test_a_loop_of_defaults_ends(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="for more than 12 files"):
        read(tmp_path, {"a.yaml": "defaults: b.yaml\n", "b.yaml": "defaults: a.yaml\n"})


def test_a_bomb_of_aliases_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(InvalidInputError, match="aliases counted"):
        read(tmp_path, {"a.yaml": "\n".join(lines)})


def test_other_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="configures sft, no RL training"):
        read(tmp_path, {"a.yaml": "sft: {max_num_epochs: 1}\npolicy: {model_name: x}\n"})
    with pytest.raises(InvalidInputError, match="no RL training of NeMo-RL"):
        read(tmp_path, {"run.sh": "uv run examples/run_dpo.py --config dpo.yaml\n"})
