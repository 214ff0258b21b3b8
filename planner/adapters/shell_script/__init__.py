"""Shell scripts read without running them: which Python programs they start, with which arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner.adapters.findings import Finding, Severity
from planner.adapters.shell_script.launches import Command, Launch, launch_of
from planner.adapters.shell_script.machine import ACCELERATOR, slurm_environment
from planner.adapters.shell_script.marks import is_known, is_mark, known_tail, shown, unknowns

__all__ = ["ACCELERATOR", "Launch", "Script", "is_known", "is_mark", "known_tail", "read_script", "shown", "unknowns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a shell script starts. Arguments may hold unknown values: see `unknowns`, `shown` and `is_known`."""

    file: Path
    launches: tuple[Launch, ...]
    """Python programs in the order in which they start; equal ones once."""
    findings: tuple[Finding, ...]
    missing: tuple[str, ...]
    """Variables that nothing sets; where a default stands for them, the default was taken."""
    sources: tuple[tuple[str, str], ...] = ()
    """(name, text) of the files that were read."""

    def place_of(self, start: str, default: str) -> str:
        """Where a word that starts like this stands: the last line that is no comment, or `default`."""
        pattern = re.compile(rf"(?<![\w.-]){re.escape(start)}")
        place = default
        for name, text in self.sources:
            for number, line in enumerate(text.split("\n"), 1):
                if start in line and not line.lstrip().startswith("#") and pattern.search(line):
                    place = f"{name}:{number}"
        return place


def read_script(
    file: Path, *, given: Mapping[str, str] | None = None, arguments: Sequence[str] = (), root: Path | None = None
) -> Script:
    """Evaluates `file` without executing anything and notes what it would start.

    `given` are values of variables (environment, and results of commands that only the run knows), `arguments` are
    $1, $2, ...; files that the script sources are read below `root` (default: its own directory). Raises
    InvalidInputError for a file that cannot be read, that does not end, or that nests too deeply.
    """
    from planner.adapters.shell_script.evaluate import Shell

    shown_directory, file = str(file.parent), file.absolute()
    base = (root or file.parent).resolve()
    known = {**slurm_environment(file), **(given or {})}

    def evaluated(values: list[str] | None) -> Shell:
        shell = Shell(file, base, dict(known), values)
        shell.run_file(file)
        return shell

    shell = evaluated(list(arguments))
    launches = _launches(shell.commands)
    if not launches and not arguments:
        # Scripts that insist on arguments end without them: follow them with arguments that nobody knows.
        again = evaluated(None)
        if _launches(again.commands):
            shell, launches = again, _launches(again.commands)

    def near(place: str) -> str:
        """A place as seen from where the user is."""
        prefix = f"{file.parent}/"
        head = "" if shown_directory == "." else f"{shown_directory}/"
        return head + place.removeprefix(prefix) if place.startswith(prefix) else place

    return Script(
        file=file,
        launches=tuple(replace(launch, place=near(launch.place)) for launch in launches),
        findings=tuple(replace(f, place=near(f.place)) for f in (*shell.findings, *_lost(shell.commands))),
        missing=tuple(shell.missing),
        sources=tuple((near(name), text) for name, text in shell.sources.items()),
    )


def _launches(commands: Sequence[Command]) -> tuple[Launch, ...]:
    found = [launch_of(command) for command in commands]
    unique: dict[tuple[str, tuple[str, ...]], Launch] = {}
    for launch in found:
        if launch is not None:
            unique.setdefault((launch.target, launch.arguments), launch)
    return tuple(unique.values())


def _lost(commands: Sequence[Command]) -> list[Finding]:
    """Arguments that have become commands of their own because a continuation before them is broken."""
    argument = re.compile(r"(\+{0,2}|~)[A-Za-z_][\w]*(\.[\w]+)+=|--?[A-Za-z][\w.-]*(=|$)|\+{1,2}[A-Za-z_]\w*=")
    found = []
    for command in commands:
        if command.words and argument.match(command.words[0]):
            count = len(command.words)
            more = f" and {count - 1} more" if count > 1 else ""
            found.append(
                Finding(
                    place=command.place,
                    severity=Severity.ERROR,
                    message=f"{shown(command.words[0])[:80]}{more}: not part of the launch, since a line before it "
                    "does not continue",
                    remedy="end the line before with a backslash and nothing after it",
                )
            )
    return found
