"""From a request to a proven solution: which executions are open, what every worker costs, and the search over all.

`search` is the one function to read first. A *part* is a search problem under one execution; frameworks that couple
the degrees of several workers split parts further (`planner.search.mesh`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from planner.cost.jobs import host_stage_s
from planner.cost.work_bound import iteration_flop
from planner.domain.execution import Execution, ExecutionMode, Fusion, SchedulingPolicy
from planner.domain.fixed import FixedField
from planner.domain.framework import FrameworkRules, placement_problem, sharing_problem
from planner.domain.framework_workload import for_workload
from planner.domain.hardware import Cluster, Pool
from planner.domain.overheads import Overheads
from planner.domain.plan import Limits, Objective, Status
from planner.domain.request import PlanRequest
from planner.domain.stages import ROLLOUT_ENGINES, StageKind, Worker, WorkerName, build_graph
from planner.domain.strategy import TrainerTable
from planner.domain.workload import Workload
from planner.files.catalog import load_overheads
from planner.search import mesh
from planner.search.options import take
from planner.search.pricing import (
    PricedWorker,
    PricingInputs,
    as_second_engine,
    price_worker,
    search_pool,
    without_moments,
)
from planner.search.problem import OptionTable, SearchLimits, SearchProblem, Solver
from planner.search.solve import AlternativeStructure, Cause, SearchResult, Solution, solve, solve_union
from planner.search.structures import Structure, StructureFilter
from planner.splitting import SHARES, may_split, rest_s, tables_below, without_fusions

TIE_TOLERANCE_RATIO = 0.01
"""Plans this close to the optimum count as equal; the simpler one is taken."""
STALENESS_STEPS = (1, 2, 4)
"""Version lags that are shown beside the largest one permitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPart:
    """One execution: its inputs, the priced workers and the problem."""

    inputs: PricingInputs
    priced: tuple[PricedWorker, ...]
    problem: SearchProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessResult:
    """The best plan with at most so many versions of lag."""

    staleness: int
    is_permitted: bool
    part: SearchPart
    result: SearchResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one search did; `chosen` is the part that the solution belongs to (the first one where there is none)."""

    parts: tuple[SearchPart, ...]
    chosen: SearchPart
    result: SearchResult
    first_s: float
    """Seconds from the start of the search's pricing to the first plan."""
    by_staleness: tuple[StalenessResult, ...] = ()

    @property
    def inputs(self) -> PricingInputs:
        return self.chosen.inputs

    @property
    def priced(self) -> tuple[PricedWorker, ...]:
        return self.chosen.priced

    @property
    def problem(self) -> SearchProblem:
        return self.chosen.problem


def search(
    request: PlanRequest, cluster: Cluster, rules: FrameworkRules | None, *, with_splits: bool = True
) -> Outcome:
    """Enumerate, price, prune and solve on one cluster.

    The rollout is split over two groups of engines where that gains more than the tolerance, unless `with_splits` is
    False.

    With a permitted staleness the best plan is looked for at every step of it; of plans that are equally good within
    the tolerance the one with the least staleness is taken.
    """
    start = time.perf_counter()
    cluster = reachable(cluster, request.limits.max_gpus)
    rules = None if rules is None else for_workload(rules, request.workload)
    shop = _Shop(request, cluster, rules, with_splits)
    limits = search_limits(request.limits)
    in_step = synchronous_executions(request.limits, rules)
    parts = [shop.part(execution) for execution in in_step]
    priced_s = time.perf_counter() - start
    part, result = _solve(shop, in_step, limits)
    most = _max_staleness(request.limits, rules)
    if not most:
        first_s = priced_s + result.time_to_first_s
        return Outcome(parts=_with(parts, part), chosen=part, result=result, first_s=first_s)
    # Near-equal plans and alternatives are only looked for where they are shown.
    exact = replace(limits, tie_tolerance_ratio=0.0, num_alternatives=0)
    first = StalenessResult(staleness=0, is_permitted=True, part=part, result=result)
    steps, refused = [first], list[StalenessResult]()
    for staleness in sorted({*(step for step in STALENESS_STEPS if step < most), most}):
        executions = asynchronous_executions(staleness, request.limits, rules)
        ahead = tuple(e for e in executions if _is_permitted(e, request.limits))
        parts += [shop.part(execution) for execution in ahead]
        steps.append(_step(shop, staleness, ahead, exact, steps[-1]))
        other = tuple(e for e in executions if not _is_permitted(e, request.limits) and staleness == most)
        if other:
            step = _step(shop, staleness, other, exact, steps[-1])
            if step.result.solution is not steps[-1].result.solution:
                # Only what would gain something is worth a permission.
                refused.append(replace(step, is_permitted=False))
    return _least_stale(parts, steps, refused, priced_s, rules, limits)


