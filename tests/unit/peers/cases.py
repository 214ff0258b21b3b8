"""Small requests that all tests of peers share; searched once per process."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from planner.domain.hardware import Cluster, Pool
from planner.domain.plan import Limits
from planner.domain.request import PlanRequest
from planner.domain.workload import RewardKind, Workload
from planner.files.catalog import generic_node
from planner.peers import compare
from planner.peers.task import PeerTask
from planner.solving import Outcome, search
from tests.factories import workload


def grpo() -> Workload:
    return workload("grpo", prompts=64, group=8)


def ppo() -> Workload:
    return workload("ppo", prompts=256, group=1, reward=RewardKind.MODEL)


def request_on(work: Workload, *pools: tuple[str, int], limits: Limits | None = None) -> PlanRequest:
    """A synchronous request on pools of (GPU type, nodes)."""
    made = tuple(Pool(name=gpu, node=generic_node(gpu), num_nodes=nodes, usd_per_gpu_hour=2.0) for gpu, nodes in pools)
    request = PlanRequest(
        workload=work,
        cluster=Cluster(pools=made),
        gpu_type_when_open=None,
        limits=limits or Limits(),
        assumptions=(),
    )
    return compare.synchronous(request)


@cache
def outcome_of(name: str, pools: tuple[tuple[str, int], ...]) -> Outcome:
    request = request_on({"grpo": grpo, "ppo": ppo}[name](), *pools)
    assert request.cluster is not None
    return search(request, request.cluster, None, with_splits=False)


def task_of(name: str, *pools: tuple[str, int]) -> PeerTask:
    return PeerTask.of(outcome_of(name, pools))


def with_memory(task: PeerTask, ratio: float) -> PeerTask:
    """The task on GPUs with `ratio` times the usable memory."""
    pools = tuple(replace(pool, usable_bytes=pool.usable_bytes * ratio) for pool in task.problem.pools)
    return replace(task, problem=replace(task.problem, pools=pools))
