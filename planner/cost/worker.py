"""What the search needs to know about each strategy of one worker on one pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from planner.cost.terms import Terms
from planner.domain.execution import ShardedSync
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


class Moment(StrEnum):
    """Seconds of a stage other than its duration, for stages that overlap with others."""

    LONGEST_RESPONSE = "longest response"
    """Streaming rollout: from the submission of a batch to its last token, behind what the batch before has left. The
    duration of a streaming rollout is how long engines are busy per batch."""
    NINE_TENTHS_LEFT = "nine tenths left"
    """Rollout: until at most so many of the responses have not ended."""
    HALF_LEFT = "half left"
    FIFTH_LEFT = "fifth left"
    GATHERED = "tail gathered"
    """Rollout: until the last fifth of the responses has been moved to a quarter of the engines."""
    GATHERED_END = "gathered tail ended"
    LAST_HALF = "last half"
    """Forward pass: over the last half of the responses; each rank has at least one."""
    LAST_FIFTH = "last fifth"
    LAST_FIFTIETH = "last fiftieth"
    WITHOUT_BUBBLE = "without bubble"
    """Update: without waiting in the pipeline."""


ROLLOUT_MOMENTS = frozenset(
    {Moment.NINE_TENTHS_LEFT, Moment.HALF_LEFT, Moment.FIFTH_LEFT, Moment.GATHERED, Moment.GATHERED_END}
)
"""Moments at which assessors can go on with finished responses."""


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
    sharded_syncs: tuple[ShardedSync, ...] = ()
    """Ways in which the weight sync moves shards only; empty: full gather."""
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
    moments: frozenset[Moment] = frozenset()
    """Moments to price beside the duration."""
    streamed_batches: int | None = None
    """Streaming: how many batches may be in flight at a time; None where a batch ends before the next one begins."""
    sharded_syncs: tuple[ShardedSync, ...] = ()
    """Ways in which the weight sync moves shards only; empty: full gather."""


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
    remaining_s: Mapping[Moment, FloatArray] = field(default_factory=dict)
    """Seconds of the stage's kernels after the moments that the job asked for; negative for moments that lie after the
    end of `time_terms`."""

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
