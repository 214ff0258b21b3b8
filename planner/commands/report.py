"""The command that makes a page of a saved plan or sweep."""

from __future__ import annotations

import sys
from pathlib import Path

from planner import cli_options as opt
from planner.commands.common import check_output
from planner.errors import printable

SWEEP_SUFFIX = ".jsonl"


def report(file: opt.Reported, output: opt.Page = None) -> None:
    """Make an HTML page of a saved plan (JSON) or of the results of a sweep (.jsonl). It needs no network."""
    target = output if output is not None else file.with_suffix(".html")
    check_output(target, file)
    text = _sweep_text(file) if file.suffix.lower() == SWEEP_SUFFIX else _plan_text(file)
    from planner.files.atomic import write_atomic

    write_atomic(target, text.encode())
    print(f"saved {printable(str(target))}", file=sys.stderr)


def _plan_text(file: Path) -> str:
    from planner.files.plan import read_plan
    from planner.report.html.page import plan_page

    return plan_page(read_plan(file))


def _sweep_text(file: Path) -> str:
    from planner.files.sweep import read_sweep
    from planner.report.html.sweep import sweep_page

    return sweep_page(read_sweep(file))
