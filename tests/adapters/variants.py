"""Plans over models of the catalog, clusters and placements, as the pipeline would make them, without a search."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from planner.domain.execution import Execution, ExecutionMode, SchedulingPolicy
from planner.domain.plan import DeviceGroup, Plan
from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import EngineIdle, Offload, RolloutStrategy, Strategy, TrainerStrategy
from planner.domain.workload import Workload
from planner.files.catalog import load_model
from tests.adapters.plans import colocated, engine, forward_only, make_plan
from tests.factories import workload

SYNC, BATCHES, STREAMING = ExecutionMode.SYNCHRONOUS, ExecutionMode.BATCHES, ExecutionMode.STREAMING


@cache
def catalog_workload(model: str, algorithm: str = "grpo", **changes: int) -> Workload:
    """1024 + 8192 tokens on a model of the catalog, which is actor and critic."""
    load = workload(algorithm, **changes)  # type: ignore[arg-type]
    found = load_model(model)
    return replace(load, actor=found, critic=found if load.critic is not None else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """GPUs of the training workers and of the rollout; other groups follow in `others` (worker -> GPUs)."""

    train_gpus: int
    rollout_gpus: int


def split_plan(
    load: Workload,
    trainer: TrainerStrategy,
    rollout: RolloutStrategy,
    *,
    mode: ExecutionMode = SYNC,
    staleness: int = 0,
    apart: tuple[WorkerName, ...] = (),
) -> Plan:
    """Training workers on one group, the rollout on the next GPUs, and each worker of `apart` on further ones."""
    strategies = {**colocated(load, trainer, rollout)}
    nodes = -(-(trainer.num_gpus + rollout.num_gpus + len(apart) * trainer.num_gpus) // 8)
    plan = make_plan(load, strategies, num_nodes=nodes)
    sizes: list[tuple[frozenset[WorkerName], Strategy]] = [
        (frozenset({WorkerName.ROLLOUT_ENGINE}), rollout),
        *((frozenset({name}), strategies[name]) for name in apart),
    ]
    groups = [_group("train", 0, trainer.num_gpus)]
    of_worker: dict[WorkerName, str] = {}
    start = trainer.num_gpus
    for index, (names, strategy) in enumerate(sizes):
        groups.append(_group(f"g{index + 1}", start, strategy.num_gpus))
        of_worker.update(dict.fromkeys(names, f"g{index + 1}"))
        start += strategy.num_gpus
    placements = tuple(
        replace(item, device_group=of_worker.get(item.worker, "train") if item.worker is not None else "train")
        for item in plan.placements
    )
    period_s = None if mode is SYNC else 0.6 * plan.makespan_s
    execution = Execution(mode=mode, staleness=staleness, policy=SchedulingPolicy.SEQUENTIAL)
    return replace(plan, device_groups=tuple(groups), placements=placements, execution=execution, period_s=period_s)


def _group(name: str, first: int, size: int) -> DeviceGroup:
    nodes = (first + size - 1) // 8 - first // 8 + 1
    return DeviceGroup(id=name, pool="pool", gpu="h100", first_gpu=first, num_gpus=size, num_nodes=nodes)


def shared_plan(load: Workload, trainer: TrainerStrategy, rollout: RolloutStrategy) -> Plan:
    """Everything on one group."""
    nodes = max(1, trainer.num_gpus // 8)
    plan = make_plan(load, colocated(load, trainer, rollout), num_nodes=nodes)
    return replace(plan, device_groups=(_group("g0", 0, trainer.num_gpus),))


def with_strategy(plan: Plan, worker: WorkerName, strategy: Strategy) -> Plan:
    """The plan with another strategy of one worker."""
    placements = tuple(replace(p, strategy=strategy) if p.worker is worker else p for p in plan.placements)
    return replace(plan, placements=placements)


def without_stage(plan: Plan, stage: StageName) -> Plan:
    return replace(
        plan,
        placements=tuple(p for p in plan.placements if p.stage is not stage),
        schedule=tuple(s for s in plan.schedule if s.stage is not stage),
    )


__all__ = [
    "BATCHES",
    "STREAMING",
    "SYNC",
    "EngineIdle",
    "Offload",
    "catalog_workload",
    "engine",
    "forward_only",
    "shared_plan",
    "split_plan",
    "with_strategy",
    "without_stage",
]
