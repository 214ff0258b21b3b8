"""Search parts: the workers of one execution, priced, and the search problem that they make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from planner.cost.jobs import engine_job, host_stage_s
from planner.cost.work_bound import iteration_flop
from planner.domain.execution import Execution, ExecutionMode
from planner.domain.fixed import FixedField
from planner.domain.framework import FrameworkRules
from planner.domain.framework_placement import placement_problem, sharing_problem
from planner.domain.framework_sync import narrowed
from planner.domain.hardware import Cluster, Pool
from planner.domain.overheads import Overheads
from planner.domain.plan import Limits
from planner.domain.request import PlanRequest
from planner.domain.stages import ROLLOUT_ENGINES, StageKind, Worker, WorkerName, build_graph
from planner.domain.workload import Workload
from planner.executions import synchronous_executions
from planner.files.catalog import load_overheads
from planner.search.clock import Clock
from planner.search.pricing import (
    PricedWorker,
    PricingInputs,
    as_second_engine,
    price_worker,
    search_pool,
    without_moments,
)
from planner.search.problem import SearchProblem
from planner.search.space import WHOLE, Coverage
from planner.search.structures import Structure, StructureFilter
from planner.splitting import SHARES, may_split, rest_s, tables_below


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPart:
    """One execution: its inputs, the priced workers and the problem."""

    inputs: PricingInputs
    priced: tuple[PricedWorker, ...]
    problem: SearchProblem


def make_problem(
    priced: Sequence[PricedWorker], inputs: PricingInputs, cluster: Cluster, limits: Limits
) -> SearchProblem:
    """The search problem of priced workers under the execution of `inputs`."""
    rules = inputs.rules
    host = [stage.name for stage in inputs.graph.stages if stage.kind is StageKind.HOST]
    return SearchProblem(
        graph=inputs.graph,
        pools=tuple(search_pool(pool, inputs) for pool in cluster.pools),
        options=tuple(item.options for item in priced),
        host_stage_s=tuple((name, host_stage_s(inputs.workload)) for name in host),
        host_least_s=inputs.workload.reward.latency_s,
        structure_filter=_structure_filter(rules, inputs.workload, limits),
        equal_size=rules is not None and rules.shared_workers_use_whole_group,
        execution=inputs.execution,
        work_flop=iteration_flop(inputs.workload, inputs.graph, [pool.node.gpu for pool in cluster.pools]),
    )


def _structure_filter(rules: FrameworkRules | None, workload: Workload, limits: Limits) -> StructureFilter | None:
    if rules is None and not limits.must_share and not limits.must_not_share:
        return None
    return partial(_structure_problem, rules, workload, limits)


def _structure_problem(
    rules: FrameworkRules | None, workload: Workload, limits: Limits, structure: Structure
) -> str | None:
    placed = {worker for pool in structure.pools for worker in pool.workers}
    for members in limits.must_share:
        present = [worker for worker in members if worker in placed]
        if any(not structure.overlap(a, b) for a in present for b in present):
            return "workers that have to share GPUs are apart"
    for members in limits.must_not_share:
        present = [worker for worker in members if worker in placed]
        if any(structure.overlap(a, b) for a in present for b in present if a is not b):
            return "workers that must not share GPUs meet"
    return None if rules is None else structure_problem(rules, workload, structure)


def structure_problem(rules: FrameworkRules, workload: Workload, structure: Structure) -> str | None:
    """Why a framework cannot run a structure, None if it can."""
    if rules.shared_workers_use_whole_group and any(pool.whole for pool in structure.pools):
        return f"{rules.title} gives workers that share GPUs all GPUs of one group"
    groups = tuple(frozenset(members) for pool in structure.pools for members in pool.memory_groups)
    present = frozenset(worker for pool in structure.pools for worker in pool.workers)
    if rules.one_pool and len(structure.pools) > 1:
        return f"{rules.title} uses one kind of node"
    return placement_problem(rules, groups, present) or sharing_problem(rules, workload, groups)


@dataclass(slots=True)
class Shop:
    """Prices workers under executions; what two executions share is priced once."""

    request: PlanRequest
    cluster: Cluster
    rules: FrameworkRules | None
    clock: Clock
    with_splits: bool = True
    coverage: Coverage = WHOLE
    _priced: dict[tuple[object, ...], PricedWorker] = field(default_factory=dict)
    _parts: dict[Execution, SearchPart] = field(default_factory=dict)

    def part(self, execution: Execution) -> SearchPart:
        """The search problem of one execution."""
        if execution not in self._parts:
            inputs = self._inputs(execution)
            priced = tuple(
                self.price(worker, pool, inputs) for worker in inputs.graph.workers for pool in self.cluster.pools
            )
            problem = make_problem(priced, inputs, self.cluster, self.request.limits)
            self._parts[execution] = SearchPart(inputs=inputs, priced=priced, problem=problem)
        return self._parts[execution]

    def _inputs(self, execution: Execution) -> PricingInputs:
        request = self.request
        inputs = make_inputs(
            request.workload, self.cluster, self.rules, execution, request.limits.fixed, request.overheads
        )
        return replace(inputs, coverage=self.coverage)

    def has_options(self, name: WorkerName, execution: Execution) -> bool:
        inputs = self._inputs(execution)
        if not inputs.graph.has_worker(name):
            return True
        worker = inputs.graph.worker(name)
        return any(len(self.price(worker, pool, inputs).options) for pool in self.cluster.pools)

    @property
    def may_split(self) -> bool:
        return self.with_splits and may_split(self.cluster, self.rules, self.request.workload, self.request.limits)

    def split_parts(self, execution: Execution, cutoff_s: float) -> Iterator[tuple[SearchPart, float]]:
        """The search problem of every share of a split rollout, with a lower bound on its seconds; without those that
        have nothing below the cutoff."""
        base = self.part(execution)
        trainer_s = rest_s(base.problem.options)
        if trainer_s >= cutoff_s:
            return
        others = tuple(item for item in base.priced if item.worker.name is not WorkerName.ROLLOUT_ENGINE)
        for share in SHARES:
            split = replace(execution, second_share_ratio=share)
            inputs = self._inputs(split)
            first, second = (
                tuple(self.price(inputs.graph.worker(name), pool, inputs) for pool in self.cluster.pools)
                for name in ROLLOUT_ENGINES
            )
            left = tables_below([i.options for i in first], [i.options for i in second], trainer_s, split, cutoff_s)
            if left.tables:
                options = (*left.tables, *(item.options for item in others))
                problem = replace(base.problem, graph=inputs.graph, options=options, execution=split)
                yield SearchPart(inputs=inputs, priced=(*first, *second, *others), problem=problem), left.bound_s

    def price(self, worker: Worker, pool: Pool, inputs: PricingInputs) -> PricedWorker:
        """A worker on a pool; what executions have in common is priced once."""
        if worker.name is WorkerName.SECOND_ENGINE:
            return as_second_engine(self._second_engine(worker, pool, inputs), worker)
        return self._price(worker, pool, inputs)

    def _second_engine(self, worker: Worker, pool: Pool, inputs: PricingInputs) -> PricedWorker:
        """The second group of engines: what the first one with its share costs, unless that has other responses."""
        share = inputs.execution.share_ratio(worker.name)
        mirrored = self._inputs(replace(inputs.execution, second_share_ratio=1.0 - share))
        first = mirrored.graph.worker(WorkerName.ROLLOUT_ENGINE)
        alike = engine_job(mirrored.workload, first, mirrored.execution).load
        if alike == engine_job(inputs.workload, worker, inputs.execution).load:
            return self._price(first, pool, mirrored)
        # Halves of an odd number differ by one. What the user fixed of engines holds for both groups.
        fixed = tuple(replace(item, worker=worker.name) if item.worker is first.name else item for item in inputs.fixed)
        return self._price(worker, pool, replace(inputs, fixed=fixed))

    def _price(self, worker: Worker, pool: Pool, inputs: PricingInputs) -> PricedWorker:
        self.clock.check()
        execution = inputs.execution
        share = execution.share_ratio(worker.name) if worker.name in ROLLOUT_ENGINES else 1.0
        streams = execution.mode is ExecutionMode.STREAMING and worker.name in ROLLOUT_ENGINES
        # The way of the weight sync decides what is open and what it costs, overlap what engines some frameworks have.
        narrows = self.rules is not None and self.rules.attention_dp_excludes_overlap
        place = (worker, pool.name, share, execution.sharded_syncs, narrows and execution.is_asynchronous)
        key = (*place, (execution.mode, execution.staleness) if streams else execution.fusions)
        if key not in self._priced:
            fused = (*place, synchronous_executions(self.request.limits, self.rules)[0].fusions)
            known = None if streams else self._priced.get(fused)
            if known is None or execution.fusions:
                self._priced[key] = price_worker(worker, pool, inputs, self.clock)
            else:
                self._priced[key] = without_moments(known, inputs)
        return self._priced[key]


def make_inputs(
    workload: Workload,
    cluster: Cluster,
    rules: FrameworkRules | None,
    execution: Execution,
    fixed: tuple[FixedField, ...] = (),
    overheads: Overheads | None = None,
) -> PricingInputs:
    """What all workers of one part share. Off-policy updates compare with log-probs of the policy before them.

    `overheads` None: those of the catalog.
    """
    if execution.is_asynchronous and not workload.needs_old_logprob:
        workload = replace(workload, needs_old_logprob=True)
    return PricingInputs(
        cross_pool_bytes_per_s=cluster.cross_pool_bytes_per_s,
        cross_pool_total_bytes_per_s=cluster.inter_pool_total_bytes_per_s,
        workload=workload,
        graph=build_graph(workload, is_split=execution.is_split),
        overheads=overheads or load_overheads(),
        rules=None if rules is None else narrowed(rules, execution.sharded_syncs),
        across_sizes=rules is None or not rules.shared_workers_use_whole_group,
        execution=execution,
        fixed=fixed,
    )


def reachable(cluster: Cluster, max_gpus: int | None) -> Cluster:
    """The nodes that a limit on GPUs leaves: no pool is used beyond it, and groups always pack into whole nodes."""
    if max_gpus is None:
        return cluster
    pools = tuple(
        replace(pool, num_nodes=min(pool.num_nodes, -(-max_gpus // pool.node.gpus_per_node))) for pool in cluster.pools
    )
    return replace(cluster, pools=pools)


def lacking_workers(priced: Sequence[PricedWorker]) -> tuple[WorkerName, ...]:
    """Workers that have no option on any pool: then there is no plan."""
    able = {item.worker.name for item in priced if len(item.options)}
    return tuple(dict.fromkeys(item.worker.name for item in priced if item.worker.name not in able))
