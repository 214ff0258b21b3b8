"""Wall time against the limit of a search."""

from __future__ import annotations

import time

from planner.errors import NoPlanFoundError


class Clock:
    """Wall time since a search began, against its limit."""

    def __init__(self, limit_s: float) -> None:
        self._begin = time.perf_counter()
        self._limit_s = limit_s

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self._begin

    @property
    def left_s(self) -> float:
        return self._limit_s - self.elapsed_s

    def check(self) -> None:
        """Raises NoPlanFoundError once the time is over."""
        if self.left_s <= 0:
            raise no_plan_within(self._limit_s)


def no_plan_within(limit_s: float) -> NoPlanFoundError:
    """What is said when the time is over."""
    return NoPlanFoundError(
        f"no plan found within {limit_s:g} s, and no proof that there is none; allow more time with --time-limit"
    )