def _with(parts: Sequence[SearchPart], chosen: SearchPart) -> tuple[SearchPart, ...]:
    """All parts and the chosen one, which may be one of a split rollout."""
    return (*parts, *(() if any(part is chosen for part in parts) else (chosen,)))


def _step(
    shop: _Shop,
    staleness: int,
    executions: tuple[Execution, ...],
    limits: SearchLimits,
    before: StalenessResult,
) -> StalenessResult:
    """The best plan with at most so much staleness: that of the step `before` unless `executions` have a better one."""
    if not executions:
        return replace(before, staleness=staleness)
    beat = before.result.value if before.result.solution is not None else None
    part, result = _solve(shop, executions, limits, beat=beat)
    if result.solution is None:
        proven = result.status is Status.INFEASIBLE
        status = before.result.status
        if not proven:
            status = Status.UNKNOWN if before.result.solution is None else Status.FEASIBLE
        result = replace(before.result, bound=min(before.result.bound, result.bound), status=status)
        part = before.part
    else:
        result = replace(result, bound=min(before.result.bound, result.bound))
    return StalenessResult(staleness=staleness, is_permitted=True, part=part, result=result)


def _least_stale(
    parts: Sequence[SearchPart],
    steps: list[StalenessResult],
    refused: list[StalenessResult],
    priced_s: float,
    rules: FrameworkRules | None,
    limits: SearchLimits,
) -> Outcome:
    """The outcome with the least staleness that is as good as any, and the bound of all that is permitted."""
    best = steps[-1].result
    chosen = next(step for step in steps if step.result.value <= best.value * (1.0 + TIE_TOLERANCE_RATIO))
    if chosen.part.inputs.execution.is_asynchronous:
        part, shown = solve_parts((chosen.part,), rules, limits)
        if shown.solution is not None:
            chosen = replace(chosen, part=part, result=replace(shown, bound=min(shown.bound, chosen.result.bound)))
    status = chosen.result.status
    if status is Status.OPTIMAL and best.status is not Status.OPTIMAL:
        status = Status.FEASIBLE
    result = replace(
        chosen.result,
        status=status,
        bound=min(best.bound, chosen.result.value),
        num_structures=max(step.result.num_structures for step in steps),
        num_solved=sum(step.result.num_solved for step in steps),
        time_s=sum(step.result.time_s for step in steps),
    )
    first_s = priced_s + steps[0].result.time_to_first_s
    return Outcome(
        parts=_with(parts, chosen.part),
        chosen=chosen.part,
        result=result,
        first_s=first_s,
        by_staleness=(*steps, *refused),
    )


def best_solution(
    request: PlanRequest, cluster: Cluster, rules: FrameworkRules | None, lacking: Sequence[WorkerName]
) -> Solution | None:
    """The best plan of a changed request and nothing that only a report needs; None when nothing fits.

    `lacking` are workers that had no option before the change: they are priced first, and one that still has none
    is the answer.
    """
    cluster = reachable(cluster, request.limits.max_gpus)
    rules = None if rules is None else for_workload(rules, request.workload)
    shop = _Shop(request, cluster, rules)
    executions = permitted_executions(request.limits, rules)
    if any(not shop.has_options(name, executions[0]) for name in lacking):
        return None
    limits = replace(search_limits(request.limits), tie_tolerance_ratio=0.0, num_alternatives=0)
    return _solve(shop, executions, limits)[1].solution


# ---------------------------------------------------------------------------------------------- executions


def policy_of(limits: Limits, rules: FrameworkRules | None) -> SchedulingPolicy:
    """The policy that was asked for, or that of the framework, or the planned order."""
    if limits.policy is not None:
        return limits.policy
    return SchedulingPolicy.PLANNED if rules is None else rules.policy


def synchronous_executions(limits: Limits, rules: FrameworkRules | None) -> tuple[Execution, ...]:
    """Executions without staleness: plain, or with the fusions that the user and the framework allow."""
    fusions = tuple(f for f in Fusion if f in limits.fusions and (rules is None or f in rules.fusions))
    policy = policy_of(limits, rules)
    without_joint = tuple(f for f in fusions if f is not Fusion.INTRA_STAGE)
    result = [Execution(fusions=without_joint, policy=policy)]
    if Fusion.INTRA_STAGE in fusions:
        result.append(Execution(fusions=fusions, policy=policy))
    return tuple(result)


def asynchronous_executions(staleness: int, limits: Limits, rules: FrameworkRules | None) -> tuple[Execution, ...]:
    """Executions with a staleness, as far as the framework can run them."""
    modes = [ExecutionMode.BATCHES, ExecutionMode.STREAMING]
    if rules is not None:
        modes = [mode for mode in modes if staleness <= rules.max_staleness_of(mode)]
    return tuple(Execution(mode=mode, staleness=staleness, policy=policy_of(limits, rules)) for mode in modes)


