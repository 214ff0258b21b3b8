"""The commands: read, call, render. Nothing is decided here.

Imports are made where they are used: the time of a short command is the time of its imports.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner import __version__
from planner import cli_options as opt
from planner.errors import DifferenceError, InfeasibleError, InvalidInputError, NoPlanFoundError, nearest, printable
from planner.files.spec import WorkloadSpec, override

if TYPE_CHECKING:
    from rich.console import RenderableType

    from planner.domain.plan import Plan

PROGRESS_AFTER_S = 1.0
DEFAULT_WIDTH = 100
MIN_WIDTH = 60
WORST_ROWS = 5
SUMMARY = "Proven placement and parallelism plans for RL post-training of language models."
# The backspace keeps the help formatter from filling the lines as one paragraph.
EXAMPLES = """\b
rlplan plan qwen3-32b --gpus 32xh100   a first plan
rlplan COMMAND --help                  its options
"""
WORKLOAD_SUFFIXES = (".yaml", ".yml")


def plan(
    model: opt.Model = None,
    algorithm: opt.Algorithm = None,
    gpus: opt.Gpus = None,
    prompt_max: opt.PromptMax = None,
    prompt_mean: opt.PromptMean = None,
    response_max: opt.ResponseMax = None,
    response_mean: opt.ResponseMean = None,
    response_cv: opt.ResponseCv = None,
    num_prompts: opt.NumPrompts = None,
    group_size: opt.GroupSize = None,
    num_optimizer_steps: opt.NumOptimizerSteps = None,
    num_epochs: opt.NumEpochs = None,
    kl_coefficient: opt.KlCoefficient = None,
    oversampling_ratio: opt.OversamplingRatio = None,
    critic: opt.Critic = None,
    reward: opt.Reward = None,
    reward_model: opt.RewardModel = None,
    judge_tokens: opt.JudgeTokens = None,
    reward_latency: opt.RewardLatency = None,
    reward_parallel: opt.RewardParallel = None,
    train_precision: opt.TrainPrecision = None,
    rollout_precision: opt.RolloutPrecision = None,
    lora_rank: opt.LoraRank = None,
    framework: opt.Framework = None,
    objective: opt.Objective = None,
    deadline: opt.Deadline = None,
    budget: opt.Budget = None,
    steps: opt.Steps = None,
    max_gpus: opt.MaxGpus = None,
    memory_margin: opt.MemoryMargin = None,
    prices: opt.Prices = None,
    inter_pool: opt.InterPool = None,
    time_limit: opt.TimeLimit = None,
    solver: opt.Solver = None,
    seed: opt.Seed = None,
    output: opt.Output = None,
    as_json: opt.AsJson = False,
    describe_space: opt.DescribeSpace = False,
) -> None:
    """Find the best plan. What is not given has a default, and is printed as an assumption."""
    if describe_space:
        from planner.search.space import describe

        print(_wrapped(describe()))
        return
    _check_output(output)
    file = model if model is not None and model.lower().endswith(WORKLOAD_SUFFIXES) else None
    flags = WorkloadSpec(
        model=None if file else model, algorithm=algorithm, gpus=gpus, inter_pool=inter_pool, num_prompts=num_prompts,
        group_size=group_size, num_optimizer_steps=num_optimizer_steps, num_epochs=num_epochs,
        kl_coefficient=kl_coefficient, oversampling_ratio=oversampling_ratio, prompt_max=prompt_max,
        prompt_mean=prompt_mean, response_max=response_max, response_mean=response_mean, response_cv=response_cv,
        critic=critic, reward=reward, reward_model=reward_model, judge_tokens=judge_tokens,
        reward_latency=reward_latency, reward_parallel=reward_parallel, train_precision=train_precision,
        rollout_precision=rollout_precision, lora_rank=lora_rank, objective=objective, deadline=deadline, steps=steps,
        budget=budget, max_gpus=max_gpus, memory_margin=memory_margin, framework=framework, time_limit=time_limit,
        solver=solver, seed=seed, prices=tuple(prices or ()),
    )  # fmt: skip
    spec = override(_read_workload(Path(file)) if file else WorkloadSpec(), flags)
    from planner.files.workload import build_request

    request = build_request(spec)
    with _progress("searching"):
        from planner.pipeline import make_plan

        made = make_plan(request)
    _deliver(made, output, as_json=as_json)


def analyze(
    model: opt.Model = None,
    algorithm: opt.Algorithm = None,
    gpus: opt.Gpus = None,
    prompt_max: opt.PromptMax = None,
    prompt_mean: opt.PromptMean = None,
    response_max: opt.ResponseMax = None,
    response_mean: opt.ResponseMean = None,
    response_cv: opt.ResponseCv = None,
    num_prompts: opt.NumPrompts = None,
    group_size: opt.GroupSize = None,
    num_optimizer_steps: opt.NumOptimizerSteps = None,
    num_epochs: opt.NumEpochs = None,
    kl_coefficient: opt.KlCoefficient = None,
    oversampling_ratio: opt.OversamplingRatio = None,
    critic: opt.Critic = None,
    reward: opt.Reward = None,
    reward_model: opt.RewardModel = None,
    judge_tokens: opt.JudgeTokens = None,
    reward_latency: opt.RewardLatency = None,
    reward_parallel: opt.RewardParallel = None,
    train_precision: opt.TrainPrecision = None,
    rollout_precision: opt.RolloutPrecision = None,
    lora_rank: opt.LoraRank = None,
    framework: opt.Framework = None,
    max_gpus: opt.MaxGpus = None,
    memory_margin: opt.MemoryMargin = None,
    inter_pool: opt.InterPool = None,
    time_limit: opt.TimeLimit = None,
    no_plan: opt.NoPlan = False,
    as_json: opt.AsJson = False,
) -> None:
    """Show work, depth and bytes of each stage, and how near the best plan is to their lower bound."""
    file = model if model is not None and model.lower().endswith(WORKLOAD_SUFFIXES) else None
    flags = WorkloadSpec(
        model=None if file else model, algorithm=algorithm, gpus=gpus, inter_pool=inter_pool, num_prompts=num_prompts,
        group_size=group_size, num_optimizer_steps=num_optimizer_steps, num_epochs=num_epochs,
        kl_coefficient=kl_coefficient, oversampling_ratio=oversampling_ratio, prompt_max=prompt_max,
        prompt_mean=prompt_mean, response_max=response_max, response_mean=response_mean, response_cv=response_cv,
        critic=critic, reward=reward, reward_model=reward_model, judge_tokens=judge_tokens,
        reward_latency=reward_latency, reward_parallel=reward_parallel, train_precision=train_precision,
        rollout_precision=rollout_precision, lora_rank=lora_rank, max_gpus=max_gpus, memory_margin=memory_margin,
        framework=framework, time_limit=time_limit,
    )  # fmt: skip
    spec = override(_read_workload(Path(file)) if file else WorkloadSpec(), flags)
    from planner.files.workload import build_request

    request = build_request(spec)
    with _progress("searching"):
        from planner.analysis import analyze as view_of
        from planner.pipeline import make_plan

        view = view_of(request, None if no_plan else make_plan(request))
    if as_json:
        import json

        from planner.report.analysis import analysis_document

        print(json.dumps(analysis_document(view), indent=1, ensure_ascii=False))
        return
    from planner.report.analysis import analysis_report

    _print_table(analysis_report(view, width=_width()))


def estimate(
    file: opt.WorkloadFile,
    gpus: opt.Gpus = None,
    prompt_max: opt.PromptMax = None,
    prompt_mean: opt.PromptMean = None,
    response_max: opt.ResponseMax = None,
    response_mean: opt.ResponseMean = None,
    response_cv: opt.ResponseCv = None,
    num_prompts: opt.NumPrompts = None,
    group_size: opt.GroupSize = None,
    memory_margin: opt.MemoryMargin = None,
    prices: opt.Prices = None,
    output: opt.Output = None,
    as_json: opt.AsJson = False,
) -> None:
    """Price a fixed configuration: all strategies given, nothing searched. Options override the file."""
    from planner.files.fixed import build_fixed_workers, fixed_assumptions
    from planner.files.workload import build_request

    _check_output(output)
    flags = WorkloadSpec(
        gpus=gpus, prompt_max=prompt_max, prompt_mean=prompt_mean, response_max=response_max,
        response_mean=response_mean, response_cv=response_cv, num_prompts=num_prompts, group_size=group_size,
        memory_margin=memory_margin, prices=tuple(prices or ()),
    )  # fmt: skip
    spec = override(_read_workload(file), flags)
    request = build_request(spec)
    workers = build_fixed_workers(spec, request)
    request = replace(request, assumptions=(*request.assumptions, *fixed_assumptions(spec, workers)))
    with _progress("pricing"):
        from planner.pipeline import estimate as price_fixed

        made = price_fixed(request, workers)
    _deliver(made, output, as_json=as_json)


def show(file: opt.PlanFile, as_json: opt.AsJson = False) -> None:
    """Show a saved plan."""
    from planner.files.plan import read_plan

    _print_plan(read_plan(file), as_json=as_json)


def diff(before: opt.Before, after: opt.After, as_json: opt.AsJson = False) -> None:
    """Compare two saved plans; exit code 5 when they differ."""
    from planner.files.plan import read_plan
    from planner.report.difference import change_table, differences

    changes = differences(read_plan(before), read_plan(after))
    if as_json:
        import json

        rows = [{"place": c.place, "before": c.before, "after": c.after} for c in changes]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    elif not changes:
        print("The plans are the same.")
    else:
        names = (str(before), str(after)) if before.name == after.name else (before.name, after.name)
        _print_table(change_table(changes, before=names[0], after=names[1]))
    if changes:
        raise typer.Exit(DifferenceError.exit_code)


def export(file: opt.PlanFile, to: opt.Target, directory: opt.Directory) -> None:
    """Write the files that start exactly this plan in a framework."""
    if to.lower() not in opt.EXPORTS:
        raise InvalidInputError(
            f"{to[: opt.SHOWN_LENGTH]!r} has no export",
            where="--to",
            accepted=", ".join(opt.EXPORTS),
            suggestion=nearest(to, opt.EXPORTS),
        )
    from planner.adapters.verl import export_plan
    from planner.files.plan import read_plan

    for path in export_plan(read_plan(file), directory):
        print(printable(str(path)))


def models(name: opt.Name = None) -> None:
    """List the models of the catalog, or show one."""
    from planner.report.catalog import model_details, model_table

    _print_table(model_table() if name is None else model_details(name))


def hardware(name: opt.Name = None) -> None:
    """List GPUs and node types, or show one."""
    from planner.report.catalog import hardware_details, hardware_table

    _print_table(hardware_table() if name is None else hardware_details(name))


def frameworks(name: opt.Name = None) -> None:
    """List training frameworks, or show the rules of one with their evidence."""
    from planner.report.catalog import framework_details, framework_table

    _print_table(framework_table() if name is None else framework_details(name))


def validate(
    table: opt.ValidatedTable = None,
    gpu: opt.RowGpu = None,
    model: opt.RowModel = None,
    worst: opt.Worst = None,
    data: opt.Data = None,
    no_anchors: opt.NoAnchors = False,
    write_residuals: opt.WriteResiduals = None,
    write_docs: opt.WriteDocs = None,
    as_json: opt.AsJson = False,
) -> None:
    """Price published measurements, each with its own configuration, and show how far off the cost model is."""
    from planner.validation.run import Request, tables_named

    num_worst = WORST_ROWS if worst is None else worst
    if num_worst < 0:
        raise InvalidInputError(f"{num_worst} is below 0", where="--worst")
    request = Request(tables=tables_named(table or ()), gpu=gpu or "", model=model or "", directory=data)
    if (write_residuals or write_docs) and not request.is_whole:
        raise InvalidInputError(
            "needs all shipped rows",
            where="--write-residuals and --write-docs",
            accepted="no --table, --gpu, --model or --data",
        )
    with _progress("pricing"):
        from planner.validation.run import validate as price_tables

        evaluations = price_tables(request)
    if write_residuals is not None:
        from planner.files.atomic import write_atomic
        from planner.files.residuals import residuals_text
        from planner.validation.run import residual_file

        write_atomic(write_residuals, residuals_text(residual_file(evaluations)).encode())
        print(f"saved {write_residuals}", file=sys.stderr)
    from planner.validation.targets import held_out_errors

    # They are those of all shipped rows.
    held_out = held_out_errors() if not (data or gpu or model) else ()
    if write_docs is not None:
        from planner.report.accuracy_docs import write_accuracy

        for path in write_accuracy(evaluations, held_out, write_docs):
            print(f"saved {path}", file=sys.stderr)
    if as_json:
        import json

        from planner.report.accuracy_json import accuracy_document

        document = accuracy_document(evaluations, held_out, num_worst=num_worst, with_anchors=not no_anchors)
        print(json.dumps(document, indent=1, ensure_ascii=False))
        return
    from planner.report.accuracy import accuracy_report

    _print_table(accuracy_report(evaluations, held_out, num_worst=num_worst, with_anchors=not no_anchors))


COMMANDS: dict[str, Callable[..., None]] = {
    "plan": plan,
    "analyze": analyze,
    "estimate": estimate,
    "show": show,
    "diff": diff,
    "export": export,
    "models": models,
    "hardware": hardware,
    "frameworks": frameworks,
    "validate": validate,
}
"""Name -> command, in the order of the help."""


# ---------------------------------------------------------------------------------------------- application


def build_app(name: str) -> typer.Typer:
    """The application with the command `name`, or with all of them where `name` is empty or an option.

    Raises InvalidInputError where `name` is meant as a command and is none.
    """
    if name and not name.startswith("-") and name not in COMMANDS:
        raise InvalidInputError(
            f"no command {name[: opt.SHOWN_LENGTH]!r}", accepted=", ".join(COMMANDS), suggestion=nearest(name, COMMANDS)
        )
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        invoke_without_command=True,
        context_settings={"help_option_names": ["-h", "--help"], "terminal_width": min(DEFAULT_WIDTH, _width())},
        help=SUMMARY,
        epilog=EXAMPLES,
    )
    app.callback()(_root)
    for command in [name] if name in COMMANDS else COMMANDS:
        app.command(command)(COMMANDS[command])
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"rlplan {__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        # Nothing was asked for: help, but as an error.
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(InvalidInputError.exit_code)


# ---------------------------------------------------------------------------------------------- helpers


def _read_workload(file: Path) -> WorkloadSpec:
    from planner.files.workload_file import read_workload

    return read_workload(file)


def _check_output(output: Path | None) -> None:
    """A place that cannot be written should be known before a search, not after it."""
    if output is not None:
        from planner.files.atomic import writable_target

        writable_target(output, where=f"--output {output}")


def _deliver(made: Plan, output: Path | None, *, as_json: bool) -> None:
    from planner.domain.plan import Status

    if made.status is Status.UNKNOWN:
        raise NoPlanFoundError("the search ended at its time limit without a plan; give a longer --time-limit")
    if output is not None:
        from planner.files.plan import write_plan

        write_plan(made, output)
    _print_plan(made, as_json=as_json)
    if output is not None:
        print(f"saved {printable(str(output))}", file=sys.stderr)
    if made.status is Status.INFEASIBLE:
        # Only a fixed configuration is shown although it cannot run: the report says how it fails.
        from planner.report.words import misfits

        raise InfeasibleError("; ".join(misfits(made)) or "the configuration does not fit")


def _print_plan(made: Plan, *, as_json: bool) -> None:
    if as_json:
        from planner.files.plan import json_output

        sys.stdout.write(json_output(made))
        return
    from planner.report.terminal import print_plan

    print_plan(made, sys.stdout, width=_width())


def _print_table(renderable: RenderableType) -> None:
    from planner.report.terminal import print_renderable

    print_renderable(renderable, sys.stdout, width=_width())


def _width() -> int:
    """Columns for text: those of the terminal up to DEFAULT_WIDTH, or what COLUMNS says."""
    import shutil

    columns = shutil.get_terminal_size(fallback=(DEFAULT_WIDTH, 24)).columns
    if sys.stdout.isatty():
        columns = min(columns, DEFAULT_WIDTH)
    return max(MIN_WIDTH, columns)


def _wrapped(text: str) -> str:
    """Lines of `text` broken at the width; what continues a line starts under its second column, if it has one."""
    import re
    import textwrap

    lines: list[str] = []
    for line in text.splitlines():
        lead = re.match(r" *(\S.*? {2,})?", line)
        indent = " " * (lead.end() if lead is not None else 0)
        lines += textwrap.wrap(line, _width(), subsequent_indent=indent, break_on_hyphens=False) or [""]
    return "\n".join(lines)


@contextmanager
def _progress(what: str) -> Iterator[None]:
    """A note on stderr when a person waits at a terminal for more than a second."""
    if not sys.stderr.isatty():
        yield
        return

    def note() -> None:
        sys.stderr.write(f"{what} ...")
        sys.stderr.flush()

    timer = threading.Timer(PROGRESS_AFTER_S, note)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.finished.is_set():
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
