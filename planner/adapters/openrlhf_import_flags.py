"""OpenRLHF's flags: defaults, spellings before 0.10.1, abbreviations, unknown ones, and the version that they fit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from planner.adapters.findings import Finding, Severity
from planner.adapters.hydra import Config, Value
from planner.adapters.import_flags import (
    FlagUse,
    count_problem,
    flat,
    nearest_flag,
    repeated_findings,
    unabbreviated,
)
from planner.adapters.shell_script import is_known, shown

DATA = Path(__file__).parent / "data" / "imports" / "openrlhf_flags.json"
DOTTED_SINCE = "0.10"
OLD_DEFAULTS: dict[str, Value] = {"rollout.micro_batch_size": 8, "train.micro_batch_size": 4}
"""What the flags with underscores had until 0.9.10."""
CORRECTION_SWITCHES = ("enable_vllm_is_correction", "algo.advantage.is_correction_enable")
"""Switches that 0.11.2 has as a level."""
SUMMED = ("prompt_max_len", "generate_max_len")
"""Until 0.9.5 the two were limits of their own; --data.max_len is their sum."""
EXTRA = ("vllm.max_num_seqs",)
"""No flag of OpenRLHF's: vLLM's own default, which may be given here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A flag of the present version."""

    values: object
    choices: tuple[str, ...]
    default: Value
    since: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OldFlag:
    """A flag of an earlier version; `new` is None when it is gone, `until` the last version that has it."""

    new: str | None
    until: str
    values: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What the project knows about OpenRLHF's flags."""

    version: str
    flags: dict[str, Flag]
    old: dict[str, OldFlag]

    @property
    def defaults(self) -> dict[str, Value]:
        """Defaults as a tree of dotted names; flags without one are null."""
        return flat({**{name: flag.default for name, flag in self.flags.items()}, **dict.fromkeys(EXTRA)})

    @property
    def switches(self) -> frozenset[str]:
        """Flags without a value."""
        new = {name for name, flag in self.flags.items() if flag.values == 0}
        return frozenset(new | {name for name, flag in self.old.items() if flag.values == 0})


