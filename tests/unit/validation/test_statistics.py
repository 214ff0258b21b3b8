"""Error figures, order and noise floor on rows whose figures are known by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.validation.holdout import HoldOut, cross_validate, folds
from planner.validation.statistics import errors, group_by, log_residual, noise_floor, rank, term_shares
from tests.unit.validation.rows import priced


def test_errors() -> None:
    found = errors([priced(1.0, 1.1), priced(1.0, 0.7), priced(2.0, 2.0)])
    assert (found.num, found.median_abs_error_ratio) == (3, pytest.approx(0.1))
    assert found.bias_ratio == pytest.approx(0.0)
    assert found.p90_abs_error_ratio == pytest.approx(0.1 + 0.8 * 0.2)


def test_corrections_multiply_predictions() -> None:
    row = priced(2.0, 1.0)
    assert log_residual(row) == pytest.approx(math.log(2))
    assert errors([row], [math.log(2)]).median_abs_error_ratio == pytest.approx(0.0)


def test_no_rows() -> None:
    assert errors([]).num == 0
    assert rank([]).agreement_ratio is None
    assert noise_floor([]).num_same_release == 0


def test_order_counts_only_clear_pairs_of_one_workload() -> None:
    rows = [
        priced(1.0, 1.0, configuration="a"),
        priced(1.2, 5.0, configuration="b"),  # within 25 % of a: order not asked
        priced(2.0, 4.0, configuration="c"),  # right against a, wrong against b
        priced(9.0, 0.1, configuration="d", workload="other"),
        priced(9.0, 0.1, configuration="e", workload=""),
    ]
    found = rank(rows)
    assert (found.num_pairs, found.agreement_ratio) == (2, pytest.approx(0.5))
    assert found.num_choices == 1
    assert found.regret_median_ratio == pytest.approx(0.0)


def test_a_tie_is_half_right() -> None:
    assert rank([priced(1.0, 3.0), priced(2.0, 3.0)]).agreement_ratio == pytest.approx(0.5)


def test_regret_of_a_wrong_choice_for_times_and_rates() -> None:
    times = [priced(1.0, 2.0, configuration="a"), priced(1.5, 1.0, configuration="b")]
    assert rank(times).regret_median_ratio == pytest.approx(0.5)
    rates = [
        priced(3.0, 1.0, configuration="a", unit="tokens/s"),
        priced(2.0, 2.0, configuration="b", unit="tokens/s"),
    ]
    assert rank(rates).regret_median_ratio == pytest.approx(0.5)


def test_noise_floor_separates_releases() -> None:
    rows = [
        priced(1.0, 1.0, release="1"),
        priced(1.1, 1.0, release="1"),
        priced(2.0, 1.0, release="2"),
        priced(7.0, 1.0, configuration="d"),
    ]
    floor = noise_floor(rows)
    assert (floor.num_same_release, floor.num_other_release) == (1, 2)
    assert floor.same_release_median_ratio == pytest.approx(0.1)
    assert floor.other_release_median_ratio == pytest.approx((1.0 + 2.0 / 1.1 - 1.0) / 2)


def test_groups() -> None:
    rows = [priced(1, 1, gpu="b"), priced(1, 1, gpu="a"), priced(1, 1, gpu="a"), priced(1, 1, gpu="")]
    assert group_by(rows, lambda row: row.keys.gpu) == {"a": (1, 2), "b": (0,), "not stated": (3,)}


def test_folds_keep_values_together_and_judge_each_row_once() -> None:
    names = [f"c{i % 37}" for i in range(200)]
    keys = [priced(1, 1, configuration=name).keys for name in names]
    found = folds(keys, HoldOut.CONFIGURATION, max_folds=5)
    assert len(found) == 5
    assert sorted(np.concatenate([fold.judged for fold in found])) == list(range(200))
    for fold in found:
        assert not {names[i] for i in fold.fit} & {names[i] for i in fold.judged}
        assert len(fold.fit) + len(fold.judged) == 200


def test_cross_validation_never_sees_what_it_judges() -> None:
    rows = [priced(float(i // 4 + 1), 1.0, family=f"f{i // 4}") for i in range(12)]
    seen: list[set[str]] = []

    def fit(fit_rows: np.ndarray, judged: np.ndarray) -> list[float]:
        seen.append({rows[i].keys.family for i in fit_rows} & {rows[i].keys.family for i in judged})
        return [float(np.mean([rows[i].measured for i in fit_rows]))] * len(judged)

    found = cross_validate(rows, HoldOut.FAMILY, fit)
    assert seen == [set()] * 3
    assert found.num == 12
    assert found.median_abs_error_ratio == pytest.approx(0.5)


def test_suspect_terms_are_those_of_the_worst_rows() -> None:
    good = [priced(1.0, 1.0, row=f"g{i}", terms={"gemm": 0.9, "launch": 0.1}) for i in range(18)]
    low = [priced(3.0, 1.0, row=f"l{i}", terms={"gemm": 0.2, "launch": 0.8}) for i in range(2)]
    first = term_shares([*good, *low])[0]
    assert first.name == "launch"
    assert first.all_ratio == pytest.approx(0.17)
    assert first.too_low_ratio == pytest.approx(0.8)
    assert first.too_high_ratio == pytest.approx(0.1)
    assert term_shares(good[:9]) == ()
