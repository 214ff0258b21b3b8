"""`replay(plan, settings)`: the whole replay of a plan. Read this first, then `iteration` and `engine`."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np

from planner.domain.execution import ExecutionMode, Fusion
from planner.domain.overheads import Overheads
from planner.domain.plan import Placement, Plan, Status
from planner.domain.stages import ROLLOUTS, StageKind, StageName
from planner.domain.strategy import RolloutStrategy
from planner.errors import InfeasibleError, InvalidInputError
from planner.simulate.arbiter import overlapping
from planner.simulate.iteration import UPDATES, Replay
from planner.simulate.kernels import EngineKernels, engine_kernels
from planner.simulate.lengths import Histogram, Lengths
from planner.simulate.record import (
    EngineLog,
    GroupReplay,
    Recording,
    ReplayReport,
    RolloutReplay,
    Span,
    StageReplay,
)
from planner.simulate.script import Script
from planner.simulate.training import TrainerRates, trainer_rates
from planner.simulate.verdict import band_s, spread

MAX_ITERATIONS = 10_000
MAX_GROWTH_FACTOR = 100.0
_WARM_UP = 3
"""Iterations beyond the staleness until overlapping iterations are taken to be in their steady state."""
_TAIL_RATIO = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """How a plan is replayed. Raises InvalidInputError for values out of range."""

    num_iterations: int = 20
    seed: int = 0
    histogram: Histogram | None = None
    """Response lengths in place of the plan's law."""
    growth_factor: float = 1.0
    """Mean response length at the last iteration over that at the first."""
    rereads_cache: bool = True
    """Streaming engines read everything that runs again after a weight sync, instead of going on with old caches."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_iterations <= MAX_ITERATIONS:
            raise InvalidInputError(
                f"{self.num_iterations} iterations", where="--iterations", accepted=f"1 to {MAX_ITERATIONS:,}"
            )
        if self.seed < 0:
            raise InvalidInputError(f"{self.seed} is negative", where="--seed", accepted="0 or more")
        if not isfinite(self.growth_factor) or not 1 / MAX_GROWTH_FACTOR <= self.growth_factor <= MAX_GROWTH_FACTOR:
            raise InvalidInputError(
                f"{self.growth_factor:g}", where="--growth", accepted=f"0.01 to {MAX_GROWTH_FACTOR:g}"
            )


def replay(plan: Plan, overheads: Overheads, settings: ReplaySettings) -> ReplayReport:
    """Plays `settings.num_iterations` iterations of `plan` and compares them with its prediction.

    Raises InfeasibleError for a plan that does not fit, InvalidInputError for one that the replay cannot play.
    """
    if plan.status is Status.INFEASIBLE:
        raise InfeasibleError("the plan does not fit its GPUs, so there is nothing to replay; see rlplan show")
    _check_pipelines(plan)
    script = _script(plan, overheads, settings)
    recording = Replay(script).run()
    return _report(script, recording)


def _check_pipelines(plan: Plan) -> None:
    if Fusion.INTRA_STAGE not in plan.execution.fusions:
        return
    pipelines = {item.strategy.pp for item in plan.placements if item.stage in UPDATES and item.strategy is not None}
    if len(pipelines) != 1:
        raise InvalidInputError(
            f"interleaved updates with {' and '.join(str(pp) for pp in sorted(pipelines))} pipeline ranks",
            where="strategies",
            accepted="the same pp for actor trainer and critic trainer",
        )


def _script(plan: Plan, overheads: Overheads, settings: ReplaySettings) -> Script:
    workload = plan.workload
    kernels: dict[StageName, EngineKernels] = {}
    rates: dict[StageName, TrainerRates] = {}
    for stage in plan.graph.stages:
        if stage.kind is StageKind.GENERATION:
            kernels[stage.name] = _kernels(plan, plan.placement(stage.name), overheads)
        elif stage.kind in (StageKind.INFERENCE, StageKind.TRAINING):
            number = workload.num_generated if stage.name is StageName.REWARD else workload.num_samples
            rates[stage.name] = trainer_rates(plan.placement(stage.name), workload, stage.kind, number)
    is_asynchronous = plan.execution.is_asynchronous
    return Script(
        plan=plan,
        lengths=Lengths(law=workload.response, histogram=settings.histogram, growth_factor=settings.growth_factor),
        kernels=kernels,
        rates=rates,
        seed=settings.seed,
        num_iterations=settings.num_iterations,
        num_warm_up=plan.execution.staleness + _WARM_UP if is_asynchronous else 0,
        rereads_cache=settings.rereads_cache,
    )


def _kernels(plan: Plan, placement: Placement, overheads: Overheads) -> EngineKernels:
    """Kernels of the engines of a stage; the cache is what the plan gives it on each GPU."""
    strategy, memory = placement.strategy, placement.gpu_memory
    assert isinstance(strategy, RolloutStrategy) and memory is not None
    group = next(item for item in plan.device_groups if item.id == placement.device_group)
    workload = plan.workload
    is_rollout = placement.stage in ROLLOUTS
    model = workload.actor if is_rollout else workload.reward.model
    assert model is not None
    longest = workload.max_tokens + (0 if is_rollout else workload.reward.judge_tokens)
    cache_bytes = next((term.value for term in memory.terms if term.name == "kv_cache"), 0.0)
    return engine_kernels(
        model, workload.rollout_precision, strategy, plan.cluster.pool(group.pool).node, overheads, cache_bytes, longest
    )


# ---------------------------------------------------------------------------------------------- report


def _report(script: Script, recording: Recording) -> ReplayReport:
    plan, first = script.plan, script.num_warm_up
    ends = np.concatenate([[0.0], recording.iteration_ends_s])
    iterations = np.diff(ends)[first:].tolist()
    window = (float(ends[first]), float(ends[-1]))
    measured = [span for span in recording.spans if first <= span.batch < first + script.num_iterations]
    lags: dict[int, int] = {}
    for batch, lag in recording.lags:
        if batch >= first:
            lags[lag] = lags.get(lag, 0) + 1
    num_responses = sum(lags.values())
    return ReplayReport(
        predicted_s=plan.time_s,
        iteration_s=spread(iterations),
        iterations_s=tuple(iterations),
        band_s=band_s(iterations),
        num_warm_up=first,
        seed=script.seed,
        stages=tuple(
            StageReplay(
                stage=placement.stage,
                group=placement.device_group,
                planned_s=_planned_s(plan, placement),
                replayed_s=spread(_by_batch(measured, placement.stage)),
            )
            for placement in plan.placements
        ),
        groups=_groups(plan, recording, window),
        rollout=_rollout(script, recording, measured, StageName.ROLLOUT),
        second_rollout=(
            _rollout(script, recording, measured, StageName.SECOND_ROLLOUT) if plan.execution.is_split else None
        ),
        staleness=tuple(sorted(lags.items())),
        mean_response_tokens=sum(recording.num_tokens[first:]) / max(num_responses, 1),
        recording=recording,
    )


def _planned_s(plan: Plan, placement: Placement) -> float:
    """Seconds of a stage on its own, or of both updates where they share one pipeline: from the end of all else."""
    if Fusion.INTRA_STAGE not in plan.execution.fusions or placement.stage not in UPDATES:
        return placement.time_s
    earlier = [item.end_s for item in plan.schedule if item.stage not in (*UPDATES, StageName.WEIGHT_SYNC)]
    return max(item.end_s for item in plan.schedule if item.stage in UPDATES) - max(earlier)


def _by_batch(measured: list[Span], stage: StageName) -> list[float]:
    """Seconds of a stage in each batch; engines that stream work on one in several pieces."""
    seconds: dict[int, float] = {}
    for span in measured:
        if span.stage is stage:
            seconds[span.batch] = seconds.get(span.batch, 0.0) + span.end_s - span.start_s
    return list(seconds.values())


def _groups(plan: Plan, recording: Recording, window: tuple[float, float]) -> tuple[GroupReplay, ...]:
    """Idle shares: the time in which no stage runs on any GPU of the group."""
    overlaps = overlapping(plan.device_groups)
    result = []
    for group in plan.device_groups:
        here = [span for span in recording.spans if any((group.id, other) in overlaps for other in span.groups)]
        busy_s = _covered_s(here, window)
        idle = 1.0 - busy_s / (window[1] - window[0])
        result.append(GroupReplay(group=group.id, num_gpus=group.num_gpus, idle_ratio=max(idle, 0.0)))
    return tuple(result)


def _covered_s(spans: list[Span], window: tuple[float, float]) -> float:
    """Seconds of the window that at least one span covers."""
    covered, reached = 0.0, window[0]
    for span in sorted(spans, key=lambda item: item.start_s):
        start, end = max(span.start_s, reached), min(span.end_s, window[1])
        if end > start:
            covered += end - start
            reached = end
    return covered


def running_curve(log: EngineLog) -> tuple[np.ndarray, np.ndarray]:
    """(times, sequences that run from then on) of all engines together, both of shape (num_changes,)."""
    if not log.changes:
        return np.zeros(1), np.zeros(1)
    times, changes = np.array(log.changes).T
    order = np.lexsort((changes, times))
    times, running = times[order], np.cumsum(changes[order])
    last = np.append(times[1:] > times[:-1], True)
    return times[last], running[last]


def _rollout(script: Script, recording: Recording, measured: list[Span], stage: StageName) -> RolloutReplay:
    log = recording.engines[stage]
    times, running = running_curve(log)
    streams = script.plan.execution.mode is ExecutionMode.STREAMING
    spans = [span for span in measured if span.stage is stage]
    tails = [] if streams else [_tail_s(times, running, span) for span in spans]
    whole = [span for span in recording.spans if span.stage is stage]
    seconds = float(times[-1] - times[0]) if streams else sum(span.end_s - span.start_s for span in whole)
    areas = float(np.sum(running[:-1] * np.diff(times)))
    return RolloutReplay(
        tail_s=spread(tails) if tails else None,
        idle_engine_ratio=max(1.0 - log.busy_s / (seconds * log.num_engines), 0.0),
        num_preempted=log.num_preempted,
        mean_running=areas / seconds,
    )


def _tail_s(times: np.ndarray, running: np.ndarray, span: Span) -> float:
    """From when fewer than a tenth of the most sequences of this rollout run until it ends."""
    low, high = np.searchsorted(times, span.start_s), np.searchsorted(times, span.end_s, side="right")
    if high <= low:
        return 0.0
    here = running[low:high]
    many = np.flatnonzero(here >= _TAIL_RATIO * here.max())
    after = low + int(many[-1]) + 1
    return max(span.end_s - float(times[after]), 0.0) if after < len(times) else 0.0
