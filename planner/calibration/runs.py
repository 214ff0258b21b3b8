"""Logged iterations of a run as observations of its configuration.

A run's iterations are taken in order, the first left out as warm-up where there are enough, and gathered into a few
blocks of medians (`blocks`); every block is priced with its own mean lengths. What a logged duration covers is
expressed in terms of stages (`coverage`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from planner.assembly import Assembled
from planner.calibration.blocks import Block, blocks_of
from planner.calibration.coverage import ITERATION, OUTSIDE, Covered, controller_s, coverage, is_serial
from planner.calibration.parameters import Key, Point, node_at, overheads_at
from planner.calibration.setup import RunSetup, price_setup, with_lengths
from planner.calibration.source import Observation
from planner.domain.lengths import FloatArray
from planner.domain.overheads import Overheads
from planner.domain.profile import Parameter
from planner.domain.strategy import Offload, TrainerStrategy
from planner.errors import InvalidInputError
from planner.files.run_logs import RunLog, Timer

STAGE_LOG_SD = 0.05
"""What one stage of one configuration may be off even with the right parameters."""
OUTSIDE_LOG_SD = 0.2
"""The same for the rest of an iteration: controller, logging, data."""
MIN_OUTSIDE_RATIO = 0.002
"""A smaller rest is taken as this share of the iteration: rounding, or stages that overlap a little."""


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
