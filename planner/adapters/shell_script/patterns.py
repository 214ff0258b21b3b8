"""Glob patterns and the expansions of parameters that use them, in time linear in text and pattern."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from planner.adapters.shell_script.marks import is_known, mark

MAX_SUBJECT = 20_000
MAX_SEARCHED = 500
"""Longest text in which every place is tried as the start of a match."""
MAX_PATTERN = 500


@dataclass(frozen=True, slots=True)
class _Glob:
    """A glob as bit sets over its tokens: bit i stands for the state before token i."""

    tokens: tuple[str, ...]
    """`*`, or a regular expression for exactly one character."""
    stars: int

    def ends(self, text: str) -> Iterator[int]:
        """Lengths of all prefixes of `text` that match."""
        final = 1 << len(self.tokens)
        states = self._closed(1)
        if states & final:
            yield 0
        masks: dict[str, int] = {}
        for position, char in enumerate(text, 1):
            if char not in masks:
                masks[char] = sum(1 << i for i, t in enumerate(self.tokens) if t != "*" and _is_char(t, char))
            states = self._closed((states & self.stars) | ((states & masks[char]) << 1))
            if not states:
                return
            if states & final:
                yield position

    def _closed(self, states: int) -> int:
        # Stars do not follow each other, so that one step is enough.
        return states | ((states & self.stars) << 1)

    def reversed(self) -> _Glob:
        return _glob_of(self.tokens[::-1])


def _is_char(token: str, char: str) -> bool:
    return re.fullmatch(token, char, re.DOTALL) is not None


def _glob_of(tokens: tuple[str, ...]) -> _Glob:
    return _Glob(tokens, sum(1 << index for index, token in enumerate(tokens) if token == "*"))


@lru_cache(maxsize=256)
def _glob(pattern: str) -> _Glob | None:
    """A glob; None for one that is very long or no glob."""
    if len(pattern) > MAX_PATTERN:
        return None
    tokens: list[str] = []
    position = 0
    while position < len(pattern):
        char = pattern[position]
        position += 1
        if char == "*":
            if tokens[-1:] != ["*"]:
                tokens.append("*")
            continue
        if char == "?":
            token = "."
        elif char == "\\" and position < len(pattern):
            token = re.escape(pattern[position])
            position += 1
        elif char == "[" and (end := pattern.find("]", position + 1)) > 0:
            inner = pattern[position:end].replace("\\", "\\\\").replace("[", "\\[")
            token = f"[{'^' + inner[1:] if inner[:1] in ('!', '^') else inner}]"
            position = end + 1
        else:
            token = re.escape(char)
        try:
            re.compile(token)
        except re.error:
            return None
        tokens.append(token)
    return _glob_of(tuple(tokens))


def matches(text: str, pattern: str) -> bool | None:
    """Whether a glob matches all of `text`; None when that cannot be said."""
    glob = _usable(text, pattern)
    return None if glob is None else len(text) in set(glob.ends(text))


def _usable(text: str, pattern: str) -> _Glob | None:
    if not is_known(text) or not is_known(pattern) or len(text) > MAX_SUBJECT:
        return None
    return _glob(pattern)


def without_prefix(text: str, pattern: str, *, longest: bool) -> str | None:
    """`${X#pattern}`; None when that cannot be said."""
    if not is_known(text) and pattern == "*/" and longest:
        # The name of a file in an unknown directory is known.
        tail = text.rpartition("\ue001")[2]
        return tail.rpartition("/")[2] if "/" in tail else None
    glob = _usable(text, pattern)
    if glob is None:
        return None
    found = list(glob.ends(text))
    return text[(found[-1] if longest else found[0]) :] if found else text


def without_suffix(text: str, pattern: str, *, longest: bool) -> str | None:
    """`${X%pattern}`; None when that cannot be said."""
    glob = _usable(text, pattern)
    if glob is None:
        return None
    found = list(glob.reversed().ends(text[::-1]))
    return text[: len(text) - (found[-1] if longest else found[0])] if found else text


def replaced(text: str, pattern: str, replacement: str, *, everywhere: bool) -> str | None:
    """`${X/pattern/replacement}`; None when that cannot be said."""
    if not everywhere and pattern[:1] == "#":
        rest = without_prefix(text, pattern[1:], longest=True)
        return None if rest is None else text if rest == text else replacement + rest
    if not everywhere and pattern[:1] == "%":
        rest = without_suffix(text, pattern[1:], longest=True)
        return None if rest is None else text if rest == text else rest + replacement
    glob = _usable(text, pattern)
    if glob is None or not pattern:
        return None if glob is None else text
    if all(len(token.lstrip("\\")) == 1 and token != "." for token in glob.tokens if token != "*") and not glob.stars:
        plain = "".join(token[-1] for token in glob.tokens)
        return text.replace(plain, replacement, -1 if everywhere else 1)
    return _searched(text, glob, replacement, everywhere=everywhere) if len(text) <= MAX_SEARCHED else None


def _searched(text: str, glob: _Glob, replacement: str, *, everywhere: bool) -> str:
    result: list[str] = []
    position = 0
    while position < len(text):
        length = max(glob.ends(text[position:]), default=0)
        if length:
            result.append(replacement)
            position += length
            if not everywhere:
                break
        else:
            result.append(text[position])
            position += 1
    return "".join(result) + text[position:]


def matches_regex(text: str, pattern: str) -> bool | None:
    """`[[ text =~ pattern ]]` for short texts and patterns that cannot take long; None for all others."""
    if not is_known(text) or not is_known(pattern) or len(text) > 100 or len(pattern) > 100:
        return None
    if len(re.findall(r"[*+{?]", pattern)) > 2 or re.search(r"\)[*+{?]", pattern) or "\\" in pattern:
        return None
    try:
        return re.search(pattern.replace("[[:digit:]]", "[0-9]").replace("[[:space:]]", r"\s"), text) is not None
    except re.error:
        return None


def changed_case(text: str, operator: str) -> str:
    """`${X^^}`, `${X,,}`, `${X^}` and `${X,}`."""
    if not is_known(text):
        return mark("${X^^}") if text else text
    change = {"^": str.upper, ",": str.lower}[operator[0]]
    return change(text) if len(operator) == 2 else change(text[:1]) + text[1:]
