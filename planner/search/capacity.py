"""Objectives and limits beyond time: a best-first search over how many GPUs of each pool are used.

The least iteration time is monotone in the pool capacities, so in a box of capacities [low, high] nothing is faster
than the optimum at `high` and nothing is cheaper per second than `low`. A box is solved at `high`, which often gives
a plan as well, and is split unless that bound already rules it out. USD are those of whole nodes used.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from planner.domain.plan import Objective
from planner.domain.strategy import IntArray
from planner.search.minimise import Found, Minimum, TimeSearch
from planner.units import HOUR_S

Key = tuple[float, float]
"""What is minimised, lexicographically."""

NEVER: Key = (np.inf, np.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Objective and limits of one capacity search. `max_value` limits time x rate (USD or GPU-hours)."""

    objective: Objective
    max_iteration_s: float = np.inf
    max_gpus: float = np.inf
    max_value: float = np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityResult:
    """The best plan with the capacities that it uses, and a proven bound on the key."""

    found: Found | None
    used: IntArray | None
    key: Key
    bound: Key


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    """All capacities from `low` to `high`; nothing in it has a key below `bound`."""

    bound: Key
    low: IntArray
    high: IntArray


class _Boxes:
    """Open boxes, best bound first; of equal bounds the one pushed first."""

    def __init__(self) -> None:
        self._heap: list[tuple[Key, int, _Box]] = []
        self._serial = 0

    def push(self, box: _Box) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (box.bound, self._serial, box))

    def pop(self, best: Key) -> _Box | None:
        """The box with the least bound, or None when none is better than `best`."""
        if not self._heap or self._heap[0][0] >= best:
            return None
        return heapq.heappop(self._heap)[2]


