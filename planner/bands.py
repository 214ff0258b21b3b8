"""Error bands of predictions from the residuals of the measured rows most like them.

A band holds the middle 80 % of residuals, each weighted by exp(-distance) to the prediction. It is then stretched
about its middle by one factor per table, chosen so that bands hold for model families that were left out
(planner.validation.bands). Weights are relative: where every row is far they only say what errors are like in general,
so a band without a near row is widened again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.domain.bands import COVERAGE_RATIO, Band, Residual, ResidualTable, Traits
from planner.domain.plan import Plan
from planner.files.residuals import ResidualFile, load_residuals

FloatArray = NDArray[np.float64]

# Distance that a differing trait adds. Set by judgement, only the stretch is fitted: another kind of run and a row with
# unknown fields say next to nothing; the rest is half a step for what usually changes the error by tens of percent.
DISTANCE_MODEL = 0.5
DISTANCE_FAMILY = 0.5
DISTANCE_GPU = 0.4
DISTANCE_ARCHITECTURE = 0.6
DISTANCE_PRECISION = 0.7
DISTANCE_FRAMEWORK = 0.7
DISTANCE_SUBSET = 3.0
DISTANCE_QUALITY = 3.0
DISTANCE_DOUBLING = 0.15
"""For each factor of two in active parameters, up to DISTANCE_SIZE."""
DISTANCE_SIZE = 0.6
NEAR_DISTANCE = 1.45
"""A row of the same GPU generation counts as near up to here; model or precision and framework may differ."""
FAR_STRETCH_RATIO = 2.0
"""Bands without a near row are so much wider. Rounded up from training and generation: errors with priors alone, as on
a generation without rows, have a 90th percentile 1.3 to 1.8 times that of the fit (docs/validation-protocol.md)."""
TIME_TABLE = "rl"
MEMORY_TABLE = "memory"
SYNCHRONOUS = "synchronous"
EXACT_RECIPE = "exact recipe"
_TAIL = (1.0 - COVERAGE_RATIO) / 2.0
_ROUNDING = 1e-9


def plan_bands(plan: Plan) -> tuple[Band | None, Band | None]:
    """Bands of a plan's iteration time and of its memory peaks; None where nothing of the kind was measured."""
    data = load_residuals(TIME_TABLE, MEMORY_TABLE)
    return _plan_band(plan, data, TIME_TABLE, SYNCHRONOUS), _plan_band(plan, data, MEMORY_TABLE, EXACT_RECIPE)


def _plan_band(plan: Plan, data: ResidualFile, name: str, subset: str) -> Band | None:
    table = data.table(name)
    if table is None or not table.residuals:
        return None
    model = plan.workload.actor.id
    gpu = plan.cluster.pools[0].node.gpu
    # bytes do not depend on the GPU that holds them
    is_time = name == TIME_TABLE
    traits = Traits(
        model=model,
        family=data.family(model),
        gpu=gpu.id if is_time else "",
        architecture=gpu.architecture if is_time else "",
        precision=plan.workload.train_precision.value,
        framework=plan.limits.framework or "",
        subset=subset,
        quality="A",
        num_active_params=plan.workload.actor.num_active_params,
    )
    return band(traits, table)


def band(traits: Traits, table: ResidualTable) -> Band:
    """The band of one prediction."""
    apart = distances([traits], table.residuals)
    low, high = log_bands(apart, table.residuals)
    is_near = (apart[0] <= NEAR_DISTANCE) & np.array([_is_same_generation(traits, row) for row in table.residuals])
    stretch_ratio = table.stretch_ratio * (1.0 if is_near.any() else FAR_STRETCH_RATIO)
    low_log, high_log = stretched(low, high, stretch_ratio)
    nearest = int(np.argmin(np.where(is_near, apart[0], np.inf)))
    return Band(
        low_ratio=float(np.exp(low_log[0])),
        high_ratio=float(np.exp(high_log[0])),
        coverage_ratio=COVERAGE_RATIO,
        num_near_rows=int(is_near.sum()),
        nearest_row=_words(table.residuals[nearest]) if is_near[nearest] else "",
    )


