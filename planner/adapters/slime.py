"""Writes a plan as start scripts for slime (main branch of August 2026)."""

from __future__ import annotations

from planner.adapters.export import (
    ExportFile,
    Notes,
    check_exportable,
    engine_tokens_needed,
    model_path,
    plan_digest,
    position_problems,
    readme_file,
)
from planner.adapters.flags import FlagSection
from planner.adapters.roles import Roles
from planner.adapters.sglang import exchange_tokens
from planner.adapters.shell import comment, shell_word
from planner.adapters.slime_config import (
    ROLE_CONFIG,
    SWAPS,
    engine_sleeps,
    forward_tokens,
    per_gpu,
    program,
    sections,
    swaps,
    train_tokens,
)
from planner.adapters.slime_model import model_differences, model_flags
from planner.adapters.yaml_text import Block, FlowMap, yaml_document
from planner.domain.framework import FrameworkRules
from planner.domain.hardware import Precision
from planner.domain.plan import Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import EngineIdle
from planner.domain.workload import RewardKind, Workload
from planner.errors import InvalidInputError
from planner.files.framework import load_framework

SCRIPT = "run.sh"
MODEL = "model_args.sh"
CONVERT = "convert.sh"
HERE = 'HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"'


def exported_files(plan: Plan, *, digest: str | None = None) -> tuple[ExportFile, ...]:
    """`run.sh`, `model_args.sh`, `convert.sh`, `roles.yaml` where there is a critic, and `README.md`.

    `digest` identifies the saved plan (a digest of the plan's values is taken when it is None). Raises
    InvalidInputError when slime cannot run the plan, with every reason.
    """
    rules = load_framework("slime")
    positions = position_problems(plan, engine_tokens_needed(plan)[:1])
    check_exportable(rules, plan, unfit=(*positions, *workload_faults(plan.workload)))
    roles = Roles.of(plan)
    known = digest if digest is not None else plan_digest(plan)
    header = f"# {rules.title} {rules.version}, written by rlplan from plan {comment(known)}.\n"
    critic = (ExportFile(name=ROLE_CONFIG, text=header + _role_config()),) if plan.workload.critic is not None else ()
    return (
        ExportFile(name=SCRIPT, text=_script(roles, header), is_executable=True),
        ExportFile(name=MODEL, text=header + _model_section(plan.workload).script() + "\n"),
        ExportFile(name=CONVERT, text=_convert(plan.workload, header), is_executable=True),
        *critic,
        readme_file(plan, rules, known, _notes(roles, rules)),
    )


def workload_faults(workload: Workload) -> tuple[str, ...]:
    """What the flags of Megatron-LM cannot say about the model."""
    try:
        model_flags(workload.actor)
    except InvalidInputError as error:
        return (str(error),)
    return ()


def _model_section(workload: Workload) -> FlagSection:
    return FlagSection(
        name="MODEL_ARGS",
        decisions=(f"workload: {model_path(workload.actor)}, from its config.json",),
        flags=model_flags(workload.actor),
    )


