"""Cost of workers that train or only run forward passes: time, GPU memory and host RAM of every stage.

One optimizer step of a data-parallel rank is `m` packed micro-batches through `p` pipeline ranks:
`m * stage + (p - 1) / v * stage` of compute and exposed traffic, then data-parallel collectives that backward
does not hide, then the optimizer. Everything is a named, additive, exposed term. All arrays have shape
(num_candidates,); loops run over layer classes only. `docs/cost/` has the equations and their sources.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.cost import memory
from planner.cost.batches import Batches, batches_of
from planner.cost.communication import collective_s, expert_exchange_s, pipeline_slowdown, send_s
from planner.cost.compute import KernelRates, attention_flop_per_token, kernel_rates
from planner.cost.data_parallel import data_parallel_s, gather_per_micro_batch_s
from planner.cost.layout import Layout, layout, model_totals
from planner.cost.memory import States
from planner.cost.offload import OffloadFlags, cpu_optimizer_s, host_link_rate, offload_flags, update_swap_bytes
from planner.cost.terms import Terms
from planner.cost.training_memory import inference_memory, is_legal, trainer_states, update_memory
from planner.cost.weight_sync import sync_memory_terms, sync_terms
from planner.cost.worker import Site, StageCost, TrainerJob, WorkerCosts
from planner.domain.hardware import CollectiveOp, Precision
from planner.domain.overheads import Overheads, TrainingStack
from planner.domain.stages import StageName
from planner.domain.strategy import (
    CONTEXT_PARALLELS,
    RECOMPUTES,
    SHARDINGS,
    BoolArray,
    ContextParallel,
    FloatArray,
    Recompute,
    Sharding,
    TrainerTable,
)
from planner.domain.workload import TokenLoad

ATTENTION_BACKWARD_RATIO = 2.5
"""Backward over forward FLOP of attention kernels: scores are recomputed (arXiv 2307.08691)."""
OPTIMIZER_TRAFFIC_BYTES = 30.0
"""HBM bytes per parameter of a fused Adam step: read gradient, master, moments; write master, moments, weights."""
_ACTIVATION_BYTES = 2.0
_SELECTIVE_PASSES = 2.0
"""A recomputed element is written once and its input read once."""
_FORWARD_PASS_SHARE = 1.0 / 3.0
"""Share of element-wise traffic that forward causes: a write and a read of six."""
_TINY = 1e-30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forward:
    """One forward pass of one micro-batch through all layers, in seconds on one TP and CP rank."""

    dense: FloatArray
    experts: FloatArray
    attention: FloatArray
    head: FloatArray
    """Output head and multi-token-prediction modules, last pipeline rank."""
    logits: FloatArray
    """Element-wise work on logits (softmax, entropy), last pipeline rank."""
    tp_gather: tuple[FloatArray, FloatArray]
    """All all-gathers of TP regions, (scale-up, scale-out)."""
    tp_scatter: tuple[FloatArray, FloatArray]
    cp: tuple[FloatArray, FloatArray]
    """Exposed context-parallel exchange of forward."""
    cp_backward: tuple[FloatArray, FloatArray]
    ep: tuple[FloatArray, FloatArray]
    """One dispatch and one combine per MoE layer."""
    elementwise: FloatArray
    """One pass over all activation elements that backward needs."""
    tokens: FloatArray
    """Tokens per rank of the CP group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stack:
    """Properties of the training stack by candidate: ZeRO-2 and ZeRO-3 run on FSDP, the others on Megatron."""

    slowdown: FloatArray
    """1 / compute_ratio."""
    attention: FloatArray
    """1 / attention_ratio."""
    moe: FloatArray
    """1 / moe_ratio."""
    passes: FloatArray
    overlap: FloatArray
    tp_overlap: FloatArray
    ep_exposed: FloatArray
    tax: FloatArray
    layers_host_s: FloatArray
    """Host time of all MoE and recurrent layers and one micro-batch, forward and backward."""


_FSDP_SHARDINGS = np.array([level in (Sharding.ZERO2, Sharding.ZERO3) for level in SHARDINGS])


