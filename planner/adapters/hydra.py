"""Hydra overrides and OmegaConf interpolations, read without Hydra: values stay plain data.

What is understood: overrides `a.b=c`, `+a.b=c`, `++a.b=c`, `~a.b`; values in Hydra's grammar (quotes, lists, mappings,
numbers, null); `${a.b}`, relative `${.b}` and `${..b}`, and the resolvers oc.env, oc.select, oc.decode, mul, add, sub,
div, max, min. A value that depends on what only the run knows keeps its mark (`planner.adapters.shell_script.marks`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from planner.adapters.shell_script.marks import is_known, mark, shown
from planner.errors import InvalidInputError

Value = bool | int | float | str | None | list["Value"] | dict[str, "Value"]

MAX_DEPTH = 20
MAX_VALUE = 10_000
MISSING = "???"
_KEY = re.compile(r"(\+{1,2}|~)?([^+~=\s'\"\[\]{},]+?)(?:@[^=]*)?(?:=(.*))?", re.DOTALL)
_INTEGER = re.compile(r"[+-]?\d+(_\d+)*")
_FLOAT = re.compile(r"[+-]?(\d+(_\d+)*)?\.?\d+(_\d+)*\.?([eE][+-]?\d+)?|[+-]?\d+\.")
_WORDS: dict[str, Value] = {
    "true": True, "false": False, "yes": True, "no": False, "on": True, "off": False, "null": None, "none": "None",
}  # fmt: skip


class Operation(StrEnum):
    """What an override does with a key."""

    CHANGE = ""
    ADD = "+"
    FORCE = "++"
    DELETE = "~"


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One override; `place` is where it was written."""

    operation: Operation
    key: str
    value: Value
    text: str
    place: str


def parse_override(text: str, place: str) -> Override | None:
    """`key=value` as an override; None for what is none (flags, unknown words)."""
    match = _KEY.fullmatch(text)
    if match is None or not match[2] or match[2].startswith("-") or not is_known(match[2]):
        return None
    if match[3] is None and match[1] != "~":
        return None
    written = match[3] or ""
    return Override(
        operation=Operation(match[1] or ""), key=match[2], value=parse_value(written), text=written, place=place
    )


def parse_value(text: str) -> Value:
    """A value in Hydra's grammar; what the grammar does not allow stays text."""
    if len(text) > MAX_VALUE:
        return text
    try:
        parser = _ValueParser(text)
        value = parser.value()
        parser.blanks()
        return value if parser.position == len(text) else text
    except ValueError:
        return text


