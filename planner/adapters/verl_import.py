"""Reads launch scripts and YAML files of verl, of 0.9 and of earlier versions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from planner.adapters.findings import Finding, Severity
from planner.adapters.hydra import Config, Operation, Override, Value, leaves, parse_override, parse_value
from planner.adapters.import_source import Source
from planner.adapters.import_trainer import layers_are_given
from planner.adapters.import_values import Values
from planner.adapters.imported import Imported
from planner.adapters.shell_script import Launch, Script, is_known, shown, unknowns
from planner.adapters.verl_import_keys import Tables, apply, is_legal, load_tables, version_of
from planner.adapters.verl_import_knobs import knobs
from planner.adapters.verl_import_plan import read_plan
from planner.adapters.verl_import_rules import check_rules
from planner.errors import InvalidInputError
from planner.files.yaml_text import read_yaml

FRAMEWORK = "verl"
_KEYS = ("actor_rollout_ref", "algorithm", "critic", "trainer", "data")
_CONFIG_NAME = ("--config-name", "-cn")
_CONFIG_PATH = ("--config-path", "-cp", "--config-dir", "-cd")
_SHIPPED = frozenset({
    "ppo_trainer", "ppo_megatron_trainer", "one_step_off_ppo_trainer", "one_step_off_ppo_megatron_trainer",
    "fully_async_ppo_trainer", "fully_async_ppo_megatron_trainer", "dapo_trainer", "dapo_megatron_trainer",
})  # fmt: skip
"""Configurations that come with verl: the tables of defaults stand for them."""
MAX_CHAIN = 8


def recognises(source: Source) -> bool:
    """A launch of one of verl's trainers, or a document with its sections."""
    if source.document is not None:
        return "actor_rollout_ref" in source.document
    return _launch(source) is not None


def read(source: Source) -> Imported:
    """What the configuration says.

    Raises InvalidInputError when the source starts no RL training of verl.
    """
    tables = load_tables()
    launch = None
    if source.document is None:
        launch = _launch(source)
        if launch is None:
            raise _no_launch(source, tables)
    entry = _entry(launch, tables)
    environment = {**dict(launch.environment if launch is not None else ()), **source.environment}
    config = Config(tables.defaults, environment)
    extra = tables.entry_defaults.get(entry)
    if extra is not None:
        _merge_defaults(config, extra)
    values = Values(config)
    overrides = [*_from_files(source, launch, values), *_from_launch(launch, values, source.script)]
    overrides += [
        Override(operation=Operation.FORCE, key=key, value=parse_value(text), text=text, place="--set")
        for key, text in source.given_keys.items()
    ]
    if source.model is not None:
        key = "actor_rollout_ref.model.path"
        overrides.append(
            Override(operation=Operation.FORCE, key=key, value=source.model, text=source.model, place="--model")
        )
    found = apply(config, overrides, tables)
    version = version_of([item.key for item in overrides if not item.place.startswith("--")], tables)
    plan = read_plan(values, entry, is_megatron=_is_megatron(launch, config, values))
    if not values.unresolved:
        # Rules about values that are not known would only add to the confusion.
        check_rules(values, plan, entry, version=version, tables=tables)
    findings = (*source.findings, *found, *values.findings)
    return Imported(
        framework=FRAMEWORK,
        version=version,
        file=str(source.file),
        spec=plan.spec,
        num_nodes=plan.num_nodes,
        gpus_per_node=plan.gpus_per_node,
        node_parts=plan.pools.node_parts,
        workers=plan.workers if not values.unresolved else (),
        execution=plan.execution,
        recomputes_old_logprob=not values.flag("algorithm.rollout_correction.bypass_mode"),
        layers_are_given=layers_are_given(values, "actor_rollout_ref.actor.megatron.override_transformer_config"),
        settings=tuple(values.settings),
        findings=_sorted(findings),
        knobs=knobs(
            plan.workers,
            is_megatron=plan.is_megatron,
            is_dynamic=values.flag("actor_rollout_ref.actor.use_dynamic_bsz"),
        ),
        unresolved=values.unresolved,
    )


