"""Logged iterations of a run as observations of its configuration.

A run's iterations are taken in order, the first left out as warm-up where there are enough, and gathered into at most
MAX_BLOCKS blocks of medians; every block is priced with its own mean lengths. What a logged duration covers is
expressed in terms of stages (`coverage`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Protocol

import numpy as np

from planner.assembly import Assembled, PlacedStrategy, assemble
from planner.calibration.parameters import Key, Point, node_at, overheads_at
from planner.calibration.source import Observation
from planner.domain.execution import IN_STEP, Execution
from planner.domain.hardware import Cluster
from planner.domain.lengths import FloatArray
from planner.domain.overheads import Overheads
from planner.domain.plan import DeviceGroup, NamedValue, Placement, Plan
from planner.domain.profile import Parameter
from planner.domain.request import FixedWorker
from planner.domain.stages import ROLLOUTS, StageName, WorkerName
from planner.domain.strategy import Offload, TrainerStrategy
from planner.domain.workload import Workload
from planner.errors import InvalidInputError
from planner.files.calibrated import CALIBRATED
from planner.files.run_logs import LogKind, LogRecord, RunLog, Timer
from planner.solving import make_inputs

MAX_BLOCKS = 6
MIN_FOR_WARM_UP = 4
"""Iterations from which on the first one is left out: it compiles, captures graphs and fills caches."""
STAGE_LOG_SD = 0.05
"""What one stage of one configuration may be off even with the right parameters."""
OUTSIDE_LOG_SD = 0.2
"""The same for the rest of an iteration: controller, logging, data."""
MIN_OUTSIDE_RATIO = 0.002
"""A smaller rest is taken as this share of the iteration: rounding, or stages that overlap a little."""
_SERIAL_RATIO = 0.01
_ENGINE_TERMS = frozenset({"wake", "reload"})
OUTSIDE = "outside stages"
ITERATION = "iteration"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """The configuration of a run: what `rlplan estimate` prices."""

    workload: Workload
    cluster: Cluster
    workers: tuple[FixedWorker, ...]
    execution: Execution = IN_STEP

    @property
    def is_colocated(self) -> bool:
        """Whether the rollout engine and the actor trainer share GPUs."""
        synced = [w for w in self.workers if w.worker in (WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER)]
        if len(synced) < 2 or synced[0].pool != synced[1].pool:
            return False
        a, b = synced[0], synced[1]
        return a.first_gpu < b.first_gpu + b.num_gpus and b.first_gpu < a.first_gpu + a.num_gpus


def setup_of(plan: Plan, workers: tuple[FixedWorker, ...], where: str) -> RunSetup:
    """The configuration of a saved plan; InvalidInputError for one that is calibrated already."""
    for item in plan.assumptions:
        if item.what == CALIBRATED:
            raise InvalidInputError(
                f"is {item.value}", where=where,
                accepted="a plan without --profile: a fit starts from the catalog",
            )  # fmt: skip
    return RunSetup(workload=plan.workload, cluster=plan.cluster, workers=workers, execution=plan.execution)


def price_setup(setup: RunSetup, overheads: Overheads) -> Assembled:
    """Stages and schedule of a configuration."""
    inputs = make_inputs(setup.workload, setup.cluster, None, setup.execution, overheads=overheads)
    places = sorted({(item.pool, item.first_gpu, item.num_gpus) for item in setup.workers})
    groups = {place: _group(f"{place[0]}/{index}", place, setup.cluster) for index, place in enumerate(places)}
    placed = [
        PlacedStrategy(
            worker=inputs.graph.worker(item.worker), pool=setup.cluster.pool(item.pool),
            group=groups[item.pool, item.first_gpu, item.num_gpus], strategy=item.strategy,
        )
        for item in setup.workers
    ]  # fmt: skip
    return assemble(placed, inputs, None)


def _group(name: str, place: tuple[str, int, int], cluster: Cluster) -> DeviceGroup:
    pool, first, num = place
    node = cluster.pool(pool).node
    num_nodes = (first + num - 1) // node.gpus_per_node - first // node.gpus_per_node + 1
    return DeviceGroup(id=name, pool=pool, gpu=node.gpu.id, first_gpu=first, num_gpus=num, num_nodes=num_nodes)


# ---------------------------------------------------------------------------------------------- blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Medians over consecutive iterations, and the log deviation of each median."""

    name: str
    seconds: dict[Timer, float]
    log_sd: dict[Timer, float]
    response_tokens: float | None
    prompt_tokens: float | None
    num_iterations: int


