"""Several files at once: all of them appear complete, or none does."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from planner.errors import InvalidInputError


def publish(directory: Path, files: Mapping[str, tuple[str, bool]]) -> tuple[Path, ...]:
    """Writes name -> (text, is executable) into `directory`, which is created if needed.

    Everything is written beside the directory first; a new directory then appears by one rename, and in an
    existing one each file is replaced by a complete one. Raises InvalidInputError when that fails, after removing
    what it wrote.
    """
    staging: Path | None = None
    try:
        target = directory.resolve()
        if target.exists() and not target.is_dir():
            raise InvalidInputError("is a file", where=str(directory), accepted="a directory")
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        inner = staging / "files"
        inner.mkdir()
        for name, (text, is_executable) in files.items():
            path = inner / name
            path.write_text(text, encoding="utf-8", newline="\n")
            if is_executable:
                # Whoever may read the script may run it.
                mode = path.stat().st_mode
                path.chmod(mode | ((mode & 0o444) >> 2))
        if target.is_dir():
            for name in files:
                (inner / name).replace(target / name)
        else:
            inner.rename(target)
    except OSError as error:
        raise InvalidInputError(f"cannot be written: {error.strerror}", where=str(directory)) from None
    except ValueError:
        raise InvalidInputError("is not a usable directory name", where=repr(str(directory))) from None
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
    return tuple(directory / name for name in files)
