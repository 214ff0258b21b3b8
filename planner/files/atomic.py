"""Files that are either complete or not there, and input files that end."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from planner.errors import InvalidInputError

_KINDS = (
    (stat.S_ISDIR, "is a directory"),
    (stat.S_ISFIFO, "is a pipe"),
    (stat.S_ISCHR, "is a device"),
    (stat.S_ISBLK, "is a device"),
    (stat.S_ISSOCK, "is a socket"),
)


def writable_target(path: Path, *, where: str = "") -> Path:
    """The regular file that writing to `path` creates or replaces: the target of a symbolic link, else `path`.

    Raises InvalidInputError where anything else is there (a directory, a device, a pipe, a link to nothing), and
    where the directory is missing or the place may not be written. `where` names the place in messages.
    """
    name = where or str(path)
    if "\0" in name:
        raise InvalidInputError("is not a usable file name", where=repr(name[:_SHOWN_LENGTH]))
    try:
        target = _followed(path, name)
        if target.exists():
            _check_regular(target.stat().st_mode, name, "a file name")
            if not os.access(target, os.W_OK):
                raise InvalidInputError("may not be written", where=name, accepted="another file name")
        elif not target.parent.is_dir():
            raise InvalidInputError(f"directory {str(target.parent)!r} does not exist", where=name)
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise InvalidInputError(f"directory {str(target.parent)!r} may not be written", where=name)
    except (OSError, RuntimeError) as error:
        # RuntimeError: links that lead in a circle, before Python 3.13.
        raise InvalidInputError(f"cannot be written: {_reason(error)}", where=name[:_SHOWN_LENGTH]) from None
    return target


def write_atomic(path: Path, content: bytes) -> None:
    """Writes `content` to a temporary file beside `path` and renames it, so that no reader sees a part of it.

    A symbolic link keeps pointing at its target, which is what is replaced; an existing file keeps its mode.
    Raises InvalidInputError when the place cannot be written; then nothing is left behind.
    """
    target = writable_target(path)
    temporary: Path | None = None
    try:
        # mkstemp makes private files; a plan is shared like any other file that the user creates.
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_umask()
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".rlplan-", suffix=".tmp")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(mode)
        temporary.replace(target)
    except OSError as error:
        _remove(temporary)
        raise InvalidInputError(f"cannot be written: {error.strerror}", where=str(path)[:_SHOWN_LENGTH]) from None
    except BaseException:
        _remove(temporary)
        raise


def read_limited(path: Path, max_bytes: int, *, kind: str) -> str:
    """The UTF-8 text of a regular file of at most `max_bytes`; raises InvalidInputError otherwise, or if it is empty.

    What is no regular file is refused before it is opened: reading a pipe or a device may never end.
    """
    where = str(path)[:_SHOWN_LENGTH]
    try:
        status = path.stat()
        _check_regular(status.st_mode, where, f"a {kind}")
        if status.st_size > max_bytes:
            raise _too_large(max_bytes, where, kind)
        with path.open("rb") as stream:
            content = stream.read(max_bytes + 1)
    except FileNotFoundError:
        raise InvalidInputError("does not exist", where=where, accepted=f"a {kind}") from None
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error.strerror}", where=where) from None
    except ValueError:
        raise InvalidInputError("is not a usable file name", where=repr(where)) from None
    if len(content) > max_bytes:
        raise _too_large(max_bytes, where, kind)
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


def check_readable(path: Path, accepted: str) -> None:
    """Raises InvalidInputError unless `path` is a regular file: reading a pipe or a device may never end."""
    where = str(path)[:_SHOWN_LENGTH]
    try:
        _check_regular(path.stat().st_mode, where, accepted)
    except FileNotFoundError:
        raise InvalidInputError("does not exist", where=where, accepted=accepted) from None
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error.strerror}", where=where) from None
    except ValueError:
        raise InvalidInputError("is not a usable file name", where=repr(where)) from None


_SHOWN_LENGTH = 200


def _followed(path: Path, name: str) -> Path:
    if not path.is_symlink():
        return path
    target = path.resolve()
    if not target.exists():
        raise InvalidInputError("is a symbolic link to nothing", where=name, accepted="a file name")
    return target


def _check_regular(mode: int, where: str, accepted: str) -> None:
    if not stat.S_ISREG(mode):
        problem = next((words for is_kind, words in _KINDS if is_kind(mode)), "is no regular file")
        raise InvalidInputError(problem, where=where, accepted=accepted)


def _too_large(max_bytes: int, where: str, kind: str) -> InvalidInputError:
    return InvalidInputError(f"is larger than {max_bytes // 2**20} MiB", where=where, accepted=f"a {kind}")


def _reason(error: OSError | RuntimeError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "symbolic links lead in a circle"


def _remove(temporary: Path | None) -> None:
    if temporary is not None:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
