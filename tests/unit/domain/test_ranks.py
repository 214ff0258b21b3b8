"""Ranks on GPUs: against brute force over every rank, nodes that are out, rack-scale domains, and saved plans."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.domain.execution import Execution, ExecutionMode
from planner.domain.hardware import Pool
from planner.domain.plan import DeviceGroup, Plan
from planner.domain.ranks import MeshAxis, WorkerRanks, rank_map, worker_ranks
from planner.domain.stages import WorkerName
from planner.domain.strategy import EngineIdle, RolloutStrategy, Sharding, TrainerStrategy
from planner.errors import InvalidInputError
from planner.files.catalog import load_node
from planner.files.outages import usable
from planner.files.plan import digests, parse_plan, plan_document, plan_text
from planner.report.cluster import rank_table
from planner.report.terminal import plain
from tests.golden.sample import ENGINE, TRAINER, grpo_plan, node, split_plan


def pool(*, num_nodes: int = 4, out: tuple[int, ...] = (), per_node: int = 8, domain: int = 8) -> Pool:
    made = replace(node(), gpus_per_node=per_node, scale_up_domain_gpus=domain)
    return Pool(name="h100", node=made, num_nodes=num_nodes, usd_per_gpu_hour=None, out_nodes=out)


def group(first: int, number: int) -> DeviceGroup:
    return DeviceGroup(id="g", pool="h100", gpu="h100-sxm", first_gpu=first, num_gpus=number, num_nodes=1)


def trainer(*, tp: int = 1, cp: int = 1, dp: int = 1, pp: int = 1, ep: int = 1, etp: int = 1) -> TrainerStrategy:
    return replace(TRAINER, num_gpus=tp * cp * dp * pp, tp=tp, cp=cp, pp=pp, ep=ep, etp=etp, sharding=Sharding.ZERO1)


def brute(axis: MeshAxis, found: WorkerRanks, place: str) -> int:
    """Most places that ranks which differ only along `axis` are on."""
    groups: dict[int, set[int]] = {}
    for rank in range(found.num_ranks):
        index = rank // axis.stride % axis.size
        where = found.domain_of(rank) if place == "domain" else found.node_of(rank)[0]
        groups.setdefault(rank - index * axis.stride, set()).add(where)
    return max(len(places) for places in groups.values())


@settings(max_examples=150, deadline=None)
@given(
    degrees=st.tuples(*[st.sampled_from([1, 2, 3, 4, 8])] * 4),
    ep=st.sampled_from([1, 2, 4]),
    first=st.integers(0, 40),
    shape=st.sampled_from([(8, 8), (6, 6), (4, 72), (4, 8), (1, 1)]),
    out=st.sets(st.integers(0, 12), max_size=3),
)
def test_every_rank_is_where_counting_says(
    degrees: tuple[int, ...], ep: int, first: int, shape: tuple[int, int], out: set[int]
) -> None:
    tp, cp, dp, pp = degrees
    if shape[1] > shape[0]:
        # Racks are cut to one size before ranks are laid out over them: tested below.
        out = set()
    strategy = trainer(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep if (tp * cp * dp) % ep == 0 else 1)
    per_node, domain = shape
    where = pool(num_nodes=9000, out=tuple(sorted(out)), per_node=per_node, domain=domain)
    found = worker_ranks(WorkerName.ACTOR_TRAINER, strategy, group(first, strategy.num_gpus), where)
    free = [number for number in range(5000) if number not in out]
    for rank in range(strategy.num_gpus):
        gpu = first + rank
        assert found.node_of(rank) == (free[gpu // per_node], gpu % per_node)
        assert found.domain_of(rank) == (
            free[gpu // per_node] * (per_node // domain) if domain <= per_node else gpu // domain
        )
    assert {tuple(found.coordinates(rank).values()) for rank in range(strategy.num_gpus)} == set(
        product(range(tp), range(cp), range(dp), range(pp))
    )
    for axis in (*found.axes, *found.expert_axes):
        assert axis.num_nodes == brute(axis, found, "node")
        assert axis.num_domains == brute(axis, found, "domain")


def test_trainer_ranks_run_tp_cp_dp_pp_and_experts_etp_ep() -> None:
    strategy = trainer(tp=2, cp=2, dp=4, pp=2, ep=4, etp=2)
    found = worker_ranks(WorkerName.ACTOR_TRAINER, strategy, group(0, 32), pool())
    assert [(axis.name, axis.size, axis.stride) for axis in found.axes] == [
        ("tp", 2, 1), ("cp", 2, 2), ("dp", 4, 4), ("pp", 2, 16),
    ]  # fmt: skip
    assert [(axis.name, axis.size, axis.stride) for axis in found.expert_axes] == [
        ("etp", 2, 1), ("ep", 4, 2), ("expert dp", 2, 8), ("pp", 2, 16),
    ]  # fmt: skip
    assert found.coordinates(19) == {"tp": 1, "cp": 1, "dp": 0, "pp": 1}


def test_engines_are_blocks_of_neighbours() -> None:
    strategy = RolloutStrategy(
        num_gpus=32, tp=4, pp=2, ep=4, engine_fraction=0.8, max_num_seqs=64, idle=EngineIdle.SLEEP
    )
    found = worker_ranks(WorkerName.ROLLOUT_ENGINE, strategy, group(0, 32), pool())
    assert [(axis.name, axis.stride, axis.num_nodes) for axis in found.axes] == [
        ("tp", 1, 1), ("pp", 4, 1), ("engine", 8, 4),
    ]  # fmt: skip
    assert found.expert_axes[0].name == "ep"


def test_attention_groups_lie_between_tensor_and_pipeline_ranks_and_experts_span_them() -> None:
    strategy = RolloutStrategy(
        num_gpus=32, tp=2, pp=1, ep=8, engine_fraction=0.8, max_num_seqs=64, idle=EngineIdle.SLEEP, attention_dp=8
    )
    found = worker_ranks(WorkerName.ROLLOUT_ENGINE, strategy, group(0, 32), pool())
    assert [(axis.name, axis.size, axis.stride, axis.num_nodes) for axis in found.axes] == [
        ("tp", 2, 1, 1), ("attention dp", 8, 2, 2), ("pp", 1, 16, 1), ("engine", 2, 16, 2),
    ]  # fmt: skip
    assert [(axis.name, axis.size, axis.stride, axis.num_nodes) for axis in found.expert_axes] == [
        ("expert tp", 2, 1, 1), ("ep", 8, 2, 2), ("pp", 1, 16, 1), ("engine", 2, 16, 2),
    ]  # fmt: skip
    assert found.coordinates(21) == {"tp": 1, "attention dp": 2, "pp": 0, "engine": 1}


def test_an_nvl72_domain_spans_eighteen_trays() -> None:
    tray = load_node("gb200-nvl72-tray")
    where = Pool(name="h100", node=tray, num_nodes=36, usd_per_gpu_hour=None)
    inside = worker_ranks(WorkerName.ACTOR_TRAINER, trainer(tp=8, dp=18), group(0, 144), where)
    tp, dp = inside.axes[0], inside.axes[2]
    assert (tp.num_nodes, tp.num_domains) == (2, 1)
    assert (dp.num_nodes, dp.num_domains) == (18, 2)
    assert [(run.first, run.count, run.ranks_each) for run in inside.domains] == [(0, 2, 72)]
    # 16 does not divide 72: the fifth group of 16 GPUs lies half in either domain.
    assert worker_ranks(WorkerName.ACTOR_TRAINER, trainer(tp=16, dp=9), group(0, 144), where).axes[0].num_domains == 2


def test_a_domain_has_the_number_of_its_node_where_nodes_are_out() -> None:
    """31 of 32 nodes: node and domain are the same place, and have the same number."""
    where = pool(num_nodes=31, out=(17,))
    found = worker_ranks(WorkerName.ACTOR_TRAINER, trainer(tp=8, dp=31), group(0, 248), where)
    assert [(run.first, run.count, run.first_rank) for run in found.domains] == [(0, 17, 0), (18, 14, 136)]
    assert found.domains == found.nodes
    assert all(found.domain_of(rank) == found.node_of(rank)[0] for rank in range(248))
    assert found.domain_of(135) == 16 and found.domain_of(136) == 18


def test_a_rack_keeps_its_number_when_a_tray_of_another_is_out() -> None:
    """Three racks of 18 trays, trays 3 and 4 out: racks are cut to 16 trays, and rack 2 begins at tray 36."""
    tray = load_node("gb200-nvl72-tray")
    left = usable(54, (3, 4), 18)
    cut = replace(tray, scale_up_domain_gpus=left.nodes_per_domain * 4)
    where = Pool(
        name="h100", node=cut, num_nodes=54 - len(left.out_nodes), usd_per_gpu_hour=None, out_nodes=left.out_nodes,
        rack_nodes=18,
    )  # fmt: skip
    assert left.nodes_per_domain == 16 and where.num_nodes == 48
    found = worker_ranks(WorkerName.ACTOR_TRAINER, trainer(tp=8, dp=24), group(0, 192), where)
    assert [(run.first, run.count, run.ranks_each) for run in found.domains] == [(0, 3, 64)]
    for rank in range(192):
        assert found.domain_of(rank) == found.node_of(rank)[0] // 18
    # A whole rack that is out leaves a hole in the numbers.
    gone = tuple(range(18, 36))
    rest = Pool(name="h100", node=tray, num_nodes=36, usd_per_gpu_hour=None, out_nodes=gone)
    found = worker_ranks(WorkerName.ACTOR_TRAINER, trainer(tp=8, dp=18), group(0, 144), rest)
    assert [(run.first, run.count, run.first_rank) for run in found.domains] == [(0, 1, 0), (2, 1, 72)]
    assert all(found.domain_of(rank) == found.node_of(rank)[0] // 18 for rank in range(144))


def test_racks_that_are_no_smaller_are_refused() -> None:
    tray = load_node("gb200-nvl72-tray")
    with pytest.raises(ValueError, match="made smaller"):
        Pool(name="h100", node=tray, num_nodes=36, usd_per_gpu_hour=None, rack_nodes=18)


def test_nodes_that_are_out_are_left_out() -> None:
    found = worker_ranks(WorkerName.ACTOR_TRAINER, trainer(dp=20), group(4, 20), pool(num_nodes=3, out=(1,)))
    assert [(run.first, run.count, run.first_rank, run.ranks_each, run.first_gpu) for run in found.nodes] == [
        (0, 1, 0, 4, 4), (2, 2, 4, 8, 0),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="ranks 0 to 19, not 20"):
        found.node_of(20)


def test_a_large_plan_stays_compact() -> None:
    found = worker_ranks(WorkerName.ACTOR_TRAINER, trainer(tp=8, dp=256, pp=8), group(0, 16384), pool(num_nodes=2048))
    assert len(found.nodes) == len(found.domains) == 1


def test_every_worker_of_a_plan_is_mapped_once() -> None:
    found = rank_map(split_plan())
    assert [(item.worker, item.device_group, item.num_ranks) for item in found] == [
        (WorkerName.ROLLOUT_ENGINE, "g0", 16),
        (WorkerName.REFERENCE, "g1", 16),
        (WorkerName.ACTOR_TRAINER, "g1", 16),
    ]
    assert found[2].node_of(0) == (2, 0)


def asynchronous() -> Plan:
    made = split_plan()
    return replace(made, execution=Execution(mode=ExecutionMode.BATCHES, staleness=1), period_s=made.makespan_s * 0.6)


def test_asynchronous_plans_have_the_same_ranks() -> None:
    assert rank_map(asynchronous()) == rank_map(split_plan())


# ---------------------------------------------------------------------------------------------- saved plans


def test_saved_plans_carry_their_ranks_and_old_ones_are_read() -> None:
    document = json.loads(plan_text(grpo_plan()))
    assert [item["worker"] for item in document["rank_map"]] == ["rollout engine", "reference", "actor trainer"]
    del document["rank_map"]
    old = json.dumps({**document, "digests": digests(document)})
    assert parse_plan(old, where="p") == grpo_plan()


def test_a_rank_elsewhere_is_refused() -> None:
    document = json.loads(plan_text(grpo_plan()))
    document["rank_map"][2]["nodes"][0]["first_gpu"] = 3
    text = json.dumps({**document, "digests": digests(document)})
    with pytest.raises(InvalidInputError, match=r"rank_map\[2\].nodes\[0\].first_gpu: 3, but 0 follows"):
        parse_plan(text, where="p")
    document["rank_map"].pop()
    text = json.dumps({**document, "digests": digests(document)})
    with pytest.raises(InvalidInputError, match="rank_map: does not follow"):
        parse_plan(text, where="p")


def test_the_map_is_a_few_lines_for_any_number_of_ranks() -> None:
    made = grpo_plan()
    engine = replace(ENGINE, num_gpus=16384)
    wide = replace(made.cluster.pools[0], num_nodes=2048)
    plan = replace(
        made,
        cluster=replace(made.cluster, pools=(wide,)),
        device_groups=(DeviceGroup(id="g0", pool="h100", gpu="h100-sxm", first_gpu=0, num_gpus=16384,
                                                 num_nodes=2048),),
        placements=tuple(replace(p, strategy=engine) if p.strategy == ENGINE else p for p in made.placements),
    )  # fmt: skip
    document = plan_document(plan)
    assert len(json.dumps(document["rank_map"])) < 4000


def test_the_table_names_axes_and_nodes() -> None:
    text = " ".join(plain(rank_table(split_plan()), width=100).split())
    assert "actor trainer 0-15 tp 8 in a node; dp 2 over 2 nodes" in text
    assert "h100 nodes 2-3, GPU 0-7" in text
