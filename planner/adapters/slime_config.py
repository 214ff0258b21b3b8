"""A plan as flags of slime (August 2026): Megatron-LM's, slime's own and SGLang's with the prefix --sglang-.

Units that differ from the plan's: `rollout-batch-size` counts prompts, `global-batch-size` samples; token budgets are
per GPU, so that a plan's budget is divided by the context-parallel ranks; nodes and GPUs are those of the trainer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.adapters.export import execution_text
from planner.adapters.flags import Flag, FlagSection, FlagValue, flags
from planner.adapters.overrides import ShellValue
from planner.adapters.roles import Roles, nodes_of
from planner.adapters.sglang import ENGINE_TOKENS, max_running_requests, static_memory_fraction
from planner.domain.framework_trainers import pipeline_ends
from planner.domain.stages import WorkerName
from planner.domain.strategy import EngineIdle, ExpertExchange, Offload, Recompute, RolloutStrategy, TrainerStrategy
from planner.domain.workload import RewardKind

ROLE_CONFIG = "roles.yaml"
SWAPS = (Offload.STATE_SWAP, Offload.CPU_OPTIMIZER_STATE_SWAP)
ON_HOST = (Offload.CPU_OPTIMIZER, Offload.CPU_OPTIMIZER_STATE_SWAP)
CORRECTION_CAP = 2.0
"""Largest weight of a token by which the trainer's weights differ from those that generated (slime's --tis-clip)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loss:
    """How slime spells an algorithm; clip ranges are those of its paper."""

    estimator: str
    is_kl_in_reward: bool = False
    clip_low: float = 0.2
    clip_high: float = 0.2
    divides_by_std: bool = True
    normalizes_advantages: bool = False
    averages_tokens: bool = False


_LOSSES = {
    "ppo": _Loss(estimator="ppo", is_kl_in_reward=True, averages_tokens=True),
    "grpo": _Loss(estimator="grpo"),
    "dr-grpo": _Loss(estimator="grpo", divides_by_std=False),
    "dapo": _Loss(estimator="grpo", clip_high=0.28, averages_tokens=True),
    "gspo": _Loss(estimator="gspo", clip_low=3e-4, clip_high=4e-4),
    "reinforce++": _Loss(
        estimator="reinforce_plus_plus", is_kl_in_reward=True, normalizes_advantages=True, averages_tokens=True
    ),
}
"""Sources: arXiv 1707.06347, 2402.03300, 2503.20783, 2503.14476, 2507.18071, 2501.03262."""


def supported_algorithms() -> tuple[str, ...]:
    return tuple(_LOSSES)


def sections(roles: Roles) -> tuple[FlagSection, ...]:
    """All flags but those of the model, one section per decision of the plan."""
    return (
        _checkpoints(roles),
        _placement(roles),
        _training(roles),
        _optimizer(roles),
        _rollout(roles),
        _engines(roles),
        _sync(roles),
        _algorithm(roles),
        _reward(roles),
        _run(),
    )


def program(roles: Roles) -> str:
    """The trainer of synchronous plans, or the one that generates one batch ahead."""
    return "train_async.py" if roles.plan.execution.is_asynchronous else "train.py"


def per_gpu(tokens: int, strategy: TrainerStrategy) -> int:
    """A budget of all context-parallel ranks as that of one."""
    return math.ceil(tokens / strategy.cp)


def train_tokens(roles: Roles) -> int:
    """Tokens per GPU of the updates of actor and critic, which have one budget."""
    strategies = (roles.actor, roles.trainer(WorkerName.CRITIC_TRAINER))
    return min(per_gpu(item.micro_batch_tokens, item) for item in strategies if item is not None)


def forward_tokens(roles: Roles) -> int:
    """Tokens per GPU of log-probs and values, which have one budget."""
    names = (WorkerName.ACTOR_TRAINER, WorkerName.REFERENCE, WorkerName.CRITIC_TRAINER)
    strategies = [roles.trainer(name) for name in names]
    return min(per_gpu(item.inference_tokens, item) for item in strategies if item is not None)


