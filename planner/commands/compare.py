"""`rlplan compare`: a saved plan beside the log of a run of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from planner import cli_options as opt
from planner.commands.common import print_table, progress
from planner.errors import DifferenceError

LogFile = Annotated[Path, typer.Argument(metavar="LOG", help="log of verl or NeMo-RL, or CSV with stage,seconds")]


def compare(plan: opt.PlanFile, log: LogFile, profile: opt.Profile = None, as_json: opt.AsJson = False) -> None:
    """Compare a saved plan with a run of it; exit code 5 when the iteration lies outside the plan's band."""
    from planner.api.calibrating import compare_log

    with progress("comparing"):
        read, comparison = compare_log(plan, log, profile=profile)
    from planner.report.calibration import comparison_document, comparison_report

    if as_json:
        import json

        sys.stdout.write(json.dumps(comparison_document(comparison), indent=1, ensure_ascii=False) + "\n")
    else:
        print_table(comparison_report(read, comparison))
    if comparison.is_inside is False:
        raise typer.Exit(DifferenceError.exit_code)
