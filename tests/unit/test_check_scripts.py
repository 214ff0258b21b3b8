"""Configurations that frameworks run although no plan has their like: a check prices them and calls nothing broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.adapters.findings import Severity
from planner.adapters.import_source import open_source
from planner.api.checking import checked
from planner.check import CheckView
from planner.domain.stages import WorkerName
from planner.domain.strategy import Sharding
from planner.errors import InvalidInputError
from planner.files.spec import WorkloadSpec
from tests.adapters.imports import messages, read, trainer

GLM4 = """MODEL_ARGS=(
   --spec "slime_plugins.models.glm4" "get_glm_spec" --swiglu --num-layers 40 --hidden-size 4096
   --ffn-hidden-size 13696 --num-attention-heads 32 --group-query-attention --num-query-groups 2
   --post-self-attn-layernorm --post-mlp-layernorm --vocab-size 151552 --rotary-base 10000
)
"""
SLIME = """source "models/one.sh"
python3 train.py --actor-num-nodes {nodes} --actor-num-gpus-per-node 8 --colocate ${{MODEL_ARGS[@]}} \\
   --hf-checkpoint /data/{model} --ref-load /data/dist --num-rollout 10 --rollout-batch-size 32 \\
   --n-samples-per-prompt 8 --global-batch-size 256 --rollout-max-prompt-len 1024 \\
   --rollout-max-response-len 8192 --tensor-model-parallel-size 2 --sequence-parallel --context-parallel-size {cp} \\
   --expert-model-parallel-size {ep} --expert-tensor-parallel-size 1 --use-dynamic-batch-size \\
   --max-tokens-per-gpu {tokens} --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \\
   --rollout-num-gpus-per-engine {engine} --sglang-mem-fraction-static 0.7 {more}
"""
VERL = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator={estimator} \\
   data.train_batch_size=256 data.max_prompt_length=512 data.max_response_length=1024 \\
   actor_rollout_ref.model.path=Qwen/Qwen3-0.6B actor_rollout_ref.actor.ppo_mini_batch_size=128 \\
   actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192 \\
   actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=8192 actor_rollout_ref.rollout.name=vllm \\
   actor_rollout_ref.rollout.n={group} trainer.n_gpus_per_node={gpus} trainer.nnodes=1 {more}
"""
AREAL = """experiment_name: e
trial_name: t
tokenizer_path: ${actor.path}
cluster: {n_nodes: 2, n_gpus_per_node: 8}
rollout: {backend: "sglang:d4t2", consumer_batch_size: "${train_dataset.batch_size}", max_head_offpolicyness: 2}
gconfig: {n_samples: 4, max_new_tokens: 1024}
actor:
  backend: "megatron:d1p8t1"
  path: Qwen/Qwen3-8B
  gradient_checkpointing: true
  mb_spec: {max_tokens_per_mb: 10240}
  use_decoupled_loss: true
  recompute_logprob: true
sglang: {model_path: "${actor.path}", mem_fraction_static: 0.8, max_running_requests: 64}
train_dataset: {batch_size: 256, path: openai/gsm8k, type: rl, max_length: 1024}
"""


