"""Sweeps survive: dead workers, interrupts, kills, full disks; and rows are the same whatever executes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from planner.domain.budget import Point, Row
from planner.domain.plan import Status
from planner.errors import InvalidInputError
from planner.files.spec import WorkloadSpec
from planner.files.sweep import read_sweep
from planner.sweep.lanes import ExecutorKind, ProcessLane, WorkerDied, open_lanes
from planner.sweep.points import Task
from planner.sweep.request import PreparedSweep, SweepOptions, prepare
from planner.sweep.run import run_tasks
from planner.sweep.service import run_sweep

MODEL = "qwen3-0.6b"
COMMAND = [sys.executable, "-m", "planner", "budget", MODEL, "--gpus", "8..64:8", "--types", "h100,h200"]


def prepared_sweep(sizes: str = "8..32", types: str = "h100,h200") -> PreparedSweep:
    return prepare(WorkloadSpec(model=MODEL), SweepOptions(sizes=sizes, types=types))


class FakeLane:
    """Answers at once; dies on the tasks that `dies` names, as often as it says."""

    def __init__(self, dies: dict[Point, int]) -> None:
        self.dies = dies
        self.tasks: list[Task] = []
        self.num_restarts = 0

    def submit(self, task: Task) -> Future[Row]:
        self.tasks.append(task)
        future: Future[Row] = Future()
        if self.dies.get(task.point, 0) > 0:
            self.dies[task.point] -= 1
            future.set_exception(WorkerDied())
        else:
            future.set_result(Row(point=task.point, status=Status.INFEASIBLE, reason="fake"))
        return future

    def restart(self) -> None:
        self.num_restarts += 1

    def close(self) -> None:
        return


def test_the_point_of_a_dead_worker_is_tried_once_more_and_then_reported() -> None:
    tasks = prepared_sweep().tasks
    once, twice = tasks[1].point, tasks[-1].point
    lanes = [FakeLane({once: 1, twice: 2}), FakeLane({once: 1, twice: 2})]
    for lane in lanes:
        lane.dies = lanes[0].dies
    rows: list[Row] = []
    outcome = run_tasks(tasks, lanes, rows.append)
    assert outcome.given_up == (twice,)
    assert {row.point for row in rows} == {task.point for task in tasks} - {twice}
    assert len(rows) == outcome.num_planned == len(tasks) - 1
    assert sum(lane.num_restarts for lane in lanes) == 3


def test_a_group_stays_on_its_lane() -> None:
    tasks = prepared_sweep().tasks
    lanes = [FakeLane({}), FakeLane({})]
    run_tasks(tasks, lanes, lambda row: None)
    groups = [{id(task.group) for task in lane.tasks} for lane in lanes]
    assert all(groups)
    assert not groups[0] & groups[1]


def test_processes_give_the_rows_of_this_process() -> None:
    prepared = prepared_sweep("8..16")
    here = run_sweep(prepared).sweep
    there = run_sweep(prepared, num_workers=2)
    assert there.sweep == here
    assert not there.given_up


def test_a_worker_that_is_killed_is_replaced() -> None:
    prepared = prepared_sweep("8..16", "h100")
    lane = ProcessLane()
    try:
        lane.submit(prepared.tasks[0]).result()
        for pid in list(lane._pool._processes):  # type: ignore[attr-defined]
            os.kill(pid, signal.SIGKILL)
        rows: list[Row] = []
        outcome = run_tasks(prepared.tasks, [lane], rows.append)
    finally:
        lane.close()
    assert not outcome.given_up
    assert len(rows) == len(prepared.tasks)


def test_resume_plans_only_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "sweep.jsonl"
    prepared = prepared_sweep("8..16", "h100")
    whole = run_sweep(prepared, output=file)
    assert whole.num_new == prepared.head.num_points
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]) + lines[-1][:40])
    again = run_sweep(prepared, output=file, resume=True)
    assert again.num_new == 1
    assert again.sweep == whole.sweep == read_sweep(file)
    assert run_sweep(prepared, output=file, resume=True).num_new == 0


def test_other_prices_may_be_given_when_resuming(tmp_path: Path) -> None:
    file = tmp_path / "sweep.jsonl"
    prepared = prepared_sweep("8", "h100")
    run_sweep(prepared, output=file)
    cheaper = prepare(
        WorkloadSpec(model=MODEL, prices=("h100=1",), steps=7), SweepOptions(sizes="8", types="h100")
    )  # fmt: skip
    assert run_sweep(cheaper, output=file, resume=True).num_new == 0
    head = read_sweep(file).head
    price = head.price("h100")
    assert price is not None and price.usd_per_gpu_hour == 1.0
    assert head.rates.num_steps == 7


def test_another_request_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "sweep.jsonl"
    run_sweep(prepared_sweep("8", "h100"), output=file)
    before = file.read_bytes()
    with pytest.raises(InvalidInputError, match="exists"):
        run_sweep(prepared_sweep("8", "h100"), output=file)
    with pytest.raises(InvalidInputError, match=r"another sweep .*sizes: 8 there, 16 now"):
        run_sweep(prepared_sweep("16", "h100"), output=file, resume=True)
    other = prepare(WorkloadSpec(model=MODEL, num_prompts=128), SweepOptions(sizes="8", types="h100"))
    with pytest.raises(InvalidInputError, match="another sweep"):
        run_sweep(other, output=file, resume=True)
    assert file.read_bytes() == before


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60.0
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def num_lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_no_finished_point_is_lost(tmp_path: Path, sent: signal.Signals, workers: str) -> None:
    file = tmp_path / "sweep.jsonl"
    command = [*COMMAND, "--workers", workers, "-o", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: num_lines(file) >= 4, process)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=30)
    kept = {row.point: row for row in read_sweep(file).rows}
    assert len(kept) >= 3
    if sent is signal.SIGINT:
        assert process.returncode == 130
        assert f"{len(kept)} of 16 points are in {file}" in errors
        assert "Traceback" not in errors
    done = subprocess.run([*command, "--resume", "--json"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = {row.point: row for row in read_sweep(file).rows}
    assert len(rows) == 16
    assert all(rows[point] == row for point, row in kept.items())


def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "sweep.jsonl"
    process = subprocess.Popen([*COMMAND, "--workers", "2", "-o", str(file)], stdout=subprocess.DEVNULL)
    wait_for(lambda: num_lines(file) >= 2, process)  # type: ignore[arg-type]
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert children
    process.kill()
    process.wait()
    end = time.monotonic() + 20.0
    while alive := [pid for pid in children if is_running(pid)]:
        assert time.monotonic() < end, alive
        time.sleep(0.05)


def is_running(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    # A limit on the size of files stands for the disk: the system refuses to write more, in the middle of a line.
    file = tmp_path / "sweep.jsonl"
    script = (
        "import resource, signal, sys\n"
        "from planner.cli import run\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))\n"
        f"sys.exit(run({[*COMMAND[3:], '-o', str(file)]!r}))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "takes no more rows" in done.stderr
    assert "--resume" in done.stderr
    assert file.read_bytes().endswith(b"\n")
    rows = read_sweep(file).rows
    assert rows
    done = subprocess.run(
        [*COMMAND, "-o", str(file), "--resume", "--json"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert {row.point: row for row in rows}.items() <= {row.point: row for row in read_sweep(file).rows}.items()


def test_one_sweep_writes_a_file_at_a_time(tmp_path: Path) -> None:
    from planner.files.sweep import ResultsFile

    head = prepared_sweep("8", "h100").head
    with ResultsFile(tmp_path / "a.jsonl", head, resume=False), pytest.raises(InvalidInputError, match="another sweep"):
        ResultsFile(tmp_path / "a.jsonl", head, resume=True)


def test_numbers_of_workers_have_limits() -> None:
    with pytest.raises(InvalidInputError, match="--workers"):
        open_lanes(ExecutorKind.LOCAL, 0)


@pytest.mark.parametrize("kind", [ExecutorKind.RAY, ExecutorKind.DASK])
def test_a_missing_executor_names_what_to_install(kind: ExecutorKind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InvalidInputError, match=rf"pip install 'rlplan\[{kind.value}\]'"):
        open_lanes(kind, 1)


def test_ray_gives_the_rows_of_this_process() -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlplan[ray]'")
    prepared = prepared_sweep("8..16")
    try:
        there = run_sweep(prepared, executor=ExecutorKind.RAY, num_workers=2)
    finally:
        ray.shutdown()
    assert there.sweep == run_sweep(prepared).sweep


def test_a_ray_actor_that_is_killed_is_replaced() -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlplan[ray]'")
    prepared = prepared_sweep("8..16", "h100")
    try:
        (lane,) = open_lanes(ExecutorKind.RAY, 1)
        lane.submit(prepared.tasks[0]).result()
        ray.kill(lane._actor)  # type: ignore[attr-defined]
        outcome = run_tasks(prepared.tasks, [lane], lambda row: None)
    finally:
        ray.shutdown()
    assert outcome.num_planned == len(prepared.tasks)


def test_dask_gives_the_rows_of_this_process() -> None:
    pytest.importorskip("distributed", reason="Dask is not installed: pip install 'rlplan[dask]'")
    prepared = prepared_sweep("8..16")
    there = run_sweep(prepared, executor=ExecutorKind.DASK, num_workers=2)
    assert there.sweep == run_sweep(prepared).sweep


def test_an_error_in_a_worker_ends_the_sweep_and_keeps_rows(tmp_path: Path) -> None:
    prepared = prepared_sweep("8..16", "h100")
    broken = prepared.tasks[-1]
    workload = replace(broken.group.request.workload, lora_rank=-1)
    group = replace(broken.group, request=replace(broken.group.request, workload=workload, cluster=None,
                                                  gpu_type_when_open=broken.group.node))  # fmt: skip
    tasks = (*prepared.tasks[:-1], Task(group=group, num_gpus=broken.num_gpus))
    file = tmp_path / "sweep.jsonl"
    with pytest.raises(AssertionError):
        run_sweep(replace(prepared, tasks=tasks), output=file)
    assert len(read_sweep(file).rows) == len(tasks) - 1