def _stack(at: Layout, job: TrainerJob, overheads: Overheads) -> _Stack:
    is_16_bit = job.precision is Precision.BF16
    format_slowdown = 1.0 / overheads.block_scaled_ratio if job.is_block_scaled else 1.0

    def column(of: Callable[[TrainingStack], float]) -> FloatArray:
        values = np.where(_FSDP_SHARDINGS, of(overheads.fsdp), of(overheads.megatron))
        return values.take(at.sharding)

    return _Stack(
        slowdown=column(lambda stack: format_slowdown / stack.compute_ratio),
        attention=column(lambda stack: 1.0 / (format_slowdown * stack.attention_ratio)),
        moe=column(lambda stack: 1.0 / stack.moe_ratio),
        passes=column(lambda stack: stack.elementwise_passes + (0.0 if is_16_bit else stack.quantisation_passes)),
        overlap=column(lambda stack: stack.overlap_ratio),
        tp_overlap=column(lambda stack: stack.tp_overlap_ratio),
        ep_exposed=column(lambda stack: 1.0 - stack.ep_overlap_ratio),
        tax=column(lambda stack: stack.overlap_tax_ratio),
        layers_host_s=column(
            lambda stack: (
                stack.moe_layer_host_s * at.totals.num_expert_layers
                + stack.recurrent_layer_host_s * at.totals.num_recurrent_layers
            )
        ),
    )


def price_trainer(job: TrainerJob, table: TrainerTable, site: Site) -> WorkerCosts:
    """Costs of all strategies in `table` for one worker.

    Chunks of a few thousand rows keep temporaries in cache. Rows where a formula does not apply have is_legal
    False and meaningless costs. KeyError when the GPU does not support `job.precision`.
    """
    totals = model_totals(job.model, job.has_vocabulary_head)
    at = layout(table, totals, site.node)
    flags = offload_flags(at.offload)
    states = trainer_states(job, at, flags)
    communicators = memory.communicator_bytes(at, table, site.overheads)
    stages = [
        _inference_stage(job, name, load, table, at, flags, states, communicators, site)
        for name, load in job.inference_loads
    ]
    if job.train_load is not None and job.train_stage is not None:
        stages.append(
            _training_stage(job, job.train_stage, job.train_load, table, at, flags, states, communicators, site)
        )
    idle = _idle_terms(states, flags, communicators, site.overheads)
    colocated = disaggregated = sync_memory = None
    if job.sends_weights:
        colocated, disaggregated = sync_terms(job, table, at, site)
        sync_memory = sync_memory_terms(job, at, states, idle, site)
    return WorkerCosts(
        worker=job.worker,
        model=job.model,
        strategies=table,
        stages=tuple(stages),
        idle_terms=idle,
        host_terms=_host_terms(states, flags, at, site.overheads),
        sync_terms_colocated=colocated,
        sync_terms_disaggregated=disaggregated,
        sync_memory_terms=sync_memory,
        is_legal=is_legal(job, table, at),
    )


