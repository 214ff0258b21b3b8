"""Writes a plan as a configuration and a launch script for NeMo-RL."""

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
from planner.adapters.nemo_rl_config import blocks
from planner.adapters.nemo_rl_rules import differences, lacks, to_do
from planner.adapters.roles import Roles
from planner.adapters.shell import comment
from planner.adapters.yaml_text import yaml_document
from planner.domain.framework import FrameworkRules
from planner.domain.plan import Plan
from planner.files.framework import load_framework

SCRIPT = "run.sh"
CONFIG = "config.yaml"


def exported_files(plan: Plan, *, digest: str | None = None) -> tuple[ExportFile, ...]:
    """`run.sh`, `config.yaml` and `README.md`.

    `digest` identifies the saved plan (a digest of the plan's values is taken when it is None). Raises
    InvalidInputError when NeMo-RL cannot run the plan, with every reason.
    """
    rules = load_framework("nemo-rl")
    roles = Roles.of(plan)
    backend = roles.backend(rules)
    check_exportable(rules, plan, unfit=position_problems(plan, engine_tokens_needed(plan)[:1]), lacks=lacks(roles))
    known = digest if digest is not None else plan_digest(plan)
    return (
        ExportFile(name=SCRIPT, text=_script(plan, rules, known), is_executable=True),
        ExportFile(name=CONFIG, text=_config(roles, rules, backend, known)),
        readme_file(plan, rules, known, _notes(roles, rules, backend)),
    )


def export_plan(plan: Plan, directory: Path, *, digest: str | None = None) -> tuple[Path, ...]:
    """Writes `exported_files` into `directory` and returns their paths; raises as `write_files` does."""
    return write_files(directory, exported_files(plan, digest=digest))


def _program(plan: Plan) -> str:
    return "run_ppo.py" if plan.workload.critic is not None else "run_grpo.py"


def _config(roles: Roles, rules: FrameworkRules, backend: str, digest: str) -> str:
    parent = "ppo_math_1B.yaml" if roles.workload.critic is not None else "grpo_math_1B.yaml"
    return f"""# {rules.title} {rules.version}, written by rlplan from plan {comment(digest)}.
# Every value that the plan decides is here; the shipped file below adds what no plan decides.
defaults: ${{oc.env:NEMO_RL}}/examples/configs/{parent}

{yaml_document(blocks(roles, backend))}"""


def _script(plan: Plan, rules: FrameworkRules, digest: str) -> str:
    return f"""#!/usr/bin/env bash
# {rules.title} {rules.version}, written by rlplan from plan {comment(digest)}.
# Usage: NEMO_RL=... TRAIN_DATA=... ./{SCRIPT} [further Hydra overrides, which win]
set -euo pipefail
here=$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)
NEMO_RL=$(cd -- "${{NEMO_RL:?set it to a checkout of NeMo-RL}}" && pwd)
TRAIN_DATA=$(realpath -- "${{TRAIN_DATA:?set it to a JSON file}}")
# Needed to build kernels; NeMo-RL's container sets it.
TORCH_CUDA_ARCH_LIST=${{TORCH_CUDA_ARCH_LIST:-9.0 10.0}}
export NEMO_RL TRAIN_DATA TORCH_CUDA_ARCH_LIST
# Shipped files name prompts relative to the checkout.
cd -- "$NEMO_RL"
uv run examples/{_program(plan)} --config "$here/{CONFIG}" "$@"
"""


def _notes(roles: Roles, rules: FrameworkRules, backend: str) -> Notes:
    plan = roles.plan
    libraries = "Megatron-Core and Megatron-Bridge" if backend == "megatron" else "Automodel (PyTorch DTensor)"
    return Notes(
        commands=(f"NEMO_RL=/path/to/NeMo-RL TRAIN_DATA=train.jsonl ./{SCRIPT}",),
        needs=(
            f"Run it on the head node of a Ray cluster with {plan.num_gpus} GPUs, {rules.title} {rules.version}, vLLM "
            f"and {libraries}.\nArguments of the script are further Hydra overrides and win over those of the plan."
        ),
        to_do=to_do(roles),
        differences=differences(roles, backend),
    )
