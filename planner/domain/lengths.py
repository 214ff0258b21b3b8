"""Response-length laws and the moments that the cost model takes from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import erf, exp, log, sqrt

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_GRID_POINTS = 2048


def _normal_cdf(x: float) -> float:
    return 0.5 * (1.0 + erf(x / sqrt(2.0)))


def _clipped_mean(mu: float, sigma: float, limit: float) -> float:
    """E[min(X, limit)] of a lognormal X."""
    z = (log(limit) - mu) / sigma
    return exp(mu + sigma * sigma / 2) * _normal_cdf(z - sigma) + limit * (1.0 - _normal_cdf(z))


@dataclass(frozen=True, kw_only=True)
class LengthLaw:
    """Lognormal response length, clipped at `max_tokens`.

    `mean_tokens` is the mean *after* clipping; `cv` is the coefficient of variation of the unclipped
    lognormal (0 means that every response has the mean length). Raises ValueError unless
    0 < mean_tokens <= max_tokens and 0 <= cv <= 5.
    """

    mean_tokens: float
    cv: float
    max_tokens: int

    def __post_init__(self) -> None:
        if not 0 < self.mean_tokens <= self.max_tokens:
            raise ValueError(
                f"mean length must lie in (0, {self.max_tokens}] tokens (the maximum), got {self.mean_tokens}"
            )
        if not 0 <= self.cv <= 5:
            raise ValueError(f"coefficient of variation must lie in [0, 5], got {self.cv}")

    @property
    def is_fixed(self) -> bool:
        return self.cv == 0 or self.mean_tokens >= self.max_tokens

    @cached_property
    def _mu_sigma(self) -> tuple[float, float]:
        sigma = sqrt(log(1.0 + self.cv**2))
        low, high = log(self.mean_tokens) - sigma * sigma, log(self.max_tokens) + 12 * sigma
        for _ in range(200):
            middle = 0.5 * (low + high)
            if _clipped_mean(middle, sigma, self.max_tokens) < self.mean_tokens:
                low = middle
            else:
                high = middle
        return 0.5 * (low + high), sigma

    @property
    def normal_parameters(self) -> tuple[float, float]:
        """Mean and deviation of the logarithm of the unclipped length; ValueError for a law of one fixed length."""
        if self.is_fixed:
            raise ValueError("a fixed length has no lognormal parameters")
        return self._mu_sigma

    def survival(self, tokens: FloatArray) -> FloatArray:
        """P(length > tokens), elementwise."""
        tokens = np.asarray(tokens, dtype=np.float64)
        if self.is_fixed:
            return (tokens < self.mean_tokens).astype(np.float64)
        mu, sigma = self._mu_sigma
        z = (np.log(np.maximum(tokens, 1e-9)) - mu) / (sigma * sqrt(2.0))
        tail = 0.5 * (1.0 - np.vectorize(erf, otypes=[float])(z))
        return np.where(tokens < self.max_tokens, np.where(tokens <= 0, 1.0, tail), 0.0)

    @cached_property
    def _grid(self) -> tuple[FloatArray, FloatArray]:
        """Midpoints of equal cells of [0, max_tokens] and the survival there."""
        middle = np.asarray((np.arange(_GRID_POINTS) + 0.5) * (self.max_tokens / _GRID_POINTS), dtype=np.float64)
        return middle, self.survival(middle)

    @cached_property
    def mean_square_tokens(self) -> float:
        """E[length**2]."""
        return self.moment(2)

    def moment(self, order: int) -> float:
        """E[length**order] = integral of order x**(order - 1) P(length > x) dx."""
        if self.is_fixed:
            return float(self.mean_tokens) ** order
        middle, survival = self._grid
        return float(np.sum(order * middle ** (order - 1) * survival) * (self.max_tokens / _GRID_POINTS))

    def expected_maximum(self, num_samples: float) -> float:
        """E[longest of num_samples] = integral of 1 - F(x)**num_samples dx."""
        if self.is_fixed:
            return float(self.mean_tokens)
        below = 1.0 - self._grid[1]
        return float(np.sum(1.0 - below**num_samples) * (self.max_tokens / _GRID_POINTS))
