"""Small random problems under any execution: stage graphs of the algorithms and variants, with the moments that
overlapping stages are timed by."""

from __future__ import annotations

import itertools
import random

import numpy as np

from planner.cost.worker import Moment
from planner.domain.execution import Execution, ExecutionMode, Fusion
from planner.domain.stages import Role, Stage, StageGraph, StageKind, StageName, Worker, WorkerName
from planner.domain.strategy import FloatArray
from planner.search.problem import OptionTable, SearchPool, SearchProblem
from planner.units import GB
from tests.factories import dense_model
from tests.oracle.evaluation import ENDED, LAST, LAST_SHARES

ASSESSORS = (StageName.REWARD, StageName.REFERENCE_LOGPROB, StageName.OLD_LOGPROB, StageName.CRITIC_VALUE)
CROSS_POOL_FACTOR = 2.5
_LEAST_S = 0.2
_TRAINERS = (WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER)
_SYNCED = (WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER)


def random_graph(rng: random.Random, execution: Execution, *, num_workers: int, extra_edges: bool) -> StageGraph:
    """PPO, or less: two to five workers; the reward on the host, by a model, by a judge that generates, or none; the
    reference by a worker of its own or by the actor trainer (LoRA).

    `extra_edges` adds random dependencies between the stages that look at responses.
    """
    others = [WorkerName.REFERENCE, WorkerName.CRITIC_TRAINER, WorkerName.REWARD_MODEL]
    chosen = {*_SYNCED, *rng.sample(others, num_workers - 2)}
    serves: dict[WorkerName, list[StageName]] = {WorkerName.ROLLOUT_ENGINE: [StageName.ROLLOUT]}
    serves[WorkerName.ACTOR_TRAINER] = []
    if WorkerName.REFERENCE not in chosen and rng.random() < 0.2:
        serves[WorkerName.ACTOR_TRAINER].append(StageName.REFERENCE_LOGPROB)
    if execution.is_asynchronous or rng.random() < 0.7:
        serves[WorkerName.ACTOR_TRAINER].append(StageName.OLD_LOGPROB)
    serves[WorkerName.ACTOR_TRAINER].append(StageName.ACTOR_UPDATE)
    serves[WorkerName.REFERENCE] = [StageName.REFERENCE_LOGPROB]
    serves[WorkerName.CRITIC_TRAINER] = [StageName.CRITIC_VALUE, StageName.CRITIC_UPDATE]
    serves[WorkerName.REWARD_MODEL] = [StageName.REWARD]
    kinds = dict.fromkeys(WorkerName, StageKind.INFERENCE) | dict.fromkeys(_TRAINERS, StageKind.TRAINING)
    kinds[WorkerName.ROLLOUT_ENGINE] = StageKind.GENERATION
    if rng.random() < 0.3:
        kinds[WorkerName.REWARD_MODEL] = StageKind.GENERATION
    model = dense_model()
    workers = tuple(
        Worker(name=w, role=Role.ACTOR, model=model, kind=kinds[w], stages=tuple(serves[w]))
        for w in WorkerName
        if w in chosen
    )
    stages = []
    for name in StageName:
        holder = next((w for w in workers if name in w.stages), None)
        if holder is not None:
            kind = StageKind.INFERENCE if holder.kind is StageKind.TRAINING and name in ASSESSORS else holder.kind
            stages.append(Stage(name=name, kind=kind, role=Role.ACTOR, worker=holder.name))
        elif name is StageName.WEIGHT_SYNC:
            stages.append(Stage(name=name, kind=StageKind.TRANSFER, role=Role.ACTOR, worker=None))
        elif name is StageName.REWARD and rng.random() < 0.7:
            stages.append(Stage(name=name, kind=StageKind.HOST, role=Role.REWARD, worker=None))
    return StageGraph(stages=tuple(stages), workers=workers, edges=_edges(rng, stages, extra_edges=extra_edges))


def _edges(rng: random.Random, stages: list[Stage], *, extra_edges: bool) -> tuple[tuple[StageName, StageName], ...]:
    present = [stage.name for stage in stages]
    looks = [name for name in ASSESSORS if name in present]
    edges = [(StageName.ROLLOUT, name) for name in looks] + [(name, StageName.ACTOR_UPDATE) for name in looks]
    edges += [(name, StageName.CRITIC_UPDATE) for name in looks if name is not StageName.OLD_LOGPROB]
    edges += [(StageName.ACTOR_UPDATE, StageName.WEIGHT_SYNC)]
    if not looks:
        edges.append((StageName.ROLLOUT, StageName.ACTOR_UPDATE))
    if extra_edges:
        edges += [pair for pair in itertools.combinations(looks, 2) if rng.random() < 0.3]
        optional = [(StageName.CRITIC_UPDATE, StageName.WEIGHT_SYNC), (StageName.OLD_LOGPROB, StageName.CRITIC_UPDATE)]
        edges += [pair for pair in optional if rng.random() < 0.3]
    return tuple((a, b) for a, b in edges if a in present and b in present)


