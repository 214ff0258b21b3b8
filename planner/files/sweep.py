"""The results of a sweep: JSON Lines that lose no finished point, and a CSV table for spreadsheets.

The first line is the head, every further line one row, appended and handed to the operating system as soon as its
point is planned. A line that an interruption cut short is dropped by the reader and overwritten by the next one.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from planner.domain.budget import Point, Row, Sweep, SweepHead, run_total
from planner.errors import InvalidInputError, printable
from planner.files.atomic import read_limited, writable_target, write_atomic
from planner.units import HOUR_S

FORMAT_VERSION = 1
MAX_BYTES = 512 * 2**20
KIND = "results file of a sweep"
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""Text that spreadsheets would run as a formula."""

T = TypeVar("T")


class _HeadLine(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: Literal["rlplan-sweep"]
    format_version: Annotated[int, Field(ge=1)]
    head: SweepHead


_ROW: TypeAdapter[Row] = TypeAdapter(Row)


def head_line(head: SweepHead) -> bytes:
    """The first line of a results file."""
    line = _HeadLine(format="rlplan-sweep", format_version=FORMAT_VERSION, head=head)
    return line.model_dump_json().encode() + b"\n"


def row_line(row: Row) -> bytes:
    """One row as a line."""
    return _ROW.dump_json(row) + b"\n"


def read_sweep(path: Path) -> Sweep:
    """The sweep in a results file, rows in the order of their points; a last line without an end is left out.

    Raises InvalidInputError for a file that is no results file, with the line that is wrong.
    """
    # Only what ends with a line feed was written whole.
    text = read_limited(path, MAX_BYTES, kind=KIND)
    whole = text[: text.rfind("\n") + 1]
    where = printable(str(path))[:200]
    lines = whole.split("\n")[:-1]
    if not lines:
        raise InvalidInputError("its first line is not whole", where=where, accepted=f"a {KIND}")
    head = _checked(_HeadLine.model_validate_json, lines[0], f"{where}: line 1")
    if head.format_version > FORMAT_VERSION:
        raise InvalidInputError(
            f"format version {head.format_version} is newer", where=where, accepted=f"versions up to {FORMAT_VERSION}"
        )
    rows: dict[Point, Row] = {}
    for number, line in enumerate(lines[1:], start=2):
        row = _checked(_ROW.validate_json, line, f"{where}: line {number}")
        rows[row.point] = row
    return Sweep(head=head.head, rows=tuple(rows[point] for point in sorted(rows)))


def _checked(read: Callable[[str], T], line: str, where: str) -> T:
    try:
        return read(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        message = f"{place}: {first['msg']}" if place else str(first["msg"])
        raise InvalidInputError(printable(message)[:300], where=where, accepted=f"a line of a {KIND}") from None


class ResultsFile:
    """Appends rows to a results file; one process at a time. Use as a context manager.

    A new file starts with the head; an existing one is only continued with `resume`, and only for the same digest.
    `rows` are those that were there. Raises InvalidInputError where the file cannot be used or takes no more; what
    was appended before stays.
    """

    def __init__(self, path: Path, head: SweepHead, *, resume: bool) -> None:
        self.path = path
        self.rows: tuple[Row, ...] = ()
        self._target = writable_target(path, where=f"--output {path}")
        self._descriptor = -1
        if self._target.exists() and not resume:
            raise InvalidInputError(
                "exists", where=f"--output {path}", accepted="--resume to continue it, or another file name"
            )
        if self._target.exists() and self._target.stat().st_size:
            # The file is replaced as a whole below: who writes it holds the lock of what is there now.
            self._open()
            self._continue(head)
            self.close()
        else:
            write_atomic(self._target, head_line(head))
        self._open()

    def _continue(self, head: SweepHead) -> None:
        sweep = read_sweep(self._target)
        if sweep.head.digest != head.digest:
            self.close()
            raise InvalidInputError(
                f"holds another sweep ({printable(_difference(sweep.head, head))})",
                where=f"--output {self.path}",
                accepted="the same request, or another file name",
            )
        self.rows = sweep.rows
        # Prices, rates and limits may be new; and what an interruption cut short goes.
        write_atomic(self._target, head_line(head) + b"".join(row_line(row) for row in sweep.rows))

    def _open(self) -> None:
        import fcntl

        self._descriptor = os.open(self._target, os.O_WRONLY | os.O_APPEND)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise InvalidInputError("another sweep writes it", where=f"--output {self.path}") from None

    def append(self, row: Row) -> None:
        """Adds a row; it survives the end of this process as soon as this returns."""
        content = row_line(row)
        size = os.fstat(self._descriptor).st_size
        try:
            written = 0
            while written < len(content):
                written += os.write(self._descriptor, content[written:])
        except OSError as error:
            # A part of a line would be dropped by the reader anyway; without it the file is whole.
            os.ftruncate(self._descriptor, size)
            raise InvalidInputError(
                f"takes no more rows: {error.strerror}; what was planned before is in it",
                where=f"--output {self.path}",
                accepted="more space, and then --resume",
            ) from None

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _difference(old: SweepHead, new: SweepHead) -> str:
    """What differs, as far as the heads show it."""
    pairs = (
        ("rlplan", old.version, new.version),
        ("workload", old.title, new.title),
        ("types", ", ".join(old.kinds), ", ".join(new.kinds)),
        ("sizes", _listed(old.sizes), _listed(new.sizes)),
        ("mean responses", _listed(old.response_means), _listed(new.response_means)),
    )
    found = [f"{name}: {before} there, {after} now" for name, before, after in pairs if before != after]
    return "; ".join(found) or "the workload, the hardware or the limits differ"


def _listed(values: Sequence[float]) -> str:
    shown = ", ".join(f"{value:g}" for value in values[:8])
    return shown + ", ..." * (len(values) > 8)


# ---------------------------------------------------------------------------------------------- CSV

CSV_COLUMNS = (
    "type", "gpus", "response_mean_tokens", "status", "iteration_s", "bound_s", "gpus_used", "nodes_used",
    "gpus_billed", "hours", "gpu_hours", "usd", "usd_per_gpu_hour", "price_provider", "price_region", "price_date",
    "price_kind", "iterations_h", "startup_h", "validation_h", "checkpoint_h", "failures_h", "interruptions",
    "checkpoint_every", "execution", "staleness", "groups", "layouts", "reason",
)  # fmt: skip


def csv_text(sweep: Sweep) -> str:
    """All rows with the totals of their runs, as a table for spreadsheets."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for row in sweep.rows:
        writer.writerow([_cell(value) for value in _csv_values(sweep.head, row)])
    return buffer.getvalue()


def write_csv(sweep: Sweep, path: Path) -> None:
    """Writes the table as a whole or not at all."""
    write_atomic(path, csv_text(sweep).encode())


def _csv_values(head: SweepHead, row: Row) -> Iterable[object]:
    point = row.point
    yield from (point.kind, point.num_gpus, point.response_mean_tokens, row.status.value)
    if row.time_s is None:
        yield from [""] * (len(CSV_COLUMNS) - 5)
        yield row.reason
        return
    price = head.price(point.kind)
    run = run_total(row, head.rates, price)
    yield from (row.time_s, row.bound_s, row.num_gpus, row.num_nodes, row.billed_gpus, run.hours, run.gpu_hours)
    yield from ("" if run.usd is None else run.usd, price.usd_per_gpu_hour if price else "")
    yield from (price.provider, price.region, price.date, price.kind) if price else [""] * 4
    yield from (
        seconds / HOUR_S
        for seconds in (run.iterations_s, run.startup_s, run.validation_s, run.checkpoint_s, run.failure_s)
    )
    yield from (run.num_interruptions, run.checkpoint_every, row.execution, row.staleness, row.groups)
    yield from ("; ".join(row.layouts), row.reason)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return str(value)
    text = printable(value)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
