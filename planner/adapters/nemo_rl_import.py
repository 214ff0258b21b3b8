"""Reads YAML files and launch scripts of NeMo-RL (main branch of August 2026)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from planner.adapters.findings import Finding, Severity
from planner.adapters.hydra import Config, Operation, Override, parse_override, parse_value
from planner.adapters.import_flags import stray_findings
from planner.adapters.import_source import Source
from planner.adapters.import_trainer import by_severity, layers_are_given, settled
from planner.adapters.import_values import Values
from planner.adapters.imported import Imported
from planner.adapters.nemo_rl_import_files import (
    Tables,
    apply,
    find_file,
    load_file,
    load_shipped,
    load_tables,
    name_checkpoint,
    unread_keys,
)
from planner.adapters.nemo_rl_import_plan import read_plan
from planner.adapters.nemo_rl_import_rules import check_rules
from planner.adapters.nemo_rl_import_workers import knobs
from planner.adapters.shell_script import Launch, is_known, known_tail, shown, unknowns
from planner.errors import InvalidInputError

FRAMEWORK = "nemo-rl"
_SECTIONS = ("grpo", "ppo")
_OTHER_SECTIONS = ("sft", "dpo", "rm", "distillation")
MODEL = "policy.model_name"


def recognises(source: Source) -> bool:
    """A launch of one of NeMo-RL's programs, or a document with its sections or its defaults."""
    document = source.document
    if document is not None:
        own = any(isinstance(document.get(name), dict) for name in (*_SECTIONS, *_OTHER_SECTIONS))
        return (own and "policy" in document) or _has_file_chain(document)
    tables = load_tables()
    return _launch(source, tables) is not None or any(item.name in tables.other_programs for item in source.launches)


def _has_file_chain(document: Mapping[str, object]) -> bool:
    """Defaults that are files: Hydra's are names of groups."""
    defaults = document.get("defaults")
    names = defaults if isinstance(defaults, list) else [defaults]
    return any(isinstance(name, str) and name.endswith((".yaml", ".yml")) for name in names)


def read(source: Source) -> Imported:
    """What the configuration says. Raises InvalidInputError when the source starts no RL training of NeMo-RL."""
    tables = load_tables()
    launch = None if source.document is not None else _launch(source, tables)
    if source.document is None and launch is None:
        started = ", ".join(shown(item.target) for item in source.launches[:5]) or "no Python program"
        raise InvalidInputError(
            f"starts {started}, no RL training of NeMo-RL", where=str(source.file), accepted="run_grpo.py, run_ppo.py"
        )
    environment = {**(dict(launch.environment) if launch is not None else {}), **source.environment}
    values = Values(Config({}, environment))
    strays: list[Finding] = []
    overrides: list[Override] = []
    if launch is None:
        load_file(values, source, source.file.absolute().resolve())
    else:
        overrides, words = _load_launch(values, source, launch, tables)
        missing = source.script.missing if source.script is not None else ()
        strays, asked = stray_findings(words, launch.place, missing, "NeMo-RL")
        for name in asked:
            values.ask(name)
    overrides += [
        Override(operation=Operation.FORCE, key=key, value=parse_value(text), text=text, place="--set")
        for key, text in source.given_keys.items()
    ]
    if source.model is not None:
        overrides.append(
            Override(operation=Operation.FORCE, key=MODEL, value=source.model, text=source.model, place="--model")
        )
    found = apply(values.config, overrides, tables)
    section = _section(values, source, launch)
    name_checkpoint(values, MODEL, tables)
    plan = read_plan(values, section)
    if not values.unresolved:
        check_rules(values, plan, section, environment)
    return Imported(
        framework=FRAMEWORK,
        version=tables.version,
        file=str(source.file),
        spec=plan.spec,
        num_nodes=plan.pools.num_nodes,
        gpus_per_node=plan.pools.gpus_per_node,
        workers=plan.workers if not values.unresolved else (),
        execution=plan.execution,
        engine_static_ratio=values.engine_static_ratio,
        # nemo_rl/algorithms/grpo.py: ratios of 1 need none; PPO has them always.
        recomputes_old_logprob=section == "ppo" or not values.flag("loss_fn.force_on_policy_ratio"),
        layers_are_given=layers_are_given(values, "policy.megatron_cfg"),
        settings=tuple(values.settings),
        findings=by_severity(
            (*source.findings, *found, *strays, *unread_keys(values.config, tables), *settled(values))
        ),
        knobs=knobs(values, plan.workers),
        unresolved=values.unresolved,
    )


