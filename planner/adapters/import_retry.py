"""Scripts that end before they start anything because the environment lacks their variables."""

from __future__ import annotations

from dataclasses import replace

from planner.adapters.import_source import Source
from planner.adapters.shell_script import read_script
from planner.adapters.shell_script.marks import mark

MAX_ROUNDS = 8
"""A check of one variable often follows that of another."""


def with_environment(source: Source) -> Source:
    """The source read as if its environment had the variables that it insists on, with values that nobody knows.

    Only for scripts that start nothing without them; all others are returned as they are.
    """
    script = source.script
    if script is None or script.launches or not script.missing:
        return source
    given = dict(source.given)
    for _ in range(MAX_ROUNDS):
        new = [name for name in script.missing if name not in given]
        if not new:
            break
        given.update({name: mark(name) for name in new})
        script = read_script(source.file, given=given, root=source.root)
        if script.launches:
            return replace(source, script=script)
    return source
