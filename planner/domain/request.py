"""What the pipeline is asked: a workload, the hardware (or only its kind), limits, and what was assumed."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.hardware import Cluster, NodeType
from planner.domain.overheads import Overheads
from planner.domain.plan import Assumption, Limits
from planner.domain.stages import WorkerName
from planner.domain.strategy import Strategy
from planner.domain.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Everything that a plan depends on.

    `cluster` is None when the user asks for the smallest cluster that works; then, and only then,
    `gpu_type_when_open` is the node type that this cluster is built from. `open_usd_per_gpu_hour` is the price
    of such nodes, None if unknown. Raises ValueError unless exactly one of the two is given.
    """

    workload: Workload
    cluster: Cluster | None
    gpu_type_when_open: NodeType | None
    limits: Limits
    assumptions: tuple[Assumption, ...]
    open_usd_per_gpu_hour: float | None = None
    overheads: Overheads | None = None
    """Software costs in place of the catalog's (a calibration profile); None: those of the catalog."""

    def __post_init__(self) -> None:
        if (self.cluster is None) == (self.gpu_type_when_open is None):
            raise ValueError("a request has either a cluster or the node type to build one from")


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedWorker:
    """A worker that the user placed: `num_gpus` GPUs of `pool` from `first_gpu` on, and its strategy."""

    worker: WorkerName
    pool: str
    first_gpu: int
    num_gpus: int
    strategy: Strategy

    def __post_init__(self) -> None:
        if self.first_gpu < 0 or self.num_gpus < 1:
            raise ValueError(f"{self.worker.value}: GPUs {self.first_gpu} + {self.num_gpus} are no range")
        if self.strategy.num_gpus != self.num_gpus:
            raise ValueError(
                f"{self.worker.value}: the strategy spans {self.strategy.num_gpus} GPUs, the placement {self.num_gpus}"
            )
