"""Plans for verl: those on one group of GPUs (`plans.cases`), and models x clusters x executions with engines apart."""

from __future__ import annotations

from dataclasses import replace

from planner.domain.execution import Execution, ExecutionMode, SchedulingPolicy
from planner.domain.plan import Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import Offload, Recompute, RolloutStrategy, TrainerStrategy
from planner.domain.workload import RewardKind
from tests.adapters import plans
from tests.adapters.split_plans import (
    TRAINERS,
    Group,
    apart,
    engine,
    forward_only,
    fsdp,
    load,
    megatron,
    split_plan,
    strategies,
)

MODELS = ("qwen3-8b", "qwen3-32b", "qwen3-30b-a3b", "llama-3.1-70b")
CLUSTERS = ((8, 8), (32, 16), (16, 48))
"""GPUs of the trainer and of the engines."""
SYNCHRONOUS = Execution(policy=SchedulingPolicy.SEQUENTIAL)
ONE_STEP_OFF = replace(SYNCHRONOUS, mode=ExecutionMode.BATCHES, staleness=1)
STREAMING = replace(SYNCHRONOUS, mode=ExecutionMode.STREAMING, staleness=2)
"""As plans for verl are: its controller runs one stage after the other."""
EXECUTIONS = {"sync": SYNCHRONOUS, "one-step-off": ONE_STEP_OFF, "streaming": STREAMING}


def _trainer(name: str, num_gpus: int) -> TrainerStrategy:
    if name == "qwen3-30b-a3b":
        return megatron(num_gpus, tp=2, ep=4, etp=1, recompute=Recompute.SELECTIVE)
    if name == "qwen3-8b":
        return fsdp(num_gpus)
    return megatron(num_gpus, tp=4, pp=2 if num_gpus > 8 else 1)


def _engine(name: str, num_gpus: int) -> RolloutStrategy:
    return engine(num_gpus, ep=4 if name == "qwen3-30b-a3b" else 1)


def cases() -> dict[str, Plan]:
    """All plans by name."""
    return {**plans.cases(), **apart_cases()}


def apart_cases() -> dict[str, Plan]:
    """Plans whose engines have GPUs of their own."""
    found = {
        f"{name}-{train}+{roll}-{label}": apart(
            load(name), _trainer(name, train), _engine(name, roll), execution=execution
        )
        for name in MODELS
        for train, roll in CLUSTERS
        for label, execution in EXECUTIONS.items()
    }
    return {**found, **_special()}


def _special() -> dict[str, Plan]:
    name, far = "qwen3-8b", replace(STREAMING, staleness=7)
    trainer, rollout = megatron(16, pp=2, offload=Offload.NONE), engine(16)
    found = {
        f"{algorithm}-streaming": apart(load(name, algorithm), trainer, rollout, execution=STREAMING)
        for algorithm in ("ppo", "dapo", "gspo", "rloo")
    }
    wide = engine(16, tp=2, attention_dp=4, ep=8, max_num_seqs=64)
    found["attention-dp"] = apart(load("qwen3-30b-a3b"), _trainer("qwen3-30b-a3b", 16), wide, execution=STREAMING)
    found["attention-dp-ep-1"] = apart(
        load("qwen3-30b-a3b"), _trainer("qwen3-30b-a3b", 16), replace(wide, ep=1), execution=ONE_STEP_OFF
    )
    found["lag-7"] = apart(load(name), trainer, rollout, execution=far)
    found["half-a-node"] = apart(load(name), fsdp(4), engine(4, tp=2), execution=STREAMING)
    found["no-reference"] = apart(load(name, kl=0.0), fsdp(8), engine(8), execution=ONE_STEP_OFF)
    found["lora-fsdp"] = apart(load(name, lora_rank=16), fsdp(8), engine(8), execution=STREAMING)
    found["lora-megatron"] = apart(load(name, lora_rank=16), trainer, rollout, execution=ONE_STEP_OFF)
    one_update = replace(load(name), num_optimizer_steps=1)
    found["fsdp-swap-one-update"] = apart(
        one_update, fsdp(8, offload=Offload.STATE_SWAP), engine(8), execution=STREAMING
    )
    found["reward-model-apart"] = with_reward_model(STREAMING)
    return found


def with_reward_model(execution: Execution, *, shares_trainer: bool = False) -> Plan:
    """Trainer, engines and a reward model on GPUs of their own, or the reward model with the trainer."""
    trainer, rollout = megatron(16, pp=2), engine(8)
    reward = forward_only(megatron(16 if shares_trainer else 8, tp=4))
    placed = {**strategies(trainer, rollout), WorkerName.REWARD_MODEL: reward}
    together = (*TRAINERS, WorkerName.REWARD_MODEL) if shares_trainer else TRAINERS
    groups = [
        Group(num_gpus=16, workers=together),
        Group(num_gpus=8, workers=(WorkerName.ROLLOUT_ENGINE,)),
        *([] if shares_trainer else [Group(num_gpus=8, workers=(WorkerName.REWARD_MODEL,))]),
    ]
    work = load("qwen3-8b", "ppo", reward=RewardKind.MODEL)
    work = replace(work, reward=replace(work.reward, model=work.actor))
    found = split_plan(work, placed, tuple(groups), execution=execution)
    placements = tuple(
        replace(item, strategy=reward) if item.worker is WorkerName.REWARD_MODEL else item for item in found.placements
    )
    return replace(found, placements=placements)
