"""`rlplan simulate`: replay a saved plan event by event."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from planner import cli_options as opt
from planner.commands.common import check_output, print_table, progress
from planner.errors import DifferenceError, printable

Iterations = Annotated[
    int | None,
    opt.option("--iterations", metavar="N", help="iterations to play [20]", convert=opt.whole, kind="an integer"),
]
ReplaySeed = Annotated[
    int | None,
    opt.option("--seed", metavar="N", help="of the sampled lengths [0]", convert=opt.whole, kind="an integer"),
]
LengthsFile = Annotated[
    Path | None,
    opt.option(
        "--lengths",
        metavar="FILE",
        help="observed response lengths in place of the plan's law: one per line, or length,count",
        convert=opt.file_path,
        kind="a file name",
    ),
]
Growth = Annotated[
    float | None,
    opt.option(
        "--growth",
        metavar="X",
        help="mean response at the last iteration over that at the first [1]",
        convert=float,
        kind="a number",
    ),
]
Trace = Annotated[
    Path | None,
    opt.option("--trace", metavar="FILE", help="write a trace for Perfetto", convert=opt.file_path, kind="a file name"),
]
KeepCache = Annotated[
    bool, typer.Option("--keep-cache", help="streaming: responses go on with old caches after a weight sync")
]


def simulate(
    file: opt.PlanFile,
    iterations: Iterations = None,
    seed: ReplaySeed = None,
    lengths: LengthsFile = None,
    growth: Growth = None,
    keep_cache: KeepCache = False,
    profile: opt.Profile = None,
    trace: Trace = None,
    as_json: opt.AsJson = False,
) -> None:
    """Replay a saved plan with sampled responses; exit code 5 when its time lies outside the replay's 95 % band."""
    from planner.files.atomic import write_atomic
    from planner.files.calibrated import overheads_with
    from planner.files.plan import read_plan
    from planner.simulate.lengths_file import read_lengths
    from planner.simulate.replay import ReplaySettings, replay

    check_output(trace, file, lengths, profile, option="--trace")
    defaults = ReplaySettings()
    settings = ReplaySettings(
        num_iterations=defaults.num_iterations if iterations is None else iterations,
        seed=defaults.seed if seed is None else seed,
        histogram=None if lengths is None else read_lengths(lengths),
        growth_factor=defaults.growth_factor if growth is None else growth,
        rereads_cache=not keep_cache,
    )
    plan = read_plan(file)
    with progress("replaying"):
        report = replay(plan, overheads_with(profile, plan), settings)
    if trace is not None:
        from planner.report.trace import trace_text

        write_atomic(trace, trace_text(plan, report.recording).encode())
    if as_json:
        import json

        from planner.report.simulate import replay_document

        print(json.dumps(replay_document(report), indent=1, ensure_ascii=False))
    else:
        from planner.report.simulate import replay_report

        print_table(replay_report(plan, report))
    if trace is not None:
        print(f"saved {printable(str(trace))}; https://ui.perfetto.dev opens it", file=sys.stderr)
    if not report.is_inside:
        raise typer.Exit(DifferenceError.exit_code)