def _forward(job: TrainerJob, load: TokenLoad, batch_tokens: FloatArray, table: TrainerTable, at: Layout, site: Site,
             stack: _Stack, *, head_bytes_per_element: float) -> _Forward:  # fmt: skip
    """Forward pass of one micro-batch of `batch_tokens` tokens, whole model, one TP and CP rank."""
    totals = at.totals
    rates = kernel_rates(site.node.gpu, job.precision, is_training=True)
    tokens = batch_tokens * at.per_cp
    sharded = tokens * at.per_tp
    compute = sharded * stack.slowdown
    dense = np.maximum(
        compute * (2.0 * totals.dense_matmul_params * rates.gemm_s_per_flop),
        at.per_tp * (totals.dense_matmul_params * rates.weight_bytes_per_param * rates.hbm_s_per_byte),
    )
    logits_s = totals.vocab_size * head_bytes_per_element * rates.hbm_s_per_byte * totals.has_head
    attention = _attention_s(job, load, compute * stack.attention, table, rates, site.overheads.recurrent_ratio)
    imbalance = 1.0 + (0.0 if job.is_routing_balanced else site.overheads.routing_imbalance_ratio - 1.0) * (
        1.0 - 1.0 / table.ep
    )
    experts = _experts_s(compute * (imbalance * stack.moe), table, at, rates)
    head = compute * (2.0 * totals.table_params * rates.gemm_s_per_flop * totals.has_head)
    if job.num_mtp_modules:
        projection = compute * (4.0 * totals.hidden_size**2 * rates.gemm_s_per_flop)
        head += job.num_mtp_modules * (head + projection + (dense + experts + attention) / totals.num_layers)
    pass_s = _ACTIVATION_BYTES * rates.elementwise_s_per_byte
    routed_pass_s = totals.routed_saved_elements * pass_s
    dense_pass_s = (totals.saved_elements - totals.routed_saved_elements + totals.scan_elements) * pass_s
    ep_up, ep_out = _expert_exchange(sharded, table, at, site)
    exchanged = imbalance * stack.ep_exposed
    gather, scatter = _tp_s(tokens, at, site)
    cp, cp_backward = _context_parallel_s(job, load, sharded, table, at, rates, site)
    return _Forward(
        dense=dense,
        experts=experts,
        attention=attention,
        head=head,
        logits=sharded * logits_s,
        tp_gather=gather,
        tp_scatter=scatter,
        cp=cp,
        cp_backward=cp_backward,
        ep=(ep_up * exchanged, ep_out * exchanged),
        elementwise=sharded * (stack.moe * routed_pass_s + dense_pass_s),
        tokens=tokens,
    )


def _attention_s(
    job: TrainerJob, load: TokenLoad, sharded: FloatArray, table: TrainerTable, rates: KernelRates,
    recurrent_ratio: float,
) -> FloatArray:  # fmt: skip
    """Attention of all layers: efficiency s / (s + s_half) at the chunk length that one CP rank works on.

    Recurrent and state-space mixers run scans of short chunks at `recurrent_ratio` of the speed of long attention.
    """
    recurrent = sum(x.num_layers * x.attention.state_flop_per_token for x in job.model.layers)
    flop = sum(
        x.num_layers * attention_flop_per_token(x.attention, load.mean_tokens, load.mean_square_tokens)
        for x in job.model.layers
    )
    flop -= recurrent
    biased = load.mean_square_tokens / load.mean_tokens
    slowdown = 1.0 + table.cp * (rates.attention_half_tokens / biased)
    recurrent_s = recurrent * rates.attention_s_per_flop / recurrent_ratio
    return sharded * (slowdown * (flop * rates.attention_s_per_flop) + recurrent_s)


def _experts_s(sharded: FloatArray, table: TrainerTable, at: Layout, rates: KernelRates) -> FloatArray:
    """Routed experts: balanced work, or reading the local experts' weights when each gets few tokens."""
    result = np.zeros_like(sharded)
    for group in at.totals.experts:
        flop = 2.0 * group.num_layers * group.num_active * group.params_per_expert
        weights = group.num_layers * group.num_experts * group.params_per_expert * rates.weight_bytes_per_param
        result += np.maximum(
            sharded * (flop * rates.moe_gemm_s_per_flop), weights * rates.hbm_s_per_byte / (table.ep * table.etp)
        )
    return result


def _tp_s(tokens: FloatArray, at: Layout, site: Site) -> tuple[tuple[FloatArray, FloatArray], ...]:
    """(all-gathers, reduce-scatters) of one forward pass with sequence parallelism, each (scale-up, scale-out)."""
    if not at.tp.communicates:
        zero = np.zeros_like(tokens)
        return (zero, zero), (zero, zero)
    payload = tokens * (_ACTIVATION_BYTES * at.totals.hidden_size)
    regions = float(at.totals.tp_regions)
    result = []
    for op in (CollectiveOp.ALL_GATHER, CollectiveOp.REDUCE_SCATTER):
        scale_up, scale_out = collective_s(op, payload, at.tp, site.node)
        result.append((scale_up * regions, scale_out * regions if at.tp.crosses else scale_out))
    return tuple(result)


