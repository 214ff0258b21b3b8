"""Token budgets as a framework can say them: their unit, and which workers or passes have one in common."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.domain.framework import TRAINING_WORKERS, FrameworkRules, TrainerBackend
from planner.domain.framework_trainers import first_backends
from planner.domain.model import Model
from planner.domain.stages import WorkerName
from planner.domain.strategy import BoolArray, FloatArray, IntArray, TrainerTable, sealed

_BUDGET_BITS = np.int64(31)


def rounded_budgets(
    rules: FrameworkRules, table: TrainerTable, *, trains: bool, worker: WorkerName, model: Model
) -> TrainerTable:
    """The candidates with budgets rounded up to what the framework divides them by (ranks, blocks of tokens)."""
    index = first_backends(rules, table, trains=trains, worker=worker, model=model)
    unit = np.ones(len(table))
    for number, backend in enumerate(rules.backends):
        if worker not in backend.counts_sequences:
            rows = index == number
            unit[rows] = _units(backend, table)[rows]
    if np.all(unit == 1.0):
        return table
    return replace(
        table,
        micro_batch_tokens=sealed(np.ceil(table.micro_batch_tokens / unit) * unit),
        inference_tokens=sealed(np.ceil(table.inference_tokens / unit) * unit),
    )


def _units(backend: TrainerBackend, table: TrainerTable) -> FloatArray:
    ranks = np.full(len(table), backend.budget_chunks, dtype=np.int64)
    for name in backend.budget_ranks:
        ranks = ranks * np.rint(getattr(table, name)).astype(np.int64)
    return np.lcm(ranks, backend.budget_block).astype(np.float64)


def budget_rejections(
    rules: FrameworkRules, table: TrainerTable, worker: WorkerName
) -> tuple[tuple[str, BoolArray], ...]:
    """Rows with two budgets of a worker that has one for updates and forward passes."""
    if worker not in rules.one_token_budget:
        return ()
    differs = np.asarray(table.micro_batch_tokens != table.inference_tokens)
    return ((f"{rules.title}: one token budget for updates and forward passes", differs),)


def budget_keys(
    rules: FrameworkRules, table: TrainerTable, worker: WorkerName, *, among_trainers: bool, has_critic: bool
) -> IntArray:
    """What token budgets two workers must have in common, as one number; shape (num_candidates,).

    `among_trainers` compares actor and critic, else trainers and forward-only workers.
    """
    key = np.zeros(len(table), dtype=np.int64)
    if among_trainers and has_critic and worker in rules.shared_train_budget:
        key = np.rint(table.micro_batch_tokens).astype(np.int64)
    both = frozenset(TRAINING_WORKERS) <= rules.shared_forward_budget and has_critic
    if worker in rules.shared_forward_budget and (both or not among_trainers):
        key = (key << _BUDGET_BITS) | np.rint(table.inference_tokens).astype(np.int64)
    return key
