"""RLinf's automatic placement (recursive cuts of the workflow graph) over our tables.

`best(W, g)` is the least of running all workers of W one after the other on g GPUs, and of every cut of W into a first
part on k GPUs and a second one on the others, as a two-stage pipeline: warm-up plus the longer stage for every further
group of samples. The published loop never gives the second part a single GPU; this one does. Costs come from our
tables, memory included, so that a set that does not fit together is no leaf.

Our synchronous plans pass a batch on as a whole, so the pipeline is solved for one group of samples, where cuts only
buy memory, and for several, which is how RLinf itself counts. All are priced by our schedule, and the best counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import networkx as nx

from planner.domain.hardware import Pool
from planner.domain.stages import StageGraph, StageName, WorkerName
from planner.peers.colocated import MAX_UNITS, ColocatedTable
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
from planner.search.structures import PoolGroups, Structure

NAME = "RLinf"
DESCRIPTION = "recursive cuts of the workflow into a two-stage pipeline or one shared group"
NUM_GROUPS = (1, 4, 16)
"""Groups of samples that flow through the pipeline."""

Leaf = tuple[frozenset[WorkerName], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The best division found: leaves with their GPUs, and the seconds that the pipeline formula gives."""

    leaves: tuple[Leaf, ...]
    cost_s: float


def rlinf(task: PeerTask, *, max_units: int = MAX_UNITS) -> PeerPlan:
    """The division that our schedule likes best among those of RLinf's objective, in at most `max_units` parts."""
    watch = Stopwatch()
    best: tuple[Configured, float, Cut] | None = None
    evaluations = 0
    for pool in task.pools:
        table = ColocatedTable(task, pool, max_units=max_units)
        for num_groups in NUM_GROUPS:
            search = Cutter(task, table, num_groups)
            cut = search.best(frozenset(task.workers), pool.num_gpus)
            evaluations += search.evaluations
            found = None if cut is None else _realise(task, pool, table, cut)
            if cut is None or found is None:
                continue
            if best is None or found.solution.time_s < best[0].solution.time_s:
                best = found, watch.elapsed_s, cut
    if best is None:
        problem = "no division of the workflow fits in memory"
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


class Cutter:
    """The recursion, memoised on (workers, GPUs)."""

    def __init__(self, task: PeerTask, table: ColocatedTable, num_groups: int) -> None:
        self._table = table
        self._num_groups = num_groups
        self._known: dict[Leaf, Cut | None] = {}
        self._firsts = first_parts(task.inputs.graph)
        self.evaluations = 0

    def best(self, workers: frozenset[WorkerName], num_gpus: int) -> Cut | None:
        """The cheapest division of `workers` on `num_gpus` GPUs; None where nothing fits."""
        key = (workers, num_gpus)
        if key not in self._known:
            self._known[key] = self._search(workers, num_gpus)
        return self._known[key]

    def _search(self, workers: frozenset[WorkerName], num_gpus: int) -> Cut | None:
        self.evaluations += 1
        joint = self._table.best(workers, num_gpus)
        best = None if joint is None else Cut(leaves=((workers, num_gpus),), cost_s=joint.total_s)
        for first in self._firsts:
            early = workers & first
            if not early or early == workers:
                continue
            for size in self._table.sizes:
                rest = self._largest(num_gpus - size)
                if rest is None:
                    break
                self.evaluations += 1
                one, two = self.best(early, size), self.best(workers - early, rest)
                if one is None or two is None:
                    continue
                cost_s = pipeline_s((one.cost_s, two.cost_s), self._num_groups)
                if best is None or cost_s < best.cost_s:
                    best = Cut(leaves=one.leaves + two.leaves, cost_s=cost_s)
        return best

    def _largest(self, num_gpus: int) -> int | None:
        return max((size for size in self._table.sizes if size <= num_gpus), default=None)


def pipeline_s(stage_s: tuple[float, ...], num_groups: int) -> float:
    """Seconds of a pipeline whose stages need `stage_s` for the whole batch, in `num_groups` equal groups."""
    return sum(stage_s) / num_groups + max(stage_s) / num_groups * (num_groups - 1)


def first_parts(graph: StageGraph) -> tuple[frozenset[WorkerName], ...]:
    """Sets of workers without a predecessor outside: the first parts of all cuts between sources and sinks.

    Workers are the nodes; the weight sync closes a cycle over iterations and is no edge, and other cycles between
    workers are contracted.
    """
    flow: nx.DiGraph[WorkerName] = nx.DiGraph()
    flow.add_nodes_from(worker.name for worker in graph.workers)
    for before, after in nx.transitive_closure(graph.digraph()).edges:
        if StageName.WEIGHT_SYNC in (before, after):
            continue
        flow.add_edges_from(
            (a, b) for a in graph.workers_of(before) for b in graph.workers_of(after) if a is not b and a in flow
        )
    groups = nx.condensation(flow)
    nodes = list(groups.nodes)
    result = []
    for num in range(1, len(nodes)):
        for chosen in combinations(nodes, num):
            if all(before in chosen for node in chosen for before in groups.predecessors(node)):
                result.append(frozenset(w for node in chosen for w in groups.nodes[node]["members"]))
    return tuple(result)


def _realise(task: PeerTask, pool: Pool, table: ColocatedTable, cut: Cut) -> Configured | None:
    options: dict[WorkerName, tuple[str, int]] = {}
    blocks = []
    for workers, num_gpus in cut.leaves:
        joint = table.best(workers, num_gpus)
        assert joint is not None
        options.update({worker: (pool.name, row) for worker, row in joint.rows})
        blocks.append(tuple(worker for worker in task.workers if worker in workers))
    structure = Structure(pools=(PoolGroups(pool=pool.name, whole=(), blocks=tuple(blocks)),))
    return configured(task, structure, with_rows(task, {worker: options[worker] for worker in task.workers}))
