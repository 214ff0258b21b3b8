"""AReaL's configuration keys: defaults, old spellings, and keys that its dataclasses do not have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from planner.adapters.findings import Finding, Severity
from planner.adapters.hydra import Config, Value, leaves
from planner.errors import nearest

DATA = Path(__file__).parent / "data" / "imports"
OLD_MODE = "allocation_mode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """A key that later versions spell otherwise, or (`new` is None) no longer have."""

    old: str
    new: str | None
    until: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What the project knows about AReaL's configuration."""

    version: str
    defaults: dict[str, Value]
    role_defaults: dict[str, Value]
    renames: tuple[Rename, ...]
    open_sections: frozenset[str]
    legal: frozenset[str]


@cache
def load_tables() -> Tables:
    """The shipped tables, read once."""
    data = yaml.load((DATA / "areal.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return Tables(
        version=data["version"],
        defaults=data["defaults"],
        role_defaults=data["role_defaults"],
        renames=tuple(
            Rename(old=item["old"], new=item["new"], until=item["until"], why=item.get("why", ""))
            for item in data["renames"]
        ),
        open_sections=frozenset(data["open"]),
        legal=frozenset(json.loads((DATA / "areal_keys.json").read_text(encoding="utf-8"))["keys"]),
    )


def merge(config: Config, tree: Mapping[str, Value], place: str, tables: Tables) -> list[Finding]:
    """Sets all keys of a document under their present names; says what is renamed and what nobody reads."""
    findings: list[Finding] = []
    for role in ("critic", "ref"):
        if isinstance(tree.get(role), dict):
            config.merge({role: tables.role_defaults}, "")
            for key in leaves({role: tables.role_defaults}):
                config.places.pop(key, None)
    strange: dict[str, str] = {}
    for key in leaves(tree):
        value = _value(tree, key)
        rename = next((item for item in tables.renames if key == item.old or key.startswith(f"{item.old}.")), None)
        if rename is not None and key not in tables.legal:
            found = _renamed(rename, place, tables)
            findings += [] if found in findings else [found]
            if rename.new is not None and key == rename.old:
                config.set(rename.new, value, place)
            continue
        config.set(key, value, place)
        if not is_legal(key, tables):
            top = key.partition(".")[0]
            strange[key if top in tables.legal else top] = key
    findings += [_strange(key, place, tables) for key in strange]
    return findings


def is_old(config: Config) -> bool:
    """Whether the configuration is of a version before 1.0."""
    return bool(config.get(OLD_MODE)) and config.raw("rollout.backend") is None


def is_legal(key: str, tables: Tables) -> bool:
    return key in tables.legal or any(part in tables.open_sections for part in key.split("."))


def _value(tree: Mapping[str, Value], key: str) -> Value:
    node: Value = dict(tree)
    for part in key.split("."):
        node = node[part] if isinstance(node, dict) and part in node else None
    return node


def _renamed(rename: Rename, place: str, tables: Tables) -> Finding:
    why = f": {rename.why}" if rename.why else ""
    return Finding(
        place=f"{place}: {rename.old}",
        severity=Severity.WARNING,
        message=f"is of AReaL up to {rename.until}, and {tables.version} refuses it{why}",
        remedy=f"write {rename.new}" if rename.new else "remove it",
    )


def _strange(key: str, place: str, tables: Tables) -> Finding:
    if "." not in key:
        close = nearest(key, [name for name in tables.legal if "." not in name], limit=1).strip("'")
        return Finding(
            place=f"{place}: {key}",
            severity=Severity.WARNING,
            message="PPOConfig has no such section: the program must bring a configuration class of its own",
            remedy=f"did you mean {close}?" if close else "",
        )
    prefix, _, last = key.rpartition(".")
    siblings = {name.rpartition(".")[2] for name in tables.legal if name.rpartition(".")[0] == prefix}
    close = nearest(last, siblings, limit=1).strip("'")
    return Finding(
        place=f"{place}: {key}",
        severity=Severity.ERROR,
        message=f"AReaL {tables.version} has no such key and refuses to start",
        remedy=f"did you mean {prefix}.{close}?" if close else "remove it",
    )
