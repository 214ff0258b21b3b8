"""Permitted techniques and larger clusters never make the optimum worse, and what is known of each technique holds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from planner.domain.execution import ExecutionMode, Fusion, SchedulingPolicy
from planner.domain.hardware import Cluster, Pool
from planner.domain.lengths import LengthLaw
from planner.domain.plan import Limits, Plan
from planner.domain.request import PlanRequest
from planner.domain.stages import StageName, WorkerName
from planner.domain.workload import RewardKind
from planner.files.catalog import generic_node, load_model
from planner.files.plan import parse_plan, plan_text
from planner.pipeline import make_plan
from planner.search.options import take
from planner.search.problem import SearchLimits
from planner.search.solve import Solution, solve
from planner.solving import best_solution, search
from tests.property.test_planner import small_workload

ALGORITHMS = ("grpo", "ppo")
APART = ((WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER),)
TWO_POOLS = Limits(must_not_share=APART, must_share=((WorkerName.ACTOR_TRAINER, WorkerName.REFERENCE),))
SLACK = 1 + 1e-9


def asked(
    algorithm: str,
    *,
    gpus: int = 8,
    nodes: int = 1,
    prompts: int = 32,
    limits: Limits | None = None,
    reward: RewardKind = RewardKind.RULE,
) -> PlanRequest:
    """A small request: Qwen3-8B on one pool of H100."""
    work = small_workload(algorithm, prompts=prompts)
    if reward is RewardKind.MODEL:
        work = replace(work, reward=replace(work.reward, kind=reward, model=load_model("qwen3-8b")))
    pool = Pool(name="pool", node=generic_node("h100").with_gpus(gpus), num_nodes=nodes, usd_per_gpu_hour=2.0)
    return PlanRequest(
        workload=work,
        cluster=Cluster(pools=(pool,)),
        gpu_type_when_open=None,
        limits=limits or Limits(),
        assumptions=(),
    )


def best(request: PlanRequest) -> Solution:
    assert request.cluster is not None
    solution = best_solution(request, request.cluster, None, ())
    assert solution is not None
    return solution


def times(request: PlanRequest, steps: list[Limits]) -> list[float]:
    return [best(replace(request, limits=limits)).time_s for limits in steps]


def never_worse(values: list[float]) -> bool:
    return all(later <= earlier * SLACK for earlier, later in pairwise(values))


# ---------------------------------------------------------------------------------------------- permissions


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_more_staleness_and_partial_rollouts_never_hurt(algorithm: str, gpus: int) -> None:
    steps = [Limits(max_staleness=k) for k in range(4)]
    steps.append(Limits(max_staleness=3, allow_partial_rollouts=True))
    assert never_worse(times(asked(algorithm, gpus=gpus), steps))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("limits", [Limits(), TWO_POOLS])
def test_more_fusions_never_hurt(algorithm: str, limits: Limits) -> None:
    kinds: list[tuple[Fusion, ...]] = [(), (Fusion.INTER_STAGE,), (Fusion.INTER_STAGE, Fusion.INTRA_STAGE)]
    request = asked(algorithm, gpus=4, reward=RewardKind.MODEL)
    assert never_worse(times(request, [replace(limits, fusions=fusions) for fusions in kinds]))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("staleness", [0, 1])
def test_freer_policies_never_hurt(algorithm: str, staleness: int) -> None:
    """A controller that waits leaves out of first-come only overlap, and first-come is one of the planned orders."""
    order = (SchedulingPolicy.SEQUENTIAL, SchedulingPolicy.FIFO, SchedulingPolicy.PLANNED)
    steps = [Limits(policy=policy, fusions=(), max_staleness=staleness) for policy in order]
    assert never_worse(times(asked(algorithm, reward=RewardKind.MODEL), steps))


def test_fewer_rules_never_hurt() -> None:
    strict = replace(TWO_POOLS, max_staleness=2)
    steps = [strict, replace(strict, must_share=()), replace(strict, must_share=(), must_not_share=())]
    assert never_worse(times(asked("ppo"), steps))


# ---------------------------------------------------------------------------------------------- clusters

STALE = Limits(max_staleness=2, allow_partial_rollouts=True)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("limits", [STALE, replace(STALE, must_not_share=APART)])
def test_more_gpus_never_hurt_asynchronous_plans(algorithm: str, limits: Limits) -> None:
    sizes = [(2, 1), (4, 1), (8, 1), (8, 2)]
    assert never_worse([best(asked(algorithm, gpus=g, nodes=n, limits=limits)).time_s for g, n in sizes])


@pytest.mark.parametrize("limits", [STALE, replace(STALE, must_not_share=APART)])
def test_more_memory_or_nic_never_hurts_asynchronous_plans(limits: Limits) -> None:
    request = asked("ppo", nodes=2, limits=limits)
    assert request.cluster is not None
    base, (pool,) = best(request).time_s, request.cluster.pools
    for node in (
        replace(pool.node, host_ram_bytes=pool.node.host_ram_bytes * 2),
        replace(pool.node, nic_bytes_per_s=pool.node.nic_bytes_per_s * 3),
        replace(pool.node, gpu=replace(pool.node.gpu, hbm_bytes_per_s=pool.node.gpu.hbm_bytes_per_s * 1.5)),
    ):
        changed = replace(request, cluster=Cluster(pools=(replace(pool, node=node),)))
        assert best(changed).time_s <= base * SLACK
    # An engine's share is a fraction of memory, so that equal plans may reserve more: what fits less tightly counts.
    roomy = replace(pool.node, gpu=replace(pool.node.gpu, memory_bytes=pool.node.gpu.memory_bytes * 1.5))
    assert best(replace(request, cluster=Cluster(pools=(replace(pool, node=roomy),)))).time_s <= base * 1.02


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_faster_link_between_pools_never_hurts(staleness: int) -> None:
    pools = tuple(
        Pool(name=gpu, node=generic_node(gpu).with_gpus(4), num_nodes=1, usd_per_gpu_hour=2.0)
        for gpu in ("h100", "a100")
    )
    rates: list[tuple[float | None, float | None]] = [(1e8, 1e8), (1e9, 1e9), (1e9, None), (None, None)]
    found = []
    for rate, total in rates:
        cluster = Cluster(pools=pools, inter_pool_bytes_per_s=rate, inter_pool_total_bytes_per_s=total)
        request = replace(asked("grpo", limits=Limits(max_staleness=staleness)), cluster=cluster)
        found.append(best(request).time_s)
    assert never_worse(found)
    alone = replace(asked("grpo", limits=Limits(max_staleness=staleness)), cluster=Cluster(pools=pools[:1]))
    assert found[0] <= best(alone).time_s * SLACK


# ---------------------------------------------------------------------------------------------- steady states


@pytest.mark.parametrize("gpus", [2, 4, 8])
@pytest.mark.parametrize("prompts", [16, 64])
def test_staleness_one_is_enough_for_two_serial_pools(gpus: int, prompts: int) -> None:
    """Our sync stops both pools (of `a` and `b` seconds, `s` for the sync), so the period is at least max(a, b) + s;
    a batch and its sync in two periods is less than that for any a, b and s: one version of lag reaches it, and more
    buys nothing. (Were no pool stopped, it would take s <= |a - b|.)"""
    limits = replace(TWO_POOLS, max_staleness=1)
    ahead = {
        k: best(asked("grpo", gpus=gpus, prompts=prompts, limits=replace(limits, max_staleness=k))) for k in (1, 3)
    }
    assert ahead[3].time_s == pytest.approx(ahead[1].time_s, rel=1e-9)
    solution = ahead[1]
    assert solution.execution.mode is ExecutionMode.BATCHES
    seconds = {item.stage: item.end_s - item.start_s for item in solution.schedule}
    sync_s, rollout_s = seconds.pop(StageName.WEIGHT_SYNC), seconds.pop(StageName.ROLLOUT)
    assert seconds.pop(StageName.REWARD) == pytest.approx(0.0, abs=1e-9)
    assert solution.time_s == pytest.approx(max(rollout_s, sum(seconds.values())) + sync_s, rel=1e-6)


def test_three_serial_pools_can_use_more_staleness_than_one() -> None:
    limits = Limits(
        must_not_share=((WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER, WorkerName.REFERENCE),), fusions=()
    )
    found = times(asked("grpo", gpus=8), [replace(limits, max_staleness=k) for k in (1, 2, 3)])
    assert never_worse(found)
    assert found[2] == pytest.approx(found[1], rel=1e-9)


def test_asynchronous_is_slower_where_it_halves_a_small_pool() -> None:
    """On two GPUs a rollout on one and training on the other each take longer than both in turn on two."""
    apart = best(asked("grpo", gpus=2, limits=Limits(max_staleness=3, must_not_share=APART)))
    free = best(asked("grpo", gpus=2, limits=Limits(max_staleness=3)))
    assert apart.execution.is_asynchronous
    assert free.execution.mode is ExecutionMode.SYNCHRONOUS
    assert apart.time_s > free.time_s * 1.02
    # On a larger pool the same workload is faster apart.
    large = times(asked("grpo", gpus=8), [Limits(), Limits(max_staleness=3, must_not_share=APART)])
    assert large[1] < large[0]


def all_used_s(request: PlanRequest) -> float:
    """Seconds when every worker has to use all GPUs."""
    assert request.cluster is not None
    problem = search(request, request.cluster, None).problem
    tables = tuple(take(table, np.flatnonzero(table.num_gpus == request.cluster.num_gpus)) for table in problem.options)
    one_group = replace(problem, options=tables, structure_filter=lambda s: None if s.num_groups == 1 else "apart")
    return solve(one_group, SearchLimits(tie_tolerance_ratio=0.0, num_alternatives=0)).value


def test_more_gpus_are_slower_at_a_fixed_batch_only_when_all_must_be_used() -> None:
    """Short responses, few of them, over 40 Gbit/s: what more nodes save is less than what they have to exchange."""
    base = asked("grpo", prompts=4)
    assert base.cluster is not None
    work = replace(base.workload, response=LengthLaw(mean_tokens=128, cv=0.6, max_tokens=512))
    slow = replace(base.cluster.pools[0], node=replace(base.cluster.pools[0].node, nic_bytes_per_s=5e9))
    clusters = [Cluster(pools=(replace(slow, num_nodes=n),)) for n in (1, 2, 4)]
    requests = [replace(base, workload=work, cluster=cluster) for cluster in clusters]
    forced, free = [all_used_s(request) for request in requests], [best(request).time_s for request in requests]
    assert never_worse(free)
    assert all(f >= t / SLACK for f, t in zip(forced, free, strict=True))
    assert all(later > earlier for earlier, later in pairwise(forced)) and forced[-1] > forced[0] * 1.02, forced


# ---------------------------------------------------------------------------------------------- plans


def stale_plan(**given: bool) -> Plan:
    limits = Limits(max_staleness=2, num_alternatives=2, **given)  # type: ignore[arg-type]
    return make_plan(asked("grpo", gpus=8, limits=limits))


def test_without_staleness_the_period_is_the_makespan() -> None:
    plan = make_plan(asked("ppo", gpus=4))
    assert plan.execution.staleness == 0 and plan.period_s is None
    assert plan.time_s == plan.makespan_s


@pytest.mark.parametrize("partial", [False, True])
def test_equal_seeds_give_equal_bytes_of_asynchronous_plans(partial: bool) -> None:
    first, second = (stale_plan(allow_partial_rollouts=partial) for _ in range(2))
    assert first.execution.is_asynchronous and first.period_s is not None
    assert plan_text(first) == plan_text(second)
    assert plan_text(parse_plan(plan_text(first), where="plan")) == plan_text(first)


def test_the_gains_of_staleness_are_those_of_separate_plans() -> None:
    plan = stale_plan()
    shown = {gain.staleness: gain.time_s for gain in plan.staleness_gains if gain.is_permitted}
    assert set(shown) == {0, 1, 2}
    for staleness, time_s in shown.items():
        assert time_s is not None
        exact = best(asked("grpo", gpus=8, limits=Limits(max_staleness=staleness))).time_s
        # Near-equal plans on fewer GPUs are preferred.
        assert exact / SLACK <= time_s <= exact * 1.01 * SLACK
