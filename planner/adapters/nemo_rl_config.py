"""A plan as blocks of NeMo-RL's YAML.

Units that differ from the plan's: `train_global_batch_size` counts responses, not prompts; token budgets are per
micro-batch of one data-parallel rank, as in plans; `cluster.num_nodes` counts the nodes of the rollout too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.adapters.export import execution_text, model_path
from planner.adapters.nemo_rl_rules import KL_IN_REWARD, ON_HOST, SWAPS, cluster_shape
from planner.adapters.overrides import ShellValue, UserText
from planner.adapters.roles import Roles, rounded_up
from planner.adapters.yaml_text import Block, YamlValue
from planner.domain.execution import ExecutionMode, ShardedSync
from planner.domain.framework_trainers import pipeline_ends
from planner.domain.hardware import Precision
from planner.domain.model import Model
from planner.domain.stages import WorkerName
from planner.domain.strategy import Recompute, Sharding, TrainerStrategy

ENGINE_TOKENS = 8192
"""Tokens of one engine step (`max_num_batched_tokens`)."""
_LENGTH_ROUND = 64
"""`sequence_length_round` of the shipped configurations."""
_FP8_ROUND = 128
"""Transformer Engine's block scaling wants lengths in multiples of its blocks."""
_IMPORTANCE_LIMIT = 2.0
"""Upper bound of importance weights between engine and trainer (https://fengyao.notion.site/off-policy-rl)."""

