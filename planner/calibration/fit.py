"""The fit: Gauss-Newton in logarithms, drawn towards the catalog, of those parameters only that the data can tell.

With x = log(value / catalog), residuals r = log(measured / predicted(x)), weights 1 / sd, prior deviations t:

    minimise  sum rho(r_i / sd_i) + sum (x_k / t_k)**2        rho: Huber's function, so that one bad line moves little

A parameter is *identified* if the data halve what is not known about it: its posterior deviation, from
(J' W J + diag(1 / t**2))**-1, is at most half of t. Two parameters that move the same observations alike keep
t / sqrt(2) each, so neither is; then the one that is known better from elsewhere stays at the catalog's value and the
other is looked at again. Never are more parameters fitted than kinds of observations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.calibration.parameters import MAX_LOG, Key, Unknown
from planner.calibration.source import Observation, Source
from planner.domain.lengths import FloatArray

IDENTIFIED_RATIO = 0.5
"""Largest posterior over prior deviation of a parameter that counts as identified."""
INTERVAL_SDS = 1.645
"""Half width of a 90 % interval of a normal law."""
_STEP = 0.05
_HUBER = 2.0
_MAX_ROUNDS = 8
_CLOSE = 1e-3
_MAX_FOLDS = 24
_ALIKE = 0.9
_WEAK = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one parameter. `reason` says why the logs cannot tell it; empty where they can."""

    unknown: Unknown
    value: float
    low: float
    high: float
    posterior_ratio: float
    """Deviation with the data over that without them, the other fitted parameters being unknown too."""
    reason: str = ""

    @property
    def is_identified(self) -> bool:
        return not self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRow:
    """Errors of one kind of observation: |measured / predicted - 1|, medians. None where nothing could be left out."""

    label: str
    num: int
    before_ratio: float
    after_ratio: float
    left_out_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """Verdicts in the order of the unknowns, errors by kind, how many folds were left out one by one."""

    verdicts: tuple[Verdict, ...]
    errors: tuple[ErrorRow, ...]
    num_folds: int
    condition: float
    """Condition number of the scaled Jacobian, at the catalog's values, of all unknowns that move anything; infinite
    where it lacks rank."""


class _Problem:
    """All observations of all sources at once."""

    def __init__(self, sources: Sequence[Source], unknowns: Sequence[Unknown]) -> None:
        self.sources = sources
        self.unknowns = unknowns
        self.observations: list[Observation] = [item for source in sources for item in source.observations]
        self.log_measured = np.log([item.measured for item in self.observations])
        self.weight = np.array([0.0 if math.isinf(i.log_sd) else 1.0 / i.log_sd for i in self.observations])
        self.prior = np.array([item.prior_log_sd for item in unknowns])

    def log_predicted(self, x: FloatArray, only: Key | None = None, known: FloatArray | None = None) -> FloatArray:
        """Shape (num_observations,). With `only`, sources that do not depend on it keep what is `known`."""
        point = {item.key: math.exp(value) for item, value in zip(self.unknowns, x, strict=True) if value}
        parts, start = [], 0
        for source in self.sources:
            num = len(source.observations)
            if only is not None and known is not None and only not in source.keys:
                parts.append(known[start : start + num])
            else:
                parts.append(np.log(source.predict(point)))
            start += num
        return np.concatenate(parts) if parts else np.zeros(0)

    def jacobian(self, x: FloatArray, at: FloatArray, columns: Sequence[int]) -> FloatArray:
        """d log(predicted) / dx, shape (num_observations, num_unknowns); columns that are not asked for are 0."""
        result = np.zeros((len(self.observations), len(self.unknowns)))
        for k in columns:
            moved = x.copy()
            # Inwards: beyond a limit (a ratio of at most 1) nothing may move.
            step = -_STEP if x[k] > 0 else _STEP
            moved[k] += step
            result[:, k] = (self.log_predicted(moved, self.unknowns[k].key, at) - at) / step
        return result


