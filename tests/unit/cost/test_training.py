"""Trainer times: identities, limits and monotonicity. Published throughputs: tests/unit/validation/test_train.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.terms import TIME_TERMS, total
from planner.cost.training import price_trainer
from planner.cost.worker import WorkerCosts
from planner.domain.hardware import Precision
from planner.domain.stages import StageName
from planner.domain.strategy import ContextParallel, Offload, Recompute, Sharding, TrainerTable
from planner.files.catalog import load_model, load_overheads
from tests.factories import dense_model
from tests.unit.cost.trainer_cases import (
    QWEN3_32B,
    equal_load,
    faster_site,
    job,
    load,
    price,
    random_strategies,
    site,
    stage_seconds,
    strategy,
    time_term,
)

MOE = load_model("qwen3-30b-a3b")
NAMES = {info.name for info in TIME_TERMS}


def all_terms(costs: WorkerCosts) -> list[tuple[str, np.ndarray[tuple[int], np.dtype[np.float64]]]]:
    mappings = [mapping for cost in costs.stages for mapping in (cost.time_terms, cost.memory_terms)]
    for optional in (costs.sync_terms_colocated, costs.sync_terms_disaggregated, costs.sync_memory_terms):
        if optional is not None:
            mappings.append(optional)
    mappings += [costs.idle_terms, costs.host_terms]
    return [(name, values) for mapping in mappings for name, values in mapping.items()]


@pytest.mark.parametrize("is_moe", [False, True])
def test_a_row_is_a_table_of_one_row(is_moe: bool) -> None:
    rows = random_strategies(60, seed=1, is_moe=is_moe)
    work = job(MOE if is_moe else QWEN3_32B)
    whole = price(*rows, work=work)
    for i, row in enumerate(rows):
        alone = price(row, work=work)
        for (name, many), (_, one) in zip(all_terms(whole), all_terms(alone), strict=True):
            assert many[i] == one[0], (name, row)
        assert whole.is_legal[i] == alone.is_legal[0]


@pytest.mark.parametrize("is_moe", [False, True])
def test_time_terms_are_registered_finite_and_not_negative(is_moe: bool) -> None:
    costs = price(*random_strategies(300, seed=2, is_moe=is_moe), work=job(MOE if is_moe else QWEN3_32B))
    for cost in costs.stages:
        assert set(cost.time_terms) <= NAMES
        for name, values in cost.time_terms.items():
            assert values.shape == (300,), name
            assert np.isfinite(values).all(), name
            assert (values >= 0).all(), name
        assert total(cost.time_terms) == pytest.approx(sum(cost.time_terms.values()))


def test_flop_of_a_dense_model_come_back_from_the_gemm_term() -> None:
    """6 N FLOP per token without the embedding look-up, at the rate that training sustains."""
    work = job(tokens=equal_load(128, 8192), steps=2, inference=False)
    costs = price(strategy(8, tokens=8192), work=work)
    kernel = site().node.gpu.kernel(Precision.BF16)
    rate = site().node.gpu.peak(Precision.BF16) * kernel.training_flop_ratio
    layer = QWEN3_32B.layers[0]
    params = 64 * layer.active_matmul_params + QWEN3_32B.head_params
    assert time_term(costs, "gemm")[0] == pytest.approx(6 * params * 128 * 8192 / 8 / rate, rel=1e-9)


def test_tp_never_changes_total_flop() -> None:
    rows = [strategy(8 * tp, tp=tp) for tp in (1, 2, 4, 8)]
    costs = price(*rows)
    for name in ("gemm", "attention"):
        for stage in (StageName.ACTOR_UPDATE, StageName.OLD_LOGPROB):
            work = time_term(costs, name, stage) * np.array([8.0, 16.0, 32.0, 64.0])
            assert work == pytest.approx(np.full(4, work[0]), rel=1e-9)


def test_micro_batch_size_never_changes_dense_flop() -> None:
    costs = price(*(strategy(8, tp=8, tokens=tokens) for tokens in (9216, 18432, 73728)))
    gemm = time_term(costs, "gemm")
    assert gemm == pytest.approx(np.full(3, gemm[0]), rel=1e-9)


def test_full_recomputation_adds_one_forward() -> None:
    costs = price(strategy(8, tp=8, recompute=Recompute.FULL), work=job(dense_model(vocab=128)))
    thirds = time_term(costs, "gemm")[0] + time_term(costs, "elementwise")[0]
    assert time_term(costs, "recompute")[0] == pytest.approx(
        thirds / 3 + time_term(costs, "attention")[0] / 3.5, rel=1e-3
    )


def test_lora_skips_weight_gradients() -> None:
    full, adapters = (time_term(price(strategy(8, tp=8), work=job(lora_rank=rank)), "gemm")[0] for rank in (None, 16))
    assert adapters == pytest.approx(full * 2 / 3)


def test_a_forward_pass_is_a_third_of_a_step() -> None:
    costs = price(strategy(8, tp=8))
    for name in ("gemm",):
        assert time_term(costs, name, StageName.OLD_LOGPROB)[0] == pytest.approx(time_term(costs, name)[0] / 3)


def test_bubble_is_p_minus_1_over_m() -> None:
    """1F1B on equal stages: bubble over steady work is (p - 1) / m; interleaving divides it by v."""
    work = job(dense_model(vocab=128), tokens=equal_load(64, 8192), steps=1, inference=False)
    costs = price(*(strategy(32, pp=4, vpp=v, tp=8, tokens=8192) for v in (1, 2)), work=work)
    names = ("gemm", "attention", "elementwise", "recompute", "tp_scale_up", "launch")
    steady = sum(time_term(costs, name) for name in names)
    assert time_term(costs, "pp_bubble") / steady == pytest.approx([3 / 64, 3 / 128], rel=1e-3)


def test_head_loads_the_last_stage() -> None:
    """The slowest stage carries the vocabulary: a large one makes deep pipelines less even."""
    shallow, deep = (
        price(strategy(64, pp=pp, tp=4), work=job(dense_model(vocab=600_000))).stages[-1].time_terms["gemm"][0]
        for pp in (1, 8)
    )
    assert deep > 1.2 * shallow


def test_more_data_parallel_gpus_are_faster() -> None:
    for sharding in Sharding:
        times = stage_seconds(price(*(strategy(gpus, tp=4, sharding=sharding) for gpus in (8, 16, 32, 64))))
        assert (np.diff(times) < 0).all(), sharding


def test_zero3_is_bound_by_traffic_when_micro_batches_are_small() -> None:
    small, large = (
        price(
            strategy(128, sharding=Sharding.ZERO3, tokens=tokens),
            work=job(tokens=equal_load(16384, 512), steps=1, inference=False),
        )
        for tokens in (512, 32768)
    )
    assert time_term(small, "dp_scale_out")[0] > time_term(small, "gemm")[0]
    assert time_term(large, "dp_scale_out")[0] < 0.1 * time_term(large, "gemm")[0]


def test_hybrid_sharding_trades_nic_traffic_of_every_micro_batch_for_one_reduction() -> None:
    work = job(tokens=equal_load(16384, 1024), steps=1, inference=False)
    full, hybrid = (
        price(strategy(64, sharding=Sharding.ZERO3, shard_ranks=ranks, tokens=1024), work=work) for ranks in (64, 8)
    )
    assert 0 < time_term(hybrid, "dp_scale_out")[0] < time_term(full, "dp_scale_out")[0]


def test_zero1_reduces_once_per_step() -> None:
    few, many = (time_term(price(strategy(32, tp=2), work=job(steps=steps)), "dp_scale_out")[0] for steps in (1, 8))
    assert many == pytest.approx(8 * few, rel=0.6)
    assert few > 0


def test_tp_across_nodes_is_slow() -> None:
    inside, outside = stage_seconds(price(strategy(32, tp=8), strategy(32, tp=16)))
    assert outside > 1.5 * inside


def test_long_sequences_hide_a_ring_and_short_ones_do_not() -> None:
    ring = strategy(64, cp=8, tp=2, tokens=131072)
    long = price(ring, work=job(tokens=equal_load(256, 131072), steps=1, inference=False))
    short = price(ring, work=job(tokens=equal_load(32768, 1024), steps=1, inference=False))

    def exposed(costs: WorkerCosts) -> float:
        return float(time_term(costs, "cp_scale_up")[0] + time_term(costs, "cp_scale_out")[0])

    assert exposed(long) < 0.02 * float(stage_seconds(long)[0])
    assert exposed(short) > 0.02 * float(stage_seconds(short)[0])


def test_ulysses_pays_all_to_all_inside_the_node() -> None:
    costs = price(strategy(8, cp=8, context_parallel=ContextParallel.ULYSSES, tokens=73728))
    assert time_term(costs, "cp_scale_up")[0] > 0
    assert time_term(costs, "cp_scale_out")[0] == 0


def test_expert_parallelism_leaves_the_node_with_16_ranks() -> None:
    costs = price(strategy(16, ep=8), strategy(16, ep=16), work=job(MOE))
    assert time_term(costs, "ep_scale_out")[0] == 0 < time_term(costs, "ep_scale_up")[0]
    assert time_term(costs, "ep_scale_out")[1] > 0


def test_few_tokens_per_expert_are_bound_by_weights() -> None:
    """One sequence of 256 tokens on 8 ranks: reading 128 experts costs more than multiplying with them."""
    model = load_model("deepseek-v3")
    tiny = job(model, tokens=equal_load(8, 256), steps=1, inference=False)
    large = job(model, tokens=equal_load(8, 256 * 64), steps=1, inference=False)
    a, b = (float(time_term(price(strategy(8, tokens=256 * 64), work=w), "gemm")[0]) for w in (tiny, large))
    assert b < 32 * a


def test_cpu_optimizer_costs_host_time() -> None:
    gpu, cpu = (price(strategy(8, tp=8, offload=mode)) for mode in (Offload.NONE, Offload.CPU_OPTIMIZER))
    assert time_term(gpu, "cpu_optimizer")[0] == 0
    # 28 bytes per parameter and step through the DRAM of one node, and 6 over eight host links
    network = site().node.network
    expected = 4 * QWEN3_32B.num_params * 28 / network.host_memory_bytes_per_s
    assert time_term(cpu, "cpu_optimizer")[0] == pytest.approx(expected, rel=0.35)
    assert time_term(cpu, "cpu_optimizer")[0] > expected


def test_each_stage_pays_its_own_reload() -> None:
    costs = price(strategy(8, tp=8, offload=Offload.STATE_SWAP), strategy(8, tp=8))
    weights = 2 * QWEN3_32B.num_params / 8
    optimizer = 12 * QWEN3_32B.num_params / 8
    forward = time_term(costs, "reload", StageName.OLD_LOGPROB)
    update = time_term(costs, "reload")
    assert forward[1] == update[1] == 0
    assert update[0] / forward[0] == pytest.approx((2 * weights + 2 * optimizer) / weights)
    assert weights / forward[0] <= site().node.gpu.host_link_bytes_per_s


def test_small_micro_batches_meet_the_launch_floor() -> None:
    tiny = job(dense_model(hidden=1024, layers=24, heads=16, width=4096), tokens=equal_load(64, 128), steps=1)
    assert time_term(price(strategy(8, tokens=128), work=tiny), "launch")[0] > 0
    assert time_term(price(strategy(8)), "launch")[0] == 0


def test_unequal_sequences_make_ranks_wait() -> None:
    few = job(tokens=load(sequences=64, cv=0.7), steps=1)
    even = job(tokens=equal_load(64, 9216), steps=1)
    assert time_term(price(strategy(32), work=few), "imbalance")[0] > 0
    assert time_term(price(strategy(32), work=even), "imbalance")[0] == 0
    assert time_term(price(strategy(1), work=few), "imbalance")[0] == 0


@pytest.mark.parametrize("per_rank", [1, 2, 4, 8])
def test_waiting_matches_greedy_packing(per_rank: int) -> None:
    """The slowest of 32 ranks after largest-first packing of clipped lognormal lengths."""
    random = np.random.default_rng(7)
    excess, squares, means = [], [], []
    for _ in range(20):
        lengths = np.minimum(random.lognormal(8.0, 0.55, size=32 * per_rank), 9216.0)
        ranks = np.zeros(32)
        for length in np.sort(lengths)[::-1]:
            ranks[ranks.argmin()] += length
        excess.append(ranks.max() / ranks.mean() - 1)
        squares.append(np.mean(lengths**2))
        means.append(lengths.mean())
    mean = float(np.mean(means))
    cv = float(np.sqrt(np.mean(squares) / mean**2 - 1))
    costs = price(strategy(32), work=job(tokens=load(32 * per_rank, mean, cv), steps=1, inference=False))
    steady = sum(time_term(costs, name)[0] for name in ("gemm", "attention", "recompute", "elementwise", "launch"))
    assert time_term(costs, "imbalance")[0] / steady == pytest.approx(np.mean(excess), rel=0.5, abs=0.01)


def test_stacks_go_by_sharding() -> None:
    """FSDP runs attention of its own; Megatron keeps whole weights."""
    overheads = replace(load_overheads(), fsdp=replace(load_overheads().fsdp, attention_ratio=0.5))
    at = replace(site(), overheads=overheads)
    costs = price(
        *(strategy(8, sharding=level) for level in (Sharding.DDP, Sharding.ZERO1, Sharding.ZERO2, Sharding.ZERO3)),
        at=at,
    )
    attention = time_term(costs, "attention")
    assert attention / attention[0] == pytest.approx([1.0, 1.0, 2.0, 2.0])


def test_natural_routing_costs_the_load_of_the_busiest_rank() -> None:
    """Only experts and their exchange, and only where ranks hold different experts."""
    rows = [strategy(32, ep=ep) for ep in (1, 8)]
    natural, balanced = (
        price(*rows, work=replace(job(MOE), is_routing_balanced=balanced)) for balanced in (False, True)
    )
    exchange = time_term(natural, "ep_scale_up")[1] / time_term(balanced, "ep_scale_up")[1]
    assert exchange == pytest.approx(1 + (load_overheads().routing_imbalance_ratio - 1) * 7 / 8)
    gemm = time_term(natural, "gemm") / time_term(balanced, "gemm")
    assert gemm[0] == pytest.approx(1.0)
    assert 1.0 < gemm[1] < exchange


def test_hidden_collectives_tax_the_compute_that_hides_them() -> None:
    """Linear between nothing and all of their time."""
    stacks = [replace(load_overheads().fsdp, overlap_tax_ratio=tax) for tax in (0.0, 0.5, 1.0)]
    sites = [replace(site(), overheads=replace(load_overheads(), fsdp=stack)) for stack in stacks]
    plan = strategy(8, sharding=Sharding.ZERO3, tokens=32768)
    free, half, whole = (time_term(price(plan, at=at), "dp_scale_up")[0] for at in sites)
    assert half == pytest.approx((free + whole) / 2)
    assert whole > 5 * free


def test_the_head_takes_the_place_of_missing_layers() -> None:
    """64 layers on 6 ranks: 11 on the fullest, 9 on the last, which has room for the head."""
    even, uneven = price(strategy(32, pp=4, tp=8), work=job()), price(strategy(48, pp=6, tp=8), work=job())
    head = QWEN3_32B.head_params
    layer = QWEN3_32B.layers[0].active_matmul_params
    assert head < 2 * layer
    per_rank = [time_term(costs, "gemm")[0] * n for costs, n in ((even, 4), (uneven, 6))]
    assert per_rank[1] / per_rank[0] == pytest.approx(66 * layer / (64 * layer + 4 * head), rel=1e-3)


def test_illegal_rows() -> None:
    costs = price(
        strategy(8, tokens=9216),
        strategy(8, tokens=8192),
        strategy(8, tokens=9216, inference_tokens=8192),
        strategy(2048),
        strategy(128, pp=128),
    )
    assert costs.is_legal.tolist() == [True, False, False, False, False]


def test_a_forward_only_worker_has_no_update() -> None:
    costs = price(strategy(8, tp=8, sharding=Sharding.DDP), work=job(trains=False))
    assert [cost.stage for cost in costs.stages] == [StageName.REFERENCE_LOGPROB]
    assert costs.sync_terms_colocated is None
    assert costs.sync_memory_terms is None


RATES = st.sampled_from(["peak", "hbm", "scale_up", "nic", "host"])


@settings(deadline=None, max_examples=25)
@given(which=RATES, factor=st.floats(1.01, 8.0), seed=st.integers(0, 10_000), is_moe=st.booleans())
def test_faster_hardware_is_never_slower(which: str, factor: float, seed: int, is_moe: bool) -> None:
    base = site()
    faster = {
        "peak": lambda: faster_site(base, peak=factor),
        "hbm": lambda: faster_site(base, hbm=factor),
        "scale_up": lambda: faster_site(base, scale_up=factor),
        "nic": lambda: faster_site(base, nic=factor),
        "host": lambda: faster_site(base, host=factor),
    }[which]()
    table = TrainerTable.of(random_strategies(64, seed=seed, is_moe=is_moe))
    work = job(MOE if is_moe else QWEN3_32B)
    before, after = (price_trainer(work, table, at) for at in (base, faster))
    for old, new in zip(before.stages, after.stages, strict=True):
        assert (total(new.time_terms) <= total(old.time_terms) * (1 + 1e-9)).all()


def test_one_micro_batch_gains_nothing_from_interleaving() -> None:
    """A micro-batch passes all layers in sequence, however the pipeline cuts them into chunks."""
    work = job(dense_model(vocab=128), tokens=equal_load(1, 8192), steps=1, inference=False)
    costs = price(*(strategy(64, pp=8, vpp=v, tp=8, tokens=8192) for v in (1, 2, 4)), work=work)
    names = ("gemm", "attention", "elementwise", "recompute", "tp_scale_up", "launch", "pp_bubble")
    seconds = sum(time_term(costs, name) for name in names)
    assert seconds[1:] == pytest.approx(seconds[:1].repeat(2), rel=1e-2)
