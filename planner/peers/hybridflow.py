"""HybridFlow's mapping (Algorithm 1 of its paper) over our tables.

Every set partition of the models, every allocation of GPUs to its sets at whole nodes (halvings of a node below one),
the fastest strategies of a set's models that fit its GPUs together, and as cost the sum over the three stages
(generation, preparation, training) of the longest set: no overlap across stages. The engine and the trainer of the
actor are one model, as in its hybrid engine. The best mapping by that cost is then priced by our schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.domain.hardware import Pool
from planner.domain.stages import StageKind, StageName, WorkerName
from planner.domain.strategy import FloatArray
from planner.peers.by_hand import MODELS
from planner.peers.colocated import MAX_UNITS, ColocatedTable, Joint
from planner.peers.task import (
    Configured,
    PeerPlan,
    PeerTask,
    Stopwatch,
    configured,
    no_plan,
    peer_plan,
    with_rows,
)
from planner.search.structures import PoolGroups, Structure, set_partitions

NAME = "HybridFlow"
DESCRIPTION = "every partition of the models into sets and of the GPUs among them; stages are barriers"
_NUM_STAGES = 3

Set = tuple[WorkerName, ...]
Partition = tuple[Set, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """A partition with GPUs per set, and its cost by the algorithm's own objective in seconds."""

    partition: Partition
    sizes: tuple[int, ...]
    cost_s: float


def hybridflow(task: PeerTask, *, max_units: int = MAX_UNITS) -> PeerPlan:
    """Algorithm 1 on the pool where its plan is fastest, in at most `max_units` parts of it."""
    watch = Stopwatch()
    best: tuple[Configured, float, Mapping] | None = None
    evaluations = 0
    for pool in task.pools:
        table = ColocatedTable(task, pool, max_units=max_units)
        mapping, tried = best_mapping(task, pool, table)
        evaluations += tried
        found = None if mapping is None else realise(task, pool, table, mapping)
        if mapping is None or found is None:
            continue
        if best is None or found.solution.time_s < best[0].solution.time_s:
            best = found, watch.elapsed_s, mapping
    if best is None:
        problem = "no partition of the models fits in memory"
        return no_plan(
            name=NAME,
            description=DESCRIPTION,
            problem=problem,
            took_s=watch.elapsed_s,
            evaluations=evaluations,
        )
    return peer_plan(
        task, best[0], name=NAME, description=DESCRIPTION, own_objective_s=best[2].cost_s, found_after_s=best[1],
        took_s=watch.elapsed_s, evaluations=evaluations,
    )  # fmt: skip


def partitions(task: PeerTask) -> tuple[Partition, ...]:
    """Set partitions of the models, each set as its workers."""
    models = [tuple(w for w in members if w in task.workers) for members in MODELS]
    models = [members for members in models if members]
    heads = [members[0] for members in models]
    members_of = dict(zip(heads, models, strict=True))
    return tuple(
        tuple(tuple(w for head in block for w in members_of[head]) for block in found)
        for found in set_partitions(heads)
    )


def best_mapping(
    task: PeerTask,
    pool: Pool,
    table: ColocatedTable,
    wanted: Sequence[Partition] | None = None,
    *,
    least_gpus: int = 0,
) -> tuple[Mapping | None, int]:
    """The cheapest mapping by the algorithm's objective, and how many were looked at.

    The sets get at least `least_gpus` GPUs together.
    """
    best: Mapping | None = None
    tried = 0
    refuses = task.problem.structure_filter
    for partition in partitions(task) if wanted is None else wanted:
        if refuses is not None and refuses(_structure(pool, partition)) is not None:
            continue
        # Row k: seconds of the set's stages on sizes[k] GPUs, infinite where it does not fit.
        tables = [np.array([_stage_s(task, table.best(frozenset(s), n)) for n in table.sizes]) for s in partition]
        mapping, count = _best_allocation(partition, tables, table.sizes, least_gpus, pool.num_gpus)
        tried += count
        if mapping is not None and (best is None or mapping.cost_s < best.cost_s):
            best = mapping
    return best, tried


def _best_allocation(
    partition: Partition, tables: Sequence[FloatArray], sizes: Sequence[int], least_gpus: int, num_gpus: int
) -> tuple[Mapping | None, int]:
    grid = [axis.ravel() for axis in np.meshgrid(*[np.arange(len(sizes))] * len(tables), indexing="ij")]
    used = np.sum([np.array(sizes)[index] for index in grid], axis=0)
    fits = np.flatnonzero((used >= least_gpus) & (used <= num_gpus))
    if not fits.size:
        return None, 0
    grid = [index[fits] for index in grid]
    longest = tables[0][grid[0]]
    for seconds, index in zip(tables[1:], grid[1:], strict=True):
        longest = np.maximum(longest, seconds[index])
    cost = longest.sum(axis=1)
    # Of equal costs the one on fewest GPUs.
    best = int(np.lexsort((used[fits], cost))[0])
    if not np.isfinite(cost[best]):
        return None, int(fits.size)
    chosen = tuple(sizes[int(index[best])] for index in grid)
    return Mapping(partition=partition, sizes=chosen, cost_s=float(cost[best])), int(fits.size)


def _stage_s(task: PeerTask, joint: Joint | None) -> tuple[float, ...]:
    """Generation, preparation, training; the weight sync ends the training."""
    if joint is None:
        return (np.inf,) * _NUM_STAGES
    result = [0.0] * _NUM_STAGES
    for name, seconds in joint.stage_s:
        kind = task.inputs.graph.stage(name).kind
        if name is StageName.ROLLOUT:
            result[0] += seconds
        elif kind in (StageKind.TRAINING, StageKind.TRANSFER):
            result[2] += seconds
        else:
            result[1] += seconds
    return tuple(result)


def realise(task: PeerTask, pool: Pool, table: ColocatedTable, mapping: Mapping) -> Configured | None:
    """The mapping as a configuration of our space."""
    options: dict[WorkerName, tuple[str, int]] = {}
    for members, num_gpus in zip(mapping.partition, mapping.sizes, strict=True):
        joint = table.best(frozenset(members), num_gpus)
        assert joint is not None
        options.update({worker: (pool.name, row) for worker, row in joint.rows})
    items = with_rows(task, {worker: options[worker] for worker in task.workers})
    return configured(task, _structure(pool, mapping.partition), items)


def _structure(pool: Pool, partition: Partition) -> Structure:
    return Structure(pools=(PoolGroups(pool=pool.name, whole=(), blocks=partition),))
