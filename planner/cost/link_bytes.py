"""Bytes that a stage moves over each link level, and the seconds of its dependent chain, for one strategy.

Bytes are per GPU, on the one with most of them: the least that the strategy must move, at peak rates no model of
efficiency can beat. Payload conventions as in `planner.cost.communication`: a group of N domains of g ranks moves
(g - 1) / g of a payload inside the domain and (N - 1) / N / g of it through each NIC per pass; an all-reduce is two
passes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor

import numpy as np

from planner.cost import memory
from planner.cost.communication import Span, collective_s, exchange_copies, span
from planner.cost.decode import (
    ACTIVATION_BYTES,
    KV_BYTES,
    TABLE_BYTES,
    distinct_experts,
    engine_layout,
    engine_node,
    kv_heads_share,
    layer_launch_s,
    num_mixers,
)
from planner.cost.formats import uniform
from planner.cost.generation import cache_bytes_per_gpu, engine_weight_bytes, lora_params
from planner.cost.layout import Layout, layout, model_totals
from planner.cost.offload import CPU_OPTIMIZER_LINK_BYTES, offload_flags, update_swap_bytes
from planner.cost.training import OPTIMIZER_TRAFFIC_BYTES
from planner.cost.trajectory import trajectory_table
from planner.cost.weight_sync import gathered_ratios, sync_bytes
from planner.cost.work_depth import Lengths, causal_pairs
from planner.cost.worker import EngineJob, Site, TrainerJob
from planner.domain.hardware import CollectiveOp, NodeType, Precision
from planner.domain.model import Model
from planner.domain.strategy import (
    ContextParallel,
    EngineIdle,
    ExpertExchange,
    FloatArray,
    Recompute,
    RolloutStrategy,
    Sharding,
    TrainerStrategy,
    TrainerTable,
)
from planner.domain.workload import TokenLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkBytes:
    """Bytes per GPU through HBM, the scale-up link and the NIC (sent, one direction), and the link to host RAM."""

    hbm_bytes: float = 0.0
    scale_up_bytes: float = 0.0
    nic_bytes: float = 0.0
    host_bytes: float = 0.0
    """Loads and stores together."""

    def __add__(self, other: LinkBytes) -> LinkBytes:
        return LinkBytes(
            hbm_bytes=self.hbm_bytes + other.hbm_bytes,
            scale_up_bytes=self.scale_up_bytes + other.scale_up_bytes,
            nic_bytes=self.nic_bytes + other.nic_bytes,
            host_bytes=self.host_bytes + other.host_bytes,
        )

    def times(self, factor: float) -> LinkBytes:
        return LinkBytes(
            hbm_bytes=self.hbm_bytes * factor,
            scale_up_bytes=self.scale_up_bytes * factor,
            nic_bytes=self.nic_bytes * factor,
            host_bytes=self.host_bytes * factor,
        )


def ring_bytes(payload_bytes: float, group: Span, *, num_passes: float = 1.0) -> LinkBytes:
    """Bytes that each rank sends in `num_passes` all-gathers or reduce-scatters of `payload_bytes`."""
    local, domains = float(group.local_ranks[0]), float(group.num_domains[0])
    return LinkBytes(
        scale_up_bytes=num_passes * payload_bytes * (1.0 - 1.0 / local),
        nic_bytes=num_passes * payload_bytes * (1.0 - 1.0 / domains) / local,
    )


def all_reduce_bytes(payload_bytes: float, group: Span, node: NodeType, *, num_times: float = 1.0) -> LinkBytes:
    """Bytes that each rank sends in all-reduces of `payload_bytes`: two passes. Where the law is faster than the link,
    a switch reduces on the way, and what goes through the link is less in proportion."""
    result = ring_bytes(payload_bytes, group, num_passes=2.0 * num_times)
    law = node.gpu.collective(CollectiveOp.ALL_REDUCE)
    place = np.log2(np.maximum(group.local_ranks[0], 1.0))
    rate = float(np.interp(place, np.log2(np.asarray(law.num_ranks, dtype=np.float64)), law.bytes_per_s))
    share = min(1.0, node.gpu.scale_up_bytes_per_s / rate)
    return replace(result, scale_up_bytes=result.scale_up_bytes * share)


def exchange_bytes(payload_bytes: float, group: Span) -> LinkBytes:
    """Bytes that each rank sends in one all-to-all of `payload_bytes`, its own share included in the payload."""
    local, domains = float(group.local_ranks[0]), float(group.num_domains[0])
    return LinkBytes(
        scale_up_bytes=payload_bytes / domains * (1.0 - 1.0 / local), nic_bytes=payload_bytes * (1.0 - 1.0 / domains)
    )


def dispatch_bytes(token_bytes: float, num_choices: int, group: Span) -> LinkBytes:
    """Bytes that each rank sends to the experts of its tokens: a copy per rank, and per domain over the NIC."""
    ranks, domains = float(group.num_ranks[0]), float(group.num_domains[0])
    local = float(exchange_copies(group.local_ranks, num_choices)[0])
    remote = float(exchange_copies(group.num_domains, num_choices)[0])
    return LinkBytes(
        scale_up_bytes=token_bytes * local * (1.0 - 1.0 / ranks),
        nic_bytes=token_bytes * remote * (1.0 - 1.0 / domains),
    )


# ---------------------------------------------------------------------------------------------- trainers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passes:
    """How often one stage of a trainer goes through its data."""

    num_steps: int
    num_micro_batches: float
    """Per data-parallel rank and step."""
    tokens: float
    """Per rank of the context-parallel group, over the whole stage."""
    backward: float
    """Backward products with weights over forward ones: 0 for a forward-only stage, 2, or 1 with frozen weights."""
    recomputed: float
    """Share of the layers whose forward pass backward repeats."""

    @property
    def all_micro_batches(self) -> float:
        return self.num_micro_batches * self.num_steps

    @property
    def trains(self) -> float:
        return float(self.backward > 0.0)


def trainer_bytes(
    job: TrainerJob, load: TokenLoad, strategy: TrainerStrategy, site: Site, *, trains: bool
) -> LinkBytes:
    """Bytes per GPU of an update (all epochs and steps) or, with `trains` False, of one forward-only pass."""
    totals = model_totals(job.model, job.has_vocabulary_head)
    at = layout(TrainerTable.of((strategy,)), totals, site.node)
    steps = job.num_optimizer_steps if trains else 1
    budget = strategy.micro_batch_tokens if trains else strategy.inference_tokens
    rank_tokens = load.num_tokens / strategy.dp
    passes = _Passes(
        num_steps=steps * job.num_epochs if trains else 1,
        num_micro_batches=max(ceil(rank_tokens / steps / budget - 1e-9), 1),
        tokens=rank_tokens / strategy.cp * (job.num_epochs if trains else 1),
        backward=0.0 if not trains else 1.0 if job.lora_rank is not None else 2.0,
        recomputed=float(at.recompute_ratio[0]) if trains else 0.0,
    )
    return (
        _memory_bytes(job, strategy, at, passes)
        + _tensor_parallel(job, at, passes)
        + _data_parallel(job, strategy, at, passes, site)
        + _pipeline(strategy, at, passes)
        + _context_parallel(job.model, strategy, at, passes)
        + _expert_parallel(strategy, at, passes)
        + _host_link(job, at, passes)
    )


def _host_link(job: TrainerJob, at: Layout, passes: _Passes) -> LinkBytes:
    """Swapped states once per stage, gradients and weights of a CPU optimizer once per step."""
    flags = offload_flags(at.offload)
    states = memory.training_states(at, flags, lora_rank=job.lora_rank, is_fp8=job.precision is Precision.FP8)
    if not passes.trains:
        return LinkBytes(host_bytes=float((states.weights * flags.weights)[0]))
    stepped = passes.num_steps * CPU_OPTIMIZER_LINK_BYTES * float((states.shard_params * flags.cpu_optimizer)[0])
    return LinkBytes(host_bytes=float(update_swap_bytes(states.weights, states.optimizer, flags)[0]) + stepped)


def _memory_bytes(job: TrainerJob, strategy: TrainerStrategy, at: Layout, passes: _Passes) -> LinkBytes:
    """Weights once per micro-batch and pass, kept activations written and read once, the optimizer's states."""
    totals = at.totals
    head = totals.table_params * totals.has_head / strategy.tp
    dense = totals.dense_matmul_params * float(at.depth_ratio[0]) / strategy.tp
    weights = (dense + float(at.expert_params[0])) * job.precision.num_bytes + head * TABLE_BYTES
    result = weights * passes.all_micro_batches * (1.0 + passes.backward + passes.recomputed)
    if not passes.trains:
        return LinkBytes(hbm_bytes=result)
    kept = totals.saved_elements if strategy.recompute is not Recompute.SELECTIVE else totals.saved_selective_elements
    kept += passes.recomputed * (float(totals.num_layers * totals.hidden_size) - kept)
    result += 2.0 * kept * ACTIVATION_BYTES * passes.tokens / strategy.tp * float(at.depth_ratio[0])
    flags = offload_flags(at.offload)
    states = memory.training_states(at, flags, lora_rank=job.lora_rank, is_fp8=job.precision is Precision.FP8)
    on_gpu = float(states.shard_params[0] * (1.0 - flags.cpu_optimizer[0]))
    return LinkBytes(hbm_bytes=result + OPTIMIZER_TRAFFIC_BYTES * on_gpu * passes.num_steps)


