"""Why this placement and these degrees: every decision of a plan beside its next-best alternative.

A decision is one field of one worker's strategy, whether two workers share GPUs, the pool of a worker, or how
iterations overlap. Its price is what the best plan costs in which this one decision differs and everything else is
chosen again, an optimum of the same search; beside it stands what happens if nothing else is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import numpy as np

from planner.assembly import PlacedStrategy, assemble
from planner.domain.execution import NUM_SHARES, Execution
from planner.domain.fixed import FixedField
from planner.domain.hardware import Pool
from planner.domain.stages import StageKind, Worker, WorkerName
from planner.domain.strategy import BoolArray, StrategyTable
from planner.explaining.alone import ENGINE_DECISIONS, FORWARD_DECISIONS, TRAINER_DECISIONS, Rival, value_of, with_equal
from planner.explaining.attribution import critical_path, growth
from planner.explaining.case import Case
from planner.explaining.market import Allowed, Forbidden, Offer
from planner.explaining.score import Score
from planner.parts import reachable
from planner.placing import place
from planner.splitting import SHARES

NEAR_RATIOS = (1.01, 1.03, 1.08, 1.2, 1.5, 2.5)
"""Alternatives are looked for within so many times the plan's objective first: that is fast, and mostly enough."""

SHARED, APART = "shared", "apart"
ITERATIONS, GROUPS = "iterations", "GPUs of two workers"
"""Subjects of decisions that belong to no single worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision of the plan. `rival` is None where there is no alternative, and `reason` says why."""

    subject: str
    """A worker, `ITERATIONS` or `GROUPS`."""
    what: str
    """The field of a strategy, or `pool`; two workers; `staleness`, `mode`, `fusion` or
    `weight sync`."""
    value: str
    rival: Rival | None
    reason: str = ""