def _is_same_generation(traits: Traits, row: Residual) -> bool:
    """Efficiencies are those of a GPU generation: rows of another one say nothing about them."""
    return traits.architecture in ("", row.traits.architecture)


def distances(queries: Sequence[Traits], residuals: Sequence[Residual]) -> FloatArray:
    """Distance of each query to each measured row, shape (queries, residuals).

    A trait that a query does not state adds nothing.
    """
    rows = [residual.traits for residual in residuals]
    return (
        _unequal([q.model for q in queries], [r.model for r in rows], DISTANCE_MODEL)
        + _unequal([q.family for q in queries], [r.family for r in rows], DISTANCE_FAMILY)
        + _unequal([q.gpu for q in queries], [r.gpu for r in rows], DISTANCE_GPU)
        + _unequal([q.architecture for q in queries], [r.architecture for r in rows], DISTANCE_ARCHITECTURE)
        + _unequal([q.precision for q in queries], [r.precision for r in rows], DISTANCE_PRECISION)
        + _unequal([q.framework.lower() for q in queries], [r.framework.lower() for r in rows], DISTANCE_FRAMEWORK)
        + _unequal([q.subset for q in queries], [r.subset for r in rows], DISTANCE_SUBSET)
        + _unequal([q.quality for q in queries], [r.quality for r in rows], DISTANCE_QUALITY)
        + _sizes([q.num_active_params for q in queries], [r.num_active_params for r in rows])
    )


def _sizes(left: list[float], right: list[float]) -> FloatArray:
    """Distance of sizes; the largest one where a row's size is not known."""
    a, b = np.array(left)[:, None], np.array(right)[None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        doublings = np.abs(np.log2(a / b))
    apart = np.where(np.isfinite(doublings), np.minimum(DISTANCE_DOUBLING * doublings, DISTANCE_SIZE), DISTANCE_SIZE)
    return np.where(a > 0.0, apart, 0.0)


def _unequal(left: list[str], right: list[str], distance: float) -> FloatArray:
    codes = {name: code for code, name in enumerate(dict.fromkeys([*left, *right]))}
    a, b = np.array([codes[name] for name in left]), np.array([codes[name] for name in right])
    is_stated = np.array([bool(name) for name in left])
    return np.where((a[:, None] != b[None, :]) & is_stated[:, None], distance, 0.0)


def log_bands(
    apart: FloatArray, residuals: Sequence[Residual], usable: NDArray[np.bool_] | None = None
) -> tuple[FloatArray, FloatArray]:
    """Weighted 10th and 90th percentile of log residuals per query; `usable` masks rows per query.

    Where no row is usable, all of them are.
    """
    values = np.array([residual.log_ratio for residual in residuals])
    weights = np.exp(-apart) * np.array([residual.weight for residual in residuals])
    if usable is not None:
        masked = weights * usable
        weights = np.where(masked.sum(axis=1, keepdims=True) > 0.0, masked, weights)
    order = np.argsort(values, kind="stable")
    summed = np.cumsum(weights[:, order], axis=1)
    share = (summed - 0.5 * weights[:, order]) / summed[:, -1:]
    sorted_values = values[order]
    low = sorted_values[np.argmax(share >= _TAIL - _ROUNDING, axis=1)]
    is_above = share >= 1.0 - _TAIL - _ROUNDING
    # With one dominating row no share reaches the upper percentile, and argmax of nothing is 0.
    return low, np.where(is_above.any(axis=1), sorted_values[np.argmax(is_above, axis=1)], sorted_values[-1])


def stretched(low: FloatArray, high: FloatArray, stretch_ratio: float) -> tuple[FloatArray, FloatArray]:
    """Bands widened about their middle, and widened further to hold the prediction itself (log ratio 0)."""
    middle, half = (low + high) / 2.0, (high - low) / 2.0 * stretch_ratio
    return np.minimum(middle - half, 0.0), np.maximum(middle + half, 0.0)


def width_ratio(low: FloatArray, high: FloatArray) -> float:
    """Median of upper over lower limit, minus 1."""
    return math.expm1(float(np.median(high - low))) if len(low) else 0.0


def _words(residual: Residual) -> str:
    traits = residual.traits
    return f"{residual.row} ({traits.model} on {traits.gpu}, {traits.framework})"
