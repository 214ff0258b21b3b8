"""The trace: what Perfetto and chrome://tracing require of the Trace Event Format, and what it shows."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import lru_cache
from itertools import pairwise

import pytest

from planner.domain.execution import ExecutionMode
from planner.domain.plan import Plan
from planner.domain.stages import StageName
from planner.files.catalog import load_overheads
from planner.report.trace import Event, trace_text
from planner.simulate.replay import ReplaySettings, replay
from tests.unit.simulate.plans import ahead, split_plan, synchronous_plan

PLANS = {
    "synchronous": synchronous_plan,
    "batches": lambda: ahead(split_plan(4), ExecutionMode.BATCHES, 1),
    "streaming": lambda: ahead(split_plan(4), ExecutionMode.STREAMING, 2),
}


@lru_cache(maxsize=8)
def traced(name: str) -> tuple[Plan, tuple[Event, ...]]:
    plan = PLANS[name]()
    report = replay(plan, load_overheads(), ReplaySettings(num_iterations=3))
    return plan, tuple(json.loads(trace_text(plan, report.recording))["traceEvents"])


@pytest.mark.parametrize("name", PLANS)
def test_events_have_what_their_phase_requires(name: str) -> None:
    _, events = traced(name)
    for event in events:
        assert event["ph"] in ("M", "X", "C")
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and isinstance(event["name"], str)
        if event["ph"] != "M":
            assert isinstance(event["ts"], int | float) and event["ts"] >= 0
        if event["ph"] == "X":
            assert isinstance(event["dur"], int | float) and event["dur"] > 0
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())  # type: ignore[union-attr]
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)


@pytest.mark.parametrize("name", PLANS)
def test_every_track_has_a_name_and_no_overlap(name: str) -> None:
    _, events = traced(name)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert tracks and set(tracks) <= named
    for spans in tracks.values():
        assert all(first[1] <= second[0] + 0.01 for first, second in pairwise(spans))


@pytest.mark.parametrize("name", PLANS)
def test_one_process_per_device_group_with_its_counters(name: str) -> None:
    plan, events = traced(name)
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}  # type: ignore[index]
    for group in plan.device_groups:
        assert any(title.startswith(f"{group.id}: {group.num_gpus} x") for title in processes.values())
    by_pid = {title.split(":")[0]: pid for pid, title in processes.items()}
    memory = [e for e in events if e["name"] == "GPU memory"]
    assert {e["pid"] for e in memory} == {by_pid[group.id] for group in plan.device_groups}
    engines = plan.placement(StageName.ROLLOUT)
    assert engines.gpu_memory is not None
    peak = max(e["args"]["GiB per GPU"] for e in memory if e["pid"] == by_pid[engines.device_group])  # type: ignore[index]
    assert peak >= round(engines.gpu_memory.peak_bytes / 2**30, 3)
    running = [e["args"]["sequences"] for e in events if e["name"] == "running sequences"]  # type: ignore[index]
    assert min(running) == 0 if name != "streaming" else min(running) >= 0
    assert max(running) <= engines.strategy.num_engines * engines.strategy.max_num_seqs  # type: ignore[union-attr]
    assert max(running) > 100
