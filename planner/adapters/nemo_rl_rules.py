"""What keeps NeMo-RL from running a plan beside its general rules, and where it differs from the plan's cost model.

Sources: nemo_rl/algorithms/grpo.py and ppo.py (setup), examples/run_grpo.py and run_ppo.py (asynchronous training),
nemo_rl/models/megatron/setup.py, nemo_rl/models/policy/lm_policy.py.
"""

from __future__ import annotations

from planner.adapters.roles import Roles, nodes_of
from planner.domain.execution import ExecutionMode
from planner.domain.stages import WorkerName
from planner.domain.strategy import Offload
from planner.domain.workload import RewardKind

SWAPS = (Offload.STATE_SWAP, Offload.CPU_OPTIMIZER_STATE_SWAP)
ON_HOST = (Offload.CPU_OPTIMIZER, Offload.CPU_OPTIMIZER_STATE_SWAP)
TRAINERS = (WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER)
KL_IN_REWARD = ("ppo", "reinforce++")
"""Algorithms whose estimator can subtract the KL term from the reward."""


def lacks(roles: Roles) -> tuple[str, ...]:
    """Reasons against the plan; empty if the adapter can express it."""
    if roles.is_colocated and roles.plan.execution.is_asynchronous:
        return ("asynchronous training needs GPUs of its own for the rollout",)
    return ()


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
