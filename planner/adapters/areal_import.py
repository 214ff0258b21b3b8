"""Reads YAML files and launch scripts of AReaL, of 1.0 and of earlier versions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from planner.adapters.areal_import_keys import OLD_MODE, Tables, is_old, load_tables, merge
from planner.adapters.areal_import_plan import read_plan
from planner.adapters.areal_import_rules import check_rules
from planner.adapters.findings import Finding, Severity
from planner.adapters.hydra import Config, Value, parse_override, parse_value
from planner.adapters.import_flags import stray_findings
from planner.adapters.import_source import Source
from planner.adapters.import_trainer import by_severity, settled
from planner.adapters.import_values import Values
from planner.adapters.import_yaml import read_foreign_yaml
from planner.adapters.imported import Imported
from planner.adapters.nemo_rl_import_files import find_file, plain
from planner.adapters.shell_script import Launch, known_tail, shown, unknowns
from planner.errors import InvalidInputError

FRAMEWORK = "areal"
MODEL = "actor.path"
_LAUNCHERS = ("areal.launcher", "areal.infra.launcher")


def recognises(source: Source) -> bool:
    """A document with AReaL's sections, or a program that is given one."""
    if source.document is not None:
        return _is_configuration(source.document)
    return _launch(source) is not None


def read(source: Source) -> Imported:
    """What the configuration says. Raises InvalidInputError when the source starts no RL training of AReaL."""
    tables = load_tables()
    launch = None if source.document is not None else _launch(source)
    if source.document is None and launch is None:
        started = ", ".join(shown(item.target) for item in source.launches[:5]) or "no Python program"
        raise InvalidInputError(
            f"starts {started}, no RL training of AReaL", where=str(source.file), accepted="PROGRAM --config FILE.yaml"
        )
    environment = {**(dict(launch.environment) if launch is not None else {}), **source.environment}
    config = Config(tables.defaults, environment)
    values = Values(config)
    if launch is None:
        assert source.document is not None
        found = _merge_document(config, source.document, source.file, tables)
    else:
        found = _merge_launch(values, source, launch, tables)
    for key, text in source.given.items():
        if key in tables.legal or key in source.given_keys:
            config.set(key, parse_value(text), "--set")
    if source.model is not None:
        config.set(MODEL, source.model, "--model")
    plan = read_plan(values)
    if not values.unresolved:
        check_rules(values, plan)
    return Imported(
        framework=FRAMEWORK,
        version="before 1.0" if is_old(config) else tables.version,
        file=str(source.file),
        spec=plan.spec,
        num_nodes=plan.layout.num_nodes,
        gpus_per_node=plan.layout.gpus_per_node,
        workers=plan.workers if not values.unresolved else (),
        execution=plan.execution,
        engine_static_ratio=values.engine_static_ratio,
        # areal/engine/megatron_utils/pipeline_parallel.py spreads layers by their parameters.
        layers_are_given=True,
        recomputes_old_logprob=values.flag("actor.recompute_logprob"),
        settings=tuple(values.settings),
        findings=by_severity((*source.findings, *found, *settled(values))),
        unresolved=values.unresolved,
    )


def _is_configuration(document: Mapping[str, object]) -> bool:
    has_roles = isinstance(document.get("actor"), dict) and isinstance(document.get("gconfig"), dict)
    return has_roles and ("rollout" in document or OLD_MODE in document)


def _merge_document(config: Config, document: Mapping[str, object], file: Path, tables: Tables) -> list[Finding]:
    if not _is_configuration(document):
        raise InvalidInputError(
            "configures no RL training of AReaL", where=str(file), accepted="sections actor, rollout and gconfig"
        )
    tree: dict[str, Value] = {key: plain(value) for key, value in document.items()}
    return merge(config, tree, str(file), tables)


def _config_words(launch: Launch) -> tuple[str, list[str]]:
    """The value of --config, and the words that follow the program beside it."""
    path = ""
    rest: list[str] = []
    words = iter(launch.arguments)
    for word in words:
        if word == "--config":
            path = next(words, "")
        elif word.startswith("--config="):
            path = word.partition("=")[2]
        else:
            rest.append(word)
    return path, rest


def _config_file(source: Source, launch: Launch) -> Path | None:
    path, _ = _config_words(launch)
    tail = known_tail(path)
    return find_file(source, tail) if tail.endswith((".yaml", ".yml")) else None


def _launch(source: Source) -> Launch | None:
    """A program whose --config is a configuration of AReaL's, or one of AReaL's launchers."""
    for launch in source.launches:
        if launch.target.startswith(_LAUNCHERS):
            return launch
        file = _config_file(source, launch)
        if file is not None and _is_configuration(read_foreign_yaml(file)):
            return launch
    return None


def _merge_launch(values: Values, source: Source, launch: Launch, tables: Tables) -> list[Finding]:
    path, words = _config_words(launch)
    file = _config_file(source, launch)
    findings: list[Finding] = []
    if file is not None:
        findings += _merge_document(values.config, read_foreign_yaml(file), file, tables)
    elif known_tail(path).strip("/"):
        where = shown(known_tail(path))
        values.ask(f"--root: a directory above {where}")
        values.find("--config", Severity.WARNING, f"{where} is not found below {source.root}", "--root DIRECTORY")
    else:
        for name in unknowns(path):
            values.ask(name)
    strays: list[str] = []
    for word in words:
        place = launch.place
        if source.script is not None:
            place = source.script.place_of(word.partition("=")[0], place)
        override = parse_override(word, place)
        if override is not None:
            node = Config({})
            node.set(override.key, override.value, "")
            findings += merge(values.config, node.tree, place, tables)
        elif not word.endswith(".py") and not word.startswith("--"):
            strays.append(word)
    missing = source.script.missing if source.script is not None else ()
    found, asked = stray_findings(strays, launch.place, missing, "AReaL")
    for name in asked:
        values.ask(name)
    return [*findings, *found]