@cache
def load_tables() -> Tables:
    """The shipped tables, read once."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    return Tables(
        version=data["version"],
        flags={
            name: Flag(
                values=item["values"], choices=tuple(item.get("choices", ())),
                default=False if item["values"] == 0 and "default" not in item else item.get("default"),
                since=item.get("since", ""),
            )
            for name, item in data["flags"].items()
        },
        old={
            name: OldFlag(new=item["new"], until=item["until"], values=item["values"])
            for name, item in data["old"].items()
        },
    )  # fmt: skip


def version_of(names: Iterable[str], tables: Tables) -> str:
    """The versions that have all these flags."""
    used = tuple(names)
    untils = [tables.old[name].until for name in used if name in tables.old]
    if untils:
        return f"up to {min(untils, key=_number)}"
    since = max((tables.flags[name].since for name in used if name in tables.flags), key=_number, default="")
    return tables.version if since else f"{DOTTED_SINCE} and later"


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def spelled(name: str, tables: Tables) -> str | None:
    """A flag as the table has it: itself, or the only one that it abbreviates; None for no flag."""
    if name in tables.flags or name in tables.old:
        return name
    dotted = unabbreviated(name, tables.flags)
    return dotted or unabbreviated(name, (old for old in tables.old if "." not in old))


def apply(config: Config, uses: Sequence[FlagUse], tables: Tables) -> tuple[list[Finding], tuple[str, ...]]:
    """Sets all flags under their present names; returns findings and the names that were used."""
    findings = repeated_findings(uses)
    names: list[str] = []
    lengths: dict[str, Value] = {}
    for use in uses:
        name = spelled(use.name, tables)
        if name is None:
            findings.append(_unknown(use, tables))
            continue
        names.append(name)
        if name != use.name:
            findings.append(_shortened(use, name))
        if name in SUMMED:
            lengths[name] = use.value
        findings += _checked(use, name, tables)
        _set(config, use, name, tables)
    is_old = any(name in tables.old and "." not in name for name in names)
    if is_old:
        for key, value in OLD_DEFAULTS.items():
            if not config.is_set(key):
                config.set(key, value, "")
                config.places.pop(key, None)
        _sum_lengths(config, lengths, names)
        findings.insert(0, _renames(names, uses, tables))
    return findings, tuple(names)


def _set(config: Config, use: FlagUse, name: str, tables: Tables) -> None:
    old = tables.old.get(name)
    key = name if old is None else old.new
    if key is None:
        return
    value: Value = "token" if name in CORRECTION_SWITCHES else use.value
    config.set(key, value, use.place)


def _sum_lengths(config: Config, lengths: dict[str, Value], names: Iterable[str]) -> None:
    """Before 0.9.6 prompt and response had limits of their own, 1,024 tokens each by default."""
    if "max_len" in names or "data.max_len" in names:
        return
    prompt, response = (lengths.get(name, 1024) for name in SUMMED)
    config.set("rollout.max_new_tokens", response, config.place("rollout.max_new_tokens"))
    if isinstance(prompt, int) and isinstance(response, int):
        config.set("data.max_len", prompt + response, "")
    else:
        unknown = next(value for value in (prompt, response) if not isinstance(value, int))
        config.set("data.max_len", unknown, "")


def _checked(use: FlagUse, name: str, tables: Tables) -> list[Finding]:
    flag, old = tables.flags.get(name), tables.old.get(name)
    expected = flag.values if flag is not None else old.values if old is not None else 1
    found: list[Finding] = []
    problem = count_problem(use, expected)
    if problem:
        found.append(Finding(place=use.place, severity=Severity.ERROR, message=f"--{name} {problem}"))
    word = use.words[0] if use.words else ""
    if flag is not None and flag.choices and word and is_known(word) and word not in flag.choices:
        choices = ", ".join(flag.choices)
        message = f"--{name}: {shown(word)[:40]!r} is refused"
        found.append(Finding(place=use.place, severity=Severity.ERROR, message=message, remedy=f"one of {choices}"))
    if old is not None and "." in name:
        becomes = f"write --{old.new}" if old.new else "remove it"
        message = f"--{name} is gone: OpenRLHF {old.until} is the last version that has it"
        if name in CORRECTION_SWITCHES:
            becomes = f"write --{old.new}=token"
        found.append(Finding(place=use.place, severity=Severity.WARNING, message=message, remedy=becomes))
    return found


def _unknown(use: FlagUse, tables: Tables) -> Finding:
    known = sorted(tables.flags)
    longer = [name for name in known if name.startswith(use.name)]
    why = f"abbreviates {len(longer)} flags" if longer else "is no flag"
    return Finding(
        place=use.place,
        severity=Severity.ERROR,
        message=f"--{shown(use.name)[:60]} {why} of OpenRLHF {tables.version}: its parser refuses it",
        remedy=nearest_flag(use.name, [*known, *(name for name in tables.old if "_" in use.name)]) or "remove it",
    )


def _shortened(use: FlagUse, name: str) -> Finding:
    return Finding(
        place=use.place,
        severity=Severity.WARNING,
        message=f"--{use.name} passes as an abbreviation of --{name}, until another flag begins alike",
        remedy=f"write --{name}",
    )


def _renames(names: Sequence[str], uses: Sequence[FlagUse], tables: Tables) -> Finding:
    """All old spellings of a script in one finding: there is nothing else in such a script."""
    old = dict.fromkeys(name for name in names if name in tables.old and "." not in name)
    pairs = [f"--{name} -> " + (f"--{tables.old[name].new}" if tables.old[name].new else "gone") for name in old]
    last = min((tables.old[name].until for name in old), key=_number)
    return Finding(
        place=uses[0].place if uses else "",
        severity=Severity.WARNING,
        message=f"{len(pairs)} flags are spelled as up to OpenRLHF {last}; {tables.version} refuses them",
        remedy="; ".join(pairs),
    )
