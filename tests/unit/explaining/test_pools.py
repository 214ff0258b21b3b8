"""Several pools: shares of a split rollout and pools of workers are decisions, and every price is the best there is."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.domain.fixed import FixedField
from planner.domain.hardware import Cluster
from planner.domain.plan import Limits
from planner.domain.stages import WorkerName
from planner.explaining.conflict import explain_conflict
from planner.explaining.decisions import GROUPS, ITERATIONS, Decision
from planner.explaining.relaxations import each_node, faster_scale_up, with_memory
from planner.explaining.remedies import RemedyKind, Topic
from planner.explaining.replan import World, best_in, world_of
from tests.unit.explaining.cases import REQUESTS, case_of, decisions_of, exact_time_s, on_pools, plan_of, planned, work


def _found(subject: str, what: str) -> Decision:
    return next(item for item in decisions_of("pools") if (item.subject, item.what) == (subject, what))


def test_the_optimum_is_the_best_of_all_shares() -> None:
    case, request = case_of("pools"), REQUESTS["pools"]
    assert case.may_split
    assert case.optimum.time_s == pytest.approx(exact_time_s(request), rel=1e-9)
    assert plan_of("pools").bound <= case.optimum.time_s * (1 + 1e-9)


def test_the_split_is_a_decision_with_a_price() -> None:
    split = _found(ITERATIONS, "split rollout")
    is_split = plan_of("pools").execution.is_split
    assert (split.value != "none") == is_split
    assert split.rival is not None
    if is_split:
        assert split.rival.value == "none"
        whole_s = exact_time_s(REQUESTS["pools"], with_splits=False)
        assert split.rival.score.time_s == pytest.approx(whole_s, rel=1e-9)
        share = _found(ITERATIONS, "second share")
        assert share.rival is not None and share.rival.value != share.value
        assert share.rival.score.time_s >= case_of("pools").optimum.time_s * (1 - 1e-9)
    else:
        assert split.rival.value.endswith("/16")


def test_a_second_group_of_engines_shares_with_nobody_and_that_is_no_decision() -> None:
    pairs = [item.what for item in decisions_of("pools") if item.subject == GROUPS]
    assert pairs and not any(WorkerName.SECOND_ENGINE.value in what for what in pairs)


@pytest.mark.parametrize("field", ["tp", "offload"])
def test_prices_are_those_of_all_plans_with_the_decision_forced(field: str) -> None:
    item = _found(WorkerName.ACTOR_TRAINER.value, field)
    assert item.rival is not None
    fixed = FixedField(worker=WorkerName.ACTOR_TRAINER, field=field, value=item.rival.value)
    request = replace(REQUESTS["pools"], limits=Limits(fixed=(fixed,)))
    assert item.rival.score.time_s == pytest.approx(exact_time_s(request), rel=1e-9)


def test_each_worker_has_a_pool_and_a_price_for_the_other() -> None:
    case = case_of("pools")
    for worker in case.inputs.graph.workers:
        item = _found(worker.name.value, "pool")
        assert item.value in ("h100", "h20")
        if item.rival is not None:
            assert item.rival.value in {"h100", "h20"} - {item.value}
            assert item.rival.score.time_s >= case.optimum.time_s * (1 - 1e-9)


WORLDS: dict[str, tuple[Callable[[World], World], bool]] = {
    "shorter": (
        lambda w: replace(w, workload=replace(w.workload, response=replace(w.workload.response, mean_tokens=300.0))),
        False,
    ),
    "fast links": (lambda w: replace(w, cluster=each_node(w.cluster, lambda node: faster_scale_up(node, 2.0))), False),
    "more memory": (
        lambda w: replace(w, cluster=each_node(w.cluster, lambda n: with_memory(n, n.gpu.memory_bytes * 1.2))),
        True,
    ),
    "slow between pools": (lambda w: replace(w, cluster=replace(w.cluster, inter_pool_bytes_per_s=1e9)), False),
}


@pytest.mark.parametrize("name", WORLDS)
def test_the_fast_way_finds_the_best_share(name: str) -> None:
    change, has_other_memory = WORLDS[name]
    case = case_of("pools")
    world = change(world_of(case))
    fast = best_in(case, world, case.optimum, has_other_memory=has_other_memory)
    request = replace(REQUESTS["pools"], workload=world.workload, cluster=world.cluster, overheads=world.overheads)
    assert fast is not None and fast.time_s == pytest.approx(exact_time_s(request), rel=1e-9)


def test_a_conflict_names_the_pool_and_every_way_out_has_a_plan() -> None:
    request = on_pools(work("qwen3-32b"), (("h100", 1), ("l40s", 1)), Limits())
    assert request.cluster is not None
    small = tuple(replace(pool, node=pool.node.with_gpus(2)) for pool in request.cluster.pools)
    request = replace(request, cluster=Cluster(pools=small))
    assert planned(request) is None
    found = explain_conflict(request)
    assert found is not None and found.constraints and not found.not_reached
    assert any("in pool" in item.what for item in found.constraints)
    hardware = {Topic.GPU_MEMORY, Topic.NUM_GPUS, Topic.HOST_RAM, Topic.MARGIN}
    assert {item.topic for item in found.constraints} <= hardware
    more = [item for item in found.remedies if item.kind is RemedyKind.HARDWARE and "in pool" in item.what]
    assert more and all(item.found is not None for item in more)
    for item in more:
        num_gpus, name = int(item.what.split()[0]), item.what.split()[4]
        grown = tuple(replace(pool, num_nodes=num_gpus // 2) if pool.name == name else pool for pool in small)
        fewer = tuple(replace(pool, num_nodes=num_gpus // 2 - 1) if pool.name == name else pool for pool in small)
        assert planned(replace(request, cluster=Cluster(pools=grown))) is not None
        assert planned(replace(request, cluster=Cluster(pools=fewer))) is None
