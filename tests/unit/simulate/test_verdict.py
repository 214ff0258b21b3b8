"""The 95 % band."""

import numpy as np
import pytest

from planner.simulate.verdict import RESOLUTION_RATIO, band_s, spread


def test_the_band_holds_the_next_iteration_in_95_of_100_cases() -> None:
    random = np.random.default_rng(0)
    held = 0
    for _ in range(2000):
        values = random.normal(100.0, 20.0, size=9)
        low, high = band_s(values[:-1].tolist())
        held += low <= values[-1] <= high
    assert held / 2000 == pytest.approx(0.95, abs=0.015)


def test_without_spread_the_resolution_is_left() -> None:
    assert band_s([100.0] * 5) == pytest.approx((100 * (1 - RESOLUTION_RATIO), 100 * (1 + RESOLUTION_RATIO)))
    assert band_s([100.0]) == band_s([100.0] * 5)


def test_quantiles() -> None:
    found = spread([float(value) for value in range(101)])
    assert (found.mean, found.low, found.median, found.high) == (50.0, 5.0, 50.0, 95.0)
