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


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """The tail of a batch is moved to a part of the engines, so that the others are free for other work.

    `happened` is triggered when at most `left_ratio` of the responses still run and have been moved to one in `share`
    of the engines, which read again what they did not hold.
    """

    left_ratio: float
    share: int
    happened: simpy.Event


@dataclass(slots=True)
class EnginePool:
    """Engines with equal kernels."""

    env: simpy.Environment
    kernels: EngineKernels
    log: EngineLog
    on_finished: Callable[[Request], None] = lambda request: None
    """Called with each response at the moment when it ends."""
    engines: list[Engine] = field(init=False)
    _workers: list[simpy.Process | None] = field(init=False)
    _can_interrupt: list[bool] = field(init=False)
    _num_left: int = 0
    _num_gathered: int = -1
    """The batch is stopped when so many responses are left; -1 for never."""

    def __post_init__(self) -> None:
        self.engines = [Engine(self.kernels) for _ in range(self.log.num_engines)]
        self._workers = [None] * len(self.engines)
        self._can_interrupt = [False] * len(self.engines)

    # ------------------------------------------------------------------------------------------ batches

    def run_batch(self, requests: list[Request], version: int, gather: Gather | None = None) -> Steps:
        """Generates all requests. Each engine gets an equal, consecutive part up front, as controllers split a batch,
        so that the members of a group meet on one engine and share its prompt."""
        number = len(self.engines)
        for index, engine in enumerate(self.engines):
            engine.version = version
            engine.waiting.extend(requests[index * len(requests) // number : (index + 1) * len(requests) // number])
        self._num_left = len(requests)
        self._num_gathered = -1 if gather is None else int(gather.left_ratio * len(requests))
        yield self.env.all_of([self._started(index) for index in range(number)])
        if gather is None:
            return
        self._num_gathered = -1
        few = max(number // gather.share, 1)
        for engine in self.engines[few:]:
            for request in engine.withdraw():
                min(self.engines[:few], key=lambda item: item.num_unfinished).add(request)
        gather.happened.succeed()
        yield self.env.all_of([self._started(index) for index in range(few)])

    def _started(self, index: int) -> simpy.Process:
        process = self.env.process(self._drain(index))
        self._workers[index] = process
        return process

    def _drain(self, index: int) -> Steps:
        while self._num_left > self._num_gathered and (phase := self._begin(index)) is not None:
            yield from self._play(index, phase)

    def _begin(self, index: int) -> Phase | None:
        """The engine's next phase; preemptions are counted."""
        engine = self.engines[index]
        before = engine.num_preempted
        phase = engine.begin()
        self.log.num_preempted += engine.num_preempted - before
        return phase

    def _play(self, index: int, phase: Phase) -> Steps:
        """One phase, cut at the end of the step under way when something interrupts it."""
        start, steps = self.env.now, phase.num_steps
        self.log.changes.append((start, phase.num_running))
        self._can_interrupt[index] = steps > 1 and not phase.is_reading
        try:
            yield self.env.timeout(phase.time_s)
        except simpy.Interrupt:
            step_s = phase.time_s / steps
            steps = min(max(ceil((self.env.now - start) / step_s - 1e-9), 1), steps)
            yield self.env.timeout(max(start + steps * step_s - self.env.now, 0.0))
        self._can_interrupt[index] = False
        self.log.changes.append((self.env.now, -phase.num_running))
        self.log.busy_s += self.env.now - start
        self._ended(self.engines[index].end(steps))

    def _ended(self, requests: list[Request]) -> None:
        for request in requests:
            request.finished_s = self.env.now
            self.on_finished(request)
        before, self._num_left = self._num_left, self._num_left - len(requests)
        if self._num_left <= self._num_gathered < before:
            for index in range(len(self.engines)):
                self._interrupt(index)

    def _interrupt(self, index: int) -> None:
        worker = self._workers[index]
        if self._can_interrupt[index] and worker is not None:
            self._can_interrupt[index] = False
            worker.interrupt()


@dataclass(slots=True)
class StreamingPool(EnginePool):
    """Engines that never drain: groups wait in one queue, and each goes to the engine with the fewest unfinished
    responses as soon as that has room. `pause` stops all engines at the end of their step."""

    queue: deque[list[Request]] = field(default_factory=deque)
    on_busy: Callable[[bool], None] = lambda is_busy: None
    """Called when the first engine gets work and when the last one has none left."""
    rereads_cache: bool = True
    """New weights make caches invalid, so that everything running is read again."""
    _woken: list[simpy.Event] = field(default_factory=list)
    _resumed: simpy.Event | None = None
    _num_pauses: int = 0

    def start(self) -> None:
        self._woken = [self.env.event() for _ in self.engines]
        self._workers = [self.env.process(self._serve(index)) for index in range(len(self.engines))]

    def submit(self, groups: Iterable[list[Request]]) -> None:
        """Queues groups of responses."""
        for group in groups:
            if not self._num_left:
                self.on_busy(True)
            self._num_left += len(group)
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

    def _serve(self, index: int) -> Steps:
        engine = self.engines[index]
        version = engine.version
        while True:
            if self._resumed is not None:
                yield self._resumed
                continue
            if engine.version != version:
                version = engine.version
                if self.rereads_cache and engine.num_running:
                    yield from self._reread(engine)
            phase = self._begin(index)
            if phase is None:
                self._woken[index] = self.env.event()
                yield self._woken[index]
                continue
            yield from self._play(index, phase)
            self._dispatch()

    def _reread(self, engine: Engine) -> Steps:
        start, running = self.env.now, engine.num_running
        yield self.env.timeout(engine.reread_s())
        self.log.changes += [(start, running), (self.env.now, -running)]
        self.log.busy_s += self.env.now - start

    def _ended(self, requests: list[Request]) -> None:
        # Two-argument form: slots make dataclasses new classes, which the short form does not know.
        EnginePool._ended(self, requests)
        if requests and not self._num_left:
            self.on_busy(False)
