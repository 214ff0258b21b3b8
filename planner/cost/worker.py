"""What the search needs to know about each strategy of one worker on one pool."""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.terms import Terms
from planner.domain.hardware import NodeType, Precision
from planner.domain.model import Model
from planner.domain.overheads import Overheads
from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import BoolArray, FloatArray, StrategyTable
from planner.domain.workload import GenerationLoad, TokenLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where and with which software a worker runs."""

    node: NodeType
    overheads: Overheads
    memory_margin_ratio: float

    @property
    def usable_bytes(self) -> float:
        """GPU memory that a plan may use."""
        return self.node.gpu.memory_bytes * (1.0 - self.memory_margin_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerJob:
    """What a training or forward-only worker does in one iteration.

    `train_load` are the sequences of one epoch, or None for a forward-only worker; `inference_loads` names
    the forward-only stages that run on the same weights. `has_vocabulary_head` is False for critics and
    reward models, whose head has one output.
    """

    worker: WorkerName
    model: Model
    train_stage: StageName | None
    train_load: TokenLoad | None
    num_optimizer_steps: int
    """Per epoch."""
    num_epochs: int
    inference_loads: tuple[tuple[StageName, TokenLoad], ...]
    has_vocabulary_head: bool
    lora_rank: int | None
    precision: Precision
    sends_weights: bool
    """True for the actor trainer, which takes part in the weight sync."""
    rollout_precision: Precision
    num_mtp_modules: int = 0
    """Multi-token-prediction modules trained with the model: a layer, its projection and the head once more each."""
    is_block_scaled: bool = False
    """FP8 with one scale per 32 elements (mxfp8)."""
    is_routing_balanced: bool = False
    """Experts are forced to equal load, as benchmarks do; RL routes naturally."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJob:
    """What a generation engine does in one iteration."""

    worker: WorkerName
    model: Model
    stage: StageName
    load: GenerationLoad
    precision: Precision
    receives_weights: bool
    """True for the rollout engine; a judge keeps its weights."""
    lora_rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage of a worker for every candidate.

    `time_terms` sum to the stage's exposed seconds, from the moment its device group is free and its inputs
    are there, reloads included. `memory_terms` sum to the peak bytes per GPU at the worst instant of the
    stage, on the fullest pipeline rank.
    """

    stage: StageName
    instant: str
    """The instant of rows that `instant_index` does not tell apart."""
    time_terms: Terms
    memory_terms: Terms
    instants: tuple[str, ...] = ()
    """Instants of which `memory_terms` holds the worst of each row."""
    instant_index: BoolArray | None = None
    """For each row: False takes the first of two `instants`, True the second."""

    def instant_at(self, row: int) -> str:
        """The worst instant of one row."""
        return self.instant if self.instant_index is None else self.instants[int(self.instant_index[row])]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCosts:
    """Costs of all candidates of one worker on one pool; arrays of shape (num_candidates,).

    Candidates are self-contained: nothing here depends on what else runs on the same GPUs. On a GPU that
    several workers share, at any instant one is active and the others idle:
    active(stage) + sum of the others' idle_bytes <= usable. At the weight sync the actor trainer and the
    engine are both active with their `sync_bytes`.
    """

    worker: WorkerName
    model: Model
    strategies: StrategyTable
    stages: tuple[StageCost, ...]
    idle_terms: Terms
    """Bytes per GPU that stay while other workers run on the same GPUs."""
    host_terms: Terms
    """Host RAM bytes per node (largest over the iteration)."""
    sync_terms_colocated: Terms | None
    """This worker's share of the weight sync when trainer and engine share GPUs; None if not involved."""
    sync_terms_disaggregated: Terms | None
    sync_memory_terms: Terms | None
    """Bytes per GPU during the sync."""
    is_legal: BoolArray
    """False where the formulas do not apply (for instance: weights alone exceed the engine's fraction)."""

    @property
    def num_gpus(self) -> FloatArray:
        return self.strategies.num_gpus
