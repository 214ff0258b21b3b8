"""What differs between two plans, by place, in units that people read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from planner.domain.plan import Plan
from planner.files.plan import Json, plan_document
from planner.report.words import one_line, percent
from planner.units import format_bytes, format_seconds

_IGNORED = frozenset(
    {
        "bands",
        "digests",
        "run",
        "rlplan_version",
        "format_version",
        "term_order",
        "rejection_order",
        "terms",
        "ranks",
        "rank_map",
        "links",
    }
)
"""Derived, ordering only, or (terms) so many that the totals beside them say more."""
_PLACE_WIDTH = 56
_VALUE_WIDTH = 20
_FIRST = ("status", "objective", "iteration", "num_gpus", "device_groups", "placements", "schedule")
"""The order of sections: the answer before its reasons."""
_KEYS = ("stage", "id", "what", "framework", "name", "description")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One place where two plans differ; empty text on one side means that it does not exist there."""

    place: str
    before: str
    after: str


def differences(before: Plan, after: Plan) -> tuple[Change, ...]:
    """All changes from `before` to `after`; empty exactly when the plans are the same."""
    first, second = plan_document(before), plan_document(after)
    found = tuple(_compare("", first, second))
    digests = _sections(first), _sections(second)
    changed = sorted(key for key in digests[0] if digests[0][key] != digests[1].get(key) and key not in _IGNORED)
    if not found and changed:
        # Only what is not listed line by line differs, such as single terms with equal totals.
        return tuple(Change(place=key, before=digests[0][key], after=digests[1].get(key, "")) for key in changed)
    return found


def change_table(changes: tuple[Change, ...], *, before: str, after: str) -> Table:
    """The changes as a table; `before` and `after` name the two files."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    longest = max((len(change.place) for change in changes), default=0)
    table.add_column("where", style="bold", overflow="fold", min_width=min(longest, _PLACE_WIDTH))
    table.add_column(before, overflow="fold", max_width=_VALUE_WIDTH)
    table.add_column(after, overflow="fold", max_width=_VALUE_WIDTH)
    for change in changes:
        shown = one_line(change)
        table.add_row(Text(shown.place), Text(shown.before, style="red"), Text(shown.after, style="green"))
    return table


def _sections(document: dict[str, Json]) -> dict[str, str]:
    digests = document["digests"]
    assert isinstance(digests, dict)
    sections = digests["sections"]
    assert isinstance(sections, dict)
    return {key: str(value) for key, value in sections.items()}


def _compare(place: str, first: Json, second: Json) -> Iterator[Change]:
    if first == second:
        return
    if isinstance(first, dict) and isinstance(second, dict):
        yield from _compare_objects(place, first, second)
    elif isinstance(first, list) and isinstance(second, list) and _is_keyed(first) and _is_keyed(second):
        left, right = _by_key(first), _by_key(second)
        for key in [*left, *(k for k in right if k not in left)]:
            yield from _compare(f"{place} {key}", left.get(key), right.get(key))
    else:
        yield Change(place=place, before=_words(place, first), after=_words(place, second))


def _compare_objects(place: str, first: dict[str, Json], second: dict[str, Json]) -> Iterator[Change]:
    if place.startswith("inputs") and first.get("id") != second.get("id"):
        # Another model or GPU: its name says more than forty numbers.
        yield Change(place=place, before=str(first.get("id")), after=str(second.get("id")))
        return
    keys = sorted(first.keys() | second.keys(), key=lambda key: (_FIRST.index(key) if key in _FIRST else 99, key))
    for key in keys:
        # A scheduled stage names its groups twice, as text and as a list.
        if key not in _IGNORED and not (key == "device_groups" and "device_group" in first):
            yield from _compare(f"{place}.{key}" if place else key, first.get(key), second.get(key))


def _is_keyed(items: list[Json]) -> bool:
    return all(isinstance(item, dict) and any(key in item for key in _KEYS) for item in items)


def _by_key(items: list[Json]) -> dict[str, Json]:
    result: dict[str, Json] = {}
    for item in items:
        assert isinstance(item, dict)
        name = next(str(item[key]) for key in _KEYS if key in item)
        result[name if name not in result else f"{name} #{len(result)}"] = item
    return result


def _words(place: str, value: Json) -> str:
    """A value with the unit that the suffix of its key names."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        return next((str(value[key]) for key in ("value", *_KEYS) if key in value), "given")
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(place, float(value), value)
    return str(value)


def _number(place: str, value: float, exact: int | float) -> str:
    if place.endswith("_bytes"):
        return format_bytes(value)
    if place.endswith("_ratio"):
        return percent(value)
    if place.endswith("_s") and not place.endswith("_per_s"):
        return format_seconds(value)
    return f"{exact:,}" if isinstance(exact, int) else f"{value:,.6g}"
