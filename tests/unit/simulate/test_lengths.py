"""Sampled lengths and files of observed ones."""

from pathlib import Path

import numpy as np
import pytest

from planner.domain.lengths import LengthLaw
from planner.errors import InvalidInputError
from planner.simulate.lengths import Histogram, Lengths
from planner.simulate.lengths_file import read_lengths

LAW = LengthLaw(mean_tokens=3000, cv=0.8, max_tokens=8192)


def sample(lengths: Lengths, progress: float = 0.0) -> np.ndarray:
    return lengths.sample(200_000, progress, np.random.default_rng(0))


def test_samples_have_the_moments_of_the_law() -> None:
    drawn = sample(Lengths(law=LAW)).astype(float)
    assert drawn.mean() == pytest.approx(LAW.mean_tokens, rel=0.01)
    assert (drawn**2).mean() == pytest.approx(LAW.mean_square_tokens, rel=0.01)
    assert drawn.max() == LAW.max_tokens and drawn.min() >= 1


def test_a_fixed_law_gives_one_length() -> None:
    assert set(sample(Lengths(law=LengthLaw(mean_tokens=500, cv=0.0, max_tokens=1000))).tolist()) == {500}


def test_growth_runs_evenly_from_first_to_last_iteration() -> None:
    lengths = Lengths(law=LAW, growth_factor=4.0)
    assert [lengths.factor(p) for p in (0.0, 0.5, 1.0)] == [1.0, 2.0, 4.0]
    assert sample(lengths, 0.5).mean() == pytest.approx(6000, rel=0.01)
    assert set(sample(lengths, 1.0).tolist()) == {8192}, "clipped at the longest response"


def test_a_histogram_is_drawn_from_and_clipped() -> None:
    histogram = Histogram(tokens=(100, 1000, 9000), counts=(2.0, 1.0, 1.0))
    drawn = sample(Lengths(law=LAW, histogram=histogram))
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [100, 1000, 8192]
    assert (counts / len(drawn)).tolist() == pytest.approx([0.5, 0.25, 0.25], abs=0.01)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "lengths.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("text", ["512\n7\n512\n", "tokens,count\n7,1\n512,2\n", "# run 3\n512 2 # often\n\n7 1\n"])
def test_files_of_lengths_or_counts(tmp_path: Path, text: str) -> None:
    found = read_lengths(written(tmp_path, text))
    assert (found.tokens, found.counts) == ((7, 512), (1.0, 2.0))
    assert found.mean_tokens == pytest.approx((7 + 2 * 512) / 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("512\nabc\n", "line 2.*abc"),
        ("1,2,3\n", "line 1"),
        ("-5\n", "line 1.*-5 tokens"),
        ("1.5\n", "line 1"),
        ("1e99\n", "line 1"),
        ("10,-1\n", "a count of -1"),
        ("10,0\n", "no length"),
        ("tokens\n", "no length"),
    ],
)
def test_bad_files_name_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_lengths(written(tmp_path, text))
