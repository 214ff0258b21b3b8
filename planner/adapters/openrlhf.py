"""Writes a plan as a launch script for OpenRLHF 0.11.2."""

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
from planner.adapters.openrlhf_config import sections
from planner.adapters.openrlhf_rules import differences, lacks, to_do
from planner.adapters.roles import Roles
from planner.adapters.shell import comment
from planner.domain.framework import FrameworkRules
from planner.domain.plan import Plan
from planner.files.framework import load_framework

SCRIPT = "run.sh"


def exported_files(plan: Plan, *, digest: str | None = None) -> tuple[ExportFile, ...]:
    """`run.sh` and `README.md`.

    `digest` identifies the saved plan (a digest of the plan's values is taken when it is None). Raises
    InvalidInputError when OpenRLHF cannot run the plan, with every reason.
    """
    rules = load_framework("openrlhf")
    roles = Roles.of(plan)
    check_exportable(rules, plan, unfit=position_problems(plan, engine_tokens_needed(plan)[:1]), lacks=lacks(roles))
    known = digest if digest is not None else plan_digest(plan)
    return (
        ExportFile(name=SCRIPT, text=_script(roles, rules, known), is_executable=True),
        readme_file(plan, rules, known, _notes(roles, rules)),
    )


def export_plan(plan: Plan, directory: Path, *, digest: str | None = None) -> tuple[Path, ...]:
    """Writes `exported_files` into `directory` and returns their paths; raises as `write_files` does."""
    return write_files(directory, exported_files(plan, digest=digest))


def _script(roles: Roles, rules: FrameworkRules, digest: str) -> str:
    """One bash array per decision, then the command with all of them."""
    found = tuple(section for section in sections(roles) if section.flags)
    arrays = " \\\n  ".join(f'"${{{section.name}[@]}}"' for section in found)
    body = "\n\n".join(section.script() for section in found)
    needs_function = roles.workload.reward.model is None
    usage = "TRAIN_DATA=... REWARD_FUNCTION=..." if needs_function else "TRAIN_DATA=..."
    function = "REWARD_FUNCTION=${REWARD_FUNCTION:-reward_func.py}\n" if needs_function else ""
    return f"""#!/usr/bin/env bash
# {rules.title} {rules.version}, written by rlplan from plan {comment(digest)}.
# Usage: {usage} ./{SCRIPT} [further flags, which win]
set -euo pipefail
TRAIN_DATA=${{TRAIN_DATA:-data/train.jsonl}}
{function}
{body}

python3 -m openrlhf.cli.train_ppo_ray \\
  {arrays} \\
  "$@"
"""


def _notes(roles: Roles, rules: FrameworkRules) -> Notes:
    variables = "TRAIN_DATA=train.jsonl" + (
        " REWARD_FUNCTION=reward_func.py" if not roles.workload.reward.model else ""
    )
    return Notes(
        commands=(f"{variables} ./{SCRIPT}",),
        needs=(
            f"Run it on the head node of a Ray cluster with {roles.plan.num_gpus} GPUs and "
            f"`openrlhf[vllm{',ring' if roles.actor.cp > 1 else ''}]=={rules.version}`.\n"
            "Arguments of the script are further flags and win over those of the plan."
        ),
        to_do=to_do(roles),
        differences=differences(roles),
    )
