"""Host RAM and the host link by offload mode."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.offload import host_link_rate
from planner.domain.strategy import Offload
from planner.files.catalog import generic_node
from tests.unit.cost.trainer_cases import QWEN3_32B, price, site, strategy

PARAMS = float(QWEN3_32B.num_params)
BUCKETS = 8 * (2 * site().overheads.sync_bucket_bytes + site().overheads.host_process_bytes)
"""What eight processes need beside states."""


def host(mode: Offload) -> dict[str, float]:
    """Host RAM per node by term of an 8-GPU trainer."""
    return {name: float(values[0]) for name, values in price(strategy(8, tp=8, offload=mode)).host_terms.items()}


def test_nothing_offloaded_needs_no_host_ram() -> None:
    assert sum(host(Offload.NONE).values()) == 0


def test_optimizer_swap_holds_12_bytes_per_parameter() -> None:
    assert sum(host(Offload.OPTIMIZER_SWAP).values()) - BUCKETS == pytest.approx(12 * PARAMS)


def test_state_swap_adds_weights() -> None:
    assert sum(host(Offload.STATE_SWAP).values()) - BUCKETS == pytest.approx(14 * PARAMS)


def test_cpu_optimizer_holds_16_bytes_per_parameter() -> None:
    """12-16 bytes per parameter are observed in disaggregated runs."""
    assert sum(host(Offload.CPU_OPTIMIZER).values()) - BUCKETS == pytest.approx(16 * PARAMS)


def test_everything_swapped_with_a_cpu_optimizer_matches_reports() -> None:
    """25.7-27.2 bytes per parameter are reported with the engine's backup of 2 and all processes included."""
    trainer = sum(host(Offload.CPU_OPTIMIZER_STATE_SWAP).values())
    assert 25.7 - 2 <= trainer / PARAMS <= 27.2 + 2


def idle(mode: Offload) -> dict[str, float]:
    return {name: float(values[0]) for name, values in price(strategy(8, tp=8, offload=mode)).idle_terms.items()}


def test_what_stays_on_the_gpu_while_others_run() -> None:
    kept = {mode: idle(mode) for mode in Offload}
    assert kept[Offload.NONE]["optimizer"] == pytest.approx(12 * PARAMS / 8)
    assert kept[Offload.OPTIMIZER_SWAP]["weights"] == pytest.approx(2 * PARAMS / 8)
    assert kept[Offload.OPTIMIZER_SWAP]["gradients"] == kept[Offload.OPTIMIZER_SWAP]["optimizer"] == 0
    assert kept[Offload.CPU_OPTIMIZER]["gradients"] == pytest.approx(4 * PARAMS / 8)
    assert kept[Offload.CPU_OPTIMIZER]["optimizer"] == 0
    for mode in (Offload.STATE_SWAP, Offload.CPU_OPTIMIZER_STATE_SWAP):
        assert kept[mode]["weights"] == kept[mode]["gradients"] == kept[mode]["optimizer"] == 0
    assert all(terms["context"] > 0 and terms["communicator"] > 0 for terms in kept.values())


def test_all_gpus_of_a_node_share_its_host_bandwidth() -> None:
    node = generic_node("h100")
    one, eight = host_link_rate(node, np.array([1.0, 8.0]))
    assert one == pytest.approx(node.gpu.host_link_bytes_per_s * node.network.host_link_ratio)
    assert 8 * eight <= node.network.host_node_bytes_per_s * (1 + 1e-12)
    assert eight <= one
