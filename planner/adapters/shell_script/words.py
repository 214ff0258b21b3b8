"""Expansion of shell words: quotes, parameters, arrays, arithmetic, and splitting into fields."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from planner.adapters.shell_script import patterns
from planner.adapters.shell_script.arithmetic import UnknownNumber, evaluate
from planner.adapters.shell_script.marks import clean, is_known, is_mark, mark, unknowns
from planner.adapters.shell_script.state import MAX_ELEMENTS, Array, State
from planner.errors import InvalidInputError

if TYPE_CHECKING:
    from tree_sitter import Node

_HEADER = re.compile(r"([#!]?)([A-Za-z_]\w*|\d+|[@*#?$!_-])")
_OPERATOR = re.compile(r":?[-=+?]|##?|%%?|//?|\^\^?|,,?|:|@[A-Za-z]")
_BRACES = re.compile(r"\{(-?\d{1,6})\.\.(-?\d{1,6})(?:\.\.(-?\d{1,6}))?\}")
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "e": "\x1b", "0": "\0"}
MAX_DEPTH = 60
VOLATILE = frozenset({"RANDOM", "SRANDOM", "SECONDS", "EPOCHSECONDS", "EPOCHREALTIME", "BASHPID", "PPID", "UID",
                      "HOSTNAME", "LINENO", "?", "$", "!"})  # fmt: skip


class Piece(NamedTuple):
    """Expanded text; `splits` where spaces separate fields, `ends` where a field ends after it."""

    text: str
    splits: bool = False
    ends: bool = False


class Expander(ABC):
    """Expands words of one source in a state that `Shell` owns."""

    def __init__(self, state: State, given: dict[str, str], file: str) -> None:
        self.state = state
        self.given = given
        self.file = file
        self.source = b""
        self.depth = 0
        self.missing: dict[str, None] = {}
        """Variables that were taken as unset because nothing sets them."""

    @abstractmethod
    def substituted(self, node: Node) -> str:
        """Output of `$(...)`, which needs the evaluator of whole commands."""

    def text_of(self, node: Node) -> str:
        return self.text(node.start_byte, node.end_byte)

    def text(self, start: int, end: int) -> str:
        return clean(self.source[start:end].decode("utf-8", "replace"))

    # Words -------------------------------------------------------------------------------------------------------

    def fields(self, node: Node) -> list[str]:
        """The arguments that a word becomes."""
        raw = self.text_of(node)
        braces = _BRACES.fullmatch(raw)
        if braces is not None:
            return _sequence(int(braces[1]), int(braces[2]), int(braces[3] or 0))
        result: list[str] = []
        current: list[str] = []

        def close() -> None:
            if current:
                result.append("".join(current))
                current.clear()

        for piece in self.pieces(node):
            if not piece.splits:
                current.append(piece.text)
            else:
                for index, part in enumerate(re.split(r"[ \t\n]+", piece.text)):
                    if index:
                        close()
                    if part:
                        current.append(part)
            if piece.ends:
                close()
        close()
        return result

    def value(self, node: Node | None) -> str:
        """The text of a word where nothing is split: assignments, tests, redirections."""
        if node is None:
            return ""
        parts: list[str] = []
        for piece in self.pieces(node):
            parts += [piece.text, " "] if piece.ends else [piece.text]
        return "".join(parts[:-1] if parts and parts[-1] == " " else parts)

    def pieces(self, node: Node) -> Iterator[Piece]:
        """The expansions of a word in order."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InvalidInputError(f"words nest deeper than {MAX_DEPTH} levels", where=self.place(node))
        yield from self._pieces(node)
        self.depth -= 1

    def begin(self, node: Node) -> int:
        """Where the text of an expansion begins: the grammar counts blanks before it to the node."""
        start = node.start_byte
        while node.type in _DOLLAR and start < node.end_byte and self.source[start] in b" \t\n":
            start += 1
        return start

    def place(self, node: Node) -> str:
        return f"{self.file}:{node.start_point[0] + 1}"

    def _pieces(self, node: Node) -> Iterator[Piece]:
        kind = node.type
        if kind == "string":
            yield from self._string(node)
        elif kind == "translated_string":
            yield from (piece for child in node.children if child.type == "string" for piece in self._string(child))
        elif kind == "raw_string":
            yield Piece(self.text(node.start_byte + 1, node.end_byte - 1))
        elif kind == "ansi_c_string":
            yield Piece(_ansi(self.text(node.start_byte + 2, node.end_byte - 1)))
        elif kind == "simple_expansion":
            name = self.text(self.begin(node) + 1, node.end_byte)
            # A dollar sign before anything else is only that.
            is_name = _HEADER.fullmatch(name) is not None
            yield from self._parameter(name, splits=True) if is_name else [Piece(f"${name}")]
        elif kind == "expansion":
            yield from self._expansion(node, splits=True)
        elif kind == "command_substitution":
            # Inside `${X:-...}` the grammar takes arithmetic for a subshell.
            is_number = self.text(self.begin(node), node.end_byte)[:3] == "$((" and self.text_of(node).endswith("))")
            yield Piece(self._arithmetic(node) if is_number else self.substituted(node), splits=True)
        elif kind == "arithmetic_expansion":
            yield Piece(self._arithmetic(node))
        elif kind == "process_substitution":
            yield Piece(mark("<(...)"))
        elif kind in ("concatenation", "command_name") and node.children:
            yield from self.range(node, node.start_byte, node.end_byte)
        else:
            yield from self.range(node, node.start_byte, node.end_byte)

    def range(self, node: Node, start: int, end: int, *, quoted: bool = False, escapes: str = "") -> Iterator[Piece]:
        """Expansions among the children of `node` within a range of bytes, and the literal text between them.

        `escapes` are the characters that a backslash escapes inside quotes; outside it escapes all.
        """
        position = start
        for child in node.children:
            if child.start_byte < position or child.end_byte > end or child.type not in _EXPANDED:
                continue
            if quoted and child.type in _QUOTES:
                # Quotes are ordinary characters inside double quotes and here-documents.
                continue
            yield from self._literal(position, self.begin(child), escapes)
            for piece in self.pieces(child):
                yield piece._replace(splits=piece.splits and not quoted)
            position = child.end_byte
        yield from self._literal(position, end, escapes)

    def _literal(self, start: int, end: int, escapes: str) -> Iterator[Piece]:
        if end > start:
            text = _unescape(self.text(start, end), escapes)
            if text:
                yield Piece(text)

    def _string(self, node: Node) -> Iterator[Piece]:
        count = 0
        for piece in self.range(node, node.start_byte + 1, node.end_byte - 1, quoted=True, escapes='$`"\\'):
            count += 1
            yield piece
        inner = self.text(node.start_byte + 1, node.end_byte - 1)
        if not count and not re.fullmatch(r"\$(\{\w+\[@\][^}]*\}|@|\{@[^}]*\})", inner):
            yield Piece("")

    # Parameters --------------------------------------------------------------------------------------------------

    def look_up(self, name: str) -> str | None:
        """The value of a scalar, of an array's first element, or None where nothing sets it."""
        value = self.state.variables.get(name)
        if isinstance(value, dict):
            return value.get("0")
        if value is not None:
            return value
        return self.given.get(name)

    def _special(self, name: str) -> str | None:
        arguments = self.state.arguments
        if name == "#":
            return mark("#") if arguments is None else str(len(arguments))
        if name == "0":
            return self.file
        if name == "?":
            return self.state.status
        if name in VOLATILE:
            return mark(f"${name}")
        if name.isdigit():
            if arguments is None:
                return mark(name)
            index = int(name[:6])
            return arguments[index - 1] if index <= len(arguments) else None
        if name == "PWD":
            return self.state.directory
        return None

    def scalar(self, name: str) -> str | None:
        """A variable or special parameter by name; None where it is not set."""
        if name in VOLATILE or name in "#0?" or name.isdigit() or name == "PWD":
            found = self._special(name)
            return self.given.get(name) if found is None else found
        return self.look_up(name)

    def unset(self, name: str) -> str:
        """What stands for a variable that nothing sets."""
        self.missing[name] = None
        return mark(name)

    def _parameter(self, name: str, *, splits: bool) -> Iterator[Piece]:
        if name in ("@", "*"):
            yield from _elements(self.state.arguments, mark("@"), joined=name == "*", splits=splits)
            return
        value = self.scalar(name)
        if value is None:
            # An array without a first element is empty, not unknown.
            value = "" if isinstance(self.state.variables.get(name), dict) else self.unset(name)
        yield Piece(value, splits=splits)

    def array(self, name: str) -> Array | None:
        """The elements of a variable; None where they are not known. A scalar is its own first element."""
        value = self.state.variables.get(name)
        if isinstance(value, dict):
            return value
        if name == "BASH_SOURCE":
            return {"0": self.file}
        if value is None:
            value = self.given.get(name)
        if value is not None:
            return None if is_mark(value) else {"0": value}
        return {}

    def _expansion(self, node: Node, *, splits: bool) -> Iterator[Piece]:
        start, end = self.begin(node) + 2, node.end_byte - 1
        body = self.source[start:end].decode("utf-8", "replace")
        # `${#}` and `${#:-x}` are the number of arguments, `${#X}` is a length.
        header = re.match(r"()(#)(?=$|:?[-+=?])", body) or _HEADER.match(body)
        if header is None:
            yield Piece(mark(f"${{{body[:40]}}}"))
            return
        prefix, name = header[1], header[2]
        offset = start + len(body[: header.end()].encode())
        subscript, offset = self._subscript(node, offset, end)
        rest = self.source[offset:end].decode("utf-8", "replace")
        operator = _OPERATOR.match(rest)
        operation = operator[0] if operator is not None else ""
        operand = offset + len(operation.encode())
        if prefix == "!":
            yield self._indirect(name, subscript, splits=splits)
        elif prefix == "#":
            yield Piece(self._length(name, subscript))
        elif subscript in ("@", "*") or name in ("@", "*"):
            yield from self._whole(node, name, subscript or name, operation, operand, end, splits=splits)
        else:
            value = self._element(name, subscript)
            yield from self._operated(node, name, value, operation, operand, end, splits=splits)

    def _subscript(self, node: Node, offset: int, end: int) -> tuple[str, int]:
        """Text between brackets, expanded, and where it ends."""
        found = next((c for c in node.children if c.type == "subscript"), None)
        if found is None or self.source[offset : offset + 1] != b"[":
            return "", offset
        inner = "".join(p.text for p in self.range(found, offset + 1, found.end_byte - 1))
        return inner.strip("\"'"), min(found.end_byte, end)

    def _index(self, name: str, subscript: str) -> str:
        value = self.state.variables.get(name)
        if isinstance(value, dict) and subscript in value:
            return subscript
        try:
            index = evaluate(subscript, lambda n: self.scalar(n) or "0", lambda *_: None)
        except UnknownNumber:
            return subscript
        if index < 0 and isinstance(value, dict):
            index += len(value)
        return str(index)

    def _element(self, name: str, subscript: str) -> str | None:
        if not subscript:
            return self.scalar(name)
        if not is_known(subscript):
            return mark(name)
        elements = self.array(name)
        return mark(name) if elements is None else elements.get(self._index(name, subscript))

    def _indirect(self, name: str, subscript: str, *, splits: bool) -> Piece:
        if subscript in ("@", "*"):
            return Piece(" ".join(self.array(name) or {}), splits=splits)
        target = self.scalar(name)
        if target is None or not is_known(target):
            return Piece(mark(name), splits=splits)
        value = self.scalar(target)
        return Piece(self.unset(target) if value is None else value, splits=splits)

    def _length(self, name: str, subscript: str) -> str:
        if subscript in ("@", "*"):
            elements = self.array(name)
            return mark(name) if elements is None else str(len(elements))
        if name in ("@", "*"):
            return self._special("#") or "0"
        value = self._element(name, subscript)
        if value is None:
            value = self.unset(name)
        return str(len(value)) if is_known(value) else mark(name)

    def _whole(
        self, node: Node, name: str, kind: str, operation: str, operand: int, end: int, *, splits: bool
    ) -> Iterator[Piece]:
        """All elements of an array or all arguments, perhaps sliced or changed one by one."""
        if name in ("@", "*"):
            values = self.state.arguments
        else:
            elements = self.array(name)
            values = None if elements is None else list(elements.values())
        if values is not None and operation == ":":
            values = self._slice(node, values, operand, end, is_arguments=name in ("@", "*"))
        elif values is not None and operation in (":-", "-", ":+", "+"):
            if bool(values) == (operation[-1] == "+"):
                yield from self._operand_pieces(node, operand, end, splits=splits)
                return
            values = values if operation[-1] == "-" else []
        elif values is not None and operation:
            values = [self._changed(node, value, operation, operand, end) for value in values]
        stored = self.state.variables.get(name)
        unknown = stored if isinstance(stored, str) and is_mark(stored) else mark(name)
        yield from _elements(values, unknown, joined=kind == "*", splits=splits)

    def _slice(self, node: Node, values: list[str], operand: int, end: int, *, is_arguments: bool) -> list[str] | None:
        bounds = self._bounds(node, operand, end)
        if bounds is None:
            return None
        first, count = bounds
        if is_arguments:
            values = [self.file, *values]
        first = max(0, first + len(values)) if first < 0 else first
        return values[first:] if count is None else values[first : first + max(0, count)]

    def _bounds(self, node: Node, operand: int, end: int) -> tuple[int, int | None] | None:
        """`:first:count`; None when unknown."""
        text = "".join(piece.text for piece in self.range(node, operand, end))
        first, _, count = text.partition(":")
        try:
            numbers = [evaluate(t, lambda n: self.scalar(n) or "0", lambda *_: None) for t in (first, count) if t]
        except UnknownNumber:
            return None
        if not numbers:
            return None
        return numbers[0], numbers[1] if len(numbers) > 1 else None

    def _operand_pieces(self, node: Node, operand: int, end: int, *, splits: bool) -> Iterator[Piece]:
        text = self.text(operand, end)
        if text.startswith("$((") and text.endswith("))") and text.count("$((") == 1:
            # The grammar takes arithmetic inside of `${X:-...}` for nested subshells.
            yield Piece(self.number(node, operand + 3, end - 2))
            return
        for piece in self.range(node, operand, end):
            yield piece._replace(splits=splits and (piece.splits or " " in piece.text))

    def _operand(self, node: Node, operand: int, end: int) -> str:
        return "".join(piece.text for piece in self._operand_pieces(node, operand, end, splits=False))

    def _operated(
        self, node: Node, name: str, value: str | None, operation: str, operand: int, end: int, *, splits: bool
    ) -> Iterator[Piece]:
        kind = operation[-1:] if operation in (":-", "-", ":=", "=", ":+", "+", ":?", "?") else ""
        if kind:
            if value is not None and is_mark(value) and unknowns(value) == (name,) and name in self.missing:
                value = None
            is_set = value is not None and (bool(value) or not operation.startswith(":"))
            if value is None and name in self.given:
                value, is_set = self.given[name], True
            if kind == "+":
                if is_set:
                    yield from self._operand_pieces(node, operand, end, splits=splits)
                return
            if not is_set and kind in "-=":
                if value is None and not name.isdigit():
                    self.missing[name] = None
                if kind == "=":
                    value = self._operand(node, operand, end)
                    self.state.set(name, value)
                    yield Piece(value, splits=splits)
                else:
                    yield from self._operand_pieces(node, operand, end, splits=splits)
                return
        if value is None:
            value = "" if isinstance(self.state.variables.get(name), dict) else self.unset(name)
        if kind or not operation:
            yield Piece(value, splits=splits)
        else:
            yield Piece(self._changed(node, value, operation, operand, end), splits=splits)

    def _changed(self, node: Node, value: str, operation: str, operand: int, end: int) -> str:
        """A value after `#`, `%`, `/`, `^`, `,` or `:`."""
        result: str | None
        if operation == ":":
            bounds = self._bounds(node, operand, end)
            result = None if bounds is None or not is_known(value) else _substring(value, *bounds)
        elif operation[0] in "#%":
            cut = patterns.without_prefix if operation[0] == "#" else patterns.without_suffix
            result = cut(value, self._operand(node, operand, end), longest=len(operation) == 2)
        elif operation[0] == "/":
            pattern, _, replacement = self._operand(node, operand, end).partition("/")
            result = patterns.replaced(value, pattern, replacement, everywhere=operation == "//")
        elif operation[0] in "^,":
            result = patterns.changed_case(value, operation)
        else:
            result = None
        if result is None:
            names = unknowns(value)
            return mark(names[0]) if names else mark(f"${{{self.text(operand, end)[:30]}}}")
        return result

    # Arithmetic --------------------------------------------------------------------------------------------------

    def _arithmetic(self, node: Node) -> str:
        first = self.begin(node)
        start = first + (3 if self.source[first : first + 3] == b"$((" else 2)
        close = 2 if self.source[node.end_byte - 2 : node.end_byte] == b"))" else 1
        return self.number(node, start, node.end_byte - close)

    def number(self, node: Node, start: int, end: int) -> str:
        """The value of an arithmetic expression, or a mark."""
        text = "".join(self._arithmetic_text(node, start, end))
        return self.calculated(text)

    def _arithmetic_text(self, node: Node, start: int, end: int) -> Iterator[str]:
        position = start
        for child in expansions(node, start, end):
            if child.start_byte < position:
                continue
            yield self.text(position, self.begin(child))
            yield self.value(child)
            position = child.end_byte
        yield self.text(position, end)

    def calculated(self, text: str) -> str:
        try:
            return str(evaluate(text.replace('"', ""), self._arithmetic_variable, self._assign_number))
        except UnknownNumber as error:
            return mark(error.names[0])

    def _arithmetic_variable(self, name: str) -> str:
        value = self.scalar(name)
        return self.unset(name) if value is None else value

    def _assign_number(self, name: str, text: str) -> None:
        self.state.set(name, text)


