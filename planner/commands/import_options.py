"""Options of commands that read the configuration of a framework."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from planner import cli_options as opt

Set = Annotated[
    list[str] | None,
    opt.option("--set", metavar="NAME=VALUE", help="a variable of the script, or a key; repeatable"),
]
Root = Annotated[
    Path | None,
    opt.option(
        "--root", metavar="DIRECTORY", help="files below it may be read [that of FILE]", convert=opt.directory_path,
        kind="a directory",
    ),
]  # fmt: skip
Reference = Annotated[
    str | None, opt.option("--model", metavar="MODEL", help="the model, if its path does not name one that is known")
]
