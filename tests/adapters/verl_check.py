"""Exports of every test plan, composed by verl's own configuration with Hydra.

    python -m tests.adapters.verl_check            compose everything; skipped when verl or Hydra is missing
    python -m tests.adapters.verl_check --freeze   write verl_keys.json from the installed verl

verl is found as an installed distribution or in the directory that VERL_ROOT names (an unpacked wheel); it is
never imported, so that neither torch nor ray is needed.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from planner.adapters.verl import export_plan
from tests.adapters.launch import overrides, recorded_arguments
from tests.adapters.plans import hostile_case
from tests.adapters.verl_cases import cases

VERSION = "0.9.1"
ACTOR = "actor_rollout_ref.actor"
KEYS = Path(__file__).with_name("verl_keys.json")
OPEN = ("override_transformer_config", "override_optimizer_config")
"""Dictionaries that verl hands on to Megatron unread."""
DATACLASS_ONLY = {"critic.ppo_infer_max_token_len_per_gpu": ("workers/config/critic.py", "CriticConfig")}
"""Keys that the YAML lacks and a dataclass has."""


def verl_root() -> Path | None:
    """The `verl` package directory, or None."""
    given = os.environ.get("VERL_ROOT")
    if given:
        return Path(given) / "verl"
    spec = importlib.util.find_spec("verl")
    locations = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(locations))) if locations else None


ENTRIES = {
    "verl.trainer.main_ppo": ("trainer/config", "ppo_trainer"),
    "verl.experimental.one_step_off_policy.main_ppo": (
        "experimental/one_step_off_policy/config", "one_step_off_ppo_trainer",
    ),
}  # fmt: skip
"""Module -> configuration directory and name, as its @hydra.main says."""
ONE_STEP_OFF = "verl.experimental.one_step_off_policy.main_ppo"


def compose(root: Path, values: list[str], module: str = "verl.trainer.main_ppo") -> object:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    directory, name = ENTRIES[module]
    # pkg:// would import verl, which needs torch: the same directory as a file.
    known = [value.replace("pkg://verl.trainer.config", f"file://{root}/trainer/config") for value in values]
    with initialize_config_dir(config_dir=str(root / directory), version_base=None):
        return hydra_compose(config_name=name, overrides=known)


def leaves(node: object, prefix: str = "") -> Iterator[str]:
    """Dotted keys of a composed configuration; interpolations are leaves."""
    from omegaconf import DictConfig

    assert isinstance(node, DictConfig)
    for key in node:
        child = node._get_node(key)
        name = f"{prefix}{key}"
        if isinstance(child, DictConfig) and not child._is_interpolation() and not child._is_none() and len(child):
            yield from leaves(child, f"{name}.")
        else:
            yield name


def dataclass_fields(path: Path, name: str) -> set[str]:
    """Annotated fields of a class, read without importing it."""
    tree = ast.parse(path.read_text())
    found = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    return {
        item.target.id for item in found.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def freeze(root: Path) -> None:
    by_engine = {engine: set(leaves(compose(root, [f"model_engine={engine}"]))) for engine in ("dp", "megatron")}
    common = by_engine["dp"] & by_engine["megatron"]
    one_step = set(leaves(compose(root, [f"hydra.searchpath=[file://{root}/trainer/config]"], ONE_STEP_OFF)))
    for key, (path, name) in DATACLASS_ONLY.items():
        assert key.rsplit(".", 1)[1] in dataclass_fields(root / path, name), key
    document = {
        "source": f"verl {VERSION} (PyPI), verl/trainer/config/ppo_trainer.yaml composed by Hydra 1.3.2; Apache-2.0",
        "version": VERSION,
        "common": sorted(common),
        "dp": sorted(by_engine["dp"] - common),
        "megatron": sorted(by_engine["megatron"] - common),
        "one_step_off": sorted(one_step - by_engine["dp"]),
        "open": list(OPEN),
        "dataclass_only": sorted(DATACLASS_ONLY),
    }
    KEYS.write_text(json.dumps(document, indent=1) + "\n")


def start_problems(config: object, module: str) -> list[str]:
    """What the trainers assert when they start, in trainer_separate_async.py and one_step_off_policy/ray_trainer.py."""
    from omegaconf import OmegaConf

    def value(key: str) -> object:
        return OmegaConf.select(config, key)

    rollout = "actor_rollout_ref.rollout"
    is_one_step = module.startswith("verl.experimental")
    if not is_one_step and value("trainer.v1.trainer_mode") == "sync":
        return []
    problems = []
    if is_one_step:
        # main() copies these over what the rollout section says.
        pool = (value("rollout.nnodes"), value("rollout.n_gpus_per_node"))
        problems += [] if not value("actor_rollout_ref.hybrid_engine") else ["hybrid_engine must be False"]
        problems += [] if not value(f"{rollout}.free_cache_engine") else ["free_cache_engine must be False"]
    else:
        pool = (value(f"{rollout}.nnodes"), value(f"{rollout}.n_gpus_per_node"))
        step, mini = value("trainer.v1.separate_async.parameter_sync_step"), value(f"{ACTOR}.ppo_mini_batch_size")
        if value("data.train_batch_size") != step * mini:  # type: ignore[operator]
            problems.append("train_batch_size is not parameter_sync_step x ppo_mini_batch_size")
        if value("reward.reward_model.enable") and not value("reward.reward_model.enable_resource_pool"):
            problems.append("the reward model has no pool")
    if not all(isinstance(number, int) and number > 0 for number in pool):
        problems.append(f"the rollout pool is {pool}")
    if value(f"{rollout}.checkpoint_engine.backend") == "naive" or not value(f"{rollout}.calculate_log_probs"):
        problems.append("naive weight sync, or no log-probs of the engines")
    return problems


def check(root: Path) -> int:
    from omegaconf import OmegaConf

    failures = 0
    plans = {**cases(), "hostile": hostile_case()}
    for name, plan in plans.items():
        with tempfile.TemporaryDirectory() as scratch:
            script = export_plan(plan, Path(scratch) / "out")[0]
            arguments = recorded_arguments(script, Path(scratch) / "bin")
        config = compose(root, arguments[2:], arguments[1])
        path = OmegaConf.select(config, "actor_rollout_ref.model.path")
        problems = [] if path == plan.workload.actor.hf_repo else [f"model path became {path!r}"]
        problems += start_problems(config, arguments[1])
        for key, text in overrides(arguments).items():
            if key.startswith("hydra."):
                continue
            value = OmegaConf.select(config, key.lstrip("+"), default="missing")
            if text in ("True", "False", "null") or text.lstrip("-").isdigit():
                expected = {"True": True, "False": False, "null": None}.get(text, text)
                if str(value) != str(expected):
                    problems.append(f"{key} composed to {value!r} instead of {text}")
        print(f"{'ok  ' if not problems else 'FAIL'} {name}: {len(arguments) - 2} overrides")
        for problem in problems:
            print(f"     {problem}")
        failures += bool(problems)
    try:
        compose(root, ["model_engine=dp", "actor_rollout_ref.actor.ppo_minibatch_size=1"])
    except Exception as error:  # noqa: BLE001 - Hydra's own type is the point of the check
        print(f"ok   a misspelt key is refused: {type(error).__name__}")
    else:
        print("FAIL a misspelt key was accepted")
        failures += 1
    return failures


def main() -> int:
    root = verl_root()
    if root is None or importlib.util.find_spec("hydra") is None:
        print(f"skipped: install hydra-core==1.3.2 and verl=={VERSION} (pip install --no-deps verl), or set VERL_ROOT")
        return 0
    if "--freeze" in sys.argv:
        freeze(root)
        return 0
    return 1 if check(root) else 0


if __name__ == "__main__":
    sys.exit(main())
