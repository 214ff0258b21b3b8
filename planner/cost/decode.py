"""Time of one decode step of an inference engine, as named terms, on arrays of candidates.

Arrays of running sequences have shape (num_nodes, num_candidates): nodes are the operating points of
`planner.cost.trajectory`, or one. Layout columns have shape (num_candidates,). A step is

    sum over layers of [ GEMMs + KV read + 2 all-reduces + element-wise ] + output head + engine host time

with each GEMM group `launches + max(FLOP / rate, bytes / HBM rate)`. The larger side of the maximum gets
the time: `gemm` when compute bounds, `weight_read` when memory does; fixed kernel times are in `launch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log1p

import numpy as np

from planner.cost.communication import Span, collective_s, expert_exchange_s, pipeline_slowdown, send_s, span
from planner.cost.formats import WeightFormats, engine_kernel, engine_rates, expert_launch_s, expert_rates
from planner.domain.hardware import CollectiveLaw, CollectiveOp, Gpu, NodeType, Precision
from planner.domain.model import LayerClass, Model
from planner.domain.overheads import Overheads
from planner.domain.strategy import EXPERT_EXCHANGES, BoolArray, ExpertExchange, FloatArray

ACTIVATION_BYTES = 2.0
KV_BYTES = 2.0
"""Bytes per cached element; the cache stays in 16 bit whatever the precision of weights."""
TABLE_BYTES = 2.0
"""Embedding and output head stay in 16 bit."""

_KERNELS_PER_LAYER = 3
"""Element-wise kernels that engines do not fuse away: two add-norms and one activation."""
_ENGINE_COLLECTIVES = (CollectiveOp.ALL_REDUCE, CollectiveOp.ALL_GATHER, CollectiveOp.REDUCE_SCATTER)
_LOG2_COUNTS = np.arange(13.0)
_NORMAL_MAXIMA = np.array([0.0, 0.564, 1.029, 1.424, 1.766, 2.070, 2.344, 2.594, 2.825, 3.044, 3.248, 3.442, 3.626])
"""Expected maximum of 1, 2, 4, ... 4096 standard normal numbers."""
_RESIDUAL_PASSES = 8
"""Reads and writes of the residual stream per layer by two fused add-norm kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLayout:
    """How engines divide a model; columns of shape (num_candidates,).

    A pipeline stage has `tp * attention_dp` ranks. Experts are spread over `ep` of them and each expert's width
    over the rest. With tensor-parallel attention (`attention_dp` 1) tokens are on every rank and the all-reduce
    after a MoE layer also combines experts. With data-parallel attention each of `attention_dp` groups holds its
    own sequences, dense layers and head; tokens are gathered before a MoE layer and scattered after it, or sent to
    the ranks of their experts and back (`exchanges`, where every rank holds whole experts).
    """

    tp: FloatArray
    attention_dp: FloatArray
    pp: FloatArray
    ep: FloatArray
    tp_span: Span
    expert_span: Span
    """All ranks of a pipeline stage."""
    has_attention_dp: bool
    exchanges: BoolArray
    has_exchange: bool
    pp_crosses: np.ndarray
    """Pipeline neighbours sit in different scale-up domains."""
    spans_nodes: np.ndarray
    """The engine's processes run on several hosts."""


