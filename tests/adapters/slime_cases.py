"""Plans that slime can run: models x clusters x placements, and one for every flag that only some plans have."""

from __future__ import annotations

from dataclasses import replace

from planner.domain.hardware import Precision
from planner.domain.plan import Plan
from planner.domain.strategy import EngineIdle, ExpertExchange, Offload, Recompute, RolloutStrategy, TrainerStrategy
from planner.domain.workload import RewardKind
from tests.adapters.split_plans import (
    ONE_STEP_OFF,
    SYNCHRONOUS,
    apart,
    engine,
    load,
    megatron,
    together,
)

DENSE = ("qwen3-0.6b", "qwen3-8b", "qwen3-32b", "qwen2.5-7b", "llama-3.1-70b")
MOE = ("qwen3-30b-a3b", "glm-4.5-air", "moonlight-16b-a3b", "deepseek-v3", "kimi-k2")
CLUSTERS = (16, 64)


def _trainer(name: str, num_gpus: int) -> TrainerStrategy:
    if name in MOE:
        ep = 4 if num_gpus == 16 else 16
        return megatron(num_gpus, tp=2, pp=2, ep=ep, etp=1, recompute=Recompute.SELECTIVE)
    if name == "qwen3-0.6b":
        return megatron(num_gpus, tp=1)
    if name == "qwen2.5-7b":
        return megatron(num_gpus, tp=2, pp=2, cp=2)
    return megatron(num_gpus, tp=4, pp=2, vpp=2 if name == "qwen3-32b" else 1)


def _engine(name: str, num_gpus: int) -> RolloutStrategy:
    tp = 1 if name == "qwen3-0.6b" else 4
    return engine(num_gpus, tp=tp, ep=tp if name in MOE else 1)


def cases() -> dict[str, Plan]:
    """At least 40 plans by name."""
    plans: dict[str, Plan] = {}
    for name in (*DENSE, *MOE):
        for size in CLUSTERS:
            trainer, rollout = _trainer(name, size), _engine(name, size)
            sleeping = replace(rollout, idle=EngineIdle.SLEEP)
            plans[f"{name}-{size}-together"] = together(load(name), trainer, sleeping)
            for label, execution in (("apart", SYNCHRONOUS), ("ahead", ONE_STEP_OFF)):
                plans[f"{name}-{size}-{label}"] = apart(load(name), trainer, rollout, execution=execution)
    return {**plans, **_families(), **_special()}


def _families() -> dict[str, Plan]:
    """One plan for each family whose layers need flags of their own."""
    trainers = {
        "llama-3-8b": megatron(16, tp=2),
        "mimo-7b": megatron(16, tp=2, pp=2),
        "glm-4-9b-0414": megatron(16, tp=2, pp=2),
        "glm-4.7-flash": megatron(16, tp=4, ep=4, etp=1),
        "qwen2-57b-a14b": megatron(64, tp=4, pp=2, ep=8, etp=1),
        "qwen3-next-80b-a3b": megatron(64, tp=1, pp=4, ep=8, etp=1),
        "qwen3.5-27b": megatron(64, tp=1, pp=4),
        "qwen3.5-35b-a3b": megatron(64, tp=1, pp=2, ep=8, etp=1),
        "minimax-m2": megatron(64, tp=4, pp=2, ep=8, etp=1),
        "glm-5": megatron(64, tp=4, pp=2, ep=8, etp=1),
    }
    plans: dict[str, Plan] = {}
    for name, trainer in trainers.items():
        work = load(name)
        rollout = engine(trainer.num_gpus, tp=2, ep=2 if work.actor.is_moe else 1, idle=EngineIdle.SLEEP)
        plans[f"{name}-family"] = together(work, trainer, rollout)
    return plans


def _special() -> dict[str, Plan]:
    name = "qwen3-8b"
    trainer, rollout = megatron(16, tp=4, pp=2), engine(16, idle=EngineIdle.SLEEP)
    algorithms = ("dr-grpo", "dapo", "gspo", "reinforce++", "ppo")
    plans = {algorithm: together(load(name, algorithm), trainer, rollout) for algorithm in algorithms}
    plans["ppo-ahead"] = apart(load(name, "ppo"), trainer, engine(16), execution=ONE_STEP_OFF)
    plans["no-reference"] = together(load(name, kl=0.0), trainer, rollout)
    plans["one-step"] = together(replace(load(name), num_optimizer_steps=1), trainer, rollout)
    plans["fp8-rollout"] = together(replace(load(name), rollout_precision=Precision.FP8), trainer, rollout)
    plans["sandbox"] = together(load(name, reward=RewardKind.SANDBOX), trainer, rollout)
    plans["resident"] = together(
        load(name), replace(trainer, offload=Offload.NONE, recompute=Recompute.NONE), engine(16)
    )
    plans["cpu-optimizer"] = together(load(name), replace(trainer, offload=Offload.CPU_OPTIMIZER), rollout)
    plans["cpu-optimizer-swap"] = together(
        load(name), replace(trainer, offload=Offload.CPU_OPTIMIZER_STATE_SWAP), rollout
    )
    plans["uneven-pipeline"] = together(load("deepseek-v3"), megatron(64, tp=2, pp=4, ep=8, etp=1), engine(64, tp=8))
    plans["context-parallel"] = together(load(name), megatron(16, tp=2, cp=4), rollout)
    plans["engine-over-nodes"] = apart(
        load("qwen3-235b-a22b"), megatron(64, tp=4, pp=2, ep=8, etp=1), engine(32, tp=8, pp=2, ep=8)
    )
    wide = engine(64, tp=4, ep=64, attention_dp=16, exchange=ExpertExchange.ALL_TO_ALL, max_num_seqs=64)
    plans["attention-dp"] = together(load("deepseek-v3"), megatron(64, tp=4, pp=2, ep=8, etp=1), wide)
    gathered = replace(wide, num_gpus=16, tp=1, attention_dp=8, ep=8, exchange=ExpertExchange.GATHER)
    plans["attention-dp-gather"] = apart(load(MOE[0]), megatron(16, tp=2, pp=2, ep=4, etp=1), gathered)
    plans["one-node"] = together(load("qwen3-0.6b"), megatron(8, tp=1), engine(8, tp=1, idle=EngineIdle.SLEEP))
    plans["half-nodes"] = apart(load("qwen3-0.6b"), megatron(4, tp=1), engine(4, tp=1))
    return plans
