"""Whether a plan's iteration time agrees with its replay.

The band says where a *single* iteration lies with 95 % probability, given the replayed ones: the prediction interval
`mean +- t(0.975, N - 1) * s * sqrt(1 + 1 / N)` of a normal law (Student 1908). It is not narrower than the resolution
of the replay, `RESOLUTION_RATIO` of the mean: two sums of the same kernel times that differ by less say nothing about
a plan, and without spread (fixed lengths) the interval would be a point. The error of the kernel times themselves is
in neither figure, since both rest on the same ones; the 80 % band that the plan prints states that error.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from planner.simulate.record import Spread

RESOLUTION_RATIO = 0.05

_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5 % quantiles of Student's t with 1, 2, ... 30 degrees of freedom."""
_Z_975 = 1.960


def band_s(iterations_s: Sequence[float]) -> tuple[float, float]:
    """Limits of the 95 % band in seconds; at least two iterations are needed for a spread, one gives the resolution."""
    values = np.asarray(iterations_s, dtype=np.float64)
    mean = float(values.mean())
    half = RESOLUTION_RATIO * mean
    if len(values) > 1:
        degrees = len(values) - 1
        quantile = _T_975[degrees - 1] if degrees <= len(_T_975) else _Z_975
        half = max(half, quantile * float(values.std(ddof=1)) * sqrt(1.0 + 1.0 / len(values)))
    return max(mean - half, 0.0), mean + half


def spread(values: Sequence[float]) -> Spread:
    """Mean, 5, 50 and 95 per cent of at least one value."""
    array = np.asarray(values, dtype=np.float64)
    low, median, high = (float(np.quantile(array, share)) for share in (0.05, 0.5, 0.95))
    return Spread(mean=float(array.mean()), low=low, median=median, high=high)
