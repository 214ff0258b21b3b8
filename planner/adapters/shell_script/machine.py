"""What a script asks the machine and is known without it: the kind of accelerator, and what Slurm was asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

ACCELERATOR = "accelerator."
"""Given name of the kind of accelerator, `gpu` or `npu`; no variable can have it."""

_IMPORTS_NPU = re.compile(r"\s*import\s+torch_npu\s*;?\s*")
_PYTHON = re.compile(r"(.*/)?python[\d.]*")
PROBES: Mapping[bool, str] = MappingProxyType(
    {True: "succeeds, since --gpus names Ascend NPUs", False: "fails, since --gpus names no Ascend NPUs"}
)

MAX_HEADER_LINES, MAX_HEADER_LINE = 200, 2_000
_OPTION = re.compile(r"\s*--?([\w-]+)(?:[=\s]+([^\s#]+))?")
_DIRECTIVE = re.compile(r"#SBATCH\b(.*)")
_SHORT = {"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "J": "job-name", "p": "partition"}
_VARIABLES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "nodes": ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"),
    "ntasks": ("SLURM_NTASKS",),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "cpus-per-task": ("SLURM_CPUS_PER_TASK",),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "gres": ("SLURM_GPUS_ON_NODE",),
    "job-name": ("SLURM_JOB_NAME",),
    "partition": ("SLURM_JOB_PARTITION",),
})  # fmt: skip
"""Output environment variables of sbatch (its manual) that follow from one option alone."""
_COUNTS = frozenset({"nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gpus-per-node", "gres"})


def probe(words: Sequence[str], accelerator: str | None) -> bool | None:
    """Whether `python -c 'import torch_npu'` succeeds, None for other programs or an unknown accelerator.

    The package needs the drivers of Ascend NPUs, so it is there exactly on machines that have them.
    """
    if accelerator is None or len(words) != 3 or words[1] != "-c":
        return None
    if not _PYTHON.fullmatch(words[0]) or not _IMPORTS_NPU.fullmatch(words[2]):
        return None
    return accelerator == "npu"


def slurm_environment(file: Path) -> dict[str, str]:
    """Variables that `sbatch FILE` sets by the `#SBATCH` lines of the script; empty where it cannot be read."""
    options: dict[str, str] = {}
    for line in _header(file):
        directive = _DIRECTIVE.match(line)
        for option in _OPTION.finditer(directive[1]) if directive is not None else ():
            options[_SHORT.get(option[1], option[1])] = option[2] or ""
    found: dict[str, str] = {}
    for name, variables in _VARIABLES.items():
        value = _value(name, options.get(name, ""))
        if value:
            found.update(dict.fromkeys(variables, value))
    return found


def _header(file: Path) -> list[str]:
    """The comments before the first command, which are all that sbatch looks at."""
    header: list[str] = []
    if not file.is_file():
        return header
    try:
        with file.open(encoding="utf-8", errors="replace") as script:
            while len(header) < MAX_HEADER_LINES:
                line = script.readline(MAX_HEADER_LINE)
                if not line or (line.strip() and not line.startswith("#")):
                    break
                header.append(line)
    except OSError:
        # Who opens the script itself says what is wrong with it.
        return []
    return header


def _value(name: str, text: str) -> str:
    """A single count (`gpu:h100:8` and `h100:8` are 8), or the text of a name; empty for ranges and lists."""
    text = text.strip("\"'")
    if name not in _COUNTS:
        return text
    if name == "gres" and not text.startswith("gpu"):
        return ""
    number = text.rpartition(":")[2]
    return number if number.isascii() and number.isdigit() else ""
