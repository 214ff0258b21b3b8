"""OpenRLHF's flags: dotted and underscore spellings, abbreviations, roles and batches, start-up rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.adapters.imported import Imported
from planner.domain.execution import ExecutionMode
from planner.domain.stages import WorkerName
from planner.domain.strategy import EngineIdle, Offload, Recompute, Sharding
from planner.errors import InvalidInputError
from tests.adapters.imports import engines, errors, first_gpu, messages, read, setting, trainer

DAPO = """set -x
MODEL=Qwen/Qwen3-8B
python3 -m openrlhf.cli.train_ppo_ray \\
   --ref.num_nodes 1 --ref.num_gpus_per_node 8 \\
   --actor.num_nodes 1 --actor.num_gpus_per_node 8 \\
   --vllm.num_engines 4 --vllm.tensor_parallel_size 2 --vllm.gpu_memory_utilization 0.6 --vllm.enable_sleep \\
   --train.colocate_all \\
   --algo.kl.init_coef 1e-3 --algo.kl.use_loss --algo.kl.estimator k3 \\
   --algo.advantage.estimator group_norm --algo.dynamic_filtering_enable --algo.dynamic_filtering_range 0 1 \\
   --actor.eps_clip_low_high 0.2 0.27 --actor.model_name_or_path $MODEL --reward.remote_url reward.py \\
   --train.micro_batch_size 8 --train.batch_size 128 --rollout.micro_batch_size 16 --rollout.batch_size 128 \\
   --rollout.n_samples_per_prompt 8 --data.max_len 4096 --rollout.max_new_tokens 3072 \\
   --ds.zero_stage 3 --ds.ring_attn_size 2 --ds.packing_samples --ds.enable_sleep \\
   --actor.gradient_checkpointing_enable {extra}
"""
OLD = """#!/bin/bash
ray job submit --address=http://127.0.0.1:8265 \\
   --runtime-env-json='{"working_dir": "/openrlhf"}' \\
   -- python3 -m openrlhf.cli.train_ppo_ray \\
   --ref_num_nodes 1 --ref_num_gpus_per_node 4 --reward_num_nodes 1 --reward_num_gpus_per_node 4 \\
   --critic_num_nodes 1 --critic_num_gpus_per_node 4 --actor_num_nodes 1 --actor_num_gpus_per_node 4 \\
   --vllm_num_engines 2 --vllm_tensor_parallel_size 4 --colocate_actor_ref --colocate_critic_reward \\
   --pretrain meta-llama/Llama-3.1-8B-Instruct --reward_pretrain meta-llama/Llama-3.1-8B-Instruct \\
   --rollout_batch_size 1024 --train_batch_size 128 --prompt_max_len 1024 --generate_max_len 2048 \\
   --zero_stage 3 --bf16 --adam_offload --packing_samples --init_kl_coef 0.01 --gradient_checkpointing
