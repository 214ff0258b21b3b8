"""Serving rows: every row is priced or has a reason, rules, defaults of sources, and how predictions must scale."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest

from planner.validation.generation import CLOSED_LOOP, MAXIMUM_LOAD, price, read_row
from planner.validation.read import RowError, read_tables
from planner.validation.records import Priced, Table, TableResult

BASE = {
    "id": "a", "source": "test", "engine": "vllm", "engine_version": "1", "model": "meta-llama/Llama-3.1-70B",
    "quant": "fp8", "gpu": "h200", "n_gpus": "4", "tp": "4", "pp": "1", "ep": "1", "attn_dp": "1", "concurrency": "16",
    "isl": "1024", "osl": "1024", "tpot_ms": "10", "ttft_ms": "100", "quality": "A",
}  # fmt: skip
EXPERTS = {"model": "MiniMaxAI/MiniMax-M2.5"}


def row(**changed: str) -> Mapping[str, str]:
    return {**BASE, **changed}


def predicted(**changed: str) -> float:
    result = price([row(**changed)])
    assert not result.unpriced, result.unpriced
    return result.priced[0].predicted


@cache
def published() -> TableResult:
    return price(read_tables(None, [Table.GENERATION])[Table.GENERATION].rows)


def errors(rows: list[Priced]) -> np.ndarray:
    return np.abs([item.error_ratio for item in rows])


def test_every_published_row_is_priced_once_or_has_a_reason() -> None:
    rows = read_tables(None, [Table.GENERATION])[Table.GENERATION].rows
    result = published()
    assert result.num_rows == len(rows)
    names = [item.row for item in (*result.priced, *result.unpriced)]
    assert sorted(names) == sorted(item["id"] for item in rows)
    assert all(item.reason for item in result.unpriced)


def test_terms_sum_to_the_predicted_time() -> None:
    for item in published().priced[:50]:
        assert item.keys.subset == CLOSED_LOOP
        assert sum(term.value for term in item.terms) == pytest.approx(item.predicted, rel=1e-9)
        assert all(term.value >= 0 for term in item.terms)


def test_errors_on_published_rows_stay_where_the_documentation_says() -> None:
    rows = [item for item in published().priced if item.quality == "A"]
    tokens = errors([item for item in rows if item.keys.subset == CLOSED_LOOP])
    assert len(tokens) > 1400
    assert float(np.median(tokens)) < 0.095
    assert float(np.quantile(tokens, 0.9)) < 0.22
    assert float(np.median(errors([item for item in rows if item.keys.subset == MAXIMUM_LOAD]))) < 0.22


def test_a_row_is_priced_alike_alone_and_among_others() -> None:
    rows = [row(id=str(index), concurrency=str(2**index), tp="4" if index % 2 else "2") for index in range(6)]
    together = {item.row: item.predicted for item in price(rows).priced}
    for item in rows:
        assert together[item["id"]] == pytest.approx(price([item]).priced[0].predicted, rel=1e-12)


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-70B", "MiniMaxAI/MiniMax-M2.5", "deepseek-ai/DeepSeek-R1"])
def test_more_requests_and_longer_prompts_take_longer(model: str) -> None:
    times = [predicted(model=model, concurrency=str(c), n_gpus="8", tp="8") for c in (4, 16, 64)]
    assert times[0] < times[1] < times[2]
    assert predicted(model=model, isl="8192", n_gpus="8", tp="8") > predicted(model=model, n_gpus="8", tp="8")


def test_more_ranks_and_narrower_weights_are_faster() -> None:
    assert predicted(tp="8", n_gpus="8") < predicted() < predicted(tp="2", n_gpus="2")
    assert predicted(quant="fp8") < predicted(quant="bf16")
    assert predicted(gpu="b200", quant="fp4 (gemm nvfp4)") < predicted(gpu="b200", quant="fp8")


def test_attention_groups_hold_their_own_sequences() -> None:
    by_group = read_row(row(**EXPERTS, tp="1", ep="4", attn_dp="4"))
    assert (by_group.tp, by_group.attention_dp, by_group.num_engines) == (1, 4, 1)
    terms = {t.name: t.value for t in price([row(**EXPERTS, tp="1", ep="4", attn_dp="4")]).priced[0].terms}
    assert terms["ep_scale_up"] > 0
    assert terms["tp_scale_up"] == 0


def test_engines_share_the_concurrency() -> None:
    assert read_row(row(n_gpus="8", concurrency="32")).concurrency == 16
    assert predicted(n_gpus="8", concurrency="32") == pytest.approx(predicted(), rel=1e-12)


def test_shorter_lengths_than_printed() -> None:
    assert read_row(row(len_dist="uniform 0.8-1.0 x nominal")).output_tokens == pytest.approx(0.9 * 1024)


def test_four_bit_checkpoints_quantise_experts_only() -> None:
    formats = read_row(row(**EXPERTS, quant="fp4 (gemm nvfp4)", gpu="b200")).formats
    assert (formats.dense.value, formats.experts.value) == ("bf16", "fp4")
    assert read_row(row(quant="nvfp4", gpu="b200")).formats.dense.value == "fp4"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model": "no/such-model"}, "is not known"),
        ({"gpu": "no-such-gpu"}, "not known"),
        ({"n_gpus": ""}, "GPUs not stated"),
        ({"tp": "3"}, "no whole number of engines"),
        ({"quant": "q7"}, "quantisation"),
        ({"engine": "mystery"}, "no profile"),
        ({"tpot_ms": "fast"}, "no number"),
        ({"tpot_ms": ""}, "not stated"),
        ({"concurrency": "0"}, "concurrency is 0"),
        ({**EXPERTS, "ep": "3"}, "ep 3"),
        ({"osl": "1e17"}, "1 to 4,000,000 can be priced"),
        ({"osl": "1e-300"}, "1 to 4,000,000 can be priced"),
        ({"isl": "1_000"}, "isl = '1_000' is no number"),
        ({"tpot_ms": "٣"}, "is no number"),
    ],
)
def test_rows_that_say_too_little_have_a_reason(changed: dict[str, str], reason: str) -> None:
    result = price([row(**changed)])
    assert not result.priced
    assert reason in result.unpriced[0].reason
    assert not result.unpriced[0].is_rule


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"ttft_ms": "9000", "tpot_ms": "10", "osl": "1024"}, "queue"),
        ({"quant": "bnb.nf4"}, "bitsandbytes"),
        ({"engine": "trtllm", "model": "deepseek-ai/DeepSeek-R1", "engine_version": "1.2.0rc6.post3"}, "multi-token"),
    ],
)
def test_rules_exclude_before_pricing(changed: dict[str, str], reason: str) -> None:
    result = price([row(**changed)])
    assert result.unpriced[0].is_rule
    assert reason in result.unpriced[0].reason


def test_repeats_that_disagree_are_excluded_together() -> None:
    rows = [row(id="a", tpot_ms="10"), row(id="b", tpot_ms="16"), row(id="c", concurrency="8", tpot_ms="9")]
    result = price(rows)
    assert {item.row for item in result.unpriced} == {"a", "b"}
    assert [item.row for item in result.priced] == ["c"]


def test_maximum_load_is_a_rate_of_all_gpus() -> None:
    load = {"concurrency": "max load", "out_tok_s_total": "4000", "note": "1500 requests queued at once", "tpot_ms": ""}
    one, two = price([row(**load)]).priced[0], price([row(**load, n_gpus="8")]).priced[0]
    assert one.unit == "tokens/s"
    assert two.predicted > 1.5 * one.predicted


def test_missing_columns_are_like_empty_cells() -> None:
    with pytest.raises(RowError):
        read_row({"id": "a", "model": "meta-llama/Llama-3.1-70B"})
    assert price([{"id": "a"}]).unpriced[0].row == "a"
