"""The trainer's share of a weight sync: gathering its shards into full tensors, bucket by bucket, and sending them.

The cost of a pair (trainer layout, engine layout) is kept separable so that the search can price both sides
alone: the trainer pays `sync_gather` (every rank assembles full tensors), `sync_send` when engines sit on other
GPUs, and `sync_fixed`; the engine pays `sync_load` for what it reads.

Sharded syncs (`ShardedSync`) move to each GPU only what its engine shard needs. With micro-groups a GPU that holds a
share h of the model and needs a share e receives at most e of it over the scale-up link, which the engine pays in place
of the trainer's 1 - h; what other domains hold still comes in once per domain, which the trainer pays. Shard-to-shard
nothing is gathered: trainer ranks send disjoint parts of one copy. docs/cost/weight-sync.md has the derivation.
"""

from __future__ import annotations

import numpy as np

from planner.cost.communication import group_rate, nic_rate
from planner.cost.layout import Layout
from planner.cost.memory import States, is_zero3
from planner.cost.terms import Terms
from planner.cost.worker import Site, TrainerJob
from planner.domain.execution import ShardedSync
from planner.domain.hardware import NodeType
from planner.domain.strategy import FloatArray, TrainerTable

_LIVE_BUCKETS = 2.0


def sync_bytes(job: TrainerJob, at: Layout) -> float:
    """Bytes of one complete copy of what is synchronised, in the rollout's precision; adapters only with LoRA."""
    if job.lora_rank is not None:
        return job.lora_rank * at.totals.adapter_params_per_rank * 2.0
    return float(job.model.num_params) * job.rollout_precision.num_bytes


def sync_terms(
    job: TrainerJob, table: TrainerTable, at: Layout, site: Site
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """(colocated, disaggregated) seconds of the trainer's share.

    A GPU that holds a fraction f of the model receives (1 - f) of it. What comes from other scale-up domains
    crosses its NIC once per domain: the ranks of a domain fetch disjoint parts and exchange them inside it.
    Link rates are scaled by the share that bucketed gathers reach (`sync_gather_ratio`). When disaggregated,
    all trainer GPUs send equal parts of one copy; engines distribute it among themselves.
    """
    node, overheads = site.node, site.overheads
    copy_bytes = sync_bytes(job, at)
    send = copy_bytes / (table.num_gpus * nic_rate(node))
    fixed = np.full_like(send, overheads.sync_fixed_s)
    return {"sync_gather": _gather_s(job, table, at, site, is_apart=False), "sync_fixed": fixed}, {
        "sync_gather": _gather_s(job, table, at, site, is_apart=True),
        "sync_send": send,
        "sync_fixed": fixed,
    }


def _gather_s(job: TrainerJob, table: TrainerTable, at: Layout, site: Site, *, is_apart: bool) -> FloatArray:
    node = site.node
    received, remote = gathered_ratios(job, table, at, node, is_apart=is_apart)
    seconds = received / scale_up_rate(site) + remote / group_rate(table.num_gpus, node)
    return np.asarray(sync_bytes(job, at) * seconds)


def scale_up_rate(site: Site) -> float:
    """Bytes/s at which bucketed gathers reach one GPU inside its scale-up domain."""
    return site.node.gpu.scale_up_bytes_per_s * site.overheads.sync_gather_ratio


def gathered_ratios(
    job: TrainerJob, table: TrainerTable, at: Layout, node: NodeType, *, is_apart: bool
) -> tuple[FloatArray, FloatArray]:
    """(received by each GPU, brought in by each NIC) of one copy of the model while shards are gathered; what the
    engine pays for is left out."""
    none = np.zeros_like(table.num_gpus)
    if is_apart and ShardedSync.SHARD_TO_SHARD in job.sharded_syncs:
        return none, none
    received = 1.0 - _held_ratio(table, at)
    if not is_apart and ShardedSync.MICRO_GROUPS in job.sharded_syncs:
        received = none
    return received, _remote_ratio(table, at, node.scale_up_domain_gpus)


def _held_ratio(table: TrainerTable, at: Layout) -> FloatArray:
    """Share of the model's parameters that one GPU holds whole in 16 bit."""
    model_params = at.totals.dense_body_params + at.totals.expert_params + at.totals.table_params
    is_divided = is_zero3(at) > 0.0
    dense = at.dense_params - (at.table_params - at.totals.table_params * at.per_tp / table.pp)
    held = dense * np.where(is_divided, at.per_shard, 1.0)
    if at.totals.experts:
        held += at.expert_params * np.where(is_divided, at.per_expert_shard, 1.0)
    return np.minimum(1.0, held / model_params)


def _remote_ratio(table: TrainerTable, at: Layout, domain_gpus: int) -> FloatArray:
    """Share of the model that each NIC brings in from other scale-up domains.

    A group that divides the model over N domains with g of its ranks in each brings (N - 1) / N of the model
    into a domain, 1 / g of it through each NIC.
    """
    model_ranks = np.where(
        is_zero3(at) > 0.0, at.shard.num_ranks * table.tp, np.maximum(table.tp, table.ep * table.etp)
    )
    inside = np.minimum(model_ranks, domain_gpus)
    domains = np.ceil(model_ranks / inside)
    # Pipeline ranks are num_gpus / pp apart; beyond one domain each pipeline rank is another domain's.
    local_stages = np.clip(np.floor(domain_gpus * table.pp / table.num_gpus), 1.0, table.pp)
    domains *= np.ceil(table.pp / local_stages)
    return (1.0 - 1.0 / domains) / inside


def sync_memory_terms(job: TrainerJob, at: Layout, states: States, idle: Terms, site: Site) -> dict[str, FloatArray]:
    """Bytes per GPU during the sync: what idles, the weights in any case, and two live buckets."""
    bucket = min(site.overheads.sync_bucket_bytes, sync_bytes(job, at))
    return {
        **idle,
        "weights": states.weights,
        "sync_buckets": np.full_like(states.weights, _LIVE_BUCKETS * bucket),
    }
