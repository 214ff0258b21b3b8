"""Results of the API: what the library found, with the report that the command line prints of it."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from planner.api.shown import Shown

if TYPE_CHECKING:
    from rich.console import RenderableType

    from planner.analysis import Analysis
    from planner.check import CheckView
    from planner.domain.budget import Sweep
    from planner.domain.plan import Plan
    from planner.files.plan import Json
    from planner.pareto import FrontPoint
    from planner.peers.compare import Comparison
    from planner.pipeline import Planned
    from planner.report.budget import BudgetView
    from planner.report.difference import Change
    from planner.simulate.record import ReplayReport
    from planner.validation.run import Evaluation
    from planner.validation.targets import HeldOutError

WORST_ROWS = 5


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlanResult(Shown):
    """A plan. All figures are in `plan` (seconds, bytes, USD); what is used most is here too.

    `planned` is the search behind a plan of `plan()`, None for plans of `estimate` or from a file.
    """

    plan: Plan
    planned: Planned | None = None

    @property
    def time_s(self) -> float:
        """Seconds per iteration."""
        return self.plan.time_s

    @property
    def num_gpus(self) -> int:
        """GPUs that the plan uses."""
        return self.plan.num_gpus

    @property
    def usd(self) -> float | None:
        """USD per iteration of the nodes used; None where a price is missing."""
        return self.plan.usd

    @property
    def problems(self) -> tuple[str, ...]:
        """Why a fixed configuration cannot run; empty for one that can, and for every plan that was searched."""
        from planner.report.words import misfits

        return misfits(self.plan)

    def save(self, path: str | PathLike[str]) -> None:
        """Saves the plan as JSON; the file is complete or not there. Raises InvalidInputError if it cannot be."""
        from planner.files.plan import write_plan

        write_plan(self.plan, Path(path))

    def document(self) -> dict[str, Json]:
        """The saved form: docs/schemas/plan.schema.json describes it."""
        from planner.files.plan import plan_document

        return plan_document(self.plan)

    def pareto_front(self) -> ParetoResult:
        """The plans of the same search that trade time for money. Raises InvalidInputError without a search."""
        from planner.errors import InvalidInputError

        if self.planned is None:
            raise InvalidInputError("has no search behind it", where="pareto_front", accepted="a result of plan()")
        from planner.pareto import pareto_front

        points = pareto_front(self.planned.outcome, self.plan.limits)
        return ParetoResult(points=tuple(points))

    def baselines(self) -> BaselinesResult | None:
        """What other planners and rules of thumb would do with the same request; None where no synchronous plan exists.

        Takes some seconds.
        """
        from planner.peers.compare import compare_plan

        found = compare_plan(self.plan)
        return None if found is None else BaselinesResult(plan=self.plan, comparison=found)

    def _summary(self) -> str:
        from planner.report.words import one_line
        from planner.units import format_seconds

        plan = one_line(self.plan)
        return (
            f"{plan.workload.algorithm.title} on {plan.workload.actor.id}, {plan.num_gpus} GPUs, "
            f"{format_seconds(plan.time_s)} per iteration, {plan.status.value}"
        )

    def _report(self, width: int) -> RenderableType:
        from planner.report.terminal import render

        return render(self.plan, width=width)

    def _repr_html_(self) -> str:
        from planner.report.html.page import plan_page
        from planner.report.notebook import page_html

        return page_html(plan_page(self.plan), title=self._summary())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ParetoResult(Shown):
    """The front of time against money of one request, fastest plan first."""

    points: tuple[FrontPoint, ...]

    def document(self) -> Json:
        """The points as JSON."""
        from planner.report.pareto import pareto_document

        return pareto_document(self.points)

    def _summary(self) -> str:
        return f"{len(self.points)} plans"

    def _report(self, width: int) -> RenderableType:
        from planner.report.pareto import pareto_report

        return pareto_report(self.points)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BaselinesResult(Shown):
    """The plans of other planners beside a plan."""

    plan: Plan
    comparison: Comparison

    def document(self) -> dict[str, Json]:
        """The comparison as JSON."""
        from planner.report.baselines import baselines_document

        return baselines_document(self.comparison)

    def _summary(self) -> str:
        return f"{len(self.comparison.peers)} peers"

    def _report(self, width: int) -> RenderableType:
        from planner.report.baselines import baselines_report

        return baselines_report(self.comparison, self.plan)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AnalysisResult(Shown):
    """Work, depth, bytes and lower bounds of each stage; with the plan's times where one was made."""

    analysis: Analysis

    def document(self) -> dict[str, Json]:
        """The analysis as JSON."""
        from planner.report.analysis import analysis_document

        return analysis_document(self.analysis)

    def _summary(self) -> str:
        return f"{len(self.analysis.stages)} stages"

    def _report(self, width: int) -> RenderableType:
        from planner.report.analysis import analysis_report

        return analysis_report(self.analysis, width=width)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BudgetResult(Shown):
    """A finished sweep over clusters. `view.choice.picks` is empty where nothing keeps the limits."""

    view: BudgetView

    @property
    def sweep(self) -> Sweep:
        """All points with their rows."""
        return self.view.sweep

    def save_csv(self, path: str | PathLike[str]) -> None:
        """Writes all rows as a table."""
        from planner.files.sweep import write_csv

        write_csv(self.sweep, Path(path))

    def document(self) -> Json:
        """The answer as JSON."""
        from planner.report.budget import budget_document

        return budget_document(self.view)

    def _summary(self) -> str:
        return f"{len(self.sweep.rows):,} points"

    def _report(self, width: int) -> RenderableType:
        from planner.report.budget import budget_report

        return budget_report(self.view)

    def _repr_html_(self) -> str:
        from planner.report.html.sweep import sweep_page
        from planner.report.notebook import page_html

        return page_html(sweep_page(self.sweep), title=self._summary())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckResult(Shown):
    """What a framework's configuration does, whether it runs, and what would be better."""

    view: CheckView

    @property
    def has_problem(self) -> bool:
        """Whether the configuration does not run as it is."""
        return self.view.has_problem

    def document(self) -> dict[str, Json]:
        """The findings as JSON."""
        from planner.report.check import check_document

        return check_document(self.view)

    def _summary(self) -> str:
        return f"{self.view.imported.framework}, {'has problems' if self.has_problem else 'runs'}"

    def _report(self, width: int) -> RenderableType:
        from planner.report.check import check_report

        return check_report(self.view)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReplayResult(Shown):
    """A plan that was replayed event by event."""

    plan: Plan
    report: ReplayReport

    @property
    def is_inside(self) -> bool:
        """Whether the plan's time lies in the replay's 95 % band."""
        return self.report.is_inside

    def save_trace(self, path: str | PathLike[str]) -> None:
        """Writes a trace that https://ui.perfetto.dev opens."""
        from planner.files.atomic import write_atomic
        from planner.report.trace import trace_text

        write_atomic(Path(path), trace_text(self.plan, self.report.recording).encode())

    def document(self) -> dict[str, Json]:
        """The replay as JSON, without the recording."""
        from planner.report.simulate import replay_document

        return replay_document(self.report)

    def _summary(self) -> str:
        from planner.units import format_range

        return f"95% band {format_range(*self.report.band_s)}, plan {'inside' if self.is_inside else 'outside'}"

    def _report(self, width: int) -> RenderableType:
        from planner.report.simulate import replay_report

        return replay_report(self.plan, self.report)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DiffResult(Shown):
    """What changed between two plans; false exactly when they are the same."""

    changes: tuple[Change, ...]
    names: tuple[str, str] = ("before", "after")

    def __bool__(self) -> bool:
        return bool(self.changes)

    def document(self) -> list[Json]:
        """The changes as JSON."""
        return [{"place": c.place, "before": c.before, "after": c.after} for c in self.changes]

    def _summary(self) -> str:
        return f"{len(self.changes)} changes"

    def _report(self, width: int) -> RenderableType:
        from planner.report.difference import change_table

        if not self.changes:
            from rich.text import Text

            return Text("The plans are the same.")
        return change_table(self.changes, before=self.names[0], after=self.names[1])


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ValidationResult(Shown):
    """The cost model against measurements. `held_out` has the errors with model families held out of the fit."""

    evaluations: tuple[Evaluation, ...]
    held_out: tuple[HeldOutError, ...]

    def document(self, *, num_worst: int = WORST_ROWS, with_anchors: bool = True) -> Json:
        """The errors as JSON."""
        from planner.report.accuracy_json import accuracy_document

        return accuracy_document(self.evaluations, self.held_out, num_worst=num_worst, with_anchors=with_anchors)

    def report(self, *, num_worst: int = WORST_ROWS, with_anchors: bool = True) -> RenderableType:
        """The tables of `rlplan validate`, for rich."""
        from planner.report.accuracy import accuracy_report

        return accuracy_report(self.evaluations, self.held_out, num_worst=num_worst, with_anchors=with_anchors)

    def _summary(self) -> str:
        return f"{len(self.evaluations)} tables"

    def _report(self, width: int) -> RenderableType:
        return self.report()
