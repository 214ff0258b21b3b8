"""Shares of work in forked processes."""

from __future__ import annotations

import os
import select
import signal
import struct
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from planner.files.workload import WorkloadSpec, build_request
from planner.pipeline import make_plan
from planner.search import parallel
from planner.search.parallel import PROCESSES_VARIABLE, in_shares, num_processes

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks are used on Linux only")


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROCESSES_VARIABLE, "4")


def squares(items: Sequence[int]) -> tuple[int, list[int]]:
    return os.getpid(), [item**2 for item in items]


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize(("num", "least", "expected"), [(20, 1, 4), (20, 7, 2), (5, 5, 1), (1, 1, 1), (3, 1, 3)])
def test_shares_come_back_in_order(num: int, least: int, expected: int) -> None:
    found = in_shares(squares, range(num), least_items=least)
    assert [value for _, values in found for value in values] == [item**2 for item in range(num)]
    assert len({pid for pid, _ in found}) == len(found) == expected
    assert found[0][0] == os.getpid()


@pytest.mark.usefixtures("four")
def test_large_results_come_back_whole() -> None:
    found = in_shares(lambda items: np.full(2_000_000, float(items[0])), range(4), least_items=1)
    assert [float(values.min()) for values in found] == [float(values.max()) for values in found] == [0, 1, 2, 3]


@pytest.mark.usefixtures("four")
def test_a_share_whose_process_dies_is_worked_on_again() -> None:
    parent = os.getpid()

    def fragile(items: Sequence[int]) -> int:
        if os.getpid() != parent and 3 in items:
            os.kill(os.getpid(), signal.SIGKILL)
        return sum(items)

    assert sum(in_shares(fragile, range(8), least_items=2)) == sum(range(8))


@pytest.mark.usefixtures("four")
def test_a_share_whose_process_dies_within_its_answer_is_worked_on_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def half_an_answer(work: object, share: object, writer: Connection) -> None:
        os.write(writer.fileno(), struct.pack("!i", 1000) + bytes(10))
        os._exit(0)

    monkeypatch.setattr(parallel, "_serve", half_an_answer)
    assert sum(in_shares(lambda items: sum(items), range(8), least_items=2)) == sum(range(8))


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize("num_forks", [0, 1])
def test_shares_for_which_there_is_no_process_left(monkeypatch: pytest.MonkeyPatch, num_forks: int) -> None:
    left, fork = [1] * num_forks, os.fork

    def scarce() -> int:
        if not left:
            raise BlockingIOError("no process left")
        left.pop()
        return fork()

    monkeypatch.setattr(os, "fork", scarce)
    before = len(list(Path("/proc/self/fd").iterdir()))
    found = in_shares(squares, range(8), least_items=2)
    assert [value for _, values in found for value in values] == [item**2 for item in range(8)]
    assert len({pid for pid, _ in found}) == num_forks + 1
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.usefixtures("four")
def test_children_that_the_system_takes_away() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert sum(in_shares(lambda items: sum(items), range(8), least_items=2)) == sum(range(8))
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize("bad", [0, 7])
def test_an_error_is_the_parents(bad: int) -> None:
    def failing(items: Sequence[int]) -> int:
        if bad in items:
            raise ValueError("as expected")
        return sum(items)

    with pytest.raises(ValueError, match="as expected"):
        in_shares(failing, range(8), least_items=2)
    with pytest.raises(ChildProcessError):
        # No child is left behind.
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.usefixtures("four")
def test_children_end_with_a_parent_that_is_killed() -> None:
    """Whoever holds the other end of the output would else wait for them."""
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        try:
            in_shares(partial(_sleep_after_a_byte, writer), range(8), least_items=2)
        finally:
            os._exit(0)
    os.close(writer)
    try:
        started = sum(len(os.read(reader, 1)) for _ in range(4))
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        # The pipe ends as soon as no child holds it any more.
        is_ended = bool(select.select([reader], [], [], 10)[0])
        assert (started, is_ended) == (4, True)
    finally:
        os.close(reader)


def _sleep_after_a_byte(writer: int, items: Sequence[int]) -> int:
    os.write(writer, b".")
    time.sleep(20)
    return sum(items)


@pytest.mark.usefixtures("four")
def test_a_share_is_not_divided_again() -> None:
    found = in_shares(lambda items: in_shares(squares, items, least_items=1), range(8), least_items=4)
    assert len(found[1]) == 1


def test_workers_of_a_pool_use_one_process() -> None:
    with ProcessPoolExecutor(1) as pool:
        assert pool.submit(num_processes).result() == 1


@pytest.mark.parametrize("value", ["", "none", "-1", "²", "9" * 5000])
def test_a_setting_that_is_no_number_is_ignored(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.delenv(PROCESSES_VARIABLE, raising=False)
    usual = num_processes()
    monkeypatch.setenv(PROCESSES_VARIABLE, value)
    assert num_processes() == usual
    monkeypatch.setenv(PROCESSES_VARIABLE, "1")
    assert num_processes() == 1
    monkeypatch.setattr(parallel.sys, "platform", "darwin")
    assert num_processes() == 1


def test_plans_do_not_depend_on_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    request = build_request(WorkloadSpec(model="qwen3-30b-a3b", gpus="32xh100"))
    plans = []
    for number in ("1", "3"):
        monkeypatch.setenv(PROCESSES_VARIABLE, number)
        plans.append(make_plan(request))
    one, three = plans
    assert one.search == three.search
    assert (one.placements, one.schedule, one.bound) == (three.placements, three.schedule, three.bound)