def engine_layout(
    tp: FloatArray,
    pp: FloatArray,
    ep: FloatArray,
    node: NodeType,
    attention_dp: FloatArray | None = None,
    exchange: FloatArray | None = None,
) -> EngineLayout:
    """The layout of engines on consecutive GPUs of `node`s, TP ranks adjacent.

    `exchange` indexes EXPERT_EXCHANGES; None: tokens are gathered.
    """
    node = _small_message_node(node)
    tp_span = span(tp, 1.0, node)
    groups = np.ones_like(tp) if attention_dp is None else attention_dp
    has_attention_dp = bool(groups.max(initial=1.0) > 1)
    ranks = tp * groups
    all_to_all = EXPERT_EXCHANGES.index(ExpertExchange.ALL_TO_ALL)
    exchanges = np.zeros(tp.shape, dtype=np.bool_) if exchange is None else (exchange == all_to_all) & (groups > 1)
    return EngineLayout(
        tp=tp,
        attention_dp=groups,
        pp=pp,
        ep=ep,
        tp_span=tp_span,
        expert_span=span(ranks, 1.0, node) if has_attention_dp else tp_span,
        has_attention_dp=has_attention_dp,
        exchanges=exchanges,
        has_exchange=bool(exchanges.any()),
        pp_crosses=ranks * pp > node.scale_up_domain_gpus,
        spans_nodes=ranks * pp > node.gpus_per_node,
    )


@lru_cache(maxsize=64)
def _small_message_node(node: NodeType) -> NodeType:
    """`node` as the short messages of decode steps see its network."""
    return replace(node, network=replace(node.network, nic_half_bytes=node.network.nic_small_half_bytes))


@lru_cache(maxsize=64)
def engine_node(node: NodeType, all_reduce_latency_ratio: float) -> NodeType:
    """`node` with the latency that inference engines reach inside a switched domain with their own collectives.

    Boards connected by PCIe keep NCCL's law: engines disable their own all-reduce there.
    """
    gpu = node.gpu
    if gpu.scale_up_kind in ("pcie", "none"):
        return node
    collectives = tuple(
        (op, _quick(law, all_reduce_latency_ratio) if op in _ENGINE_COLLECTIVES else law) for op, law in gpu.collectives
    )
    return replace(node, gpu=replace(gpu, collectives=collectives))


def _quick(law: CollectiveLaw, latency_ratio: float) -> CollectiveLaw:
    fast = min(law.alpha_s) * latency_ratio
    return replace(law, alpha_s=tuple(min(alpha, fast) for alpha in law.alpha_s))


def kv_heads_share(layer: LayerClass, tp: FloatArray) -> FloatArray:
    """Share of one layer's KV cache on each TP rank: heads divide until one is left, a latent cache never."""
    if not layer.attention.kv_is_sharded_by_tp:
        return np.ones_like(tp)
    return np.maximum(1.0 / tp, 1.0 / max(layer.attention.num_kv_heads, 1))


def distinct_experts(
    num_experts: int, num_active: int, num_tokens: FloatArray, popularity_variance: float = 0.0
) -> FloatArray:
    """Expected number of experts that at least one of `num_tokens` >= 1 tokens visits.

    Uniform independent routing, where a token never picks an expert twice: E (1 - (1 - k/E)**n). When popularity
    varies between experts like a gamma law of mean 1 and variance v, an expert is missed by the tokens after the
    first with probability (1 + v x)**(-1/v), x = -(n - 1) log(1 - k/E), which tends to exp(-x) for small v.
    """
    if num_active >= num_experts:
        return np.full_like(num_tokens, float(num_experts))
    visits = (num_tokens - 1.0) * -log1p(-num_active / num_experts)
    if popularity_variance > 0.0:
        visits = np.log1p(np.maximum(visits, 0.0) * popularity_variance) / popularity_variance
    result: FloatArray = num_experts - (num_experts - num_active) * np.exp(-visits)
    return result


class _Step:
    """Accumulates the terms of one decode step."""

    def __init__(self, model: Model, formats: WeightFormats, node: NodeType, overheads: Overheads) -> None:
        self.model = model
        self.formats = formats
        self.rates = engine_rates(node.gpu, formats.dense)
        self.expert_rates = expert_rates(node.gpu, formats)
        self.table_rates = engine_rates(node.gpu, Precision.BF16)
        self.table_kernel = engine_kernel(node.gpu, Precision.BF16)
        self.popularity_variance = overheads.expert_popularity_variance
        cache_kernel = self.table_kernel if formats.cache_bytes > 1.0 else engine_kernel(node.gpu, Precision.FP8)
        self.kv_s_per_byte = 1.0 / (node.gpu.hbm_bytes_per_s * cache_kernel.decode_attention_hbm_ratio)


