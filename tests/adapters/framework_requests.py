"""Requests that plans for every framework are made from: models, clusters, algorithms and placements."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from planner.api.given import workload
from planner.domain.plan import Plan
from planner.domain.request import PlanRequest
from planner.errors import InfeasibleError, InvalidInputError
from planner.files.spec import WorkloadSpec
from planner.files.workload import build_request
from planner.pipeline import make_plan

MEAN = 1500.0
SMALL = {"prompt_max": 1024, "response_max": 4096, "response_mean": MEAN, "num_prompts": 64, "group_size": 8}


def _ask(model: str, gpus: str, **given: object) -> WorkloadSpec:
    return workload(model, gpus=gpus, **{**SMALL, **given})  # type: ignore[arg-type]


REQUESTS: dict[str, WorkloadSpec] = {
    "dense-one-node": _ask("qwen3-8b", "8xh100"),
    "dense-two-nodes": _ask("qwen3-8b", "2x8xh100", num_optimizer_steps=4),
    "apart-one-node": _ask("qwen3-1.7b", "8xh100", apart=("rollout+actor",), num_optimizer_steps=2),
    "apart-two-nodes": _ask("qwen3-8b", "2x8xh100", apart=("rollout+actor",), num_optimizer_steps=4),
    "apart-small-nodes": _ask("qwen3-1.7b", "2x4xh100", apart=("rollout+actor",)),
    "batches": _ask("qwen3-8b", "2x8xh100", staleness=1, apart=("rollout+actor",)),
    "streaming": _ask("qwen3-4b", "2x8xh100", staleness=2, allow=("partial-rollouts",), apart=("rollout+actor",)),
    "moe": _ask("qwen3-30b-a3b", "2x8xh100"),
    "ppo": _ask("qwen3-4b", "8xh100", algorithm="ppo"),
    "ppo-epochs": _ask("qwen3-4b", "8xh100", algorithm="ppo", num_epochs=2, num_optimizer_steps=4),
    "ppo-reward-model": _ask("qwen3-4b", "2x8xh100", algorithm="ppo", reward="model"),
    "epochs": _ask("qwen3-4b", "8xh100", num_epochs=2, num_optimizer_steps=2),
    "lora": _ask("qwen3-8b", "8xh100", lora_rank=32),
    "lora-without-kl": _ask("qwen3-8b", "8xh100", lora_rank=32, kl_coefficient=0.0),
    "cpu-optimizer": _ask("qwen3-32b", "8xh100"),
    "odd-lengths": _ask("qwen3-8b", "8xh100", prompt_max=1001, response_max=3002),
    "fp8": _ask("qwen3-8b", "8xh100", rollout_precision="fp8"),
    "dapo": _ask("qwen3-8b", "8xh100", algorithm="dapo", kl_coefficient=0.001),
    "deepseek-v2": _ask("deepseek-v2-lite", "8xh100"),
    "small-gpus": _ask("qwen3-8b", "8xa100-40gb", kl_coefficient=0.001),
}


EPOCHS, LORA, REWARD = "passes over a batch once", "LoRA", "no reward model on GPUs"
REFUSED: dict[tuple[str, str], str] = {
    ("nemo-rl", "epochs"): EPOCHS,
    ("areal", "epochs"): EPOCHS,
    ("areal", "ppo-epochs"): EPOCHS,
    ("slime", "epochs"): EPOCHS,
    ("slime", "ppo-epochs"): EPOCHS,
    ("nemo-rl", "ppo-reward-model"): REWARD,
    ("areal", "ppo-reward-model"): REWARD,
    ("slime", "ppo-reward-model"): REWARD,
    ("openrlhf", "lora"): LORA,
    ("openrlhf", "lora-without-kl"): LORA,
    ("slime", "lora"): LORA,
    ("slime", "lora-without-kl"): LORA,
    ("areal", "lora"): "LoRA with --kl 0",
    ("areal", "cpu-optimizer"): "no plan fits",
    ("areal", "small-gpus"): "no plan fits",
    ("areal", "fp8"): "does not generate in fp8",
    ("openrlhf", "fp8"): "does not generate in fp8",
    ("slime", "deepseek-v2"): "no converter for the architecture deepseek_v2",
}
"""Requests that a framework cannot run, and what the refusal says."""


def request_for(framework: str | None, name: str) -> PlanRequest:
    request = build_request(replace(REQUESTS[name], framework=framework))
    return replace(request, limits=replace(request.limits, num_alternatives=0))


def same_request(plan: Plan) -> PlanRequest:
    """The request of a plan, with the workload as its framework runs it."""
    return PlanRequest(
        workload=plan.workload, cluster=plan.cluster, gpu_type_when_open=None, limits=plan.limits, assumptions=()
    )


@cache
def planned(request: PlanRequest) -> Plan | str:
    """The plan, or why there is none. What the restriction to a framework costs is not asked."""
    try:
        return make_plan(request, with_unrestricted=False)
    except (InfeasibleError, InvalidInputError) as error:
        return str(error)
