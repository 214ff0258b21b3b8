"""AReaL's configurations: backend strings, roles that share GPUs, old one-line allocations, start-up rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.adapters.areal_import_backend import parse_backend, parse_old_mode
from planner.adapters.findings import Severity
from planner.adapters.imported import Imported
from planner.check import gpus_text, placed
from planner.domain.execution import ExecutionMode
from planner.domain.stages import WorkerName
from planner.domain.strategy import ContextParallel, EngineIdle, Recompute, Sharding
from planner.errors import InvalidInputError
from planner.files.spec import WorkloadSpec, override
from planner.files.workload import build_request
from tests.adapters.imports import engines, errors, first_gpu, messages, read, trainer

CONFIG = """experiment_name: test
trial_name: t
enable_offload: false
tokenizer_path: ${actor.path}
cluster: {n_nodes: 1, n_gpus_per_node: 8}
rollout:
  backend: "sglang:d4p1t1"
  consumer_batch_size: ${train_dataset.batch_size}
  max_concurrent_rollouts: 256
  max_head_offpolicyness: 2
gconfig: {n_samples: 4, max_new_tokens: 1024}
actor:
  backend: "fsdp:d4p1t1"
  path: Qwen/Qwen2.5-1.5B-Instruct
  gradient_checkpointing: true
  mb_spec: {max_tokens_per_mb: 10240}
  kl_ctl: 0.01
  ppo_n_minibatches: 2
  recompute_logprob: true
  use_decoupled_loss: true
  rejection_sampling: {metric: ratio, upper: 5.0}
  reward_norm: {mean_level: group, std_level: group, group_size: "${gconfig.n_samples}"}
ref:
  backend: ${actor.backend}
  path: ${actor.path}
  mb_spec: {max_tokens_per_mb: 8192}
  optimizer: null
  scheduling_strategy: {type: colocation, target: actor}
