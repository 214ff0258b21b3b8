"""Small random search problems, and an exhaustive solver that shares no code with the search.

The exhaustive solver picks a pool, a group and an option for every worker, checks each rule of the model in plain
Python, and simulates every sequence of stages. It is slow on purpose.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import numpy as np

from planner.domain.stages import Role, Stage, StageGraph, StageKind, StageName, Worker, WorkerName
from planner.search.problem import OptionTable, SearchPool, SearchProblem
from planner.units import GB
from tests.factories import dense_model

_KIND = {
    WorkerName.ROLLOUT_ENGINE: StageKind.GENERATION,
    WorkerName.ACTOR_TRAINER: StageKind.TRAINING,
    WorkerName.REFERENCE: StageKind.INFERENCE,
    WorkerName.CRITIC_TRAINER: StageKind.TRAINING,
    WorkerName.REWARD_MODEL: StageKind.INFERENCE,
}
_PPO = {
    WorkerName.ROLLOUT_ENGINE: (StageName.ROLLOUT,),
    WorkerName.ACTOR_TRAINER: (StageName.OLD_LOGPROB, StageName.ACTOR_UPDATE),
    WorkerName.REFERENCE: (StageName.REFERENCE_LOGPROB,),
    WorkerName.CRITIC_TRAINER: (StageName.CRITIC_VALUE, StageName.CRITIC_UPDATE),
    WorkerName.REWARD_MODEL: (StageName.REWARD,),
}

CROSS_POOL_FACTOR = 3.0
"""Syncs between pools take so much longer than within one."""


def graph_of(
    workers: tuple[WorkerName, ...], *, host_reward: bool, edge_rng: random.Random | None = None
) -> StageGraph:
    """A PPO-like graph restricted to `workers`, which include the engine and the actor trainer.

    With `edge_rng` the edges are random instead (forward in stage order): then several orders of conflicting stages
    can be worth trying, which no real algorithm's graph needs.
    """
    model = dense_model()
    served = {stage: worker for worker in workers for stage in _PPO[worker]}
    stages = []
    for name in StageName:
        if name in served:
            kind = _KIND[served[name]]
            stages.append(Stage(name=name, kind=kind, role=Role.ACTOR, worker=served[name]))
        elif name is StageName.WEIGHT_SYNC:
            stages.append(Stage(name=name, kind=StageKind.TRANSFER, role=Role.ACTOR, worker=None))
        elif name is StageName.REWARD and host_reward:
            stages.append(Stage(name=name, kind=StageKind.HOST, role=Role.REWARD, worker=None))
    present = {stage.name for stage in stages}
    middle = (StageName.REWARD, StageName.REFERENCE_LOGPROB, StageName.OLD_LOGPROB, StageName.CRITIC_VALUE)
    edges = [(StageName.ROLLOUT, name) for name in middle]
    edges += [(name, StageName.ACTOR_UPDATE) for name in middle]
    edges += [(name, StageName.CRITIC_UPDATE) for name in middle if name is not StageName.OLD_LOGPROB]
    edges += [(StageName.ACTOR_UPDATE, StageName.WEIGHT_SYNC)]
    if edge_rng is not None:
        names = [stage.name for stage in stages]
        edges = [pair for pair in itertools.combinations(names, 2) if edge_rng.random() < 0.25]
    return StageGraph(
        stages=tuple(stages),
        workers=tuple(
            Worker(name=name, role=Role.ACTOR, model=model, kind=_KIND[name], stages=_PPO[name]) for name in workers
        ),
        edges=tuple((a, b) for a, b in edges if a in present and b in present),
    )


def random_problem(
    rng: random.Random,
    *,
    num_workers: int,
    num_pools: int = 1,
    num_options: int = 4,
    equal_size: bool = False,
    random_edges: bool = False,
) -> SearchProblem:
    """Up to 8 GPUs in one pool, or up to 4 per pool; memory is tight enough that co-residents interact."""
    extra = [WorkerName.REFERENCE, WorkerName.CRITIC_TRAINER, WorkerName.REWARD_MODEL]
    rng.shuffle(extra)
    chosen = {WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER, *extra[: num_workers - 2]}
    workers = tuple(name for name in WorkerName if name in chosen)
    host_reward = WorkerName.REWARD_MODEL not in chosen and rng.random() < 0.7
    pools = []
    for i in range(num_pools):
        per_node = rng.choice((2, 4)) if num_pools == 1 else 2
        pools.append(
            SearchPool(
                name=f"pool{i}",
                num_nodes=rng.randint(1, 2),
                gpus_per_node=per_node,
                usable_bytes=rng.randint(60, 130) * GB,
                host_ram_bytes=rng.randint(50, 150) * GB,
                usd_per_gpu_hour=rng.choice((1.0, 2.0, 2.5)),
            )
        )
    options = []
    for pool in pools:
        for worker in workers:
            if num_pools == 1 or rng.random() < 0.9:
                options.append(_random_table(rng, worker, pool, num_options))
    host = ((StageName.REWARD, rng.uniform(0, 15)),) if host_reward else ()
    return SearchProblem(
        graph=graph_of(workers, host_reward=host_reward, edge_rng=rng if random_edges else None),
        pools=tuple(pools),
        options=tuple(options),
        host_stage_s=host,
        equal_size=equal_size,
    )


def _random_table(rng: random.Random, worker: WorkerName, pool: SearchPool, num_options: int) -> OptionTable:
    sizes = [
        n for n in (1, 2, 4, 6, 8) if n <= pool.num_gpus and (n < pool.gpus_per_node or n % pool.gpus_per_node == 0)
    ]
    stages = _PPO[worker]
    synced = worker in (WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER)
    rows = []
    for _ in range(num_options):
        size = rng.choice(sizes)
        times = [rng.uniform(4, 40) / size**0.7 for _ in stages]
        active = rng.uniform(15, 100) / size**0.3
        idle = active * rng.choice((0.05, 0.3, 0.7))
        sync = rng.uniform(idle, active) * synced
        shares = (rng.uniform(0, 3) * synced, rng.uniform(1, 6) * synced)
        rows.append((size, times, *shares, active * GB, sync * GB, idle * GB, rng.uniform(0, 60) * GB))
    columns = list(zip(*rows, strict=True))
    return OptionTable(
        worker=worker,
        pool=pool.name,
        stages=stages,
        num_gpus=np.array(columns[0], dtype=np.int64),
        stage_time_s=np.array(columns[1], dtype=np.float64).T.copy(),
        sync_colocated_s=np.array(columns[2], dtype=np.float64),
        sync_disaggregated_s=np.array(columns[3], dtype=np.float64),
        sync_cross_pool_s=np.array(columns[3], dtype=np.float64) * CROSS_POOL_FACTOR,
        active_bytes=np.array(columns[4], dtype=np.float64),
        sync_bytes=np.array(columns[5], dtype=np.float64),
        idle_bytes=np.array(columns[6], dtype=np.float64),
        host_bytes=np.array(columns[7], dtype=np.float64),
        row=np.arange(num_options, dtype=np.int64),
    )


def _placements(workers: tuple[WorkerName, ...], pools: tuple[str, ...]) -> Iterator[dict[WorkerName, tuple[str, int]]]:
    """Every worker gets a pool and a group number; -1 is the whole pool, others are blocks."""
    labels = range(-1, len(workers))
    for assignment in itertools.product(itertools.product(pools, labels), repeat=len(workers)):
        yield dict(zip(workers, assignment, strict=True))


def _canonical(placement: dict[WorkerName, tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    seen: dict[tuple[str, int], int] = {}
    result = []
    for pool, label in placement.values():
        if label >= 0:
            label = seen.setdefault((pool, label), len(seen))
        result.append((pool, label))
    return tuple(result)


def _meet(a: tuple[str, int], b: tuple[str, int]) -> bool:
    return a[0] == b[0] and (a[1] == b[1] or -1 in (a[1], b[1]))


def exhaustive(problem: SearchProblem) -> Iterator[tuple[float, dict[str, int]]]:
    """Iteration seconds and GPUs used per pool of every feasible combination."""
    graph = problem.graph
    workers = tuple(worker.name for worker in graph.workers)
    tables = {(t.worker, t.pool): t for t in problem.options}
    done = set()
    for placement in _placements(workers, tuple(pool.name for pool in problem.pools)):
        key = _canonical(placement)
        if key in done:
            continue
        done.add(key)
        if any((w, placement[w][0]) not in tables for w in workers):
            continue
        ranges = [range(len(tables[w, placement[w][0]])) for w in workers]
        for rows in itertools.product(*ranges):
            picked = {w: (tables[w, placement[w][0]], row) for w, row in zip(workers, rows, strict=True)}
            used = _sizes(problem, placement, picked)
            if used is not None and _memory_fits(problem, placement, picked):
                yield _best_makespan(problem, placement, picked), used


def _sizes(problem, placement, picked):  # type: ignore[no-untyped-def]
    used = {}
    for pool in problem.pools:
        blocks: dict[int, list[int]] = {}
        for w, (name, label) in placement.items():
            if name == pool.name:
                table, row = picked[w]
                blocks.setdefault(label, []).append(int(table.num_gpus[row]))
        if problem.equal_size and any(len(set(sizes)) > 1 for sizes in blocks.values()):
            return None
        whole = max(blocks.pop(-1, [0]))
        total = sum(max(sizes) for sizes in blocks.values())
        if problem.equal_size and whole and total > whole:
            return None
        used[pool.name] = max(whole, total)
        if used[pool.name] > pool.num_gpus:
            return None
    return used


def _memory_fits(problem, placement, picked):  # type: ignore[no-untyped-def]
    pools = {pool.name: pool for pool in problem.pools}
    at_sync = {WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER}
    for name, label in set(placement.values()):
        here = [w for w, place in placement.items() if place in ((name, label), (name, -1))]
        get = {w: picked[w] for w in here}
        idle = {w: float(t.idle_bytes[r]) for w, (t, r) in get.items()}
        active = {w: float(t.active_bytes[r]) for w, (t, r) in get.items()}
        sync = {w: float(t.sync_bytes[r]) for w, (t, r) in get.items()}
        usable = pools[name].usable_bytes
        if any(active[w] + sum(idle[v] for v in here if v is not w) > usable + 1 for w in here):
            return False
        if at_sync & set(here) and sum(sync[w] if w in at_sync else idle[w] for w in here) > usable + 1:
            return False
        if sum(float(t.host_bytes[r]) for t, r in get.values()) > pools[name].host_ram_bytes + 1:
            return False
    return True


def _sync_share(table, engine, trainer):  # type: ignore[no-untyped-def]
    """A worker's share of the sync: on shared GPUs, within a pool, or between pools."""
    if _meet(engine, trainer):
        return table.sync_colocated_s
    return table.sync_disaggregated_s if engine[0] == trainer[0] else table.sync_cross_pool_s


