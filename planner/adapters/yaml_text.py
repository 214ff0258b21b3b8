"""YAML for frameworks that read it with OmegaConf: blocks with the plan decisions that they come from as comments."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.adapters.overrides import ShellValue, UserText, Value
from planner.adapters.shell import comment, omegaconf_text

_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./:-]*(?<!:)")
_RESERVED = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan", "inf"))
"""Words that a YAML 1.1 reader turns into something else."""


@dataclass(frozen=True, slots=True)
class FlowMap:
    """A mapping within a value, such as an item of a list; it is written in flow form."""

    entries: tuple[tuple[str, YamlValue], ...]


YamlValue = Value | FlowMap | tuple["YamlValue", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Entries below the dotted `path` (keys of `entries` may be dotted too), and the decisions behind them."""

    path: str
    decisions: tuple[str, ...]
    entries: tuple[tuple[str, YamlValue], ...]


@dataclass(slots=True)
class _Node:
    comments: list[str] = field(default_factory=list)
    children: dict[str, _Node | _Leaf] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Leaf:
    text: str


def yaml_document(blocks: Sequence[Block]) -> str:
    """One mapping with the entries of all blocks; blocks with a common path are merged in order.

    Raises ValueError when a key is given twice or is both a value and a mapping.
    """
    root = _Node()
    for block in blocks:
        node = _descend(root, block.path)
        node.comments += [comment(decision) for decision in block.decisions]
        for key, value in block.entries:
            parent, _, last = key.rpartition(".")
            place = _descend(node, parent)
            if last in place.children:
                raise ValueError(f"{block.path}.{key} is given twice")
            place.children[last] = _Leaf(_rendered(value))
    return "".join(f"{line}\n" for line in _lines(root, 0))


def _descend(node: _Node, path: str) -> _Node:
    for part in path.split(".") if path else ():
        child = node.children.setdefault(part, _Node())
        if isinstance(child, _Leaf):
            raise ValueError(f"{path} is a value and a mapping")
        node = child
    return node


def _lines(node: _Node, depth: int) -> list[str]:
    indent = "  " * depth
    lines: list[str] = []
    for key, child in node.children.items():
        name = _word(key)
        if isinstance(child, _Leaf):
            lines.append(f"{indent}{name}: {child.text}")
            continue
        if depth == 0 and lines:
            lines.append("")
        lines += [f"{indent}# {text}" for text in child.comments]
        lines.append(f"{indent}{name}:" + ("" if child.children else " {}"))
        lines += _lines(child, depth + 1)
    return lines


def _rendered(value: YamlValue) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, tuple):
        return f"[{', '.join(_rendered(item) for item in value)}]"
    if isinstance(value, FlowMap):
        return "{" + ", ".join(f"{_word(key)}: {_rendered(item)}" for key, item in value.entries) + "}"
    if isinstance(value, UserText):
        return _quoted(omegaconf_text(value.text))
    if isinstance(value, ShellValue):
        return f"${{oc.env:{value.variable}}}"
    return _word(value) if isinstance(value, str) else str(value)


def _number(value: float) -> str:
    """A float that every YAML reader takes for one: YAML 1.1 wants a point in the mantissa."""
    mantissa, _, exponent = repr(value).partition("e")
    if not exponent:
        return mantissa
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent}"


def _word(text: str) -> str:
    return text if _PLAIN.fullmatch(text) and text.lower() not in _RESERVED else _quoted(text)


def _quoted(text: str) -> str:
    """A double-quoted scalar; whatever is not printable becomes an escape that YAML and JSON share."""
    return "".join(_escaped(c) for c in json.dumps(text, ensure_ascii=False))


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
