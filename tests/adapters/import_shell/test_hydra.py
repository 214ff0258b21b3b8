"""Hydra overrides and OmegaConf interpolations, without Hydra."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.adapters.hydra import Config, Operation, Value, parse_override, parse_value
from planner.adapters.shell import hydra_text
from planner.adapters.shell_script.marks import mark, unknowns

VALUES: dict[str, Value] = {
    "1": 1, "-2": -2, "1_000": 1000, "1e-6": 1e-6, "0.5": 0.5, ".5": 0.5, "True": True, "false": False, "null": None,
    "": "", "abc": "abc", "a b": "a b", "'a, b'": "a, b", '"x"': "x", "[1,2]": [1, 2], "[]": [], "['a',b]": ["a", "b"],
    "{a:1,b:[x]}": {"a": 1, "b": ["x"]}, "Qwen/Qwen3-8B": "Qwen/Qwen3-8B", "[a": "[a", "1.2.3": "1.2.3",
    "${a.b}": "${a.b}", "$" * 3: "$$$",
}  # fmt: skip


@pytest.mark.parametrize("text", VALUES)
def test_values_are_those_of_hydra(text: str) -> None:
    value = parse_value(text)
    assert value == VALUES[text] and type(value) is type(VALUES[text])


@given(st.text(max_size=60).filter(lambda text: text != "???" and "\0" not in text))
def test_quoted_user_text_comes_back(text: str) -> None:
    config = Config()
    config.set("a", parse_value(hydra_text(text)), "")
    assert config.get("a") == text


@pytest.mark.parametrize(
    ("text", "operation", "key"),
    [
        ("a.b=1", Operation.CHANGE, "a.b"),
        ("+a.b=1", Operation.ADD, "a.b"),
        ("++a.b=1", Operation.FORCE, "a.b"),
        ("~a.b", Operation.DELETE, "a.b"),
    ],
)
def test_operations(text: str, operation: Operation, key: str) -> None:
    override = parse_override(text, "here")
    assert override is not None and (override.operation, override.key, override.place) == (operation, key, "here")


@pytest.mark.parametrize("text", ["--flag=1", "word", "a.b", "", "a b=1"])
def test_other_words_are_no_overrides(text: str) -> None:
    assert parse_override(text, "") is None


def test_interpolations() -> None:
    tree: dict[str, Value] = {
        "a": {"b": 4, "c": "${.b}", "d": "${a.b}x", "e": "${..top}"},
        "top": 7,
        "n": "${oc.select:no.such,5}",
        "s": "${oc.select:a.b,5}",
        "env": "${oc.env:HOME,none}",
        "free": "${oc.env:HOME}",
        "m": "${mul:${a.b},${add:1,1}}",
        "q": "${div:9,2}",
        "x": "${max:1,${a.b}}",
        "escaped": "\\${a.b}",
    }
    config = Config(tree)
    found = {key: config.get(key) for key in ("a.c", "a.d", "a.e", "n", "s", "env", "m", "q", "x", "escaped")}
    assert found == {
        "a.c": 4, "a.d": "4x", "a.e": 7, "n": 5, "s": 4, "env": "none", "m": 8, "q": 4, "x": 4, "escaped": "${a.b}",
    }  # fmt: skip
    assert unknowns(str(config.get("free"))) == ("HOME",)
    assert Config(tree, {"HOME": "/h"}).get("free") == "/h"


@pytest.mark.parametrize("value", ["${a}", "${a.b", "${no.such}", "${b}", "???", "${secret:x}"])
def test_what_cannot_be_resolved_is_unknown_or_stays(value: str) -> None:
    config = Config({"a": value, "b": "${a}"})
    result = config.get("a")
    assert isinstance(result, str) and (unknowns(result) or result == value)


def test_marks_pass_through() -> None:
    override = parse_override(f"a.b={mark('NODES')}", "")
    assert override is not None
    config = Config({"c": "${a.b}0"})
    config.set("a.b", override.value, "")
    assert unknowns(str(config.get("c"))) == ("NODES",)


@pytest.mark.parametrize("text", ["[" * 5000, "{a:" * 5000, "'" + "\\" * 9000, "1" * 100_000, "${a" * 3000])
def test_hostile_values_end(text: str) -> None:
    value = parse_value(text)
    Config({"a": value}).get("a")
