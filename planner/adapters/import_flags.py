"""Arguments of argparse programs as flags with values, without running a parser of theirs.

A value is every word up to the next flag: which flags take how many values is compared afterwards, where a table says
it. Words may hold marks for what only the run knows (`planner.adapters.shell_script.marks`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.adapters.findings import Finding, Severity
from planner.adapters.hydra import Value, scalar
from planner.adapters.shell_script import Launch, Script, is_known, shown, unknowns
from planner.errors import nearest

_FLAG = re.compile(r"--?[A-Za-z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagUse:
    """One flag as it was written: `name` without its dashes, and the words that follow it."""

    name: str
    words: tuple[str, ...]
    place: str

    @property
    def value(self) -> Value:
        """True for a switch, a scalar for one word, else a list of scalars."""
        if not self.words:
            return True
        found = [scalar(word) if is_known(word) else word for word in self.words]
        return found[0] if len(found) == 1 else list(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The flags of a launch in order, and words that stand alone."""

    flags: tuple[FlagUse, ...]
    strays: tuple[str, ...]


def read_arguments(launch: Launch, switches: Iterable[str] = (), script: Script | None = None) -> Arguments:
    """Splits the arguments of a launch; `switches` are flags that take no value, `script` knows where words stand."""
    without = frozenset(switches)
    flags: list[FlagUse] = []
    strays: list[str] = []
    words = list(launch.arguments)
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not _FLAG.match(word):
            strays.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        values = [value] if equals else []
        while not equals and name not in without and position < len(words) and not _FLAG.match(words[position]):
            values.append(words[position])
            position += 1
        place = script.place_of(f"--{name}", launch.place) if script is not None else launch.place
        flags.append(FlagUse(name=name, words=tuple(values), place=place))
    return Arguments(flags=tuple(flags), strays=tuple(strays))


def unabbreviated(name: str, known: Iterable[str]) -> str | None:
    """The one flag that argparse takes an abbreviation for; None for an unknown or ambiguous one."""
    found = [other for other in known if other.startswith(name)]
    return found[0] if len(found) == 1 else None


def nearest_flag(name: str, known: Sequence[str]) -> str:
    """The nearest flag with its dashes, for a remedy; empty when none is near."""
    close = nearest(name, known, limit=1).strip("'")
    return f"did you mean --{close}?" if close else ""


def stray_findings(
    strays: Iterable[str], place: str, missing: Sequence[str], program: str
) -> tuple[list[Finding], list[str]]:
    """Findings for words that stand alone, and names to ask for: variables that may hold flags."""
    findings: list[Finding] = []
    asked: list[str] = []
    for word in strays:
        if not word.strip():
            continue
        if is_known(word):
            findings.append(
                Finding(
                    place=place, severity=Severity.ERROR,
                    message=f"{shown(word)[:60]!r} is no flag: {program} refuses it",
                    remedy="remove it, or quote the value that it belongs to",
                )
            )  # fmt: skip
            continue
        for name in unknowns(word):
            if name in missing or name == "@":
                findings.append(
                    Finding(
                        place=place, severity=Severity.NOTE,
                        message=f"{shown(word)[:60]} is taken as empty: nothing sets it", remedy="",
                    )
                )  # fmt: skip
            else:
                asked.append(name)
    return findings, asked


def repeated_findings(flags: Iterable[FlagUse]) -> list[Finding]:
    """Flags that are given more than once with different values: the last one wins."""
    seen: dict[str, FlagUse] = {}
    findings: list[Finding] = []
    for flag in flags:
        before = seen.get(flag.name)
        if before is not None and before.words != flag.words:
            first, last = (shown(" ".join(item.words))[:40] or "on" for item in (before, flag))
            findings.append(
                Finding(
                    place=flag.place, severity=Severity.WARNING,
                    message=f"--{flag.name} is given twice: {first}, then {last}, which wins",
                    remedy="remove the first",
                )
            )  # fmt: skip
        seen[flag.name] = flag
    return findings


def count_problem(flag: FlagUse, expected: object) -> str:
    """What is wrong with the number of values; empty if nothing, or if a value may hold several words."""
    count = len(flag.words)
    if any(not is_known(word) for word in flag.words):
        return ""
    if expected == 0:
        return f"takes no value, got {shown(flag.words[0])[:40]!r}" if count else ""
    if expected in ("*", "?"):
        return ""
    if expected == "+":
        return "" if count else "needs a value"
    if isinstance(expected, int) and count != expected:
        return f"takes {expected} value{'s' if expected > 1 else ''}, got {count}"
    return ""


def flat(values: Mapping[str, Value]) -> dict[str, Value]:
    """Dotted names as a tree, as configurations hold it."""
    tree: dict[str, Value] = {}
    for name, value in values.items():
        node = tree
        *parents, last = name.split(".")
        for part in parents:
            child = node.setdefault(part, {})
            if not isinstance(child, dict):
                break
            node = child
        else:
            node[last] = value
    return tree
