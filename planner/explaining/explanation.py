"""`explain_plan`: everything that `rlplan explain` says about a plan. Read this first, then `case` and `decisions`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from planner.domain.overheads import Overheads
from planner.domain.plan import Plan
from planner.explaining.bottleneck import Bottleneck, bottleneck
from planner.explaining.case import Case, open_case
from planner.explaining.decisions import Decision, decide
from planner.explaining.relaxations import Relaxation, relax
from planner.explaining.score import Score
from planner.explaining.sensitivity import Sensitivity, sensitivity
from planner.explaining.watch import Watch
from planner.search.parallel import in_shares

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a plan is as it is.

    `base` is the plan priced now, `optimum` the best plan of its request; a plan within the tolerance of the optimum
    may have been preferred for fewer GPUs, headroom or simplicity. Prices of decisions are against `base`, gains of
    relaxations against `optimum`.
    """

    plan: Plan
    base: Score
    optimum: Score
    is_found_again: bool
    """Whether the search finds exactly this plan."""
    problems: tuple[str, ...]
    """Capacities that the plan exceeds: none, unless it was fixed by hand or made by another version."""
    bottleneck: Bottleneck
    decisions: tuple[Decision, ...]
    relaxations: tuple[Relaxation, ...]
    sensitivity: Sensitivity
    not_reached: tuple[str, ...] = ()
    """What was not looked at because the time was over."""


def explain_plan(plan: Plan, overheads: Overheads, watch: Watch | None = None) -> Explanation:
    """Searches the plan's space again and prices what else could have been decided, permitted or assumed.

    `overheads` are those that the plan was made with (`planner.files.calibrated.overheads_with`). What there is no time
    for is left out and named; the time is that of `watch`, or the time limit of the plan's request. Raises
    InfeasibleError where this version of the cost model finds no plan for the request at all.
    """
    case = open_case(plan, overheads, watch)
    sensitive, decided, relaxed = _answers(case)
    return Explanation(
        plan=plan,
        base=case.base,
        optimum=case.optimum,
        is_found_again=case.is_found_again,
        problems=case.problems,
        bottleneck=bottleneck(case),
        decisions=decided.answer,
        relaxations=relaxed.answer,
        sensitivity=sensitive.answer,
        not_reached=tuple(dict.fromkeys((*decided.not_reached, *relaxed.not_reached, *sensitive.not_reached))),
    )


@dataclass(frozen=True, slots=True)
class _Answer(Generic[T]):
    answer: T
    not_reached: tuple[str, ...]


def _answers(case: Case) -> tuple[_Answer[Sensitivity], _Answer[tuple[Decision, ...]], _Answer[tuple[Relaxation, ...]]]:
    """The three kinds of questions, at the same time where there are several cores: none needs another's answers."""

    def asked(kinds: Sequence[Callable[[Case], object]]) -> list[_Answer[object]]:
        return [_Answer(kind(case), case.watch.not_reached) for kind in kinds]

    kinds: tuple[Callable[[Case], object], ...] = (sensitivity, decide, relax)
    found = [answer for share in in_shares(asked, kinds, least_items=1) for answer in share]
    return cast("tuple[_Answer[Sensitivity], _Answer[tuple[Decision, ...]], _Answer[tuple[Relaxation, ...]]]", found)