def swaps(roles: Roles) -> bool:
    """Whether trainers leave their GPUs between stages. With a critic they always do: actor and critic take turns."""
    return roles.actor.offload in SWAPS or WorkerName.CRITIC_TRAINER in roles.workers


def _checkpoints(roles: Roles) -> FlagSection:
    save: tuple[Flag, ...] = flags("", ("save-interval", 20))
    return FlagSection(
        name="CHECKPOINTS",
        decisions=("paths of yours: the Hugging Face checkpoint, and the same weights in Megatron's format",),
        flags=(
            *flags("", ("hf-checkpoint", ShellValue("HF_CHECKPOINT")), ("ref-load", ShellValue("REF_LOAD"))),
            *flags("", ("load", ShellValue("SAVE_DIR")), ("save", ShellValue("SAVE_DIR"))),
            *save,
        ),
    )


def _placement(roles: Roles) -> FlagSection:
    group, engines = roles.actor_group, roles.rollout
    nodes, per_node = nodes_of(group)
    pool = roles.plan.cluster.pool(roles.rollout_group.pool)
    shared = roles.is_colocated
    return FlagSection(
        name="PLACEMENT",
        decisions=(
            f"trainers on device group {group.id}, engines on {roles.rollout_group.id}: "
            + ("the same GPUs" if shared else "GPUs of their own"),
        ),
        flags=flags(
            "",
            ("actor-num-nodes", nodes),
            ("actor-num-gpus-per-node", per_node),
            ("rollout-num-gpus", engines.num_gpus),
            ("num-gpus-per-node", min(pool.node.gpus_per_node, roles.rollout_group.num_gpus)),
            ("colocate", shared),
            ("offload-train" if swaps(roles) else "no-offload-train", True),
            ("offload-rollout" if engine_sleeps(roles) else "no-offload-rollout", True),
        ),
    )


def engine_sleeps(roles: Roles) -> bool:
    """Engines that nobody shares and that never pause have no reason to leave their GPUs."""
    return roles.rollout.idle is EngineIdle.SLEEP and not roles.plan.execution.is_asynchronous


def _training(roles: Roles) -> FlagSection:
    strategy, layers = roles.actor, roles.workload.actor.num_layers
    decisions = [roles.decision(name) for name in _trainers(roles)]
    virtual: tuple[Flag, ...] = ()
    if strategy.vpp > 1:
        virtual = flags("", ("num-virtual-stages-per-pipeline-rank", strategy.vpp))
    ends = pipeline_ends(layers, strategy.pp) if layers % strategy.pp else None
    uneven: tuple[Flag, ...] = ()
    if ends is not None:
        uneven = flags(
            "", ("decoder-first-pipeline-num-layers", ends[0]), ("decoder-last-pipeline-num-layers", ends[1])
        )
    return FlagSection(
        name="TRAINING",
        decisions=tuple(decisions),
        flags=(
            *flags(
                "",
                ("train-backend", "megatron"),
                ("tensor-model-parallel-size", strategy.tp),
                ("sequence-parallel", strategy.tp > 1),
                ("pipeline-model-parallel-size", strategy.pp),
                ("context-parallel-size", strategy.cp),
                ("expert-model-parallel-size", strategy.ep),
                # Without the flag it would be the TP degree.
                ("expert-tensor-parallel-size", strategy.etp),
            ),
            *virtual,
            *uneven,
            *_recompute(strategy),
            *flags(
                "",
                ("use-dynamic-batch-size", True),
                ("max-tokens-per-gpu", train_tokens(roles)),
                ("log-probs-max-tokens-per-gpu", forward_tokens(roles)),
                ("bf16", True),
                ("attention-dropout", 0.0),
                ("hidden-dropout", 0.0),
                ("accumulate-allreduce-grads-in-fp32", True),
                ("attention-softmax-in-fp32", True),
                ("attention-backend", "auto" if _is_latent(roles) else "flash"),
            ),
        ),
    )


def _trainers(roles: Roles) -> tuple[WorkerName, ...]:
    names = (WorkerName.ACTOR_TRAINER, WorkerName.REFERENCE, WorkerName.CRITIC_TRAINER)
    return tuple(name for name in names if name in roles.workers)


