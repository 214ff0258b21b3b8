"""From a request to a proven solution: which executions are open, what every worker costs, and the search over all.

`search` is the one function to read first. A *part* is a search problem under one execution; frameworks that couple
the degrees of several workers split parts further (`planner.search.mesh`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.execution import Execution, Fusion
from planner.domain.framework import FrameworkRules
from planner.domain.framework_workload import for_workload
from planner.domain.hardware import Cluster
from planner.domain.plan import Limits, Objective, Status
from planner.domain.request import PlanRequest
from planner.domain.stages import WorkerName
from planner.domain.strategy import TrainerTable
from planner.errors import NoPlanFoundError
from planner.executions import (
    asynchronous_executions,
    is_permitted,
    max_staleness,
    permitted_executions,
    synchronous_executions,
)
from planner.parts import SearchPart, Shop, lacking_workers, reachable
from planner.search import mesh, sites
from planner.search.clock import Clock
from planner.search.options import take
from planner.search.pricing import (
    PricedWorker,
    PricingInputs,
)
from planner.search.problem import OptionTable, SearchLimits, SearchProblem, Solver
from planner.search.solve import AlternativeStructure, Cause, SearchResult, Solution, solve, solve_union
from planner.search.space import COARSE
from planner.splitting import without_fusions

TIE_TOLERANCE_RATIO = 0.01
"""Plans this close to the optimum count as equal; the simpler one is taken."""
STALENESS_STEPS = (1, 2, 4)
"""Version lags that are shown beside the largest one permitted."""


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
    shop: Shop
    """What was priced, for further searches of the same request (`best_within`)."""
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
    False. NoPlanFoundError when the time is over before all is priced that synchronous plans need.

    With a permitted staleness the best plan is looked for at every step of it; of plans that are equally good within
    the tolerance the one with the least staleness is taken.
    """
    start = time.perf_counter()
    cluster = reachable(cluster, request.limits.max_gpus)
    rules = None if rules is None else for_workload(rules, request.workload)
    shop = Shop(request, cluster, rules, Clock(request.limits.time_limit_s), with_splits)
    limits = search_limits(request.limits)
    in_step = synchronous_executions(request.limits, rules)
    parts = [shop.part(execution) for execution in in_step]
    priced_s = time.perf_counter() - start
    part, result = _solve(shop, in_step, limits)
    most = max_staleness(request.limits, rules)
    if not most:
        first_s = priced_s + result.time_to_first_s
        return Outcome(parts=_with(parts, part), chosen=part, result=result, first_s=first_s, shop=shop)
    # Near-equal plans and alternatives are only looked for where they are shown.
    exact = replace(limits, tie_tolerance_ratio=0.0, num_alternatives=0)
    first = StalenessResult(staleness=0, is_permitted=True, part=part, result=result)
    steps, refused = [first], list[StalenessResult]()
    for staleness in sorted({*(step for step in STALENESS_STEPS if step < most), most}):
        executions = asynchronous_executions(staleness, request.limits, rules)
        ahead = tuple(e for e in executions if is_permitted(e, request.limits))
        other = tuple(e for e in executions if not is_permitted(e, request.limits) and staleness == most)
        try:
            parts += [shop.part(execution) for execution in ahead]
            steps.append(_step(shop, staleness, ahead, exact, steps[-1]))
        except NoPlanFoundError:
            # The time is over: what was found stays, and nothing is proven of what was not looked at.
            steps.append(_unproven(steps[-1], staleness, request.limits.objective))
            break
        try:
            step = _step(shop, staleness, other, exact, steps[-1])
        except NoPlanFoundError:
            # What is not permitted changes nothing about what is.
            break
        if step.result.solution is not steps[-1].result.solution:
            # Only what would gain something is worth a permission.
            refused.append(replace(step, is_permitted=False))
    limits = replace(limits, time_limit_s=shop.clock.left_s)
    return _least_stale(shop, parts, steps, refused, priced_s, limits)


