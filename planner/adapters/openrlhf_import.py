"""Reads launch scripts of OpenRLHF, of 0.11 and of earlier versions."""

from __future__ import annotations

from planner.adapters.hydra import Config, parse_value
from planner.adapters.import_flags import read_arguments, stray_findings
from planner.adapters.import_source import Source
from planner.adapters.import_trainer import by_severity, settled
from planner.adapters.import_values import Values
from planner.adapters.imported import Imported
from planner.adapters.openrlhf_import_flags import apply, load_tables, spelled, version_of
from planner.adapters.openrlhf_import_plan import read_plan
from planner.adapters.openrlhf_import_rules import check_rules
from planner.adapters.openrlhf_import_workers import knobs
from planner.adapters.shell_script import Launch, shown
from planner.errors import InvalidInputError

FRAMEWORK = "openrlhf"
PROGRAM = "openrlhf.cli.train_ppo_ray"
MODEL_KEY = "actor.model_name_or_path"


def recognises(source: Source) -> bool:
    """A launch of one of OpenRLHF's programs."""
    return any("openrlhf" in launch.target or launch.name == "train_ppo_ray" for launch in source.launches)


def read(source: Source) -> Imported:
    """What the flags say. Raises InvalidInputError when the source starts no RL training of OpenRLHF."""
    launch = _launch(source)
    if launch is None:
        started = ", ".join(shown(item.target) for item in source.launches[:5]) or "no Python program"
        raise InvalidInputError(
            f"starts {started}, no RL training of OpenRLHF", where=str(source.file), accepted=PROGRAM
        )
    tables = load_tables()
    environment = {**dict(launch.environment), **source.environment}
    config = Config(tables.defaults, environment)
    values = Values(config)
    arguments = read_arguments(launch, tables.switches, source.script)
    found, names = apply(config, arguments.flags, tables)
    missing = source.script.missing if source.script is not None else ()
    strays, asked = stray_findings(arguments.strays, launch.place, missing, "argparse")
    for name in asked:
        values.ask(name)
    for key, text in source.given.items():
        name = spelled(key, tables) or key
        old = tables.old.get(name)
        if "." in key or old is not None:
            config.set((old.new if old is not None else None) or name, parse_value(text), "--set")
    if source.model is not None:
        config.set(MODEL_KEY, source.model, "--model")
    plan = read_plan(values)
    if not values.unresolved:
        check_rules(values, plan)
    return Imported(
        framework=FRAMEWORK,
        version=version_of(names, tables),
        file=str(source.file),
        spec=plan.spec,
        num_nodes=plan.layout.num_nodes,
        gpus_per_node=plan.layout.gpus_per_node,
        workers=plan.workers if not values.unresolved else (),
        execution=plan.execution,
        # trainer/ppo_utils/experience_maker.py: always.
        recomputes_old_logprob=True,
        settings=tuple(values.settings),
        findings=by_severity((*source.findings, *found, *strays, *settled(values))),
        knobs=knobs(plan.workers, is_dynamic=values.flag("train.dynamic_batch_enable")),
        unresolved=values.unresolved,
    )


def _launch(source: Source) -> Launch | None:
    """The launch of PPO with most arguments."""
    found = [launch for launch in source.launches if launch.name.rpartition(".")[2] in ("train_ppo_ray", "train_ppo")]
    sure = [launch for launch in found if not launch.is_conditional] or found
    return max(sure, key=lambda launch: len(launch.arguments), default=None)
