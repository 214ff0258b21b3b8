import numpy as np
import pytest

from planner.domain.lengths import LengthLaw


@pytest.mark.parametrize("cv", [0.3, 0.6, 1.0, 1.5])
@pytest.mark.parametrize("mean", [512.0, 4096.0, 7000.0])
def test_moments_agree_with_sampling(mean: float, cv: float) -> None:
    law = LengthLaw(mean_tokens=mean, cv=cv, max_tokens=8192)
    mu, sigma = law._mu_sigma
    sample = np.minimum(np.random.default_rng(7).lognormal(mu, sigma, 400_000), 8192)
    assert sample.mean() == pytest.approx(mean, rel=0.01)
    assert (sample**2).mean() == pytest.approx(law.mean_square_tokens, rel=0.02)
    for order in (1, 3, 4):
        assert (sample**order).mean() == pytest.approx(law.moment(order), rel=0.03)
    longest = sample.reshape(-1, 100).max(axis=1).mean()
    assert longest == pytest.approx(law.expected_maximum(100), rel=0.02)


def test_fixed_length_has_no_spread() -> None:
    law = LengthLaw(mean_tokens=1000, cv=0, max_tokens=2000)
    assert law.mean_square_tokens == 1e6
    assert law.expected_maximum(1000) == 1000
    assert law.survival(np.array([999.0, 1000.0])).tolist() == [1.0, 0.0]


def test_a_mean_at_the_maximum_is_a_fixed_length() -> None:
    assert LengthLaw(mean_tokens=8192, cv=0.6, max_tokens=8192).is_fixed


def test_survival_falls_from_one_to_zero() -> None:
    law = LengthLaw(mean_tokens=4096, cv=0.6, max_tokens=8192)
    survival = law.survival(np.linspace(0, 9000, 200))
    assert survival[0] == 1 and survival[-1] == 0
    assert (np.diff(survival) <= 1e-12).all()


def test_longest_of_many_approaches_the_maximum() -> None:
    law = LengthLaw(mean_tokens=4096, cv=0.6, max_tokens=8192)
    values = [law.expected_maximum(n) for n in (1, 4, 64, 4096)]
    assert values == sorted(values)
    assert values[0] == pytest.approx(4096, rel=0.01)
    assert values[-1] > 8100


@pytest.mark.parametrize(("mean", "cv"), [(0.0, 0.5), (9000.0, 0.5), (100.0, -1.0), (100.0, 9.0)])
def test_impossible_laws_are_refused(mean: float, cv: float) -> None:
    with pytest.raises(ValueError):
        LengthLaw(mean_tokens=mean, cv=cv, max_tokens=8192)
