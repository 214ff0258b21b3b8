"""What an iteration waits for: the stages on its longest path, and the term that makes another plan slower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.assembly import Assembled, PlacedStrategy, stage_seconds
from planner.cost.terms import term_info
from planner.domain.plan import Placement
from planner.domain.stages import StageName
from planner.search.pricing import PricingInputs
from planner.search.timing import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Critical:
    """A stage on the longest path. `share_ratio` of an iteration is spent waiting for it."""

    stage: StageName
    seconds: float
    share_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The term of a stage on the longest path that grows most from one plan to another."""

    stage: StageName
    term: str
    resource: str
    extra_s: float


def critical_path(
    assembled: Assembled, placed: Sequence[PlacedStrategy], inputs: PricingInputs
) -> tuple[Critical, ...]:
    """The stages whose seconds add up to those of an iteration, in the order of the graph.

    The iteration takes the largest of the weighted sums of its timing (`planner.search.timing`); this is that sum. A
    stage that overlaps with others counts with the part that the others do not hide, one of an asynchronous plan with
    its share of a cycle of several batches.
    """
    seconds = stage_seconds(placed, inputs)

    def length_s(row: Row) -> float:
        return sum(weight * seconds[part] for part, weight in row)

    longest = max(assembled.timing.rows, key=length_s)
    per_stage: dict[StageName, float] = {}
    for part, weight in longest:
        per_stage[part[0]] = per_stage.get(part[0], 0.0) + weight * seconds[part]
    total_s = sum(per_stage.values())
    return tuple(
        Critical(stage=stage.name, seconds=per_stage[stage.name], share_ratio=per_stage[stage.name] / total_s)
        for stage in inputs.graph.stages
        if per_stage.get(stage.name, 0.0) > 0.0
    )


def growth(before: Assembled, after: Assembled, path: Sequence[Critical]) -> Growth | None:
    """The term that grows most over `path`, the longest path of `after`; None where none grows."""
    earlier = {item.stage: item for item in before.placements}
    found: list[Growth] = []
    for critical in path:
        now = next(item for item in after.placements if item.stage is critical.stage)
        if critical.stage not in earlier or now.time_s <= 0.0:
            continue
        weight = critical.seconds / now.time_s
        for term, extra_s in _differences(earlier[critical.stage], now).items():
            resource = term_info(term).resource.value
            found.append(Growth(stage=critical.stage, term=term, resource=resource, extra_s=extra_s * weight))
    most = max(found, key=lambda item: item.extra_s, default=None)
    return most if most is not None and most.extra_s > 0.0 else None


def _differences(before: Placement, after: Placement) -> dict[str, float]:
    result = {term.name: term.value for term in after.time_terms}
    for term in before.time_terms:
        result[term.name] = result.get(term.name, 0.0) - term.value
    return result