def split_roofline(compute_s: FloatArray, memory_s: FloatArray, gemm: FloatArray, read: FloatArray) -> None:
    """Add max(compute, memory) to `gemm` where compute is larger, else to `read`."""
    is_compute = compute_s > memory_s
    gemm += compute_s * is_compute
    read += memory_s * ~is_compute


def decode_step_terms(
    model: Model,
    formats: WeightFormats,
    node: NodeType,
    overheads: Overheads,
    layout: EngineLayout,
    num_running: FloatArray,
    context_tokens: FloatArray,
) -> dict[str, FloatArray]:
    """Seconds of one decode step by term; arrays of shape (num_nodes, num_candidates).

    `num_running` sequences of one engine with `context_tokens` tokens each (prompt included). With pipeline
    parallelism the sequences go round in `pp` groups, so one step of all of them takes `pp` periods of the
    slowest stage, which holds 1/pp of the layers and, at the end, the output head: layers cost what they
    cost on one stage with n / pp sequences, and the other stages wait for the head (`pp_bubble`).

    Sources: roofline; expected distinct experts; KV heads replicate beyond num_kv_heads; latent (MLA) caches
    are read whole by every TP rank.
    """
    node = engine_node(node, overheads.engine_all_reduce_latency_ratio)
    step = _Step(model, formats, node, overheads)
    batch = np.maximum(num_running / layout.pp, 1.0)
    group = np.maximum(batch / layout.attention_dp, 1.0) if layout.has_attention_dp else batch
    gemm, weight_read, kv_read, elementwise = (np.zeros_like(group) for _ in range(4))
    launch = 0.0
    num_all_reduces = 1.0  # after the embedding
    for layer in model.layers:
        _add_projections(step, layer, layout, group, gemm, weight_read)
        _add_cache_read(step, layer, layout, group, context_tokens, kv_read)
        _add_mlp(step, layer, layout, group, batch, gemm, weight_read)
        elementwise += elementwise_bytes(layer, model.hidden_size, layout, group) * (
            layer.num_layers * step.rates.hbm_s_per_byte
        )
        launch += layer.num_layers * layer_launch_s(layer, node.gpu, formats, overheads)
        num_all_reduces += layer.num_layers * num_mixers(layer)

    head = _add_head(step, layout, group, gemm, weight_read)
    head_launch = step.table_kernel.gemm_launch_s
    up, out = collective_s(
        CollectiveOp.ALL_REDUCE, group * (ACTIVATION_BYTES * model.hidden_size), layout.tp_span, node
    )
    logits_up, logits_out = collective_s(
        CollectiveOp.ALL_GATHER, group * (ACTIVATION_BYTES * model.vocab_size), layout.tp_span, node
    )
    terms = {
        "gemm": gemm,
        "weight_read": weight_read,
        "kv_read": kv_read,
        "elementwise": elementwise,
        "launch": np.broadcast_to(np.float64(launch + head_launch), group.shape),
        "tp_scale_up": np.broadcast_to(up * num_all_reduces + logits_up, group.shape),
        "tp_scale_out": np.broadcast_to(out * num_all_reduces + logits_out, group.shape),
    }
    if layout.has_attention_dp:
        to_up, to_out = expert_tokens_s(model, layout, batch, node, merges_copies=False)
        terms["ep_scale_up"] = np.broadcast_to(to_up, group.shape)
        terms["ep_scale_out"] = np.broadcast_to(to_out, group.shape)
    if layout.pp.max(initial=1.0) > 1:
        is_piped = layout.pp > 1
        waiting = head + head_launch + logits_up + logits_out
        uplinks = pipeline_slowdown(layout.tp * layout.attention_dp * layout.pp, layout.pp, node)
        send = send_s(group * (ACTIVATION_BYTES * model.hidden_size), layout.pp_crosses, node, uplinks)
        terms["pp_bubble"] = (layout.pp - 1.0) * waiting
        terms["pp_transfer"] = send * (layout.pp * is_piped)
    host = engine_host_s(overheads, num_running, terms)
    terms["engine_host"] = host + layout.spans_nodes * overheads.engine_multi_node_step_s
    return terms


