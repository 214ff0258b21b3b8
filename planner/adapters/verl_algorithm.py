"""The sections of an export to verl that say what is learned: the algorithm's loss and the reward."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.adapters.export import answer_tokens, model_path
from planner.adapters.overrides import Override, Section, ShellValue, UserText, Value, under
from planner.adapters.roles import nodes_of
from planner.adapters.verl_context import ACTOR, REWARD_MODEL, Context, decision
from planner.domain.framework_placed import PlacedWorker
from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import EngineIdle, Offload, RolloutStrategy
from planner.domain.workload import RewardKind


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loss:
    """How verl spells an algorithm; clip ranges are those of its paper."""

    estimator: str
    is_kl_in_reward: bool = False
    loss_mode: str = "vanilla"
    aggregation: str = "token-mean"
    clip_low: float = 0.2
    clip_high: float = 0.2
    divides_by_std: bool = True
    gae_lambda: float = 1.0


LOSSES = {
    "ppo": _Loss(estimator="gae", is_kl_in_reward=True),
    "vapo": _Loss(estimator="gae", clip_high=0.28, gae_lambda=0.95),
    "grpo": _Loss(estimator="grpo", aggregation="seq-mean-token-mean"),
    "dr-grpo": _Loss(estimator="grpo", aggregation="seq-mean-token-sum-norm", divides_by_std=False),
    "dapo": _Loss(estimator="grpo", clip_high=0.28),
    "gspo": _Loss(estimator="grpo", loss_mode="gspo", aggregation="seq-mean-token-mean", clip_low=3e-4, clip_high=4e-4),
    "rloo": _Loss(estimator="rloo", is_kl_in_reward=True),
    "reinforce++": _Loss(estimator="reinforce_plus_plus", is_kl_in_reward=True),
}
"""Sources: arXiv 1707.06347, 2504.05118, 2402.03300, 2503.20783, 2503.14476, 2507.18071, 2402.14740, 2501.03262."""


def supported_algorithms() -> tuple[str, ...]:
    return tuple(LOSSES)


def algorithm_section(context: Context) -> Section:
    workload = context.workload
    loss = LOSSES[workload.algorithm.name]
    has_kl = workload.has_reference
    filters = workload.algorithm.oversampling_ratio > 1
    return Section(
        name="algorithm",
        decisions=(
            f"workload: {workload.algorithm.title}, KL coefficient {workload.kl_coefficient:g}, "
            f"{workload.algorithm.oversampling_ratio:g} x prompts generated",
        ),
        overrides=(
            *under(
                "algorithm",
                ("adv_estimator", loss.estimator),
                ("norm_adv_by_std_in_grpo", loss.divides_by_std),
                ("gamma", 1.0),
                ("lam", loss.gae_lambda),
                ("use_kl_in_reward", has_kl and loss.is_kl_in_reward),
                ("kl_penalty", "kl"),
                ("kl_ctrl.type", "fixed"),
                ("kl_ctrl.kl_coef", workload.kl_coefficient),
                ("filter_groups.enable", filters),
                ("filter_groups.metric", "reward"),
                ("filter_groups.max_inflight_gen_batches", math.ceil(workload.algorithm.oversampling_ratio)),
                ("rollout_correction.bypass_mode", False),
                *_correction(context),
            ),
            *under(
                ACTOR,
                ("policy_loss.loss_mode", loss.loss_mode),
                ("loss_agg_mode", loss.aggregation),
                ("clip_ratio", loss.clip_low),
                ("clip_ratio_low", loss.clip_low),
                ("clip_ratio_high", loss.clip_high),
                ("entropy_coeff", 0),
                ("use_kl_loss", has_kl and not loss.is_kl_in_reward),
                ("kl_loss_coef", workload.kl_coefficient),
                ("kl_loss_type", "low_var_kl"),
            ),
        ),
    )


def _correction(context: Context) -> tuple[tuple[str, Value], ...]:
    """Truncated importance weights per token for responses of older weights; old log-probs stay the proximal policy."""
    if not context.plan.execution.is_asynchronous:
        return ()
    return (
        ("rollout_correction.rollout_is", "token"),
        ("rollout_correction.rollout_is_threshold", 2.0),
        ("rollout_correction.rollout_rs", None),
    )


def reward_section(context: Context) -> Section:
    workload = context.workload
    worker = context.workers.get(WorkerName.REWARD_MODEL)
    function: tuple[Override, ...] = (
        Override(key="reward.custom_reward_function.path", value=ShellValue("REWARD_FUNCTION")),
        Override(key="reward.reward_manager.name", value="naive"),
    )
    if worker is None or workload.reward.model is None:
        extra: tuple[Override, ...] = ()
        if workload.reward.kind is RewardKind.SANDBOX:
            extra = under("reward", ("sandbox_fusion.max_concurrent", workload.reward.num_parallel))
        disabled = under(REWARD_MODEL, ("enable", False))
        decisions: tuple[str, ...] = (f"workload: reward by {workload.reward.kind.value}, on the host",)
        return Section(name="reward", decisions=decisions, overrides=(*disabled, *function, *extra))
    is_alone = worker.group.ranks != context.workers[WorkerName.ACTOR_TRAINER].group.ranks
    nodes, per_node = nodes_of(worker.group, worker.strategy.num_gpus)
    pool: tuple[tuple[str, Value], ...] = (("nnodes", nodes), ("n_gpus_per_node", per_node)) if is_alone else ()
    return Section(
        name="reward",
        decisions=(decision(context, WorkerName.REWARD_MODEL),),
        overrides=(
            *under(
                REWARD_MODEL,
                ("enable", True),
                ("enable_resource_pool", is_alone),
                *pool,
                ("model_path", UserText(model_path(workload.reward.model))),
            ),
            *under(f"{REWARD_MODEL}.rollout", *_reward_engine(context, worker)),
            *function,
        ),
    )


def _reward_engine(context: Context, worker: PlacedWorker) -> tuple[tuple[str, Value], ...]:
    workload, strategy = context.workload, worker.strategy
    answer = answer_tokens(workload)
    if isinstance(strategy, RolloutStrategy):
        sequences, fraction, sleeps = (
            strategy.max_num_seqs,
            strategy.engine_fraction,
            strategy.idle is EngineIdle.SLEEP,
        )
        ep, groups = strategy.ep, strategy.attention_dp
        batched = max(context.engine_tokens // groups, sequences)
    else:
        sequences = max(1, strategy.inference_tokens // workload.max_tokens)
        fraction, sleeps = _free_fraction(context, worker), strategy.offload is Offload.STATE_SWAP
        ep, groups, batched = 1, 1, strategy.inference_tokens
    return (
        ("name", "vllm"),
        ("tensor_model_parallel_size", strategy.tp),
        ("pipeline_model_parallel_size", 1),
        ("data_parallel_size", groups),
        ("expert_parallel_size", ep),
        ("gpu_memory_utilization", fraction),
        ("max_num_seqs", sequences),
        ("max_num_batched_tokens", batched),
        ("max_model_len", workload.max_tokens + answer),
        ("prompt_length", workload.max_tokens),
        ("response_length", answer),
        ("free_cache_engine", sleeps),
    )


def _free_fraction(context: Context, worker: PlacedWorker) -> float:
    """Share of GPU memory that the co-residents of a reward model and the margin leave, in whole percent."""
    total = context.plan.cluster.pool(worker.group.pool).node.gpu.memory_bytes
    memory = context.plan.placement(StageName.REWARD).gpu_memory
    if memory is None:
        return math.floor(100 * (1 - context.workload.memory_margin_ratio)) / 100
    idle = sum(term.value for term in memory.terms if term.name.startswith("idle:"))
    return math.floor(100 * (memory.usable_bytes - idle) / total) / 100