def first_plan(request: PlanRequest, cluster: Cluster, rules: FrameworkRules | None) -> Outcome | None:
    """A plan from a coarse part of the space, early; None when that holds none or the time is over.

    It is feasible like any other plan; its bound is the work bound alone, since most of the space was not looked at.
    """
    clock = Clock(request.limits.time_limit_s)
    cluster = reachable(cluster, request.limits.max_gpus)
    rules = None if rules is None else for_workload(rules, request.workload)
    shop = Shop(request, cluster, rules, clock, with_splits=False, coverage=COARSE)
    plain = synchronous_executions(request.limits, rules)[:1]
    limits = replace(search_limits(request.limits), tie_tolerance_ratio=0.0, num_alternatives=0)
    try:
        part, result = _solve(shop, plain, limits)
    except NoPlanFoundError:
        return None
    if result.solution is None:
        return None
    result = _of_unproven(result, part, limits.objective)
    return Outcome(parts=(part,), chosen=part, result=result, first_s=clock.elapsed_s, shop=shop)


def _of_unproven(result: SearchResult, part: SearchPart, objective: Objective) -> SearchResult:
    """The result with the bound that holds for all that was not looked at."""
    bound = 0.0
    if objective is Objective.TIME:
        pools = part.problem.pools
        rate = sum(pool.num_gpus * pool.peak_flop_per_s for pool in pools)
        bound = min(part.problem.work_flop / rate, result.bound)
    status = Status.UNKNOWN if result.solution is None else Status.FEASIBLE
    return replace(result, status=status, bound=bound)


def _unproven(before: StalenessResult, staleness: int, objective: Objective) -> StalenessResult:
    """A step that was not searched to the end."""
    return replace(before, staleness=staleness, result=_of_unproven(before.result, before.part, objective))


def _with(parts: Sequence[SearchPart], chosen: SearchPart) -> tuple[SearchPart, ...]:
    """All parts and the chosen one, which may be one of a split rollout."""
    return (*parts, *(() if any(part is chosen for part in parts) else (chosen,)))


def _step(
    shop: Shop,
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
    shop: Shop,
    parts: Sequence[SearchPart],
    steps: list[StalenessResult],
    refused: list[StalenessResult],
    priced_s: float,
    limits: SearchLimits,
) -> Outcome:
    """The outcome with the least staleness that is as good as any, and the bound of all that is permitted."""
    best = steps[-1].result
    chosen = next(step for step in steps if step.result.value <= best.value * (1.0 + TIE_TOLERANCE_RATIO))
    if chosen.part.inputs.execution.is_asynchronous:
        part, shown = solve_parts((chosen.part,), limits)
        if _is_near(shown, chosen.result):
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
        shop=shop,
        by_staleness=(*steps, *refused),
    )


def best_within(outcome: Outcome, limits: SearchLimits) -> SearchResult:
    """The best plan of the same request under other limits and another objective, from what is priced already.

    Of asynchronous plans only those with the largest permitted staleness are looked at: they include all others.
    """
    shop = replace(outcome.shop, clock=Clock(limits.time_limit_s))
    return _solve(shop, permitted_executions(shop.request.limits, shop.rules), limits)[1]


def best_solution(
    request: PlanRequest, cluster: Cluster, rules: FrameworkRules | None, lacking: Sequence[WorkerName]
) -> Solution | None:
    """The best plan that `best_result` finds; None when nothing fits."""
    result = best_result(request, cluster, rules, lacking)
    return None if result is None else result.solution


