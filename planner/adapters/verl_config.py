"""A plan as overrides of verl 0.9.1's `ppo_trainer.yaml`.

Units that differ from the plan's: mini-batches count prompts (verl multiplies by `rollout.n`); token budgets are
per GPU and multiplied by the sequence-parallel size (Ulysses or context parallel) inside verl.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.adapters.overrides import Section, ShellValue, under
from planner.adapters.verl_algorithm import algorithm_section, reward_section, supported_algorithms
from planner.adapters.verl_context import ACTOR, ROLLOUT, Context, Runner, decision
from planner.adapters.verl_execution import differences, placement_section, rollout_pool
from planner.adapters.verl_layout import actor_section, critic_section, model_section, reference_section
from planner.domain.framework import FrameworkRules
from planner.domain.framework_placed import placed_workers
from planner.domain.framework_trainers import backend_of
from planner.domain.hardware import Precision
from planner.domain.plan import Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import EngineIdle, RolloutStrategy
from planner.domain.workload import RewardKind

DEFAULT_ENGINE_TOKENS = 8192
"""max_num_batched_tokens of verl and vLLM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerlConfig:
    """The configuration of one plan, and what verl does otherwise than the plan says."""

    is_megatron: bool
    sections: tuple[Section, ...]
    differences: tuple[str, ...]
    to_do: tuple[str, ...]
    """What only the user can fill in."""

    runner: Runner


def context_of(plan: Plan, rules: FrameworkRules, *, engine_tokens: int = DEFAULT_ENGINE_TOKENS) -> Context:
    """The workers of a plan by name; raises LookupError for a plan without an actor trainer."""
    workers = {worker.name: worker for worker in placed_workers(plan)}
    actor = workers[WorkerName.ACTOR_TRAINER].strategy
    if isinstance(actor, RolloutStrategy):
        raise TypeError("the actor trainer has a rollout strategy")
    backend = backend_of(rules, actor, worker=WorkerName.ACTOR_TRAINER, model=plan.workload.actor)
    return Context(
        plan=plan,
        workers=workers,
        is_megatron=backend is not None and backend.name == "megatron",
        engine_tokens=engine_tokens,
    )


def build_config(context: Context) -> VerlConfig:
    """The overrides of a plan that neither `plan_problems` nor `lacks` finds fault with."""
    sections = (
        placement_section(context),
        model_section(context),
        actor_section(context),
        *reference_section(context),
        critic_section(context),
        _rollout(context),
        algorithm_section(context),
        reward_section(context),
        _data(context),
        _run(context),
    )
    return VerlConfig(
        is_megatron=context.is_megatron,
        sections=sections,
        differences=differences(context),
        to_do=_to_do(context),
        runner=context.runner,
    )


def _rollout(context: Context) -> Section:
    workload, strategy = context.workload, context.engine
    return Section(
        name="rollout",
        decisions=(decision(context, WorkerName.ROLLOUT_ENGINE),),
        overrides=under(
            ROLLOUT,
            ("name", "vllm"),
            *rollout_pool(context),
            ("n", workload.group_size),
            ("tensor_model_parallel_size", strategy.tp),
            ("pipeline_model_parallel_size", strategy.pp),
            # vLLM's data-parallel ranks share the experts; each has sequences and a step budget of its own.
            ("data_parallel_size", strategy.attention_dp),
            ("expert_parallel_size", strategy.ep),
            ("gpu_memory_utilization", strategy.engine_fraction),
            ("max_num_seqs", strategy.max_num_seqs),
            ("max_model_len", workload.max_tokens),
            ("max_num_batched_tokens", max(context.engine_tokens // strategy.attention_dp, strategy.max_num_seqs)),
            ("enable_chunked_prefill", True),
            ("enable_prefix_caching", True),
            ("enforce_eager", False),
            ("free_cache_engine", strategy.idle is EngineIdle.SLEEP and context.runner is not Runner.ONE_STEP_OFF),
            ("dtype", "bfloat16"),
            ("quantization", "fp8" if workload.rollout_precision is Precision.FP8 else None),
            # Full weights come with the first sync; adapters need the base weights from disk.
            ("load_format", "dummy" if workload.lora_rank is None else "safetensors"),
            ("checkpoint_engine.backend", "naive" if context.runner is Runner.SYNC else "nccl"),
        ),
    )


def _data(context: Context) -> Section:
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


def _run(context: Context) -> Section:
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


def _to_do(context: Context) -> tuple[str, ...]:
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


__all__ = ["DEFAULT_ENGINE_TOKENS", "VerlConfig", "build_config", "context_of", "supported_algorithms"]
