"""Legality as a table of rules: which strategies can exist at all, each with the reason that is printed.

A rule sees whole columns and returns the rows that it allows. Rules hold for every framework; what one
framework cannot do is data in planner/adapters/data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.domain.hardware import NodeType, Precision
from planner.domain.model import Model
from planner.domain.strategy import (
    CONTEXT_PARALLELS,
    EXPERT_EXCHANGES,
    RECOMPUTES,
    SHARDINGS,
    BoolArray,
    ContextParallel,
    ExpertExchange,
    FloatArray,
    Recompute,
    RolloutTable,
    Sharding,
    TrainerTable,
    stage_layers,
)

VOCABULARY_BLOCK = 128
"""Megatron pads the vocabulary to a multiple of this times tp."""
MAX_PADDING_RATIO = 0.05
"""Padding that costs are silent about."""
FP8_BLOCK = 128
"""Edge of the weight blocks of block-scaled FP8."""


RECURRENT_CP = "context parallelism over recurrent layers"
IDLE_GROUPS = "more attention groups than sequences"
UNPLANNED = {
    RECURRENT_CP: "frameworks gather the sequence for these layers, here it is priced as if they split it",
    IDLE_GROUPS: "some of them have nothing to do",
}
"""What frameworks run and no plan has, and how a configuration that has it is priced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerFacts:
    """What trainer rules compare strategies with."""

    model: Model
    node: NodeType
    mini_batch_sequences: int
    """Sequences per optimizer step, or per pass for forward-only workers."""
    trains: bool
    precision: Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFacts:
    """What rollout rules compare strategies with."""

    model: Model
    node: NodeType
    num_sequences: int
    precision: Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRule:
    """A rule on trainer strategies; `reason` is what a rejected row reports."""

    reason: str
    allows: Callable[[TrainerTable, TrainerFacts], BoolArray]
    of_size: bool = False
    """Whether the rule looks at the number of GPUs, or at what follows from it. Such rules come last: the others
    are asked once for all sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRule:
    """A rule on rollout strategies."""

    reason: str
    allows: Callable[[RolloutTable, RolloutFacts], BoolArray]


def divides(divisor: FloatArray, value: FloatArray | float) -> BoolArray:
    """divisor | value, elementwise on whole numbers."""
    return np.asarray(np.mod(value, divisor) == 0)


def _everywhere(length: int, value: bool) -> BoolArray:
    return np.full(length, value, dtype=np.bool_)


def _heads_split(model: Model, tp: FloatArray) -> BoolArray:
    """TP splits query heads evenly; KV heads are split or replicated evenly."""
    legal = _everywhere(len(tp), True)
    for layer in model.layers:
        attention = layer.attention
        if attention.num_heads:
            legal &= divides(tp, attention.num_heads)
        if attention.num_kv_heads:
            legal &= divides(tp, attention.num_kv_heads) | divides(np.full_like(tp, attention.num_kv_heads), tp)
    return legal


def _expert_width_splits(model: Model, etp: FloatArray) -> BoolArray:
    legal = _everywhere(len(etp), True)
    for layer in model.layers:
        if layer.mlp.is_moe:
            legal &= divides(etp, layer.mlp.expert_hidden_size)
    return legal


def _experts_split(model: Model, ep: FloatArray) -> BoolArray:
    """EP divides the experts of every MoE layer; a dense model has ep = 1."""
    if not model.is_moe:
        return np.asarray(ep == 1)
    legal = _everywhere(len(ep), True)
    for layer in model.layers:
        if layer.mlp.is_moe:
            legal &= divides(ep, layer.mlp.num_experts)
    return legal


def _fp8_blocks(model: Model, tp: FloatArray, precision: Precision) -> BoolArray:
    if precision is not Precision.FP8:
        return _everywhere(len(tp), True)
    return divides(tp * FP8_BLOCK, model.hidden_size)


def _ulysses_heads(table: TrainerTable, facts: TrainerFacts) -> BoolArray:
    is_ulysses = table.context_parallel == CONTEXT_PARALLELS.index(ContextParallel.ULYSSES)
    legal = _everywhere(len(table), True)
    for layer in facts.model.layers:
        attention = layer.attention
        if not attention.num_heads:
            continue
        legal &= divides(table.tp * table.cp, attention.num_heads)
        kv = np.full_like(table.tp, max(1, attention.num_kv_heads))
        legal &= divides(table.tp * table.cp, kv) | divides(kv, table.tp * table.cp)
    return np.asarray(legal | ~is_ulysses | (table.cp == 1))


def _vocabulary_splits(table: TrainerTable, model: Model) -> BoolArray:
    """Megatron pads the vocabulary to a multiple of 128 tp, which must stay a small part; DTensor does not pad."""
    block = VOCABULARY_BLOCK * table.tp
    padded = np.ceil(model.vocab_size / block) * block
    pads = _sharding_is(table, Sharding.DDP, Sharding.ZERO1)
    return np.asarray(
        (table.tp == 1)
        | np.where(pads, padded <= model.vocab_size * (1 + MAX_PADDING_RATIO), divides(table.tp, model.vocab_size))
    )


def _sharding_is(table: TrainerTable, *levels: Sharding) -> BoolArray:
    codes = [SHARDINGS.index(level) for level in levels]
    return np.isin(table.sharding, codes)


def _partial_recompute(table: TrainerTable, model: Model) -> BoolArray:
    """Some layers of the largest stage and not all of them; none are counted with the other levels."""
    is_partial = table.recompute == RECOMPUTES.index(Recompute.PARTIAL)
    layers = table.recompute_layers
    is_part = (layers >= 1) & (layers < stage_layers(model.num_layers, table.pp, table.vpp))
    return np.asarray(np.where(is_partial, is_part, layers == 0))


TRAINER_RULES: tuple[TrainerRule, ...] = (
    TrainerRule(reason="tp does not split the attention heads", allows=lambda t, f: _heads_split(f.model, t.tp)),
    TrainerRule(
        reason="tp does not split the vocabulary, padding included",
        allows=lambda t, f: _vocabulary_splits(t, f.model),
    ),
    TrainerRule(
        reason="interleaving needs pp > 1 and equal chunks",
        allows=lambda t, f: np.asarray((t.vpp == 1) | ((t.pp > 1) & divides(t.pp * t.vpp, f.model.num_layers))),
    ),
    TrainerRule(reason="ep does not divide the experts", allows=lambda t, f: _experts_split(f.model, t.ep)),
    TrainerRule(
        reason="etp is neither 1 nor tp, or does not split the experts",
        allows=lambda t, f: np.asarray(
            ((t.etp == 1) | ((t.etp == t.tp) & f.model.is_moe)) & _expert_width_splits(f.model, t.etp)
        ),
    ),
    TrainerRule(reason="Ulysses does not split the heads", allows=_ulysses_heads),
    TrainerRule(
        reason=RECURRENT_CP,
        allows=lambda t, f: np.asarray((t.cp == 1) | (not f.model.needs_whole_sequence)),
    ),
    TrainerRule(
        reason="ZeRO-2/3 with pipeline parallelism",
        allows=lambda t, f: np.asarray(_sharding_is(t, Sharding.DDP, Sharding.ZERO1) | (t.pp == 1)),
    ),
    TrainerRule(
        reason="ZeRO-2/3 with experts both spread and split in width",
        allows=lambda t, f: np.asarray(_sharding_is(t, Sharding.DDP, Sharding.ZERO1) | (t.ep == 1) | (t.etp == 1)),
    ),
    TrainerRule(reason="FP8 blocks do not split by tp", allows=lambda t, f: _fp8_blocks(f.model, t.tp, f.precision)),
    TrainerRule(
        reason="partial recomputation of no layer or of a whole stage",
        allows=lambda t, f: _partial_recompute(t, f.model),
    ),
    TrainerRule(
        of_size=True,
        reason="tp x pp x cp does not divide the GPUs",
        allows=lambda t, f: divides(t.tp * t.pp * t.cp, t.num_gpus),
    ),
    TrainerRule(
        of_size=True,
        reason="ep x etp x pp does not divide the GPUs",
        allows=lambda t, f: divides(t.ep * t.etp * t.pp, t.num_gpus),
    ),
    TrainerRule(
        of_size=True,
        reason="dp does not divide the mini-batch",
        allows=lambda t, f: divides(np.maximum(1.0, np.floor(t.dp)), f.mini_batch_sequences),
    ),
    TrainerRule(
        of_size=True,
        reason="tp leaves the scale-up domain",
        allows=lambda t, f: np.asarray(
            (t.tp <= f.node.scale_up_domain_gpus)
            & ((t.num_gpus <= f.node.scale_up_domain_gpus) | divides(t.tp, f.node.scale_up_domain_gpus))
        ),
    ),
    TrainerRule(
        of_size=True,
        reason="sharding over one rank, or over ranks that do not divide dp x cp",
        allows=lambda t, f: np.asarray(
            _sharding_is(t, Sharding.DDP)
            | ((t.dp * t.cp > 1) & (t.shard_ranks > 1) & divides(np.maximum(1.0, t.shard_ranks), t.dp * t.cp))
            | ((t.dp * t.cp <= 1) & _sharding_is(t, Sharding.ZERO1))
        ),
    ),
    TrainerRule(
        of_size=True,
        reason="experts over more ranks than one shard group has",
        allows=lambda t, f: np.asarray(
            _sharding_is(t, Sharding.DDP, Sharding.ZERO1) | divides(t.ep * t.etp, np.maximum(1.0, t.shard_ranks) * t.tp)
        ),
    ),
)

ROLLOUT_RULES: tuple[RolloutRule, ...] = (
    RolloutRule(reason="tp x pp does not divide the GPUs", allows=lambda t, f: divides(t.tp * t.pp, t.num_gpus)),
    RolloutRule(
        reason="an engine neither fits in a node nor fills whole nodes",
        allows=lambda t, f: np.asarray(
            (t.num_gpus <= f.node.gpus_per_node)
            | divides(t.engine_gpus, f.node.gpus_per_node)
            | divides(np.full_like(t.tp, f.node.gpus_per_node), t.engine_gpus)
        ),
    ),
    RolloutRule(reason="tp does not split the attention heads", allows=lambda t, f: _heads_split(f.model, t.tp)),
    RolloutRule(
        reason="ep does not divide the experts, or is neither 1 nor tp",
        allows=lambda t, f: np.asarray(
            ((t.ep == 1) | (t.ep == t.tp) | ((t.attention_dp > 1) & divides(t.ep, t.tp * t.attention_dp)))
            & _experts_split(f.model, t.ep)
        ),
    ),
    RolloutRule(
        reason="experts too narrow for tp",
        allows=lambda t, f: _expert_width_splits(f.model, t.tp * t.attention_dp / t.ep),
    ),
    RolloutRule(
        reason="tp x attention dp x pp does not divide the GPUs",
        allows=lambda t, f: np.asarray((t.attention_dp == 1) | divides(t.engine_gpus, t.num_gpus)),
    ),
    RolloutRule(
        reason="data-parallel attention without experts",
        allows=lambda t, f: np.asarray((t.attention_dp == 1) | f.model.is_moe),
    ),
    RolloutRule(
        reason="an all-to-all without whole experts on every rank of data-parallel attention",
        allows=lambda t, f: np.asarray(
            (t.exchange == EXPERT_EXCHANGES.index(ExpertExchange.GATHER))
            | ((t.attention_dp > 1) & (t.ep == t.tp * t.attention_dp))
        ),
    ),
    RolloutRule(
        reason=IDLE_GROUPS,
        allows=lambda t, f: np.asarray((t.attention_dp == 1) | (t.num_groups <= f.num_sequences)),
    ),
    RolloutRule(
        reason="more engines than sequences",
        allows=lambda t, f: np.asarray(t.num_engines <= f.num_sequences),
    ),
    RolloutRule(reason="FP8 blocks do not split by tp", allows=lambda t, f: _fp8_blocks(f.model, t.tp, f.precision)),
)