def _context_parallel_s(
    job: TrainerJob, load: TokenLoad, sharded: FloatArray, table: TrainerTable, at: Layout, rates: KernelRates,
    site: Site,
) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:  # fmt: skip
    """Exposed exchange of (forward, backward), each (scale-up, scale-out)."""
    zero = np.zeros_like(sharded)
    if not at.cp.communicates:
        return (zero, zero), (zero, zero)
    crosses = at.cp.num_domains > 1.0
    is_ulysses = table.context_parallel == CONTEXT_PARALLELS.index(ContextParallel.ULYSSES)
    ring = _ring_s(job, load, sharded, table, at, rates, site, crosses)
    if not is_ulysses.any():
        return ring
    exchange = _ulysses_s(job, sharded, at, site)
    forward = (np.where(is_ulysses, exchange[0], ring[0][0]), np.where(is_ulysses, exchange[1], ring[0][1]))
    backward = (np.where(is_ulysses, exchange[0], ring[1][0]), np.where(is_ulysses, exchange[1], ring[1][1]))
    return forward, backward


def _ring_s(
    job: TrainerJob, load: TokenLoad, sharded: FloatArray, table: TrainerTable, at: Layout, rates: KernelRates,
    site: Site, crosses: BoolArray,
) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:  # fmt: skip
    """Ring attention: c - 1 sends of keys and values, each hidden behind one of c attention steps.

    Backward sends keys, values and their gradients (twice the bytes) behind 2.5 times the work.
    """
    biased = load.mean_square_tokens / load.mean_tokens
    slowdown = 1.0 + table.cp * (rates.attention_half_tokens / biased)
    work = sharded * slowdown * at.per_cp
    steps = table.cp - 1.0
    forward = np.zeros_like(sharded)
    backward = np.zeros_like(sharded)
    for layer in job.model.layers:
        attention = layer.attention
        if attention.score_flop_per_pair <= 0:
            continue
        # MLA expands its latent before the ring: keys and values of all heads, half of the score FLOP per pair
        expanded = 0.5 * attention.score_flop_per_pair
        elements = attention.kv_elements_per_token if attention.kv_is_sharded_by_tp else expanded
        flop = attention_flop_per_token(attention, load.mean_tokens, load.mean_square_tokens)
        step = work * (flop * rates.attention_s_per_flop)
        message = sharded * (_ACTIVATION_BYTES * elements)
        number = float(layer.num_layers)
        forward += number * np.maximum(send_s(message, crosses, site.node, at.cp.ring_slowdown) - step, 0.0)
        backward += number * np.maximum(
            send_s(2.0 * message, crosses, site.node, at.cp.ring_slowdown) - ATTENTION_BACKWARD_RATIO * step, 0.0
        )
    forward *= steps
    backward *= steps
    return _split(forward, crosses), _split(backward, crosses)


def _split(seconds: FloatArray, crosses: BoolArray) -> tuple[FloatArray, FloatArray]:
    scale_out = seconds * crosses
    return seconds - scale_out, scale_out


def _ulysses_s(job: TrainerJob, sharded: FloatArray, at: Layout, site: Site) -> tuple[FloatArray, FloatArray]:
    """Four all-to-alls per layer that move queries, keys, values and outputs once; backward moves as much."""
    scale_up = np.zeros_like(sharded)
    scale_out = np.zeros_like(sharded)
    for layer in job.model.layers:
        attention = layer.attention
        if attention.score_flop_per_pair <= 0:
            continue
        kv = attention.kv_elements_per_token if attention.kv_is_sharded_by_tp else 0.5 * attention.score_flop_per_pair
        elements = 0.5 * attention.score_flop_per_pair + kv
        mean_message = sharded * (_ACTIVATION_BYTES * elements / 4.0)
        up, out = collective_s(CollectiveOp.ALL_TO_ALL, mean_message, at.cp, site.node)
        scale_up += (4.0 * layer.num_layers) * up
        scale_out += (4.0 * layer.num_layers) * out
    return scale_up, scale_out


