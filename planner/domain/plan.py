"""A plan: placements, schedule, proof and assumptions. Everything here is derived from floats in SI units."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import fsum

from planner.domain.bands import Band
from planner.domain.execution import IN_STEP, Execution, Fusion, SchedulingPolicy, ShardedSync
from planner.domain.fixed import FixedField
from planner.domain.hardware import Cluster
from planner.domain.links import StageLinks
from planner.domain.stages import Role, StageGraph, StageName, WorkerName, build_graph
from planner.domain.strategy import Strategy
from planner.domain.verdict import Verdict, memory_verdict
from planner.domain.workload import Workload


class Status(StrEnum):
    """What the search can say about a plan."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


class Objective(StrEnum):
    """What is minimised."""

    TIME = "time"
    """Seconds per iteration."""
    COST = "cost"
    """USD per iteration of whole nodes used (GPU-hours when no price is known)."""
    GPUS = "gpus"
    """GPUs used; the fastest plan on the fewest GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the user allows. None means no limit."""

    objective: Objective = Objective.TIME
    max_iteration_s: float | None = None
    max_gpus: int | None = None
    max_usd_per_iteration: float | None = None
    framework: str | None = None
    max_staleness: int = 0
    """Largest version lag that the user permits; it changes what is learned, so 0 unless asked for."""
    allow_partial_rollouts: bool = False
    """Responses may be continued by newer weights (streaming)."""
    fusions: tuple[Fusion, ...] = (Fusion.INTER_STAGE,)
    """Stage fusions that the search may use, where the framework can."""
    sharded_syncs: tuple[ShardedSync, ...] = ()
    """Ways of moving only shards in a weight sync that the search may use beside full gather, where the framework
    can; few can, so none unless asked for."""
    policy: SchedulingPolicy | None = None
    """None: that of the framework, or the planned order without one."""
    must_share: tuple[tuple[WorkerName, ...], ...] = ()
    """Sets of workers that have to sit on one device group."""
    must_not_share: tuple[tuple[WorkerName, ...], ...] = ()
    """Sets of workers of which no two may meet on a GPU."""
    fixed: tuple[FixedField, ...] = ()
    """What the search must leave as it is."""
    num_alternatives: int = 5
    time_limit_s: float = 60.0
    solver: str = "auto"
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A value that the user did not give. `effect` says how the plan would change, where that matters."""

    what: str
    value: str
    source: str
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """Physical GPUs that stages occupy. Ranks are GPU numbers within the pool, node by node."""

    id: str
    pool: str
    gpu: str
    first_gpu: int
    num_gpus: int
    num_nodes: int

    @property
    def ranks(self) -> range:
        return range(self.first_gpu, self.first_gpu + self.num_gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedValue:
    """One additive term."""

    name: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """Peak GPU memory of a stage: the instant, all that is on the GPU then, and the limit, in bytes."""

    instant: str
    terms: tuple[NamedValue, ...]
    """The running worker's terms, then `idle: <worker>` for each co-resident."""
    usable_bytes: float

    @property
    def peak_bytes(self) -> float:
        # Rounded exactly: the built-in sum rounds differently from Python 3.12 on, and saved plans must not.
        return fsum(term.value for term in self.terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRam:
    """Host RAM per node that a worker holds, and what the node has, in bytes."""

    terms: tuple[NamedValue, ...]
    usable_bytes: float

    @property
    def peak_bytes(self) -> float:
        return fsum(term.value for term in self.terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A stage on a device group with a strategy. `worker` is None for host stages and the weight sync."""

    stage: StageName
    role: Role
    worker: WorkerName | None
    model: str
    device_group: str
    strategy: Strategy | None
    time_terms: tuple[NamedValue, ...]
    bound_by: str
    gpu_memory: GpuMemory | None
    host_ram: HostRam | None

    @property
    def time_s(self) -> float:
        return fsum(term.value for term in self.time_terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledStage:
    """When a stage runs within the iteration, in seconds, and the device groups that it occupies."""

    stage: StageName
    device_groups: tuple[str, ...]
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchReport:
    """How the plan was found."""

    num_priced: int
    num_rejected: tuple[NamedValue, ...]
    """Candidates rejected, by reason."""
    num_pruned: int
    num_structures: int
    num_structures_solved: int
    solver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Wall-clock facts of one run; never part of a saved plan."""

    time_s: float
    time_to_first_s: float
    peak_rss_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A structurally different plan that was priced: its groups in words and its objective."""

    description: str
    time_s: float
    num_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessGain:
    """The best plan with at most `staleness`: what each step of permission buys.

    `time_s` is its steady-state period with average rollouts, `varying_time_s` with rollouts that vary from one
    iteration to the next, as the response lengths do. None where no plan fits.
    """

    staleness: int
    mode: str
    time_s: float | None
    varying_time_s: float | None
    is_permitted: bool
    num_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkVerdict:
    """Whether a framework can run the plan, and if not, why."""

    framework: str
    can_run: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan with its proof. `objective_value` is in the objective's unit; `bound` is a proven lower bound."""

    status: Status
    workload: Workload
    cluster: Cluster
    limits: Limits
    objective_unit: str
    objective_value: float
    bound: float
    device_groups: tuple[DeviceGroup, ...]
    placements: tuple[Placement, ...]
    schedule: tuple[ScheduledStage, ...]
    search: SearchReport
    alternatives: tuple[Alternative, ...]
    frameworks: tuple[FrameworkVerdict, ...]
    assumptions: tuple[Assumption, ...]
    time_band: Band | None = None
    """Where the measured iteration time should lie; None where nothing of the kind was measured."""
    memory_band: Band | None = None
    """The same for the memory peak of a stage."""
    execution: Execution = IN_STEP
    period_s: float | None = None
    """Asynchronous plans: seconds from one weight sync to the next in the steady state; None for synchronous ones."""
    staleness_gains: tuple[StalenessGain, ...] = ()
    unrestricted_value: float | None = None
    """Objective of the best plan that is not restricted to the framework; None without one, or where it is unknown."""
    links: tuple[StageLinks, ...] = ()
    """What each stage uses of every link class; empty where nobody asked."""
    run: RunReport | None = None

    @property
    def time_s(self) -> float:
        """Seconds per iteration: the period of an asynchronous plan, else the end of the last stage.

        The schedule of an asynchronous plan follows one batch from its rollout to its weight sync; batches follow
        each other at distances of the period, so that it may be longer than that.
        """
        return self.makespan_s if self.period_s is None else self.period_s

    @property
    def graph(self) -> StageGraph:
        """The stages of the plan and what they wait for."""
        return build_graph(self.workload, is_split=self.execution.is_split)

    @property
    def makespan_s(self) -> float:
        """Seconds from the start of a batch's rollout to the end of its last stage."""
        return max((item.end_s for item in self.schedule), default=0.0)

    @property
    def gap_ratio(self) -> float:
        return max(0.0, self.objective_value - self.bound) / self.objective_value if self.objective_value else 0.0

    @property
    def num_gpus(self) -> int:
        """GPUs that the plan uses."""
        used: dict[str, set[int]] = {}
        for group in self.device_groups:
            used.setdefault(group.pool, set()).update(group.ranks)
        return sum(len(ranks) for ranks in used.values())

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Prompt and response tokens trained on, per second and GPU used."""
        return self.workload.num_samples * self.workload.mean_tokens / (self.time_s * self.num_gpus)

    @property
    def num_nodes_used(self) -> dict[str, int]:
        """Nodes with at least one used GPU, by pool."""
        nodes: dict[str, set[int]] = {}
        for group in self.device_groups:
            per_node = self.cluster.pool(group.pool).node.gpus_per_node
            nodes.setdefault(group.pool, set()).update(rank // per_node for rank in group.ranks)
        return {pool: len(found) for pool, found in nodes.items()}

    @property
    def usd(self) -> float | None:
        """USD per iteration of the whole nodes used; None when a price is missing."""
        return self._usd(self.num_nodes_used)

    @property
    def cluster_usd(self) -> float | None:
        """USD per iteration when the whole cluster is billed, idle nodes included; None when a price is missing."""
        return self._usd({pool.name: pool.num_nodes for pool in self.cluster.pools})

    def _usd(self, num_nodes: dict[str, int]) -> float | None:
        rate = 0.0
        for name, count in num_nodes.items():
            pool = self.cluster.pool(name)
            if pool.usd_per_gpu_hour is None:
                return None
            rate += pool.usd_per_gpu_hour * pool.node.gpus_per_node * count
        return self.time_s * rate / 3600.0

    def memory_verdict(self, placement: Placement) -> Verdict | None:
        """Whether the stage's peak fits on the device within the error band of peaks; None for host stages."""
        if placement.gpu_memory is None:
            return None
        group = next(item for item in self.device_groups if item.id == placement.device_group)
        device_bytes = self.cluster.pool(group.pool).node.gpu.memory_bytes
        return memory_verdict(placement.gpu_memory.peak_bytes, device_bytes)

    def placement(self, stage: StageName) -> Placement:
        return next(item for item in self.placements if item.stage is stage)