def engine_host_s(overheads: Overheads, num_running: FloatArray, terms: Mapping[str, FloatArray]) -> FloatArray:
    """Host time of a step that GPU work does not hide.

    Engines prepare the next step while the GPU works on this one, so work per sequence (scheduling, sampling results,
    streaming) shows only where it takes longer than the step; a fixed part never overlaps.
    """
    gpu_s = sum(terms.values(), start=np.zeros_like(num_running))
    result: FloatArray = overheads.engine_step_s + np.maximum(
        num_running * overheads.engine_step_per_sequence_s - gpu_s, 0.0
    )
    return result


def expert_tokens_s(
    model: Model, layout: EngineLayout, num_tokens: FloatArray, node: NodeType, *, merges_copies: bool
) -> tuple[FloatArray, FloatArray]:
    """(scale-up, scale-out) seconds of bringing `num_tokens` tokens of all attention groups to the experts of each MoE
    layer and the sums back; 0 without data-parallel attention.

    `merges_copies`: whether an all-to-all sends a token once to each place (large batches), or once to each expert.
    """
    up, out = _gathered_s(model, layout, num_tokens, node)
    if layout.has_exchange:
        sent_up, sent_out = _exchanged_s(model, layout, num_tokens, node, merges_copies)
        up, out = np.where(layout.exchanges, sent_up, up), np.where(layout.exchanges, sent_out, out)
    return up, out


def _exchanged_s(
    model: Model, layout: EngineLayout, num_tokens: FloatArray, node: NodeType, merges_copies: bool
) -> tuple[FloatArray, FloatArray]:
    """Dispatch and combine in 16 bit. Each rank sends the tokens of its share of its group; all wait for the rank whose
    experts get most of them."""
    up, out = np.zeros_like(num_tokens), np.zeros_like(num_tokens)
    per_rank = num_tokens / (layout.tp * layout.attention_dp) * (ACTIVATION_BYTES * model.hidden_size)
    for layer in model.layers:
        num_active = layer.mlp.num_active_experts
        if layer.mlp.is_moe:
            most = busiest_routed(num_tokens, num_active, layout.ep) * (layout.ep / (num_tokens * num_active))
            one = expert_exchange_s(per_rank * most, num_active, layout.expert_span, node, merges_copies=merges_copies)
            up += 2.0 * layer.num_layers * one[0]
            out += 2.0 * layer.num_layers * one[1]
    return up, out


def _gathered_s(
    model: Model, layout: EngineLayout, num_tokens: FloatArray, node: NodeType
) -> tuple[FloatArray, FloatArray]:
    """All-gather before and reduce-scatter after each MoE layer, over all ranks of a pipeline stage."""
    num_layers = sum(layer.num_layers for layer in model.layers if layer.mlp.is_moe)
    payload = num_tokens * (ACTIVATION_BYTES * model.hidden_size)
    gather_up, gather_out = collective_s(CollectiveOp.ALL_GATHER, payload, layout.expert_span, node)
    scatter_up, scatter_out = collective_s(CollectiveOp.REDUCE_SCATTER, payload, layout.expert_span, node)
    is_split = layout.attention_dp > 1
    return num_layers * is_split * (gather_up + scatter_up), num_layers * is_split * (gather_out + scatter_out)