def _script(roles: Roles, header: str) -> str:
    """Paths, one bash array per decision, then the command with all of them."""
    found = sections(roles)
    arrays = " \\\n  ".join(['"${MODEL_ARGS[@]}"', *(f'"${{{section.name}[@]}}"' for section in found)])
    body = "\n\n".join(section.script() for section in found)
    is_sandbox = roles.workload.reward.kind is RewardKind.SANDBOX
    reward = "REWARD_FUNCTION=${REWARD_FUNCTION:-reward.score}" if is_sandbox else "RM_TYPE=${RM_TYPE:-deepscaler}"
    critic = f"ROLE_CONFIG=$HERE/{ROLE_CONFIG}\n" if WorkerName.CRITIC_TRAINER in roles.workers else ""
    return f"""#!/usr/bin/env bash
{header}# Usage: SLIME_DIR=... REF_LOAD=... TRAIN_DATA=... ./{SCRIPT} [further flags, which win]
set -euo pipefail
{HERE}
SLIME_DIR=${{SLIME_DIR:-/root/slime}}
DEFAULT_HF_CHECKPOINT={shell_word(model_path(roles.workload.actor))}
HF_CHECKPOINT=${{HF_CHECKPOINT:-$DEFAULT_HF_CHECKPOINT}}
REF_LOAD=${{REF_LOAD:-$HERE/checkpoint}}
SAVE_DIR=${{SAVE_DIR:-$HERE/save}}
TRAIN_DATA=${{TRAIN_DATA:-data/train.jsonl}}
{reward}
{critic}source "$HERE/{MODEL}"

{body}

export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTHONPATH=${{MEGATRON_DIR:-/root/Megatron-LM}}${{PYTHONPATH:+:$PYTHONPATH}}
{_exchange_environment(roles)}cd "$SLIME_DIR"
python3 {program(roles)} \\
  {arrays} \\
  --train-env-vars='{{"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}' \\
  "$@"
"""


def _convert(workload: Workload, header: str) -> str:
    return f"""#!/usr/bin/env bash
{header}# On one GPU, before {SCRIPT}: SLIME_DIR=... HF_CHECKPOINT=<directory> REF_LOAD=<new directory> ./{CONVERT}
set -euo pipefail
{HERE}
SLIME_DIR=${{SLIME_DIR:-/root/slime}}
DEFAULT_HF_CHECKPOINT={shell_word(model_path(workload.actor))}
HF_CHECKPOINT=${{HF_CHECKPOINT:-$DEFAULT_HF_CHECKPOINT}}
REF_LOAD=${{REF_LOAD:-$HERE/checkpoint}}
source "$HERE/{MODEL}"

export PYTHONPATH=${{MEGATRON_DIR:-/root/Megatron-LM}}${{PYTHONPATH:+:$PYTHONPATH}}
cd "$SLIME_DIR"
python3 tools/convert_hf_to_torch_dist.py "${{MODEL_ARGS[@]}}" --hf-checkpoint="$HF_CHECKPOINT" --save="$REF_LOAD"
"""


def _role_config() -> str:
    critic = FlowMap((("name", "default"), ("role", "critic"), ("overrides", FlowMap((("lr", 1e-5),)))))
    block = Block(
        path="",
        decisions=(),
        entries=(("megatron", (critic,)),),
    )
    return "# The critic has the actor's flags but these; add `load` to start it from a checkpoint of its own.\n" + (
        yaml_document((block,))
    )


def _notes(roles: Roles, rules: FrameworkRules) -> Notes:
    plan = roles.plan
    paths = "SLIME_DIR=/root/slime HF_CHECKPOINT=/models/hf REF_LOAD=/models/megatron"
    return Notes(
        commands=(f"{paths} ./{CONVERT}", f"{paths} TRAIN_DATA=/data/train.jsonl ./{SCRIPT}"),
        needs=(
            f"Run it on the head node of a Ray cluster with {plan.num_gpus} GPUs, in slime's container "
            f"({rules.version}, Megatron-LM 1dcf0dafa with slime's patch, SGLang 0.5.15.post1) and with paths that all "
            "nodes see; those that are not absolute are seen from `SLIME_DIR`. Ray's workers need Megatron-LM on "
            "`PYTHONPATH` when they start. Arguments of the script are further flags and win over those of the plan. "
            "slime ignores flags that it does not know: spell yours with care."
        ),
        to_do=(*_to_do(plan.workload), *_exchange_to_do(roles)),
        differences=_differences(roles),
    )


