"""The stages of successive iterations on a clock: dependencies, device groups, weight versions.

One process per stage and batch. A stage starts when its inputs are there and the arbiter grants its GPUs; the modes
differ in when the rollout of a batch may start:

* synchronous: when everything of the batch before has ended;
* batches: when the rollout before has ended and the weights are at most `staleness` versions behind. A weight sync
  that waits gets the engines before the next rollout, and waits for the running one;
* streaming: there is no such moment. Groups are submitted while no more than (version + staleness + 1) batches have
  begun; a batch is the next complete groups, in the order in which they end. The weight sync pauses the engines.

Where two groups of engines share the rollout, both begin a batch together, with the same weights, and the batch goes on
when both have ended; streaming ones take their shares of what is submitted.

Trainer stages of a batch wait for the weight sync of the batch before: they work with the latest weights.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import simpy

from planner.domain.execution import GATHER_SHARE, GATHERED_LEFT_RATIO, ExecutionMode, Fusion, SchedulingPolicy
from planner.domain.stages import ROLLOUTS, Stage, StageGraph, StageKind, StageName, WorkerName
from planner.domain.strategy import FloatArray
from planner.simulate.arbiter import Arbiter, overlapping
from planner.simulate.assess import followed_s, scored_s
from planner.simulate.engine import Request
from planner.simulate.record import EngineLog, Recording, Span
from planner.simulate.rollout import EnginePool, Gather, Steps, StreamingPool
from planner.simulate.script import Script, divided, requests, verdicts
from planner.simulate.streaming import Stream
from planner.simulate.training import interleaved_stages_s, stage_s

UPDATES = (StageName.ACTOR_UPDATE, StageName.CRITIC_UPDATE)
_PROGRAM_ENDS = (StageName.CRITIC_UPDATE, StageName.ACTOR_UPDATE, StageName.WEIGHT_SYNC)
_TRAINERS = (WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER)


@dataclass(slots=True, kw_only=True, eq=False)
class _Batch:
    index: int
    done: dict[StageName, simpy.Event]
    gathered: simpy.Event
    """The tail of the rollout has been moved to a part of the engines."""
    responses: list[Request]
    parts: dict[StageName, list[Request]]
    """What each part of the rollout generates; empty for engines that stream."""


@dataclass(slots=True)
class Replay:
    """Plays a script: `run` returns what was recorded."""

    script: Script
    env: simpy.Environment = field(default_factory=simpy.Environment)
    recording: Recording = field(default_factory=Recording)
    graph: StageGraph = field(init=False)
    arbiter: Arbiter = field(init=False)
    pools: dict[StageName, EnginePool] = field(init=False, default_factory=dict)
    version: int = 0
    """Weight syncs that have ended."""
    _groups: dict[StageName, tuple[str, ...]] = field(init=False)
    _before: dict[StageName, list[StageName]] = field(init=False)
    _rank: dict[StageName, int] = field(init=False)
    _gatherer: StageName | None = field(init=False)
    _joint: tuple[StageName, ...] = ()
    """Updates that run interleaved in one pipeline."""
    _synced: list[simpy.Event] = field(default_factory=list)
    _ended: simpy.Event = field(init=False)
    _num_claims: int = 0
    _stream: Stream | None = None

    def __post_init__(self) -> None:
        plan = self.script.plan
        self.graph = plan.graph
        self.arbiter = Arbiter(self.env, overlapping(plan.device_groups))
        known = {group.id for group in plan.device_groups}
        self._groups = {item.stage: tuple(g for g in item.device_groups if g in known) for item in plan.schedule}
        self._rank = {item.stage: rank for rank, item in enumerate(plan.schedule)}
        if Fusion.INTRA_STAGE in plan.execution.fusions:
            self._joint = UPDATES
        self._before = self._dependencies()
        self._gatherer = self._first_gatherer()
        self._ended = self.env.event()
        for name, kernels in self.script.kernels.items():
            strategy = plan.placement(name).strategy
            assert strategy is not None and hasattr(strategy, "num_engines")
            log = EngineLog(num_engines=strategy.num_engines)
            self.recording.engines[name] = log
            if name not in ROLLOUTS or plan.execution.mode is not ExecutionMode.STREAMING:
                self.pools[name] = EnginePool(self.env, kernels, log)
        if plan.execution.mode is ExecutionMode.STREAMING:
            self._stream = Stream(
                self.env,
                self.script,
                logs={name: self.recording.engines[name] for name in self._rollouts},
                on_batch=self._take_streamed,
                note_span=self._note_span,
            )

    @property
    def num_batches(self) -> int:
        return self.script.num_warm_up + self.script.num_iterations

    def run(self) -> Recording:
        """Plays all iterations."""
        drive = {
            ExecutionMode.SYNCHRONOUS: self._in_step,
            ExecutionMode.BATCHES: self._ahead,
            ExecutionMode.STREAMING: self._streaming,
        }[self.script.plan.execution.mode]
        self.env.process(drive())
        self.env.run(until=self._ended)
        if self._stream is not None:
            self._stream.note_all()
        return self.recording

    @property
    def _rollouts(self) -> tuple[StageName, ...]:
        """The rollout, or both parts of a split one."""
        return tuple(name for name in ROLLOUTS if self.graph.has_stage(name))

    # ------------------------------------------------------------------------------------------ modes

    def _in_step(self) -> Steps:
        for index in range(self.num_batches):
            batch = self._begin(index)
            yield self.env.all_of(list(batch.done.values()))
            self.recording.iteration_ends_s.append(self.env.now)
        self._ended.succeed()

    def _ahead(self) -> Steps:
        staleness = self.script.plan.execution.staleness
        self.env.process(self._note_syncs())
        for index in range(self.num_batches + staleness + 1):
            if index > staleness:
                yield self._sync_event(index - staleness - 1)
            batch = self._begin(index)
            yield self.env.all_of([batch.done[name] for name in self._rollouts])

    def _streaming(self) -> Steps:
        assert self._stream is not None
        self.env.process(self._note_syncs())
        self._stream.start()
        yield self._ended

    def _note_syncs(self) -> Steps:
        for index in range(self.num_batches):
            yield self._sync_event(index)
            self.recording.iteration_ends_s.append(self.env.now)
        self._ended.succeed()

    def _sync_event(self, index: int) -> simpy.Event:
        while len(self._synced) <= index:
            self._synced.append(self.env.event())
        return self._synced[index]

    # ------------------------------------------------------------------------------------------ stages

    def _begin(self, index: int, streamed: list[Request] | None = None) -> _Batch:
        """Starts the processes of a batch; `streamed` are its responses when the engines stream."""
        done = {stage.name: self.env.event() for stage in self.graph.stages}
        parts: dict[StageName, list[Request]] = {}
        if streamed is None:
            groups = requests(self.script, index)
            parts = {name: [r for group in own for r in group] for name, own in divided(self.script, groups).items()}
        responses = [request for part in parts.values() for request in part] if streamed is None else streamed
        batch = _Batch(index=index, done=done, gathered=self.env.event(), responses=responses, parts=parts)
        for stage in self.graph.stages:
            if streamed is not None and stage.name in ROLLOUTS:
                done[stage.name].succeed()
            elif stage.name not in self._joint:
                self.env.process(self._stage(batch, stage))
        if self._joint:
            self.env.process(self._updates(batch))
        return batch

    def _take_streamed(self, index: int, responses: list[Request]) -> None:
        self._begin(index, responses)

    def _dependencies(self) -> dict[StageName, list[StageName]]:
        """Stages of the same batch that each stage waits for: its inputs, and what the policy puts before it."""
        plan = self.script.plan
        before: dict[StageName, list[StageName]] = {stage.name: [] for stage in self.graph.stages}
        for first, second in self.graph.edges:
            before[second].append(first)
        policy = plan.execution.policy
        if policy is SchedulingPolicy.SEQUENTIAL:
            # Controllers start the critic's update first.
            names = sorted(
                (stage.name for stage in self.graph.stages),
                key=lambda name: _PROGRAM_ENDS.index(name) if name in _PROGRAM_ENDS else -1,
            )
            for first, second in pairwise(names):
                before[second].append(first)
        if policy is SchedulingPolicy.PLANNED:
            for later in plan.schedule:
                for earlier in plan.schedule:
                    if (
                        self._overlap(earlier.stage, later.stage)
                        and self._rank[earlier.stage] < self._rank[later.stage]
                    ):
                        before[later.stage].append(earlier.stage)
        if self._joint:
            inputs = [name for update in self._joint for name in before[update] if name not in self._joint]
            before |= dict.fromkeys(self._joint, inputs)
        return before

    def _stage(self, batch: _Batch, stage: Stage) -> Steps:
        start: float | None = None
        left_ratio = 1.0
        if stage.name is self._gatherer:
            start, left_ratio = yield from self._assess_beside_tail(batch, stage)
        yield self.env.all_of([batch.done[name] for name in self._before[stage.name]])
        if stage.worker in _TRAINERS and batch.index > 0:
            yield self._sync_event(batch.index - 1)
        groups = self._groups[stage.name]
        pauses = self._pauses(stage)
        if pauses:
            engine_groups = {group for name in self._rollouts for group in self._groups[name]}
            groups = tuple(group for group in groups if group not in engine_groups)
        claim = self.arbiter.claim(groups, self._priority(batch, stage))
        yield claim.granted
        start = self.env.now if start is None else start
        for pool in pauses:
            pool.pause()
        if stage.name is self._gatherer:
            yield self.env.timeout(left_ratio * self._trainer_s(batch, stage))
        elif self._follows_rollout(stage):
            start = yield from self._assess(batch, stage)
        else:
            yield from self._work(batch, stage)
        if stage.name is StageName.WEIGHT_SYNC:
            self.version += 1
        for pool in pauses:
            pool.resume(self.version if stage.name is StageName.WEIGHT_SYNC else None)
        self.arbiter.release(claim)
        self._note_span(stage.name, batch.index, start)
        if stage.name is StageName.WEIGHT_SYNC:
            self._sync_event(batch.index).succeed()
            if self._stream is not None:
                self._stream.submit(self.version)
        batch.done[stage.name].succeed()

    def _note_span(self, stage: StageName, batch: int, start_s: float) -> None:
        span = Span(stage=stage, batch=batch, groups=self._groups[stage], start_s=start_s, end_s=self.env.now)
        self.recording.spans.append(span)

    def _pauses(self, stage: Stage) -> list[StreamingPool]:
        """The streaming engines whose GPUs the stage uses."""
        if self._stream is None:
            return []
        return [pool for name, pool in self._stream.pools.items() if self._overlap(stage.name, name)]

    def _priority(self, batch: _Batch, stage: Stage) -> tuple[int, ...]:
        """Older batches first, in the planned order; or in the order of readiness."""
        if self.script.plan.execution.policy is SchedulingPolicy.FIFO:
            self._num_claims += 1
            return (self._num_claims,)
        return (batch.index, self._rank[stage.name])

    def _work(self, batch: _Batch, stage: Stage) -> Steps:
        workload, placement = self.script.plan.workload, self.script.plan.placement(stage.name)
        if stage.name in ROLLOUTS:
            fixed = [term.value for term in placement.time_terms if term.name in ("wake", "switch", "reload")]
            yield self.env.timeout(sum(fixed))
            gather = None
            if self._gatherer is not None and stage.name is StageName.ROLLOUT:
                gather = Gather(left_ratio=GATHERED_LEFT_RATIO, share=GATHER_SHARE, happened=batch.gathered)
            yield from self.pools[stage.name].run_batch(batch.parts[stage.name], self.version, gather)
        elif stage.kind is StageKind.GENERATION:
            yield from self.pools[stage.name].run_batch(verdicts(self.script, batch.responses), self.version)
        elif stage.kind is StageKind.HOST:
            if self._stream is None:
                yield self.env.timeout(scored_s([self.env.now] * len(batch.responses), workload.reward) - self.env.now)
        elif stage.kind is StageKind.TRANSFER:
            yield self.env.timeout(placement.time_s)
        else:
            yield self.env.timeout(self._trainer_s(batch, stage))
        if stage.name is StageName.ACTOR_UPDATE:
            self._note_trained(batch)

    def _updates(self, batch: _Batch) -> Steps:
        """Both updates in one pipeline, when all inputs of both are there; their GPUs are free when both have ended."""
        yield self.env.all_of([batch.done[name] for name in self._before[self._joint[0]]])
        stages = [self.graph.stage(name) for name in self._joint]
        claim = self.arbiter.claim(
            {group for name in self._joint for group in self._groups[name]},
            min(self._priority(batch, stage) for stage in stages),
        )
        yield claim.granted
        start = self.env.now
        rates = [self.script.rates[name] for name in self._joint]
        randoms = [self._random(batch, name) for name in self._joint]
        ends = interleaved_stages_s((rates[0], rates[1]), self._tokens(batch, stages[0]), (randoms[0], randoms[1]))
        for end_s, name in sorted(zip(ends, self._joint, strict=True)):
            yield self.env.timeout(start + end_s - self.env.now)
            self._note_span(name, batch.index, start)
            if name is StageName.ACTOR_UPDATE:
                self._note_trained(batch)
        self.arbiter.release(claim)
        for name in self._joint:
            batch.done[name].succeed()

    def _follows_rollout(self, stage: Stage) -> bool:
        """Whether a stage works on responses as they end, beside the rollout (inter-stage fusion)."""
        return (
            Fusion.INTER_STAGE in self.script.plan.execution.fusions
            and stage.kind in (StageKind.INFERENCE, StageKind.HOST)
            and set(self._before[stage.name]) == set(self._rollouts)
            and not any(self._overlap(stage.name, rollout) for rollout in self._rollouts)
        )

    def _assess(self, batch: _Batch, stage: Stage) -> Generator[simpy.Event, None, float]:
        """What is left when the rollout ends of a stage that took each response as it ended; returns when it began.

        Its GPUs are its own while the rollout runs, so that the work that waits only depends on when responses end.
        """
        reward = self.script.plan.workload.reward
        if stage.kind is StageKind.HOST:
            end_s = scored_s([request.finished_s for request in batch.responses], reward)
            whole_s = scored_s([0.0] * len(batch.responses), reward)
        else:
            whole_s = self._trainer_s(batch, stage)
            end_s = followed_s(self._worked_on(batch, stage), self.script.rates[stage.name])
        yield self.env.timeout(max(end_s - self.env.now, 0.0))
        return max(self.env.now - whole_s, 0.0)

    def _assess_beside_tail(self, batch: _Batch, stage: Stage) -> Generator[simpy.Event, None, tuple[float, float]]:
        """Works on all responses that had ended when the tail was gathered, on the GPUs that this frees.

        Returns when it began, and the share of the work that is left for after the rollout.
        """
        yield batch.gathered
        start = self.env.now
        tokens = [(r.finished_s > 0.0, r.num_tokens) for r in batch.responses]
        left_ratio = sum(number for has_ended, number in tokens if not has_ended) / sum(number for _, number in tokens)
        free_ratio = 1.0 - 1.0 / GATHER_SHARE
        yield self.env.timeout((1.0 - left_ratio) * self._trainer_s(batch, stage) / free_ratio)
        return start, left_ratio

    def _first_gatherer(self) -> StageName | None:
        """The assessor that uses the GPUs which a gathered tail frees: it shares them with the engines, follows the
        rollout directly and is planned to begin before that ends."""
        plan = self.script.plan
        if Fusion.INTER_STAGE not in plan.execution.fusions:
            return None
        planned = {item.stage: item for item in plan.schedule}
        rollout_end_s = planned[StageName.ROLLOUT].end_s
        for stage in self.graph.stages:
            shares = self._overlap(stage.name, StageName.ROLLOUT)
            follows = set(self._before[stage.name]) == set(self._rollouts) and stage.kind is StageKind.INFERENCE
            if shares and follows and planned[stage.name].start_s < rollout_end_s * (1.0 - 1e-9):
                return stage.name
        return None

    def _overlap(self, first: StageName, second: StageName) -> bool:
        """Whether two stages use a GPU in common."""
        return any((a, b) in self.arbiter.overlaps for a in self._groups[first] for b in self._groups[second])

    def _trainer_s(self, batch: _Batch, stage: Stage) -> float:
        return stage_s(self.script.rates[stage.name], self._tokens(batch, stage), self._random(batch, stage.name))

    def _tokens(self, batch: _Batch, stage: Stage) -> FloatArray:
        return np.array([float(r.num_tokens) for r in self._worked_on(batch, stage)])

    def _random(self, batch: _Batch, name: StageName) -> np.random.Generator:
        return np.random.default_rng([self.script.seed, batch.index, 1 + self._rank[name]])

    def _worked_on(self, batch: _Batch, stage: Stage) -> list[Request]:
        """All responses are scored, those that are kept are trained on."""
        workload = self.script.plan.workload
        return batch.responses[: workload.num_generated if stage.name is StageName.REWARD else workload.num_samples]

    def _note_trained(self, batch: _Batch) -> None:
        trained = batch.responses[: self.script.plan.workload.num_samples]
        self.recording.lags += [(batch.index, batch.index - request.version) for request in trained]
        self.recording.num_tokens.append(sum(request.response_tokens for request in trained))
