"""Writes a plan as a launch script for verl 0.9.1."""

from __future__ import annotations

from pathlib import Path

from planner.adapters.export import (
    ExportFile,
    Notes,
    check_exportable,
    engine_tokens_needed,
    plan_digest,
    position_problems,
    readme_file,
    write_files,
)
from planner.adapters.shell import comment
from planner.adapters.verl_config import DEFAULT_ENGINE_TOKENS, VerlConfig, build_config, context_of
from planner.adapters.verl_context import Runner
from planner.adapters.verl_execution import lacks
from planner.domain.framework import FrameworkRules
from planner.domain.plan import Plan
from planner.files.framework import load_framework

SCRIPT = "run.sh"
_MAIN = "verl.trainer.main_ppo"
_ENTRY = {
    Runner.SYNC: _MAIN,
    Runner.SEPARATE: _MAIN,
    # Its configuration looks for the one that it builds on below the working directory.
    Runner.ONE_STEP_OFF: "verl.experimental.one_step_off_policy.main_ppo \\\n  "
    "'hydra.searchpath=[pkg://verl.trainer.config]'",
}


def exported_files(
    plan: Plan, *, digest: str | None = None, engine_tokens: int = DEFAULT_ENGINE_TOKENS
) -> tuple[ExportFile, ...]:
    """`run.sh` and `README.md`.

    `digest` identifies the saved plan (a digest of the plan's values is taken when it is None), `engine_tokens`
    are the tokens of one engine step. Raises InvalidInputError when verl cannot run the plan, with every reason.
    Sequences beyond the model's positions: `_validate_configs` of
    verl/workers/rollout/vllm_rollout/vllm_async_server.py, for rollouts and reward models alike.
    """
    rules = load_framework("verl")
    unfit = position_problems(plan, engine_tokens_needed(plan))
    context = context_of(plan, rules, engine_tokens=engine_tokens)
    check_exportable(rules, plan, unfit=unfit, lacks=lacks(context))
    config = build_config(context)
    known = digest if digest is not None else plan_digest(plan)
    return (
        ExportFile(name=SCRIPT, text=script_text(config, rules, known), is_executable=True),
        readme_file(plan, rules, known, _notes(plan, config, rules)),
    )


def export_plan(
    plan: Plan,
    directory: Path,
    *,
    digest: str | None = None,
    engine_tokens: int = DEFAULT_ENGINE_TOKENS,
) -> tuple[Path, ...]:
    """Writes `exported_files` into `directory` and returns their paths.

    Raises InvalidInputError when verl cannot run the plan, or when the directory cannot be written or holds anything
    else; then nothing is left behind.
    """
    return write_files(directory, exported_files(plan, digest=digest, engine_tokens=engine_tokens))


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
    return f'{header}\n{body}\n\npython3 -m {_ENTRY[config.runner]} \\\n  {arrays} \\\n  "$@"\n'


def _notes(plan: Plan, config: VerlConfig, rules: FrameworkRules) -> Notes:
    backend = "Megatron-Core and Megatron-Bridge" if config.is_megatron else "PyTorch FSDP2"
    # checkpoint_engine/nccl_checkpoint_engine.py
    sync = "" if config.runner is Runner.SYNC else ", CuPy (for the weight sync over NCCL)"
    return Notes(
        commands=(f"TRAIN_FILES=train.parquet VAL_FILES=val.parquet ./{SCRIPT}",),
        needs=(
            f"Run it on the head node of a Ray cluster with {plan.num_gpus} GPUs, {rules.title} {rules.version}, "
            f"vLLM{sync} and {backend}.\nArguments of the script are further Hydra overrides and win over those of the "
            "plan."
        ),
        to_do=config.to_do,
        differences=config.differences,
    )
