"""Points per second of `rlplan budget`, against separate `rlplan plan` processes: `python -m benchmarks.sweep`.

A sweep of 1,000 points (GRPO on Qwen3-32B: 4 GPU types x 25 sizes x 10 mean responses) is run with one and with two
workers. Of its points, some that are drawn at random are planned by processes of their own; their mean time is
extrapolated to all points, and each must have found the plan of the sweep. Beside wall seconds stand those of the CPU,
which a busy machine does not stretch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

from planner.domain.budget import Point, Row
from planner.files.spec import WorkloadSpec
from planner.sweep.request import PreparedSweep, SweepOptions, prepare
from planner.sweep.service import run_sweep

MODEL, ALGORITHM = "qwen3-32b", "grpo"
TYPES = "h100,h200,b200,gb200"
SIZES = "16..400:16"
LENGTHS = "500,1000,1500,2000,2500,3000,3500,4000,5000,6000"
NUM_SEPARATE = 20
TARGET_RATIO = 20.0
SAME_RATIO = 1e-9
"""Times of one plan in two processes; both are sums of the same floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Separate:
    """One `rlplan plan` process: its wall and CPU seconds, and the iteration that it found."""

    point: Point
    wall_s: float
    cpu_s: float
    time_s: float | None


def plan_alone(point: Point) -> Separate:
    """Plans a point as a user would without a sweep."""
    command = [
        sys.executable, "-m", "planner", "plan", MODEL, "--algorithm", ALGORITHM, "--json",
        "--gpus", f"{point.num_gpus}x{point.kind}", "--response-mean", f"{point.response_mean_tokens:g}",
    ]  # fmt: skip
    start, cpu_start_s = time.perf_counter(), used_cpu_s()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    wall_s, cpu_s = time.perf_counter() - start, used_cpu_s() - cpu_start_s
    if done.returncode == 3:
        return Separate(point=point, wall_s=wall_s, cpu_s=cpu_s, time_s=None)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return Separate(point=point, wall_s=wall_s, cpu_s=cpu_s, time_s=json.loads(done.stdout)["iteration"]["time_s"])


def used_cpu_s() -> float:
    """CPU seconds of this process and of those that it started and that have ended."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def timed(prepared: PreparedSweep, num_workers: int) -> tuple[float, float, tuple[Row, ...]]:
    """Wall and CPU seconds of a whole sweep, start of the workers included, and its rows."""
    start, cpu_start_s = time.perf_counter(), used_cpu_s()
    finished = run_sweep(prepared, num_workers=num_workers)
    return time.perf_counter() - start, used_cpu_s() - cpu_start_s, finished.sweep.rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--lengths", default=LENGTHS)
    parser.add_argument("--separate", type=int, default=NUM_SEPARATE, help="plans in processes of their own")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    spec = WorkloadSpec(model=MODEL, algorithm=ALGORITHM)
    prepared = prepare(spec, SweepOptions(sizes=options.sizes, types=TYPES, response_means=options.lengths))
    num_points = prepared.head.num_points
    print(f"{num_points:,} points, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}", flush=True)

    drawn = random.Random(options.seed).sample([task.point for task in prepared.tasks], options.separate)
    alone = [plan_alone(point) for point in drawn]
    mean_s = statistics.fmean(item.wall_s for item in alone)
    mean_cpu_s = statistics.fmean(item.cpu_s for item in alone)
    print(
        f"separate `rlplan plan` processes, mean of {len(alone)}: {mean_s:.2f} s, {mean_cpu_s:.2f} s of CPU; "
        f"{1 / mean_s:.2f} points/s",
        flush=True,
    )

    rows: tuple[Row, ...] = ()
    for num_workers in (1, 2):
        seconds, cpu_s, found = timed(prepared, num_workers)
        ratio = mean_s * num_points / seconds
        verdict = "met" if ratio >= TARGET_RATIO else "MISSED"
        print(
            f"{num_workers} worker{'s' * (num_workers > 1)}: {seconds:.1f} s, {cpu_s:.1f} s of CPU; "
            f"{num_points / seconds:.1f} points/s, {ratio:.1f} x separate processes (target {TARGET_RATIO:g} x: "
            f"{verdict}), {mean_cpu_s * num_points / cpu_s:.1f} x by CPU",
            flush=True,
        )
        if rows and found != rows:
            raise RuntimeError("the rows depend on the number of workers")
        rows = found
    times = {row.point: row.time_s for row in rows}
    for item in alone:
        swept = times[item.point]
        same = swept == item.time_s or (
            swept is not None and item.time_s is not None and abs(swept / item.time_s - 1.0) <= SAME_RATIO
        )
        if not same:
            raise RuntimeError(f"{item.point}: {swept} s in the sweep, {item.time_s} s alone")
    print(f"the plans of all {len(alone)} separate processes are those of the sweep")


if __name__ == "__main__":
    main()