def _is_latent(roles: Roles) -> bool:
    return any(layer.attention.kind == "mla" for layer in roles.workload.actor.layers)


def _recompute(strategy: TrainerStrategy) -> tuple[Flag, ...]:
    if strategy.recompute in (Recompute.FULL, Recompute.PARTIAL):
        is_full = strategy.recompute is Recompute.FULL
        method, layers = ("uniform", 1) if is_full else ("block", strategy.recompute_layers)
        return flags(
            "",
            ("recompute-granularity", "full"),
            ("recompute-method", method),
            ("recompute-num-layers", layers),
        )
    if strategy.recompute is Recompute.SELECTIVE:
        return flags("", ("recompute-granularity", "selective"), ("recompute-modules", ("layernorm", "moe_act")))
    return ()


def _optimizer(roles: Roles) -> FlagSection:
    on_host = roles.actor.offload in ON_HOST
    host = flags(
        "",
        ("optimizer-cpu-offload", True),
        ("optimizer-offload-fraction", 1.0),
        ("overlap-cpu-optimizer-d2h-h2d", True),
        ("use-precision-aware-optimizer", True),
    )
    critic = flags("", ("megatron-config-path", ShellValue("ROLE_CONFIG")))
    has_critic = WorkerName.CRITIC_TRAINER in roles.workers
    return FlagSection(
        name="OPTIMIZER",
        decisions=(
            f"{WorkerName.ACTOR_TRAINER.value}: the optimizer step runs on the {'host' if on_host else 'GPUs'}; "
            "states are divided over data-parallel ranks",
        ),
        flags=(
            *flags(
                "",
                ("optimizer", "adam"),
                ("use-distributed-optimizer", True),
                ("lr", 1e-6),
                ("lr-decay-style", "constant"),
                ("weight-decay", 0.1),
                ("adam-beta1", 0.9),
                ("adam-beta2", 0.98),
                ("clip-grad", 1.0),
            ),
            *(host if on_host else ()),
            *(critic if has_critic else ()),
        ),
    )


def _rollout(roles: Roles) -> FlagSection:
    workload = roles.workload
    oversampling = workload.algorithm.oversampling_ratio
    filters: tuple[Flag, ...] = ()
    if oversampling > 1:
        filters = flags(
            "",
            ("over-sampling-batch-size", math.ceil(workload.num_prompts * oversampling)),
            (
                "dynamic-sampling-filter-path",
                "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std",
            ),
        )
    return FlagSection(
        name="ROLLOUT",
        decisions=(
            f"workload: {workload.num_prompts} prompts x {workload.group_size} responses per iteration, "
            f"{workload.num_optimizer_steps} optimizer steps of {roles.samples_per_step} samples",
        ),
        flags=(
            *flags(
                "",
                ("prompt-data", ShellValue("TRAIN_DATA")),
                ("input-key", "prompt"),
                ("label-key", "label"),
                ("apply-chat-template", True),
                ("rollout-shuffle", True),
                ("rollout-batch-size", workload.num_prompts),
                ("n-samples-per-prompt", workload.group_size),
                ("global-batch-size", roles.samples_per_step),
                ("rollout-max-prompt-len", workload.prompt_max_tokens),
                ("rollout-max-response-len", workload.response.max_tokens),
                ("rollout-max-context-len", workload.max_tokens),
                ("rollout-temperature", 1.0),
                ("balance-data", True),
            ),
            *filters,
        ),
    )


