"""Jobs, strategies and sites for tests of trainers, on catalog hardware."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.cost.terms import total
from planner.cost.training import price_trainer
from planner.cost.worker import Site, TrainerJob, WorkerCosts
from planner.domain.hardware import Precision
from planner.domain.model import Model
from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import (
    ContextParallel,
    FloatArray,
    Offload,
    Recompute,
    Sharding,
    TrainerStrategy,
    TrainerTable,
)
from planner.domain.workload import TokenLoad
from planner.files.catalog import generic_node, load_overheads
from tests.factories import dense_model

GIB = 2.0**30
QWEN3_32B = dense_model()


def site(gpu: str = "h100") -> Site:
    return Site(node=generic_node(gpu), overheads=load_overheads(), memory_margin_ratio=0.1)


def faster_site(
    base: Site, *, peak: float = 1.0, hbm: float = 1.0, scale_up: float = 1.0, nic: float = 1.0, host: float = 1.0
) -> Site:
    """`base` with rates multiplied."""
    gpu = base.node.gpu
    laws = tuple(
        (op, replace(law, bytes_per_s=tuple(rate * scale_up for rate in law.bytes_per_s)))
        for op, law in gpu.collectives
    )
    gpu = replace(
        gpu,
        peak_flop_per_s=tuple((precision, rate * peak) for precision, rate in gpu.peak_flop_per_s),
        hbm_bytes_per_s=gpu.hbm_bytes_per_s * hbm,
        scale_up_bytes_per_s=gpu.scale_up_bytes_per_s * scale_up,
        collectives=laws,
        host_link_bytes_per_s=gpu.host_link_bytes_per_s * host,
    )
    return replace(base, node=replace(base.node, gpu=gpu, nic_bytes_per_s=base.node.nic_bytes_per_s * nic))


def load(sequences: float = 4096, mean: float = 4608, cv: float = 0.5, longest: int = 9216) -> TokenLoad:
    return TokenLoad(
        num_sequences=sequences, mean_tokens=mean, mean_square_tokens=mean**2 * (1 + cv**2), max_tokens=longest
    )


def equal_load(sequences: float, tokens: int) -> TokenLoad:
    return load(sequences, tokens, 0.0, tokens)


def job(
    model: Model = QWEN3_32B,
    *,
    tokens: TokenLoad | None = None,
    steps: int = 4,
    trains: bool = True,
    inference: bool = True,
    lora_rank: int | None = None,
    precision: Precision = Precision.BF16,
    has_head: bool = True,
) -> TrainerJob:
    work = load() if tokens is None else tokens
    return TrainerJob(
        worker=WorkerName.ACTOR_TRAINER if trains else WorkerName.REFERENCE,
        model=model,
        train_stage=StageName.ACTOR_UPDATE if trains else None,
        train_load=work if trains else None,
        num_optimizer_steps=steps,
        num_epochs=1,
        inference_loads=((StageName.OLD_LOGPROB if trains else StageName.REFERENCE_LOGPROB, work),) * inference,
        has_vocabulary_head=has_head,
        lora_rank=lora_rank,
        precision=precision,
        sends_weights=trains,
        rollout_precision=Precision.BF16,
    )


def strategy(
    gpus: int = 32,
    *,
    tp: int = 1,
    pp: int = 1,
    vpp: int = 1,
    cp: int = 1,
    context_parallel: ContextParallel = ContextParallel.RING,
    ep: int = 1,
    etp: int = 1,
    sharding: Sharding = Sharding.ZERO1,
    shard_ranks: int | None = None,
    tokens: int = 9216,
    inference_tokens: int | None = None,
    recompute: Recompute = Recompute.NONE,
    offload: Offload = Offload.NONE,
    recompute_layers: int = 0,
) -> TrainerStrategy:
    states = gpus // (tp * pp)
    return TrainerStrategy(
        num_gpus=gpus,
        tp=tp,
        pp=pp,
        vpp=vpp,
        cp=cp,
        context_parallel=context_parallel,
        ep=ep,
        etp=etp,
        sharding=sharding,
        shard_ranks=states if shard_ranks is None else shard_ranks,
        micro_batch_tokens=tokens,
        inference_tokens=tokens if inference_tokens is None else inference_tokens,
        recompute=recompute,
        offload=offload,
        recompute_layers=recompute_layers,
    )


def price(*strategies: TrainerStrategy, work: TrainerJob | None = None, at: Site | None = None) -> WorkerCosts:
    return price_trainer(work or job(), TrainerTable.of(strategies), at or site())


def stage_seconds(costs: WorkerCosts, stage: StageName = StageName.ACTOR_UPDATE) -> FloatArray:
    return next(total(cost.time_terms) for cost in costs.stages if cost.stage is stage)


def time_term(costs: WorkerCosts, name: str, stage: StageName = StageName.ACTOR_UPDATE) -> FloatArray:
    return next(cost.time_terms[name] for cost in costs.stages if cost.stage is stage)


def memory_term(costs: WorkerCosts, name: str, stage: StageName = StageName.ACTOR_UPDATE) -> FloatArray:
    return next(cost.memory_terms[name] for cost in costs.stages if cost.stage is stage)


def random_strategies(count: int, *, seed: int, is_moe: bool = False) -> tuple[TrainerStrategy, ...]:
    """Layouts whose degrees multiply to the GPUs, drawn from the whole space of techniques."""
    random = np.random.default_rng(seed)
    found: list[TrainerStrategy] = []
    while len(found) < count:
        gpus, tp, pp, cp = (
            int(random.choice(degrees)) for degrees in ((4, 8, 16, 64, 128), (1, 2, 4, 8), (1, 2, 4), (1, 2, 4))
        )
        if gpus % (tp * pp * cp):
            continue
        experts = [e for e in (1, 2, 4, 8, 16) if (gpus // pp) % e == 0]
        states = gpus // (tp * pp)
        found.append(
            strategy(
                gpus,
                tp=tp,
                pp=pp,
                vpp=int(random.choice((1, 2))) if pp > 1 else 1,
                cp=cp,
                context_parallel=list(ContextParallel)[int(random.integers(2))],
                ep=int(random.choice(experts)) if is_moe else 1,
                sharding=Sharding.ZERO1 if pp > 1 else list(Sharding)[int(random.integers(4))],
                shard_ranks=max(1, states // int(random.choice((1, 2)))),
                tokens=int(random.choice((9216, 18432, 65536))),
                inference_tokens=int(random.choice((9216, 65536))),
                recompute=list(Recompute)[int(random.integers(3))],
                offload=list(Offload)[int(random.integers(5))],
            )
        )
    return tuple(found)
