"""make_plan(): from a request to a proven plan. Read this first."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace

from planner.assembly import Assembled, PlacedStrategy, assemble
from planner.bands import plan_bands
from planner.cost.generation import beside_cache_bytes
from planner.cost.jobs import engine_job
from planner.domain.execution import IN_STEP, Execution, ExecutionMode
from planner.domain.framework import FrameworkRules
from planner.domain.framework_verdict import plan_problems, workload_problems
from planner.domain.framework_workload import as_run_by
from planner.domain.hardware import Cluster, Pool
from planner.domain.plan import (
    Alternative,
    Assumption,
    FrameworkVerdict,
    Limits,
    NamedValue,
    Objective,
    Plan,
    RunReport,
    SearchReport,
    StalenessGain,
    Status,
)
from planner.domain.request import FixedWorker, PlanRequest
from planner.domain.stages import WorkerName
from planner.domain.strategy import RolloutStrategy, RolloutTable
from planner.domain.verdict import Misfit, MisfitKind
from planner.errors import InfeasibleError, NoPlanFoundError
from planner.files.framework import load_framework, load_frameworks
from planner.link_use import link_use
from planner.parts import SearchPart, lacking_workers, make_inputs, make_problem, reachable
from planner.placing import SYNCED_WORKERS, crossing_notes, device_group, place
from planner.search.clock import no_plan_within
from planner.search.pricing import (
    PRICED_AND_REJECTED,
    PricingInputs,
    broken_rules,
    price_worker,
    reprice,
    site_of,
)
from planner.search.solve import Solution
from planner.solving import (
    TIE_TOLERANCE_RATIO,
    Outcome,
    StalenessResult,
    best_result,
    best_solution,
    first_plan,
    search,
    search_limits,
    solve_parts,
)
from planner.sync_choice import best_sync
from planner.units import format_seconds_like
from planner.variation import varying_time_s

MEAN_RESPONSE = "mean response"
"""The assumption that plans depend on most."""
SENSITIVITY_FACTORS = (0.5, 1.5)
SENSITIVITY_GAIN_RATIO = 0.02
"""Smaller gains do not make a plan another plan: the cost model is not that exact."""
OPEN_COST_NODES = 64
"""Nodes among which the cheapest cluster is looked for when none is given."""
EARLY_PLAN_PLACES = 8
"""Nodes times models: from here on the search is worth a first plan before all options are priced."""
MAX_OPEN_NODES = 128
"""Largest cluster considered when the user asks for the smallest one that works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan with the search behind it, for what builds on the same priced options."""

    plan: Plan
    outcome: Outcome
    rules: FrameworkRules | None


def make_plan(request: PlanRequest, *, with_unrestricted: bool = True) -> Plan:
    """The best plan of the declared space, with its proof.

    `with_unrestricted` adds what the best plan of any framework would reach, where the request names one: that is
    another search. Raises InfeasibleError when nothing fits and NoPlanFoundError when the time limit ends the search
    first.
    """
    return plan_with_search(request, with_unrestricted=with_unrestricted).plan


def plan_with_search(request: PlanRequest, *, with_unrestricted: bool = True) -> Planned:
    """As `make_plan`, with the search that found the plan."""
    start = time.perf_counter()
    rules = load_framework(request.limits.framework) if request.limits.framework else None
    request = _for_framework(request, rules)
    try:
        if request.cluster is None:
            request, cluster, outcome = _smallest_cluster(request, rules)
        else:
            cluster = request.cluster
            outcome = _search_in_time(request, cluster, rules)
    except NoPlanFoundError:
        raise no_plan_within(request.limits.time_limit_s) from None
    if outcome.result.status is Status.UNKNOWN:
        raise no_plan_within(request.limits.time_limit_s)
    if outcome.result.solution is None:
        raise InfeasibleError(_why_infeasible(request, cluster, outcome))
    plan = _plan(request, cluster, outcome, outcome.result.solution, start)
    if rules is not None and with_unrestricted:
        left = _in_time_left(request, start)
        plan = replace(plan, unrestricted_value=_unrestricted_value(left, cluster, outcome))
    return Planned(plan=plan, outcome=outcome, rules=rules)


def _search_in_time(request: PlanRequest, cluster: Cluster, rules: FrameworkRules | None) -> Outcome:
    """The search; where it is worth it, an early plan goes before it, which is the answer if the time limit ends the
    search before it finds a better one."""
    start = time.perf_counter()
    early = first_plan(request, cluster, rules) if _wants_early_plan(request, cluster) else None
    left = _in_time_left(request, start)
    if early is None:
        return search(left, cluster, rules)
    try:
        outcome = search(left, cluster, rules)
    except NoPlanFoundError:
        return early
    if outcome.result.status is Status.OPTIMAL or outcome.result.value <= early.result.value:
        return replace(outcome, first_s=early.first_s)
    # A search that the time limit ended may not have seen the early plan.
    return replace(early, result=replace(early.result, bound=min(outcome.result.bound, early.result.value)))


def _wants_early_plan(request: PlanRequest, cluster: Cluster) -> bool:
    """Below some size the whole search takes no longer than a person notices."""
    nodes = sum(pool.num_nodes for pool in reachable(cluster, request.limits.max_gpus).pools)
    workload = request.workload
    models = [
        workload.actor,
        workload.critic,
        workload.reward.model,
        workload.actor if workload.has_reference else None,
    ]
    return nodes * sum(model is not None for model in models) >= EARLY_PLAN_PLACES


def _in_time_left(request: PlanRequest, start: float) -> PlanRequest:
    """The request with what its time limit leaves since `start`."""
    left_s = max(request.limits.time_limit_s - (time.perf_counter() - start), 0.0)
    return replace(request, limits=replace(request.limits, time_limit_s=left_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPlan:
    """A fixed configuration, priced; `misfits` are what keeps it from running as it is."""

    plan: Plan
    misfits: tuple[Misfit, ...]


def estimate(request: PlanRequest, strategies: tuple[FixedWorker, ...], execution: Execution = IN_STEP) -> Plan:
    """Price a fixed configuration without any search.

    The plan's status is FEASIBLE, or INFEASIBLE when a capacity is exceeded; its bound is its own time, since
    nothing else was considered.
    """
    return price_fixed(request, strategies, execution).plan


def price_fixed(request: PlanRequest, strategies: tuple[FixedWorker, ...], execution: Execution = IN_STEP) -> FixedPlan:
    """As `estimate`, with the kind of everything that does not fit."""
    assert request.cluster is not None
    start = time.perf_counter()
    inputs = make_inputs(request.workload, request.cluster, None, execution, overheads=request.overheads)
    groups = {(item.pool, item.first_gpu, item.num_gpus) for item in strategies}
    ids = {key: f"{key[0]}/{index}" for index, key in enumerate(sorted(groups))}
    placed = []
    for item in strategies:
        pool = request.cluster.pool(item.pool)
        placed.append(
            PlacedStrategy(
                worker=inputs.graph.worker(item.worker),
                pool=pool,
                group=device_group(ids[item.pool, item.first_gpu, item.num_gpus], pool, item.first_gpu, item.num_gpus),
                strategy=item.strategy,
            )
        )
    assembled = assemble(placed, inputs, None)
    illegal = [
        Misfit(kind=MisfitKind.RULE, text=f"{item.worker.name.value}: {reason}")
        for item in placed
        for reason in broken_rules(item.worker, item.pool, item.strategy, inputs)
    ]
    found = (*illegal, *assembled.misfits)
    problems = tuple(Assumption(what="does not fit", value=item.text, source="cost model") for item in found)
    plan = Plan(
        status=Status.INFEASIBLE if found else Status.FEASIBLE,
        workload=inputs.workload,
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
        execution=assembled.execution,
        period_s=assembled.time_s if execution.is_asynchronous else None,
        run=_run_report(start, 0.0),
    )  # fmt: skip
    return FixedPlan(plan=_judged(plan), misfits=found)


def engine_overhead_ratio(
    request: PlanRequest, strategy: RolloutStrategy, pool: Pool, execution: Execution = IN_STEP
) -> float:
    """Share of a GPU that a rollout engine takes beside its weights and its KV cache: activations, graphs, the context
    and communicators."""
    assert request.cluster is not None
    inputs = make_inputs(request.workload, request.cluster, None, execution, overheads=request.overheads)
    job = engine_job(inputs.workload, inputs.graph.worker(WorkerName.ROLLOUT_ENGINE), execution)
    beside = beside_cache_bytes(job, RolloutTable.of((strategy,)), site_of(pool, inputs))
    return float(beside[0]) / pool.node.gpu.memory_bytes


def _for_framework(request: PlanRequest, rules: FrameworkRules | None) -> PlanRequest:
    """The request as the framework runs it; InfeasibleError when it cannot run the workload at all."""
    if rules is None:
        return request
    workload = as_run_by(rules, request.workload)
    assumptions = request.assumptions
    if workload is not request.workload:
        assumptions += (
            Assumption(what="old log-probs", value="recomputed by the trainer", source=f"{rules.title} does so"),
        )
    problems = workload_problems(rules, workload)
    if problems:
        raise InfeasibleError("; ".join(problems) + "; plan without --framework, or choose another one")
    return replace(request, workload=workload, assumptions=assumptions)


def _smallest_cluster(request: PlanRequest, rules: FrameworkRules | None) -> tuple[PlanRequest, Cluster, Outcome]:
    """The cluster of the open type with the least objective: fewest GPUs, or least USD (GPU-hours) per iteration.

    Nodes are doubled until something fits; fewer ones are then part of the search. NoPlanFoundError when the time is
    over before that.
    """
    start = time.perf_counter()
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
        inputs = make_inputs(request.workload, cluster, rules, IN_STEP, request.limits.fixed, request.overheads)
        suspects = [price_worker(worker, pool, inputs) for worker in inputs.graph.workers if worker.name in lacking]
        if num_nodes < MAX_OPEN_NODES and lacking_workers(suspects):
            num_nodes *= 2
            continue
        outcome = search(_in_time_left(open_request, start), cluster, rules)
        found = outcome.result.solution
        if found is not None or num_nodes >= MAX_OPEN_NODES:
            break
        lacking = frozenset(lacking_workers(outcome.priced))
        num_nodes *= 2
    if found is not None:
        nodes_used = -(-found.num_gpus // node.gpus_per_node)
        cluster = Cluster(pools=(replace(pool, num_nodes=nodes_used),))
    return replace(open_request, cluster=cluster, gpu_type_when_open=None), cluster, outcome


def _why_infeasible(request: PlanRequest, cluster: Cluster, outcome: Outcome) -> str:
    from planner.explain import Found, explain_infeasible

    lacking = lacking_workers(outcome.priced)

    def feasible(changed: PlanRequest, on: Cluster) -> Found | None:
        rules = load_framework(changed.limits.framework) if changed.limits.framework else None
        try:
            solution = best_solution(changed, on, rules, lacking)
        except NoPlanFoundError:
            # A change that takes too long to try is not offered.
            return None
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
    workload = replace(outcome.inputs.workload, response=replace(law, mean_tokens=mean_tokens))
    inputs = replace(outcome.inputs, workload=workload)
    same = assemble(placed, inputs, solution.timing)
    where = f"at mean {mean_tokens:,}"
    if same.problems:
        return f"{where} this plan no longer fits"
    priced = tuple(reprice(item, inputs) for item in outcome.priced)
    # The fastest plan is only of interest if it gains enough; a limit on time prunes all others.
    wants_time = request.limits.objective is Objective.TIME
    limits = replace(
        search_limits(request.limits),
        max_iteration_s=same.time_s * (1.0 - SENSITIVITY_GAIN_RATIO) if wants_time else None,
        tie_tolerance_ratio=0.0,
        num_alternatives=0,
    )
    problem = make_problem(priced, inputs, cluster, request.limits)
    part = SearchPart(inputs=inputs, priced=priced, problem=problem)
    best = solve_parts((part,), limits)[1].solution
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
    assembled = assemble(placed, outcome.inputs, solution.timing)
    _confirm(assembled, solution)
    result = outcome.result
    assembled, gain = _plain_if_as_good(placed, outcome.inputs, assembled, request.limits)
    assembled, synced = best_sync(placed, outcome.inputs, assembled, request.limits)
    value = result.value
    if result.unit != "GPUs":
        # Everything else is proportional to the time.
        value *= assembled.time_s / solution.time_s
    rejected: dict[str, float] = {}
    for item in outcome.priced:
        for reason, count in item.rejected:
            rejected[reason] = rejected.get(reason, 0) + count
    num_priced = sum(item.num_candidates for item in outcome.priced)
    num_kept = sum(len(item.options) for item in outcome.priced)
    num_unfit = sum(
        count for item in outcome.priced for reason, count in item.rejected if reason in PRICED_AND_REJECTED
    )
    plan = Plan(
        status=result.status,
        workload=outcome.inputs.workload,
        cluster=cluster,
        limits=request.limits,
        objective_unit=result.unit,
        objective_value=value,
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
        assumptions=(
            *_with_sensitivity(_in_time_left(request, start), cluster, outcome, solution, placed),
            *gain,
            *synced,
            *crossing_notes(placed),
            *_off_policy(request, outcome),
            *_vendors(placed),
        ),
        execution=assembled.execution,
        period_s=assembled.time_s if assembled.execution.is_asynchronous else None,
        staleness_gains=tuple(_gain(step, cluster, request.limits.seed) for step in outcome.by_staleness),
    )
    plan = _judged(plan)
    return replace(plan, run=_run_report(start, outcome.first_s))


def _unrestricted_value(request: PlanRequest, cluster: Cluster, outcome: Outcome) -> float | None:
    """What the best plan of any framework would reach, in the unit of the objective.

    The framework's own plan is one of that space, so that a preference for simple plans cannot make it look better.
    """
    free = replace(request, limits=replace(request.limits, framework=None))
    try:
        result = best_result(free, cluster, None, ())
    except NoPlanFoundError:
        return None
    # What the time limit ended says nothing about the best plan.
    if result is None or result.solution is None or result.status is not Status.OPTIMAL:
        return None
    found = result.solution
    values = {"s": found.time_s, "GPUs": float(found.num_gpus), "USD": found.usd}
    value = values.get(outcome.result.unit)
    return None if value is None else min(value, outcome.result.value)


def _plain_if_as_good(
    placed: tuple[PlacedStrategy, ...], inputs: PricingInputs, fused: Assembled, limits: Limits
) -> tuple[Assembled, tuple[Assumption, ...]]:
    """The same placement without fusion where that is as good and within the limits, else what fusion saves."""
    if not fused.execution.fusions:
        return fused, ()
    plain = assemble(placed, replace(inputs, execution=replace(inputs.execution, fusions=())), None)
    # What an iteration costs grows with its time: under a limit on that, plain has to be as fast.
    tolerance_ratio = TIE_TOLERANCE_RATIO if limits.max_usd_per_iteration is None else 0.0
    most_s = fused.time_s * (1.0 + tolerance_ratio)
    if limits.max_iteration_s is not None:
        most_s = max(min(most_s, limits.max_iteration_s), fused.time_s)
    if plain.time_s <= most_s:
        return plain, ()
    saved_s = plain.time_s - fused.time_s
    return fused, (
        Assumption(
            what="stage fusion",
            value=" and ".join(fusion.value for fusion in fused.execution.fusions),
            source="default",
            effect=f"saves {format_seconds_like(saved_s, plain.time_s)} ({saved_s / plain.time_s:.0%}) "
            "with this placement; --fusion none plans without",
        ),
    )


def _off_policy(request: PlanRequest, outcome: Outcome) -> tuple[Assumption, ...]:
    """What staleness makes necessary."""
    if outcome.inputs.workload.needs_old_logprob == request.workload.needs_old_logprob:
        return ()
    return (
        Assumption(
            what="old log-probs",
            value="recomputed by the trainer",
            source="staleness: updates are off-policy",
            effect="the correction for off-policy responses needs them",
        ),
    )


def _vendors(placed: tuple[PlacedStrategy, ...]) -> tuple[Assumption, ...]:
    """That the weight sync would have to cross from the GPUs of one vendor to those of another."""
    vendors = sorted({item.pool.node.gpu.vendor for item in placed if item.worker.name in SYNCED_WORKERS})
    if len(vendors) < 2:
        return ()
    return (
        Assumption(
            what="GPUs of several vendors",
            value=" and ".join(vendors),
            source="cluster",
            effect="no collective library spans them: the weight sync is priced as if one did; "
            "--fix, or pools of one vendor, plan without",
        ),
    )


def _gain(step: StalenessResult, cluster: Cluster, seed: int) -> StalenessGain:
    found = step.result.solution
    varying = None
    if found is not None:
        placed = place(found, step.part.priced, cluster)
        varying = varying_time_s(placed, step.part.inputs, found.timing, seed=seed)
    return StalenessGain(
        staleness=step.staleness,
        mode=ExecutionMode.SYNCHRONOUS.value if found is None else found.execution.mode.value,
        time_s=None if found is None else found.time_s,
        varying_time_s=varying,
        is_permitted=step.is_permitted,
        num_gpus=0 if found is None else found.num_gpus,
    )


def _confirm(assembled: Assembled, solution: Solution) -> None:
    """The independent pricing must agree with the search; anything else is a fault of ours, never a plan."""
    if assembled.problems:
        raise RuntimeError(f"the plan found does not fit after all: {assembled.problems[0]}")
    if abs(assembled.time_s - solution.time_s) > 1e-6 * solution.time_s:
        raise RuntimeError(f"the plan found takes {assembled.time_s} s, the search said {solution.time_s} s")


def _judged(plan: Plan) -> Plan:
    """The plan with what frameworks and measurements say about it."""
    time_band, memory_band = plan_bands(plan)
    return replace(plan, frameworks=_verdicts(plan), time_band=time_band, memory_band=memory_band, links=link_use(plan))


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
