"""Which program a command really starts: through `torchrun`, `ray job submit`, `srun` and their like."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

from planner.adapters.shell_script.marks import is_known, is_mark

_PYTHON = re.compile(r"python[\d.]*")
_SHELLS = frozenset({"bash", "sh", "zsh"})
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "ray", "verl", "areal", "trl"})
_WRAPPERS = frozenset({
    "env", "nohup", "srun", "mpirun", "mpiexec", "exec", "time", "sudo", "numactl", "nice", "stdbuf", "setsid",
    "timeout", "xvfb-run", "apptainer", "singularity", "docker", "podman", "uv", "poetry", "conda", "mamba", "pixi",
    "nsys", "ncu", "coverage", "ssh", "pdsh", "salloc", "script", "unbuffer", "enroot",
})  # fmt: skip
_FLAGS_WITHOUT_VALUE = frozenset({
    "-u", "-O", "-OO", "-B", "-E", "-I", "-s", "-S", "-v", "-q", "-b", "--standalone", "--no-python", "--no_python",
    "--multi_gpu", "--multi-gpu", "--no-wait", "--use_deepspeed", "--use_fsdp", "--debug", "--quiet",
    "--cpu", "--verbose",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program that the script starts, with its arguments expanded; text may hold marks."""

    words: tuple[str, ...]
    place: str
    environment: tuple[tuple[str, str], ...]
    """Variables that the program sees."""
    is_conditional: bool
    """It is started only under a condition that is not known."""
    heredoc: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerScript:
    """A script that a command runs in a shell of its own: a file or its text."""

    file: str | None
    text: str | None
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A Python program: `target` is a module (`verl.trainer.main_ppo`) or a file (`train.py`)."""

    target: str
    arguments: tuple[str, ...]
    place: str
    environment: tuple[tuple[str, str], ...]
    launcher: tuple[str, ...]
    """What stands before it: `torchrun --nnodes 2`, `ray job submit ...`."""
    is_conditional: bool

    @property
    def name(self) -> str:
        """The target without directories and suffix."""
        return posixpath.basename(self.target).removesuffix(".py")


def inner_script(command: Command) -> InnerScript | None:
    """The script that `bash -c TEXT`, `bash FILE`, `./FILE.sh` or `bash << EOF` runs; None for all other commands."""
    words = list(command.words)
    start = _first(words, lambda word: posixpath.basename(word) in _SHELLS)
    if words and words[0].endswith(".sh") and is_known(words[0]):
        return InnerScript(file=words[0], text=None, arguments=tuple(words[1:]))
    if start is None or (start and posixpath.basename(words[0]) not in _WRAPPERS | {"ray"}):
        return None
    rest = words[start + 1 :]
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if re.fullmatch("-[a-z]*c", option):
            return InnerScript(file=None, text=rest[0], arguments=tuple(rest[2:])) if rest else None
        if option in ("-o", "-O", "--rcfile", "--init-file") and rest:
            rest.pop(0)
    if rest:
        return InnerScript(file=rest[0], text=None, arguments=tuple(rest[1:]))
    if command.heredoc is not None:
        return InnerScript(file=None, text=command.heredoc, arguments=())
    return None


def launch_of(command: Command) -> Launch | None:
    """The Python program that a command starts, None if it starts none."""
    words = list(command.words)
    if not words:
        return None
    found = _python_words(words)
    if found is None:
        return None
    start, target, arguments = found
    return Launch(
        target=target,
        arguments=tuple(arguments),
        place=command.place,
        environment=command.environment,
        launcher=tuple(words[:start]),
        is_conditional=command.is_conditional,
    )


def _first(words: Sequence[str], wanted: object) -> int | None:
    assert callable(wanted)
    return next((index for index, word in enumerate(words) if wanted(word)), None)


def _python_words(words: list[str]) -> tuple[int, str, list[str]] | None:
    """Where the Python target stands, the target, and its arguments."""
    head = posixpath.basename(words[0])
    if is_mark(words[0]) and "-m" in words[1:4]:
        # An interpreter that nobody knows, and a module.
        return _module_or_file(words, 1)
    if head in _WRAPPERS:
        start = _first(words[1:], _is_starter)
        if start is not None:
            inner = _python_words(words[start + 1 :])
            return None if inner is None else (inner[0] + start + 1, inner[1], inner[2])
        return _module_or_file(words, 1) if head == "uv" else None
    if head == "ray":
        if "submit" not in words[:3]:
            return None
        start = words.index("--") + 1 if "--" in words else _first(words, _is_starter)
        if start is None or not words[start:] or posixpath.basename(words[start]) == "ray":
            start = _first(words[3:], lambda w: _PYTHON.fullmatch(posixpath.basename(w)))
            start = None if start is None else start + 3
        inner = None if start is None or start >= len(words) else _python_words(words[start:])
        return None if inner is None or start is None else (inner[0] + start, inner[1], inner[2])
    if _PYTHON.fullmatch(head) or head in ("torchrun", "deepspeed"):
        return _module_or_file(words, 1)
    if head == "accelerate":
        return _module_or_file(words, 2)
    if head in _LAUNCHERS:
        return 1, head, words[1:]
    if re.match(r"[A-Za-z_]\w*=", words[0]) and len(words) > 1:
        inner = _python_words(words[1:])
        return None if inner is None else (inner[0] + 1, inner[1], inner[2])
    return None


def _is_starter(word: str) -> bool:
    """A program that may start Python, by its name or by a path to it; other paths are arguments of the wrapper."""
    directory, name = posixpath.split(word)
    if directory and not directory.endswith("bin"):
        return False
    return bool(_PYTHON.fullmatch(name)) or name in _LAUNCHERS or name in ("uv", "numactl", "env")


def _module_or_file(words: list[str], start: int) -> tuple[int, str, list[str]] | None:
    """After options: `-m module arguments` or `file.py arguments`."""
    position = start
    while position < len(words):
        word = words[position]
        if word in ("-m", "--module") and position + 1 < len(words):
            # `torchrun -m` and `python -m torch.distributed.run` start another target in turn.
            module = words[position + 1]
            if module in ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"):
                return _module_or_file(words, position + 2)
            return position + 1, module, words[position + 2 :]
        if word == "-c" or word == "-":
            return None
        if word.endswith(".py"):
            return position, word, words[position + 1 :]
        if not word.startswith("-") and word != "run" and not _takes_value(words, position):
            return None
        position += 1
    return None


def _takes_value(words: list[str], position: int) -> bool:
    """Whether a word is the value of the option before it."""
    before = words[position - 1]
    return before.startswith("-") and "=" not in before and before not in _FLAGS_WITHOUT_VALUE