def _tensor_parallel(job: TrainerJob, at: Layout, passes: _Passes) -> LinkBytes:
    """An all-gather and a reduce-scatter per region in each direction; weight gradients gather the input once more."""
    regions = at.totals.tp_regions * float(at.depth_ratio[0])
    payload = passes.tokens * ACTIVATION_BYTES * at.totals.hidden_size * regions
    again = passes.trains * (job.lora_rank is None)
    return ring_bytes(payload, at.tp, num_passes=2.0 * (1.0 + passes.trains + passes.recomputed) + again)


def _data_parallel(job: TrainerJob, strategy: TrainerStrategy, at: Layout, passes: _Passes, site: Site) -> LinkBytes:
    """Gradients in 32 bit and weights in 16 bit: once per step, or per micro-batch where they are sharded."""
    reduces = float(passes.trains and job.lora_rank is None)
    if strategy.sharding is Sharding.ZERO3:
        gathers = passes.all_micro_batches * (1.0 + passes.trains)
        reductions = passes.all_micro_batches * reduces
    else:
        gathers = passes.num_steps * reduces
        reductions = gathers * (passes.num_micro_batches if strategy.sharding is Sharding.ZERO2 else 1.0)
    gathered = memory.REDUCE_BYTES if strategy.sharding is Sharding.DDP else ACTIVATION_BYTES
    per_param = gathers * gathered + reductions * memory.REDUCE_BYTES
    result = ring_bytes(float(at.dense_params[0]) * per_param, at.shard)
    if at.totals.experts:
        result += ring_bytes(float(at.expert_params[0]) * per_param, at.expert_shard)
    replicas = strategy.dp * strategy.cp // strategy.shard_ranks
    if strategy.sharding is not Sharding.DDP and replicas > 1 and reduces:
        group = span(np.array([float(replicas)]), float(strategy.tp * strategy.shard_ranks), site.node)
        shard = float(at.dense_params[0] * at.per_shard[0] + at.expert_params[0] * at.per_expert_shard[0])
        result += all_reduce_bytes(shard * memory.REDUCE_BYTES, group, site.node, num_times=passes.num_steps)
    return result


