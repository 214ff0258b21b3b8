"""Played pipelines against the closed bubble of equal micro-batches, and against bounds where they differ."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.simulate.pipeline_order import forward_s, training_s


@pytest.mark.parametrize(
    ("ranks", "chunks", "number"), list(itertools.product((1, 2, 4, 8), (1, 2, 4), (1, 2, 3, 4, 5, 8, 12, 16)))
)
def test_equal_micro_batches_leave_the_known_bubble(ranks: int, chunks: int, number: int) -> None:
    """m + ((p - 1) + (v - 1) (-m mod p)) / v times of one micro-batch (arXiv 2104.04473)."""
    if ranks == 1 and chunks > 1:
        return
    body, head = np.ones((number, 1)), np.zeros((number, 1))
    expected = number + ((ranks - 1) + (chunks - 1) * (-number % ranks)) / chunks
    assert training_s(body, head, ranks, chunks)[0] == pytest.approx(expected)
    assert forward_s(body, head, ranks, chunks)[0] == pytest.approx(expected)


@given(st.lists(st.floats(0.1, 5.0), min_size=1, max_size=12), st.sampled_from([2, 3, 4]), st.sampled_from([1, 2, 3]))
@settings(max_examples=80, deadline=None)
def test_unequal_micro_batches_lie_between_bounds(sizes: list[float], ranks: int, chunks: int) -> None:
    """No rank is faster than its own work plus the way of one micro-batch, nothing slower than the largest size for
    all."""
    body = np.array(sizes).reshape(-1, 1)
    head = np.zeros_like(body)
    found = training_s(body, head, ranks, chunks)[0]
    largest = training_s(np.full_like(body, max(sizes)), head, ranks, chunks)[0]
    assert sum(sizes) + (ranks - 1) / chunks * min(sizes) - 1e-9 <= found <= largest + 1e-9


def test_columns_do_not_wait_for_each_other() -> None:
    sizes = np.array([[1.0, 2.0], [3.0, 0.5], [2.0, 2.0], [1.0, 4.0]])
    head = 0.1 * sizes
    both = training_s(sizes, head, 4, 2)
    alone = [training_s(sizes[:, [i]], head[:, [i]], 4, 2)[0] for i in range(2)]
    assert both.tolist() == pytest.approx(alone)


def test_the_head_slows_the_last_rank_only() -> None:
    """With many micro-batches the last rank sets the pace: m (1 + h), and the others' fill."""
    body, head = np.ones((64, 1)), np.full((64, 1), 0.5)
    assert training_s(body, head, 4, 1)[0] == pytest.approx(64 * 1.5 + 3.0)