def _to_do(workload: Workload) -> tuple[str, ...]:
    is_fp8 = workload.rollout_precision is Precision.FP8
    eight_bit = " For this plan: FP8, converted from the one that `REF_LOAD` was made of." if is_fp8 else ""
    reward = (
        "`REWARD_FUNCTION`: importable path of an asynchronous function that runs the sandbox and returns the score."
        if workload.reward.kind is RewardKind.SANDBOX
        else "`RM_TYPE`: one of slime's rules; for a function of your own pass `--custom-rm-path=module.function`."
    )
    return (
        f"`HF_CHECKPOINT`: a directory that all nodes see, or the name on Hugging Face.{eight_bit}",
        f"`REF_LOAD`: the weights in Megatron's format, which {CONVERT} writes; actor and reference start there.",
        "`TRAIN_DATA`: JSON lines with `prompt` and `label`.",
        reward,
        f"`{MODEL}` comes from the planner's copy of config.json; slime compares the sizes with `HF_CHECKPOINT` when "
        "it starts, but not the scaling of rotary positions: compare it yourself.",
    )


_EXCHANGE_TOKENS = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"


def _exchange_to_do(roles: Roles) -> tuple[str, ...]:
    """DeepEP's buffers are sized by an environment variable of the engines (docs/en/examples/glm5.2-744B-A40B.md of
    slime: it must cover the largest decode batch), 128 by default."""
    tokens = exchange_tokens(roles.rollout)
    if not tokens:
        return ()
    return (
        f"`{_EXCHANGE_TOKENS}={tokens}` in the environment of Ray's workers when they start, which the script can set "
        "on its own node only: rows per expert in the buffers of the all-to-all.",
    )


def _exchange_environment(roles: Roles) -> str:
    tokens = exchange_tokens(roles.rollout)
    return f"export {_EXCHANGE_TOKENS}={tokens}\n" if tokens else ""


def _differences(roles: Roles) -> tuple[str, ...]:
    """Where slime does something else than the plan's cost model assumes."""
    workload = roles.workload
    notes = [*model_differences(workload.actor)]
    names = (WorkerName.ACTOR_TRAINER, WorkerName.REFERENCE, WorkerName.CRITIC_TRAINER)
    trainers = [(name, strategy) for name in names if (strategy := roles.trainer(name)) is not None]
    if any(per_gpu(strategy.inference_tokens, strategy) != forward_tokens(roles) for _, strategy in trainers):
        notes.append(
            f"slime has one token budget for log-probs, reference and values; the smallest one "
            f"({forward_tokens(roles):,} tokens per GPU) is written."
        )
    trained = [strategy for name, strategy in trainers if name is not WorkerName.REFERENCE]
    if any(per_gpu(strategy.micro_batch_tokens, strategy) != train_tokens(roles) for strategy in trained):
        notes.append(
            f"slime has one token budget for the updates of actor and critic; the smaller one ({train_tokens(roles):,} "
            "tokens per GPU) is written."
        )
    if swaps(roles) and any(strategy.offload not in SWAPS for strategy in trained):
        notes.append("With a critic slime moves both trainers to host RAM whenever they do not run.")
    if roles.rollout.idle is EngineIdle.SLEEP and not engine_sleeps(roles):
        notes.append("Engines of asynchronous plans never sleep in slime.")
    if workload.critic is not None:
        notes.append("slime updates the critic before the actor.")
    if _skips_old_logprobs(roles):
        notes.append(
            "With one optimizer step slime takes the log-probs of the update itself for the old ones and leaves that "
            "stage out, which the plan priced."
        )
    if workload.algorithm.oversampling_ratio > 1:
        notes.append(
            "slime generates further batches until enough groups are left; the plan priced "
            f"{workload.algorithm.oversampling_ratio:g} x {workload.num_prompts} prompts at once."
        )
    if workload.algorithm.name == "dr-grpo":
        notes.append("slime averages over the tokens of each response; Dr.GRPO divides by a constant length.")
    return tuple(notes)


def _skips_old_logprobs(roles: Roles) -> bool:
    """`can_reuse_log_probs_in_loss` of slime/backends/megatron_utils/actor.py."""
    workload = roles.workload
    in_loss = workload.algorithm.name in ("grpo", "dr-grpo", "dapo") or (
        workload.algorithm.name == "reinforce++" and not workload.has_reference
    )
    return workload.num_optimizer_steps == 1 and in_loss
