"""Whole RL steps and their stages against published runs, each with its own configuration (no search).

`planner.assembly.assemble` prices the stages of the run that a row describes (`planner.validation.rl_runs`). The step
is their schedule when synchronous, and the steady-state period when asynchronous.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

import numpy as np

from planner.assembly import assemble, one_row
from planner.cost.asynchronous import AsynchronousTimes, exposed_generation_s, period_s
from planner.cost.layout import model_totals
from planner.domain.execution import IN_STEP, Execution, ExecutionMode
from planner.domain.overheads import Overheads
from planner.domain.plan import NamedValue
from planner.domain.stages import StageName, WorkerName, build_graph
from planner.domain.strategy import RolloutStrategy
from planner.domain.workload import Workload
from planner.errors import InvalidInputError
from planner.files.catalog import load_overheads
from planner.files.fields import Fields
from planner.search.pricing import PricingInputs, price_table, site_of
from planner.units import Dimension
from planner.validation import read
from planner.validation.read import Row, RowError
from planner.validation.records import Keys, Priced, Table, TableResult, Unpriced
from planner.validation.rl_runs import NEMO_RL, VERL, ExcludedError, Run, implied_lengths, read_run, row_gpu

_TRAINER_STAGES = (
    StageName.OLD_LOGPROB,
    StageName.REFERENCE_LOGPROB,
    StageName.CRITIC_VALUE,
    StageName.ACTOR_UPDATE,
    StageName.CRITIC_UPDATE,
)
_ONCE_PER_ROLLOUT = frozenset(("prefill", "reprefill", "wake", "switch", "reload"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What published runs differ in and plans do not: old releases, engines without graphs, drafted tokens."""

    eager_kernel_s: float
    """Host time per kernel of a decode step that runs without CUDA graphs."""
    accepted_ratio: float
    """Share of drafted tokens that are accepted."""
    releases: tuple[tuple[str, str, float], ...]
    """(framework, newest release, slowdown per release behind it in log units)."""

    def release_ratio(self, framework: str, release: str) -> float:
        """Seconds in an older release over those in the newest; releases count in tenths. 1 where unknown."""
        for name, newest, slope in self.releases:
            if name == framework and release:
                return math.exp(slope * max(0.0, _release(newest) - _release(release)))
        return 1.0


def _release(text: str) -> float:
    """`0.6` or `0.6.1` or `0.7-dev` -> 6 or 7; 0 for anything else."""
    match = re.match(r"0\.(\d+)", text)
    return float(match.group(1)) if match else 0.0


