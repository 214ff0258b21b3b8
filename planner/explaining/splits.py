"""Search problems of a rollout that two groups of engines share, for a question about a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from planner.domain.execution import Execution
from planner.domain.hardware import Pool
from planner.domain.stages import ROLLOUT_ENGINES, WorkerName
from planner.domain.strategy import FloatArray
from planner.explaining.prices import is_complete, pruned, taken
from planner.explaining.score import Score
from planner.explaining.shortlist import ROUNDING, bounds_s
from planner.parts import SearchPart
from planner.search.pricing import (
    PricedWorker,
    PricingInputs,
    as_second_engine,
)
from planner.splitting import rest_s, tables_below

if TYPE_CHECKING:
    from planner.explaining.market import Desk


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """One share of a split rollout, for one guess. `cut` are the options that are good enough, `left` those of them
    that no other one beats; no iteration takes less than `least_s`."""

    inputs: PricingInputs
    cut: tuple[PricedWorker, ...]
    left: tuple[PricedWorker, ...]
    least_s: float


class SplitShop:
    """The problems of one execution without fusion, share by share."""

    def __init__(self, desk: Desk, execution: Execution) -> None:
        self._execution = execution
        self._pools = desk.cluster.pools
        inputs = desk.inputs(execution)
        engine = inputs.graph.worker(WorkerName.ROLLOUT_ENGINE)
        others = [worker for worker in inputs.graph.workers if worker.name is not WorkerName.ROLLOUT_ENGINE]
        self._others = [desk.item(worker, pool, inputs) for worker in others for pool in self._pools]
        free = [desk.market.prices.free(desk.item(engine, pool, inputs)) for pool in self._pools]
        sizes = {pool.name: pool.num_gpus for pool in self._pools}
        tables = [item.options for item in (*free, *self._others)]
        self._after_s = bounds_s(tables, sizes, inputs.graph, execution)[len(free) :]
        """What an iteration takes beside the rollout, with each option of the others."""
        self._rest_s = 0.0 if execution.is_asynchronous else _trainer_s(self._others, self._after_s)
        self._shares: dict[tuple[float, Score | None], _Share | None] = {}
        self._limits: dict[tuple[str, float], tuple[float, float]] = {}
        """Of a pool and seconds: the largest share known to be possible, and the smallest known not to be."""

    def part(self, desk: Desk, share: float, guess: Score | None, limit: Score | None) -> SearchPart | None:
        """The search problem of one share; None where it has no plan as good as `limit`, which is no worse than
        `guess`."""
        found = self._share(desk, share, guess)
        if found is None or found.least_s > desk.cutoff_s(limit) * (1.0 + ROUNDING):
            return None
        kept = found.left
        if desk.forbidden is not None:
            # A second group of engines was restricted before it was pruned.
            kept = tuple(
                pruned(desk.allowed(cut, cut.worker.name), found.inputs) if _is_restricted(desk, cut) else left
                for cut, left in zip(found.cut, found.left, strict=True)
            )
        if not is_complete(kept, found.inputs):
            return None
        return SearchPart(inputs=found.inputs, priced=kept, problem=desk.problem(kept, found.inputs))

    def _share(self, desk: Desk, share: float, guess: Score | None) -> _Share | None:
        if desk.forbidden is not None and desk.forbidden.worker is WorkerName.SECOND_ENGINE:
            return self._priced(desk, share, guess)
        if (share, guess) not in self._shares:
            self._shares[share, guess] = self._priced(desk, share, guess)
        return self._shares[share, guess]

    def _priced(self, desk: Desk, share: float, guess: Score | None) -> _Share | None:
        cutoff_s = desk.cutoff_s(guess)
        spare_s = cutoff_s - self._rest_s
        first = [pool.name for pool in self._pools if self._can_generate(desk, pool, 1.0 - share, spare_s)]
        second = [pool.name for pool in self._pools if self._can_generate(desk, pool, share, spare_s)]
        if not any(one != two for one in first for two in second):
            return None
        split = replace(self._execution, second_share_ratio=share)
        inputs = desk.inputs(split)
        engines = [self._engine(desk, name, pool, inputs) for name in ROLLOUT_ENGINES for pool in self._pools]
        engines = self._on_useful_pools(engines, split, cutoff_s)
        items = self._short_enough(engines, cutoff_s)
        if not is_complete(items, inputs):
            return None
        sizes = {pool.name: pool.num_gpus for pool in self._pools}
        bounds = bounds_s([item.options for item in items], sizes, inputs.graph, split)
        cut = tuple(
            taken(item, desk.is_good_enough(item, bound, guess)) for item, bound in zip(items, bounds, strict=True)
        )
        if not is_complete(cut, inputs):
            return None
        left = tuple(pruned(item, inputs) for item in cut)
        return _Share(inputs=inputs, cut=cut, left=left, least_s=_trainer_s(items, bounds))

    def _can_generate(self, desk: Desk, pool: Pool, share: float, spare_s: float) -> bool:
        """Whether engines of a pool can generate so much of the responses in so many seconds. Fewer responses never
        take longer, so that what is known of one share says something about others."""
        if not np.isfinite(spare_s):
            return spare_s > 0.0
        enough, too_much = self._limits.get((pool.name, spare_s), (0.0, 1.0))
        if enough < share < too_much:
            fits = self._least_s(desk, pool, share) <= spare_s * (1.0 + ROUNDING)
            enough, too_much = (share, too_much) if fits else (enough, share)
            self._limits[pool.name, spare_s] = (enough, too_much)
        return share <= enough

    def _least_s(self, desk: Desk, pool: Pool, share: float) -> float:
        """The fastest rollout of so much of the responses on a pool, in seconds."""
        inputs = desk.inputs(replace(self._execution, second_share_ratio=1.0 - share))
        table = desk.options(inputs.graph.worker(WorkerName.ROLLOUT_ENGINE), pool, inputs)
        return float(np.min(table.stage_time_s.sum(axis=0), initial=np.inf))

    def _short_enough(self, engines: Sequence[PricedWorker], cutoff_s: float) -> list[PricedWorker]:
        """Engines and others without options that take too long beside the fastest of each other: a synchronous
        iteration takes the rollout and what comes after it."""
        if self._execution.is_asynchronous or not np.isfinite(cutoff_s):
            return [*engines, *self._others]
        limit_s = cutoff_s * (1.0 + ROUNDING)
        seconds = [item.options.stage_time_s.sum(axis=0) for item in engines]
        least = dict.fromkeys(ROLLOUT_ENGINES, np.inf)
        for item, taken_s in zip(engines, seconds, strict=True):
            name = item.worker.name
            least[name] = min(least[name], float(np.min(taken_s, initial=np.inf)))
        rollout_s = max(least.values())
        cut = [taken(item, taken_s + self._rest_s <= limit_s) for item, taken_s in zip(engines, seconds, strict=True)]
        after = zip(self._others, self._after_s, strict=True)
        return [*cut, *(taken(item, rollout_s + bound <= limit_s) for item, bound in after)]

    def _on_useful_pools(
        self, engines: Sequence[PricedWorker], execution: Execution, cutoff_s: float
    ) -> list[PricedWorker]:
        first, second = ([item for item in engines if item.worker.name is name] for name in ROLLOUT_ENGINES)
        left = tables_below(
            [item.options for item in first],
            [item.options for item in second],
            rest_s([item.options for item in self._others]),
            execution,
            float(np.nextafter(cutoff_s * (1.0 + ROUNDING), np.inf)),
        )
        return [item for item in engines if any(item.options is table for table in left.tables)]

    def _engine(self, desk: Desk, name: WorkerName, pool: Pool, inputs: PricingInputs) -> PricedWorker:
        """A group of engines with its share; the second one costs what the first would with that share."""
        if name is WorkerName.ROLLOUT_ENGINE:
            return desk.item(inputs.graph.worker(name), pool, inputs)
        share = inputs.execution.second_share_ratio
        mirrored = desk.inputs(replace(inputs.execution, second_share_ratio=1.0 - share))
        item = desk.item(mirrored.graph.worker(WorkerName.ROLLOUT_ENGINE), pool, mirrored)
        if desk.forbidden is not None and desk.forbidden.worker is name:
            return as_second_engine(desk.allowed(item, name), inputs.graph.worker(name))
        return desk.market.prices.second_engine(item, inputs.graph.worker(name))


def _is_restricted(desk: Desk, item: PricedWorker) -> bool:
    return desk.forbidden is not None and item.worker.name is desk.forbidden.worker


def _trainer_s(items: Sequence[PricedWorker], bounds: Sequence[FloatArray]) -> float:
    """The least bound of any option of the actor trainer: no plan does without one."""
    trainers = [
        float(np.min(bound, initial=np.inf))
        for item, bound in zip(items, bounds, strict=True)
        if item.worker.name is WorkerName.ACTOR_TRAINER
    ]
    return min(trainers, default=np.inf)
