"""Choosing among near-equal plans on the same GPUs: more headroom, then fewer device groups, then less time."""

from __future__ import annotations

import numpy as np

from planner.domain.strategy import IntArray
from planner.search.minimise import Found, TimeSearch

_MAX_UNITS = 4
_WORK = 300_000
_HEADROOM_STEP = 0.02
"""Headrooms within one step count as equal."""


def polish(search: TimeSearch, capacity: IntArray, deadline_s: float, found: Found) -> Found:
    """The preferred plan within `deadline_s` on at most `capacity` GPUs per pool; `found` if none is preferred.

    Looks at the structures with the least bounds and asks each for more and more headroom, as less usable memory.
    """
    best = found
    best_key = _key(search, found)
    bounds = search.bounds(capacity, deadline_s)
    alive = bounds.shave(np.flatnonzero(bounds.bound <= deadline_s), deadline_s)
    for unit in alive[np.argsort(bounds.bound[alive], kind="stable")][:_MAX_UNITS]:
        for headroom in (0.4, 0.25, 0.15, 0.1, 0.05, 0.02):
            if -headroom >= best_key[0]:
                break
            candidate = search.quick(bounds, int(unit), deadline_s, work=_WORK, usable_ratio=1.0 - headroom)
            if candidate is not None:
                if _key(search, candidate) < best_key:
                    best, best_key = candidate, _key(search, candidate)
                break
    return best


def _key(search: TimeSearch, found: Found) -> tuple[float, int, float]:
    steps = np.floor(search.headroom_ratio(found) / _HEADROOM_STEP) * _HEADROOM_STEP
    return -float(steps), found.unit.structure.num_groups, found.time_s
