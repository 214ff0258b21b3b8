"""The best plan of a changed request, as fast as it can be had.

Changes of lengths, efficiencies, bandwidths and memory leave the candidates of every worker as they are: these are
priced again from the case's own search, and what cannot lie on an iteration short enough is dropped before anything is
pruned. Other changes are planned from scratch. Both ways give the optimum (tested against each other).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.hardware import Cluster
from planner.domain.overheads import Overheads
from planner.domain.plan import Objective
from planner.domain.request import PlanRequest
from planner.domain.stages import StageKind
from planner.domain.workload import Workload
from planner.explaining.case import Case, as_run_by, exact, rules_of
from planner.explaining.score import Score, solution_score
from planner.explaining.tables import OptionBook, pruned, within
from planner.parts import SearchPart, make_problem, reachable
from planner.search.pricing import PricedWorker, PricingInputs
from planner.solving import best_solution, solve_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What may differ from the case without changing which strategies exist. `cluster` has the same pools, with the
    same numbers of nodes and GPUs."""

    workload: Workload
    cluster: Cluster
    overheads: Overheads


def world_of(case: Case) -> World:
    """The case as it is."""
    overheads = case.request.overheads
    assert overheads is not None
    return World(workload=case.request.workload, cluster=case.cluster, overheads=overheads)


def replanned(case: Case, request: PlanRequest, cluster: Cluster) -> Score | None:
    """The best plan of any changed request, planned from scratch; None where nothing fits."""
    rules = rules_of(request.limits)
    found = best_solution(as_run_by(request, rules), cluster, rules, ())
    return None if found is None else solution_score(request.limits.objective, cluster, found)


def best_in(case: Case, world: World, cutoff_s: float = np.inf, *, has_other_memory: bool = False) -> Score | None:
    """The best plan of the case's request in another world; None where nothing fits, or takes at most `cutoff_s`.

    `cutoff_s` is used for the objective time only. `has_other_memory` says that GPU memory, host RAM or the share of
    them that plans may use differs: otherwise a trainer that does not fit in the case does not fit in the world,
    since what it holds depends on the longest sequences only.
    """
    if len(case.cluster.pools) > 1:
        # Splits of the rollout over pools are parts of their own.
        changed = replace(case.request, workload=world.workload, cluster=world.cluster, overheads=world.overheads)
        return replanned(case, changed, world.cluster)
    limits = exact(case.limits)
    if limits.objective is not Objective.TIME:
        cutoff_s = np.inf
    cutoff_s = min(cutoff_s, np.inf if limits.max_iteration_s is None else limits.max_iteration_s)
    book = OptionBook()
    cluster = reachable(world.cluster, case.limits.max_gpus)
    parts = []
    for part in case.parts:
        items = part.priced if has_other_memory else tuple(_fitting(case, item, part.inputs) for item in part.priced)
        parts.append(_part_in(case, items, inputs_in(part.inputs, world), cluster, book, cutoff_s))
    bounded = replace(limits, max_iteration_s=None if np.isinf(cutoff_s) else cutoff_s)
    found = solve_parts(parts, case.rules, bounded)[1].solution
    return None if found is None else solution_score(case.limits.objective, world.cluster, found)


def inputs_in(inputs: PricingInputs, world: World) -> PricingInputs:
    """Pricing inputs of one execution in another world."""
    workload = replace(world.workload, needs_old_logprob=inputs.workload.needs_old_logprob)
    return replace(
        inputs,
        workload=workload,
        overheads=world.overheads,
        cross_pool_bytes_per_s=world.cluster.cross_pool_bytes_per_s,
        cross_pool_total_bytes_per_s=world.cluster.inter_pool_total_bytes_per_s,
    )


def _fitting(case: Case, item: PricedWorker, inputs: PricingInputs) -> PricedWorker:
    """The worker with only the candidates that fit in the case; engines, which are few, keep all."""
    if item.worker.kind is StageKind.GENERATION:
        return item
    return replace(item, candidates=item.candidates.take(case.book.options(item, inputs).row))


def _part_in(
    case: Case,
    items: Sequence[PricedWorker],
    inputs: PricingInputs,
    cluster: Cluster,
    book: OptionBook,
    cutoff_s: float,
) -> SearchPart:
    def priced(item: PricedWorker) -> PricedWorker:
        moved = replace(item, pool=cluster.pool(item.pool.name))
        return pruned(moved, within(book.options(moved, inputs), cutoff_s), inputs)

    found = tuple(priced(item) for item in items)
    return SearchPart(inputs=inputs, priced=found, problem=make_problem(found, inputs, cluster, case.limits))
