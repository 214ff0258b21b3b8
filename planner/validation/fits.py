"""Configurations that ran or ran out of memory: the verdict of the cost model against what happened.

A row is priced by the formulas that plans use (`price_trainer`, `price_engine`) at every instant of an iteration, on
the whole memory that the driver reports. What a row leaves open is set to its most and to its least favourable value:
where the verdicts differ, the row does not determine one and is excluded by rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.cost.generation import cache_bytes_per_gpu, price_engine
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
_ANY_TOKENS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The worst instant of one configuration. `terms` are bytes per GPU on the fullest GPU."""

    stage: str
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
    peaks = worst_instants(run, overheads)
    verdicts = [memory_verdict(peak.num_bytes, run.capacity_bytes) for peak in peaks]
    if {Verdict.FITS, Verdict.DOES_NOT_FIT} <= set(verdicts):
        raise NotDeterminable(f"the verdict depends on what is not stated: {', '.join(run.open_fields)}")
    verdict = verdicts[0] if len(set(verdicts)) == 1 else Verdict.MARGINAL
    peak = max(peaks, key=lambda item: item.num_bytes)
    return Priced(
        table=Table.FITS,
        row=text(row, "id"),
        source=text(row, "source"),
        quality=quality(row),
        keys=_keys(row, run),
        unit="works",
        measured=1.0 if run.works else 0.0,
        predicted=0.0 if verdict is Verdict.DOES_NOT_FIT else 1.0,
        terms=peak.terms,
        verdict=verdict,
        note=f"{peak.stage}, {peak.instant}: {peak.num_bytes / 2**30:.1f} of {run.capacity_bytes / 2**30:.1f} GiB",
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


def worst_instants(run: FitRun, overheads: Overheads) -> list[Peak]:
    """The fullest instant of an iteration over all stages, co-residents included, for each completion of a row."""
    if run.is_eager:
        overheads = replace(
            overheads,
            logits_bytes_per_element=EAGER_LOGITS,
            vocabulary_parallel_logits_bytes_per_element=EAGER_LOGITS,
        )
    site = Site(node=_sized(run), overheads=overheads, memory_margin_ratio=0.0)
    first = run.cases[0]
    trainer = price_trainer(trainer_job(run), TrainerTable.of(tuple(case.trainer for case in run.cases)), site)
    engine = None if first.engine is None else price_engine(_engine_job(run), RolloutTable.of((first.engine,)), site)
    return [_worst(run, case, row, trainer, engine) for row, case in enumerate(run.cases)]


def _worst(run: FitRun, case: FitCase, row: int, trainer: WorkerCosts, engine: WorkerCosts | None) -> Peak:
    idle_engine: tuple[NamedValue, ...] = ()
    idle_trainer: tuple[NamedValue, ...] = ()
    if case.is_colocated and engine is not None:
        idle_engine = _named(engine.idle_terms, 0, "idle engine")
        idle_trainer = _named(trainer.idle_terms, row, "idle trainer")
    critic = idle_trainer if case.has_critic else ()
    peaks = [
        Peak(
            stage=stage.stage.value,
            instant=stage.instant_at(row),
            terms=_stated_formats(_named(stage.memory_terms, row), run, case) + idle_engine + critic,
        )
        for stage in trainer.stages
    ]
    if engine is not None:
        peaks.append(_rollout(engine, idle_trainer + critic, run, case))
        peaks += _sync(trainer, row, engine) if case.is_colocated else []
    return max(peaks, key=lambda item: item.num_bytes)


def _sized(run: FitRun) -> NodeType:
    gpu = replace(run.node.gpu, memory_bytes=run.capacity_bytes)
    return replace(run.node, gpu=gpu)


def _stated_formats(terms: tuple[NamedValue, ...], run: FitRun, case: FitCase) -> tuple[NamedValue, ...]:
    """A CPU optimizer for part of the states; a frozen base in 4 bit."""
    ratios: dict[str, float] = {}
    if 0.0 < case.host_optimizer_ratio < 1.0:
        ratios["optimizer"] = 1.0 - case.host_optimizer_ratio
    if run.is_4bit:
        ratios["weights"] = NF4_BYTES / Precision.BF16.num_bytes
    return tuple(replace(term, value=term.value * ratios.get(term.name, 1.0)) for term in terms)


def _rollout(engine: WorkerCosts, residents: tuple[NamedValue, ...], run: FitRun, case: FitCase) -> Peak:
    """The engine's fraction, with CUDA graphs on top: vLLM and SGLang capture them after they sized the cache.

    An engine whose fraction cannot hold one longest sequence cannot start: the whole GPU counts as missing.
    """
    assert case.engine is not None
    terms = engine.stages[0].memory_terms
    cache = float(terms["kv_cache"][0] + terms["engine_graphs"][0])
    named = _named({name: value for name, value in terms.items() if name != "kv_cache"}, 0)
    per_token, per_sequence = cache_bytes_per_gpu(run.model, float(case.engine.tp), float(case.longest_tokens))
    if cache < (per_token * case.longest_tokens + per_sequence) / case.engine.pp:
        missing = NamedValue(name="missing cache", value=run.capacity_bytes)
        return Peak(
            stage=StageName.ROLLOUT.value, instant="no room for a sequence", terms=(*named, *residents, missing)
        )
    held = (*named, NamedValue(name="kv_cache", value=cache), *residents)
    return Peak(stage=StageName.ROLLOUT.value, instant=engine.stages[0].instant_at(0), terms=held)


def _sync(trainer: WorkerCosts, row: int, engine: WorkerCosts) -> list[Peak]:
    """Weights of both sides and two buckets on each; the cache is mapped afterwards."""
    if trainer.sync_memory_terms is None or engine.sync_memory_terms is None:
        return []
    terms = _named(trainer.sync_memory_terms, row, "trainer") + _named(engine.sync_memory_terms, 0, "engine")
    return [Peak(stage=StageName.WEIGHT_SYNC.value, instant="duplicate weights", terms=terms)]


def _named(terms: Terms, row: int, prefix: str = "") -> tuple[NamedValue, ...]:
    label = f"{prefix}: " if prefix else ""
    return tuple(NamedValue(name=label + name, value=float(value[row])) for name, value in terms.items() if value[row])


def trainer_job(run: FitRun) -> TrainerJob:
    """One optimizer step; all completions of a row share lengths and batch."""
    case = run.cases[0]
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


def _engine_job(run: FitRun) -> EngineJob:
    """Only the memory of the engine counts, and no length enters it: one law for all rows."""
    return EngineJob(
        worker=WorkerName.ROLLOUT_ENGINE,
        model=run.model,
        stage=StageName.ROLLOUT,
        load=GenerationLoad(
            num_sequences=int(run.cases[0].num_sequences),
            num_shared=1,
            prompt_mean_tokens=_ANY_TOKENS,
            prompt_max_tokens=_ANY_TOKENS,
            response=LengthLaw(mean_tokens=_ANY_TOKENS, cv=0.0, max_tokens=_ANY_TOKENS),
        ),
        precision=Precision.BF16,
        receives_weights=True,
        lora_rank=run.lora_rank,
    )
