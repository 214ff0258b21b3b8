"""Costs of the software around the kernels: allocator, contexts, engine step, wake-up, refit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from planner.domain.hardware import Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """What distinguishes one inference engine from another beyond the kernels that all call."""

    name: str
    """`vllm`, `sglang`, `trtllm`."""
    step_s: float
    """Host time per decode step that graphs do not hide."""
    step_per_sequence_s: float
    """Additional host time per running sequence and step."""
    stream_per_sequence_s: float
    """Host time per sequence and step when every token is streamed to a client, in place of `step_per_sequence_s`."""
    prefill_step_s: float
    """Additional time of a step that carries prompt tokens: it leaves the captured graph."""
    mixes_prefill: bool
    """Prompt chunks ride on decode steps; otherwise decoding stops while a prompt is read."""
    all_reduce_latency_ratio: float
    """Latency of the engine's own all-reduce over that of a two-rank NCCL all-reduce."""
    launch_ratio: float
    """Fixed kernel times inside the engine's graph over those of isolated kernels: fusion, overlapped launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStack:
    """What distinguishes one training back end from another on the same kernels. The defaults lose nothing."""

    name: str = "ideal"
    """`megatron` (DDP and ZeRO-1) or `fsdp` (ZeRO-2 and ZeRO-3)."""
    compute_ratio: float = 1.0
    """Speed of matrix products and attention over that of the fastest stack: gaps between kernels, unfused code."""
    attention_ratio: float = 1.0
    """Further speed ratio of attention: FlashAttention 2 instead of the kernels of the GPU's generation."""
    moe_ratio: float = 1.0
    """Further speed ratio of routed experts and of element-wise work on dispatched tokens."""
    elementwise_passes: float = 0.0
    """How often forward and backward together read or write each saved activation element (16 bit)."""
    quantisation_passes: float = 0.0
    """Further passes where matrix inputs are converted to 8 or 4 bit: amax, cast, transposed copy."""
    moe_layer_host_s: float = 0.0
    """Host time of one MoE layer and micro-batch, forward and backward, where no CUDA graph replays it; seen only
    when the GPU needs less."""
    recurrent_layer_host_s: float = 0.0
    """The same for one recurrent or state-space layer."""
    overlap_ratio: float = 0.8
    """Share of compute under which collectives can hide."""
    overlap_tax_ratio: float = 0.0
    """What a hidden data-parallel collective still costs, as a share of its time: it takes SMs and bandwidth."""
    tp_overlap_ratio: float = 0.0
    """The same for forward TP collectives (ring-exchange matrix products)."""
    ep_overlap_ratio: float = 0.0
    """Share of expert dispatch and combine that hides behind other work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLosses:
    """What stages lose inside a whole RL step, over the same stage alone. The defaults lose nothing."""

    rollout_ratio: float = 1.0
    """Rollout over kernels and engine steps: mixed steps, preemption, uneven arrival of requests."""
    training_ratio: float = 1.0
    """Updates and log-probs of dense models over a benchmark with as many tokens: ragged packing, extra kernels."""
    moe_training_ratio: float = 1.0
    """The same for models with routed experts: small, unevenly filled expert batches."""
    sync_ratio: float = 1.0
    """Weight sync between workers on the same GPUs over an isolated refit: waking and mapping memory of engines,
    freeing that of trainers, packing buckets."""
    swap_bytes_per_s: float = math.inf
    """Most that one process reaches between GPU and host RAM when a framework moves states tensor by tensor
    through pageable memory, whatever the link allows."""
    sequence_s: float = 0.0
    """Controller time per response of the iteration: scoring, padding, batching, logging."""
    step_s: float = 0.0
    """Controller time per iteration outside all stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Framework and engine overheads; each is data with a source, see hardware_catalog/overheads.yaml."""

    context_bytes: float
    """CUDA context and libraries per process."""
    communicator_bytes: float
    """Buffers of each NCCL communicator beyond the first."""
    first_communicator_bytes: float
    fragmentation_ratio: float
    """Allocator loss on dynamic memory (activations, temporaries)."""
    engine_activation_factor: float
    """Peak activations of an engine = factor * max_num_batched_tokens * hidden * 2 bytes."""
    engine_batched_tokens: float
    """Tokens per prefill step (max_num_batched_tokens)."""
    engine_graph_bytes: float
    """CUDA graphs and workspace of an engine."""
    engine_sleep_bytes: float
    """What a sleeping engine leaves on the GPU beyond its context."""
    engine_step_s: float
    """Host time per decode step that graphs do not hide (scheduler, sampling)."""
    engine_step_per_sequence_s: float
    """Additional host time per running sequence and step."""
    engine_stream_per_sequence_s: float
    """The same when every token is streamed to a client."""
    engine_multi_node_step_s: float = 0.0
    """Additional host time per step of an engine whose ranks run on several hosts: inputs and results travel."""
    engine_prefill_step_s: float
    """Additional time of an engine step that carries prompt tokens."""
    engine_mixes_prefill: bool
    """Prompt chunks ride on decode steps; otherwise decoding stops while a prompt is read."""
    engine_all_reduce_latency_ratio: float
    """Latency of the engines' own graph-captured all-reduce over that of a two-rank NCCL all-reduce."""
    engine_launch_ratio: float
    """Fixed kernel times inside an engine's graph over those of isolated kernels."""
    expert_popularity_variance: float
    """Squared coefficient of variation of how often experts are chosen, in natural text and in random prompts."""
    engine_wake_s: float
    """Wake-up: map memory again, restore graphs."""
    elementwise_launch_s: float
    """Floor of one element-wise kernel in a CUDA graph."""
    train_kernel_launch_s: float
    """Host launch cost per kernel in training, visible when micro-batches are small."""
    optimizer_host_s: float
    """Gradient norm, loss scaling and host synchronisation per optimizer step."""
    swap_transition_s: float
    """Allocate, map and empty caches when states move between host and GPU."""
    sync_fixed_s: float
    """Per weight sync: metadata, barriers, cache flush."""
    sync_per_tensor_s: float
    """Host cost per weight tensor that an engine loads."""
    sync_bucket_bytes: float
    """Transfer bucket; two are alive at a time."""
    sync_gather_ratio: float
    """Share of link bandwidth that bucketed gathers reach."""
    stage_switch_s: float
    """Controller time per stage: dispatch, data movement between workers."""
    logits_bytes_per_element: float
    """Live bytes per logit in training with vocabulary-parallel cross-entropy."""
    host_process_bytes: float = 0.0
    """Host RAM of a worker process that moves states, beside the states: runtime, pinned pools, allocator slack."""
    vocabulary_parallel_logits_bytes_per_element: float = 6.0
    """The same where the loss itself is sharded over the vocabulary (Megatron); memory only."""
    logprob_logits_bytes_per_element: float
    """The same in a forward-only log-prob pass with entropy."""
    provenance: Provenance
    engines: tuple[EngineProfile, ...] = ()
    megatron: TrainingStack = TrainingStack()
    """Stack of trainers that keep whole weights (DDP, ZeRO-1)."""
    megatron_graphs: TrainingStack = TrainingStack()
    """The same with MoE blocks in CUDA graphs and overlapped expert exchange; not what RL frameworks ship."""
    fsdp: TrainingStack = TrainingStack()
    """Stack of trainers that shard gradients or weights (ZeRO-2, ZeRO-3)."""
    recurrent_ratio: float = 1.0
    """Speed of scans of recurrent and state-space mixers in training over that of long attention, FLOP for FLOP."""
    block_scaled_ratio: float = 1.0
    """Speed of matrix products with one scale per 32 elements (mxfp8) over those with one scale per tensor."""
    routing_imbalance_ratio: float = 1.0
    """Load of the busiest expert rank over the mean with natural routing; forced balance is 1."""

    step_losses: StepLosses = StepLosses()

    def for_engine(self, name: str) -> Overheads:
        """These overheads with the profile of one engine; unchanged for an engine without profile."""
        profile = next((engine for engine in self.engines if engine.name == name), None)
        if profile is None:
            return self
        return replace(
            self,
            engine_step_s=profile.step_s,
            engine_step_per_sequence_s=profile.step_per_sequence_s,
            engine_stream_per_sequence_s=profile.stream_per_sequence_s,
            engine_prefill_step_s=profile.prefill_step_s,
            engine_mixes_prefill=profile.mixes_prefill,
            engine_all_reduce_latency_ratio=profile.all_reduce_latency_ratio,
            engine_launch_ratio=profile.launch_ratio,
        )
