"""Engines that never drain: what is submitted to them and when, and how batches come together again.

Groups of responses are submitted while no more than (version + staleness + 1) batches have been. A group is complete
when the last of its responses has its score; a batch is the next complete groups, whichever engines they come from.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial

import simpy

from planner.domain.stages import StageName
from planner.domain.workload import RewardKind
from planner.simulate.engine import Request
from planner.simulate.record import EngineLog
from planner.simulate.rollout import StreamingPool
from planner.simulate.script import Script, divided, requests


@dataclass(slots=True)
class Stream:
    """The streaming engines of a plan, of both groups where two share the rollout."""

    env: simpy.Environment
    script: Script
    logs: dict[StageName, EngineLog]
    """Of each group of engines."""
    on_batch: Callable[[int, list[Request]], None]
    """Called with the number of a batch and its responses when it is complete."""
    note_span: Callable[[StageName, int, float], None]
    """Called with stage, batch and start of a piece of rollout that ends now."""
    pools: dict[StageName, StreamingPool] = field(init=False)
    _left: dict[int, int] = field(default_factory=dict)
    """Responses of a group that have not ended, by group."""
    _members: dict[int, list[Request]] = field(default_factory=dict)
    _finished: list[Request] = field(default_factory=list)
    """Responses of complete groups that no batch has taken."""
    _num_completed: int = 0
    _num_submitted: int = 0
    """Batches of groups submitted."""
    _busy_from_s: dict[StageName, float] = field(default_factory=dict)
    """Since when engines have streamed for the next batch; none for those with nothing to do."""
    _sandboxes: list[float] = field(default_factory=list)
    """When each sandbox is free."""

    def __post_init__(self) -> None:
        self.pools = {
            name: StreamingPool(
                self.env,
                self.script.kernels[name],
                log,
                on_finished=self._response_ended,
                on_busy=partial(self._busy, name),
                rereads_cache=self.script.rereads_cache,
            )
            for name, log in self.logs.items()
        }

    def start(self) -> None:
        for pool in self.pools.values():
            pool.start()
        self.submit(0)

    def submit(self, version: int) -> None:
        """Submits batches of groups as far as the staleness allows with weights of this version."""
        while self._num_submitted < version + self.script.plan.execution.staleness + 1:
            groups = requests(self.script, self._num_submitted)
            self._num_submitted += 1
            for group in groups:
                self._left[group[0].group] = len(group)
            for name, own in divided(self.script, groups).items():
                self.pools[name].submit(own)

    def note_all(self) -> None:
        """A piece of rollout ends on all engines: of the batch that is complete next."""
        for name in self.pools:
            self._note(name)

    def _busy(self, name: StageName, is_busy: bool) -> None:
        self._note(name)
        self._busy_from_s.pop(name, None)
        if is_busy:
            self._busy_from_s[name] = self.env.now

    def _note(self, name: StageName) -> None:
        if name in self._busy_from_s:
            self.note_span(name, self._num_completed, self._busy_from_s[name])
            self._busy_from_s[name] = self.env.now

    # ------------------------------------------------------------------------------------------ responses

    def _response_ended(self, request: Request) -> None:
        reward = self.script.plan.workload.reward
        if reward.kind is not RewardKind.SANDBOX or not reward.latency_s:
            self._response_scored(request)
            return
        if not self._sandboxes:
            self._sandboxes = [0.0] * reward.num_parallel
        scored_s = max(heapq.heappop(self._sandboxes), self.env.now) + reward.latency_s
        heapq.heappush(self._sandboxes, scored_s)
        self.env.process(self._score(request, scored_s))

    def _score(self, request: Request, scored_s: float) -> Generator[simpy.Event, None, None]:
        yield self.env.timeout(scored_s - self.env.now)
        self._response_scored(request)

    def _response_scored(self, request: Request) -> None:
        """A group is complete with its last response; a batch with enough complete groups."""
        self._members.setdefault(request.group, []).append(request)
        self._left[request.group] -= 1
        if self._left[request.group]:
            return
        del self._left[request.group]
        self._finished += self._members.pop(request.group)
        number = self.script.plan.workload.num_generated
        while len(self._finished) >= number:
            taken, self._finished = self._finished[:number], self._finished[number:]
            self.note_all()
            self.on_batch(self._num_completed, taken)
            self._num_completed += 1
