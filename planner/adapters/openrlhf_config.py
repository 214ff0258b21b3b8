"""A plan as flags of OpenRLHF's `train_ppo_ray`.

Units that differ from the plan's: `--train.batch_size` counts responses, `--rollout.batch_size` prompts; token budgets
are per GPU and multiplied by ring and tensor parallelism inside OpenRLHF.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.adapters.export import execution_text, model_path
from planner.adapters.flags import Flag, FlagSection, FlagValue, flags
from planner.adapters.openrlhf_rules import STAGES, forward_tokens, train_tokens
from planner.adapters.overrides import ShellValue, UserText
from planner.adapters.roles import Roles, nodes_of
from planner.domain.execution import ExecutionMode
from planner.domain.stages import WorkerName
from planner.domain.strategy import EngineIdle, Offload, Recompute

_IMPORTANCE_LIMIT = 2.0
"""Upper bound of importance weights between engine and trainer (https://fengyao.notion.site/off-policy-rl)."""
_PREFIXES = {
    WorkerName.ACTOR_TRAINER: "actor",
    WorkerName.REFERENCE: "ref",
    WorkerName.CRITIC_TRAINER: "critic",
    WorkerName.REWARD_MODEL: "reward",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loss:
    """How OpenRLHF spells an algorithm; clip ranges are those of its paper."""

    estimator: str
    is_kl_in_loss: bool = False
    loss_type: str = "ppo"
    aggregation: str = "token-mean"
    clip_low: float = 0.2
    clip_high: float = 0.2


_LOSSES = {
    "ppo": _Loss(estimator="gae"),
    "grpo": _Loss(estimator="group_norm", is_kl_in_loss=True, aggregation="seq-mean-token-mean"),
    "dr-grpo": _Loss(estimator="dr_grpo", is_kl_in_loss=True),
    "dapo": _Loss(estimator="group_norm", is_kl_in_loss=True, clip_high=0.28),
    "gspo": _Loss(
        estimator="group_norm", is_kl_in_loss=True, loss_type="gspo", aggregation="seq-mean-token-mean",
        clip_low=3e-4, clip_high=4e-4,
    ),
    "rloo": _Loss(estimator="rloo"),
    "reinforce++": _Loss(estimator="reinforce"),
}  # fmt: skip
"""Sources: arXiv 1707.06347, 2402.03300, 2503.20783, 2503.14476, 2507.18071, 2402.14740, 2501.03262."""


def supported_algorithms() -> tuple[str, ...]:
    return tuple(_LOSSES)


def sections(roles: Roles) -> tuple[FlagSection, ...]:
    """The flags of a plan that `plan_problems` and `lacks` find no fault with."""
    return (
        _placement(roles),
        _models(roles),
        _training(roles),
        _rollout(roles),
        *_asynchrony(roles),
        _batch(roles),
        _algorithm(roles),
        _reward(roles),
        _data(),
        _run(roles),
    )


def _placement(roles: Roles) -> FlagSection:
    shapes: list[Flag] = []
    decisions: list[str] = []
    for name, prefix in _PREFIXES.items():
        worker = roles.workers.get(name)
        if worker is None:
            continue
        nodes, per_node = nodes_of(worker.group, worker.strategy.num_gpus)
        shapes += flags(prefix, ("num_nodes", nodes), ("num_gpus_per_node", per_node))
        decisions.append(f"{name.value}: {nodes} x {per_node} GPUs of device group {worker.group.id}")
    actor, reference = WorkerName.ACTOR_TRAINER, WorkerName.REFERENCE
    critic, reward = WorkerName.CRITIC_TRAINER, WorkerName.REWARD_MODEL
    colocations = flags(
        "train",
        ("colocate_all", roles.is_colocated),
        ("colocate_actor_ref", not roles.is_colocated and roles.shares(actor, reference)),
        ("colocate_critic_reward", not roles.is_colocated and roles.shares(critic, reward)),
    )
    return FlagSection(name="placement", decisions=tuple(decisions), flags=(*shapes, *colocations))


def _models(roles: Roles) -> FlagSection:
    workload = roles.workload
    paths: list[tuple[str, FlagValue | bool | tuple[FlagValue, ...]]] = [
        ("actor.model_name_or_path", UserText(model_path(workload.actor)))
    ]
    if workload.critic is not None:
        paths.append(("critic.model_name_or_path", UserText(model_path(workload.critic))))
    if workload.reward.model is not None:
        paths.append(("reward.model_name_or_path", UserText(model_path(workload.reward.model))))
    return FlagSection(name="models", decisions=("workload: models",), flags=flags("", *paths))


def _training(roles: Roles) -> FlagSection:
    strategy = roles.actor
    is_swapped = strategy.offload is Offload.OPTIMIZER_SWAP
    names = [name for name in _PREFIXES if name in roles.workers]
    decisions = [roles.decision(name) for name in names]
    return FlagSection(
        name="training",
        decisions=(*decisions, "--ds.* holds for all of them"),
        flags=(
            *flags(
                "ds",
                ("zero_stage", STAGES[strategy.sharding]),
                ("tensor_parallel_size", strategy.tp),
                ("ring_attn_size", strategy.cp),
                ("ring_attn_head_stride", 1),
                ("zpg", 1),
                ("adam_offload", strategy.offload is Offload.CPU_OPTIMIZER),
                ("enable_sleep", is_swapped),
                ("param_dtype", "bf16"),
                ("packing_samples", True),
                ("attn_implementation", "flash_attention_2"),
            ),
            *flags("", ("actor.gradient_checkpointing_enable", strategy.recompute is Recompute.FULL)),
            *(
                flag
                for name in (WorkerName.REFERENCE, WorkerName.REWARD_MODEL)
                if (other := roles.trainer(name)) is not None
                for flag in flags(_PREFIXES[name], ("offload", other.offload is not Offload.NONE))
            ),
        ),
    )


def _rollout(roles: Roles) -> FlagSection:
    strategy = roles.rollout
    sleeps = roles.is_colocated and strategy.idle is EngineIdle.SLEEP
    sync = "CUDA IPC on the same GPUs" if roles.is_colocated else "NCCL between the GPUs"
    return FlagSection(
        name="rollout",
        decisions=(roles.decision(WorkerName.ROLLOUT_ENGINE), f"weight sync: {sync}"),
        flags=flags(
            "vllm",
            ("num_engines", strategy.num_engines),
            ("tensor_parallel_size", strategy.tp),
            ("gpu_memory_utilization", strategy.engine_fraction),
            ("enable_sleep", sleeps),
            ("enable_prefix_caching", True),
            ("sync_backend", "nccl"),
        ),
    )


def _asynchrony(roles: Roles) -> tuple[FlagSection, ...]:
    execution = roles.plan.execution
    correction = "algo.advantage.is_correction"
    if not execution.is_asynchronous:
        off = flags("", (f"{correction}_level", "off"))
        return (FlagSection(name="execution", decisions=(execution_text(roles.plan),), flags=off),)
    return (
        FlagSection(
            name="execution",
            decisions=(
                execution_text(roles.plan),
                "responses come from older weights: truncated importance sampling corrects for it",
            ),
            flags=(
                *flags(
                    "train",
                    ("async_enable", True),
                    ("async_queue_size", execution.staleness),
                    ("partial_rollout_enable", execution.mode is ExecutionMode.STREAMING),
                ),
                *flags(
                    "",
                    (f"{correction}_level", "token"),
                    (f"{correction}_mode", "clip"),
                    (f"{correction}_gating", "ratio"),
                    (f"{correction}_threshold", _IMPORTANCE_LIMIT),
                ),
            ),
        ),
    )


def _batch(roles: Roles) -> FlagSection:
    workload = roles.workload
    return FlagSection(
        name="batch",
        decisions=(
            f"workload: {workload.num_prompts} prompts x {workload.group_size} responses per iteration, "
            f"{workload.num_optimizer_steps} optimizer steps of {roles.samples_per_step} responses",
            "token budgets are per GPU; OpenRLHF multiplies them by ring and tensor parallelism",
        ),
        flags=(
            *flags(
                "rollout",
                ("batch_size", workload.num_prompts),
                ("vllm_generate_batch_size", workload.num_prompts),
                ("n_samples_per_prompt", workload.group_size),
                ("micro_batch_size", 1),
                ("max_tokens_per_gpu", forward_tokens(roles)),
                ("max_new_tokens", workload.response.max_tokens),
                ("temperature", 1.0),
                ("top_p", 1.0),
            ),
            *flags(
                "train",
                ("batch_size", roles.samples_per_step),
                ("micro_batch_size", 1),
                ("dynamic_batch_enable", True),
                ("max_tokens_per_gpu", train_tokens(roles)),
                ("max_epochs", workload.num_epochs),
            ),
            *flags("data", ("max_len", workload.max_tokens)),
        ),
    )


def _algorithm(roles: Roles) -> FlagSection:
    workload = roles.workload
    loss = _LOSSES[workload.algorithm.name]
    in_loss = loss.is_kl_in_loss and workload.has_reference
    filters = workload.algorithm.oversampling_ratio > 1
    filtering = flags("algo", ("dynamic_filtering_enable", True), ("dynamic_filtering_range", (0.0, 1.0)))
    return FlagSection(
        name="algorithm",
        decisions=(f"workload: {workload.algorithm.title}, KL coefficient {workload.kl_coefficient:g}",),
        flags=(
            *flags(
                "algo",
                ("advantage.estimator", loss.estimator),
                ("advantage.gamma", 1.0),
                ("advantage.lambd", 1.0),
                ("kl.init_coef", workload.kl_coefficient),
                ("kl.use_loss", in_loss),
                ("kl.estimator", "k3" if in_loss else "k1"),
            ),
            *flags(
                "actor",
                ("policy_loss_type", loss.loss_type),
                ("loss_agg_mode", loss.aggregation),
                ("eps_clip_low_high", (loss.clip_low, loss.clip_high)),
            ),
            *(filtering if filters else ()),
        ),
    )


def _reward(roles: Roles) -> FlagSection:
    kind = roles.workload.reward.kind
    if roles.workload.reward.model is not None:
        decisions = (f"workload: reward by {kind.value} on GPUs, see models",)
        return FlagSection(name="reward", decisions=decisions, flags=())
    decisions = (f"workload: reward by {kind.value}, on the host",)
    return FlagSection(
        name="reward", decisions=decisions, flags=flags("reward", ("remote_url", ShellValue("REWARD_FUNCTION")))
    )


def _data() -> FlagSection:
    return FlagSection(
        name="data",
        decisions=("not decided by the plan: change as you like",),
        flags=flags(
            "data",
            ("prompt_dataset", ShellValue("TRAIN_DATA")),
            ("input_key", "input"),
            ("label_key", "label"),
            ("apply_chat_template", True),
        ),
    )


def _run(roles: Roles) -> FlagSection:
    critic = flags("critic", ("adam.lr", 1e-5)) if roles.workload.critic is not None else ()
    return FlagSection(
        name="run",
        decisions=("not decided by the plan: change as you like",),
        flags=(
            *flags("actor", ("adam.lr", 1e-6)),
            *critic,
            *flags("train", ("num_episodes", 1)),
            *flags("ckpt", ("output_dir", "out"), ("path", "out/ckpt"), ("save_steps", 20)),
        ),
    )
