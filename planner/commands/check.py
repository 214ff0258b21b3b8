"""The command that checks a launch script or configuration of a training framework."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner import cli_options as opt
from planner.commands.common import print_table, progress
from planner.commands.workload import with_spec
from planner.errors import DifferenceError, InvalidInputError
from planner.files.spec import WorkloadSpec, override

if TYPE_CHECKING:
    from planner.adapters.imported import Imported
    from planner.check import CheckView

OPTIONS = (
    "gpus", "prompt_mean", "response_mean", "response_cv", "oversampling_ratio", "reward_latency", "memory_margin",
    "prices", "time_limit", "profile",
)  # fmt: skip

File = Annotated[Path, typer.Argument(metavar="FILE", help="launch script (never executed) or YAML file")]
From = Annotated[str | None, opt._option("--from", metavar="NAME", help="verl, ... or auto [auto]")]
Set = Annotated[
    list[str] | None,
    opt._option("--set", metavar="NAME=VALUE", help="a variable of the script, or a key; repeatable"),
]
Root = Annotated[
    Path | None,
    opt._option(
        "--root", metavar="DIRECTORY", help="files below it may be read [that of FILE]", convert=opt._directory_path,
        kind="a directory",
    ),
]  # fmt: skip
Reference = Annotated[
    str | None, opt._option("--model", metavar="MODEL", help="the model, if its path does not name one that is known")
]


@with_spec(*OPTIONS)
def check(
    spec: WorkloadSpec,
    file: File,
    framework: From = None,
    given: Set = None,
    root: Root = None,
    model: Reference = None,
    as_json: opt.AsJson = False,
) -> None:
    """Check a configuration of a framework: what it does, whether it fits, what would be better."""
    from planner.adapters.import_source import open_source, parse_given
    from planner.adapters.importers import import_source

    source = open_source(file, given=parse_given(tuple(given or ()), model=model), root=root)
    imported = import_source(source, (framework or "auto").lower())
    if imported.unresolved or spec.gpus is None:
        _show_import(imported, as_json=as_json)
        raise _needs(imported, spec)
    with progress("checking"):
        view = _checked(imported, spec)
    _show(view, as_json=as_json)
    if view.has_problem:
        raise typer.Exit(DifferenceError.exit_code)


def _checked(imported: Imported, spec: WorkloadSpec) -> CheckView:
    from planner.check import check as check_imported
    from planner.check import gpus_text, unpriced
    from planner.files.workload import build_request

    given = override(imported.spec, replace(spec, gpus=gpus_text(imported, spec.gpus or "")))
    try:
        request = build_request(given)
    except InvalidInputError as error:
        if imported.has_errors:
            # What is wrong with the configuration is the answer; that it cannot be priced follows from it.
            return unpriced(imported, str(error))
        raise
    return check_imported(imported, request)


def _needs(imported: Imported, spec: WorkloadSpec) -> InvalidInputError:
    """What has to be given before anything can be priced."""
    asked = [f"--set {name}=..." for name in imported.unresolved if not name.startswith("--")]
    asked += [name for name in imported.unresolved if name.startswith("--")]
    if spec.gpus is None:
        asked.append("--gpus TYPE (the configuration says how many GPUs, not which)")
    return InvalidInputError(f"to be priced, the configuration needs {', '.join(asked)}", where=imported.file)


def _show_import(imported: Imported, *, as_json: bool) -> None:
    from planner.report.check import import_document, import_report

    if as_json:
        _print_json(import_document(imported))
    else:
        print_table(import_report(imported))
        print(flush=True)


def _show(view: CheckView, *, as_json: bool) -> None:
    from planner.report.check import check_document, check_report

    if as_json:
        _print_json(check_document(view))
    else:
        print_table(check_report(view))


def _print_json(document: object) -> None:
    import json

    sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
