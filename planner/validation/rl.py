"""Whole RL steps and their stages against published runs, each with its own configuration (no search).

`planner.assembly.assemble` prices the stages of the run that a row describes (`planner.validation.rl_runs`). The step
is their schedule when synchronous, and the steady-state period when asynchronous.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.assembly import assemble
from planner.cost.asynchronous import AsynchronousTimes, exposed_generation_s, period_s
from planner.cost.layout import model_totals
from planner.domain.overheads import Overheads
from planner.domain.plan import NamedValue
from planner.domain.stages import StageName, build_graph
from planner.files.catalog import load_overheads
from planner.search.pricing import PricingInputs
from planner.validation.records import Keys, Priced, Table, TableResult, Unpriced
from planner.validation.rl_runs import NEMO_RL, VERL, Row, Run, UnpriceableError, implied_lengths, number, read_run, row_gpu

MTP_ACCEPTED_RATIO = 0.85
"""Share of drafted tokens that are accepted with one multi-token-prediction layer (DeepSeek-V3 report: 85-90 %)."""
_TRAINER_STAGES = (
    StageName.OLD_LOGPROB,
    StageName.REFERENCE_LOGPROB,
    StageName.CRITIC_VALUE,
    StageName.ACTOR_UPDATE,
    StageName.CRITIC_UPDATE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Predicted seconds of one step: stages by name with their terms, and the whole."""

    stages: Mapping[StageName, tuple[NamedValue, ...]]
    fixed_s: float
    """Per step outside all stages."""
    step_s: float
    exposed_generation_s: float | None
    """Asynchronous: what of the rollout the trainer waits for."""

    def stage_s(self, stage: StageName) -> float:
        """Seconds of a stage; 0 if the run has none."""
        return sum(term.value for term in self.stages.get(stage, ()))


def price_run(run: Run, overheads: Overheads) -> StepTimes:
    """Seconds of every stage and of the whole step of one run."""
    inputs = PricingInputs(
        workload=run.workload,
        graph=build_graph(run.workload),
        overheads=_engine_overheads(run, overheads),
        rules=None,
        across_sizes=True,
    )
    assembled = assemble(run.placed, inputs, None)
    stages = {placement.stage: placement.time_terms for placement in assembled.placements}
    stages[StageName.ROLLOUT] = _rollout_terms(run, stages[StageName.ROLLOUT])
    fixed = 0.0
    times = StepTimes(stages=stages, fixed_s=fixed, step_s=0.0, exposed_generation_s=None)
    if run.is_asynchronous:
        return _asynchronous(run, times)
    return replace(times, step_s=sum(times.stage_s(stage) for stage in stages) + fixed)


def _engine_overheads(run: Run, overheads: Overheads) -> Overheads:
    """Without CUDA graphs the host launches every kernel of a decode step."""
    if not run.is_eager:
        return overheads
    kernels = model_totals(run.workload.actor, True).num_kernels
    return replace(overheads, engine_step_s=overheads.engine_step_s + kernels * overheads.train_kernel_launch_s)


def _rollout_terms(run: Run, terms: tuple[NamedValue, ...]) -> tuple[NamedValue, ...]:
    """Terms of all rollouts of one step.

    Drafted tokens that are accepted save whole decode steps; the draft layers' own time is left out.
    """
    once = ("prefill", "wake", "switch", "reload")
    per_step = 1.0 / (1.0 + MTP_ACCEPTED_RATIO * run.num_draft_tokens)
    return tuple(
        NamedValue(
            name=term.name,
            value=term.value * run.num_generation_rounds * (1.0 if term.name in once else per_step),
        )
        for term in terms
    )


def _asynchronous(run: Run, times: StepTimes) -> StepTimes:
    tail = sum(term.value for term in times.stages[StageName.ROLLOUT] if term.name == "tail")
    training = sum(times.stage_s(stage) for stage in _TRAINER_STAGES) + times.fixed_s
    parts = AsynchronousTimes(
        generation_s=np.array([times.stage_s(StageName.ROLLOUT)]),
        tail_s=np.array([tail]),
        training_s=np.array([training]),
        sync_s=np.array([times.stage_s(StageName.WEIGHT_SYNC)]),
    )
    staleness = np.array([run.staleness])
    return replace(
        times,
        step_s=float(period_s(parts, staleness, is_streaming=run.is_streaming)[0]),
        exposed_generation_s=float(exposed_generation_s(parts, staleness, is_streaming=run.is_streaming)[0]),
    )


# Rows ------------------------------------------------------------------------------------------------------------