@cache
def load_conditions() -> Conditions:
    """The conditions of data/rl.yaml."""
    import yaml

    content = files("planner.validation").joinpath("data", "rl.yaml").read_text(encoding="utf-8")
    fields = Fields(yaml.load(content, Loader=yaml.CSafeLoader), where="rl.yaml")
    eager, accepted = fields.section("eager_kernel"), fields.section("accepted_ratio")
    return Conditions(
        eager_kernel_s=eager.quantity("value", Dimension.TIME),
        accepted_ratio=accepted.number("value", limit=1),
        releases=tuple(
            (item.text("framework"), item.text("newest"), item.number("slowdown_per_release", limit=1))
            for item in fields.sections("releases")
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Predicted seconds of one step: stages by name with their terms, and the whole."""

    stages: Mapping[StageName, tuple[NamedValue, ...]]
    step_s: float
    exposed_generation_s: float | None
    """Asynchronous: what of the rollout the trainer waits for."""

    def stage_s(self, stage: StageName) -> float:
        """Seconds of a stage; 0 if the run has none."""
        return sum(term.value for term in self.stages.get(stage, ()))


def price_run(run: Run, overheads: Overheads, conditions: Conditions) -> StepTimes:
    """Seconds of every stage and of the whole step of one run."""
    assembled = assemble(run.placed, _inputs(run.workload, overheads), None)
    stages = {placement.stage: placement.time_terms for placement in assembled.placements}
    rollout = {term.name: term.value for term in stages[StageName.ROLLOUT]}
    stages[StageName.ROLLOUT] = _under_conditions(run, rollout, overheads, conditions)
    release = conditions.release_ratio(run.framework, run.release)
    stages = {stage: _times(terms, release) for stage, terms in stages.items()}
    times = StepTimes(stages=stages, step_s=0.0, exposed_generation_s=None)
    if run.is_asynchronous:
        return _asynchronous(run, times, overheads, conditions)
    return replace(times, step_s=sum(times.stage_s(stage) for stage in stages))


def _inputs(workload: Workload, overheads: Overheads) -> PricingInputs:
    return PricingInputs(
        workload=workload,
        graph=build_graph(workload),
        overheads=overheads,
        rules=None,
        cross_pool_bytes_per_s=None,
        across_sizes=True,
    )


def _sum(terms: Sequence[NamedValue]) -> float:
    return sum(term.value for term in terms)


def _times(terms: Sequence[NamedValue], factor: float) -> tuple[NamedValue, ...]:
    return tuple(NamedValue(name=term.name, value=term.value * factor) for term in terms)


def mean_engine_s(run: Run, overheads: Overheads, conditions: Conditions) -> float:
    """Seconds of the rollout of one engine with an equal share of the prompts, as verl logs it."""
    workload = run.workload
    placed = next(item for item in run.placed if item.worker.name is WorkerName.ROLLOUT_ENGINE)
    assert isinstance(placed.strategy, RolloutStrategy)
    strategy, num_engines = placed.strategy, placed.strategy.num_engines
    share = max(1, round(workload.num_prompts / num_engines))
    engine = replace(placed, strategy=replace(strategy, num_gpus=strategy.engine_gpus))
    alone = replace(run, workload=replace(workload, num_prompts=share), placed=(engine,))
    return conditions.release_ratio(run.framework, run.release) * _sum(_rollout_terms(alone, overheads, conditions))


def _engine_terms(run: Run, overheads: Overheads, execution: Execution = IN_STEP) -> dict[str, float]:
    item = next(item for item in run.placed if item.worker.name is WorkerName.ROLLOUT_ENGINE)
    inputs = replace(_inputs(run.workload, overheads), execution=execution)
    costs = price_table(item.worker, one_row(item.strategy), site_of(item.pool, inputs), inputs)
    return {name: float(seconds[0]) for name, seconds in costs.stages[0].time_terms.items()}


def _rollout_terms(
    run: Run, overheads: Overheads, conditions: Conditions, execution: Execution = IN_STEP
) -> tuple[NamedValue, ...]:
    """Terms of the rollout of a run under its conditions."""
    return _under_conditions(run, _engine_terms(run, overheads, execution), overheads, conditions, execution)


def _under_conditions(
    run: Run,
    terms: Mapping[str, float],
    overheads: Overheads,
    conditions: Conditions,
    execution: Execution = IN_STEP,
) -> tuple[NamedValue, ...]:
    """`terms` of a rollout without CUDA graphs or with drafted tokens, where the run has them.

    Drafted tokens that are accepted save whole decode steps; the draft layers' own time is left out.
    """
    found = dict(terms)
    if run.is_eager:
        found["launch"] = found.get("launch", 0.0) + _eager_s(run, found, overheads, conditions, execution)
    per_step = 1.0 / (1.0 + conditions.accepted_ratio * run.num_draft_tokens)
    return tuple(
        NamedValue(name=name, value=value * (1.0 if name in _ONCE_PER_ROLLOUT else per_step))
        for name, value in found.items()
        if value
    )


def _eager_s(
    run: Run, terms: Mapping[str, float], overheads: Overheads, conditions: Conditions, execution: Execution
) -> float:
    """Seconds that decode steps wait for the host when it launches every kernel.

    A step takes at least kernels x seconds per kernel, so the wait is what a mean full step and a mean tail step
    fall short of that. The numbers of steps follow from the growth with one second more per step.
    """
    longer = _engine_terms(run, replace(overheads, engine_step_s=overheads.engine_step_s + 1.0), execution)
    floor = model_totals(run.workload.actor, True).num_kernels * conditions.eager_kernel_s
    full = sum(value for name, value in terms.items() if name not in (*_ONCE_PER_ROLLOUT, "tail", "imbalance"))
    ratio = overheads.step_losses.rollout_ratio
    wait = 0.0
    for seconds, name in ((full, "engine_host"), (terms.get("tail", 0.0), "tail")):
        steps = (longer.get(name, 0.0) - terms.get(name, 0.0)) / ratio
        wait += max(0.0, floor * steps - seconds)
    return wait


def _asynchronous(run: Run, times: StepTimes, overheads: Overheads, conditions: Conditions) -> StepTimes:
    busy = times.stage_s(StageName.ROLLOUT)
    if run.is_streaming:
        busy = _streaming_s(run, overheads, conditions)
    parts = AsynchronousTimes(
        generation_s=np.array([times.stage_s(StageName.ROLLOUT)]),
        rollout_busy_s=np.array([busy]),
        training_s=np.array([sum(times.stage_s(stage) for stage in _TRAINER_STAGES)]),
        sync_s=np.array([times.stage_s(StageName.WEIGHT_SYNC)]),
    )
    staleness = np.array([run.staleness])
    return replace(
        times,
        step_s=float(period_s(parts, staleness)[0]),
        exposed_generation_s=float(exposed_generation_s(parts, staleness)[0]),
    )


def _streaming_s(run: Run, overheads: Overheads, conditions: Conditions) -> float:
    """Seconds per batch of engines that never drain, with as many batches in flight as there are steps of lag."""
    execution = Execution(mode=ExecutionMode.STREAMING, staleness=max(1, round(run.staleness)))
    seconds = _sum(_rollout_terms(run, overheads, conditions, execution))
    return conditions.release_ratio(run.framework, run.release) * seconds


# Rows ------------------------------------------------------------------------------------------------------------


def price(rows: Sequence[Row]) -> tuple[TableResult, TableResult]:
    """(whole steps, stages) of rl.csv: every row priced, or unpriced with the reason."""
    return price_with(rows, load_overheads(), load_conditions())


def price_with(rows: Sequence[Row], overheads: Overheads, conditions: Conditions) -> tuple[TableResult, TableResult]:
    """The same under given overheads and conditions."""
    implied = implied_lengths(rows)
    steps: list[Priced | Unpriced] = []
    stages: list[Priced | Unpriced] = []
    for row in rows:
        measured, unreadable = _measured_stages(row)
        stages.extend(unreadable)
        try:
            step, found = _price_row(row, implied, measured, overheads, conditions)
        except (ValueError, ArithmeticError, InvalidInputError) as error:
            steps.append(_unpriced(row, Table.RL, "", error))
            stages.extend(_unpriced(row, Table.RL_STAGES, column, error) for column in measured)
            continue
        steps.append(step)
        stages.extend(found)
    return _result(Table.RL, steps), _result(Table.RL_STAGES, stages)


def _price_row(
    row: Row,
    implied: Mapping[tuple[str, ...], float],
    measured: Mapping[str, float],
    overheads: Overheads,
    conditions: Conditions,
) -> tuple[Priced | Unpriced, list[Priced | Unpriced]]:
    """(whole step, measured stages) of one row."""
    run = read_run(row, implied)
    times = price_run(run, overheads, conditions)
    stages: list[Priced | Unpriced] = []
    for column, value in measured.items():
        if column == "gen_only_s":
            alone = mean_engine_s(run, overheads, conditions)
            terms: tuple[NamedValue, ...] = (NamedValue(name="rollout of one engine", value=alone),)
        else:
            terms = _stage_terms(row, times, column)
        stages.append(_stage(row, run, column, value, terms))
    return _step(row, run, times), stages


def _result(table: Table, found: Sequence[Priced | Unpriced]) -> TableResult:
    return TableResult(
        table=table,
        priced=tuple(item for item in found if isinstance(item, Priced)),
        unpriced=tuple(item for item in found if isinstance(item, Unpriced)),
    )


_STAGE_COLUMNS = (
    "gen_s", "gen_only_s", "logprob_s", "ref_logprob_s", "values_s", "train_s", "critic_train_s", "refit_s",
    "exposed_gen_s",
)  # fmt: skip


def _measured_stages(row: Row) -> tuple[dict[str, float], list[Unpriced]]:
    """Published stage seconds by column, and columns that hold no time.

    0 means that a stage did not run. A cell that is no time costs its own stage only, not the row.
    """
    found: dict[str, float] = {}
    unreadable: list[Unpriced] = []
    for column in _STAGE_COLUMNS:
        try:
            value = read.number(row, column)
        except RowError as error:
            unreadable.append(_unpriced(row, Table.RL_STAGES, column, error))
            continue
        if value:
            found[column] = value
    return found, unreadable


def _row_id(row: Row, column: str) -> str:
    return f"{row['id']}/{column}" if column else row["id"]


def _unpriced(row: Row, table: Table, column: str, error: Exception) -> Unpriced:
    reason = str(error) if isinstance(error, RowError) else f"values that cannot be: {error}"
    is_rule = isinstance(error, ExcludedError)
    return Unpriced(table=table, row=_row_id(row, column), quality=read.quality(row), reason=reason, is_rule=is_rule)


def _step(row: Row, run: Run, times: StepTimes) -> Priced | Unpriced:
    measured = read.number(row, "step_time_s")
    if measured is None:
        return Unpriced(
            table=Table.RL, row=row["id"], quality=read.quality(row), reason="step time not published", is_rule=True
        )
    terms = _step_terms(run, times)
    return _priced(row, run, Table.RL, "", measured, times.step_s, terms)


def _step_terms(run: Run, times: StepTimes) -> tuple[NamedValue, ...]:
    """Seconds by stage; asynchronous: the trainer's stages and what it waits for."""
    skipped = (StageName.ROLLOUT,) if run.is_asynchronous else ()
    terms = [
        NamedValue(name=stage.value, value=times.stage_s(stage))
        for stage in times.stages
        if stage not in skipped and times.stage_s(stage)
    ]
    if times.exposed_generation_s is not None:
        terms.append(NamedValue(name="exposed rollout", value=times.exposed_generation_s))
    return tuple(terms)


def _stage(row: Row, run: Run, column: str, measured: float, terms: tuple[NamedValue, ...]) -> Priced | Unpriced:
    predicted = _sum(terms)
    if predicted <= 0:
        reason = "the run as modelled has no such stage"
        return Unpriced(table=Table.RL_STAGES, row=_row_id(row, column), quality=read.quality(row), reason=reason)
    return _priced(row, run, Table.RL_STAGES, column, measured, predicted, terms)


def _stage_terms(row: Row, times: StepTimes, column: str) -> tuple[NamedValue, ...]:
    """What a published stage holds.

    verl's `gen` includes waking the engine with new weights, its generation time is the mean over engines;
    NeMo-RL runs the reference inside its log-prob stage.
    """
    if column == "exposed_gen_s":
        return (NamedValue(name="exposed rollout", value=times.exposed_generation_s or 0.0),)
    stages = {
        "gen_s": (StageName.ROLLOUT, StageName.WEIGHT_SYNC) if row["framework"] == VERL else (StageName.ROLLOUT,),
        "logprob_s": (StageName.OLD_LOGPROB, StageName.REFERENCE_LOGPROB)
        if row["framework"] == NEMO_RL
        else (StageName.OLD_LOGPROB,),
        "ref_logprob_s": (StageName.REFERENCE_LOGPROB,),
        "values_s": (StageName.CRITIC_VALUE,),
        "train_s": (StageName.ACTOR_UPDATE,),
        "critic_train_s": (StageName.CRITIC_UPDATE,),
        "refit_s": (StageName.WEIGHT_SYNC,),
    }[column]
    sums: dict[str, float] = {}
    for stage in stages:
        for term in times.stages.get(stage, ()):
            sums[term.name] = sums.get(term.name, 0.0) + term.value
    return tuple(NamedValue(name=name, value=value) for name, value in sums.items())


def _priced(
    row: Row, run: Run, table: Table, column: str, measured: float, predicted: float, terms: tuple[NamedValue, ...]
) -> Priced:
    return Priced(
        table=table,
        row=_row_id(row, column),
        source=row["source"],
        quality=read.quality(row),
        keys=_keys(row, run, column),
        unit="s",
        measured=measured,
        predicted=predicted,
        terms=terms,
    )


def _keys(row: Row, run: Run, column: str) -> Keys:
    model = run.workload.actor.id
    layout = ("n_gpus", "n_gpus_train", "n_gpus_gen", "gen_tp", "train_tp", "train_pp", "train_cp", "train_ep")
    deployment = (model, row["algorithm"], row_gpu(row), row["async_lag"], row["train_precision"])
    facts = ("n_gpus", "max_seq_len", "max_response_len", "prompts_per_step", "gens_per_prompt", "train_gbs")
    workload = (model, row["algorithm"], row_gpu(row), row["train_precision"], *(row[name] for name in facts))
    mode = "asynchronous" if run.is_asynchronous else "synchronous"
    return Keys(
        model=model,
        family=read.model_family(run.workload.actor),
        gpu=row_gpu(row),
        precision=run.workload.train_precision.value,
        framework=row["framework"],
        release=row["fw_version"],
        configuration=" ".join((*deployment, *(row[name] for name in layout))),
        workload=" ".join(workload),
        subset=column or mode,
    )
