"""Glob patterns and the expansions of parameters that use them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from planner.adapters.shell_script.marks import is_known, mark

MAX_SUBJECT = 5_000
MAX_PATTERN = 500
MAX_STARS = 6


@lru_cache(maxsize=256)
def _regex(pattern: str) -> re.Pattern[str] | None:
    """A glob as a regular expression; None where it could take very long to match."""
    if len(pattern) > MAX_PATTERN or pattern.count("*") > MAX_STARS:
        return None
    result: list[str] = []
    position = 0
    while position < len(pattern):
        char = pattern[position]
        position += 1
        if char == "*":
            result.append(".*")
        elif char == "?":
            result.append(".")
        elif char == "\\" and position < len(pattern):
            result.append(re.escape(pattern[position]))
            position += 1
        elif char == "[" and (end := pattern.find("]", position + 1)) > 0:
            inner = pattern[position:end].replace("\\", "\\\\")
            result.append(f"[{'^' + inner[1:] if inner[:1] in '!^' else inner}]")
            position = end + 1
        else:
            result.append(re.escape(char))
    try:
        return re.compile("".join(result), re.DOTALL)
    except re.error:
        return None


def matches(text: str, pattern: str) -> bool | None:
    """Whether a glob matches all of `text`; None when that cannot be said."""
    if not is_known(text) or not is_known(pattern) or len(text) > MAX_SUBJECT:
        return None
    regex = _regex(pattern)
    return None if regex is None else regex.fullmatch(text) is not None


def without_prefix(text: str, pattern: str, *, longest: bool) -> str | None:
    """`${X#pattern}`; None when that cannot be said."""
    lengths = range(len(text) + 1)
    return _cut(text, pattern, reversed(lengths) if longest else lengths, prefix=True)


def without_suffix(text: str, pattern: str, *, longest: bool) -> str | None:
    """`${X%pattern}`; None when that cannot be said."""
    starts = range(len(text) + 1)
    return _cut(text, pattern, starts if longest else reversed(starts), prefix=False)


def _cut(text: str, pattern: str, positions: Iterable[int], *, prefix: bool) -> str | None:
    if not is_known(pattern) or len(text) > MAX_SUBJECT:
        return None
    if not is_known(text):
        return _cut_known_end(text, pattern, prefix=prefix)
    regex = _regex(pattern)
    if regex is None:
        return None
    for position in positions:
        part = text[:position] if prefix else text[position:]
        if regex.fullmatch(part):
            return text[position:] if prefix else text[:position]
    return text


def _cut_known_end(text: str, pattern: str, *, prefix: bool) -> str | None:
    """The name of a file in an unknown directory is known: `${X##*/}`."""
    tail = text.rpartition("\ue001")[2]
    if prefix and pattern == "*/" and "/" in tail:
        return tail.rpartition("/")[2]
    return None


def replaced(text: str, pattern: str, replacement: str, *, everywhere: bool) -> str | None:
    """`${X/pattern/replacement}`; None when that cannot be said."""
    if not is_known(text) or not is_known(pattern) or len(text) > MAX_SUBJECT:
        return None
    anchor = pattern[:1] if pattern[:1] in ("#", "%") and not everywhere else ""
    regex = _regex(pattern[len(anchor) :])
    if regex is None or not pattern:
        return None if regex is None else text
    body = {"#": rf"\A(?:{regex.pattern})", "%": rf"(?:{regex.pattern})\Z"}.get(anchor, regex.pattern)
    return re.sub(body, lambda _: replacement, text, count=0 if everywhere else 1, flags=re.DOTALL)


def matches_regex(text: str, pattern: str) -> bool | None:
    """`[[ text =~ pattern ]]` for short patterns that cannot take long; None for all others."""
    if not is_known(text) or not is_known(pattern) or len(text) > 500 or len(pattern) > 100:
        return None
    if len(re.findall(r"[*+{?]", pattern)) > 3 or re.search(r"\)[*+{?]", pattern) or "\\" in pattern:
        return None
    try:
        return re.search(pattern.replace("[[:digit:]]", "[0-9]").replace("[[:space:]]", r"\s"), text) is not None
    except re.error:
        return None


def changed_case(text: str, operator: str) -> str:
    """`${X^^}`, `${X,,}`, `${X^}` and `${X,}`."""
    if not is_known(text):
        return mark("${X^^}") if text else text
    first = {"^": str.upper, ",": str.lower}[operator[0]]
    return first(text) if len(operator) == 2 else first(text[:1]) + text[1:]
