"""How an export to verl runs iterations: the trainer, the GPUs of trainer and engines, and what that means.

Sources are the files named at each rule, in verl 0.9.1.
"""

from __future__ import annotations

import math

from planner.adapters.overrides import Override, Section, Value, under
from planner.adapters.roles import nodes_of
from planner.adapters.verl_context import Context, Runner
from planner.adapters.verl_layout import critic_tokens
from planner.domain.stages import WorkerName
from planner.domain.strategy import EngineIdle


def placement_section(context: Context) -> Section:
    """GPUs of the trainer, the trainer that runs iterations, and how far the rollout is ahead."""
    group = context.workers[WorkerName.ACTOR_TRAINER].group
    nodes, per_node = nodes_of(group)
    names = ", ".join(worker.name.value for worker in context.workers.values() if worker.group.ranks == group.ranks)
    return Section(
        name="placement",
        decisions=(
            f"device group {group.id}: {group.num_gpus} x {group.gpu} on {group.num_nodes} nodes for {names}",
            *_execution_words(context),
        ),
        overrides=(
            Override(key="model_engine", value="megatron" if context.is_megatron else "dp"),
            *under("trainer", ("nnodes", nodes), ("n_gpus_per_node", per_node), *_trainer_mode(context)),
            Override(key="actor_rollout_ref.hybrid_engine", value=context.runner is Runner.SYNC),
            *_entry_pool(context),
        ),
    )


def _execution_words(context: Context) -> tuple[str, ...]:
    execution = context.plan.execution
    if context.runner is Runner.SYNC:
        return ()
    if not execution.is_asynchronous:
        return ("synchronous, with engines on GPUs of their own: separate_async with no batch ahead",)
    return (f"{execution.mode.value}, weights at most {execution.staleness} versions behind",)


def _trainer_mode(context: Context) -> tuple[tuple[str, Value], ...]:
    if context.runner is Runner.SYNC:
        return (("use_v1", True), ("v1.trainer_mode", "sync"))
    if context.runner is Runner.ONE_STEP_OFF:
        return ()
    staleness = context.plan.execution.staleness
    return (
        ("use_v1", True),
        ("v1.trainer_mode", "separate_async"),
        # One weight sync per iteration, after all its optimizer steps.
        ("v1.separate_async.parameter_sync_step", context.workload.num_optimizer_steps),
        ("v1.separate_async.num_warmup_batches", staleness),
        ("v1.separate_async.hybrid_rollout.enable_switch", False),
        # The threshold counts the versions that a response spans, its own included; `wait` discards nothing.
        ("v1.sampler.max_off_policy_threshold", staleness + 1),
        ("v1.sampler.max_off_policy_strategy", "wait"),
    )


def _entry_pool(context: Context) -> tuple[Override, ...]:
    """GPUs of the engines in the section that the one-step-off entry point reads."""
    if context.runner is not Runner.ONE_STEP_OFF:
        return ()
    nodes, per_node = _engine_nodes(context)
    return under("rollout", ("nnodes", nodes), ("n_gpus_per_node", per_node))


def rollout_pool(context: Context) -> tuple[tuple[str, Value], ...]:
    """Below `actor_rollout_ref.rollout`: GPUs of engines apart from the trainer, and the log-probs that tell how stale
    their responses are."""
    if context.runner is Runner.SYNC:
        return (("nnodes", 0),)
    nodes, per_node = _engine_nodes(context)
    return (("nnodes", nodes), ("n_gpus_per_node", per_node), ("calculate_log_probs", True))


def _engine_nodes(context: Context) -> tuple[int, int]:
    return nodes_of(context.workers[WorkerName.ROLLOUT_ENGINE].group, context.engine.num_gpus)


# What does not work ----------------------------------------------------------------------------------------------


def lacks(context: Context) -> tuple[str, ...]:
    """Reasons against the plan beside the general rules; empty if verl can run it."""
    problems: list[str] = []
    if context.runner is Runner.SYNC and context.plan.execution.is_asynchronous:
        problems.append("asynchronous training needs GPUs of its own for the rollout")
    return tuple(problems)


# What is different -----------------------------------------------------------------------------------------------


def differences(context: Context) -> tuple[str, ...]:
    """Where verl does something else than the plan's cost model assumes."""
    return (*_general(context), *_of_separation(context))


def _general(context: Context) -> tuple[str, ...]:
    workload = context.workload
    notes: list[str] = []
    critic = context.trainer(WorkerName.CRITIC_TRAINER)
    if critic is not None and critic.micro_batch_tokens != critic.inference_tokens:
        notes.append(
            f"verl 0.9.1 uses one token budget for critic values and critic update; the smaller one "
            f"({critic_tokens(critic)} tokens) is written, the plan priced values with {critic.inference_tokens}."
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
    if context.runner is Runner.SYNC and workload.algorithm.oversampling_ratio > 1:
        notes.append(
            "verl refills discarded groups prompt by prompt, with at most "
            f"{math.ceil(workload.algorithm.oversampling_ratio)} x {workload.num_prompts} prompts in flight; the plan "
            f"priced {workload.algorithm.oversampling_ratio:g} x {workload.num_prompts} prompts at once."
        )
    return tuple(notes)


def _of_separation(context: Context) -> list[str]:
    """What follows from engines on GPUs of their own."""
    if context.runner is Runner.SYNC:
        return []
    workload = context.workload
    notes = []
    if context.runner is Runner.SEPARATE and workload.num_optimizer_steps > 1:
        notes.append(
            "verl computes log-probs mini-batch by mini-batch and, from the second one on, copies the weights to host "
            "RAM, loads those of the last weight sync for the old log-probs, and back. The plan priced neither these "
            "copies nor the host RAM for two sets of weights."
        )
    if context.runner is Runner.SEPARATE and context.plan.execution.is_asynchronous:
        notes.append(
            f"`max_off_policy_strategy=wait` keeps the lag at {context.plan.execution.staleness} by waiting for late "
            "responses; `drop` would discard them, the longest first."
        )
    if context.runner is Runner.ONE_STEP_OFF:
        notes.append(
            "Batches that are each of one version exist in verl's one-step-off entry point only, which builds on the "
            "trainer of before 0.9."
        )
        if context.engine.idle is EngineIdle.SLEEP:
            notes.append("One-step-off engines never free their cache (`free_cache_engine=False`).")
    if workload.lora_rank is not None:
        notes.append(
            "Engines apart from the trainer get adapters merged into whole weights at each sync (`lora.merge=True`); "
            "the plan priced the adapters alone."
        )
    if context.runner is Runner.SEPARATE and workload.algorithm.oversampling_ratio > 1:
        notes.append(
            "With engines apart verl replaces each discarded group when it finds it, one by one; the plan priced "
            f"{workload.algorithm.oversampling_ratio:g} x {workload.num_prompts} prompts from the start."
        )
    if context.plan.execution.is_asynchronous:
        notes.append(
            "Responses of older weights are corrected by importance weights per token, cut at 2 "
            "(`algorithm.rollout_correction`); old log-probs stay the proximal policy."
        )
    return notes
