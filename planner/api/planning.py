"""Functions that plan, price and analyse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike

from planner.api.given import ModelLike, workload
from planner.api.results import AnalysisResult, PlanResult
from planner.files.spec import WorkloadSpec


def plan(
    model: ModelLike = None, *, algorithm: str | None = None, gpus: str | None = None,
    cluster: str | PathLike[str] | None = None, inter_pool: str | None = None, inter_pool_total: str | None = None,
    prompt_max: int | None = None, prompt_mean: float | None = None, response_max: int | None = None,
    response_mean: float | None = None, response_cv: float | None = None, num_prompts: int | None = None,
    group_size: int | None = None, num_optimizer_steps: int | None = None, num_epochs: int | None = None,
    kl_coefficient: float | None = None, oversampling_ratio: float | None = None, critic: str | None = None,
    reward: str | None = None, reward_model: str | None = None, judge_tokens: int | None = None,
    reward_latency: str | None = None, reward_parallel: int | None = None, train_precision: str | None = None,
    rollout_precision: str | None = None, lora_rank: int | None = None, framework: str | None = None,
    objective: str | None = None, deadline: str | None = None, budget: str | None = None, steps: int | None = None,
    max_gpus: int | None = None, memory_margin: str | None = None, prices: Sequence[str] = (),
    profile: str | PathLike[str] | None = None, staleness: int | None = None, allow: Sequence[str] = (),
    fusion: str | None = None, sync: str | None = None, policy: str | None = None,
    share: Sequence[str] = (), apart: Sequence[str] = (), fix: Sequence[str] = (), alternatives: int | None = None,
    time_limit: str | None = None, solver: str | None = None, seed: int | None = None,
) -> PlanResult:  # fmt: skip
    """The best plan of the declared space, with its proof: `rlplan plan`.

    Arguments are those of `workload`; what is not given has a default, which the plan lists as an assumption. Without
    `gpus` or `cluster`, or with a bare type, the smallest cluster that works is found.

    Raises InvalidInputError for wrong values (all of them at once), InfeasibleError when nothing fits and
    NoPlanFoundError when `time_limit` ends the search before a plan is found.
    """
    from planner.adapters.registry import check_workload
    from planner.files.workload import build_request
    from planner.pipeline import plan_with_search

    spec = workload(
        model, algorithm=algorithm, gpus=gpus, cluster=cluster, inter_pool=inter_pool,
        inter_pool_total=inter_pool_total, prompt_max=prompt_max, prompt_mean=prompt_mean,
        response_max=response_max, response_mean=response_mean, response_cv=response_cv,
        num_prompts=num_prompts, group_size=group_size, num_optimizer_steps=num_optimizer_steps,
        num_epochs=num_epochs, kl_coefficient=kl_coefficient, oversampling_ratio=oversampling_ratio,
        critic=critic, reward=reward, reward_model=reward_model, judge_tokens=judge_tokens,
        reward_latency=reward_latency, reward_parallel=reward_parallel, train_precision=train_precision,
        rollout_precision=rollout_precision, lora_rank=lora_rank, framework=framework, objective=objective,
        deadline=deadline, budget=budget, steps=steps, max_gpus=max_gpus, memory_margin=memory_margin,
        prices=prices, profile=profile, staleness=staleness, allow=allow, fusion=fusion, sync=sync, policy=policy,
        share=share, apart=apart, fix=fix, alternatives=alternatives, time_limit=time_limit, solver=solver,
        seed=seed,
    )  # fmt: skip
    planned = plan_with_search(check_workload(build_request(spec)))
    return PlanResult(plan=planned.plan, planned=planned)


def estimate(model: ModelLike) -> PlanResult:
    """Price a fixed configuration without a search: `rlplan estimate`.

    `model` is the path of a workload file with strategies, or a workload that has them:
    `estimate(workload("fixed.yaml", response_mean=3000))`. A configuration that does not fit is priced all the same;
    then the result's `problems` say how it fails. Raises InvalidInputError for wrong values.
    """
    from planner.files.fixed import build_fixed_workers, fixed_assumptions
    from planner.files.workload import build_request
    from planner.pipeline import estimate as price_fixed

    spec = _spec(model)
    request = build_request(spec)
    workers = build_fixed_workers(spec, request)
    request = replace(request, assumptions=(*request.assumptions, *fixed_assumptions(spec, workers)))
    return PlanResult(plan=price_fixed(request, workers))


def analyze(model: ModelLike, *, with_plan: bool = True) -> AnalysisResult:
    """Work, depth, parallelism and bytes of each stage, and their lower bounds: `rlplan analyze`.

    `model` may be a workload, `analyze(workload("qwen3-32b", gpus="32xh100"))`; `with_plan` False leaves out the
    search. Raises what `plan` raises.
    """
    from planner.analysis import analyze as view_of
    from planner.files.workload import build_request
    from planner.pipeline import make_plan

    request = build_request(_spec(model))
    return AnalysisResult(analysis=view_of(request, make_plan(request) if with_plan else None))


def describe_space() -> str:
    """What is searched, and what is left out and why, as text: `rlplan plan --describe-space`."""
    from planner.search.space import describe

    return describe()


def _spec(model: ModelLike) -> WorkloadSpec:
    return model if isinstance(model, WorkloadSpec) else workload(model)
