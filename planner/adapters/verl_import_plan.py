"""verl's configuration in the terms of a plan: workload, placement and the strategy of each worker."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.adapters.findings import Severity
from planner.adapters.import_model import read_model
from planner.adapters.import_values import Values
from planner.adapters.verl_import_execution import read_execution
from planner.adapters.verl_import_workers import ACTOR, CRITIC, REF, ROLLOUT, Pools, Sizes, read_workers
from planner.domain.algorithm import find_algorithm
from planner.domain.execution import Execution
from planner.domain.request import FixedWorker
from planner.files.spec import WorkloadSpec

REWARD = "reward.reward_model"
TINY_KL = 1e-9
"""A coefficient of 0 with the loss switched on: the reference runs all the same."""
_ESTIMATORS = {
    "gae": "ppo", "grpo": "grpo", "rloo": "rloo", "rloo_vectorized": "rloo", "reinforce_plus_plus": "reinforce++",
    "reinforce_plus_plus_baseline": "reinforce++", "remax": "remax",
}  # fmt: skip
_DEFAULT_MAX_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """The plan that a configuration amounts to; `workers` is empty where too little is known."""

    spec: WorkloadSpec
    pools: Pools
    sizes: Sizes
    execution: Execution
    workers: tuple[FixedWorker, ...]
    is_megatron: bool
    has_critic: bool
    has_reference: bool

    @property
    def num_nodes(self) -> int:
        return self.pools.num_nodes

    @property
    def gpus_per_node(self) -> int:
        return self.pools.gpus_per_node


def read_plan(values: Values, entry: str, *, is_megatron: bool) -> ReadPlan:
    """Everything that a plan needs; what is missing is asked for through `values`."""
    mode = values.text("trainer.v1.trainer_mode", "sync") if _uses_v1(values, entry) else "sync"
    sizes = _sizes(values, entry, mode)
    algorithm = _algorithm(values)
    has_critic = _has_critic(values)
    kl = _kl(values)
    model = read_model(values, "actor_rollout_ref.model.path")
    critic = read_model(values, "critic.model.path") if has_critic else None
    reward_model = _reward_model(values)
    pools = _pools(values, entry, mode, has_reward_model=reward_model is not None)
    execution = read_execution(values, entry, mode)
    lora = values.whole("actor_rollout_ref.model.lora_rank", 0) or values.whole("actor_rollout_ref.model.lora.rank", 0)
    spec = WorkloadSpec(
        model=model,
        algorithm=algorithm,
        num_prompts=sizes.num_prompts,
        group_size=sizes.group_size,
        num_optimizer_steps=sizes.num_optimizer_steps,
        num_epochs=values.whole(f"{ACTOR}.ppo_epochs", 1, minimum=1),
        kl_coefficient=kl,
        oversampling_ratio=_oversampling(values, algorithm),
        prompt_max=sizes.prompt_max,
        response_max=sizes.response_max,
        critic=critic,
        reward="model" if reward_model is not None else "rule",
        reward_model=reward_model,
        rollout_precision=_rollout_precision(values),
        lora_rank=lora or None,
        framework="verl",
    )
    has_reference = kl > 0 and not lora
    workers = read_workers(
        values, pools, sizes, is_megatron=is_megatron, has_critic=has_critic, has_reference=has_reference,
        reward_model=reward_model, model=model, critic=critic, runs_ahead=execution.is_asynchronous,
    )  # fmt: skip
    if values.flag("distillation.enabled"):
        values.find(
            "distillation", Severity.WARNING, "the teacher models and their GPUs are no part of the prediction",
        )  # fmt: skip
    _say(
        values, pools, sizes, execution, has_reference=has_reference, has_critic=has_critic,
        has_reward_model=reward_model is not None,
    )  # fmt: skip
    return ReadPlan(
        spec=spec, pools=pools, sizes=sizes, execution=execution, workers=workers, is_megatron=is_megatron,
        has_critic=has_critic, has_reference=has_reference,
    )  # fmt: skip


def _uses_v1(values: Values, entry: str) -> bool:
    return entry == "main" and values.flag("trainer.use_v1", default=True)


def _sizes(values: Values, entry: str, mode: str) -> Sizes:
    mini = values.whole(f"{ACTOR}.ppo_mini_batch_size", 256, minimum=1)
    group = values.whole(f"{ROLLOUT}.n", 1, minimum=1)
    if entry == "fully_async":
        batches = values.whole("async_training.require_batches", 1, minimum=1)
        syncs = values.whole("async_training.trigger_parameter_sync_step", 4, minimum=1)
        prompts = mini * batches * syncs
        values.say(
            "batch between weight syncs", f"{prompts:,} prompts in {batches * syncs} updates of {mini:,}",
            "ppo_mini_batch_size x require_batches x trigger_parameter_sync_step",
        )  # fmt: skip
    else:
        prompts = values.whole("data.train_batch_size", 1024, minimum=1)
    steps = _steps(values, prompts, mini)
    return Sizes(
        num_prompts=prompts,
        group_size=group,
        mini_batch_prompts=mini,
        num_optimizer_steps=steps,
        prompt_max=values.whole("data.max_prompt_length", 512, minimum=1),
        response_max=values.whole("data.max_response_length", 512, minimum=1),
    )


def _steps(values: Values, prompts: int, mini: int) -> int:
    """Updates per iteration: the nearest number that divides the prompts, where the configuration's does not."""
    wanted = max(1, math.ceil(prompts / mini))
    if prompts % mini == 0 or prompts < mini:
        return wanted
    values.find(
        f"{ACTOR}.ppo_mini_batch_size", Severity.WARNING,
        f"{prompts} prompts are no multiple of {mini}: the last update is smaller",
        "choose a divisor of data.train_batch_size",
    )  # fmt: skip
    return next(steps for steps in range(wanted, prompts + 1) if prompts % steps == 0)


