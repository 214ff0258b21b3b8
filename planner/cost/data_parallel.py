"""Exposed data-parallel traffic of training: gradients, optimizer shards and gathered weights.

Once per optimizer step with whole weights (DDP, ZeRO-1), per micro-batch with sharded ones (ZeRO-2, ZeRO-3, HSDP);
what backward and forward hide is taken off. `docs/cost/communication.md` has the equations.
"""

from __future__ import annotations

import numpy as np

from planner.cost import memory
from planner.cost.communication import Span, collective_s, span
from planner.cost.layout import Layout
from planner.cost.worker import Site
from planner.domain.hardware import CollectiveOp
from planner.domain.strategy import FloatArray, TrainerTable

_TINY = 1e-30


def data_parallel_s(
    is_lora: bool, num_micro_batches: FloatArray, table: TrainerTable, at: Layout, site: Site, window: FloatArray,
    tax: FloatArray,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Exposed (scale-up, scale-out) of data-parallel collectives in one optimizer step.

    `window` are the seconds of one micro-batch on one stage, forward and backward, behind which they can hide.
    """
    scale_up = np.zeros_like(window)
    scale_out = np.zeros_like(window)
    is_zero3 = at.sharding == memory.ZERO3_CODE
    if is_zero3.any():
        gathered = gather_per_micro_batch_s(at, site, window, tax, num_gathers=2.0, has_gradients=not is_lora)
        scale_up += is_zero3 * num_micro_batches * gathered[0]
        scale_out += is_zero3 * num_micro_batches * gathered[1]
    if is_lora:
        # adapter gradients are a few MB: their all-reduce is inside the optimizer's host time
        return scale_up, scale_out
    if bool((at.shard.num_ranks < at.dp * table.cp).any()):
        replica = _replica_reduce_s(table, at, site)
        scale_up += replica[0]
        scale_out += replica[1]
    if is_zero3.all():
        return scale_up, scale_out
    reduced = _reduce_once_s(at, site, num_micro_batches, window, tax)
    return scale_up + ~is_zero3 * reduced[0], scale_out + ~is_zero3 * reduced[1]


def _exposed(
    scale_up: FloatArray, scale_out: FloatArray, window: FloatArray, tax: FloatArray, num_layers: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """What a window does not hide of collectives; the first or last of `num_layers` buckets always shows.

    What is hidden slows the compute that hides it by the share `tax` of its own time.
    """
    seconds = scale_up + scale_out
    open_ratio = np.maximum(1.0 - window / np.maximum(seconds, _TINY), 1.0 / num_layers)
    ratio = open_ratio + tax * (1.0 - open_ratio)
    return scale_up * ratio, scale_out * ratio


def _reduce_once_s(
    at: Layout, site: Site, num_micro_batches: FloatArray, window: FloatArray, tax: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """DDP, ZeRO-1 and ZeRO-2: gradients reduce behind the last backward, weights gather behind the first forward.

    ZeRO-2 reduces after every micro-batch. DDP's all-reduce is its reduce-scatter plus an all-gather of fp32
    gradients, and gathers no weights.
    """
    node = site.node
    repeats = np.where(at.sharding == memory.ZERO2_CODE, num_micro_batches, 1.0)
    gather_bytes = np.where(at.sharding == memory.DDP_CODE, memory.REDUCE_BYTES, 2.0)
    groups: list[tuple[Span, FloatArray]] = [(at.shard, at.dense_params)]
    if at.totals.experts:
        groups.append((at.expert_shard, at.expert_params))
    scale_up = np.zeros_like(window)
    scale_out = np.zeros_like(window)
    for group, params in groups:
        reduce_up, reduce_out = collective_s(CollectiveOp.REDUCE_SCATTER, params * memory.REDUCE_BYTES, group, node)
        gather_up, gather_out = collective_s(CollectiveOp.ALL_GATHER, params * gather_bytes, group, node)
        scale_up += reduce_up + gather_up / repeats
        scale_out += reduce_out + gather_out / repeats
    scale_up, scale_out = _exposed(scale_up, scale_out, window, tax, at.depth_ratio * at.totals.num_layers)
    return repeats * scale_up, repeats * scale_out


def gather_per_micro_batch_s(
    at: Layout, site: Site, window: FloatArray, tax: FloatArray, *, num_gathers: float, has_gradients: bool
) -> tuple[FloatArray, FloatArray]:
    """ZeRO-3 per micro-batch: gather each layer for forward (and again for backward), reduce its gradients.

    Layers overlap with the compute of their neighbours, so max(compute, traffic); the root unit (vocabulary
    tables) is gathered once and reduced in the open.
    """
    totals = at.totals
    layers = at.depth_ratio * totals.num_layers
    per_layer = at.per_tp * (totals.dense_body_params / totals.num_layers)
    root_ratio = at.table_params / per_layer
    node = site.node
    gather_up, gather_out = collective_s(CollectiveOp.ALL_GATHER, 2.0 * per_layer, at.shard, node)
    traffic_up, traffic_out = num_gathers * gather_up, num_gathers * gather_out
    root_up, root_out = gather_up, gather_out
    if has_gradients:
        reduce = collective_s(CollectiveOp.REDUCE_SCATTER, memory.REDUCE_BYTES * per_layer, at.shard, node)
        traffic_up, traffic_out = traffic_up + reduce[0], traffic_out + reduce[1]
        root_up, root_out = root_up + reduce[0], root_out + reduce[1]
    if totals.experts and at.expert_shard.communicates:
        # Experts are sharded only over the ranks that hold the same ones: with ep = all of them nothing is gathered.
        experts = at.expert_params / layers
        gather = collective_s(CollectiveOp.ALL_GATHER, 2.0 * experts, at.expert_shard, node)
        traffic_up, traffic_out = traffic_up + num_gathers * gather[0], traffic_out + num_gathers * gather[1]
        if has_gradients:
            reduce = collective_s(CollectiveOp.REDUCE_SCATTER, memory.REDUCE_BYTES * experts, at.expert_shard, node)
            traffic_up, traffic_out = traffic_up + reduce[0], traffic_out + reduce[1]
    scale_up, scale_out = _exposed(traffic_up * layers, traffic_out * layers, window, tax, layers)
    return scale_up + root_ratio * root_up, scale_out + root_ratio * root_out


def _replica_reduce_s(table: TrainerTable, at: Layout, site: Site) -> tuple[FloatArray, FloatArray]:
    """HSDP: all-reduce of fp32 gradient shards across replicas of the shard group, once per optimizer step.

    The last backward already hides the gathers and reductions inside the shard group, so this one is exposed.
    """
    replicas = at.dp * table.cp * at.per_shard
    group = span(replicas, table.tp * table.shard_ranks, site.node)
    shard = at.dense_params * at.per_shard + at.expert_params * at.per_expert_shard
    scale_up, scale_out = collective_s(CollectiveOp.ALL_REDUCE, memory.REDUCE_BYTES * shard, group, site.node)
    is_hybrid = at.sharding != memory.DDP_CODE
    return scale_up * is_hybrid, scale_out * is_hybrid
