"""Which model a configuration means: stand-ins of shipped files, parts that are left out, models without a formula."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.adapters.import_model import NOT_KNOWN, NOT_MODELLED
from planner.adapters.imported import Imported
from planner.errors import InvalidInputError
from planner.files.catalog import left_out_of, load_model, why_not_modelled
from tests.adapters.imports import messages, read
from tests.adapters.test_import_nemo_rl import CHAIN

GUIDE = "Follow instructions in https://github.com/NVIDIA-NeMo/RL/blob/main/docs/guides/deepseek.md"
VERL = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path={} trainer.nnodes=1 trainer.n_gpus_per_node=8\n"


def yaml_with(tmp_path: Path, model: str) -> Imported:
    base = CHAIN["base.yaml"].replace("Qwen/Qwen3-30B-A3B", f'"{model}"')
    return read(tmp_path, {**CHAIN, "base.yaml": base})


def test_a_placeholder_of_a_shipped_file_stands_for_its_model(tmp_path: Path) -> None:
    found = yaml_with(tmp_path, GUIDE)
    assert found.spec.model == "deepseek-ai/DeepSeek-V3"
    assert all(text in messages(found) for text in ("stands for", "docs/guides/deepseek.md"))


def test_another_text_is_asked_for(tmp_path: Path) -> None:
    assert "policy.model_name" in yaml_with(tmp_path, GUIDE + "x").unresolved


@pytest.mark.parametrize(
    ("variable", "model"),
    [
        ("NRL_DEEPSEEK_V3_BF16_CKPT", "deepseek-ai/DeepSeek-V3"),
        ("NRL_DEEPSCALER_8K_CKPT", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"),
        ("SOME_OTHER_CKPT", None),
    ],
)
def test_a_variable_that_scripts_insist_on_stands_for_its_model(
    tmp_path: Path, variable: str, model: str | None
) -> None:
    text = (
        f'if [[ -z "${variable}" ]]; then echo "Need to set it"; exit 1; fi\n'
        f"uv run examples/run_grpo.py --config recipes/async.yaml policy.model_name=${variable}\n"
    )
    assert read(tmp_path, {"run.sh": text, **CHAIN}).spec.model == model


def test_a_variable_that_is_given_is_taken_as_it_is(tmp_path: Path) -> None:
    text = "uv run examples/run_grpo.py --config recipes/async.yaml policy.model_name=$NRL_DEEPSEEK_V3_BF16_CKPT\n"
    found = read(tmp_path, {"run.sh": text, **CHAIN}, "NRL_DEEPSEEK_V3_BF16_CKPT=qwen3-8b")
    assert found.spec.model == "qwen3-8b"


@pytest.mark.parametrize(
    ("model", "part"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", "vision tower"),
        ("Qwen/Qwen2.5-Omni-7B", "talker"),
        ("nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16", "towers of images and sound"),
        ("zai-org/GLM-4.1V-9B-Thinking", "vision tower"),
        ("Qwen/Qwen3-VL-8B-Instruct", "all but the language model"),
    ],
)
def test_what_is_left_out_is_said(tmp_path: Path, model: str, part: str) -> None:
    found = read(tmp_path, {"run.sh": VERL.format(model)})
    assert part in left_out_of(model)
    assert all(text in messages(found) for text in (part, "left out"))


@pytest.mark.parametrize(
    "model", ["Qwen/Qwen3-8B", "Qwen/Qwen2.5-7B-Instruct", "google/gemma-4-E2B-it", "no-such-model"]
)
def test_of_a_language_model_nothing_is_left_out(model: str) -> None:
    assert left_out_of(model) == ""


def test_a_model_without_a_formula_is_said_to_be_one(tmp_path: Path) -> None:
    found = read(tmp_path, {"run.sh": VERL.format("$ROOT/model/DeepSeek-V4-Flash")})
    assert found.unresolved == ("actor_rollout_ref.model.path",)
    assert all(text in messages(found) for text in (NOT_MODELLED, "hyper-connections"))
    assert NOT_KNOWN not in messages(found)


def test_a_name_that_nobody_knows_is_said_to_be_one(tmp_path: Path) -> None:
    found = read(tmp_path, {"run.sh": VERL.format("/path/to/model")})
    assert NOT_KNOWN in messages(found)


@pytest.mark.parametrize(
    "name", ["deepseek-ai/DeepSeek-V4-Flash", "DeepSeek-V4-Pro", "microsoft/Phi-3-small-8k-instruct"]
)
def test_models_without_a_formula_are_not_in_the_catalog(name: str) -> None:
    assert why_not_modelled(name)
    with pytest.raises(InvalidInputError):
        load_model(name)
    assert why_not_modelled("Qwen/Qwen3-8B") == ""
