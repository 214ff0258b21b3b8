"""Why this placement and these degrees: every decision of a plan beside its next-best alternative.

A decision is one field of one worker's strategy, whether two workers share GPUs, the pool of a worker, or how
iterations overlap. Its price is what the best plan costs in which this one decision differs and everything else is
chosen again, an optimum of the same search; beside it stands what happens if nothing else is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from planner.assembly import PlacedStrategy, assemble
from planner.domain.fixed import ENUMERATED, FixedField
from planner.domain.framework import ONE_BACKEND_WORKERS
from planner.domain.plan import Limits, Objective
from planner.domain.stages import StageKind, Worker, WorkerName
from planner.domain.strategy import BoolArray, RolloutStrategy, Strategy, TrainerTable
from planner.explaining.attribution import Growth, critical_path, growth
from planner.explaining.case import Case, exact
from planner.explaining.score import Score, solution_score
from planner.explaining.tables import Allowed
from planner.parts import SearchPart, make_problem, reachable
from planner.pipeline import place
from planner.search.pricing import PricedWorker, without_moments
from planner.search.solve import SearchResult
from planner.solving import solve_parts

TRAINER_DECISIONS = (
    "num_gpus", "tp", "pp", "vpp", "cp", "ep", "etp", "sharding", "micro_batch_tokens", "inference_tokens", "recompute",
    "offload",
)  # fmt: skip
FORWARD_DECISIONS = ("num_gpus", "tp", "pp", "cp", "ep", "etp", "sharding", "inference_tokens", "offload")
ENGINE_DECISIONS = (
    "num_gpus", "tp", "pp", "attention_dp", "ep", "exchange", "dp", "engine_fraction", "max_num_seqs", "idle",
)  # fmt: skip
"""`dp` is the number of engines."""
FOLLOWING: dict[str, tuple[str, ...]] = {
    "num_gpus": ("shard_ranks",),
    "tp": ("shard_ranks", "etp", "ep", "exchange"),
    "attention_dp": ("ep", "exchange"),
    "pp": ("shard_ranks", "vpp"),
    "cp": ("shard_ranks", "context_parallel", "micro_batch_tokens", "inference_tokens"),
    "ep": ("etp", "exchange"),
    "sharding": ("shard_ranks", "context_parallel"),
    "micro_batch_tokens": ("inference_tokens",),
    "dp": ("num_gpus",),
}
"""Fields that cannot stay as they are, or mean something else, when another one changes: the best of their values is
taken where everything else is left alone."""
NEAR_RATIO = 1.2
"""Alternatives are looked for within so many times the plan's time first: that is fast, and nearly always enough."""
MAX_EQUAL_ROWS = 64

