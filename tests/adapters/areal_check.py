"""Exports of every test plan through AReaL's own configuration: its parser, dataclasses, backend grammar and checks.

    python -m tests.adapters.areal_check            check everything; skipped when AReaL or Hydra is missing
    python -m tests.adapters.areal_check --freeze   write areal_keys.json from the installed AReaL

AReaL is found as an installed distribution or in the directory that AREAL_ROOT names (an unpacked wheel). Neither torch
nor ray is needed: packages that are missing are replaced by inert modules.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import json
import os
import sys
import tempfile
import textwrap
import types
import typing
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from planner.adapters.areal import CONFIG, exported_files
from planner.adapters.areal_context import ROLES
from planner.domain.framework_placed import placed_workers
from planner.domain.plan import Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import TrainerStrategy
from tests.adapters.areal_cases import cases
from tests.adapters.inert import bare_package, install, package_root

VERSION = "1.0.4"
KEYS = Path(__file__).with_name("areal_keys.json")
ENVIRONMENT = {"TRAIN_DATA": "openai/gsm8k", "REWARD_FUNCTION": "module.function", "AREAL_FILEROOT": "/tmp/areal"}
MUTATIONS = (
    ("max_head_offpolicyness:", "max_head_offpolicynes:"),
    ("max_tokens_per_mb:", "max_token_per_mb:"),
    ("ppo_n_minibatches:", "ppo_minibatches:"),
    ("mem_fraction_static:", "mem_fraction:"),
    ("backend: megatron:d2p2t4c1", "backend: megatron:d2p2t4q1"),
    ("backend: megatron:d2p2t4c1", "backend: fsdp:d2p2t4"),
    ("enable_offload: true", "enable_offload: false"),
)
"""Each turns the configuration of the plan 'ppo' into one that AReaL refuses."""


def prepare(root: Path) -> tuple[types.ModuleType, types.ModuleType]:
    """(areal.api.cli_args, areal.api.alloc_mode), imported without the packages that only a run needs."""
    sys.path.insert(0, str(root.parent))
    install(
        "torch", "ray", "transformers", "numba", "numpy", "uvloop", "areal.utils.logging",
        "areal.utils.network", "areal.infra"
    )  # fmt: skip
    for name in ("areal", "areal.api", "areal.utils", "areal.engine", "areal.engine.fsdp_utils"):
        bare_package(name, root.joinpath(*name.split(".")[1:]))
    return importlib.import_module("areal.api.cli_args"), importlib.import_module("areal.api.alloc_mode")


def keys(cls: type, prefix: str = "") -> Iterator[str]:
    """Dotted keys of a configuration dataclass."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        name = f"{prefix}{field.name}"
        nested = [t for t in (hints[field.name], *typing.get_args(hints[field.name])) if dataclasses.is_dataclass(t)]
        yield name
        for inner in nested:
            assert isinstance(inner, type)
            yield from keys(inner, f"{name}.")


def freeze(cli: types.ModuleType) -> None:
    wanted = [key for key in sorted(set(keys(cli.PPOConfig))) if not key.startswith(("teacher", "valid_dataset"))]
    document = {
        "source": f"AReaL {VERSION} (PyPI), areal/api/cli_args.py: fields of PPOConfig and below; Apache-2.0",
        "version": VERSION,
        "keys": wanted,
    }
    KEYS.write_text(json.dumps(document, indent=1) + "\n")


def own_checks(root: Path, cli: types.ModuleType) -> Callable[..., None]:
    """PPOTrainer._validate_cfg, cut out of the trainer, which itself cannot be imported without torch."""
    tree = ast.parse((root / "trainer" / "rl_trainer.py").read_text())
    trainer = next(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == "PPOTrainer")
    wanted = ("_validate_cfg", "_is_colocation", "_is_actor_rollout_colocated")
    trainer.body = [n for n in trainer.body if isinstance(n, ast.FunctionDef) and n.name in wanted]
    module = ast.Module(
        body=[ast.ImportFrom(module="__future__", names=[ast.alias(name="annotations")], level=0), trainer],
        type_ignores=[],
    )
    space: dict[str, object] = {"SchedulingStrategyType": cli.SchedulingStrategyType}
    exec(compile(ast.fix_missing_locations(module), "rl_trainer", "exec"), space)

    def check(config: typing.Any, actor: object, rollout: object) -> None:
        item = space["PPOTrainer"]()  # type: ignore[operator]
        item.config, item.actor_alloc, item.rollout_alloc = config, actor, rollout
        item._should_offload_rollout = item._is_actor_rollout_colocated(config)
        item._should_offload_actor = item._should_offload_rollout or config.actor.offload
        item._should_offload_critic = config.critic is not None and config.critic.offload
        item._should_offload_ref = config.ref is not None and config.ref.offload
        item._should_offload_teacher = False
        item._validate_cfg()

    return check


