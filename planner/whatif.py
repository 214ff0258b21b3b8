"""What a sweep says: the cheapest, fastest and smallest cluster, the Pareto front, and what the answer rests on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from planner.domain.budget import Point, Row, RunTotal, Sweep, run_total
from planner.domain.plan import Plan, StalenessGain, Status
from planner.domain.request import FixedWorker, PlanRequest
from planner.errors import InfeasibleError
from planner.pipeline import estimate, make_plan
from planner.sweep.points import Group, Task

LENGTH_FACTORS = (0.5, 1.5, 2.0)
"""Mean responses that the chosen plan is asked about, as multiples of the assumed one."""
GROWTH_RATIO = 2.0
"""Mean response at the end of a run over that at its start, where growth is asked about."""
GROWTH_NODES = (0.0, 0.25, 0.5, 0.75, 1.0)
GROWTH_WEIGHTS = (7 / 90, 32 / 90, 12 / 90, 32 / 90, 7 / 90)
"""Boole's rule: the mean over the run of a time that changes smoothly."""
PRICE_FACTORS = (0.8, 1.25)
ASKED_STALENESS = 2
"""Versions of lag up to which the gain of asynchronous plans is shown where the user permits none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A point with a plan, and its whole run."""

    row: Row
    run: RunTotal

    @property
    def point(self) -> Point:
        return self.row.point


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """The best entry by one measure; `why` names the measure."""

    name: str
    why: str
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The answer to a sweep at one mean response length. `entries` are all that fit, `allowed` those within the
    limits; `picks` are cheapest, fastest and smallest, empty where nothing is allowed."""

    response_mean_tokens: float
    entries: tuple[Entry, ...]
    allowed: tuple[Entry, ...]
    picks: tuple[Pick, ...]
    front: tuple[Entry, ...]
    """Entries within the limits that no other one beats in hours, USD and GPU-hours, by hours."""
    unpriced: tuple[str, ...]
    """Kinds without a price, which therefore cannot be the cheapest where others have one."""

    def pick(self, name: str) -> Entry | None:
        return next((item.entry for item in self.picks if item.name == name), None)


def choose(sweep: Sweep, response_mean_tokens: float | None = None) -> Choice:
    """Picks and front at one mean response length (None: the workload's own)."""
    head = sweep.head
    mean = head.response_means[0] if response_mean_tokens is None else response_mean_tokens
    entries = tuple(
        Entry(row=row, run=run_total(row, head.rates, head.price(row.point.kind)))
        for row in sweep.rows
        if row.time_s is not None and row.point.response_mean_tokens == mean
    )
    allowed = tuple(entry for entry in entries if is_allowed(entry.run, head.max_time_s, head.max_usd))
    return Choice(
        response_mean_tokens=mean,
        entries=entries,
        allowed=allowed,
        picks=_picks(allowed),
        front=pareto_front(allowed),
        unpriced=tuple(item.kind for item in head.prices if item.price is None),
    )


def is_allowed(run: RunTotal, max_time_s: float | None, max_usd: float | None) -> bool:
    """Whether a run ends within the limits; a limit on USD is not met where no price is known."""
    if not run.is_finite or (max_time_s is not None and run.time_s > max_time_s):
        return False
    return max_usd is None or (run.usd is not None and run.usd <= max_usd)


def _picks(allowed: Sequence[Entry]) -> tuple[Pick, ...]:
    if not allowed:
        return ()
    priced = [entry for entry in allowed if entry.run.usd is not None]
    by_money = priced or list(allowed)
    cheapest = min(by_money, key=lambda e: (_money(e), e.run.time_s, e.point))
    fastest = min(allowed, key=lambda e: (e.run.time_s, _money(e), e.point))
    smallest = min(allowed, key=lambda e: (e.row.billed_gpus, e.run.time_s, e.point))
    return (
        Pick(name="cheapest", why="fewest USD" if priced else "fewest GPU-hours: no price is known", entry=cheapest),
        Pick(name="fastest", why="fewest hours", entry=fastest),
        Pick(name="smallest", why="fewest GPUs", entry=smallest),
    )


def _money(entry: Entry) -> float:
    return entry.run.gpu_hours if entry.run.usd is None else entry.run.usd


def pareto_front(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Entries that no other one equals or beats in hours, USD and GPU-hours, by hours; of equal ones the first.

    An entry without a price is compared with those of its own kind only, or where no entry has a price.
    """
    kept: list[Entry] = []
    for entry in sorted(entries, key=lambda e: (e.run.time_s, _money(e), e.run.gpu_hours, e.point)):
        if not any(_beats(other, entry) for other in kept):
            kept.append(entry)
    return tuple(kept)


def _beats(first: Entry, second: Entry) -> bool:
    a, b = first.run, second.run
    if (a.usd is None) != (b.usd is None):
        return False
    if a.usd is None and first.point.kind != second.point.kind:
        return a.time_s <= b.time_s and a.gpu_hours <= b.gpu_hours
    return a.time_s <= b.time_s and a.gpu_hours <= b.gpu_hours and (a.usd or 0.0) <= (b.usd or 0.0)


def nearest_misses(sweep: Sweep, choice: Choice) -> str:
    """Why nothing is within the limits, with what comes nearest, as one sentence."""
    limits = []
    head = sweep.head
    if head.max_time_s is not None:
        limits.append(f"{head.max_time_s / 3600:.4g} h")
    if head.max_usd is not None:
        limits.append(f"{head.max_usd:,.0f} USD")
    finite = [entry for entry in choice.entries if entry.run.is_finite]
    if not finite:
        reason = next((row.reason for row in sweep.rows if row.reason), "interruptions come faster than progress")
        return f"no point of the sweep has a plan that gets to its end: {reason}"
    parts = [f"no plan stays within {' and '.join(limits)}"]
    fastest = min(finite, key=lambda e: e.run.time_s)
    parts.append(f"the fastest takes {_words(fastest)}")
    priced = [entry for entry in finite if entry.run.usd is not None]
    if priced:
        parts.append(f"the cheapest takes {_words(min(priced, key=_money))}")
    return "; ".join(parts)


def _words(entry: Entry) -> str:
    money = "" if entry.run.usd is None else f" and {entry.run.usd:,.0f} USD"
    return f"{entry.run.hours:,.1f} h{money} on {entry.row.billed_gpus} x {entry.point.kind}"


# ---------------------------------------------------------------------------------------------- sensitivity


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The run of a chosen plan when something is not as assumed. `run` is None where the plan no longer fits, and
    `is_allowed` says whether it stays within the limits."""

    what: str
    run: RunTotal | None
    is_allowed: bool
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """What a chosen plan rests on."""

    entry: Entry
    plan: Plan
    effects: tuple[Effect, ...]
    staleness: tuple[StalenessGain, ...]
    break_even: str
    """When another kind of node becomes the cheapest."""


def full_plans(tasks: Sequence[Task], choice: Choice) -> tuple[Plan, ...]:
    """The plans of the picks with everything that `rlplan plan` prints for their clusters."""
    points = dict.fromkeys(pick.entry.point for pick in choice.picks)
    return tuple(make_plan(group_of(tasks, point).at(point.num_gpus)) for point in points)


def sensitivity(sweep: Sweep, choice: Choice, entry: Entry, plan: Plan, request: PlanRequest) -> Sensitivity:
    """How hours and USD of an entry change with what the user does not know exactly.

    `plan` is the plan of the entry and `request` what it was made for.
    """
    head = sweep.head
    price = head.price(entry.point.kind)

    def effect(what: str, time_s: float | None, note: str = "", factor: float = 1.0) -> Effect:
        if time_s is None:
            return Effect(what=what, run=None, is_allowed=False, note=note)
        changed = None if price is None else replace(price, usd_per_gpu_hour=price.usd_per_gpu_hour * factor)
        run = run_total(entry.row, head.rates, changed, time_s=time_s)
        return Effect(what=what, run=run, is_allowed=is_allowed(run, head.max_time_s, head.max_usd), note=note)

    assert entry.row.time_s is not None
    effects = [*_length_effects(plan, request, sweep, effect), *_band_effects(plan, effect)]
    if price is not None:
        effects += [
            effect(f"price {factor - 1:+.0%}: {price.usd_per_gpu_hour * factor:.2f} USD", entry.row.time_s, "", factor)
            for factor in PRICE_FACTORS
        ]
    return Sensitivity(
        entry=entry,
        plan=plan,
        effects=tuple(effects),
        staleness=_staleness_gains(plan, request),
        break_even=break_even(choice, entry),
    )


def _staleness_gains(plan: Plan, request: PlanRequest) -> tuple[StalenessGain, ...]:
    """What each version of lag buys on the plan's cluster; `is_permitted` by the limits of the plan."""
    if plan.limits.max_staleness:
        return plan.staleness_gains
    limits = replace(request.limits, max_staleness=ASKED_STALENESS)
    gains = make_plan(replace(request, limits=limits)).staleness_gains
    return tuple(replace(gain, is_permitted=gain.is_permitted and gain.staleness == 0) for gain in gains)


_MakeEffect = Callable[..., Effect]


def _length_effects(plan: Plan, request: PlanRequest, sweep: Sweep, effect: _MakeEffect) -> list[Effect]:
    law = plan.workload.response
    result = []
    for factor in LENGTH_FACTORS:
        mean = round(law.mean_tokens * factor)
        if 0 < mean <= law.max_tokens:
            note = _better_at(sweep, float(mean))
            result.append(effect(f"mean response {mean:,} tokens", time_at_mean(plan, request, mean), note))
    last = min(law.mean_tokens * GROWTH_RATIO, float(law.max_tokens))
    if last > law.mean_tokens:
        times = [
            time_at_mean(plan, request, law.mean_tokens + (last - law.mean_tokens) * share) for share in GROWTH_NODES
        ]
        known = [time for time in times if time is not None]
        mean_s = sum(w * t for w, t in zip(GROWTH_WEIGHTS, known, strict=True)) if len(known) == len(times) else None
        result.append(effect(f"mean response grows to {last:,.0f} during the run", mean_s))
    return result


def _better_at(sweep: Sweep, mean: float) -> str:
    """The cheapest entry of the sweep at another length, where that was swept."""
    if mean not in sweep.head.response_means:
        return ""
    cheapest = choose(sweep, mean).pick("cheapest")
    return "" if cheapest is None else f"cheapest then: {_words(cheapest)}"


def time_at_mean(plan: Plan, request: PlanRequest, mean_tokens: float) -> float | None:
    """Seconds per iteration of exactly this plan at another mean response; None if it does not fit."""
    workload = replace(plan.workload, response=replace(plan.workload.response, mean_tokens=mean_tokens))
    priced = estimate(replace(request, workload=workload), fixed_workers(plan), plan.execution)
    return priced.time_s if priced.status is Status.FEASIBLE else None


def fixed_workers(plan: Plan) -> tuple[FixedWorker, ...]:
    """The workers of a plan as a fixed configuration."""
    groups = {group.id: group for group in plan.device_groups}
    workers = {}
    for item in plan.placements:
        if item.worker is not None and item.strategy is not None:
            group = groups[item.device_group]
            workers[item.worker] = FixedWorker(
                worker=item.worker, pool=group.pool, first_gpu=group.first_gpu,
                num_gpus=item.strategy.num_gpus, strategy=item.strategy,
            )  # fmt: skip
    return tuple(workers.values())


def _band_effects(plan: Plan, effect: _MakeEffect) -> list[Effect]:
    band = plan.time_band
    if band is None:
        return []
    # What a measured step took over the predicted one: MFU and whatever else the cost model misses.
    words = f"MFU: {band.coverage_ratio:.0%} band of measured steps"
    return [
        effect(f"{words}, fast end", plan.time_s * band.low_ratio),
        effect(f"{words}, slow end", plan.time_s * band.high_ratio),
    ]


def break_even(choice: Choice, entry: Entry) -> str:
    """The price at which the cheapest entry of another kind takes over, or that it never can."""
    usd = entry.run.usd
    if usd is None:
        return ""
    rivals: dict[str, Entry] = {}
    for other in choice.allowed:
        if other.point.kind != entry.point.kind and _money(other) < _rival_money(rivals.get(other.point.kind)):
            rivals[other.point.kind] = other
    parts = []
    for kind, other in sorted(rivals.items()):
        usd_per_gpu_hour = usd / other.run.gpu_hours
        state = "no price is known" if other.run.usd is None else f"now {other.run.usd / other.run.gpu_hours:.2f}"
        parts.append(f"{kind} is as cheap at {usd_per_gpu_hour:.2f} USD per GPU-hour ({state})")
    return "; ".join(parts)


def _rival_money(entry: Entry | None) -> float:
    return inf if entry is None else _money(entry)


def group_of(tasks: Sequence[Task], point: Point) -> Group:
    """The group that a point belongs to; InfeasibleError for a point that is none of the sweep's."""
    for task in tasks:
        if task.point == point:
            return task.group
    raise InfeasibleError(f"{point.num_gpus} x {point.kind} is no point of this sweep")
