"""The command that checks a launch script or configuration of a training framework."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner import cli_options as opt
from planner.commands.common import print_table, progress
from planner.commands.import_options import Reference, Root, Set
from planner.commands.workload import with_spec
from planner.errors import DifferenceError
from planner.files.spec import WorkloadSpec

if TYPE_CHECKING:
    from planner.adapters.imported import Imported
    from planner.check import CheckView

OPTIONS = (
    "gpus", "prompt_mean", "response_mean", "response_cv", "oversampling_ratio", "reward_latency", "memory_margin",
    "prices", "time_limit", "profile",
)  # fmt: skip

File = Annotated[Path, typer.Argument(metavar="FILE", help="launch script (never executed) or YAML file")]
From = Annotated[str | None, opt.option("--from", metavar="NAME", help="verl, ... or auto [auto]")]


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
    from planner.adapters.import_source import open_source, parse_given, with_accelerator
    from planner.adapters.importers import import_source
    from planner.api.checking import checked, lacking

    known = with_accelerator(parse_given(tuple(given or ()), model=model), spec.gpus)
    source = open_source(file, given=known, root=root)
    imported = import_source(source, (framework or "auto").lower())
    missing = lacking(imported, spec)
    if missing is not None:
        _show_import(imported, as_json=as_json)
        raise missing
    with progress("checking"):
        view = checked(imported, spec)
    _show(view, as_json=as_json)
    if view.has_problem:
        raise typer.Exit(DifferenceError.exit_code)


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
