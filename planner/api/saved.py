"""Functions on plans: read, write, compare, replay, export, page."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from planner.api.results import BudgetResult, DiffResult, PlanResult, ReplayResult
from planner.domain.plan import Plan
from planner.errors import InvalidInputError, nearest

if TYPE_CHECKING:
    from planner.domain.budget import Sweep

PlanLike = Plan | PlanResult | str | PathLike[str]
"""A plan, or the path of a saved one."""


def read_plan(path: str | PathLike[str]) -> PlanResult:
    """A saved plan. Raises InvalidInputError that names the place when the file is no intact plan."""
    from planner.files.plan import read_plan as read

    return PlanResult(plan=read(Path(path)))


def write_plan(plan: PlanLike, path: str | PathLike[str]) -> None:
    """Saves a plan as JSON; the file is complete or not there. Raises InvalidInputError if it cannot be written."""
    plan_of(plan).save(path)


def diff(before: PlanLike, after: PlanLike) -> DiffResult:
    """What changed between two plans: `rlplan diff`. The result is false when they are the same."""
    from planner.report.difference import differences

    changes = differences(plan_of(before).plan, plan_of(after).plan)
    return DiffResult(changes=changes, names=(_name(before, "before"), _name(after, "after")))


def export(
    plan: PlanLike, *, to: str, directory: str | PathLike[str], ray: bool = False, launcher: str | None = None,
    image: str | None = None,
) -> tuple[Path, ...]:  # fmt: skip
    """Writes the files that start exactly this plan in a framework, and returns their paths: `rlplan export`.

    `to` is verl, nemo-rl, openrlhf, areal or slime. `ray` adds placement groups, `launcher` (skypilot, kuberay, slurm)
    a job file, `image` its container image. The README says what the files are predicted to do beside the plan. Raises
    InvalidInputError when the framework cannot run the plan, with every reason; then nothing is written.
    """
    from planner.adapters.registry import EXPORTERS
    from planner.exporting import export as write_export

    name = to.lower()
    if name not in EXPORTERS:
        raise InvalidInputError(
            f"{to[:60]!r} has no export", where="to", accepted=", ".join(EXPORTERS), suggestion=nearest(to, EXPORTERS)
        )
    return write_export(name, plan_of(plan).plan, Path(directory), with_ray=ray, launcher=launcher, image=image).paths


def simulate_plan(
    plan: PlanLike, *, iterations: int = 20, seed: int = 0, lengths: str | PathLike[str] | None = None,
    growth: float = 1.0, keep_cache: bool = False, profile: str | PathLike[str] | None = None,
) -> ReplayResult:  # fmt: skip
    """Replays a plan event by event with sampled responses: `rlplan simulate`.

    `lengths` is a file of observed response lengths (one per line, or length,count), `growth` the mean response at the
    last iteration over that at the first; with `keep_cache` streamed responses go on with old caches after a weight
    sync. `profile` is the calibration that the plan was made with. Raises InvalidInputError for wrong values, and
    InfeasibleError for a plan that does not fit.
    """
    from planner.files.calibrated import overheads_with
    from planner.simulate.lengths_file import read_lengths
    from planner.simulate.replay import ReplaySettings, replay

    settings = ReplaySettings(
        num_iterations=iterations,
        seed=seed,
        histogram=None if lengths is None else read_lengths(Path(lengths)),
        growth_factor=growth,
        rereads_cache=not keep_cache,
    )
    played = plan_of(plan).plan
    overheads = overheads_with(None if profile is None else str(Path(profile)), played)
    return ReplayResult(plan=played, report=replay(played, overheads, settings))


def report_html(
    source: PlanLike | BudgetResult | Sweep, output: str | PathLike[str] | None = None
) -> str:  # fmt: skip
    """A plan or a sweep as one HTML page that needs no network: `rlplan report`.

    `source` may be the path of a saved plan, or of the results of a sweep (.jsonl). Returns the page, and writes it to
    `output` where that is given. Raises InvalidInputError for a file that cannot be read or written.
    """
    text = _page(source)
    if output is not None:
        from planner.files.atomic import write_atomic

        write_atomic(Path(output), text.encode())
    return text


SWEEP_SUFFIX = ".jsonl"


def _page(source: PlanLike | BudgetResult | Sweep) -> str:
    from planner.domain.budget import Sweep
    from planner.report.html.page import plan_page
    from planner.report.html.sweep import sweep_page

    if isinstance(source, BudgetResult):
        return sweep_page(source.sweep)
    if isinstance(source, Sweep):
        return sweep_page(source)
    if not isinstance(source, Plan | PlanResult) and Path(source).suffix.lower() == SWEEP_SUFFIX:
        from planner.files.sweep import read_sweep

        return sweep_page(read_sweep(Path(source)))
    return plan_page(plan_of(source).plan)


def plan_of(plan: PlanLike) -> PlanResult:
    """The plan itself, whatever stands for it."""
    if isinstance(plan, PlanResult):
        return plan
    return PlanResult(plan=plan) if isinstance(plan, Plan) else read_plan(plan)


def _name(plan: PlanLike, otherwise: str) -> str:
    return otherwise if isinstance(plan, Plan | PlanResult) else Path(plan).name
