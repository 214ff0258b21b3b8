"""The workers of a finished plan, with their GPUs and strategies."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.framework import TRAINING_WORKERS
from planner.domain.framework_limits import EngineSite
from planner.domain.model import Model
from planner.domain.plan import DeviceGroup, Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import Strategy
from planner.domain.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedWorker:
    """A worker of a plan: its device group and its strategy."""

    name: WorkerName
    group: DeviceGroup
    strategy: Strategy

    @property
    def trains(self) -> bool:
        return self.name in TRAINING_WORKERS

    def overlaps(self, other: PlacedWorker) -> bool:
        """True when the two share at least one GPU."""
        a, b = self.group, other.group
        return a.pool == b.pool and max(a.ranks.start, b.ranks.start) < min(a.ranks.stop, b.ranks.stop)


def placed_workers(plan: Plan) -> tuple[PlacedWorker, ...]:
    """The workers of a plan, in the order of WorkerName."""
    groups = {group.id: group for group in plan.device_groups}
    found: dict[WorkerName, PlacedWorker] = {}
    for item in plan.placements:
        if item.worker is not None and item.strategy is not None and item.worker not in found:
            found[item.worker] = PlacedWorker(name=item.worker, group=groups[item.device_group], strategy=item.strategy)
    return tuple(found[name] for name in WorkerName if name in found)


def worker_model(workload: Workload, worker: WorkerName) -> Model:
    """The model whose weights a worker of the workload's stage graph holds."""
    by_worker = {WorkerName.CRITIC_TRAINER: workload.critic, WorkerName.REWARD_MODEL: workload.reward.model}
    return by_worker.get(worker) or workload.actor


def engine_site(workers: tuple[PlacedWorker, ...]) -> EngineSite:
    by_name = {worker.name: worker for worker in workers}
    engine, trainer = by_name.get(WorkerName.ROLLOUT_ENGINE), by_name.get(WorkerName.ACTOR_TRAINER)
    shares = engine is not None and trainer is not None and engine.overlaps(trainer)
    return EngineSite.SHARED if shares else EngineSite.APART
