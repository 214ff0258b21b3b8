"""Expert parallelism with ZeRO-2 and ZeRO-3, by hand for Qwen3-30B-A3B."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.communication import collective_s, span
from planner.cost.data_parallel import data_parallel_s
from planner.cost.layout import Layout, layout, model_totals
from planner.cost.weight_sync import _held_ratio
from planner.domain.hardware import CollectiveOp
from planner.domain.model import Model
from planner.domain.strategy import Recompute, Sharding, TrainerStrategy, TrainerTable
from planner.files.catalog import load_model
from tests.unit.cost.trainer_cases import job, memory_term, price, site, strategy, time_term

MOE = load_model("qwen3-30b-a3b")
EXPERTS_PER_LAYER = 128 * 3 * 2048 * 768
ATTENTION = 2048 * 4096 * 2 + 2 * 2048 * 512
DENSE_PER_LAYER = ATTENTION + 2 * 2048 + 2 * 128 + 2048 * 128
"""Projections, two norms, query and key norms, router."""
TABLE = 151_936 * 2048
DENSE = 48 * DENSE_PER_LAYER + 2 * TABLE + 2048
SHARDED = {"sharding": Sharding.ZERO3, "recompute": Recompute.FULL}


def fsdp(gpus: int = 16, **changes: object) -> TrainerStrategy:
    return strategy(gpus, **{**SHARDED, **changes})  # type: ignore[arg-type]


def at(one: TrainerStrategy, model: Model = MOE) -> Layout:
    return layout(TrainerTable.of((one,)), model_totals(model, True), site().node)


def value(array: np.ndarray) -> float:
    return float(array[0])


@pytest.mark.parametrize("ep", [1, 4, 16])
@pytest.mark.parametrize("sharding", [Sharding.ZERO2, Sharding.ZERO3])
def test_optimizer_states_are_divided_by_all_ranks_whatever_ep(ep: int, sharding: Sharding) -> None:
    """ep ranks spread the experts, the 16 / ep ranks that hold the same ones divide their states."""
    costs = price(fsdp(ep=ep, sharding=sharding), work=job(MOE))
    per_param = 12.0 if sharding is Sharding.ZERO2 else 8.0
    assert value(memory_term(costs, "optimizer")) == pytest.approx(per_param * MOE.num_params / 16)


def test_zero2_holds_whole_dense_weights_and_its_share_of_the_experts() -> None:
    costs = price(fsdp(ep=8, sharding=Sharding.ZERO2), work=job(MOE))
    experts = 48 * EXPERTS_PER_LAYER
    assert value(memory_term(costs, "weights")) == pytest.approx(2.0 * (DENSE + experts / 8))
    assert value(memory_term(costs, "gradients")) == pytest.approx(2.0 * (DENSE + experts) / 16)


@pytest.mark.parametrize("ep", [1, 8, 16])
def test_gathered_blocks_hold_the_experts_of_one_rank(ep: int) -> None:
    costs = price(fsdp(ep=ep), work=job(MOE))
    block = DENSE_PER_LAYER + EXPERTS_PER_LAYER / ep
    root = 2 * TABLE
    expected = 2.0 * (2 * block + root) + 4.0 * max(block, root)
    assert value(memory_term(costs, "unsharded")) == pytest.approx(expected)


def exposed_s(one: TrainerStrategy, micro_batches: float = 1.0) -> tuple[float, float]:
    """(scale-up, scale-out) seconds of one optimizer step with nothing to hide behind."""
    zero = np.zeros(1)
    table = TrainerTable.of((one,))
    found = data_parallel_s(False, np.array([micro_batches]), table, at(one), site(), zero, zero)
    return value(found[0]), value(found[1])


def collective(op: CollectiveOp, size: float, ranks: float, stride: float) -> float:
    up, out = collective_s(op, np.array([size]), span(np.array([ranks]), np.array([stride]), site().node), site().node)
    return value(up) + value(out)


@pytest.mark.parametrize("ep", [2, 8, 16])
def test_zero3_gathers_experts_over_the_ranks_that_hold_them(ep: int) -> None:
    """Two gathers and one reduction per layer and micro-batch; with ep = all ranks none of the experts."""
    experts = EXPERTS_PER_LAYER / ep
    dense_layer = (48 * DENSE_PER_LAYER + 2048) / 48
    gather, reduce = CollectiveOp.ALL_GATHER, CollectiveOp.REDUCE_SCATTER
    dense = 2 * collective(gather, 2 * dense_layer, 16, 1) + collective(reduce, 4 * dense_layer, 16, 1)
    per_layer = dense
    if ep < 16:
        per_layer += 2 * collective(gather, 2 * experts, 16 // ep, ep) + collective(reduce, 4 * experts, 16 // ep, ep)
    root = 2 * TABLE / dense_layer
    root *= collective(gather, 2 * dense_layer, 16, 1) + collective(reduce, 4 * dense_layer, 16, 1)
    assert sum(exposed_s(fsdp(ep=ep), 3.0)) == pytest.approx(3.0 * (48 * per_layer + root))


def test_experts_are_never_gathered_where_ep_spans_all_ranks() -> None:
    """The traffic is that of the same model with experts of no size, whatever they weigh."""
    all_ranks = at(fsdp(ep=16))
    assert value(all_ranks.expert_shard.num_ranks) == 1.0
    assert value(all_ranks.per_expert_shard) == 1.0
    assert not all_ranks.expert_shard.communicates


def test_spreading_experts_trades_gathers_for_exchanged_tokens() -> None:
    wide, narrow = (price(fsdp(ep=ep, tokens=9216), work=job(MOE)) for ep in (8, 1))
    data = [value(time_term(c, "dp_scale_up") + time_term(c, "dp_scale_out")) for c in (wide, narrow)]
    tokens = [value(time_term(c, "ep_scale_up") + time_term(c, "ep_scale_out")) for c in (wide, narrow)]
    assert data[0] < 0.6 * data[1]
    assert tokens[0] > 0.0
    assert tokens[1] == 0.0


def test_hybrid_groups_gather_experts_inside_the_group() -> None:
    """Two nodes, a shard group in each: each holds all experts, so that gathers stay on NVLink."""
    hybrid = at(fsdp(shard_ranks=8, ep=4))
    assert value(hybrid.expert_shard.num_ranks) == 2.0
    assert value(hybrid.expert_shard.num_domains) == 1.0
    # 1 / 4 of the experts, divided by the 2 ranks of the group that hold them
    share = value(hybrid.expert_params * hybrid.per_expert_shard)
    assert share == pytest.approx(48 * EXPERTS_PER_LAYER / 8)


def test_dense_and_expert_shares_of_a_rank_before_a_sync() -> None:
    """tp 2 halves dense weights, not experts of etp 1; both are divided by all 16 ranks in the end."""
    one = fsdp(tp=2, ep=1)
    held = value(_held_ratio(TrainerTable.of((one,)), at(one)))
    assert held == pytest.approx(1 / 16)


def test_a_dense_model_has_no_experts_to_spread() -> None:
    dense = load_model("qwen3-32b")
    found = at(fsdp(), dense)
    assert value(found.expert_params) == 0.0
    block = max(layer.dense_params for layer in dense.layers)
    costs = price(fsdp(), work=job(dense))
    root = 2 * dense.embedding_params
    expected = 2.0 * (2 * block + root) + 4.0 * max(block, root)
    assert value(memory_term(costs, "unsharded")) == pytest.approx(expected)
