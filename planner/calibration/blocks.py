"""Iterations of a log gathered into blocks of medians."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from planner.files.run_logs import LogRecord, Timer

MAX_BLOCKS = 6
MIN_FOR_WARM_UP = 4
"""Iterations from which on the first one is left out: it compiles, captures graphs and fills caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Medians over consecutive iterations, and the log deviation of each median."""

    name: str
    seconds: dict[Timer, float]
    log_sd: dict[Timer, float]
    response_tokens: float | None
    prompt_tokens: float | None
    num_iterations: int


def blocks_of(records: Sequence[LogRecord], most: int = MAX_BLOCKS) -> tuple[Block, ...]:
    """At most `most` blocks of a run's iterations, in order; the first iteration is left out where there are enough."""
    used = list(records[1:] if len(records) >= MIN_FOR_WARM_UP else records)
    num = min(most, len(used))
    edges = [round(index * len(used) / num) for index in range(num + 1)]
    return tuple(_block(used[low:high], f"block {index + 1}") for index, (low, high) in enumerate(pairwise(edges)))


def _block(records: Sequence[LogRecord], name: str) -> Block:
    seconds: dict[Timer, float] = {}
    deviation: dict[Timer, float] = {}
    for timer in Timer:
        values = [record.seconds[timer] for record in records if timer in record.seconds]
        # A stage that ran in few iterations only (validation) would be noise in the medians.
        if timer is not Timer.BESIDE and 2 * len(values) > len(records):
            seconds[timer] = median(values)
            deviation[timer] = _median_log_sd(values)
    rest = [_rest(record) for record in records if Timer.ITERATION in record.seconds]
    if rest and Timer.ITERATION in seconds:
        seconds[Timer.ITERATION] = median(rest)
    return Block(
        name=name,
        seconds=seconds,
        log_sd=deviation,
        response_tokens=_median_of([record.response_tokens for record in records]),
        prompt_tokens=_median_of([record.prompt_tokens for record in records]),
        num_iterations=len(records),
    )


def _rest(record: LogRecord) -> float:
    """Seconds of an iteration without validation and checkpoints, where these are inside the logged time.

    Releases differ in that: they are inside if the time beside the stages is long enough for them.
    """
    total = record.seconds[Timer.ITERATION]
    beside = record.seconds.get(Timer.BESIDE, 0.0)
    stages = sum(value for timer, value in record.seconds.items() if timer not in (Timer.ITERATION, Timer.BESIDE))
    return total - beside if total - stages >= beside else total


def _median_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _median_log_sd(values: Sequence[float]) -> float:
    """Deviation of the logarithm of a median, from the median deviation; 0 for one value."""
    positive = [math.log(value) for value in values if value > 0]
    if len(positive) < 2:
        return 0.0
    middle = median(positive)
    return 1.4826 * median(abs(value - middle) for value in positive) * 1.2533 / math.sqrt(len(positive))
