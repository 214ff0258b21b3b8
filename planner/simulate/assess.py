"""When finished responses are assessed: by sandboxes on the host, or by a forward pass that follows the rollout."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import numpy as np

from planner.domain.workload import Reward
from planner.simulate.engine import Request
from planner.simulate.training import TrainerRates


def scored_s(finished_s: Iterable[float], reward: Reward) -> float:
    """When the last response has its score, if they end at `finished_s` and queue for `num_parallel` sandboxes."""
    arrivals = sorted(finished_s)
    free = [0.0] * min(reward.num_parallel, len(arrivals))
    last = 0.0
    for arrival in arrivals:
        last = max(free[0], arrival) + reward.latency_s
        heapq.heapreplace(free, last)
    return last


def followed_s(responses: Sequence[Request], rates: TrainerRates) -> float:
    """When a forward pass ends that takes each response once it has ended.

    Responses queue for the data-parallel ranks in the order in which they end; the last one still passes through all
    pipeline ranks. Loading weights and the like happens while the first responses are generated.
    """
    ordered = sorted(responses, key=lambda request: request.finished_s)
    free = [rates.stage_s] * rates.strategy.dp
    last = 0.0
    works_s = rates.work_s(np.array([float(request.num_tokens) for request in ordered]))
    for request, work_s in zip(ordered, works_s.tolist(), strict=True):
        end_s = max(free[0], request.finished_s) + work_s
        heapq.heapreplace(free, end_s)
        last = max(last, end_s + (rates.strategy.pp - 1) * work_s)
    return last