def _sorted(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    order = {severity: index for index, severity in enumerate(Severity)}
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: order[finding.severity]))


def _module(launch: Launch) -> str:
    target = launch.target.removesuffix(".py").replace("/", ".")
    return target.lstrip(".")


def _entry_of(launch: Launch, tables: Tables) -> str | None:
    module = _module(launch)
    for name, entry in tables.entry_points.items():
        if module == name or module.endswith(f".{name}"):
            return entry
    # Recipes have trainers of their own around verl's configuration.
    is_recipe = module.startswith(("recipe.", "verl.")) and module.rpartition(".")[2].startswith("main_")
    has_keys = any(word.lstrip("+").startswith("actor_rollout_ref.") for word in launch.arguments)
    return "main" if has_keys and (is_recipe or "main" in module) else None


def _launch(source: Source) -> Launch | None:
    """The launch with most arguments: scripts that try several start the same thing."""
    tables = load_tables()
    found = [launch for launch in source.launches if _entry_of(launch, tables) is not None]
    sure = [launch for launch in found if not launch.is_conditional] or found
    return max(sure, key=lambda launch: len(launch.arguments), default=None)


def _entry(launch: Launch | None, tables: Tables) -> str:
    return (None if launch is None else _entry_of(launch, tables)) or "main"


def _no_launch(source: Source, tables: Tables) -> InvalidInputError:
    started = ", ".join(shown(launch.target) for launch in source.launches[:5])
    lost = next((finding for finding in source.findings if finding.severity is Severity.ERROR), None)
    because = f"; {lost.place}: {lost.message}" if lost is not None else ""
    return InvalidInputError(
        f"starts {started or 'no Python program'}, no RL training of verl{because}",
        where=str(source.file),
        accepted=", ".join([name for name in tables.entry_points if name.startswith("verl.")][:3]),
    )


def _merge_defaults(config: Config, tree: dict[str, Value]) -> None:
    for key in leaves(tree):
        node: Value = tree
        for part in key.split("."):
            node = node[part] if isinstance(node, dict) else None
        config.set(key, node, "")
        config.places.pop(key, None)


def _from_launch(launch: Launch | None, values: Values, script: Script | None) -> list[Override]:
    """The overrides among the arguments of a launch of a script."""
    if launch is None or script is None:
        return []
    result: list[Override] = []
    words = iter(launch.arguments)
    for word in words:
        if word in (*_CONFIG_NAME, *_CONFIG_PATH):
            next(words, None)
            continue
        place = (
            script.place_of(f"{word.partition('=')[0].lstrip('+~')}=", launch.place) if "=" in word else launch.place
        )
        override = parse_override(word, place)
        if "@" in word.partition("=")[0]:
            values.find(
                launch.place, Severity.WARNING,
                f"{shown(word)[:60]} selects a group of the configuration that is not known here: its values are "
                "taken to be the defaults",
            )  # fmt: skip
        elif override is not None:
            result.append(override)
        elif not is_known(word) and "=" not in word:
            for name in unknowns(word):
                if name in script.missing or name == "@":
                    values.find(launch.place, Severity.NOTE, f"{shown(word)[:60]} is taken as empty: nothing sets it")
                else:
                    values.ask(name)
        elif not word.startswith("-") and word.strip():
            values.find(
                launch.place, Severity.ERROR, f"{shown(word)[:60]!r} is no override: Hydra refuses it",
                "write key=value, with quotes around values that hold blanks",
            )  # fmt: skip
    return result


def _option(launch: Launch | None, names: tuple[str, ...]) -> str:
    """The value of an option of Hydra's; empty where it is not given."""
    words = launch.arguments if launch is not None else ()
    for index, word in enumerate(words):
        for name in names:
            if word.startswith(f"{name}="):
                return word.partition("=")[2].strip("'\"")
            if word == name and index + 1 < len(words):
                return words[index + 1].strip("'\"")
    return ""


