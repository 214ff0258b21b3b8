"""Columns of tables that hold codes of enumeration members."""

from __future__ import annotations

import numpy as np

from planner.domain.strategy import BoolArray, FloatArray


def is_in(column: FloatArray, values: tuple[object, ...], allowed: frozenset[object]) -> BoolArray:
    """Rows whose code stands for an allowed member of an enumeration."""
    by_code = np.array([value in allowed for value in values])
    return np.asarray(by_code[column.astype(np.int64)])
