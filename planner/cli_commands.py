"""The application: which commands there are and where each is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated

import typer

from planner import __version__
from planner import cli_options as opt
from planner.commands.common import DEFAULT_WIDTH, width
from planner.errors import InvalidInputError, nearest

SUMMARY = "Proven placement and parallelism plans for RL post-training of language models."
# The backspace keeps the help formatter from filling the lines as one paragraph.
EXAMPLES = """\b
rlplan plan qwen3-32b --gpus 32xh100   a first plan
rlplan COMMAND --help                  its options
"""
COMMANDS: dict[str, str] = {
    "plan": "planning",
    "analyze": "planning",
    "estimate": "planning",
    "show": "saved",
    "diff": "saved",
    "export": "saved",
    "check": "check",
    "explain": "explain",
    "simulate": "simulate",
    "calibrate": "calibrate",
    "compare": "compare",
    "report": "report",
    "models": "catalogs",
    "hardware": "catalogs",
    "frameworks": "catalogs",
    "budget": "budget",
    "validate": "validate",
}
"""Name -> module of `planner.commands` with a function of that name, in the order of the help."""


def load(name: str) -> Callable[..., None]:
    """The function of a command; only its own module is imported."""
    command: Callable[..., None] = getattr(import_module(f"planner.commands.{COMMANDS[name]}"), name)
    return command


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
        context_settings={"help_option_names": ["-h", "--help"], "terminal_width": min(DEFAULT_WIDTH, width())},
        help=SUMMARY,
        epilog=EXAMPLES,
    )
    app.callback()(_root)
    for command in [name] if name in COMMANDS else COMMANDS:
        function = load(command)
        app.command(command, short_help=_first_sentence(function))(function)
    return app


def _first_sentence(function: Callable[..., None]) -> str:
    """For the list of commands, where the parser would else cut it off at the width of the terminal."""
    first_line = (function.__doc__ or "").partition("\n\n")[0]
    return " ".join(first_line.split()).partition(". ")[0].rstrip(".") + "."


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
