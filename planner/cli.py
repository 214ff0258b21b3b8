"""The command line: parse, run a command of `planner.cli_commands`, map errors to exit codes.

Only the command that was asked for is registered, and everything but `os` and `sys` is imported late: the time of a
short command is the time of its imports, and an interrupt during them must be as quiet as a later one.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import TextIO

    import typer

    from planner.errors import InvalidInputError

DEBUG_VARIABLE = "RLPLAN_DEBUG"
EXIT_INPUT = 2
EXIT_INTERRUPTED = 130
PROGRAM = "rlplan"
SHOWN_LENGTH = 200


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; deliberate errors are printed, others are raised."""
    try:
        from planner.errors import RlplanError

        try:
            code = _dispatch(list(sys.argv[1:] if arguments is None else arguments))
            sys.stdout.flush()
        except RlplanError as error:
            return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`| head`).
        _drop_output()
        return 0
    except OSError as error:
        # Files have messages of their own; what is left is mostly an output that takes no more (a full disk).
        _drop_output()
        where = f"{error.filename}: " if error.filename else "output: "
        return _fail(f"{where}cannot be read or written: {error.strerror or error}", EXIT_INPUT)
    return code


def _drop_output() -> None:
    """What is still buffered goes nowhere: the interpreter must not fail again on it while it exits."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        # No file behind it (captured output, or a stream that was closed).
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


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
    from planner.errors import InvalidInputError, nearest

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
    from planner.errors import printable

    _complain(f"error: {printable(message)}")
    return code


def _complain(message: str) -> None:
    """A line on stderr; where that cannot be written either, the exit code has to say it."""
    try:
        print(message, file=sys.stderr)
    except OSError:
        return


def _report_internal_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    if os.environ.get(DEBUG_VARIABLE):
        import traceback

        traceback.print_exception(kind, error, trace)
        return
    from planner.errors import printable

    first_line = (str(error).splitlines() or [""])[0]
    hint = f"this is a fault in rlplan; {DEBUG_VARIABLE}=1 shows where"
    _complain(f"error: internal: {kind.__name__}: {printable(first_line[:300])} ({hint})")


def _open_streams() -> None:
    """Streams that the caller closed: errors go nowhere, and output is an error only when there is some."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # Reserves the number: a file that is opened later must not take the place of a stream.
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - for the life of the process
    if sys.stdout is None:
        sys.stdout = _closed_stream()


def _closed_stream() -> TextIO:
    import errno
    import io

    class Closed(io.TextIOBase):
        """Standard output that was closed by the caller."""

        def write(self, text: str) -> int:
            raise OSError(errno.EBADF, "it was closed")

    return Closed()  # type: ignore[return-value]


def main() -> None:
    """Entry point of the `rlplan` command."""
    # Uncaught errors end the process with status 1 after this hook has put them into one line.
    sys.excepthook = _report_internal_error
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that cannot show a character must not turn an answer into an error.
            stream.reconfigure(errors="replace")
    code = run()
    import signal

    # The work is done: an interrupt while the interpreter shuts down has nothing to say any more.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)
