"""How many launch scripts and configurations of a checkout `rlplan check` understands. Nothing is executed.

    python -m benchmarks.corpus DIRECTORY [DIRECTORY ...] [--revision REV] [--only NAME] [--gpus TYPE]
                                [--set NAME=VALUE] [--list] [--reasons] [--price]

Every shell script and every YAML file below a directory is read as `--from auto` and `--gpus TYPE` would. With
`--revision` the directory is a git repository, also a bare one, and the files are those of the revision (read with
`git archive`). Counted per framework:

complete    everything that a plan needs is known, and the workers could be made out
model       the same once a model is named: the catalog has none of that name (tried with `STAND_IN`)
outside     the model is known and its architecture is not priced
asked       a precise list of values to give (`--set`, `--root`)
broken      read, but degrees do not fit the GPUs or lines are lost: the reason is printed
rest        a script that names a trainer of the framework and in which no launch was found

Supervised and preference training, evaluation and tools are not counted; `--list` prints every file that is not
complete, `--reasons` how many files each reason has. `--price` prices every complete file as a check does, without its
search for something better, and says how many break a rule: all that the check would call broken but for memory.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from planner.adapters.findings import Severity
from planner.adapters.import_model import NOT_KNOWN, NOT_MODELLED
from planner.adapters.import_source import MODEL, open_source, parse_given, with_accelerator
from planner.adapters.imported import Imported
from planner.adapters.importers import IMPORTERS, import_source
from planner.check import gpus_text, rule_problems
from planner.errors import RlplanError
from planner.files.spec import WorkloadSpec, override
from planner.files.workload import build_request

KINDS = ("complete", "model", "outside", "asked", "broken", "rest")
TRAINERS = {
    "verl": re.compile(r"main_ppo\b|main_dapo\b|fully_async_main\b"),
    "openrlhf": re.compile(r"train_ppo_ray\b"),
    "nemo-rl": re.compile(r"run_(grpo|ppo|vlm_grpo)\w*\.py"),
    "slime": re.compile(r"\btrain(_async)?\.py\b.*|--rollout-num-gpus"),
    "areal": re.compile(r"areal\.(infra\.)?launcher|_rl\.py\s+--config"),
}
STAND_IN = "qwen3-8b"
MODEL_KEYS = ("path", "model_name", "model_name_or_path", "hf-checkpoint", "model_path", "pretrain")
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
    relative, seconds = file.relative_to(root), time.perf_counter() - start
    return Outcome(file=relative, framework=framework, kind=kind, detail=detail, seconds=seconds)


def _read(file: Path, root: Path, only: str | None, known: Mapping[str, str]) -> tuple[str, str, str]:
    try:
        imported = import_source(open_source(file, given=dict(known), root=root), only or "auto")
    except RlplanError as error:
        return _refused(file, str(error), only)
    kind, detail = _kind(imported)
    if kind in ("model", "outside"):
        given = {**known, **dict.fromkeys((*imported.unresolved, MODEL), STAND_IN)}
        again, why = _kind(import_source(open_source(file, given=given, root=root), imported.framework))
        kind, detail = (kind, detail) if again == "complete" else (again, why)
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
            return name, "rest", "no launch was found: " + message.partition(": ")[2]
    return "", "", message


def _kind(imported: Imported) -> tuple[str, str]:
    if imported.unresolved:
        if not all(name.rpartition(".")[2] in MODEL_KEYS for name in imported.unresolved):
            return "asked", ", ".join(imported.unresolved)
        messages = [item.message for item in imported.findings]
        outside = [text for text in messages if NOT_MODELLED in text]
        unknown = [text for text in messages if text.startswith(NOT_KNOWN)]
        why = (outside or unknown or [f"{imported.unresolved[0]} is not set"])[0]
        return ("outside" if outside else "model"), why
    errors = [item.message for item in imported.findings if item.severity is Severity.ERROR]
    has_roles = {worker.worker.value for worker in imported.workers} >= {"actor trainer", "rollout engine"}
    return ("complete", "") if has_roles else ("broken", "; ".join(errors) or "workers could not be made out")


@contextmanager
def checkout(directory: Path, revision: str | None) -> Iterator[Path]:
    """The directory itself, or the files of a revision of the repository in it."""
    if revision is None:
        yield directory.resolve()
        return
    with tempfile.TemporaryDirectory() as name:
        command = ["git", "-C", str(directory), "archive", revision]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as archive:
            assert archive.stdout is not None
            with tarfile.open(fileobj=archive.stdout, mode="r|") as files:
                files.extractall(name, filter="data")
        yield Path(name).resolve()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--revision", help="read the files of this commit or tag of the repositories")
    parser.add_argument("--only", choices=tuple(IMPORTERS), help="read everything as this framework")
    parser.add_argument("--gpus", default="h100", help="the type that --gpus would name; '' for none [h100]")
    parser.add_argument("--list", action="store_true", help="print every file that is not complete")
    parser.add_argument("--reasons", action="store_true", help="print how many files each reason has")
    parser.add_argument("--price", action="store_true", help="count what a check calls broken, memory left aside")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="given to every script")
    arguments = parser.parse_args()
    known = with_accelerator(parse_given(tuple(arguments.set)), arguments.gpus or None)
    found: list[Outcome] = []
    priced: dict[Path, tuple[str, ...] | None] = {}
    for directory in arguments.directories:
        with checkout(directory, arguments.revision) as root:
            here = [outcome(file, root, arguments.only, known) for file in files_of(root)]
            found += here
            for item in here if arguments.price else ():
                if item.kind == "complete":
                    rules = _rules(root / item.file, root, item.framework, known, arguments.gpus)
                    priced[item.file] = rules
    if arguments.list:
        _list(found)
    if arguments.reasons:
        _reasons(found)
    _table(found)
    if arguments.price:
        _broken_rules(priced)


def _rules(file: Path, root: Path, framework: str, known: Mapping[str, str], gpus: str) -> tuple[str, ...] | None:
    """Errors and broken rules of a complete file on nodes of a type; None where it cannot be put on them."""
    imported = import_source(open_source(file, given=dict(known), root=root), framework)
    spec = override(imported.spec, WorkloadSpec(gpus=gpus_text(imported, gpus)))
    errors = tuple(item.message for item in imported.findings if item.severity is Severity.ERROR)
    try:
        return (*errors, *rule_problems(imported, build_request(spec)))
    except RlplanError as error:
        return errors or (None if "a node of" in str(error) else (str(error),))


def _broken_rules(found: Mapping[Path, tuple[str, ...] | None]) -> None:
    priced = {file: rules for file, rules in found.items() if rules is not None}
    broken = {file: rules for file, rules in priced.items() if rules}
    print(f"priced: {len(priced)}, of which {len(broken)} break a rule")
    for file, rules in broken.items():
        print(f"  {file}: {rules[0][:140]}")


def _list(found: list[Outcome]) -> None:
    for item in found:
        if item.framework and item.kind != "complete":
            print(f"{item.framework:9} {item.kind:9} {item.file}: {item.detail[:160]}")


def _reasons(found: list[Outcome]) -> None:
    missed = [item for item in found if item.framework and item.kind != "complete"]
    counts = Counter((item.framework, item.kind, item.detail[:120]) for item in missed)
    for (framework, kind, detail), count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
        print(f"{count:>3}  {framework:9} {kind:9} {detail}")


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
