"""One time limit for a whole explanation, which is some dozen searches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

T = TypeVar("T")


class TimeIsUpError(Exception):
    """The explanation has no time left for a question; never leaves this package."""


class Watch:
    """Wall time left, and the questions that there was none for."""

    def __init__(self, limit_s: float) -> None:
        self._end_s = time.monotonic() + limit_s
        self._not_reached: list[str] = []

    @property
    def not_reached(self) -> tuple[str, ...]:
        """What was asked and not answered, each once, in the order in which it was asked."""
        return tuple(dict.fromkeys(self._not_reached))

    def left_s(self) -> float:
        """Seconds left; raises TimeIsUpError where there are none."""
        left_s = self._end_s - time.monotonic()
        if left_s <= 0.0:
            raise TimeIsUpError
        return left_s

    def end(self) -> None:
        """Leaves no time for anything else."""
        self._end_s = time.monotonic()

    def over(self) -> NoReturn:
        """For whoever finds out in another way; raises TimeIsUpError."""
        raise TimeIsUpError

    def asked(self, what: str, answer: Callable[[], T]) -> T | None:
        """The answer to a question; None, with a note of what was asked, where the time is up."""
        try:
            self.left_s()
            return answer()
        except TimeIsUpError:
            self._not_reached.append(what)
            return None
