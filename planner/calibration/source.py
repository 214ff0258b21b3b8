"""What is measured, in the form that the fit takes: observations and a function that predicts all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from planner.calibration.parameters import Key, Point
from planner.domain.lengths import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One measured duration (or, for `is_rate`, tokens/s: then the predicted value is one too).

    `log_sd` is the standard deviation that log(measured / predicted) would have with the right parameters; infinite
    for what is only reported. `fold` names what is left out together in cross-validation; observations of one `kind`
    repeat each other (the same stage of the same run), so that no more parameters than kinds are fitted. Errors are
    reported by `label`.
    """

    label: str
    kind: str
    measured: float
    log_sd: float
    fold: str
    is_rate: bool = False


class Source(Protocol):
    """Observations of one file."""

    @property
    def observations(self) -> tuple[Observation, ...]: ...

    @property
    def keys(self) -> tuple[Key, ...]:
        """Parameters that these observations may depend on, and that they bring into the fit."""
        ...

    def predict(self, point: Point) -> FloatArray:
        """Predicted values of the observations, shape (num_observations,), all positive."""
        ...