def _section(values: Values, source: Source, launch: Launch | None) -> str:
    """`grpo` or `ppo`: which program reads the file, else which section it has."""
    if launch is not None:
        return "ppo" if launch.name == "run_ppo" else "grpo"
    for name in _SECTIONS[::-1]:
        if values.config.has(name):
            return name
    if not values.unresolved:
        has = next((name for name in _OTHER_SECTIONS if values.config.has(name)), "no known algorithm")
        raise InvalidInputError(f"configures {has}, no RL training", where=str(source.file), accepted="grpo or ppo")
    return "grpo"


def _launch(source: Source, tables: Tables) -> Launch | None:
    """The launch with most arguments among those of one program."""
    found = [launch for launch in source.launches if launch.name in tables.programs]
    sure = [launch for launch in found if not launch.is_conditional] or found
    return max(sure, key=lambda launch: len(launch.arguments), default=None)


def _place(source: Source, launch: Launch, word: str) -> str:
    key = word.partition("=")[0]
    return launch.place if source.script is None else source.script.place_of(key, launch.place)


def _suite_file(source: Source) -> Path | None:
    """The configuration of a script of NeMo-RL's test suites, which their common.env derives from its name."""
    file = source.file.absolute().resolve()
    if "tests/test_suites/" not in file.as_posix():
        return None
    wanted = Path(file.as_posix().replace("tests/test_suites/", "examples/configs/recipes/")).with_suffix(".yaml")
    return wanted if wanted.is_relative_to(source.root) and wanted.is_file() else None


def _load_launch(values: Values, source: Source, launch: Launch, tables: Tables) -> tuple[list[Override], list[str]]:
    """Loads the file that the launch names; returns its overrides and the words that are none."""
    config_path: str | None = None
    overrides: list[Override] = []
    strays: list[str] = []
    words = iter(launch.arguments)
    for word in words:
        if word == "--config":
            config_path = next(words, "")
        elif word.startswith("--config="):
            config_path = word.partition("=")[2]
        elif not word.startswith("--"):
            override = parse_override(word, _place(source, launch, word))
            if override is not None:
                overrides.append(override)
            else:
                strays.append(word)
    if config_path is None:
        shipped = tables.programs[launch.name]
        file = find_file(source, f"examples/configs/{shipped}")
        if file is not None:
            load_file(values, source, file)
        else:
            load_shipped(values.config, shipped)
        return overrides, strays
    file = find_file(source, known_tail(config_path))
    if file is not None:
        load_file(values, source, file)
    elif unknowns(config_path) == ("CONFIG_PATH",) and (suite := _suite_file(source)) is not None:
        values.find("--config", Severity.NOTE, f"CONFIG_PATH is {suite.name}, as the test suites of NeMo-RL have it")
        load_file(values, source, suite)
    elif not is_known(config_path) and not known_tail(config_path).strip("/"):
        for name in unknowns(config_path):
            values.ask(name)
    elif not load_shipped(values.config, config_path.rpartition("/")[2]):
        where = shown(known_tail(config_path) or config_path)
        values.ask(f"--root: a directory above {where}")
        values.find("--config", Severity.WARNING, f"{where} is not found below {source.root}", "--root DIRECTORY")
    return overrides, strays