def _best_makespan(problem, placement, picked):  # type: ignore[no-untyped-def]
    """Shortest iteration over all sequences of stages that respect the edges; each starts as early as it can."""
    graph = problem.graph
    engine, trainer = placement[WorkerName.ROLLOUT_ENGINE], placement[WorkerName.ACTOR_TRAINER]
    duration = dict(problem.host_stage_s)
    places = {}
    for stage in graph.stages:
        users = graph.workers_of(stage.name)
        places[stage.name] = [placement[w] for w in users]
        if stage.name is StageName.WEIGHT_SYNC:
            duration[stage.name] = sum(float(_sync_share(t, engine, trainer)[r]) for t, r in (picked[w] for w in users))
        elif users:
            table, row = picked[users[0]]
            duration[stage.name] = float(table.stage_time_s[table.stages.index(stage.name), row])
    before = {stage.name: [a for a, b in graph.edges if b is stage.name] for stage in graph.stages}
    conflict = {(a, b): any(_meet(x, y) for x in places[a] for y in places[b]) for a in places for b in places}
    best = math.inf

    def place(end, latest):  # type: ignore[no-untyped-def]
        nonlocal best
        if latest >= best:
            return
        if len(end) == len(before):
            best = latest
            return
        for name in before:
            if name not in end and all(a in end for a in before[name]):
                waits = [end[a] for a in before[name]] + [end[b] for b in end if conflict[name, b]]
                finish = max(waits, default=0.0) + duration[name]
                place({**end, name: finish}, max(latest, finish))

    place({}, 0.0)
    return best
