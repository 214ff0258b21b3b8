"""Error bands of priced rows: how they are made, how they are judged, and the file that plans read.

A row is judged with residuals of other model families only. The stretch of a table is the factor that makes such bands
hold 80 % of rows; each row is judged with a stretch from other families than its own as well.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from planner import bands
from planner.domain.bands import COVERAGE_RATIO, Residual, ResidualTable, Traits
from planner.validation.read import RowError, family_of, find_model, find_node
from planner.validation.records import Keys, Priced
from planner.validation.statistics import kind, log_residual

FloatArray = NDArray[np.float64]

POOL_QUALITIES = frozenset("AB")
MAX_STRETCH_RATIO = 5.0
_STRETCHES = np.linspace(0.25, MAX_STRETCH_RATIO, 191)
MIN_ROWS = 10
"""Fewer rows say nothing about an 80 % band."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedBands:
    """Limits of each row's measurement, in its unit, from other families; and whether they hold."""

    low: FloatArray
    high: FloatArray
    holds: NDArray[np.bool_]

    def coverage_ratio(self, rows: Sequence[int]) -> float | None:
        """Share of rows whose measurement lies inside; None without rows."""
        return float(self.holds[list(rows)].mean()) if len(rows) else None

    def median_width_ratio(self, rows: Sequence[int]) -> float | None:
        """Median of upper over lower limit, minus 1."""
        chosen = list(rows)
        return float(np.median(self.high[chosen] / self.low[chosen])) - 1.0 if chosen else None


def traits(keys: Keys, quality: str) -> Traits:
    """What makes a row like another, with the names of the catalogs."""
    gpu, architecture = _machine(keys.gpu)
    return Traits(
        model=keys.model,
        family=family_of(keys.model),
        gpu=gpu,
        architecture=architecture,
        precision=keys.precision,
        framework=keys.framework,
        subset=keys.subset,
        quality=quality,
        num_active_params=_size(keys.model),
    )


def residual_table(name: str, rows: Sequence[Priced]) -> ResidualTable:
    """The residuals of rows of quality A and B, with the stretch that makes bands hold on families left out."""
    pool = [row for row in rows if row.quality in POOL_QUALITIES]
    repeats = Counter((row.keys.configuration, kind(row)) for row in pool)
    residuals = tuple(
        Residual(
            row=row.row,
            traits=traits(row.keys, row.quality),
            log_ratio=log_residual(row),
            weight=1.0 / repeats[row.keys.configuration, kind(row)],
        )
        for row in pool
    )
    table = ResidualTable(name=name, stretch_ratio=1.0, residuals=residuals)
    if not residuals:
        return table
    low, high = _left_out_bands([item.traits for item in residuals], residuals)
    needed = needed_stretch(low, high, np.array([item.log_ratio for item in residuals]))
    # Plans state their whole configuration, as rows of quality A do.
    return replace(table, stretch_ratio=smallest_stretch(needed[_of_quality(residuals, "A")]))


def judge(rows: Sequence[Priced], pool: ResidualTable) -> JudgedBands:
    """Bands of rows from residuals of other families, with a stretch from other families."""
    if not rows or not pool.residuals:
        empty = np.array([row.predicted for row in rows])
        return JudgedBands(low=empty, high=empty, holds=np.zeros(len(rows), dtype=bool))
    queries = [traits(row.keys, row.quality) for row in rows]
    low, high = _left_out_bands(queries, pool.residuals)
    stretches = _nested_stretches(queries, pool)
    low_log, high_log = np.empty_like(low), np.empty_like(high)
    for index, query in enumerate(queries):
        ends = bands.stretched(low[index : index + 1], high[index : index + 1], stretches[query.family, query.quality])
        low_log[index], high_log[index] = ends[0][0], ends[1][0]
    predicted = np.array([row.predicted for row in rows])
    actual = np.array([log_residual(row) for row in rows])
    return JudgedBands(
        low=predicted * np.exp(low_log),
        high=predicted * np.exp(high_log),
        holds=(low_log <= actual) & (actual <= high_log),
    )


def _left_out_bands(queries: Sequence[Traits], residuals: Sequence[Residual]) -> tuple[FloatArray, FloatArray]:
    families = np.array([item.traits.family for item in residuals])
    usable = np.array([query.family for query in queries])[:, None] != families[None, :]
    return bands.log_bands(bands.distances(queries, residuals), residuals, usable)


def _nested_stretches(queries: Sequence[Traits], pool: ResidualTable) -> dict[tuple[str, str], float]:
    """By family and quality of the queries: the stretch that rows of that quality in other families need."""
    residuals = pool.residuals
    low, high = _left_out_bands([item.traits for item in residuals], residuals)
    needed = needed_stretch(low, high, np.array([item.log_ratio for item in residuals]))
    families = np.array([item.traits.family for item in residuals])
    found: dict[tuple[str, str], float] = {}
    for family, quality in {(query.family, query.quality) for query in queries}:
        others = families != family
        alike = others & _of_quality(residuals, quality)
        chosen = alike if alike.sum() >= MIN_ROWS else others if others.any() else np.ones(len(residuals), dtype=bool)
        found[family, quality] = smallest_stretch(needed[chosen])
    return found


def _of_quality(residuals: Sequence[Residual], quality: str) -> NDArray[np.bool_]:
    """Rows of a quality; all of them where there are too few."""
    chosen = np.array([item.traits.quality == quality for item in residuals])
    return chosen if chosen.sum() >= MIN_ROWS else np.ones(len(residuals), dtype=bool)


def needed_stretch(low: FloatArray, high: FloatArray, actual: FloatArray) -> FloatArray:
    """The smallest of the tried stretches with which each band holds its residual; infinite when none does."""
    needed = np.full(len(actual), np.inf)
    for stretch in _STRETCHES[::-1]:
        low_log, high_log = bands.stretched(low, high, float(stretch))
        needed[(low_log <= actual) & (actual <= high_log)] = stretch
    return needed


def smallest_stretch(needed: FloatArray) -> float:
    """The stretch with which bands hold the wanted share of rows, and of one more; at most MAX_STRETCH_RATIO."""
    # Split conformal prediction (arXiv 2107.07511): the ceil((n + 1) * 0.8)-th smallest of n.
    position = min(math.ceil(COVERAGE_RATIO * (len(needed) + 1)), len(needed)) - 1
    return float(min(np.sort(needed)[position], MAX_STRETCH_RATIO))


@cache
def _size(model: str) -> float:
    """Active parameters of a model; 0 for one that no catalog knows."""
    try:
        return float(find_model(model).num_active_params)
    except RowError:
        return 0.0


@cache
def _machine(code: str) -> tuple[str, str]:
    """(id, architecture) of the GPU that a row names; its own words where it is not known."""
    try:
        gpu = find_node(code).gpu
    except RowError:
        return code, ""
    return gpu.id, gpu.architecture
