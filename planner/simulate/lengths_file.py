"""Observed response lengths from a text file: one length per line, or a length and how often it occurred."""

from __future__ import annotations

import math
import re
from pathlib import Path

from planner.errors import InvalidInputError
from planner.files.atomic import read_limited
from planner.simulate.lengths import Histogram

_MAX_BYTES = 64 * 2**20
_MAX_TOKENS = 10_000_000
_ACCEPTED = "one length per line, or a length and a count separated by a comma or spaces; # begins a comment"
_SEPARATOR = re.compile(r"[,;\s]+")
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)
_SHOWN_LENGTH = 60


def read_lengths(path: Path) -> Histogram:
    """The histogram in a file; a first line of words is a header. Raises InvalidInputError that names the line."""
    counts: dict[int, float] = {}
    may_be_header = True
    for number, line in enumerate(read_limited(path, _MAX_BYTES, kind="file of response lengths").splitlines(), 1):
        cells = [cell for cell in _SEPARATOR.split(line.split("#", 1)[0].strip()) if cell]
        if not cells:
            continue
        if may_be_header and not any(_NUMBER.fullmatch(cell) for cell in cells):
            may_be_header = False
            continue
        may_be_header = False
        tokens, count = _row(cells, f"{path}, line {number}")
        counts[tokens] = counts.get(tokens, 0.0) + count
    total = sum(counts.values())
    if total <= 0:
        raise InvalidInputError("holds no length that occurred", where=str(path), accepted=_ACCEPTED)
    ordered = sorted((tokens, count) for tokens, count in counts.items() if count)
    return Histogram(tokens=tuple(t for t, _ in ordered), counts=tuple(c for _, c in ordered))


def _row(cells: list[str], where: str) -> tuple[int, float]:
    if len(cells) > 2 or not all(_NUMBER.fullmatch(cell) for cell in cells):
        shown = " ".join(cells)[:_SHOWN_LENGTH]
        raise InvalidInputError(f"{shown!r} is no length", where=where, accepted=_ACCEPTED)
    length, count = float(cells[0]), float(cells[1]) if len(cells) == 2 else 1.0
    if not math.isfinite(length) or not 1 <= length <= _MAX_TOKENS or length != int(length):
        raise InvalidInputError(
            f"a response of {cells[0]} tokens", where=where, accepted=f"a whole number from 1 to {_MAX_TOKENS:,}"
        )
    if not math.isfinite(count) or count < 0:
        raise InvalidInputError(f"a count of {cells[1]}", where=where, accepted="0 or more")
    return int(length), count
