"""What a trainer strategy puts on one GPU: shares of layers, parameters and ranks, on arrays of candidates.

Ranks are ordered tp, cp, dp, pp from fastest to slowest (experts: etp, ep, expert dp, pp), so a TP group has
stride 1, a CP group stride tp, a data-parallel group stride tp and the pipeline stride num_gpus / pp.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.cost.communication import Span, span
from planner.domain.hardware import NodeType
from planner.domain.model import LayerClass, Model
from planner.domain.strategy import (
    SHARDINGS,
    FloatArray,
    IntArray,
    Sharding,
    TrainerTable,
    recompute_ratio,
    stage_layers,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGroup:
    """Routed experts that are equal, over `num_layers` layers."""

    num_layers: int
    num_experts: int
    num_active: int
    params_per_expert: int
    expert_hidden_size: int
    width: int
    """Elements of a dispatched token: the hidden size, or less where experts work in a latent space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTotals:
    """A model summed over its layers; all per whole model and unsharded.

    Element counts are per token. `live_*` belong to the single layer with most activations.
    """

    num_layers: int
    hidden_size: int
    vocab_size: int
    dense_body_params: float
    """Stored outside the vocabulary tables and routed experts."""
    expert_params: float
    num_expert_layers: int
    num_recurrent_layers: int
    """Layers with a recurrent or state-space mixer."""
    table_params: float
    num_tables: int
    """2 unless the embedding is tied or there is no vocabulary head."""
    has_head: bool
    dense_matmul_params: float
    saved_elements: float
    routed_saved_elements: float
    """Part of `saved_elements` that belongs to (token, expert) pairs."""
    saved_selective_elements: float
    """Kept when norms and MLP activation functions are recomputed."""
    scan_elements: float
    """16-bit elements that scans of recurrent mixers move beside activations: one fp32 state per chunk."""
    live_elements: float
    tp_regions: int
    """Attention and MLP blocks that begin with an all-gather and end with a reduce-scatter under TP."""
    num_kernels: int
    """Forward kernels, matrix products and element-wise."""
    widest_layer_params: float
    """Largest non-expert layer."""
    layer_params: tuple[tuple[float, float], ...]
    """(outside routed experts, of all routed experts) of each kind of layer that no other exceeds in both."""
    adapter_params_per_rank: float
    """LoRA parameters for rank 1 on all linear layers outside routed experts."""
    experts: tuple[ExpertGroup, ...]


_ELEMENTWISE_KERNELS = 10
"""Norms, residuals, rotary embedding, activation of one layer, forward."""
_SCAN_CHUNK_TOKENS = 128
"""Chunk of state-space and delta-rule kernels, forward and backward (64 to 256 in use)."""
_FP32_ELEMENTS = 2.0
"""16-bit elements in one of 32 bit."""
_ROUTING_KERNELS = 8
"""Router, top-k, permutation and its inverse."""


def _saved(layer: LayerClass) -> tuple[float, float]:
    """(all, selective) activation elements per token of one layer, routed experts included.

    Selective recomputation drops norm outputs (half of the norm terms) and activation-function outputs: a
    third of a gated MLP's internals (gate, up, product), and the product inside each routed expert.
    """
    attention, mlp = layer.attention, layer.mlp
    norms = attention.replicated_saved_elements_per_token + mlp.replicated_saved_elements_per_token
    routed = mlp.num_active_experts * mlp.saved_elements_per_routed_token
    everything = norms + attention.saved_elements_per_token + mlp.saved_elements_per_token + routed
    dropped = norms / 2 + mlp.saved_elements_per_token / 3 + mlp.num_active_experts * mlp.expert_hidden_size
    return everything, everything - min(dropped, everything)


def _regions(layer: LayerClass, hidden_size: int) -> int:
    """TP regions: one per block with parameters beyond a router."""
    router = layer.mlp.num_experts * hidden_size
    return int(layer.attention.matmul_params > 0) + int(layer.mlp.dense_params > 1.05 * router)


def _adapter_params(layer: LayerClass, hidden_size: int) -> float:
    """Sum of (in + out) over linear layers: each has the hidden size on one side, params / hidden on the other."""
    params = layer.attention.matmul_params + layer.mlp.dense_params
    num_linear = 2 * (layer.attention.num_gemms + layer.mlp.num_gemms)
    return num_linear * hidden_size + params / hidden_size