def _expert_exchange(sharded: FloatArray, table: TrainerTable, at: Layout, site: Site) -> tuple[FloatArray, FloatArray]:
    """Dispatch and combine of every MoE layer; with expert-TP also gathering and scattering dispatched tokens."""
    scale_up = np.zeros_like(sharded)
    scale_out = np.zeros_like(sharded)
    for group in at.totals.experts:
        token_bytes = sharded * (_ACTIVATION_BYTES * group.width)
        if at.ep.communicates:
            up, out = expert_exchange_s(token_bytes, group.num_active, at.ep, site.node)
            scale_up += (2.0 * group.num_layers) * up
            scale_out += (2.0 * group.num_layers) * out
        if at.etp.communicates:
            gathered = token_bytes * table.etp * float(group.num_active)
            for op in (CollectiveOp.ALL_GATHER, CollectiveOp.REDUCE_SCATTER):
                up, out = collective_s(op, gathered, at.etp, site.node)
                scale_up += group.num_layers * up
                scale_out += group.num_layers * out
    return scale_up, scale_out


def _training_stage(
    job: TrainerJob, name: StageName, load: TokenLoad, table: TrainerTable, at: Layout, flags: OffloadFlags,
    states: States, communicators: FloatArray, site: Site,
) -> StageCost:  # fmt: skip
    batches = batches_of(load, job.num_optimizer_steps, table.micro_batch_tokens, at.dp)
    memory_terms, is_step = update_memory(job, batches, table, at, flags, states, communicators, site.overheads)
    return StageCost(
        stage=name,
        instant=memory.UPDATE_INSTANTS[0],
        time_terms=_training_terms(job, load, batches, table, at, flags, states, site),
        memory_terms=memory_terms,
        instants=memory.UPDATE_INSTANTS,
        instant_index=is_step,
    )


def _training_terms(
    job: TrainerJob, load: TokenLoad, batches: Batches, table: TrainerTable, at: Layout, flags: OffloadFlags,
    states: States, site: Site,
) -> Terms:  # fmt: skip
    """Seconds of all optimizer steps of all epochs, by term."""
    overheads, totals = site.overheads, at.totals
    stack = _stack(at, job, overheads)
    one = _forward(
        job, load, batches.tokens, table, at, site, stack, head_bytes_per_element=overheads.logits_bytes_per_element
    )
    num_steps = float(job.num_optimizer_steps * job.num_epochs)
    depth = at.depth_ratio
    # LoRA needs no weight gradients of the frozen base: backward costs one forward instead of two.
    backward_ratio = 1.0 if job.lora_rank is not None else 2.0
    again = at.recompute_ratio
    matmul = one.dense + one.experts
    elementwise = one.elementwise * stack.passes * depth
    forward = (matmul + one.attention) * depth + elementwise * _FORWARD_PASS_SHARE
    gemm_body = matmul * depth * (1.0 + backward_ratio)
    attention = one.attention * depth * (1.0 + ATTENTION_BACKWARD_RATIO)
    recompute = forward * again + _selective_s(one.tokens, at, job, site) * depth
    tp_up, tp_out, tp_hidden = _training_tp_s(one, at, stack, backward_ratio)
    cp_up = (one.cp[0] * (1.0 + again) + one.cp_backward[0]) * depth
    cp_out = (one.cp[1] * (1.0 + again) + one.cp_backward[1]) * depth
    exchanges = depth * (2.0 + again)
    ep_up, ep_out = one.ep[0] * exchanges, one.ep[1] * exchanges
    compute = gemm_body + attention + recompute + elementwise
    kernels = totals.num_kernels * overheads.train_kernel_launch_s * depth * (1.0 + backward_ratio + again)
    kernels += stack.layers_host_s * depth * (1.0 + again * _FORWARD_PASS_SHARE)
    busy = compute + tp_up + tp_out + cp_up + cp_out + ep_up + ep_out
    # The host runs ahead of the GPU, so launches show only where they take longer than everything on the GPU.
    launch = np.maximum(kernels - busy, 0.0)
    body = busy + launch
    head = _exposed_head_s(one, at, table, body, backward_ratio)
    number = batches.number * num_steps
    # What hides a ring exchange or a TP collective cannot hide data-parallel traffic as well.
    window = np.maximum(stack.overlap * (compute + launch - attention * (table.cp > 1.0)) - tp_hidden, 0.0)
    dp_up, dp_out = data_parallel_s(job.lora_rank is not None, batches.number, table, at, site, window, stack.tax)
    transfer = _pipeline_transfer_s(one.tokens, batches.number, table, at, site, stack.overlap * body)
    gpu_step, cpu_step = _optimizer_s(states, at, flags, site)
    reload, switch = _training_reload_s(states, flags, at, site)
    return {
        "gemm": number * (gemm_body + head),
        "attention": number * attention,
        "recompute": number * recompute,
        "elementwise": number * (elementwise + one.logits),
        "optimizer": gpu_step * num_steps,
        "cpu_optimizer": cpu_step * num_steps,
        "tp_scale_up": number * tp_up,
        "tp_scale_out": number * tp_out,
        "cp_scale_up": number * cp_up,
        "cp_scale_out": number * cp_out,
        "ep_scale_up": number * ep_up,
        "ep_scale_out": number * ep_out,
        "pp_transfer": transfer * num_steps,
        "pp_bubble": _bubble_slots(batches.number, table) * body * num_steps,
        "dp_scale_up": dp_up * num_steps,
        "dp_scale_out": dp_out * num_steps,
        "imbalance": batches.excess_ratio * number * (body + head + one.logits),
        "launch": number * launch,
        "reload": reload,
        "switch": switch,
    }


