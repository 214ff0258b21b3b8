"""Opens what a user gives to an import: a launch script or a YAML file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.adapters.findings import Finding
from planner.adapters.import_yaml import read_foreign_yaml
from planner.adapters.shell_script import ACCELERATOR, Launch, Script, read_script
from planner.errors import InvalidInputError

_COUNTS = re.compile(r"^(\d+x)+", re.IGNORECASE)
"""Numbers of nodes and GPUs before a type: `4x8x`."""
YAML_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What an importer reads: the launches of a script, or the document of a YAML file."""

    file: Path
    root: Path
    """Files below it may be read, no others."""
    given: Mapping[str, str]
    """`--set NAME=VALUE`: values of variables and keys."""
    script: Script | None
    document: Mapping[str, object] | None

    @property
    def launches(self) -> tuple[Launch, ...]:
        return self.script.launches if self.script is not None else ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.script.findings if self.script is not None else ()

    @property
    def given_keys(self) -> dict[str, str]:
        """Given values of configuration keys: names that no shell variable can have."""
        apart = (MODEL, ACCELERATOR)
        return {name: value for name, value in self.given.items() if not name.isidentifier() and name not in apart}

    @property
    def model(self) -> str | None:
        """The model that the user names in place of the path in the configuration."""
        return self.given.get(MODEL)

    @property
    def environment(self) -> dict[str, str]:
        """Given values that may stand for environment variables."""
        return {name: value for name, value in self.given.items() if name.isidentifier()}


def open_source(file: Path, *, given: Mapping[str, str] | None = None, root: Path | None = None) -> Source:
    """Reads `file`: YAML by its suffix, anything else as a shell script, which is never executed.

    Raises InvalidInputError for a file that cannot be read or is neither, and for a root that is no directory.
    """
    if root is not None and not root.is_dir():
        problem = "is no directory" if root.exists() else "does not exist"
        raise InvalidInputError(problem, where=f"--root: {root}", accepted="a directory that holds what FILE reads")
    values = dict(given or {})
    base = (root or file.absolute().parent).resolve()
    if file.suffix.lower() in YAML_SUFFIXES:
        document = read_foreign_yaml(file)
        return Source(file=file, root=base, given=values, script=None, document=document)
    script = read_script(file, given=values, root=base)
    return Source(file=file, root=base, given=values, script=script, document=None)


MODEL = "model."
"""Given name of the actor's model, in whatever key a framework has it."""

ASCEND = "huawei"
"""Vendor of accelerators that scripts call NPUs; all others are GPUs to them."""


def with_accelerator(given: Mapping[str, str], gpus: str | None) -> dict[str, str]:
    """`given`, and what kind of accelerator `--gpus` names, for scripts that ask the machine.

    Nothing is added for types that the catalog does not know, or when both kinds are named.
    """
    from planner.files.catalog import load_gpu, load_node

    kinds: set[str] = set()
    for part in (gpus or "").split(","):
        name = _COUNTS.sub("", part.strip())
        try:
            vendor = load_gpu(name).vendor
        except InvalidInputError:
            try:
                vendor = load_node(name).gpu.vendor
            except InvalidInputError:
                return dict(given)
        kinds.add("npu" if vendor == ASCEND else "gpu")
    return {**given, ACCELERATOR: kinds.pop()} if len(kinds) == 1 else dict(given)


def parse_given(texts: tuple[str, ...], *, model: str | None = None, where: str = "--set") -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping, and the model under MODEL; raises InvalidInputError for anything else."""
    result: dict[str, str] = {} if model is None else {MODEL: model}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InvalidInputError(f"{text[:60]!r} is no assignment", where=where, accepted="NAME=VALUE")
        result[name.strip().lstrip("+")] = value
    return result
