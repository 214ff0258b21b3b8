"""NeMo-RL's own loader, read without NeMo-RL: `defaults:` chains, `_override_`, Hydra overrides, unknown keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import yaml

from planner.adapters.findings import Finding, Severity
from planner.adapters.hydra import Config, Operation, Override, Value, leaves
from planner.adapters.import_source import Source
from planner.adapters.import_values import Values
from planner.adapters.import_yaml import read_foreign_yaml
from planner.adapters.shell_script import is_mark, known_tail, shown, unknowns
from planner.errors import InvalidInputError, nearest

DATA = Path(__file__).parent / "data" / "imports"
MAX_CHAIN = 12
MARKER = "_override_"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedFile:
    """What a file of NeMo-RL's sets of the values that decide a plan."""

    parent: str | None
    values: dict[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCheckpoint:
    """What a shipped file writes in place of a model: a text, or a variable that the user has to set."""

    model: str
    source: str
    text: str = ""
    variable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What the project knows about NeMo-RL's configuration."""

    version: str
    programs: dict[str, str]
    other_programs: frozenset[str]
    open_sections: frozenset[str]
    files: dict[str, ShippedFile]
    legal: frozenset[str]
    checkpoints: tuple[KnownCheckpoint, ...]
    sections: frozenset[str] = field(default_factory=frozenset)


@cache
def load_tables() -> Tables:
    """The shipped tables, read once."""
    data = yaml.load((DATA / "nemo_rl.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    legal = frozenset(json.loads((DATA / "nemo_rl_keys.json").read_text(encoding="utf-8"))["keys"])
    return Tables(
        version=data["version"],
        programs=data["programs"],
        other_programs=frozenset(data["other_programs"]),
        open_sections=frozenset(data["open"]),
        files={name: ShippedFile(parent=item["parent"], values=item["values"]) for name, item in data["files"].items()},
        legal=legal,
        checkpoints=tuple(_checkpoint(item) for item in data["checkpoints"]),
        sections=frozenset(key.rsplit(".", depth)[0] for key in legal for depth in range(1, key.count(".") + 1)),
    )


def _checkpoint(item: Mapping[str, str]) -> KnownCheckpoint:
    return KnownCheckpoint(
        model=item["model"], source=item["source"], text=item.get("text", ""), variable=item.get("variable", "")
    )


def name_checkpoint(values: Values, key: str, tables: Tables) -> None:
    """Puts the model in place of what shipped files write for it, and says so."""
    value = values.config.get(key)
    text = value.strip() if isinstance(value, str) else ""
    if not text:
        return
    variable = unknowns(text)[0] if is_mark(text) else ""
    known = next((c for c in tables.checkpoints if text == c.text or (variable and variable == c.variable)), None)
    if known is not None:
        written = f"${variable}" if variable else f"{text[:60]!r}"
        values.find(key, Severity.NOTE, f"{written} stands for {known.model} ({known.source})", f"--set {key}=...")
        values.config.set(key, known.model, values.config.place(key))


def load_file(values: Values, source: Source, file: Path, depth: int = 0) -> None:
    """Merges a file into the configuration, its defaults first. Files outside the root are asked for."""
    if depth > MAX_CHAIN:
        raise InvalidInputError(f"defaults go on for more than {MAX_CHAIN} files", where=str(file))
    document = source.document if depth == 0 and source.document is not None else read_foreign_yaml(file)
    tree = {key: plain(value) for key, value in document.items()}
    defaults = tree.pop("defaults", None)
    for name in defaults if isinstance(defaults, list) else [defaults]:
        if isinstance(name, str):
            _load_default(values, source, file, name, depth)
    merge(values.config, tree, str(file))


def _load_default(values: Values, source: Source, file: Path, name: str, depth: int) -> None:
    tail = name.rpartition("}")[2].lstrip("/") if "${" in name else known_tail(name)
    other = (file.parent / tail).resolve() if not name.startswith(("/", "${")) else Path(name)
    if other.is_relative_to(source.root) and other.is_file():
        load_file(values, source, other, depth + 1)
        return
    if load_shipped(values.config, Path(tail).name):
        values.find(str(file), Severity.NOTE, f"{shown(name)[:80]} is taken as NeMo-RL {load_tables().version} has it")
        return
    found = find_file(source, tail)
    if found is not None and found != file:
        load_file(values, source, found, depth + 1)
        return
    values.ask(f"--root: a directory above {tail}")
    values.find(
        str(file),
        Severity.WARNING,
        f"defaults: {shown(name)[:80]} is not found below {source.root}",
        "--root DIRECTORY",
    )


def load_shipped(config: Config, name: str) -> bool:
    """Merges what the project knows of a file of NeMo-RL's; False for one that it does not know."""
    shipped = load_tables().files.get(name)
    if shipped is None:
        return False
    if shipped.parent is not None:
        load_shipped(config, shipped.parent)
    config.merge(shipped.values, "")
    for key in leaves(shipped.values):
        config.places.pop(key, None)
    return True


def find_file(source: Source, path: str) -> Path | None:
    """A file below the root that a path ends with: programs are started from some directory above it."""
    if not path:
        return None
    tail = Path(path.lstrip("/"))
    here = source.file.absolute().parent.resolve()
    for directory in (here, *here.parents):
        if not directory.is_relative_to(source.root):
            break
        candidate = (directory / tail).resolve()
        if candidate.is_relative_to(source.root) and candidate.is_file():
            return candidate
    whole = Path(path)
    return whole if whole.is_absolute() and whole.is_relative_to(source.root) and whole.is_file() else None


def merge(config: Config, tree: Mapping[str, Value], place: str) -> None:
    """OmegaConf's merge with NeMo-RL's marker, which replaces a section instead of adding to it."""
    for key, value in tree.items():
        if value == "???":
            continue
        if isinstance(value, dict):
            _merge_section(config, key, value, place)
        else:
            config.set(key, value, place)


def _merge_section(config: Config, key: str, section: dict[str, Value], place: str) -> None:
    """Only top-level sections and those below are looked at for the marker, as deep as they go."""
    own = {name: value for name, value in section.items() if name != MARKER}
    if section.get(MARKER) is True:
        config.delete(key)
        for name in [name for name in config.places if name.startswith(f"{key}.")]:
            del config.places[name]
    if not own:
        if not config.has(key):
            config.set(key, {}, place)
        return
    for name, value in own.items():
        if isinstance(value, dict):
            _merge_section(config, f"{key}.{name}", value, place)
        elif value != "???":
            config.set(f"{key}.{name}", value, place)


def apply(config: Config, overrides: list[Override], tables: Tables) -> list[Finding]:
    """Hydra overrides of the command line: keys that are not there need a plus."""
    findings: list[Finding] = []
    for item in overrides:
        if item.operation is Operation.DELETE:
            config.delete(item.key)
            continue
        if item.operation is Operation.CHANGE and not config.has(item.key) and not is_legal(item.key, tables):
            suggestion = _nearest_key(item.key, tables)
            findings.append(
                Finding(
                    place=item.place, severity=Severity.ERROR,
                    message=f"{item.key} is not in the configuration: NeMo-RL refuses to change it",
                    remedy=f"did you mean {suggestion}?" if suggestion else f"+{item.key} adds it",
                )
            )  # fmt: skip
        config.set(item.key, item.value, item.place)
    return findings


def unread_keys(config: Config, tables: Tables) -> list[Finding]:
    """Keys that nothing in NeMo-RL reads: its loader takes them without a word."""
    findings: list[Finding] = []
    for key, place in config.places.items():
        if not place or is_legal(key, tables):
            continue
        suggestion = _nearest_key(key, tables)
        findings.append(
            Finding(
                place=f"{place}: {key}",
                severity=Severity.WARNING,
                message=f"nothing is known to read it in NeMo-RL {tables.version}, and NeMo-RL says nothing",
                remedy=f"did you mean {suggestion}?" if suggestion else "remove it",
            )
        )
    return findings


def is_legal(key: str, tables: Tables) -> bool:
    parts = key.split(".")
    return key in tables.legal or key in tables.sections or any(part in tables.open_sections for part in parts)


def _nearest_key(key: str, tables: Tables) -> str:
    prefix, _, last = key.rpartition(".")
    siblings = {other.rpartition(".")[2] for other in tables.legal if other.rpartition(".")[0] == prefix}
    close = nearest(last, siblings, limit=1).strip("'")
    if close:
        return f"{prefix}.{close}" if prefix else close
    return nearest(key, [other for other in tables.legal if other.rpartition(".")[2] == last], limit=1).strip("'")


def plain(value: object) -> Value:
    """A YAML value; dates and the like as text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
