"""The best that a set of workers can do on one group of GPUs, one after the other: the building block of peers that
divide a pool among such sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.hardware import Pool
from planner.domain.stages import StageGraph, StageName, WorkerName
from planner.peers.task import PeerTask, solve_coupled
from planner.search.options import take
from planner.search.problem import SearchProblem

MAX_UNITS = 32
"""Parts that a pool is divided into at the most: beyond as many nodes, several nodes are one part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """Options of a set of workers on one group, and the seconds of their stages (weight sync included)."""

    rows: tuple[tuple[WorkerName, int], ...]
    """Row of each worker's option table."""
    stage_s: tuple[tuple[StageName, float], ...]

    @property
    def total_s(self) -> float:
        return sum(seconds for _, seconds in self.stage_s)


class ColocatedTable:
    """Answers, by set of workers and number of GPUs, kept once found. `num_solved` counts what was solved.

    With `exact` every worker has to use all GPUs of its group.
    """

    def __init__(self, task: PeerTask, pool: Pool, *, exact: bool = False, max_units: int = MAX_UNITS) -> None:
        self._exact = exact
        self._task = task
        self._pool = pool
        self._known: dict[tuple[frozenset[WorkerName], int], Joint | None] = {}
        self.num_solved = 0
        unit = pool.node.gpus_per_node * -(-pool.num_nodes // max_units)
        below = sorted({int(n) for t in task.problem.options for n in t.num_gpus if n < pool.node.gpus_per_node})
        whole = list(range(unit, pool.num_gpus, unit))
        self.sizes: tuple[int, ...] = (*below, *whole, pool.num_gpus)
        """GPUs that a set may get: parts of a node, then nodes."""

    def best(self, workers: frozenset[WorkerName], num_gpus: int) -> Joint | None:
        """The options with the least sum of stage times that fit together on at most `num_gpus` GPUs."""
        key = (workers, num_gpus)
        if key not in self._known:
            self.num_solved += 1
            self._known[key] = self._solve(workers, num_gpus)
        return self._known[key]

    def _solve(self, workers: frozenset[WorkerName], num_gpus: int) -> Joint | None:
        names = tuple(name for name in self._task.workers if name in workers)
        items, position = [], {}
        for name in names:
            item = self._task.item(name, self._pool.name)
            sizes = item.options.num_gpus
            rows = np.flatnonzero(sizes == num_gpus if self._exact else sizes <= num_gpus)
            if not rows.size:
                return None
            position.update({(name, int(item.options.row[row])): int(row) for row in rows})
            items.append(replace(item, options=take(item.options, rows)))
        problem = SearchProblem(
            graph=subgraph(self._task.inputs.graph, names),
            pools=(self._task.problem.pool(self._pool.name),),
            options=tuple(item.options for item in items),
            structure_filter=lambda structure: "apart" if structure.num_groups > 1 else None,
            equal_size=self._task.problem.equal_size,
        )
        solution = solve_coupled(self._task, problem, items).solution
        if solution is None:
            return None
        return Joint(
            rows=tuple((choice.worker, position[choice.worker, choice.row]) for choice in solution.choices),
            stage_s=tuple((item.stage, item.end_s - item.start_s) for item in solution.schedule),
        )


def subgraph(graph: StageGraph, workers: Sequence[WorkerName]) -> StageGraph:
    """The stages that run on `workers` alone, and the edges between them."""
    stages = tuple(
        stage
        for stage in graph.stages
        if graph.workers_of(stage.name) and all(worker in workers for worker in graph.workers_of(stage.name))
    )
    names = {stage.name for stage in stages}
    return StageGraph(
        stages=stages,
        workers=tuple(worker for worker in graph.workers if worker.name in workers),
        edges=tuple((a, b) for a, b in graph.edges if a in names and b in names),
    )
