"""The command line: parse, call, render, map errors to exit codes. Nothing is decided here.

Imports are made where they are used: the time of a short command is the time of its imports.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

from planner import __version__
from planner.errors import DifferenceError, InfeasibleError, InvalidInputError, NoPlanFoundError, RlplanError, nearest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from planner.domain.plan import Plan
    from planner.files.spec import WorkloadSpec

DEBUG_VARIABLE = "RLPLAN_DEBUG"
PROGRESS_AFTER_S = 1.0
EXIT_INTERRUPTED = 130
WORKLOAD_SUFFIXES = (".yaml", ".yml")

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Proven placement and parallelism plans for RL post-training of language models.",
)

Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Save the plan as JSON.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text.")]
PlanPath = Annotated[Path, typer.Argument(metavar="PLAN", help="A saved plan (JSON).")]
Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show one entry in full.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"rlplan {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the command itself."""


@app.command()
def plan(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="Catalog id, Hugging Face id, alias, path to a config.json, or a workload.yaml"
        ),
    ] = None,
    algorithm: Annotated[str | None, typer.Option(help="ppo, vapo, grpo, dr-grpo, dapo, gspo, ... [grpo]")] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            help="32xh100, 4x8xh100, 4xp5.48xlarge, pools joined by commas; a type or nothing: smallest cluster."
        ),
    ] = None,
    prompt: Annotated[int | None, typer.Option(help="Longest prompt, tokens. [1024]")] = None,
    prompt_mean: Annotated[float | None, typer.Option(help="Mean prompt. [half of the longest]")] = None,
    response: Annotated[int | None, typer.Option(help="Longest response, tokens. [8192]")] = None,
    response_mean: Annotated[float | None, typer.Option(help="Mean response. [half of the longest]")] = None,
    response_cv: Annotated[float | None, typer.Option(help="Spread of responses: deviation over mean. [0.6]")] = None,
    prompts: Annotated[int | None, typer.Option(help="Prompts per iteration. [256]")] = None,
    group: Annotated[int | None, typer.Option(help="Responses per prompt. [the algorithm's]")] = None,
    optimizer_steps: Annotated[int | None, typer.Option(help="Mini-batches per iteration. [4]")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the batch. [1]")] = None,
    kl: Annotated[float | None, typer.Option(help="KL coefficient; 0 removes the reference. [the algorithm's]")] = None,
    oversampling: Annotated[float | None, typer.Option(help="Prompts generated per prompt kept.")] = None,
    critic: Annotated[str | None, typer.Option(help="Critic model. [MODEL]")] = None,
    reward: Annotated[str | None, typer.Option(help="rule, model, process-model, judge, sandbox. [rule]")] = None,
    reward_model: Annotated[str | None, typer.Option(help="Reward model or judge. [MODEL]")] = None,
    judge_tokens: Annotated[int | None, typer.Option(help="Tokens per verdict of a judge. [512]")] = None,
    reward_latency: Annotated[str | None, typer.Option(help="Sandbox: time per response, such as 2s.")] = None,
    reward_parallel: Annotated[int | None, typer.Option(help="Sandboxes at the same time. [256]")] = None,
    precision: Annotated[str | None, typer.Option(help="Of training: bf16, fp8. [bf16]")] = None,
    rollout_precision: Annotated[str | None, typer.Option(help="Of the rollout: bf16, fp8, fp4. [bf16]")] = None,
    lora: Annotated[int | None, typer.Option(help="LoRA rank. [full training]")] = None,
    framework: Annotated[str | None, typer.Option(help="Only plans that this framework can run.")] = None,
    objective: Annotated[str | None, typer.Option(help="time, cost or gpus.")] = None,
    deadline: Annotated[str | None, typer.Option(help="For all --steps, such as 12h.")] = None,
    budget: Annotated[str | None, typer.Option(help="For all --steps, such as '5000 USD'.")] = None,
    steps: Annotated[int | None, typer.Option(help="Iterations of the whole run.")] = None,
    max_gpus: Annotated[int | None, typer.Option(help="Use at most so many GPUs.")] = None,
    memory_margin: Annotated[str | None, typer.Option(help="GPU memory to keep free. [10%]")] = None,
    price: Annotated[list[str] | None, typer.Option(help="USD per GPU-hour, such as h100=2.50; repeatable.")] = None,
    inter_pool: Annotated[str | None, typer.Option(help="Link between pools per GPU, such as '100 Gbit/s'.")] = None,
    time_limit: Annotated[str | None, typer.Option(help="Of the search. [60s]")] = None,
    solver: Annotated[str | None, typer.Option(help="cpsat or ilp. [cpsat]")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the search. [0]")] = None,
    output: Output = None,
    as_json: AsJson = False,
    describe_space: Annotated[bool, typer.Option("--describe-space", help="Print what is searched, and exit.")] = False,
) -> None:
    """Find the best plan. What is not given has a default, and is printed as an assumption."""
    if describe_space:
        from planner.search.space import describe

        print(describe())
        return
    from planner.files.spec import WorkloadSpec, override

    file = model if model is not None and model.lower().endswith(WORKLOAD_SUFFIXES) else None
    flags = WorkloadSpec(
        model=None if file else model, algorithm=algorithm, gpus=gpus, inter_pool=inter_pool, num_prompts=prompts,
        group_size=group, num_optimizer_steps=optimizer_steps, num_epochs=epochs, kl_coefficient=kl,
        oversampling_ratio=oversampling, prompt_max=prompt, prompt_mean=prompt_mean, response_max=response,
        response_mean=response_mean, response_cv=response_cv, critic=critic, reward=reward, reward_model=reward_model,
        judge_tokens=judge_tokens, reward_latency=reward_latency, reward_parallel=reward_parallel,
        train_precision=precision, rollout_precision=rollout_precision, lora_rank=lora, objective=objective,
        deadline=deadline, steps=steps, budget=budget, max_gpus=max_gpus, memory_margin=memory_margin,
        framework=framework, time_limit=time_limit, solver=solver, seed=seed, prices=tuple(price or ()),
    )  # fmt: skip
    _check_output(output)
    spec = override(_read_workload(file) if file else WorkloadSpec(), flags)
    from planner.files.workload import build_request

    request = build_request(spec)
    with _progress("searching"):
        from planner.pipeline import make_plan

        made = make_plan(request)
    _deliver(made, output, as_json=as_json)


@app.command()
def estimate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A workload file with strategies.")],
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Price a fixed configuration: all strategies given, nothing searched."""
    from planner.files.fixed import build_fixed_workers
    from planner.files.workload import build_request

    _check_output(output)
    spec = _read_workload(str(file))
    request = build_request(spec)
    workers = build_fixed_workers(spec, request)
    with _progress("pricing"):
        from planner.pipeline import estimate as price_fixed

        made = price_fixed(request, workers)
    _deliver(made, output, as_json=as_json)


@app.command()
def show(file: PlanPath, as_json: AsJson = False) -> None:
    """Show a saved plan."""
    from planner.files.plan import read_plan

    _print_plan(read_plan(file), as_json=as_json)


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="A saved plan.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Another saved plan.")],
    as_json: AsJson = False,
) -> None:
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
        same_name = before.name == after.name
        names = (str(before), str(after)) if same_name else (before.name, after.name)
        _print_table(change_table(changes, before=names[0], after=names[1]))
    if changes:
        raise typer.Exit(DifferenceError.exit_code)


@app.command()
def export(
    file: PlanPath,
    to: Annotated[str, typer.Option("--to", metavar="FRAMEWORK", help="verl")],
    directory: Annotated[Path, typer.Option("-o", "--output", metavar="DIRECTORY", help="Where the files go.")],
) -> None:
    """Write the files that start exactly this plan in a framework."""
    known = ("verl",)
    if to.lower() not in known:
        raise InvalidInputError(
            f"{to[:60]!r} has no export", where="--to", accepted=", ".join(known), suggestion=nearest(to, known)
        )
    from planner.adapters.verl import export_plan
    from planner.files.plan import read_plan

    for path in export_plan(read_plan(file), directory):
        print(path)


@app.command()
def models(name: Name = None) -> None:
    """List the models of the catalog, or show one (also by Hugging Face id or path)."""
    from planner.report.catalog import model_details, model_table

    _print_table(model_table() if name is None else model_details(name))


@app.command()
def hardware(name: Name = None) -> None:
    """List GPUs and node types of the catalog, or show one."""
    from planner.report.catalog import hardware_details, hardware_table

    _print_table(hardware_table() if name is None else hardware_details(name))


@app.command()
def frameworks(name: Name = None) -> None:
    """List what is known about training frameworks, or show the rules of one with their evidence."""
    from planner.report.catalog import framework_details, framework_table

    _print_table(framework_table() if name is None else framework_details(name))


# ---------------------------------------------------------------------------------------------- helpers


def _read_workload(file: str) -> WorkloadSpec:
    from planner.files.workload_file import read_workload

    return read_workload(Path(file))


def _check_output(output: Path | None) -> None:
    """A place that cannot be written should be known before a search, not after it."""
    if output is None:
        return
    if output.is_dir():
        raise InvalidInputError("is a directory", where=f"--output {output}", accepted="a file name")
    if not output.parent.is_dir():
        raise InvalidInputError(f"directory {str(output.parent)!r} does not exist", where=f"--output {output}")


def _deliver(made: Plan, output: Path | None, *, as_json: bool) -> None:
    from planner.domain.plan import Status

    if made.status is Status.UNKNOWN:
        raise NoPlanFoundError("the search ended at its time limit without a plan; give a longer --time-limit")
    if output is not None:
        from planner.files.plan import write_plan

        write_plan(made, output)
    _print_plan(made, as_json=as_json)
    if output is not None:
        print(f"saved {output}", file=sys.stderr)
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

    print_plan(made, sys.stdout)


def _print_table(renderable: RenderableType) -> None:
    from planner.report.terminal import print_renderable

    print_renderable(renderable, sys.stdout)


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


def _click_error() -> type[Exception]:
    """The base of the parser's own errors; newer typer versions carry their own copy of click."""
    return next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; deliberate errors are printed, others are raised."""
    parser_error = _click_error()
    try:
        # Calling the command instead of `app` keeps typer from replacing our hook for internal errors.
        command = typer.main.get_command(app)
        given = list(arguments) if arguments is not None else None
        result = command.main(args=given, prog_name="rlplan", standalone_mode=False)
        sys.stdout.flush()
    except RlplanError as error:
        return _fail(str(error), error.exit_code)
    except parser_error as error:
        message = error.format_message()  # type: ignore[attr-defined]
        if not message:
            # Help was asked for by giving no command; it is already printed.
            return InvalidInputError.exit_code
        context = getattr(error, "ctx", None)
        hint = f"; see {context.command_path} --help" if context is not None else ""
        return _fail(f"{message.rstrip('.')}{hint}", InvalidInputError.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`| head`); the interpreter must not complain while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


def _report_internal_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(kind, error, trace)
        return
    first_line = (str(error).splitlines() or [""])[0]
    hint = f"this is a fault in rlplan; {DEBUG_VARIABLE}=1 shows where"
    print(f"error: internal: {kind.__name__}: {first_line[:300]} ({hint})", file=sys.stderr)


def main() -> None:
    """Entry point of the `rlplan` command."""
    # Uncaught errors end the process with status 1 after this hook has put them into one line.
    sys.excepthook = _report_internal_error
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that cannot show a character must not turn an answer into an error.
            stream.reconfigure(errors="replace")
    sys.exit(run())
