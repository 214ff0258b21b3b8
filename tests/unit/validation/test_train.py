"""Training rows: what a row is read as, that none is lost, and how far off the shipped values are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest

from planner.domain.hardware import Precision
from planner.domain.strategy import Recompute, Sharding
from planner.validation import read
from planner.validation.records import Table, TableResult
from planner.validation.train import price
from planner.validation.train_rows import TrainRow, read_row


@cache
def rows() -> Mapping[str, read.Row]:
    return {row["id"]: row for row in read.read_tables(None, [Table.TRAIN])[Table.TRAIN].rows}


@cache
def result() -> TableResult:
    return price(tuple(rows().values()))


def changed(row: read.Row, **cells: str) -> read.Row:
    return {**row, **cells}


def one(name: str) -> TrainRow:
    return read_row(rows()[name])


def test_every_row_is_priced_or_has_a_reason() -> None:
    names = [p.row for p in result().priced] + [u.row for u in result().unpriced]
    assert sorted(names) == sorted(rows())
    assert all(u.reason for u in result().unpriced)
    assert len(result().priced) > 0.8 * len(rows())


def test_terms_sum_to_the_prediction() -> None:
    for priced in result().priced:
        assert sum(t.value for t in priced.terms) == pytest.approx(priced.predicted)
        assert priced.predicted > 0 and priced.measured > 0
        assert not {t.name for t in priced.terms} & {"reload", "switch"}


def test_a_row_alone_is_priced_as_in_the_table() -> None:
    by_row = {p.row: p for p in result().priced}
    for name in ("mb-26.04.01-pre-207-arc", "titan-8b-8-1", "mb-26.06-lora-191-arc"):
        assert price([rows()[name]]).priced[0] == by_row[name]


def test_megatron_rows() -> None:
    row = one("mb-26.06-pre-114-arc")
    assert (row.framework, row.release, row.model.id) == ("megatron-bridge", "26.06", "deepseek-v3")
    assert (row.precision, row.is_block_scaled, row.is_balanced) == (Precision.FP8, True, True)
    s = row.strategy
    assert (s.num_gpus, s.tp, s.pp, s.vpp, s.ep, s.dp) == (256, 1, 4, 4, 64, 64)
    assert (s.sharding, s.micro_batch_tokens, s.recompute) == (Sharding.ZERO1, 4096, Recompute.NONE)
    assert row.node.scale_up_domain_gpus == 72
    assert row.software.has_fast_experts and not one("mb-26.04.01-pre-226-arc").software.has_fast_experts
    assert row.measured_s == pytest.approx(13.189, rel=1e-4)


def test_fsdp_rows() -> None:
    for name, sharding in (("titan-8b-8-1", Sharding.ZERO3), ("foundry-90", Sharding.ZERO2)):
        row = one(name)
        assert row.software.is_fsdp and row.strategy.sharding is sharding
    bridge = one("mb-26.04.01-pre-201-arc")
    assert bridge.strategy.sharding is Sharding.ZERO3 and not bridge.software.is_fsdp
    assert one("titan-8b-8-1").node.gpu.hbm_bytes_per_s == pytest.approx(2.4e12)


def test_routing_is_natural_unless_a_benchmark_forces_balance() -> None:
    assert one("mbcard-qwen3-30b-a3b-pretrain_performance-GB200").is_balanced
    assert not one("mbcard-qwen3-30b-a3b-pretrain-H100").is_balanced
    assert not one("mbcard-qwen3-30b-a3b-sft-H100").is_balanced
    assert one("titan-8b-8-1").is_balanced
    forced, natural = (
        price([changed(rows()["mb-26.06-pre-132-arc"], flags=flags)]).priced[0].predicted
        for flags in ("forced expert balance", "natural routing")
    )
    assert natural > forced


def test_truncated_models_and_mtp() -> None:
    assert one("simumax-b200-deepseekv2_tp1_ep8_pp1_dp8_l4_mbc4_cef").model.num_layers == 4
    assert one("mb-26.06-pre-114-arc").num_mtp_modules == 1
    assert one("mb-25.11-pre-556-arc").num_mtp_modules == 0
    row = rows()["mb-26.06-pre-114-arc"]
    without, counted = (
        price([changed(row, flags=f"forced expert balance; {flags}", pp="1", vpp="1", dp="256")]).priced[0].predicted
        for flags in ("mtp=off", "mtp=on")
    )
    # a layer of 61 and a head of about 1.5 layers more
    assert 1.01 < counted / without < 1.06


def test_dropped_tokens_need_no_host() -> None:
    row = rows()["mb-25.09-pre-621-arc"]
    dropless, dropped = (
        price([changed(row, flags=flags)]).priced[0].predicted
        for flags in ("forced expert balance; token-dropless", "token-drop")
    )
    assert dropped < dropless


def test_flop_figures_are_read_as_their_source_counts_them() -> None:
    """A Megatron-Bridge row gives the same seconds by tokens and by FLOP; other sources do not say how they count."""
    row = rows()["mb-26.06-sft-175-arc"]
    by_flop = read_row(changed(row, tokens_per_s_per_gpu="", step_time_s=""))
    assert by_flop.measured_s == pytest.approx(read_row(row).measured_s, rel=0.01)
    with pytest.raises(read.RowError, match="FLOP"):
        read_row(rows()["nemolong-h100-8k-cp"])


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"tp": ""}, "tp is not stated"),
        ({"tp": "3"}, "does not divide"),
        ({"gbs": "1"}, "data-parallel ranks"),
        ({"mbs": "999"}, "micro-batch"),
        ({"dp": "1"}, "the row says 1"),
        ({"model": "nobody/nothing"}, "not known"),
        ({"precision": "int2"}, "precision"),
        ({"gpu": "", "system": ""}, "gpu"),
        ({"n_gpus": "many"}, "n_gpus"),
    ],
)
def test_rows_that_state_too_little(cells: dict[str, str], reason: str) -> None:
    outcome = price([changed(rows()["mb-26.04.01-pre-207-arc"], **cells)])
    assert not outcome.priced
    assert reason in outcome.unpriced[0].reason


def test_releases_of_one_configuration_are_repeats() -> None:
    priced = {p.row: p.keys for p in result().priced}
    first, second = priced["mb-26.04-pre-308-arc"], priced["mb-26.04.01-pre-207-arc"]
    assert first.configuration == second.configuration and first.release != second.release
    other = priced["mb-26.06-sft-179-arc"]
    assert other.configuration != first.configuration and other.workload != first.workload


@pytest.mark.parametrize(("subset", "median", "tenth"), [("dense", 0.08, 0.25), ("moe", 0.16, 0.40)])
def test_shipped_values_describe_published_training(subset: str, median: float, tenth: float) -> None:
    """Looser than the errors in docs/accuracy.md: this guards against regressions."""
    found = [abs(p.error_ratio) for p in result().priced if p.keys.subset == subset and p.quality == "A"]
    assert len(found) > 150
    assert float(np.median(found)) < median
    assert float(np.quantile(found, 0.9)) < tenth
