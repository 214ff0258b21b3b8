"""A replay as a trace for Perfetto or chrome://tracing: JSON in the Trace Event Format.

One process per device group (and one for the host) with a track per stage, and counters of GPU memory and of running
sequences. Times are microseconds since the start of the replay. https://ui.perfetto.dev opens the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from planner.domain.plan import Plan
from planner.domain.stages import StageName
from planner.errors import printable
from planner.simulate.record import Recording, Span
from planner.simulate.replay import running_curve
from planner.units import GIB

Event = dict[str, str | int | float | dict[str, str | int | float]]

_MAX_COUNTER_POINTS = 20_000
_HOST = "host"
_LANES = 1000
"""Thread numbers per stage: spans of a stage that overlap (host stages of several batches) take tracks of their own."""


def trace_text(plan: Plan, recording: Recording) -> str:
    """The trace as JSON text."""
    document = {"displayTimeUnit": "ms", "traceEvents": trace_events(plan, recording)}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"


def trace_events(plan: Plan, recording: Recording) -> list[Event]:
    """All events: names of processes and tracks first, then spans and counters in order of time."""
    processes = {group.id: number for number, group in enumerate(plan.device_groups, 1)}
    processes[_HOST] = len(processes) + 1
    names = [_process_name(plan, group, number) for group, number in processes.items()]
    spans: list[Event] = []
    for group, number in processes.items():
        here = [s for s in recording.spans if group in s.groups or (group == _HOST and not s.groups)]
        if group == _HOST and not any(s.end_s > s.start_s for s in here):
            names = [event for event in names if event["pid"] != number]
            continue
        threads, events = _tracks(here, number)
        names += threads
        spans += events
    counters = [*_memory(plan, recording, processes), *_running(plan, recording, processes)]
    return names + sorted([*spans, *counters], key=lambda event: event["ts"])  # type: ignore[arg-type,return-value]


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _process_name(plan: Plan, group: str, number: int) -> Event:
    found = next((item for item in plan.device_groups if item.id == group), None)
    title = group if found is None else f"{group}: {found.num_gpus} x {found.gpu}"
    return {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": printable(title)}}


def _tracks(spans: list[Span], process: int) -> tuple[list[Event], list[Event]]:
    """(names of tracks, spans) of one process."""
    order = {stage: rank for rank, stage in enumerate(StageName)}
    names: list[Event] = []
    events: list[Event] = []
    free: dict[int, float] = {}
    for span in sorted(spans, key=lambda item: (item.start_s, item.end_s)):
        if span.end_s <= span.start_s:
            continue
        thread = (order[span.stage] + 1) * _LANES
        while free.get(thread, 0.0) > span.start_s + 1e-9:
            thread += 1
        if thread not in free:
            args: dict[str, str | int | float] = {"name": span.stage.value}
            names.append({"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": args})
            index: dict[str, str | int | float] = {"sort_index": thread}
            names.append({"ph": "M", "name": "thread_sort_index", "pid": process, "tid": thread, "args": index})
        free[thread] = span.end_s
        events.append(
            {
                "ph": "X",
                "cat": "stage",
                "name": span.stage.value,
                "pid": process,
                "tid": thread,
                "ts": _us(span.start_s),
                "dur": _us(span.end_s - span.start_s),
                "args": {"batch": span.batch},
            }
        )
    return names, events


def _counter(name: str, process: int, time_s: float, key: str, value: float) -> Event:
    return {"ph": "C", "name": name, "pid": process, "tid": 0, "ts": _us(time_s), "args": {key: value}}


def idle_bytes(plan: Plan, group: str) -> float:
    """GPU memory of a group while nothing runs on it: what the plan says its workers keep.

    A worker that shares its GPUs with none has no idle state in the plan; it keeps its peak.
    """
    known: dict[str, float] = {}
    for placement in plan.placements:
        for term in () if placement.gpu_memory is None else placement.gpu_memory.terms:
            worker = term.name.removeprefix("idle: ")
            if worker != term.name:
                known[worker] = max(known.get(worker, 0.0), term.value)
    residents: dict[str, float] = {}
    for placement in plan.placements:
        if placement.device_group == group and placement.worker is not None and placement.gpu_memory is not None:
            name = placement.worker.value
            residents[name] = known.get(name, max(residents.get(name, 0.0), placement.gpu_memory.peak_bytes))
    return sum(residents.values())


def _memory(plan: Plan, recording: Recording, processes: dict[str, int]) -> Iterable[Event]:
    """GPU memory per device group: the peak of the stage that runs, or what idles."""
    peaks = {
        (item.stage, item.device_group): item.gpu_memory.peak_bytes
        for item in plan.placements
        if item.gpu_memory is not None
    }
    for group in plan.device_groups:
        idle = idle_bytes(plan, group.id)
        changes: list[tuple[float, int, float]] = []
        for span in recording.spans:
            peak = peaks.get((span.stage, group.id))
            if group.id in span.groups and peak is not None and span.end_s > span.start_s:
                changes += [(span.end_s, 0, peak), (span.start_s, 1, peak)]
        active: list[float] = []
        yield _counter("GPU memory", processes[group.id], 0.0, "GiB per GPU", round(idle / GIB, 3))
        for time_s, begins, peak in sorted(changes):
            if begins:
                active.append(peak)
            else:
                active.remove(peak)
            value = max(active, default=idle)
            yield _counter("GPU memory", processes[group.id], time_s, "GiB per GPU", round(value / GIB, 3))


def _running(plan: Plan, recording: Recording, processes: dict[str, int]) -> Iterable[Event]:
    """Running sequences of the engines of each generation stage, thinned to a number that a viewer takes."""
    for stage, log in recording.engines.items():
        process = processes[plan.placement(stage).device_group]
        times, running = running_curve(log)
        every = max(len(times) // _MAX_COUNTER_POINTS, 1)
        for index in sorted({*range(0, len(times), every), len(times) - 1}):
            name = "running sequences" if stage is StageName.ROLLOUT else f"running sequences, {stage.value}"
            yield _counter(name, process, float(times[index]), "sequences", int(running[index]))