def _exposed_head_s(
    one: _Forward, at: Layout, table: TrainerTable, body: FloatArray, backward_ratio: float
) -> FloatArray:
    """What the output head adds to the slowest pipeline rank.

    The rank with most layers sets the pace. Where layers do not divide evenly the last rank holds fewer of
    them, and its head takes their place.
    """
    layers = at.depth_ratio * at.totals.num_layers
    spare = np.minimum(layers * table.pp - at.totals.num_layers, layers)
    head: FloatArray = np.maximum(one.head * (1.0 + backward_ratio) - body * (spare / layers), 0.0)
    return head


def _selective_s(tokens: FloatArray, at: Layout, job: TrainerJob, site: Site) -> FloatArray:
    """Element-wise recomputation of norms and activation functions for one micro-batch, whole model."""
    rates = kernel_rates(site.node.gpu, job.precision, is_training=True)
    dropped = at.totals.saved_elements - at.totals.saved_selective_elements
    seconds = dropped * _ACTIVATION_BYTES * _SELECTIVE_PASSES * rates.hbm_s_per_byte
    is_selective: FloatArray = np.asarray(at.recompute == RECOMPUTES.index(Recompute.SELECTIVE), dtype=np.float64)
    return tokens * at.per_tp * (seconds * is_selective)


