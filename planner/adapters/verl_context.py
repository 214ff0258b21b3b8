"""What every section of an export to verl needs: the plan's workers, the back end, and which trainer runs it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from planner.adapters.export import describe
from planner.domain.execution import ExecutionMode
from planner.domain.framework_placed import PlacedWorker
from planner.domain.plan import Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import Offload, RolloutStrategy, TrainerStrategy
from planner.domain.workload import Workload

ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
REWARD_MODEL = "reward.reward_model"

SWAPS_WEIGHTS = (Offload.STATE_SWAP, Offload.CPU_OPTIMIZER_STATE_SWAP)
SWAPS_OPTIMIZER = (Offload.OPTIMIZER_SWAP, Offload.STATE_SWAP)
ON_HOST = (Offload.CPU_OPTIMIZER, Offload.CPU_OPTIMIZER_STATE_SWAP)


class Runner(StrEnum):
    """The trainer of verl that runs a plan."""

    SYNC = "sync"
    """Engines and trainer take turns on the same GPUs."""
    SEPARATE = "separate_async"
    """Engines on GPUs of their own; responses go on with new weights at a weight sync. Without a batch ahead nothing
    overlaps: a synchronous iteration."""
    ONE_STEP_OFF = "one_step_off_policy"
    """Engines on GPUs of their own; the next batch is generated while this one is trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A plan's workers by name, with what every section needs."""

    plan: Plan
    workers: dict[WorkerName, PlacedWorker]
    is_megatron: bool
    engine_tokens: int

    @property
    def engine(self) -> RolloutStrategy:
        strategy = self.workers[WorkerName.ROLLOUT_ENGINE].strategy
        if isinstance(strategy, TrainerStrategy):
            raise TypeError("the rollout engine has a trainer strategy")
        return strategy

    @property
    def runner(self) -> Runner:
        """The trainer that the placement of the engines and the kind of execution ask for."""
        engine, trainer = self.workers[WorkerName.ROLLOUT_ENGINE], self.workers[WorkerName.ACTOR_TRAINER]
        if engine.overlaps(trainer):
            return Runner.SYNC
        is_one_step = self.plan.execution.mode is ExecutionMode.BATCHES
        return Runner.ONE_STEP_OFF if is_one_step else Runner.SEPARATE

    @property
    def workload(self) -> Workload:
        return self.plan.workload

    def trainer(self, name: WorkerName) -> TrainerStrategy | None:
        worker = self.workers.get(name)
        return worker.strategy if worker is not None and isinstance(worker.strategy, TrainerStrategy) else None

    @property
    def actor(self) -> TrainerStrategy:
        strategy = self.trainer(WorkerName.ACTOR_TRAINER)
        if strategy is None:
            raise LookupError("the plan has no actor trainer")
        return strategy


def decision(context: Context, name: WorkerName) -> str:
    """What the plan decided about a worker, for comments."""
    worker = context.workers[name]
    return f"{name.value} on device group {worker.group.id}: {describe(worker.strategy)}"
