"""Configurations that ran or ran out of memory: the verdict of the cost model against what happened.

A row is priced by the formulas that plans use (`price_trainer`, `price_engine`) at every instant of an iteration, on
the whole memory that the driver reports. What a row leaves open is set to its most and to its least favourable value:
where the verdicts differ, the row does not determine one and is excluded by rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.cost.generation import price_engine
from planner.cost.terms import Terms
from planner.cost.training import price_trainer
from planner.cost.worker import EngineJob, Site, TrainerJob, WorkerCosts
from planner.domain.hardware import NodeType, Precision
from planner.domain.lengths import LengthLaw
from planner.domain.overheads import Overheads
from planner.domain.plan import NamedValue
from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import RolloutTable, TrainerTable
from planner.domain.verdict import Verdict, memory_verdict
from planner.domain.workload import GenerationLoad, TokenLoad
from planner.files.catalog import load_overheads
from planner.validation.fit_rows import FitCase, FitRun, NotDeterminable, read_fit
from planner.validation.memory_rows import EAGER_LOGITS, NF4_BYTES
from planner.validation.read import Row, RowError, model_family, quality, text
from planner.validation.records import Keys, Priced, Table, TableResult, Unpriced

_MEAN_RATIO = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The worst instant of one configuration. `terms` are bytes per GPU on the fullest GPU."""

    instant: str
    terms: tuple[NamedValue, ...]

    @property
    def num_bytes(self) -> float:
        return sum(term.value for term in self.terms)


def price(rows: Sequence[Row]) -> TableResult:
    """Verdicts of all rows, in their order; rows whose verdict is not determined become `Unpriced`."""
    overheads = load_overheads()
    priced: list[Priced] = []
    unpriced: list[Unpriced] = []
    for row in rows:
        try:
            priced.append(_price_row(row, overheads))
        except RowError as error:
            unpriced.append(
                Unpriced(
                    table=Table.FITS,
                    row=text(row, "id"),
                    quality=quality(row),
                    reason=str(error),
                    is_rule=isinstance(error, NotDeterminable),
                )
            )
    return TableResult(table=Table.FITS, priced=tuple(priced), unpriced=tuple(unpriced))


def _price_row(row: Row, overheads: Overheads) -> Priced:
    run = read_fit(row)
    peaks = [worst_instant(run, case, overheads) for case in run.cases]
    verdicts = [memory_verdict(peak.num_bytes, run.capacity_bytes) for peak in peaks]
    if len(set(verdicts)) > 1:
        raise NotDeterminable(f"the verdict depends on what is not stated: {', '.join(run.open_fields)}")
    peak = max(peaks, key=lambda item: item.num_bytes)
    return Priced(
        table=Table.FITS,
        row=text(row, "id"),
        source=text(row, "source"),
        quality=quality(row),
        keys=_keys(row, run),
        unit="works",
        measured=1.0 if run.works else 0.0,
        predicted=0.0 if verdicts[0] is Verdict.DOES_NOT_FIT else 1.0,
        terms=peak.terms,
        verdict=verdicts[0],
        note=f"{peak.instant}: {peak.num_bytes / 2**30:.1f} of {run.capacity_bytes / 2**30:.1f} GiB",
    )


def _keys(row: Row, run: FitRun) -> Keys:
    return Keys(
        model=text(row, "model"),
        family=model_family(run.model),
        gpu=text(row, "gpu"),
        precision=text(row, "precision"),
        framework=text(row, "framework"),
        release="",
        configuration=text(row, "id"),
        workload="",
        subset=text(row, "evidence").partition(";")[0],
    )


def worst_instant(run: FitRun, case: FitCase, overheads: Overheads) -> Peak:
    """The fullest instant of an iteration over all stages, co-residents included."""
    if run.is_eager:
        overheads = replace(
            overheads,
            logits_bytes_per_element=EAGER_LOGITS,
            vocabulary_parallel_logits_bytes_per_element=EAGER_LOGITS,
        )
    site = Site(node=_sized(run), overheads=overheads, memory_margin_ratio=0.0)
    trainer = price_trainer(trainer_job(run, case), TrainerTable.of((case.trainer,)), site)
    engine = (
        None if case.engine is None else price_engine(_engine_job(run, case), RolloutTable.of((case.engine,)), site)
    )
    shares = case.is_colocated and engine is not None
    idle_engine = _named(engine.idle_terms, "idle engine") if shares and engine is not None else ()
    idle_trainer = _named(trainer.idle_terms, "idle trainer") if shares else ()
    critic = idle_trainer if case.has_critic else ()
    peaks = [
        Peak(
            instant=stage.stage.value,
            terms=_named(_stated_formats(stage.memory_terms, run, case)) + idle_engine + critic,
        )
        for stage in trainer.stages
    ]
    if engine is not None:
        peaks.append(_rollout(engine, idle_trainer + critic, run))
        peaks += _sync(trainer, engine) if shares else []
    return max(peaks, key=lambda item: item.num_bytes)


