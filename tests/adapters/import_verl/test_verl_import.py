"""verl's launch scripts in the terms of a plan: values, findings with their places, and what has to be asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.adapters.findings import Severity
from planner.adapters.import_source import open_source, parse_given
from planner.adapters.imported import Imported
from planner.adapters.importers import import_source
from planner.adapters.verl_import_keys import DATA, is_legal, load_tables
from planner.domain.execution import ExecutionMode
from planner.domain.stages import WorkerName
from planner.domain.strategy import Offload, Recompute, RolloutStrategy, Sharding, Strategy, TrainerStrategy
from planner.errors import InvalidInputError

SCRIPTS = Path(__file__).parent / "scripts"
BASE = (
    "actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.rollout.name=vllm algorithm.adv_estimator=grpo "
    "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.rollout.n=8"
)


def read(name: str, *given: str, root: Path | None = None) -> Imported:
    return import_source(open_source(SCRIPTS / name, given=parse_given(given), root=root))


def read_words(tmp_path: Path, words: str) -> Imported:
    file = tmp_path / "run.sh"
    file.write_text(f"python3 -m verl.trainer.main_ppo {BASE} {words}\n")
    return import_source(open_source(file))


def strategy(imported: Imported, worker: WorkerName) -> Strategy:
    return next(item.strategy for item in imported.workers if item.worker is worker)


def trainer(imported: Imported, worker: WorkerName = WorkerName.ACTOR_TRAINER) -> TrainerStrategy:
    found = strategy(imported, worker)
    assert isinstance(found, TrainerStrategy)
    return found


def engine(imported: Imported) -> RolloutStrategy:
    found = strategy(imported, WorkerName.ROLLOUT_ENGINE)
    assert isinstance(found, RolloutStrategy)
    return found


def errors(imported: Imported) -> list[str]:
    return [f"{f.place}: {f.message}" for f in imported.findings if f.severity is Severity.ERROR]


def test_plain_overrides_and_defaults() -> None:
    found = read("plain_fsdp.sh")
    assert (found.version, found.unresolved, errors(found)) == ("0.9.1", (), [])
    spec = found.spec
    assert (spec.model, spec.algorithm, spec.num_prompts, spec.group_size) == ("Qwen/Qwen3-8B", "grpo", 512, 8)
    assert (spec.num_optimizer_steps, spec.prompt_max, spec.response_max, spec.kl_coefficient) == (4, 1024, 4096, 0.001)
    actor = trainer(found)
    assert (actor.sharding, actor.offload, actor.recompute) == (Sharding.ZERO3, Offload.STATE_SWAP, Recompute.FULL)
    assert (actor.micro_batch_tokens, actor.inference_tokens) == (4 * 5120, 8 * 5120)
    assert trainer(found, WorkerName.REFERENCE).offload is Offload.STATE_SWAP
    rollout = engine(found)
    assert (rollout.tp, rollout.engine_fraction, rollout.max_num_seqs) == (2, 0.6, 256)
    assert (found.num_nodes, found.gpus_per_node) == (1, 8)


def test_variables_arrays_and_old_megatron() -> None:
    found = read("variables_megatron.sh")
    actor = trainer(found)
    assert found.version == "up to 0.8" and found.num_gpus == 32
    assert (actor.tp, actor.ep, actor.etp, actor.dp, actor.recompute) == (4, 8, 4, 8, Recompute.FULL)
    assert (actor.sharding, actor.offload, actor.micro_batch_tokens) == (Sharding.ZERO1, Offload.STATE_SWAP, 10240)
    by_place = {f.place.rpartition("/")[2]: f for f in found.findings}
    assert "gone" in by_place["variables_megatron.sh:17"].message
    assert any("null means the tensor parallel size" in f.message for f in found.findings)
    assert "reward.reward_manager.name" in by_place["variables_megatron.sh:34"].remedy
    assert any("Qwen/Qwen3-30B-A3B" in f.message and "ends in" in f.message for f in found.findings)


def test_lost_lines_do_not_count() -> None:
    found = read("broken_continuation.sh")
    assert (found.num_nodes, found.spec.group_size) == (1, 1)
    assert any("broken_continuation.sh:7" in text and "followed by a blank" in text for text in errors(found))
    assert any("rollout.n=8 and 1 more: not part of the launch" in text for text in errors(found))


def test_unknown_values_are_asked_for_by_name_and_only_where_they_matter() -> None:
    assert set(read("undefined.sh").unresolved) == {"WORLD_SIZE", "MAX_TOKENS"}
    assert not read("undefined.sh").workers
    found = read("undefined.sh", "WORLD_SIZE=2", "MAX_TOKENS=9000")
    assert not found.unresolved and found.num_nodes == 2 and trainer(found).micro_batch_tokens == 9000
    by_key = read("undefined.sh", "trainer.nnodes=4", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2048")
    assert not by_key.unresolved and by_key.num_nodes == 4


def test_old_spellings() -> None:
    found = read("old_ppo.sh")
    assert found.version == "up to 0.3" and found.spec.algorithm == "ppo" and found.spec.reward_model == "Qwen/Qwen3-8B"
    # 64 sequences on all 16 GPUs.
    assert trainer(found).micro_batch_tokens == 4 * 2048 and trainer(found).inference_tokens == 8 * 2048
    assert trainer(found, WorkerName.CRITIC_TRAINER).offload is Offload.STATE_SWAP
    remedies = " ".join(finding.remedy for finding in found.findings)
    for new in (
        "critic.fsdp.param_offload", "reward.reward_model.model_path", "actor.checkpoint.save_contents",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    ):  # fmt: skip
        assert new in remedies
    assert sum("gone" in finding.message for finding in found.findings) == 3
    assert not errors(found)


def test_engines_on_nodes_of_their_own() -> None:
    found = read("separate_async.sh")
    # One batch is ahead; responses may be older, but not by more than two versions.
    assert (found.execution.mode, found.execution.staleness) == (ExecutionMode.STREAMING, 1)
    assert any(item.what == "late responses" and "more than 2 versions" in item.value for item in found.settings)
    places = {item.worker: (item.first_gpu, item.num_gpus) for item in found.workers}
    assert places == {WorkerName.ROLLOUT_ENGINE: (8, 8), WorkerName.ACTOR_TRAINER: (0, 8)}
    assert (found.num_nodes, found.spec.num_optimizer_steps) == (2, 2) and not errors(found)


def test_configuration_files_below_the_root() -> None:
    found = read("config_file.sh")
    assert (found.spec.num_prompts, found.spec.group_size, found.spec.response_max) == (256, 16, 2048)
    assert any("actor_rollout_ref.unread" in f.message for f in found.findings) and not found.unresolved
    elsewhere = import_source(open_source(SCRIPTS / "config_file.sh", root=SCRIPTS / "config"))
    assert any(name.startswith("--root") for name in elsewhere.unresolved)


def test_a_yaml_file_is_a_configuration_of_its_own() -> None:
    found = import_source(
        open_source(SCRIPTS / "config" / "own_trainer.yaml", given={"actor_rollout_ref.model.path": "qwen3-8b"}),
        "verl",
    )
    assert found.spec.group_size == 16 and not found.unresolved
    # Nobody names a critic: verl takes its own default.
    assert found.spec.critic == "deepseek-llm-7b-chat"


def test_misspelt_dead_and_repeated_keys() -> None:
    found = read("typos.sh")
    by_place = {f"{f.place.rpartition('/')[2]} {f.severity.value}": f"{f.message} {f.remedy}" for f in found.findings}
    assert "ppo_mini_batch_size" in by_place["typos.sh:7 error"]
    assert "my_flag" in by_place["typos.sh:8 warning"]
    assert "1000, then 512, which wins" in by_place["typos.sh:11 warning"]
    assert "FSDP is the back end" in " ".join(by_place.values())
    assert "engines of 3 GPUs do not fill 8 GPUs" in " ".join(errors(found))


RULES = {
    "actor_rollout_ref.rollout.expert_parallel_size=4": "neither 1 nor tp x dp",
    "actor_rollout_ref.rollout.pipeline_model_parallel_size=2": "above 1 is refused",
    "actor_rollout_ref.rollout.max_model_len=100": "less than prompt and response",
    "actor_rollout_ref.rollout.mode=sync": "sync has been removed",
    "actor_rollout_ref.rollout.max_num_seqs=9999": "less than max_num_seqs",
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=False "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1": "verl asserts that they are equal",
    "actor_rollout_ref.actor.use_dynamic_bsz=False": "is missing, and use_dynamic_bsz is off",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=500": "less than one sequence of 1,024",
    "data.train_batch_size=64": "less than one mini-batch",
    "trainer.n_gpus_per_node=6 actor_rollout_ref.rollout.tensor_model_parallel_size=2": "do not divide over 6",
    "model_engine=megatron actor_rollout_ref.actor.megatron.tensor_model_parallel_size=16": "does not divide 8 GPUs",
    "trainer.v1.trainer_mode=separate_async": "separate_async needs nodes for the engines",
    "trainer.v1.trainer_mode=odd": "is not known",
    "actor_rollout_ref.model.use_remove_padding=False "
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2": "Ulysses needs packed sequences",
    "+actor_rollout_ref.rollout.seed=1": "Hydra refuses it",
    "actor_rollout_ref.rollout.gpu_memory_utilization=1.5": "share of GPU memory",
    "trainer.nnodes=abc": "not a whole number",
    "stray": "is no override",
}


@pytest.mark.parametrize("words", RULES)
def test_broken_rules_are_errors(words: str, tmp_path: Path) -> None:
    assert not errors(read_words(tmp_path, ""))
    assert any(RULES[words] in text for text in errors(read_words(tmp_path, words)))


def test_old_reward_keys_that_hydra_takes_and_nobody_reads(tmp_path: Path) -> None:
    words = "reward_model.reward_manager=dapo +reward_model.reward_kwargs.max_resp_len=2048"
    found = {f.message.split()[0]: f for f in read_words(tmp_path, words).findings}
    manager, limit = found["reward_model.reward_manager"], found["reward_model.reward_kwargs.max_resp_len"]
    assert manager.severity is Severity.WARNING and "does not read it" in manager.message
    assert manager.remedy == "write reward.reward_manager.name for verl 0.9.1"
    assert limit.remedy == "write +reward.reward_kwargs.max_resp_len for verl 0.9.1"


def test_a_reference_that_is_run_for_nothing(tmp_path: Path) -> None:
    found = read_words(tmp_path, "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0")
    assert found.spec.kl_coefficient and any("all the same" in f.message for f in found.findings)
    assert any(item.worker is WorkerName.REFERENCE for item in found.workers)


def test_other_programs_are_refused_with_what_they_are(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text("torchrun -m verl.trainer.sft_trainer model.path=x\n")
    with pytest.raises(InvalidInputError, match=r"verl\.trainer\.sft_trainer"):
        import_source(open_source(file), "verl")
    with pytest.raises(InvalidInputError, match="no framework recognises"):
        import_source(open_source(file))


def test_the_shipped_keys_are_those_that_exports_are_tested_against() -> None:
    shipped = json.loads((DATA / "verl_keys.json").read_text())
    frozen = json.loads((Path(__file__).parent.parent / "verl_keys.json").read_text())
    assert {name: shipped[name] for name in ("version", "common", "dp", "megatron")} == {
        name: frozen[name] for name in ("version", "common", "dp", "megatron")
    }


def test_tables_name_keys_of_this_version() -> None:
    tables = load_tables()
    for rename in tables.renames:
        new = rename.new
        known = new is None or any(key == new or key.startswith(f"{new}.") for key in tables.legal)
        assert known or is_legal(new or "", tables), new
