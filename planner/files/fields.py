"""Typed reading of one mapping from a file: every key is read once, the rest is an error.

All methods raise InvalidInputError that names the file, the key and what is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from planner.errors import InvalidInputError, nearest
from planner.units import Dimension, parse


class Fields:
    """A mapping with remembered reads; `where` is the place that messages show."""

    def __init__(self, data: object, *, where: str) -> None:
        if not isinstance(data, Mapping):
            raise InvalidInputError(f"holds {kind_of(data)}", where=where, accepted="keys and values")
        for key in data:
            if not isinstance(key, str):
                raise InvalidInputError(f"key {key!r} is not text", where=where)
        self._data: Mapping[str, object] = data
        self._read: set[str] = set()
        self.where = where

    def place(self, key: str) -> str:
        return f"{self.where}: {key}"

    def has(self, key: str) -> bool:
        """Whether the key is there with a value other than null. Marks it as read."""
        self._read.add(key)
        return self._data.get(key) is not None

    def raw(self, key: str) -> object:
        """The value as it is; missing or null is an error."""
        if not self.has(key):
            present = "is null" if key in self._data else "is missing"
            raise InvalidInputError(f"key {key!r} {present}", where=self.where)
        return self._data[key]

    def text(self, key: str) -> str:
        value = self.raw(key)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, value, "non-empty text")
        return value

    def optional_text(self, key: str) -> str:
        """Empty for missing or null."""
        return self.text(key) if self.has(key) else ""

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; missing or null is empty."""
        return tuple(self._checked_text(key, item) for item in self.items(key))

    def items(self, key: str) -> tuple[object, ...]:
        """A list; missing or null is empty."""
        if not self.has(key):
            return ()
        value = self.raw(key)
        if not isinstance(value, list):
            raise self.wrong(key, value, "a list")
        return tuple(value)

    def counts(self, key: str, *, limit: int) -> tuple[int, ...]:
        """A list of whole numbers in [0, limit]; missing or null is empty."""
        values = self.items(key)
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
                raise self.wrong(key, value, f"a list of whole numbers from 0 to {limit}")
        return tuple(value for value in values if isinstance(value, int))

    def flag(self, key: str, *, default: bool) -> bool:
        if not self.has(key):
            return default
        value = self.raw(key)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def count(self, key: str, *, limit: int, default: int | None = None, minimum: int = 1) -> int:
        """A whole number in [minimum, limit]; `default` when missing or null, if there is one."""
        if default is not None and not self.has(key):
            return default
        value = self.raw(key)
        accepted = f"a whole number from {minimum} to {limit}"
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise self.wrong(key, value, accepted)
        if not minimum <= value <= limit or value != int(value):
            raise self.wrong(key, value, accepted)
        return int(value)

    def number(self, key: str, *, limit: float) -> float:
        """A dimensionless number in (0, limit]."""
        value = self.raw(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= limit:
            raise self.wrong(key, value, f"a number above 0 and up to {limit:g}")
        return float(value)

    def quantity(self, key: str, dimension: Dimension) -> float:
        """A text with a unit, in SI."""
        return parse(self.raw(key), dimension, where=self.place(key))

    def section(self, key: str) -> Fields:
        return Fields(self.raw(key), where=self.place(key))

    def sections(self, key: str) -> tuple[Fields, ...]:
        """A list of mappings; missing or null is empty."""
        return tuple(Fields(item, where=f"{self.place(key)}[{i}]") for i, item in enumerate(self.items(key)))

    def names(self) -> tuple[str, ...]:
        return tuple(self._data)

    def unread(self) -> tuple[str, ...]:
        """Keys that nothing has read so far."""
        return tuple(key for key in self._data if key not in self._read)

    def skip(self, names: Iterable[str]) -> None:
        """Marks keys as known although their value does not matter."""
        self._read.update(names)

    def finish(self) -> None:
        """Raises for the first key that nothing has read."""
        for key in self.unread():
            raise InvalidInputError(
                f"key {key[:60]!r} is not known here", where=self.where, suggestion=nearest(key, self._read)
            )

    def value(self, key: str) -> object:
        """The value or None, without marking the key as read."""
        return self._data.get(key)

    def wrong(self, key: str, value: object, accepted: str) -> InvalidInputError:
        return InvalidInputError(f"{short(value)} is wrong", where=self.place(key), accepted=accepted)

    def _checked_text(self, key: str, item: object) -> str:
        if not isinstance(item, str) or not item.strip():
            raise self.wrong(key, item, "a list of texts")
        return item


def short(value: object) -> str:
    """The value as a message can show it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def kind_of(value: object) -> str:
    names = {list: "a list", str: "text", type(None): "nothing", bool: "true or false", int: "a number"}
    return names.get(type(value), f"a {type(value).__name__}")
