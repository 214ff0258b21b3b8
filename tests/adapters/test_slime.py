"""slime exports against the frozen flags of slime, Megatron-LM and SGLang, and against what the plan says.

`make test-frameworks` (tests/adapters/slime_check.py) hands the same commands to slime's own start.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from planner.adapters.registry import export_plan
from planner.adapters.slime import CONVERT, MODEL, SCRIPT, exported_files
from planner.adapters.slime_config import ROLE_CONFIG, supported_algorithms
from planner.adapters.slime_model import model_flags, supported_families
from planner.domain.plan import Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import EngineIdle, Offload, Sharding
from planner.errors import InvalidInputError
from planner.files.catalog import load_model, model_config
from planner.files.framework import load_framework
from tests.adapters.launch import recorded_arguments
from tests.adapters.plans import HOSTILE
from tests.adapters.slime_cases import cases
from tests.adapters.split_plans import ONE_STEP_OFF, STREAMING, apart, engine, load, megatron, together
from tests.factories import dense_model

FLAGS = frozenset(json.loads(Path(__file__).with_name("slime_keys.json").read_text())["flags"])
PLANS = cases()


def files(plan: Plan) -> dict[str, str]:
    return {file.name: file.text for file in exported_files(plan)}


def started(plan: Plan, scratch: Path, *extra: str, **environment: str) -> list[str]:
    """Program and arguments that the exported script starts."""
    paths = export_plan("slime", plan, scratch / "out")
    script = next(path for path in paths if path.name == SCRIPT)
    places = {"SLIME_DIR": str(scratch), "REF_LOAD": "/models/megatron", **environment}
    return recorded_arguments(script, scratch / "bin", *extra, **places)


def values(plan: Plan, scratch: Path) -> dict[str, str]:
    """Flags with their values; a switch has none."""
    return dict((word.removeprefix("--").partition("=")[::2]) for word in started(plan, scratch)[1:])


def unknown(words: list[str]) -> list[str]:
    return [word for word in words if word.startswith("--") and word.split("=", 1)[0] not in FLAGS]


def test_there_are_enough_plans() -> None:
    assert len(PLANS) >= 40


@pytest.mark.parametrize("name", PLANS)
def test_every_flag_exists(name: str, tmp_path: Path) -> None:
    words = started(PLANS[name], tmp_path)
    assert words[0] == ("train_async.py" if PLANS[name].execution.is_asynchronous else "train.py")
    assert unknown(words) == []
    assert len(words) > 80


def test_the_flag_check_finds_a_misspelt_flag(tmp_path: Path) -> None:
    words = started(PLANS["ppo"], tmp_path)
    changed = [word.replace("--max-tokens-per-gpu", "--max-token-per-gpu") for word in words]
    assert unknown(changed) == ["--max-token-per-gpu=8192"]


def test_every_algorithm_of_the_rules_has_a_loss() -> None:
    assert set(supported_algorithms()) == load_framework("slime").algorithms


def test_layout_batches_and_engines(tmp_path: Path) -> None:
    found = values(PLANS["qwen3-32b-64-apart"], tmp_path)
    assert (found["actor-num-nodes"], found["actor-num-gpus-per-node"], found["rollout-num-gpus"]) == ("8", "8", "64")
    assert "colocate" not in found
    degrees = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "expert-tensor-parallel-size")
    assert [found[key] for key in degrees] == ["4", "2", "4"]
    assert found["num-virtual-stages-per-pipeline-rank"] == "2"
    assert "sequence-parallel" in found
    assert (found["rollout-batch-size"], found["n-samples-per-prompt"]) == ("256", "16")
    # 4,096 samples in 4 steps.
    assert found["global-batch-size"] == "1024"
    assert (found["max-tokens-per-gpu"], found["log-probs-max-tokens-per-gpu"]) == ("8192", "16384")
    assert found["rollout-num-gpus-per-engine"] == "4"
    assert (found["sglang-mem-fraction-static"], found["sglang-max-running-requests"]) == ("0.7", "256")
    assert (found["update-weight-transport"], found["update-weights-interval"]) == ("nccl", "1")


def test_attention_groups_and_the_all_to_all(tmp_path: Path) -> None:
    found = values(PLANS["attention-dp"], tmp_path)
    assert found["rollout-num-gpus-per-engine"] == "64"
    assert (found["sglang-dp-size"], found["sglang-ep-size"]) == ("16", "64")
    assert "sglang-enable-dp-attention" in found and "sglang-enable-dp-lm-head" in found
    # SGLang's limit is that of the engine, its graphs and buffers are those of a group and of a rank.
    assert (found["sglang-max-running-requests"], found["sglang-cuda-graph-max-bs"]) == ("1024", "64")
    assert (found["sglang-moe-a2a-backend"], found["sglang-deepep-mode"]) == ("deepep", "auto")
    texts = {file.name: file.text for file in exported_files(PLANS["attention-dp"])}
    for name in ("run.sh", "README.md"):
        assert "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=16" in texts[name]
    gathered = values(PLANS["attention-dp-gather"], tmp_path)
    assert "sglang-moe-a2a-backend" not in gathered and gathered["sglang-moe-dense-tp-size"] == "1"
    assert all("DEEPEP" not in file.text for file in exported_files(PLANS["attention-dp-gather"]))


def test_budgets_are_those_of_one_context_parallel_rank(tmp_path: Path) -> None:
    found = values(PLANS["context-parallel"], tmp_path)
    assert (found["context-parallel-size"], found["max-tokens-per-gpu"]) == ("4", "2048")


def test_sharing_and_sleeping(tmp_path: Path) -> None:
    shared = values(PLANS["qwen3-8b-16-together"], tmp_path / "a")
    assert {"colocate", "offload-train", "offload-rollout"} <= set(shared)
    resident = values(PLANS["resident"], tmp_path / "b")
    assert {"colocate", "no-offload-train", "no-offload-rollout"} <= set(resident)
    assert "recompute-granularity" not in resident
    half = values(PLANS["half-nodes"], tmp_path / "c")
    assert (half["actor-num-gpus-per-node"], half["rollout-num-gpus"], half["num-gpus-per-node"]) == ("4", "4", "4")


@pytest.mark.parametrize(("name", "moves"), [("cpu-optimizer", False), ("cpu-optimizer-swap", True)])
def test_the_optimizer_on_the_host(name: str, moves: bool, tmp_path: Path) -> None:
    found = values(PLANS[name], tmp_path)
    assert (found["optimizer-offload-fraction"], "optimizer-cpu-offload" in found) == ("1.0", True)
    assert ("offload-train" in found, "no-offload-train" in found) == (moves, not moves)


def test_asynchronous_plans_generate_ahead_and_correct(tmp_path: Path) -> None:
    plan = PLANS["qwen3-8b-16-ahead"]
    found = values(plan, tmp_path / "a")
    assert (found["tis-clip"], "use-tis" in found, "no-offload-rollout" in found) == ("2.0", True, True)
    assert "use-tis" not in values(PLANS["qwen3-8b-16-apart"], tmp_path / "b")
    text = files(plan)[SCRIPT]
    assert "# iterations: asynchronous batches, at most 1 versions behind" in text


def test_algorithms(tmp_path: Path) -> None:
    dapo = values(PLANS["dapo"], tmp_path / "a")
    assert (dapo["over-sampling-batch-size"], dapo["eps-clip-high"]) == ("384", "0.28")
    assert dapo["dynamic-sampling-filter-path"].endswith("check_reward_nonzero_std")
    gspo = values(PLANS["gspo"], tmp_path / "b")
    assert (gspo["advantage-estimator"], gspo["eps-clip"]) == ("gspo", "0.0003")
    reinforce = values(PLANS["reinforce++"], tmp_path / "c")
    assert ("normalize-advantages" in reinforce, reinforce["kl-coef"]) == (True, "0.001")
    assert "use-kl-loss" not in reinforce
    grpo = values(PLANS["one-step"], tmp_path / "d")
    assert (grpo["kl-loss-coef"], grpo["kl-loss-type"], "kl-coef" in grpo) == ("0.001", "low_var_kl", False)
    none = values(PLANS["no-reference"], tmp_path / "e")
    assert not {"kl-coef", "kl-loss-coef", "use-kl-loss"} & set(none)


def test_the_critic_has_a_file_of_its_own(tmp_path: Path) -> None:
    texts = files(PLANS["ppo"])
    roles = yaml.safe_load(texts[ROLE_CONFIG])
    assert roles == {"megatron": [{"name": "default", "role": "critic", "overrides": {"lr": 1e-05}}]}
    assert values(PLANS["ppo"], tmp_path)["megatron-config-path"] == str(tmp_path / "out" / ROLE_CONFIG)
    assert ROLE_CONFIG not in files(PLANS["gspo"])


def test_model_flags_of_experts(tmp_path: Path) -> None:
    found = values(PLANS["deepseek-v3-64-together"], tmp_path / "a")
    assert (found["num-experts"], found["moe-layer-freq"]) == ("256", "[0]*3+[1]*58")
    assert (found["q-lora-rank"], found["moe-router-num-groups"], found["moe-router-group-topk"]) == ("1536", "8", "4")
    assert (found["rotary-scaling-factor"], found["max-position-embeddings"]) == ("40.0", "4096")
    assert found["attention-backend"] == "auto"
    qwen = values(PLANS["qwen3-30b-a3b-16-together"], tmp_path / "b")
    assert (qwen["moe-layer-freq"], qwen["moe-router-score-function"]) == ("[1]*48", "softmax")
    assert "moe-router-pre-softmax" not in qwen
    assert (qwen["expert-model-parallel-size"], qwen["expert-tensor-parallel-size"]) == ("4", "1")
    assert (qwen["sglang-ep-size"], qwen["attention-backend"]) == ("4", "flash")


def test_model_flags_of_dense_models() -> None:
    def found(name: str) -> dict[str, tuple[object, ...]]:
        return {flag.name: flag.values for flag in model_flags(load_model(name))}

    assert found("llama-3.1-8b")["rope-scaling-factor"] == (8.0,)
    assert "qk-layernorm" not in found("llama-3.1-8b")
    assert "add-qkv-bias" in found("qwen2.5-7b")
    assert "untie-embeddings-and-output-weights" not in found("qwen3-0.6b")
    assert found("qwen3-0.6b")["kv-channels"] == (128,)


def of_model(name: str) -> dict[str, tuple[object, ...]]:
    return {flag.name: flag.values for flag in model_flags(load_model(name))}


def test_layers_of_slimes_own() -> None:
    specs = {
        "glm-4-9b-0414": ("slime_plugins.models.glm4", "get_glm_spec"),
        "minimax-m2": ("slime_plugins.models.minimax_m2", "get_minimax_m2_layer_spec"),
        "qwen3-next-80b-a3b": ("slime_plugins.models.qwen3_next", "get_qwen3_next_spec"),
        "qwen3.5-27b": ("slime_plugins.models.qwen3_5", "get_qwen3_5_spec"),
        "qwen3.5-35b-a3b": ("slime_plugins.models.qwen3_5", "get_qwen3_5_spec"),
        "glm-5": ("slime_plugins.models.glm5.glm5", "get_glm5_spec"),
    }
    for name, spec in specs.items():
        assert of_model(name)["spec"] == spec
    assert "spec" not in of_model("glm-4.7-flash") and "spec" not in of_model("mimo-7b")


def test_what_slime_does_not_compare_is_in_the_flags() -> None:
    glm4 = of_model("glm-4-9b-0414")
    assert {"add-qkv-bias", "post-self-attn-layernorm", "post-mlp-layernorm", "rotary-interleaved"} <= set(glm4)
    assert glm4["rotary-percent"] == (0.5,)
    gated = of_model("qwen3.5-35b-a3b")
    assert {"attention-output-gate", "apply-layernorm-1p", "qk-layernorm", "moe-shared-expert-gate"} <= set(gated)
    # From rope_parameters; no layer is dense, so that the width of dense layers is that of an expert.
    assert (gated["rotary-base"], gated["rotary-percent"], gated["ffn-hidden-size"]) == ((10_000_000,), (0.25,), (512,))
    minimax = of_model("minimax-m2")
    assert (minimax["moe-layer-freq"], minimax["moe-ffn-hidden-size"]) == (("[1]*62",), (1536,))
    assert (minimax["rotary-percent"], minimax["moe-router-score-function"]) == ((0.5,), ("sigmoid",))
    assert "allgather-cp" in of_model("glm-5") and of_model("glm-4.7-flash")["q-lora-rank"] == (768,)
    assert of_model("qwen2-7b")["norm-epsilon"] == (1e-06,)
    assert {"add-qkv-bias", "moe-router-pre-softmax"} <= set(of_model("qwen1.5-moe-a2.7b"))


def test_recurrent_layers_are_whole_on_every_tensor_parallel_rank() -> None:
    name = "qwen3.5-27b"
    split = together(load(name), megatron(64, tp=2, pp=4), engine(64, tp=2, idle=EngineIdle.SLEEP))
    with pytest.raises(InvalidInputError, match="tp does not divide recurrent layers"):
        exported_files(split)


def test_models_without_flags_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="no Megatron model flags for model_type 'gemma2'"):
        model_flags(load_model("gemma-2-9b"))
    with pytest.raises(InvalidInputError, match="no Megatron model flags for model_type 'kimi_k25'"):
        # Its language model is that of kimi-k2, but slime loads no checkpoint of this type.
        model_flags(load_model("kimi-k2.5"))
    with pytest.raises(InvalidInputError, match=r"config\.json of 'test/dense' is not at hand"):
        model_flags(dense_model())
    assert "qwen3" in supported_families()


def test_a_model_of_the_users_is_read_from_its_directory_again(tmp_path: Path) -> None:
    config = dict(model_config(load_model("qwen3-8b")) or {})
    directory = tmp_path / "my model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    mine = load_model(str(directory))
    assert {flag.name: flag.values for flag in model_flags(mine)}["num-layers"] == (36,)
    (directory / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 12}))
    with pytest.raises(InvalidInputError, match="describes another model by now"):
        model_flags(mine)
    (directory / "config.json").write_text(json.dumps({**config, "rope_scaling": {"type": "yarn", "factor": 4.0}}))
    with pytest.raises(InvalidInputError, match="rope_scaling"):
        model_flags(load_model(str(directory)))


def test_uneven_pipelines_say_what_the_ends_hold(tmp_path: Path) -> None:
    found = values(PLANS["uneven-pipeline"], tmp_path)
    first, last = (int(found[f"decoder-{end}-pipeline-num-layers"]) for end in ("first", "last"))
    middle, rest = divmod(61 - first - last, 2)
    assert rest == 0 and middle > 0


def test_hostile_paths_stay_arguments(tmp_path: Path) -> None:
    directory = tmp_path / HOSTILE.replace("/", "_")
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(dict(model_config(load_model("qwen3-8b")) or {})))
    mine = load_model(str(directory))
    plan = together(replace(load("qwen3-8b"), actor=mine), megatron(16), engine(16))
    words = started(plan, tmp_path, "--seed=1", TRAIN_DATA="/data/$(touch pwned) `x`.jsonl")
    assert f"--hf-checkpoint={directory}" in words
    assert "--prompt-data=/data/$(touch pwned) `x`.jsonl" in words
    assert words[-1] == "--seed=1"
    assert not list(tmp_path.rglob("pwned"))
    convert = tmp_path / "out" / CONVERT
    other = recorded_arguments(convert, tmp_path / "bin2", SLIME_DIR=str(tmp_path))
    assert other[0] == "tools/convert_hf_to_torch_dist.py"
    assert f"--hf-checkpoint={directory}" in other


def test_scripts_name_the_decision_of_every_block() -> None:
    texts = files(PLANS["ppo"])
    blocks = texts[SCRIPT].split("\n\n")
    arrays = [block for block in blocks if "=(\n" in block]
    assert len(arrays) == 10
    assert all(block.startswith("# ") for block in arrays)
    assert f"{WorkerName.CRITIC_TRAINER.value} on device group g0" in texts[SCRIPT]
    assert texts[MODEL].startswith("# slime main-2026-08, written by rlplan from plan ")


def test_the_readme_says_what_slime_does_otherwise() -> None:
    def readme(name: str) -> str:
        return files(PLANS[name])["README.md"]

    assert "updates the critic before the actor" in readme("ppo")
    assert "leaves that stage out" in readme("one-step")
    assert "leaves that stage out" not in readme("gspo")
    assert "beta_fast" in readme("kimi-k2-64-together")
    assert "beta_fast" not in readme("deepseek-v3-64-together")
    assert "FP8" in readme("fp8-rollout")
    wider = together(
        load("qwen3-8b", "ppo"), megatron(16, offload=Offload.NONE), engine(16, idle=EngineIdle.SLEEP)
    )  # fmt: skip
    assert "moves both trainers to host RAM" in files(wider)["README.md"]


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (together(load("qwen3-8b"), megatron(16, sharding=Sharding.DDP), engine(16)), "ddp"),
        (apart(load("qwen3-8b"), megatron(16), engine(16), execution=STREAMING), "streaming"),
        (apart(load("qwen3-8b", "rloo"), megatron(16), engine(16), execution=ONE_STEP_OFF), "RLOO"),
        (together(load("qwen3-8b", lora_rank=8), megatron(16), engine(16)), "LoRA"),
        (together(replace(load("qwen3-8b"), num_epochs=2), megatron(16), engine(16)), "--epochs 1"),
        (together(load("qwen3-8b", old_logprob=False), megatron(16), engine(16)), "old log-probs"),
        (together(load("gemma-2-9b"), megatron(16), engine(16)), "no Megatron model flags"),
        (
            together(replace(load("qwen3-8b", "ppo"), critic=load_model("qwen3-0.6b")), megatron(16), engine(16)),
            "--critic",
        ),
    ],
)
def test_what_slime_cannot_run_is_refused_with_the_reason(plan: Plan, reason: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        exported_files(plan)
    assert reason in str(caught.value)


def test_refusals_name_the_nearest_plan() -> None:
    with pytest.raises(InvalidInputError, match=r"rlplan plan \.\.\. --framework slime"):
        exported_files(together(load("qwen3-8b"), megatron(16, sharding=Sharding.DDP), engine(16)))
