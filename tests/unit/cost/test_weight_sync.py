"""The trainer's share of a weight sync."""

from __future__ import annotations

import pytest

from planner.cost.worker import WorkerCosts
from planner.domain.strategy import Offload, Sharding
from planner.files.catalog import load_model
from tests.unit.cost.trainer_cases import QWEN3_32B, job, price, site, strategy


def gather(costs: WorkerCosts) -> list[float]:
    assert costs.sync_terms_colocated is not None
    return [float(value) for value in costs.sync_terms_colocated["sync_gather"]]


def test_a_rank_that_holds_everything_gathers_nothing() -> None:
    assert gather(price(strategy(8))) == [pytest.approx(0.0, abs=1e-9)]


def test_gathering_inside_a_node_runs_at_link_speed() -> None:
    node, overheads = site().node, site().overheads
    expected = 2 * QWEN3_32B.num_params * 7 / 8 / (node.gpu.scale_up_bytes_per_s * overheads.sync_gather_ratio)
    assert gather(price(strategy(8, tp=8))) == [pytest.approx(expected, rel=0.02)]


def test_shards_in_other_nodes_cross_the_nic() -> None:
    tensor, fsdp_node, fsdp, pipeline = gather(
        price(
            strategy(32, tp=8),
            strategy(32, sharding=Sharding.ZERO3, shard_ranks=8),
            strategy(32, sharding=Sharding.ZERO3),
            strategy(32, tp=8, pp=4),
        )
    )
    assert fsdp > fsdp_node
    assert pipeline > tensor
    # each of 8 NICs brings an eighth of the three quarters that are elsewhere
    node = site().node
    wire = 2 * QWEN3_32B.num_params * 0.75 / 8 / (node.nic_bytes_per_s * node.network.nic_ratio)
    assert fsdp - fsdp_node == pytest.approx(wire, rel=0.2)


def test_disaggregated_adds_one_copy_over_all_nics() -> None:
    costs = price(strategy(32, tp=8))
    assert costs.sync_terms_colocated is not None
    assert costs.sync_terms_disaggregated is not None
    assert "sync_send" not in costs.sync_terms_colocated
    node = site().node
    expected = 2 * QWEN3_32B.num_params / 32 / (node.nic_bytes_per_s * node.network.nic_ratio)
    assert costs.sync_terms_disaggregated["sync_send"][0] == pytest.approx(expected)


def test_lora_moves_adapters_only() -> None:
    full, adapters = (gather(price(strategy(8, tp=8), work=job(lora_rank=rank)))[0] for rank in (None, 32))
    assert adapters < 0.02 * full


@pytest.mark.parametrize(
    ("name", "gpus", "tp", "pp", "ep", "fastest_s", "slowest_s"),
    [("qwen3-32b", 16, 8, 1, 1, 0.84, 1.60), ("qwen3-235b-a22b", 128, 4, 8, 8, 2.31, 2.73)],
)
def test_trainer_share_against_published_refits(
    name: str, gpus: int, tp: int, pp: int, ep: int, fastest_s: float, slowest_s: float
) -> None:
    """NeMo-RL refit over 400 Gbit/s InfiniBand, whole refit: 63 GB 0.84-1.60 s, 470 GB 2.31-2.73 s.

    The trainer's share alone must not exceed twice the slowest and not be below a third of the fastest.
    """
    costs = price(strategy(gpus, tp=tp, pp=pp, ep=ep), work=job(load_model(name)))
    assert costs.sync_terms_disaggregated is not None
    taken = sum(float(values[0]) for values in costs.sync_terms_disaggregated.values())
    assert fastest_s / 3 <= taken <= 2 * slowest_s


def test_weights_are_on_the_gpu_during_the_sync() -> None:
    costs = price(strategy(8, tp=8, offload=Offload.STATE_SWAP))
    assert costs.sync_memory_terms is not None
    assert costs.sync_memory_terms["weights"][0] == pytest.approx(2 * QWEN3_32B.num_params / 8)
    assert costs.sync_memory_terms["optimizer"][0] == 0
    assert costs.sync_memory_terms["sync_buckets"][0] == 2 * site().overheads.sync_bucket_bytes
