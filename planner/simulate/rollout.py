"""A pool of engines on a clock: batches that drain it, or a stream that never does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from math import ceil

import simpy

from planner.simulate.engine import Engine, Phase, Request
from planner.simulate.kernels import EngineKernels
from planner.simulate.record import EngineLog

Steps = Generator[simpy.Event, None, None]


@dataclass(slots=True)
class EnginePool:
    """Engines with equal kernels. `on_finished` is called with each response at the moment when it ends."""

    env: simpy.Environment
    kernels: EngineKernels
    log: EngineLog
    on_finished: Callable[[Request], None]
    engines: list[Engine] = field(init=False)

    def __post_init__(self) -> None:
        self.engines = [Engine(self.kernels) for _ in range(self.log.num_engines)]

    def run_batch(self, requests: list[Request], version: int) -> Steps:
        """Generates all requests. Each engine gets an equal, consecutive part up front, as controllers split a batch,
        so that the members of a group meet on one engine and share its prompt."""
        number = len(self.engines)
        busy = []
        for index, engine in enumerate(self.engines):
            engine.version = version
            engine.waiting.extend(requests[index * len(requests) // number : (index + 1) * len(requests) // number])
            if engine.waiting:
                busy.append(self.env.process(self._drain(engine)))
        yield self.env.all_of(busy)

    def _drain(self, engine: Engine) -> Steps:
        while (phase := begin(engine, self.log)) is not None:
            start = self.env.now
            note_running(self.log, start, phase.num_running)
            yield self.env.timeout(phase.time_s)
            note_running(self.log, self.env.now, -phase.num_running)
            self.log.busy_s += phase.time_s
            for request in engine.end(phase.num_steps):
                self.on_finished(request)


def begin(engine: Engine, log: EngineLog) -> Phase | None:
    """The engine's next phase; preemptions are counted."""
    before = engine.num_preempted
    phase = engine.begin()
    log.num_preempted += engine.num_preempted - before
    return phase


def note_running(log: EngineLog, now_s: float, change: int) -> None:
    log.changes.append((now_s, change))


@dataclass(slots=True)
class StreamingPool(EnginePool):
    """Engines that never drain: groups wait in one queue, and each goes to the engine with the fewest unfinished
    responses as soon as that has room. `pause` stops all engines at the end of their step."""

    queue: deque[list[Request]] = field(default_factory=deque)
    on_busy: Callable[[bool], None] = lambda is_busy: None
    """Called when the first engine gets work and when the last one has none left."""
    rereads_cache: bool = False
    """New weights make caches invalid, so that everything running is read again."""
    _workers: list[simpy.Process] = field(default_factory=list)
    _can_interrupt: list[bool] = field(default_factory=list)
    _woken: list[simpy.Event] = field(default_factory=list)
    _resumed: simpy.Event | None = None
    _num_pauses: int = 0
    _num_open: int = 0
    """Responses submitted that have not ended."""

    def start(self) -> None:
        self._can_interrupt = [False] * len(self.engines)
        self._woken = [self.env.event() for _ in self.engines]
        self._workers = [self.env.process(self._serve(index)) for index in range(len(self.engines))]

    def submit(self, groups: Iterable[list[Request]]) -> None:
        """Queues groups of responses."""
        for group in groups:
            if not self._num_open:
                self.on_busy(True)
            self._num_open += len(group)
            self.queue.append(group)
        self._dispatch()

    def pause(self) -> None:
        """Stops the engines; pauses nest."""
        self._num_pauses += 1
        if self._num_pauses == 1:
            self._resumed = self.env.event()
            for index in range(len(self.engines)):
                self._interrupt(index)

    def resume(self, version: int | None = None) -> None:
        """Lets the engines go on, with new weights where a version is given."""
        if version is not None:
            for engine in self.engines:
                engine.version = version
        self._num_pauses -= 1
        if not self._num_pauses and self._resumed is not None:
            resumed, self._resumed = self._resumed, None
            resumed.succeed()

    def _dispatch(self) -> None:
        touched = set()
        while self.queue:
            index = min(range(len(self.engines)), key=lambda i: self.engines[i].num_unfinished)
            if self.engines[index].num_unfinished >= self.kernels.max_num_seqs:
                break
            self.engines[index].waiting.extend(self.queue.popleft())
            touched.add(index)
        for index in sorted(touched):
            self._interrupt(index)
            if not self._woken[index].triggered:
                self._woken[index].succeed()

    def _interrupt(self, index: int) -> None:
        if self._can_interrupt[index]:
            self._can_interrupt[index] = False
            self._workers[index].interrupt()

    def _serve(self, index: int) -> Steps:
        engine = self.engines[index]
        version = engine.version
        while True:
            if self._resumed is not None:
                yield self._resumed
                continue
            if self.rereads_cache and engine.version != version:
                version = engine.version
                yield self.env.timeout(engine.reread_s())
            phase = begin(engine, self.log)
            if phase is None:
                self._woken[index] = self.env.event()
                yield self._woken[index]
                continue
            yield from self._play(index, phase)

    def _play(self, index: int, phase: Phase) -> Steps:
        """One phase, cut at the end of the step under way when something interrupts it."""
        start, steps = self.env.now, phase.num_steps
        note_running(self.log, start, phase.num_running)
        self._can_interrupt[index] = steps > 1
        try:
            yield self.env.timeout(phase.time_s)
        except simpy.Interrupt:
            step_s = phase.time_s / steps
            steps = min(max(ceil((self.env.now - start) / step_s - 1e-9), 1), steps)
            yield self.env.timeout(max(start + steps * step_s - self.env.now, 0.0))
        self._can_interrupt[index] = False
        note_running(self.log, self.env.now, -phase.num_running)
        self.log.busy_s += self.env.now - start
        ended = self.engines[index].end(steps)
        for request in ended:
            self.on_finished(request)
        self._num_open -= len(ended)
        if ended and not self._num_open:
            self.on_busy(False)
        self._dispatch()
