"""compare(): a plan against the log of a run of it, stage by stage, with what would explain the largest gap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.calibration.blocks import MIN_FOR_WARM_UP, Block, blocks_of
from planner.calibration.coverage import ITERATION, OUTSIDE, Covered, Priced, controller_s, coverage, is_serial
from planner.calibration.setup import RunSetup, price_setup, with_lengths
from planner.cost.terms import Resource, term_info
from planner.domain.overheads import Overheads
from planner.domain.plan import NamedValue, Plan
from planner.errors import InvalidInputError
from planner.files.run_logs import RunLog, Timer

PLAUSIBLE_FACTORS = {
    Resource.COMPUTE: 1.8,
    Resource.HBM: 1.8,
    Resource.SCALE_UP: 3.0,
    Resource.NIC: 4.0,
    Resource.LATENCY: 4.0,
    Resource.HOST_LINK: 5.0,
    Resource.BUBBLE: 2.0,
    Resource.HOST: 10.0,
}
"""How far a term may be off in either direction before it is no explanation: kernels are measured well, links depend on
the fabric, host work on everything."""
LOW, HIGH = 0.05, 0.95
MIN_LENGTH_DIFFERENCE_RATIO = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStage:
    """One logged duration. `low_s` and `high_s` hold 90 % of the iterations; `at_lengths_s` is the prediction for the
    logged mean lengths, None where they are not logged or are those of the plan."""

    label: str
    planned_s: float
    at_lengths_s: float | None
    measured_s: float
    low_s: float
    high_s: float
    num_iterations: int
    terms: tuple[NamedValue, ...]
    """Of the prediction that counts: at logged lengths where there is one."""

    @property
    def predicted_s(self) -> float:
        return self.planned_s if self.at_lengths_s is None else self.at_lengths_s

    @property
    def ratio(self) -> float:
        """Measured over predicted; infinite where nothing was predicted."""
        return self.measured_s / self.predicted_s if self.predicted_s > 0 else math.inf

    @property
    def gap_s(self) -> float:
        return self.measured_s - self.predicted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The single term that would close the largest gap: times `factor`. `closes` is False where no term could within
    plausible limits; then it is the one that would close most, at its limit."""

    stage: str
    gap_s: float
    term: str
    title: str
    resource: str
    predicted_s: float
    factor: float
    closes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A plan beside a log. `iteration` is None where the log has no whole iterations."""

    log: RunLog
    stages: tuple[ComparedStage, ...]
    iteration: ComparedStage | None
    band_s: tuple[float, float] | None
    """Where the plan expects the iteration; None for plans without a band."""
    response_tokens: float | None
    prompt_tokens: float | None
    has_warm_up: bool
    """The first iteration was left out."""
    explanation: Explanation | None
    unplanned: tuple[NamedValue, ...] = ()
    """Stages that the log has and the configuration has not, with their seconds: then one is of another run."""

    @property
    def is_inside(self) -> bool | None:
        """Whether the measured iteration lies in the plan's band; None where one of the two is missing."""
        if self.band_s is None or self.iteration is None:
            return None
        return self.band_s[0] <= self.iteration.measured_s <= self.band_s[1]


def compare(plan: Plan, setup: RunSetup, log: RunLog, overheads: Overheads) -> Comparison:
    """`setup` is the plan's configuration and `overheads` what it was priced with.

    Raises InvalidInputError when nothing that is logged is a stage of the plan.
    """
    whole = blocks_of(log.records, 1)[0]
    again = _at_lengths(setup, whole, overheads)
    own = controller_s(plan.workload, overheads)
    stages: list[ComparedStage] = []
    covered_all: list[Covered] = []
    unplanned: list[NamedValue] = []
    for covered in coverage(log.kind, frozenset(whole.seconds), setup):
        measured = sum(whole.seconds[timer] for timer in covered.timers)
        planned = covered.seconds(plan, own)
        if planned <= 0:
            # Scoring by a rule: the model books it with the controller, and so does the rest below.
            if measured > 0 and Timer.REWARD not in covered.timers:
                unplanned.append(NamedValue(name=covered.label, value=measured))
            continue
        covered_all.append(covered)
        at_lengths = None if again is None else covered.seconds(again, own)
        terms = covered.terms(again if again is not None else plan, own)
        stages.append(_compared(covered.label, covered.timers, log, whole, (planned, at_lengths, measured), terms))
    iteration = None
    total = whole.seconds.get(Timer.ITERATION)
    if total is not None and total > 0:
        again_s = None if again is None else again.time_s
        iteration = _compared(ITERATION, (Timer.ITERATION,), log, whole, (plan.time_s, again_s, total), ())
        if covered_all and is_serial(plan) and not plan.execution.is_asynchronous:
            stages.append(_outside(plan, again, covered_all, stages, own, total))
    if not stages and iteration is None:
        raise InvalidInputError("no logged time belongs to a stage of the plan", where=log.file)
    band = plan.time_band
    return Comparison(
        log=log,
        stages=tuple(stages),
        iteration=iteration,
        band_s=None if band is None else (plan.time_s * band.low_ratio, plan.time_s * band.high_ratio),
        response_tokens=whole.response_tokens,
        prompt_tokens=whole.prompt_tokens,
        has_warm_up=len(log.records) >= MIN_FOR_WARM_UP,
        explanation=explain(stages),
        unplanned=tuple(unplanned),
    )