def random_execution_problem(
    rng: random.Random,
    execution: Execution,
    *,
    num_workers: int,
    num_pools: int = 1,
    num_options: int = 3,
    equal_size: bool = False,
    extra_edges: bool = False,
    tightness: float = 1.0,
) -> SearchProblem:
    """Pools of up to 8 GPUs; memory is tight enough that workers on shared GPUs matter (smaller `tightness`: less)."""
    graph = random_graph(rng, execution, num_workers=num_workers, extra_edges=extra_edges)
    pools = tuple(
        SearchPool(
            name=f"pool{i}",
            num_nodes=rng.randint(1, 2),
            gpus_per_node=rng.choice((2, 4)) if num_pools == 1 else 2,
            usable_bytes=rng.randint(70, 150) * GB / tightness,
            host_ram_bytes=rng.randint(60, 160) * GB / tightness,
            usd_per_gpu_hour=rng.choice((1.0, 2.0, 2.5)),
        )
        for i in range(num_pools)
    )
    options = tuple(
        _random_table(rng, worker, pool, execution, num_options)
        for pool in pools
        for worker in graph.workers
        if num_pools == 1 or rng.random() < 0.9
    )
    host = [stage.name for stage in graph.stages if stage.kind is StageKind.HOST]
    return SearchProblem(
        graph=graph,
        pools=pools,
        options=options,
        host_stage_s=tuple((name, rng.uniform(0, 15)) for name in host),
        host_least_s=_LEAST_S,
        equal_size=equal_size,
        execution=execution,
    )


def _random_table(
    rng: random.Random, worker: Worker, pool: SearchPool, execution: Execution, num_options: int
) -> OptionTable:
    sizes = [n for n in (1, 2, 4, 8) if n <= pool.num_gpus and (n < pool.gpus_per_node or n % pool.gpus_per_node == 0)]
    is_synced = worker.name in _SYNCED
    rows = []
    for _ in range(num_options):
        size = rng.choice(sizes)
        times = [rng.uniform(4, 40) / size**0.7 for _ in worker.stages]
        active = rng.uniform(15, 100) / size**0.3
        idle = active * rng.choice((0.05, 0.3, 0.7))
        sync = rng.uniform(idle, active) * is_synced
        shares = (rng.uniform(0, 3) * is_synced, rng.uniform(0, 6) * is_synced)
        rows.append((size, times, *shares, active * GB, sync * GB, idle * GB, rng.uniform(0, 60) * GB))
    columns = list(zip(*rows, strict=True))
    stage_time_s = np.array(columns[1], dtype=np.float64).T.copy()
    moments = _random_moments(rng, worker, execution, stage_time_s)
    return OptionTable(
        worker=worker.name,
        pool=pool.name,
        stages=worker.stages,
        num_gpus=np.array(columns[0], dtype=np.int64),
        stage_time_s=stage_time_s,
        sync_colocated_s=np.array(columns[2], dtype=np.float64),
        sync_disaggregated_s=np.array(columns[3], dtype=np.float64),
        sync_cross_pool_s=np.array(columns[3], dtype=np.float64) * CROSS_POOL_FACTOR,
        active_bytes=np.array(columns[4], dtype=np.float64),
        sync_bytes=np.array(columns[5], dtype=np.float64),
        idle_bytes=np.array(columns[6], dtype=np.float64),
        host_bytes=np.array(columns[7], dtype=np.float64),
        row=np.arange(num_options, dtype=np.int64),
        moments=tuple(moments),
        moment_s=np.array(list(moments.values())).reshape(len(moments), num_options),
    )


def _random_moments(
    rng: random.Random, worker: Worker, execution: Execution, stage_time_s: FloatArray
) -> dict[tuple[StageName, Moment | None], FloatArray]:
    """Moments as their docstrings have them: those of a rollout in order of time, those of an assessor at least its
    share and never more than all of it."""
    num = stage_time_s.shape[1]
    seconds = dict(zip(worker.stages, stage_time_s, strict=True))
    found: dict[tuple[StageName, Moment | None], FloatArray] = {}

    def drawn(low: float, high: float) -> FloatArray:
        return np.array([rng.uniform(low, high) for _ in range(num)])

    if worker.name is WorkerName.ROLLOUT_ENGINE:
        whole = seconds[StageName.ROLLOUT]
        if execution.mode is ExecutionMode.STREAMING:
            found[StageName.ROLLOUT, Moment.LONGEST_RESPONSE] = whole * drawn(1.0, 3.0)
        if Fusion.INTER_STAGE in execution.fusions:
            ratios = np.sort(np.array([drawn(0.1, 1.0) for _ in range(3)]), axis=0)
            for moment, ratio in zip(ENDED, ratios, strict=True):
                found[StageName.ROLLOUT, moment] = whole * ratio
            gathered = whole * ratios[-1] * drawn(1.0, 1.1)
            found[StageName.ROLLOUT, Moment.GATHERED] = gathered
            found[StageName.ROLLOUT, Moment.GATHERED_END] = np.maximum(gathered, whole * drawn(1.0, 1.2))
    elif worker.kind is not StageKind.GENERATION and Fusion.INTER_STAGE in execution.fusions:
        for stage in worker.stages:
            if stage in ASSESSORS:
                least = drawn(0.02, 0.4)
                for moment, share in zip(LAST, LAST_SHARES, strict=True):
                    found[stage, moment] = seconds[stage] * np.maximum(share, least)
    if Fusion.INTRA_STAGE in execution.fusions:
        for stage in worker.stages:
            if stage in (StageName.ACTOR_UPDATE, StageName.CRITIC_UPDATE):
                found[stage, Moment.WITHOUT_BUBBLE] = seconds[stage] * drawn(0.4, 1.0)
    return found