@lru_cache(maxsize=64)
def model_totals(model: Model, has_vocabulary_head: bool) -> ModelTotals:
    """Totals of `model`; without vocabulary head (critics, reward models) only the embedding table is held."""
    layers, hidden = model.layers, model.hidden_size
    return ModelTotals(
        num_layers=model.num_layers,
        hidden_size=hidden,
        vocab_size=model.vocab_size,
        dense_body_params=float(model.extra_params + sum(x.num_layers * x.dense_params for x in layers)),
        expert_params=float(model.num_expert_params),
        num_expert_layers=sum(x.num_layers for x in layers if x.mlp.is_moe),
        num_recurrent_layers=sum(x.num_layers for x in layers if x.attention.state_flop_per_token > 0.0),
        table_params=float(model.embedding_params),
        num_tables=2 if has_vocabulary_head and not model.is_embedding_tied else 1,
        has_head=has_vocabulary_head,
        dense_matmul_params=float(sum(x.num_layers * (x.attention.matmul_params + x.mlp.dense_params) for x in layers)),
        saved_elements=sum(x.num_layers * _saved(x)[0] for x in layers),
        routed_saved_elements=float(
            sum(x.num_layers * x.mlp.num_active_experts * x.mlp.saved_elements_per_routed_token for x in layers)
        ),
        saved_selective_elements=sum(x.num_layers * _saved(x)[1] for x in layers),
        scan_elements=sum(
            x.num_layers * x.attention.state_elements_per_sequence * _FP32_ELEMENTS / _SCAN_CHUNK_TOKENS for x in layers
        ),
        live_elements=max(_saved(x)[0] for x in layers),
        tp_regions=sum(x.num_layers * _regions(x, hidden) for x in layers),
        num_kernels=sum(
            x.num_layers
            * (x.attention.num_gemms + x.mlp.num_gemms + _ELEMENTWISE_KERNELS + _ROUTING_KERNELS * x.mlp.is_moe)
            for x in layers
        ),
        widest_layer_params=float(max(x.dense_params for x in layers)),
        layer_params=_largest_layers(model),
        adapter_params_per_rank=sum(x.num_layers * _adapter_params(x, hidden) for x in layers),
        experts=_expert_groups(model),
    )


def _largest_layers(model: Model) -> tuple[tuple[float, float], ...]:
    """Of all layers' (dense, expert) parameters those pairs that could be the largest when experts are divided more
    often than the rest."""
    pairs = sorted({(float(x.dense_params), float(x.expert_params)) for x in model.layers}, reverse=True)
    kept: list[tuple[float, float]] = []
    for pair in pairs:
        if not kept or pair[1] > kept[-1][1]:
            kept.append(pair)
    return tuple(kept)


def _dispatch_width(params_per_expert: int, expert_hidden_size: int, hidden_size: int) -> int:
    """Input width of an expert: its two or three matrices are that width times its hidden size.

    Biases add less than a percent; a width above half of the hidden size is the hidden size itself.
    """
    per_matrix = params_per_expert / (3 * expert_hidden_size)
    return hidden_size if per_matrix > 0.5 * hidden_size else round(per_matrix * 1.5)


