"""Pruning keeps exactly the minimal options."""

from __future__ import annotations

import random

import numpy as np
import pytest

from planner.search.options import merge, pareto_rows, prune, prune_within, runs, take
from tests.oracle.instances import random_problem


def minimal_rows(columns: np.ndarray, num_gpus: np.ndarray, *, across_sizes: bool) -> list[int]:
    def dominates(i: int, j: int) -> bool:
        size_ok = num_gpus[i] <= num_gpus[j] if across_sizes else num_gpus[i] == num_gpus[j]
        if not size_ok or not (columns[:, i] <= columns[:, j]).all():
            return False
        return bool((columns[:, i] < columns[:, j]).any() or num_gpus[i] < num_gpus[j] or i < j)

    rows = range(columns.shape[1])
    kept = [j for j in rows if not any(dominates(i, j) for i in rows if i != j)]
    return sorted(kept, key=lambda row: (num_gpus[row], row))


@pytest.mark.parametrize("across_sizes", [True, False])
def test_pareto_rows_are_the_minimal_rows(across_sizes: bool) -> None:
    rng = np.random.default_rng(0)
    for trial in range(300):
        num, num_columns = rng.integers(1, 120), rng.integers(1, 12)
        columns = rng.integers(0, rng.integers(2, 8), (num_columns, num)).astype(np.float64)
        if trial % 2:
            columns += rng.random((num_columns, num))
        num_gpus = rng.choice([1, 2, 4, 8], num)
        expected = minimal_rows(columns, num_gpus, across_sizes=across_sizes)
        assert pareto_rows(columns, num_gpus, across_sizes=across_sizes).tolist() == expected


def test_pareto_rows_of_nothing_is_nothing() -> None:
    empty = np.empty((3, 0))
    assert pareto_rows(empty, np.empty(0, dtype=np.int64), across_sizes=True).size == 0


def test_pruning_in_chunks_equals_pruning_at_once() -> None:
    table = random_problem(random.Random(0), num_workers=2, num_options=400).options[0]
    chunks = [prune(take(table, np.arange(start, start + 100))) for start in range(0, 400, 100)]
    assert prune(merge(chunks)).row.tolist() == prune(table).row.tolist()


def test_options_of_different_keys_are_not_compared() -> None:
    table = random_problem(random.Random(0), num_workers=2, num_options=60).options[0]
    keys = table.row % 2
    kept = prune_within(table, keys, across_sizes=True)
    expected = [*prune(take(table, keys == 0)).row, *prune(take(table, keys == 1)).row]
    assert sorted(kept.row.tolist()) == sorted(expected)


def test_runs_are_where_each_value_of_a_sorted_array_is() -> None:
    values = np.array([-1, -1, 3, 7, 7, 7])
    found = runs(values)
    assert list(found) == [-1, 3, 7]
    assert all(values[where].tolist() == [key] * int((values == key).sum()) for key, where in found.items())
    assert runs(np.empty(0, dtype=np.int64)) == {}


def test_many_keys_in_any_order_keep_what_each_keeps_alone() -> None:
    table = random_problem(random.Random(1), num_workers=2, num_options=200).options[0]
    keys = np.random.default_rng(0).integers(-1, 30, len(table))
    kept = prune_within(table, keys, across_sizes=False)
    parts = [prune(take(table, keys == key), across_sizes=False) for key in np.unique(keys)]
    expected = merge(parts)
    order = np.lexsort((expected.row, expected.num_gpus))
    assert kept.row.tolist() == expected.row[order].tolist()
    assert (kept.stage_time_s == expected.stage_time_s[:, order]).all()
