"""Finalists of a search: plans within some per cent of its optimum, for judges that do not share its cost model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from planner import pipeline, solving
from planner.assembly import PlacedStrategy, assemble
from planner.domain.execution import Fusion
from planner.domain.plan import Plan
from planner.domain.request import PlanRequest
from planner.domain.stages import StageKind, WorkerName
from planner.files.spec import WorkloadSpec
from planner.files.workload import build_request
from planner.placing import place
from planner.search.pricing import PricedWorker
from planner.search.problem import SearchLimits
from planner.search.solve import Solution, solve

MARGIN_RATIO = 0.10
"""Finalists take at most so much longer than the optimum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """A plan and where it comes from."""

    plan: Plan
    origin: str


def request_of(**fields: str | int | float) -> PlanRequest:
    """The request of a workload given by the fields of WorkloadSpec."""
    return build_request(WorkloadSpec(**fields))  # type: ignore[arg-type]


def finalists(request: PlanRequest, number: int, seed: int) -> list[Finalist]:
    """At most `number` different plans within MARGIN_RATIO of the optimum, the plan itself first.

    The best plan of each alternative structure, then plans with other options of one or two workers, drawn at random
    from all that survived pruning and evenly over the margin.
    """
    assert request.cluster is not None
    made = pipeline.make_plan(request)
    outcome = solving.search(request, request.cluster, None)
    best = outcome.result.solution
    assert best is not None
    limit_s = best.time_s * (1.0 + MARGIN_RATIO)
    bases = [best, *_of_other_structures(outcome, limit_s)]
    found = [Finalist(plan=made, origin="the plan")]
    for solution in bases:
        plan = _plan(made, outcome, place(solution, outcome.priced, request.cluster), solution)
        if plan is not None:
            found.append(Finalist(plan=plan, origin=solution.structure.describe()))
    random = np.random.default_rng(seed)
    for solution in bases:
        placed = place(solution, outcome.priced, request.cluster)
        found += _varied(made, outcome, solution, placed, limit_s, number, random)
    return _spread(_different(found), number)


def _of_other_structures(outcome: solving.Outcome, limit_s: float) -> Iterator[Solution]:
    for alternative in outcome.result.alternatives:
        if alternative.time_s > limit_s:
            continue
        only = replace(
            outcome.problem,
            structure_filter=lambda structure, wanted=alternative.structure: None if structure == wanted else "other",
        )
        solution = solve(only, SearchLimits(num_alternatives=0)).solution
        if solution is not None:
            yield solution


def _plan(made: Plan, outcome: solving.Outcome, placed: tuple[PlacedStrategy, ...], solution: Solution) -> Plan | None:
    """The plan of placed strategies; None where they do not fit."""
    assembled = assemble(placed, outcome.inputs, solution.timing)
    if assembled.problems:
        return None
    return replace(
        made,
        device_groups=assembled.device_groups,
        placements=assembled.placements,
        schedule=assembled.schedule,
        objective_value=assembled.time_s,
        execution=assembled.execution,
        period_s=assembled.time_s if assembled.execution.is_asynchronous else None,
    )


def _varied(
    made: Plan,
    outcome: solving.Outcome,
    solution: Solution,
    placed: tuple[PlacedStrategy, ...],
    limit_s: float,
    number: int,
    random: np.random.Generator,
) -> list[Finalist]:
    """Plans with other options of one or two workers, of as many GPUs as before."""
    options = {item.worker.name: _options(outcome.priced, item) for item in placed}
    names = list(options)
    changes: list[tuple[WorkerName, ...]] = [(name,) for name in names] + list(combinations(names, 2))
    result: list[Finalist] = []
    for _ in range(number):
        for change in changes:
            drawn = tuple(
                replace(item, strategy=options[item.worker.name][random.integers(len(options[item.worker.name]))])
                if item.worker.name in change
                else item
                for item in placed
            )
            if Fusion.INTRA_STAGE in solution.timing.fusions and not _may_interleave(drawn):
                continue
            plan = _plan(made, outcome, drawn, solution)
            if plan is not None and plan.time_s <= limit_s:
                result.append(Finalist(plan=plan, origin=f"other options of {', '.join(change)}"))
    return result


def _may_interleave(placed: tuple[PlacedStrategy, ...]) -> bool:
    """Whether actor and critic trainers have as many pipeline ranks."""
    trainers = [item.strategy for item in placed if item.worker.kind is StageKind.TRAINING]
    return len({strategy.pp for strategy in trainers}) == 1


def _options(priced: tuple[PricedWorker, ...], item: PlacedStrategy) -> list:
    found = next(p for p in priced if p.worker.name is item.worker.name and p.pool.name == item.pool.name)
    same = np.flatnonzero(found.options.num_gpus == item.strategy.num_gpus)
    return [found.strategy(int(index)) for index in same]


def _different(found: list[Finalist]) -> list[Finalist]:
    """Each assignment of strategies once."""
    kept: dict[object, Finalist] = {}
    for item in found:
        key = tuple((p.stage, p.device_group, p.strategy) for p in item.plan.placements)
        kept.setdefault(key, item)
    return list(kept.values())


def _spread(found: list[Finalist], number: int) -> list[Finalist]:
    """The first, and others so that their times are spread evenly."""
    if len(found) <= number:
        return found
    rest = sorted(found[1:], key=lambda item: item.plan.time_s)
    picked = sorted({round(i) for i in np.linspace(0, len(rest) - 1, number - 1)})
    return [found[0], *(rest[i] for i in picked)]
