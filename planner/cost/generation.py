"""Price generation engines (rollout, generative judge): time, GPU memory, host RAM and their part of the weight sync.

A rollout is wake-up, then what `planner.cost.rollout` says about prompts and responses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.cost.communication import nic_rate
from planner.cost.decode import (
    ACTIVATION_BYTES,
    KV_BYTES,
    TABLE_BYTES,
    engine_layout,
    kv_heads_share,
)
from planner.cost.formats import WeightFormats, uniform
from planner.cost.offload import host_link_rate
from planner.cost.rollout import STEADY_BATCHES, batch_rollout, streaming_rollout
from planner.cost.terms import Terms, total
from planner.cost.trajectory import TrajectoryTable, trajectory_table
from planner.cost.weight_sync import scale_up_rate
from planner.cost.worker import EngineJob, Site, StageCost, WorkerCosts
from planner.domain.execution import ShardedSync
from planner.domain.hardware import Gpu, Precision
from planner.domain.model import Model
from planner.domain.strategy import (
    ENGINE_IDLES,
    EXPERT_EXCHANGES,
    BoolArray,
    EngineIdle,
    ExpertExchange,
    FloatArray,
    IntArray,
    RolloutTable,
)

_SLEEPS = float(ENGINE_IDLES.index(EngineIdle.SLEEP))
_LOGITS_BYTES = 4.0
"""Engines sample from 32-bit logits."""
_LORA_BYTES = 2.0
STATIC_TERMS = ("weights", "kv_cache")
"""Memory terms of an engine that SGLang's `mem_fraction_static` counts."""
_LARGEST_EXACT_FLOAT = 2.0**53


