"""Which frameworks can be imported: name -> module with `recognises(source)` and `read(source)`."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import import_module
from typing import Protocol, cast

from planner.adapters.findings import Finding, Severity
from planner.adapters.import_retry import with_environment
from planner.adapters.import_source import Source
from planner.adapters.import_trainer import by_severity
from planner.adapters.imported import Imported
from planner.adapters.shell_script import ACCELERATOR, shown
from planner.errors import InvalidInputError, nearest

IMPORTERS: dict[str, str] = {
    "verl": "planner.adapters.verl_import",
    "nemo-rl": "planner.adapters.nemo_rl_import",
    "openrlhf": "planner.adapters.openrlhf_import",
    "areal": "planner.adapters.areal_import",
    "slime": "planner.adapters.slime_import",
}
"""In the order in which `auto` asks them. A module is imported only when it is asked."""


class Importer(Protocol):
    """A module that reads the configurations of one framework."""

    def recognises(self, source: Source) -> bool:
        """Whether the source starts this framework. Quick, and without looking at values."""
        ...

    def read(self, source: Source) -> Imported:
        """What the source says; raises InvalidInputError when it is no configuration of the framework at all."""
        ...


def importer(name: str) -> Importer:
    """The module of a framework; raises InvalidInputError with the closest name for an unknown one."""
    if name not in IMPORTERS:
        known = ["auto", *IMPORTERS]
        raise InvalidInputError(
            f"{name[:60]!r} cannot be read", where="--from", accepted=", ".join(known), suggestion=nearest(name, known)
        )
    return cast(Importer, import_module(IMPORTERS[name]))


def import_source(source: Source, framework: str = "auto") -> Imported:
    """Reads a source as `framework`, or as the first framework that recognises it.

    Raises InvalidInputError when none does.
    """
    source = with_environment(source)
    if framework != "auto":
        return _with_strays(importer(framework).read(source), source)
    for name in IMPORTERS:
        module = importer(name)
        if module.recognises(source):
            return _with_strays(module.read(source), source)
    started = ", ".join(shown(launch.target) for launch in source.launches[:5])
    raise InvalidInputError(
        f"starts {started or 'no Python program that is known'}: no framework recognises it",
        where=str(source.file),
        accepted=f"--from {' or --from '.join(IMPORTERS)}",
    )


_DOTTED = frozenset({"verl"})
"""Frameworks whose keys have dots and whose values all stand in the script: a given name without one is a variable."""


def _with_strays(imported: Imported, source: Source) -> Imported:
    """The configuration with a warning for each given variable that the script does not name."""
    if source.script is None or imported.framework not in _DOTTED:
        return imported
    texts = [text for _, text in source.script.sources]
    strays = [
        name
        for name in source.environment
        if name != ACCELERATOR and not any(re.search(rf"\b{re.escape(name)}\b", text) for text in texts)
    ]
    found = tuple(
        Finding(
            place="--set", severity=Severity.WARNING, message=f"nothing in the script reads {name[:60]}",
            remedy="the name of a variable as the script has it, or of a key with its dots",
        )
        for name in strays
    )  # fmt: skip
    return replace(imported, findings=by_severity((*imported.findings, *found)))
