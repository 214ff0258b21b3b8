"""Sweeps over clusters: what to rent for a whole run."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from planner.api.given import ModelLike, workload
from planner.api.results import BudgetResult
from planner.errors import InvalidInputError, nearest
from planner.files.spec import WorkloadSpec

if TYPE_CHECKING:
    from planner.report.budget import BudgetView
    from planner.sweep.lanes import ExecutorKind
    from planner.sweep.request import PreparedSweep
    from planner.sweep.service import FinishedSweep


def budget(
    model: ModelLike, *, sizes: str | None = None, types: str | None = None, nodes: str | None = None,
    lengths: str | None = None, spot: bool = False, price_file: str | PathLike[str] | None = None,
    startup: str | None = None, checkpoint_every: int | None = None, checkpoint_rate: str | None = None,
    validation_every: int | None = None, validation_prompts: int | None = None, failure_rate: float | None = None,
    interruption_rate: float | None = None, output: str | PathLike[str] | None = None, resume: bool = False,
    workers: int | None = None, executor: str = "local", on_progress: Callable[[int, int], None] | None = None,
) -> BudgetResult:  # fmt: skip
    """Compares clusters for a whole run: cheapest, fastest, smallest, and what that rests on: `rlplan budget`.

    `model` may be a workload, `budget(workload("qwen3-32b", steps=500, deadline="7d"), sizes="8..128")`; what it says
    of one cluster is not read. `sizes` are GPUs (`8..512`, `8..512:24`, `8,16,32`), `lengths` mean responses to sweep.
    With `output`, finished points are kept in that file, and `resume` goes on with it. `on_progress` is called with
    the number of finished points and of all. With several `workers` the calling module must be importable (a script
    needs `if __name__ == "__main__":`).

    Raises InvalidInputError for wrong values. Where no cluster keeps the limits, the picks are empty.
    """
    from planner.sweep.request import SweepOptions, prepare
    from planner.sweep.service import run_sweep

    if resume and output is None:
        raise InvalidInputError("needs the file to go on with", where="resume", accepted="output")
    file = None if price_file is None else Path(price_file)
    options = SweepOptions(
        sizes=sizes, types=types, nodes=nodes, response_means=lengths, spot=spot, price_file=file,
        startup=startup, checkpoint_every=checkpoint_every, checkpoint_rate=checkpoint_rate,
        validation_every=validation_every, validation_prompts=validation_prompts,
        failures_per_gpu_hour=failure_rate, interruptions_per_node_hour=interruption_rate,
    )  # fmt: skip
    kind = executor_named(executor)
    prepared = prepare(model if isinstance(model, WorkloadSpec) else workload(model), options)
    finished = run_sweep(
        prepared, output=None if output is None else Path(output), resume=resume, executor=kind, num_workers=workers,
        on_progress=on_progress or _ignore,
    )  # fmt: skip
    return BudgetResult(view=budget_view(prepared, finished, file))


def executor_named(name: str) -> ExecutorKind:
    """The executor of a name; raises InvalidInputError for an unknown one."""
    from planner.sweep.lanes import ExecutorKind

    known = [kind.value for kind in ExecutorKind]
    if name.lower() not in known:
        raise InvalidInputError(
            f"{name[:60]!r} is not known",
            where="--executor",
            accepted=", ".join(known),
            suggestion=nearest(name, known),
        )
    return ExecutorKind(name.lower())


def budget_view(prepared: PreparedSweep, finished: FinishedSweep, price_file: Path | None) -> BudgetView:
    """A finished sweep with what is worked out of it: picks and their plans, smallest clusters, sensitivity."""
    from planner.files.prices import read_price_file
    from planner.report.budget import BudgetView
    from planner.sweep.smallest import smallest_fits
    from planner.whatif import choose, full_plans, group_of, sensitivity

    sweep, choice = finished.sweep, choose(finished.sweep)
    effects = None
    plans = full_plans(prepared.tasks, choice)
    if plans:
        entry = choice.picks[0].entry
        request = group_of(prepared.tasks, entry.point).at(entry.point.num_gpus)
        effects = sensitivity(sweep, choice, entry, plans[0], request)
    return BudgetView(
        sweep=sweep,
        choice=choice,
        plans=plans,
        smallest=smallest_fits(prepared.tasks, sweep),
        sensitivity=effects,
        given_up=finished.given_up,
        unknown_gpus=() if price_file is None else read_price_file(price_file).unknown_gpus,
    )


def _ignore(done: int, total: int) -> None:
    del done, total