def permitted_executions(limits: Limits, rules: FrameworkRules | None) -> tuple[Execution, ...]:
    """Executions that hold the best plan, whatever its staleness: synchronous ones first, then those with the largest
    version lag that user and framework permit."""
    most = _max_staleness(limits, rules)
    ahead = asynchronous_executions(most, limits, rules) if most else ()
    return (*synchronous_executions(limits, rules), *(e for e in ahead if _is_permitted(e, limits)))


def _is_permitted(execution: Execution, limits: Limits) -> bool:
    return execution.mode is not ExecutionMode.STREAMING or limits.allow_partial_rollouts


def _max_staleness(limits: Limits, rules: FrameworkRules | None) -> int:
    return limits.max_staleness if rules is None else min(limits.max_staleness, rules.max_staleness)


# ---------------------------------------------------------------------------------------------- pricing


@dataclass(slots=True)
class _Shop:
    """Prices workers under executions; what two executions share is priced once."""

    request: PlanRequest
    cluster: Cluster
    rules: FrameworkRules | None
    with_splits: bool = True
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
        return make_inputs(
            request.workload, self.cluster, self.rules, execution, request.limits.fixed, request.overheads
        )

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
        execution = inputs.execution
        share = execution.share_ratio(worker.name) if worker.name in ROLLOUT_ENGINES else 1.0
        if worker.name is WorkerName.SECOND_ENGINE:
            # With its share, the first group of engines costs the same.
            mirrored = self._inputs(replace(execution, second_share_ratio=1.0 - share))
            first = mirrored.graph.worker(WorkerName.ROLLOUT_ENGINE)
            return as_second_engine(self.price(first, pool, mirrored), worker)
        streams = execution.mode is ExecutionMode.STREAMING and worker.name is WorkerName.ROLLOUT_ENGINE
        key = (worker, pool.name, share, (execution.mode, execution.staleness) if streams else execution.fusions)
        if key not in self._priced:
            fused = (worker, pool.name, share, synchronous_executions(self.request.limits, self.rules)[0].fusions)
            known = None if streams else self._priced.get(fused)
            if known is None or execution.fusions:
                self._priced[key] = price_worker(worker, pool, inputs)
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
        rules=rules,
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


# ---------------------------------------------------------------------------------------------- solving


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


def search_limits(limits: Limits) -> SearchLimits:
    """Limits as the search takes them."""
    return SearchLimits(
        objective=limits.objective,
        max_iteration_s=limits.max_iteration_s,
        max_gpus=limits.max_gpus,
        max_usd_per_iteration=limits.max_usd_per_iteration,
        time_limit_s=limits.time_limit_s,
        seed=limits.seed,
        solver=Solver(limits.solver),
        tie_tolerance_ratio=TIE_TOLERANCE_RATIO,
        num_alternatives=limits.num_alternatives,
    )


def _solve(
    shop: _Shop, executions: Sequence[Execution], limits: SearchLimits, *, beat: float | None = None
) -> tuple[SearchPart, SearchResult]:
    """The best plan under all executions, with or without a split rollout, and the part that it belongs to.

    A split rollout has to gain more than the tolerance; the bound covers it in any case.
    """
    part, result = solve_parts(tuple(shop.part(execution) for execution in executions), shop.rules, limits, beat=beat)
    if not shop.may_split or result.status is Status.UNKNOWN or result.cause not in (None, Cause.LIMITS):
        return part, result
    if result.solution is not None:
        beat = result.bound if result.status is Status.OPTIMAL else result.value
    cutoff_s = np.inf if limits.max_iteration_s is None else np.nextafter(limits.max_iteration_s, np.inf)
    if limits.objective is Objective.TIME and beat is not None:
        cutoff_s = min(cutoff_s, beat)
    plain = without_fusions(executions)
    split = sorted((p for e in plain for p in shop.split_parts(e, cutoff_s)), key=lambda pair: pair[1])
    if not split:
        return part, result
    left_s = limits.time_limit_s - result.time_s
    exact = replace(limits, tie_tolerance_ratio=0.0, num_alternatives=0, time_limit_s=left_s)
    found = solve_union([p.problem for p, _ in split], exact, bounds_s=[s for _, s in split], beat=beat)
    return _better(shop, (part, result), (split[found.part][0], found), limits, beat)


