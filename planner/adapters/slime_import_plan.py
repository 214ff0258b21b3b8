"""slime's flags in the terms of a plan: workload, placement, execution."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.adapters.findings import Severity
from planner.adapters.import_names import precision_of, read_checkpoint, shape_of
from planner.adapters.import_trainer import TINY_KL, USUAL_NODE, updates_per_iteration
from planner.adapters.import_values import Values
from planner.adapters.slime_import_workers import Pools, read_workers
from planner.domain.execution import IN_STEP, Execution, ExecutionMode
from planner.domain.request import FixedWorker
from planner.files.spec import WorkloadSpec

_ESTIMATORS = {
    "grpo": "grpo", "gspo": "gspo", "cispo": "grpo", "ppo": "ppo", "reinforce_plus_plus": "reinforce++",
    "reinforce_plus_plus_baseline": "reinforce++",
}  # fmt: skip
_SIZES = ("num-layers", "hidden-size", "num-attention-heads", "vocab-size")
USUAL_PROMPT = 1024
MODEL = "hf-checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """The plan that the flags amount to."""

    spec: WorkloadSpec
    pools: Pools
    execution: Execution
    workers: tuple[FixedWorker, ...]
    num_nodes: int
    gpus_per_node: int
    samples_per_update: int
    num_samples: int


def read_plan(values: Values, program: str) -> ReadPlan:
    """Everything that a plan needs; what is missing is asked for through `values`."""
    shape = shape_of(_sizes(values))
    model = read_checkpoint(values, MODEL, shape)
    _compare_shape(values, model)
    algorithm = _algorithm(values)
    kl = _kl(values)
    prompts = values.whole("rollout-batch-size", 1, minimum=1)
    if values.config.get("rollout-batch-size") is None:
        values.ask("rollout-batch-size")
    group = values.whole("n-samples-per-prompt", 1, minimum=1)
    per_update = _per_update(values, prompts * group)
    prompt_max, response_max = _lengths(values)
    steps = updates_per_iteration(
        values, "global-batch-size", samples=prompts * group, per_update=per_update, prompts=prompts
    )
    pools = _pools(values)
    execution = _execution(values, program)
    spec = WorkloadSpec(
        model=model, algorithm=algorithm, num_prompts=prompts, group_size=group, num_optimizer_steps=steps,
        num_epochs=1, kl_coefficient=kl, oversampling_ratio=_oversampling(values, prompts), prompt_max=prompt_max,
        response_max=response_max, critic=model if algorithm == "ppo" else None, reward="rule",
        rollout_precision="fp8" if precision_of(values, MODEL) == "fp8" else None, framework="slime",
    )  # fmt: skip
    _old_logprobs(values, algorithm, steps)
    _say(values, pools, execution, prompts, group, per_update, steps)
    workers = read_workers(
        values, pools, prompt_max + response_max, model, has_critic=algorithm == "ppo", has_reference=kl > 0
    )
    per_node = USUAL_NODE if pools.num_gpus >= USUAL_NODE else pools.num_gpus
    return ReadPlan(
        spec=spec, pools=pools, execution=execution, workers=workers, num_nodes=math.ceil(pools.num_gpus / per_node),
        gpus_per_node=per_node, samples_per_update=per_update, num_samples=prompts * group,
    )  # fmt: skip


def _sizes(values: Values) -> dict[str, int]:
    """Sizes of the model that Megatron's flags spell out."""
    found: dict[str, int] = {}
    for name in _SIZES:
        value = values.config.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            found[name] = value
    return found


def _compare_shape(values: Values, model: str | None) -> None:
    """slime/backends/megatron_utils/arguments.py _hf_validate_args."""
    from planner.files.catalog import load_model

    if model is None:
        return
    known = load_model(model)
    sizes = {"num-layers": known.num_layers, "hidden-size": known.hidden_size}
    for name, size in sizes.items():
        given = values.config.get(name)
        if isinstance(given, int) and given != size:
            values.find(
                name, Severity.ERROR,
                f"{given:,} differs from the checkpoint's {size:,} ({known.id}): slime refuses to start",
                "source the file of scripts/models that belongs to the checkpoint",
            )  # fmt: skip


def _algorithm(values: Values) -> str:
    estimator = values.text("advantage-estimator", "grpo")
    name = _ESTIMATORS.get(estimator)
    if name is None:
        values.wrong("advantage-estimator", estimator, f"one of {', '.join(_ESTIMATORS)}")
        name = "grpo"
    if name == "grpo" and values.config.get("dynamic-sampling-filter-path") is not None:
        name = "dapo"
    elif name == "grpo" and values.flag("disable-grpo-std-normalization"):
        name = "dr-grpo"
    values.say("algorithm", f"{name} ({estimator})", values.origin("advantage-estimator"))
    return name


def _kl(values: Values) -> float:
    """The coefficient of whichever KL term is on; the reference is loaded for either (slime/ray/placement_group.py)."""
    in_reward = values.number("kl-coef", 0.0)
    if in_reward:
        return in_reward
    if not values.flag("use-kl-loss"):
        values.say("reference", "none: neither --use-kl-loss nor --kl-coef", values.origin("use-kl-loss"))
        return 0.0
    coefficient = values.number("kl-loss-coef", 0.0)
    if coefficient <= 0:
        values.find(
            "use-kl-loss", Severity.WARNING,
            "the coefficient is 0, and the reference is loaded and run all the same",
            "leave --use-kl-loss out: it saves the reference's time and host RAM",
        )  # fmt: skip
    return max(coefficient, TINY_KL)


