"""The sections of an export to verl that say how weights are laid out and trained: model, actor, reference, critic."""

from __future__ import annotations

import math

from planner.adapters.export import model_path
from planner.adapters.overrides import Override, Section, UserText, Value, under
from planner.adapters.verl_context import (
    ACTOR,
    MODEL,
    ON_HOST,
    REF,
    ROLLOUT,
    SWAPS_OPTIMIZER,
    SWAPS_WEIGHTS,
    Context,
    Runner,
    decision,
)  # fmt: skip
from planner.domain.framework_trainers import pipeline_ends
from planner.domain.model import Model
from planner.domain.stages import WorkerName
from planner.domain.strategy import Recompute, Sharding, TrainerStrategy
from planner.domain.workload import Workload


def model_section(context: Context) -> Section:
    workload = context.workload
    rank = workload.lora_rank or 0
    # Engines apart from the trainer get whole weights: workers/engine_workers.py sends no adapters to them.
    merges = context.runner is not Runner.SYNC
    lora: tuple[Override, ...] = under(MODEL, ("lora_rank", 0), ("lora.rank", 0))
    if rank and context.is_megatron:
        lora = under(MODEL, ("lora_rank", 0), ("lora.rank", rank), ("lora.alpha", rank), ("lora.merge", merges))
    elif rank:
        lora = under(
            MODEL, ("lora_rank", rank), ("lora_alpha", rank), ("target_modules", "all-linear"), ("lora.rank", 0)
        )
        lora += under(MODEL, ("lora.merge", True)) if merges else ()
    return Section(
        name="model",
        decisions=(f"workload: {model_path(workload.actor)}, " + (f"LoRA rank {rank}" if rank else "all weights"),),
        overrides=(
            *under(
                MODEL,
                ("path", UserText(model_path(workload.actor))),
                ("use_remove_padding", True),
                ("enable_gradient_checkpointing", context.actor.recompute is Recompute.FULL),
            ),
            *lora,
        ),
    )


def _budget(tokens: int, strategy: TrainerStrategy) -> int:
    """Tokens per GPU that verl multiplies by the sequence-parallel size again."""
    return math.ceil(tokens / strategy.cp)


def _fsdp(prefix: str, strategy: TrainerStrategy, *, trains: bool) -> tuple[Override, ...]:
    num_ranks = strategy.dp * strategy.cp
    return under(
        prefix,
        ("ulysses_sequence_parallel_size", strategy.cp),
        ("fsdp_size", -1 if strategy.shard_ranks >= num_ranks else strategy.shard_ranks),
        ("reshard_after_forward", True),
        ("param_offload", strategy.offload in SWAPS_WEIGHTS),
        ("optimizer_offload", trains and strategy.offload in SWAPS_OPTIMIZER),
        ("offload_policy", False),
        # Master weights are fp32; a forward-only worker needs none.
        ("model_dtype", "fp32" if trains else "bfloat16"),
        ("dtype", "bfloat16"),
    )


def _megatron(prefix: str, strategy: TrainerStrategy, *, vpp: int, trains: bool) -> tuple[Override, ...]:
    optimizer: tuple[tuple[str, Value], ...] = ()
    if trains:
        optimizer = (
            ("use_distributed_optimizer", strategy.sharding is Sharding.ZERO1),
            ("optimizer_offload", strategy.offload in SWAPS_OPTIMIZER),
        )
    return under(
        prefix,
        ("tensor_model_parallel_size", strategy.tp),
        ("pipeline_model_parallel_size", strategy.pp),
        ("virtual_pipeline_model_parallel_size", vpp if vpp > 1 else None),
        ("context_parallel_size", strategy.cp),
        ("expert_model_parallel_size", strategy.ep),
        # null would mean tp, not 1.
        ("expert_tensor_parallel_size", strategy.etp),
        ("sequence_parallel", strategy.tp > 1),
        ("param_offload", strategy.offload in SWAPS_WEIGHTS),
        ("use_mbridge", True),
        ("dtype", "bfloat16"),
        *optimizer,
    )


def _megatron_layers(prefix: str, strategy: TrainerStrategy, model: Model) -> tuple[Override, ...]:
    """Recomputation and, where the layers do not divide, what the first and last pipeline rank hold."""
    values: dict[Recompute, tuple[tuple[str, Value], ...]] = {
        Recompute.NONE: (("recompute_granularity", None), ("recompute_method", None), ("recompute_num_layers", None)),
        Recompute.SELECTIVE: (
            ("recompute_granularity", "selective"),
            ("recompute_modules", ("layernorm", "moe_act")),
            ("recompute_method", None),
            ("recompute_num_layers", None),
        ),
        Recompute.FULL: (
            ("recompute_granularity", "full"),
            ("recompute_method", "uniform"),
            ("recompute_num_layers", 1),
        ),
        Recompute.PARTIAL: (
            ("recompute_granularity", "full"),
            ("recompute_method", "block"),
            ("recompute_num_layers", strategy.recompute_layers),
        ),
    }
    settings = under(f"{prefix}.override_transformer_config", *values[strategy.recompute])
    ends = pipeline_ends(model.num_layers, strategy.pp) if model.num_layers % strategy.pp else None
    if ends is None:
        return settings
    return (
        *settings,
        *under(
            f"{prefix}.override_transformer_config",
            ("num_layers_in_first_pipeline_stage", ends[0]),
            ("num_layers_in_last_pipeline_stage", ends[1]),
            is_added=True,
        ),
    )


