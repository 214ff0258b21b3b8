"""verl's configuration keys: defaults, old spellings, unknown keys, and the version that the keys fit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import yaml

from planner.adapters.findings import Finding, Severity
from planner.adapters.hydra import Config, Operation, Override, Value, displayed, leaves
from planner.errors import nearest

DATA = Path(__file__).parent / "data" / "imports"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """A key that later versions spell otherwise, or (`new` is None) no longer have."""

    old: str
    new: str | None
    until: str
    why: str
    is_ignored: bool
    """Hydra takes the old key, and nothing reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What the project knows about one version of verl."""

    version: str
    entry_points: dict[str, str]
    defaults: dict[str, Value]
    entry_defaults: dict[str, dict[str, Value]]
    renames: tuple[Rename, ...]
    since: tuple[tuple[str, str], ...]
    open_sections: frozenset[str]
    legal: frozenset[str]
    composed: frozenset[str]
    """Legal keys that the composed configuration has already, so that Hydra refuses to add them."""
    sections: frozenset[str]
    """Prefixes of legal keys."""


@cache
def load_tables() -> Tables:
    """The shipped tables, read once."""
    data = yaml.load((DATA / "verl.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    keys = json.loads((DATA / "verl_keys.json").read_text(encoding="utf-8"))
    composed = frozenset([*keys["common"], *keys["dp"], *keys["megatron"]])
    extra = [key for tree in data["entry_defaults"].values() for key in leaves(tree)]
    legal = composed | frozenset([*extra, *data["entry_keys"], *data["dataclass_only"], "model_engine"])
    sections = frozenset(key.rsplit(".", depth)[0] for key in legal for depth in range(1, key.count(".") + 1))
    return Tables(
        version=data["version"],
        entry_points=data["entry_points"],
        defaults=data["defaults"],
        entry_defaults=data["entry_defaults"],
        renames=tuple(
            Rename(
                old=item["old"],
                new=item["new"],
                until=item["until"],
                why=item.get("why", ""),
                is_ignored=item.get("ignored", False),
            )
            for item in data["renames"]
        ),
        since=tuple((item["key"], item["version"]) for item in data["since"]),
        open_sections=frozenset(data["open"]),
        legal=legal,
        composed=composed,
        sections=sections,
    )


def is_below(key: str, section: str) -> bool:
    return key == section or key.startswith(f"{section}.")


def version_of(keys: Iterable[str], tables: Tables) -> str:
    """The versions that read all keys: `0.9`, `up to 0.7`, `0.8 and later`."""
    newest: str | None = None
    oldest = ""
    for key in keys:
        rename = rename_of(key, tables)
        if rename is not None and key not in tables.legal:
            newest = rename.until if newest is None or _number(rename.until) < _number(newest) else newest
        for section, version in tables.since:
            if is_below(key, section) and (not oldest or _number(version) > _number(oldest)):
                oldest = version
    if newest is None:
        return tables.version if oldest in ("", "0.9") else f"{oldest} and later"
    if oldest and _number(oldest) > _number(newest):
        # Keys that no one version reads: the new ones say which it is meant for, the old ones are left over.
        return tables.version if oldest == "0.9" else f"{oldest} and later"
    return f"{oldest} to {newest}" if oldest and _number(oldest) < _number(newest) else f"up to {newest}"


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def rename_of(key: str, tables: Tables) -> Rename | None:
    """The rename that a key falls under: the longest of those that match."""
    found = [rename for rename in tables.renames if is_below(key, rename.old)]
    return max(found, key=lambda rename: len(rename.old), default=None)


def apply(config: Config, overrides: Sequence[Override], tables: Tables) -> list[Finding]:
    """Sets all overrides under their present names; says what is renamed, unknown, given twice or misspelt."""
    findings: list[Finding] = []
    seen: dict[str, Override] = {}
    old_version = version_of([item.key for item in overrides], tables)
    for item in overrides:
        findings += _repeated(item, seen)
        seen[item.key] = item
        key = item.key
        rename = rename_of(key, tables)
        if rename is not None:
            key = rename.new + key[len(rename.old) :] if rename.new else ""
            findings.append(_renamed(item, rename, key, tables))
        elif not is_legal(key, tables):
            findings.append(_unknown(item, tables))
        elif item.operation is Operation.ADD and key in tables.composed and not _has_open_part(key, tables):
            findings.append(_needless_plus(item, old_version, tables))
        if not key:
            continue
        if item.operation is Operation.DELETE:
            config.delete(key)
        else:
            config.set(key, item.value, item.place)
    return findings


def _repeated(item: Override, seen: dict[str, Override]) -> list[Finding]:
    before = seen.get(item.key)
    if before is None:
        return []
    same = before.text == item.text
    message = (
        f"{item.key} is given twice with the same value"
        if same
        else f"{item.key} is given twice: {displayed(before.text)[:40]}, then {displayed(item.text)[:40]}, which wins"
    )
    severity = Severity.NOTE if same else Severity.WARNING
    return [Finding(place=item.place, severity=severity, message=message, remedy="remove the first")]


def _renamed(item: Override, rename: Rename, key: str, tables: Tables) -> Finding:
    is_read = item.key in tables.legal
    if not key:
        why = f": {rename.why}" if rename.why else ""
        message = f"{item.key} is gone: verl {rename.until} was the last to read it{why}"
        return Finding(place=item.place, severity=Severity.WARNING, message=message, remedy="remove it")
    message = f"{item.key} is an old spelling" + ("" if is_read else f", last read by verl {rename.until}")
    if is_read and rename.is_ignored:
        message += f": Hydra takes it, and main_ppo of verl {tables.version} does not read it"
    is_harmless = is_read and not rename.is_ignored
    return Finding(
        place=item.place, severity=Severity.NOTE if is_harmless else Severity.WARNING, message=message,
        remedy=f"write {'+' if _is_added(key, tables) else ''}{key} for verl {tables.version}",
    )  # fmt: skip


def _is_added(key: str, tables: Tables) -> bool:
    """Whether Hydra wants a + before the key: the composed configuration has none of its name."""
    return key not in tables.composed and _has_open_part(key, tables)


def _has_open_part(key: str, tables: Tables) -> bool:
    return any(part in tables.open_sections for part in key.split("."))


def is_legal(key: str, tables: Tables) -> bool:
    return key in tables.legal or key in tables.sections or _has_open_part(key, tables)


def _unknown(item: Override, tables: Tables) -> Finding:
    suggestion = _nearest_key(item.key)
    adds = item.operation in (Operation.ADD, Operation.FORCE)
    message = f"nothing in verl {tables.version} reads {item.key}" + ("" if adds else ": Hydra refuses it")
    return Finding(
        place=item.place,
        severity=Severity.WARNING if adds else Severity.ERROR,
        message=message,
        remedy=f"did you mean {suggestion}?" if suggestion else "remove it",
    )


@lru_cache(maxsize=256)
def _nearest_key(key: str) -> str:
    """The nearest legal key: one of the same section, else one with a similar last part anywhere."""
    legal = load_tables().legal
    prefix, _, last = key.rpartition(".")
    siblings = {other.rpartition(".")[2] for other in legal if other.rpartition(".")[0] == prefix}
    close = nearest(last, siblings, limit=1).strip("'")
    if close:
        return f"'{prefix}.{close}'"
    # Whole keys are long and many: only those with the same last part are compared.
    return nearest(key, [other for other in legal if other.rpartition(".")[2] == last], limit=1)


def _needless_plus(item: Override, version: str, tables: Tables) -> Finding:
    return Finding(
        place=item.place,
        severity=Severity.ERROR if version == tables.version else Severity.WARNING,
        message=f"+{item.key} adds a key that verl {tables.version} has already: Hydra refuses it",
        remedy=f"write {item.key} without the +",
    )
