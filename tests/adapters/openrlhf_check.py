"""Exports of every test plan through OpenRLHF's own argument parser and checks.

    python -m tests.adapters.openrlhf_check            check everything; skipped when OpenRLHF is missing
    python -m tests.adapters.openrlhf_check --freeze   write openrlhf_keys.json from the installed OpenRLHF

OpenRLHF is found as an installed distribution or in the directory that OPENRLHF_ROOT names (an unpacked wheel). The
`__main__` block of openrlhf/cli/train_ppo_ray.py is run without its call of `train`, so that neither torch nor ray is
needed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import sys
import tempfile
import typing
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from planner.adapters.openrlhf import export_plan
from planner.domain.framework_placed import placed_workers
from planner.domain.plan import Plan
from planner.domain.stages import WorkerName
from tests.adapters.inert import package_root
from tests.adapters.launch import recorded_arguments
from tests.adapters.openrlhf_cases import cases, hostile_case

VERSION = "0.11.2"
KEYS = Path(__file__).with_name("openrlhf_keys.json")
Parse = Callable[[list[str]], typing.Any]


def arguments_of(plan: Plan, scratch: Path) -> list[str]:
    """What the exported script passes to `python3 -m openrlhf.cli.train_ppo_ray`."""
    script = export_plan(plan, scratch / "out")[0]
    arguments = recorded_arguments(script, scratch / "bin", TRAIN_DATA="data.jsonl", REWARD_FUNCTION="reward.py")
    assert arguments[:2] == ["-m", "openrlhf.cli.train_ppo_ray"]
    return arguments[2:]


def main_block(root: Path) -> list[ast.stmt]:
    """The statements of `if __name__ == "__main__"` that parse and check arguments."""
    tree = ast.parse((root / "cli" / "train_ppo_ray.py").read_text())
    block = next(
        node.body for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test).startswith("__name__")
    )
    kept: list[ast.stmt] = []
    for node in block:
        text = ast.unparse(node)
        is_run = text.startswith(("train(", "if args.use_ms"))
        # Its package imports torch; `hierarchize` is loaded from its own file.
        if not is_run and "openrlhf.utils.config" not in text:
            kept.append(node)
    for node in ast.walk(ast.Module(body=kept, type_ignores=[])):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "argparse.ArgumentParser":
            # A flag cut short would pass as an abbreviation.
            node.keywords.append(ast.keyword("allow_abbrev", ast.Constant(value=False)))
    return kept


def parser_of(root: Path) -> tuple[Parse, argparse.ArgumentParser]:
    """A function that parses and checks arguments as OpenRLHF does, and its parser."""
    config: dict[str, object] = {}
    exec(compile((root / "utils" / "config.py").read_text(), "config.py", "exec"), config)
    code = compile(
        ast.fix_missing_locations(ast.Module(body=main_block(root), type_ignores=[])), "train_ppo_ray.py", "exec"
    )

    def run(arguments: list[str]) -> dict[str, object]:
        space: dict[str, object] = {
            "argparse": argparse, "os": os, "datetime": datetime, "hierarchize": config["hierarchize"],
        }  # fmt: skip
        before, sys.argv = sys.argv, ["train_ppo_ray", *arguments]
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(code, space)
        finally:
            sys.argv = before
        return space

    def parse(arguments: list[str]) -> typing.Any:
        return run(arguments)["args"]

    # The smallest command that all checks accept.
    parser = run(["--actor.model_name_or_path=x", "--reward.remote_url=y"])["parser"]
    assert isinstance(parser, argparse.ArgumentParser)
    return parse, parser


def freeze(parser: argparse.ArgumentParser) -> None:
    flags: dict[str, dict[str, object]] = {}
    for action in parser._actions:
        for option in action.option_strings:
            if not option.startswith("--") or option == "--help":
                continue
            entry: dict[str, object] = {"values": 0 if action.nargs == 0 else action.nargs or 1}
            if action.choices is not None:
                entry["choices"] = list(action.choices)
            if action.type in (int, float):
                entry["type"] = "int" if action.type is int else "float"
            flags[option] = entry
    document = {
        "source": f"OpenRLHF {VERSION} (PyPI), openrlhf/cli/train_ppo_ray.py; Apache-2.0",
        "version": VERSION,
        "flags": dict(sorted(flags.items())),
    }
    KEYS.write_text(json.dumps(document, indent=1) + "\n")


def start_problems(plan: Plan, args: typing.Any) -> list[str]:
    """What `train` of train_ppo_ray.py asserts before anything starts, and GPUs that the command would take."""
    problems: list[str] = []
    world = args.actor.num_nodes * args.actor.num_gpus_per_node
    engines = args.vllm.num_engines * args.vllm.tensor_parallel_size
    is_shared = args.train.colocate_all and not args.train.async_enable
    if is_shared and world != engines:
        problems.append(f"colocate_all with {world} GPUs of the actor and {engines} of engines")
    total = world + (0 if is_shared else engines)
    for name, role, joined in (
        (WorkerName.REFERENCE, args.ref, args.train.colocate_actor_ref),
        (WorkerName.CRITIC_TRAINER, args.critic, False),
        (WorkerName.REWARD_MODEL, args.reward, args.train.colocate_critic_reward),
    ):
        if any(worker.name is name for worker in placed_workers(plan)) and not (args.train.colocate_all or joined):
            total += role.num_nodes * role.num_gpus_per_node
    if total != plan.num_gpus:
        problems.append(f"the command takes {total} GPUs, the plan {plan.num_gpus}")
    if world % (args.ds.ring_attn_size * args.ds.tensor_parallel_size):
        problems.append("ring and tp do not divide the GPUs of the actor")
    per_micro_batch = args.ds.ring_attn_size * args.ds.tensor_parallel_size
    for budget in (args.train.max_tokens_per_gpu, args.rollout.max_tokens_per_gpu):
        if budget * per_micro_batch < args.data.max_len:
            problems.append(f"a budget of {budget} tokens per GPU is below the longest sequence")
    return problems


MUTATIONS = (
    ("--train.colocate_all", "--train.colocate_al"),
    ("--ds.zero_stage=3", "--ds.zero_stages=3"),
    ("--ds.zero_stage=3", "--ds.zero_stage=three"),
    ("--algo.advantage.estimator=group_norm", "--algo.advantage.estimator=grpo"),
    ("--rollout.n_samples_per_prompt=16", "--rollout.n_samples_per_prompt=1"),
)
"""Each turns the command of the plan 'qwen3-32b-4n-shared' into one that OpenRLHF refuses."""


def check(parse: Parse) -> int:
    failures = 0
    plans = {**cases(), "hostile": hostile_case()}
    for name, plan in plans.items():
        with tempfile.TemporaryDirectory() as scratch:
            arguments = arguments_of(plan, Path(scratch))
        args = parse(arguments)
        problems = start_problems(plan, args)
        if args.actor.model_name_or_path != plan.workload.actor.hf_repo:
            problems.append(f"model path became {args.actor.model_name_or_path!r}")
        failures += bool(problems)
        print(f"{'ok  ' if not problems else 'FAIL'} {name}: {len(arguments)} arguments")
        for problem in problems:
            print(f"     {problem}")
    with tempfile.TemporaryDirectory() as scratch:
        arguments = arguments_of(plans["qwen3-32b-4n-shared"], Path(scratch))
    for old, new in MUTATIONS:
        assert old in arguments, old
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                parse([new if argument == old else argument for argument in arguments])
        except (SystemExit, AssertionError):
            print(f"ok   {new} is refused")
        else:
            failures += 1
            print(f"FAIL {new} is accepted")
    return failures


def main() -> int:
    root = package_root("openrlhf", "OPENRLHF_ROOT", dict(os.environ))
    if root is None:
        print(f"skipped: install openrlhf=={VERSION} (pip install --no-deps openrlhf), or set OPENRLHF_ROOT")
        return 0
    parse, parser = parser_of(root)
    if "--freeze" in sys.argv:
        freeze(parser)
        return 0
    return 1 if check(parse) else 0


if __name__ == "__main__":
    sys.exit(main())