def _better(
    shop: _Shop,
    whole: tuple[SearchPart, SearchResult],
    split: tuple[SearchPart, SearchResult],
    limits: SearchLimits,
    beat: float | None,
) -> tuple[SearchPart, SearchResult]:
    """The best plan with a split rollout if that gains more than the tolerance over `beat`, else the best of `whole`;
    in any case with what was searched and proven in both."""
    (part, result), (split_part, found) = whole, split
    status = result.status
    if Status.UNKNOWN in (found.status, result.status) or Status.FEASIBLE in (found.status, result.status):
        status = Status.UNKNOWN if result.solution is None else Status.FEASIBLE
    alternatives = result.alternatives
    if found.solution is not None and (beat is None or found.value < beat * (1.0 - TIE_TOLERANCE_RATIO)):
        part, shown = split_part, found
        if limits.tie_tolerance_ratio > 0.0 or limits.num_alternatives:
            _, shown = solve_parts((part,), shop.rules, limits)
        alternatives = _alternatives(result, shown.alternatives, limits.num_alternatives)
        status = Status.OPTIMAL if status in (Status.OPTIMAL, Status.INFEASIBLE) else Status.FEASIBLE
        shown = shown if shown.solution is not None else found
    else:
        shown = result
    return part, replace(
        shown,
        status=status,
        bound=min(result.bound, found.bound),
        alternatives=alternatives,
        num_structures=result.num_structures + found.num_structures,
        num_excluded=result.num_excluded,
        num_solved=result.num_solved + found.num_solved,
        solver=" + ".join(sorted({*result.solver.split(" + "), *found.solver.split(" + ")})),
        time_to_first_s=result.time_to_first_s or shown.time_to_first_s,
        time_s=result.time_s + found.time_s,
    )


def _alternatives(
    whole: SearchResult, split: tuple[AlternativeStructure, ...], num: int
) -> tuple[AlternativeStructure, ...]:
    """Other structures beside a plan with a split rollout, those without one included."""
    found = [*split, *whole.alternatives]
    best = whole.solution
    if best is not None:
        found.append(
            AlternativeStructure(
                structure=best.structure, time_s=best.time_s, bound_s=whole.bound, num_gpus=best.num_gpus
            )
        )
    return tuple(sorted(found, key=lambda item: item.time_s)[:num])


def solve_parts(
    parts: Sequence[SearchPart],
    rules: FrameworkRules | None,
    limits: SearchLimits,
    *,
    beat: float | None = None,
) -> tuple[SearchPart, SearchResult]:
    """The best plan over all parts, and the part that it belongs to; only plans with an objective below `beat`."""
    owners: list[SearchPart] = []
    problems: list[SearchProblem] = []
    bounds_s: list[float] = []
    for part in parts:
        for problem, bound_s in _sub_problems(part, rules):
            owners.append(part)
            problems.append(problem)
            bounds_s.append(bound_s)
    if not problems:
        # No combination of degrees is open to all workers that share processes.
        result = solve(parts[0].problem, limits)
        reason = ("no degrees that all workers in one process can share", result.num_structures)
        return parts[0], replace(result, status=Status.INFEASIBLE, solution=None, num_excluded=(reason,))
    result = solve_union(problems, limits, bounds_s=bounds_s, beat=beat)
    return owners[result.part], result


def _sub_problems(part: SearchPart, rules: FrameworkRules | None) -> Iterator[tuple[SearchProblem, float]]:
    if Fusion.INTRA_STAGE in part.inputs.execution.fusions:
        yield from ((problem, 0.0) for problem in _joint_pipelines(part))
    elif rules is None or lacking_workers(part.priced):
        yield part.problem, 0.0
    else:
        yield from ((piece.problem, piece.bound_s) for piece in mesh.parts(rules, part.priced, part.problem))


def _joint_pipelines(part: SearchPart) -> Iterator[SearchProblem]:
    """One problem per number of pipeline ranks: two updates in one pipeline have it in common, and both models keep
    their states on the GPUs."""
    both = (WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER)
    degrees: dict[WorkerName, set[int]] = {}
    for item in part.priced:
        if item.worker.name in both and isinstance(item.candidates, TrainerTable):
            found = np.unique(item.candidates.take(item.options.row).pp).astype(int).tolist()
            degrees.setdefault(item.worker.name, set()).update(found)
    for pp in sorted(set.intersection(*degrees.values()) - {1}) if len(degrees) == 2 else ():
        tables = tuple(_in_pipeline(item, pp) if item.worker.name in both else item.options for item in part.priced)
        yield replace(part.problem, options=tables)


def _in_pipeline(item: PricedWorker, pp: int) -> OptionTable:
    assert isinstance(item.candidates, TrainerTable)
    table = take(item.options, item.candidates.take(item.options.row).pp == pp)
    if item.worker.name is WorkerName.CRITIC_TRAINER:
        return replace(table, idle_bytes=table.active_bytes)
    return table
