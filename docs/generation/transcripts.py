"""The output of `examples/*/run.sh`, command by command, as a session at a terminal would show it."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from docs.generation.samples import ROOT, run

EXAMPLES = ROOT / "examples"
_TOLERATED = re.compile(r" \|\| \[ \$\? -eq (\d+) \]$")
"""An exit code that the script expects."""


def example_names() -> tuple[str, ...]:
    """Folders with a script."""
    return tuple(sorted(path.parent.name for path in EXAMPLES.glob("*/run.sh")))


def commands(script: str) -> list[tuple[str, int]]:
    """(command, expected exit code) of each line that runs rlplan."""
    found = []
    for line in script.splitlines():
        if line.startswith("rlplan "):
            match = _TOLERATED.search(line)
            found.append((_TOLERATED.sub("", line), int(match[1]) if match else 0))
    return found


def transcript(name: str) -> str:
    """What the script of an example prints, with its commands; raises RuntimeError for an unexpected exit code."""
    folder = EXAMPLES / name
    parts = []
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        for path in folder.glob("*.yaml"):
            shutil.copy(path, place)
        for command, expected in commands((folder / "run.sh").read_text(encoding="utf-8")):
            done = run(command, place)
            if done.code != expected:
                raise RuntimeError(f"examples/{name}: {command}: exit code {done.code}:\n{done.text}")
            note = f"(exit code {done.code})\n" if done.code else ""
            parts.append(f"$ {command}\n{done.text}{note}")
    return "\n".join(parts)