def _sized(run: FitRun) -> NodeType:
    gpu = replace(run.node.gpu, memory_bytes=run.capacity_bytes)
    return replace(run.node, gpu=gpu)


def _stated_formats(terms: Terms, run: FitRun, case: FitCase) -> Terms:
    """A CPU optimizer for part of the states; a frozen base in 4 bit."""
    changed = dict(terms)
    if 0.0 < case.host_optimizer_ratio < 1.0:
        changed["optimizer"] = terms["optimizer"] * (1.0 - case.host_optimizer_ratio)
    if run.is_4bit:
        changed["weights"] = terms["weights"] * (NF4_BYTES / Precision.BF16.num_bytes)
    return changed


def _rollout(engine: WorkerCosts, residents: tuple[NamedValue, ...], run: FitRun) -> Peak:
    """The engine's fraction, with CUDA graphs on top: vLLM and SGLang capture them after they sized the cache.

    An engine whose fraction holds no cache cannot start: the whole GPU counts as missing.
    """
    terms = engine.stages[0].memory_terms
    graphs = float(terms["engine_graphs"][0])
    cache = float(terms["kv_cache"][0]) + graphs
    named = _named({name: value for name, value in terms.items() if name != "kv_cache"})
    if cache <= 0.0:
        missing = NamedValue(name="missing cache", value=run.capacity_bytes)
        return Peak(instant="rollout, no room for the cache", terms=(*named, *residents, missing))
    return Peak(instant="rollout", terms=(*named, NamedValue(name="kv_cache", value=cache), *residents))


def _sync(trainer: WorkerCosts, engine: WorkerCosts) -> list[Peak]:
    """Weights of both sides and two buckets; the cache is mapped afterwards."""
    if trainer.sync_memory_terms is None or engine.sync_memory_terms is None:
        return []
    terms = _named(trainer.sync_memory_terms, "trainer") + _named(engine.sync_memory_terms, "engine")
    return [Peak(instant="weight sync", terms=terms)]


def _named(terms: Terms, prefix: str = "") -> tuple[NamedValue, ...]:
    label = f"{prefix}: " if prefix else ""
    return tuple(NamedValue(name=label + name, value=float(value[0])) for name, value in terms.items() if value[0])


def trainer_job(run: FitRun, case: FitCase) -> TrainerJob:
    mean = max(1.0, case.longest_tokens * _MEAN_RATIO)
    load = TokenLoad(
        num_sequences=case.num_sequences,
        mean_tokens=mean,
        mean_square_tokens=1.3 * mean * mean,
        max_tokens=case.longest_tokens,
    )
    inference = ((StageName.OLD_LOGPROB, load),) if case.engine is not None else ()
    return TrainerJob(
        worker=WorkerName.ACTOR_TRAINER,
        model=run.model,
        train_stage=StageName.ACTOR_UPDATE,
        train_load=load,
        num_optimizer_steps=1,
        num_epochs=1,
        inference_loads=inference,
        has_vocabulary_head=True,
        lora_rank=run.lora_rank,
        precision=Precision.BF16,
        sends_weights=case.engine is not None,
        rollout_precision=Precision.BF16,
    )


def _engine_job(run: FitRun, case: FitCase) -> EngineJob:
    response = max(case.longest_tokens - run.prompt_tokens, 1)
    return EngineJob(
        worker=WorkerName.ROLLOUT_ENGINE,
        model=run.model,
        stage=StageName.ROLLOUT,
        load=GenerationLoad(
            num_sequences=int(case.num_sequences),
            num_shared=1,
            prompt_mean_tokens=max(1.0, run.prompt_tokens * _MEAN_RATIO),
            prompt_max_tokens=max(1, run.prompt_tokens),
            response=LengthLaw(mean_tokens=max(1.0, response * _MEAN_RATIO), cv=0.6, max_tokens=response),
        ),
        precision=Precision.BF16,
        receives_weights=True,
        lora_rank=run.lora_rank,
    )
