"""Functions on saved plans and own runs: why a plan is as it is, calibration, planned against measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from planner.api.given import workload
from planner.api.saved import PlanLike, plan_of
from planner.api.shown import Shown

if TYPE_CHECKING:
    from rich.console import RenderableType

    from planner.api.calibrating import CalibrationReport
    from planner.calibration.compare import Comparison
    from planner.domain.plan import Plan
    from planner.domain.profile import Profile
    from planner.explaining.explanation import Explanation
    from planner.files.plan import Json


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExplainResult(Shown):
    """Why a plan is as it is: what binds, the next-best alternative of each decision, what more would buy."""

    explanation: Explanation

    def document(self) -> dict[str, Json]:
        """The explanation as JSON, without the plan."""
        from planner.report.explain import explanation_document

        return explanation_document(self.explanation)

    def _summary(self) -> str:
        return f"{len(self.explanation.decisions)} decisions, {len(self.explanation.relaxations)} relaxations"

    def _report(self, width: int) -> RenderableType:
        from planner.report.explain import explanation_report

        return explanation_report(self.explanation)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CalibrationResult(Shown):
    """What logs say about the parameters of the cost model."""

    report: CalibrationReport

    @property
    def profile(self) -> Profile:
        """The fitted values, for `profile=` once they are saved."""
        return self.report.calibration.profile

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the profile (YAML); the file is complete or not there."""
        from planner.files.profile import write_profile

        write_profile(self.profile, Path(path))

    def document(self) -> dict[str, Json]:
        """The calibration as JSON."""
        from planner.report.calibration import calibration_document

        report = self.report
        return calibration_document(report.calibration, report.runs, report.links, report.assumed)

    def _summary(self) -> str:
        return f"{len(self.report.calibration.identified)} parameters told from {len(self.report.runs)} runs"

    def _report(self, width: int) -> RenderableType:
        from planner.report.calibration import calibration_report

        report = self.report
        return calibration_report(report.calibration, report.runs, report.links, report.assumed)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CompareResult(Shown):
    """A plan beside the log of a run of it."""

    plan: Plan
    comparison: Comparison

    @property
    def is_inside(self) -> bool | None:
        """Whether the measured iteration lies in the plan's band; None where one of the two is missing."""
        return self.comparison.is_inside

    def document(self) -> dict[str, Json]:
        """The comparison as JSON."""
        from planner.report.calibration import comparison_document

        return comparison_document(self.comparison)

    def _summary(self) -> str:
        words = {True: "inside the band", False: "outside the band", None: "no verdict"}
        return f"{len(self.comparison.stages)} stages, {words[self.is_inside]}"

    def _report(self, width: int) -> RenderableType:
        from planner.report.calibration import comparison_report

        return comparison_report(self.plan, self.comparison)


def explain_plan(
    plan: PlanLike, *, profile: str | PathLike[str] | None = None, time_limit: str | None = None
) -> ExplainResult:
    """Why a plan is as it is: what each decision is worth, what binds, where another plan takes over: `rlplan explain`.

    Searches the plan's space some dozen times. `profile` is the calibration that the plan was made with, `time_limit`
    holds for all of it [that of the plan]: what there is no time for is named. Raises InfeasibleError where this
    version finds no plan for the request at all.
    """
    from planner.explaining.explanation import explain_plan as explained
    from planner.explaining.watch import Watch
    from planner.files.calibrated import overheads_with
    from planner.units import Dimension, parse

    made = plan_of(plan).plan
    limit_s = made.limits.time_limit_s
    if time_limit is not None:
        limit_s = parse(time_limit, Dimension.TIME, where="time_limit")
    return ExplainResult(explanation=explained(made, overheads_with(_text(profile), made), Watch(limit_s)))


def calibrate(
    logs: PathLike[str] | str | Sequence[str | PathLike[str]], *,
    config: PathLike[str] | str | Sequence[str | PathLike[str]] = (), framework: str | None = None,
    given: Sequence[str] = (), root: str | PathLike[str] | None = None, model: str | None = None, date: str = "",
    gpus: str | None = None, cluster: str | PathLike[str] | None = None, prompt_mean: float | None = None,
    response_mean: float | None = None, response_cv: float | None = None, oversampling_ratio: float | None = None,
    reward_latency: str | None = None,
) -> CalibrationResult:  # fmt: skip
    """Fits the efficiencies that own runs and micro-benchmarks can tell: `rlplan calibrate`.

    `logs` are those of runs (verl, NeMo-RL, CSV) or output of nccl-tests or `vllm bench`; `config` what ran (a saved
    plan, a workload file with strategies, or a launch script): one for all, or one per log of a run. `framework`,
    `given`, `root` and `model` are as in `check_config`. `save` of the result writes the profile that `profile=` uses.
    Raises InvalidInputError for files that hold nothing, and for missing configurations.
    """
    from planner.api.calibrating import ConfigurationOptions, calibrate_logs

    spec = workload(
        gpus=gpus, cluster=cluster, prompt_mean=prompt_mean, response_mean=response_mean, response_cv=response_cv,
        oversampling_ratio=oversampling_ratio, reward_latency=reward_latency,
    )  # fmt: skip
    options = ConfigurationOptions(
        framework=framework, given=(given,) if isinstance(given, str) else tuple(given),
        root=None if root is None else Path(root), model=model,
    )  # fmt: skip
    report = calibrate_logs(_paths(logs), _paths(config), spec=spec, options=options, date=date)
    return CalibrationResult(report=report)


def compare(
    plan: str | PathLike[str], log: str | PathLike[str], *, profile: str | PathLike[str] | None = None,
    framework: str | None = None, given: Sequence[str] = (), root: str | PathLike[str] | None = None,
    model: str | None = None, gpus: str | None = None, cluster: str | PathLike[str] | None = None,
    prompt_mean: float | None = None, response_mean: float | None = None, response_cv: float | None = None,
    oversampling_ratio: float | None = None, reward_latency: str | None = None,
) -> CompareResult:  # fmt: skip
    """What was planned beside the log of a run of it, stage by stage: `rlplan compare`.

    `plan` is a saved plan, a workload file with strategies, or a launch script that `check_config` reads, with the
    options that it needs (`framework`, `given`, `root`, `model`, `gpus`). `profile` is the calibration that the plan
    was made with, or that a script is priced with. Raises InvalidInputError for files that are none, and for options
    that a saved plan has no use for.
    """
    from planner.api.calibrating import ConfigurationOptions, compare_log

    spec = workload(
        gpus=gpus, cluster=cluster, prompt_mean=prompt_mean, response_mean=response_mean, response_cv=response_cv,
        oversampling_ratio=oversampling_ratio, reward_latency=reward_latency, profile=profile,
    )  # fmt: skip
    options = ConfigurationOptions(
        framework=framework, given=(given,) if isinstance(given, str) else tuple(given),
        root=None if root is None else Path(root), model=model,
    )  # fmt: skip
    read, comparison = compare_log(Path(plan), Path(log), spec=spec, options=options)
    return CompareResult(plan=read, comparison=comparison)


def _paths(files: Sequence[str | PathLike[str]] | str | PathLike[str]) -> tuple[Path, ...]:
    """A single name is one file, not its letters."""
    return (Path(files),) if isinstance(files, str | PathLike) else tuple(Path(file) for file in files)


def _text(path: str | PathLike[str] | None) -> str | None:
    return None if path is None else str(Path(path))