def blocks_of(records: Sequence[LogRecord], most: int = MAX_BLOCKS) -> tuple[Block, ...]:
    """At most `most` blocks of a run's iterations, in order; the first iteration is left out where there are enough."""
    used = list(records[1:] if len(records) >= MIN_FOR_WARM_UP else records)
    num = min(most, len(used))
    edges = [round(index * len(used) / num) for index in range(num + 1)]
    return tuple(_block(used[low:high], f"block {index + 1}") for index, (low, high) in enumerate(pairwise(edges)))


def _block(records: Sequence[LogRecord], name: str) -> Block:
    seconds: dict[Timer, float] = {}
    deviation: dict[Timer, float] = {}
    for timer in Timer:
        values = [record.seconds[timer] for record in records if timer in record.seconds]
        # A stage that ran in few iterations only (validation) would be noise in the medians.
        if timer is not Timer.BESIDE and 2 * len(values) > len(records):
            seconds[timer] = median(values)
            deviation[timer] = _median_log_sd(values)
    rest = [_rest(record) for record in records if Timer.ITERATION in record.seconds]
    if rest and Timer.ITERATION in seconds:
        seconds[Timer.ITERATION] = median(rest)
    return Block(
        name=name,
        seconds=seconds,
        log_sd=deviation,
        response_tokens=_median_of([record.response_tokens for record in records]),
        prompt_tokens=_median_of([record.prompt_tokens for record in records]),
        num_iterations=len(records),
    )


def _rest(record: LogRecord) -> float:
    """Seconds of an iteration without validation and checkpoints, where these are inside the logged time.

    Releases differ in that: they are inside if the time beside the stages is long enough for them.
    """
    total = record.seconds[Timer.ITERATION]
    beside = record.seconds.get(Timer.BESIDE, 0.0)
    stages = sum(value for timer, value in record.seconds.items() if timer not in (Timer.ITERATION, Timer.BESIDE))
    return total - beside if total - stages >= beside else total


def _median_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _median_log_sd(values: Sequence[float]) -> float:
    """Deviation of the logarithm of a median, from the median deviation; 0 for one value."""
    positive = [math.log(value) for value in values if value > 0]
    if len(positive) < 2:
        return 0.0
    middle = median(positive)
    return 1.4826 * median(abs(value - middle) for value in positive) * 1.2533 / math.sqrt(len(positive))


# ---------------------------------------------------------------------------------------------- coverage