def _training_tp_s(
    one: _Forward, at: Layout, stack: _Stack, backward_ratio: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """TP collectives of one micro-batch on one stage: exposed (scale-up, scale-out), and hidden seconds.

    Forward: all-gathers and reduce-scatters, again when recomputed. Backward: the all-gather of the output
    gradient is exposed; the all-gather of the input (for weight gradients) and the reduce-scatter of the input
    gradient hide behind dense backward products as far as those last.
    """
    zero = np.zeros_like(one.dense)
    if not at.tp.communicates:
        return zero, zero, zero
    pair_up = one.tp_gather[0] + one.tp_scatter[0]
    pair_out = one.tp_gather[1] + one.tp_scatter[1]
    hideable = pair_up + pair_out
    hidden = np.minimum(hideable, stack.overlap * backward_ratio * one.dense)
    forward_hidden = np.minimum(hideable, stack.tp_overlap * one.dense)
    hidden += forward_hidden
    repeats = 2.0 + at.recompute_ratio - hidden / np.maximum(hideable, _TINY)
    depth = at.depth_ratio
    scale_up = (pair_up * repeats + one.tp_gather[0]) * depth
    scale_out = (pair_out * repeats + one.tp_gather[1]) * depth if at.tp.crosses else zero
    return scale_up, scale_out, hidden * depth


def _pipeline_transfer_s(
    tokens: FloatArray, num_micro_batches: FloatArray, table: TrainerTable, at: Layout, site: Site,
    window_s: FloatArray | None,
) -> FloatArray:  # fmt: skip
    """Exposed sends of one optimizer step (or, without `window_s`, of one forward-only pass).

    1F1B waits for each send: m + p - 1 forward and as many backward messages. Interleaving overlaps steady
    sends and exposes what a sixth of the stage's time per direction (half of its forward part) does not hide,
    and the sends that fill the pipeline.
    """
    has_pipeline = table.pp > 1.0
    if not has_pipeline.any():
        return np.zeros_like(tokens)
    message = tokens * at.per_tp * (_ACTIVATION_BYTES * at.totals.hidden_size)
    uplinks = pipeline_slowdown(table.num_gpus, table.pp, site.node)
    send = send_s(message, at.pipeline_crosses > 0.0, site.node, uplinks)
    fill = table.pp - 1.0
    if window_s is None:
        return has_pipeline * send * (num_micro_batches + fill)
    interleaved = np.maximum(table.vpp * send - window_s / 6.0, 0.0)
    steady = np.where(table.vpp > 1.0, interleaved, send)
    return has_pipeline * 2.0 * (num_micro_batches * steady + fill * send)


def _optimizer_s(states: States, at: Layout, flags: OffloadFlags, site: Site) -> tuple[FloatArray, FloatArray]:
    """(GPU, host) seconds of one optimizer step; gradient norm and host synchronisation count as GPU."""
    kernel = site.node.gpu.kernel(Precision.BF16) if site.node.gpu.supports(Precision.BF16) else None
    ratio = kernel.gemm_hbm_ratio if kernel is not None else 1.0
    on_gpu = states.shard_params * (OPTIMIZER_TRAFFIC_BYTES / (site.node.gpu.hbm_bytes_per_s * ratio))
    link = host_link_rate(site.node, at.node_gpus)
    on_host = cpu_optimizer_s(states.shard_params, at.node_gpus, link, site.node)
    gpu = on_gpu * (1.0 - flags.cpu_optimizer) + site.overheads.optimizer_host_s
    return gpu, on_host * flags.cpu_optimizer


def _training_reload_s(states: States, flags: OffloadFlags, at: Layout, site: Site) -> tuple[FloatArray, FloatArray]:
    """(link seconds, switch seconds) of the update: load and store of what the offload mode swaps."""
    link = host_link_rate(site.node, at.node_gpus)
    moved = update_swap_bytes(states.weights, states.optimizer, flags)
    transitions = 2.0 * np.maximum(flags.weights, flags.optimizer)
    return moved / link, site.overheads.stage_switch_s + site.overheads.swap_transition_s * transitions


def _bubble_slots(num_micro_batches: FloatArray, table: TrainerTable) -> FloatArray:
    """Idle time of a pipeline rank, in times of one micro-batch: (pp - 1) / vpp, and with interleaving the chunks
    that an incomplete last group of pp micro-batches leaves empty, (vpp - 1) * (-m mod pp) of 1 / vpp each
    (arXiv 2104.04473). With a single micro-batch every vpp takes pp passes, as it must."""
    empty = np.mod(-num_micro_batches, table.pp)
    return ((table.pp - 1.0) + (table.vpp - 1.0) * empty) / table.vpp


def _inference_stage(
    job: TrainerJob, name: StageName, load: TokenLoad, table: TrainerTable, at: Layout, flags: OffloadFlags,
    states: States, communicators: FloatArray, site: Site,
) -> StageCost:  # fmt: skip
    """A forward-only pass over all sequences once: log-probs, values or rewards."""
    node, overheads = site.node, site.overheads
    batches = batches_of(load, 1, table.inference_tokens, at.dp)
    stack = _stack(at, job, overheads)
    one = _forward(
        job,
        load,
        batches.tokens,
        table,
        at,
        site,
        stack,
        head_bytes_per_element=overheads.logprob_logits_bytes_per_element,
    )
    depth, number = at.depth_ratio, batches.number
    gemm_body = (one.dense + one.experts) * depth
    attention = one.attention * depth
    elementwise = one.elementwise * stack.passes * (depth * _FORWARD_PASS_SHARE)
    compute = gemm_body + attention + elementwise
    tp_up, tp_out = (one.tp_gather[i] + one.tp_scatter[i] for i in range(2))
    traffic = {
        "tp_scale_up": tp_up * depth,
        "tp_scale_out": tp_out * depth,
        "cp_scale_up": one.cp[0] * depth,
        "cp_scale_out": one.cp[1] * depth,
        "ep_scale_up": one.ep[0] * depth,
        "ep_scale_out": one.ep[1] * depth,
    }
    busy = compute
    for seconds in traffic.values():
        busy = busy + seconds
    kernels = at.totals.num_kernels * overheads.train_kernel_launch_s + stack.layers_host_s * _FORWARD_PASS_SHARE
    launch = np.maximum(kernels * depth - busy, 0.0)
    body = busy + launch
    is_zero3 = at.sharding == memory.ZERO3_CODE
    dp_up = dp_out = np.zeros_like(body)
    if is_zero3.any():
        window = stack.overlap * (compute + launch - attention * (table.cp > 1.0))
        gathered = gather_per_micro_batch_s(at, site, window, stack.tax, num_gathers=1.0, has_gradients=False)
        dp_up, dp_out = is_zero3 * number * gathered[0], is_zero3 * number * gathered[1]
    reload = states.weights * flags.weights / host_link_rate(node, at.node_gpus)
    time_terms = {
        "gemm": number * (gemm_body + one.head),
        "attention": number * attention,
        "elementwise": number * (elementwise + one.logits),
        **{term: number * seconds for term, seconds in traffic.items()},
        "pp_transfer": _pipeline_transfer_s(one.tokens, number, table, at, site, None),
        "pp_bubble": _bubble_slots(number, table) * body,
        "dp_scale_up": dp_up,
        "dp_scale_out": dp_out,
        "imbalance": batches.excess_ratio * number * (body + one.head + one.logits),
        "launch": number * launch,
        "reload": reload,
        "switch": overheads.stage_switch_s + overheads.swap_transition_s * flags.weights,
    }
    memory_terms, is_at_head = inference_memory(table, at, flags, states, communicators, overheads)
    return StageCost(
        stage=name,
        instant=memory.FORWARD_INSTANTS[0],
        time_terms=time_terms,
        memory_terms=memory_terms,
        instants=memory.FORWARD_INSTANTS,
        instant_index=is_at_head,
    )


def _idle_terms(
    states: States, flags: OffloadFlags, communicators: FloatArray, overheads: Overheads
) -> dict[str, FloatArray]:
    """Bytes per GPU that stay while other workers run."""
    return {
        "weights": states.weights * (1.0 - flags.weights),
        "gradients": states.gradients * (1.0 - flags.gradients),
        "optimizer": states.optimizer * (1.0 - flags.optimizer),
        "communicator": communicators,
        "context": np.full_like(communicators, overheads.context_bytes),
    }


def _host_terms(states: States, flags: OffloadFlags, at: Layout, overheads: Overheads) -> dict[str, FloatArray]:
    """Host RAM per node.

    A CPU optimizer holds fp32 master weights, moments and gradients (16 bytes per parameter over all nodes).
    Swapped weights have a host copy; when a CPU optimizer's worker swaps its GPU states too, the fp32
    gradient buffers and a pinned 16-bit staging copy of the weights come on top (24 in total, and 2 more in
    the sleeping engine's backup). Two pinned buckets per GPU serve any transfer, and the process itself takes its
    share: 25.7-27.2 bytes per parameter are reported in all.
    """
    gpus = at.node_gpus
    uses_cpu = flags.cpu_optimizer
    swaps_both = uses_cpu * flags.weights
    moves = np.maximum(np.maximum(flags.weights, flags.optimizer), uses_cpu)
    return {
        "host_optimizer": gpus * (states.optimizer_host + states.optimizer * flags.optimizer),
        "host_gradients": gpus * (4.0 * states.shard_params * uses_cpu + states.gradients * swaps_both),
        "host_weights": gpus * states.weights * flags.weights,
        "host_process": gpus * (overheads.host_process_bytes * moves),
        "pinned_buckets": gpus * (2.0 * overheads.sync_bucket_bytes * moves + 2.0 * states.shard_params * swaps_both),
    }
