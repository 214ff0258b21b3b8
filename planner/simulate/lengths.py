"""Response lengths of a replay: the plan's law or observed ones, and their growth during training."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.domain.lengths import LengthLaw
from planner.domain.strategy import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Observed response lengths in tokens, and how often each occurred; at least one."""

    tokens: tuple[int, ...]
    counts: tuple[float, ...]

    @property
    def mean_tokens(self) -> float:
        return float(np.average(self.tokens, weights=self.counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Where lengths come from: `law`, or `histogram` where one is given; never above `law.max_tokens`.

    `growth_factor` is the mean length at the last iteration over that at the first; between them it grows evenly per
    iteration.
    """

    law: LengthLaw
    histogram: Histogram | None = None
    growth_factor: float = 1.0

    def factor(self, progress_ratio: float) -> float:
        """Mean length over that at the start, at a point of the training between 0 and 1."""
        return float(self.growth_factor**progress_ratio)

    def sample(self, number: int, progress_ratio: float, random: np.random.Generator) -> IntArray:
        """`number` lengths of at least one token, shape (number,)."""
        factor = self.factor(progress_ratio)
        if self.histogram is not None:
            shares = np.asarray(self.histogram.counts) / sum(self.histogram.counts)
            drawn = random.choice(np.asarray(self.histogram.tokens, dtype=np.float64), size=number, p=shares) * factor
        else:
            drawn = _from_law(_grown(self.law, factor), number, random)
        return np.clip(np.rint(drawn), 1, self.law.max_tokens).astype(np.int64)


def _grown(law: LengthLaw, factor: float) -> LengthLaw:
    """The law with another mean, which clipping keeps below the limit."""
    return replace(law, mean_tokens=min(law.mean_tokens * factor, float(law.max_tokens)))


def _from_law(law: LengthLaw, number: int, random: np.random.Generator) -> np.ndarray:
    if law.is_fixed:
        return np.full(number, law.mean_tokens)
    mean, deviation = law.normal_parameters
    return np.exp(random.normal(mean, deviation, size=number))