def price(rows: Sequence[Row]) -> tuple[TableResult, TableResult]:
    """(whole steps, stages) of rl.csv: every row priced, or unpriced with the reason."""
    overheads = load_overheads()
    implied = implied_lengths(rows)
    steps: list[Priced | Unpriced] = []
    stages: list[Priced | Unpriced] = []
    for row in rows:
        measured = _measured_stages(row)
        try:
            run = read_run(row, implied)
        except UnpriceableError as error:
            for table, found, names in ((Table.RL, steps, ("",)), (Table.RL_STAGES, stages, measured)):
                found.extend(_unpriced(row, table, name, error) for name in names)
            continue
        times = price_run(run, overheads)
        steps.append(_step(row, run, times))
        stages.extend(_stage(row, run, times, column, value) for column, value in measured.items())
    return _result(Table.RL, steps), _result(Table.RL_STAGES, stages)


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


def _measured_stages(row: Row) -> dict[str, float]:
    """Published stage seconds by column; 0 means that a stage did not run, below 0 that columns do not add up."""
    found = {column: number(row, column) for column in _STAGE_COLUMNS}
    return {column: value for column, value in found.items() if value is not None and value > 0}


def _row_id(row: Row, column: str) -> str:
    return f"{row['id']}/{column}" if column else row["id"]


def _unpriced(row: Row, table: Table, column: str, error: UnpriceableError) -> Unpriced:
    return Unpriced(
        table=table, row=_row_id(row, column), quality=row["quality"], reason=error.reason, is_rule=error.is_rule
    )


def _step(row: Row, run: Run, times: StepTimes) -> Priced | Unpriced:
    measured = number(row, "step_time_s")
    if measured is None:
        return Unpriced(
            table=Table.RL, row=row["id"], quality=row["quality"], reason="step time not published", is_rule=True
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
    if times.fixed_s:
        terms.append(NamedValue(name="step fixed", value=times.fixed_s))
    return tuple(terms)


def _stage(row: Row, run: Run, times: StepTimes, column: str, measured: float) -> Priced | Unpriced:
    terms = _stage_terms(row, run, times, column)
    predicted = sum(term.value for term in terms)
    if predicted <= 0:
        reason = "the run as modelled has no such stage"
        return Unpriced(table=Table.RL_STAGES, row=_row_id(row, column), quality=row["quality"], reason=reason)
    return _priced(row, run, Table.RL_STAGES, column, measured, predicted, terms)


def _stage_terms(row: Row, run: Run, times: StepTimes, column: str) -> tuple[NamedValue, ...]:
    """What a published stage holds: verl's `gen` includes waking the engine with new weights; NeMo-RL runs the
    reference inside its log-prob stage."""
    if column == "exposed_gen_s":
        return (NamedValue(name="exposed rollout", value=times.exposed_generation_s or 0.0),)
    stages = {
        "gen_s": (StageName.ROLLOUT, StageName.WEIGHT_SYNC) if row["framework"] == VERL else (StageName.ROLLOUT,),
        "gen_only_s": (StageName.ROLLOUT,),
        "logprob_s": (StageName.OLD_LOGPROB, StageName.REFERENCE_LOGPROB)
        if row["framework"] == NEMO_RL
        else (StageName.OLD_LOGPROB,),
        "ref_logprob_s": (StageName.REFERENCE_LOGPROB,),
        "values_s": (StageName.CRITIC_VALUE,),
        "train_s": (StageName.ACTOR_UPDATE,),
        "critic_train_s": (StageName.CRITIC_UPDATE,),
        "refit_s": (StageName.WEIGHT_SYNC,),
    }[column]
    rounds = run.num_generation_rounds if column == "gen_only_s" else 1
    sums: dict[str, float] = {}
    for stage in stages:
        for term in times.stages.get(stage, ()):
            sums[term.name] = sums.get(term.name, 0.0) + term.value / rounds
    return tuple(NamedValue(name=name, value=value) for name, value in sums.items())


def _priced(
    row: Row, run: Run, table: Table, column: str, measured: float, predicted: float, terms: tuple[NamedValue, ...]
) -> Priced:
    return Priced(
        table=table,
        row=_row_id(row, column),
        source=row["source"],
        quality=row["quality"],
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
    workload = (model, row["algorithm"], row["max_seq_len"], row["max_response_len"], row["prompts_per_step"])
    mode = "asynchronous" if run.is_asynchronous else "synchronous"
    return Keys(
        model=model,
        family=model.split("-")[0],
        gpu=row_gpu(row),
        precision=run.workload.train_precision.value,
        framework=row["framework"],
        release=row["fw_version"],
        configuration=" ".join((*deployment, *(row[name] for name in layout))),
        workload=" ".join(workload),
        subset=column or mode,
    )
