"""Quantities with units at the boundary, plain SI floats inside.

Bare numbers are rejected where a quantity is expected: `141` could be GB or GiB. GB is 1e9 bytes and
GiB is 2**30 bytes, always.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum

from planner.errors import InvalidInputError, nearest

GIB = 2.0**30
GB = 1e9
HOUR_S = 3600.0


class Dimension(StrEnum):
    """What a quantity measures; the value is the SI unit that `parse` returns."""

    SIZE = "bytes"
    BANDWIDTH = "bytes/s"
    RATE = "FLOP/s"
    TIME = "s"
    MONEY_RATE = "USD/hour"
    MONEY = "USD"


_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}


def _prefixed(unit: str, scale: float = 1.0, *, binary: bool = True) -> dict[str, float]:
    prefixes = {**_DECIMAL, **_BINARY} if binary else _DECIMAL
    return {prefix + unit: factor * scale for prefix, factor in prefixes.items()}


_UNITS: dict[Dimension, dict[str, float]] = {
    Dimension.SIZE: _prefixed("B"),
    Dimension.BANDWIDTH: {**_prefixed("B/s"), **_prefixed("bit/s", 0.125, binary=False)},
    Dimension.RATE: _prefixed("FLOP/s", binary=False),
    Dimension.TIME: {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": HOUR_S, "d": 24 * HOUR_S},
    Dimension.MONEY_RATE: {"USD/hour": 1.0, "USD/h": 1.0},
    Dimension.MONEY: {"USD": 1.0, "usd": 1.0},
}

_EXAMPLES: dict[Dimension, str] = {
    Dimension.SIZE: "GiB, GB, TiB, TB, MiB, MB",
    Dimension.BANDWIDTH: "GB/s, Gbit/s, GiB/s, TB/s, MB/s",
    Dimension.RATE: "TFLOP/s, PFLOP/s, GFLOP/s",
    Dimension.TIME: "us, ms, s, min, h, d",
    Dimension.MONEY_RATE: "USD/hour",
    Dimension.MONEY: "USD",
}
"""What messages offer; every SI and binary prefix is understood."""

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z/]*)\s*")


def parse(text: object, dimension: Dimension, *, where: str) -> float:
    """`'400 Gbit/s'` -> `5e10` for BANDWIDTH; raises InvalidInputError for bare numbers and wrong units.

    The result is finite and greater than zero.
    """
    accepted = _EXAMPLES[dimension]
    if not isinstance(text, str):
        raise InvalidInputError(f"{text!r} has no unit", where=where, accepted=f"a number with one of {accepted}")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InvalidInputError(
            f"{text[:80]!r} is not a quantity", where=where, accepted=f"a number with one of {accepted}"
        )
    number, unit = float(match.group(1)), match.group(2)
    factors = _UNITS[dimension]
    if unit not in factors:
        problem = f"unit {unit!r} in {text!r} is not a unit of {dimension.value}" if unit else f"{text!r} has no unit"
        raise InvalidInputError(
            problem, where=where, accepted=accepted, suggestion=nearest(unit, factors) if unit else ""
        )
    value = number * factors[unit]
    if not math.isfinite(value) or value <= 0:
        raise InvalidInputError(f"{text!r} must be positive and finite", where=where)
    return value


def format_bytes(value: float) -> str:
    """`'61.4 GiB'`; sizes are always shown in binary units."""
    if value >= 1000 * GIB:
        return f"{value / GIB / 1024:.2f} TiB"
    if value >= GIB / 10:
        return f"{value / GIB:.1f} GiB"
    return f"{value / 2**20:.0f} MiB"


_SECONDS_OF = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": HOUR_S}
"""The units that durations are shown in."""
_DIGITS_OF = {"ms": 0, "s": 1, "min": 1, "h": 2}
"""Decimals where the unit is given, so that half of it is still exact to a per cent or two."""


def format_seconds(value: float) -> str:
    """`'312 ms'`, `'48.3 s'`, `'21.4 min'` or `'3.2 h'`."""
    if value < 1:
        return f"{value * 1e3:.0f} ms"
    if value < 600:
        return f"{value:.1f} s"
    if value < 2 * HOUR_S:
        return f"{value / 60:.1f} min"
    return f"{value / HOUR_S:.1f} h"


def format_range(low: float, high: float) -> str:
    """Two durations in one unit: `'8.9 to 16.0 min'`; the larger one chooses it."""
    unit = format_seconds(high).split()[1]
    factor = _SECONDS_OF[unit]
    digits = 0 if unit == "ms" else 1
    return f"{low / factor:.{digits}f} to {high / factor:.{digits}f} {unit}"


def format_seconds_like(value: float, reference_s: float) -> str:
    """A duration in the unit that another one is shown in, so that the two can be compared: `'7.6 min'`."""
    unit = format_seconds(reference_s).split()[1]
    return f"{value / _SECONDS_OF[unit]:.{_DIGITS_OF[unit]}f} {unit}"


def format_percent(ratio: float) -> str:
    """`'37%'`; small shares keep the digits that say something, and only an exact zero reads 0."""
    if ratio == 0:
        return "0%"
    if ratio < 0.0001:
        return "<0.01%"
    if ratio < 0.01:
        return f"{ratio:.2%}"
    return f"{ratio:.0%}" if ratio >= 0.1 else f"{ratio:.1%}"


def format_bandwidth(value: float) -> str:
    """`'450 GB/s'`, decimal as in data sheets."""
    return f"{value / GB:.4g} GB/s"
