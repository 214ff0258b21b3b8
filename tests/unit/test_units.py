import math

import pytest

from planner.errors import InvalidInputError, nearest
from planner.units import Dimension, format_bytes, format_range, format_seconds, format_seconds_like, parse


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("141 GiB", Dimension.SIZE, 141 * 2**30),
        ("81559 MiB", Dimension.SIZE, 81559 * 2**20),
        ("80GB", Dimension.SIZE, 80e9),
        ("450 GB/s", Dimension.BANDWIDTH, 450e9),
        ("400 Gbit/s", Dimension.BANDWIDTH, 50e9),
        ("989.4 TFLOP/s", Dimension.RATE, 989.4e12),
        ("12h", Dimension.TIME, 43200.0),
        ("1.5 d", Dimension.TIME, 129600.0),
        ("6.88 USD/hour", Dimension.MONEY_RATE, 6.88),
    ],
)
def test_parse_gives_si(text: str, dimension: Dimension, value: float) -> None:
    assert parse(text, dimension, where="here") == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    ["141", 141, 141.0, None, "GiB", "141 gib", "141 GiB/s", "-1 GiB", "0 GiB", "1e999 GiB", "nan GiB", "1 2 GiB"],
)
def test_bad_sizes_name_the_place(text: object) -> None:
    with pytest.raises(InvalidInputError, match=r"node\.ram"):
        parse(text, Dimension.SIZE, where="node.ram")


def test_bits_and_bytes_are_not_confused() -> None:
    assert parse("400 Gbit/s", Dimension.BANDWIDTH, where="") * 8 == parse("400 GB/s", Dimension.BANDWIDTH, where="")


def test_wrong_unit_suggests_the_near_one() -> None:
    with pytest.raises(InvalidInputError, match="did you mean 'Gbit/s'"):
        parse("400 Gbits/s", Dimension.BANDWIDTH, where="nic")


def test_nearest_ignores_case_and_stays_silent_when_far() -> None:
    assert "'qwen3-32b'" in nearest("Qwen3-23B", ["qwen3-32b", "llama-2-7b"])
    assert nearest("zzzz", ["qwen3-32b"]) == ""


def test_formats_are_readable() -> None:
    assert format_range(534.1, 960.0) == "8.9 to 16.0 min"
    assert format_range(40.0, 90.0) == "40.0 to 90.0 s"


def test_durations_that_are_compared_share_a_unit() -> None:
    assert format_seconds_like(458.1, 888.0) == "7.6 min"
    assert format_seconds_like(1392.0, 888.0) == "23.2 min"
    assert format_seconds_like(900.0, 300.0) == "900.0 s"
    assert format_seconds_like(4000.0, 9000.0) == "1.11 h"
    assert format_seconds_like(0.5, 0.9) == "500 ms"
    assert format_bytes(61.4 * 2**30) == "61.4 GiB"
    assert format_bytes(2**21) == "2 MiB"
    assert format_bytes(2 * 2**40) == "2.00 TiB"
    assert format_seconds(0.25) == "250 ms"
    assert format_seconds(48.3) == "48.3 s"
    assert format_seconds(1284) == "21.4 min"
    assert math.isfinite(float(format_seconds(20000).split()[0]))
