"""Several files at once: all of them appear complete, or none does."""

from __future__ import annotations

import hashlib
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from planner.errors import InvalidInputError

MARK = "SHA-256 of the lines above, as rlplan wrote them: "
MAX_BYTES = 2**20
"""No exported file is larger."""
_DIGEST_LENGTH = 64


def marked(text: str, *, before: str = "# ", after: str = "") -> str:
    """`text`, which ends with a line feed, and a last line by which `publish` knows an export that nobody has changed.

    `before` and `after` make that line a comment in the language of the file, or the last entry of a JSON object.
    """
    return f"{text}{before}{MARK}{_digest(text.encode())}{after}\n"


def publish(directory: Path, files: Mapping[str, tuple[str, bool]]) -> tuple[Path, ...]:
    """Writes name -> (text that is `marked`, is executable) into `directory`, which is created if needed.

    Everything is written beside its place first. A new directory then appears by one rename. An existing one (which
    may be the current directory) stays and gets its files by renames, all of which are undone when one fails; it must
    be empty or hold nothing but unchanged files of an earlier export. Raises InvalidInputError when that is not so or
    a place cannot be written, after removing what it wrote.
    """
    where = str(directory)[:200]
    staging: Path | None = None
    try:
        target = directory.resolve()
        if directory.is_symlink() and not target.exists():
            raise InvalidInputError("is a symbolic link to nothing", where=where, accepted="a directory")
        exists = target.exists()
        if exists:
            _check_directory(target, where, frozenset(files))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=target if exists else target.parent, prefix=".rlplan-"))
        inner = _written(staging / "new", files)
        if exists:
            _exchange(inner, target, staging / "old", tuple(files))
        else:
            inner.rename(target)
    except (OSError, RuntimeError) as error:
        # RuntimeError: symbolic links that lead in a circle, before Python 3.13.
        reason = error.strerror if isinstance(error, OSError) else "symbolic links lead in a circle"
        raise InvalidInputError(f"cannot be written: {reason}", where=where) from None
    except ValueError:
        raise InvalidInputError("is not a usable directory name", where=repr(where)) from None
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
    return tuple(directory / name for name in files)


def _check_directory(target: Path, where: str, names: frozenset[str]) -> None:
    """Refuses anything that an export could destroy."""
    if not target.is_dir():
        kind = "is a file" if target.is_file() else "is no directory"
        raise InvalidInputError(kind, where=where, accepted="a directory")
    found = sorted(target.iterdir())
    foreign = [path.name for path in found if path.name not in names]
    changed = [path.name for path in found if path.name in names and not _is_untouched(path)]
    if foreign or changed:
        parts = (
            [f"holds {', '.join(map(repr, foreign[:3]))}{' and more' if len(foreign) > 3 else ''}"] if foreign else []
        )
        parts += [f"{', '.join(changed)} {'was' if len(changed) == 1 else 'were'} changed"] if changed else []
        raise InvalidInputError(
            " and ".join(parts), where=where, accepted="a new or empty directory, or an export that nobody has changed"
        )


def _is_untouched(path: Path) -> bool:
    """True for a file that `marked` made and nobody has changed."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
        return False
    body, mark, rest = path.read_bytes().rpartition(MARK.encode())
    lines, line_feed, _ = body.rpartition(b"\n")
    # Nothing may follow the mark but the end of its comment.
    digest, end = rest[:_DIGEST_LENGTH], rest[_DIGEST_LENGTH:]
    is_last = end in (b"\n", b" -->\n", b'"}\n')
    return bool(mark) and is_last and digest.decode("ascii", "replace") == _digest(lines + line_feed)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _written(inner: Path, files: Mapping[str, tuple[str, bool]]) -> Path:
    inner.mkdir()
    for name, (text, is_executable) in files.items():
        path = inner / name
        path.write_text(text, encoding="utf-8", newline="\n")
        if is_executable:
            # Whoever may read the script may run it.
            mode = path.stat().st_mode
            path.chmod(mode | ((mode & 0o444) >> 2))
    return inner


def _exchange(inner: Path, target: Path, old: Path, names: tuple[str, ...]) -> None:
    """Moves the new files to their places and earlier ones out of the way; undoes all of it when one move fails."""
    old.mkdir()
    done: list[tuple[Path, Path]] = []
    try:
        for name in names:
            moves = [(inner / name, target / name)]
            if (target / name).exists():
                moves.insert(0, (target / name, old / name))
            for source, goal in moves:
                source.rename(goal)
                done.append((source, goal))
    except BaseException:
        for source, goal in reversed(done):
            goal.rename(source)
        raise