class _ValueParser:
    """Recursive descent over one value; ValueError where the text is no Hydra value."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.depth = 0

    def blanks(self) -> None:
        while self.position < len(self.text) and self.text[self.position] in " \t\n":
            self.position += 1

    def peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def value(self, stop: str = "") -> Value:
        self.blanks()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        char = self.peek()
        result: Value
        if char == "[":
            result = list(self._items("]"))
        elif char == "{":
            result = self._mapping()
        elif char in ("'", '"') and char:
            result = self._quoted(char)
        else:
            result = scalar(self._plain(stop))
        self.depth -= 1
        return result

    def _items(self, close: str) -> Iterator[Value]:
        self.position += 1
        self.blanks()
        if self.peek() == close:
            self.position += 1
            return
        while True:
            yield self.value(",]")
            self._next(close)
            if self.text[self.position - 1] == close:
                return

    def _next(self, close: str) -> None:
        self.blanks()
        if self.peek() not in (",", close) or not self.peek():
            raise ValueError("no separator")
        self.position += 1

    def _mapping(self) -> dict[str, Value]:
        result: dict[str, Value] = {}
        self.position += 1
        self.blanks()
        if self.peek() == "}":
            self.position += 1
            return result
        while True:
            self.blanks()
            key = self._quoted(self.peek()) if self.peek() in ("'", '"') else self._plain(":")
            if self.peek() != ":":
                raise ValueError("no value")
            self.position += 1
            result[key.strip()] = self.value(",}")
            self._next("}")
            if self.text[self.position - 1] == "}":
                return result

    def _quoted(self, quote: str) -> str:
        end = self.position + 1
        while end < len(self.text) and self.text[end] != quote:
            end += 2 if self.text[end] == "\\" else 1
        if end >= len(self.text):
            raise ValueError("open quote")
        inner = self.text[self.position + 1 : end]
        self.position = end + 1
        return re.sub(
            rf"(\\+)(?={quote}|$)", lambda match: match[1][: len(match[1]) // 2], inner.replace(f"\\{quote}", quote)
        )

    def _plain(self, stop: str) -> str:
        start, braces = self.position, 0
        while self.position < len(self.text):
            char = self.text[self.position]
            if char == "\\":
                self.position += 2
                continue
            if char == "{":
                braces += 1
            elif char == "}" and braces:
                braces -= 1
            elif char in stop and not braces:
                break
            self.position += 1
        return re.sub(r"\\([\\()\[\]{}:=, \t])", r"\1", self.text[start : self.position].strip())


def scalar(text: str) -> Value:
    """A plain scalar: null, bool, integer, float or text."""
    lowered = text.lower()
    if lowered in ("null", ""):
        return None if lowered else ""
    if lowered in ("true", "false"):
        return lowered == "true"
    if len(text) < 20 and _INTEGER.fullmatch(text):
        return int(text)
    if (len(text) < 40 and _FLOAT.fullmatch(text)) or lowered in ("inf", "-inf", "nan"):
        return float(text)
    return text


class Config:
    """A tree of values under dotted keys; interpolations are resolved when a value is asked for."""

    def __init__(self, tree: Mapping[str, Value] | None = None, environment: Mapping[str, str] | None = None) -> None:
        self.tree: dict[str, Value] = _copied(dict(tree or {}))
        self.environment = dict(environment or {})
        """Variables that the program sees; others are unknown."""
        self.places: dict[str, str] = {}
        """Where a key was set; keys without a place have their default."""

    def has(self, key: str) -> bool:
        return _find(self.tree, key) is not _NOTHING

    def merge(self, tree: Mapping[str, Value], place: str) -> None:
        """Sets all leaves of a tree."""
        _merge(self.tree, tree, 0)
        for key in leaves(tree):
            self.places[key] = place

    def set(self, key: str, value: Value, place: str) -> None:
        node = self.tree
        *parents, last = key.split(".")
        if len(parents) > MAX_DEPTH:
            raise InvalidInputError(f"{key[:60]!r} nests deeper than {MAX_DEPTH} levels", where=place)
        for part in parents:
            child = node.get(part)
            if not isinstance(child, dict):
                child = {}
                node[part] = child
            node = child
        old = node.get(last)
        if isinstance(old, dict) and isinstance(value, dict):
            _merge(old, value, 0)
        else:
            node[last] = value
        self.places[key] = place

    def delete(self, key: str) -> None:
        parent, _, last = key.rpartition(".")
        node = _find(self.tree, parent) if parent else self.tree
        if isinstance(node, dict):
            node.pop(last, None)

    def raw(self, key: str) -> Value:
        """The value as written; None where there is none."""
        found = _find(self.tree, key)
        return None if found is _NOTHING else found  # type: ignore[return-value]

    def get(self, key: str) -> Value:
        """The value with interpolations resolved; text with marks where something in it is not known.

        `???` and what depends on a key that is not there are unknown under the name of the key.
        """
        return self._resolved(self.raw(key), key, 0)

    def place(self, key: str) -> str:
        """Where a key was set; empty for a default."""
        return self.places.get(key, "")

    def is_set(self, key: str) -> bool:
        """Whether the user has set a key, or something below it."""
        return key in self.places or any(name.startswith(f"{key}.") for name in self.places)

    def _resolved(self, value: Value, key: str, depth: int) -> Value:
        if depth > MAX_DEPTH:
            return mark(key)
        if isinstance(value, list):
            return [self._resolved(item, key, depth + 1) for item in value]
        if isinstance(value, dict):
            return {name: self._resolved(item, f"{key}.{name}", depth + 1) for name, item in value.items()}
        if value == MISSING:
            return mark(key)
        if not isinstance(value, str) or "${" not in value:
            return value
        return self._interpolated(value, key, depth)

    def _interpolated(self, text: str, key: str, depth: int) -> Value:
        parts: list[Value] = []
        position = 0
        while True:
            start = text.find("${", position)
            if start < 0 or len(parts) > 100:
                break
            end = _closing(text, start + 2)
            if end < 0:
                break
            before = text[position:start]
            bare = before.rstrip("\\")
            num_escapes = len(before) - len(bare)
            before = bare + "\\" * (num_escapes // 2)
            if num_escapes % 2:
                parts.append(before + text[start : end + 1])
                position = end + 1
                continue
            if before:
                parts.append(before)
            parts.append(self._one(text[start + 2 : end], key, depth + 1))
            position = end + 1
        if position < len(text):
            parts.append(text[position:])
        if len(parts) == 1:
            return parts[0]
        return "".join(shown_value(part) for part in parts)

    def _one(self, inner: str, key: str, depth: int) -> Value:
        if depth > MAX_DEPTH:
            return mark(key)
        inner = inner.strip()
        name, colon, rest = inner.partition(":")
        if colon and re.fullmatch(r"[A-Za-z_][\w.]*", name):
            return self._resolver(name, _arguments(rest), key, depth)
        if "${" in inner:
            inner = str(self._interpolated(inner, key, depth))
        target = _absolute(inner, key)
        found = _find(self.tree, target)
        return mark(target) if found is _NOTHING else self._resolved(found, target, depth)  # type: ignore[arg-type]

    def _resolver(self, name: str, arguments: list[str], key: str, depth: int) -> Value:
        values = [self._resolved(parse_value(item), key, depth) for item in arguments]
        if name == "oc.env" and arguments:
            variable = str(values[0])
            if variable in self.environment:
                return self.environment[variable]
            return values[1] if len(values) > 1 else mark(variable)
        if name == "oc.select" and arguments:
            target = _absolute(str(values[0]), key)
            found = _find(self.tree, target)
            if found is _NOTHING or found is None:
                return values[1] if len(values) > 1 else None
            return self._resolved(found, target, depth)  # type: ignore[arg-type]
        if name == "oc.decode" and values:
            return parse_value(values[0]) if isinstance(values[0], str) else values[0]
        if name in _NUMERIC and values:
            return _calculated(name, values)
        return mark(f"${{{name}:...}}")


_NOTHING = object()
_NUMERIC = frozenset({"mul", "add", "sub", "div", "max", "min"})


def _calculated(name: str, values: list[Value]) -> Value:
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) != len(values) or any(abs(number) > 1e15 for number in numbers):
        unknown = next((value for value in values if isinstance(value, str)), "")
        return unknown if not is_known(unknown) else mark(f"${{{name}:...}}")
    if name in ("max", "min"):
        return max(numbers) if name == "max" else min(numbers)
    result = numbers[0]
    for number in numbers[1:]:
        if name == "div":
            if number == 0:
                return mark(f"${{{name}:...}}")
            # Both loaders divide integers without a rest.
            result = result // number if isinstance(result, int) and isinstance(number, int) else result / number
        else:
            result = {"mul": result * number, "add": result + number, "sub": result - number}[name]
    return result


def _arguments(text: str) -> list[str]:
    """Arguments of a resolver, split at commas outside of brackets and quotes."""
    result, depth, current, quote = [], 0, "", ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "{[(":
            depth += 1
        elif char in "}])":
            depth -= 1
        elif char == "," and not depth:
            result.append(current.strip())
            current = ""
            continue
        current += char
    return [*result, current.strip()] if current.strip() or result else []


def _closing(text: str, start: int) -> int:
    """The brace that closes an interpolation; -1 if none does."""
    depth = 1
    for index in range(start, len(text)):
        if text[index] == "{":
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if not depth:
                return index
    return -1


def _absolute(target: str, key: str) -> str:
    """A key as seen from the root; leading dots count from the key's own section."""
    if not target.startswith("."):
        return target
    dots = len(target) - len(target.lstrip("."))
    parents = key.split(".")[:-dots] if dots <= key.count(".") + 1 else []
    return ".".join([*parents, target[dots:]])


