"""OpenRLHF's flags in the terms of a plan: workload, placement, execution."""

from __future__ import annotations

from dataclasses import dataclass

from planner.adapters.findings import Severity
from planner.adapters.import_model import read_model
from planner.adapters.import_trainer import updates_per_iteration
from planner.adapters.import_values import Values
from planner.adapters.openrlhf_import_workers import Layout, read_layout, read_workers
from planner.domain.execution import IN_STEP, Execution, ExecutionMode
from planner.domain.request import FixedWorker
from planner.files.spec import WorkloadSpec

_ESTIMATORS = {
    "gae": "ppo", "group_norm": "grpo", "dr_grpo": "dr-grpo", "rloo": "rloo", "reinforce": "reinforce++",
    "reinforce_baseline": "reinforce++", "flash_reinforce": "reinforce++",
}  # fmt: skip
ACTOR = "actor.model_name_or_path"
CRITIC = "critic.model_name_or_path"
REWARD = "reward.model_name_or_path"
USUAL_PROMPT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """The plan that the flags amount to."""

    spec: WorkloadSpec
    layout: Layout
    execution: Execution
    workers: tuple[FixedWorker, ...]
    num_samples: int
    samples_per_update: int
    max_tokens: int


def read_plan(values: Values) -> ReadPlan:
    """Everything that a plan needs; what is missing is asked for through `values`."""
    algorithm = _algorithm(values)
    kl = values.number("algo.kl.init_coef", 0.01)
    has_reward = not values.text("reward.remote_url") and not values.text("train.agent_func_path")
    model = read_model(values, ACTOR)
    reward_model = _reward_model(values) if has_reward else None
    critic = (
        _critic(values, reward_model if has_reward else model, "reward model" if has_reward else "actor")
        if algorithm == "ppo"
        else None
    )
    prompts = values.whole("rollout.batch_size", 1024, minimum=1)
    group = values.whole("rollout.n_samples_per_prompt", 1, minimum=1)
    per_update = values.whole("train.batch_size", 128, minimum=1)
    steps = updates_per_iteration(
        values, "train.batch_size", samples=prompts * group, per_update=per_update, prompts=prompts
    )
    prompt_max, response_max = _lengths(values)
    layout = read_layout(values, has_reference=kl > 0, has_critic=algorithm == "ppo", has_reward=has_reward)
    execution = _execution(values)
    spec = WorkloadSpec(
        model=model, algorithm=algorithm, num_prompts=prompts, group_size=group, num_optimizer_steps=steps,
        num_epochs=values.whole("train.max_epochs", 1, minimum=1), kl_coefficient=max(kl, 0.0),
        prompt_max=prompt_max, response_max=response_max, critic=critic,
        reward="model" if has_reward else "rule", reward_model=reward_model,
        lora_rank=values.whole("ds.lora.rank", 0) or None, framework="openrlhf",
    )  # fmt: skip
    _say(values, layout, prompts, group, per_update, steps)
    if execution.is_asynchronous:
        values.say("execution", f"{execution.mode.value}, up to {execution.staleness} versions late", "--train.async_*")
    workers = read_workers(values, layout, prompt_max + response_max)
    if spec.lora_rank is not None:
        # The reference is the actor without its adapter.
        workers = tuple(item for item in workers if item.worker.value != "reference")
    return ReadPlan(
        spec=spec, layout=layout, execution=execution, workers=workers, num_samples=prompts * group,
        samples_per_update=per_update, max_tokens=prompt_max + response_max,
    )  # fmt: skip


def _algorithm(values: Values) -> str:
    estimator = values.text("algo.advantage.estimator", "gae")
    name = _ESTIMATORS.get(estimator, "grpo")
    if values.text("actor.policy_loss_type", "ppo") == "gspo" and name == "grpo":
        name = "gspo"
    elif values.flag("algo.dynamic_filtering_enable"):
        if name == "grpo":
            name = "dapo"
        else:
            values.find(
                "algo.dynamic_filtering_enable", Severity.NOTE,
                f"discarded groups are generated again: give --oversampling, {name} is priced without",
            )  # fmt: skip
    values.say("algorithm", f"{name} ({estimator})", values.origin("algo.advantage.estimator"))
    return name


def _reward_model(values: Values) -> str | None:
    """The first reward model; several are separated by commas."""
    text = values.text(REWARD)
    if "," in text:
        values.find(REWARD, Severity.NOTE, "several reward models: the first one is priced")
        values.config.set(REWARD, text.partition(",")[0], values.config.place(REWARD))
    return read_model(values, REWARD)


def _critic(values: Values, other: str | None, whose: str) -> str | None:
    """The critic starts as the reward model, or without one as the actor, unless it has a path of its own."""
    if values.config.get(CRITIC) is not None:
        return read_model(values, CRITIC)
    values.find(CRITIC, Severity.NOTE, f"not given: the critic starts as the {whose}")
    return other


def _lengths(values: Values) -> tuple[int, int]:
    """Longest prompt and response; --data.max_len is their sum."""
    total = values.whole("data.max_len", 2048, minimum=2)
    response = values.optional_whole("rollout.max_new_tokens", minimum=1)
    if response is None:
        prompt = min(USUAL_PROMPT, total // 2)
        values.find(
            "rollout.max_new_tokens", Severity.NOTE,
            f"not given: responses may fill --data.max_len; priced as prompts up to {prompt:,} and responses up to "
            f"{total - prompt:,} tokens", "--set rollout.max_new_tokens=N",
        )  # fmt: skip
        return prompt, total - prompt
    if response >= total:
        values.find(
            "rollout.max_new_tokens", Severity.WARNING,
            f"{response:,} tokens are no less than --data.max_len, {total:,}: prompts take room from responses",
            "--data.max_len as prompt and response together",
        )  # fmt: skip
        prompt = min(USUAL_PROMPT, total // 2)
        return prompt, total - prompt
    return total - response, response


def _execution(values: Values) -> Execution:
    if not values.flag("train.async_enable"):
        return IN_STEP
    mode = ExecutionMode.STREAMING if values.flag("train.partial_rollout_enable") else ExecutionMode.BATCHES
    return Execution(mode=mode, staleness=values.whole("train.async_queue_size", 1, minimum=1))


def _say(values: Values, layout: Layout, prompts: int, group: int, per_update: int, steps: int) -> None:
    roles = {
        "actor": layout.actor, "engines": layout.engines, "reference": layout.reference, "critic": layout.critic,
        "reward model": layout.reward,
    }  # fmt: skip
    by_place: dict[tuple[int, int], list[str]] = {}
    for name, where in roles.items():
        if where is not None:
            by_place.setdefault(where, []).append(name)
    for (start, count), names in by_place.items():
        together = "together" if len(names) > 1 else "alone"
        values.say(
            f"GPUs {start} to {start + count - 1}",
            f"{', '.join(names)}, {together}",
            "--*.num_nodes, --train.colocate_*",
        )
    samples = prompts * group
    values.say("batch", f"{prompts:,} prompts x {group} = {samples:,} samples", values.origin("rollout.batch_size"))
    values.say(
        "updates per iteration", f"{steps} of {min(per_update, samples):,} samples (not prompts)",
        values.origin("train.batch_size"),
    )  # fmt: skip
