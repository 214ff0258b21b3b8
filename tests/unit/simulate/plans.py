"""A small plan for replays, searched once; and the same as asynchronous plans."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from planner.domain.execution import Execution, ExecutionMode
from planner.domain.lengths import LengthLaw
from planner.domain.plan import Plan
from planner.domain.request import FixedWorker
from planner.domain.stages import WorkerName
from planner.domain.strategy import (
    ContextParallel,
    EngineIdle,
    Offload,
    Recompute,
    RolloutStrategy,
    Sharding,
    TrainerStrategy,
)
from planner.files.spec import WorkloadSpec
from planner.files.workload import build_request
from planner.pipeline import estimate, make_plan

NUM_RESPONSES = 256


def _spec(algorithm: str = "grpo") -> WorkloadSpec:
    return WorkloadSpec(
        model="qwen3-8b", algorithm=algorithm, gpus="16xh100", num_prompts=32, group_size=8, response_mean=500,
        response_max=2048, num_optimizer_steps=2,
    )  # fmt: skip


@lru_cache(maxsize=1)
def synchronous_plan() -> Plan:
    """What the search finds for 16 H100."""
    return make_plan(build_request(_spec()))


@lru_cache(maxsize=8)
def split_plan(engine_gpus: int = 4, cv: float = 0.6) -> Plan:
    """A fixed configuration: engines on GPUs 0 to `engine_gpus` - 1, reference and trainer on 8 to 15."""
    request = build_request(replace(_spec(), response_cv=cv))
    trainer = TrainerStrategy(
        num_gpus=8, tp=2, pp=1, vpp=1, cp=1, context_parallel=ContextParallel.RING, ep=1, etp=1,
        sharding=Sharding.ZERO1, shard_ranks=4, micro_batch_tokens=8192, inference_tokens=16384,
        recompute=Recompute.FULL, offload=Offload.OPTIMIZER_SWAP,
    )  # fmt: skip
    engine = RolloutStrategy(
        num_gpus=engine_gpus, tp=1, pp=1, ep=1, engine_fraction=0.8, max_num_seqs=64, idle=EngineIdle.RESIDENT
    )
    reference = replace(trainer, offload=Offload.STATE_SWAP, recompute=Recompute.NONE, sharding=Sharding.DDP)
    place = {"pool": "h100", "num_gpus": 8, "first_gpu": 8}
    workers = (
        FixedWorker(worker=WorkerName.ROLLOUT_ENGINE, pool="h100", first_gpu=0, num_gpus=engine_gpus, strategy=engine),
        FixedWorker(worker=WorkerName.ACTOR_TRAINER, strategy=trainer, **place),
        FixedWorker(worker=WorkerName.REFERENCE, strategy=reference, **place),
    )
    return estimate(request, workers)


def ahead(plan: Plan, mode: ExecutionMode, staleness: int, period_s: float = 1.0) -> Plan:
    """The same placements with iterations that overlap."""
    return replace(plan, execution=Execution(mode=mode, staleness=staleness), period_s=period_s)


def with_lengths(plan: Plan, *, mean_tokens: float, cv: float) -> Plan:
    """The plan for other responses, not priced again."""
    law = LengthLaw(mean_tokens=mean_tokens, cv=cv, max_tokens=plan.workload.response.max_tokens)
    return replace(plan, workload=replace(plan.workload, response=law))