SHARED, APART = "shared", "apart"
ITERATIONS, GROUPS = "iterations", "GPUs of two workers"
"""Subjects of decisions that belong to no single worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """The best plan in which one decision differs."""

    value: str
    """What it decides instead."""
    score: Score
    growth: Growth | None
    """What makes it slower, if anything does."""
    equal_s: float | None = None
    """Seconds per iteration with nothing else changed; None where that is not possible."""
    equal_problem: str = ""
    """Why it is not: the framework changes other workers with it (`coupled`), it is `not legal` or has `no fit`, needs
    `more GPUs` than the group has, or an `other pool`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision of the plan. `rival` is None where there is no alternative, and `reason` says why."""

    subject: str
    """A worker, `ITERATIONS` or `GROUPS`."""
    what: str
    """The field of a strategy, or `pool`; two workers; `staleness`, `mode` or `fusion`."""
    value: str
    rival: Rival | None
    reason: str = ""


def decide(case: Case) -> tuple[Decision, ...]:
    """All decisions of a plan that could have been taken in another way."""
    found = [
        *_execution_decisions(case),
        *_grouping_decisions(case),
        *(item for worker in case.inputs.graph.workers for item in _worker_decisions(case, worker)),
    ]
    return tuple(found)


# ---------------------------------------------------------------------------------------------- strategies


def fields_of(worker: Worker) -> tuple[str, ...]:
    """The decisions in the strategy of a worker."""
    if worker.kind is StageKind.GENERATION:
        return ENGINE_DECISIONS
    return TRAINER_DECISIONS if worker.kind is StageKind.TRAINING else FORWARD_DECISIONS


def value_of(strategy: Strategy, field: str) -> str:
    """The value of a field as `--fix` takes it."""
    name = "num_engines" if field == "dp" and isinstance(strategy, RolloutStrategy) else field
    value = getattr(strategy, name)
    if field in ENUMERATED:
        return str(value.value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _worker_decisions(case: Case, worker: Worker) -> Iterator[Decision]:
    strategy = case.strategy(worker.name)
    if len(case.cluster.pools) > 1:
        yield _pool_decision(case, worker)
    for field in fields_of(worker):
        fixed = FixedField(worker=worker.name, field=field, value=value_of(strategy, field))
        if any(item.worker is worker.name and item.field == field for item in case.limits.fixed):
            yield Decision(
                subject=worker.name.value, what=field, value=fixed.value, rival=None, reason="fixed by the user"
            )
        elif _others_exist(case, fixed):
            yield _field_decision(case, fixed)


def _others_exist(case: Case, fixed: FixedField) -> bool:
    """Whether any candidate has another value: else nothing was decided."""
    items = [item for part in case.parts for item in part.priced if item.worker.name is fixed.worker]
    return any(bool(np.any(~fixed.allows(item.candidates))) for item in items)


def _field_decision(case: Case, fixed: FixedField) -> Decision:
    def others(item: PricedWorker) -> BoolArray:
        return ~fixed.allows(item.candidates)

    found = _best_without(case, fixed.worker, others)
    rival = None
    if found is not None:
        part, result = found
        assert result.solution is not None
        choice = result.solution.choice(fixed.worker)
        held = next(i for i in part.priced if i.worker.name is fixed.worker and i.pool.name == choice.pool)
        value = value_of(held.candidates.row(choice.row), fixed.field)
        rival = _with_equal(case, _rival(case, part, result, value), replace(fixed, value=value), held)
    return Decision(
        subject=fixed.worker.value,
        what=fixed.field,
        value=fixed.value,
        rival=rival,
        reason="" if rival is not None else "no other value fits",
    )


def _pool_decision(case: Case, worker: Worker) -> Decision:
    pool = next(item.pool.name for item in case.placed if item.worker.name is worker.name)

    def others(item: PricedWorker) -> BoolArray:
        return np.full(len(item.candidates), item.pool.name != pool)

    found = _best_without(case, worker.name, others)
    rival = None
    if found is not None:
        part, result = found
        assert result.solution is not None
        rival = _rival(case, part, result, result.solution.choice(worker.name).pool)
    reason = "" if rival is not None else "fits on no other pool"
    return Decision(subject=worker.name.value, what="pool", value=pool, rival=rival, reason=reason)


def _best_without(case: Case, worker: WorkerName, allowed: Allowed) -> tuple[SearchPart, SearchResult] | None:
    """The best plan with only the allowed candidates of a worker: near the plan first, then anywhere."""
    limits = exact(case.limits)
    cutoffs_s = [np.inf]
    if limits.objective is Objective.TIME:
        near_s = case.base.time_s * NEAR_RATIO
        cutoffs_s.insert(0, min(near_s, limits.max_iteration_s or np.inf))
    for cutoff_s in cutoffs_s:
        restricted = [case.book.restricted(part, worker, allowed, cutoff_s) for part in case.parts]
        parts = [part for part in restricted if part is not None]
        if not parts:
            continue
        longest_s = min(cutoff_s, limits.max_iteration_s or np.inf)
        bounded = replace(limits, max_iteration_s=None if np.isinf(longest_s) else longest_s)
        part, result = solve_parts(parts, case.rules, bounded)
        if result.solution is not None:
            return part, result
    return None


def _rival(case: Case, part: SearchPart, result: SearchResult, value: str) -> Rival:
    solution = result.solution
    assert solution is not None
    placed = place(solution, part.priced, case.cluster)
    assembled = assemble(placed, part.inputs, solution.timing)
    path = critical_path(assembled, placed, part.inputs)
    return Rival(
        value=value,
        score=solution_score(case.limits.objective, case.cluster, solution),
        growth=growth(case.assembled, assembled, path),
    )


# ---------------------------------------------------------------------------------------------- nothing else changed


def _with_equal(case: Case, rival: Rival, fixed: FixedField, held: PricedWorker) -> Rival:
    """The rival with what its decision does when nothing else is changed."""
    if case.rules is not None and fixed.worker in ONE_BACKEND_WORKERS:
        return replace(rival, equal_problem="coupled")
    mine = next(item for item in case.placed if item.worker.name is fixed.worker)
    if mine.pool.name != held.pool.name:
        return replace(rival, equal_problem="other pool")
    strategies = _only_changed(mine.strategy, fixed, held)
    if not strategies:
        return replace(rival, equal_problem="not legal")
    inside = [item for item in strategies if item.num_gpus <= mine.group.num_gpus]
    if not inside:
        return replace(rival, equal_problem="more GPUs")
    times = [time_s for item in inside if (time_s := _time_with(case, mine, item)) is not None]
    if not times:
        return replace(rival, equal_problem="no fit")
    return replace(rival, equal_s=min(times))


def _only_changed(strategy: Strategy, fixed: FixedField, held: PricedWorker) -> list[Strategy]:
    """Candidates that differ from a strategy in one field and what follows from it."""
    table = held.candidates
    rows = fixed.allows(table)
    free = {fixed.field, *FOLLOWING.get(fixed.field, ())}
    names = TRAINER_DECISIONS if isinstance(table, TrainerTable) else ENGINE_DECISIONS
    for name in names:
        if name not in free and name != "dp":
            rows = rows & FixedField(worker=fixed.worker, field=name, value=value_of(strategy, name)).allows(table)
    return [table.row(int(row)) for row in np.flatnonzero(rows)[:MAX_EQUAL_ROWS]]


def _time_with(case: Case, mine: PlacedStrategy, strategy: Strategy) -> float | None:
    """Seconds per iteration with another strategy in the same place; None where it does not fit."""
    placed = [replace(item, strategy=strategy) if item is mine else item for item in case.placed]
    assembled = assemble(placed, case.inputs, None)
    return None if assembled.problems else assembled.time_s


# ---------------------------------------------------------------------------------------------- grouping


def _grouping_decisions(case: Case) -> Iterator[Decision]:
    for first, second in combinations(case.placed, 2):
        names = (first.worker.name, second.worker.name)
        shares = first.overlaps(second)
        limits = case.limits
        if shares:
            limits = replace(limits, must_not_share=(*limits.must_not_share, names))
        else:
            limits = replace(limits, must_share=(*limits.must_share, names))
        part, result = _under(case, case.parts, limits)
        rival = None
        if result.solution is not None:
            rival = _rival(case, part, result, APART if shares else SHARED)
        yield Decision(
            subject=GROUPS,
            what=f"{names[0].value} and {names[1].value}",
            value=SHARED if shares else APART,
            rival=rival,
            reason="" if rival is not None else "no such plan",
        )


def _under(case: Case, parts: Sequence[SearchPart], limits: Limits) -> tuple[SearchPart, SearchResult]:
    """The best plan of priced parts under other limits on what may share GPUs."""
    cluster = reachable(case.cluster, limits.max_gpus)
    changed = []
    for part in parts:
        problem = make_problem(part.priced, part.inputs, cluster, limits)
        changed.append(replace(part, problem=replace(part.problem, structure_filter=problem.structure_filter)))
    return solve_parts(changed, case.rules, exact(limits))


# ---------------------------------------------------------------------------------------------- execution


def _execution_decisions(case: Case) -> Iterator[Decision]:
    execution = case.plan.execution
    parts = case.outcome.parts
    staleness = [part for part in parts if part.inputs.execution.staleness != execution.staleness]
    if staleness:
        yield _among(
            case, "staleness", str(execution.staleness), staleness, lambda p: str(p.inputs.execution.staleness)
        )
    modes = [
        part
        for part in parts
        if part.inputs.execution.mode is not execution.mode and part.inputs.execution.is_asynchronous
    ]
    if execution.is_asynchronous and modes:
        yield _among(case, "mode", execution.mode.value, modes, lambda p: p.inputs.execution.mode.value)
    if execution.fusions:
        plain = [_unfused(case, part) for part in case.parts]
        words = " and ".join(fusion.value for fusion in execution.fusions)
        yield _among(case, "fusion", words, plain, lambda _: "none")


def _among(
    case: Case, what: str, value: str, parts: Sequence[SearchPart], words: Callable[[SearchPart], str]
) -> Decision:
    part, result = solve_parts(parts, case.rules, exact(case.limits))
    rival = None if result.solution is None else _rival(case, part, result, words(part))
    reason = "" if rival is not None else "no such plan"
    return Decision(subject=ITERATIONS, what=what, value=value, rival=rival, reason=reason)


def _unfused(case: Case, part: SearchPart) -> SearchPart:
    """The part without stage fusion; parts of a union that lose theirs are the same."""
    if not part.inputs.execution.fusions:
        return part
    inputs = replace(part.inputs, execution=replace(part.inputs.execution, fusions=()))
    priced = tuple(without_moments(item, inputs) for item in part.priced)
    cluster = reachable(case.cluster, case.limits.max_gpus)
    problem = make_problem(priced, inputs, cluster, case.limits)
    return SearchPart(inputs=inputs, priced=priced, problem=problem)
