"""Exports with the price of what they say: frameworks do some things whatever the plan says.

The exported files are read back as `rlplan check` reads any configuration, and priced like the plan. A plan that was
made for the framework prices the same to the last digit (tested); one that was made without a framework may not: one
budget where the plan has two, states that leave the GPUs in any case, engines that stay.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from planner.adapters.cluster_files import export_with_cluster_files
from planner.adapters.export import ExportFile
from planner.adapters.import_source import open_source
from planner.adapters.imported import Imported
from planner.adapters.importers import import_source
from planner.adapters.registry import exported_files
from planner.check import as_run, placed
from planner.domain.framework_placed import placed_workers
from planner.domain.hardware import Cluster
from planner.domain.plan import Plan
from planner.domain.request import FixedWorker, PlanRequest
from planner.domain.stages import WorkerName
from planner.domain.strategy import RolloutStrategy, Strategy, TrainerStrategy
from planner.errors import InvalidInputError
from planner.files.framework import load_framework
from planner.pipeline import FixedPlan, price_fixed
from planner.units import format_seconds

SAME_RATIO = 1e-6
"""Prices that differ by less are the same: configurations carry as many digits as plans."""
_CALIBRATED_RATIO = 1e-3
_ENTRY = {"areal": "config.yaml"}
_SCRIPT = "run.sh"
_GIVEN = {"TRAIN_DATA": "train", "REWARD_FUNCTION": "reward.score", "NEMO_RL": "/nemo-rl", "AREAL_FILEROOT": "/areal"}
"""Variables that exported scripts insist on, and on which no price depends."""
_FORWARD_ONLY = (WorkerName.REFERENCE, WorkerName.REWARD_MODEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A stage whose time differs."""

    stage: str
    planned_s: float
    exported_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AsExported:
    """What an exported plan is predicted to do: both times by the same cost model, of one iteration."""

    title: str
    """The framework."""
    planned_s: float
    exported_s: float
    stages: tuple[Changed, ...]
    fields: tuple[str, ...]
    """What the configuration says otherwise, as `actor trainer: offload state-swap instead of none`."""
    misfits: tuple[str, ...]
    """Why it does not fit as exported, although the plan does."""
    saved_s: float
    """The time in the saved plan, which a calibration of the user's own may have changed."""

    @property
    def is_same(self) -> bool:
        """Whether the export does what was planned."""
        return not self.misfits and abs(self.exported_s - self.planned_s) <= SAME_RATIO * self.planned_s

    @property
    def summary(self) -> str:
        """One line."""
        if self.is_same:
            return f"{format_seconds(self.exported_s)} per iteration predicted as exported, as planned"
        difference = self.exported_s - self.planned_s
        sign = "+" if difference >= 0 else "-"
        share = f"{100.0 * difference / self.planned_s:+.2g} %"
        text = (
            f"{format_seconds(self.exported_s)} per iteration predicted as exported, {format_seconds(self.planned_s)} "
            f"as planned ({sign}{format_seconds(abs(difference))}, {share})"
        )
        return f"{text}; it does not fit" if self.misfits else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Files that were written, and what they are predicted to do: None where that could not be priced here."""

    paths: tuple[Path, ...]
    as_exported: AsExported | None
    why_not: str
    """Why there is no price, such as a model whose directory is on another machine."""

    @property
    def summary(self) -> str:
        """One line."""
        return f"not priced as exported: {self.why_not}" if self.as_exported is None else self.as_exported.summary


def export(
    framework: str,
    plan: Plan,
    directory: Path,
    *,
    with_ray: bool = False,
    launcher: str | None = None,
    image: str | None = None,
) -> Exported:
    """Writes the export to `framework`, with the predicted effect of what it does otherwise in its README.

    `launcher` and `image` as in `export_with_cluster_files`. Raises InvalidInputError when the framework cannot run the
    plan, or the directory cannot be written; then nothing is left behind.
    """
    files = exported_files(framework, plan)
    found, why_not = None, ""
    try:
        found = price_as_exported(framework, plan, files)
    except InvalidInputError as error:
        # The files start the plan all the same.
        why_not = str(error)
    remarks = (f"Not priced: {why_not}.",) if found is None else _remarks(found)
    paths = export_with_cluster_files(
        framework, plan, directory, with_ray=with_ray, launcher=launcher, image=image, remarks=remarks
    )
    return Exported(paths=paths, as_exported=found, why_not=why_not)


def price_as_exported(framework: str, plan: Plan, files: Sequence[ExportFile]) -> AsExported:
    """The price of what the files say beside that of the plan.

    Raises InvalidInputError where that cannot be told: plans over several pools, models that are not at hand.
    """
    workers = placed_workers(plan)
    pools = {worker.group.pool for worker in workers}
    if len(pools) != 1:
        raise InvalidInputError("configurations do not say which of several pools a worker gets")
    request = PlanRequest(
        workload=plan.workload,
        cluster=Cluster(pools=tuple(pool for pool in plan.cluster.pools if pool.name in pools)),
        gpu_type_when_open=None,
        limits=plan.limits,
        assumptions=(),
    )
    before = tuple(
        FixedWorker(
            worker=item.name, pool=item.group.pool, first_gpu=item.group.first_gpu, num_gpus=item.group.num_gpus,
            strategy=item.strategy,
        )
        for item in workers
    )  # fmt: skip
    planned = price_fixed(request, before, plan.execution)
    imported = read_back(framework, plan, files)
    rules = load_framework(framework)
    request = as_run(imported, request)
    after = placed(imported, request)
    exported = price_fixed(request, after, replace(imported.execution, policy=rules.policy))
    return AsExported(
        title=rules.title,
        planned_s=planned.plan.time_s,
        exported_s=exported.plan.time_s,
        stages=_changed(planned, exported),
        fields=_differences(before, after),
        misfits=tuple(item.text for item in exported.misfits) if not planned.misfits else (),
        saved_s=plan.time_s,
    )


def read_back(framework: str, plan: Plan, files: Sequence[ExportFile]) -> Imported:
    """The configuration that exported files are, read as a check reads it. Nothing is executed."""
    given: Mapping[str, str] = _GIVEN
    if framework == "openrlhf":
        # vLLM's own limit, for which there is no flag.
        given = {**_GIVEN, "vllm.max_num_seqs": str(_sequences(plan))}
    with tempfile.TemporaryDirectory(prefix="rlplan-export-") as name:
        for file in files:
            (Path(name) / file.name).write_text(file.text, encoding="utf-8")
        imported = import_source(open_source(Path(name) / _ENTRY.get(framework, _SCRIPT), given=given), framework)
    if imported.unresolved:
        known = f"{', '.join(imported.unresolved)} cannot be read here"
        reasons = [item.message for item in imported.findings if item.place.endswith(imported.unresolved)]
        raise InvalidInputError("; ".join([known, *reasons]))
    return imported


def _sequences(plan: Plan) -> int:
    engines = [item.strategy for item in placed_workers(plan) if item.name is WorkerName.ROLLOUT_ENGINE]
    return max((item.max_num_seqs for item in engines if isinstance(item, RolloutStrategy)), default=1)


def _changed(planned: FixedPlan, exported: FixedPlan) -> tuple[Changed, ...]:
    times = {item.stage: item.time_s for item in planned.plan.placements}
    return tuple(
        Changed(stage=item.stage.value, planned_s=times.get(item.stage, 0.0), exported_s=item.time_s)
        for item in exported.plan.placements
        if abs(item.time_s - times.get(item.stage, 0.0)) > SAME_RATIO * planned.plan.time_s
    )


def _differences(before: Sequence[FixedWorker], after: Sequence[FixedWorker]) -> tuple[str, ...]:
    strategies = {item.worker: item.strategy for item in after}
    return tuple(
        f"{item.worker.value}: {field.replace('_', ' ')} {_text(strategies[item.worker], field)} instead of "
        f"{_text(item.strategy, field)}"
        for item in before
        if item.worker in strategies
        for field in _differing(item.worker, item.strategy, strategies[item.worker])
    )


def _differing(worker: WorkerName, before: Strategy, after: Strategy) -> tuple[str, ...]:
    if type(before) is not type(after):
        return ()
    silent = {"micro_batch_tokens"} if worker in _FORWARD_ONLY else set[str]()
    if isinstance(before, TrainerStrategy) and before.cp == 1:
        silent.add("context_parallel")
    return tuple(
        field.name
        for field in fields(before)
        if field.name not in silent and getattr(before, field.name) != getattr(after, field.name)
    )


def _text(strategy: Strategy, field: str) -> str:
    value = getattr(strategy, field)
    if isinstance(value, str):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _remarks(found: AsExported) -> tuple[str, ...]:
    """Lines of Markdown for the README."""
    lines = [f"{found.summary[:1].upper()}{found.summary[1:]}."]
    if not found.is_same:
        lines += [f"- {text}" for text in found.fields]
        lines += [
            f"- {item.stage}: {format_seconds(item.exported_s)} instead of {format_seconds(item.planned_s)}"
            for item in found.stages
        ]
        lines += [f"- does not fit: {text}" for text in found.misfits]
    if abs(found.saved_s - found.planned_s) > _CALIBRATED_RATIO * found.planned_s:
        lines.append(
            f"- The saved plan says {format_seconds(found.saved_s)}, by a calibration or version of its own; both "
            "times above are by the cost model of this export."
        )
    return tuple(lines)