class Priced(Protocol):
    """What a logged duration is compared with: a plan, or a configuration that was priced again."""

    @property
    def placements(self) -> tuple[Placement, ...]: ...

    @property
    def time_s(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """A logged duration in terms of the priced stages: its label, and the terms by stage that it holds."""

    label: str
    timers: tuple[Timer, ...]
    parts: tuple[tuple[StageName, frozenset[str], frozenset[str]], ...]
    """(stage, only these terms if any are named, but not these)."""

    def terms(self, priced: Priced, controller_s: float) -> tuple[NamedValue, ...]:
        """Seconds by term; the controller's own seconds, which the model books with the actor update, are left out."""
        sums: dict[str, float] = {}
        # The two halves of a split rollout run side by side, and the longer one is what is logged.
        rollouts = [item for item in priced.placements if item.stage in ROLLOUTS]
        longest = max(rollouts, key=lambda item: item.time_s, default=None)
        for item in priced.placements:
            for stage, only, without in self.parts:
                is_it = item is longest if stage is StageName.ROLLOUT else item.stage is stage
                if not is_it:
                    continue
                for term in item.time_terms:
                    if (not only or term.name in only) and term.name not in without:
                        own = controller_s if stage is StageName.ACTOR_UPDATE and term.name == "switch" else 0.0
                        sums[term.name] = sums.get(term.name, 0.0) + term.value - own
        return tuple(NamedValue(name=name, value=value) for name, value in sums.items())

    def seconds(self, priced: Priced, controller_s: float) -> float:
        return math.fsum(term.value for term in self.terms(priced, controller_s))


_NONE: frozenset[str] = frozenset()
_STAGE_OF = {
    Timer.REWARD: StageName.REWARD,
    Timer.REFERENCE: StageName.REFERENCE_LOGPROB,
    Timer.OLD_LOGPROB: StageName.OLD_LOGPROB,
    Timer.VALUES: StageName.CRITIC_VALUE,
    Timer.ACTOR_UPDATE: StageName.ACTOR_UPDATE,
    Timer.CRITIC_UPDATE: StageName.CRITIC_UPDATE,
    Timer.WEIGHT_SYNC: StageName.WEIGHT_SYNC,
}


def coverage(kind: LogKind, timers: frozenset[Timer], setup: RunSetup) -> tuple[Covered, ...]:
    """What the logged durations of a run cover.

    verl's `gen` holds the weight sync of colocated workers where none is logged beside it. NeMo-RL wakes the engine in
    its refit, and has both log-probs in one. An asynchronous trainer logs how long it waits for a rollout, which is not
    how long one takes: frameworks' rollouts are then left out.
    """
    result: list[Covered] = []
    has_refit = Timer.REFIT in timers
    waits = setup.execution.is_asynchronous and kind is not LogKind.TABLE
    if Timer.ROLLOUT in timers and not waits:
        parts = [(StageName.ROLLOUT, _NONE, _ENGINE_TERMS if has_refit else _NONE)]
        label = StageName.ROLLOUT.value
        if kind is LogKind.VERL and Timer.WEIGHT_SYNC not in timers and setup.is_colocated:
            parts.append((StageName.WEIGHT_SYNC, _NONE, _NONE))
            label = f"{label} with {StageName.WEIGHT_SYNC.value}"
        result.append(Covered(label=label, timers=(Timer.ROLLOUT,), parts=tuple(parts)))
    if has_refit:
        refit = ((StageName.WEIGHT_SYNC, _NONE, _NONE), (StageName.ROLLOUT, _ENGINE_TERMS, _NONE))
        result.append(Covered(label="weight sync and wake-up", timers=(Timer.REFIT,), parts=refit))
    if Timer.LOGPROBS in timers:
        both = ((StageName.OLD_LOGPROB, _NONE, _NONE), (StageName.REFERENCE_LOGPROB, _NONE, _NONE))
        result.append(Covered(label="log-probs", timers=(Timer.LOGPROBS,), parts=both))
    for timer, stage in _STAGE_OF.items():
        if timer in timers:
            result.append(Covered(label=stage.value, timers=(timer,), parts=((stage, _NONE, _NONE),)))
    return tuple(result)


def is_serial(priced: Priced) -> bool:
    """Whether stages follow one another, so that what an iteration takes beside them is the controller's."""
    return abs(math.fsum(item.time_s for item in priced.placements) / priced.time_s - 1.0) < _SERIAL_RATIO


def controller_s(workload: Workload, overheads: Overheads) -> float:
    """Seconds of the controller per iteration, outside all stages."""
    losses = overheads.step_losses
    return losses.step_s + losses.sequence_s * workload.num_generated


# ---------------------------------------------------------------------------------------------- the source


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One observation and how it follows from a priced block."""

    observation: Observation
    covered: Covered | None
    """None: the whole iteration."""
    without: tuple[Covered, ...] = ()
    """Stages that are subtracted from the iteration."""


class RunSource:
    """The observations of one run log under its configuration."""

    def __init__(self, log: RunLog, setup: RunSetup, base: Overheads, *, is_one_fold: bool = False) -> None:
        """`is_one_fold`: cross-validation leaves out the whole run, not block after block of it.

        Raises InvalidInputError when nothing that is logged is a stage of the configuration.
        """
        self.log, self.setup, self.base, self._is_one_fold = log, setup, base, is_one_fold
        self.blocks = blocks_of(log.records)
        self.setups = tuple(_at_lengths(setup, block) for block in self.blocks)
        self._rows: list[list[_Row]] = []
        for block, at in zip(self.blocks, self.setups, strict=True):
            self._rows.append(self._block_rows(block, at))
        self.observations: tuple[Observation, ...] = tuple(row.observation for rows in self._rows for row in rows)
        if all(math.isinf(item.log_sd) for item in self.observations):
            raise InvalidInputError(
                "no logged time belongs to a stage of the configuration", where=log.file,
                accepted=", ".join(timer.value for timer in Timer if timer is not Timer.BESIDE),
            )  # fmt: skip
        self.keys: tuple[Key, ...] = _keys(setup)

    @property
    def num_used(self) -> int:
        """Iterations behind the observations."""
        return sum(block.num_iterations for block in self.blocks)

    def predict(self, point: Point) -> FloatArray:
        overheads = overheads_at(point, self.base)
        values: list[float] = []
        for at, rows in zip(self.setups, self._rows, strict=True):
            priced = price_setup(_calibrated(at, point), overheads)
            own = controller_s(at.workload, overheads)
            values += [_seconds(row, priced, own) for row in rows]
        return np.array(values)

    def _block_rows(self, block: Block, at: RunSetup) -> list[_Row]:
        timers = frozenset(block.seconds)
        priced = price_setup(at, self.base)
        own = controller_s(at.workload, self.base)
        rows: list[_Row] = []
        for covered in coverage(self.log.kind, timers, at):
            measured = sum(block.seconds[timer] for timer in covered.timers)
            if measured > 0 and covered.seconds(priced, own) > 0:
                noise = max(block.log_sd[timer] for timer in covered.timers)
                rows.append(self._row(block, covered.label, measured, STAGE_LOG_SD, noise, covered))
        total = block.seconds.get(Timer.ITERATION, 0.0)
        if total > 0:
            rows += self._whole(block, at, priced, rows, total)
        return rows

    def _whole(self, block: Block, at: RunSetup, priced: Assembled, rows: list[_Row], total: float) -> list[_Row]:
        """The iteration; and the rest of it beside the logged stages where stages follow one another."""
        stages = tuple(row.covered for row in rows if row.covered is not None)
        has_rest = bool(stages) and is_serial(priced) and not at.execution.is_asynchronous
        noise = block.log_sd.get(Timer.ITERATION, 0.0)
        iteration = self._row(block, ITERATION, total, math.inf if has_rest else STAGE_LOG_SD, noise, None)
        if not has_rest:
            return [iteration]
        rest = max(total - sum(row.observation.measured for row in rows), total * MIN_OUTSIDE_RATIO)
        outside = self._row(block, OUTSIDE, rest, OUTSIDE_LOG_SD, 0.0, None)
        return [replace(outside, without=stages), iteration]

    def _row(
        self, block: Block, label: str, measured: float, log_sd: float, noise: float, covered: Covered | None
    ) -> _Row:
        # Blocks of a run share what the model misses about its configuration: together they count as one.
        shared = log_sd * math.sqrt(len(self.blocks))
        observation = Observation(
            label=label,
            kind=f"{self.log.file} {label}",
            measured=measured,
            log_sd=math.hypot(shared, noise),
            fold=self.log.file if self._is_one_fold else f"{self.log.file} {block.name}",
        )
        return _Row(observation=observation, covered=covered)


def _seconds(row: _Row, priced: Assembled, own: float) -> float:
    if row.covered is not None:
        return row.covered.seconds(priced, own)
    rest = priced.time_s - math.fsum(item.seconds(priced, own) for item in row.without)
    return max(rest, 1e-3)


def _at_lengths(setup: RunSetup, block: Block) -> RunSetup:
    """The configuration with the lengths that a block logs, within the limits of the workload."""
    return with_lengths(setup, block.response_tokens, block.prompt_tokens)


def with_lengths(setup: RunSetup, response_tokens: float | None, prompt_tokens: float | None) -> RunSetup:
    """The configuration at other mean lengths; None keeps its own. Lengths are cut at the workload's limits."""
    work = setup.workload
    if response_tokens is not None:
        law = replace(work.response, mean_tokens=min(response_tokens, float(work.response.max_tokens)))
        work = replace(work, response=law)
    if prompt_tokens is not None:
        work = replace(work, prompt_mean_tokens=min(prompt_tokens, float(work.prompt_max_tokens)))
    return replace(setup, workload=work)


def _calibrated(setup: RunSetup, point: Point) -> RunSetup:
    pools = tuple(replace(pool, node=node_at(point, pool.node)) for pool in setup.cluster.pools)
    return replace(setup, cluster=replace(setup.cluster, pools=pools))


def _keys(setup: RunSetup) -> tuple[Key, ...]:
    """Parameters that a run may tell. Bandwidths of collectives are left to benchmarks of links."""
    is_moe = setup.workload.actor.is_moe
    software = [
        Parameter.ROLLOUT_RATIO,
        Parameter.MOE_TRAINING_RATIO if is_moe else Parameter.TRAINING_RATIO,
        Parameter.SYNC_RATIO,
        Parameter.STEP,
        Parameter.SEQUENCE,
        Parameter.ENGINE_STEP,
        Parameter.ENGINE_LAUNCH,
    ]
    if any(isinstance(w.strategy, TrainerStrategy) and w.strategy.offload is not Offload.NONE for w in setup.workers):
        software.append(Parameter.SWAP_RATE)
    keys = [Key(parameter) for parameter in software]
    for gpu in sorted({setup.cluster.pool(item.pool).node.gpu.id for item in setup.workers}):
        keys += [Key(p, gpu) for p in (Parameter.HBM, Parameter.TRAINING_FLOP, Parameter.NIC_BANDWIDTH)]
    return tuple(keys)
