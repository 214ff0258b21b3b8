"""Costs of the software around the kernels: allocator, contexts, engine step, wake-up, refit."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.hardware import Provenance


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
    logprob_logits_bytes_per_element: float
    """The same in a forward-only log-prob pass with entropy."""
    provenance: Provenance
