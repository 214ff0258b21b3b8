"""Rollouts that two groups of engines share: where that is open, what it costs at least, and its search problems.

The second group sits in another pool than the first one and shares its GPUs with nobody (`planner.search.space`); the
responses are divided in sixteenths. Each share is a search problem of its own, which differs from the others in the
options of both engines only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from planner.domain.execution import NUM_SHARES, Execution, SchedulingPolicy
from planner.domain.framework import FrameworkRules
from planner.domain.hardware import Cluster
from planner.domain.plan import Limits
from planner.domain.stages import WorkerName
from planner.domain.workload import Workload
from planner.search.problem import OptionTable

SHARES = tuple(i / NUM_SHARES for i in range(1, NUM_SHARES))
"""Shares of the responses that the second group may generate."""
_SIZE_FIELDS = ("num_gpus", "dp")


def may_split(cluster: Cluster, rules: FrameworkRules | None, workload: Workload, limits: Limits) -> bool:
    """Whether a split rollout is open: no framework has it, it needs two pools, a controller that starts both parts at
    the same time, and that the user ties the rollout neither to other workers nor to a number of GPUs."""
    if rules is not None or len(cluster.pools) < 2 or workload.num_generated < NUM_SHARES:
        return False
    if limits.policy is SchedulingPolicy.SEQUENTIAL:
        return False
    engine = WorkerName.ROLLOUT_ENGINE
    if any(item.worker is engine and item.field in _SIZE_FIELDS for item in limits.fixed):
        return False
    return not any(engine in members for members in limits.must_share)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTables:
    """Options of both engines on the pools that a plan below the cutoff can use, and a lower bound on its seconds."""

    tables: tuple[OptionTable, ...]
    bound_s: float


def rest_s(tables: Sequence[OptionTable]) -> float:
    """Least seconds of the actor trainer per iteration, its share of the weight sync included."""
    trainers = [table for table in tables if table.worker is WorkerName.ACTOR_TRAINER]
    return min((_least_s(table, [table.sync_colocated_s, *_apart(table)]) for table in trainers), default=np.inf)


def tables_below(
    first: Sequence[OptionTable], second: Sequence[OptionTable], trainer_s: float, execution: Execution, cutoff_s: float
) -> SplitTables:
    """Tables of two engines without the pools on which no plan takes less than `cutoff_s`.

    All that the trainer does comes after both parts of the rollout, or in asynchronous plans once per period; the
    weight sync stops the engines in any case. Hence, with rollout and sync of an engine r and those of the trainer t,
    at least max(r1, r2) + t seconds, or max(r1, r2, t) in asynchronous plans.
    """
    least = [
        ([_least_s(table, [table.sync_colocated_s, *_apart(table)]) for table in first]),
        ([_least_s(table, _apart(table)) for table in second]),
    ]
    bound_s, kept = float("inf"), set[tuple[int, int]]()
    for (i, one), (j, two) in product(enumerate(first), enumerate(second)):
        if one.pool == two.pool:
            continue
        engines_s = max(least[0][i], least[1][j])
        pair_s = max(engines_s, trainer_s) if execution.is_asynchronous else engines_s + trainer_s
        if pair_s < cutoff_s:
            kept |= {(0, i), (1, j)}
            bound_s = min(bound_s, pair_s)
    return SplitTables(tables=tuple((first, second)[side][i] for side, i in sorted(kept)), bound_s=bound_s)


def without_fusions(executions: Sequence[Execution]) -> tuple[Execution, ...]:
    """The executions that can be split, each once: those without fusion, with a weight sync by full gather."""
    return tuple(dict.fromkeys(replace(execution, fusions=(), sharded_syncs=()) for execution in executions))


def _apart(table: OptionTable) -> list[np.ndarray]:
    return [table.sync_disaggregated_s, table.sync_cross_pool_s]


def _least_s(table: OptionTable, syncs: Sequence[np.ndarray]) -> float:
    """Least seconds of all stages of a worker and its share of the weight sync."""
    if not len(table):
        return float("inf")
    return float((table.stage_time_s.sum(axis=0) + np.min(syncs, axis=0)).min())
