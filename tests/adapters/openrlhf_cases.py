"""Plans that OpenRLHF can run, by name: models x clusters x placements, and what only some plans set."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from planner.domain.plan import Plan
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
from planner.domain.workload import RewardKind, Workload
from tests.adapters.plans import HOSTILE, engine, forward_only, fsdp
from tests.adapters.variants import BATCHES, STREAMING, catalog_workload, shared_plan, split_plan, with_strategy
from tests.factories import workload

MODELS = ("qwen3-8b", "qwen3-32b", "llama-3.1-70b", "qwen3-30b-a3b")
NODES = (2, 4, 8)
CRITIC, REFERENCE, REWARD = WorkerName.CRITIC_TRAINER, WorkerName.REFERENCE, WorkerName.REWARD_MODEL


def deepspeed(num_gpus: int, *, tp: int = 1, cp: int = 2, **changes: object) -> TrainerStrategy:
    settings = {"context_parallel": ContextParallel.RING, "offload": Offload.OPTIMIZER_SWAP, **changes}
    return replace(fsdp(num_gpus, cp=cp, **settings), tp=tp)


def shared(load: Workload, trainer: TrainerStrategy, rollout: RolloutStrategy) -> Plan:
    """Everything on one group, a reward model in the trainer's layout."""
    plan = shared_plan(load, trainer, rollout)
    return with_strategy(plan, REWARD, forward_only(trainer)) if load.reward.model is not None else plan


def _grid() -> dict[str, Plan]:
    plans: dict[str, Plan] = {}
    for model in MODELS:
        load = catalog_workload(model)
        for nodes in NODES:
            gpus, half = 8 * nodes, 4 * nodes
            plans[f"{model}-{nodes}n-shared"] = shared(load, deepspeed(gpus), engine(gpus))
            trainer, rollout = deepspeed(half), engine(half)
            plans[f"{model}-{nodes}n-split"] = split_plan(load, trainer, rollout)
            plans[f"{model}-{nodes}n-batches"] = split_plan(load, trainer, rollout, mode=BATCHES, staleness=1)
            plans[f"{model}-{nodes}n-streaming"] = split_plan(load, trainer, rollout, mode=STREAMING, staleness=2)
    return plans


def _training() -> dict[str, Plan]:
    load, rollout = workload(), engine(32)
    by_stage = {
        f"zero{stage}": shared(load, deepspeed(32, sharding=sharding, offload=Offload.NONE), rollout)
        for stage, sharding in enumerate((Sharding.DDP, Sharding.ZERO1, Sharding.ZERO2, Sharding.ZERO3))
    }
    return {
        **by_stage,
        "tensor-parallel": shared(load, deepspeed(32, tp=4, cp=1, sharding=Sharding.ZERO1), rollout),
        "cpu-optimizer": shared(load, deepspeed(32, offload=Offload.CPU_OPTIMIZER), rollout),
        "no-recompute": shared(load, deepspeed(32, cp=1, recompute=Recompute.NONE), rollout),
        "resident": shared(load, deepspeed(32, offload=Offload.NONE), engine(32, idle=EngineIdle.RESIDENT)),
        "one-node-part": shared(load, deepspeed(4), engine(4, tp=2)),
        "reference-apart": split_plan(load, deepspeed(16), engine(16), apart=(REFERENCE,)),
    }


def _algorithms() -> dict[str, Plan]:
    rollout = engine(32)
    plans = {
        name: shared(load, deepspeed(32), rollout)
        for name, load in {
            "ppo": workload("ppo"),
            "ppo-epochs": replace(workload("ppo"), num_epochs=2),
            "ppo-reward-model": workload("ppo", reward=RewardKind.MODEL),
            "dapo": workload("dapo"),
            "dr-grpo": workload("dr-grpo"),
            "gspo": workload("gspo"),
            "rloo": workload("rloo", group=4),
            "reinforce++": workload("reinforce++", group=8),
            "sandbox": workload(reward=RewardKind.SANDBOX),
        }.items()
    }
    plans["ppo-critic-apart"] = split_plan(workload("ppo"), deepspeed(8), engine(8), apart=(CRITIC,))
    plans["ppo-critic-apart-streaming"] = split_plan(
        workload("ppo"), deepspeed(8), engine(8), apart=(CRITIC,), mode=STREAMING, staleness=1
    )
    return plans


@cache
def cases() -> dict[str, Plan]:
    return {**_grid(), **_training(), **_algorithms()}


def hostile_case() -> Plan:
    """A model path with everything that a shell or argparse could take for syntax."""
    load = workload("ppo", reward=RewardKind.MODEL)
    assert load.reward.model is not None
    bad = replace(load.actor, hf_repo="--" + HOSTILE)
    load = replace(load, actor=bad, critic=bad, reward=replace(load.reward, model=bad))
    return shared(load, deepspeed(32), engine(32))