class CapacitySearch:
    """Minimises over capacities with one `TimeSearch`; results per capacity are kept for later goals."""

    def __init__(self, search: TimeSearch) -> None:
        self._search = search
        pools = search.problem.pools
        self.pool_names = tuple(pool.name for pool in pools)
        self.full: IntArray = np.array([pool.num_gpus for pool in pools], dtype=np.int64)
        self._per_node: IntArray = np.array([pool.gpus_per_node for pool in pools], dtype=np.int64)
        prices = [pool.usd_per_gpu_hour for pool in pools]
        self.has_prices = all(price is not None for price in prices)
        self._price = np.array([price if self.has_prices and price is not None else 1.0 for price in prices]) / HOUR_S
        self._work_flop = search.problem.work_flop
        self._peak = np.array([pool.peak_flop_per_s for pool in pools])
        self._known: dict[tuple[bool, tuple[int, ...]], tuple[float, Minimum]] = {}

    def rate(self, num_gpus: IntArray) -> float:
        """USD (or GPU-hours) per second of the whole nodes that so many GPUs occupy."""
        nodes = -(-num_gpus // self._per_node)
        return float(np.sum(nodes * self._per_node * self._price))

    def least_s(self, num_gpus: IntArray) -> float:
        """Seconds that the work of an iteration takes at the peak of so many GPUs."""
        rate = float(np.sum(self._peak[num_gpus > 0] * num_gpus[num_gpus > 0]))
        return self._work_flop / rate if rate > 0 else 0.0

    def run(self, goal: Goal, *, beat: Key = NEVER, call_limit: int | None = None) -> CapacityResult:
        """The best plan for the goal with a key below `beat`; without any, the result's bound is at least `beat`.

        `call_limit` ends the search early: then the bound says how far it got.
        """
        best: Found | None = None
        best_used: IntArray | None = None
        best_key, open_key = beat, NEVER
        boxes = _Boxes()
        self._push(boxes, goal, best_key, np.zeros_like(self.full), self.full, 0.0)
        calls = 0
        while (box := boxes.pop(best_key)) is not None:
            low, high = box.low, self._clip(goal, best_key, box.low, box.high)
            if self._search.clock.left_s <= 0 or (call_limit is not None and calls >= call_limit):
                open_key = min(open_key, box.bound)
                break
            limit_s = self._time_limit(goal, low, best_key)
            if self.least_s(high) > limit_s:
                # Too much work for these GPUs: nothing to search.
                continue
            single = bool((low == high).all())
            # How many GPUs are needed is a yes-or-no question for each box; only the last box needs the best time.
            minimum = self._minimise(high, limit_s, first_only=goal.objective is Objective.GPUS and not single)
            calls += 1
            if minimum.found is not None:
                used = self._search.used_gpus(minimum.found)
                key = self._key(goal, used, minimum.found.time_s)
                if key < best_key and self._allowed(goal, used, minimum.found.time_s):
                    best, best_used, best_key = minimum.found, used, key
            nothing = minimum.bound_s > limit_s or not np.isfinite(minimum.bound_s)
            if nothing or self._key(goal, low, minimum.bound_s) >= best_key:
                continue
            if single:
                # Only a time limit leaves a single capacity open.
                open_key = min(open_key, self._key(goal, low, minimum.bound_s))
                continue
            for part_low, part_high in self._halves(low, high):
                self._push(boxes, goal, best_key, part_low, part_high, minimum.bound_s)
        return CapacityResult(found=best, used=best_used, key=best_key, bound=min(open_key, best_key))

    def _push(self, boxes: _Boxes, goal: Goal, best: Key, low: IntArray, high: IntArray, time_s: float) -> None:
        high = self._clip(goal, best, low, high)
        if (high >= low).all():
            bound = self._key(goal, low, max(time_s, self.least_s(high)))
            boxes.push(_Box(bound=bound, low=low, high=high))

    def _minimise(self, capacity: IntArray, cutoff_s: float, *, first_only: bool) -> Minimum:
        key = (first_only, tuple(int(n) for n in capacity))
        known = self._known.get(key)
        if known is not None:
            limit, minimum = known
            if cutoff_s <= limit and (minimum.found is None or minimum.found.time_s <= cutoff_s):
                return minimum
        minimum = self._search.minimise(capacity, cutoff_s, first_only=first_only)
        self._known[key] = (cutoff_s, minimum)
        return minimum

    def _key(self, goal: Goal, num_gpus: IntArray, time_s: float) -> Key:
        if goal.objective is Objective.GPUS:
            return float(num_gpus.sum()), time_s
        if goal.objective is Objective.COST:
            return self.rate(num_gpus) * time_s, 0.0
        return time_s, 0.0

    def _time_limit(self, goal: Goal, low: IntArray, best: Key) -> float:
        """Longest iteration with which a plan on at least `low` GPUs can still be allowed and the best."""
        rate = max(self.rate(low), 1e-300)
        limit = min(goal.max_iteration_s, goal.max_value / rate)
        if goal.objective is Objective.TIME:
            limit = min(limit, float(np.nextafter(best[0], 0.0)))
        elif goal.objective is Objective.COST:
            limit = min(limit, best[0] / rate)
        return float(limit)

    @staticmethod
    def _clip(goal: Goal, best: Key, low: IntArray, high: IntArray) -> IntArray:
        """`high` without what the limit on GPUs, or a plan on fewer of them, rules out; below `low` if all is."""
        most = min(goal.max_gpus, best[0]) if goal.objective is Objective.GPUS else goal.max_gpus
        if not np.isfinite(most):
            return high
        result: IntArray = np.minimum(high, low + (int(most) - int(low.sum())))
        return result

    def _allowed(self, goal: Goal, used: IntArray, time_s: float) -> bool:
        within = time_s <= goal.max_iteration_s and self.rate(used) * time_s <= goal.max_value
        return within and bool(used.sum() <= goal.max_gpus)

    def _halves(self, low: IntArray, high: IntArray) -> list[tuple[IntArray, IntArray]]:
        """The box cut in the pool with the widest range, at a node boundary where it spans one."""
        pool = int(np.argmax(high - low))
        per_node = int(self._per_node[pool])
        middle = (int(low[pool]) + int(high[pool])) // 2
        aligned = middle // per_node * per_node
        if int(low[pool]) <= aligned < int(high[pool]):
            middle = aligned
        first_high, second_low = high.copy(), low.copy()
        first_high[pool], second_low[pool] = middle, middle + 1
        return [(low, first_high), (second_low, high)]
