"""What keeps OpenRLHF from running a plan beside its general rules, and where it differs from the plan's cost model.

Sources: openrlhf/cli/train_ppo_ray.py, openrlhf/utils/deepspeed/deepspeed.py and deepspeed_utils.py,
openrlhf/trainer/ppo_utils/experience_maker.py of the 0.11.2 wheel.
"""

from __future__ import annotations

import math

from planner.adapters.roles import Roles
from planner.domain.stages import WorkerName
from planner.domain.strategy import Offload, Sharding, TrainerStrategy

STAGES = {Sharding.DDP: 0, Sharding.ZERO1: 1, Sharding.ZERO2: 2, Sharding.ZERO3: 3}
"""`--ds.zero_stage`"""
TRAINERS = (WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER)
FORWARD_ONLY = (WorkerName.REFERENCE, WorkerName.REWARD_MODEL)


def lacks(roles: Roles) -> tuple[str, ...]:
    """Reasons against the plan; empty if the adapter can express it."""
    if roles.plan.execution.is_asynchronous and roles.is_colocated:
        return ("asynchronous training needs GPUs of its own for the rollout",)
    return ()


def train_tokens(roles: Roles) -> int:
    """`--train.max_tokens_per_gpu`, which OpenRLHF multiplies by ring and tp: one budget for actor and critic."""
    found = [s.micro_batch_tokens for s in (roles.trainer(name) for name in TRAINERS) if s is not None]
    return _per_gpu(min(found), roles.actor)


def forward_tokens(roles: Roles) -> int:
    """`--rollout.max_tokens_per_gpu`: one budget for every forward pass."""
    return _per_gpu(min(_forward_budgets(roles)), roles.actor)


def _forward_budgets(roles: Roles) -> list[int]:
    strategies = (roles.trainer(name) for name in (*TRAINERS, *FORWARD_ONLY))
    return [strategy.inference_tokens for strategy in strategies if strategy is not None]


def _per_gpu(tokens: int, strategy: TrainerStrategy) -> int:
    return math.ceil(tokens / (strategy.cp * strategy.tp))


def differences(roles: Roles) -> tuple[str, ...]:
    """Where OpenRLHF does something else than the plan's cost model assumes."""
    workload, execution = roles.workload, roles.plan.execution
    actor, critic = roles.actor, roles.trainer(WorkerName.CRITIC_TRAINER)
    notes = [
        f"OpenRLHF has no flag for the sequences of an engine: vLLM decodes up to its own default, the plan has "
        f"{roles.rollout.max_num_seqs}."
    ]
    if critic is not None and critic.micro_batch_tokens != actor.micro_batch_tokens:
        notes.append("Actor and critic train with one token budget: the smaller one is written.")
    if len(set(_forward_budgets(roles))) > 1:
        notes.append("All forward passes have one token budget: the smallest one is written.")
    streamed = [n.value for n in FORWARD_ONLY if (s := roles.trainer(n)) is not None and s.offload is not Offload.NONE]
    if streamed:
        notes.append(
            f"Weights of the {' and the '.join(streamed)} stay in host RAM and are streamed in every micro-batch "
            "(ZeRO-3) or loaded by DeepSpeed; the plan priced one load per iteration."
        )
    if workload.algorithm.name == "dr-grpo":
        notes.append("Dr.GRPO averages the loss over tokens instead of dividing by a constant length.")
    if workload.algorithm.oversampling_ratio > 1:
        notes.append(
            "OpenRLHF replaces each discarded group by a new prompt; the plan priced "
            f"{workload.algorithm.oversampling_ratio:g} x {workload.num_prompts} prompts at once."
        )
    if execution.is_asynchronous and execution.staleness > 1:
        notes.append(
            f"The rollout may finish {execution.staleness} batches ahead; the lag is smaller whenever it does not."
        )
    return tuple(notes)


def to_do(roles: Roles) -> tuple[str, ...]:
    workload = roles.workload
    items = [
        "`TRAIN_DATA`: a JSON file or dataset with `input` (the prompt) and `label` (the answer). OpenRLHF does not "
        f"filter prompts by length: none may exceed {workload.prompt_max_tokens} tokens."
    ]
    if workload.reward.model is None:
        items.append("`REWARD_FUNCTION`: a Python file with `reward_func`, or the URL of a reward server.")
    return tuple(items)