def linear_s(
    model: Model,
    formats: WeightFormats,
    node: NodeType,
    overheads: Overheads,
    layout: EngineLayout,
    num_tokens: FloatArray,
) -> FloatArray:
    """Seconds of the matrix products of all layers for `num_tokens` tokens of one engine, without the output head.

    The same rooflines as a decode step; with data-parallel attention the tokens are spread over its groups.
    """
    step = _Step(model, formats, node, overheads)
    group = num_tokens / layout.attention_dp if layout.has_attention_dp else num_tokens
    gemm, weight_read = np.zeros_like(num_tokens), np.zeros_like(num_tokens)
    for layer in model.layers:
        _add_projections(step, layer, layout, group, gemm, weight_read)
        _add_mlp(step, layer, layout, group, num_tokens, gemm, weight_read)
    result: FloatArray = gemm + weight_read
    return result


def _add_projections(
    step: _Step, layer: LayerClass, layout: EngineLayout, group: FloatArray, gemm: FloatArray, weight_read: FloatArray
) -> None:
    attention = layer.attention
    if attention.num_gemms:
        _add_dense(
            step, attention.matmul_params, attention.num_gemms, layer.num_layers, layout, group, gemm, weight_read
        )


def _add_cache_read(
    step: _Step,
    layer: LayerClass,
    layout: EngineLayout,
    group: FloatArray,
    context_tokens: FloatArray,
    kv_read: FloatArray,
) -> None:
    """Decode attention: the cache is read once; every head of a latent cache also multiplies with all of it."""
    attention = layer.attention
    cache_bytes = step.formats.cache_bytes
    if attention.kv_elements_per_token:
        seen = (
            context_tokens if attention.window_tokens is None else np.minimum(context_tokens, attention.window_tokens)
        )
        share = kv_heads_share(layer, layout.tp) * (
            layer.num_layers * attention.kv_elements_per_token * cache_bytes * step.kv_s_per_byte
        )
        if not attention.kv_is_sharded_by_tp:
            flop = 4.0 * attention.num_heads * attention.kv_elements_per_token * layer.num_layers
            share = np.maximum(share, flop * step.table_rates.attention_s_per_flop / layout.tp)
        kv_read += group * seen * share
    if attention.state_elements_per_sequence:
        # the recurrent state is read and written
        per_sequence = 2 * layer.num_layers * attention.state_elements_per_sequence * KV_BYTES * step.kv_s_per_byte
        kv_read += group * (per_sequence / layout.tp)


def _add_dense(
    step: _Step,
    num_params: int,
    num_gemms: int,
    num_layers: int,
    layout: EngineLayout,
    group: FloatArray,
    gemm: FloatArray,
    weight_read: FloatArray,
) -> None:
    """Products with weights that every token visits.

    One side of each weight is the hidden size h, so inputs and outputs have num_gemms * h + params / h
    elements per token.
    """
    hidden = step.model.hidden_size
    per_rank = num_params / layout.tp
    per_token = ACTIVATION_BYTES * (num_gemms * hidden + per_rank / hidden)
    num_bytes = per_rank * step.rates.weight_bytes_per_param + group * per_token
    split_roofline(
        group * (per_rank * (2.0 * num_layers * step.rates.gemm_s_per_flop)),
        num_bytes * (num_layers * step.rates.hbm_s_per_byte),
        gemm,
        weight_read,
    )


