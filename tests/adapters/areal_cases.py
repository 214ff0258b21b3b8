"""Plans that AReaL can run: models x clusters x placements, and one for every key that only some plans have."""

from __future__ import annotations

from dataclasses import replace

from planner.domain.execution import Execution, ExecutionMode, SchedulingPolicy
from planner.domain.plan import Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import Offload, Recompute, RolloutStrategy, Sharding, TrainerStrategy
from planner.domain.workload import RewardKind
from tests.adapters.plans import HOSTILE
from tests.adapters.split_plans import (
    STREAMING,
    SYNCHRONOUS,
    Group,
    apart,
    engine,
    forward_only,
    fsdp,
    load,
    megatron,
    model,
    split_plan,
    strategies,
)

DENSE = ("qwen3-0.6b", "qwen3-8b", "qwen3-32b", "qwen2.5-7b", "llama-3.1-70b")
MOE = ("qwen3-30b-a3b", "qwen3-235b-a22b")
CLUSTERS = ((8, 8), (16, 16), (64, 32))
"""GPUs of the trainer and of the engines, on nodes of 8."""


def _trainer(name: str, num_gpus: int) -> TrainerStrategy:
    if name in MOE:
        return megatron(num_gpus, tp=2, pp=2, ep=4, etp=1, recompute=Recompute.SELECTIVE)
    if name == "qwen3-0.6b":
        return fsdp(num_gpus)
    return megatron(num_gpus, tp=4, pp=2, vpp=2 if name == "qwen3-32b" else 1)


def _engine(name: str, num_gpus: int) -> RolloutStrategy:
    tp = 1 if name == "qwen3-0.6b" else 4
    return engine(num_gpus, tp=tp, ep=tp if name in MOE else 1)


def cases() -> dict[str, Plan]:
    """At least 40 plans by name."""
    plans: dict[str, Plan] = {}
    for name in (*DENSE, *MOE):
        for train, serve in CLUSTERS:
            for label, execution in (("sync", SYNCHRONOUS), ("streaming", STREAMING)):
                plans[f"{name}-{train}+{serve}-{label}"] = apart(
                    load(name), _trainer(name, train), _engine(name, serve), execution=execution
                )
    return {**plans, **_special()}


def _special() -> dict[str, Plan]:
    name = "qwen3-8b"
    trainer, rollout = megatron(16, tp=4, pp=2), engine(16)
    plans = {
        algorithm: apart(load(name, algorithm), trainer, rollout)
        for algorithm in ("dr-grpo", "dapo", "gspo", "rloo", "ppo")
    }
    plans["ppo-fsdp-streaming"] = apart(load(name, "ppo"), fsdp(16), rollout, execution=STREAMING)
    plans["no-reference"] = apart(load(name, kl=0.0), trainer, rollout)
    plans["no-old-logprob"] = apart(load(name, old_logprob=False), trainer, rollout)
    plans["no-old-logprob-streaming"] = apart(load(name, old_logprob=False), trainer, rollout, execution=STREAMING)
    deep = Execution(mode=ExecutionMode.STREAMING, staleness=8, policy=SchedulingPolicy.SEQUENTIAL)
    plans["lag-8"] = apart(load(name), trainer, rollout, execution=deep)
    plans["lora-fsdp"] = apart(load(name, lora_rank=32, kl=0.0), fsdp(16), rollout)
    plans["lora-megatron"] = apart(load(name, lora_rank=32, kl=0.0), megatron(16, sharding=Sharding.DDP), rollout)
    plans["sandbox"] = apart(load(name, reward=RewardKind.SANDBOX), trainer, rollout)
    plans["resident"] = apart(load(name), replace(trainer, offload=Offload.NONE), rollout)
    plans["fsdp-tp"] = apart(load(name), fsdp(16, tp=4, cp=1, recompute=Recompute.NONE), rollout)
    plans["context-parallel"] = apart(load(name), megatron(16, tp=2, cp=4), rollout)
    plans["one-node"] = apart(load("qwen3-0.6b"), fsdp(4, cp=1), engine(4, tp=1))
    plans["engine-over-nodes"] = apart(load("qwen3-235b-a22b"), _trainer(MOE[1], 64), engine(32, tp=8, pp=2, ep=8))
    wide = engine(16, tp=2, attention_dp=4, ep=8)
    plans["attention-dp"] = apart(load(MOE[0]), _trainer(MOE[0], 16), wide)
    plans["attention-dp-over-nodes"] = apart(load(MOE[0]), _trainer(MOE[0], 16), replace(wide, attention_dp=8, ep=16))
    plans["reference-apart"] = reference_apart()
    plans["critic-apart"] = critic_apart()
    plans["hostile"] = hostile_case()
    return plans


def reference_apart() -> Plan:
    """The reference on GPUs of its own, in a layout of its own."""
    placed = strategies(megatron(16, tp=4, pp=2), engine(16))
    placed[WorkerName.REFERENCE] = forward_only(megatron(8, tp=8))
    groups = (
        Group(num_gpus=16, workers=(WorkerName.ACTOR_TRAINER,)),
        Group(num_gpus=8, workers=(WorkerName.REFERENCE,)),
        Group(num_gpus=16, workers=(WorkerName.ROLLOUT_ENGINE,)),
    )
    return split_plan(load("qwen3-8b"), placed, groups)


def critic_apart() -> Plan:
    """Critic and reference share GPUs that the actor has not, so that the reference joins the critic."""
    placed = strategies(megatron(16, tp=4, pp=2), engine(16))
    placed[WorkerName.CRITIC_TRAINER] = megatron(8, tp=4)
    placed[WorkerName.REFERENCE] = forward_only(megatron(8, tp=4))
    groups = (
        Group(num_gpus=16, workers=(WorkerName.ACTOR_TRAINER,)),
        Group(num_gpus=8, workers=(WorkerName.CRITIC_TRAINER, WorkerName.REFERENCE)),
        Group(num_gpus=16, workers=(WorkerName.ROLLOUT_ENGINE,)),
    )
    return split_plan(load("qwen3-8b", "ppo"), placed, groups)


def hostile_case() -> Plan:
    """A model path with everything that a shell, YAML or OmegaConf could take for syntax."""
    work = load("qwen3-8b", "ppo")
    bad = replace(model("qwen3-8b"), hf_repo=HOSTILE)
    return apart(replace(work, actor=bad, critic=bad), fsdp(16), engine(16))
