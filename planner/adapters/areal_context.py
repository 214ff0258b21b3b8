"""What every part of AReaL's configuration asks about a plan."""

from __future__ import annotations

from dataclasses import dataclass

from planner.adapters.export import describe
from planner.adapters.yaml_text import YamlValue
from planner.domain.framework import FrameworkRules
from planner.domain.framework_placed import PlacedWorker, placed_workers, worker_model
from planner.domain.framework_trainers import backend_of
from planner.domain.plan import Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import Offload, RolloutStrategy, TrainerStrategy
from planner.domain.workload import Workload

Entries = tuple[tuple[str, YamlValue], ...]

ROLES = {
    WorkerName.ACTOR_TRAINER: "actor",
    WorkerName.CRITIC_TRAINER: "critic",
    WorkerName.REFERENCE: "ref",
}
"""Trainer roles in the order in which AReaL starts them: a colocated role needs its target first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArealContext:
    """A plan's workers by name, and the back end of each trainer."""

    plan: Plan
    workers: dict[WorkerName, PlacedWorker]
    backends: dict[WorkerName, str]

    @classmethod
    def of(cls, plan: Plan, rules: FrameworkRules) -> ArealContext:
        workers = {worker.name: worker for worker in placed_workers(plan)}
        backends: dict[WorkerName, str] = {}
        for name, worker in workers.items():
            if isinstance(worker.strategy, TrainerStrategy):
                model = worker_model(plan.workload, name)
                found = backend_of(rules, worker.strategy, worker=name, model=model)
                backends[name] = "megatron" if found is None else found.name
        return cls(plan=plan, workers=workers, backends=backends)

    @property
    def workload(self) -> Workload:
        return self.plan.workload

    @property
    def engine(self) -> RolloutStrategy:
        strategy = self.workers[WorkerName.ROLLOUT_ENGINE].strategy
        if isinstance(strategy, TrainerStrategy):
            raise TypeError("the rollout engine has a trainer strategy")
        return strategy

    def trainer(self, name: WorkerName) -> TrainerStrategy:
        strategy = self.workers[name].strategy
        if isinstance(strategy, RolloutStrategy):
            raise TypeError(f"the {name.value} has a rollout strategy")
        return strategy

    @property
    def gpus_per_node(self) -> int:
        return self.plan.cluster.pool(self.workers[WorkerName.ROLLOUT_ENGINE].group.pool).node.gpus_per_node

    @property
    def engine_kind(self) -> str:
        """SGLang, but for adapters that Megatron trains: AReaL hands these to vLLM only."""
        is_megatron = self.backends[WorkerName.ACTOR_TRAINER] == "megatron"
        return "vllm" if self.workload.lora_rank is not None and is_megatron else "sglang"

    @property
    def num_nodes(self) -> int:
        """Nodes that hold a GPU of the plan."""
        return sum(self.plan.num_nodes_used.values())

    @property
    def has_offload(self) -> bool:
        return any(self.trainer(name).offload is not Offload.NONE for name in self.backends)

    def decision(self, name: WorkerName) -> str:
        worker = self.workers[name]
        return f"{name.value} on device group {worker.group.id}: {describe(worker.strategy)}"