def _at_lengths(setup: RunSetup, whole: Block, overheads: Overheads) -> Priced | None:
    """The configuration priced at the logged lengths where they differ from the plan's."""
    at = with_lengths(setup, whole.response_tokens, whole.prompt_tokens)
    before, after = setup.workload, at.workload
    pairs = (
        (before.response.mean_tokens, after.response.mean_tokens),
        (before.prompt_mean_tokens, after.prompt_mean_tokens),
    )
    if all(abs(b / a - 1.0) < MIN_LENGTH_DIFFERENCE_RATIO for a, b in pairs):
        return None
    return price_setup(at, overheads)


def _compared(
    label: str,
    timers: tuple[Timer, ...],
    log: RunLog,
    whole: Block,
    seconds: tuple[float, float | None, float],
    terms: tuple[NamedValue, ...],
) -> ComparedStage:
    planned, at_lengths, measured = seconds
    records = log.records[1:] if len(log.records) >= MIN_FOR_WARM_UP else log.records
    values = sorted(
        sum(record.seconds[timer] for timer in timers)
        for record in records
        if all(timer in record.seconds for timer in timers)
    )
    return ComparedStage(
        label=label, planned_s=planned, at_lengths_s=at_lengths, measured_s=measured,
        low_s=_quantile(values, LOW), high_s=_quantile(values, HIGH), num_iterations=len(values), terms=terms,
    )  # fmt: skip


def _outside(
    plan: Plan,
    again: Priced | None,
    covered: Sequence[Covered],
    stages: Sequence[ComparedStage],
    own: float,
    total: float,
) -> ComparedStage:
    """What an iteration takes beside the logged stages: controller, data, stages that are not logged."""

    def rest(priced: Priced) -> float:
        return max(priced.time_s - math.fsum(item.seconds(priced, own) for item in covered), 0.0)

    measured = max(total - sum(stage.measured_s for stage in stages), 0.0)
    predicted = rest(again if again is not None else plan)
    return ComparedStage(
        label=OUTSIDE, planned_s=rest(plan), at_lengths_s=None if again is None else rest(again), measured_s=measured,
        low_s=measured, high_s=measured, num_iterations=stages[0].num_iterations,
        terms=(NamedValue(name="switch", value=predicted),),
    )  # fmt: skip


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Linear between neighbours."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def explain(stages: Sequence[ComparedStage]) -> Explanation | None:
    """The term that would close the largest gap in seconds with the least surprise; None without stages or gap.

    Surprise is |log factor| over the logarithm of what is plausible for the term's resource.
    """
    worst = max(stages, key=lambda stage: abs(stage.gap_s), default=None)
    if worst is None or worst.gap_s == 0:
        return None
    best: tuple[float, NamedValue, float] | None = None
    most: tuple[float, NamedValue, float] | None = None
    for term in worst.terms:
        if term.value <= 0:
            continue
        limit = math.log(PLAUSIBLE_FACTORS[term_info(term.name).resource])
        factor = 1.0 + worst.gap_s / term.value
        if factor > 0 and abs(math.log(factor)) <= limit:
            surprise = abs(math.log(factor)) / limit
            if best is None or surprise < best[0]:
                best = (surprise, term, factor)
        at_limit = math.exp(math.copysign(limit, worst.gap_s))
        closed = abs(term.value * (at_limit - 1.0))
        if most is None or closed > most[0]:
            most = (closed, term, at_limit)
    chosen = best or most
    if chosen is None:
        return None
    info = term_info(chosen[1].name)
    return Explanation(
        stage=worst.label, gap_s=worst.gap_s, term=info.name, title=info.title, resource=info.resource.value,
        predicted_s=chosen[1].value, factor=chosen[2], closes=best is not None,
    )  # fmt: skip