def _pipeline(strategy: TrainerStrategy, at: Layout, passes: _Passes) -> LinkBytes:
    """Hidden states to the next pipeline rank and their gradients back, once per virtual chunk."""
    if strategy.pp == 1:
        return LinkBytes()
    tokens = passes.tokens / strategy.tp * strategy.vpp * (1.0 + passes.trains)
    return _on_link(tokens * ACTIVATION_BYTES * at.totals.hidden_size, crosses=bool(at.pipeline_crosses[0] > 0.0))


def _on_link(num_bytes: float, *, crosses: bool) -> LinkBytes:
    return LinkBytes(nic_bytes=num_bytes) if crosses else LinkBytes(scale_up_bytes=num_bytes)


def _context_parallel(model: Model, strategy: TrainerStrategy, at: Layout, passes: _Passes) -> LinkBytes:
    """Ring: keys and values of the others, and in backward their gradients too. Ulysses: four all-to-alls each way."""
    result = LinkBytes()
    if strategy.cp == 1:
        return result
    sharded = passes.tokens / strategy.tp * ACTIVATION_BYTES
    for layer in model.layers:
        attention = layer.attention
        if attention.score_flop_per_pair <= 0.0:
            continue
        expanded = 0.5 * attention.score_flop_per_pair
        cached = attention.kv_elements_per_token if attention.kv_is_sharded_by_tp else expanded
        number = layer.num_layers * float(at.depth_ratio[0])
        if strategy.context_parallel is ContextParallel.RING:
            moved = (strategy.cp - 1.0) * sharded * cached * (1.0 + passes.recomputed + 2.0 * passes.trains)
            result += _on_link(number * moved, crosses=bool(at.cp.num_domains[0] > 1.0))
        else:
            moved = sharded * (expanded + cached) * (1.0 + passes.trains + passes.recomputed)
            result += exchange_bytes(number * moved, at.cp)
    return result