def fit(sources: Sequence[Source], unknowns: Sequence[Unknown]) -> FitResult:
    """Fits what can be told; everything else stays at the catalog's value, with the reason."""
    problem = _Problem(sources, unknowns)
    x = np.zeros(len(unknowns))
    before = problem.log_predicted(x)
    slopes = problem.jacobian(x, before, range(len(unknowns)))
    condition = _condition(problem, slopes)
    kept, reasons = _select(problem, slopes)
    at = before
    for _ in range(_MAX_ROUNDS):
        if not kept:
            break
        if at is not before:
            slopes = problem.jacobian(x, at, kept)
        step = _solve(problem, slopes, at, x, kept) - x
        x = x + np.clip(step, -1.0, 1.0)
        at = problem.log_predicted(x)
        if np.max(np.abs(step)) < _CLOSE:
            break
    slopes = problem.jacobian(x, at, kept)
    spread = _spread(problem, at, slopes, kept)
    deviations = _posterior(problem, slopes, kept) * spread
    folds = _folds(problem)
    left_out = _left_out(problem, slopes, at, x, kept, folds)
    return FitResult(
        verdicts=_verdicts(problem, x, kept, deviations, reasons),
        errors=_errors(problem, before, at, left_out),
        num_folds=len(folds) if left_out is not None else 0,
        condition=condition,
    )


# ---------------------------------------------------------------------------------------------- selection


def _select(problem: _Problem, slopes: FloatArray) -> tuple[list[int], dict[int, str]]:
    """Indices of the parameters that are identified, and why the others are not."""
    reasons: dict[int, str] = {}
    scaled = slopes * problem.weight[:, None]
    kept = []
    for k in range(len(problem.unknowns)):
        if np.max(np.abs(scaled[:, k]), initial=0.0) * problem.prior[k] < _WEAK:
            reasons[k] = "nothing in these logs depends on it"
        else:
            kept.append(k)
    most = len({item.kind for item in problem.observations if not math.isinf(item.log_sd)})
    while kept:
        ratio = _posterior(problem, slopes, kept) / problem.prior[kept]
        worst = int(np.argmax(ratio))
        if ratio[worst] <= IDENTIFIED_RATIO and len(kept) <= most:
            break
        dropped = kept.pop(worst)
        reasons[dropped] = _why(problem, scaled, dropped, kept)
    return kept, reasons


def _why(problem: _Problem, scaled: FloatArray, dropped: int, others: Sequence[int]) -> str:
    """Why a parameter was dropped: it is like another one, or moves too little."""
    own = scaled[:, dropped]
    alone = 1.0 / math.sqrt(1.0 + float(own @ own) * problem.prior[dropped] ** 2)
    if alone > IDENTIFIED_RATIO:
        return "these logs say too little about it"
    length = float(np.linalg.norm(own))
    likeness = {k: abs(float(own @ scaled[:, k])) / (length * float(np.linalg.norm(scaled[:, k]))) for k in others}
    best = max(likeness, key=lambda k: likeness[k], default=None)
    if best is not None and likeness[best] > _ALIKE:
        name = problem.unknowns[best].key.parameter.value.replace("_", " ")
        return f"cannot be told apart from {name}"
    return "cannot be told apart from several others together"


# ---------------------------------------------------------------------------------------------- solving


def _normal(problem: _Problem, slopes: FloatArray, weight: FloatArray, kept: Sequence[int]) -> FloatArray:
    scaled = slopes[:, kept] * weight[:, None]
    result: FloatArray = scaled.T @ scaled + np.diag(1.0 / problem.prior[kept] ** 2)
    return result


def _posterior(problem: _Problem, slopes: FloatArray, kept: Sequence[int]) -> FloatArray:
    """Deviations of the kept parameters, shape (num_kept,)."""
    if not kept:
        return np.zeros(0)
    result: FloatArray = np.sqrt(np.diag(np.linalg.inv(_normal(problem, slopes, problem.weight, kept))))
    return result


