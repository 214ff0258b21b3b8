"""YAML text: what a reader gets back, whatever it holds."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from planner.adapters.overrides import UserText
from planner.adapters.yaml_text import Block, yaml_document
from tests.adapters.plans import HOSTILE


def loaded(*blocks: Block) -> dict[str, object]:
    return yaml.load(yaml_document(blocks), Loader=yaml.CSafeLoader)


def block(*entries: tuple[str, object], path: str = "a") -> Block:
    return Block(path=path, decisions=("why",), entries=entries)  # type: ignore[arg-type]


def test_blocks_with_a_common_path_are_merged() -> None:
    blocks = (block(("c", 1), path="a.b"), block(("x.y", True), ("z", None)), block(("d", ("p", "q")), path="a.b"))
    assert loaded(*blocks) == {"a": {"b": {"c": 1, "d": ["p", "q"]}, "x": {"y": True}, "z": None}}


def test_every_block_keeps_its_decision_in_one_comment_line() -> None:
    text = yaml_document((Block(path="a.b", decisions=("first\nsecond: 1",), entries=(("c", 1),)),))
    assert text == "a:\n  # first second: 1\n  b:\n    c: 1\n"


@pytest.mark.parametrize("value", [1e-6, 1e20, 0.5, 3.0, -2e-7])
def test_floats_stay_floats(value: float) -> None:
    read = loaded(block(("v", value)))["a"]["v"]  # type: ignore[index]
    assert read == value and isinstance(read, float)


@pytest.mark.parametrize(
    "word", ["no", "null", "on", "1e3", "12", "a: b", "- x", "", "x:", "a/b", "~", "0x1f", "=", "<<"]
)
def test_words_stay_words(word: str) -> None:
    assert loaded(block(("v", word), (word or "k", 1)))["a"] == {"v": word, word or "k": 1}


@given(st.text().filter(lambda text: "${" not in text and text != "???"))
def test_user_text_stays_data(text: str) -> None:
    assert loaded(block(("v", UserText(text))))["a"] == {"v": text}


def test_interpolations_in_user_text_are_escaped() -> None:
    read = loaded(block(("v", UserText(HOSTILE))))["a"]["v"]  # type: ignore[index]
    assert read == HOSTILE.replace("${", r"\${")


def test_a_key_given_twice_is_a_fault() -> None:
    with pytest.raises(ValueError, match="given twice"):
        yaml_document((block(("v", 1)), block(("v", 2))))
    with pytest.raises(ValueError, match="value and a mapping"):
        yaml_document((block(("v", 1)), block(("w", 2), path="a.v")))
