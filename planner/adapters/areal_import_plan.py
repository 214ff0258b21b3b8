"""AReaL's configuration in the terms of a plan: workload, placement, execution."""

from __future__ import annotations

from dataclasses import dataclass

from planner.adapters.areal_import_workers import Layout, read_layout, read_workers
from planner.adapters.findings import Severity
from planner.adapters.import_names import read_checkpoint
from planner.adapters.import_values import Values
from planner.domain.execution import IN_STEP, Execution, ExecutionMode
from planner.domain.request import FixedWorker
from planner.files.spec import WorkloadSpec

USUAL_PROMPT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """The plan that a configuration amounts to."""

    spec: WorkloadSpec
    layout: Layout
    execution: Execution
    workers: tuple[FixedWorker, ...]
    max_tokens: int


def read_plan(values: Values) -> ReadPlan:
    """Everything that a plan needs; what is missing is asked for through `values`."""
    has_critic = isinstance(values.config.raw("critic"), dict)
    kl = values.number("actor.kl_ctl", 0.1)
    has_reference = kl > 0 and isinstance(values.config.raw("ref"), dict)
    lora = values.whole("actor.lora_rank", 32, minimum=1) if values.flag("actor.use_lora") else None
    model = read_checkpoint(values, "actor.path")
    critic = read_checkpoint(values, "critic.path") if has_critic else None
    if kl > 0 and not has_reference:
        values.find(
            "actor.kl_ctl", Severity.WARNING, "there is no ref section: no KL term is computed", "a ref section"
        )
    algorithm = _algorithm(values, has_critic=has_critic)
    prompts = values.whole("train_dataset.batch_size", 1, minimum=1)
    group = values.whole("gconfig.n_samples", 1, minimum=1)
    steps = _steps(values, prompts)
    prompt_max, response_max = _lengths(values)
    names = ("actor", *(("critic",) if has_critic else ()), *(("ref",) if has_reference else ()), "rollout")
    layout = read_layout(values, names)
    execution = _execution(values)
    spec = WorkloadSpec(
        model=model, algorithm=algorithm, num_prompts=prompts, group_size=group, num_optimizer_steps=steps,
        num_epochs=1, kl_coefficient=kl if has_reference else 0.0, prompt_max=prompt_max, response_max=response_max,
        critic=critic, reward="rule", lora_rank=lora, framework="areal",
    )  # fmt: skip
    _say(values, layout, execution, prompts, group, steps)
    limit = values.optional_whole("rollout.max_concurrent_rollouts", minimum=1)
    under_way = min(limit or prompts, prompts * (execution.staleness + 1)) * group
    models = {"actor": model, "critic": critic, "ref": model}
    workers = read_workers(values, layout, models, prompt_max + response_max, under_way)
    return ReadPlan(
        spec=spec, layout=layout, execution=execution, workers=workers, max_tokens=prompt_max + response_max
    )


def _algorithm(values: Values, *, has_critic: bool) -> str:
    """AReaL has no switch: normalisations, clip ranges and levels make the algorithm."""
    name = _named_algorithm(values, has_critic=has_critic)
    values.say("algorithm", name, "critic, actor.reward_norm, actor.adv_norm, actor.importance_sampling_level")
    return name


def _named_algorithm(values: Values, *, has_critic: bool) -> str:
    if has_critic:
        return "ppo"
    if values.text("actor.importance_sampling_level", "token") == "sequence":
        return "gspo"
    if values.flag("dynamic_bs") or values.config.get("actor.eps_clip_higher") is not None:
        return "dapo"
    norm = values.config.get("actor.reward_norm")
    if isinstance(norm, dict) and norm.get("mean_level") == "group":
        if norm.get("mean_leave1out") is True:
            return "rloo"
        return "grpo" if norm.get("std_level", "group") is not None else "dr-grpo"
    group = values.whole("gconfig.n_samples", 1, minimum=1)
    return "grpo" if group > 1 else "reinforce++"


def _steps(values: Values, prompts: int) -> int:
    """`ppo_n_minibatches` counts updates."""
    wanted = values.whole("actor.ppo_n_minibatches", 4, minimum=1)
    if prompts % wanted == 0:
        return wanted
    steps = next((count for count in range(wanted, prompts + 1) if prompts % count == 0), prompts)
    values.find(
        "actor.ppo_n_minibatches", Severity.NOTE,
        f"{prompts} prompts do not divide into {wanted} mini-batches: priced as {steps}",
    )  # fmt: skip
    return steps


def _lengths(values: Values) -> tuple[int, int]:
    response = values.whole("gconfig.max_new_tokens", 16384, minimum=1)
    prompt = values.optional_whole("train_dataset.max_length", minimum=1)
    if prompt is None:
        prompt = USUAL_PROMPT
        values.find(
            "train_dataset.max_length", Severity.NOTE, f"not given: priced with prompts of up to {prompt:,} tokens",
            "--set train_dataset.max_length=N",
        )  # fmt: skip
    return prompt, response


def _execution(values: Values) -> Execution:
    """Any lag means that requests are interrupted at a weight update and go on with the new weights."""
    staleness = values.whole("rollout.max_head_offpolicyness", 0)
    if values.config.get("async_training") is False:
        staleness = 0
    return IN_STEP if staleness == 0 else Execution(mode=ExecutionMode.STREAMING, staleness=staleness)


def _say(values: Values, layout: Layout, execution: Execution, prompts: int, group: int, steps: int) -> None:
    by_place: dict[int, list[str]] = {}
    for role in layout.roles:
        by_place.setdefault(role.first_gpu, []).append(role.name)
    for start, names in by_place.items():
        count = max(role.num_gpus for role in layout.roles if role.first_gpu == start)
        together = ", together" if len(names) > 1 else ", alone"
        source = "backend and scheduling_strategy of each role"
        values.say(f"GPUs {start} to {start + count - 1}", f"{', '.join(names)}{together}", source)
    if execution.is_asynchronous:
        values.say(
            "execution", f"{execution.mode.value}, up to {execution.staleness} versions late",
            values.origin("rollout.max_head_offpolicyness"),
        )  # fmt: skip
    values.say(
        "batch", f"{prompts:,} prompts x {group} = {prompts * group:,} samples",
        values.origin("train_dataset.batch_size"),
    )  # fmt: skip
    values.say("updates per iteration", f"{steps}", values.origin("actor.ppo_n_minibatches"))