def _expert_parallel(strategy: TrainerStrategy, at: Layout, passes: _Passes) -> LinkBytes:
    """Dispatch and combine of every MoE layer, forward, backward and recomputed; expert-TP gathers and scatters."""
    result = LinkBytes()
    directions = (1.0 + passes.trains + passes.recomputed) * float(at.depth_ratio[0])
    for group in at.totals.experts:
        token_bytes = passes.tokens / strategy.tp * ACTIVATION_BYTES * group.width * group.num_layers * directions
        if strategy.ep > 1:
            result += dispatch_bytes(token_bytes, group.num_active, at.ep).times(2.0)
        if strategy.etp > 1:
            result += ring_bytes(token_bytes * strategy.etp * group.num_active, at.etp, num_passes=2.0)
    return result


def kernel_chain_s(job: TrainerJob, site: Site, *, trains: bool, recomputed: float = 0.0) -> float:
    """Seconds of the dependent kernels of a stage at the launch floor, however many GPUs share its work.

    Every optimizer step runs all forward kernels, as many again for each product of backward, those of the
    `recomputed` share of the layers once more, and the optimizer's host part.
    """
    forward = model_totals(job.model, job.has_vocabulary_head).num_kernels * site.overheads.train_kernel_launch_s
    if not trains:
        return forward
    backward = 1.0 if job.lora_rank is not None else 2.0
    step = forward * (1.0 + backward + recomputed) + site.overheads.optimizer_host_s
    return job.num_optimizer_steps * job.num_epochs * step


def sending_bytes(
    job: TrainerJob, strategy: TrainerStrategy, site: Site, *, shares_gpus: bool, is_apart: bool
) -> LinkBytes:
    """Bytes per GPU of the trainer's side of a weight sync: its shards gathered, and its part of one copy sent to
    engines on other GPUs. `is_apart` says that this goes over the NIC."""
    table = TrainerTable.of((strategy,))
    at = layout(table, model_totals(job.model, job.has_vocabulary_head), site.node)
    received, remote = gathered_ratios(job, table, at, site.node, is_apart=not shares_gpus)
    copy_bytes = sync_bytes(job, at)
    sent = copy_bytes / strategy.num_gpus if is_apart else 0.0
    return LinkBytes(scale_up_bytes=copy_bytes * float(received[0]), nic_bytes=copy_bytes * float(remote[0]) + sent)


