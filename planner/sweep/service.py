"""run_sweep(): plans the points that are still missing and keeps every row that is finished."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from planner.domain.budget import Point, Row, Sweep
from planner.files.sweep import ResultsFile
from planner.sweep.lanes import ExecutorKind, open_lanes
from planner.sweep.request import PreparedSweep
from planner.sweep.run import run_tasks

OnProgress = Callable[[int, int], None]
"""Called with the number of finished points, those of an earlier run included, and of all points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSweep:
    """All rows, and the points that no worker survived."""

    sweep: Sweep
    num_new: int
    given_up: tuple[Point, ...]


def run_sweep(
    prepared: PreparedSweep,
    *,
    output: Path | None = None,
    resume: bool = False,
    executor: ExecutorKind = ExecutorKind.LOCAL,
    num_workers: int | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> FinishedSweep:
    """Plans all points; with `output`, each row is in that file before the next one is waited for.

    Rows are the same whatever executes them. Raises InvalidInputError for a file that cannot be used or an executor
    that is not there; an interrupt (KeyboardInterrupt) ends the workers and leaves the file usable.
    """
    with ExitStack() as stack:
        file = None
        if output is not None:
            file = stack.enter_context(ResultsFile(output, prepared.head, resume=resume))
        rows: dict[Point, Row] = {row.point: row for row in file.rows} if file is not None else {}
        missing = [task for task in prepared.tasks if task.point not in rows]
        num_all = prepared.head.num_points

        def keep(row: Row) -> None:
            if file is not None:
                file.append(row)
            rows[row.point] = row
            on_progress(len(rows), num_all)

        on_progress(len(rows), num_all)
        given_up: tuple[Point, ...] = ()
        num_new = 0
        if missing:
            lanes = open_lanes(executor, min(num_workers, len(missing)) if num_workers else num_workers)
            for lane in lanes:
                stack.callback(lane.close)
            outcome = run_tasks(missing, lanes, keep)
            given_up, num_new = outcome.given_up, outcome.num_planned
    sweep = Sweep(head=prepared.head, rows=tuple(rows[point] for point in sorted(rows)))
    return FinishedSweep(sweep=sweep, num_new=num_new, given_up=given_up)
