"""Writes a plan as configuration and start script for AReaL 1.0.4."""

from __future__ import annotations

from planner.adapters.areal_config import config_blocks, shared_budget
from planner.adapters.areal_context import ArealContext
from planner.adapters.export import (
    ExportFile,
    Notes,
    check_exportable,
    engine_tokens_needed,
    plan_digest,
    position_problems,
    readme_file,
)
from planner.adapters.shell import comment
from planner.adapters.yaml_text import yaml_document
from planner.domain.framework import FrameworkRules
from planner.domain.framework_placed import worker_model
from planner.domain.plan import Plan
from planner.domain.stages import WorkerName
from planner.domain.workload import RewardKind, Workload
from planner.files.framework import load_framework

SCRIPT = "run.sh"
CONFIG = "config.yaml"
TRAINER = "rlplan_train.py"


def exported_files(plan: Plan, *, digest: str | None = None) -> tuple[ExportFile, ...]:
    """`config.yaml`, `rlplan_train.py`, `run.sh` and `README.md`.

    `digest` identifies the saved plan (a digest of the plan's values is taken when it is None). Raises
    InvalidInputError when AReaL cannot run the plan, with every reason.
    """
    rules = load_framework("areal")
    unfit = position_problems(plan, engine_tokens_needed(plan))
    check_exportable(rules, plan, unfit=unfit, lacks=plan_faults(plan, rules))
    context = ArealContext.of(plan, rules)
    known = digest if digest is not None else plan_digest(plan)
    header = f"# {rules.title} {rules.version}, written by rlplan from plan {comment(known)}.\n"
    return (
        ExportFile(name=SCRIPT, text=_script(header), is_executable=True),
        ExportFile(name=CONFIG, text=header + "\n" + yaml_document(config_blocks(context))),
        ExportFile(name=TRAINER, text=_trainer(header, plan.workload)),
        readme_file(plan, rules, known, _notes(context, rules)),
    )


def plan_faults(plan: Plan, rules: FrameworkRules) -> tuple[str, ...]:
    """What the general rules do not say: what depends on trainer and engines at once, and what no
    framework can."""
    context = ArealContext.of(plan, rules)
    faults = []
    for name, backend in context.backends.items():
        model = worker_model(plan.workload, name)
        has_delta_nets = any(layer.attention.kind == "gated_delta_net" for layer in model.layers)
        if backend == "megatron" and context.trainer(name).cp > 1 and has_delta_nets:
            # areal/engine/megatron_engine.py; no search looks at such strategies.
            faults.append(f"{name.value} (megatron): no context parallelism for gated delta nets")
    if context.engine_kind == "vllm" and context.engine.ep > 1:
        faults.append("rollout engine: adapters that Megatron trains go to vLLM, for which there is no key for ep")
    return tuple(faults)


def _script(header: str) -> str:
    return f"""#!/usr/bin/env bash
{header}# Usage: TRAIN_DATA=... REWARD_FUNCTION=... ./{SCRIPT} [further key=value overrides, which win]
set -euo pipefail
cd "$(dirname "$0")"
export TRAIN_DATA=${{TRAIN_DATA:-openai/gsm8k}}
export REWARD_FUNCTION=${{REWARD_FUNCTION:-areal.reward.gsm8k.gsm8k_reward_fn}}
export AREAL_FILEROOT=${{AREAL_FILEROOT:-$PWD/areal-out}}
# Workers import the group filter from this directory.
export PYTHONPATH=$PWD${{PYTHONPATH:+:$PYTHONPATH}}

python3 {TRAINER} --config {CONFIG} "$@"
"""


