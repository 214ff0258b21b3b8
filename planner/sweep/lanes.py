"""Who plans the points: one lane per worker, which keeps the pricing of its last group.

A lane takes one task at a time and answers with a future of `concurrent.futures`. Lanes exist for this process, for
processes of this machine, and for clusters that run Ray or Dask; `planner.sweep.run` does not know which it uses.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from enum import StrEnum
from typing import Protocol

from planner.domain.budget import Row
from planner.errors import InvalidInputError
from planner.sweep.points import Planner, Task

MAX_WORKERS = 256


class ExecutorKind(StrEnum):
    """Where the workers of a sweep are."""

    LOCAL = "local"
    """This process for one worker, else processes of this machine."""
    RAY = "ray"
    """Actors of the Ray cluster that RAY_ADDRESS names, or of a local one."""
    DASK = "dask"
    """Workers of the Dask cluster that DASK_SCHEDULER_ADDRESS names, or of a local one."""


class WorkerDied(Exception):
    """The process that planned a task has ended: killed, out of memory, or its machine is gone."""


class Lane(Protocol):
    """One worker."""

    def submit(self, task: Task) -> Future[Row]:
        """Starts to plan a task; the future raises WorkerDied where the worker ends before it answers."""

    def restart(self) -> None:
        """A new worker in place of one that died."""

    def close(self) -> None:
        """Ends the worker at once, whatever it does."""


def open_lanes(kind: ExecutorKind, num_workers: int | None) -> list[Lane]:
    """At least one lane. `num_workers` None: one here, all that there are on a Dask cluster, one per CPU with Ray.

    Raises InvalidInputError where the package of the executor is missing or no cluster answers.
    """
    if num_workers is not None and not 1 <= num_workers <= MAX_WORKERS:
        raise InvalidInputError(f"{num_workers} workers", where="--workers", accepted=f"1 to {MAX_WORKERS}")
    if kind is ExecutorKind.RAY:
        from planner.sweep.ray_lanes import ray_lanes

        return ray_lanes(num_workers)
    if kind is ExecutorKind.DASK:
        from planner.sweep.dask_lanes import dask_lanes

        return dask_lanes(num_workers)
    count = num_workers or 1
    return [InlineLane()] if count == 1 else [ProcessLane() for _ in range(count)]


class InlineLane:
    """This process: a task is done when `submit` returns."""

    def __init__(self) -> None:
        self._planner = Planner()

    def submit(self, task: Task) -> Future[Row]:
        future: Future[Row] = Future()
        future.set_result(self._planner.plan(task))
        return future

    def restart(self) -> None:
        self._planner = Planner()

    def close(self) -> None:
        return


class ProcessLane:
    """A process of its own, so that one that dies takes no other with it."""

    def __init__(self) -> None:
        self._pool: Executor = self._new()

    @staticmethod
    def _new() -> ProcessPoolExecutor:
        # A forked copy of a process with threads can hang; a spawned one starts clean everywhere.
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(max_workers=1, mp_context=context, initializer=_start_worker)

    def submit(self, task: Task) -> Future[Row]:
        answer: Future[Row] = Future()
        try:
            asked = self._pool.submit(plan_here, task)
        except BrokenProcessPool:
            answer.set_exception(WorkerDied())
            return answer
        asked.add_done_callback(lambda done: hand_over(done, answer, (BrokenProcessPool,)))
        return answer

    def restart(self) -> None:
        self.close()
        self._pool = self._new()

    def close(self) -> None:
        processes = list((getattr(self._pool, "_processes", None) or {}).values())
        for process in processes:
            process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)


def hand_over(done: Future[Row], answer: Future[Row], deaths: tuple[type[BaseException], ...]) -> None:
    """The outcome of an executor's future as that of a lane."""
    if done.cancelled():
        answer.set_exception(WorkerDied())
        return
    error = done.exception()
    if error is None:
        answer.set_result(done.result())
    else:
        answer.set_exception(WorkerDied() if isinstance(error, deaths) else error)


_planners = threading.local()


def plan_here(task: Task) -> Row:
    """Plans a task with the planner of this thread, which remembers the pricing of the last one."""
    planner: Planner | None = getattr(_planners, "planner", None)
    if planner is None:
        planner = _planners.planner = Planner()
    return planner.plan(task)


def _start_worker() -> None:
    # An interrupt at the terminal reaches every process; the parent alone decides what happens then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for tasks for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
