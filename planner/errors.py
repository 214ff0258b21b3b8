"""Every error that rlplan raises on purpose, with the exit code that the command returns for it.

RlplanError
    InvalidInputError   exit 2: what the user gave is wrong
    InfeasibleError     exit 3: nothing in the search space fits
    NoPlanFoundError    exit 4: the time limit ended before a plan was found
    DifferenceError     exit 5: `diff` or `check` found a difference or a problem
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RlplanError(Exception):
    """Base of all deliberate errors; `exit_code` is what the command line returns."""

    exit_code = 1


class InvalidInputError(RlplanError):
    """The input is wrong: says where, which value, and what is accepted."""

    exit_code = 2

    def __init__(self, message: str, *, where: str = "", accepted: str = "", suggestion: str = "") -> None:
        self.where = where
        self.accepted = accepted
        self.suggestion = suggestion
        parts = [f"{where}: {message}" if where else message]
        if accepted:
            parts.append(f"accepted: {accepted}")
        if suggestion:
            parts.append(f"did you mean {suggestion}?")
        super().__init__("; ".join(parts))


class InfeasibleError(RlplanError):
    """No plan satisfies the constraints: says which stage, instant and term fail, and the smallest change."""

    exit_code = 3


class NoPlanFoundError(RlplanError):
    """The search ended at its limit without a plan and without a proof that none exists."""

    exit_code = 4


class DifferenceError(RlplanError):
    """`diff` or `check` found a difference or a problem."""

    exit_code = 5


def nearest(value: str, known: Iterable[str], *, limit: int = 3) -> str:
    """The closest known names, quoted and joined for a `did you mean` message; empty if none is close."""
    names = sorted(set(known))
    lowered = {name.lower(): name for name in names}
    matches = difflib.get_close_matches(value.lower(), list(lowered), n=limit, cutoff=0.5)
    return " or ".join(f"'{lowered[match]}'" for match in matches)


def printable(text: str) -> str:
    """`text` with everything that a terminal could act on as escapes (`'\\x1b[31m'`); line feeds stay.

    >>> printable("a\\x1bb")
    'a\\\\x1bb'
    """
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)