sglang: {model_path: "${actor.path}", mem_fraction_static: 0.8, max_running_requests: 64}
train_dataset: {batch_size: 256, path: openai/gsm8k, type: rl, max_length: 1024}
"""


def config(directory: Path, *changes: tuple[str, str], given: tuple[str, ...] = ()) -> Imported:
    text = CONFIG
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    return read(directory, {"config.yaml": text}, *given)


def test_roles_and_their_gpus(tmp_path: Path) -> None:
    found = config(tmp_path)
    assert not found.unresolved and not found.has_errors, messages(found)
    assert (found.framework, found.version, found.num_nodes, found.gpus_per_node) == ("areal", "1.0.4", 1, 8)
    spec = found.spec
    assert (spec.algorithm, spec.num_prompts, spec.group_size, spec.num_optimizer_steps) == ("grpo", 256, 4, 2)
    assert (spec.prompt_max, spec.response_max, spec.kl_coefficient) == (1024, 1024, 0.01)
    assert (found.execution.mode, found.execution.staleness) == (ExecutionMode.STREAMING, 2)
    actor, reference = trainer(found), trainer(found, WorkerName.REFERENCE)
    assert (actor.dp, actor.sharding, actor.recompute) == (4, Sharding.ZERO3, Recompute.FULL)
    # One budget for the update and for forward passes.
    assert actor.micro_batch_tokens == actor.inference_tokens == 10240 and reference.inference_tokens == 8192
    assert first_gpu(found, WorkerName.REFERENCE) == 0 and first_gpu(found, WorkerName.ROLLOUT_ENGINE) == 4
    assert engines(found).num_engines == 4 and engines(found).idle is EngineIdle.RESIDENT


def test_a_role_of_its_own(tmp_path: Path) -> None:
    found = config(tmp_path, ("{type: colocation, target: actor}", "{type: separation}"), ("n_nodes: 1", "n_nodes: 2"))
    assert first_gpu(found, WorkerName.REFERENCE) == 4 and first_gpu(found, WorkerName.ROLLOUT_ENGINE) == 8
    assert (found.num_nodes, found.gpus_per_node) == (2, 8)


def test_no_reference_without_a_coefficient(tmp_path: Path) -> None:
    found = config(tmp_path, ("kl_ctl: 0.01", "kl_ctl: 0.0"))
    assert found.spec.kl_coefficient == 0 and len(found.workers) == 2


def test_experts_folded_apart(tmp_path: Path) -> None:
    found = config(
        tmp_path, ('"fsdp:d4p1t1"', '"megatron:(attn:d1p12t4|ffn:d1p12e4)"'), ("sglang:d4p1t1", "sglang:d4t8"),
        ("Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen3-235B-A22B"), ("n_nodes: 1", "n_nodes: 10"),
        ("experiment_name: test", "experiment_name: test\neconfig: {domain: airline}"),
    )  # fmt: skip
    assert not found.has_errors, errors(found)
    actor = trainer(found)
    assert (actor.num_gpus, actor.tp, actor.pp, actor.ep, actor.etp, actor.dp) == (48, 4, 12, 4, 1, 1)
    assert actor.context_parallel is ContextParallel.RING and engines(found).tp == 8


def test_a_launch_with_overrides(tmp_path: Path) -> None:
    script = "python3 examples/rl.py --config conf/config.yaml scheduler.type=local gconfig.n_samples=8\n"
    found = read(tmp_path, {"run.sh": script, "conf/config.yaml": CONFIG})
    assert found.framework == "areal" and found.spec.group_size == 8 and not found.unresolved


@pytest.mark.parametrize(
    ("mode", "engine", "train", "start"),
    [
        ("sglang:d4t2+fsdp:d8", (4, 2), 8, 8),
        ("sglang.d4p1t1+d4p1t1", (4, 1), 4, 4),
        ("vllm:d2t2+megatron:d2p2t1", (2, 2), 4, 4),
        ("sglang.d8p1m1+d4p2m1", (8, 1), 8, 8),
        ("sglang[rollout]:d4+fsdp[actor]:d4|fsdp[ref]:d4", (4, 1), 4, 4),
    ],
)
def test_the_one_line_form(tmp_path: Path, mode: str, engine: tuple[int, int], train: int, start: int) -> None:
    text = CONFIG.replace('  backend: "sglang:d4p1t1"\n', "").replace('  backend: "fsdp:d4p1t1"\n', "")
    text = text.replace("  backend: ${actor.backend}\n", "").replace("n_nodes: 1", "n_nodes: 2")
    found = read(tmp_path, {"old.yaml": f"allocation_mode: {mode}\nasync_training: true\n{text}"})
    assert not found.unresolved and not found.has_errors, messages(found)
    assert found.version == "before 1.0" and "is deprecated" in messages(found, Severity.WARNING)
    assert (engines(found).num_engines, engines(found).tp) == engine
    assert trainer(found).num_gpus == train and first_gpu(found, WorkerName.ROLLOUT_ENGINE) == start
    assert "rollout.max_head_offpolicyness says it" in messages(found)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("max_head_offpolicyness", "max_head_offpolicynes", "did you mean rollout.max_head_offpolicyness?"),
        ("fsdp:d4p1t1", "fsdp:d2p2", "fsdp has no dimension p"),
        ("fsdp:d4p1t1", "fsdp:4", "has no dimensions such as d4t2"),
        ("fsdp:d4p1t1", "d4", "names no back end of fsdp, megatron, archon"),
        ("fsdp:d4p1t1", "fsdp:d1t4", "does not divide 2 key/value heads"),
        ("fsdp:d4p1t1", "megatron:(attn:d4|ffn:d2e4)", "attn takes 4 GPUs, ffn 8"),
        ("sglang:d4p1t1", "sglang:d8", "the roles take 12 GPUs, the cluster has 8 -> cluster.n_nodes=2"),
        ("consumer_batch_size: ${train_dataset.batch_size}", "consumer_batch_size: 8", "8 differs from"),
        ("use_decoupled_loss: true", "use_decoupled_loss: false", "responses of older weights"),
        ("kl_ctl: 0.01", "kl_ctl: 0.01\n  offload: true", "needs enable_offload"),
        ("max_tokens_per_mb: 10240", "max_tokens_per_mb: 512", "512 tokens are less than the longest sequence"),
    ],
)
def test_broken_rules(tmp_path: Path, before: str, after: str, expected: str) -> None:
    assert expected in messages(config(tmp_path, (before, after)))


def test_wide_engines_cannot_share_a_trainers_gpus(tmp_path: Path) -> None:
    joined = "max_head_offpolicyness: 0\n  scheduling_strategy: {type: colocation, target: actor}"
    found = config(tmp_path, ("max_head_offpolicyness: 2", joined), ("sglang:d4p1t1", "sglang:d2t2"))
    assert "2 replicas (engines) cannot share the 4 of actor" in errors(found)
    assert "actor and rollout share GPUs, which needs disk" in errors(found)
    assert first_gpu(found, WorkerName.ROLLOUT_ENGINE) == 0


def test_a_layout_that_cannot_be_made_out_is_no_fault(tmp_path: Path) -> None:
    found = config(tmp_path, ("fsdp:d4p1t1", "fsdp:d4q1"))
    assert found.has_errors and len(found.workers) == 1
    spec = WorkloadSpec(gpus=gpus_text(found, "h100"))
    with pytest.raises(InvalidInputError, match="actor trainer and reference: the layout could not be made out"):
        placed(found, build_request(override(found.spec, spec)))


def test_backend_strings() -> None:
    found = parse_backend(" megatron:( attn:d4p4t2 | ffn:d2p4e4 ) ", is_engine=False)
    assert (found.num_gpus, found.degrees.ep, found.degrees.etp, found.problem) == (32, 4, 1, "")
    assert parse_backend("sglang:d4t2e2", is_engine=True).problem == "sglang has no dimension e"
    assert parse_backend("$(touch pwned)", is_engine=True).problem
    mode = parse_old_mode("sglang.d4|fsdp.d4")
    assert mode.is_shared and mode.engine is not None and mode.trainers[0].dp == 4
    assert parse_old_mode("d4+").problem


def test_other_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError):
        read(tmp_path, {"sft.yaml": "actor: {backend: 'fsdp:d8'}\n"}, framework="areal")
