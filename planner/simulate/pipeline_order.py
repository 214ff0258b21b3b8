"""Makespan of one optimizer step through a pipeline, from the order in which each rank runs its passes.

Orders are those of Megatron-LM (arXiv 2104.04473): one-forward-one-backward, interleaved over virtual chunks, and
plain forward passes. Micro-batches may differ in size, which no closed formula of the bubble allows. Each operation
is an array over data-parallel ranks, which do not wait for each other inside a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.domain.strategy import FloatArray

FORWARD_SHARE = 1.0 / 3.0
"""Share of a micro-batch's time that its forward pass takes in training: backward has twice the products."""


@dataclass(frozen=True, slots=True)
class Pass:
    micro_batch: int
    chunk: int
    """Virtual chunk on this rank; rank s holds chunks s, s + p, s + 2 p, ... of the model."""
    is_backward: bool


def training_s(body_s: FloatArray, head_s: FloatArray, num_ranks: int, num_chunks: int) -> FloatArray:
    """Seconds from the first forward to the last backward, shape (num_columns,).

    `body_s` and `head_s` have shape (num_micro_batches, num_columns): what one pipeline rank needs for all its layers
    of a micro-batch, forward and backward, and what the last rank needs besides. `num_chunks` > 1 interleaves.
    """
    order = training_order(len(body_s), num_ranks, num_chunks)
    return _makespan_s(order, body_s, head_s, num_ranks, num_chunks, FORWARD_SHARE)


def forward_s(body_s: FloatArray, head_s: FloatArray, num_ranks: int, num_chunks: int) -> FloatArray:
    """The same for a pass without backward."""
    forwards = tuple(
        Pass(micro_batch, chunk, False) for micro_batch, chunk in _turns(len(body_s), num_ranks, num_chunks)
    )
    return _makespan_s((forwards,) * num_ranks, body_s, head_s, num_ranks, num_chunks, 1.0)


def _turns(num_micro_batches: int, num_ranks: int, num_chunks: int) -> list[tuple[int, int]]:
    """(micro-batch, chunk) in the order of forward passes: groups of `num_ranks` micro-batches, chunk by chunk."""
    group = num_ranks if num_chunks > 1 else num_micro_batches
    return [
        (micro_batch, chunk)
        for first in range(0, num_micro_batches, group)
        for chunk in range(num_chunks)
        for micro_batch in range(first, min(first + group, num_micro_batches))
    ]


@lru_cache(maxsize=256)
def training_order(num_micro_batches: int, num_ranks: int, num_chunks: int) -> tuple[tuple[Pass, ...], ...]:
    """Passes of every rank in order: warm-up forwards, forward and backward in turn, the rest backward."""
    turns = _turns(num_micro_batches, num_ranks, num_chunks)
    forwards = [Pass(micro_batch, chunk, False) for micro_batch, chunk in turns]
    backwards = [Pass(micro_batch, num_chunks - 1 - chunk, True) for micro_batch, chunk in turns]
    orders = []
    for rank in range(num_ranks):
        behind = num_ranks - rank - 1
        warm_up = behind if num_chunks == 1 else 2 * behind + (num_chunks - 1) * num_ranks
        if num_chunks > 1 and num_micro_batches % num_ranks:
            # An incomplete last group would wait for itself: all forwards first, as with a single group.
            warm_up = len(turns)
        warm_up = min(warm_up, len(turns))
        order = forwards[:warm_up]
        for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
            order += [forward, backward]
        orders.append(tuple(order + backwards[len(turns) - warm_up :]))
    return tuple(orders)


def _makespan_s(
    orders: tuple[tuple[Pass, ...], ...],
    body_s: FloatArray,
    head_s: FloatArray,
    num_ranks: int,
    num_chunks: int,
    forward_share: float,
) -> FloatArray:
    """Plays the orders: a pass starts when its rank is free and its input is there."""
    parts = {
        (False, False): body_s * (forward_share / num_chunks),
        (True, False): body_s * ((1.0 - forward_share) / num_chunks),
    }
    parts[False, True] = parts[False, False] + head_s * forward_share
    parts[True, True] = parts[True, False] + head_s * (1.0 - forward_share)
    done: dict[tuple[bool, int, int], FloatArray] = {}
    """(is backward, micro-batch, place of the chunk in the whole model) -> end."""
    last = num_ranks * num_chunks - 1
    free = [np.zeros(body_s.shape[1]) for _ in range(num_ranks)]
    position = [0] * num_ranks
    while any(position[rank] < len(orders[rank]) for rank in range(num_ranks)):
        has_moved = False
        for rank in range(num_ranks):
            while position[rank] < len(orders[rank]):
                item = orders[rank][position[rank]]
                place = item.chunk * num_ranks + rank
                ready = _input_end(done, item, place, last)
                if ready is None and not _is_source(item, place):
                    break
                begin = free[rank] if ready is None else np.maximum(free[rank], ready)
                free[rank] = begin + parts[item.is_backward, place == last][item.micro_batch]
                done[item.is_backward, item.micro_batch, place] = free[rank]
                position[rank] += 1
                has_moved = True
        if not has_moved:
            raise ValueError("a pipeline order waits for itself")
    result: FloatArray = np.max(free, axis=0)
    return result


def _is_source(item: Pass, place: int) -> bool:
    return not item.is_backward and place == 0


def _input_end(done: dict[tuple[bool, int, int], FloatArray], item: Pass, place: int, last: int) -> FloatArray | None:
    """When the input of a pass is there; None while it is not, and for the first chunk's forward."""
    if not item.is_backward:
        return done.get((False, item.micro_batch, place - 1)) if place else None
    return done.get((False, item.micro_batch, last) if place == last else (True, item.micro_batch, place + 1))
