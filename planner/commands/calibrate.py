"""`rlplan calibrate`: a profile from a user's own logs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from planner import cli_options as opt
from planner.commands.common import check_output, input_files, print_table, progress
from planner.commands.import_options import Reference, Root, Set
from planner.commands.workload import with_spec
from planner.errors import printable
from planner.files.spec import WorkloadSpec

OPTIONS = (
    "gpus", "cluster", "prompt_mean", "response_mean", "response_cv", "oversampling_ratio", "reward_latency",
)  # fmt: skip

Logs = Annotated[
    list[Path],
    typer.Argument(
        metavar="LOGS", help="logs of verl or NeMo-RL, CSV with stage,seconds, output of nccl-tests or vllm bench"
    ),
]
Configurations = Annotated[
    list[Path] | None,
    opt.option(
        "--config", metavar="FILE", help="what ran: plan, workload file or launch script; one, or one per log",
        convert=opt.file_path, kind="a file name",
    ),
]  # fmt: skip
From = Annotated[str | None, opt.option("--from", metavar="NAME", help="framework of --config: verl, ... or auto")]
Day = Annotated[str | None, opt.option("--date", metavar="DATE", help="when it ran, such as 2026-05-31")]
Profile = Annotated[
    Path | None,
    opt.option("-o", "--output", metavar="FILE", help="the profile (YAML)", convert=opt.file_path, kind="a file name"),
]


@with_spec(*OPTIONS)
def calibrate(
    spec: WorkloadSpec,
    logs: Logs,
    configurations: Configurations = None,
    framework: From = None,
    given: Set = None,
    root: Root = None,
    model: Reference = None,
    date: Day = None,
    output: Profile = None,
    as_json: opt.AsJson = False,
) -> None:
    """Fit the efficiencies that own runs and micro-benchmarks can tell; --profile uses the result everywhere."""
    from planner.api.calibrating import ConfigurationOptions, calibrate_logs

    check_output(output, *logs, *(configurations or ()), *input_files(spec))
    options = ConfigurationOptions(framework=framework, given=tuple(given or ()), root=root, model=model)
    with progress("fitting"):
        report = calibrate_logs(logs, configurations or (), spec=spec, options=options, date=date or "")
    if output is not None:
        from planner.files.profile import write_profile

        write_profile(report.calibration.profile, output)
    from planner.report.calibration import calibration_document, calibration_report

    parts = (report.calibration, report.runs, report.links, report.assumed)
    if as_json:
        import json

        sys.stdout.write(json.dumps(calibration_document(*parts), indent=1, ensure_ascii=False) + "\n")
    else:
        print_table(calibration_report(*parts))
    if output is not None:
        print(f"saved {printable(str(output))}", file=sys.stderr)
