"""Options that describe a workload, once for all commands that take one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

from planner import cli_options as opt
from planner.commands.common import WORKLOAD_SUFFIXES, read_workload
from planner.files.spec import WorkloadSpec, override

OPTIONS: dict[str, object] = {
    "model": opt.Model,
    "algorithm": opt.Algorithm,
    "gpus": opt.Gpus,
    "cluster": opt.Cluster,
    "inter_pool": opt.InterPool,
    "inter_pool_total": opt.InterPoolTotal,
    "prompt_max": opt.PromptMax,
    "prompt_mean": opt.PromptMean,
    "response_max": opt.ResponseMax,
    "response_mean": opt.ResponseMean,
    "response_cv": opt.ResponseCv,
    "num_prompts": opt.NumPrompts,
    "group_size": opt.GroupSize,
    "num_optimizer_steps": opt.NumOptimizerSteps,
    "num_epochs": opt.NumEpochs,
    "kl_coefficient": opt.KlCoefficient,
    "oversampling_ratio": opt.OversamplingRatio,
    "critic": opt.Critic,
    "reward": opt.Reward,
    "reward_model": opt.RewardModel,
    "judge_tokens": opt.JudgeTokens,
    "reward_latency": opt.RewardLatency,
    "reward_parallel": opt.RewardParallel,
    "train_precision": opt.TrainPrecision,
    "rollout_precision": opt.RolloutPrecision,
    "lora_rank": opt.LoraRank,
    "framework": opt.Framework,
    "objective": opt.Objective,
    "deadline": opt.Deadline,
    "budget": opt.Budget,
    "steps": opt.Steps,
    "max_gpus": opt.MaxGpus,
    "memory_margin": opt.MemoryMargin,
    "prices": opt.Prices,
    "profile": opt.Profile,
    "staleness": opt.Staleness,
    "allow": opt.Allow,
    "fusion": opt.Fusion,
    "sync": opt.Sync,
    "policy": opt.Policy,
    "share": opt.Share,
    "apart": opt.Apart,
    "fix": opt.Fix,
    "alternatives": opt.Alternatives,
    "time_limit": opt.TimeLimit,
    "solver": opt.Solver,
    "seed": opt.Seed,
}
"""Field of WorkloadSpec -> the option that fills it, in the order of the help."""


def with_spec(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command, whose first parameter is a WorkloadSpec, the options of `names` in place of it.

    MODEL may be a workload file: then options override what it says.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=OPTIONS[name])
            for name in names
        ]

        def run(**values: object) -> None:
            given = {name: values.pop(name) for name in names}
            command(_spec(given), **values)

        run.__signature__ = inspect.Signature([*shared, *(p.replace(kind=p.KEYWORD_ONLY) for p in own)])  # type: ignore[attr-defined]
        run.__name__, run.__doc__, run.__annotations__ = command.__name__, command.__doc__, {}
        return run

    return decorate


def _spec(given: dict[str, object]) -> WorkloadSpec:
    """The spec of what was given on the command line, over that of the file if MODEL is one."""
    model = given.get("model")
    file = model if isinstance(model, str) and model.lower().endswith(WORKLOAD_SUFFIXES) else None
    known = {field.name for field in fields(WorkloadSpec)}
    flags = WorkloadSpec()
    for name, value in given.items():
        assert name in known
        if value is not None and not (name == "model" and file):
            flags = replace(flags, **{name: tuple(value) if isinstance(value, list) else value})  # type: ignore[arg-type]
    return override(read_workload(Path(file)) if file else WorkloadSpec(), flags)
