"""GPU memory of trainers by stage, and which strategies are legal: what is known without any seconds."""

from __future__ import annotations

import numpy as np

from planner.cost import memory
from planner.cost.batches import Batches, batches_of
from planner.cost.layout import Layout, layout, model_totals
from planner.cost.memory import States
from planner.cost.offload import OffloadFlags, offload_flags
from planner.cost.terms import Terms, total
from planner.cost.worker import Site, TrainerJob
from planner.domain.hardware import Precision
from planner.domain.overheads import Overheads
from planner.domain.strategy import BoolArray, FloatArray, TrainerTable


def trainer_states(job: TrainerJob, at: Layout, flags: OffloadFlags) -> States:
    """Bytes of weights, gradients and optimizer; a worker that trains nothing only has weights."""
    is_fp8 = job.precision is Precision.FP8
    if job.train_load is None:
        return memory.frozen_states(at, is_fp8=is_fp8)
    return memory.training_states(at, flags, lora_rank=job.lora_rank, is_fp8=is_fp8)


def update_memory(
    job: TrainerJob, batches: Batches, table: TrainerTable, at: Layout, flags: OffloadFlags, states: States,
    communicators: FloatArray, overheads: Overheads,
) -> tuple[Terms, BoolArray]:  # fmt: skip
    """(named bytes of the update, whether its fullest instant is the optimizer step)."""
    transient = memory.training_transient(at, table, batches.number, overheads, is_lora=job.lora_rank is not None)
    return memory.update_terms(at, states, flags, transient, communicators, overheads)


def inference_memory(
    table: TrainerTable, at: Layout, flags: OffloadFlags, states: States, communicators: FloatArray,
    overheads: Overheads,
) -> tuple[Terms, BoolArray]:  # fmt: skip
    """(named bytes of a forward-only pass, whether its fullest instant is the output head)."""
    transient = memory.inference_transient(at, table, overheads)
    terms = memory.stage_terms(
        states.weights,
        states.gradients * (1.0 - flags.gradients),
        states.optimizer * (1.0 - flags.optimizer),
        transient,
        communicators,
        overheads,
    )
    return terms, transient.is_at_head


def trainer_peak(job: TrainerJob, table: TrainerTable, site: Site) -> tuple[BoolArray, FloatArray]:
    """(whether a strategy is legal, its GPU memory peak in bytes over all stages), each of shape (num_candidates,):
    what `planner.cost.training.price_trainer` says, without the seconds."""
    at = layout(table, model_totals(job.model, job.has_vocabulary_head), site.node)
    flags = offload_flags(at.offload)
    states = trainer_states(job, at, flags)
    communicators = memory.communicator_bytes(at, table, site.overheads)
    peak = np.zeros(len(table))
    if job.inference_loads:
        peak = total(inference_memory(table, at, flags, states, communicators, site.overheads)[0])
    if job.train_load is not None:
        batches = batches_of(job.train_load, job.num_optimizer_steps, table.micro_batch_tokens, at.dp)
        update, _ = update_memory(job, batches, table, at, flags, states, communicators, site.overheads)
        peak = np.maximum(peak, total(update))
    return is_legal(job, table, at), peak


def is_legal(job: TrainerJob, table: TrainerTable, at: Layout) -> BoolArray:
    """Budgets hold the longest sequence, every rank has a sequence and every pipeline chunk a layer."""
    legal = table.pp * table.vpp <= at.totals.num_layers
    for _, load in job.inference_loads:
        legal = legal & (table.inference_tokens >= load.max_tokens) & (at.dp <= load.num_sequences)
    if job.train_load is not None:
        legal = legal & (table.micro_batch_tokens >= job.train_load.max_tokens)
        legal &= at.dp * float(job.num_optimizer_steps) <= job.train_load.num_sequences
    return np.asarray(legal, dtype=np.bool_)