def _is_megatron(launch: Launch | None, config: Config, values: Values) -> bool:
    """The back end: by model engine, configuration name or the actor's strategy."""
    engine = str(config.get("model_engine"))
    strategy = str(config.get("actor_rollout_ref.actor.strategy"))
    by_name = "megatron" in _option(launch, _CONFIG_NAME)
    if engine not in ("dp", "megatron"):
        values.find("model_engine", Severity.WARNING, f"back end {engine[:30]} is priced like FSDP")
    if strategy == "megatron" and engine != "megatron" and not by_name:
        values.find(
            "actor_rollout_ref.actor.strategy", Severity.WARNING,
            "strategy=megatron alone does not bring Megatron's section",
            "add model_engine=megatron (before 0.8: --config-name=ppo_megatron_trainer)",
        )  # fmt: skip
    return engine == "megatron" or by_name or strategy == "megatron"


def _from_files(source: Source, launch: Launch | None, values: Values) -> list[Override]:
    """Values of YAML files: the file itself, or the one that --config-path and --config-name name."""
    tables = load_tables()
    if source.document is not None:
        return _flattened(source.document, source.file, source, values, tables, 0)
    name, path = _option(launch, _CONFIG_NAME), _option(launch, _CONFIG_PATH)
    stem = name.removesuffix(".yaml")
    file = _find_config(source, path, stem)
    if not name or (file is None and stem in _SHIPPED):
        return []
    if file is None:
        where = shown(f"{path}/{stem}.yaml".lstrip("/"))
        values.ask(f"--root: a directory above {where}")
        values.find("--config-path", Severity.WARNING, f"{where} is not found below {source.root}", "--root DIRECTORY")
        return []
    return _flattened(read_yaml(file, kind="configuration"), file, source, values, tables, 0)


def _find_config(source: Source, path: str, stem: str) -> Path | None:
    """A configuration file below the root: scripts are started from some directory above it."""
    if not is_known(stem) or not stem:
        return None
    tail = Path(path.rpartition("\ue001")[2].lstrip("/")) if path else Path()
    here = source.file.absolute().parent.resolve()
    for directory in (here, *here.parents):
        if not directory.is_relative_to(source.root):
            break
        for candidate in (directory / tail / f"{stem}.yaml", directory / "config" / f"{stem}.yaml"):
            resolved = candidate.resolve()
            if resolved.is_relative_to(source.root) and resolved.is_file():
                return resolved
    return None


def _flattened(
    document: object, file: Path, source: Source, values: Values, tables: Tables, depth: int
) -> list[Override]:
    """The leaves of a document as overrides, those of the files in its defaults list first."""
    if not isinstance(document, dict) or depth > MAX_CHAIN:
        return []
    result: list[Override] = []
    own = {key: value for key, value in document.items() if key not in ("defaults", "hydra")}
    for item in document.get("defaults") or ():
        stem = item if isinstance(item, str) else ""
        if stem and stem != "_self_" and not stem.startswith("ppo_"):
            other = _find_config(source, "", stem.rpartition("/")[2]) if "@" not in stem else None
            if other is None:
                values.find(str(file), Severity.NOTE, f"defaults entry {stem[:60]!r} is not found and left out")
            elif other != file.resolve():
                inner = read_yaml(other, kind="configuration")
                result += _flattened(inner, other, source, values, tables, depth + 1)
    for key in leaves(own):
        node: object = own
        for part in key.split("."):
            node = node[part] if isinstance(node, dict) and part in node else None
        # What a file holds composes with the schema like an addition: unknown keys are not refused, but nobody reads
        # them.
        operation = Operation.CHANGE if is_legal(key, tables) else Operation.ADD
        result.append(Override(operation=operation, key=key, value=_plain(node), text=str(node)[:80], place=str(file)))
    return result


def _plain(value: object) -> Value:
    """A YAML value; dates and the like as text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