def _engines(roles: Roles) -> FlagSection:
    engine, workload = roles.rollout, roles.workload
    return FlagSection(
        name="ENGINES",
        decisions=(
            roles.decision(WorkerName.ROLLOUT_ENGINE),
            f"{engine.engine_fraction:g} of GPU memory with graphs and activations; SGLang's fraction is the weights "
            "and the KV cache alone",
        ),
        flags=flags(
            "",
            ("rollout-num-gpus-per-engine", engine.engine_gpus),
            ("sglang-pp-size", engine.pp),
            ("sglang-ep-size", engine.ep),
            ("sglang-dtype", "bfloat16"),
            ("sglang-context-length", workload.max_tokens),
            ("sglang-mem-fraction-static", static_memory_fraction(roles.plan)),
            ("sglang-max-running-requests", max_running_requests(engine)),
            ("sglang-cuda-graph-max-bs", engine.max_num_seqs),
            ("sglang-chunked-prefill-size", ENGINE_TOKENS),
            # Requests that slime keeps under way per engine: enough to fill it.
            ("sglang-server-concurrency", max(max_running_requests(engine), 512)),
            *_attention_dp(engine),
        ),
    )


def _attention_dp(engine: RolloutStrategy) -> tuple[tuple[str, FlagValue | bool], ...]:
    """Attention groups of SGLang: tp counts all ranks of an engine, of which dp-size groups have attention of their
    own. The head is computed per group, as it is priced, and dense layers where a group is one rank."""
    if engine.attention_dp == 1:
        return ()
    sends = engine.exchange is ExpertExchange.ALL_TO_ALL
    return (
        ("sglang-enable-dp-attention", True),
        ("sglang-dp-size", engine.attention_dp),
        ("sglang-enable-dp-lm-head", True),
        *((("sglang-moe-dense-tp-size", 1),) if engine.tp == 1 else ()),
        *((("sglang-moe-a2a-backend", "deepep"), ("sglang-deepep-mode", "auto")) if sends else ()),
    )


def _sync(roles: Roles) -> FlagSection:
    is_asynchronous = roles.plan.execution.is_asynchronous
    correction: tuple[tuple[str, FlagValue | bool], ...] = (("use-tis", True), ("tis-clip", CORRECTION_CAP))
    return FlagSection(
        name="SYNC",
        decisions=(
            f"iterations: {execution_text(roles.plan)}",
            *(
                ("responses come from older weights: their tokens are weighted by how far the trainer has moved",)
                if is_asynchronous
                else ()
            ),
        ),
        flags=flags(
            "",
            ("update-weight-mode", "full"),
            ("update-weight-transport", "nccl"),
            ("update-weights-interval", 1),
            *(correction if is_asynchronous else ()),
        ),
    )


def _algorithm(roles: Roles) -> FlagSection:
    workload = roles.workload
    loss = _LOSSES[workload.algorithm.name]
    coefficient = float(workload.kl_coefficient)
    kl: tuple[tuple[str, FlagValue | bool], ...] = ()
    if workload.has_reference and loss.is_kl_in_reward:
        kl = (("kl-coef", coefficient),)
    elif workload.has_reference:
        kl = (("use-kl-loss", True), ("kl-loss-coef", coefficient), ("kl-loss-type", "low_var_kl"))
    return FlagSection(
        name="ALGORITHM",
        decisions=(f"workload: {workload.algorithm.title}, KL coefficient {workload.kl_coefficient:g}",),
        flags=flags(
            "",
            ("advantage-estimator", loss.estimator),
            *kl,
            ("eps-clip", loss.clip_low),
            ("eps-clip-high", loss.clip_high),
            ("gamma", 1.0),
            ("lambd", 1.0),
            ("entropy-coef", 0.0),
            ("normalize-advantages", loss.normalizes_advantages),
            ("disable-grpo-std-normalization", not loss.divides_by_std),
            ("calculate-per-token-loss", loss.averages_tokens),
        ),
    )


def _reward(roles: Roles) -> FlagSection:
    kind = roles.workload.reward.kind
    value: FlagValue = ShellValue("REWARD_FUNCTION")
    key = "custom-rm-path" if kind is RewardKind.SANDBOX else "rm-type"
    return FlagSection(
        name="REWARD",
        decisions=(f"workload: reward by {kind.value}, on the host",),
        flags=flags("", (key, value if kind is RewardKind.SANDBOX else ShellValue("RM_TYPE"))),
    )


def _run() -> FlagSection:
    return FlagSection(
        name="RUN", decisions=("not decided by the plan: change as you like",), flags=flags("", ("num-epoch", 1))
    )
