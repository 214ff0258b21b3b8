"""The Pareto front of time against money of one request: every point is the cheapest plan within its time.

All points share one pricing; each is a search of its own with a limit on the iteration time, so each has its own
proof. The front is walked from the cheapest plan towards the fastest one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.domain.plan import Limits, Objective, Status
from planner.errors import NoPlanFoundError
from planner.search.clock import Clock
from planner.search.problem import SearchLimits
from planner.search.solve import SearchResult
from planner.search.space import WHOLE
from planner.solving import Outcome, best_within, search_limits

MAX_POINTS = 24
MIN_STEP_RATIO = 0.01
"""Plans whose times differ by less count as equally fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A plan of which none is both faster and cheaper. `value` is in USD or GPU-hours per iteration."""

    time_s: float
    value: float
    unit: str
    num_gpus: int
    execution: str
    structure: str
    is_proven: bool


def pareto_front(outcome: Outcome, limits: Limits) -> tuple[FrontPoint, ...]:
    """The front from the fastest to the cheapest plan, at most MAX_POINTS of them; empty where nothing fits.

    Times of neighbours differ by at least a step, which is 1 % or so much that MAX_POINTS suffice. One time limit holds
    for all of them; what it does not reach is at the fast end.
    """
    clock = Clock(limits.time_limit_s)
    base = replace(search_limits(limits), tie_tolerance_ratio=0.0, num_alternatives=0)
    fastest = _searched(outcome, replace(base, objective=Objective.TIME), clock)
    if fastest is None or fastest.solution is None:
        return ()
    least_s = fastest.solution.time_s
    cheap = replace(base, objective=Objective.COST)
    is_complete = outcome.shop.coverage is WHOLE
    points: list[FrontPoint] = []
    deadline_s = base.max_iteration_s
    step: float | None = None
    while True:
        result = _searched(outcome, replace(cheap, max_iteration_s=deadline_s), clock)
        if result is None or result.solution is None:
            break
        point = _point(result)
        points.append(point if is_complete else replace(point, is_proven=False))
        if step is None:
            step = max(MIN_STEP_RATIO, 1.0 - (least_s / point.time_s) ** (1.0 / (MAX_POINTS - 1)))
        if point.time_s <= least_s * (1.0 + MIN_STEP_RATIO) or len(points) >= MAX_POINTS:
            break
        deadline_s = max(point.time_s * (1.0 - step), least_s * (1.0 + 1e-9))
    return tuple(reversed(_undominated(points)))


def _searched(outcome: Outcome, limits: SearchLimits, clock: Clock) -> SearchResult | None:
    """The search in the time that is left; None when it is over first."""
    try:
        return best_within(outcome, replace(limits, time_limit_s=clock.left_s))
    except NoPlanFoundError:
        return None


def _point(result: SearchResult) -> FrontPoint:
    found = result.solution
    assert found is not None
    return FrontPoint(
        time_s=found.time_s,
        value=result.value,
        unit=result.unit,
        num_gpus=found.num_gpus,
        execution=found.execution.mode.value,
        structure=found.structure.describe(),
        is_proven=result.status is Status.OPTIMAL,
    )


def _undominated(points: list[FrontPoint]) -> list[FrontPoint]:
    """Without points that are slower than one which costs no more."""
    return [p for p in points if not any(q.time_s < p.time_s and q.value <= p.value for q in points)]
