"""AReaL exports against the frozen keys of AReaL 1.0.4 and against what the plan says.

`make test-frameworks` (tests/adapters/areal_check.py) hands the same exports to AReaL's own configuration code.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from planner.adapters.areal import CONFIG, SCRIPT, TRAINER, exported_files
from planner.adapters.areal_loss import supported_algorithms
from planner.adapters.registry import export_plan
from planner.domain.plan import Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import EngineIdle, Offload, Recompute
from planner.errors import InvalidInputError
from planner.files.framework import load_framework
from tests.adapters.areal_cases import cases
from tests.adapters.launch import recorded_arguments
from tests.adapters.plans import HOSTILE
from tests.adapters.split_plans import ONE_STEP_OFF, apart, engine, fsdp, load, megatron, together

KEYS = frozenset(json.loads(Path(__file__).with_name("areal_keys.json").read_text())["keys"])
PLANS = cases()


def files(plan: Plan) -> dict[str, str]:
    return {file.name: file.text for file in exported_files(plan)}


def config(plan: Plan) -> dict[str, object]:
    return flat(yaml.load(files(plan)[CONFIG], Loader=yaml.CSafeLoader))


def flat(node: object) -> dict[str, object]:
    """Values by dotted key; lists are values."""
    return dict(_leaves(node, ""))


def _leaves(node: object, prefix: str) -> Iterator[tuple[str, object]]:
    assert isinstance(node, dict)
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def test_there_are_enough_plans() -> None:
    assert len(PLANS) >= 40


@pytest.mark.parametrize("name", PLANS)
def test_every_key_exists_in_areal(name: str) -> None:
    values = config(PLANS[name])
    assert sorted(set(values) - KEYS) == []
    specs = [item for key, value in values.items() if key.endswith("scheduling_spec") and isinstance(value, list)
             for item in value]  # fmt: skip
    assert len(specs) == 2
    assert {f"actor.scheduling_spec.{key}" for spec in specs for key in spec} <= KEYS
    ast.parse(files(PLANS[name])[TRAINER])


def test_the_key_check_finds_a_misspelt_key() -> None:
    text = files(PLANS["ppo"])[CONFIG]
    for before, after in (("ppo_n_minibatches", "ppo_minibatches"), ("mem_fraction_static", "mem_fraction")):
        assert set(flat(yaml.safe_load(text.replace(before, after)))) - KEYS


def test_every_algorithm_of_the_rules_has_a_loss() -> None:
    assert set(supported_algorithms()) == load_framework("areal").algorithms


def test_layouts_batches_and_engines() -> None:
    values = config(PLANS["qwen3-32b-16+16-sync"])
    assert values["actor.backend"] == "megatron:d2p2t4c1"
    assert values["actor.megatron.virtual_pipeline_parallel_size"] == 2
    assert values["rollout.backend"] == "sglang:d4t4p1"
    assert (values["cluster.n_nodes"], values["cluster.n_gpus_per_node"]) == (4, 8)
    assert (values["train_dataset.batch_size"], values["gconfig.n_samples"]) == (256, 16)
    assert (values["rollout.consumer_batch_size"], values["actor.ppo_n_minibatches"]) == (256, 4)
    assert values["actor.mb_spec.max_tokens_per_mb"] == 8192
    assert values["ref.mb_spec.max_tokens_per_mb"] == 16384
    assert (values["sglang.max_running_requests"], values["sglang.context_length"]) == (256, 4096)
    assert values["actor.weight_update_mode"] == "xccl"
    # 16 GiB of weights and 40 GiB of KV cache on 80 GiB: what the engine has beside them is not SGLang's fraction.
    assert values["sglang.mem_fraction_static"] == 0.7


def test_experts_have_a_mesh_of_their_own() -> None:
    values = config(PLANS["qwen3-30b-a3b-16+16-sync"])
    # 16 GPUs: 4 data-parallel ranks x 2 x 2, and for experts 2 x 4 ranks on 2 pipeline ranks with etp 1.
    assert values["actor.backend"] == "megatron:(attn:d4p2t2c1|ffn:d2p2t1e4)"
    assert values["sglang.ep_size"] == 4
    assert values["actor.megatron.recompute_modules"] == ["layernorm", "moe_act"]
    assert values["actor.megatron.recompute_granularity"] == "selective"


def test_fsdp_layouts_have_tensor_and_sequence_degrees() -> None:
    values = config(PLANS["fsdp-tp"])
    assert values["actor.backend"] == "fsdp:d4t4c1"
    assert values["actor.gradient_checkpointing"] is False
    assert config(PLANS["ppo-fsdp-streaming"])["critic.backend"] == "fsdp:d8t1c2"


def test_synchronous_plans_do_not_correct_and_asynchronous_ones_do() -> None:
    synchronous = config(PLANS["qwen3-8b-16+16-sync"])
    assert synchronous["rollout.max_head_offpolicyness"] == 0
    assert (synchronous["actor.use_decoupled_loss"], synchronous["actor.rejection_sampling"]) == (False, None)
    late = config(PLANS["lag-8"])
    assert (late["rollout.max_head_offpolicyness"], late["rollout.max_concurrent_rollouts"]) == (8, 9 * 256)
    assert (late["actor.use_decoupled_loss"], late["actor.recompute_logprob"]) == (True, True)
    assert late["actor.rejection_sampling.upper"] == 5.0


def test_without_an_old_logprob_stage_nothing_is_recomputed() -> None:
    assert config(PLANS["no-old-logprob"])["actor.recompute_logprob"] is False
    late = config(PLANS["no-old-logprob-streaming"])
    assert (late["actor.recompute_logprob"], late["actor.prox_logp_method"]) == (False, "loglinear")


def test_roles_join_the_first_one_on_their_gpus() -> None:
    together = config(PLANS["ppo"])
    assert (together["critic.scheduling_strategy.target"], together["ref.scheduling_strategy.target"]) == ("actor",) * 2
    assert together["critic.is_critic"] is True
    reference = config(PLANS["reference-apart"])
    assert (reference["ref.scheduling_strategy.type"], reference["ref.backend"]) == ("separation", "megatron:d1p1t8c1")
    critic = config(PLANS["critic-apart"])
    assert critic["critic.scheduling_strategy.type"] == "separation"
    assert critic["ref.scheduling_strategy.target"] == "critic"


def test_offload_is_switched_on_where_a_role_leaves_its_gpus() -> None:
    swapped, resident = config(PLANS["ppo"]), config(PLANS["resident"])
    assert (swapped["enable_offload"], swapped["actor.offload"], swapped["ref.offload"]) == (True, True, True)
    assert (resident["actor.offload"], resident["ref.offload"]) == (False, True)
    assert config(PLANS["no-reference"]).get("ref.backend") is None


def test_losses() -> None:
    gspo = config(PLANS["gspo"])
    assert (gspo["actor.importance_sampling_level"], gspo["actor.eps_clip_higher"]) == ("sequence", 4e-4)
    rloo = config(PLANS["rloo"])
    assert (rloo["actor.reward_norm.mean_leave1out"], rloo["actor.reward_norm.std_level"]) == (True, None)
    assert config(PLANS["ppo"])["actor.adv_norm.mean_level"] == "batch"


def test_dynamic_sampling_filters_groups() -> None:
    texts = files(PLANS["dapo"])
    assert config(PLANS["dapo"])["dynamic_bs"] is True
    assert 'dynamic_filter_fn="rlplan_train.has_signal"' in texts[TRAINER]
    assert "dynamic_filter_fn" not in files(PLANS["ppo"])[TRAINER]
    assert "has_signal" not in files(PLANS["ppo"])[TRAINER]


def test_adapters_go_through_files_and_from_megatron_to_vllm() -> None:
    values = config(PLANS["lora-fsdp"])
    assert (values["actor.weight_update_mode"], values["sglang.max_lora_rank"]) == ("disk", 32)
    on_megatron = config(PLANS["lora-megatron"])
    assert (on_megatron["rollout.backend"], on_megatron["vllm.max_lora_rank"]) == ("vllm:d4t4p1", 32)
    assert on_megatron["actor.megatron.bridge_type"] == "megatron-bridge"
    assert "sglang.ep_size" not in on_megatron


def test_one_node_needs_no_ray_and_wide_engines_are_placed_late() -> None:
    assert config(PLANS["one-node"])["scheduler.type"] == "local"
    values = config(PLANS["engine-over-nodes"])
    assert values["scheduler.type"] == "ray"
    (spec,) = values["rollout.scheduling_spec"]  # type: ignore[misc]
    assert spec["ray_placement_strategy"] == "deferred"


def test_a_hostile_model_path_stays_data(tmp_path: Path) -> None:
    values = config(PLANS["hostile"])
    # areal_check.py resolves the same file with OmegaConf, where the backslash before ${ is gone again.
    assert values["actor.path"] == HOSTILE.replace("${", "\\${")
    paths = export_plan("areal", PLANS["hostile"], tmp_path / "out")
    script = next(path for path in paths if path.name == SCRIPT)
    arguments = recorded_arguments(script, tmp_path / "bin", "seed=2")
    assert arguments == [TRAINER, "--config", CONFIG, "seed=2"]
    assert not list(tmp_path.rglob("pwned"))


def test_blocks_name_their_decisions() -> None:
    text = files(PLANS["ppo"])[CONFIG]
    for name in (WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER):
        assert f"# {name.value} on device group g" in text
    assert text.startswith("# AReaL 1.0.4, written by rlplan from plan ")


def test_the_readme_says_what_areal_does_otherwise() -> None:
    text = files(PLANS["ppo"])["README.md"]
    assert "one token budget for the forward passes and the update of the critic trainer" in text
    assert "(8,192 tokens)" in text and "with 16,384" in text
    assert "KL term from the reward" in text
    assert "lag is bounded by counting" in files(PLANS["lag-8"])["README.md"]


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (together(load("qwen3-8b"), megatron(16), engine(16)), "cannot place rollout engine"),
        (apart(load("qwen3-8b"), megatron(16), engine(16), execution=ONE_STEP_OFF), "asynchronous batches"),
        (apart(load("qwen3-8b"), megatron(16, offload=Offload.CPU_OPTIMIZER), engine(16)), "cpu-optimizer"),
        (apart(load("qwen3-8b"), megatron(16), engine(16, idle=EngineIdle.SLEEP)), "always stay in GPU memory"),
        (apart(load("qwen3-8b"), megatron(16, recompute=Recompute.SELECTIVE), engine(16)), "selective"),
        (apart(load("qwen3-8b"), fsdp(32, tp=16, cp=1), engine(16)), "must divide heads"),
        (apart(load("qwen3-8b", lora_rank=8), fsdp(16), engine(16)), "--kl 0"),
        (apart(replace(load("qwen3-8b"), num_epochs=2), megatron(16), engine(16)), "--epochs 1"),
        (apart(load("qwen3.5-9b"), megatron(16, tp=2, cp=2), engine(16)), "gated delta nets"),
    ],
)  # fmt: skip
def test_what_areal_cannot_run_is_refused_with_the_reason(plan: Plan, reason: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        exported_files(plan)
    assert reason in str(caught.value)


def test_refusals_name_the_nearest_plan() -> None:
    with pytest.raises(InvalidInputError, match=r"rlplan plan \.\.\. --framework areal"):
        exported_files(together(load("qwen3-8b"), megatron(16), engine(16)))