# ---------------------------------------------------------------------------------------------- engines


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSteps:
    """Decode steps of one engine, which bound everything that it reads.

    `num_tokens` are decoded in `num_steps` steps of 1 to `num_slots` sequences. Distinct experts grow ever slower
    with the sequences of a step, so the fewest are read when `num_full` steps are full and the others decode one.
    """

    num_tokens: float
    num_steps: float
    num_slots: float

    @property
    def num_full(self) -> float:
        return max(self.num_tokens - self.num_steps, 0.0) / max(self.num_slots - 1.0, 1.0)

    @property
    def num_single(self) -> float:
        return max(self.num_steps - self.num_full, 0.0)


def engine_steps(job: EngineJob, num_engines: float, num_slots: float) -> EngineSteps:
    """Fewest decode steps: the expected longest of an engine's responses, and all tokens over its slots."""
    response = job.load.response
    requests = max(job.load.num_sequences / num_engines, 1.0)
    slots = min(num_slots, requests)
    num_tokens = requests * max(response.mean_tokens - 1.0, 0.0)
    longest = max(response.expected_maximum(requests) - 1.0, 0.0)
    return EngineSteps(num_tokens=num_tokens, num_steps=max(longest, num_tokens / slots), num_slots=slots)


def decode_weight_bytes(model: Model, precision: Precision, num_tokens: float, popularity_variance: float) -> float:
    """Weights that a step of `num_tokens` sequences must read: all dense matrices, the head, and of the routed
    experts those that the tokens visit, never all of them."""
    return dense_read_bytes(model, precision) + expert_read_bytes(model, precision, num_tokens, popularity_variance)


def dense_read_bytes(model: Model, precision: Precision) -> float:
    """Weights that every decode step reads, whatever its tokens: dense matrices and the head."""
    return model_totals(model, True).dense_matmul_params * precision.num_bytes + model.embedding_params * TABLE_BYTES


def expert_read_bytes(model: Model, precision: Precision, num_tokens: float, popularity_variance: float) -> float:
    """Weights of the routed experts that at least one of the tokens of a step visits."""
    experts = sum(
        group.num_layers
        * group.params_per_expert
        * float(
            distinct_experts(
                group.num_experts, group.num_active, np.array([max(num_tokens, 1.0)]), popularity_variance
            )[0]
        )
        for group in model_totals(model, True).experts
    )
    return experts * precision.num_bytes


def cache_read_bytes(model: Model, prompt_tokens: float, sequence: Lengths, tp: FloatArray) -> FloatArray:
    """Cache bytes that the decode steps of one sequence read on one of `tp` ranks, states read and written."""
    fed, prompt = sequence.without_last(), Lengths.fixed(prompt_tokens)
    total = np.zeros_like(tp)
    for layer in model.layers:
        attention = layer.attention
        pairs = causal_pairs(fed, attention.window_tokens) - causal_pairs(prompt, attention.window_tokens)
        cached = attention.kv_elements_per_token * max(pairs, 0.0) * kv_heads_share(layer, tp)
        state = 2.0 * attention.state_elements_per_sequence * (fed.mean_tokens - prompt_tokens) / tp
        total += layer.num_layers * KV_BYTES * (cached + state)
    return total


