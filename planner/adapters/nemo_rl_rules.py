"""What keeps NeMo-RL from running a plan beside its general rules, and where it differs from the plan's cost model.

Sources: nemo_rl/algorithms/grpo.py and ppo.py (setup), examples/run_grpo.py and run_ppo.py (asynchronous training),
nemo_rl/models/megatron/setup.py, nemo_rl/models/policy/lm_policy.py.
"""

from __future__ import annotations

from planner.adapters.roles import Roles, nodes_of
from planner.domain.execution import ExecutionMode
from planner.domain.hardware import Precision
from planner.domain.stages import WorkerName
from planner.domain.strategy import Offload, Sharding
from planner.domain.workload import RewardKind

SWAPS = (Offload.STATE_SWAP, Offload.CPU_OPTIMIZER_STATE_SWAP)
ON_HOST = (Offload.CPU_OPTIMIZER, Offload.CPU_OPTIMIZER_STATE_SWAP)
TRAINERS = (WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER)
KL_IN_REWARD = ("ppo", "reinforce++")
"""Algorithms whose estimator can subtract the KL term from the reward."""


def lacks(roles: Roles, backend: str) -> tuple[str, ...]:
    """Reasons against the plan; empty if the adapter can express it."""
    return (*_placement_lacks(roles), *_training_lacks(roles, backend), *_algorithm_lacks(roles))


def _placement_lacks(roles: Roles) -> list[str]:
    if roles.is_colocated:
        if roles.plan.execution.is_asynchronous:
            return ["asynchronous training needs GPUs of its own for the rollout"]
        return []
    train, rollout = roles.actor_group, roles.rollout_group
    shapes = {nodes_of(group)[1] for group in (train, rollout)}
    # Both on one node is the only case in which GPUs of a node are divided.
    if not _on_one_node(roles) and len(shapes) > 1:
        return [
            "it takes equally many GPUs of every node, the plan has "
            f"{nodes_of(train)[1]} for training and {nodes_of(rollout)[1]} for the rollout"
        ]
    return []


def _on_one_node(roles: Roles) -> bool:
    groups = (roles.actor_group, roles.rollout_group)
    per_node = roles.plan.cluster.pool(groups[0].pool).node.gpus_per_node
    nodes = {rank // per_node for group in groups for rank in (group.ranks.start, group.ranks.stop - 1)}
    return len(nodes) == 1


def cluster_shape(roles: Roles) -> tuple[int, int, int | None, int | None]:
    """`cluster.num_nodes`, `cluster.gpus_per_node` and, for a rollout on GPUs of its own, its nodes and GPUs per node.

    The nodes of the cluster are those of training and rollout together; on a single node its GPUs are divided.
    """
    train = nodes_of(roles.actor_group)
    if roles.is_colocated:
        return (*train, None, None)
    rollout = nodes_of(roles.rollout_group)
    if _on_one_node(roles):
        return 1, train[1] + rollout[1], 1, rollout[1]
    return train[0] + rollout[0], train[1], rollout[0], rollout[1]


def _training_lacks(roles: Roles, backend: str) -> list[str]:
    problems: list[str] = []
    for name in TRAINERS:
        strategy = roles.trainer(name)
        if strategy is None:
            continue
        if strategy.offload in ON_HOST and strategy.sharding is not Sharding.ZERO1:
            problems.append(f"{name.value}: the optimizer step on the host needs the distributed optimizer (zero1)")
        if name is WorkerName.CRITIC_TRAINER and backend == "dtensor" and strategy.cp > 1:
            problems.append(f"{name.value}: a value model on DTensor has no context parallelism")
    if roles.workload.lora_rank is not None and roles.workload.critic is not None:
        problems.append("its value model trains all weights, the plan trains adapters")
    if backend == "dtensor" and roles.workload.train_precision is Precision.FP8:
        problems.append("it trains in fp8 on Megatron only")
    return problems


def _algorithm_lacks(roles: Roles) -> list[str]:
    workload, execution = roles.workload, roles.plan.execution
    problems: list[str] = []
    if workload.num_epochs > 1 and workload.critic is None:
        problems.append(f"it passes over a batch once, except in PPO; the plan does so {workload.num_epochs} times")
    if execution.is_asynchronous and workload.algorithm.oversampling_ratio > 1:
        problems.append("its asynchronous training has no dynamic sampling")
    if not workload.needs_old_logprob:
        if workload.critic is not None:
            problems.append("its PPO always computes old log-probs, the plan leaves that stage out")
        elif workload.num_optimizer_steps > 1:
            problems.append("it leaves old log-probs out only with one optimizer step per iteration")
        elif workload.has_reference and workload.algorithm.name in KL_IN_REWARD:
            problems.append("it needs old log-probs for a KL term in the reward")
    return problems


def differences(roles: Roles, backend: str) -> tuple[str, ...]:
    """Where NeMo-RL does something else than the plan's cost model assumes."""
    workload, execution = roles.workload, roles.plan.execution
    strategies = [roles.trainer(name) for name in TRAINERS]
    critic = strategies[1]
    notes: list[str] = []
    takes_turns = roles.is_colocated or critic is not None
    if takes_turns and any(s is not None and s.offload not in SWAPS for s in strategies):
        partner = "the rollout engine" if roles.is_colocated else "the value model"
        notes.append(
            f"NeMo-RL always moves the weights and optimizer states of a trainer to the host while {partner} runs; "
            "the plan keeps them on the GPU."
        )
    if backend == "dtensor" and roles.actor.cp > 1:
        notes.append(
            "DTensor cannot pack sequences with context parallelism: micro-batches are padded to their longest "
            "sequence, which the plan did not price."
        )
    if critic is not None and backend == "dtensor":
        notes.append(
            "A value model on DTensor neither packs nor batches by tokens: micro-batches have a fixed number of "
            "sequences, padded to the longest one."
        )
    reference = roles.trainer(WorkerName.REFERENCE)
    if reference is not None and reference.inference_tokens != roles.actor.inference_tokens:
        notes.append(
            f"One budget holds for old and reference log-probs: the smaller one ({roles.forward_tokens} tokens) is "
            "written."
        )
    if workload.algorithm.name == "rloo" and workload.has_reference:
        notes.append("The KL term of RLOO is in the loss: only PPO and REINFORCE++ can put it into the reward.")
    if workload.algorithm.oversampling_ratio > 1:
        notes.append(
            f"NeMo-RL generates batches of {workload.algorithm.oversampling_ratio:g} x {workload.num_prompts} prompts "
            "until enough groups are left; the plan priced one."
        )
    if execution.mode is ExecutionMode.BATCHES and execution.staleness > 1:
        notes.append(
            "Without in-flight weight updates NeMo-RL waits for running responses at every weight sync, so that more "
            "than one version of lag gains nothing there."
        )
    return tuple(notes)


def to_do(roles: Roles) -> tuple[str, ...]:
    kind = roles.workload.reward.kind
    needs = {
        RewardKind.RULE: "`env` and `data.default` of config.yaml score mathematics; change both for other tasks.",
        RewardKind.SANDBOX: "Set `env` and `data.default` of config.yaml to an environment that runs your sandbox.",
    }
    return (
        "`NEMO_RL`: a checkout of NeMo-RL with its submodules.",
        "`TRAIN_DATA`: a JSON file of objects with `input` (the prompt) and `output` (the answer).",
        *([needs[kind]] if kind in needs else []),
    )
