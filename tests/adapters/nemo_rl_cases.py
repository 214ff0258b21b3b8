"""Plans that NeMo-RL can run, by name: models x clusters x placements, and what only some plans set."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from planner.domain.hardware import Precision
from planner.domain.model import Model
from planner.domain.plan import Plan
from planner.domain.strategy import (
    ContextParallel,
    Offload,
    Recompute,
    RolloutStrategy,
    Sharding,
    TrainerStrategy,
)
from planner.domain.workload import RewardKind, Workload
from tests.adapters.plans import HOSTILE, engine, fsdp, megatron
from tests.adapters.variants import BATCHES, STREAMING, catalog_workload, shared_plan, split_plan
from tests.factories import dense_model, workload

MODELS = ("qwen3-8b", "qwen3-32b", "qwen2.5-72b", "qwen3-30b-a3b")
NODES = (2, 4, 8)


def dtensor(num_gpus: int, *, tp: int = 2, cp: int = 1, **changes: object) -> TrainerStrategy:
    return replace(fsdp(num_gpus, cp=cp, **changes), tp=tp, context_parallel=ContextParallel.RING)


def trainer_of(model: str, num_gpus: int) -> TrainerStrategy:
    """A layout that splits the model's layers and heads."""
    if model == "qwen3-30b-a3b":
        return megatron(num_gpus, tp=2, pp=1, ep=8, etp=1)
    return megatron(num_gpus, tp=4, pp=2, etp=4) if model != "qwen3-8b" else dtensor(num_gpus)


def engine_of(model: str, num_gpus: int) -> RolloutStrategy:
    return engine(num_gpus, tp=4, ep=4 if model == "qwen3-30b-a3b" else 1)


def _grid() -> dict[str, Plan]:
    plans: dict[str, Plan] = {}
    for model in MODELS:
        load = catalog_workload(model)
        for nodes in NODES:
            gpus, half = 8 * nodes, 4 * nodes
            plans[f"{model}-{nodes}n-shared"] = shared_plan(load, trainer_of(model, gpus), engine_of(model, gpus))
            trainer, rollout = trainer_of(model, half), engine_of(model, half)
            plans[f"{model}-{nodes}n-split"] = split_plan(load, trainer, rollout)
            plans[f"{model}-{nodes}n-batches"] = split_plan(load, trainer, rollout, mode=BATCHES, staleness=1)
            plans[f"{model}-{nodes}n-streaming"] = split_plan(load, trainer, rollout, mode=STREAMING, staleness=3)
    return plans


def _training() -> dict[str, Plan]:
    load, moe = workload(), catalog_workload("qwen3-30b-a3b")
    rollout = engine(32)

    def shared(trainer: TrainerStrategy, work: Workload = load) -> Plan:
        return shared_plan(work, trainer, rollout)

    return {
        "dtensor-hsdp": shared(dtensor(32, tp=1, shard_ranks=8, recompute=Recompute.NONE)),
        "dtensor-cp": shared(dtensor(32, tp=2, cp=4)),
        "megatron-cp": shared(megatron(32, cp=2, etp=4)),
        "megatron-ddp": shared(megatron(32, sharding=Sharding.DDP, etp=4, recompute=Recompute.NONE)),
        "megatron-cpu-optimizer": shared(megatron(32, etp=4, offload=Offload.CPU_OPTIMIZER_STATE_SWAP)),
        "megatron-uneven": shared(megatron(32, tp=2, pp=8, etp=2), replace(load, actor=uneven_model())),
        "megatron-fp8": shared(megatron(32, etp=4), replace(load, train_precision=Precision.FP8)),
        "moe-selective": shared(megatron(32, tp=2, pp=1, ep=8, recompute=Recompute.SELECTIVE), moe),
        "moe-dtensor-ep": shared(dtensor(32, tp=1, ep=16, recompute=Recompute.FULL), moe),
        "moe-dtensor-tp": shared(dtensor(32, tp=2, etp=2, shard_ranks=16), moe),
        "moe-etp": shared(megatron(32, tp=4, pp=1, ep=4, etp=2), moe),
        "fp8-rollout": shared(megatron(32, etp=4), replace(load, rollout_precision=Precision.FP8)),
        "lora-dtensor": shared(dtensor(32, tp=1), workload(lora_rank=32)),
        "lora-megatron": shared(megatron(32, etp=4), workload(lora_rank=64)),
        "no-swap": shared_plan(load, dtensor(32, offload=Offload.NONE), engine(32)),
        "attention-dp": shared_plan(
            moe, megatron(32, tp=2, pp=1, ep=8, etp=1), engine(32, tp=2, attention_dp=8, ep=16, max_num_seqs=64)
        ),
        "rollout-pp": shared_plan(load, megatron(32, etp=4), engine(32, tp=4, pp=2)),
        "one-node-split": split_plan(load, dtensor(4), engine(4, tp=2)),
        "one-node-part": shared_plan(load, dtensor(4), engine(4, tp=2)),
    }


def uneven_model() -> Model:
    return dense_model(layers=62)


def _algorithms() -> dict[str, Plan]:
    rollout = engine(32)
    plans = {
        name: shared_plan(load, megatron(32, etp=4), rollout)
        for name, load in {
            "ppo": workload("ppo"),
            "ppo-no-kl": workload("ppo", kl=0.0),
            "dapo": workload("dapo"),
            "gspo": workload("gspo"),
            "rloo": workload("rloo", group=4),
            "reinforce++": workload("reinforce++", group=8),
            "sandbox": workload(reward=RewardKind.SANDBOX),
            "on-policy": replace(workload(old_logprob=False), num_optimizer_steps=1),
        }.items()
    }
    plans["ppo-dtensor"] = shared_plan(workload("ppo"), dtensor(32), rollout)
    plans["ppo-epochs"] = shared_plan(replace(workload("ppo"), num_epochs=2), megatron(32, etp=4), rollout)
    plans["ppo-streaming"] = split_plan(workload("ppo"), megatron(16, etp=4), engine(16), mode=STREAMING, staleness=1)
    return plans


@cache
def cases() -> dict[str, Plan]:
    return {**_grid(), **_training(), **_algorithms()}


def hostile_case() -> Plan:
    """A model path with everything that a shell, YAML or OmegaConf could take for syntax."""
    load = workload("ppo")
    bad = replace(load.actor, hf_repo=HOSTILE)
    return shared_plan(replace(load, actor=bad, critic=bad), megatron(32, etp=4), engine(32))
