"""What the search gets and its limits, and the integer form of one structure that CP-SAT and the ILP share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

import numpy as np

from planner.domain.execution import IN_STEP, Execution
from planner.domain.plan import Objective
from planner.domain.stages import StageGraph, StageName, WorkerName
from planner.domain.strategy import FloatArray, IntArray
from planner.search.structures import StructureFilter
from planner.search.timing import Part

SLACK_BYTES = 1.0
"""Memory sums of floats are compared with one byte of slack, so that an exact fit is not lost to rounding."""


class Solver(StrEnum):
    """What closes the structures that the bounds leave over."""

    AUTO = "auto"
    """Own depth-first enumeration, and CP-SAT where that grows too large."""
    CPSAT = "cpsat"
    ILP = "ilp"
    """PuLP with CBC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPool:
    """Capacity of one pool. `usable_bytes` per GPU, `host_ram_bytes` per node."""

    name: str
    num_nodes: int
    gpus_per_node: int
    usable_bytes: float
    host_ram_bytes: float
    usd_per_gpu_hour: float | None = None
    peak_flop_per_s: float = np.inf
    """16-bit peak of one GPU."""

    def __post_init__(self) -> None:
        if self.num_nodes < 1 or self.gpus_per_node < 1:
            raise ValueError(f"pool {self.name!r} needs at least one node of one GPU")

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node

    def group_sizes(self, num_gpus: FloatArray) -> IntArray:
        """GPUs of the device groups that workers of `num_gpus` GPUs need, shape (num_options,).

        Sizes that do not pack into several nodes whatever else is there take whole nodes: all but the halvings of a
        node (and 1). In a single node everything packs whose sum fits.
        """
        sizes = np.rint(num_gpus).astype(np.int64)
        if self.num_nodes == 1:
            return sizes
        chain = {1}
        half = self.gpus_per_node
        while half % 2 == 0:
            half //= 2
            chain.add(half)
        packs = np.isin(sizes, sorted(chain)) | (sizes % self.gpus_per_node == 0)
        return np.where(packs, sizes, -(-sizes // self.gpus_per_node) * self.gpus_per_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionTable:
    """Priced strategies of one worker on one pool; arrays of shape (num_options,) unless said otherwise.

    `stage_time_s` has shape (num_stages, num_options) in the order of `stages`. `sync_*_s` are the worker's shares
    of the weight sync (zero for workers that take no part). `row` identifies the candidate for the caller.
    Memory is bytes per GPU, `host_bytes` bytes per node.
    """

    worker: WorkerName
    pool: str
    stages: tuple[StageName, ...]
    num_gpus: IntArray
    stage_time_s: FloatArray
    sync_colocated_s: FloatArray
    sync_disaggregated_s: FloatArray
    sync_cross_pool_s: FloatArray
    """As disaggregated, when trainer and engine sit on different pools: over the slower of their links."""
    active_bytes: FloatArray
    """Peak over the worker's stages."""
    sync_bytes: FloatArray
    idle_bytes: FloatArray
    host_bytes: FloatArray
    row: IntArray
    moments: tuple[Part, ...] = ()
    moment_s: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    """Seconds of `moments`, shape (num_moments, num_options)."""

    def __len__(self) -> int:
        return int(self.num_gpus.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProblem:
    """Everything that the search needs; immutable.

    `options` holds at most one table per (worker, pool). `host_stage_s` gives the durations of host stages.
    With `equal_size` all workers of one device group use exactly as many GPUs as the group has. Raises ValueError
    for sizes that are neither whole nodes nor part of a divisor chain below a node: only those always pack.
    """

    graph: StageGraph
    pools: tuple[SearchPool, ...]
    options: tuple[OptionTable, ...]
    host_stage_s: tuple[tuple[StageName, float], ...] = ()
    host_least_s: float = 0.0
    """Seconds that any part of a host stage takes at least."""
    structure_filter: StructureFilter | None = None
    equal_size: bool = False
    execution: Execution = IN_STEP
    work_flop: float = 0.0
    """Least 16-bit work of an iteration: no plan takes less than this at the peak rate of all GPUs."""

    def __post_init__(self) -> None:
        for pool in self.pools:
            sizes = {int(n) for table in self.options if table.pool == pool.name for n in table.num_gpus}
            _check_sizes(pool, sizes)

    def pool(self, name: str) -> SearchPool:
        return next(pool for pool in self.pools if pool.name == name)

    def table(self, worker: WorkerName, pool: str) -> OptionTable | None:
        return next((t for t in self.options if t.worker is worker and t.pool == pool), None)


def _check_sizes(pool: SearchPool, sizes: Iterable[int]) -> None:
    # In a single node everything packs whose sum fits.
    below = [] if pool.num_nodes == 1 else sorted(size for size in sizes if size < pool.gpus_per_node)
    chain = [*below, pool.gpus_per_node]
    broken = [a for a, b in pairwise(chain) if a < 1 or b % a]
    partial = sorted(size for size in sizes if size > pool.gpus_per_node and size % pool.gpus_per_node)
    if broken or partial:
        raise ValueError(
            f"pool {pool.name!r}: sizes {broken + partial} are neither whole nodes of {pool.gpus_per_node} GPUs "
            f"nor a divisor chain below one node"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLimits:
    """Objective and limits. None means no limit.

    Plans within `tie_tolerance_ratio` of the optimum count as equal: the one on the fewest GPUs is taken, then the
    one with more headroom, then the one with fewer device groups. The proven bound is not touched by that.
    """

    objective: Objective = Objective.TIME
    max_iteration_s: float | None = None
    max_gpus: int | None = None
    max_usd_per_iteration: float | None = None
    time_limit_s: float = 60.0
    seed: int = 0
    solver: Solver = Solver.AUTO
    tie_tolerance_ratio: float = 0.01
    num_alternatives: int = 5
