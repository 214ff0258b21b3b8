"""The command line: parse, call, render, map errors to exit codes. Nothing is decided here.

Imports are made where they are used: the time of a short command is the time of its imports. For the same reason
the parser is argparse, and only the parser of the command that was asked for is built.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from planner import __version__
from planner.errors import DifferenceError, InfeasibleError, InvalidInputError, NoPlanFoundError, RlplanError, nearest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from planner.domain.plan import Plan
    from planner.files.spec import WorkloadSpec

DEBUG_VARIABLE = "RLPLAN_DEBUG"
PROGRESS_AFTER_S = 1.0
EXIT_INTERRUPTED = 130
HELP_WIDTH = 100
WORKLOAD_SUFFIXES = (".yaml", ".yml")
EXPORTS = ("verl",)


# ---------------------------------------------------------------------------------------------- options


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """An option that fills a field of WorkloadSpec. Its spelling is in `planner.files.spec.PLACES`."""

    field: str
    help: str
    kind: type[int] | type[float] | type[str] = str
    is_repeatable: bool = False


FLAGS = (
    Flag(field="algorithm", help="ppo, vapo, grpo, dr-grpo, dapo, gspo, rloo, reinforce++ or remax [grpo]"),
    Flag(
        field="gpus",
        help="32xh100, 4x8xh100, 4xp5.48xlarge, pools joined by commas; a type or nothing: smallest cluster that works",
    ),
    Flag(field="prompt_max", kind=int, help="longest prompt, tokens [1024]"),
    Flag(field="prompt_mean", kind=float, help="mean prompt [half of the longest]"),
    Flag(field="response_max", kind=int, help="longest response, tokens [8192]"),
    Flag(field="response_mean", kind=float, help="mean response [half of the longest]"),
    Flag(field="response_cv", kind=float, help="spread of responses, deviation over mean [0.6]"),
    Flag(field="num_prompts", kind=int, help="prompts per iteration [256]"),
    Flag(field="group_size", kind=int, help="responses per prompt [the algorithm's]"),
    Flag(field="num_optimizer_steps", kind=int, help="mini-batches per iteration [4]"),
    Flag(field="num_epochs", kind=int, help="passes over the batch [1]"),
    Flag(field="kl_coefficient", kind=float, help="KL coefficient; 0 removes the reference [the algorithm's]"),
    Flag(field="oversampling_ratio", kind=float, help="prompts generated per prompt kept [the algorithm's]"),
    Flag(field="critic", help="critic model [MODEL]"),
    Flag(field="reward", help="rule, model, process-model, judge or sandbox [rule]"),
    Flag(field="reward_model", help="reward model or judge [MODEL]"),
    Flag(field="judge_tokens", kind=int, help="tokens per verdict of a judge [512]"),
    Flag(field="reward_latency", help="sandbox: time per response, such as 2s"),
    Flag(field="reward_parallel", kind=int, help="sandboxes at the same time [256]"),
    Flag(field="train_precision", help="of training: bf16 or fp8 [bf16]"),
    Flag(field="rollout_precision", help="of the rollout: bf16, fp8 or fp4 [bf16]"),
    Flag(field="lora_rank", kind=int, help="LoRA rank [full training]"),
    Flag(field="framework", help="only plans that this framework can run; see rlplan frameworks"),
    Flag(field="objective", help="time, cost or gpus [time; gpus without a given cluster]"),
    Flag(field="deadline", help="for all --steps, such as 12h"),
    Flag(field="budget", help="for all --steps, such as '5000 USD'"),
    Flag(field="steps", kind=int, help="iterations of the whole run"),
    Flag(field="max_gpus", kind=int, help="use at most so many GPUs"),
    Flag(field="memory_margin", help="GPU memory and host RAM to keep free [10%%]"),
    Flag(field="prices", help="USD per GPU-hour, such as h100=2.50; repeatable", is_repeatable=True),
    Flag(field="inter_pool", help="link between pools per GPU, such as '100 Gbit/s'"),
    Flag(field="time_limit", help="of the search [60s]"),
    Flag(field="solver", help="cpsat or ilp [cpsat]"),
    Flag(field="seed", kind=int, help="of the search [0]"),
)


class _Parser(argparse.ArgumentParser):
    """Reports wrong arguments as InvalidInputError, with the nearest option."""

    def error(self, message: str) -> NoReturn:
        raise InvalidInputError(f"{message.removeprefix('argument ')}; see {self.prog} --help")

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        values, rest = self.parse_known_args(arguments)
        if rest and rest[0].startswith("-"):
            known = [option for action in self._actions for option in action.option_strings if len(option) > 2]
            name = rest[0].split("=")[0]
            raise InvalidInputError(f"no option {name[:60]!r}; see {self.prog} --help", suggestion=nearest(name, known))
        if rest:
            raise InvalidInputError(f"unexpected argument {rest[0][:60]!r}; see {self.prog} --help")
        return values


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, max_help_position=28, width=HELP_WIDTH)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not an integer") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not a number") from None


_READ: dict[type, Callable[[str], int | float | str]] = {int: _integer, float: _number, str: str}
_METAVAR: dict[type, str] = {int: "N", float: "X", str: "TEXT"}


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="save the plan as JSON")
    _add_json(parser)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", dest="as_json", action="store_true", help="print JSON for programs instead of text")


def _add_plan_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="PLAN", type=Path, help="a saved plan (JSON)")


def _add_show(parser: argparse.ArgumentParser) -> None:
    _add_plan_file(parser)
    _add_json(parser)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="show one entry in full")


def _add_spec(parser: argparse.ArgumentParser) -> None:
    from planner.files.spec import PLACES

    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="catalog id, Hugging Face id, alias, config.json, or workload.yaml"
    )
    for flag in FLAGS:
        parser.add_argument(
            PLACES[flag.field][0],
            dest=flag.field,
            metavar=_METAVAR[flag.kind],
            type=_READ[flag.kind],
            action="append" if flag.is_repeatable else "store",
            help=flag.help,
        )
    _add_output(parser)
    parser.add_argument("--describe-space", action="store_true", help="print what is searched, and exit")


def _add_estimate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a workload file with strategies")
    _add_output(parser)


def _add_diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="A", type=Path, help="a saved plan")
    parser.add_argument("after", metavar="B", type=Path, help="another saved plan")
    _add_json(parser)


def _add_export(parser: argparse.ArgumentParser) -> None:
    _add_plan_file(parser)
    parser.add_argument("--to", metavar="FRAMEWORK", required=True, help=", ".join(EXPORTS))
    parser.add_argument("-o", "--output", metavar="DIRECTORY", type=Path, required=True, help="where the files go")


# ---------------------------------------------------------------------------------------------- commands


def _plan(values: argparse.Namespace) -> int:
    if values.describe_space:
        from planner.search.space import describe

        print(describe())
        return 0
    from planner.files.spec import WorkloadSpec, override

    _check_output(values.output)
    model: str | None = values.model
    file = model if model is not None and model.lower().endswith(WORKLOAD_SUFFIXES) else None
    given = {flag.field: getattr(values, flag.field) for flag in FLAGS}
    repeated = {flag.field: tuple(given[flag.field] or ()) for flag in FLAGS if flag.is_repeatable}
    flags = replace(WorkloadSpec(model=None if file else model), **{**given, **repeated})
    spec = override(_read_workload(file) if file else WorkloadSpec(), flags)
    from planner.files.workload import build_request

    request = build_request(spec)
    with _progress("searching"):
        from planner.pipeline import make_plan

        made = make_plan(request)
    _deliver(made, values.output, as_json=values.as_json)
    return 0


def _estimate(values: argparse.Namespace) -> int:
    from planner.files.fixed import build_fixed_workers
    from planner.files.workload import build_request

    _check_output(values.output)
    spec = _read_workload(values.file)
    request = build_request(spec)
    workers = build_fixed_workers(spec, request)
    with _progress("pricing"):
        from planner.pipeline import estimate

        made = estimate(request, workers)
    _deliver(made, values.output, as_json=values.as_json)
    return 0


def _show(values: argparse.Namespace) -> int:
    from planner.files.plan import read_plan

    _print_plan(read_plan(values.file), as_json=values.as_json)
    return 0


def _diff(values: argparse.Namespace) -> int:
    from planner.files.plan import read_plan
    from planner.report.difference import change_table, differences

    changes = differences(read_plan(values.before), read_plan(values.after))
    if values.as_json:
        import json

        rows = [{"place": c.place, "before": c.before, "after": c.after} for c in changes]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    elif not changes:
        print("The plans are the same.")
    else:
        same_name = values.before.name == values.after.name
        names = (values.before, values.after) if same_name else (values.before.name, values.after.name)
        _print_table(change_table(changes, before=str(names[0]), after=str(names[1])))
    return DifferenceError.exit_code if changes else 0


def _export(values: argparse.Namespace) -> int:
    if values.to.lower() not in EXPORTS:
        raise InvalidInputError(
            f"{values.to[:60]!r} has no export",
            where="--to",
            accepted=", ".join(EXPORTS),
            suggestion=nearest(values.to, EXPORTS),
        )
    from planner.adapters.verl import export_plan
    from planner.files.plan import read_plan

    for path in export_plan(read_plan(values.file), values.output):
        print(path)
    return 0


def _models(values: argparse.Namespace) -> int:
    from planner.report.catalog import model_details, model_table

    _print_table(model_table() if values.name is None else model_details(values.name))
    return 0


def _hardware(values: argparse.Namespace) -> int:
    from planner.report.catalog import hardware_details, hardware_table

    _print_table(hardware_table() if values.name is None else hardware_details(values.name))
    return 0


def _frameworks(values: argparse.Namespace) -> int:
    from planner.report.catalog import framework_details, framework_table

    _print_table(framework_table() if values.name is None else framework_details(values.name))
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command: what it does, its arguments, and the function that runs it and returns the exit code."""

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]

    def parser(self) -> _Parser:
        parser = _Parser(
            prog=f"rlplan {self.name}", description=self.help, allow_abbrev=False, formatter_class=_formatter
        )
        self.add_arguments(parser)
        positionals = [action.metavar for action in parser._actions if not action.option_strings]
        parser.usage = " ".join(["%(prog)s", *(str(name) for name in positionals), "[options]"])
        return parser


