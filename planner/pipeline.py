"""make_plan(): from a request to a proven plan. Read this first."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from planner.assembly import Assembled, PlacedStrategy, assemble
from planner.bands import plan_bands
from planner.cost.jobs import host_stage_s
from planner.domain.framework import FrameworkRules, placement_problem, sharing_problem
from planner.domain.framework_verdict import plan_problems, workload_problems
from planner.domain.hardware import Cluster, Pool
from planner.domain.plan import (
    Alternative,
    Assumption,
    DeviceGroup,
    FrameworkVerdict,
    Limits,
    NamedValue,
    Objective,
    Plan,
    RunReport,
    SearchReport,
    Status,
)
from planner.domain.request import FixedWorker, PlanRequest
from planner.domain.stages import StageKind, WorkerName, build_graph
from planner.domain.workload import Workload
from planner.errors import InfeasibleError, NoPlanFoundError
from planner.files.catalog import load_overheads
from planner.files.framework import load_framework, load_frameworks
from planner.search import mesh
from planner.search.pricing import (
    PRICED_AND_REJECTED,
    PricedWorker,
    PricingInputs,
    broken_rules,
    price_worker,
    reprice,
    search_pool,
)
from planner.search.problem import SearchLimits, SearchProblem, Solver
from planner.search.solve import SearchResult, Solution, solve, solve_union
from planner.search.structures import Structure
from planner.units import format_seconds_like

TIE_TOLERANCE_RATIO = 0.01
"""Plans this close to the optimum count as equal; the simpler one is taken."""
SYNCED_WORKERS = frozenset({WorkerName.ACTOR_TRAINER, WorkerName.ROLLOUT_ENGINE})
MEAN_RESPONSE = "mean response"
"""The assumption that plans depend on most."""
SENSITIVITY_FACTORS = (0.5, 1.5)
SENSITIVITY_GAIN_RATIO = 0.02
"""Smaller gains do not make a plan another plan: the cost model is not that exact."""
OPEN_COST_NODES = 64
"""Nodes among which the cheapest cluster is looked for when none is given."""
MAX_OPEN_NODES = 128
"""Largest cluster considered when the user asks for the smallest one that works."""


def make_plan(request: PlanRequest) -> Plan:
    """The best plan of the declared space, with its proof.

    Raises InfeasibleError when nothing fits and NoPlanFoundError when the time limit ends the search first.
    """
    start = time.perf_counter()
    rules = load_framework(request.limits.framework) if request.limits.framework else None
    request = _for_framework(request, rules)
    if request.cluster is None:
        request, cluster, outcome = _smallest_cluster(request, rules)
    else:
        cluster = request.cluster
        outcome = search(request, cluster, rules)
    if outcome.result.status is Status.UNKNOWN:
        raise NoPlanFoundError(
            f"no plan found within {request.limits.time_limit_s:g} s, and no proof that there is none; "
            f"allow more time with --time-limit"
        )
    if outcome.result.solution is None:
        raise InfeasibleError(_why_infeasible(request, cluster, outcome))
    return _plan(request, cluster, outcome, outcome.result.solution, start)


def estimate(request: PlanRequest, strategies: tuple[FixedWorker, ...]) -> Plan:
    """Price a fixed configuration without any search.

    The plan's status is FEASIBLE, or INFEASIBLE when a capacity is exceeded; its bound is its own time, since
    nothing else was considered.
    """
    assert request.cluster is not None
    start = time.perf_counter()
    inputs = _inputs(request.workload, request.cluster, None)
    groups = {(item.pool, item.first_gpu, item.num_gpus) for item in strategies}
    ids = {key: f"{key[0]}/{index}" for index, key in enumerate(sorted(groups))}
    placed = []
    for item in strategies:
        pool = request.cluster.pool(item.pool)
        placed.append(
            PlacedStrategy(
                worker=inputs.graph.worker(item.worker),
                pool=pool,
                group=_device_group(ids[item.pool, item.first_gpu, item.num_gpus], pool, item.first_gpu, item.num_gpus),
                strategy=item.strategy,
            )
        )
    assembled = assemble(placed, inputs, None)
    illegal = [
        f"{item.worker.name.value}: {reason}"
        for item in placed
        for reason in broken_rules(item.worker, item.pool, item.strategy, inputs)
    ]
    found = (*illegal, *assembled.problems)
    problems = tuple(Assumption(what="does not fit", value=problem, source="cost model") for problem in found)
    plan = Plan(
        status=Status.INFEASIBLE if found else Status.FEASIBLE,
        workload=request.workload,
        cluster=request.cluster,
        limits=request.limits,
        objective_unit="s",
        objective_value=assembled.time_s,
        bound=assembled.time_s,
        device_groups=assembled.device_groups,
        placements=assembled.placements,
        schedule=assembled.schedule,
        search=SearchReport(
            num_priced=len(placed), num_rejected=(), num_pruned=0, num_structures=1, num_structures_solved=0,
            solver="none (fixed configuration)",
        ),
        alternatives=(),
        frameworks=(),
        assumptions=problems + request.assumptions,
        run=_run_report(start, 0.0),
    )  # fmt: skip
    return _judged(plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one search did."""

    inputs: PricingInputs
    priced: tuple[PricedWorker, ...]
    problem: SearchProblem
    result: SearchResult
    first_s: float
    """Seconds from the start of the search's pricing to the first plan."""


