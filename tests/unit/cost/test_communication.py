"""Collectives: published measurements, limits, and what must hold for any size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.communication import collective_s, exchange_copies, expert_exchange_s, overlap, send_s, span
from planner.domain.hardware import CollectiveOp, NodeType
from planner.files.catalog import generic_node
from tests.unit.cost.trainer_cases import GIB

H100 = generic_node("h100")


def seconds(
    op: CollectiveOp, payload: float, ranks: int, *, stride: int = 1, node: NodeType = H100
) -> tuple[float, float]:
    group = span(np.array([float(ranks)]), float(stride), node)
    scale_up, scale_out = collective_s(op, np.array([payload]), group, node)
    return float(scale_up[0]), float(scale_out[0])


@pytest.mark.parametrize(
    ("ranks", "stride", "local", "domains"),
    [(8, 1, 8, 1), (16, 1, 8, 2), (4, 8, 1, 4), (4, 4, 2, 2), (2, 2, 2, 1), (1, 8, 1, 1)],
)
def test_span_counts_the_ranks_that_share_a_node(ranks: int, stride: int, local: int, domains: int) -> None:
    group = span(np.array([float(ranks)]), np.array([float(stride)]), H100)
    assert (group.local_ranks[0], group.num_domains[0]) == (local, domains)
    assert (group.hop_s[0] > 0) == (domains > 1)


def test_a_rack_keeps_64_ranks_in_one_domain() -> None:
    _, scale_out = seconds(CollectiveOp.ALL_TO_ALL, 1e9, 64, node=generic_node("gb200"))
    assert scale_out == 0


@pytest.mark.parametrize("op", list(CollectiveOp))
def test_one_rank_is_free(op: CollectiveOp) -> None:
    assert seconds(op, 1e9, 1) == (0.0, 0.0)


def test_one_rank_is_free_beside_other_groups() -> None:
    group = span(np.array([1.0, 8.0, 32.0]), 1.0, H100)
    for op in CollectiveOp:
        scale_up, scale_out = collective_s(op, np.full(3, 1e6), group, H100)
        assert scale_up[0] == scale_out[0] == 0
        assert scale_out[1] == 0 < scale_up[1]
        assert scale_out[2] > 0


@pytest.mark.parametrize(
    ("op", "passes", "bus_gb_per_s"),
    [
        (CollectiveOp.ALL_REDUCE, 2.0, 431),
        (CollectiveOp.ALL_GATHER, 1.0, 322),
        (CollectiveOp.REDUCE_SCATTER, 1.0, 325),
        (CollectiveOp.ALL_TO_ALL, 1.0, 307),
    ],
)
def test_bus_bandwidth_of_8_h100_at_256_mib(op: CollectiveOp, passes: float, bus_gb_per_s: float) -> None:
    """NCCL on one HGX H100: bus bandwidths published with aiconfigurator-core 0.12."""
    payload = 256 * 2**20 * (8 / 7) / passes if op is not CollectiveOp.ALL_REDUCE else 256 * 2**20
    taken, _ = seconds(op, payload, 8)
    assert passes * 7 / 8 * payload / taken / 1e9 == pytest.approx(bus_gb_per_s, rel=0.06)


def test_all_reduce_of_4_gib_over_4_nodes_of_8_b200() -> None:
    """22.05 ms on 4 x 8 B200 with 400 Gbit/s EFA per GPU (stas00/ml-engineering, network benchmarks)."""
    node = generic_node("b200")
    node = replace(node, nic_bytes_per_s=50e9, network=replace(node.network, nic_half_bytes=24e6))
    assert sum(seconds(CollectiveOp.ALL_REDUCE, 4 * GIB, 32, node=node)) == pytest.approx(22.05e-3, rel=0.2)


@given(
    op=st.sampled_from(list(CollectiveOp)),
    payload=st.floats(1.0, 1e11),
    growth=st.floats(1.0, 10.0),
    ranks=st.sampled_from([2, 4, 8, 16, 64]),
    stride=st.sampled_from([1, 2, 8]),
)
def test_more_bytes_never_take_less_time(
    op: CollectiveOp, payload: float, growth: float, ranks: int, stride: int
) -> None:
    less = sum(seconds(op, payload, ranks, stride=stride))
    assert sum(seconds(op, payload * growth, ranks, stride=stride)) >= less * (1 - 1e-12)


@given(op=st.sampled_from(list(CollectiveOp)), payload=st.floats(1e3, 1e11), ranks=st.sampled_from([2, 4, 8]))
def test_leaving_the_domain_never_helps(op: CollectiveOp, payload: float, ranks: int) -> None:
    inside = sum(seconds(op, payload, ranks))
    for stride in (2, 4, 8):
        assert sum(seconds(op, payload, ranks, stride=stride)) >= inside * (1 - 1e-12)


@given(a=st.floats(0, 1e3), b=st.floats(0, 1e3))
def test_overlap_hides_half_of_the_shorter_level(a: float, b: float) -> None:
    scale_up, scale_out = overlap(np.array([a]), np.array([b]))
    assert scale_up[0] + scale_out[0] == pytest.approx(max(a, b) + 0.5 * min(a, b))
    assert scale_up[0] >= 0
    assert scale_out[0] >= 0


def test_sends_are_slower_across_domains() -> None:
    inside, outside = send_s(1e8, np.array([False, True]), H100)
    assert outside > inside > 1e8 / H100.gpu.scale_up_bytes_per_s


def test_copies_of_a_routed_token_match_a_simulation() -> None:
    random = np.random.default_rng(0)
    destinations = random.integers(0, 8, size=(20000, 6))
    visited = np.mean([len(set(row)) for row in destinations.tolist()])
    assert exchange_copies(np.array([8.0]), 6)[0] == pytest.approx(visited, rel=0.01)
    assert exchange_copies(np.array([1.0, 50.0]), 1) == pytest.approx([1.0, 1.0])


def expert_seconds(ranks: int, token_bytes: float, choices: int = 8) -> float:
    group = span(np.array([float(ranks)]), 1.0, H100)
    return float(sum(part[0] for part in expert_exchange_s(np.array([token_bytes]), choices, group, H100)))


def test_expert_exchange_limits() -> None:
    assert expert_seconds(1, 1e9) == 0
    # two ranks: half of the tokens' distinct copies stay; at most one copy each leaves
    assert expert_seconds(2, 1e9) <= 1e9 / 200e9
    assert expert_seconds(16, 1e9) > expert_seconds(8, 1e9) > expert_seconds(2, 1e9)


@pytest.mark.parametrize("ranks", [1.0, 2.0, 16.0])
def test_nodes_of_one_gpu_exchange_over_the_nic(ranks: float) -> None:
    node = generic_node("gh200-96g")
    assert node.scale_up_domain_gpus == 1
    group = span(np.array([ranks]), 1.0, node)
    scale_up, scale_out = expert_exchange_s(np.array([1e9]), 8, group, node)
    assert scale_up[0] == 0
    assert (scale_out[0] > 0) == (ranks > 1)


@pytest.mark.parametrize(("ranks", "measured_gb_per_s"), [(16, 35), (32, 46)])
def test_expert_exchange_uses_the_nic_as_deepep_does(ranks: int, measured_gb_per_s: float) -> None:
    """Effective NIC rates of DeepEP's combine on H100 with 50 GB/s NICs: 35 (16 GPUs) and 46 GB/s (32 GPUs)."""
    token_bytes = 16384 * 7168 * 2.0
    domains = ranks / 8
    remote_copies = domains * (1 - (1 - 1 / domains) ** 8) * (1 - 1 / domains)
    rate = token_bytes * remote_copies / expert_seconds(ranks, token_bytes) / 1e9
    assert rate == pytest.approx(measured_gb_per_s, rel=0.3)