def _algorithm(values: Values) -> str:
    estimator = values.text("algorithm.adv_estimator", "gae")
    loss = values.text(f"{ACTOR}.policy_loss.loss_mode", "vanilla")
    name = _ESTIMATORS.get(estimator)
    if name is None:
        values.find(
            "algorithm.adv_estimator", Severity.NOTE, f"{estimator[:40]} is priced like GRPO, which has the same stages"
        )
        name = "grpo"
    if name == "grpo" and values.flag("algorithm.filter_groups.enable"):
        name = "dapo"
    elif name == "grpo" and loss == "gspo":
        name = "gspo"
    elif name == "grpo" and not values.flag("algorithm.norm_adv_by_std_in_grpo", default=True):
        name = "dr-grpo"
    name = _without_groups(values, name)
    values.say("algorithm", f"{name} ({estimator}, loss {loss})", values.origin("algorithm.adv_estimator"))
    return name


def _without_groups(values: Values, name: str) -> str:
    """verl/trainer/ppo/core_algos.py compute_grpo_outcome_advantage: with one response its score is the advantage."""
    algorithm, size = find_algorithm(name), values.whole(f"{ROLLOUT}.n", 1, minimum=1)
    if algorithm is None or size >= algorithm.min_group_size:
        return name
    is_meant = values.flag("distillation.enabled")
    values.find(
        f"{ROLLOUT}.n", Severity.NOTE if is_meant else Severity.WARNING,
        f"{size} response per prompt leaves {algorithm.title} nothing to compare: priced as REINFORCE++",
        "" if is_meant else f"{ROLLOUT}.n={algorithm.default_group_size}",
    )  # fmt: skip
    return "reinforce++"


def _has_critic(values: Values) -> bool:
    default = values.text("algorithm.adv_estimator", "gae") == "gae"
    return values.flag("critic.enable", default=default)


def _kl(values: Values) -> float:
    """The coefficient of whichever KL term is on; 0 without a reference."""
    in_loss = values.flag(f"{ACTOR}.use_kl_loss")
    in_reward = values.flag("algorithm.use_kl_in_reward")
    key = f"{ACTOR}.kl_loss_coef" if in_loss else "algorithm.kl_ctrl.kl_coef"
    if not in_loss and not in_reward:
        values.say("reference", "none: neither use_kl_loss nor use_kl_in_reward", f"{ACTOR}.use_kl_loss")
        return 0.0
    coefficient = values.number(key, 0.001)
    if coefficient <= 0:
        values.find(
            key, Severity.WARNING, "the coefficient is 0, and the reference model is loaded and run all the same",
            f"{ACTOR}.use_kl_loss=False and algorithm.use_kl_in_reward=False save its time and memory",
        )  # fmt: skip
    return max(coefficient, TINY_KL)


def _oversampling(values: Values, algorithm: str) -> float | None:
    """Prompts generated per prompt kept, where the configuration says it (DAPO before 0.9)."""
    generated = values.optional_whole("data.gen_batch_size", minimum=1)
    kept = values.whole("data.train_batch_size", 1024)
    if algorithm != "dapo" or generated is None or kept < 1:
        return None
    return max(1.0, generated / kept)


