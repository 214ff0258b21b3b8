"""Plans to explain, each opened once, and independent planning to compare with."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from planner.domain.hardware import Cluster, Pool
from planner.domain.plan import Limits, Plan
from planner.domain.request import PlanRequest
from planner.domain.workload import RewardKind, Workload
from planner.explaining.case import Case, open_case
from planner.explaining.decisions import Decision, decide
from planner.explaining.sensitivity import Sensitivity, sensitivity
from planner.files.catalog import generic_node, load_model, load_overheads
from planner.files.framework import load_framework
from planner.pipeline import make_plan
from planner.search.solve import Solution
from planner.solving import best_solution
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


REQUESTS: dict[str, PlanRequest] = {
    "dense": request_on(work("qwen3-8b"), 1, "h100", Limits()),
    "moe": request_on(work("qwen3-30b-a3b"), 1, "h200", Limits()),
    "ppo": request_on(work("qwen3-8b", "ppo"), 1, "h200", Limits()),
    "asynchronous": request_on(work("qwen3-8b"), 2, "h100", Limits(max_staleness=2, allow_partial_rollouts=True)),
    "small": request_on(work("qwen3-0.6b"), 1, "h100", Limits(), per_node=2),
    "verl": request_on(work("qwen3-8b"), 1, "h100", Limits(framework="verl")),
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


def planned(request: PlanRequest) -> Solution | None:
    """The best plan of a request, from scratch."""
    rules = load_framework(request.limits.framework) if request.limits.framework else None
    assert request.cluster is not None
    return best_solution(request, request.cluster, rules, ())
