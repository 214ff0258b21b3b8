"""A plan as overrides of verl 0.9.1's `ppo_trainer.yaml`.

Units that differ from the plan's: mini-batches count prompts (verl multiplies by `rollout.n`); token budgets are
per GPU and multiplied by the sequence-parallel size (Ulysses or context parallel) inside verl.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.adapters.export import answer_tokens, describe, model_path
from planner.adapters.overrides import Override, Section, ShellValue, UserText, Value, under
from planner.domain.framework import FrameworkRules, backend_of, pipeline_ends
from planner.domain.framework_verdict import PlacedWorker, placed_workers
from planner.domain.hardware import Precision
from planner.domain.model import Model
from planner.domain.plan import DeviceGroup, Plan
from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import (
    EngineIdle,
    Offload,
    Recompute,
    RolloutStrategy,
    Sharding,
    TrainerStrategy,
)
from planner.domain.workload import RewardKind, Workload

ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
REWARD_MODEL = "reward.reward_model"

DEFAULT_ENGINE_TOKENS = 8192
"""max_num_batched_tokens of verl and vLLM."""

_SWAPS_WEIGHTS = (Offload.STATE_SWAP, Offload.CPU_OPTIMIZER_STATE_SWAP)
_SWAPS_OPTIMIZER = (Offload.OPTIMIZER_SWAP, Offload.STATE_SWAP)
_ON_HOST = (Offload.CPU_OPTIMIZER, Offload.CPU_OPTIMIZER_STATE_SWAP)


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


_LOSSES = {
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
    return tuple(_LOSSES)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerlConfig:
    """The configuration of one plan, and what verl does otherwise than the plan says."""

    is_megatron: bool
    sections: tuple[Section, ...]
    differences: tuple[str, ...]
    to_do: tuple[str, ...]
    """What only the user can fill in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """A plan's workers by name, with what every section needs."""

    plan: Plan
    workers: dict[WorkerName, PlacedWorker]
    is_megatron: bool
    engine_tokens: int

    @property
    def workload(self) -> Workload:
        return self.plan.workload

    def trainer(self, name: WorkerName) -> TrainerStrategy | None:
        worker = self.workers.get(name)
        return worker.strategy if worker is not None and isinstance(worker.strategy, TrainerStrategy) else None

    @property
    def actor(self) -> TrainerStrategy:
        strategy = self.trainer(WorkerName.ACTOR_TRAINER)
        if strategy is None:
            raise LookupError("the plan has no actor trainer")
        return strategy


def build_config(plan: Plan, rules: FrameworkRules, *, engine_tokens: int = DEFAULT_ENGINE_TOKENS) -> VerlConfig:
    """The overrides of a plan that `plan_problems(rules, plan)` finds no fault with.

    `engine_tokens` are the tokens of one engine step (`max_num_batched_tokens`).
    """
    workers = {worker.name: worker for worker in placed_workers(plan)}
    actor = workers[WorkerName.ACTOR_TRAINER].strategy
    if isinstance(actor, RolloutStrategy):
        raise TypeError("the actor trainer has a rollout strategy")
    backend = backend_of(rules, actor, worker=WorkerName.ACTOR_TRAINER, model=plan.workload.actor)
    context = _Context(
        plan=plan,
        workers=workers,
        is_megatron=backend is not None and backend.name == "megatron",
        engine_tokens=engine_tokens,
    )
    sections = (
        _placement(context),
        _model(context),
        _actor(context),
        *_reference(context),
        _critic(context),
        _rollout(context),
        _algorithm(context),
        _reward(context),
        _data(context),
        _run(context),
    )
    return VerlConfig(
        is_megatron=context.is_megatron,
        sections=sections,
        differences=_differences(context),
        to_do=_to_do(context),
    )


def _decision(context: _Context, name: WorkerName) -> str:
    worker = context.workers[name]
    return f"{name.value} on device group {worker.group.id}: {describe(worker.strategy)}"