def _reward_model(values: Values) -> str | None:
    if not values.flag(f"{REWARD}.enable"):
        return None
    return read_model(values, f"{REWARD}.model_path")


def _rollout_precision(values: Values) -> str | None:
    quantization = values.text(f"{ROLLOUT}.quantization")
    if quantization and quantization != "fp8":
        values.find(f"{ROLLOUT}.quantization", Severity.NOTE, f"{quantization[:30]} is priced like bf16")
    return "fp8" if quantization == "fp8" else None


def _pools(values: Values, entry: str, mode: str, *, has_reward_model: bool) -> Pools:
    """GPUs of the trainer, of engines apart from it, and of a reward model of its own."""
    nodes = values.whole("trainer.nnodes", 1, minimum=1)
    per_node = values.whole("trainer.n_gpus_per_node", 8, minimum=1)
    engine_nodes = engine_per_node = 0
    if mode == "separate_async":
        engine_nodes = values.whole(f"{ROLLOUT}.nnodes", 0)
        engine_per_node = values.whole(f"{ROLLOUT}.n_gpus_per_node", per_node, minimum=1)
    elif entry in ("one_step_off", "fully_async"):
        engine_nodes = values.whole("rollout.nnodes", 1, minimum=1)
        engine_per_node = values.whole("rollout.n_gpus_per_node", 8, minimum=1)
    reward_nodes = reward_per_node = 0
    if has_reward_model and values.flag(f"{REWARD}.enable_resource_pool"):
        reward_nodes = values.whole(f"{REWARD}.nnodes", 0)
        reward_per_node = values.whole(f"{REWARD}.n_gpus_per_node", 8)
    reward_gpus = reward_nodes * reward_per_node
    parts = tuple(
        part
        for part in ((nodes, per_node), (engine_nodes, engine_per_node), (reward_nodes, reward_per_node))
        if part[0] * part[1]
    )
    shares_nodes = bool(engine_nodes) and per_node + engine_per_node <= _DEFAULT_MAX_NODE
    num_gpus = nodes * per_node + engine_nodes * engine_per_node + reward_gpus
    size = per_node + engine_per_node if shares_nodes else max(per_node, engine_per_node)
    return Pools(
        trainer_gpus=nodes * per_node,
        engine_gpus=engine_nodes * engine_per_node,
        reward_gpus=reward_gpus,
        gpus_per_node=size,
        trainer_nodes=nodes,
        num_nodes=math.ceil(num_gpus / size),
        node_parts=parts if len(parts) > 1 else (),
    )


def _say(
    values: Values,
    pools: Pools,
    sizes: Sizes,
    execution: Execution,
    *,
    has_reference: bool,
    has_critic: bool,
    has_reward_model: bool,
) -> None:
    nodes = "trainer.nnodes x trainer.n_gpus_per_node"
    if pools.engine_gpus:
        values.say("trainer GPUs", f"{pools.trainer_gpus}, the trainer's alone", nodes)
        values.say("rollout GPUs", f"{pools.engine_gpus} more", "rollout.nnodes x rollout.n_gpus_per_node")
    else:
        roles = ["rollout engines", "actor"]
        roles += [name for name, there in (("reference", has_reference), ("critic", has_critic)) if there]
        roles += ["reward model"] if has_reward_model and not pools.reward_gpus else []
        values.say("GPUs", f"{pools.trainer_gpus}, shared by {', '.join(roles)}", nodes)
    if execution.is_asynchronous:
        versions = "1 version" if execution.staleness == 1 else f"{execution.staleness} versions"
        values.say("execution", f"{execution.mode.value}, weights {versions} behind")
    samples = sizes.num_prompts * sizes.group_size
    values.say(
        "batch", f"{sizes.num_prompts:,} prompts x {sizes.group_size} = {samples:,} samples",
        values.origin("data.train_batch_size"),
    )  # fmt: skip
    mini = sizes.mini_batch_prompts * sizes.group_size
    values.say(
        "updates per iteration",
        f"{sizes.num_optimizer_steps} of {sizes.mini_batch_prompts:,} prompts ({mini:,} samples)",
        values.origin(f"{ACTOR}.ppo_mini_batch_size"),
    )


__all__ = ["ACTOR", "CRITIC", "REF", "REWARD", "ROLLOUT", "ReadPlan", "read_plan"]