def decide(case: Case) -> tuple[Decision, ...]:
    """All decisions of a plan that could have been taken in another way, as far as there is time."""
    questions = [
        *_execution_questions(case),
        *_grouping_questions(case),
        *(item for worker in case.inputs.graph.workers for item in _worker_questions(case, worker)),
    ]
    found = [case.watch.asked(question.words, question.answer) for question in questions]
    return tuple(item for item in found if item is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """A decision whose alternative has not been looked for yet."""

    words: str
    answer: Callable[[], Decision]


# ---------------------------------------------------------------------------------------------- strategies


def fields_of(worker: Worker) -> tuple[str, ...]:
    """The decisions in the strategy of a worker."""
    if worker.kind is StageKind.GENERATION:
        return ENGINE_DECISIONS
    return TRAINER_DECISIONS if worker.kind is StageKind.TRAINING else FORWARD_DECISIONS


def _worker_questions(case: Case, worker: Worker) -> Iterator[_Question]:
    strategy = case.strategy(worker.name)
    if len(case.cluster.pools) > 1:
        yield _Question(words=f"pool of {worker.name.value}", answer=lambda: _pool_decision(case, worker))
    for field in fields_of(worker):
        fixed = FixedField(worker=worker.name, field=field, value=value_of(strategy, field))
        if _was_decided(case, worker, fixed):
            # The value is bound now: the loop goes on before anybody answers.
            yield _Question(
                words=f"{field} of {worker.name.value}",
                answer=partial(_field_decision, case, fixed),
            )


def _was_decided(case: Case, worker: Worker, fixed: FixedField) -> bool:
    """Whether the user fixed it, or any candidate has another value: else nothing was decided."""
    if _is_users(case, fixed):
        return True
    pools = reachable(case.cluster, case.limits.max_gpus).pools
    return any(
        bool(np.any(~fixed.allows(case.market.prices.candidates(_as_first(case, worker), pool, case.inputs))))
        for pool in pools
    )


def _as_first(case: Case, worker: Worker) -> Worker:
    """The worker whose candidates a second group of engines has."""
    return case.inputs.graph.worker(WorkerName.ROLLOUT_ENGINE) if worker.name is WorkerName.SECOND_ENGINE else worker


def _is_users(case: Case, fixed: FixedField) -> bool:
    return any(item.worker is fixed.worker and item.field == fixed.field for item in case.limits.fixed)


def _field_decision(case: Case, fixed: FixedField) -> Decision:
    if _is_users(case, fixed):
        return Decision(
            subject=fixed.worker.value, what=fixed.field, value=fixed.value, rival=None, reason="fixed by the user"
        )
    found = _best_without(case, fixed.worker, lambda table, _: ~fixed.allows(table))
    rival = None
    if found is not None:
        assert found.result.solution is not None
        choice = found.result.solution.choice(fixed.worker)
        held = next(i for i in found.part.priced if i.worker.name is fixed.worker and i.pool.name == choice.pool)
        value = value_of(held.candidates.row(choice.row), fixed.field)
        rival = with_equal(case, _rival(case, found, value), replace(fixed, value=value), held)
    return Decision(
        subject=fixed.worker.value,
        what=fixed.field,
        value=fixed.value,
        rival=rival,
        reason="" if rival is not None else "no other value fits",
    )


def _pool_decision(case: Case, worker: Worker) -> Decision:
    mine = next(item.pool.name for item in case.placed if item.worker.name is worker.name)

    def others(table: StrategyTable, pool: Pool) -> BoolArray:
        return np.full(len(table), pool.name != mine)

    found = _best_without(case, worker.name, others)
    rival = None
    if found is not None:
        assert found.result.solution is not None
        rival = _rival(case, found, found.result.solution.choice(worker.name).pool)
    reason = "" if rival is not None else "fits on no other pool"
    return Decision(subject=worker.name.value, what="pool", value=mine, rival=rival, reason=reason)


def _best_without(case: Case, worker: WorkerName, allowed: Allowed) -> Offer | None:
    """The best plan with only the allowed candidates of a worker."""
    needs_second = worker is WorkerName.SECOND_ENGINE
    return case.market.best(
        case.setting,
        guesses(case),
        forbidden=Forbidden(worker=worker, allowed=allowed),
        without_split=not needs_second,
        keeps_memory=True,
    )


def guesses(case: Case) -> tuple[Score | None, ...]:
    """What the next-best plan is expected to reach: most decisions cost little."""
    return (*(case.base.times(ratio) for ratio in NEAR_RATIOS), None)


def _rival(case: Case, found: Offer, value: str) -> Rival:
    solution = found.result.solution
    assert solution is not None
    part = found.part
    placed = place(solution, part.priced, case.cluster)
    assembled = assemble(placed, part.inputs, solution.timing)
    path = critical_path(assembled, placed, part.inputs)
    return Rival(value=value, score=found.score, growth=growth(case.assembled, assembled, path))


# ---------------------------------------------------------------------------------------------- grouping


def _grouping_questions(case: Case) -> Iterator[_Question]:
    # A second group of engines shares its GPUs with nobody: that is no decision.
    placed = [item for item in case.placed if item.worker.name is not WorkerName.SECOND_ENGINE]
    for first, second in combinations(placed, 2):
        yield _Question(
            words=f"whether {first.worker.name.value} and {second.worker.name.value} share GPUs",
            answer=partial(_grouping_decision, case, first, second),
        )


def _grouping_decision(case: Case, first: PlacedStrategy, second: PlacedStrategy) -> Decision:
    names = (first.worker.name, second.worker.name)
    shares, limits = first.overlaps(second), case.limits
    if shares:
        limits = replace(limits, must_not_share=(*limits.must_not_share, names))
    else:
        limits = replace(limits, must_share=(*limits.must_share, names))
    found = case.market.best(replace(case.setting, limits=limits), guesses(case), keeps_memory=True)
    return Decision(
        subject=GROUPS,
        what=f"{names[0].value} and {names[1].value}",
        value=SHARED if shares else APART,
        rival=None if found is None else _rival(case, found, APART if shares else SHARED),
        reason="no such plan" if found is None else "",
    )


# ---------------------------------------------------------------------------------------------- execution


def _execution_questions(case: Case) -> Iterator[_Question]:
    mine, searched = case.plan.execution, case.executions
    staleness = [e for e in searched if e.staleness != mine.staleness]
    if staleness:
        yield _among(case, "staleness", str(mine.staleness), staleness, lambda e: str(e.staleness))
    modes = [e for e in searched if e.mode is not mine.mode and e.is_asynchronous]
    if mine.is_asynchronous and modes:
        yield _among(case, "mode", mine.mode.value, modes, lambda e: e.mode.value)
    if mine.fusions:
        words = " and ".join(fusion.value for fusion in mine.fusions)
        plain = tuple(dict.fromkeys(replace(e, fusions=()) for e in searched))
        yield _among(case, "fusion", words, plain, lambda _: "none")
    if mine.sharded_syncs:
        words = " and ".join(way.value for way in mine.sharded_syncs)
        gathers = tuple(dict.fromkeys(replace(e, sharded_syncs=()) for e in searched))
        yield _among(case, "weight sync", words, gathers, lambda _: "full gather")
    if case.may_split:
        yield _Question(words="whether the rollout is split", answer=partial(_split_decision, case))
        if mine.is_split:
            yield _Question(words="the share of the second rollout", answer=partial(_share_decision, case))


def _among(
    case: Case, what: str, value: str, executions: Sequence[Execution], words: Callable[[Execution], str]
) -> _Question:
    def answer() -> Decision:
        found = case.market.best(case.setting, guesses(case), executions=executions, keeps_memory=True)
        rival = None if found is None else _rival(case, found, words(found.part.inputs.execution))
        reason = "" if rival is not None else "no such plan"
        return Decision(subject=ITERATIONS, what=what, value=value, rival=rival, reason=reason)

    return _Question(words=what, answer=answer)


def _split_decision(case: Case) -> Decision:
    """Whether two groups of engines share the rollout."""
    is_split = case.plan.execution.is_split
    found = case.market.best(
        case.setting, guesses(case), shares=() if is_split else SHARES, without_split=is_split, keeps_memory=True
    )
    rival = None
    if found is not None:
        rival = _rival(case, found, share_words(found.part.inputs.execution))
    reason = "" if rival is not None else "no such plan"
    return Decision(
        subject=ITERATIONS, what="split rollout", value=share_words(case.plan.execution), rival=rival, reason=reason
    )


def _share_decision(case: Case) -> Decision:
    """How much of the rollout the second group of engines generates."""
    mine = case.plan.execution.second_share_ratio
    others = tuple(share for share in SHARES if share != mine)
    found = case.market.best(case.setting, guesses(case), shares=others, without_split=False, keeps_memory=True)
    rival = None if found is None else _rival(case, found, share_words(found.part.inputs.execution))
    reason = "" if rival is not None else "no other share fits"
    return Decision(
        subject=ITERATIONS, what="second share", value=share_words(case.plan.execution), rival=rival, reason=reason
    )


def share_words(execution: Execution) -> str:
    """The share of the second group of engines: `9/16`, or `none`."""
    return f"{round(execution.second_share_ratio * NUM_SHARES)}/{NUM_SHARES}" if execution.is_split else "none"