def _nodes(group: DeviceGroup, num_gpus: int) -> tuple[int, int]:
    """Nodes and GPUs per node of `num_gpus` GPUs of a group."""
    per_node = group.num_gpus // group.num_nodes
    nodes = max(1, num_gpus // per_node)
    return nodes, num_gpus // nodes


def _placement(context: _Context) -> Section:
    group = context.workers[WorkerName.ACTOR_TRAINER].group
    nodes, per_node = _nodes(group, group.num_gpus)
    names = ", ".join(worker.name.value for worker in context.workers.values() if worker.group.ranks == group.ranks)
    return Section(
        name="placement",
        decisions=(f"device group {group.id}: {group.num_gpus} x {group.gpu} on {group.num_nodes} nodes for {names}",),
        overrides=(
            Override(key="model_engine", value="megatron" if context.is_megatron else "dp"),
            *under(
                "trainer",
                ("nnodes", nodes),
                ("n_gpus_per_node", per_node),
                ("use_v1", True),
                ("v1.trainer_mode", "sync"),
            ),
            Override(key="actor_rollout_ref.hybrid_engine", value=True),
        ),
    )


def _model(context: _Context) -> Section:
    workload = context.workload
    rank = workload.lora_rank or 0
    lora: tuple[Override, ...] = under(MODEL, ("lora_rank", 0), ("lora.rank", 0))
    if rank and context.is_megatron:
        lora = under(MODEL, ("lora_rank", 0), ("lora.rank", rank), ("lora.alpha", rank), ("lora.merge", False))
    elif rank:
        lora = under(
            MODEL, ("lora_rank", rank), ("lora_alpha", rank), ("target_modules", "all-linear"), ("lora.rank", 0)
        )
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
        ("param_offload", strategy.offload in _SWAPS_WEIGHTS),
        ("optimizer_offload", trains and strategy.offload in _SWAPS_OPTIMIZER),
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
            ("optimizer_offload", strategy.offload in _SWAPS_OPTIMIZER),
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
        ("param_offload", strategy.offload in _SWAPS_WEIGHTS),
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
    if strategy.offload not in _ON_HOST:
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
    context: _Context, prefix: str, fsdp_key: str, strategy: TrainerStrategy, model: Model
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


def _mini_batch_prompts(workload: Workload) -> int:
    return workload.num_prompts // workload.num_optimizer_steps


def _actor(context: _Context) -> Section:
    workload, strategy = context.workload, context.actor
    return Section(
        name="actor",
        decisions=(_decision(context, WorkerName.ACTOR_TRAINER), "token budgets are per GPU, without cp"),
        overrides=(
            *_trainer_layout(context, ACTOR, "fsdp_config", strategy, workload.actor),
            *under(
                ACTOR,
                ("ppo_mini_batch_size", _mini_batch_prompts(workload)),
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


def _reference(context: _Context) -> tuple[Section, ...]:
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
    decisions = (_decision(context, WorkerName.REFERENCE),)
    return (Section(name="reference", decisions=decisions, overrides=(*layout, *budget)),)


def _critic(context: _Context) -> Section:
    workload, strategy = context.workload, context.trainer(WorkerName.CRITIC_TRAINER)
    if strategy is None or workload.critic is None:
        disabled = (Override(key="critic.enable", value=False),)
        return Section(name="critic", decisions=(f"{workload.algorithm.title} has no critic",), overrides=disabled)
    budget = _budget(_critic_tokens(strategy), strategy)
    return Section(
        name="critic",
        decisions=(
            _decision(context, WorkerName.CRITIC_TRAINER),
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
                ("ppo_mini_batch_size", _mini_batch_prompts(workload)),
                ("ppo_epochs", workload.num_epochs),
                ("use_dynamic_bsz", True),
                ("ppo_max_token_len_per_gpu", budget),
                ("forward_max_token_len_per_gpu", budget),
            ),
            *under("critic", ("ppo_infer_max_token_len_per_gpu", budget), is_added=True),
            Override(key="trainer.critic_warmup", value=0),
        ),
    )


def _critic_tokens(strategy: TrainerStrategy) -> int:
    return min(strategy.micro_batch_tokens, strategy.inference_tokens)


def _rollout(context: _Context) -> Section:
    workload = context.workload
    strategy = context.workers[WorkerName.ROLLOUT_ENGINE].strategy
    if isinstance(strategy, TrainerStrategy):
        raise TypeError("the rollout engine has a trainer strategy")
    return Section(
        name="rollout",
        decisions=(_decision(context, WorkerName.ROLLOUT_ENGINE),),
        overrides=under(
            ROLLOUT,
            ("name", "vllm"),
            ("nnodes", 0),
            ("n", workload.group_size),
            ("tensor_model_parallel_size", strategy.tp),
            ("pipeline_model_parallel_size", strategy.pp),
            ("data_parallel_size", 1),
            ("expert_parallel_size", strategy.ep),
            ("gpu_memory_utilization", strategy.engine_fraction),
            ("max_num_seqs", strategy.max_num_seqs),
            ("max_model_len", workload.max_tokens),
            ("max_num_batched_tokens", max(context.engine_tokens, strategy.max_num_seqs)),
            ("enable_chunked_prefill", True),
            ("enable_prefix_caching", True),
            ("enforce_eager", False),
            ("free_cache_engine", strategy.idle is EngineIdle.SLEEP),
            ("dtype", "bfloat16"),
            ("quantization", "fp8" if workload.rollout_precision is Precision.FP8 else None),
            # Full weights come with the first sync; adapters need the base weights from disk.
            ("load_format", "dummy" if workload.lora_rank is None else "safetensors"),
            ("checkpoint_engine.backend", "naive"),
        ),
    )


def _algorithm(context: _Context) -> Section:
    workload = context.workload
    loss = _LOSSES[workload.algorithm.name]
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


def _reward(context: _Context) -> Section:
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
    nodes, per_node = _nodes(worker.group, worker.strategy.num_gpus)
    pool: tuple[tuple[str, Value], ...] = (("nnodes", nodes), ("n_gpus_per_node", per_node)) if is_alone else ()
    return Section(
        name="reward",
        decisions=(_decision(context, WorkerName.REWARD_MODEL),),
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


def _reward_engine(context: _Context, worker: PlacedWorker) -> tuple[tuple[str, Value], ...]:
    workload, strategy = context.workload, worker.strategy
    answer = answer_tokens(workload)
    if isinstance(strategy, RolloutStrategy):
        sequences, fraction, sleeps = (
            strategy.max_num_seqs,
            strategy.engine_fraction,
            strategy.idle is EngineIdle.SLEEP,
        )
        ep, batched = strategy.ep, max(context.engine_tokens, sequences)
    else:
        sequences = max(1, strategy.inference_tokens // workload.max_tokens)
        fraction, sleeps = _free_fraction(context, worker), strategy.offload is Offload.STATE_SWAP
        ep, batched = 1, strategy.inference_tokens
    return (
        ("name", "vllm"),
        ("tensor_model_parallel_size", strategy.tp),
        ("pipeline_model_parallel_size", 1),
        ("data_parallel_size", 1),
        ("expert_parallel_size", ep),
        ("gpu_memory_utilization", fraction),
        ("max_num_seqs", sequences),
        ("max_num_batched_tokens", batched),
        ("max_model_len", workload.max_tokens + answer),
        ("prompt_length", workload.max_tokens),
        ("response_length", answer),
        ("free_cache_engine", sleeps),
    )


def _free_fraction(context: _Context, worker: PlacedWorker) -> float:
    """Share of GPU memory that the co-residents of a reward model and the margin leave, in whole percent."""
    total = context.plan.cluster.pool(worker.group.pool).node.gpu.memory_bytes
    memory = context.plan.placement(StageName.REWARD).gpu_memory
    if memory is None:
        return math.floor(100 * (1 - context.workload.memory_margin_ratio)) / 100
    idle = sum(term.value for term in memory.terms if term.name.startswith("idle:"))
    return math.floor(100 * (memory.usable_bytes - idle) / total) / 100


def _data(context: _Context) -> Section:
    workload = context.workload
    return Section(
        name="data",
        decisions=(
            f"workload: {workload.num_prompts} prompts x {workload.group_size} responses per iteration, "
            f"{workload.num_optimizer_steps} optimizer steps",
        ),
        overrides=under(
            "data",
            ("train_files", ShellValue("TRAIN_FILES")),
            ("val_files", ShellValue("VAL_FILES")),
            ("train_batch_size", workload.num_prompts),
            ("max_prompt_length", workload.prompt_max_tokens),
            ("max_response_length", workload.response.max_tokens),
            ("filter_overlong_prompts", True),
            ("truncation", "error"),
        ),
    )


def _run(context: _Context) -> Section:
    critic = under("critic", ("optim.lr", 1e-5)) if WorkerName.CRITIC_TRAINER in context.workers else ()
    return Section(
        name="run",
        decisions=("not decided by the plan: change as you like",),
        overrides=(
            *under(ACTOR, ("optim.lr", 1e-6)),
            *critic,
            *under(
                "trainer",
                ("total_epochs", 1),
                ("save_freq", 20),
                ("test_freq", -1),
                ("val_before_train", False),
                ("logger", ("console",)),
                ("project_name", "rlplan"),
                ("experiment_name", context.workload.algorithm.name),
            ),
        ),
    )


def _differences(context: _Context) -> tuple[str, ...]:
    """Where verl does something else than the plan's cost model assumes."""
    workload = context.workload
    notes: list[str] = []
    critic = context.trainer(WorkerName.CRITIC_TRAINER)
    if critic is not None and critic.micro_batch_tokens != critic.inference_tokens:
        notes.append(
            f"verl 0.9.1 uses one token budget for critic values and critic update; the smaller one "
            f"({_critic_tokens(critic)} tokens) is written, the plan priced values with {critic.inference_tokens}."
        )
    if WorkerName.REFERENCE in context.workers and not context.is_megatron:
        notes.append(
            "verl keeps an FSDP reference in host RAM and streams its shards in every micro-batch; the plan priced "
            "one load per iteration."
        )
    if workload.lora_rank is not None and not context.is_megatron:
        notes.append("verl keeps the frozen base weights of FSDP sharded in fp32 (4 bytes per parameter).")
    if workload.algorithm.name == "vapo":
        notes.append(
            "verl has no length-adaptive GAE, no separate lambda for the critic and no value pre-training: the script "
            "runs PPO with VAPO's groups, clip range and token-level loss."
        )
    if workload.algorithm.oversampling_ratio > 1:
        notes.append(
            "verl refills discarded groups prompt by prompt, with at most "
            f"{math.ceil(workload.algorithm.oversampling_ratio)} x {workload.num_prompts} prompts in flight; the plan "
            f"priced {workload.algorithm.oversampling_ratio:g} x {workload.num_prompts} prompts at once."
        )
    return tuple(notes)


def _to_do(context: _Context) -> tuple[str, ...]:
    kind = context.workload.reward.kind
    needs = {
        RewardKind.RULE: "a function if your data is not one that verl scores itself",
        RewardKind.MODEL: "nothing for a model with a classification head, which verl asks itself",
        RewardKind.PROCESS_MODEL: "a function that turns the model's step scores into a reward",
        RewardKind.JUDGE: "a function that asks the judge and reads its verdict",
        RewardKind.SANDBOX: "a function that runs the sandbox (or set reward.sandbox_fusion.url)",
    }
    return (
        "`TRAIN_FILES`, `VAL_FILES`: parquet files, or Hydra lists of them.",
        f"`REWARD_FUNCTION`: Python file with `compute_score`; reward '{kind.value}' needs {needs[kind]}.",
    )
