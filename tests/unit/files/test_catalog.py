"""Look-up by name, suggestions, models from files, and hostile files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.errors import InvalidInputError
from planner.files.catalog import (
    MAX_CONFIG_BYTES,
    generic_node,
    list_gpus,
    list_models,
    list_nodes,
    load_gpu,
    load_model,
    load_node,
)

CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1000,
}


@pytest.mark.parametrize("name", ["qwen3-32b", "Qwen/Qwen3-32B", "QWEN/qwen3-32B", "Qwen3-32B", " qwen3-32b "])
def test_models_are_found_by_id_repository_and_short_name(name: str) -> None:
    model = load_model(name)
    assert (model.id, model.hf_repo) == ("qwen3-32b", "Qwen/Qwen3-32B")


def test_an_alias_keeps_its_own_repository() -> None:
    model = load_model("deepseek-ai/deepseek-r1")
    assert (model.id, model.hf_repo) == ("deepseek-v3", "deepseek-ai/DeepSeek-R1")


def test_near_misses_get_suggestions() -> None:
    with pytest.raises(InvalidInputError, match="did you mean 'qwen3-32b'"):
        load_model("qwen3-32")
    with pytest.raises(InvalidInputError, match="did you mean 'h100'"):
        load_gpu("h10")
    with pytest.raises(InvalidInputError, match=r"did you mean .*'p5\.48xlarge'"):
        load_node("p5.48xlrge")
    with pytest.raises(InvalidInputError, match="did you mean 'h200"):
        generic_node("h200s")


@pytest.mark.parametrize("name", ["", "   ", "nothing-like-this", "x" * 100_000, "a\0b", "../../etc", "\ud800"])
def test_strange_names_are_refused_shortly(name: str) -> None:
    for load in (load_model, load_gpu, load_node, generic_node):
        with pytest.raises(InvalidInputError) as caught:
            load(name)
        assert len(str(caught.value)) < 1000


def test_a_node_is_no_gpu() -> None:
    with pytest.raises(InvalidInputError):
        generic_node("p5.48xlarge")
    assert load_node("generic-h100-sxm") == generic_node("h100")


def test_lists_are_sorted_and_loadable() -> None:
    assert [e.id for e in list_gpus()] == sorted(e.id for e in list_gpus())
    assert [e.id for e in list_nodes()] == sorted(e.id for e in list_nodes())
    assert [e.id for e in list_models()] == sorted(e.id for e in list_models())


def test_a_model_from_a_file_or_its_directory(tmp_path: Path) -> None:
    directory = tmp_path / "my-model"
    directory.mkdir()
    path = directory / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    model = load_model(str(path))
    assert (model.id, model.hf_repo) == ("my-model", str(directory))
    assert load_model(str(directory)) == model
    assert model.num_layers == 4


def test_the_message_names_file_and_key(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, "hidden_size": -5}), encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"config\.json: hidden_size: -5 is wrong; accepted: a whole number"):
        load_model(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n ", "is empty"),
        (b"\x00\xff\xfe\x80binary", "config.json"),
        (b"{", "is not JSON"),
        (b"hidden_size: 4", "is not JSON"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "has 5000 digits; accepted"),
        (b"[1, 2]", "holds a list"),
        (b"null", "holds nothing"),
        (b"3", "holds a number"),
        (b'{"model_type": NaN}', "is not JSON"),
        (b'{"model_type": "qwen3", "hidden_size": Infinity}', "is not JSON"),
        (b"[" * 200_000, "config.json"),
        (b'{"a":' * 100_000, "config.json"),
        (b'{"model_type": "qwen3", "hidden_size": ' + b"9" * 10_000 + b"}", "config.json"),
        (b"{}", "'model_type' is missing"),
        (b'{"model_type": ["qwen3"]}', "model_type"),
        (b'{"model_type": "qwen3_vl", "text_config": 7}', "text_config"),
        (b" " * (MAX_CONFIG_BYTES + 1), "larger than 8 MiB"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value[:20]),
)
def test_hostile_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=message) as caught:
        load_model(str(path))
    assert len(str(caught.value)) < 1000


def test_missing_files_and_directories_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="does not exist"):
        load_model(str(tmp_path / "none" / "config.json"))
    with pytest.raises(InvalidInputError, match=r"config\.json: does not exist"):
        load_model(str(tmp_path))


def test_the_catalog_does_not_read_more_than_a_plan_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    import planner.files.catalog as catalog

    opened: list[str] = []
    original = catalog._yaml_text.__wrapped__

    def spy(name: str) -> object:
        opened.append(name)
        return original(name)

    monkeypatch.setattr(catalog, "_yaml_text", spy)
    catalog._read_node.__wrapped__("generic-h100-sxm")
    assert set(opened) == {
        "node-generic-h100-sxm.yaml",
        "gpu-h100-sxm.yaml",
        "efficiency-h100-sxm.yaml",
        "networks.yaml",
    }
