"""Runs the tasks of a sweep on lanes: groups stay on their lane, a dead worker's point is tried once more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

from planner.domain.budget import Point, Row
from planner.sweep.lanes import Lane, WorkerDied
from planner.sweep.points import Task

MAX_DEATHS = 2
"""A point whose worker died so often is given up and reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run of tasks brought: rows go to the caller one by one; `given_up` are points without one."""

    num_planned: int
    given_up: tuple[Point, ...]


class _Queue:
    """Tasks of all groups; a lane gets the next one of its own group, and another group when that has none left."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        groups: dict[int, deque[Task]] = {}
        for task in tasks:
            groups.setdefault(id(task.group), deque()).append(task)
        # The largest groups first: none of them should be what is waited for at the end.
        self._waiting = deque(sorted(groups.values(), key=len, reverse=True))
        self._own: dict[int, deque[Task]] = {}

    def next(self, lane: int) -> Task | None:
        own = self._own.get(lane)
        if not own:
            if not self._waiting:
                return None
            own = self._own[lane] = self._waiting.popleft()
        return own.popleft()

    def again(self, lane: int, task: Task) -> None:
        self._own.setdefault(lane, deque()).appendleft(task)


def run_tasks(tasks: Sequence[Task], lanes: Sequence[Lane], on_row: Callable[[Row], None]) -> Outcome:
    """Plans every task once; `on_row` gets each row in this thread as soon as it is there.

    What `on_row` or a worker raises ends the run; rows that were handed over are the caller's.
    """
    queue = _Queue(tasks)
    running: dict[Future[Row], tuple[int, Task]] = {}
    idle = deque(range(len(lanes)))
    deaths: dict[Point, int] = {}
    given_up: list[Point] = []
    num_planned = 0
    while True:
        for _ in range(len(idle)):
            lane = idle.popleft()
            task = queue.next(lane)
            if task is not None:
                running[lanes[lane].submit(task)] = lane, task
        if not running:
            break
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            lane, task = running.pop(future)
            idle.append(lane)
            try:
                row = future.result()
            except WorkerDied:
                lanes[lane].restart()
                deaths[task.point] = deaths.get(task.point, 0) + 1
                if deaths[task.point] < MAX_DEATHS:
                    queue.again(lane, task)
                else:
                    given_up.append(task.point)
                continue
            on_row(row)
            num_planned += 1
    return Outcome(num_planned=num_planned, given_up=tuple(sorted(given_up)))
