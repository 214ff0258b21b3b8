"""verl exports against the frozen keys of verl 0.9.1 and against what the plan says.

`make test-frameworks` (tests/adapters/verl_check.py) composes the same exports with verl's own configuration.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from planner.adapters.export import engine_tokens_needed, plan_digest, position_problems
from planner.adapters.shell import hydra_text
from planner.adapters.verl import export_plan
from planner.adapters.verl_config import supported_algorithms
from planner.domain.plan import Plan, RunReport
from planner.domain.stages import WorkerName
from planner.domain.strategy import Offload, Recompute, Sharding
from planner.domain.workload import RewardKind
from planner.errors import InvalidInputError
from planner.files.framework import load_framework
from tests.adapters.launch import overrides, recorded_arguments
from tests.adapters.plans import HOSTILE, colocated, engine, fsdp, hostile_case, make_plan, megatron
from tests.adapters.verl_cases import cases
from tests.factories import dense_model, workload

KEYS = json.loads(Path(__file__).with_name("verl_keys.json").read_text())
PLANS = cases()
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"


def exported(plan: Plan, tmp_path: Path) -> dict[str, str]:
    script = export_plan(plan, tmp_path / "out")[0]
    return overrides(recorded_arguments(script, tmp_path / "bin"))


def illegal_keys(values: dict[str, str]) -> list[str]:
    """Keys that verl 0.9.1 would refuse, or that it would accept with + and never read."""
    engine_keys = KEYS["megatron" if values["model_engine"] == "megatron" else "dp"]
    known = {*KEYS["common"], *engine_keys, *(KEYS["one_step_off"] if "hydra.searchpath" in values else ())}
    bad: list[str] = []
    for key in values:
        name = key.lstrip("+")
        if key in ("model_engine", "hydra.searchpath") or (not key.startswith("+") and name in known):
            continue
        is_open = any(f".{part}." in name for part in KEYS["open"])
        if not (key.startswith("+") and name not in known and (is_open or name in KEYS["dataclass_only"])):
            bad.append(key)
    return bad


@pytest.mark.parametrize("name", PLANS)
def test_every_key_exists_in_verl(name: str, tmp_path: Path) -> None:
    values = exported(PLANS[name], tmp_path)
    assert illegal_keys(values) == []
    assert len(values) > 80


def test_the_key_check_finds_a_misspelt_key(tmp_path: Path) -> None:
    values = exported(PLANS["grpo-fsdp"], tmp_path)
    values["actor_rollout_ref.actor.ppo_minibatch_size"] = "64"
    values["+actor_rollout_ref.actor.ppo_mini_batch_size"] = "64"
    values["actor_rollout_ref.actor.megatron.tensor_model_parallel_size"] = "4"
    assert len(illegal_keys(values)) == 3


def test_every_algorithm_of_the_rules_has_a_loss() -> None:
    assert set(supported_algorithms()) == load_framework("verl").algorithms


def test_fsdp_layout_batch_and_engine(tmp_path: Path) -> None:
    values = exported(PLANS["grpo-fsdp"], tmp_path)
    assert values["model_engine"] == "dp"
    assert (values["trainer.nnodes"], values["trainer.n_gpus_per_node"]) == ("4", "8")
    assert values[f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size"] == "4"
    assert values[f"{ACTOR}.fsdp_config.fsdp_size"] == "-1"
    # 36,864 tokens per micro-batch of four ranks are 9,216 per GPU, which verl multiplies by four again.
    assert values[f"{ACTOR}.ppo_max_token_len_per_gpu"] == "9216"
    assert values[f"{ROLLOUT}.log_prob_max_token_len_per_gpu"] == "18432"
    assert values["actor_rollout_ref.ref.log_prob_max_token_len_per_gpu"] == "18432"
    # 256 prompts in 4 optimizer steps; verl multiplies by the 16 responses.
    assert values[f"{ACTOR}.ppo_mini_batch_size"] == "64"
    assert values[f"{ROLLOUT}.n"] == "16"
    assert values[f"{ROLLOUT}.tensor_model_parallel_size"] == "4"
    assert values[f"{ROLLOUT}.gpu_memory_utilization"] == "0.6"
    assert values[f"{ROLLOUT}.free_cache_engine"] == "True"
    assert values["critic.enable"] == "False"


def test_hsdp_and_no_offload(tmp_path: Path) -> None:
    values = exported(PLANS["grpo-fsdp-hsdp"], tmp_path)
    assert values[f"{ACTOR}.fsdp_config.fsdp_size"] == "8"
    assert values[f"{ACTOR}.fsdp_config.param_offload"] == "False"
    assert values[f"{ACTOR}.fsdp_config.optimizer_offload"] == "False"
    assert values["actor_rollout_ref.model.enable_gradient_checkpointing"] == "False"
    assert values[f"{ROLLOUT}.free_cache_engine"] == "False"


@pytest.mark.parametrize(
    ("offload", "parameters", "optimizer", "on_host"),
    [
        (Offload.NONE, "False", "False", False),
        (Offload.STATE_SWAP, "True", "True", False),
        (Offload.CPU_OPTIMIZER, "False", "False", True),
        (Offload.CPU_OPTIMIZER_STATE_SWAP, "True", "False", True),
    ],
)
def test_megatron_offloads(offload: Offload, parameters: str, optimizer: str, on_host: bool, tmp_path: Path) -> None:
    load = workload()
    values = exported(make_plan(load, colocated(load, megatron(32, offload=offload), engine(32))), tmp_path)
    assert values[f"{ACTOR}.megatron.param_offload"] == parameters
    assert values[f"{ACTOR}.megatron.optimizer_offload"] == optimizer
    key = f"+{ACTOR}.optim.override_optimizer_config.optimizer_cpu_offload"
    assert values.get(key) == ("True" if on_host else None)


def test_megatron_degrees_are_all_explicit(tmp_path: Path) -> None:
    values = exported(PLANS["grpo-moe"], tmp_path)
    prefix = f"{ACTOR}.megatron"
    assert values[f"{prefix}.tensor_model_parallel_size"] == "4"
    assert values[f"{prefix}.expert_model_parallel_size"] == "8"
    assert values[f"{prefix}.expert_tensor_parallel_size"] == "1"
    assert values[f"{prefix}.sequence_parallel"] == "True"
    assert values[f"{prefix}.override_transformer_config.recompute_granularity"] == "selective"
    assert values[f"{prefix}.override_transformer_config.recompute_modules"] == "[layernorm,moe_act]"
    assert values[f"{ROLLOUT}.expert_parallel_size"] == "4"


def test_uneven_pipelines_say_what_the_ends_hold(tmp_path: Path) -> None:
    values = exported(PLANS["grpo-megatron-uneven"], tmp_path)
    prefix = f"+{ACTOR}.megatron.override_transformer_config"
    first, last = (int(values[f"{prefix}.num_layers_in_{end}_pipeline_stage"]) for end in ("first", "last"))
    # 62 layers on 8 ranks: six ranks in the middle hold 8 each.
    assert first + last + 6 * 8 == 62


def test_the_reference_follows_the_virtual_pipeline_of_the_actor(tmp_path: Path) -> None:
    values = exported(PLANS["grpo-megatron-vpp"], tmp_path)
    assert values["actor_rollout_ref.ref.megatron.virtual_pipeline_model_parallel_size"] == "2"


def test_critic_budget_is_the_smaller_one_and_the_readme_says_so(tmp_path: Path) -> None:
    values = exported(PLANS["ppo-fsdp"], tmp_path)
    assert values["+critic.ppo_infer_max_token_len_per_gpu"] == "9216"
    assert values["algorithm.adv_estimator"] == "gae"
    assert values["algorithm.use_kl_in_reward"] == "True"
    assert "one token budget for critic" in (tmp_path / "out" / "README.md").read_text()


def test_dapo_gspo_and_dr_grpo_losses(tmp_path: Path) -> None:
    dapo = exported(PLANS["dapo"], tmp_path / "a")
    assert (dapo["algorithm.filter_groups.enable"], dapo[f"{ACTOR}.clip_ratio_high"]) == ("True", "0.28")
    assert dapo["algorithm.filter_groups.max_inflight_gen_batches"] == "2"
    gspo = exported(PLANS["gspo"], tmp_path / "b")
    assert (gspo[f"{ACTOR}.policy_loss.loss_mode"], gspo[f"{ACTOR}.loss_agg_mode"]) == ("gspo", "seq-mean-token-mean")
    dr_grpo = exported(PLANS["dr-grpo"], tmp_path / "c")
    assert dr_grpo["algorithm.norm_adv_by_std_in_grpo"] == "False"


def test_reward_model_alone_gets_a_pool_and_a_shared_one_does_not(tmp_path: Path) -> None:
    alone = exported(PLANS["ppo-reward-model-alone"], tmp_path / "a")
    assert alone["reward.reward_model.enable_resource_pool"] == "True"
    assert (alone["reward.reward_model.nnodes"], alone["reward.reward_model.n_gpus_per_node"]) == ("1", "8")
    shared = exported(PLANS["ppo-reward-model-shared"], tmp_path / "b")
    assert shared["reward.reward_model.enable_resource_pool"] == "False"
    # 72 of 80 GiB are usable and 20 belong to sleeping neighbours.
    assert shared["reward.reward_model.rollout.gpu_memory_utilization"] == "0.65"


def test_lora_rank_goes_to_the_key_of_the_back_end(tmp_path: Path) -> None:
    on_fsdp = exported(PLANS["grpo-lora-fsdp"], tmp_path / "a")
    assert (on_fsdp["actor_rollout_ref.model.lora_rank"], on_fsdp["actor_rollout_ref.model.lora.rank"]) == ("32", "0")
    assert on_fsdp[f"{ROLLOUT}.load_format"] == "safetensors"
    on_megatron = exported(PLANS["grpo-lora-megatron"], tmp_path / "b")
    assert on_megatron["actor_rollout_ref.model.lora.rank"] == "32"


def test_a_hostile_model_path_stays_one_argument_and_runs_nothing(tmp_path: Path) -> None:
    script = export_plan(hostile_case(), tmp_path / "out")[0]
    arguments = recorded_arguments(script, tmp_path / "bin")
    # verl_check.py composes the same script with Hydra, where this becomes HOSTILE again.
    assert overrides(arguments)["actor_rollout_ref.model.path"] == hydra_text(HOSTILE)
    assert not list(tmp_path.rglob("pwned"))
    assert len(arguments) == len(recorded_arguments(_plain(tmp_path), tmp_path / "bin"))


def _plain(tmp_path: Path) -> Path:
    return export_plan(PLANS["ppo-fsdp"], tmp_path / "plain")[0]


def test_further_arguments_come_last(tmp_path: Path) -> None:
    script = export_plan(PLANS["grpo-fsdp"], tmp_path / "out")[0]
    arguments = recorded_arguments(script, tmp_path / "bin", "trainer.nnodes=1", TRAIN_FILES="/data/my file.parquet")
    assert arguments[-1] == "trainer.nnodes=1"
    assert overrides(arguments)["data.train_files"] == "/data/my file.parquet"


def test_equal_plans_give_equal_files_and_a_digest_ignores_the_run(tmp_path: Path) -> None:
    plan = PLANS["grpo-fsdp"]
    again = replace(plan, run=RunReport(time_s=1.0, time_to_first_s=0.5, peak_rss_bytes=1e8))
    one, two = export_plan(plan, tmp_path / "a"), export_plan(again, tmp_path / "b")
    assert [p.read_bytes() for p in one] == [p.read_bytes() for p in two]
    assert plan_digest(plan) in (tmp_path / "a" / "README.md").read_text()
    assert plan_digest(plan) != plan_digest(replace(plan, bound=99.0))


def test_a_given_digest_is_written(tmp_path: Path) -> None:
    export_plan(PLANS["grpo-fsdp"], tmp_path / "out", digest="sha256:abc")
    assert all("sha256:abc" in path.read_text() for path in (tmp_path / "out").iterdir())


def test_a_plan_that_verl_cannot_run_is_refused_with_all_reasons(tmp_path: Path) -> None:
    load = workload("remax")
    plan = make_plan(load, colocated(load, megatron(32, sharding=Sharding.ZERO2), engine(32, pp=2)))
    with pytest.raises(InvalidInputError) as caught:
        export_plan(plan, tmp_path / "out")
    message = str(caught.value)
    assert "no ReMax" in message
    assert "rollout pp" in message
    assert "zero2 is not offered" in message
    assert "--framework verl" in message
    assert list(tmp_path.iterdir()) == []


def test_dense_selective_recomputation_is_refused(tmp_path: Path) -> None:
    load = workload()
    plan = make_plan(load, colocated(load, megatron(32, recompute=Recompute.SELECTIVE), engine(32)))
    with pytest.raises(InvalidInputError, match="recomputation 'selective' is not offered"):
        export_plan(plan, tmp_path / "out")


def test_layers_that_do_not_split_are_refused(tmp_path: Path) -> None:
    load = replace(workload(), actor=dense_model(layers=28))
    plan = make_plan(load, colocated(load, megatron(32, tp=2, pp=16), engine(32)))
    with pytest.raises(InvalidInputError, match="layers do not split"):
        export_plan(plan, tmp_path / "out")


def test_an_unchanged_export_is_replaced_and_an_empty_directory_filled(tmp_path: Path) -> None:
    target, link = tmp_path / "out", tmp_path / "link"
    target.mkdir()
    link.symlink_to(target)
    before = target.stat().st_ino
    for name in ("grpo-fsdp", "ppo-megatron", "grpo-fsdp"):
        paths = export_plan(PLANS[name], link)
        assert plan_digest(PLANS[name]) in paths[0].read_text()
        assert paths[0].read_text().startswith("#!/usr/bin/env bash")
        assert os.access(paths[0], os.X_OK)
        assert sorted(p.name for p in target.iterdir()) == ["README.md", "run.sh"]
    # It may be somebody's current directory or a mount point.
    assert target.stat().st_ino == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "out"]


def contents(directory: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in directory.iterdir() if p.is_file()}


def test_what_is_not_an_earlier_export_is_never_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "out"
    export_plan(PLANS["grpo-fsdp"], target)
    script = (target / "run.sh").read_text()

    def refused(expected: str) -> None:
        before = contents(target)
        with pytest.raises(InvalidInputError, match=expected):
            export_plan(PLANS["ppo-fsdp"], target)
        assert contents(target) == before
        assert [p.name for p in tmp_path.iterdir()] == ["out"]

    (target / "run.sh").write_text(script.replace("save_freq=20", "save_freq=5"))
    refused("run.sh was changed")
    (target / "run.sh").write_text(script + "echo done\n")
    refused("run.sh was changed")
    (target / "run.sh").write_text("mine")
    refused("run.sh was changed")
    (target / "run.sh").write_text(script)
    (target / "notes.txt").write_text("mine")
    refused("holds 'notes.txt'")
    (target / "notes.txt").unlink()
    (target / "README.md").unlink()
    (target / "README.md").mkdir()
    refused("README.md was changed")
    (target / "README.md").rmdir()
    export_plan(PLANS["ppo-fsdp"], target)


def test_a_failure_in_the_middle_leaves_the_earlier_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out"
    export_plan(PLANS["grpo-fsdp"], target)
    before = contents(target)
    rename = Path.rename

    def failing(self: Path, goal: Path) -> Path:
        if self.name == "README.md" and self.parent.name == "new":
            raise OSError(28, "No space left on device")
        return rename(self, goal)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(InvalidInputError, match="No space left"):
        export_plan(PLANS["ppo-fsdp"], target)
    assert contents(target) == before
    assert sorted(p.name for p in target.iterdir()) == ["README.md", "run.sh"]


def test_places_that_are_no_directory(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for place, expected in (
        ("pipe", "is no directory"),
        ("nowhere", "symbolic link to nothing"),
        ("circle", "link"),
        ("x" * 300, "too long"),
        ("a\0b", "not a usable directory name"),
    ):
        with pytest.raises(InvalidInputError, match=expected):
            export_plan(PLANS["grpo-fsdp"], tmp_path / place)
    with pytest.raises(InvalidInputError, match="is no directory"):
        export_plan(PLANS["grpo-fsdp"], Path("/dev/null"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["circle", "nowhere", "pipe"]


def test_sequences_beyond_the_positions_of_a_model_are_refused(tmp_path: Path) -> None:
    load = workload()
    law = replace(load.response, max_tokens=40960)
    plan = make_plan(replace(load, response=law), colocated(load, fsdp(32, micro_batch_tokens=50000), engine(32)))
    with pytest.raises(InvalidInputError) as caught:
        export_plan(plan, tmp_path / "out")
    message = str(caught.value)
    assert "rollout engine: sequences of 41,984 tokens" in message
    assert "test/dense ends at 40,960 positions" in message and "config.json" in message
    assert list(tmp_path.iterdir()) == []
    at_the_end = replace(load, response=replace(law, max_tokens=40960 - load.prompt_max_tokens))
    export_plan(
        make_plan(at_the_end, colocated(load, fsdp(32, micro_batch_tokens=50000), engine(32))), tmp_path / "out"
    )


def test_the_verdict_of_a_reward_model_counts_its_positions_too() -> None:
    load = workload("ppo", reward=RewardKind.MODEL)
    assert load.reward.model is not None
    short = replace(load.reward.model, id="short", hf_repo="test/short", max_positions=9216)
    load = replace(load, reward=replace(load.reward, model=short))
    plan = make_plan(load, colocated(load, fsdp(32), engine(32)))
    # One token more than prompt and response: what the server writes.
    (problem,) = position_problems(plan, engine_tokens_needed(plan))
    assert problem.startswith("reward model: sequences of 9,217 tokens")


def test_a_file_in_place_of_the_directory_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(InvalidInputError, match="is a file"):
        export_plan(PLANS["grpo-fsdp"], tmp_path / "out")
    with pytest.raises(InvalidInputError):
        export_plan(PLANS["grpo-fsdp"], tmp_path / "out" / "below")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_the_script_names_the_decision_of_every_block(tmp_path: Path) -> None:
    text = export_plan(PLANS["ppo-fsdp"], tmp_path / "out")[0].read_text()
    arrays = re.findall(r"^(.*)\n(\w+)=\(", text, flags=re.MULTILINE)
    assert len(arrays) >= 9
    assert all(line.startswith("# ") for line, _ in arrays)
    assert f"{WorkerName.CRITIC_TRAINER.value} on device group g0" in text