def price_engine(job: EngineJob, table: RolloutTable, site: Site) -> WorkerCosts:
    """Costs of every candidate of a generation engine.

    `is_legal` is False where weights and one longest sequence do not fit the engine's share of GPU memory, or
    the GPU lacks the precision. An engine decodes at most `max_num_seqs` sequences at a time, and no more
    than its KV cache can hold at the fullest moment of a synchronous start, so that nothing is preempted.
    """
    gpu = site.node.gpu
    precision = job.precision if gpu.supports(job.precision) else Precision.BF16
    memory = _engine_memory(job, precision, table, site)
    law = trajectory_table(job.load.response, job.load.prompt_mean_tokens)
    # An attention group holds its own sequences and cache; an engine without attention DP is one group.
    requests = np.maximum(job.load.num_sequences / table.num_groups, 1.0)
    in_flight = requests if job.streamed_batches is None else requests * job.streamed_batches
    waiting = in_flight if job.streamed_batches is None else requests * STEADY_BATCHES
    max_slots = _max_slots(job, table, memory.kv_cache, waiting, law)
    slots = np.minimum(np.minimum(max_slots, table.max_num_seqs), in_flight) * table.attention_dp
    requests = requests * table.attention_dp

    sleeps = table.idle == _SLEEPS
    weights_in_host = sleeps & (not job.receives_weights or job.lora_rank is not None)
    rows, place = _distinct(table, requests, slots)
    distinct = table.take(rows)
    layout = engine_layout(distinct.tp, distinct.pp, distinct.ep, site.node, distinct.attention_dp, distinct.exchange)
    price = batch_rollout if job.streamed_batches is None else streaming_rollout
    rollout = price(job, precision, distinct.num_engines, site, layout, law, requests[rows], slots[rows])
    time_terms = {name: values[place] for name, values in rollout.terms.items()}
    overheads = site.overheads
    time_terms["wake"] = overheads.engine_wake_s * sleeps
    time_terms["switch"] = np.full_like(requests, overheads.stage_switch_s)
    node_gpus = np.minimum(table.num_gpus, site.node.gpus_per_node)
    time_terms["reload"] = memory.weights * weights_in_host / host_link_rate(site.node, node_gpus)

    active = memory.terms()
    return WorkerCosts(
        worker=job.worker,
        model=job.model,
        strategies=table,
        stages=(
            StageCost(
                stage=job.stage,
                instant="decode at the fullest cache",
                time_terms=time_terms,
                memory_terms=active,
                remaining_s={moment: values[place] for moment, values in rollout.remaining_s.items()},
            ),
        ),
        idle_terms=_idle_terms(memory, sleeps),
        host_terms={"engine_weights": memory.weights * weights_in_host * node_gpus},
        sync_terms_colocated=_sync_terms(job, precision, table, site, memory, is_remote=False),
        sync_terms_disaggregated=_sync_terms(job, precision, table, site, memory, is_remote=True),
        sync_memory_terms=_sync_memory_terms(job, memory, sleeps, site) if job.receives_weights else None,
        is_legal=_is_legal(job, table, memory.kv_cache, gpu),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _EngineMemory:
    """Bytes per GPU of an active engine on its fullest pipeline rank; they sum to its share of GPU memory."""

    weights: FloatArray
    kv_cache: FloatArray
    """What is left; negative when the rest does not fit."""
    engine_activations: FloatArray
    engine_graphs: FloatArray
    communicator: FloatArray
    context: FloatArray
    sleep: FloatArray

    def terms(self) -> Terms:
        return {
            "weights": self.weights,
            "kv_cache": self.kv_cache,
            "engine_activations": self.engine_activations,
            "engine_graphs": self.engine_graphs,
            "communicator": self.communicator,
            "context": self.context,
        }


def _stage_share(model: Model, pp: FloatArray) -> FloatArray:
    """Share of the layers on the fullest pipeline rank."""
    return np.ceil(model.num_layers / pp) / model.num_layers


def engine_weight_bytes(
    model: Model,
    formats: WeightFormats,
    tp: FloatArray,
    pp: FloatArray,
    attention_dp: FloatArray | float = 1.0,
) -> FloatArray:
    """Weights per GPU on the fullest pipeline rank; groups of data-parallel attention repeat all but the experts.

    Embedding and output head stay in 16 bit; with pipeline parallelism they sit on different ranks, so the
    fullest rank holds one of them.
    """
    tables = model.embedding_params + model.head_params
    experts = model.num_expert_params * formats.experts.num_bytes / attention_dp
    dense = (model.num_dense_params - tables) * formats.dense.num_bytes
    held = np.where(pp > 1, model.embedding_params, tables) * TABLE_BYTES
    result: FloatArray = ((experts + dense) * _stage_share(model, pp) + held) / tp
    return result


def exchange_buffer_bytes(model: Model, table: RolloutTable) -> FloatArray:
    """Receive buffers of an all-to-all that captured graphs can use: two (one is filled while the other is read) with a
    16-bit row per expert and token of a rank's largest step (DeepEP, low-latency layout); 0 without one."""
    all_to_all = EXPERT_EXCHANGES.index(ExpertExchange.ALL_TO_ALL)
    exchanges = (table.exchange == all_to_all) & (table.attention_dp > 1)
    rows = 2.0 * model.max_experts * table.max_num_seqs / table.tp
    result: FloatArray = rows * (ACTIVATION_BYTES * model.hidden_size) * exchanges
    return result


def lora_params(model: Model, rank: int) -> float:
    """Adapter parameters on every dense projection: rank * (inputs + outputs).

    One side of each projection is the hidden size, so inputs + outputs = num_gemms * h + params / h.
    """
    hidden = model.hidden_size
    sides = sum(
        layer.num_layers
        * (
            (layer.attention.num_gemms + layer.mlp.num_gemms) * hidden
            + (layer.attention.matmul_params + layer.mlp.dense_params) / hidden
        )
        for layer in model.layers
    )
    return rank * sides


def _engine_memory(job: EngineJob, precision: Precision, table: RolloutTable, site: Site) -> _EngineMemory:
    """What an engine puts on each GPU. Logits: one 32-bit row per sequence, vocabulary sharded by TP."""
    model, overheads = job.model, site.overheads
    weights = engine_weight_bytes(model, uniform(precision), table.tp, table.pp, table.attention_dp)
    if job.lora_rank is not None:
        weights = weights + lora_params(model, job.lora_rank) * _LORA_BYTES / (table.tp * table.pp)
    hidden_bytes = overheads.engine_activation_factor * overheads.engine_batched_tokens * model.hidden_size * 2.0
    logits = table.max_num_seqs * model.vocab_size * _LOGITS_BYTES / table.tp
    ranks_in_use = (table.tp > 1).astype(np.float64) + (table.pp > 1) + (table.attention_dp > 1)
    communicator = overheads.communicator_bytes * np.maximum(ranks_in_use - 1.0, 0.0)
    communicator = communicator + overheads.first_communicator_bytes * (ranks_in_use > 0)
    communicator = communicator + exchange_buffer_bytes(model, table)
    graphs = np.full_like(weights, overheads.engine_graph_bytes)
    context = np.full_like(weights, overheads.context_bytes)
    activations = hidden_bytes + logits
    share = table.engine_fraction * site.node.gpu.memory_bytes
    return _EngineMemory(
        weights=weights,
        kv_cache=share - weights - activations - graphs - communicator - context,
        engine_activations=activations,
        engine_graphs=graphs,
        communicator=communicator,
        context=context,
        sleep=np.full_like(weights, overheads.engine_sleep_bytes),
    )


def beside_cache_bytes(job: EngineJob, table: RolloutTable, site: Site) -> FloatArray:
    """Bytes per GPU of an engine that are neither weights nor KV cache, shape (num_candidates,): what engines that
    count their share without these (SGLang's `mem_fraction_static`) take on top of it."""
    gpu = site.node.gpu
    precision = job.precision if gpu.supports(job.precision) else Precision.BF16
    terms = _engine_memory(job, precision, table, site).terms()
    beside: FloatArray = np.sum([values for name, values in terms.items() if name not in STATIC_TERMS], axis=0)
    return beside


def _max_slots(
    job: EngineJob, table: RolloutTable, cache_bytes: FloatArray, requests: FloatArray, law: TrajectoryTable
) -> FloatArray:
    """Sequences that run at a time without overflow of the KV cache, at least one.

    Bytes per sequence: full-context layers grow with the context; windowed layers are reserved at their
    window and recurrent layers at their state. Both depend on the layout through TP only; pipeline ranks
    hold their share of the layers.

    Of several engines (or attention groups, each with a cache of its own) one gets the longest responses, and all wait
    for it: B responses add up to their mean plus sqrt(B) deviations times the expected maximum of that many nearly
    normal totals, sqrt(2 ln engines). `requests` are those of one group.
    """
    law_of_lengths = job.load.response
    deviation = np.sqrt(max(law_of_lengths.mean_square_tokens - law_of_lengths.mean_tokens**2, 0.0))
    unlucky_tokens = np.sqrt(2.0 * np.log(np.minimum(table.num_groups, job.load.num_sequences))) * deviation
    max_slots = np.empty_like(requests)
    budget = cache_bytes / _stage_share(job.model, table.pp)
    for rows, per_token, per_sequence in _sequence_bytes(job, table):
        on_average = law.slots_within(requests[rows], budget[rows], per_token, per_sequence)
        kept = budget[rows] - np.sqrt(on_average) * unlucky_tokens[rows] * per_token
        max_slots[rows] = law.slots_within(requests[rows], kept, per_token, per_sequence)
    return np.where(max_slots < requests, np.maximum(np.floor(max_slots), 1.0), requests)


def _longest_tokens(job: EngineJob) -> float:
    return float(job.load.prompt_max_tokens + job.load.response.max_tokens)


def _sequence_bytes(job: EngineJob, table: RolloutTable) -> Iterator[tuple[BoolArray, float, float]]:
    """For each TP degree: the rows that have it, and the cache bytes per token and per sequence on one of its ranks."""
    for tp in np.unique(table.tp):
        per_token, per_sequence = cache_bytes_per_gpu(job.model, float(tp), _longest_tokens(job))
        yield table.tp == tp, per_token, per_sequence


def _is_legal(job: EngineJob, table: RolloutTable, cache_bytes: FloatArray, gpu: Gpu) -> BoolArray:
    """One longest sequence fits in the cache, and the GPU has the precision. Streaming engines are never idle, and
    keep their cache while new weights arrive."""
    legal = (cache_bytes > 0) & gpu.supports(job.precision)
    if job.streamed_batches is not None:
        legal &= table.idle != _SLEEPS
    budget = cache_bytes / _stage_share(job.model, table.pp)
    for rows, per_token, per_sequence in _sequence_bytes(job, table):
        legal[rows] &= budget[rows] >= per_token * _longest_tokens(job) + per_sequence
    return legal


def engine_peak(job: EngineJob, table: RolloutTable, site: Site) -> tuple[BoolArray, FloatArray]:
    """(whether a strategy is legal, its GPU memory peak in bytes), each of shape (num_candidates,): what `price_engine`
    says, without the seconds."""
    gpu = site.node.gpu
    precision = job.precision if gpu.supports(job.precision) else Precision.BF16
    memory = _engine_memory(job, precision, table, site)
    return _is_legal(job, table, memory.kv_cache, gpu), total(memory.terms())


def cache_bytes_per_gpu(model: Model, tp: float, longest_tokens: float) -> tuple[float, float]:
    """(bytes per context token, bytes per sequence) of all layers on one of `tp` ranks."""
    degree = np.array([tp])
    per_token = per_sequence = 0.0
    for layer in model.layers:
        attention = layer.attention
        share = float(kv_heads_share(layer, degree)[0])
        per_layer_token = layer.num_layers * attention.kv_elements_per_token * share * KV_BYTES
        if attention.window_tokens is None or attention.window_tokens >= longest_tokens:
            per_token += per_layer_token
        else:
            per_sequence += per_layer_token * attention.window_tokens
        per_sequence += layer.num_layers * attention.state_elements_per_sequence / tp * KV_BYTES
    return per_token, per_sequence


def _distinct(table: RolloutTable, requests: FloatArray, slots: FloatArray) -> tuple[IntArray, IntArray]:
    """Rows that decode differently, and for each candidate its place among them.

    Engine fraction, sequence limit and idle mode act on the time of a rollout only through `slots`, so most
    candidates of an enumerated table repeat another's time. `slots` is an integer or all requests.
    """
    ranks = [table.num_engines, table.tp, table.pp, table.ep, table.attention_dp, table.exchange]
    columns = np.stack([*ranks, np.where(slots < requests, slots, 0.0)])
    radix = columns.max(axis=1, initial=1.0) + 1.0
    key = np.zeros_like(slots)
    for column, size in zip(columns, radix, strict=True):
        key = key * size + column
    if float(np.prod(radix)) > _LARGEST_EXACT_FLOAT:
        everything = np.arange(len(slots))
        return everything, everything
    _, rows, place = np.unique(key, return_index=True, return_inverse=True)
    return rows, place


def _idle_terms(memory: _EngineMemory, sleeps: BoolArray) -> Terms:
    """RESIDENT keeps everything, a sleeping engine its context, communicators and a fixed residue."""
    stays = ~sleeps
    return {
        "weights": memory.weights * stays,
        "kv_cache": memory.kv_cache * stays,
        "engine_activations": memory.engine_activations * stays,
        "engine_graphs": memory.engine_graphs * stays,
        "communicator": memory.communicator,
        "context": memory.context,
        "engine_sleep": memory.sleep * sleeps,
    }


def _synced_bytes(job: EngineJob, table: RolloutTable, memory: _EngineMemory) -> FloatArray:
    """Bytes per GPU that a weight sync replaces: its weights, or its share of the adapter."""
    if job.lora_rank is None:
        return memory.weights
    return lora_params(job.model, job.lora_rank) * _LORA_BYTES / (table.tp * table.pp)


def _synced_tensors(job: EngineJob, table: RolloutTable) -> FloatArray:
    """Tensors that one rank loads: its pipeline share; experts only those it holds under EP."""
    model = job.model
    if job.lora_rank is not None:
        per_model = sum(
            2 * layer.num_layers * (layer.attention.num_gemms + layer.mlp.num_gemms) for layer in model.layers
        )
        return per_model * _stage_share(model, table.pp)
    expert_tensors = sum(3 * layer.num_layers * layer.mlp.num_experts for layer in model.layers)
    other_tensors = model.num_weight_tensors - expert_tensors
    result: FloatArray = (other_tensors + expert_tensors / table.ep) * _stage_share(model, table.pp)
    return result


def _sync_terms(
    job: EngineJob, precision: Precision, table: RolloutTable, site: Site, memory: _EngineMemory, *, is_remote: bool
) -> Terms | None:
    """The engine's share of a weight sync: copy into place (read and write) plus host time per tensor.

    From other GPUs its shard also arrives over the NIC. With micro-groups it gathers its shard inside the scale-up
    domain, in place of the trainer that gathers everything. Quantisation to 8 bit reads 16-bit weights and writes
    8-bit ones.
    """
    if not job.receives_weights:
        return None
    num_bytes = _synced_bytes(job, table, memory)
    arriving = num_bytes * (Precision.BF16.num_bytes / precision.num_bytes if job.lora_rank is None else 1.0)
    gpu = site.node.gpu
    rate = gpu.hbm_bytes_per_s * gpu.kernel(Precision.BF16).gemm_hbm_ratio
    terms = {
        "sync_load": (arriving + num_bytes) / rate + _synced_tensors(job, table) * site.overheads.sync_per_tensor_s
    }
    if is_remote:
        terms["sync_send"] = num_bytes / nic_rate(site.node)
    elif ShardedSync.MICRO_GROUPS in job.sharded_syncs:
        terms["sync_gather"] = num_bytes / scale_up_rate(site)
    return terms


def _sync_memory_terms(job: EngineJob, memory: _EngineMemory, sleeps: BoolArray, site: Site) -> Terms:
    """During the sync a sleeping engine holds weights and two buckets, a resident one also all the rest."""
    stays = ~sleeps
    buckets = 2.0 * site.overheads.sync_bucket_bytes
    if job.lora_rank is not None:
        buckets = min(buckets, lora_params(job.model, job.lora_rank) * _LORA_BYTES)
    return {
        "weights": memory.weights,
        "kv_cache": memory.kv_cache * stays,
        "engine_activations": memory.engine_activations * stays,
        "engine_graphs": memory.engine_graphs * stays,
        "communicator": memory.communicator,
        "context": memory.context,
        "engine_sleep": memory.sleep * sleeps,
        "sync_buckets": np.full_like(memory.weights, buckets),
    }
