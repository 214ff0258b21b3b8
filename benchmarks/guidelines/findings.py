"""From rows to findings: what a technique saves on each workload, and the one condition that tells best where."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.guidelines.grid import RESULTS

Value = str | int | float | bool | None
Row = Mapping[str, Value]
Key = tuple[str, int, int, str]

EQUAL_RATIO = 0.02
"""Times that differ by less count as equal: the search itself treats 1 % as a tie."""
ATTRIBUTES: tuple[tuple[str, str], ...] = (
    ("num_gpus", "GPUs"),
    ("response_mean", "mean response"),
    ("params", "parameters"),
    ("gpus_per_billion", "GPUs per billion parameters"),
    ("is_ppo", "PPO"),
    ("is_moe", "MoE"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One workload: two variants of it. `saved_ratio` is the share of the other variant's time that one saves.

    None where the other variant does not fit; `fits` is False where this one does not.
    """

    case: Row
    row: Row
    other: Row
    saved_ratio: float | None
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`attribute >= threshold` (or below it) and how often it tells whether the technique wins."""

    attribute: str
    threshold: float
    is_above: bool
    num_right: int
    num_all: int
    num_without: int
    """How often the more frequent answer alone is right."""


def read_rows(path: Path = RESULTS) -> tuple[Row, ...]:
    """All rows of a results file."""
    return tuple(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line)


def in_order(rows: Sequence[Row]) -> tuple[Row, ...]:
    """GRPO before PPO, then small models, few GPUs and short responses first."""
    params = {row["model"]: _float(row["params"]) for row in rows if "params" in row}
    largest = max(params.values(), default=0.0)
    order = {name: index for index, name in enumerate(dict.fromkeys(row["variant"] for row in rows))}

    def place(row: Row) -> tuple[str, float, int, int, int]:
        size = params.get(row["model"], largest)
        return str(row["algorithm"]), size, _int(row["num_gpus"]), _int(row["response_mean"]), order[row["variant"]]

    return tuple(sorted(rows, key=place))


def key(row: Row) -> Key:
    """What identifies a workload."""
    return str(row["model"]), _int(row["num_gpus"]), _int(row["response_mean"]), str(row["algorithm"])


def by_variant(rows: Sequence[Row]) -> dict[Key, dict[str, Row]]:
    """Workloads that have a plan, each with its variants."""
    found: dict[Key, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(key(row), {})[str(row["variant"])] = row
    return {name: variants for name, variants in found.items() if variants["best"]["time_s"] is not None}


def compared(
    rows: Sequence[Row], variant: str, other: str, keep: Callable[[Row], bool] = lambda row: True
) -> list[Point]:
    """The points at which at least one of the two variants fits."""
    points = []
    for variants in by_variant(rows).values():
        case = variants["best"]
        if variant not in variants or other not in variants:
            # Not about this model.
            continue
        row, rival = variants[variant], variants[other]
        if not keep(case) or (row["time_s"] is None and rival["time_s"] is None):
            continue
        saved = None
        if row["time_s"] is not None and rival["time_s"] is not None:
            saved = 1.0 - _float(row["time_s"]) / _float(rival["time_s"])
        points.append(Point(case=case, row=row, other=rival, saved_ratio=saved, fits=row["time_s"] is not None))
    return points


def wins(point: Point) -> bool:
    """Whether the variant is better by more than a tie, or the only one that fits."""
    return point.fits and (point.saved_ratio is None or point.saved_ratio > EQUAL_RATIO)


def loses(point: Point) -> bool:
    """Whether the other one is."""
    return not point.fits or (point.saved_ratio is not None and point.saved_ratio < -EQUAL_RATIO)


def savings(points: Sequence[Point]) -> list[float]:
    """Where both fit."""
    return [point.saved_ratio for point in points if point.saved_ratio is not None]


def median(values: Sequence[float]) -> float:
    """0 for none."""
    return statistics.median(values) if values else 0.0


def attribute(row: Row, name: str) -> float:
    """A number that a rule may speak of."""
    if name == "gpus_per_billion":
        return _int(row["num_gpus"]) / (_float(row["params"]) / 1e9)
    if name == "is_ppo":
        return float(row["algorithm"] == "ppo")
    return _float(row[name])


def best_rule(points: Sequence[Point], label: Callable[[Point], bool] = wins) -> Rule | None:
    """The condition on one attribute that tells best where `label` holds.

    None where it holds everywhere or nowhere, or where no condition removes a third of the errors of always giving
    the more frequent answer.
    """
    labels = [label(point) for point in points]
    majority = max(sum(labels), len(labels) - sum(labels)) if labels else 0
    best = max(_rules(points, labels, majority), key=lambda rule: rule.num_right, default=None)
    if best is None or (len(labels) - best.num_right) * 3 > (len(labels) - majority) * 2:
        return None
    return best


def _rules(points: Sequence[Point], labels: Sequence[bool], majority: int) -> Iterator[Rule]:
    for name, _ in ATTRIBUTES:
        values = [attribute(point.case, name) for point in points]
        for threshold in sorted(set(values))[1:]:
            right = sum((value >= threshold) == is_win for value, is_win in zip(values, labels, strict=True))
            for is_above, num_right in ((True, right), (False, len(labels) - right)):
                yield Rule(
                    attribute=name, threshold=threshold, is_above=is_above, num_right=num_right,
                    num_all=len(labels), num_without=majority,
                )  # fmt: skip


def _int(value: Value) -> int:
    assert isinstance(value, int)
    return value


def _float(value: Value) -> float:
    assert isinstance(value, (int, float))
    return float(value)
