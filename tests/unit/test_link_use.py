"""Link use of real plans: never above what a link carries, host swaps included, and impossible plans are named."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from planner.cost.communication import span
from planner.cost.link_bytes import all_reduce_bytes, ring_bytes
from planner.domain.execution import Execution, ExecutionMode
from planner.domain.hardware import CollectiveOp
from planner.domain.links import Link, LinkUse, StageLinks, overused
from planner.domain.plan import Plan
from planner.domain.profile import BANDWIDTH_OF, Profile, ProfileValue
from planner.domain.stages import StageName
from planner.errors import InvalidInputError
from planner.files.catalog import generic_node
from planner.files.plan import digests, parse_plan, plan_text
from planner.files.profile import write_profile
from planner.files.spec import WorkloadSpec
from planner.files.workload import build_request
from planner.link_use import link_use
from planner.pipeline import make_plan
from planner.report.cluster import link_table
from planner.report.terminal import plain
from tests.golden.sample import grpo_plan, split_plan

EXAMPLES = Path(__file__).parents[2] / "examples"
SPECS = {
    "colocated": WorkloadSpec(model="qwen3-32b", gpus="32xh100", response_mean=3000.0),
    "one node, LoRA": WorkloadSpec(model="qwen3-8b", gpus="8xh100", lora_rank=32),
    "PPO": WorkloadSpec(model="qwen3-8b", algorithm="ppo", reward="model", gpus="2x8xh100", critic="qwen3-4b"),
    "experts in a rack": WorkloadSpec(
        model="qwen3-235b-a22b", cluster=str(EXAMPLES / "cluster-racks.yaml"), response_mean=3000.0
    ),
    "oversubscribed, one node out": WorkloadSpec(
        model="qwen3-32b", cluster=str(EXAMPLES / "cluster-outage.yaml"), response_mean=3000.0
    ),
    "two pools": WorkloadSpec(
        model="qwen3-32b", cluster=str(EXAMPLES / "cluster-two-pools.yaml"), response_mean=3000.0
    ),
}


@lru_cache(maxsize=len(SPECS))
def made(name: str) -> Plan:
    return make_plan(build_request(SPECS[name]))


@pytest.mark.parametrize("name", SPECS)
def test_no_plan_moves_more_than_its_links_carry(name: str) -> None:
    plan = made(name)
    found = link_use(plan)
    assert overused(found) == ()
    stages = [item.stage for item in found if item.stage is not None]
    assert stages == [item.stage for item in plan.placements if item.gpu_memory is not None]
    for item in found:
        assert all(use.num_bytes > 0.0 and 0.0 < item.used_ratio(use) <= 1.0 for use in item.uses)
        assert len({use.link for use in item.uses}) == len(item.uses)
    rollout = next(item for item in found if item.stage is StageName.ROLLOUT)
    assert rollout.uses[0].link is Link.HBM and rollout.used_ratio(rollout.uses[0]) > 0.05


def test_two_pools_share_the_trunk() -> None:
    found = {item.stage: item for item in link_use(made("two pools"))}
    sync = {use.link: use for use in found[StageName.WEIGHT_SYNC].uses}
    assert sync[Link.TRUNK].num_bytes == pytest.approx(2 * 32.76e9, rel=0.01)
    assert sync[Link.TRUNK].bytes_per_s == 50e9
    assert [use.link for use in found[None].uses] == [Link.TRUNK]
    plan = made("two pools")
    narrow = replace(plan, cluster=replace(plan.cluster, inter_pool_total_bytes_per_s=1e9))
    assert overused(link_use(narrow))[0].startswith("weight sync: 6.55e+10 bytes over the inter-pool link of 1e+09")


def test_half_the_time_of_a_memory_bound_stage_is_impossible() -> None:
    plan = made("one node, LoRA")
    rollout = plan.placement(StageName.ROLLOUT)
    fewer = tuple(replace(term, value=0.3 * term.value) for term in rollout.time_terms)
    placements = tuple(replace(item, time_terms=fewer) if item is rollout else item for item in plan.placements)
    assert "rollout" in overused(link_use(replace(plan, placements=placements)))[0]


def test_swaps_use_the_host_link_of_the_node() -> None:
    found = {item.stage: item for item in link_use(grpo_plan())}
    update = {use.link: use for use in found[StageName.ACTOR_UPDATE].uses}
    # The optimizer is swapped: 12 bytes per parameter over 4 shards of TP 8, there and back; 8 GPUs share 200 GB/s.
    assert update[Link.HOST].num_bytes == pytest.approx(2 * 12 * 32.76e9 / 32, rel=0.02)
    assert update[Link.HOST].bytes_per_s == 25e9
    reference = {use.link for use in found[StageName.REFERENCE_LOGPROB].uses}
    assert Link.HOST in reference
    assert Link.HOST not in {use.link for use in found[StageName.OLD_LOGPROB].uses}


def test_asynchronous_plans_have_their_links_too() -> None:
    base = split_plan()
    plan = replace(base, execution=Execution(mode=ExecutionMode.STREAMING, staleness=1), period_s=base.makespan_s * 0.6)
    assert [item.stage for item in link_use(plan)] == [item.stage for item in link_use(base)]


# ---------------------------------------------------------------------------------------------- saved plans


def test_saved_links_come_back_and_impossible_ones_are_refused() -> None:
    plan = replace(made("one node, LoRA"), links=link_use(made("one node, LoRA")), run=None)
    assert parse_plan(plan_text(plan), where="p") == plan
    document = json.loads(plan_text(plan))
    document["links"][0]["uses"][0]["num_bytes"] *= 1000
    text = json.dumps({**document, "digests": digests(document)})
    with pytest.raises(InvalidInputError, match=r"links: rollout: .* bytes over the HBM"):
        parse_plan(text, where="p")
    document["links"][0]["uses"][0]["bytes_per_s"] = 0
    text = json.dumps({**document, "digests": digests(document)})
    with pytest.raises(InvalidInputError, match=r"links\[0\]: .* are out of range"):
        parse_plan(text, where="p")


def test_the_table_shows_shares() -> None:
    use = LinkUse(link=Link.NIC, num_bytes=25e9, bytes_per_s=50e9)
    rows = (StageLinks(stage=StageName.WEIGHT_SYNC, time_s=2.0, uses=(use,)),)
    assert "weight sync 25%" in " ".join(plain(link_table(rows)).split())


@pytest.mark.parametrize(("gpu", "factor"), [("l40s", 1.5), ("l40s", 20.0), ("h100", 5.0)])
def test_a_calibrated_plan_sends_no_faster_than_its_links(gpu: str, factor: float, tmp_path: Path) -> None:
    """A profile may say that collectives are faster than the catalog has them, not that they beat the line rate."""
    before = generic_node(gpu).gpu
    values = tuple(
        ProfileValue(parameter=parameter, gpu=before.id, value=factor, low=factor, high=factor, catalog=1.0)
        for parameter in BANDWIDTH_OF.values()
    )
    profile = tmp_path / "profile.yaml"
    write_profile(Profile(values=values), profile)
    fixed = tuple(f"{worker}: tp=8" for worker in ("actor trainer", "reference", "rollout engine"))
    spec = WorkloadSpec(model="qwen3-8b", gpus=f"8x{gpu}", response_mean=2000.0, profile=str(profile), fix=fixed)
    plan = make_plan(build_request(spec))
    assert overused(link_use(plan)) == ()
    line = before.scale_up_bytes_per_s
    for op, law in plan.cluster.pools[0].node.gpu.collectives:
        for now, then in zip(law.bytes_per_s, before.collective(op).bytes_per_s, strict=True):
            # NVLink switches reduce on the way: eight H100 send 9/8 of what they reduce, where a ring sends 14/8.
            most = line * 14 / 9 if then > line else line
            assert now == pytest.approx(min(then * factor, most))
    assert parse_plan(plan_text(plan), where="plan").time_s == pytest.approx(plan.time_s)


def test_all_reduces_through_a_reducing_switch_send_less_than_a_ring() -> None:
    node = generic_node("h100")
    eight, two = (span(np.array([ranks]), 1.0, node) for ranks in (8.0, 2.0))
    law = node.gpu.collective(CollectiveOp.ALL_REDUCE)
    share = node.gpu.scale_up_bytes_per_s / law.bytes_per_s[-1]
    assert share < 1.0
    assert all_reduce_bytes(1e9, eight, node).scale_up_bytes == pytest.approx(1.75e9 * share)
    assert all_reduce_bytes(1e9, two, node).scale_up_bytes == pytest.approx(1e9)
    across = span(np.array([32.0]), 1.0, node)
    assert all_reduce_bytes(1e9, across, node).nic_bytes == ring_bytes(1e9, across, num_passes=2.0).nic_bytes
