"""Plans over models, clusters and placements, as the pipeline would make them, for frameworks that split GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from planner.domain.execution import Execution, ExecutionMode, SchedulingPolicy
from planner.domain.framework_trainers import pipeline_ends
from planner.domain.hardware import Cluster, Pool
from planner.domain.lengths import LengthLaw
from planner.domain.model import Model
from planner.domain.plan import DeviceGroup, GpuMemory, NamedValue, Placement, Plan, ScheduledStage
from planner.domain.stages import StageKind, WorkerName, build_graph
from planner.domain.strategy import (
    ContextParallel,
    EngineIdle,
    Offload,
    Recompute,
    RolloutStrategy,
    Sharding,
    Strategy,
    TrainerStrategy,
)
from planner.domain.workload import RewardKind, Workload
from planner.files.catalog import load_model
from tests.adapters.plans import GIB, make_plan, node
from tests.factories import workload as dense_workload

TRAINERS = (WorkerName.ACTOR_TRAINER, WorkerName.REFERENCE, WorkerName.CRITIC_TRAINER)
SYNCHRONOUS = Execution(policy=SchedulingPolicy.SEQUENTIAL)
ONE_STEP_OFF = Execution(mode=ExecutionMode.BATCHES, staleness=1, policy=SchedulingPolicy.SEQUENTIAL)
STREAMING = Execution(mode=ExecutionMode.STREAMING, staleness=2, policy=SchedulingPolicy.SEQUENTIAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A device group of a test plan: GPUs from the end of the one before, and who sits there."""

    num_gpus: int
    workers: tuple[WorkerName, ...]


@cache
def model(name: str) -> Model:
    return load_model(name)


def load(name: str, algorithm: str = "grpo", *, lora_rank: int | None = None, kl: float | None = None,
         reward: RewardKind = RewardKind.RULE, old_logprob: bool = True, group: int = 16) -> Workload:  # fmt: skip
    """A workload of 1,024 + 3,072 tokens on a model of the catalog."""
    actor = model(name)
    base = dense_workload(
        algorithm, lora_rank=lora_rank, kl=kl, reward=reward, old_logprob=old_logprob, group=group, prompts=256
    )
    return replace(
        base, actor=actor, critic=actor if base.critic is not None else None,
        response=LengthLaw(mean_tokens=1024, cv=0.6, max_tokens=3072),
    )  # fmt: skip


def megatron(num_gpus: int, *, tp: int = 4, pp: int = 1, cp: int = 1, **changes: object) -> TrainerStrategy:
    strategy = TrainerStrategy(
        num_gpus=num_gpus, tp=tp, pp=pp, vpp=1, cp=cp, context_parallel=ContextParallel.RING, ep=1, etp=tp,
        sharding=Sharding.ZERO1, shard_ranks=num_gpus // (tp * pp), micro_batch_tokens=8192,
        inference_tokens=16384, recompute=Recompute.FULL, offload=Offload.STATE_SWAP,
    )  # fmt: skip
    return replace(strategy, **changes)  # type: ignore[arg-type]


def fsdp(num_gpus: int, *, tp: int = 1, cp: int = 2, **changes: object) -> TrainerStrategy:
    strategy = TrainerStrategy(
        num_gpus=num_gpus, tp=tp, pp=1, vpp=1, cp=cp, context_parallel=ContextParallel.ULYSSES, ep=1, etp=1,
        sharding=Sharding.ZERO3, shard_ranks=num_gpus // tp, micro_batch_tokens=8192, inference_tokens=16384,
        recompute=Recompute.FULL, offload=Offload.NONE,
    )  # fmt: skip
    return replace(strategy, **changes)  # type: ignore[arg-type]


def engine(num_gpus: int, *, tp: int = 4, **changes: object) -> RolloutStrategy:
    strategy = RolloutStrategy(
        num_gpus=num_gpus, tp=tp, pp=1, ep=1, engine_fraction=0.8, max_num_seqs=256, idle=EngineIdle.RESIDENT
    )
    return replace(strategy, **changes)  # type: ignore[arg-type]


def forward_only(strategy: TrainerStrategy, *, offload: Offload = Offload.STATE_SWAP) -> TrainerStrategy:
    sharding = Sharding.ZERO3 if strategy.sharding is Sharding.ZERO3 else Sharding.DDP
    return replace(strategy, sharding=sharding, recompute=Recompute.NONE, offload=offload, vpp=1)


