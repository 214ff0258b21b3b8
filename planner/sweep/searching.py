"""One search on tables that were priced before: what `planner.pipeline.search` does after pricing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from planner.cost.jobs import host_stage_s
from planner.domain.framework import FrameworkRules
from planner.domain.hardware import Cluster
from planner.domain.plan import Objective
from planner.domain.request import PlanRequest
from planner.domain.stages import StageKind, build_graph
from planner.files.catalog import load_overheads
from planner.pipeline import TIE_TOLERANCE_RATIO, structure_problem
from planner.search import mesh
from planner.search.pricing import PricedWorker, PricingInputs, search_pool
from planner.search.problem import SearchLimits, SearchProblem, Solver
from planner.search.solve import SearchResult, solve, solve_union


def pricing_inputs(request: PlanRequest, rules: FrameworkRules | None) -> PricingInputs:
    """What all workers of a request on one pool share."""
    return PricingInputs(
        cross_pool_bytes_per_s=None,
        workload=request.workload,
        graph=build_graph(request.workload),
        overheads=load_overheads(),
        rules=rules,
        across_sizes=rules is None or not rules.shared_workers_use_whole_group,
    )


def search_priced(
    request: PlanRequest, inputs: PricingInputs, priced: Sequence[PricedWorker], cluster: Cluster, objective: Objective
) -> SearchResult | None:
    """The search on a cluster of one pool; None where a framework finds no degrees that all its workers can share."""
    rules = inputs.rules
    problem = SearchProblem(
        graph=inputs.graph,
        pools=tuple(search_pool(pool, inputs) for pool in cluster.pools),
        options=tuple(item.options for item in priced),
        host_stage_s=tuple(
            (stage.name, host_stage_s(inputs.workload)) for stage in inputs.graph.stages if stage.kind is StageKind.HOST
        ),
        structure_filter=None if rules is None else partial(structure_problem, rules, inputs.workload),
        equal_size=rules is not None and rules.shared_workers_use_whole_group,
    )
    given = request.limits
    limits = SearchLimits(
        objective=objective,
        max_iteration_s=given.max_iteration_s,
        time_limit_s=given.time_limit_s,
        seed=given.seed,
        solver=Solver(given.solver),
        tie_tolerance_ratio=TIE_TOLERANCE_RATIO,
        num_alternatives=0,
    )
    if rules is None:
        return solve(problem, limits)
    parts = mesh.parts(rules, priced, problem)
    if not parts:
        return None
    return solve_union(tuple(part.problem for part in parts), limits, bounds_s=tuple(part.bound_s for part in parts))
