"""The plan file (JSON) as pydantic models: validation when reading, and the source of the JSON Schema.

Keys that this version does not know are ignored, because a newer minor version only adds keys; digests protect
against everything else.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from planner.domain.bands import Band
from planner.domain.execution import Execution, ExecutionMode, Fusion, SchedulingPolicy, ShardedSync
from planner.domain.hardware import Cluster
from planner.domain.links import StageLinks
from planner.domain.plan import (
    Alternative,
    Assumption,
    DeviceGroup,
    FrameworkVerdict,
    GpuMemory,
    HostRam,
    Limits,
    NamedValue,
    Objective,
    Placement,
    RunReport,
    ScheduledStage,
    SearchReport,
    StalenessGain,
    Status,
)
from planner.domain.ranks import WorkerRanks
from planner.domain.stages import Role, StageName, WorkerName
from planner.domain.strategy import (
    ContextParallel,
    EngineIdle,
    ExpertExchange,
    Offload,
    Recompute,
    RolloutStrategy,
    Sharding,
    TrainerStrategy,
)
from planner.domain.verdict import Verdict
from planner.domain.workload import Workload
from planner.files.schema import raise_for

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class ObjectiveFile(_Part):
    """What was minimised; `bound` is a proven lower bound of `value`."""

    kind: Objective
    value: float
    unit: str
    bound: float
    gap_ratio: float
    unrestricted_value: float | None = Field(
        default=None, gt=0, description="Of the best plan that is not restricted to the framework."
    )


class IterationFile(_Part):
    """The whole iteration."""

    time_s: float = Field(ge=0)
    time_band_s: tuple[float, float] | None = Field(
        description="[low, high]; null where nothing of the kind was measured."
    )
    time_band_reason: str | None = Field(default=None, description="What the band rests on, or why there is none.")
    usd: float | None = Field(description="Null when a price is unknown.")
    gpu_hours: float | None = None
    tokens_per_s_per_gpu: float
    staleness: Count


class ExecutionFile(_Part):
    """How iterations overlap; `period_s` is the steady-state period of an asynchronous plan, else null."""

    mode: ExecutionMode = ExecutionMode.SYNCHRONOUS
    staleness: Count = 0
    fusions: list[Fusion] = []
    policy: SchedulingPolicy = SchedulingPolicy.PLANNED
    second_share_ratio: float = Field(
        default=0.0, ge=0, description="Share of the responses that a second group of engines generates, below 1."
    )
    sharded_syncs: list[ShardedSync] = Field(
        default=[], description="Ways in which the weight sync moves shards only; empty for full gather."
    )
    period_s: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _agrees(self) -> ExecutionFile:
        if (self.period_s is not None) != self.to_domain().is_asynchronous:
            raise ValueError("period_s is given exactly for asynchronous plans")
        return self

    def to_domain(self) -> Execution:
        return Execution(
            mode=self.mode,
            staleness=self.staleness,
            fusions=tuple(self.fusions),
            policy=self.policy,
            second_share_ratio=self.second_share_ratio,
            sharded_syncs=tuple(self.sharded_syncs),
        )


class DeviceGroupFile(_Part):
    """Physical GPUs; ranks are GPU numbers within the pool, node by node."""

    id: str
    pool: str
    gpu: str
    first_gpu: Count
    num_gpus: Positive
    num_nodes: Positive
    ranks: list[Count]

    def to_domain(self) -> DeviceGroup:
        return DeviceGroup(
            id=self.id,
            pool=self.pool,
            gpu=self.gpu,
            first_gpu=self.first_gpu,
            num_gpus=self.num_gpus,
            num_nodes=self.num_nodes,
        )


class _Terms(_Part):
    terms: dict[str, float] = Field(description="Additive terms by name.")
    term_order: list[str] = Field(description="The order in which the terms are summed.")

    @model_validator(mode="after")
    def _same_names(self) -> _Terms:
        if sorted(self.terms) != sorted(self.term_order):
            raise ValueError("terms and term_order must have the same names")
        return self

    def values(self) -> tuple[NamedValue, ...]:
        return tuple(NamedValue(name=name, value=self.terms[name]) for name in self.term_order)


class GpuMemoryFile(_Terms):
    """GPU memory at the worst instant of the stage, co-residents included."""

    instant: str
    verdict: Verdict = Field(description="Whether the peak fits on the device, within the error band of peaks.")
    peak_bytes: float
    usable_bytes: float

    def to_domain(self) -> GpuMemory:
        return GpuMemory(instant=self.instant, terms=self.values(), usable_bytes=self.usable_bytes)


class HostRamFile(_Terms):
    """Host RAM per node."""

    peak_bytes: float
    usable_bytes: float

    def to_domain(self) -> HostRam:
        return HostRam(terms=self.values(), usable_bytes=self.usable_bytes)


class TrainerStrategyFile(_Part):
    """Strategy of a worker that trains or runs forward passes; num_gpus = tp x pp x cp x dp."""

    kind: Literal["trainer"]
    num_gpus: Positive
    tp: Positive
    pp: Positive
    vpp: Positive
    cp: Positive
    dp: Positive
    context_parallel: ContextParallel
    ep: Positive
    etp: Positive
    sharding: Sharding
    shard_ranks: Positive
    micro_batch_tokens: Positive
    inference_tokens: Positive
    recompute: Recompute
    offload: Offload
    recompute_layers: int = Field(default=0, ge=0)

    def to_domain(self) -> TrainerStrategy:
        return TrainerStrategy(
            num_gpus=self.num_gpus, tp=self.tp, pp=self.pp, vpp=self.vpp, cp=self.cp,
            context_parallel=self.context_parallel, ep=self.ep, etp=self.etp, sharding=self.sharding,
            shard_ranks=self.shard_ranks, micro_batch_tokens=self.micro_batch_tokens,
            inference_tokens=self.inference_tokens, recompute=self.recompute, offload=self.offload,
            recompute_layers=self.recompute_layers,
        )  # fmt: skip


class RolloutStrategyFile(_Part):
    """Strategy of generation engines; num_gpus = tp x attention_dp x pp x dp, dp being the number of engines."""

    kind: Literal["rollout"]
    num_gpus: Positive
    tp: Positive
    pp: Positive
    cp: Positive
    dp: Positive
    ep: Positive
    etp: Positive
    engine_fraction: float = Field(gt=0, le=1)
    max_num_seqs: Positive
    idle: EngineIdle
    attention_dp: Positive = 1
    exchange: ExpertExchange = ExpertExchange.GATHER

    def to_domain(self) -> RolloutStrategy:
        return RolloutStrategy(
            num_gpus=self.num_gpus, tp=self.tp, pp=self.pp, ep=self.ep, engine_fraction=self.engine_fraction,
            max_num_seqs=self.max_num_seqs, idle=self.idle, attention_dp=self.attention_dp, exchange=self.exchange,
        )  # fmt: skip


class PlacementFile(_Terms):
    """A stage on a device group with a strategy; terms are exposed seconds."""

    stage: StageName
    role: Role
    worker: WorkerName | None
    model: str
    device_group: str
    strategy: Annotated[TrainerStrategyFile | RolloutStrategyFile, Field(discriminator="kind")] | None
    time_s: float
    bound_by: str
    gpu_memory: GpuMemoryFile | None
    host_ram: HostRamFile | None

    def to_domain(self) -> Placement:
        return Placement(
            stage=self.stage, role=self.role, worker=self.worker, model=self.model, device_group=self.device_group,
            strategy=self.strategy.to_domain() if self.strategy is not None else None, time_terms=self.values(),
            bound_by=self.bound_by, gpu_memory=self.gpu_memory.to_domain() if self.gpu_memory is not None else None,
            host_ram=self.host_ram.to_domain() if self.host_ram is not None else None,
        )  # fmt: skip


class ScheduledStageFile(_Part):
    """When a stage runs within the iteration."""

    stage: StageName
    device_group: str
    device_groups: list[str]
    start_s: float
    end_s: float

    def to_domain(self) -> ScheduledStage:
        return ScheduledStage(
            stage=self.stage, device_groups=tuple(self.device_groups), start_s=self.start_s, end_s=self.end_s
        )


class SearchFile(_Part):
    """How the plan was found."""

    num_priced: Count
    num_rejected: dict[str, float] = Field(description="Candidates rejected, by reason.")
    rejection_order: list[str]
    num_pruned: Count
    num_structures: Count
    num_structures_solved: Count
    solver: str

    @model_validator(mode="after")
    def _same_reasons(self) -> SearchFile:
        if sorted(self.num_rejected) != sorted(self.rejection_order):
            raise ValueError("num_rejected and rejection_order must have the same names")
        return self

    def to_domain(self) -> SearchReport:
        return SearchReport(
            num_priced=self.num_priced, num_pruned=self.num_pruned, num_structures=self.num_structures,
            num_structures_solved=self.num_structures_solved, solver=self.solver,
            num_rejected=tuple(NamedValue(name=n, value=self.num_rejected[n]) for n in self.rejection_order),
        )  # fmt: skip


class InputsFile(_Part):
    """Everything that the plan depends on, complete."""

    workload: Workload
    cluster: Cluster
    limits: Limits


class DigestsFile(_Part):
    """SHA-256 over the canonical JSON: `plan` over all but digests and run, `sections` shortened, per key."""

    plan: str
    sections: dict[str, str]


class BandsFile(_Part):
    """Where measurements should lie, as multiples of the predictions; null where nothing of the kind was measured."""

    time: Band | None = None
    memory: Band | None = None


class PlanFile(_Part):
    """A plan of rlplan. SI units; sizes in bytes, times in seconds."""

    format_version: str
    rlplan_version: str
    status: Status
    objective: ObjectiveFile
    iteration: IterationFile
    execution: ExecutionFile = ExecutionFile()
    staleness_gains: list[StalenessGain] = []
    num_gpus: Count
    device_groups: list[DeviceGroupFile]
    links: list[StageLinks] = Field(
        default=[], description="What each stage uses of every link class, in bytes, and what that carries at most."
    )
    rank_map: list[WorkerRanks] = Field(
        default=[], description="Mesh of every worker, innermost axis first, and ranks by node and scale-up domain."
    )
    placements: list[PlacementFile]
    schedule: list[ScheduledStageFile]
    search: SearchFile
    alternatives: list[Alternative]
    frameworks: list[FrameworkVerdict]
    assumptions: list[Assumption]
    bands: BandsFile = BandsFile()
    inputs: InputsFile
    digests: DigestsFile
    run: RunReport | None = Field(default=None, description="Only in --json output, never in a saved plan.")


def validate(text: str, *, where: str) -> PlanFile:
    """The validated file; raises InvalidInputError with every problem and its place."""
    try:
        return PlanFile.model_validate_json(text)
    except ValidationError as error:
        raise_for(error, PlanFile, where=where)
        raise