def _cpu_optimizer(prefix: str, strategy: TrainerStrategy) -> tuple[Override, ...]:
    if strategy.offload not in ON_HOST:
        return ()
    # Megatron's hybrid device optimizer runs on the code path of the precision-aware optimizer.
    return under(
        f"{prefix}.optim.override_optimizer_config",
        ("optimizer_cpu_offload", True),
        ("optimizer_offload_fraction", 1.0),
        ("use_precision_aware_optimizer", True),
        ("overlap_cpu_optimizer_d2h_h2d", True),
        is_added=True,
    )


def _trainer_layout(
    context: Context, prefix: str, fsdp_key: str, strategy: TrainerStrategy, model: Model
) -> tuple[Override, ...]:
    """Layout, recomputation and offload of the actor or the critic."""
    if context.is_megatron:
        return (
            Override(key=f"{prefix}.strategy", value="megatron"),
            *_megatron(f"{prefix}.megatron", strategy, vpp=strategy.vpp, trains=True),
            *_megatron_layers(f"{prefix}.megatron", strategy, model),
            *_cpu_optimizer(prefix, strategy),
        )
    return (
        Override(key=f"{prefix}.strategy", value="fsdp2"),
        Override(key=f"{prefix}.ulysses_sequence_parallel_size", value=strategy.cp),
        *_fsdp(f"{prefix}.{fsdp_key}", strategy, trains=True),
    )


def mini_batch_prompts(workload: Workload) -> int:
    return workload.num_prompts // workload.num_optimizer_steps


def actor_section(context: Context) -> Section:
    workload, strategy = context.workload, context.actor
    return Section(
        name="actor",
        decisions=(decision(context, WorkerName.ACTOR_TRAINER), "token budgets are per GPU, without cp"),
        overrides=(
            *_trainer_layout(context, ACTOR, "fsdp_config", strategy, workload.actor),
            *under(
                ACTOR,
                ("ppo_mini_batch_size", mini_batch_prompts(workload)),
                ("ppo_epochs", workload.num_epochs),
                ("use_dynamic_bsz", True),
                ("ppo_max_token_len_per_gpu", _budget(strategy.micro_batch_tokens, strategy)),
            ),
            *under(
                ROLLOUT,
                ("log_prob_use_dynamic_bsz", True),
                ("log_prob_max_token_len_per_gpu", _budget(strategy.inference_tokens, strategy)),
            ),
        ),
    )


def reference_section(context: Context) -> tuple[Section, ...]:
    strategy = context.trainer(WorkerName.REFERENCE)
    if strategy is None:
        return ()
    if context.is_megatron:
        # The pipeline schedule is the actor's: Megatron's groups exist once per process.
        layout = _megatron(f"{REF}.megatron", strategy, vpp=context.actor.vpp, trains=False)
    else:
        layout = (
            Override(key=f"{REF}.ulysses_sequence_parallel_size", value=strategy.cp),
            *_fsdp(f"{REF}.fsdp_config", strategy, trains=False),
        )
    budget = under(
        REF,
        ("log_prob_use_dynamic_bsz", True),
        ("log_prob_max_token_len_per_gpu", _budget(strategy.inference_tokens, strategy)),
    )
    decisions = (decision(context, WorkerName.REFERENCE),)
    return (Section(name="reference", decisions=decisions, overrides=(*layout, *budget)),)


def critic_section(context: Context) -> Section:
    workload, strategy = context.workload, context.trainer(WorkerName.CRITIC_TRAINER)
    if strategy is None or workload.critic is None:
        disabled = (Override(key="critic.enable", value=False),)
        return Section(name="critic", decisions=(f"{workload.algorithm.title} has no critic",), overrides=disabled)
    budget = _budget(critic_tokens(strategy), strategy)
    return Section(
        name="critic",
        decisions=(
            decision(context, WorkerName.CRITIC_TRAINER),
            "verl 0.9.1 reads one budget for values and update: ppo_infer_max_token_len_per_gpu",
        ),
        overrides=(
            *under(
                "critic",
                ("enable", True),
                ("model.path", UserText(model_path(workload.critic))),
                ("model.use_remove_padding", True),
                ("model.enable_gradient_checkpointing", strategy.recompute is Recompute.FULL),
            ),
            *_trainer_layout(context, "critic", "fsdp", strategy, workload.critic),
            *under(
                "critic",
                ("ppo_mini_batch_size", mini_batch_prompts(workload)),
                ("ppo_epochs", workload.num_epochs),
                ("use_dynamic_bsz", True),
                ("ppo_max_token_len_per_gpu", budget),
                ("forward_max_token_len_per_gpu", budget),
            ),
            *under("critic", ("ppo_infer_max_token_len_per_gpu", budget), is_added=True),
            Override(key="trainer.critic_warmup", value=0),
        ),
    )


def critic_tokens(strategy: TrainerStrategy) -> int:
    return min(strategy.micro_batch_tokens, strategy.inference_tokens)