def search(request: PlanRequest, cluster: Cluster, rules: FrameworkRules | None) -> Outcome:
    """Enumerate, price, prune and solve on one cluster."""
    start = time.perf_counter()
    cluster = _reachable(cluster, request.limits.max_gpus)
    inputs = _inputs(request.workload, cluster, rules)
    priced = _priced(inputs, cluster)
    problem = _problem(priced, inputs, cluster)
    priced_s = time.perf_counter() - start
    result = _solve(problem, priced, rules, _search_limits(request.limits))
    return Outcome(
        inputs=inputs, priced=priced, problem=problem, result=result, first_s=priced_s + result.time_to_first_s
    )


def _reachable(cluster: Cluster, max_gpus: int | None) -> Cluster:
    """The nodes that a limit on GPUs leaves: no pool is used beyond it, and groups always pack into whole nodes."""
    if max_gpus is None:
        return cluster
    pools = tuple(
        replace(pool, num_nodes=min(pool.num_nodes, -(-max_gpus // pool.node.gpus_per_node))) for pool in cluster.pools
    )
    return replace(cluster, pools=pools)


def _priced(inputs: PricingInputs, cluster: Cluster) -> tuple[PricedWorker, ...]:
    """Every worker on every pool."""
    return tuple(price_worker(worker, pool, inputs) for worker in inputs.graph.workers for pool in cluster.pools)


def _lacking(priced: Sequence[PricedWorker]) -> tuple[WorkerName, ...]:
    """Workers that have no option on any pool: then there is no plan."""
    able = {item.worker.name for item in priced if len(item.options)}
    return tuple(dict.fromkeys(item.worker.name for item in priced if item.worker.name not in able))


def _best(
    request: PlanRequest, cluster: Cluster, rules: FrameworkRules | None, lacking: Sequence[WorkerName]
) -> Solution | None:
    """The best plan of a changed request and nothing that only a report needs; None when nothing fits.

    `lacking` are workers that had no option before the change: they are priced first, and one that still has none
    is the answer.
    """
    cluster = _reachable(cluster, request.limits.max_gpus)
    inputs = _inputs(request.workload, cluster, rules)
    priced: list[PricedWorker] = []
    for worker in sorted(inputs.graph.workers, key=lambda item: item.name not in lacking):
        items = tuple(price_worker(worker, pool, inputs) for pool in cluster.pools)
        if _lacking(items):
            return None
        priced += items
    limits = replace(_search_limits(request.limits), tie_tolerance_ratio=0.0, num_alternatives=0)
    return _solve(_problem(priced, inputs, cluster), priced, rules, limits).solution


def _problem(priced: Sequence[PricedWorker], inputs: PricingInputs, cluster: Cluster) -> SearchProblem:
    rules = inputs.rules
    return SearchProblem(
        graph=inputs.graph,
        pools=tuple(search_pool(pool, inputs) for pool in cluster.pools),
        options=tuple(item.options for item in priced),
        host_stage_s=tuple(
            (stage.name, host_stage_s(inputs.workload)) for stage in inputs.graph.stages if stage.kind is StageKind.HOST
        ),
        structure_filter=None if rules is None else partial(structure_problem, rules, inputs.workload),
        equal_size=rules is not None and rules.shared_workers_use_whole_group,
    )


def _solve(
    problem: SearchProblem, priced: Sequence[PricedWorker], rules: FrameworkRules | None, limits: SearchLimits
) -> SearchResult:
    if rules is None or _lacking(priced):
        return solve(problem, limits)
    parts = mesh.parts(rules, priced, problem)
    if parts:
        problems = tuple(part.problem for part in parts)
        return solve_union(problems, limits, bounds_s=tuple(part.bound_s for part in parts))
    # No combination of degrees is open to all workers that share processes.
    result = solve(problem, limits)
    reason = ("no degrees that all workers in one process can share", result.num_structures)
    return replace(result, status=Status.INFEASIBLE, solution=None, num_excluded=(reason,))


def structure_problem(rules: FrameworkRules, workload: Workload, structure: Structure) -> str | None:
    """Why a framework cannot run a structure, None if it can."""
    if rules.shared_workers_use_whole_group and any(pool.whole for pool in structure.pools):
        return f"{rules.title} gives workers that share GPUs all GPUs of one group"
    groups = tuple(frozenset(members) for pool in structure.pools for members in pool.memory_groups)
    present = frozenset(worker for pool in structure.pools for worker in pool.workers)
    if rules.one_pool and len(structure.pools) > 1:
        return f"{rules.title} uses one kind of node"
    return placement_problem(rules, groups, present) or sharing_problem(rules, workload, groups)


def _inputs(workload: Workload, cluster: Cluster, rules: FrameworkRules | None) -> PricingInputs:
    return PricingInputs(
        cross_pool_bytes_per_s=cluster.cross_pool_bytes_per_s,
        workload=workload,
        graph=build_graph(workload),
        overheads=load_overheads(),
        rules=rules,
        across_sizes=rules is None or not rules.shared_workers_use_whole_group,
    )


def _search_limits(limits: Limits) -> SearchLimits:
    return SearchLimits(
        objective=limits.objective,
        max_iteration_s=limits.max_iteration_s,
        max_gpus=limits.max_gpus,
        max_usd_per_iteration=limits.max_usd_per_iteration,
        time_limit_s=limits.time_limit_s,
        seed=limits.seed,
        solver=Solver(limits.solver),
        tie_tolerance_ratio=TIE_TOLERANCE_RATIO,
    )


def _for_framework(request: PlanRequest, rules: FrameworkRules | None) -> PlanRequest:
    """The request as the framework runs it; InfeasibleError when it cannot run the workload at all."""
    if rules is None:
        return request
    workload = request.workload
    assumptions = request.assumptions
    if rules.always_recomputes_old_logprob and not workload.needs_old_logprob:
        workload = replace(workload, needs_old_logprob=True)
        assumptions += (
            Assumption(what="old log-probs", value="recomputed by the trainer", source=f"{rules.title} always does"),
        )
    problems = workload_problems(rules, workload)
    if problems:
        raise InfeasibleError("; ".join(problems) + "; plan without --framework, or choose another one")
    return replace(request, workload=workload, assumptions=assumptions)


def _smallest_cluster(request: PlanRequest, rules: FrameworkRules | None) -> tuple[PlanRequest, Cluster, Outcome]:
    """The cluster of the open type with the least objective: fewest GPUs, or least USD (GPU-hours) per iteration.

    Nodes are doubled until something fits; fewer ones are then part of the search.
    """
    node = request.gpu_type_when_open
    assert node is not None
    wants_cost = request.limits.objective is Objective.COST
    open_request = request
    if not wants_cost:
        open_request = replace(request, limits=replace(request.limits, objective=Objective.GPUS))
    num_nodes = OPEN_COST_NODES if wants_cost else 1
    lacking: frozenset[WorkerName] = frozenset()
    while True:
        pool = Pool(name=node.gpu.id, node=node, num_nodes=num_nodes, usd_per_gpu_hour=request.open_usd_per_gpu_hour)
        cluster = Cluster(pools=(pool,))
        inputs = _inputs(request.workload, cluster, rules)
        suspects = [price_worker(worker, pool, inputs) for worker in inputs.graph.workers if worker.name in lacking]
        if num_nodes < MAX_OPEN_NODES and _lacking(suspects):
            num_nodes *= 2
            continue
        outcome = search(open_request, cluster, rules)
        found = outcome.result.solution
        if found is not None or num_nodes >= MAX_OPEN_NODES:
            break
        lacking = frozenset(_lacking(outcome.priced))
        num_nodes *= 2
    if found is not None:
        nodes_used = -(-found.num_gpus // node.gpus_per_node)
        cluster = Cluster(pools=(replace(pool, num_nodes=nodes_used),))
    return replace(open_request, cluster=cluster, gpu_type_when_open=None), cluster, outcome


def _why_infeasible(request: PlanRequest, cluster: Cluster, outcome: Outcome) -> str:
    from planner.explain import Found, explain_infeasible

    lacking = _lacking(outcome.priced)

    def feasible(changed: PlanRequest, on: Cluster) -> Found | None:
        rules = load_framework(changed.limits.framework) if changed.limits.framework else None
        solution = _best(changed, on, rules, lacking)
        if solution is None:
            return None
        return Found(time_s=solution.time_s, num_gpus=solution.num_gpus, usd=solution.usd)

    return explain_infeasible(request, cluster, outcome.inputs, outcome.priced, outcome.result.num_excluded, feasible)


def _with_sensitivity(
    request: PlanRequest, cluster: Cluster, outcome: Outcome, solution: Solution, placed: tuple[PlacedStrategy, ...]
) -> tuple[Assumption, ...]:
    """The assumptions, with what another mean response length would do to the plan if the mean was assumed."""
    if all(item.what != MEAN_RESPONSE for item in request.assumptions):
        return request.assumptions
    effects = []
    for factor in SENSITIVITY_FACTORS:
        effect = _response_effect(request, cluster, outcome, solution, placed, factor)
        if effect is not None:
            effects.append(effect)
    return tuple(
        replace(item, effect="; ".join([*effects, item.effect])) if item.what == MEAN_RESPONSE else item
        for item in request.assumptions
    )


def _response_effect(
    request: PlanRequest,
    cluster: Cluster,
    outcome: Outcome,
    solution: Solution,
    placed: tuple[PlacedStrategy, ...],
    factor: float,
) -> str | None:
    """This plan at another mean, and the best of the options that survived pruning at the assumed one.

    Options that were pruned at the assumed mean are not looked at again, so a gain is a fact and no gain is none.
    """
    law = request.workload.response
    mean_tokens = round(law.mean_tokens * factor)
    if not 0 < mean_tokens <= law.max_tokens:
        return None
    workload = replace(request.workload, response=replace(law, mean_tokens=mean_tokens))
    inputs = replace(outcome.inputs, workload=workload)
    same = assemble(placed, inputs, solution.order)
    where = f"at mean {mean_tokens:,}"
    if same.problems:
        return f"{where} this plan no longer fits"
    priced = tuple(reprice(item, inputs) for item in outcome.priced)
    # The fastest plan is only of interest if it gains enough; a limit on time prunes all others.
    wants_time = request.limits.objective is Objective.TIME
    limits = replace(
        _search_limits(request.limits),
        max_iteration_s=same.time_s * (1.0 - SENSITIVITY_GAIN_RATIO) if wants_time else None,
        tie_tolerance_ratio=0.0,
        num_alternatives=0,
    )
    best = _solve(_problem(priced, inputs, cluster), priced, inputs.rules, limits).solution
    gain = 0.0 if best is None else 1.0 - best.time_s / same.time_s
    if best is None or gain <= SENSITIVITY_GAIN_RATIO:
        return f"{where} this plan takes {format_seconds_like(same.time_s, solution.time_s)}"
    return (
        f"{where} this plan takes {format_seconds_like(same.time_s, solution.time_s)}, "
        f"another one {format_seconds_like(best.time_s, solution.time_s)} "
        f"(-{gain:.0%}): plan again"
    )


def _plan(request: PlanRequest, cluster: Cluster, outcome: Outcome, solution: Solution, start: float) -> Plan:
    placed = place(solution, outcome.priced, cluster)
    assembled = assemble(placed, outcome.inputs, solution.order)
    _confirm(assembled, solution)
    result = outcome.result
    rejected: dict[str, float] = {}
    for item in outcome.priced:
        for reason, count in item.rejected:
            rejected[reason] = rejected.get(reason, 0) + count
    num_priced = sum(len(item.candidates) for item in outcome.priced)
    num_kept = sum(len(item.options) for item in outcome.priced)
    num_unfit = sum(
        count for item in outcome.priced for reason, count in item.rejected if reason in PRICED_AND_REJECTED
    )
    plan = Plan(
        status=result.status,
        workload=request.workload,
        cluster=cluster,
        limits=request.limits,
        objective_unit=result.unit,
        objective_value=result.value,
        bound=result.bound,
        device_groups=assembled.device_groups,
        placements=assembled.placements,
        schedule=assembled.schedule,
        search=SearchReport(
            num_priced=num_priced,
            num_rejected=tuple(NamedValue(name=name, value=rejected[name]) for name in sorted(rejected)),
            num_pruned=num_priced - num_unfit - num_kept,
            num_structures=result.num_structures,
            num_structures_solved=result.num_solved,
            solver=result.solver,
        ),
        alternatives=tuple(
            Alternative(description=item.structure.describe(), time_s=item.time_s, num_gpus=item.num_gpus)
            for item in result.alternatives
        ),
        frameworks=(),
        assumptions=_with_sensitivity(request, cluster, outcome, solution, placed),
    )
    plan = _judged(plan)
    return replace(plan, run=_run_report(start, outcome.first_s))


def _confirm(assembled: Assembled, solution: Solution) -> None:
    """The independent pricing must agree with the search; anything else is a fault of ours, never a plan."""
    if assembled.problems:
        raise RuntimeError(f"the plan found does not fit after all: {assembled.problems[0]}")
    if abs(assembled.time_s - solution.time_s) > 1e-6 * solution.time_s:
        raise RuntimeError(f"the plan found takes {assembled.time_s} s, the search said {solution.time_s} s")


def place(solution: Solution, priced: Sequence[PricedWorker], cluster: Cluster) -> tuple[PlacedStrategy, ...]:
    """Physical GPUs for the groups of a solution.

    Per pool, large blocks come first, so that each is aligned to its size. A pool-wide group is as large as its
    largest worker and begins where the trainer or the engine that it syncs with sits.
    """
    by_place = {(item.worker.name, item.pool.name): item for item in priced}
    sizes: dict[str, int] = {}
    for choice in solution.choices:
        sizes[choice.group] = max(sizes.get(choice.group, 0), choice.num_gpus)
    groups: dict[str, DeviceGroup] = {}
    for pool in cluster.pools:
        blocks = [g for g in solution.groups if g.pool == pool.name and not g.is_whole]
        position = anchor = 0
        for block in sorted(blocks, key=lambda g: (-sizes[g.id], g.id)):
            groups[block.id] = _device_group(block.id, pool, position, sizes[block.id])
            if SYNCED_WORKERS & set(block.workers):
                anchor = position
            position += sizes[block.id]
        wholes = [g for g in solution.groups if g.pool == pool.name and g.is_whole]
        # The search counts the larger of the blocks together and the pool-wide group: no GPU beyond that is used.
        used = max([position, *(sizes[g.id] for g in wholes)])
        for whole in wholes:
            size = sizes[whole.id]
            step = min(size, pool.node.gpus_per_node)
            first = min(anchor // step * step, used - size)
            groups[whole.id] = _device_group(whole.id, pool, first, size)
    return tuple(
        PlacedStrategy(
            worker=by_place[choice.worker, choice.pool].worker,
            pool=cluster.pool(choice.pool),
            group=groups[choice.group],
            strategy=by_place[choice.worker, choice.pool].candidates.row(choice.row),
        )
        for choice in solution.choices
    )


def _device_group(group_id: str, pool: Pool, first_gpu: int, num_gpus: int) -> DeviceGroup:
    per_node = pool.node.gpus_per_node
    num_nodes = (first_gpu + num_gpus - 1) // per_node - first_gpu // per_node + 1
    return DeviceGroup(
        id=group_id,
        pool=pool.name,
        gpu=pool.node.gpu.id,
        first_gpu=first_gpu,
        num_gpus=num_gpus,
        num_nodes=num_nodes,
    )


def _judged(plan: Plan) -> Plan:
    """The plan with what frameworks and measurements say about it."""
    time_band, memory_band = plan_bands(plan)
    return replace(plan, frameworks=_verdicts(plan), time_band=time_band, memory_band=memory_band)


def _verdicts(plan: Plan) -> tuple[FrameworkVerdict, ...]:
    verdicts = []
    for rules in load_frameworks():
        problems = plan_problems(rules, plan)
        verdicts.append(
            FrameworkVerdict(framework=f"{rules.title} {rules.version}", can_run=not problems, reasons=problems)
        )
    return tuple(verdicts)


def _run_report(start: float, first_s: float) -> RunReport:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts KiB, macOS bytes.
    scale = 1.0 if sys.platform == "darwin" else 1024.0
    return RunReport(time_s=time.perf_counter() - start, time_to_first_s=first_s, peak_rss_bytes=peak * scale)
