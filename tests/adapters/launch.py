"""What a generated script would start: it runs with a `python3` that only writes down its arguments."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

RECORDER = '#!/bin/sh\nfor argument in "$@"; do printf \'%s\\0\' "$argument"; done\n'


def recorded_arguments(script: Path, scratch: Path, *extra: str, **environment: str) -> list[str]:
    """Arguments of the script's `python3` command; `scratch` is an empty directory for the recorder."""
    scratch.mkdir(parents=True, exist_ok=True)
    recorder = scratch / "python3"
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    path = f"{scratch}{os.pathsep}/usr/bin{os.pathsep}/bin"
    result = subprocess.run(
        [str(script), *extra], env={"PATH": path, **environment}, capture_output=True, check=True, cwd=scratch
    )
    return result.stdout.decode().split("\0")[:-1]


def overrides(arguments: list[str]) -> dict[str, str]:
    """Hydra overrides by key as written (a leading + included); the last one of a key wins."""
    assert arguments[0] == "-m" and arguments[1].startswith("verl.")
    result: dict[str, str] = {}
    for argument in arguments[2:]:
        key, _, value = argument.partition("=")
        result[key] = value
    return result
