"""Whether a predicted memory peak fits: three verdicts, since a peak is known only within a band."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MEMORY_BAND_RATIO = 0.08
"""By judgement, about the 80th to 90th percentile of |predicted / measured - 1| over quality A allocator peaks of
10 GiB and more (5.5 % and 11 %; `rlplan validate --table memory`), since device peaks add what the allocator does not
count. docs/validation-protocol.md says how the table of fits changes at 0.06."""


class Verdict(StrEnum):
    """Whether a configuration fits in GPU memory."""

    FITS = "fits"
    MARGINAL = "marginal"
    """The limit lies inside the error band of the predicted peak."""
    DOES_NOT_FIT = "does not fit"


class MisfitKind(StrEnum):
    """What a fixed configuration exceeds or breaks."""

    RULE = "rule"
    """Such a strategy does not exist."""
    ENGINE_SHARE = "engine share"
    """An engine's own share of GPU memory is too small for its weights and one longest sequence."""
    GPU_MEMORY = "GPU memory"
    """A stage's peak, together with what others keep there."""
    HOST_RAM = "host RAM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """One reason why a configuration does not run as it is."""

    kind: MisfitKind
    text: str


def memory_verdict(peak_bytes: float, usable_bytes: float, band_ratio: float = MEMORY_BAND_RATIO) -> Verdict:
    """The verdict on a peak that may be `band_ratio` higher or lower than predicted.

    FITS when even the upper end fits, DOES_NOT_FIT when even the lower end does not.
    """
    if peak_bytes * (1.0 + band_ratio) <= usable_bytes:
        return Verdict.FITS
    if peak_bytes * (1.0 - band_ratio) > usable_bytes:
        return Verdict.DOES_NOT_FIT
    return Verdict.MARGINAL
