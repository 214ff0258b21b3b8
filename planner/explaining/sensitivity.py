"""Where the plan flips: what keeping it loses when lengths, links or efficiencies are not as assumed.

At every point exactly this plan is priced again, and beside it the best plan for that point. The mean response length
from which on another plan is better by more than the error of the model is found by bisection, and the best plan just
before it is searched in full, so that the answer does not rest on the options that survived pruning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from planner.domain.overheads import Overheads
from planner.explaining.case import Case
from planner.explaining.relaxations import each_node, faster_nics, faster_scale_up
from planner.explaining.replan import World, best_in, kept_in, world_of
from planner.explaining.score import Score

FLIP_RATIO = 0.02
"""Smaller losses do not make a plan another plan: the cost model is not that exact."""
LENGTH_FACTORS = (0.5, 1.5)
_Named = tuple[str, World]
"""What differs in a world, in words."""
GROWTH_RATIO = 2.0
"""Mean response at the end of a run over that at its start, where growth is asked about."""
GROWTH_NODES = (0.0, 0.25, 0.5, 0.75, 1.0)
GROWTH_WEIGHTS = (7 / 90, 32 / 90, 12 / 90, 32 / 90, 7 / 90)
"""Boole's rule: the mean over the run of a time that changes smoothly."""
SCAN_FACTORS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Multiples of the mean response among which the first flip is looked for, upwards and downwards."""
RESOLUTION_RATIO = 0.04
"""Flips are found to that share of the mean."""
SPREAD_FACTORS = (0.5, 1.5)
MAX_CV = 5.0
SLOWER = 0.5
MIN_TOKENS = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value that is not as assumed. `kept` is this plan there, None where it no longer fits; `best` is the best
    plan there, None where nothing fits."""

    what: str
    kept: Score | None
    best: Score | None

    @property
    def loss_ratio(self) -> float | None:
        """What keeping the plan costs more than the best one; None where either does not exist."""
        if self.kept is None or self.best is None:
            return None
        return max(0.0, self.kept.change_ratio(self.best))

    @property
    def is_flip(self) -> bool:
        """Whether another plan should be used."""
        return self.best is not None and (self.kept is None or (self.loss_ratio or 0.0) > FLIP_RATIO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """The mean response length from which on another plan is better by more than `FLIP_RATIO`.

    `mean_tokens` is None where no flip was found up to `searched_tokens`, the last length at which the best plan was
    searched in full. `before` and `at` are the points on both sides.
    """

    is_upwards: bool
    mean_tokens: float | None
    searched_tokens: float
    at: Point | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Responses that grow during the run: mean iteration time with this plan all the time, and with the best plan at
    each length. None where the plan, or any plan, does not fit all the way."""

    last_tokens: float
    kept_s: float | None
    best_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """What the plan rests on."""

    points: tuple[Point, ...]
    flips: tuple[Flip, ...]
    growth: Growth | None


def sensitivity(case: Case) -> Sensitivity:
    """All points, the flips on both sides of the mean response, and the growth of responses during a run."""
    lengths, watch = _Lengths(case), case.watch
    worlds = (*lengths.worlds(), *_spread(case), *_links(case), *_efficiencies(case))
    points = [watch.asked(what, partial(lengths.point, what, world)) for what, world in worlds]
    sides = ((False, "below which mean response to plan again"), (True, "above which mean response to plan again"))
    flips = [watch.asked(what, partial(lengths.flip, is_upwards=up)) for up, what in sides]
    return Sensitivity(
        points=tuple(item for item in points if item is not None),
        flips=tuple(item for item in flips if item is not None),
        growth=watch.asked("growing responses", lengths.growth),
    )


# ---------------------------------------------------------------------------------------------- one point


def point(case: Case, what: str, world: World) -> Point:
    """This plan and the best one in another world."""
    kept = kept_in(case, world)
    # The plan itself is one of those that are searched, so that nothing slower can be the best.
    best = best_in(case, world, kept)
    return Point(what=what, kept=kept, best=best)


# ---------------------------------------------------------------------------------------------- lengths


class _Lengths:
    """Points along the mean response length; each is searched once."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._law = case.request.workload.response
        self._points: dict[float, Point] = {}
        self._is_flip: dict[float, bool] = {}

    def worlds(self) -> Iterator[_Named]:
        for factor in LENGTH_FACTORS:
            mean = float(round(self._law.mean_tokens * factor))
            if 0 < mean <= self._law.max_tokens:
                yield self._words(mean), self._world(mean)

    def point(self, what: str, world: World) -> Point:
        """A point, which is kept where only the mean response differs."""
        mean = world.workload.response.mean_tokens
        return self.at(mean) if world == self._world(mean) else point(self._case, what, world)

    def at(self, mean: float) -> Point:
        if mean not in self._points:
            self._points[mean] = point(self._case, self._words(mean), self._world(mean))
        return self._points[mean]

    def _words(self, mean: float) -> str:
        return f"mean response {mean:,.0f} tokens"

    def growth(self) -> Growth | None:
        first = self._law.mean_tokens
        last = min(first * GROWTH_RATIO, float(self._law.max_tokens))
        if last <= first:
            return None
        points = [self.at(round(first + (last - first) * share)) for share in GROWTH_NODES]
        return Growth(
            last_tokens=last,
            kept_s=_boole([None if item.kept is None else item.kept.time_s for item in points]),
            best_s=_boole([None if item.best is None else item.best.time_s for item in points]),
        )

    def flip(self, *, is_upwards: bool) -> Flip:
        """The first flip among the lengths that are scanned, bisected."""
        inside = self._law.mean_tokens
        for outside in self._scan(is_upwards=is_upwards):
            if self._flips(outside):
                return self._close_in(inside, outside, is_upwards=is_upwards)
            inside = outside
        return Flip(is_upwards=is_upwards, mean_tokens=None, searched_tokens=inside, at=None)

    def _scan(self, *, is_upwards: bool) -> Iterator[float]:
        mean, end = self._law.mean_tokens, float(self._law.max_tokens)
        for factor in SCAN_FACTORS:
            value = mean * factor if is_upwards else mean / factor
            if value >= end or value <= MIN_TOKENS:
                break
            yield value
        if is_upwards and end > mean:
            yield end

    def _close_in(self, inside: float, outside: float, *, is_upwards: bool) -> Flip:
        """The flip between two lengths, of which only the second is one."""
        low, high = inside, outside
        while abs(high - low) > RESOLUTION_RATIO * self._law.mean_tokens:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self._flips(middle) else (middle, high)
        found = self.at(round(high))
        return Flip(is_upwards=is_upwards, mean_tokens=round(high), searched_tokens=round(low), at=found)

    def _flips(self, mean: float) -> bool:
        """Whether another plan is better by more than the error of the model; the point itself is only searched where
        one is."""
        mean = float(round(mean))
        if mean in self._points:
            return self._points[mean].is_flip
        if mean not in self._is_flip:
            world = self._world(mean)
            kept = kept_in(self._case, world)
            better = None if kept is None else kept.times(1.0 / (1.0 + FLIP_RATIO))
            self._is_flip[mean] = best_in(self._case, world, better, at_least=better is not None) is not None
        return self._is_flip[mean]

    def _world(self, mean: float) -> World:
        world = world_of(self._case)
        return replace(world, workload=replace(world.workload, response=replace(self._law, mean_tokens=mean)))


def _boole(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return sum(weight * value for weight, value in zip(GROWTH_WEIGHTS, known, strict=True))


# ---------------------------------------------------------------------------------------------- the rest


def _spread(case: Case) -> Iterator[_Named]:
    world = world_of(case)
    law = world.workload.response
    for factor in SPREAD_FACTORS if law.cv > 0 else ():
        other = replace(law, cv=min(law.cv * factor, MAX_CV))
        words = f"spread of responses: CV {other.cv:.2g}"
        yield words, replace(world, workload=replace(world.workload, response=other))


def _links(case: Case) -> Iterator[_Named]:
    world, cluster = world_of(case), case.cluster
    if cluster.num_gpus > max(pool.node.scale_up_domain_gpus for pool in cluster.pools):
        slower = each_node(cluster, lambda node: faster_nics(node, SLOWER))
        yield "NICs half as fast", replace(world, cluster=slower)
    slower = each_node(cluster, lambda node: faster_scale_up(node, SLOWER))
    yield "links within nodes half as fast", replace(world, cluster=slower)
    rate = cluster.cross_pool_bytes_per_s
    if rate is not None:
        slower = replace(cluster, inter_pool_bytes_per_s=rate * SLOWER)
        yield "links between pools half as fast", replace(world, cluster=slower)


def _efficiencies(case: Case) -> Iterator[_Named]:
    """Rollout and training slower or faster than predicted, each alone, by the error band of measured steps: both
    together would change no plan."""
    band = case.plan.time_band
    if band is None:
        return
    world = world_of(case)
    changes: tuple[tuple[str, Callable[[Overheads, float], Overheads]], ...] = (
        ("rollout", _with_rollout),
        ("training", _with_training),
    )
    for name, change in changes:
        for factor in (band.low_ratio, band.high_ratio):
            if factor != 1.0:
                words = f"{name} takes {factor:.2f} times as long as predicted"
                yield words, replace(world, overheads=change(world.overheads, factor))


def _with_rollout(overheads: Overheads, factor: float) -> Overheads:
    losses = overheads.step_losses
    return replace(overheads, step_losses=replace(losses, rollout_ratio=losses.rollout_ratio * factor))


def _with_training(overheads: Overheads, factor: float) -> Overheads:
    losses = overheads.step_losses
    return replace(
        overheads,
        step_losses=replace(
            losses,
            training_ratio=losses.training_ratio * factor,
            moe_training_ratio=losses.moe_training_ratio * factor,
        ),
    )