"""


def dapo(directory: Path, extra: str = "", *given: str) -> Imported:
    return read(directory, {"run.sh": DAPO.replace("{extra}", extra)}, *given)


def test_dotted_flags(tmp_path: Path) -> None:
    found = dapo(tmp_path)
    assert not found.unresolved and not found.has_errors, messages(found)
    assert (found.framework, found.num_nodes, found.gpus_per_node) == ("openrlhf", 1, 8)
    spec = found.spec
    assert (spec.model, spec.algorithm, spec.num_prompts, spec.group_size) == ("Qwen/Qwen3-8B", "dapo", 128, 8)
    assert (spec.num_optimizer_steps, spec.prompt_max, spec.response_max) == (8, 1024, 3072)
    assert spec.kl_coefficient == 1e-3
    actor = trainer(found)
    assert (actor.cp, actor.dp, actor.sharding, actor.recompute) == (2, 4, Sharding.ZERO3, Recompute.FULL)
    # Static micro-batches count sequences.
    assert (actor.micro_batch_tokens, actor.inference_tokens) == (8 * 4096, 16 * 4096)
    assert actor.offload is Offload.OPTIMIZER_SWAP
    assert engines(found).num_engines == 4 and engines(found).idle is EngineIdle.SLEEP
    assert setting(found, "GPUs 0 to 7") == "actor, engines, reference, together"
    assert setting(found, "updates per iteration") == "8 of 128 samples (not prompts)"


def test_token_budgets_are_per_gpu(tmp_path: Path) -> None:
    extra = "--train.dynamic_batch_enable --train.max_tokens_per_gpu 4096 --ds.tensor_parallel_size 2"
    actor = trainer(dapo(tmp_path, extra))
    assert (actor.micro_batch_tokens, actor.inference_tokens) == (4096 * 4, 4096 * 4)


def test_underscores_are_understood_and_the_renames_listed(tmp_path: Path) -> None:
    found = read(tmp_path, {"run.sh": OLD})
    assert not found.unresolved and not found.has_errors, messages(found)
    assert found.version.startswith("up to 0.9")
    assert "--ref_num_nodes -> --ref.num_nodes" in messages(found) and "--bf16 -> gone" in messages(found)
    assert (found.spec.algorithm, found.spec.reward, found.spec.prompt_max, found.spec.response_max) == (
        "ppo", "model", 1024, 2048,
    )  # fmt: skip
    # Four roles on four GPUs each, two by two, and engines of their own.
    assert (found.num_nodes, found.gpus_per_node) == (2, 8)
    starts = {item.worker: item.first_gpu for item in found.workers}
    assert starts[WorkerName.ACTOR_TRAINER] == starts[WorkerName.REFERENCE] == 0
    assert starts[WorkerName.CRITIC_TRAINER] == starts[WorkerName.REWARD_MODEL] == 12
    assert starts[WorkerName.ROLLOUT_ENGINE] == 4
    # Defaults of the old version: 4 sequences per micro-batch, 8 forward.
    assert trainer(found).micro_batch_tokens == 4 * 3072 and trainer(found).inference_tokens == 8 * 3072
    assert trainer(found).offload is Offload.CPU_OPTIMIZER


def test_the_launch_inside_of_a_quoted_command(tmp_path: Path) -> None:
    text = OLD.replace("ray job submit", 'srun --nodes=1 bash -c "pip install ray \\\n && ray job submit').rstrip("\n")
    text = text.replace('\'{"working_dir": "/openrlhf"}\'', '\'{\\"working_dir\\": \\"/openrlhf\\"}\'') + '"\n'
    found = read(tmp_path, {"run.sh": text})
    assert found.spec.num_prompts == 1024 and not found.unresolved


def test_a_flag_of_an_earlier_release(tmp_path: Path) -> None:
    found = dapo(tmp_path, "--algo.advantage.is_correction_enable")
    assert "write --algo.advantage.is_correction_level=token" in messages(found)
    assert found.version == "up to 0.11.0"


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("--train.colocate", "abbreviates 3 flags"),
        ("--rollout.n_sample_per_prompt 8", "did you mean --rollout.n_samples_per_prompt?"),
        ("--ds.zero_stage", "takes 1 value, got 0"),
        ("--algo.advantage.estimator grpo", "'grpo' is refused -> one of gae"),
        ("--train.partial_rollout_enable", "needs asynchronous training -> --train.async_enable"),
        ("--rollout.n_samples_per_prompt 1", "group_norm compares the responses to one prompt"),
        ("--ref.num_gpus_per_node 4", "differs from --actor.num_gpus_per_node, 8"),
        ("--vllm.num_engines 2", "engines need the actor's 8 GPUs, they have 4 -> --vllm.num_engines=4"),
        ("--vllm.num_engines 0", "no engine generates"),
        ("--train.async_enable", "refused with sleeping engines"),
        ("--ds.ring_attn_size 3", "cp 3 = 3 does not divide 8 GPUs"),
        ("--rollout.vllm_generate_batch_size 256", "needs asynchronous training"),
        ("stray", "'stray' is no flag"),
    ],
)
def test_broken_rules(tmp_path: Path, extra: str, expected: str) -> None:
    assert expected in messages(dapo(tmp_path, extra))


def test_prefixes_pass_with_a_warning(tmp_path: Path) -> None:
    found = dapo(tmp_path, "--ds.ring_attn_siz 4")
    # argparse: two flags begin like this one, `ring_attn_size` alone fits.
    assert trainer(found).cp == 4
    assert "passes as an abbreviation of --ds.ring_attn_size" in messages(found)


def test_asynchrony(tmp_path: Path) -> None:
    text = DAPO.replace("--vllm.enable_sleep", "").replace("--train.colocate_all", "").replace(
        "{extra}", "--train.async_enable --train.async_queue_size 2 --train.colocate_actor_ref"
    )  # fmt: skip
    found = read(tmp_path, {"run.sh": text})
    assert (found.execution.mode, found.execution.staleness) == (ExecutionMode.BATCHES, 2)
    assert found.num_gpus == 16 and first_gpu(found, WorkerName.ROLLOUT_ENGINE) == 8
    assert "no off-policy correction" in messages(found)


def test_unknown_values_are_asked_for_by_name(tmp_path: Path) -> None:
    text = DAPO.replace("--actor.num_nodes 1", '--actor.num_nodes "$NNODES"').replace("{extra}", "")
    text = text.replace("MODEL=", "NNODES=$(hostname | wc -l)\nMODEL=")
    found = read(tmp_path, {"run.sh": text})
    assert found.unresolved == ("NNODES",) and not found.workers
    again = read(tmp_path, {"run.sh": text}, "NNODES=2", "ref.num_nodes=2", "vllm.num_engines=8")
    assert not again.unresolved and again.num_gpus == 16 and not again.has_errors, errors(again)


def test_an_unknown_model_is_asked_for(tmp_path: Path) -> None:
    text = DAPO.replace("Qwen/Qwen3-8B", "/data/my-sft").replace("{extra}", "")
    assert read(tmp_path, {"run.sh": text}).unresolved == ("actor.model_name_or_path",)
    assert read(tmp_path, {"run.sh": text}, model="qwen3-4b").spec.model == "qwen3-4b"


def test_changes_are_written_as_flags(tmp_path: Path) -> None:
    extra = "--train.dynamic_batch_enable --train.max_tokens_per_gpu 4096"
    found = dapo(tmp_path, extra)
    written = {
        text
        for knob in found.knobs
        for item in found.workers
        if item.worker is knob.worker
        for text in knob.written(item.strategy)
    }
    assert {"--ds.zero_stage=3", "--ds.ring_attn_size=2", "--train.max_tokens_per_gpu=4096"} <= written
    assert "--vllm.gpu_memory_utilization=0.6" in written
    # With tensor parallelism a budget has two divisors.
    wide = dapo(tmp_path, f"{extra} --ds.tensor_parallel_size 2")
    assert all(knob.field != "micro_batch_tokens" for knob in wide.knobs)


def test_other_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"train_sft, no RL training"):
        read(tmp_path, {"run.sh": "deepspeed --module openrlhf.cli.train_sft --max_len 2048\n"})
