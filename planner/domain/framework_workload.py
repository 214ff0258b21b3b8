"""Rules of a framework that depend on the workload: what it lacks for it, and what one way to run cannot do for it."""

from __future__ import annotations

from dataclasses import replace

from planner.domain.execution import ExecutionMode
from planner.domain.framework import FrameworkRules, TrainerBackend
from planner.domain.framework_limits import KL_IN_REWARD_ALGORITHMS, MultipleEpochs, OldLogprobNeed
from planner.domain.framework_sync import sync_lack
from planner.domain.stages import WorkerName
from planner.domain.workload import Workload


def batches_problem(rules: FrameworkRules, workload: Workload) -> str | None:
    """Why asynchronous batches cannot run the workload, None if they can or if the framework has none.

    Completes "it has ... with asynchronous batches".
    """
    if ExecutionMode.BATCHES not in rules.execution_modes:
        return None
    if rules.batches_exclude_reward_model and workload.reward.model is not None:
        return "no reward model on GPUs"
    if rules.batches_exclude_dynamic_sampling and workload.algorithm.oversampling_ratio > 1:
        return "no dynamic sampling"
    return None


def streaming_problem(rules: FrameworkRules, workload: Workload) -> str | None:
    """As `batches_problem`, for streaming."""
    samples_dynamically = workload.algorithm.oversampling_ratio > 1
    if rules.streaming_excludes_dynamic_sampling and samples_dynamically:
        return "no dynamic sampling"
    return None


def for_workload(rules: FrameworkRules, workload: Workload, *, tolerant: bool = False) -> FrameworkRules:
    """The rules without what is not open to the workload: ways to run, back ends, offload modes.

    `tolerant` leaves out rules on what the framework does whatever the plan says: such a plan starts, only its price is
    wrong.
    """
    modes = set(rules.execution_modes)
    if batches_problem(rules, workload) is not None:
        modes.discard(ExecutionMode.BATCHES)
    if streaming_problem(rules, workload) is not None:
        modes.discard(ExecutionMode.STREAMING)
    concern = tuple(r for r in rules.offload_rules if r.concerns(workload) and (r.breaks or not tolerant))
    rules = replace(rules, offload_rules=concern)
    return replace(
        rules,
        execution_modes=frozenset(modes),
        backends=tuple(
            _for_backend(rules, backend, workload)
            for backend in rules.backends
            if workload.train_precision in backend.train_precisions
        ),
        offload_rules=tuple(rule for rule in concern if rule.site is not None),
        sharded_syncs=tuple(rule for rule in rules.sharded_syncs if sync_lack(rule, workload) is None),
        allows_rollout_ep=rules.allows_rollout_ep
        and not (rules.lora_excludes_rollout_ep and workload.lora_rank is not None),
    )


def _for_backend(rules: FrameworkRules, backend: TrainerBackend, workload: Workload) -> TrainerBackend:
    offloads = backend.offloads
    for rule in rules.offload_rules:
        if rule.site is None and backend.name in rule.backends:
            offloads &= rule.offloads
    has_limit = workload.critic is not None and backend.max_cp_with_critic is not None
    max_cp = min(backend.max_cp, backend.max_cp_with_critic or 1) if has_limit else backend.max_cp
    excludes_ep = (backend.ep_excludes_critic and workload.critic is not None) or (
        backend.ep_excludes_lora and workload.lora_rank is not None
    )
    return replace(backend, offloads=offloads, max_cp=max_cp, allows_ep=backend.allows_ep and not excludes_ep)


def runs_old_logprob(rules: FrameworkRules, workload: Workload) -> bool:
    """Whether the framework computes old log-probs for the workload although its updates do not need them."""
    if rules.always_recomputes_old_logprob:
        return True
    in_reward = workload.has_reference and workload.algorithm.name in KL_IN_REWARD_ALGORITHMS
    reasons = {
        OldLogprobNeed.CRITIC: workload.critic is not None,
        OldLogprobNeed.SEVERAL_STEPS: workload.num_optimizer_steps > 1,
        OldLogprobNeed.KL_IN_REWARD: in_reward,
    }
    return any(reasons[need] for need in rules.old_logprob_needs)


