"""Peaks of published runs: every row is priced or excluded with a reason, and the quantity that was measured counts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from planner.domain.strategy import Recompute, Sharding
from planner.files.catalog import load_overheads
from planner.validation.megatron_tests import read_flags, test_model
from planner.validation.memory import EXACT, NOT_STATED, peak_terms, price
from planner.validation.memory_rows import MemoryKind, MemoryRun, RuleError, read_run
from planner.validation.read import Row, RowError, read_tables
from planner.validation.records import Table, TableResult

test_model.__test__ = False  # type: ignore[attr-defined]
GIB = 2.0**30


@cache
def rows() -> dict[str, Row]:
    return {row["id"]: row for row in read_tables(None, [Table.MEMORY])[Table.MEMORY].rows}


@cache
def result() -> TableResult:
    return price(tuple(rows().values()))


def run(name: str) -> MemoryRun:
    return read_run(rows()[name])


def terms(item: MemoryRun) -> dict[str, float]:
    return peak_terms([item], load_overheads())[0]


def test_every_row_is_priced_or_listed_with_a_reason() -> None:
    assert result().num_rows == len(rows())
    assert {item.row for item in result().priced} | {item.row for item in result().unpriced} == set(rows())
    assert all(item.reason for item in result().unpriced)
    assert len(result().priced) >= 400


def test_terms_sum_to_the_prediction() -> None:
    for item in result().priced:
        assert sum(term.value for term in item.terms) == pytest.approx(item.predicted)
        assert item.predicted > 0


@pytest.mark.parametrize(("subset", "median", "p90"), [(EXACT, 0.03, 0.10), (NOT_STATED, 0.10, 0.30)])
def test_large_quality_a_peaks_meet_their_targets(subset: str, median: float, p90: float) -> None:
    errors = [
        abs(item.error_ratio)
        for item in result().priced
        if item.quality == "A" and item.keys.subset == subset and item.measured >= 10 * GIB
    ]
    assert len(errors) >= 10
    assert np.median(errors) <= median
    assert np.quantile(errors, 0.9) <= p90


def test_an_allocator_peak_has_neither_context_nor_fragmentation() -> None:
    item = run("mbskill-moonlight-121")
    allocated, reserved, device = (terms(replace(item, kind=kind)) for kind in MemoryKind)
    assert not {"context", "communicator", "fragmentation"} & set(allocated)
    assert set(reserved) - set(allocated) == {"fragmentation"}
    assert set(device) - set(reserved) == {"context", "communicator"}
    assert sum(allocated.values()) < sum(reserved.values()) < sum(device.values())


def test_golden_values_are_those_of_the_last_pipeline_rank() -> None:
    item = run("mcore-gpt-gpt3_7b_tp1_pp4_memory_speed-h100")
    assert item.recipe.only_last_rank
    fullest = replace(item, recipe=replace(item.recipe, only_last_rank=False))
    assert sum(terms(fullest).values()) >= sum(terms(item).values())
    assert "logits" in terms(item)


def test_flags_of_a_test_become_its_network() -> None:
    row = rows()["mcore-gpt-gpt3_7b_tp1_pp4_memory_speed-h100"]
    model = test_model(row, read_flags(row), 1)
    assert model.num_layers == 32
    assert model.vocab_size == 131200
    assert not model.is_embedding_tied
    assert model.layers[0].attention.num_kv_heads == 8


def test_first_iteration_has_no_moments() -> None:
    first, later = run("mbskill-nano-149"), run("mbskill-nano-153")
    assert first.recipe.optimizer_bytes == 4.0
    assert later.recipe.optimizer_bytes == 8.0


def test_rows_without_a_peak_and_contradictions_are_excluded_by_rule() -> None:
    row = dict(rows()["mbskill-moonlight-121"])
    for change in ({"mem_gib": ""}, {"gbs": "5"}, {"measured": "0"}):
        with pytest.raises(RuleError):
            read_run({**row, **change})


def test_a_cell_that_is_no_number_makes_its_row_unpriced_only() -> None:
    row = dict(rows()["mbskill-moonlight-121"])
    found = price([{**row, "tp": "two"}, row])
    assert [len(found.priced), len(found.unpriced)] == [1, 1]
    assert "two" in found.unpriced[0].reason


def test_degrees_must_divide_the_gpus() -> None:
    with pytest.raises(RowError, match="does not divide"):
        read_run({**rows()["mbskill-moonlight-121"], "tp": "3"})


def test_zero_levels_become_shardings() -> None:
    assert run("mem-titan-8b-8-0").strategy.sharding is Sharding.ZERO3
    assert run("mem-titan-8b-cp1").strategy.recompute is Recompute.FULL