@pytest.fixture(autouse=True)
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best plan and the changes beside a configuration are another matter, and take their time."""
    monkeypatch.setattr("planner.check._best", lambda *_: (None, ""))
    monkeypatch.setattr("planner.check._changes", lambda *_: iter(()))


def view_of(directory: Path, files: dict[str, str], *, gpus: str = "h200", framework: str = "auto") -> CheckView:
    return checked(read(directory, files, framework=framework), WorkloadSpec(gpus=gpus, response_mean=500.0))


def slime(
    directory: Path, model: str = "GLM-4-9B-0414", flags: str = GLM4, more: str = "", **numbers: int
) -> CheckView:
    values = {"nodes": 1, "cp": 1, "ep": 1, "tokens": 16384, "engine": 2, **numbers}
    script = SLIME.format(model=model, more=more, **values)
    return view_of(directory, {"run.sh": script, "models/one.sh": flags})


def verl(directory: Path, estimator: str = "grpo", group: int = 8, gpus: int = 8, more: str = "") -> CheckView:
    return view_of(directory, {"run.sh": VERL.format(estimator=estimator, group=group, gpus=gpus, more=more)})


def test_a_family_with_layers_of_slimes_own(tmp_path: Path) -> None:
    view = slime(tmp_path)
    assert view.plan is not None and not view.has_problem, (view.problems, messages(view.imported))


def test_a_family_that_slime_does_not_convert_is_a_warning_and_priced(tmp_path: Path) -> None:
    view = slime(tmp_path, model="gemma-2-9b-it", flags="MODEL_ARGS=(--spec my.models get_spec)")
    assert view.plan is not None and not view.has_problem, (view.problems, messages(view.imported))
    assert "converts no gemma2" in messages(view.imported, Severity.WARNING)
    named = slime(tmp_path, model="gemma-2-9b-it", flags="MODEL_ARGS=(--spec my.models x)", more="--model-name llama")
    assert "converts no" not in messages(named.imported)


def test_a_budget_below_the_longest_sequence_is_a_micro_batch_of_one(tmp_path: Path) -> None:
    view = slime(tmp_path, tokens=4096)
    assert not view.has_problem, view.problems
    assert trainer(view.imported).micro_batch_tokens == 1024 + 8192
    assert "makes a micro-batch of its own" in messages(view.imported, Severity.WARNING)


def test_context_parallelism_over_linear_attention_is_priced_with_a_note(tmp_path: Path) -> None:
    flags = "MODEL_ARGS=(--num-layers 48 --hidden-size 2048 --num-experts 512)"
    view = slime(tmp_path, model="Qwen3-Next-80B-A3B-Instruct", flags=flags, nodes=4, cp=2, ep=8, engine=8)
    assert not view.problems, view.problems
    assert "gather the sequence" in messages(view.imported, Severity.NOTE)


def test_a_degree_that_does_not_divide_is_still_an_error(tmp_path: Path) -> None:
    view = slime(tmp_path, more="--pipeline-model-parallel-size 3")
    assert view.has_problem and "layers do not divide" in messages(view.imported, Severity.ERROR)


@pytest.mark.parametrize(("estimator", "group"), [("remax", 1), ("grpo", 1)])
def test_estimators_that_no_plan_has(tmp_path: Path, estimator: str, group: int) -> None:
    view = verl(tmp_path, estimator, group)
    assert view.plan is not None and not view.has_problem, (view.problems, messages(view.imported))
    said = "nothing to compare: priced as REINFORCE++" in messages(view.imported, Severity.WARNING)
    assert said == (estimator == "grpo")


def test_one_gpu_shards_over_itself(tmp_path: Path) -> None:
    view = verl(tmp_path, gpus=1, more="actor_rollout_ref.rollout.tensor_model_parallel_size=1")
    assert trainer(view.imported).sharding is Sharding.ZERO3
    assert not view.has_problem, (view.problems, messages(view.imported))


def test_layers_that_the_framework_spreads_itself(tmp_path: Path) -> None:
    view = view_of(tmp_path, {"config.yaml": AREAL})
    assert trainer(view.imported).pp == 8, "36 layers do not divide over 8 ranks"
    assert not view.has_problem, (view.problems, messages(view.imported))


def test_layers_that_the_configuration_spreads(tmp_path: Path) -> None:
    more = "model_engine=megatron actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=8 {}"
    given = "+actor_rollout_ref.actor.megatron.override_transformer_config.num_layers_in_last_pipeline_stage=7"
    even = verl(tmp_path, more=more.format(""))
    assert "28 layers do not divide over 8 pipeline ranks" in messages(even.imported, Severity.ERROR)
    spread = verl(tmp_path, more=more.format(given))
    assert not spread.has_problem, (spread.problems, messages(spread.imported))


def test_a_value_model_with_degrees_of_its_own(tmp_path: Path) -> None:
    text = """defaults: ppo_math_1B_megatron.yaml
policy:
  model_name: Qwen/Qwen2.5-1.5B
  megatron_cfg: {tensor_model_parallel_size: 1}
value:
  model_name: Qwen/Qwen2.5-1.5B
  megatron_cfg: {tensor_model_parallel_size: 2}
cluster: {gpus_per_node: 8, num_nodes: 1}
"""
    view = view_of(tmp_path, {"examples/configs/value.yaml": text}, framework="nemo-rl")
    assert trainer(view.imported, WorkerName.CRITIC_TRAINER).tp == 2
    assert not any("one back end" in text for text in view.problems), view.problems


def test_a_given_variable_that_no_script_names_is_said(tmp_path: Path) -> None:
    script = {"run.sh": VERL.format(estimator="grpo", group=8, gpus="${NGPUS:-8}", more="")}
    found = messages(read(tmp_path, script, "NGPU=4", "NGPUS=8"), Severity.WARNING)
    assert "nothing in the script reads NGPU " in found and "reads NGPUS" not in found


@pytest.mark.parametrize("root", ["missing", "run.sh"])
def test_a_root_that_is_no_directory_is_refused(tmp_path: Path, root: str) -> None:
    (tmp_path / "run.sh").write_text("true", encoding="utf-8")
    with pytest.raises(InvalidInputError, match="--root"):
        open_source(tmp_path / "run.sh", root=tmp_path / root)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no file here that opens and cannot be read")
def test_a_file_that_opens_and_cannot_be_read_is_named() -> None:
    with pytest.raises(InvalidInputError, match="/proc/self/mem: cannot be read"):
        open_source(Path("/proc/self/mem"))
