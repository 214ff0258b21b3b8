"""Configurations written to files and read back, for the tests of importers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from planner.adapters.findings import Severity
from planner.adapters.import_source import open_source, parse_given
from planner.adapters.imported import Imported
from planner.adapters.importers import import_source
from planner.domain.stages import WorkerName
from planner.domain.strategy import RolloutStrategy, TrainerStrategy


def read(
    directory: Path, files: Mapping[str, str], *given: str, framework: str = "auto", model: str | None = None
) -> Imported:
    """Writes all files and imports the first one; the directory is the root."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    first = directory / next(iter(files))
    return import_source(open_source(first, given=parse_given(given, model=model), root=directory), framework)


def trainer(imported: Imported, name: WorkerName = WorkerName.ACTOR_TRAINER) -> TrainerStrategy:
    strategy = next(item.strategy for item in imported.workers if item.worker is name)
    assert isinstance(strategy, TrainerStrategy)
    return strategy


def engines(imported: Imported) -> RolloutStrategy:
    strategy = next(item.strategy for item in imported.workers if item.worker is WorkerName.ROLLOUT_ENGINE)
    assert isinstance(strategy, RolloutStrategy)
    return strategy


def first_gpu(imported: Imported, name: WorkerName) -> int:
    return next(item.first_gpu for item in imported.workers if item.worker is name)


def messages(imported: Imported, severity: Severity | None = None) -> str:
    """Place, message and remedy of all findings, one per line."""
    return "\n".join(
        f"{item.place}: {item.message} -> {item.remedy}"
        for item in imported.findings
        if severity in (None, item.severity)
    )


def errors(imported: Imported) -> str:
    return messages(imported, Severity.ERROR)


def setting(imported: Imported, what: str) -> str:
    return next(item.value for item in imported.settings if item.what == what)
