"""Whether a predicted memory peak fits: three verdicts, since a peak is known only within a band."""

from __future__ import annotations

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


def memory_verdict(peak_bytes: float, usable_bytes: float, band_ratio: float = MEMORY_BAND_RATIO) -> Verdict:
    """The verdict on a peak that may be `band_ratio` higher or lower than predicted.

    FITS when even the upper end fits, DOES_NOT_FIT when even the lower end does not.
    """
    if peak_bytes * (1.0 + band_ratio) <= usable_bytes:
        return Verdict.FITS
    if peak_bytes * (1.0 - band_ratio) > usable_bytes:
        return Verdict.DOES_NOT_FIT
    return Verdict.MARGINAL