def _solve(
    problem: _Problem,
    slopes: FloatArray,
    at: FloatArray,
    x: FloatArray,
    kept: Sequence[int],
    used: FloatArray | None = None,
) -> FloatArray:
    """The minimum of the linearised problem, all observations or those where `used` is 1; shape (num_unknowns,)."""
    weight = problem.weight if used is None else problem.weight * used
    target = problem.log_measured - at + slopes @ x
    result = x.copy()
    for _ in range(4):
        residual = (target - slopes @ result) * weight
        huber = np.sqrt(np.minimum(1.0, _HUBER / np.maximum(np.abs(residual), 1e-12)))
        w = weight * huber
        right = (slopes[:, kept] * (w**2)[:, None]).T @ target
        result[list(kept)] = np.clip(np.linalg.solve(_normal(problem, slopes, w, kept), right), -MAX_LOG, MAX_LOG)
    return result


def _spread(problem: _Problem, at: FloatArray, slopes: FloatArray, kept: Sequence[int]) -> float:
    """Factor on the deviations where the observations scatter more than they should; at least 1.

    From the median, so that a single bad line does not widen all intervals. Observations that no fitted parameter
    moves say nothing about the fit.
    """
    moved = (problem.weight > 0) & (np.abs(slopes[:, list(kept)]).sum(axis=1) > _WEAK)
    if not kept or moved.sum() <= len(kept):
        return 1.0
    residual = np.abs((problem.log_measured - at) * problem.weight)[moved]
    return max(1.0, float(np.median(residual)) / 0.6745)


def _condition(problem: _Problem, slopes: FloatArray) -> float:
    scaled = slopes * problem.weight[:, None] * problem.prior[None, :]
    scaled = scaled[:, np.abs(scaled).max(axis=0, initial=0.0) > _WEAK] if scaled.size else scaled
    if not scaled.size:
        return math.inf
    if scaled.shape[0] < scaled.shape[1]:
        return math.inf
    values = np.linalg.svd(scaled, compute_uv=False)
    return float(values[0] / values[-1]) if values[-1] > 1e-12 * values[0] else math.inf


# ---------------------------------------------------------------------------------------------- results


def _verdicts(
    problem: _Problem, x: FloatArray, kept: Sequence[int], deviations: FloatArray, reasons: dict[int, str]
) -> tuple[Verdict, ...]:
    deviation_of = dict(zip(kept, deviations, strict=True))
    result = []
    for k, item in enumerate(problem.unknowns):
        deviation = min(float(deviation_of.get(k, problem.prior[k])), float(problem.prior[k]))
        value = item.catalog * math.exp(x[k])
        wide = math.exp(INTERVAL_SDS * deviation)
        result.append(
            Verdict(
                unknown=item, value=value, low=value / wide, high=value * wide,
                posterior_ratio=deviation / float(problem.prior[k]), reason=reasons.get(k, ""),
            )
        )  # fmt: skip
    return tuple(result)


def _folds(problem: _Problem) -> list[FloatArray]:
    """Per fold 1 for what stays in; at most so many, the rest joining from the start again."""
    names = list(dict.fromkeys(item.fold for item in problem.observations))
    number = {name: index % _MAX_FOLDS for index, name in enumerate(names)}
    of = np.array([number[item.fold] for item in problem.observations])
    return [(of != index).astype(np.float64) for index in sorted(set(number.values()))]


def _left_out(
    problem: _Problem, slopes: FloatArray, at: FloatArray, x: FloatArray, kept: Sequence[int], folds: list[FloatArray]
) -> FloatArray | None:
    """Predictions of every observation from a fit without its fold; None where there is one fold only."""
    if len(folds) < 2:
        return None
    result = at.copy()
    for used in folds:
        other = _solve(problem, slopes, at, x, kept, used) if kept else x
        result = np.where(used > 0, result, at + slopes @ (other - x))
    return result


def _errors(
    problem: _Problem, before: FloatArray, after: FloatArray, left_out: FloatArray | None
) -> tuple[ErrorRow, ...]:
    rows = []
    labels = list(dict.fromkeys(item.label for item in problem.observations))
    for label in labels:
        of = [i for i, item in enumerate(problem.observations) if item.label == label]

        def error(predicted: FloatArray, of: list[int] = of) -> float:
            return float(np.median(np.abs(np.expm1(problem.log_measured[of] - predicted[of]))))

        rows.append(
            ErrorRow(
                label=label, num=len(of), before_ratio=error(before), after_ratio=error(after),
                left_out_ratio=None if left_out is None else error(left_out),
            )
        )  # fmt: skip
    return tuple(rows)