def _find(tree: Mapping[str, Value], key: str) -> object:
    node: object = tree
    for part in key.replace("[", ".").replace("]", "").split("."):
        if isinstance(node, dict) and part in node:
            node = node[part]
        elif isinstance(node, list) and part.isdigit() and int(part[:6]) < len(node):
            node = node[int(part[:6])]
        else:
            return _NOTHING
    return node


def _merge(into: dict[str, Value], tree: Mapping[str, Value], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidInputError(f"a configuration nests deeper than {MAX_DEPTH} levels")
    for key, value in tree.items():
        old = into.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            _merge(old, value, depth + 1)
        else:
            into[key] = _copied(value) if isinstance(value, dict) else value


def _copied(tree: dict[str, Value]) -> dict[str, Value]:
    return {key: _copied(value) if isinstance(value, dict) else value for key, value in tree.items()}


def leaves(tree: Mapping[str, Value], prefix: str = "") -> Iterator[str]:
    """Dotted keys of all values that are no sections; empty sections count as values."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{name}.")
        else:
            yield name


def shown_value(value: Value) -> str:
    """A value as text inside other text, with marks kept."""
    if value is None:
        return "null"
    return str(value)


def displayed(value: Value) -> str:
    """A value for people."""
    return shown(shown_value(value))
