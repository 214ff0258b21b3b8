"""Oversubscribed fabrics: the factors against flows counted one by one, and what must hold for any fabric."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.communication import (
    collective_s,
    expert_exchange_s,
    group_rate,
    line_rate,
    nic_rate,
    pipeline_slowdown,
    send_s,
    span,
)
from planner.domain.hardware import CollectiveOp, NodeType
from planner.files.catalog import generic_node

H100 = generic_node("h100")
PER_NODE = 8


def fabric(oversubscription: float, nodes_per_leaf: int = 1) -> NodeType:
    return replace(H100, oversubscription_ratio=oversubscription, nodes_per_leaf=nodes_per_leaf)


def busiest_uplink(flows: list[tuple[int, int, float]], leaf_gpus: int, oversubscription: float) -> float:
    """Slow-down of the fullest leaf: NIC rates that its flows want over what it has upwards, at least 1.

    A flow is (source GPU, target GPU, share of a NIC rate).
    """
    wanted: Counter[int] = Counter()
    for source, target, share in flows:
        if source // leaf_gpus != target // leaf_gpus:
            wanted[source // leaf_gpus] += share  # type: ignore[assignment]
    return max([1.0, *(number * oversubscription / leaf_gpus for number in wanted.values())])


def groups(num_gpus: int, ranks: int, stride: int) -> list[list[int]]:
    block = ranks * stride
    return [
        [start + offset + index * stride for index in range(ranks)]
        for start in range(0, num_gpus, block)
        for offset in range(stride)
    ]


@settings(max_examples=80, deadline=None)
@given(
    ranks=st.sampled_from([2, 4, 8, 16, 32]),
    stride=st.sampled_from([1, 2, 4, 8, 16]),
    nodes_per_leaf=st.sampled_from([1, 2, 4, 8]),
    oversubscription=st.sampled_from([1.5, 2.0, 3.0, 4.0]),
)
def test_ring_and_exchange_factors_are_what_counting_flows_gives(
    ranks: int, stride: int, nodes_per_leaf: int, oversubscription: float
) -> None:
    node = fabric(oversubscription, nodes_per_leaf)
    num_gpus, leaf = 2 * max(ranks * stride, node.leaf_gpus), node.leaf_gpus
    found = span(np.array([float(ranks)]), float(stride), node)
    local = int(found.local_ranks[0])
    ring, exchange = [], []
    for members in groups(num_gpus, ranks, stride):
        domains = [members[i : i + local] for i in range(0, ranks, local)]
        for here, there in zip(domains, domains[1:] + domains[:1], strict=True):
            # Every rank of a domain sends to its counterpart in the next one through its own NIC.
            ring += [(a, b, 1.0) for a, b in zip(here, there, strict=True) if len(domains) > 1]
        remote = ranks - local
        exchange += [
            (a, b, 1.0 / remote) for a in members for b in members if a // PER_NODE != b // PER_NODE and remote
        ]
    assert found.ring_slowdown is not None and found.exchange_slowdown is not None
    assert float(found.ring_slowdown[0]) == pytest.approx(busiest_uplink(ring, leaf, oversubscription))
    assert float(found.exchange_slowdown[0]) == pytest.approx(busiest_uplink(exchange, leaf, oversubscription))


@pytest.mark.parametrize("num_stages", [2, 4, 8])
@pytest.mark.parametrize("nodes_per_leaf", [1, 2, 4])
def test_pipeline_factors_are_what_counting_flows_gives(num_stages: int, nodes_per_leaf: int) -> None:
    node = fabric(2.0, nodes_per_leaf)
    distance = 64 // num_stages
    flows = [(gpu, gpu + distance, 1.0) for gpu in range(64 - distance)]
    # A leaf in the middle of the pipeline sends as much as any.
    expected = busiest_uplink(flows, node.leaf_gpus, 2.0)
    assert float(pipeline_slowdown(np.array([64.0]), np.array([float(num_stages)]), node)[0]) == expected  # type: ignore[index]


def test_a_non_blocking_fabric_has_no_factors() -> None:
    found = span(np.array([32.0]), 1.0, H100)
    assert found.ring_slowdown is None and found.exchange_slowdown is None
    assert pipeline_slowdown(np.array([64.0]), np.array([4.0]), H100) == 1.0
    assert group_rate(np.array([64.0]), H100) == nic_rate(H100) == line_rate(H100)


def test_what_fits_below_one_leaf_keeps_its_rate() -> None:
    inside = fabric(4.0, nodes_per_leaf=4)
    assert list(np.atleast_1d(group_rate(np.array([32.0, 64.0]), inside))) == [line_rate(H100), line_rate(H100) / 4]
    for op in CollectiveOp:
        same = collective_s(op, np.array([1e9]), span(np.array([32.0]), 1.0, inside), inside)
        plain = collective_s(op, np.array([1e9]), span(np.array([32.0]), 1.0, H100), H100)
        assert [float(part[0]) for part in same] == [float(part[0]) for part in plain]


def test_large_messages_take_as_much_longer_as_the_fabric_says() -> None:
    slow = fabric(3.0)
    huge = np.array([1e12])
    far = np.array([True])
    assert float(send_s(huge, far, slow)[0] / send_s(huge, far, H100)[0]) == pytest.approx(3.0, rel=1e-3)
    assert float(send_s(huge, far, slow, 1.5)[0] / send_s(huge, far, H100)[0]) == pytest.approx(1.5, rel=1e-3)
    group = span(np.array([4.0]), 8.0, slow), span(np.array([4.0]), 8.0, H100)
    for op in (CollectiveOp.ALL_GATHER, CollectiveOp.ALL_TO_ALL):
        times = [float(collective_s(op, huge, g, n)[1][0]) for g, n in zip(group, (slow, H100), strict=True)]
        assert times[0] / times[1] == pytest.approx(3.0, rel=1e-3)
    wide = span(np.array([32.0]), 1.0, slow), span(np.array([32.0]), 1.0, H100)
    experts = [float(expert_exchange_s(huge, 8, g, n)[1][0]) for g, n in zip(wide, (slow, H100), strict=True)]
    assert experts[0] / experts[1] == pytest.approx(3.0, rel=1e-3)


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.sampled_from([2, 4, 8, 12, 32, 64]), stride=st.sampled_from([1, 2, 4, 6, 8, 24]),
    low=st.floats(1.0, 8.0), more=st.floats(1.0, 4.0), nodes_per_leaf=st.integers(1, 16),
    op=st.sampled_from(list(CollectiveOp)),
)  # fmt: skip
def test_more_oversubscription_is_never_faster_and_larger_leaves_never_slower(
    ranks: int, stride: int, low: float, more: float, nodes_per_leaf: int, op: CollectiveOp
) -> None:
    def seconds(node: NodeType) -> float:
        group = span(np.array([float(ranks)]), float(stride), node)
        return sum(float(part[0]) for part in collective_s(op, np.array([1e8]), group, node))

    base = seconds(fabric(low, nodes_per_leaf))
    assert base >= seconds(H100) * (1 - 1e-12)
    assert seconds(fabric(low * more, nodes_per_leaf)) >= base * (1 - 1e-12)
    assert seconds(fabric(low, 2 * nodes_per_leaf)) <= base * (1 + 1e-12)
