"""Engines whose attention is data-parallel: memory by hand, bytes by counting, and engines without it as they were."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from planner.cost.communication import expert_exchange_s, line_rate, span
from planner.cost.decode import busiest_routed, decode_step_terms, engine_layout
from planner.cost.formats import uniform
from planner.cost.generation import engine_weight_bytes, exchange_buffer_bytes, price_engine
from planner.cost.link_bytes import engine_bytes, engine_slots, resident_weight_bytes
from planner.cost.prefill import prefill_s
from planner.cost.terms import total
from planner.cost.worker import EngineJob, Site, WorkerCosts
from planner.domain.hardware import CollectiveLaw, CollectiveOp, NodeType, Precision
from planner.domain.lengths import LengthLaw
from planner.domain.strategy import EngineIdle, ExpertExchange, FloatArray, RolloutStrategy, RolloutTable
from planner.files.catalog import generic_node, load_model, load_overheads
from tests.unit.cost.engines import LATENT, OVERHEADS, SPARSE, job, node, site, strategy

DEEPSEEK = load_model("deepseek-v3")
ALL_TO_ALL = ExpertExchange.ALL_TO_ALL


def engine(
    *, num_gpus: int = 32, tp: int = 1, attention_dp: int = 8, ep: int = 8, **changes: object
) -> RolloutStrategy:
    one = strategy(num_gpus=num_gpus, tp=tp, ep=ep, max_num_seqs=64)
    return replace(one, attention_dp=attention_dp, **changes)  # type: ignore[arg-type]


def price(*strategies: RolloutStrategy, given: EngineJob | None = None, at: Site | None = None) -> WorkerCosts:
    return price_engine(given or job(SPARSE), RolloutTable.of(strategies), at or site())


# ---------------------------------------------------------------------------------------------- memory

EXPERTS = 58 * 256 * 3 * 7168 * 2048
"""DeepSeek-V3: 58 layers of 256 experts with three matrices of 7168 x 2048."""
TABLES = 2 * 129280 * 7168
CACHE_PER_TOKEN = 61 * (512 + 64) * 2
"""Bytes of the latent cache (rank 512) and the rotary keys (64) of all layers."""


@pytest.mark.parametrize(("tp", "attention_dp"), [(1, 8), (8, 1), (2, 4), (1, 16), (8, 2), (4, 4)])
def test_weights_of_deepseek_v3_by_hand(tp: int, attention_dp: int) -> None:
    one = np.ones(1)
    for precision, width in ((Precision.FP8, 1.0), (Precision.BF16, 2.0)):
        held = engine_weight_bytes(DEEPSEEK, uniform(precision), one * tp, one, one * attention_dp)[0]
        dense = DEEPSEEK.num_params - EXPERTS - TABLES
        by_hand = EXPERTS * width / (tp * attention_dp) + (dense * width + TABLES * 2) / tp
        assert held == pytest.approx(by_hand, rel=1e-12)
    # 671 B parameters: 653 B in experts, which all ranks divide; 16 B of the others are on every group.
    assert pytest.approx(653.9e9, rel=1e-3) == EXPERTS
    assert 15e9 < dense < 17e9


@pytest.mark.parametrize(("num_ranks", "gpu", "precision"), [(8, "h200", Precision.FP8), (16, "h100", Precision.FP8)])
def test_a_latent_cache_is_held_once_per_group_of_ranks(num_ranks: int, gpu: str, precision: Precision) -> None:
    """The gain: every rank of tensor-parallel attention holds the whole latent cache of all sequences."""
    at = Site(node=generic_node(gpu), overheads=load_overheads(), memory_margin_ratio=0.1)
    given = job(DEEPSEEK, num_sequences=65536, precision=precision)
    base = strategy(num_gpus=num_ranks, tp=num_ranks, ep=num_ranks, engine_fraction=0.9, max_num_seqs=1024)
    split = replace(base, tp=1, attention_dp=num_ranks)
    costs = price(base, split, given=given, at=at)
    assert costs.is_legal.tolist() == [True, True]
    weights, caches = (costs.stages[0].memory_terms[name] for name in ("weights", "kv_cache"))
    # Attention, dense layers and tables come whole instead of divided: about 16 GB of 8-bit weights and two tables.
    dense = DEEPSEEK.num_params - EXPERTS - TABLES
    assert weights[1] - weights[0] == pytest.approx((dense + 2 * TABLES) * (1 - 1 / num_ranks), rel=1e-12)
    held = [engine_slots(given, s, float(bytes_)) for s, bytes_ in zip((base, split), caches, strict=True)]
    # What a rank's cache holds, by its own sequences or by those of the whole engine.
    longest = caches / CACHE_PER_TOKEN
    assert held[0] * 512 < longest[0]
    assert held[1] * 512 < longest[1] * num_ranks
    per_byte = [slots / bytes_ for slots, bytes_ in zip(held, caches, strict=True)]
    # Groups keep some aside, since one of them gets the longest responses.
    assert 0.8 * num_ranks < per_byte[1] / per_byte[0] < 1.05 * num_ranks


def test_an_all_to_all_has_a_row_per_expert_and_token_of_the_largest_step() -> None:
    table = RolloutTable.of((engine(), engine(exchange=ALL_TO_ALL), engine(tp=2, attention_dp=4, exchange=ALL_TO_ALL)))
    whole = 2 * SPARSE.max_experts * 64 * SPARSE.hidden_size * 2
    assert exchange_buffer_bytes(SPARSE, table).tolist() == [0.0, whole, whole / 2]
    costs = price_engine(job(SPARSE), table, site())
    cache, others = costs.stages[0].memory_terms["kv_cache"], costs.stages[0].memory_terms["communicator"]
    assert cache[0] - cache[1] == pytest.approx(whole)
    assert others[1] - others[0] == pytest.approx(whole)


# ---------------------------------------------------------------------------------------------- bytes


def quiet_node() -> NodeType:
    """Nodes of two GPUs without latency: seconds are bytes over a rate."""
    base = node()
    law = CollectiveLaw(num_ranks=(2,), alpha_s=(0.0,), bytes_per_s=(1e9,), gamma_s=(0.0,))
    collectives = tuple((op, law) for op in CollectiveOp)
    network = replace(
        base.network, nic_ratio=1.0, nic_half_bytes=0.0, nic_small_half_bytes=0.0, nic_latency_s=0.0,
        nic_latency_per_log2_s=0.0,
    )  # fmt: skip
    gpu = replace(base.gpu, collectives=collectives)
    return replace(base, gpu=gpu, gpus_per_node=2, scale_up_domain_gpus=2, nic_bytes_per_s=1e9, network=network)


@pytest.mark.parametrize("num_choices", [1, 2, 3])
def test_copies_that_travel_alone_by_counting(num_choices: int) -> None:
    """Six experts on three nodes of two ranks: every choice of experts of a token on rank 0, one after the other."""
    where, num_ranks = quiet_node(), 6
    inside = outside = count = 0
    for choice in combinations(range(num_ranks), num_choices):
        count += 1
        inside += sum(1 for expert in choice if expert == 1)
        outside += sum(1 for expert in choice if expert >= 2)
    group = span(np.array([float(num_ranks)]), 1.0, where)
    up, out = expert_exchange_s(np.array([1e9]), num_choices, group, where, merges_copies=False)
    # Only the longer of the two levels is exposed; with equal rates that is the NIC.
    assert out[0] == pytest.approx(outside / count)
    assert up[0] == 0.0
    fast = replace(where, nic_bytes_per_s=1e15)
    up, out = expert_exchange_s(np.array([1e9]), num_choices, group, fast, merges_copies=False)
    assert (up[0], out[0]) == (pytest.approx(inside / count), 0.0)


DEEPEP = ((8, 39.8, 72.4), (16, 102.1, 186.2), (32, 143.0, 263.3), (64, 166.8, 304.7))
"""Microseconds of DeepEP's low-latency dispatch (8 bit and scales) and combine (16 bit) of 128 tokens per GPU of
7,168 elements to 8 of 256 experts, on so many H100 (aiconfigurator's tables, SGLang 0.5.6)."""


@pytest.mark.parametrize(("num_ranks", "dispatch_us", "combine_us"), DEEPEP)
def test_published_kernels_of_decode_steps(num_ranks: int, dispatch_us: float, combine_us: float) -> None:
    where = generic_node("h100")
    group = span(np.array([float(num_ranks)]), 1.0, where)
    for width, measured_us in ((1.0 + 4 / 128, dispatch_us), (2.0, combine_us)):
        sent = np.array([128 * 7168 * width])
        seconds = sum(expert_exchange_s(sent, 8, group, where, merges_copies=False))
        assert seconds[0] == pytest.approx(measured_us * 1e-6, rel=0.15)


def test_the_busiest_rank_gets_at_least_the_mean_and_at_most_everything() -> None:
    ep = np.array([1.0, 8.0, 64.0])
    for num_tokens in (1.0, 17.0, 4096.0):
        most = busiest_routed(np.full(3, num_tokens), 8, ep)
        assert most[0] == num_tokens * 8
        assert np.all(most >= num_tokens * 8 / ep)
        assert np.all(most <= num_tokens * 8)


# ---------------------------------------------------------------------------------------------- time


def terms_of(tp: int, groups: int, ep: int, exchange: ExpertExchange, running: float) -> dict[str, float]:
    table = RolloutTable.of((engine(num_gpus=64, tp=tp, attention_dp=groups, ep=ep, exchange=exchange),))
    layout = engine_layout(table.tp, table.pp, table.ep, node(), table.attention_dp, table.exchange)
    at = np.array([[running]])
    found = decode_step_terms(SPARSE, uniform(Precision.BF16), node(), OVERHEADS, layout, at, at * 0 + 4096.0)
    return {name: float(np.broadcast_to(values, (1, 1))[0, 0]) for name, values in found.items()}


def test_engines_without_it_are_priced_to_the_last_bit_as_before() -> None:
    """In one table with wide engines and alone; layouts with and without the columns."""
    plain = tuple(
        strategy(num_gpus=gpus, tp=tp, pp=pp, ep=ep, max_num_seqs=seqs)
        for gpus, tp, pp, ep in ((8, 2, 1, 1), (8, 4, 2, 4), (32, 8, 1, 8), (64, 16, 1, 1))
        for seqs in (16, 256)
    )
    wide = (engine(), engine(exchange=ALL_TO_ALL), engine(num_gpus=64, tp=4, attention_dp=16, ep=64))
    for model in (SPARSE, LATENT):
        alone, mixed = price(*plain, given=job(model)), price(*plain, *wide, given=job(model))
        for name, values in alone.stages[0].time_terms.items():
            assert values.tolist() == mixed.stages[0].time_terms[name][: len(plain)].tolist(), name
        for name, values in alone.stages[0].memory_terms.items():
            assert values.tolist() == mixed.stages[0].memory_terms[name][: len(plain)].tolist(), name
        assert set(mixed.stages[0].time_terms) - set(alone.stages[0].time_terms) == {"ep_scale_up", "ep_scale_out"}
        assert alone.is_legal.tolist() == mixed.is_legal[: len(plain)].tolist()
    one = np.array([4.0])
    with_columns = engine_layout(one, one / 4, one, node(), one / 4, one * 0)
    without = engine_layout(one, one / 4, one, node())
    arguments = (SPARSE, uniform(Precision.BF16), node(), OVERHEADS)
    first = decode_step_terms(*arguments, with_columns, one[None] * 8, one[None] * 100)
    second = decode_step_terms(*arguments, without, one[None] * 8, one[None] * 100)
    assert {name: float(v[0, 0]) for name, v in first.items()} == {name: float(v[0, 0]) for name, v in second.items()}


def test_groups_read_their_own_cache_and_all_attention_weights() -> None:
    """Eight groups against eight TP ranks: with four KV heads each of these reads a quarter of all caches."""
    groups, ranks = terms_of(1, 8, 8, ExpertExchange.GATHER, 512.0), terms_of(8, 1, 8, ExpertExchange.GATHER, 512.0)
    assert SPARSE.layers[0].attention.num_kv_heads == 4
    assert 2.0 * groups["kv_read"] == pytest.approx(ranks["kv_read"])
    assert groups["weight_read"] > ranks["weight_read"]
    assert groups["tp_scale_up"] == 0.0 < ranks["tp_scale_up"]
    assert groups["ep_scale_up"] > 0.0


def test_an_all_to_all_pays_on_many_ranks() -> None:
    """A gather brings every token to every rank, an all-to-all at most one copy per expert of the token."""
    few = [sum(terms_of(1, 2, 2, exchange, 512.0).values()) for exchange in ExpertExchange]
    many = [terms_of(1, 64, 64, exchange, 8192.0) for exchange in ExpertExchange]
    assert few[0] < few[1]
    gather, sent = (item["ep_scale_up"] + item["ep_scale_out"] for item in many)
    assert sent < gather


def test_more_sequences_never_make_a_step_faster() -> None:
    for exchange in ExpertExchange:
        seconds = [sum(terms_of(2, 8, 16, exchange, n).values()) for n in (1.0, 4.0, 16.0, 64.0, 256.0, 4096.0)]
        assert np.all(np.diff(seconds) >= 0.0)


def test_prompts_are_read_by_all_groups() -> None:
    one = np.ones(1)
    seconds = [
        prefill_s(
            SPARSE, uniform(Precision.BF16), node(), OVERHEADS,
            engine_layout(one, one, one * groups, node(), one * groups, one * 0), one * 256, 1024.0,
        )[0]
        for groups in (1, 8)
    ]  # fmt: skip
    assert seconds[1] < seconds[0] / 2


def test_a_rollout_counts_its_groups_as_engines_when_it_waits_for_the_slowest() -> None:
    spread, equal = job(SPARSE), job(SPARSE, response=LengthLaw(mean_tokens=4096.0, cv=0.0, max_tokens=4096))
    strategies = (engine(num_gpus=8), engine(num_gpus=8, exchange=ALL_TO_ALL))
    assert np.all(price(*strategies, given=spread).stages[0].time_terms["imbalance"] > 0.0)
    assert np.all(price(*strategies, given=equal).stages[0].time_terms["imbalance"] == 0.0)


# ---------------------------------------------------------------------------------------------- bounds


def test_no_engine_beats_the_bytes_that_it_moves() -> None:
    where = site()
    strategies = tuple(
        engine(num_gpus=64, tp=tp, attention_dp=groups, ep=ep, exchange=exchange, idle=EngineIdle.RESIDENT)
        for tp, groups in ((1, 8), (2, 8), (4, 4), (1, 64), (8, 8))
        for ep, exchange in (
            (1, ExpertExchange.GATHER),
            (tp * groups, ExpertExchange.GATHER),
            (tp * groups, ALL_TO_ALL),
        )
    )
    given = job(SPARSE)
    costs = price(*strategies, given=given)
    seconds: FloatArray = total(costs.stages[0].time_terms)
    for row, one in enumerate(strategies):
        assert costs.is_legal[row]
        slots = engine_slots(given, one, float(costs.stages[0].memory_terms["kv_cache"][row]))
        links = engine_bytes(given, one, slots, where)
        assert links.hbm_bytes / where.node.gpu.hbm_bytes_per_s <= seconds[row]
        assert links.nic_bytes / line_rate(where.node) <= seconds[row]
        assert (links.nic_bytes > 0.0) == (one.engine_gpus > where.node.scale_up_domain_gpus)
        assert resident_weight_bytes(given, one) == pytest.approx(costs.stages[0].memory_terms["weights"][row])