def best_result(
    request: PlanRequest, cluster: Cluster, rules: FrameworkRules | None, lacking: Sequence[WorkerName]
) -> SearchResult | None:
    """The best plan of a changed request and nothing that only a report needs, with its proof.

    `lacking` are workers that had no option before the change: they are priced first, and where one still has none the
    answer is None.
    """
    cluster = reachable(cluster, request.limits.max_gpus)
    rules = None if rules is None else for_workload(rules, request.workload)
    shop = Shop(request, cluster, rules, Clock(request.limits.time_limit_s))
    executions = permitted_executions(request.limits, rules)
    if any(not shop.has_options(name, executions[0]) for name in lacking):
        return None
    limits = replace(search_limits(request.limits), tie_tolerance_ratio=0.0, num_alternatives=0)
    return _solve(shop, executions, limits)[1]


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
    shop: Shop, executions: Sequence[Execution], limits: SearchLimits, *, beat: float | None = None
) -> tuple[SearchPart, SearchResult]:
    """The best plan under all executions, with or without a split rollout, and the part that it belongs to.

    A split rollout has to gain more than the tolerance; the bound covers it in any case. NoPlanFoundError when the time
    is over before all is priced that plans without one need.
    """
    parts = tuple(shop.part(execution) for execution in executions)
    limits = replace(limits, time_limit_s=shop.clock.left_s)
    part, result = solve_parts(parts, limits, beat=beat)
    if not shop.may_split or result.cause not in (None, Cause.LIMITS):
        return part, result
    # Of what the time does not reach only the work bound is known.
    least = min(parts, key=lambda item: item.problem.work_flop)
    if result.status is Status.UNKNOWN:
        return part, _of_unproven(result, least, limits.objective)
    if result.solution is not None:
        beat = result.bound if result.status is Status.OPTIMAL else result.value
    cutoff_s = np.inf if limits.max_iteration_s is None else np.nextafter(limits.max_iteration_s, np.inf)
    if limits.objective is Objective.TIME and beat is not None:
        cutoff_s = min(cutoff_s, beat)
    plain = without_fusions(executions)
    try:
        split = sorted((p for e in plain for p in shop.split_parts(e, cutoff_s)), key=lambda pair: pair[1])
    except NoPlanFoundError:
        return part, _of_unproven(result, least, limits.objective)
    if not split:
        return part, result
    exact = replace(limits, tie_tolerance_ratio=0.0, num_alternatives=0, time_limit_s=shop.clock.left_s)
    found = solve_union([p.problem for p, _ in split], exact, bounds_s=[s for _, s in split], beat=beat)
    return _better(shop, (part, result), (split[found.part][0], found), limits, beat)


def _better(
    shop: Shop,
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
            _, shown = solve_parts((part,), replace(limits, time_limit_s=shop.clock.left_s))
        alternatives = _alternatives(result, shown.alternatives, limits.num_alternatives)
        status = Status.OPTIMAL if status in (Status.OPTIMAL, Status.INFEASIBLE) else Status.FEASIBLE
        shown = shown if _is_near(shown, found) else found
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


def _is_near(again: SearchResult, exact: SearchResult) -> bool:
    """Whether a second search, for near-equal plans, came as far as the first one before the time was over."""
    return again.solution is not None and again.value <= exact.value * (1.0 + TIE_TOLERANCE_RATIO)


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
    limits: SearchLimits,
    *,
    beat: float | None = None,
) -> tuple[SearchPart, SearchResult]:
    """The best plan over all parts, and the part that it belongs to; only plans with an objective below `beat`."""
    owners: list[SearchPart] = []
    problems: list[SearchProblem] = []
    bounds_s: list[float] = []
    for part in parts:
        for problem, bound_s in _sub_problems(part):
            owners.append(part)
            problems.append(problem)
            bounds_s.append(bound_s)
    if not problems:
        # No combination of degrees is open to all workers that share processes.
        result = solve(parts[0].problem, limits)
        reason = ("no degrees that all workers in one process can share", result.num_structures)
        return parts[0], replace(result, status=Status.INFEASIBLE, solution=None, num_excluded=(reason,))
    result = solve_union(problems, limits, bounds_s=bounds_s, beat=beat)
    told = tuple((reason, count) for reason, count in result.num_excluded if reason != sites.ELSEWHERE)
    return owners[result.part], replace(result, num_excluded=told)


def _sub_problems(part: SearchPart) -> Iterator[tuple[SearchProblem, float]]:
    rules = part.inputs.rules
    if Fusion.INTRA_STAGE in part.inputs.execution.fusions:
        yield from ((problem, 0.0) for problem in _joint_pipelines(part))
    elif rules is None or lacking_workers(part.priced):
        yield part.problem, 0.0
    else:
        variants = sites.variants(rules, part.priced, part.problem)
        pieces = mesh.parts(rules, part.priced, part.problem)
        found = (pair for piece in pieces for pair in sites.split(variants, piece.problem, piece.bound_s))
        yield from sorted(found, key=lambda pair: pair[1])


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