def engine_bytes(job: EngineJob, strategy: RolloutStrategy, num_slots: float, site: Site) -> LinkBytes:
    """Bytes per GPU of a rollout or a judge with engines of one layout and `num_slots` sequences each."""
    load, model = job.load, job.model
    steps = engine_steps(job, strategy.num_engines, num_slots)
    variance = site.overheads.expert_popularity_variance

    def read(num_running: float) -> float:
        # With pp groups of sequences each pipeline rank reads its layers once per group.
        groups = min(num_running, strategy.pp)
        size = max(num_running / strategy.pp, 1.0)
        experts = expert_read_bytes(model, job.precision, size, variance) / strategy.attention_dp
        return (dense_read_bytes(model, job.precision) + experts) * groups / (strategy.pp * strategy.tp)

    sequence = Lengths.with_prompt(load.prompt_mean_tokens, load.response)
    tp = np.array([float(strategy.tp)])
    requests = max(load.num_sequences / strategy.num_engines, 1.0)
    of_one = float(cache_read_bytes(model, load.prompt_mean_tokens, sequence, tp)[0])
    cached = requests * of_one / (strategy.attention_dp * strategy.pp)
    memory_bytes = steps.num_full * read(steps.num_slots) + steps.num_single * read(1.0) + cached
    prompts = max(requests / load.num_shared, 1.0) * load.prompt_mean_tokens
    links = _engine_links(model, strategy, prompts, steps.num_tokens, site)
    # A sleeping engine that no full weight sync fills wakes up with weights from host RAM.
    reloads = strategy.idle is EngineIdle.SLEEP and (not job.receives_weights or job.lora_rank is not None)
    return LinkBytes(hbm_bytes=memory_bytes, host_bytes=reloads * resident_weight_bytes(job, strategy)) + links


def _engine_links(
    model: Model, strategy: RolloutStrategy, prompt_tokens: float, decoded_tokens: float, site: Site
) -> LinkBytes:
    """Two passes per all-reduce after each mixer, logits gathered, tokens to the experts of data-parallel attention and
    back, hidden states to the next pipeline rank."""
    one = np.ones(1)
    at = engine_layout(one * strategy.tp, one * strategy.pp, one * strategy.ep, site.node, one * strategy.attention_dp)
    num_tokens = prompt_tokens + decoded_tokens
    hidden_bytes = num_tokens / strategy.attention_dp * ACTIVATION_BYTES * model.hidden_size
    reduced = hidden_bytes * num_all_reduces(model) / strategy.pp
    logits = decoded_tokens / strategy.attention_dp * ACTIVATION_BYTES * model.vocab_size
    result = all_reduce_bytes(reduced, at.tp_span, site.node) + ring_bytes(logits, at.tp_span)
    if strategy.attention_dp > 1:
        result += _expert_tokens(model, strategy, num_tokens, at.expert_span)
    if strategy.pp > 1:
        result += _on_link(hidden_bytes, crosses=bool(at.pp_crosses[0]))
    return result


def _expert_tokens(model: Model, strategy: RolloutStrategy, num_tokens: float, ranks: Span) -> LinkBytes:
    """Tokens to the experts of every MoE layer and sums back: gathered and scattered, or sent once to each place."""
    result = LinkBytes()
    for group in model_totals(model, True).experts:
        payload = num_tokens * ACTIVATION_BYTES * model.hidden_size * group.num_layers / strategy.pp
        if strategy.exchange is ExpertExchange.ALL_TO_ALL:
            share = payload / (strategy.tp * strategy.attention_dp)
            result += dispatch_bytes(share, group.num_active, ranks).times(2.0)
        else:
            result += ring_bytes(payload, ranks, num_passes=2.0)
    return result


def num_all_reduces(model: Model) -> float:
    """All-reduces that one token waits for: after the embedding and after each mixer."""
    return 1.0 + sum(layer.num_layers * num_mixers(layer) for layer in model.layers)


def decode_step_floor_s(
    model: Model, precision: Precision, tp: FloatArray, site: Site, *, attention_dp: FloatArray | float = 1.0
) -> FloatArray:
    """Least seconds of one decode step of a single sequence without its cache, on engines of `tp` x `attention_dp`
    ranks.

    (weights that one token reads) / (tp HBM), experts from all ranks, + all-reduces at zero bytes + kernel launches.
    Pipeline ranks follow each other, so pp does not shorten it. Shape of `tp`.
    """
    node = engine_node(site.node, site.overheads.engine_all_reduce_latency_ratio)
    experts = expert_read_bytes(model, precision, 1.0, 0.0) / attention_dp
    reads = (dense_read_bytes(model, precision) + experts) / (tp * node.gpu.hbm_bytes_per_s)
    zero = np.zeros_like(tp)
    up, out = collective_s(CollectiveOp.ALL_REDUCE, zero, engine_layout(tp, tp * 0 + 1, tp * 0 + 1, node).tp_span, node)
    launch = sum(
        layer.num_layers * layer_launch_s(layer, node.gpu, uniform(precision), site.overheads) for layer in model.layers
    )
    result: FloatArray = reads + num_all_reduces(model) * (up + out) + launch
    return result


