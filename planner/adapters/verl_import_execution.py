"""How verl's trainers overlap iterations: what a configuration says, and what goes wrong.

Sources are the files named at each rule, in verl 0.9.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.adapters.findings import Severity
from planner.adapters.import_values import Values
from planner.adapters.verl_import_workers import ACTOR, ROLLOUT, Pools, Sizes
from planner.domain.execution import IN_STEP, Execution, ExecutionMode

SEPARATE = "trainer.v1.separate_async"
SAMPLER = "trainer.v1.sampler"
CORRECTION = "algorithm.rollout_correction"
REWARD = "reward.reward_model"
MAX_STALENESS = 1000.0
"""More batches ahead than any run has."""
ENTRIES_APART = ("one_step_off", "fully_async")


def read_execution(values: Values, entry: str, mode: str) -> Execution:
    """How iterations overlap, of an entry point and `trainer.v1.trainer_mode`."""
    if entry == "one_step_off":
        return Execution(mode=ExecutionMode.BATCHES, staleness=1)
    if entry == "fully_async":
        return _fully_asynchronous(values)
    if mode == "separate_async":
        return _separate(values)
    if mode == "colocate_async":
        values.find(
            "trainer.v1.trainer_mode", Severity.NOTE,
            "colocate_async is priced as a synchronous iteration: engines and trainer take turns on the same GPUs",
        )  # fmt: skip
    return IN_STEP


def _fully_asynchronous(values: Values) -> Execution:
    key = "async_training.staleness_threshold"
    threshold = min(values.number(key, 0.1), MAX_STALENESS)
    if threshold <= 0:
        values.find(key, Severity.NOTE, "0: nothing is generated ahead, priced as a synchronous iteration")
        return IN_STEP
    staleness = math.ceil(threshold)
    if staleness != threshold:
        values.find(
            key, Severity.NOTE,
            f"{threshold:g} batches ahead are priced as {staleness}: the step may be longer than predicted",
        )  # fmt: skip
    partial = values.flag("async_training.partial_rollout", default=True)
    return Execution(mode=ExecutionMode.STREAMING if partial else ExecutionMode.BATCHES, staleness=staleness)


def _separate(values: Values) -> Execution:
    """trainer/ppo/v1/trainer_separate_async.py: so many batches are ahead of the one that is trained on."""
    key = f"{SEPARATE}.num_warmup_batches"
    ahead = min(values.number(key, 1.0), MAX_STALENESS)
    if ahead <= 0:
        values.find(key, Severity.NOTE, "0: nothing is generated ahead, so that an iteration is synchronous")
        return IN_STEP
    staleness = math.ceil(ahead)
    if staleness != ahead:
        values.find(
            key, Severity.NOTE, f"{ahead:g} batches ahead are priced as {staleness}: the step may be longer",
        )  # fmt: skip
    return Execution(mode=ExecutionMode.STREAMING, staleness=staleness)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """What the rules about overlapping iterations look at."""

    entry: str
    sizes: Sizes
    pools: Pools
    execution: Execution
    is_megatron: bool
    has_lora: bool


def check_execution(values: Values, overlap: Overlap) -> None:
    """Notes every broken rule."""
    if overlap.entry in ENTRIES_APART:
        _entry_points(values, overlap)
    else:
        mode = values.text("trainer.v1.trainer_mode", "sync")
        if mode not in ("sync", "colocate_async", "separate_async"):
            values.find(
                "trainer.v1.trainer_mode", Severity.ERROR, f"{mode[:40]!r} is not known",
                "sync, colocate_async or separate_async",
            )  # fmt: skip
        if mode != "separate_async":
            return
        _separate_trainer(values, overlap)
        _separate_updates(values, overlap)
    _adapters(values, overlap)
    _correction(values, overlap)


def _entry_points(values: Values, overlap: Overlap) -> None:
    """experimental/one_step_off_policy/{main_ppo,ray_trainer}.py; experimental/fully_async_policy."""
    if values.flag("actor_rollout_ref.hybrid_engine", default=True):
        values.find(
            "actor_rollout_ref.hybrid_engine", Severity.ERROR, "must be False for this entry point",
            "actor_rollout_ref.hybrid_engine=False",
        )  # fmt: skip
    if overlap.entry == "fully_async":
        if values.whole("data.train_batch_size", 1024) != 0:
            values.find(
                "data.train_batch_size", Severity.ERROR, "must be 0 for this entry point", "data.train_batch_size=0"
            )
        return
    if values.flag(f"{ROLLOUT}.free_cache_engine"):
        values.find(
            f"{ROLLOUT}.free_cache_engine", Severity.ERROR, "must be False for this entry point: weights are sent to "
            "engines that are awake", f"{ROLLOUT}.free_cache_engine=False",
        )  # fmt: skip
    if values.flag(f"{REWARD}.enable"):
        values.find(
            f"{REWARD}.enable", Severity.ERROR, "this entry point creates no workers for a reward model",
            "a reward function, or trainer.v1.trainer_mode=separate_async of verl.trainer.main_ppo",
        )  # fmt: skip
    if values.flag("algorithm.filter_groups.enable"):
        values.find(
            "algorithm.filter_groups.enable", Severity.WARNING, "nothing reads it: this entry point filters no groups",
            "trainer.v1.trainer_mode=separate_async of verl.trainer.main_ppo does",
        )  # fmt: skip


def _separate_trainer(values: Values, overlap: Overlap) -> None:
    """trainer/ppo/v1/trainer_separate_async.py __init__; trainer/ppo/v1/replay_buffer.py."""
    step, sizes = values.whole(f"{SEPARATE}.parameter_sync_step", 4, minimum=1), overlap.sizes
    if sizes.num_prompts != step * sizes.mini_batch_prompts:
        values.find(
            "data.train_batch_size", Severity.ERROR,
            f"{sizes.num_prompts} is not parameter_sync_step x ppo_mini_batch_size = {step} x "
            f"{sizes.mini_batch_prompts}", f"data.train_batch_size={step * sizes.mini_batch_prompts}",
        )  # fmt: skip
    if not overlap.pools.engine_gpus:
        values.find(
            f"{ROLLOUT}.nnodes", Severity.ERROR, "is 0: separate_async needs nodes for the engines",
            f"{ROLLOUT}.nnodes=N",
        )  # fmt: skip
    if values.text(f"{ROLLOUT}.checkpoint_engine.backend", "naive") == "naive":
        values.find(
            f"{ROLLOUT}.checkpoint_engine.backend", Severity.ERROR, "naive cannot reach engines on other GPUs",
            f"{ROLLOUT}.checkpoint_engine.backend=nccl",
        )  # fmt: skip
    if values.flag("actor_rollout_ref.hybrid_engine", default=True):
        values.find(
            "actor_rollout_ref.hybrid_engine", Severity.WARNING,
            "the trainer's GPUs get engines as well, which the prediction leaves out",
            "actor_rollout_ref.hybrid_engine=False",
        )  # fmt: skip
    if values.flag(f"{REWARD}.enable") and not values.flag(f"{REWARD}.enable_resource_pool"):
        values.find(
            f"{REWARD}.enable_resource_pool", Severity.ERROR,
            "is False: engines apart from the trainer never pause for a reward model on its GPUs",
            f"{REWARD}.enable_resource_pool=True with GPUs of its own",
        )  # fmt: skip
    _late_responses(values, overlap)


def _late_responses(values: Values, overlap: Overlap) -> None:
    """What becomes of responses that are later than the batches ahead explain."""
    key = f"{SAMPLER}.max_off_policy_threshold"
    span = values.optional_whole(key, minimum=1)
    if span is None or not overlap.execution.is_asynchronous:
        return
    ahead = overlap.execution.staleness
    if values.text(f"{SAMPLER}.max_off_policy_strategy", "drop") == "wait":
        return
    if span <= ahead:
        values.find(
            key, Severity.ERROR,
            f"{span} versions with {ahead} batches ahead: every response is too old when its turn comes, and dropped",
            f"{key}={ahead + 1} or more",
        )  # fmt: skip
    else:
        values.say("late responses", f"dropped when more than {span - 1} versions old", values.origin(key))


def _separate_updates(values: Values, overlap: Overlap) -> None:
    """experimental/separation/engine_workers.py; utils/fsdp_utils.py fsdp2_sharded_save_to_cpu and _load_from_cpu."""
    section = f"{ACTOR}.fsdp_config"
    on_host = [key for key in ("param_offload", "offload_policy") if values.flag(f"{section}.{key}")]
    bypasses = values.flag(f"{CORRECTION}.bypass_mode")
    if overlap.is_megatron or bypasses or not on_host or overlap.sizes.num_optimizer_steps == 1:
        return
    values.find(
        f"{section}.{on_host[0]}", Severity.ERROR,
        "verl saves and restores the weights around the old log-probs of each mini-batch; with weights in host RAM the "
        "copy is the weights themselves, so that updates are overwritten",
        f"{section}.{on_host[0]}=False",
    )  # fmt: skip


def _adapters(values: Values, overlap: Overlap) -> None:
    """workers/engine_workers.py update_weights: without merging only base weights go over a checkpoint engine."""
    if overlap.has_lora and not values.flag("actor_rollout_ref.model.lora.merge"):
        values.find(
            "actor_rollout_ref.model.lora.merge", Severity.ERROR,
            "is False: engines apart from the trainer are sent the base weights without the adapters",
            "actor_rollout_ref.model.lora.merge=True",
        )  # fmt: skip


def _correction(values: Values, overlap: Overlap) -> None:
    if not overlap.execution.is_asynchronous or values.flag(f"{CORRECTION}.bypass_mode"):
        return
    given = [values.config.get(f"{CORRECTION}.{key}") for key in ("rollout_is", "rollout_rs")]
    if not any(given):
        values.find(
            f"{CORRECTION}.rollout_is", Severity.WARNING,
            "no off-policy correction is chosen for responses of older weights",
            f"{CORRECTION}.rollout_is=token, or {CORRECTION}.bypass_mode=True",
        )  # fmt: skip
