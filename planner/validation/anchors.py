"""Anchors: corrections from measured rows of the same model, release and precision, on top of the cost model.

An anchor multiplies predictions by exp(a), where `a` is the mean log residual of its rows, shrunk towards 0. It is a
layer of its own: the cost model does not know it, errors are always given with and without it, and a row is never
corrected by itself or by a row that repeats its configuration. Only rows of quality A make anchors: what a row of
lower quality leaves open would be taken for a property of the model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.validation.records import Keys, Priced
from planner.validation.statistics import ErrorStatistics, log_residual

ANCHOR_QUALITY = "A"
PRIOR_ROWS = 0.5
"""Shrinkage: as if so many rows without any residual were in each anchor. It is the variance of log residuals within
an anchor over that between anchors, 0.35 to 0.85 in training, generation and stages; errors hardly
change from 0.25 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The correction of one model, release and precision: predictions are multiplied by exp(log_ratio)."""

    model: str
    framework: str
    release: str
    precision: str
    log_ratio: float
    num_rows: int


def shrunk_mean(total: float, num: float) -> float:
    """Mean of `num` log residuals that sum to `total`, shrunk towards 0."""
    return total / (num + PRIOR_ROWS)


def fit_anchors(rows: Sequence[Priced]) -> tuple[Anchor, ...]:
    """The anchors of rows, by name."""
    groups: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row.quality == ANCHOR_QUALITY:
            groups[_key(row.keys)].append(log_residual(row))
    return tuple(
        Anchor(
            model=model,
            framework=framework,
            release=release,
            precision=precision,
            log_ratio=shrunk_mean(sum(residuals), len(residuals)),
            num_rows=len(residuals),
        )
        for (model, framework, release, precision), residuals in sorted(groups.items())
    )


def corrections(rows: Sequence[Priced]) -> list[float]:
    """Log correction of each row by its anchor, without the row itself and the repeats of its configuration.

    0 where no other row shares model, release and precision.
    """
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[_key(row.keys), row.keys.subset].append(index)
    found = [0.0] * len(rows)
    for members in groups.values():
        totals: dict[str, list[float]] = defaultdict(list)
        for index in members:
            if rows[index].quality == ANCHOR_QUALITY:
                totals[rows[index].keys.configuration].append(log_residual(rows[index]))
        everything = sum(sum(values) for values in totals.values())
        num_rows = sum(len(values) for values in totals.values())
        for index in members:
            own = totals.get(rows[index].keys.configuration, [])
            found[index] = shrunk_mean(everything - sum(own), num_rows - len(own))
    return found


def single_anchor_errors(rows: Sequence[Priced]) -> ErrorStatistics:
    """Errors when exactly one other row of the same model and framework is known, over all such rows.

    Each judged row counts once, whatever the number of rows that could anchor it. Rows without any are left out.
    """
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[row.keys.model, row.keys.framework, row.keys.subset].append(index)
    signed: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    for members in groups.values():
        residuals = np.array([log_residual(rows[index]) for index in members])
        names = np.array([rows[index].keys.configuration for index in members])
        for position in range(len(members)):
            others = residuals[names != names[position]]
            if len(others):
                corrected = others / (1.0 + PRIOR_ROWS) - residuals[position]
                signed.append(np.expm1(corrected))
                weights.append(np.full(len(others), 1.0 / len(others)))
    if not signed:
        return ErrorStatistics(num=0, median_abs_error_ratio=0.0, p90_abs_error_ratio=0.0, bias_ratio=0.0)
    values, weight = np.concatenate(signed), np.concatenate(weights)
    return ErrorStatistics(
        num=len(signed),
        median_abs_error_ratio=_weighted_quantile(np.abs(values), weight, 0.5),
        p90_abs_error_ratio=_weighted_quantile(np.abs(values), weight, 0.9),
        bias_ratio=_weighted_quantile(values, weight, 0.5),
    )


def _weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    order = np.argsort(values, kind="stable")
    summed = np.cumsum(weights[order])
    position = int(np.searchsorted(summed, share * summed[-1]))
    return float(values[order][min(position, len(values) - 1)])


def _key(keys: Keys) -> tuple[str, str, str, str]:
    return keys.model, keys.framework, keys.release, keys.precision
