"""The command line: parse, run a command of `planner.cli_commands`, map errors to exit codes.

Only the command that was asked for is registered, and typer itself is imported late: the time of a short command is
the time of its imports, and an interrupt during them must be as quiet as a later one.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from planner.errors import InvalidInputError, RlplanError, nearest

if TYPE_CHECKING:
    import typer

DEBUG_VARIABLE = "RLPLAN_DEBUG"
EXIT_INTERRUPTED = 130
PROGRAM = "rlplan"
SHOWN_LENGTH = 200


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
    return code


def _dispatch(arguments: list[str]) -> int:
    import typer

    from planner.cli_commands import COMMANDS, build_app

    # The base of the errors of the parser, which is click in older versions of typer and its own in newer ones.
    usage_error: type[Exception] = typer.BadParameter.__mro__[1]
    name = arguments[0] if arguments else ""
    command = typer.main.get_command(build_app(name))
    try:
        # Not `app()` or `command.main()`: these end the process themselves and replace the hook of `main`.
        with command.make_context(PROGRAM, arguments) as context:
            command.invoke(context)
    except typer.Exit as finished:
        return finished.exit_code
    except usage_error as error:
        raise _invalid_arguments(error, f"{PROGRAM} {name}" if name in COMMANDS else PROGRAM) from None
    return 0


def _invalid_arguments(error: Exception, program: str) -> InvalidInputError:
    """An error of the parser in our words, with the nearest option for one that does not exist."""
    see = f"see {program} --help"
    context: typer.Context | None = getattr(error, "ctx", None)
    if context is not None and type(error).__name__ == "NoSuchOption":
        option = str(getattr(error, "option_name", ""))
        known = [name for parameter in context.command.params for name in parameter.opts if name.startswith("--")]
        return InvalidInputError(
            f"no option {option[:SHOWN_LENGTH]!r}; {see}", suggestion=nearest(option, [*known, "--help"])
        )
    message = " ".join(str(error.format_message()).split())  # type: ignore[attr-defined]
    return InvalidInputError(f"{message[:1].lower()}{message[1:SHOWN_LENGTH].rstrip('.')}; {see}")


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
