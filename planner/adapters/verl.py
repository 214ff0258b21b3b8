"""Writes a plan as a launch script for verl 0.9.1."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from planner.adapters.files import marked, publish
from planner.adapters.shell import comment
from planner.adapters.verl_config import (
    DEFAULT_ENGINE_TOKENS,
    VerlConfig,
    build_config,
    describe,
    engine_tokens_needed,
    model_path,
)
from planner.domain.framework import FrameworkRules
from planner.domain.framework_verdict import placed_workers, plan_problems, worker_model
from planner.domain.plan import Plan
from planner.errors import InvalidInputError
from planner.files.framework import load_framework
from planner.units import format_bytes, format_seconds

SCRIPT = "run.sh"
README = "README.md"


def export_plan(
    plan: Plan,
    directory: Path,
    *,
    digest: str | None = None,
    engine_tokens: int = DEFAULT_ENGINE_TOKENS,
) -> tuple[Path, ...]:
    """Writes `run.sh` and `README.md` into `directory` and returns their paths.

    `digest` identifies the saved plan (a digest of the plan's values is taken when it is None), `engine_tokens`
    are the tokens of one engine step. Raises InvalidInputError when verl cannot run the plan (with every reason),
    or when the directory cannot be written or holds anything else; then nothing is left behind.
    """
    rules = load_framework("verl")
    problems = plan_problems(rules, plan)
    too_long = position_problems(plan)
    if too_long:
        raise InvalidInputError("\n  ".join([f"{rules.title} {rules.version} cannot start this plan:", *too_long]))
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise InvalidInputError(
            f"{rules.title} {rules.version} cannot run this plan:\n{listed}\n"
            "the nearest plan that it can run: rlplan plan ... --framework verl"
        )
    config = build_config(plan, rules, engine_tokens=engine_tokens)
    known = digest if digest is not None else plan_digest(plan)
    files = {
        SCRIPT: (marked(script_text(config, rules, known)), True),
        README: (marked(readme_text(plan, config, rules, known) + "\n", before="<!-- ", after=" -->"), False),
    }
    return publish(directory, files)


def position_problems(plan: Plan) -> tuple[str, ...]:
    """Sequences that verl's engines refuse: longer than the `max_position_embeddings` of the model's configuration.

    Source: `_validate_configs` of verl/workers/rollout/vllm_rollout/vllm_async_server.py, which compares it with
    `max_model_len` for rollouts and reward models alike. An override cannot help: vLLM reads config.json itself, and
    `override_config` cannot set a RoPE scaling where the configuration has none, so that rollout and training would
    run two different models.
    """
    problems = []
    for worker, num_tokens in engine_tokens_needed(plan):
        model = worker_model(plan.workload, worker)
        if model.max_positions is not None and num_tokens > model.max_positions:
            problems.append(
                f"{worker.value}: sequences of {num_tokens:,} tokens, the configuration of {model_path(model)} ends at "
                f"{model.max_positions:,} positions; plan with shorter prompts and responses, or plan and train a copy "
                "of the model whose config.json has the RoPE scaling that you want and a larger max_position_embeddings"
            )
    return tuple(problems)


def plan_digest(plan: Plan) -> str:
    """SHA-256 over all values of the plan; the facts of the run that found it do not count."""
    return hashlib.sha256(repr(replace(plan, run=None)).encode()).hexdigest()


def script_text(config: VerlConfig, rules: FrameworkRules, digest: str) -> str:
    """The launch script: one bash array per decision, then the command with all of them."""
    arrays = " \\\n  ".join(f'"${{{section.name}[@]}}"' for section in config.sections)
    header = f"""#!/usr/bin/env bash
# {rules.title} {rules.version}, written by rlplan from plan {comment(digest)}.
# Usage: TRAIN_FILES=... VAL_FILES=... ./{SCRIPT} [further Hydra overrides, which win]
set -euo pipefail
TRAIN_FILES=${{TRAIN_FILES:-data/train.parquet}}
VAL_FILES=${{VAL_FILES:-data/val.parquet}}
REWARD_FUNCTION=${{REWARD_FUNCTION:-null}}
"""
    body = "\n\n".join(section.script() for section in config.sections)
    return f'{header}\n{body}\n\npython3 -m verl.trainer.main_ppo \\\n  {arrays} \\\n  "$@"\n'


def readme_text(plan: Plan, config: VerlConfig, rules: FrameworkRules, digest: str) -> str:
    """What the script runs, what it needs and where verl differs from the plan."""
    workers = "\n".join(
        f"| {worker.name.value} | {_cell(worker.group.id)}: {worker.strategy.num_gpus} x {_cell(worker.group.gpu)} "
        f"| {describe(worker.strategy)} |"
        for worker in placed_workers(plan)
    )
    stages = "\n".join(
        f"| {item.stage.value} | {format_seconds(item.time_s)} | "
        + (f"{format_bytes(item.gpu_memory.peak_bytes)} at {item.gpu_memory.instant} |" if item.gpu_memory else "|")
        for item in plan.placements
    )
    differences = "\n".join(f"- {note}" for note in config.differences) or "- None known."
    to_do = "\n".join(f"- {item}" for item in config.to_do)
    backend = "Megatron-Core and Megatron-Bridge" if config.is_megatron else "PyTorch FSDP2"
    return f"""# {plan.workload.algorithm.title} on {rules.title} {rules.version}

    TRAIN_FILES=train.parquet VAL_FILES=val.parquet ./{SCRIPT}

Run it on the head node of a Ray cluster with {plan.num_gpus} GPUs, {rules.title} {rules.version}, vLLM and {backend}.
Arguments of the script are further Hydra overrides and win over those of the plan.

Plan digest: `{_cell(digest)}`

## Set before the first run

{to_do}

## The plan

One iteration: {format_seconds(plan.time_s)} predicted.

| worker | GPUs | strategy |
|---|---|---|
{workers}

| stage | time | GPU memory |
|---|---|---|
{stages}

## Where {rules.title} differs from the plan

{differences}
"""


def _cell(text: str) -> str:
    """Text that stays inside a table cell or code span."""
    return comment(text).replace("|", "\\|").replace("`", "'")
