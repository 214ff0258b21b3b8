"""NeMo-RL's configuration in the terms of a plan: workload, placement, execution."""

from __future__ import annotations

from dataclasses import dataclass

from planner.adapters.findings import Severity
from planner.adapters.import_names import read_checkpoint
from planner.adapters.import_trainer import updates_per_iteration
from planner.adapters.import_values import Values
from planner.adapters.nemo_rl_import_workers import GENERATION, Pools, is_megatron, read_workers
from planner.domain.execution import Execution, ExecutionMode, ShardedSync
from planner.domain.request import FixedWorker
from planner.files.spec import WorkloadSpec

_ESTIMATORS = {
    "grpo": "grpo", "gdpo": "grpo", "gae": "ppo", "reinforce_plus_plus": "reinforce++", "raw_reward": "reinforce++",
}  # fmt: skip
USUAL_PROMPT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """The plan that a configuration amounts to."""

    spec: WorkloadSpec
    pools: Pools
    execution: Execution
    workers: tuple[FixedWorker, ...]
    num_samples: int
    samples_per_update: int
    max_tokens: int


def read_plan(values: Values, section: str) -> ReadPlan:
    """Everything that a plan needs; what is missing is asked for through `values`."""
    model = read_checkpoint(values, "policy.model_name")
    algorithm = _algorithm(values, section)
    has_critic = section == "ppo"
    critic = read_checkpoint(values, "value.model_name") if has_critic else None
    kl = values.number("loss_fn.reference_policy_kl_penalty", 0.0)
    prompts = values.whole(f"{section}.num_prompts_per_step", 32, minimum=1)
    group = values.whole(f"{section}.num_generations_per_prompt", 16, minimum=1)
    per_update = values.whole("policy.train_global_batch_size", prompts * group, minimum=1)
    steps = updates_per_iteration(
        values, "policy.train_global_batch_size", samples=prompts * group, per_update=per_update, prompts=prompts
    )
    prompt_max, response_max = _lengths(values)
    pools = _pools(values)
    execution = _execution(values, section, is_shared=pools.is_shared)
    lora = _lora(values)
    spec = WorkloadSpec(
        model=model, algorithm=algorithm, num_prompts=prompts, group_size=group, num_optimizer_steps=steps,
        num_epochs=values.whole("ppo.ppo_epochs", 1, minimum=1) if has_critic else 1, kl_coefficient=max(kl, 0.0),
        oversampling_ratio=_oversampling(values, section), prompt_max=prompt_max, response_max=response_max,
        critic=critic, reward="rule", train_precision="fp8" if _trains_fp8(values) else None,
        rollout_precision="fp8" if values.text(f"{GENERATION}.vllm_cfg.precision") == "fp8" else None,
        lora_rank=lora, framework="nemo-rl",
    )  # fmt: skip
    _reward(values)
    _say(values, pools, execution, section, prompts, group, per_update, steps, kl)
    workers = read_workers(values, pools, model, critic, has_critic=has_critic, has_reference=kl > 0 and lora is None)
    return ReadPlan(
        spec=spec, pools=pools, execution=execution, workers=workers, num_samples=prompts * group,
        samples_per_update=per_update, max_tokens=prompt_max + response_max,
    )  # fmt: skip


def _algorithm(values: Values, section: str) -> str:
    estimator = values.text(f"{section}.adv_estimator.name", "gae" if section == "ppo" else "grpo")
    name = "ppo" if section == "ppo" else _ESTIMATORS.get(estimator)
    if name is None or (name == "ppo" and section != "ppo"):
        values.find(
            f"{section}.adv_estimator.name",
            Severity.NOTE,
            f"{estimator[:40]} is priced like GRPO, with the same stages",
        )
        name = "grpo"
    leaves_out = values.flag(f"{section}.adv_estimator.use_leave_one_out_baseline")
    normalizes = values.flag(f"{section}.adv_estimator.normalize_rewards", default=True)
    if name == "grpo" and values.flag("loss_fn.sequence_level_importance_ratios"):
        name = "gspo"
    elif name == "grpo" and values.flag(f"{section}.use_dynamic_sampling"):
        name = "dapo"
    elif name == "grpo" and leaves_out and not normalizes:
        name = "rloo"
    elif name == "grpo" and values.number("loss_fn.ratio_clip_max", 0.2) > values.number("loss_fn.ratio_clip_min", 0.2):
        values.find(
            "loss_fn.ratio_clip_max", Severity.NOTE, "DAPO's clip range without dynamic sampling: the stages of GRPO"
        )
    values.say("algorithm", f"{name} ({estimator})", values.origin(f"{section}.adv_estimator.name"))
    return name