def strategies(trainer: TrainerStrategy, rollout: RolloutStrategy) -> dict[WorkerName, Strategy]:
    """One layout for actor and critic, the same for the reference."""
    return {
        WorkerName.ROLLOUT_ENGINE: rollout,
        WorkerName.ACTOR_TRAINER: trainer,
        WorkerName.CRITIC_TRAINER: trainer,
        WorkerName.REFERENCE: forward_only(trainer),
    }


def split_plan(
    work: Workload,
    placed: dict[WorkerName, Strategy],
    groups: tuple[Group, ...],
    *,
    execution: Execution = SYNCHRONOUS,
    gpus_per_node: int = 8,
) -> Plan:
    """A plan whose groups follow each other on one pool."""
    total = sum(group.num_gpus for group in groups)
    pool = Pool(name="pool", node=node(gpus_per_node), num_nodes=-(-total // gpus_per_node), usd_per_gpu_hour=2.0)
    devices: list[DeviceGroup] = []
    first = 0
    for index, group in enumerate(groups):
        nodes = (first + group.num_gpus - 1) // gpus_per_node - first // gpus_per_node + 1
        devices.append(
            DeviceGroup(
                id=f"g{index}", pool="pool", gpu="h100", first_gpu=first, num_gpus=group.num_gpus, num_nodes=nodes
            )
        )
        first += group.num_gpus
    base = make_plan(work, {**placed, WorkerName.REWARD_MODEL: placed[WorkerName.ACTOR_TRAINER]})
    stages = {stage.name: stage for stage in build_graph(work).stages}
    where = {name: devices[i].id for i, group in enumerate(groups) for name in group.workers}

    def moved(item: Placement) -> Placement:
        is_engine = item.worker is WorkerName.ROLLOUT_ENGINE
        memory = item.gpu_memory
        if is_engine and stages[item.stage].kind is StageKind.GENERATION:
            terms = (("weights", 16.0), ("kv_cache", 40.0), ("engine_graphs", 2.0), ("idle: others", 2.0))
            memory = GpuMemory(
                instant="decode",
                terms=tuple(NamedValue(name=n, value=v * GIB) for n, v in terms),
                usable_bytes=72 * GIB,
            )
        group = devices[0].id if item.worker is None else where[item.worker]
        return replace(item, device_group=group, gpu_memory=memory)

    placements = tuple(moved(item) for item in base.placements)
    by_stage = {item.stage: item.device_group for item in placements}
    schedule = tuple(
        ScheduledStage(stage=s.stage, device_groups=(by_stage[s.stage],), start_s=s.start_s, end_s=s.end_s)
        for s in base.schedule
    )
    return replace(
        base, cluster=Cluster(pools=(pool,)), device_groups=tuple(devices), placements=placements, schedule=schedule,
        execution=execution, period_s=base.makespan_s / 2 if execution.is_asynchronous else None,
    )  # fmt: skip


def apart(
    work: Workload, trainer: TrainerStrategy, rollout: RolloutStrategy, *, execution: Execution = SYNCHRONOUS,
    gpus_per_node: int = 8,
) -> Plan:  # fmt: skip
    """Trainers on the first GPUs, engines on the others."""
    groups = (
        Group(num_gpus=trainer.num_gpus, workers=TRAINERS),
        Group(num_gpus=rollout.num_gpus, workers=(WorkerName.ROLLOUT_ENGINE,)),
    )
    return split_plan(work, strategies(trainer, rollout), groups, execution=execution, gpus_per_node=gpus_per_node)


def together(work: Workload, trainer: TrainerStrategy, rollout: RolloutStrategy, *, gpus_per_node: int = 8) -> Plan:
    """Everything on the same GPUs."""
    groups = (Group(num_gpus=trainer.num_gpus, workers=(*TRAINERS, WorkerName.ROLLOUT_ENGINE)),)
    return split_plan(work, strategies(trainer, rollout), groups, gpus_per_node=gpus_per_node)


def splits(name: str, pp: int) -> bool:
    """Whether the layers of a model can be cut into `pp` pipeline ranks."""
    layers = model(name).num_layers
    return layers % pp == 0 or pipeline_ends(layers, pp) is not None