def decode_chain_s(job: EngineJob, tp: FloatArray, site: Site, *, attention_dp: FloatArray | float = 1.0) -> FloatArray:
    """Seconds of the longest response alone on an engine of `tp` x `attention_dp` ranks: its prompt as one step, then
    step after step.

    Shape of `tp`; its own cache is read in every step.
    """
    load = job.load
    longest = load.response.expected_maximum(load.num_sequences)
    step_s = decode_step_floor_s(job.model, job.precision, tp, site, attention_dp=attention_dp)
    sequence = Lengths.fixed(load.prompt_mean_tokens + longest)
    cached = cache_read_bytes(job.model, load.prompt_mean_tokens, sequence, tp) / site.node.gpu.hbm_bytes_per_s
    return longest * step_s + cached


def least_rollout_bytes(job: EngineJob) -> float:
    """HBM bytes that any strategy reads in all: every cache once per token, and weights along the longest response."""
    load = job.load
    sequence = Lengths.with_prompt(load.prompt_mean_tokens, load.response)
    cached = float(cache_read_bytes(job.model, load.prompt_mean_tokens, sequence, np.ones(1))[0])
    steps = max(load.response.expected_maximum(load.num_sequences) - 1.0, 0.0)
    return load.num_sequences * cached + steps * decode_weight_bytes(job.model, job.precision, 1.0, 0.0)


def engine_slots(job: EngineJob, strategy: RolloutStrategy, cache_bytes: float) -> float:
    """Sequences that one engine decodes at a time: its limit, its requests, and what `cache_bytes` per GPU hold, of all
    its attention groups together."""
    load, model = job.load, job.model
    groups = strategy.attention_dp
    requests = max(load.num_sequences / (strategy.num_engines * groups), 1.0)
    longest = float(load.prompt_max_tokens + load.response.max_tokens)
    per_token, per_sequence = cache_bytes_per_gpu(model, float(strategy.tp), longest)
    budget = cache_bytes * model.num_layers / ceil(model.num_layers / strategy.pp)
    table = trajectory_table(load.response, load.prompt_mean_tokens)
    held = float(table.slots_within(np.array([requests]), np.array([budget]), per_token, per_sequence)[0])
    held = max(float(floor(held)), 1.0) if held < requests else requests
    return groups * min(held, strategy.max_num_seqs, requests)


def resident_weight_bytes(job: EngineJob, strategy: RolloutStrategy) -> float:
    """Bytes per GPU of an engine's weights, its adapters included."""
    one = np.ones(1)
    formats = uniform(job.precision)
    tp, pp, groups = (one * degree for degree in (strategy.tp, strategy.pp, strategy.attention_dp))
    held = float(engine_weight_bytes(job.model, formats, tp, pp, groups)[0])
    return held + (0.0 if job.lora_rank is None else _adapter_bytes(job, strategy, job.lora_rank))


def _adapter_bytes(job: EngineJob, strategy: RolloutStrategy, rank: int) -> float:
    return lora_params(job.model, rank) * ACTIVATION_BYTES / (strategy.tp * strategy.pp)


def synced_bytes(job: EngineJob, strategy: RolloutStrategy) -> float:
    """Bytes per GPU that a weight sync replaces: the engine's weights, or its share of the adapters."""
    if job.lora_rank is not None:
        return _adapter_bytes(job, strategy, job.lora_rank)
    return resident_weight_bytes(job, strategy)