def _oversampling(values: Values, section: str) -> float | None:
    if not values.flag(f"{section}.use_dynamic_sampling"):
        return None
    ratio = values.number(f"{section}.batch_multiplier", 1.0)
    return ratio if ratio > 1 else None


def _lengths(values: Values) -> tuple[int, int]:
    """Longest prompt and response; max_total_sequence_length is the limit of both together."""
    total = values.whole("policy.max_total_sequence_length", 512, minimum=2)
    response = min(values.whole(f"{GENERATION}.max_new_tokens", total, minimum=1), total)
    prompt = min(values.whole("data.max_input_seq_length", total, minimum=1), total)
    if prompt + response <= total:
        return prompt, response
    if response < total:
        return total - response, response
    room = prompt if prompt < total else min(USUAL_PROMPT, total // 2)
    values.find(
        f"{GENERATION}.max_new_tokens", Severity.NOTE,
        f"responses may fill the {total:,} tokens of both: priced as prompts up to {room:,} and responses up to "
        f"{total - room:,}", "policy.generation.max_new_tokens and data.max_input_seq_length",
    )  # fmt: skip
    return room, total - room


def _lora(values: Values) -> int | None:
    section = "policy.megatron_cfg.peft" if is_megatron(values, "policy") else "policy.dtensor_cfg.lora_cfg"
    return values.whole(f"{section}.dim", 8, minimum=1) if values.flag(f"{section}.enabled") else None


def _trains_fp8(values: Values) -> bool:
    return is_megatron(values, "policy") and values.flag("policy.megatron_cfg.fp8_cfg.enabled")


def _reward(values: Values) -> None:
    if _reward_resource(values, "num_nodes"):
        values.find(
            "env.reward_model.resources", Severity.WARNING,
            "a reward model takes GPUs of the cluster for its own; its time is not priced",
        )  # fmt: skip


def _pools(values: Values) -> Pools:
    """`cluster.num_nodes` counts all nodes; generation on GPUs of its own takes some of them.

    nemo_rl/algorithms/grpo.py setup: reward model and teachers are taken off first.
    """
    nodes = values.whole("cluster.num_nodes", 1, minimum=1)
    per_node = values.whole("cluster.gpus_per_node", 1, minimum=1)
    left_nodes = nodes - _other_nodes(values, nodes)
    reward_gpus = _reward_resource(values, "gpus_per_node") if nodes == 1 else 0
    if left_nodes < 1 or per_node <= reward_gpus:
        values.find(
            "cluster.num_nodes", Severity.ERROR, "no node is left for the policy beside reward model and teachers",
            "more nodes",
        )  # fmt: skip
        left_nodes, reward_gpus = max(left_nodes, 1), 0
    whole = left_nodes * per_node - reward_gpus
    if values.flag(f"{GENERATION}.colocated.enabled", default=True):
        return Pools(trainer_gpus=whole, engine_gpus=whole, is_shared=True, num_nodes=nodes, gpus_per_node=per_node)
    resources = f"{GENERATION}.colocated.resources"
    if left_nodes == 1:
        key, limit = f"{resources}.gpus_per_node", whole - 1
        engines = values.optional_whole(key, minimum=1) or 0
    else:
        key, limit = f"{resources}.num_nodes", left_nodes - 1
        engines = (values.optional_whole(key, minimum=1) or 0) * per_node
    left = whole - engines
    if engines < 1 or left < 1:
        values.find(
            key, Severity.ERROR,
            "generation has GPUs of its own: it needs some of the cluster's, and some must be left to train",
            f"1 to {limit}",
        )  # fmt: skip
        engines, left = max(engines, 1), max(left, 1)
    return Pools(trainer_gpus=left, engine_gpus=engines, is_shared=False, num_nodes=nodes, gpus_per_node=per_node)


def _reward_resource(values: Values, name: str) -> int:
    """What a reward model takes; 0 where no environment uses one."""
    used = (values.text("data.default.env_name"), values.text("data.env_name"))
    return values.whole(f"env.reward_model.resources.{name}", 1) if "reward_model" in used else 0


def _other_nodes(values: Values, nodes: int) -> int:
    """Whole nodes of a reward model, and of teachers that have some of their own."""
    taken = _reward_resource(values, "num_nodes") if nodes > 1 else 0
    prefix = "on_policy_distillation"
    if not values.flag(f"{prefix}.non_colocated_teachers.enabled"):
        return taken
    teachers = values.config.get(f"{prefix}.teacher_model_by_agent_name")
    models = list(teachers.values()) if isinstance(teachers, dict) else []
    names = [str(name) for name in models]
    unique = values.flag(f"{prefix}.deduplicate_shared_teacher_checkpoints", default=True)
    count = len(set(names)) if unique else len(names)
    each = values.whole(f"{prefix}.non_colocated_teachers.default_teacher_cfg.num_nodes", 1, minimum=1)
    if values.config.get(f"{prefix}.non_colocated_teachers.teacher_overrides"):
        values.find(
            f"{prefix}.non_colocated_teachers.teacher_overrides", Severity.NOTE,
            f"teachers are counted with {each} nodes each, whatever their overrides say",
        )  # fmt: skip
    values.say("teachers", f"{count} on {each * count} nodes, which are not priced", prefix)
    return taken + each * count


def _execution(values: Values, section: str, *, is_shared: bool) -> Execution:
    prefix, transport = f"{section}.async_{section}", values.text(f"{GENERATION}.refit_transport")
    # Engines on the trainer's GPUs get full tensors by IPC, whatever the key says.
    moves_shards = transport == "nccl_reshard" and not is_shared
    ways = (ShardedSync.SHARD_TO_SHARD,) if moves_shards else ()
    if not values.flag(f"{prefix}.enabled"):
        return Execution(sharded_syncs=ways)
    in_flight = values.flag(f"{prefix}.in_flight_weight_updates")
    return Execution(
        mode=ExecutionMode.STREAMING if in_flight else ExecutionMode.BATCHES,
        staleness=values.whole(f"{prefix}.max_trajectory_age_steps", 1, minimum=1),
        sharded_syncs=ways,
    )


def _say(
    values: Values, pools: Pools, execution: Execution, section: str, prompts: int, group: int, per_update: int,
    steps: int, kl: float,
) -> None:  # fmt: skip
    total = f"{pools.num_nodes} nodes x {pools.gpus_per_node}, all of the cluster's"
    if pools.is_shared:
        values.say("GPUs", f"{pools.trainer_gpus}, shared by training and generation ({total})", "cluster.num_nodes")
    else:
        values.say("trainer GPUs", f"{pools.trainer_gpus} of {total}", "cluster.num_nodes")
        values.say("rollout GPUs", f"{pools.engine_gpus} of them", f"{GENERATION}.colocated.resources")
    if execution.is_asynchronous:
        values.say(
            "execution",
            f"{execution.mode.value}, up to {execution.staleness} versions late",
            f"{section}.async_{section}",
        )
    samples = prompts * group
    values.say(
        "batch", f"{prompts:,} prompts x {group} = {samples:,} samples",
        values.origin(f"{section}.num_prompts_per_step"),
    )  # fmt: skip
    values.say(
        "updates per iteration", f"{steps} of {min(per_update, samples):,} samples (not prompts)",
        values.origin("policy.train_global_batch_size"),
    )  # fmt: skip
    if kl <= 0:
        values.say("reference", "none: the KL penalty is 0", values.origin("loss_fn.reference_policy_kl_penalty"))