COMMANDS = (
    Command(
        name="plan",
        help="Find the best plan. What is not given has a default, and is printed as an assumption.",
        add_arguments=_add_spec,
        run=_plan,
    ),
    Command(
        name="estimate",
        help="Price a fixed configuration: all strategies given, nothing searched.",
        add_arguments=_add_estimate,
        run=_estimate,
    ),
    Command(
        name="show",
        help="Show a saved plan.",
        add_arguments=_add_show,
        run=_show,
    ),
    Command(
        name="diff", help="Compare two saved plans; exit code 5 when they differ.", add_arguments=_add_diff, run=_diff
    ),
    Command(
        name="export",
        help="Write the files that start exactly this plan in a framework.",
        add_arguments=_add_export,
        run=_export,
    ),
    Command(name="models", help="List the models of the catalog, or show one.", add_arguments=_add_name, run=_models),
    Command(name="hardware", help="List GPUs and node types, or show one.", add_arguments=_add_name, run=_hardware),
    Command(
        name="frameworks",
        help="List training frameworks, or show the rules of one with their evidence.",
        add_arguments=_add_name,
        run=_frameworks,
    ),
)


def _overview() -> str:
    """The answer to `rlplan --help`."""
    commands = "\n".join(f"  {command.name:<12}{command.help}" for command in COMMANDS)
    return (
        "usage: rlplan COMMAND ...\n\n"
        "Proven placement and parallelism plans for RL post-training of language models.\n\n"
        f"{commands}\n\n"
        "  rlplan plan qwen3-32b --gpus 32xh100     a first plan; everything else has a printed default\n"
        "  rlplan COMMAND --help                    the options of a command\n"
        "  rlplan --version                         the version"
    )


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


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; deliberate errors are printed, others are raised."""
    try:
        code = _dispatch(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except RlplanError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`| head`); the interpreter must not complain while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as finished:
        # argparse ends this way after it has printed help.
        return finished.code if isinstance(finished.code, int) else 0
    return code


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else InvalidInputError.exit_code
    name = arguments[0]
    if name == "--version":
        print(f"rlplan {__version__}")
        return 0
    command = next((command for command in COMMANDS if command.name == name), None)
    if command is None:
        names = [command.name for command in COMMANDS]
        raise InvalidInputError(f"no command {name[:60]!r}", accepted=", ".join(names), suggestion=nearest(name, names))
    return command.run(command.parser().read(arguments[1:]))


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
