"""Files that are either complete or not there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from planner.errors import InvalidInputError


def write_atomic(path: Path, content: bytes) -> None:
    """Writes `content` to a temporary file beside `path` and renames it, so that no reader sees a part of it.

    Raises InvalidInputError when the place cannot be written; then nothing is left behind.
    """
    if path.is_dir():
        raise InvalidInputError("is a directory", where=str(path), accepted="a file name")
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    except OSError as error:
        raise InvalidInputError(f"cannot be written: {error.strerror}", where=str(path)) from None
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes private files; a plan is shared like any other file that the user creates.
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise InvalidInputError(f"cannot be written: {error.strerror}", where=str(path)) from None
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_limited(path: Path, max_bytes: int, *, kind: str) -> str:
    """The UTF-8 text of a file of at most `max_bytes`; raises InvalidInputError otherwise, or if it is empty."""
    where = str(path)
    if path.is_dir():
        raise InvalidInputError("is a directory", where=where, accepted=f"a {kind}")
    try:
        with path.open("rb") as stream:
            content = stream.read(max_bytes + 1)
    except FileNotFoundError:
        raise InvalidInputError("does not exist", where=where, accepted=f"a {kind}") from None
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error.strerror}", where=where) from None
    except ValueError:
        raise InvalidInputError("is not a usable file name", where=repr(where)) from None
    if len(content) > max_bytes:
        raise InvalidInputError(f"is larger than {max_bytes // 2**20} MiB", where=where, accepted=f"a {kind}")
    if not content.strip():
        raise InvalidInputError("is empty", where=where, accepted=f"a {kind}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"byte {error.start} is not UTF-8", where=where, accepted=f"a {kind} in UTF-8"
        ) from None
    if "\0" in text:
        raise InvalidInputError("is a binary file", where=where, accepted=f"a {kind}")
    return text


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