def accept(text: str, plan: Plan | None, root: Path, modules: tuple[types.ModuleType, types.ModuleType]) -> None:
    """Raises what AReaL raises, or AssertionError where it understood something else than the plan says."""
    from omegaconf import OmegaConf

    cli, alloc = modules
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / CONFIG
        path.write_text(text)
        raw, _ = cli.parse_cli_args(["--config", str(path)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = OmegaConf.to_object(cli.to_structured_cfg(raw, cli.PPOConfig))
    roles = {name: getattr(config, name) for name in ("rollout", "actor", "critic", "ref")}
    sizes: dict[str, int] = {}
    allocations = {}
    for name, role in roles.items():
        if role is not None:
            allocations[name] = alloc.ModelAllocation.from_str(role.backend, name=name)
            parallel = allocations[name].parallel
            sizes[name] = parallel.dp_size if name == "rollout" else parallel.world_size
    own_checks(root, cli)(config, allocations["actor"], allocations["rollout"])
    for name, role in roles.items():
        target = None if role is None else role.scheduling_strategy.target
        if target is not None:
            assert sizes[name] == sizes[target], f"{name} has {sizes[name]} replicas, {target} {sizes[target]}"
    if plan is not None:
        assert config.actor.path == plan.workload.actor.hf_repo, f"model path became {config.actor.path!r}"
        separate = [n for n, r in roles.items() if r is not None and r.scheduling_strategy.target is None]
        _compare(plan, allocations)
        used = sum(allocations[name].parallel.world_size for name in separate)
        assert used == plan.num_gpus, f"{used} GPUs instead of {plan.num_gpus}"


def _compare(plan: Plan, allocations: dict[str, typing.Any]) -> None:
    """The degrees that AReaL parsed are those of the plan."""
    roles = {WorkerName.ROLLOUT_ENGINE: "rollout", **ROLES}
    for worker in placed_workers(plan):
        found, strategy = allocations[roles[worker.name]].parallel, worker.strategy
        pairs = [(found.tp_size, strategy.tp), (found.pp_size, strategy.pp), (found.world_size, strategy.num_gpus)]
        if isinstance(strategy, TrainerStrategy):
            pairs += [(found.cp_size, strategy.cp), (found.dp_size, strategy.dp)]
            if plan.workload.actor.is_moe:
                pairs += [(found.ep_size, strategy.ep), (found.etp_size, strategy.etp)]
        assert all(a == b for a, b in pairs), f"{worker.name.value}: degrees {pairs}"


def check(root: Path) -> int:
    modules = prepare(root)
    if "--freeze" in sys.argv:
        freeze(modules[0])
        return 0
    os.environ.update(ENVIRONMENT)
    failures = 0

    def report(name: str, problem: str) -> None:
        nonlocal failures
        failures += bool(problem)
        print(f"{'FAIL' if problem else 'ok  '} {name}" + textwrap.indent(f"\n{problem}" if problem else "", "     "))

    plans = cases()
    for name, plan in plans.items():
        text = next(file.text for file in exported_files(plan) if file.name == CONFIG)
        report(name, _problem(text, plan, root, modules))
    text = next(file.text for file in exported_files(plans["ppo"]) if file.name == CONFIG)
    for before, after in MUTATIONS:
        assert before in text, before
        refused = _problem(text.replace(before, after, 1), plans["ppo"], root, modules)
        report(f"{after!r} is refused", "" if refused else "it was accepted")
    return failures


def _problem(text: str, plan: Plan, root: Path, modules: tuple[types.ModuleType, types.ModuleType]) -> str:
    try:
        accept(text, plan, root, modules)
    except ImportError:
        # This machine's fault, which must not pass for a refusal.
        raise
    except Exception as error:  # noqa: BLE001 - whatever AReaL raises is the answer
        return f"{type(error).__name__}: {str(error).strip()[:400]}"
    return ""


def main() -> int:
    root = package_root("areal", "AREAL_ROOT", dict(os.environ))
    if root is None or any(importlib.util.find_spec(name) is None for name in ("hydra", "lark")):
        print(
            f"skipped: pip install hydra-core==1.3.2 lark, and AReaL with pip install --no-deps areal=={VERSION} "
            "or AREAL_ROOT=<directory of the unpacked wheel>"
        )
        return 0
    return 1 if check(root) else 0


if __name__ == "__main__":
    sys.exit(main())
