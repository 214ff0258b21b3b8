"""When finished responses are assessed: by sandboxes on the host, or by a forward pass that follows the rollout."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from planner.domain.workload import Reward
from planner.simulate.engine import Request


def scored_s(finished_s: Iterable[float], reward: Reward) -> float:
    """When the last response has its score, if they end at `finished_s` and queue for `num_parallel` sandboxes."""
    arrivals = sorted(finished_s)
    free = [0.0] * min(reward.num_parallel, len(arrivals))
    last = 0.0
    for arrival in arrivals:
        last = max(free[0], arrival) + reward.latency_s
        heapq.heapreplace(free, last)
    return last


def followed_s(responses: Sequence[Request], whole_s: float) -> float:
    """When a stage ends that needs `whole_s` for all responses and takes each of them once it has ended.

    Work is shared out by tokens and served in the order in which responses end: the stage ends when the last busy
    period does, the largest of (time at which a response ends) + (work on it and on all later ones).
    """
    ordered = sorted(responses, key=lambda request: request.finished_s)
    total = sum(request.prompt_tokens + request.response_tokens for request in ordered)
    left, end_s = 1.0, 0.0
    for request in ordered:
        end_s = max(end_s, request.finished_s + whole_s * left)
        left -= (request.prompt_tokens + request.response_tokens) / total
    return end_s
