"""YAML of unknown origin -> plain values, without the parts of YAML that can hurt.

Aliases (and with them exponential "bombs"), duplicate keys, deep nesting and very many nodes are refused.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from planner.errors import InvalidInputError
from planner.files.atomic import read_limited

MAX_BYTES = 4 * 2**20
MAX_DEPTH = 16
MAX_NODES = 50_000
_MISREAD = re.compile(r"[-+]?(\d[\d_]*(:\d+)+(\.\d*)?|0[\d_]+)")
"""Plain scalars that YAML 1.1 takes for numbers which nobody meant: `1:30` is 90, and `010` is 8."""


def read_yaml(path: Path, *, kind: str) -> dict[str, object]:
    """The mapping that a YAML file holds; raises InvalidInputError with file, line and reason."""
    text = read_limited(path, MAX_BYTES, kind=kind)
    where = str(path)
    try:
        _check_events(text, where)
        # The loader class builds plain values only (it derives from the safe loader).
        value = yaml.load(text, Loader=_StrictLoader)
    except _DuplicateKey as error:
        raise InvalidInputError(
            f"line {error.line}: key {error.key!r} is given twice", where=where, accepted="each key once"
        ) from None
    except yaml.YAMLError as error:
        raise InvalidInputError(f"{_place(error)}is not YAML: {_reason(error)}", where=where) from None
    except (ValueError, OverflowError) as error:
        # Scalars that look like dates or numbers but are none (2024-13-45).
        raise InvalidInputError(f"holds a value that cannot be read: {_plain(error)}", where=where) from None
    if not isinstance(value, dict):
        raise InvalidInputError(
            f"holds {_type_name(value)}, not keys and values", where=where, accepted=f"a {kind} such as 'model: ...'"
        )
    for key in value:
        if not isinstance(key, str):
            raise InvalidInputError(f"key {key!r} is not text", where=where)
    return value


class _DuplicateKey(Exception):
    def __init__(self, key: object, line: int) -> None:
        super().__init__()
        self.key = key
        self.line = line


class _StrictLoader(yaml.CSafeLoader):
    """The safe loader, which also refuses a key that is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                raise _DuplicateKey(key, key_node.start_mark.line + 1)
            seen.add(key)
        return dict(super().construct_mapping(node, deep=deep))


def _construct_mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[object, object]:
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)


def _check_events(text: str, where: str) -> None:
    """Refuses what would be expensive or ambiguous before any value is built."""
    depth = nodes = documents = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        line = event.start_mark.line + 1 if event.start_mark is not None else 0
        if isinstance(event, yaml.AliasEvent):
            raise InvalidInputError(f"line {line}: aliases (*name) are not accepted", where=where)
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise InvalidInputError(f"line {line}: a second document starts", where=where, accepted="one document")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise InvalidInputError(f"line {line}: nested deeper than {MAX_DEPTH} levels", where=where)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and _MISREAD.fullmatch(event.value):
            raise InvalidInputError(
                f"line {line}: {event.value[:40]} would be read to base 60 or 8",
                where=where,
                accepted="numbers without colons and leading zeros, or text in quotes",
            )
        nodes += isinstance(event, yaml.NodeEvent)
        if nodes > MAX_NODES:
            raise InvalidInputError(f"line {line}: more than {MAX_NODES} values", where=where)


def _plain(error: Exception) -> str:
    """The first clause; what follows it in the error of a huge number is advice to Python programmers."""
    return str(error).split(";")[0]


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}: " if mark is not None else ""


def _reason(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or str(error).splitlines()[0])


def _type_name(value: object) -> str:
    return {list: "a list", str: "text", type(None): "nothing"}.get(type(value), f"a {type(value).__name__}")
