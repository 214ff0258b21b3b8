"""What a function of the API is asked -> a WorkloadSpec, the form that the command line uses too."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path

from planner.files.spec import WorkerSpec, WorkloadSpec, override

WORKLOAD_SUFFIXES = (".yaml", ".yml")
"""A model with such a name is a workload file."""

ModelLike = str | PathLike[str] | WorkloadSpec | None


def workload(
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
    strategies: Sequence[WorkerSpec] = (),
) -> WorkloadSpec:  # fmt: skip
    """A workload as a value, to be asked about more than once. None and empty mean: not given, so the default.

    `model` is a catalog id, a Hugging Face id, an alias, the path of a `config.json` or of a workload file (`.yaml`),
    or another workload; what else is given here overrides that. Lengths are in tokens; quantities are texts with a
    unit, as on the command line (`reward_latency="2s"`, `inter_pool="100 Gbit/s"`, `memory_margin="7%"`). `strategies`
    is for `estimate` only.

    Raises InvalidInputError for a file that cannot be read. Values are checked where the workload is used.
    """
    given = WorkloadSpec(
        model=None if isinstance(model, WorkloadSpec) or _is_workload_file(model) else _text(model),
        algorithm=algorithm, gpus=gpus, cluster=_text(cluster), inter_pool=inter_pool,
        inter_pool_total=inter_pool_total, prompt_max=prompt_max, prompt_mean=prompt_mean, response_max=response_max,
        response_mean=response_mean, response_cv=response_cv, num_prompts=num_prompts, group_size=group_size,
        num_optimizer_steps=num_optimizer_steps, num_epochs=num_epochs, kl_coefficient=kl_coefficient,
        oversampling_ratio=oversampling_ratio, critic=critic, reward=reward, reward_model=reward_model,
        judge_tokens=judge_tokens, reward_latency=reward_latency, reward_parallel=reward_parallel,
        train_precision=train_precision, rollout_precision=rollout_precision, lora_rank=lora_rank,
        framework=framework, objective=objective, deadline=deadline, budget=budget, steps=steps, max_gpus=max_gpus,
        memory_margin=memory_margin, prices=_texts(prices), profile=_text(profile), staleness=staleness,
        allow=_texts(allow), fusion=fusion, sync=sync, policy=policy,
        share=_texts(share), apart=_texts(apart), fix=_texts(fix), alternatives=alternatives, time_limit=time_limit,
        solver=solver, seed=seed, strategies=tuple(strategies),
    )  # fmt: skip
    return over_model(model, given)


def over_model(model: ModelLike, given: WorkloadSpec) -> WorkloadSpec:
    """What is given, over what `model` says where that is a workload or the path of a workload file."""
    if isinstance(model, WorkloadSpec):
        return override(model, given)
    if not _is_workload_file(model):
        return override(WorkloadSpec(), given)
    from planner.files.workload_file import read_workload

    return override(read_workload(Path(_text(model) or "")), given)


def _is_workload_file(model: ModelLike) -> bool:
    text = None if isinstance(model, WorkloadSpec) else _text(model)
    return text is not None and text.lower().endswith(WORKLOAD_SUFFIXES)


def _text(path: str | PathLike[str] | WorkloadSpec | None) -> str | None:
    assert not isinstance(path, WorkloadSpec)
    return None if path is None else fspath(path)


def _texts(values: Sequence[str]) -> tuple[str, ...]:
    """A single text is one value, not its letters."""
    return (values,) if isinstance(values, str) else tuple(values)
