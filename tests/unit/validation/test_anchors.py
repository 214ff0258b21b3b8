"""Anchors: shrinkage, and that no row corrects itself."""

from __future__ import annotations

import math

import pytest

from planner.validation.anchors import PRIOR_ROWS, corrections, fit_anchors, single_anchor_errors
from planner.validation.statistics import errors
from tests.unit.validation.rows import priced

LOG2 = math.log(2)


def test_an_anchor_is_the_shrunk_mean_of_its_rows() -> None:
    rows = [priced(2.0, 1.0), priced(2.0, 1.0), priced(4.0, 1.0, model="other")]
    first, second = fit_anchors(rows)
    assert (first.model, first.num_rows) == ("m", 2)
    assert first.log_ratio == pytest.approx(2 * LOG2 / (2 + PRIOR_ROWS))
    assert second.log_ratio == pytest.approx(2 * LOG2 / (1 + PRIOR_ROWS))


def test_rows_are_corrected_by_others_only() -> None:
    alone = priced(8.0, 1.0, configuration="a")
    assert corrections([alone]) == [0.0]
    repeat = priced(8.0, 1.0, configuration="a", row="again")
    assert corrections([alone, repeat]) == [0.0, 0.0]
    other = priced(2.0, 1.0, configuration="b")
    found = corrections([alone, repeat, other])
    assert found[0] == found[1] == pytest.approx(LOG2 / (1 + PRIOR_ROWS))
    assert found[2] == pytest.approx(2 * 3 * LOG2 / (2 + PRIOR_ROWS))


@pytest.mark.parametrize("key", ["model", "framework", "release", "precision"])
def test_anchors_do_not_cross_models_or_releases(key: str) -> None:
    rows = [priced(2.0, 1.0, configuration="a"), priced(2.0, 1.0, configuration="b", **{key: "another"})]  # type: ignore[arg-type]
    assert corrections(rows) == [0.0, 0.0]


def test_a_common_factor_vanishes_with_many_rows() -> None:
    rows = [priced(3.0, 1.0, configuration=str(i)) for i in range(50)]
    assert errors(rows).median_abs_error_ratio == pytest.approx(2 / 3)
    assert errors(rows, corrections(rows)).median_abs_error_ratio < 0.02


def test_single_anchor_counts_each_judged_row_once() -> None:
    rows = [priced(2.0, 1.0, configuration=str(i)) for i in range(3)]
    rows.append(priced(5.0, 1.0, model="lonely"))
    found = single_anchor_errors(rows)
    assert found.num == 3
    assert found.median_abs_error_ratio == pytest.approx(1 - math.exp(LOG2 / (1 + PRIOR_ROWS) - LOG2))