_QUOTES = frozenset({"string", "raw_string", "ansi_c_string", "translated_string"})
_EXPANDED = _QUOTES | {
    "simple_expansion", "expansion", "command_substitution", "arithmetic_expansion", "process_substitution",
    "concatenation",
}  # fmt: skip
_DOLLAR = frozenset({"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"})


def expansions(node: Node, start: int, end: int) -> Iterator[Node]:
    """Outermost expansions below a node within a range, in order."""
    stack = list(reversed(node.children))
    while stack:
        child = stack.pop()
        if child.end_byte <= start or child.start_byte >= end:
            continue
        if child.type in _DOLLAR and child.start_byte >= start:
            yield child
        else:
            stack += reversed(child.children)


def _elements(values: list[str] | None, unknown: str, *, joined: bool, splits: bool) -> Iterator[Piece]:
    if values is None:
        yield Piece(unknown, splits=splits)
    elif joined:
        yield Piece(" ".join(values), splits=splits)
    else:
        for index, value in enumerate(values):
            yield Piece(value, splits=splits, ends=index + 1 < len(values))


def _sequence(first: int, last: int, step: int) -> list[str]:
    step = abs(step) or 1
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    if len(numbers) > MAX_ELEMENTS:
        raise InvalidInputError(f"a list of {len(numbers):,} numbers", accepted=f"at most {MAX_ELEMENTS:,}")
    return [str(number) for number in numbers]


def _substring(value: str, first: int, count: int | None) -> str:
    first = max(0, first + len(value)) if first < 0 else first
    if count is None:
        return value[first:]
    return value[first : first + count] if count >= 0 else value[first : len(value) + count]


def _unescape(text: str, escapes: str) -> str:
    """Text without the backslashes that quote: before any character, or before those of `escapes` only."""
    if "\\" not in text:
        return text

    def plain(match: re.Match[str]) -> str:
        char = match[1]
        if char == "\n":
            return ""
        return char if not escapes or char in escapes else match[0]

    return re.sub(r"\\(.)", plain, text, flags=re.DOTALL)


def _ansi(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ANSI.get(match[1], match[0]), text, flags=re.DOTALL)
