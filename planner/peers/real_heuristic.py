"""The placement that ReaL starts from when it does not search (the default of its quick start), in our space.

With n >= 2 nodes: generation on all of them with TP 1 and as many pipeline stages as nodes; the actor trains on
ceil(n a / (a + c)) of them, a and c being the weights of actor and critic, and the critic on the rest, each with DP 2,
TP 4 and a pipeline stage per node; reference on all nodes; reward on the first half, values on the second. On one node
the actor trains on the first half of the GPUs and the critic on the second.

What differs here: values are computed where the critic trains, since our space has no second copy of its weights;
degrees that our space lacks are rounded down; states are sharded as in its memory model (a distributed optimizer at
most); and the knobs that ReaL does not have (micro-batches, recomputation, offload) are chosen best.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import numpy as np

from planner.domain.hardware import Pool
from planner.domain.model import Model
from planner.domain.stages import WorkerName
from planner.domain.strategy import SHARDINGS, BoolArray, RolloutTable, Sharding, StrategyTable
from planner.peers.by_hand import on_meshes
from planner.peers.meshes import Mesh
from planner.peers.tables import Keep
from planner.peers.task import Configured, PeerPlan, PeerTask, Stopwatch, no_plan, peer_plan

NAME = "ReaL, heuristic"
DESCRIPTION = "generation and reference on everything, actor and critic train side by side in proportion to their size"
SMALL_MODEL_PARAMS = 7.5e9
"""On one node models up to 7B train with TP 2 and DP 2, larger ones with TP 4."""
_MEGATRON = tuple(SHARDINGS.index(level) for level in (Sharding.DDP, Sharding.ZERO1))


def real_heuristic(task: PeerTask) -> PeerPlan:
    """The heuristic's plan, on the pool where it is fastest."""
    watch = Stopwatch()
    best: tuple[Configured, float] | None = None
    problem = ""
    for pool in task.pools:
        meshes, keeps = _one_node(task, pool) if pool.num_nodes == 1 else _nodes(task, pool)
        found = on_meshes(task, meshes, keeps)
        if isinstance(found, str):
            problem = found
        elif best is None or found.solution.time_s < best[0].solution.time_s:
            best = found, watch.elapsed_s
    if best is None:
        return no_plan(
            name=NAME,
            description=DESCRIPTION,
            problem=problem,
            took_s=watch.elapsed_s,
            evaluations=len(task.pools),
        )
    return peer_plan(
        task,
        best[0],
        name=NAME,
        description=DESCRIPTION,
        found_after_s=best[1],
        took_s=watch.elapsed_s,
        evaluations=len(task.pools),
    )


def _nodes(task: PeerTask, pool: Pool) -> tuple[Mapping[WorkerName, Mesh], Mapping[WorkerName, Keep]]:
    per_node, num_nodes = pool.node.gpus_per_node, pool.num_nodes
    everything = Mesh(pool=pool.name, first_gpu=0, num_gpus=pool.num_gpus)
    actor_nodes = num_nodes
    if WorkerName.CRITIC_TRAINER in task.workers:
        actor, critic = _model(task, WorkerName.ACTOR_TRAINER), _model(task, WorkerName.CRITIC_TRAINER)
        share = actor.num_params / (actor.num_params + critic.num_params)
        actor_nodes = min(num_nodes - 1, ceil(num_nodes * share))
    split_gpus = actor_nodes * per_node
    meshes = {
        WorkerName.ROLLOUT_ENGINE: everything,
        WorkerName.ACTOR_TRAINER: Mesh(pool=pool.name, first_gpu=0, num_gpus=split_gpus),
        WorkerName.REFERENCE: everything,
        WorkerName.CRITIC_TRAINER: Mesh(
            pool=pool.name, first_gpu=split_gpus, num_gpus=(num_nodes - actor_nodes) * per_node
        ),
        WorkerName.REWARD_MODEL: Mesh(pool=pool.name, first_gpu=0, num_gpus=num_nodes // 2 * per_node),
    }
    keeps = {
        worker: _engine(tp=1, pp=max(2, num_nodes))
        if _generates(task, worker)
        else _trainer(tp=4, pp=mesh.num_gpus // per_node)
        for worker, mesh in meshes.items()
        if worker in task.workers
    }
    return {worker: meshes[worker] for worker in task.workers}, keeps


def _one_node(task: PeerTask, pool: Pool) -> tuple[Mapping[WorkerName, Mesh], Mapping[WorkerName, Keep]]:
    everything = Mesh(pool=pool.name, first_gpu=0, num_gpus=pool.num_gpus)
    half = max(1, pool.num_gpus // 2)
    first = Mesh(pool=pool.name, first_gpu=0, num_gpus=half)
    second = Mesh(pool=pool.name, first_gpu=pool.num_gpus - half, num_gpus=half)
    has_critic = WorkerName.CRITIC_TRAINER in task.workers
    meshes = {
        WorkerName.ROLLOUT_ENGINE: everything,
        WorkerName.ACTOR_TRAINER: first if has_critic else everything,
        WorkerName.REFERENCE: everything,
        WorkerName.CRITIC_TRAINER: second,
        WorkerName.REWARD_MODEL: first,
    }
    keeps = {
        worker: _engine(tp=1, pp=2)
        if _generates(task, worker)
        else _trainer(tp=2 if _model(task, worker).num_params <= SMALL_MODEL_PARAMS else 4, pp=1)
        for worker in task.workers
    }
    return {worker: meshes[worker] for worker in task.workers}, keeps


def _model(task: PeerTask, worker: WorkerName) -> Model:
    return task.inputs.graph.worker(worker).model


def _generates(task: PeerTask, worker: WorkerName) -> bool:
    return any(item.worker.name is worker and isinstance(item.candidates, RolloutTable) for item in task.priced)


def _engine(*, tp: int, pp: int) -> Keep:
    def keep(table: StrategyTable) -> BoolArray:
        return _degrees(table, np.ones(len(table), dtype=np.bool_), tp, pp)

    return keep


def _trainer(*, tp: int, pp: int) -> Keep:
    def keep(table: StrategyTable) -> BoolArray:
        assert not isinstance(table, RolloutTable)
        plain = (table.cp == 1) & (table.vpp == 1) & np.isin(table.sharding, _MEGATRON)
        return _degrees(table, plain, tp, pp)

    return keep


def _degrees(table: StrategyTable, allowed: BoolArray, tp: int, pp: int) -> BoolArray:
    """The largest legal TP up to `tp`, then the most pipeline stages up to `pp`."""
    allowed = allowed & (table.tp <= tp) & (table.pp <= pp)
    allowed &= table.tp == np.max(table.tp, where=allowed, initial=0.0)
    return np.asarray(allowed & (table.pp == np.max(table.pp, where=allowed, initial=0.0)))
