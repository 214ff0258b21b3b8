"""Parts of a search that are priced at the largest size, and the search of a smaller size on them.

This is `planner.solving.search` for synchronous plans in two steps, so that the first can be shared.
"""

from __future__ import annotations

from dataclasses import replace

from planner.domain.framework import FrameworkRules
from planner.domain.hardware import Cluster
from planner.domain.plan import Limits, Objective
from planner.domain.request import PlanRequest
from planner.executions import synchronous_executions
from planner.parts import SearchPart, lacking_workers, make_inputs, make_problem
from planner.search.options import take
from planner.search.pricing import PricedWorker, price_worker
from planner.search.solve import SearchResult
from planner.solving import search_limits, solve_parts


def is_shared(limits: Limits) -> bool:
    """Whether all that the limits permit is covered here: plans without staleness."""
    return limits.max_staleness == 0


def priced_parts(request: PlanRequest, rules: FrameworkRules | None) -> tuple[SearchPart, ...]:
    """One part per execution without staleness, priced on the cluster of the request (one pool)."""
    assert request.cluster is not None
    parts = []
    for execution in synchronous_executions(request.limits, rules):
        inputs = make_inputs(
            request.workload, request.cluster, rules, execution, request.limits.fixed, request.overheads
        )
        priced = tuple(
            price_worker(worker, pool, inputs) for worker in inputs.graph.workers for pool in request.cluster.pools
        )
        problem = make_problem(priced, inputs, request.cluster, request.limits)
        parts.append(SearchPart(inputs=inputs, priced=priced, problem=problem))
    return tuple(parts)


def part_within(part: SearchPart, cluster: Cluster, limits: Limits) -> SearchPart:
    """The part on a smaller cluster of the same kind: the options that it has GPUs for."""
    priced = tuple(_up_to(item, cluster.num_gpus) for item in part.priced)
    return replace(part, priced=priced, problem=make_problem(priced, part.inputs, cluster, limits))


def _up_to(item: PricedWorker, num_gpus: int) -> PricedWorker:
    return replace(item, options=take(item.options, item.options.num_gpus <= num_gpus))


def lacking(part: SearchPart) -> tuple[str, ...]:
    """Workers that fit nowhere."""
    return tuple(name.value for name in lacking_workers(part.priced))


def search_parts(
    parts: tuple[SearchPart, ...], limits: Limits, objective: Objective
) -> tuple[SearchPart, SearchResult]:
    """The best plan over the parts and the part it belongs to, without what only a report of one plan needs."""
    wanted = replace(search_limits(limits), objective=objective, num_alternatives=0)
    return solve_parts(parts, wanted)
