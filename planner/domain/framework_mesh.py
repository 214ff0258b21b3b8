"""What workers on one device group must have in common: back end, degrees, one setting."""

from __future__ import annotations

import numpy as np

from planner.domain.framework import ONE_BACKEND_WORKERS, FrameworkRules
from planner.domain.framework_trainers import first_backends
from planner.domain.model import Model
from planner.domain.stages import WorkerName
from planner.domain.strategy import OFFLOADS, RECOMPUTES, SHARDINGS, IntArray, Sharding, TrainerTable


def coupled_workers(rules: FrameworkRules) -> tuple[WorkerName, ...]:
    """Workers with one choice of back end: a reward model too where it runs on the trainers'."""
    joins = any({WorkerName.ACTOR_TRAINER, WorkerName.REWARD_MODEL} <= backend.workers for backend in rules.backends)
    return (*ONE_BACKEND_WORKERS, WorkerName.REWARD_MODEL) if joins else ONE_BACKEND_WORKERS


def mesh_keys(
    rules: FrameworkRules,
    table: TrainerTable,
    *,
    trains: bool,
    with_vpp: bool,
    worker: WorkerName | None = None,
    model: Model | None = None,
) -> IntArray:
    """Equal keys may be combined on one device group; shape (num_candidates,), -1 for rows that are rejected.

    Actor, critic and reference use one back end, and where it `shares_mesh` also one set of degrees. Compare
    actor and critic with `with_vpp`, either of them and the reference without: a forward-only pass follows the
    virtual pipeline of the trainers. Where a back end has `one_setting`, its parts are compared in the same way.
    """
    backend = first_backends(rules, table, trains=trains, worker=worker, model=model)
    shares = np.array([b.shares_mesh for b in rules.backends] + [False])[backend]
    key = backend.copy()
    columns = (table.tp, table.pp, table.cp, table.ep, table.etp, *((table.vpp,) if with_vpp else ()))
    for column in columns:
        # Degrees are below 512; 512**6 * 6 back ends * 80 settings fit in 63 bits.
        key = np.where(shares, key * 512 + column.astype(np.int64), key)
    has_one = np.array([b.one_setting for b in rules.backends] + [False])[backend]
    key = np.where(has_one, key * (_NUM_SETTINGS + 1) + _setting(table, of_trainers=with_vpp), key)
    return np.where(backend < 0, -1, key)


_NUM_SETTINGS = len(SHARDINGS) * len(OFFLOADS) * len(RECOMPUTES)


def _setting(table: TrainerTable, *, of_trainers: bool) -> IntArray:
    """What a back end with one setting can tell apart between trainers, or between any two workers."""
    if not of_trainers:
        return np.asarray(table.sharding == SHARDINGS.index(Sharding.ZERO3), dtype=np.int64)
    code = (table.sharding * len(OFFLOADS) + table.offload) * len(RECOMPUTES) + table.recompute
    return np.asarray(code, dtype=np.int64)
