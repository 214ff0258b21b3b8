"""Shares of a list of work at the same time, each in a forked copy of this process.

A fork sees all inputs as they are, so nothing is handed over but results. It is used on Linux only, for work that runs
numpy and nothing else: no streams, locks or threads of the parent are touched.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Item = TypeVar("Item")
Result = TypeVar("Result")

PROCESSES_VARIABLE = "RLPLAN_PROCESSES"
"""Environment variable with the number of processes; 1 for none beside this one."""
MAX_PROCESSES = 4
MAX_DIGITS = 6
"""Longer numbers are ignored like anything else that is no number of processes."""
PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>."""

_is_child = False
"""Whether this process is a fork that works on a share."""


def num_processes() -> int:
    """How many processes may work at the same time: one per core up to a few, but one inside a pool of workers."""
    import multiprocessing

    if not sys.platform.startswith("linux") or multiprocessing.parent_process() is not None or _is_child:
        return 1
    given = os.environ.get(PROCESSES_VARIABLE, "")
    if given.isascii() and given.isdigit() and len(given) <= MAX_DIGITS:
        return max(1, int(given))
    return min(MAX_PROCESSES, len(os.sched_getaffinity(0)))


def in_shares(work: Callable[[Sequence[Item]], Result], items: Sequence[Item], *, least_items: int) -> list[Result]:
    """The results of `work` on consecutive shares of `items`, in order; their number depends on the machine.

    A share has at least `least_items`, which is at least 1. A share whose process dies, meets an error or cannot be
    made is worked on again in this process, which then raises what there is to raise.
    """
    if len(items) < 2 * least_items:
        return [work(items)]
    num = max(1, min(num_processes(), len(items) // least_items))
    bounds = [len(items) * i // num for i in range(num + 1)]
    first, *others = [items[begin:end] for begin, end in pairwise(bounds)]
    forks: list[_Fork[Result]] = []
    try:
        for share in others:
            fork = _fork(work, share)
            if fork is None:
                break
            forks.append(fork)
        results = [work(first)]
        for i, share in enumerate(others):
            found = forks[i].result() if i < len(forks) else None
            results.append(work(share) if found is None else found[0])
    finally:
        for fork in forks:
            fork.end()
    return results


@dataclass(frozen=True, slots=True)
class _Fork(Generic[Result]):
    """A child process and the end of the pipe on which its result comes."""

    pid: int
    reader: Connection

    def result(self) -> tuple[Result] | None:
        """What the child found; None if it ended without."""
        try:
            return (self.reader.recv(),)
        except (EOFError, OSError):
            # OSError: it ended within its answer.
            return None

    def end(self) -> None:
        self.reader.close()
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            # Where this process ignores SIGCHLD, nothing is left of a child that has ended.
            return


def _fork(work: Callable[[Sequence[Item]], Result], share: Sequence[Item]) -> _Fork[Result] | None:
    """A child that works on a share; None where the system has no process or no memory left for one."""
    import multiprocessing

    reader, writer = multiprocessing.Pipe(duplex=False)
    with warnings.catch_warnings():
        # A progress line may run in a thread: the child takes no lock that it could hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        parent, end_with_parent = os.getpid(), _end_with_parent()
        try:
            pid = os.fork()
        except OSError:
            reader.close()
            writer.close()
            return None
    if pid == 0:
        end_with_parent(parent)
        _serve(work, share, writer)
    writer.close()
    return _Fork(pid, reader)


def _end_with_parent() -> Callable[[int], None]:
    """For a child to call with the number of its parent: it then ends with it, however that ends (`kill -9`, memory).

    Looked up by the parent, since a child should import and load nothing. Linux only: prctl(2), PR_SET_PDEATHSIG.
    """
    import ctypes

    prctl = ctypes.CDLL(None).prctl

    def arrange(parent: int) -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            # It ended before the call.
            os._exit(0)

    return arrange


def _serve(work: Callable[[Sequence[Item]], Result], share: Sequence[Item], writer: Connection) -> NoReturn:
    """Life of a child: it leaves by the short way, since streams and exit handlers are the parent's."""
    global _is_child
    try:
        _is_child = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        writer.send(work(share))
    finally:
        os._exit(0)
