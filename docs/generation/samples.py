"""Real output in pages: the block after `<!-- run: COMMAND -->` is what the command prints.

    <!-- run: rlplan plan qwen3-8b --gpus 8xh100 -o plan.json; show: top, Stages -->

`show` chooses sections of a report by their titles (`top` is what stands before the first one); others become `...`.
`run: python` runs the ```python block before it. Commands of a page run one after the other in one directory.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIDTH = 100
LIMIT_S = 600
PYTHON = "python"
_SAMPLE = re.compile(
    r"<!-- run: (?P<command>[^\n]*?)(?:; show: (?P<show>[^\n]*?))? -->\n```[a-z]*\n(?:(?!```)[^\n]*\n)*```(?=\n|$)"
)
_PYTHON = re.compile(r"```python\n(.*?)\n```", re.DOTALL)
_RUN_ROW = re.compile(r"^  run  +\d.*$\n?", re.MULTILINE)
"""Wall seconds and memory of one run: another one prints others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a command printed, errors included, and how it ended."""

    text: str
    code: int


def renewed(page: str, *, root: Path = ROOT) -> str:
    """The page with the output of all its commands as it is now. Raises RuntimeError for a command that is a fault."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "examples").symlink_to(root / "examples")
        made, last = [], 0
        for match in _SAMPLE.finditer(page):
            made += [page[last : match.start()], _renewed(match, page[: match.start()], place)]
            last = match.end()
        return "".join([*made, page[last:]])


def _renewed(match: re.Match[str], before: str, place: Path) -> str:
    command, show = match["command"].strip(), match["show"]
    marker = match[0].split("\n", 1)[0]
    if command == PYTHON:
        text = python_output(_PYTHON.findall(before)[-1], place)
        return f"{marker}\n```\n{shown(text, show)}\n```"
    text = run(command, place).text
    return f"{marker}\n```\n$ {command}\n{shown(text, show)}\n```"


def run(command: str, place: Path) -> Ran:
    """Runs `rlplan ...` in a directory; raises RuntimeError for another command, or for a fault of rlplan."""
    words = shlex.split(command)
    if words[0] != "rlplan":
        raise RuntimeError(f"only rlplan is run, not {words[0]!r}")
    return _process([sys.executable, "-m", "planner", *words[1:]], place, command)


def python_output(code: str, place: Path) -> str:
    """What a piece of Python prints; raises RuntimeError when it fails."""
    done = _process([sys.executable, "-c", code], place, "the code of a page")
    if done.code:
        raise RuntimeError(f"the code of a page failed:\n{done.text}")
    return done.text


def _process(words: list[str], place: Path, what: str) -> Ran:
    environment = {**os.environ, "COLUMNS": str(WIDTH), "NO_COLOR": "1", "PYTHONPATH": str(ROOT), "RLPLAN_DEBUG": ""}
    done = subprocess.run(
        words, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        timeout=LIMIT_S,
    )  # fmt: skip
    if done.returncode == 1 and words[1] == "-m":
        raise RuntimeError(f"{what}: {done.stdout[-2000:]}")
    return Ran(text=_RUN_ROW.sub("", done.stdout), code=done.returncode)


def shown(text: str, show: str | None) -> str:
    """The chosen sections of a report, all of it without a choice."""
    if show is None:
        return text.strip("\n")
    wanted = [title.strip() for title in show.split(",")]
    found: set[str] = set()
    parts: list[str] = []
    for title, body in sections(text):
        chosen = next((name for name in wanted if title.startswith(name)), None)
        if chosen is not None:
            found.add(chosen)
            parts.append(body)
        elif not parts or parts[-1] != "...":
            parts.append("...")
    missing = set(wanted) - found
    if missing:
        raise RuntimeError(f"no section {', '.join(sorted(missing))} in:\n{text[:2000]}")
    return "\n\n".join(parts)


def sections(text: str) -> list[tuple[str, str]]:
    """(title, text with the title) of each section; titles stand alone above indented lines."""
    result: list[tuple[str, list[str]]] = [("top", [])]
    lines = text.strip("\n").split("\n")
    for number, line in enumerate(lines):
        follows_gap = number > 0 and not lines[number - 1].strip()
        is_title = follows_gap and line[:1].strip() != "" and lines[number + 1 : number + 2] != []
        if is_title and lines[number + 1].startswith("  "):
            result.append((line, []))
        result[-1][1].append(line)
    return [(title, "\n".join(body).strip("\n")) for title, body in result]