def _expert_groups(model: Model) -> tuple[ExpertGroup, ...]:
    counts: dict[tuple[int, int, int, int], int] = {}
    for layer in model.layers:
        mlp = layer.mlp
        if mlp.is_moe:
            key = (
                mlp.num_experts,
                mlp.num_active_experts,
                mlp.params_per_expert,
                mlp.expert_hidden_size,
            )
            counts[key] = counts.get(key, 0) + layer.num_layers
    return tuple(
        ExpertGroup(
            num_layers=number,
            num_experts=key[0],
            num_active=key[1],
            params_per_expert=key[2],
            expert_hidden_size=key[3],
            width=_dispatch_width(key[2], key[3], model.hidden_size),
        )
        for key, number in counts.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Derived columns of a trainer table, shape (num_candidates,)."""

    totals: ModelTotals
    dp: FloatArray
    per_tp: FloatArray
    """1 / tp."""
    per_cp: FloatArray
    depth_ratio: FloatArray
    """Share of all layers on the pipeline rank with most of them."""
    expert_depth_ratio: FloatArray
    """Share of all MoE layers on the pipeline rank with most of them."""
    dense_params: FloatArray
    """Non-expert parameters on the fullest rank, vocabulary tables included."""
    table_params: FloatArray
    """Vocabulary tables on that rank (part of dense_params)."""
    expert_params: FloatArray
    per_shard: FloatArray
    """1 / ranks that divide dense states (1 for DDP)."""
    per_expert_shard: FloatArray
    """1 / ranks that divide the states of an expert (1 for DDP)."""
    per_expert_width: FloatArray
    """1 / (ep etp): a rank's share of the experts of a layer."""
    sharding: IntArray
    offload: IntArray
    recompute: IntArray
    recompute_ratio: FloatArray
    """Share of the layers whose forward pass backward repeats: 1 with FULL, in between with PARTIAL, else 0."""
    node_gpus: FloatArray
    """GPUs of one node that the worker uses."""
    tp: Span
    cp: Span
    shard: Span
    """Ranks that divide dense states (all dp x cp ranks for DDP)."""
    ep: Span
    etp: Span
    expert_shard: Span
    """Ranks that hold the same experts and divide their states: all that hold them (for DDP they divide nothing), or
    for HSDP those inside one shard group."""
    pipeline_crosses: FloatArray
    """1 where pipeline neighbours may sit in different scale-up domains."""


def _expert_depth_ratio(totals: ModelTotals, rank_layers: FloatArray, depth_ratio: FloatArray) -> FloatArray:
    """Where MoE layers are the majority, dense layers lead the stack and other ranks hold MoE layers only.

    So it is in DeepSeek, GLM and Kimi (2-5 % dense). Where at least half of the layers have no experts they
    alternate (Llama 4 Maverick, Nemotron 3) and spread evenly. The order of layers is not part of `Model`.
    """
    if totals.num_expert_layers in (0, totals.num_layers) or 2 * totals.num_expert_layers <= totals.num_layers:
        return depth_ratio
    return np.minimum(rank_layers * (1.0 / totals.num_expert_layers), 1.0)


def layout(table: TrainerTable, totals: ModelTotals, node: NodeType) -> Layout:
    """Derived columns of `table` for one model on one kind of node."""
    tp, pp, cp = table.tp, table.pp, table.cp
    per_tp = 1.0 / tp
    per_cp = 1.0 / cp
    dp = table.num_gpus * per_tp * per_cp / pp
    states = dp * cp
    expert_width = table.ep * table.etp
    rank_layers = stage_layers(totals.num_layers, pp, table.vpp) * table.vpp
    depth_ratio = rank_layers * (1.0 / totals.num_layers)
    expert_depth_ratio = _expert_depth_ratio(totals, rank_layers, depth_ratio)
    tables = np.where(pp > 1.0, 1.0, float(totals.num_tables)) * totals.table_params * per_tp
    sharding = table.sharding.astype(np.intp)
    is_sharded = sharding != SHARDINGS.index(Sharding.DDP)
    per_shard = np.where(is_sharded, 1.0 / table.shard_ranks, 1.0)
    expert_shard = table.num_gpus / (pp * expert_width) if totals.experts else states
    if totals.experts:
        # A shard group of HSDP holds all experts, so that its replicas are replicas of them too.
        expert_shard = np.where(is_sharded, table.shard_ranks * expert_shard / states, expert_shard)
    return Layout(
        totals=totals,
        dp=dp,
        per_tp=per_tp,
        per_cp=per_cp,
        depth_ratio=depth_ratio,
        expert_depth_ratio=expert_depth_ratio,
        dense_params=depth_ratio * totals.dense_body_params * per_tp + tables,
        table_params=tables,
        expert_params=expert_depth_ratio * totals.expert_params / expert_width if totals.experts else np.zeros_like(tp),
        per_shard=per_shard,
        per_expert_shard=np.where(is_sharded, 1.0 / expert_shard, 1.0) if totals.experts else per_shard,
        per_expert_width=1.0 / expert_width,
        sharding=sharding,
        offload=table.offload.astype(np.intp),
        recompute=table.recompute.astype(np.intp),
        recompute_ratio=recompute_ratio(table, totals.num_layers),
        node_gpus=np.minimum(table.num_gpus, float(node.gpus_per_node)),
        tp=span(tp, 1.0, node),
        cp=span(cp, tp, node),
        shard=span(np.where(is_sharded, table.shard_ranks, states), tp, node),
        ep=span(table.ep, table.etp, node),
        etp=span(table.etp, 1.0, node),
        expert_shard=span(expert_shard, expert_width, node),
        pipeline_crosses=((pp > 1.0) & (table.num_gpus > node.scale_up_domain_gpus)).astype(np.float64),
    )
