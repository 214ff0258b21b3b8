"""The workers of a plan by name, as adapters need them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.adapters.export import describe
from planner.domain.framework import FrameworkRules
from planner.domain.framework_placed import PlacedWorker, placed_workers
from planner.domain.framework_trainers import backend_of
from planner.domain.plan import DeviceGroup, Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import RolloutStrategy, TrainerStrategy
from planner.domain.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """A plan with its workers. Every plan has an actor trainer and a rollout engine."""

    plan: Plan
    workers: dict[WorkerName, PlacedWorker]

    @classmethod
    def of(cls, plan: Plan) -> Roles:
        return cls(plan=plan, workers={worker.name: worker for worker in placed_workers(plan)})

    @property
    def workload(self) -> Workload:
        return self.plan.workload

    def trainer(self, name: WorkerName) -> TrainerStrategy | None:
        """The strategy of a worker that trains or only runs forward passes; None if the plan has none."""
        worker = self.workers.get(name)
        return worker.strategy if worker is not None and isinstance(worker.strategy, TrainerStrategy) else None

    @property
    def actor(self) -> TrainerStrategy:
        strategy = self.trainer(WorkerName.ACTOR_TRAINER)
        if strategy is None:
            raise LookupError("the plan has no actor trainer")
        return strategy

    @property
    def rollout(self) -> RolloutStrategy:
        strategy = self.workers[WorkerName.ROLLOUT_ENGINE].strategy
        if not isinstance(strategy, RolloutStrategy):
            raise TypeError("the rollout engine has a trainer strategy")
        return strategy

    @property
    def actor_group(self) -> DeviceGroup:
        return self.workers[WorkerName.ACTOR_TRAINER].group

    @property
    def rollout_group(self) -> DeviceGroup:
        return self.workers[WorkerName.ROLLOUT_ENGINE].group

    @property
    def is_colocated(self) -> bool:
        """The rollout engine shares GPUs with the actor trainer."""
        return self.shares(WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER)

    def shares(self, one: WorkerName, other: WorkerName) -> bool:
        """Both workers are there and meet on a GPU."""
        return one in self.workers and other in self.workers and self.workers[one].overlaps(self.workers[other])

    def backend(self, rules: FrameworkRules) -> str:
        """Name of the back end that expresses the actor's strategy; empty if there is none."""
        found = backend_of(rules, self.actor, worker=WorkerName.ACTOR_TRAINER, model=self.workload.actor)
        return found.name if found is not None else ""

    def decision(self, name: WorkerName) -> str:
        """What the plan decided about a worker, for comments."""
        worker = self.workers[name]
        return f"{name.value} on device group {worker.group.id}: {describe(worker.strategy)}"

    @property
    def samples_per_step(self) -> int:
        """Responses in one optimizer step."""
        return self.workload.num_samples // self.workload.num_optimizer_steps

    @property
    def forward_tokens(self) -> int:
        """Tokens per micro-batch of log-probs, where one budget holds for the actor and the reference."""
        strategies = (self.actor, self.trainer(WorkerName.REFERENCE))
        return min(strategy.inference_tokens for strategy in strategies if strategy is not None)


def nodes_of(group: DeviceGroup, num_gpus: int | None = None) -> tuple[int, int]:
    """Nodes and GPUs per node of `num_gpus` GPUs of a group, of all of it when None."""
    used = group.num_gpus if num_gpus is None else num_gpus
    per_node = group.num_gpus // group.num_nodes
    nodes = max(1, used // per_node)
    return nodes, used // nodes


def rounded_up(tokens: int, multiple: int) -> int:
    """The next multiple: a budget must hold the longest sequence after the framework has padded it."""
    return math.ceil(tokens / multiple) * multiple
