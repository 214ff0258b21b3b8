"""`rlplan compare`: what was planned beside the log of a run of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from planner import cli_options as opt
from planner.commands.common import print_table, progress
from planner.commands.import_options import Reference, Root, Set
from planner.commands.workload import with_spec
from planner.errors import DifferenceError
from planner.files.spec import WorkloadSpec

OPTIONS = (
    "gpus", "cluster", "prompt_mean", "response_mean", "response_cv", "oversampling_ratio", "reward_latency", "profile",
)  # fmt: skip

Planned = Annotated[
    Path,
    typer.Argument(metavar="PLAN", help="saved plan, workload file with strategies, or launch script with --gpus TYPE"),
]
LogFile = Annotated[Path, typer.Argument(metavar="LOG", help="log of verl or NeMo-RL, or CSV with stage,seconds")]
From = Annotated[str | None, opt.option("--from", metavar="NAME", help="framework of PLAN: verl, ... or auto")]


@with_spec(*OPTIONS)
def compare(
    spec: WorkloadSpec,
    plan: Planned,
    log: LogFile,
    framework: From = None,
    given: Set = None,
    root: Root = None,
    model: Reference = None,
    as_json: opt.AsJson = False,
) -> None:
    """Compare a plan or a configuration with a run of it; exit code 5 when the iteration lies outside its band."""
    from planner.api.calibrating import ConfigurationOptions, compare_log

    options = ConfigurationOptions(framework=framework, given=tuple(given or ()), root=root, model=model)
    with progress("comparing"):
        read, comparison = compare_log(plan, log, spec=spec, options=options)
    from planner.report.calibration import comparison_document, comparison_report

    if as_json:
        import json

        sys.stdout.write(json.dumps(comparison_document(comparison), indent=1, ensure_ascii=False) + "\n")
    else:
        print_table(comparison_report(read, comparison))
    if comparison.is_inside is False:
        raise typer.Exit(DifferenceError.exit_code)