_Entries = tuple[tuple[str, YamlValue], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loss:
    """How NeMo-RL spells an algorithm; clip ranges are those of its paper."""

    estimator: str = "grpo"
    divides_by_std: bool = True
    leaves_one_out: bool = False
    is_token_mean: bool = True
    is_ratio_per_sequence: bool = False
    clip_low: float = 0.2
    clip_high: float = 0.2


_LOSSES = {
    "ppo": _Loss(estimator="gae"),
    "grpo": _Loss(is_token_mean=False),
    "dapo": _Loss(clip_high=0.28),
    "gspo": _Loss(is_token_mean=False, is_ratio_per_sequence=True, clip_low=3e-4, clip_high=4e-4),
    "rloo": _Loss(divides_by_std=False, leaves_one_out=True),
    "reinforce++": _Loss(estimator="reinforce_plus_plus"),
}
"""Sources: arXiv 1707.06347, 2402.03300, 2503.14476, 2507.18071, 2402.14740, 2501.03262."""


def supported_algorithms() -> tuple[str, ...]:
    return tuple(_LOSSES)


def blocks(roles: Roles, backend: str) -> tuple[Block, ...]:
    """The configuration of a plan that `plan_problems` and `lacks` find no fault with.

    `backend` is the trainer's: `dtensor` or `megatron`.
    """
    return (
        _algorithm(roles),
        *_asynchrony(roles),
        _loss(roles),
        *_policy(roles, backend),
        _generation(roles),
        *_value(roles, backend),
        _cluster(roles),
        _data(roles),
        _run(),
    )


def _section(roles: Roles) -> str:
    return "ppo" if roles.workload.critic is not None else "grpo"


def _algorithm(roles: Roles) -> Block:
    workload = roles.workload
    loss = _LOSSES[workload.algorithm.name]
    filters = workload.algorithm.oversampling_ratio > 1
    entries: _Entries = (
        ("num_prompts_per_step", workload.num_prompts),
        ("num_generations_per_prompt", workload.group_size),
        ("max_rollout_turns", 1),
        ("use_dynamic_sampling", filters),
        ("batch_multiplier", workload.algorithm.oversampling_ratio if filters else 1),
        ("dynamic_sampling_max_gen_batches", 10),
        ("overlong_filtering", False),
        ("reward_shaping.enabled", False),
        ("reward_scaling.enabled", False),
        ("skip_reference_policy_logprobs_calculation", not workload.has_reference),
        # Without validation data.
        ("val_period", 0),
        ("val_at_start", False),
        ("val_at_end", False),
    )
    return Block(
        path=_section(roles),
        decisions=(
            f"workload: {workload.algorithm.title}, {workload.num_prompts} prompts x {workload.group_size} responses, "
            f"{workload.num_optimizer_steps} optimizer steps, {workload.num_epochs} passes",
        ),
        entries=(*entries, *_estimator(roles, loss)),
    )


def _estimator(roles: Roles, loss: _Loss) -> _Entries:
    workload = roles.workload
    if workload.critic is not None:
        return (
            ("ppo_epochs", workload.num_epochs),
            ("policy_training_start_step", 0),
            # An asynchronous run is limited by steps only.
            ("max_num_epochs", -1 if roles.plan.execution.is_asynchronous else 1),
            ("adv_estimator.name", loss.estimator),
            ("adv_estimator.gae_lambda", 1.0),
            ("adv_estimator.gae_gamma", 1.0),
            ("adv_estimator.normalize_advantages", True),
        )
    return (
        ("normalize_rewards", loss.divides_by_std),
        ("use_leave_one_out_baseline", loss.leaves_one_out),
        ("adv_estimator.name", loss.estimator),
        ("adv_estimator.normalize_rewards", loss.divides_by_std),
        ("adv_estimator.use_leave_one_out_baseline", loss.leaves_one_out),
        ("adv_estimator.minus_baseline", workload.group_size > 1),
    )


def _asynchrony(roles: Roles) -> tuple[Block, ...]:
    execution = roles.plan.execution
    section = _section(roles)
    entries: tuple[tuple[str, YamlValue], ...] = (("enabled", execution.is_asynchronous),)
    if execution.is_asynchronous:
        entries = (
            *entries,
            ("max_trajectory_age_steps", execution.staleness),
            ("in_flight_weight_updates", execution.mode is ExecutionMode.STREAMING),
            ("recompute_kv_cache_after_weight_updates", False),
        )
    return (Block(path=f"{section}.async_{section}", decisions=(execution_text(roles.plan),), entries=entries),)


def _loss(roles: Roles) -> Block:
    workload, execution = roles.workload, roles.plan.execution
    loss = _LOSSES[workload.algorithm.name]
    is_off_policy = execution.is_asynchronous or workload.rollout_precision is Precision.FP8
    decisions = [f"workload: {workload.algorithm.title}, KL coefficient {workload.kl_coefficient:g}"]
    if is_off_policy:
        reason = "older weights" if execution.is_asynchronous else "fp8 weights"
        decisions.append(f"responses come from {reason}: truncated importance sampling corrects for it")
    return Block(
        path="loss_fn",
        decisions=tuple(decisions),
        entries=(
            ("reference_policy_kl_penalty", workload.kl_coefficient),
            ("reference_policy_kl_type", "k3"),
            ("use_kl_in_reward", workload.has_reference and workload.algorithm.name in KL_IN_REWARD),
            ("ratio_clip_min", loss.clip_low),
            ("ratio_clip_max", loss.clip_high),
            ("ratio_clip_c", None),
            ("disable_ppo_ratio", False),
            ("sequence_level_importance_ratios", loss.is_ratio_per_sequence),
            ("token_level_loss", loss.is_token_mean),
            ("force_on_policy_ratio", not workload.needs_old_logprob),
            ("use_importance_sampling_correction", is_off_policy),
            ("truncated_importance_sampling_type", "tis" if is_off_policy else None),
            ("truncated_importance_sampling_ratio", _IMPORTANCE_LIMIT if is_off_policy else None),
            ("truncated_importance_sampling_ratio_min", None),
        ),
    )


def _policy(roles: Roles, backend: str) -> tuple[Block, ...]:
    workload, strategy = roles.workload, roles.actor
    size: _Entries = (
        ("model_name", UserText(model_path(workload.actor))),
        ("max_total_sequence_length", workload.max_tokens),
        ("precision", "bfloat16"),
        ("train_global_batch_size", roles.samples_per_step),
        # Budgets of tokens decide; equal numbers pass the check for tp >= 4.
        ("train_micro_batch_size", 1),
        ("logprob_batch_size", 1),
        # With GPUs of its own, the policy swaps only for log-probs.
        ("offload_optimizer_for_logprob", strategy.offload in SWAPS),
    )
    decisions = [roles.decision(WorkerName.ACTOR_TRAINER)]
    if WorkerName.REFERENCE in roles.workers:
        decisions.append(f"{roles.decision(WorkerName.REFERENCE)} (the policy with other weights)")
    decisions.append(f"{roles.samples_per_step} responses per optimizer step")
    head = Block(path="policy", decisions=tuple(decisions), entries=size)
    return (
        head,
        *_layout("policy", strategy, workload.actor, backend, roles),
        _budgets("policy", roles, backend, strategy.micro_batch_tokens, roles.forward_tokens, strategy),
    )


def _multiple(strategy: TrainerStrategy, roles: Roles) -> int:
    """What lengths must divide by: tp ranks, two chunks per cp rank, blocks of fp8."""
    shards = strategy.tp * (2 * strategy.cp if strategy.cp > 1 else 1)
    return math.lcm(shards, _FP8_ROUND) if roles.workload.train_precision is Precision.FP8 else shards


def _budgets(path: str, roles: Roles, backend: str, train: int, forward: int, strategy: TrainerStrategy) -> Block:
    """Micro-batches of packed tokens; DTensor with context or expert parallelism batches by tokens without packing."""
    multiple = _multiple(strategy, roles)
    step = math.lcm(multiple, _LENGTH_ROUND)
    is_value = path == "value"
    packs = backend == "megatron" or (strategy.cp * strategy.ep == 1 and not is_value)
    by_tokens = not packs and not is_value
    tokens: _Entries = (
        ("train_mb_tokens", rounded_up(train, step)),
        ("logprob_mb_tokens", rounded_up(forward, step)),
    )
    packing = (*((f"sequence_packing.{key}", value) for key, value in tokens),) if packs else ()
    batching = (*((f"dynamic_batching.{key}", value) for key, value in tokens),) if by_tokens else ()
    return Block(
        path=path,
        decisions=(),
        entries=(
            ("make_sequence_length_divisible_by", multiple),
            ("sequence_packing.enabled", packs),
            *packing,
            ("dynamic_batching.enabled", by_tokens),
            *batching,
        ),
    )


def _layout(path: str, strategy: TrainerStrategy, model: Model, backend: str, roles: Roles) -> tuple[Block, ...]:
    # A value model trains all its weights.
    rank = roles.workload.lora_rank if path == "policy" else None
    if backend == "megatron":
        lora = _megatron_lora(rank) if path == "policy" else ()
        return (
            Block(path=f"{path}.dtensor_cfg", decisions=(), entries=(("enabled", False),)),
            Block(path=f"{path}.megatron_cfg", decisions=(), entries=(*_megatron(strategy, model, roles), *lora)),
            Block(path=path, decisions=(), entries=(("optimizer", None), ("scheduler", None))),
        )
    return (
        Block(path=f"{path}.megatron_cfg", decisions=(), entries=(("enabled", False),)),
        Block(path=f"{path}.dtensor_cfg", decisions=(), entries=_dtensor(strategy, rank)),
    )


def _dtensor(strategy: TrainerStrategy, lora_rank: int | None) -> _Entries:
    lora: _Entries = (("lora_cfg.enabled", lora_rank is not None),)
    if lora_rank is not None:
        lora = (
            *lora,
            ("lora_cfg.match_all_linear", True),
            ("lora_cfg.dim", lora_rank),
            ("lora_cfg.alpha", lora_rank),
            ("lora_cfg.use_triton", strategy.tp == 1),
        )
    return (
        ("enabled", True),
        ("_v2", True),
        ("tensor_parallel_size", strategy.tp),
        ("context_parallel_size", strategy.cp),
        ("expert_parallel_size", strategy.ep),
        *_moe_parallelizer(strategy),
        ("dp_replicate_size", max(1, strategy.dp * strategy.cp // strategy.shard_ranks)),
        # The two cannot be combined.
        ("sequence_parallel", strategy.tp > 1 and strategy.cp == 1),
        ("activation_checkpointing", strategy.recompute is Recompute.FULL),
        # This would stream weights in every pass; swaps around the rollout happen without it.
        ("cpu_offload", False),
        *lora,
    )


def _moe_parallelizer(strategy: TrainerStrategy) -> _Entries:
    """Weights leave after forward, as plans count them. A router that is recomputed may choose other experts, which
    changes shapes."""
    if strategy.ep == 1:
        return ()
    return (
        ("moe_parallelizer.reshard_after_forward", True),
        ("moe_parallelizer.ignore_router_for_ac", strategy.recompute is Recompute.FULL),
    )


def _megatron(strategy: TrainerStrategy, model: Model, roles: Roles) -> _Entries:
    ends = pipeline_ends(model.num_layers, strategy.pp) if model.num_layers % strategy.pp else None
    is_fp8 = roles.workload.train_precision is Precision.FP8
    return (
        ("enabled", True),
        ("tensor_model_parallel_size", strategy.tp),
        ("sequence_parallel", strategy.tp > 1),
        ("pipeline_model_parallel_size", strategy.pp),
        ("num_layers_in_first_pipeline_stage", ends[0] if ends else None),
        ("num_layers_in_last_pipeline_stage", ends[1] if ends else None),
        ("context_parallel_size", strategy.cp),
        ("expert_model_parallel_size", strategy.ep),
        ("expert_tensor_parallel_size", strategy.etp),
        ("pipeline_dtype", "bfloat16"),
        ("activation_checkpointing", strategy.recompute is not Recompute.NONE),
        ("recompute_granularity", "selective" if strategy.recompute is Recompute.SELECTIVE else "full"),
        ("recompute_modules", ("layernorm", "moe_act") if strategy.recompute is Recompute.SELECTIVE else None),
        *_megatron_optimizer(strategy, is_fp8=is_fp8),
        ("fp8_cfg.enabled", is_fp8),
    )


def _megatron_lora(rank: int | None) -> _Entries:
    if rank is None:
        return (("peft.enabled", False),)
    return (("peft.enabled", True), ("peft.dim", rank), ("peft.alpha", rank))


def _megatron_optimizer(strategy: TrainerStrategy, *, is_fp8: bool) -> _Entries:
    is_sharded, on_host = strategy.sharding is Sharding.ZERO1, strategy.offload in ON_HOST
    return (
        ("optimizer.use_distributed_optimizer", is_sharded),
        ("optimizer.use_precision_aware_optimizer", is_sharded and not is_fp8),
        ("optimizer.optimizer_cpu_offload", on_host),
        ("optimizer.optimizer_offload_fraction", 1.0 if on_host else 0.0),
        ("optimizer.overlap_cpu_optimizer_d2h_h2d", on_host),
        ("distributed_data_parallel_config.overlap_param_gather", is_sharded),
        # Plans count fp32 gradients.
        ("distributed_data_parallel_config.grad_reduce_in_fp32", True),
    )


def _generation(roles: Roles) -> Block:
    workload, strategy, execution = roles.workload, roles.rollout, roles.plan.execution
    _, _, nodes, per_node = cluster_shape(roles)
    moves_shards = ShardedSync.SHARD_TO_SHARD in execution.sharded_syncs
    way = "CUDA IPC on the same GPUs" if roles.is_colocated else "NCCL between the GPUs"
    return Block(
        path="policy.generation",
        decisions=(
            roles.decision(WorkerName.ROLLOUT_ENGINE),
            f"weight sync: {way}{', shard to shard' if moves_shards else ''}",
        ),
        entries=(
            ("backend", "vllm"),
            ("max_new_tokens", workload.response.max_tokens),
            ("temperature", 1.0),
            ("top_p", 1.0),
            ("top_k", None),
            ("colocated.enabled", roles.is_colocated),
            ("colocated.resources.num_nodes", nodes),
            ("colocated.resources.gpus_per_node", per_node),
            # null: IPC when colocated, an NCCL broadcast of full tensors otherwise.
            ("refit_transport", "nccl_reshard" if moves_shards else None),
            ("vllm_cfg.tensor_parallel_size", strategy.tp),
            ("vllm_cfg.pipeline_parallel_size", strategy.pp),
            # Above tp, attention is replicated over the rest: vLLM's data parallelism.
            ("vllm_cfg.expert_parallel_size", strategy.ep),
            ("vllm_cfg.gpu_memory_utilization", strategy.engine_fraction),
            ("vllm_cfg.max_model_len", workload.max_tokens),
            # Asynchronous training and pipelines need it.
            ("vllm_cfg.async_engine", execution.is_asynchronous or strategy.pp > 1),
            ("vllm_cfg.precision", "fp8" if workload.rollout_precision is Precision.FP8 else "bfloat16"),
            ("vllm_cfg.kv_cache_dtype", "auto"),
            ("vllm_cfg.enforce_eager", False),
            ("vllm_kwargs.max_num_seqs", strategy.max_num_seqs),
            (
                "vllm_kwargs.max_num_batched_tokens",
                max(ENGINE_TOKENS // strategy.attention_dp, strategy.max_num_seqs),
            ),
            ("vllm_kwargs.enable_chunked_prefill", True),
        ),
    )


def _value(roles: Roles, backend: str) -> tuple[Block, ...]:
    strategy, model = roles.trainer(WorkerName.CRITIC_TRAINER), roles.workload.critic
    if strategy is None or model is None:
        return ()
    # DTensor counts sequences, all padded to the longest.
    budgets = (strategy.micro_batch_tokens, strategy.inference_tokens)
    train, forward = (max(1, tokens // roles.workload.max_tokens) if backend == "dtensor" else 1 for tokens in budgets)
    head = Block(
        path="value",
        decisions=(roles.decision(WorkerName.CRITIC_TRAINER),),
        entries=(
            ("model_name", UserText(model_path(model))),
            ("max_total_sequence_length", roles.workload.max_tokens),
            ("precision", "bfloat16"),
            ("train_global_batch_size", roles.samples_per_step),
            ("train_micro_batch_size", train),
            ("logprob_batch_size", forward),
            ("reward_model_cfg.enabled", backend == "dtensor"),
            ("reward_model_cfg.reward_model_type", "regression"),
        ),
    )
    return (
        head,
        *_layout("value", strategy, model, backend, roles),
        _budgets("value", roles, backend, strategy.micro_batch_tokens, strategy.inference_tokens, strategy),
    )


def _cluster(roles: Roles) -> Block:
    nodes, per_node, rollout_nodes, _ = cluster_shape(roles)
    shared = "shared by training and rollout"
    where = shared if rollout_nodes is None else "of training and rollout together"
    return Block(
        path="cluster",
        decisions=(f"{nodes} nodes of {per_node} GPUs, {where}",),
        entries=(("num_nodes", nodes), ("gpus_per_node", per_node)),
    )


def _data(roles: Roles) -> Block:
    return Block(
        path="data",
        decisions=(f"workload: prompts of at most {roles.workload.prompt_max_tokens} tokens",),
        entries=(
            ("max_input_seq_length", roles.workload.prompt_max_tokens),
            ("shuffle", True),
            ("train._override_", True),
            ("train.dataset_name", "ResponseDataset"),
            ("train.data_path", ShellValue("TRAIN_DATA")),
            ("train.input_key", "input"),
            ("train.output_key", "output"),
            ("validation", None),
        ),
    )


def _run() -> Block:
    return Block(
        path="checkpointing",
        decisions=("not decided by the plan: change as you like",),
        entries=(("enabled", True), ("metric_name", None), ("save_period", 20)),
    )
