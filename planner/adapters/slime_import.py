"""Reads launch scripts of slime (main branch of August 2026)."""

from __future__ import annotations

from planner.adapters.hydra import Config
from planner.adapters.import_flags import read_arguments, stray_findings
from planner.adapters.import_source import Source
from planner.adapters.import_trainer import by_severity, settled
from planner.adapters.import_values import Values
from planner.adapters.imported import Imported
from planner.adapters.shell_script import Launch, shown
from planner.adapters.slime_import_flags import DEFAULTS, apply, apply_given, load_tables
from planner.adapters.slime_import_plan import read_plan
from planner.adapters.slime_import_rules import check_rules
from planner.adapters.slime_import_workers import knobs
from planner.errors import InvalidInputError

FRAMEWORK = "slime"
PROGRAMS = ("train", "train_async")
_OWN_FLAGS = ("--actor-num-nodes", "--rollout-num-gpus", "--rollout-batch-size", "--hf-checkpoint")


def recognises(source: Source) -> bool:
    """A launch of train.py or train_async.py with flags of slime's own."""
    return _launch(source) is not None


def read(source: Source) -> Imported:
    """What the flags say. Raises InvalidInputError when the source starts no RL training of slime."""
    launch = _launch(source)
    if launch is None:
        started = ", ".join(shown(item.target) for item in source.launches[:5]) or "no Python program"
        raise InvalidInputError(
            f"starts {started}, no RL training of slime", where=str(source.file), accepted="train.py, train_async.py"
        )
    tables = load_tables()
    config = Config(DEFAULTS, {**dict(launch.environment), **source.environment})
    values = Values(config)
    arguments = read_arguments(launch, tables.switches, source.script)
    found = apply(config, arguments.flags, tables)
    missing = source.script.missing if source.script is not None else ()
    strays, asked = stray_findings(arguments.strays, launch.place, missing, "argparse")
    for name in asked:
        values.ask(name)
    apply_given(config, source.given, tables)
    if source.model is not None:
        config.set("hf-checkpoint", source.model, "--model")
    _refuse_other_training(values, source)
    plan = read_plan(values, launch.name)
    if not values.unresolved:
        check_rules(values, plan, dict(launch.environment), launch.name)
    return Imported(
        framework=FRAMEWORK,
        version=tables.version,
        file=str(source.file),
        spec=plan.spec,
        num_nodes=plan.num_nodes,
        gpus_per_node=plan.gpus_per_node,
        workers=plan.workers if not values.unresolved else (),
        execution=plan.execution,
        engine_static_ratio=values.engine_static_ratio,
        recomputes_old_logprob=True,
        settings=tuple(values.settings),
        findings=by_severity((*source.findings, *found, *strays, *settled(values))),
        layers_are_given=True,
        knobs=knobs(plan.workers, is_dynamic=values.flag("use-dynamic-batch-size")),
        unresolved=values.unresolved,
    )


def _launch(source: Source) -> Launch | None:
    """The launch with most arguments."""
    found = [
        launch
        for launch in source.launches
        if launch.name.rpartition(".")[2] in PROGRAMS and any(w.startswith(_OWN_FLAGS) for w in launch.arguments)
    ]
    sure = [launch for launch in found if not launch.is_conditional] or found
    return max(sure, key=lambda launch: len(launch.arguments), default=None)


def _refuse_other_training(values: Values, source: Source) -> None:
    """Supervised fine-tuning runs through the same programs."""
    loss = values.text("loss-type", "policy_loss")
    only = [name for name in ("debug-train-only", "debug-rollout-only") if values.flag(name)]
    if loss == "sft_loss" or only:
        what = f"--{only[0]}" if only else "--loss-type sft_loss: supervised fine-tuning"
        raise InvalidInputError(f"{what}, no RL training", where=str(source.file), accepted="--loss-type policy_loss")
