"""Steady-state period of asynchronous RL steps: the cycle ratio of the stage recurrence.

A rollout pool generates batch after batch while a trainer pool consumes them; the weight sync stops both, between
two batches of the rollout pool. With a staleness of K steps

    generated[i] = max(generated[i-1], synced[i-K-1]) + generation
    trained[i]   = max(generated[i], synced[i-1]) + training
    synced[i]    = max(trained[i], generated[i+K]) + sync

which advances, in the steady state, by the largest mean weight of its cycles: see `period_s`. Source: max-plus
cycle ratio (Karp 1978); the tests run the recurrence itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.domain.strategy import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class AsynchronousTimes:
    """Stage seconds of one iteration, each of shape (num_candidates,).

    `generation_s` is the rollout of one batch alone, its tail included: how long after its weights a batch is ready.
    `rollout_busy_s` is how long the rollout pool is busy per batch. Batch-synchronous rollouts end with their longest
    response, so both are equal. Streaming rollouts (partial rollouts, batches that overlap) start new sequences in
    the slots that a tail leaves free, so the tail is no busy time. `training_s` is everything that the trainer pool
    does between two batches (log-probs, values, updates). `sync_s` stops both pools.
    """

    generation_s: FloatArray
    rollout_busy_s: FloatArray
    training_s: FloatArray
    sync_s: FloatArray


def period_s(times: AsynchronousTimes, staleness: FloatArray) -> FloatArray:
    """Seconds between two weight versions in the steady state.

    `staleness` is the largest version lag in steps and may be a fraction of a step (a share of the batch that
    may be generated ahead); 0 is the synchronous sum. Raises ValueError for a negative staleness.

    max(rollout busy + sync, training + sync, (generation + training + sync) / (staleness + 1)).
    """
    if bool(np.any(staleness < 0)):
        raise ValueError("staleness must not be negative")
    cycle = times.generation_s + times.training_s + times.sync_s
    pools = np.maximum(times.rollout_busy_s, times.training_s) + times.sync_s
    result: FloatArray = np.maximum(pools, cycle / (staleness + 1.0))
    return result


def exposed_generation_s(times: AsynchronousTimes, staleness: FloatArray) -> FloatArray:
    """Seconds per period in which the trainer waits for generation: period - training - sync."""
    return period_s(times, staleness) - times.training_s - times.sync_s
