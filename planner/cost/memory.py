"""GPU memory of trainers by term, on arrays of candidates: states, activations, logits and overheads.

Static bytes per parameter follow the sharding level; activations follow the saved elements of each layer
class (arXiv 2205.05198 extended by gated MLPs, MoE and CP). Pipeline ranks differ: the first holds most
micro-batches in flight, the last holds the logits, so the peak is the larger of the two, never a sum of maxima.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.cost.activations import STANDARD, KeptParts, Recipe, Saved, standard_saved
from planner.cost.layout import Layout
from planner.cost.offload import CPU_MASTER_BYTES, OffloadFlags
from planner.domain.overheads import Overheads
from planner.domain.strategy import RECOMPUTES, SHARDINGS, BoolArray, FloatArray, Recompute, Sharding, TrainerTable

REDUCE_BYTES = 4.0
"""Gradients are reduced in fp32 (Megatron default; verl and NeMo-RL set it for FSDP)."""
UPDATE_INSTANTS = ("backward pass, optimizer states loaded", "optimizer step")
FORWARD_INSTANTS = ("forward pass", "log-probs and entropy at the vocabulary head")
_FROZEN_BYTES = 2.0
_GATHERED_BYTES = 4.0
_ADAPTER_BYTES = 18.0
"""16-bit weights, fp32 gradients, master weights and moments of a LoRA parameter; adapters stay unsharded."""


def _by_sharding(**values: float) -> FloatArray:
    result = np.array([values.get(level.value, 0.0) for level in SHARDINGS])
    result.setflags(write=False)
    return result


# Bytes per parameter of the rank's model shard: whole + divided / shard ranks.
_FROZEN_WHOLE = _by_sharding(ddp=2.0, zero1=2.0, zero2=2.0)
_FROZEN_DIVIDED = _by_sharding(zero3=2.0)
_IS_ZERO3 = _by_sharding(zero3=1.0)
_STEP_BYTES = _by_sharding(zero2=4.0, zero3=4.0)
_IS_FUSED_WGRAD = _by_sharding(ddp=1.0, zero1=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StateBytes:
    """Columns over SHARDINGS, in bytes per parameter, for one recipe."""

    weight_whole: FloatArray
    weight_divided: FloatArray
    gradient_whole: FloatArray
    gradient_divided: FloatArray
    optimizer_whole: FloatArray
    optimizer_divided: FloatArray
    fp8_whole: FloatArray
    fp8_divided: FloatArray


@lru_cache(maxsize=64)
def _state_bytes(recipe: Recipe) -> _StateBytes:
    """With ZeRO-3 the sharded fp32 parameters are the master weights, so they leave the optimizer's share."""
    weight, gradient, optimizer = recipe.weight_bytes, recipe.gradient_bytes, recipe.optimizer_bytes
    return _StateBytes(
        weight_whole=_by_sharding(ddp=weight, zero1=weight, zero2=weight),
        weight_divided=_by_sharding(zero3=recipe.sharded_weight_bytes),
        gradient_whole=_by_sharding(ddp=gradient, zero1=gradient),
        gradient_divided=_by_sharding(zero2=min(gradient, 2.0), zero3=gradient),
        optimizer_whole=_by_sharding(ddp=optimizer),
        optimizer_divided=_by_sharding(zero1=optimizer, zero2=optimizer, zero3=recipe.sharded_optimizer_bytes),
        fp8_whole=_by_sharding(ddp=recipe.fp8_bytes, zero1=recipe.fp8_bytes, zero2=recipe.fp8_bytes),
        fp8_divided=_by_sharding(zero3=recipe.fp8_bytes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Bytes per GPU of model states when everything is loaded, on the fullest pipeline rank."""

    weights: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    """On the GPU: 0 with a CPU optimizer."""
    optimizer_host: FloatArray
    """What a CPU optimizer holds in host RAM for this GPU's shard, fp32 gradients excluded."""
    shard_params: FloatArray
    """Parameters whose optimizer step this GPU (or its host) runs."""


def _bytes(at: Layout, whole: FloatArray, divided: FloatArray) -> FloatArray:
    """Bytes on the rank for `whole + divided / shard ranks` bytes per parameter."""
    whole_column, divided_column = whole.take(at.sharding), divided.take(at.sharding)
    result = at.dense_params * (whole_column + divided_column * at.per_shard)
    if at.totals.experts:
        result += at.expert_params * (whole_column + divided_column * at.per_expert_shard)
    return result


def frozen_states(at: Layout, *, is_fp8: bool, recipe: Recipe = STANDARD) -> States:
    """States of a forward-only worker: 16-bit weights, divided by ZeRO-3.

    A base quantised for LoRA keeps its vocabulary tables in 16 bit.
    """
    weights = _bytes(at, _FROZEN_WHOLE, _FROZEN_DIVIDED)
    if recipe.frozen_bytes != _FROZEN_BYTES:
        tables = at.table_params * (_FROZEN_WHOLE.take(at.sharding) + _FROZEN_DIVIDED.take(at.sharding) * at.per_shard)
        weights = tables + (weights - tables) * (recipe.frozen_bytes / _FROZEN_BYTES)
    zero = np.zeros_like(weights)
    return States(
        weights=weights * (1.5 if is_fp8 else 1.0),
        gradients=zero,
        optimizer=zero,
        optimizer_host=zero,
        shard_params=zero,
    )


def training_states(
    at: Layout, flags: OffloadFlags, *, lora_rank: int | None, is_fp8: bool, recipe: Recipe = STANDARD
) -> States:
    """Weights, gradients and Adam states (ZeRO, arXiv 1910.02054; Megatron keeps fp32 gradients).

    With LoRA the base is frozen and only adapters train.
    """
    if lora_rank is not None:
        base = frozen_states(at, is_fp8=is_fp8, recipe=recipe)
        adapters = lora_rank * at.totals.adapter_params_per_rank * at.depth_ratio * at.per_tp
        on_gpu = 1.0 - flags.cpu_optimizer
        return States(
            weights=base.weights + 2.0 * adapters,
            gradients=4.0 * adapters,
            optimizer=(_ADAPTER_BYTES - 6.0) * adapters * on_gpu,
            optimizer_host=(_ADAPTER_BYTES - 6.0) * adapters * flags.cpu_optimizer,
            shard_params=adapters,
        )
    shard_params = at.dense_params * at.per_shard + at.expert_params * at.per_expert_shard
    per_param = _state_bytes(recipe)
    weights = _bytes(at, per_param.weight_whole, per_param.weight_divided)
    if is_fp8:
        weights += _bytes(at, per_param.fp8_whole, per_param.fp8_divided)
    optimizer = _bytes(at, per_param.optimizer_whole, per_param.optimizer_divided)
    return States(
        weights=weights,
        gradients=_bytes(at, per_param.gradient_whole, per_param.gradient_divided),
        optimizer=optimizer * (1.0 - flags.cpu_optimizer),
        optimizer_host=CPU_MASTER_BYTES * shard_params * flags.cpu_optimizer,
        shard_params=shard_params,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transient:
    """Bytes per GPU that exist only while a stage computes, on the pipeline rank where their sum is largest."""

    activations: FloatArray
    logits: FloatArray
    unsharded: FloatArray
    wgrad_buffer: FloatArray
    is_at_head: BoolArray
    """Whether the sum is largest where the logits are."""

    @property
    def dynamic(self) -> FloatArray:
        """What the caching allocator fragments."""
        return self.activations + self.logits + self.unsharded


def in_flight(table: TrainerTable, num_micro_batches: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Micro-batches (fractions of all chunks of a rank) whose activations the first and last pipeline rank hold.

    1F1B: min(m, p) and 1. Interleaved: min(m v, 2 (p - 1) + (v - 1) p + 1) and min(m v, (v - 1) p + 1) chunks
    of 1 / v each (arXiv 2104.04473).
    """
    pp, vpp = table.pp, table.vpp
    last_chunks = (vpp - 1.0) * pp + 1.0
    chunks = num_micro_batches * vpp
    per_chunk = 1.0 / vpp
    interleaved_first = np.minimum(chunks, last_chunks + 2.0 * (pp - 1.0)) * per_chunk
    first = np.where(vpp > 1.0, interleaved_first, np.minimum(num_micro_batches, pp))
    return first, np.minimum(chunks, last_chunks) * per_chunk


def training_transient(
    at: Layout,
    table: TrainerTable,
    num_micro_batches: FloatArray,
    overheads: Overheads,
    *,
    is_lora: bool,
    recipe: Recipe = STANDARD,
    saved: Saved | None = None,
) -> Transient:
    """Peak of forward and backward: activations in flight, logits on the last rank, gathered FSDP units.

    `saved` are the bytes that the recipe keeps per token; None: those of `STANDARD`.
    """
    totals = at.totals
    kept = saved or standard_saved(totals)
    rank_tokens = table.micro_batch_tokens * at.per_cp
    tokens = rank_tokens * at.per_tp
    one, live = _kept_and_live(at, table, kept.sharded_parts, recipe)
    one, live = tokens * one, tokens * live
    if not recipe.is_sequence_parallel:
        whole = _kept_and_live(at, table, kept.whole_parts, recipe)
        one += rank_tokens * whole[0]
        live += rank_tokens * whole[1]
    routed_extra = _etp_copies(at, table)
    if routed_extra is not None:
        one += tokens * routed_extra * (at.depth_ratio * (1.0 - at.recompute_ratio))
    # Sequence parallelism gathers the input of one block, and holds as large a partial sum before it is scattered.
    live += rank_tokens * (table.tp > 1.0) * (_GATHERED_BYTES * totals.hidden_size * recipe.is_sequence_parallel)
    first_share, last_share = in_flight(table, num_micro_batches)
    first, last = one * first_share + live, one * last_share + live
    head_tokens = tokens * float(totals.has_head)
    if recipe.logits_bytes is None:
        logits = head_tokens * (totals.vocab_size * _per_logit(at, overheads))
    else:
        logits = head_tokens * (totals.vocab_size * recipe.logits_bytes)
    # final norm: input and output
    last += head_tokens * (4.0 * totals.hidden_size)
    wgrad = _IS_FUSED_WGRAD.take(at.sharding) * at.per_tp * (2.0 * (not is_lora))
    # Fused accumulation keeps a buffer for each weight; without it only the one being differentiated exists.
    first_wgrad = wgrad * (totals.widest_layer_params * recipe.has_wgrad_buffer)
    last_wgrad = first_wgrad + wgrad * (totals.table_params * totals.has_head)
    is_last = last + logits + last_wgrad >= first + first_wgrad
    if recipe.only_last_rank:
        is_last = np.ones_like(is_last)
    return Transient(
        activations=np.where(is_last, last, first),
        logits=logits * is_last,
        unsharded=_unsharded(at, 0.0 if is_lora else recipe.gradient_bytes, recipe),
        wgrad_buffer=np.where(is_last, last_wgrad, first_wgrad),
        is_at_head=is_last,
    )


def _kept_and_live(at: Layout, table: TrainerTable, parts: KeptParts, recipe: Recipe) -> tuple[FloatArray, FloatArray]:
    """(kept by one micro-batch on a rank, alive beside that while a layer is recomputed) in bytes per token.

    Partial recomputation keeps inputs of the first layers of a stage and everything of the others. Backward has freed
    the others when it comes to the first ones, so that the live layer adds only what exceeds them: nothing where one
    layer is left and all are alike.
    """
    per_model = np.array([parts.all, parts.selective, parts.inputs, parts.all]).take(at.recompute)
    is_none = at.recompute == RECOMPUTES.index(Recompute.NONE)
    live = parts.live * (~is_none if recipe.keeps_live_layer else at.recompute == RECOMPUTES.index(Recompute.FULL))
    is_partial = at.recompute == RECOMPUTES.index(Recompute.PARTIAL)
    if is_partial.any():
        ratio = at.recompute_ratio * is_partial
        per_model = per_model - ratio * (parts.all - parts.inputs)
        freed = (1.0 - ratio) * parts.all * at.depth_ratio / table.vpp
        live = np.where(is_partial, np.maximum(parts.live - freed, 0.0), live)
    return per_model * at.depth_ratio, live


def _per_logit(at: Layout, overheads: Overheads) -> FloatArray:
    """Live bytes per logit: Megatron's vocabulary-parallel loss (DDP, ZeRO-1), or PyTorch's (ZeRO-2 and -3)."""
    megatron = overheads.vocabulary_parallel_logits_bytes_per_element
    eager = overheads.logits_bytes_per_element
    return np.array([megatron, megatron, eager, eager]).take(at.sharding)


def inference_transient(at: Layout, table: TrainerTable, overheads: Overheads) -> Transient:
    """Peak of a log-prob or value pass: one live layer, and logits with entropy on the last rank."""
    totals = at.totals
    tokens = table.inference_tokens * at.per_cp * at.per_tp
    activations = tokens * (2.0 * totals.live_elements + 2.0 * totals.hidden_size)
    logits = tokens * (float(totals.has_head) * totals.vocab_size * overheads.logprob_logits_bytes_per_element)
    # logits exist after the last layer's activations are gone, except its output
    output = tokens * (4.0 * totals.hidden_size)
    is_head = logits + output > activations
    return Transient(
        activations=np.where(is_head, output, activations),
        logits=logits * is_head,
        unsharded=_unsharded(at, 0.0),
        wgrad_buffer=np.zeros_like(tokens),
        is_at_head=is_head,
    )


def _etp_copies(at: Layout, table: TrainerTable) -> FloatArray | None:
    """Extra bytes per token over all layers because expert-TP ranks each hold all dispatched tokens."""
    if not at.etp.communicates:
        return None
    elements = sum(group.num_layers * group.num_active for group in at.totals.experts) * 2.0 * at.totals.hidden_size
    return 2.0 * elements * (table.etp - 1.0)


def _unsharded(at: Layout, gradient_bytes: float, recipe: Recipe = STANDARD) -> FloatArray:
    """FSDP: 16-bit weights of the current and the next block and of the root unit, and gradients of one unit.

    A block holds the rank's share of its experts: 1 / (ep etp) of them. The root unit holds both vocabulary tables,
    unless the recipe makes each a unit of its own.
    """
    totals = at.totals
    block = np.zeros_like(at.per_tp)
    for dense, experts in totals.layer_params:
        block = np.maximum(block, dense * at.per_tp + experts * at.per_expert_width)
    root = at.table_params if recipe.has_root_unit else totals.table_params * at.per_tp
    gathered = 2.0 * (2.0 * block + root)
    gradients = gradient_bytes * np.maximum(block, root)
    return (gathered + gradients) * _IS_ZERO3.take(at.sharding)


def communicator_bytes(at: Layout, table: TrainerTable, overheads: Overheads) -> FloatArray:
    """Buffers of all process groups: the first costs more than each further one."""
    groups = (
        (table.tp > 1.0).astype(np.float64)
        + (table.pp > 1.0)
        + (table.cp > 1.0)
        + (at.dp * table.cp > 1.0)
        + (table.ep > 1.0)
    )
    if at.totals.experts:
        groups += at.expert_shard.num_ranks > 1.0
    further = np.maximum(groups - 1.0, 0.0) * overheads.communicator_bytes
    return further + (groups > 0.0) * overheads.first_communicator_bytes


def stage_terms(
    weights: FloatArray,
    gradients: FloatArray,
    optimizer: FloatArray,
    transient: Transient,
    communicators: FloatArray,
    overheads: Overheads,
) -> dict[str, FloatArray]:
    """Named bytes per GPU of one stage; they sum to its peak."""
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": transient.activations,
        "logits": transient.logits,
        "unsharded": transient.unsharded,
        "wgrad_buffer": transient.wgrad_buffer,
        "communicator": communicators,
        "context": np.full_like(weights, overheads.context_bytes),
        "fragmentation": transient.dynamic * overheads.fragmentation_ratio,
    }


def update_terms(
    at: Layout,
    states: States,
    flags: OffloadFlags,
    transient: Transient,
    communicators: FloatArray,
    overheads: Overheads,
) -> tuple[dict[str, FloatArray], BoolArray]:
    """(named bytes at the fuller of UPDATE_INSTANTS, whether that is the optimizer step).

    At the step all activations are gone. PyTorch's Adam (FSDP, DeepSpeed) then holds one fp32 copy of the shard: its
    multi-tensor form needs "sizeof(params) more peak memory" (PyTorch documentation of torch.optim); Megatron's fused
    Adam needs none. Moments appear at the first step, so that the second iteration is the first one with the full peak.
    """
    terms = stage_terms(states.weights, states.gradients, states.optimizer, transient, communicators, overheads)
    step = _STEP_BYTES.take(at.sharding) * states.shard_params * (1.0 - flags.cpu_optimizer)
    is_step = step > transient.dynamic * (1.0 + overheads.fragmentation_ratio) + transient.wgrad_buffer
    if is_step.any():
        for name in ("activations", "logits", "unsharded", "wgrad_buffer", "fragmentation"):
            terms[name] = terms[name] * ~is_step
    terms["optimizer_step"] = step * is_step
    return terms, is_step


def is_zero3(at: Layout) -> FloatArray:
    """1 where weights are gathered for every use, else 0."""
    return _IS_ZERO3.take(at.sharding)


ZERO2_CODE = SHARDINGS.index(Sharding.ZERO2)
ZERO3_CODE = SHARDINGS.index(Sharding.ZERO3)
DDP_CODE = SHARDINGS.index(Sharding.DDP)
