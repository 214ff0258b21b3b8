"""What commands share: reading a workload, showing progress, delivering a plan, printing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError, printable
from planner.files.spec import WorkloadSpec

if TYPE_CHECKING:
    from rich.console import RenderableType

    from planner.domain.plan import Plan

PROGRESS_AFTER_S = 1.0
DEFAULT_WIDTH = 100
MIN_WIDTH = 60
WORKLOAD_SUFFIXES = (".yaml", ".yml")


def read_workload(file: Path) -> WorkloadSpec:
    from planner.files import workload_file

    return workload_file.read_workload(file)


def check_output(output: Path | None, *inputs: Path | str | None, option: str = "--output") -> None:
    """A place that cannot be written should be known before a search, not after it; nor may it be an input."""
    if output is None:
        return
    from planner.files.atomic import writable_target

    target = writable_target(output, where=f"{option} {output}")
    if any(_is_file(target, Path(item)) for item in inputs if item):
        raise InvalidInputError("is the input itself", where=f"{option} {output}", accepted="another file name")


def input_files(spec: WorkloadSpec) -> tuple[str | None, ...]:
    """What a spec was or will be read from, and the model, which may be the name of a file too."""
    return spec.file, spec.cluster, spec.profile, spec.model


def _is_file(target: Path, other: Path) -> bool:
    try:
        return target.resolve() == other.resolve() or (target.exists() and other.exists() and target.samefile(other))
    except (OSError, ValueError, RuntimeError):
        # The other one is no usable file name, or one that may not be looked at.
        return False


def deliver(made: Plan, output: Path | None, *, as_json: bool) -> None:
    from planner.domain.plan import Status

    if made.status is Status.UNKNOWN:
        raise NoPlanFoundError("the search ended at its time limit without a plan; give a longer --time-limit")
    if output is not None:
        from planner.files.plan import write_plan

        write_plan(made, output)
    print_plan(made, as_json=as_json)
    if output is not None:
        print(f"saved {printable(str(output))}", file=sys.stderr)
    if made.status is Status.INFEASIBLE:
        # Only a fixed configuration is shown although it cannot run: the report says how it fails.
        from planner.report.words import misfits

        raise InfeasibleError("; ".join(misfits(made)) or "the configuration does not fit")


def print_plan(made: Plan, *, as_json: bool, has_pictures: bool = False) -> None:
    if as_json:
        from planner.files.plan import json_output

        sys.stdout.write(json_output(made))
        return
    from planner.report import terminal

    terminal.print_plan(made, sys.stdout, width=width(), has_pictures=has_pictures)


def print_table(renderable: RenderableType) -> None:
    from planner.report.console import print_renderable

    print_renderable(renderable, sys.stdout, width=width())


def width() -> int:
    """Columns for text: those of the terminal up to DEFAULT_WIDTH, or what COLUMNS says."""
    import shutil

    columns = shutil.get_terminal_size(fallback=(DEFAULT_WIDTH, 24)).columns
    if sys.stdout.isatty():
        columns = min(columns, DEFAULT_WIDTH)
    return max(MIN_WIDTH, columns)


def wrapped(text: str) -> str:
    """Lines of `text` broken at the width; what continues a line starts under its second column, if it has one."""
    import re
    import textwrap

    lines: list[str] = []
    for line in text.splitlines():
        lead = re.match(r" *(\S.*? {2,})?", line)
        indent = " " * (lead.end() if lead is not None else 0)
        lines += textwrap.wrap(line, width(), subsequent_indent=indent, break_on_hyphens=False) or [""]
    return "\n".join(lines)


@contextmanager
def progress(what: str) -> Iterator[None]:
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
