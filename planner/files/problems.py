"""Collects what is wrong, so that a user sees all of it at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from planner.errors import InvalidInputError

T = TypeVar("T")


class Problems:
    """Messages found so far; `raise_if_any` turns them into one InvalidInputError."""

    def __init__(self) -> None:
        self._messages: list[str] = []

    def add(self, error: InvalidInputError) -> None:
        message = str(error)
        if message not in self._messages:
            self._messages.append(message)

    def attempt(self, action: Callable[[], T], fallback: T) -> T:
        """The result of `action`, or `fallback` after noting its InvalidInputError."""
        try:
            return action()
        except InvalidInputError as error:
            self.add(error)
            return fallback

    def raise_if_any(self) -> None:
        raise_all(self._messages)

    def __bool__(self) -> bool:
        return bool(self._messages)


def raise_all(messages: list[str]) -> None:
    """Nothing for no message; InvalidInputError with one line per message otherwise."""
    if len(messages) == 1:
        raise InvalidInputError(messages[0])
    if messages:
        lines = "\n".join(f"  {message}" for message in messages)
        raise InvalidInputError(f"{len(messages)} problems:\n{lines}")