def _per_update(values: Values, samples: int) -> int:
    steps = values.optional_whole("num-steps-per-rollout", minimum=1)
    given = values.optional_whole("global-batch-size", minimum=1)
    if steps is None:
        if given is None:
            values.find(
                "global-batch-size", Severity.NOTE, "not given: priced as one update with all samples",
                f"--global-batch-size {samples}",
            )  # fmt: skip
        return given or samples
    wanted = max(1, samples // steps)
    if given is not None and given != wanted:
        values.find(
            "global-batch-size", Severity.ERROR,
            f"{given} is not {samples} samples / {steps} steps = {wanted}: slime refuses both", "leave one of them out",
        )  # fmt: skip
    return wanted


def _lengths(values: Values) -> tuple[int, int]:
    """Longest prompt and response; slime limits prompts only where it is told to."""
    response = values.optional_whole("rollout-max-response-len", minimum=1)
    prompt = values.optional_whole("rollout-max-prompt-len", minimum=1)
    context = values.optional_whole("rollout-max-context-len", minimum=2)
    if response is None:
        if context is None:
            values.ask("rollout-max-response-len")
            return USUAL_PROMPT, USUAL_PROMPT
        response = context - min(prompt or USUAL_PROMPT, context // 2)
    if prompt is None:
        prompt = USUAL_PROMPT if context is None or context <= response else context - response
        values.find(
            "rollout-max-prompt-len", Severity.NOTE, f"not given: priced with prompts of up to {prompt:,} tokens",
            "--set rollout-max-prompt-len=N",
        )  # fmt: skip
    return prompt, response


def _oversampling(values: Values, prompts: int) -> float | None:
    generated = values.optional_whole("over-sampling-batch-size", minimum=1)
    if generated is None or values.config.get("dynamic-sampling-filter-path") is None:
        return None
    return max(1.0, generated / prompts)


def _pools(values: Values) -> Pools:
    trainer = values.whole("actor-num-nodes", 1, minimum=1) * values.whole("actor-num-gpus-per-node", 8, minimum=1)
    engines = values.optional_whole("rollout-num-gpus")
    is_shared = values.flag("colocate")
    if engines is None and not is_shared:
        values.find(
            "rollout-num-gpus", Severity.ERROR, "is missing, and --colocate is off: no GPU generates",
            "--rollout-num-gpus N or --colocate",
        )  # fmt: skip
    return Pools(
        trainer_gpus=trainer, engine_gpus=(trainer if is_shared else 0) if engines is None else engines,
        is_shared=is_shared,
    )  # fmt: skip


def _execution(values: Values, program: str) -> Execution:
    """train_async.py generates one batch ahead; its fully asynchronous rollout keeps responses under way."""
    continuous = "fully_async" in values.text("rollout-function-path")
    if program.rpartition(".")[2] != "train_async":
        if continuous:
            values.find(
                "rollout-function-path", Severity.NOTE,
                "train.py waits for each rollout: priced as a synchronous iteration",
            )  # fmt: skip
        if values.flag("partial-rollout"):
            values.find(
                "partial-rollout", Severity.NOTE,
                "unfinished responses wait for the next batch: priced as if every batch finished its own",
            )  # fmt: skip
        return IN_STEP
    staleness = values.whole("update-weights-interval", 1, minimum=1)
    if continuous:
        values.find(
            "rollout-function-path", Severity.NOTE,
            "the fully asynchronous rollout has no limit on the lag: priced with one version",
        )  # fmt: skip
    mode = ExecutionMode.STREAMING if continuous else ExecutionMode.BATCHES
    return Execution(mode=mode, staleness=staleness)


def _old_logprobs(values: Values, algorithm: str, steps: int) -> None:
    """slime/backends/megatron_utils/actor.py can_reuse_log_probs_in_loss."""
    skips = steps == 1 and algorithm in ("grpo", "dr-grpo", "dapo", "reinforce++") and not values.number("kl-coef", 0.0)
    if skips or values.flag("use-rollout-logprobs"):
        why = "--use-rollout-logprobs" if not skips else "one update per iteration"
        values.find(
            "use-rollout-logprobs" if not skips else "global-batch-size", Severity.NOTE,
            f"{why}: slime leaves the old log-probs out, which are priced all the same",
        )  # fmt: skip


def _say(
    values: Values, pools: Pools, execution: Execution, prompts: int, group: int, per_update: int, steps: int
) -> None:
    trainer = "actor-num-nodes x actor-num-gpus-per-node"
    if pools.is_shared:
        values.say("GPUs", f"{pools.num_gpus}, shared by trainers and engines (--colocate)", trainer)
    else:
        values.say("trainer GPUs", f"{pools.trainer_gpus}, the trainers' alone", trainer)
        values.say("rollout GPUs", f"{pools.engine_gpus} more", "rollout-num-gpus")
    if execution.is_asynchronous:
        values.say("execution", f"{execution.mode.value}, up to {execution.staleness} versions late", "train_async.py")
    values.say(
        "batch", f"{prompts:,} prompts x {group} = {prompts * group:,} samples", values.origin("rollout-batch-size")
    )
    values.say(
        "updates per iteration", f"{steps} of {per_update:,} samples (not prompts)", values.origin("global-batch-size")
    )
