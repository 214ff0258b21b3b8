"""The command that compares clusters: budget."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner import cli_options as opt
from planner.commands.common import check_output, input_files, print_table, progress
from planner.commands.workload import OPTIONS, with_spec
from planner.errors import DifferenceError, InfeasibleError, InvalidInputError, printable
from planner.files.spec import WorkloadSpec

if TYPE_CHECKING:
    from planner.sweep.request import PreparedSweep, SweepOptions
    from planner.sweep.service import FinishedSweep

NOT_SWEPT = frozenset({"gpus", "cluster", "inter_pool", "inter_pool_total", "objective", "alternatives"})
"""About one cluster or one plan."""


def _text(name: str, metavar: str, help: str) -> object:
    return typer.Option(name, metavar=metavar, help=help, parser=str)


def _number(name: str, metavar: str, help: str) -> object:
    def read(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise InvalidInputError(f"{text[: opt.SHOWN_LENGTH]!r} is not a number", where=name) from None

    return typer.Option(name, metavar=metavar, help=help, parser=read)


def _count(name: str, help: str) -> object:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 9):
            raise InvalidInputError(f"{text[: opt.SHOWN_LENGTH]!r} is not a whole number", where=name)
        return int(text)

    return typer.Option(name, metavar="N", help=help, parser=read)


def _file(name: str, help: str) -> object:
    return typer.Option(name, metavar="FILE", help=help, parser=Path)


Sizes = Annotated[str | None, _text("--gpus", "SIZES", "8..512, 8..512:24 or 8,16,32; whole nodes [8..512]")]
Types = Annotated[str | None, _text("--types", "NAMES", "GPU types [h100,h200,b200,gb200]")]
Nodes = Annotated[str | None, _text("--nodes", "NAMES", "node types, such as p5.48xlarge")]
Lengths = Annotated[str | None, _text("--lengths", "TOKENS", "mean responses to sweep: 1000,3000,6000")]
Spot = Annotated[bool, typer.Option("--spot", help="spot prices, and nodes that are taken back")]
PriceFile = Annotated[Path | None, _file("--prices", "own prices: CSV or YAML, or a CSV of gpuhunt")]
Startup = Annotated[str | None, _text("--startup", "TIME", "until the first iteration, also after failures [15min]")]
CheckpointEvery = Annotated[int | None, _count("--checkpoint-every", "iterations between checkpoints at most [20]")]
CheckpointRate = Annotated[str | None, _text("--checkpoint-rate", "RATE", "of writing, per node [2 GB/s]")]
ValidationEvery = Annotated[int | None, _count("--validation-every", "iterations between validations, 0: none [20]")]
ValidationPrompts = Annotated[int | None, _count("--validation-prompts", "responses of a validation [500]")]
FailureRate = Annotated[float | None, _number("--failure-rate", "X", "failures per GPU-hour [2e-5]")]
InterruptionRate = Annotated[float | None, _number("--interruption-rate", "X", "of spot, per node-hour [0.01]")]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="keep rows as JSON Lines", parser=Path)
]
Resume = Annotated[bool, typer.Option("--resume", help="go on with what --output holds")]
Csv = Annotated[Path | None, _file("--csv", "write all rows as a table")]
Workers = Annotated[int | None, _count("--workers", "processes that plan [1]")]
Executor = Annotated[str | None, _text("--executor", "NAME", "local, ray or dask [local]")]


@with_spec(*(name for name in OPTIONS if name not in NOT_SWEPT))
def budget(
    spec: WorkloadSpec,
    sizes: Sizes = None,
    types: Types = None,
    nodes: Nodes = None,
    lengths: Lengths = None,
    spot: Spot = False,
    price_file: PriceFile = None,
    startup: Startup = None,
    checkpoint_every: CheckpointEvery = None,
    checkpoint_rate: CheckpointRate = None,
    validation_every: ValidationEvery = None,
    validation_prompts: ValidationPrompts = None,
    failure_rate: FailureRate = None,
    interruption_rate: InterruptionRate = None,
    output: Output = None,
    resume: Resume = False,
    csv: Csv = None,
    workers: Workers = None,
    executor: Executor = None,
    as_json: opt.AsJson = False,
) -> None:
    """Compare clusters for a whole run: cheapest, fastest, smallest, and what that rests on."""
    from planner.sweep.request import SweepOptions

    if resume and output is None:
        raise InvalidInputError("needs the file to go on with", where="--resume", accepted="--output FILE")
    check_output(csv, output, price_file, *input_files(spec), option="--csv")
    options = SweepOptions(
        sizes=sizes, types=types, nodes=nodes, response_means=lengths, spot=spot, price_file=price_file,
        startup=startup, checkpoint_every=checkpoint_every, checkpoint_rate=checkpoint_rate,
        validation_every=validation_every, validation_prompts=validation_prompts,
        failures_per_gpu_hour=failure_rate, interruptions_per_node_hour=interruption_rate,
    )  # fmt: skip
    with progress("preparing"):
        from planner.sweep.request import prepare

        prepared = prepare(spec, options)
    finished = _run(prepared, output, resume, executor, workers)
    if csv is not None:
        from planner.files.sweep import write_csv

        write_csv(finished.sweep, csv)
        print(f"saved {printable(str(csv))}", file=sys.stderr)
    _show(prepared, finished, options, as_json=as_json)


def _run(
    prepared: PreparedSweep, output: Path | None, resume: bool, executor: str | None, workers: int | None
) -> FinishedSweep:
    from planner.api.sweeps import executor_named
    from planner.sweep.service import run_sweep

    kind = executor_named(executor or "local")
    seen = [0, 0]
    try:
        with _bar() as show:

            def note(done: int, total: int) -> None:
                seen[:] = done, total
                show(done, total)

            finished = run_sweep(
                prepared, output=output, resume=resume, executor=kind, num_workers=workers,
                on_progress=note,
            )  # fmt: skip
    except KeyboardInterrupt:
        if output is not None:
            print(
                f"{seen[0]:,} of {seen[1]:,} points are in {printable(str(output))}; --resume goes on", file=sys.stderr
            )
        raise
    if output is not None:
        print(f"saved {printable(str(output))}", file=sys.stderr)
    return finished


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """A progress bar with the time left, on stderr and only on a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("planning"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("points, left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("planning", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show(prepared: PreparedSweep, finished: FinishedSweep, options: SweepOptions, *, as_json: bool) -> None:
    from planner.report.budget import budget_document, budget_report

    with progress("looking at the best plans"):
        from planner.api.sweeps import budget_view

        view = budget_view(prepared, finished, options.price_file)
    if as_json:
        import json

        print(json.dumps(budget_document(view), indent=1, ensure_ascii=False))
    else:
        print_table(budget_report(view))
    if not view.choice.picks:
        from planner.whatif import nearest_misses

        raise InfeasibleError(nearest_misses(finished.sweep, view.choice))
    if finished.given_up:
        raise DifferenceError(
            f"{len(finished.given_up):,} points were not planned, their worker died twice (out of memory?); "
            f"--resume tries them again"
        )