def _add_mlp(
    step: _Step,
    layer: LayerClass,
    layout: EngineLayout,
    group: FloatArray,
    batch: FloatArray,
    gemm: FloatArray,
    weight_read: FloatArray,
) -> None:
    """Dense part for the `group` tokens of one attention group, routed experts for the `batch` of all groups."""
    mlp = layer.mlp
    if mlp.dense_params:
        _add_dense(step, mlp.dense_params, mlp.num_gemms, layer.num_layers, layout, group, gemm, weight_read)
    if not mlp.is_moe:
        return
    # The busiest of ep ranks holds more of the routed tokens and of the distinct experts than the mean.
    spread = normal_maximum(layout.ep)
    visited = distinct_experts(
        mlp.num_experts, mlp.num_active_experts, np.maximum(batch, 1.0), step.popularity_variance
    )
    mean_visited = visited / layout.ep
    missed_ratio = 1.0 - visited / mlp.num_experts
    busiest = np.minimum(mean_visited + spread * np.sqrt(mean_visited * missed_ratio), mlp.num_experts / layout.ep)
    routed = busiest_routed(batch, mlp.num_active_experts, layout.ep)
    width_share = layout.ep / (layout.tp * layout.attention_dp)
    params = mlp.params_per_expert * width_share
    rates = step.expert_rates
    num_bytes = busiest * params * rates.weight_bytes_per_param + routed * (
        2.0 * ACTIVATION_BYTES * step.model.hidden_size
    )
    split_roofline(
        routed * (params * (2.0 * layer.num_layers * rates.moe_gemm_s_per_flop)),
        num_bytes * (layer.num_layers * rates.moe_hbm_s_per_byte),
        gemm,
        weight_read,
    )


def normal_maximum(number: FloatArray) -> FloatArray:
    """Expected maximum of so many standard normal numbers."""
    result: FloatArray = np.interp(np.log2(number), _LOG2_COUNTS, _NORMAL_MAXIMA)
    return result


def busiest_routed(num_tokens: FloatArray, num_active: int, ep: FloatArray) -> FloatArray:
    """Copies of tokens that the busiest of `ep` ranks gets when each of `num_tokens` visits `num_active` experts."""
    mean = num_tokens * (num_active / ep)
    result: FloatArray = np.minimum(mean + normal_maximum(ep) * np.sqrt(mean), num_tokens * num_active)
    return result


def elementwise_bytes(layer: LayerClass, hidden: int, layout: EngineLayout, group: FloatArray) -> FloatArray:
    """Bytes per layer that norms, residual additions and activation functions move on one GPU.

    A gated MLP of width f has 3 h f parameters and moves 3 f elements through its activation.
    """
    mlp = layer.mlp
    inner = (mlp.dense_params + mlp.num_active_experts * mlp.params_per_expert) / hidden
    per_token = ACTIVATION_BYTES * (_RESIDUAL_PASSES * hidden + inner / layout.tp)
    result: FloatArray = group * per_token
    return result


def layer_launch_s(layer: LayerClass, gpu: Gpu, formats: WeightFormats, overheads: Overheads) -> float:
    """Fixed kernel times of one layer inside a captured graph."""
    num_gemms = layer.attention.num_gemms + layer.mlp.num_gemms
    experts_s = expert_launch_s(gpu, formats) if layer.mlp.is_moe else 0.0
    has_cache = bool(layer.attention.kv_elements_per_token or layer.attention.state_elements_per_sequence)
    isolated = (
        num_gemms * engine_kernel(gpu, formats.dense).gemm_launch_s
        + experts_s
        + _KERNELS_PER_LAYER * overheads.elementwise_launch_s
        + has_cache * engine_kernel(gpu, Precision.BF16).decode_attention_launch_s
    )
    return isolated * overheads.engine_launch_ratio


def num_mixers(layer: LayerClass) -> int:
    """Row-parallel outputs, each followed by an all-reduce: attention and MLP."""
    return int(layer.attention.num_gemms > 0) + int(layer.mlp.num_gemms > 0 or layer.mlp.is_moe)


def _add_head(
    step: _Step, layout: EngineLayout, group: FloatArray, gemm: FloatArray, weight_read: FloatArray
) -> FloatArray:
    """Add the output head over the vocabulary, in 16 bit; returns its seconds."""
    params = step.model.embedding_params / layout.tp
    compute = group * (2.0 * params * step.table_rates.gemm_s_per_flop)
    num_bytes = params * TABLE_BYTES + group * (ACTIVATION_BYTES * step.model.vocab_size / layout.tp)
    memory = num_bytes * step.table_rates.hbm_s_per_byte
    split_roofline(compute, memory, gemm, weight_read)
    return np.maximum(compute, memory)
