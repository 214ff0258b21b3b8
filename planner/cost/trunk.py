"""What crosses the link between pools, and the time that its total capacity sets as a floor.

A disaggregated plan over two pools sends one copy of the weights from the trainer's pool to the engines' pool per
weight sync (engines distribute it among themselves), and every trajectory the other way. Links are full duplex, so
that the two directions do not add up. Each flow is also limited by the rate of single GPUs, which
`planner.cost.weight_sync` prices.
"""

from __future__ import annotations

import numpy as np

from planner.cost.layout import model_totals
from planner.cost.terms import Terms
from planner.domain.workload import Workload

TRAJECTORY_BYTES_PER_TOKEN = 28.0
"""Token id, mask and position as 64-bit integers and the log-prob of the engine in 32 bit, without padding: the
tensors that verl's DataProto holds per token after a rollout (assumption: other frameworks send no more)."""
_ADAPTER_BYTES = 2.0


def weight_copy_bytes(workload: Workload) -> float:
    """Bytes of one copy of what a weight sync replaces: the actor in the rollout's precision, or the adapters."""
    if workload.lora_rank is not None:
        return workload.lora_rank * model_totals(workload.actor, True).adapter_params_per_rank * _ADAPTER_BYTES
    return float(workload.actor.num_params) * workload.rollout_precision.num_bytes


def trajectory_bytes(workload: Workload) -> float:
    """Bytes of all trajectories of one iteration, discarded ones included: they are scored before."""
    return workload.num_generated * workload.mean_tokens * TRAJECTORY_BYTES_PER_TOKEN


def trunk_s(num_bytes: float, trunk_bytes_per_s: float | None) -> float:
    """Least seconds of `num_bytes` through a trunk of a total capacity; 0 without one."""
    return 0.0 if trunk_bytes_per_s is None else num_bytes / trunk_bytes_per_s


def within_trunk(sync_terms: Terms, copy_bytes: float, trunk_bytes_per_s: float | None) -> Terms:
    """The trainer's sync terms towards another pool, sending no faster than the trunk carries one copy.

    All GPUs of the trainer send at once, each at its own rate: `sync_send` is that, or the trunk's time if longer.
    """
    if trunk_bytes_per_s is None:
        return sync_terms
    return {**sync_terms, "sync_send": np.maximum(sync_terms["sync_send"], trunk_s(copy_bytes, trunk_bytes_per_s))}
