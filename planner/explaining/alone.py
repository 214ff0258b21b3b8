"""What another value of one decision does when nothing else is changed but what must follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from planner.assembly import PlacedStrategy, assemble
from planner.domain.fixed import ENUMERATED, FixedField
from planner.domain.framework import ONE_BACKEND_WORKERS
from planner.domain.strategy import IntArray, RolloutStrategy, Strategy, TrainerTable
from planner.explaining.attribution import Growth
from planner.explaining.case import Case
from planner.explaining.prices import priced
from planner.explaining.score import Score
from planner.search.pricing import PricedWorker
from planner.search.problem import OptionTable

TRAINER_DECISIONS = (
    "num_gpus", "tp", "pp", "vpp", "cp", "ep", "etp", "sharding", "micro_batch_tokens", "inference_tokens", "recompute",
    "offload",
)  # fmt: skip
FORWARD_DECISIONS = ("num_gpus", "tp", "pp", "cp", "ep", "etp", "sharding", "inference_tokens", "offload")
ENGINE_DECISIONS = (
    "num_gpus", "tp", "pp", "attention_dp", "ep", "exchange", "dp", "engine_fraction", "max_num_seqs", "idle",
)  # fmt: skip
"""`dp` is the number of engines."""
FOLLOWING: dict[str, tuple[str, ...]] = {
    "num_gpus": ("shard_ranks",),
    "tp": ("shard_ranks", "etp", "ep", "exchange"),
    "attention_dp": ("ep", "exchange"),
    "pp": ("shard_ranks", "vpp", "recompute_layers"),
    "vpp": ("recompute_layers",),
    "recompute": ("recompute_layers",),
    "cp": ("shard_ranks", "context_parallel", "micro_batch_tokens", "inference_tokens"),
    "ep": ("etp", "exchange"),
    "sharding": ("shard_ranks", "context_parallel"),
    "micro_batch_tokens": ("inference_tokens",),
    "dp": ("num_gpus",),
}
"""Fields that cannot stay as they are, or mean something else, when another one changes: the best of their values is
taken where everything else is left alone."""
MAX_EQUAL_ROWS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """The best plan in which one decision differs."""

    value: str
    """What it decides instead."""
    score: Score
    growth: Growth | None
    """What makes it slower, if anything does."""
    equal_s: float | None = None
    """Seconds per iteration with nothing else changed; None where that is not possible."""
    equal_problem: str = ""
    """Why it is not: the framework changes other workers with it (`coupled`), it is `not legal` or has `no fit`, needs
    `more GPUs` than the group has, or an `other pool`."""


def value_of(strategy: Strategy, field: str) -> str:
    """The value of a field as `--fix` takes it."""
    name = "num_engines" if field == "dp" and isinstance(strategy, RolloutStrategy) else field
    value = getattr(strategy, name)
    if field in ENUMERATED:
        return str(value.value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def with_equal(case: Case, rival: Rival, fixed: FixedField, held: PricedWorker) -> Rival:
    """The rival with what its decision does when nothing else is changed."""
    if case.rules is not None and fixed.worker in ONE_BACKEND_WORKERS:
        return replace(rival, equal_problem="coupled")
    mine = next(item for item in case.placed if item.worker.name is fixed.worker)
    if mine.pool.name != held.pool.name:
        return replace(rival, equal_problem="other pool")
    rows = _only_changed(mine.strategy, fixed, held)
    if not rows.size:
        return replace(rival, equal_problem="not legal")
    inside = rows[held.candidates.num_gpus[rows] <= mine.group.num_gpus]
    if not inside.size:
        return replace(rival, equal_problem="more GPUs")
    times = list(_times_with(case, mine, held, inside))
    if not times:
        return replace(rival, equal_problem="no fit")
    return replace(rival, equal_s=min(times))


def _times_with(case: Case, mine: PlacedStrategy, held: PricedWorker, rows: IntArray) -> Iterator[float]:
    """Seconds per iteration with other candidates in the same place, of those that fit. Candidates that take at least
    as long in everything as one that fits are left out."""
    options = priced(mine.worker, mine.pool, case.inputs, held.candidates, rows)
    seconds = _seconds(options)
    fitting: list[int] = []
    for index in np.argsort(seconds.sum(axis=0), kind="stable").tolist():
        if any((seconds[:, known] <= seconds[:, index]).all() for known in fitting):
            continue
        time_s = _time_with(case, mine, held.candidates.row(int(options.row[index])))
        if time_s is not None:
            fitting.append(index)
            yield time_s


def _seconds(options: OptionTable) -> np.ndarray:
    shares = (options.sync_colocated_s, options.sync_disaggregated_s, options.sync_cross_pool_s)
    return np.vstack([options.stage_time_s, *options.moment_s, *shares])


def _only_changed(strategy: Strategy, fixed: FixedField, held: PricedWorker) -> IntArray:
    """Candidates that differ from a strategy in one field and what follows from it."""
    table = held.candidates
    rows = fixed.allows(table)
    free = {fixed.field, *FOLLOWING.get(fixed.field, ())}
    names = TRAINER_DECISIONS if isinstance(table, TrainerTable) else ENGINE_DECISIONS
    for name in names:
        if name not in free and name != "dp":
            rows = rows & FixedField(worker=fixed.worker, field=name, value=value_of(strategy, name)).allows(table)
    return np.flatnonzero(rows)[:MAX_EQUAL_ROWS]


def _time_with(case: Case, mine: PlacedStrategy, strategy: Strategy) -> float | None:
    """Seconds per iteration with another strategy in the same place; None where it does not fit."""
    placed = [replace(item, strategy=strategy) if item is mine else item for item in case.placed]
    assembled = assemble(placed, case.inputs, None)
    return None if assembled.problems else assembled.time_s
