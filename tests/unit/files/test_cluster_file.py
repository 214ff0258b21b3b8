"""Cluster files: fabrics, outages, CPU cores, the link between pools, and every way in which one can be wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.hardware import Cluster, Pool
from planner.domain.request import PlanRequest
from planner.errors import InvalidInputError
from planner.files.catalog import generic_node
from planner.files.outages import out_numbers, usable
from planner.files.spec import WorkloadSpec, override
from planner.files.workload import build_request
from planner.files.workload_file import read_workload
from tests.schema_check import violations

BASE = WorkloadSpec(model="qwen3-8b", response_mean=1000.0)
ROOT = Path(__file__).parents[3]


def request(text: str, tmp_path: Path, **changes: object) -> PlanRequest:
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return build_request(replace(BASE, cluster=str(path), **changes))  # type: ignore[arg-type]


def cluster(text: str, tmp_path: Path, **changes: object) -> Cluster:
    made = request(text, tmp_path, **changes).cluster
    assert made is not None
    return made


def only(text: str, tmp_path: Path) -> Pool:
    return cluster(f"pools: [{{{text}}}]\n", tmp_path).pools[0]


def effects(made: PlanRequest) -> str:
    return "; ".join(f"{item.what}: {item.value} ({item.source})" for item in made.assumptions)


# ---------------------------------------------------------------------------------------------- what is read


def test_a_node_that_is_out_leaves_the_others(tmp_path: Path) -> None:
    pool = only("gpu: h100, nodes: 32, out: [node-17]", tmp_path)
    assert (pool.num_nodes, pool.out_nodes, pool.num_gpus) == (31, (17,), 248)
    assert [pool.physical_node(index) for index in (0, 16, 17, 30)] == [0, 16, 18, 31]


def test_a_count_takes_the_last_nodes_and_says_so(tmp_path: Path) -> None:
    made = request("pools: [{gpu: h100, nodes: 4, out: 1}]\n", tmp_path)
    assert made.cluster is not None and made.cluster.pools[0].out_nodes == (3,)
    assert "nodes of h100 that are out: the last: node-3 (only their number was given)" in effects(made)
    named = request("pools: [{gpu: h100, nodes: 4, out: [node-3]}]\n", tmp_path)
    assert "that are out" not in effects(named)


def test_a_rack_with_trays_out_shrinks_its_domain(tmp_path: Path) -> None:
    made = request("pools: [{node: gb200-nvl72-tray, nodes: 36, out: [node-3, node-4]}]\n", tmp_path)
    assert made.cluster is not None
    pool = made.cluster.pools[0]
    assert (pool.num_nodes, pool.node.scale_up_domain_gpus) == (32, 64)
    assert pool.out_nodes == (3, 4, 34, 35)
    assert "16 nodes of each are used, 2 more stay idle" in effects(made)


def test_other_numbers_of_gpus_per_node(tmp_path: Path) -> None:
    few, many = only("gpu: h100, nodes: 2, gpus_per_node: 6", tmp_path), only("gpu: h200, nodes: 2, gpus_per_node: 16",
                                                                              tmp_path)  # fmt: skip
    assert (few.num_gpus, few.node.scale_up_domain_gpus) == (12, 6)
    whole = generic_node("h200")
    assert (many.num_gpus, many.node.scale_up_domain_gpus) == (32, 16)
    # The host is the same, so that more GPUs share it; each brings its NIC.
    assert many.node.host_ram_bytes == whole.host_ram_bytes
    assert many.node.network == whole.network
    assert many.node.nic_bytes_per_s == whole.nic_bytes_per_s


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu: h100, nodes: 8", (1.0, 1)),
        ("gpu: h100, nodes: 8, oversubscription: 2", (2.0, 1)),
        ("gpu: h100, nodes: 8, oversubscription: 2, nodes_per_leaf: 4", (2.0, 4)),
        ("gpu: h100, nodes: 8, oversubscription: 2, nodes_per_leaf: 8", (1.0, 8)),
        ("gpu: h100, nodes: 8, oversubscription: 2, rails: true", (2.0, 8)),
        ("gpu: h100, nodes: 8, oversubscription: 2, rails: true, nodes_per_leaf: 4", (2.0, 4)),
        ("gpu: h100, nodes: 8, oversubscription: 1.5, rails: false", (1.5, 1)),
    ],
)
def test_fabrics(text: str, expected: tuple[float, int], tmp_path: Path) -> None:
    node = only(text, tmp_path).node
    assert (node.oversubscription_ratio, node.nodes_per_leaf) == expected


def test_the_link_between_pools_has_a_rate_and_a_capacity(tmp_path: Path) -> None:
    text = (
        "pools: [{gpu: h100, nodes: 1}, {gpu: h20, nodes: 2}]\ninter_pool: 100 Gbit/s\ninter_pool_total: 400 Gbit/s\n"
    )
    made = cluster(text, tmp_path)
    assert (made.inter_pool_bytes_per_s, made.inter_pool_total_bytes_per_s) == (12.5e9, 50e9)
    flagged = cluster(text, tmp_path, inter_pool="50 Gbit/s")
    assert (flagged.inter_pool_bytes_per_s, flagged.inter_pool_total_bytes_per_s) == (6.25e9, 50e9)


def test_the_section_of_a_workload_file_takes_the_same_keys(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    section = "{pools: [{gpu: h100, nodes: 4, out: [node-0]}], inter_pool_total: 1 GB/s}"
    path.write_text(f"model: qwen3-8b\ncluster: {section}\n", encoding="utf-8")
    made = build_request(read_workload(path)).cluster
    assert made is not None
    assert made.pools[0].out_nodes == (0,) and made.inter_pool_total_bytes_per_s == 1e9


def test_flags_replace_the_hardware_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("pools: [{gpu: h200, nodes: 1}]\n", encoding="utf-8")
    base = WorkloadSpec(model="qwen3-8b", gpus="8xh100", inter_pool="1 GB/s", file="w.yaml")
    made = build_request(override(base, WorkloadSpec(cluster=str(path)))).cluster
    assert made is not None
    assert [pool.name for pool in made.pools] == ["h200"] and made.inter_pool_bytes_per_s is None
    with pytest.raises(InvalidInputError, match="given together with --cluster"):
        build_request(override(base, WorkloadSpec(cluster=str(path), gpus="8xh100")))


# ---------------------------------------------------------------------------------------------- CPU cores


SANDBOX = {"reward": "sandbox", "reward_latency": "2 s"}


def test_sandboxes_stay_within_cpu_cores(tmp_path: Path) -> None:
    made = request("pools: [{gpu: h100, nodes: 4, out: 1, cpu_cores: 48}]\n", tmp_path, **SANDBOX)
    assert made.workload.reward.num_parallel == 3 * 48
    assert "sandboxes within CPU cores: 144 at a time instead of 256 (CPU cores of the cluster)" in effects(made)
    asked = request("pools: [{gpu: h100, nodes: 4, cpu_cores: 48}]\n", tmp_path, reward_parallel=100, **SANDBOX)
    assert asked.workload.reward.num_parallel == 100


def test_unknown_cores_are_no_limit(tmp_path: Path) -> None:
    text = "pools: [{gpu: h100, nodes: 1, cpu_cores: 8}, {gpu: h20, nodes: 1}]\n"
    made = request(text, tmp_path, **SANDBOX)
    assert made.workload.reward.num_parallel == 256


# ---------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu: h100, nodes: 4, out: [node-4]", "pools[0].out: there is no node 'node-4'; accepted: node-0 to node-3"),
        ("gpu: h100, nodes: 4, out: [rack3]", "there is no node 'rack3'"),
        ("gpu: h100, nodes: 4, out: 4", "4 of 4 nodes are out: none is left; accepted: at most 3"),
        ("gpu: h100, nodes: 4, out: node-1", "pools[0].out: is neither a number of nodes, such as 1, nor a list"),
        ("gpu: h100, nodes: 4, out: -1", "is neither a number of nodes"),
        ("gpu: h100, nodes: 4, out: [3]", "is neither a number of nodes"),
        ("gpu: h100, nodes: 4, out: true", "is neither a number of nodes"),
        ("gpu: h100, nodes: 4, oversubscription: 0.5", "oversubscription: 0.5 is not accepted; accepted: at least 1"),
        ("gpu: h100, nodes: 4, rails: true", "rails: has no effect on a non-blocking fabric"),
        ("gpu: h100, nodes: 4, nodes_per_leaf: 2", "nodes_per_leaf: has no effect on a non-blocking fabric"),
        ("gpu: h100, nodes: 4, cpu_cores: 0", "cpu_cores: 0 is not accepted; accepted: at least 1"),
        ("node: p5.48xlarge, nodes: 1, gpus_per_node: 16", "has 8 GPUs, not 16"),
        ("gpu: h100, nodes: 4, oversubscribed: 2", "did you mean 'oversubscription'?"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError) as caught:
        only(text, tmp_path)
    assert expected in str(caught.value)


def test_a_missing_file_and_a_wrong_capacity_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"nowhere.yaml"):
        build_request(replace(BASE, cluster=str(tmp_path / "nowhere.yaml")))
    text = "pools: [{gpu: h100, nodes: 1}, {gpu: h20, nodes: 1}]\ninter_pool_total: 400\n"
    with pytest.raises(InvalidInputError, match=r"inter_pool_total: 400 is not accepted"):
        cluster(text, tmp_path)
    with pytest.raises(
        InvalidInputError, match=r"c.yaml: inter_pool_total: '400 GB' has no|c.yaml: inter_pool_total: unit"
    ):
        cluster(text.replace("400", "400 GB"), tmp_path)


# ---------------------------------------------------------------------------------------------- outages


@given(num_nodes=st.integers(2, 60), per_domain=st.integers(1, 18), out=st.sets(st.integers(0, 59), max_size=6))
def test_racks_stay_of_one_size(num_nodes: int, per_domain: int, out: set[int]) -> None:
    gone = tuple(sorted(number for number in out if number < num_nodes))
    if len(gone) == num_nodes:
        return
    left = usable(num_nodes, gone, per_domain)
    assert set(gone) <= set(left.out_nodes) and left.num_idle == len(left.out_nodes) - len(gone)
    kept = [number for number in range(num_nodes) if number not in left.out_nodes]
    assert kept
    if not gone or per_domain == 1:
        assert left.num_idle == 0
        return
    size = left.nodes_per_domain
    racks = [kept[start : start + size] for start in range(0, len(kept), size)]
    for rack in racks:
        # What the planner takes for a domain is within one rack of the machine room.
        assert len({number // per_domain for number in rack}) == 1
    # Dropping every rack that has an outage is never better.
    untouched = [r for r in range(-(-num_nodes // per_domain)) if not any(number // per_domain == r for number in gone)]
    whole = sum(min(per_domain, num_nodes - r * per_domain) for r in untouched)
    assert len(kept) >= whole


def test_names_out_of_order_and_twice() -> None:
    assert out_numbers(("node-5", "node-2", "node-5"), 8, "out") == (2, 5)
    assert out_numbers(2, 8, "out") == (6, 7)


# ---------------------------------------------------------------------------------------------- examples, schema


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("cluster-*.yaml")), ids=lambda path: path.stem)
def test_examples_are_read_and_follow_the_schema(path: Path) -> None:
    schema = json.loads((ROOT / "docs" / "schemas" / "cluster.schema.json").read_text(encoding="utf-8"))
    assert violations(yaml.safe_load(path.read_text(encoding="utf-8")), schema) == []
    assert build_request(replace(BASE, cluster=str(path))).cluster is not None
