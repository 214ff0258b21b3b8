"""Error figures of priced rows. Nothing here prices anything.

An error is `predicted / measured - 1`; a log residual is `log(measured / predicted)`, symmetric in factors, which is
what anchors and bands average.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.validation.records import Priced, Table

RANKED_DIFFERENCE_RATIO = 0.25
"""Pairs of rows whose measurements differ by less are not asked for their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorStatistics:
    """Errors of a set of rows. All figures are 0 for an empty set; `num` says so."""

    num: int
    median_abs_error_ratio: float
    p90_abs_error_ratio: float
    bias_ratio: float
    """Median signed error; positive predicts too much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatistics:
    """Order of rows that share a workload."""

    num_pairs: int
    """Pairs whose measurements differ by 25 % or more."""
    agreement_ratio: float | None
    """Share of them in the right order; a predicted tie counts half. None without pairs."""
    num_choices: int
    """Workloads with at least two different configurations."""
    regret_median_ratio: float | None
    """How much slower the configuration that the model would choose was measured, against the best measured one."""
    regret_p90_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """How far measurements of one configuration lie apart: what no cost model can explain."""

    num_same_release: int
    """Pairs."""
    same_release_median_ratio: float
    same_release_p90_ratio: float
    num_other_release: int
    other_release_median_ratio: float
    other_release_p90_ratio: float


def log_residual(row: Priced) -> float:
    """log(measured / predicted); what must be added to log(predicted)."""
    return math.log(row.measured / row.predicted)


def errors(rows: Sequence[Priced], corrections: Sequence[float] | None = None) -> ErrorStatistics:
    """Errors of rows, each prediction multiplied by exp(correction)."""
    return error_statistics([math.exp(shift) - 1.0 for shift in shifts(rows, corrections)])


def shifts(rows: Sequence[Priced], corrections: Sequence[float] | None = None) -> list[float]:
    """log(predicted / measured) after corrections."""
    added = corrections if corrections is not None else [0.0] * len(rows)
    return [correction - log_residual(row) for row, correction in zip(rows, added, strict=True)]


def error_statistics(signed: Sequence[float]) -> ErrorStatistics:
    """Figures of signed errors."""
    if not signed:
        return ErrorStatistics(num=0, median_abs_error_ratio=0.0, p90_abs_error_ratio=0.0, bias_ratio=0.0)
    values = np.asarray(signed)
    median, p90 = np.quantile(np.abs(values), (0.5, 0.9))
    return ErrorStatistics(
        num=len(values),
        median_abs_error_ratio=float(median),
        p90_abs_error_ratio=float(p90),
        bias_ratio=float(np.median(values)),
    )


def rank(rows: Sequence[Priced], corrections: Sequence[float] | None = None) -> RankStatistics:
    """Order and regret over all workloads that have more than one row."""
    predicted = [
        math.log(row.predicted) + correction
        for row, correction in zip(rows, corrections if corrections is not None else [0.0] * len(rows), strict=True)
    ]
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        if row.keys.workload:
            groups[row.keys.workload, kind(row)].append(index)
    num_pairs, right, regrets = 0, 0.0, []
    for members in groups.values():
        measured = np.log([rows[index].measured for index in members])
        estimated = np.asarray([predicted[index] for index in members])
        above = np.triu(np.abs(measured[:, None] - measured[None, :]) >= math.log1p(RANKED_DIFFERENCE_RATIO), 1)
        order = np.sign(measured[:, None] - measured[None, :]) * np.sign(estimated[:, None] - estimated[None, :])
        num_pairs += int(above.sum())
        right += float(((order[above] + 1.0) / 2.0).sum())
        if len({rows[index].keys.configuration for index in members}) > 1:
            sign = -1.0 if _is_rate(rows[members[0]].unit) else 1.0
            chosen = int(np.argmin(sign * estimated))
            regrets.append(math.exp(float(sign * measured[chosen] - (sign * measured).min())) - 1.0)
    return RankStatistics(
        num_pairs=num_pairs,
        agreement_ratio=right / num_pairs if num_pairs else None,
        num_choices=len(regrets),
        regret_median_ratio=float(np.median(regrets)) if regrets else None,
        regret_p90_ratio=float(np.quantile(regrets, 0.9)) if regrets else None,
    )


def noise_floor(rows: Sequence[Priced]) -> NoiseFloor:
    """Spread of measurements over pairs of rows with one configuration, within a release and across releases."""
    groups: dict[Hashable, list[Priced]] = defaultdict(list)
    for row in rows:
        if row.keys.configuration:
            groups[row.keys.configuration, kind(row)].append(row)
    same: list[float] = []
    other: list[float] = []
    for members in groups.values():
        for index, first in enumerate(members):
            for second in members[index + 1 :]:
                spread = math.exp(abs(math.log(first.measured / second.measured))) - 1.0
                (same if first.keys.release == second.keys.release else other).append(spread)
    return NoiseFloor(
        num_same_release=len(same),
        same_release_median_ratio=_quantile(same, 0.5),
        same_release_p90_ratio=_quantile(same, 0.9),
        num_other_release=len(other),
        other_release_median_ratio=_quantile(other, 0.5),
        other_release_p90_ratio=_quantile(other, 0.9),
    )


def kind(row: Priced) -> Hashable:
    """What rows must have in common to be compared: the quantity, and in the table of stages the stage."""
    return row.unit, row.keys.subset if row.table is Table.RL_STAGES else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermShare:
    """Mean share of a term in the predictions of all rows, and of the tenth that is predicted too low or too high."""

    name: str
    all_ratio: float
    too_low_ratio: float
    too_high_ratio: float


def term_shares(rows: Sequence[Priced]) -> tuple[TermShare, ...]:
    """Terms by how much more of the worst tenths they are than of all rows: those are the ones to suspect."""
    num = len(rows) // 10
    if not num:
        return ()
    ordered = sorted(rows, key=lambda row: (log_residual(row), row.row))
    groups = [_mean_shares(part) for part in (rows, ordered[-num:], ordered[:num])]
    shares = [
        TermShare(name=name, all_ratio=values[0], too_low_ratio=values[1], too_high_ratio=values[2])
        for name in sorted({name for group in groups for name in group})
        for values in [[group.get(name, 0.0) for group in groups]]
    ]
    return tuple(sorted(shares, key=lambda s: -max(s.too_low_ratio - s.all_ratio, s.too_high_ratio - s.all_ratio)))


def _mean_shares(rows: Sequence[Priced]) -> dict[str, float]:
    shares: dict[str, float] = defaultdict(float)
    for row in rows:
        total = sum(term.value for term in row.terms)
        for term in row.terms:
            shares[term.name] += term.value / total / len(rows)
    return dict(shares)


def group_by(rows: Iterable[Priced], key: Callable[[Priced], str]) -> Mapping[str, tuple[int, ...]]:
    """Indices of rows by a text key, largest group first; an empty key reads `not stated`."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[key(row) or "not stated"].append(index)
    return {name: tuple(groups[name]) for name in sorted(groups, key=lambda name: (-len(groups[name]), name))}


def _is_rate(unit: str) -> bool:
    """Whether more is better."""
    return unit.endswith("/s") or "tokens/s" in unit


def _quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share)) if values else 0.0
