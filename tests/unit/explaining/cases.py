"""Plans to explain, each opened once, and independent planning to compare with."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from planner.domain.hardware import Cluster, Pool
from planner.domain.plan import Limits, Plan
from planner.domain.request import PlanRequest
from planner.domain.workload import RewardKind, Workload
from planner.executions import permitted_executions
from planner.explaining.case import Case, open_case
from planner.explaining.decisions import Decision, decide
from planner.explaining.sensitivity import Sensitivity, sensitivity
from planner.files.catalog import generic_node, load_model, load_overheads
from planner.files.framework import load_framework
from planner.parts import Shop
from planner.pipeline import make_plan
from planner.search.clock import Clock
from planner.search.solve import Solution
from planner.solving import best_solution, search_limits, solve_parts
from planner.splitting import without_fusions
from tests.factories import workload


def work(model: str, algorithm: str = "grpo", *, reward: RewardKind = RewardKind.RULE) -> Workload:
    base = workload(algorithm, prompts=64, group=1 if algorithm == "ppo" else 8, reward=reward)
    actor = load_model(model)
    scored = replace(base.reward, model=actor) if base.reward.model else base.reward
    return replace(base, actor=actor, critic=actor if base.critic else None, reward=scored)


def request_on(asked: Workload, num_nodes: int, gpu: str, limits: Limits, *, per_node: int = 8) -> PlanRequest:
    node = generic_node(gpu)
    node = node if per_node == node.gpus_per_node else node.with_gpus(per_node)
    pool = Pool(name=gpu, node=node, num_nodes=num_nodes, usd_per_gpu_hour=2.0)
    return PlanRequest(
        workload=asked, cluster=Cluster(pools=(pool,)), gpu_type_when_open=None, limits=limits, assumptions=(),
        overheads=load_overheads(),
    )  # fmt: skip


def on_pools(asked: Workload, pools: tuple[tuple[str, int], ...], limits: Limits) -> PlanRequest:
    found = tuple(
        Pool(name=gpu, node=generic_node(gpu), num_nodes=num_nodes, usd_per_gpu_hour=None) for gpu, num_nodes in pools
    )
    return PlanRequest(
        workload=asked, cluster=Cluster(pools=found), gpu_type_when_open=None, limits=limits, assumptions=(),
        overheads=load_overheads(),
    )  # fmt: skip


REQUESTS: dict[str, PlanRequest] = {
    "dense": request_on(work("qwen3-8b"), 1, "h100", Limits()),
    "moe": request_on(work("qwen3-30b-a3b"), 1, "h200", Limits()),
    "ppo": request_on(work("qwen3-8b", "ppo"), 1, "h200", Limits()),
    "asynchronous": request_on(work("qwen3-8b"), 2, "h100", Limits(max_staleness=2, allow_partial_rollouts=True)),
    "small": request_on(work("qwen3-0.6b"), 1, "h100", Limits(), per_node=2),
    "verl": request_on(work("qwen3-8b"), 1, "h100", Limits(framework="verl")),
    "pools": on_pools(work("qwen3-8b"), (("h100", 1), ("h20", 2)), Limits()),
}


@cache
def plan_of(name: str) -> Plan:
    return make_plan(REQUESTS[name])


@cache
def case_of(name: str) -> Case:
    plan = plan_of(name)
    # Many tests ask the same case: its time must not be over for the last of them.
    return open_case(replace(plan, limits=replace(plan.limits, time_limit_s=3600.0)), load_overheads())


@cache
def decisions_of(name: str) -> tuple[Decision, ...]:
    return decide(case_of(name))


@cache
def sensitivity_of(name: str) -> Sensitivity:
    return sensitivity(case_of(name))


def exact_time_s(request: PlanRequest, *, with_splits: bool = True) -> float:
    """Seconds of the very best plan of a request on several pools: every share of a split rollout is searched, and none
    has to gain anything. Without any code of the package."""
    assert request.cluster is not None
    shop = Shop(request, request.cluster, None, Clock(600.0))
    executions = permitted_executions(request.limits, None)
    parts = [shop.part(execution) for execution in executions]
    if with_splits and shop.may_split:
        parts += [part for e in without_fusions(executions) for part, _ in shop.split_parts(e, float("inf"))]
    limits = replace(search_limits(request.limits), tie_tolerance_ratio=0.0, num_alternatives=0)
    found = solve_parts(parts, limits)[1].solution
    return float("inf") if found is None else found.time_s


def planned(request: PlanRequest) -> Solution | None:
    """The best plan of a request, from scratch."""
    rules = load_framework(request.limits.framework) if request.limits.framework else None
    assert request.cluster is not None
    return best_solution(request, request.cluster, rules, ())
