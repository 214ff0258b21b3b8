"""The page of all commands and options, from the parser itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, cast

import typer

from planner.cli_commands import COMMANDS, SUMMARY, build_app

HEAD = f"""# Command line

{SUMMARY}

Made from the code by `make docs`; `rlplan COMMAND --help` says the same. In brackets: what holds where an option is not
given. Quantities have a unit (`2s`, `100 Gbit/s`, `1 TiB`); bare numbers are counts, tokens or ratios.

Exit codes: 0 success, 2 invalid input, 3 nothing fits, 4 no plan within the time limit, 5 a difference or a problem was
found (`diff`, `check`, `simulate`, `compare`, or a sweep with points left), 130 interrupted, 1 a fault in rlplan
(`RLPLAN_DEBUG=1` shows where). Answers go to stdout, notes and errors to stderr. `NO_COLOR` and `COLUMNS` are heeded.
On Linux large searches price on up to four cores; `RLPLAN_PROCESSES=1` keeps them on one.
"""


class Parameter(Protocol):
    """What is used of a parameter of the parser, whichever library it comes from."""

    opts: Sequence[str]
    metavar: str | None
    help: str | None
    multiple: bool
    is_flag: bool
    required: bool
    param_type_name: str


class Command(Protocol):
    """What is used of a command."""

    params: Sequence[Parameter]
    help: str | None


def cli_page() -> str:
    """The page as Markdown."""
    group = typer.main.get_command(build_app(""))
    commands = cast(dict[str, Command], group.commands)  # type: ignore[attr-defined]
    links = [f"| [`rlplan {name}`](#rlplan-{name}) | {_cell(commands[name].help)} |" for name in COMMANDS]
    parts = [HEAD, "\n".join(["| command | what it does |", "|---|---|", *links]) + "\n"]
    parts += [_section(name, commands[name]) for name in COMMANDS]
    return "\n".join(parts)


def _section(name: str, command: Command) -> str:
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    options = [item for item in command.params if item.param_type_name != "argument"]
    usage = " ".join([f"rlplan {name}", *(_argument(item) for item in arguments), "[OPTIONS]"])
    lines = [f"## rlplan {name}", "", (command.help or "").strip(), "", "```", usage, "```", ""]
    if arguments:
        lines += _table("argument", ((f"`{item.metavar}`", item.help) for item in arguments))
    lines += _table("option", ((_option(item), item.help) for item in options))
    return "\n".join(lines)


def _table(first: str, rows: Iterable[tuple[str, str | None]]) -> list[str]:
    return [f"| {first} | |", "|---|---|", *(f"| {name} | {_cell(text)} |" for name, text in rows), ""]


def _argument(item: Parameter) -> str:
    return f"{item.metavar}" if item.required else f"[{item.metavar}]"


def _option(item: Parameter) -> str:
    value = "" if item.is_flag else f" {item.metavar or 'TEXT'}"
    return ", ".join(f"`{name}{value if name.startswith('--') else ''}`" for name in item.opts)


def _cell(text: str | None) -> str:
    """Text inside a table: one line, and nothing that Markdown or HTML would act on."""
    flat = " ".join((text or "").split())
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*")