def _trainer(header: str, workload: Workload) -> str:
    """The program that AReaL leaves to its user: data set, reward and workflow."""
    filters = workload.algorithm.oversampling_ratio > 1
    argument = f'\n            dynamic_filter_fn="{TRAINER.removesuffix(".py")}.has_signal",' if filters else ""
    function = (
        '''
def has_signal(group):
    """Dynamic sampling: a group whose responses all got the same reward teaches nothing."""
    rewards = group["rewards"]
    return bool((rewards != rewards.reshape(-1)[0]).any())

'''
        if filters
        else ""
    )
    return f'''{header}"""Starts the trainer with the configuration, the data set and the reward that {SCRIPT} names."""

import os
import sys

from areal import PPOTrainer
from areal.api.cli_args import PPOConfig, load_expr_config
from areal.dataset import get_custom_dataset
from areal.utils.hf_utils import load_hf_tokenizer

{function}
def main(arguments):
    config, _ = load_expr_config(arguments, PPOConfig)
    dataset = get_custom_dataset(
        split="train",
        dataset_config=config.train_dataset,
        tokenizer=load_hf_tokenizer(config.tokenizer_path),
    )
    with PPOTrainer(config, train_dataset=dataset) as trainer:
        trainer.train(
            workflow="areal.workflow.rlvr.RLVRWorkflow",
            workflow_kwargs={{
                "reward_fn": os.environ["REWARD_FUNCTION"],
                "gconfig": config.gconfig,
                "tokenizer": config.tokenizer_path,
            }},{argument}
        )


if __name__ == "__main__":
    main(sys.argv[1:])
'''


def _notes(context: ArealContext, rules: FrameworkRules) -> Notes:
    plan = context.plan
    nodes = context.num_nodes
    where = "on the machine" if nodes == 1 else f"on the head node of a Ray cluster of {nodes} nodes"
    engine = "vLLM" if context.engine_kind == "vllm" else "SGLang"
    backends = sorted(
        {"Megatron-Core" if name == "megatron" else "PyTorch FSDP2" for name in context.backends.values()}
    )
    return Notes(
        commands=(f"TRAIN_DATA=... REWARD_FUNCTION=module.function ./{SCRIPT}",),
        needs=(
            f"Run it {where} with {plan.num_gpus} GPUs, {rules.title} {rules.version}, {engine} and "
            f"{' and '.join(backends)}, from a directory that all nodes see. Arguments of the script are further "
            "`key=value` overrides and win over those of the plan."
        ),
        to_do=_to_do(plan.workload, nodes),
        differences=_differences(context),
    )


def _to_do(workload: Workload, num_nodes: int) -> tuple[str, ...]:
    reward = (
        "it runs the sandbox"
        if workload.reward.kind is RewardKind.SANDBOX
        else "the default scores the answers of the default data set"
    )
    fileroot = "any directory" if num_nodes == 1 else "a directory that all nodes see"
    return (
        "`TRAIN_DATA`: a data set that AReaL knows by name, or a directory of `save_to_disk` with a column `messages`.",
        f"`REWARD_FUNCTION`: importable path of a function of prompt, completion and their token ids; {reward}.",
        f"`AREAL_FILEROOT`: {fileroot}, for checkpoints, logs and the names of workers.",
        "`cpu` and `mem` (GB) of `scheduling_spec` are what a worker reserves per GPU: raise them to what your nodes "
        "have, above all where states go to host RAM.",
    )


def _differences(context: ArealContext) -> tuple[str, ...]:
    """Where AReaL does something else than the plan's cost model assumes."""
    plan, workload = context.plan, context.workload
    notes: list[str] = []
    for name in (WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER):
        if name not in context.workers:
            continue
        strategy = context.trainer(name)
        if strategy.micro_batch_tokens != strategy.inference_tokens:
            notes.append(
                f"AReaL has one token budget for the forward passes and the update of the {name.value}; the smaller "
                f"one ({shared_budget(strategy, trains=True):,} tokens) is written, the plan priced forward passes "
                f"with {strategy.inference_tokens:,}."
            )
    if any(context.trainer(name).pp > 1 for name in context.backends):
        notes.append(
            "AReaL cuts at least two micro-batches per pipeline rank and chooses itself how many layers each rank "
            "holds, from their parameters."
        )
    if workload.has_reference:
        notes.append("AReaL subtracts the KL term from the reward, for every algorithm.")
    if workload.algorithm.name == "dr-grpo":
        notes.append("AReaL averages the loss over tokens; Dr.GRPO divides by a constant length.")
    if workload.algorithm.oversampling_ratio > 1:
        notes.append(
            "AReaL's dynamic sampling generates the batch once and trains on the groups that are left, so that the "
            f"batch varies; the plan priced {workload.algorithm.oversampling_ratio:g} x {workload.num_prompts} prompts "
            "for a full one."
        )
    if plan.execution.is_asynchronous:
        notes.append(
            "The lag is bounded by counting responses, so that single long ones may come from older weights than the "
            "limit says; tokens that moved too far are masked."
        )
    return tuple(notes)
