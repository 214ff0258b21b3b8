"""How far a prediction can be trusted: residuals of measured rows, and the band that the most similar ones give."""

from __future__ import annotations

from dataclasses import dataclass

COVERAGE_RATIO = 0.8
"""Share of measurements that a band should hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What makes two runs alike for the error of a prediction. Empty text where it is not known."""

    model: str
    """Id of the catalog."""
    family: str
    gpu: str
    """Id of the catalog."""
    architecture: str
    """Generation of the GPU."""
    precision: str
    framework: str
    subset: str
    """Kind of row: dense or moe training, synchronous or asynchronous step, name of a stage, ..."""
    quality: str
    num_active_params: float
    """Of the model; 0 where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """A measured row: its traits and log(measured / predicted) of the cost model without anchors."""

    row: str
    traits: Traits
    log_ratio: float
    weight: float
    """1 / number of rows that repeat this configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualTable:
    """Residuals of one table. `stretch_ratio` widens bands until they hold on model families left out."""

    name: str
    stretch_ratio: float
    residuals: tuple[Residual, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Limits of a measurement as multiples of the prediction, and what they rest on.

    `low_ratio <= 1 <= high_ratio`; the band should hold `coverage_ratio` of measurements.
    """

    low_ratio: float
    high_ratio: float
    coverage_ratio: float
    num_near_rows: int
    """Measured rows that are close: nearly the same kind of run on the same generation of GPU."""
    nearest_row: str
    """The closest measured row in words; empty when none is near."""

    def __post_init__(self) -> None:
        if not 0.0 < self.low_ratio <= 1.0 <= self.high_ratio:
            raise ValueError(f"a band from {self.low_ratio} to {self.high_ratio} does not hold its prediction")

    @property
    def basis(self) -> str:
        """What the band rests on, as one phrase."""
        if not self.nearest_row:
            return "no measured row near this"
        noun = "row" if self.num_near_rows == 1 else "rows"
        return f"nearest measured row: {self.nearest_row}; {self.num_near_rows} {noun} of this kind"
