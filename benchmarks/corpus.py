"""How many launch scripts and configurations of a checkout `rlplan check` understands. Nothing is executed.

    python -m benchmarks.corpus DIRECTORY [DIRECTORY ...] [--only NAME] [--set NAME=VALUE] [--list]

Every shell script and every YAML file below a directory is read as `--from auto` would. Counted per framework:

complete    everything that a plan needs is known, and the workers could be made out
model       the same once a model is named: the catalog has none of that name (tried with `STAND_IN`)
asked       a precise list of values to give (`--set`, `--root`)
broken      read, but degrees do not fit the GPUs or lines are lost: the reason is printed
rest        a script that names a trainer of the framework and in which no launch was found

Supervised and preference training, evaluation and tools are not counted; `--list` prints every file that is not
complete.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.adapters.findings import Severity
from planner.adapters.import_source import MODEL, open_source, parse_given
from planner.adapters.imported import Imported
from planner.adapters.importers import IMPORTERS, import_source
from planner.errors import RlplanError

KINDS = ("complete", "model", "asked", "broken", "rest")
TRAINERS = {
    "verl": re.compile(r"main_ppo\b|main_dapo\b|fully_async_main\b"),
    "openrlhf": re.compile(r"train_ppo_ray\b"),
    "nemo-rl": re.compile(r"run_(grpo|ppo|vlm_grpo)\w*\.py"),
    "slime": re.compile(r"\btrain(_async)?\.py\b.*|--rollout-num-gpus"),
    "areal": re.compile(r"areal\.(infra\.)?launcher|_rl\.py\s+--config"),
}
STAND_IN = "qwen3-8b"
MODEL_KEYS = ("path", "model_name", "model_name_or_path", "hf-checkpoint", "model_path")
SKIPPED = {".git", "node_modules", "3rdparty", "third_party"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one file; `framework` is empty for files that are not counted."""

    file: Path
    framework: str
    kind: str
    detail: str
    seconds: float


def files_of(directory: Path) -> Iterator[Path]:
    for file in sorted(directory.rglob("*")):
        if file.suffix in (".sh", ".slurm", ".yaml", ".yml") and not SKIPPED & set(file.relative_to(directory).parts):
            yield file


def outcome(file: Path, root: Path, only: str | None, known: Mapping[str, str]) -> Outcome:
    start = time.perf_counter()
    framework, kind, detail = _read(file, root, only, known)
    return Outcome(file=file, framework=framework, kind=kind, detail=detail, seconds=time.perf_counter() - start)


def _read(file: Path, root: Path, only: str | None, known: Mapping[str, str]) -> tuple[str, str, str]:
    try:
        imported = import_source(open_source(file, given=dict(known), root=root), only or "auto")
    except RlplanError as error:
        return _refused(file, str(error), only)
    kind, detail = _kind(imported)
    if kind == "model":
        given = {**known, **dict.fromkeys((*imported.unresolved, MODEL), STAND_IN)}
        again, why = _kind(import_source(open_source(file, given=given, root=root), imported.framework))
        kind, detail = ("model", detail) if again == "complete" else (again, why)
    return imported.framework, kind, detail


def _refused(file: Path, message: str, only: str | None) -> tuple[str, str, str]:
    """A file that no importer takes: missed where it names a trainer in a line that is no comment."""
    is_other = "no RL training" in message and "starts no" not in message
    if file.suffix in (".yaml", ".yml") or is_other:
        return "", "", message
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", "", message
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for name, pattern in TRAINERS.items():
        if only in (None, name) and any(pattern.search(line) and "python" in line for line in lines):
            return name, "rest", message
    return "", "", message


def _kind(imported: Imported) -> tuple[str, str]:
    if imported.unresolved:
        is_model = all(name.rpartition(".")[2] in MODEL_KEYS for name in imported.unresolved)
        return ("model" if is_model else "asked"), ", ".join(imported.unresolved)
    errors = [item.message for item in imported.findings if item.severity is Severity.ERROR]
    has_roles = {worker.worker.value for worker in imported.workers} >= {"actor trainer", "rollout engine"}
    return ("complete", "") if has_roles else ("broken", "; ".join(errors) or "workers could not be made out")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--only", choices=tuple(IMPORTERS), help="read everything as this framework")
    parser.add_argument("--list", action="store_true", help="print every file that is not complete")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="given to every script")
    arguments = parser.parse_args()
    known = parse_given(tuple(arguments.set))
    found = [
        outcome(file, directory.resolve(), arguments.only, known)
        for directory in arguments.directories
        for file in files_of(directory.resolve())
    ]
    if arguments.list:
        for item in found:
            if item.framework and item.kind != "complete":
                print(f"{item.framework:9} {item.kind:9} {item.file}: {item.detail[:160]}")
    _table(found)


def _table(found: list[Outcome]) -> None:
    print(f"{'framework':10} {'kind':7} {'files':>5} " + " ".join(f"{kind:>9}" for kind in KINDS) + "  slowest")
    for name in IMPORTERS:
        for label, suffixes in (("scripts", (".sh", ".slurm")), ("yaml", (".yaml", ".yml"))):
            items = [item for item in found if item.framework == name and item.file.suffix in suffixes]
            if not items:
                continue
            counts = Counter(item.kind for item in items)
            cells = " ".join(f"{counts[kind]:>3} {counts[kind] / len(items):>4.0%} " for kind in KINDS)
            print(f"{name:10} {label:7} {len(items):>5} {cells} {max(item.seconds for item in items):.2f} s")
    print(f"not counted: {sum(not item.framework for item in found)} files that start or configure no RL training")


if __name__ == "__main__":
    main()