def as_run_by(rules: FrameworkRules, workload: Workload) -> Workload:
    """The workload with the stages that the framework runs in any case."""
    if workload.needs_old_logprob or not runs_old_logprob(rules, workload):
        return workload
    return replace(workload, needs_old_logprob=True)


def position_problem(workload: Workload) -> str | None:
    """Sequences beyond the model's positions, which engines refuse: they compare with its config.json.

    Completes "<framework> ...".
    """
    limit = workload.actor.max_positions
    if limit is None or workload.max_tokens <= limit:
        return None
    return (
        f"starts no engine for sequences of {workload.max_tokens:,} tokens: the configuration of {workload.actor.id} "
        f"ends at {limit:,} positions (--prompt and --response give shorter ones)"
    )


def workload_lacks(rules: FrameworkRules, workload: Workload) -> tuple[str, ...]:
    """What the framework lacks for the workload, whatever the plan; each completes "it ..."."""
    return (
        *scope_lacks(rules, workload),
        *_algorithm_lacks(rules, workload),
        *_precision_lacks(rules, workload),
        *_adapter_lacks(rules, workload),
        *_critic_lacks(rules, workload),
    )


def scope_lacks(rules: FrameworkRules, workload: Workload) -> tuple[str, ...]:
    """Algorithms and architectures that no plan for the framework has; part of `workload_lacks`.

    It says nothing against a launch script: the framework may have more than plans use, or a user's own code serve it.
    """
    problems: list[str] = []
    if workload.algorithm.name not in rules.algorithms:
        problems.append(f"has no {workload.algorithm.title}")
    known = rules.model_architectures
    if known and workload.actor.architecture not in known:
        names = ", ".join(sorted(known))
        problems.append(f"has no converter for the architecture {workload.actor.architecture} (it has {names})")
    return tuple(problems)


def _algorithm_lacks(rules: FrameworkRules, workload: Workload) -> list[str]:
    problems: list[str] = []
    reward = workload.reward
    if reward.model is not None and WorkerName.REWARD_MODEL not in rules.workers:
        problems.append(f"runs no {WorkerName.REWARD_MODEL.value} on GPUs")
    elif reward.kind not in rules.reward_kinds:
        problems.append(f"has no reward of the kind {reward.kind.value}")
    elif (
        rules.dynamic_sampling_excludes_reward_model
        and reward.model is not None
        and workload.algorithm.oversampling_ratio > 1
    ):
        problems.append("samples dynamically with a function or a server only, not with a reward model on its GPUs")
    if workload.num_epochs > 1 and not _has_epochs(rules, workload):
        only = ", except with a critic" if rules.multiple_epochs is MultipleEpochs.WITH_CRITIC else ""
        problems.append(f"passes over a batch once{only}, the plan {workload.num_epochs} times (--epochs 1)")
    return problems


def _has_epochs(rules: FrameworkRules, workload: Workload) -> bool:
    if rules.multiple_epochs is MultipleEpochs.WITH_CRITIC:
        return workload.critic is not None
    return rules.multiple_epochs is MultipleEpochs.ALWAYS


def _precision_lacks(rules: FrameworkRules, workload: Workload) -> list[str]:
    problems: list[str] = []
    if workload.train_precision not in rules.train_precisions:
        problems.append(f"does not train in {workload.train_precision.value}")
    if workload.rollout_precision not in rules.rollout_precisions:
        problems.append(f"does not generate in {workload.rollout_precision.value}")
    return problems


def _adapter_lacks(rules: FrameworkRules, workload: Workload) -> list[str]:
    if workload.lora_rank is None:
        return []
    if workload.lora_rank > rules.max_lora_rank:
        limit = f"LoRA ranks up to {rules.max_lora_rank}" if rules.max_lora_rank else "no LoRA"
        return [f"has {limit}, the plan trains rank {workload.lora_rank}"]
    problems: list[str] = []
    if rules.lora_excludes_reference and workload.has_reference:
        problems.append("takes no adapter's base model for a reference (LoRA with --kl 0)")
    if rules.lora_excludes_critic and workload.critic is not None:
        problems.append("trains all weights of a value model, the plan adapters")
    return problems


def _critic_lacks(rules: FrameworkRules, workload: Workload) -> list[str]:
    if rules.critic_is_actor_model and workload.critic not in (None, workload.actor):
        return ["takes the actor's model for the critic, the plan another one (leave out --critic)"]
    return []
