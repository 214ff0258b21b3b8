"""Frameworks whose workers share processes: actor, critic and reference must have the same degrees.

The options are split by those degrees. Each part is an ordinary search problem with a lower bound, so that parts
which cannot beat the plan found so far are never searched. The certificate is the minimum over parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.execution import Execution, SchedulingPolicy
from planner.domain.framework import FrameworkRules
from planner.domain.framework_budgets import budget_keys
from planner.domain.framework_mesh import coupled_workers, mesh_keys
from planner.domain.stages import StageKind, StageName, WorkerName
from planner.domain.strategy import IntArray, TrainerTable
from planner.search.options import runs, take
from planner.search.pricing import PricedWorker
from planner.search.problem import OptionTable, SearchProblem
from planner.search.timing import ASSESSING

Keys = Mapping[tuple[WorkerName, str], IntArray]
RowsByKey = Mapping[tuple[WorkerName, str], Mapping[int, IntArray]]
NO_ROWS: IntArray = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A sub-problem with equal degrees; no plan of it takes less than `bound_s`."""

    problem: SearchProblem
    bound_s: float


def option_keys(rules: FrameworkRules, priced: Sequence[PricedWorker], *, with_vpp: bool) -> Keys:
    """What options of the workers that one back end configures must have in common, by (worker, pool); -1 for options
    that no back end has."""
    has_critic = any(item.worker.name is WorkerName.CRITIC_TRAINER for item in priced)
    keys: dict[tuple[WorkerName, str], IntArray] = {}
    budgets: dict[tuple[WorkerName, str], IntArray] = {}
    for item in priced:
        if item.worker.name not in coupled_workers(rules) or not isinstance(item.candidates, TrainerTable):
            continue
        place, table = (item.worker.name, item.pool.name), item.candidates.take(item.options.row)
        keys[place] = mesh_keys(
            rules,
            table,
            trains=item.worker.kind is StageKind.TRAINING,
            with_vpp=with_vpp,
            worker=item.worker.name,
            model=item.worker.model,
        )
        budgets[place] = budget_keys(rules, table, item.worker.name, among_trainers=with_vpp, has_critic=has_critic)
    return _joined(keys, budgets)


def _joined(keys: Keys, budgets: Keys) -> Keys:
    """Both keys as one number, the same one at every place."""
    if not any(values.any() for values in budgets.values()):
        return keys
    pairs = np.concatenate([np.stack([keys[place], budgets[place]]) for place in keys], axis=1)
    _, number = np.unique(pairs, axis=1, return_inverse=True)
    number = np.where(pairs[0] < 0, -1, number.reshape(-1))
    ends = np.cumsum([len(values) for values in keys.values()])
    return dict(zip(keys, np.split(number, ends[:-1]), strict=True))


def parts(rules: FrameworkRules, priced: Sequence[PricedWorker], problem: SearchProblem) -> tuple[Part, ...]:
    """Sub-problems with equal degrees, most promising first; their union holds every legal combination."""
    base = option_keys(rules, priced, with_vpp=False)
    if len({worker for worker, _ in base}) < 2:
        return (Part(problem=problem, bound_s=0.0),)
    trainers = [w for w in (WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER) if any(w is k[0] for k in base)]
    fine = option_keys(rules, priced, with_vpp=len(trainers) > 1)
    serial = _serial_workers(rules, problem)
    result: list[Part] = []
    fine_rows, base_rows = _rows_by_key(fine), _rows_by_key(base)
    for fine_key, base_key in _pairs(fine, base, trainers[0]):
        tables = tuple(_restrict(table, fine_rows, base_rows, fine_key, base_key) for table in problem.options)
        if all(_worker_has_options(tables, worker.name) for worker in problem.graph.workers):
            result.append(
                Part(problem=replace(problem, options=tables), bound_s=_serial_s(tables, serial, problem.execution))
            )
    return tuple(sorted(result, key=lambda part: part.bound_s))


def _pairs(fine: Keys, base: Keys, trainer: WorkerName) -> tuple[tuple[int, int], ...]:
    """Distinct (fine key, base key) of the first trainer, over all pools."""
    pairs: set[tuple[int, int]] = set()
    for (worker, pool), values in fine.items():
        if worker is trainer:
            both = np.unique(np.stack([values, base[worker, pool]]), axis=1)
            pairs.update((int(a), int(b)) for a, b in both.T if a >= 0)
    return tuple(sorted(pairs))


def _rows_by_key(keys: Keys) -> RowsByKey:
    """The rows of each key, ascending. There can be thousands of keys, so no key looks at all rows again."""
    result: dict[tuple[WorkerName, str], Mapping[int, IntArray]] = {}
    for place, values in keys.items():
        order = np.argsort(values, kind="stable")
        result[place] = {key: order[where] for key, where in runs(values[order]).items()}
    return result


def _restrict(table: OptionTable, fine: RowsByKey, base: RowsByKey, fine_key: int, base_key: int) -> OptionTable:
    place = (table.worker, table.pool)
    if place not in base:
        return table
    of_fine, of_base = fine[place].get(fine_key, NO_ROWS), base[place].get(base_key, NO_ROWS)
    if table.worker is WorkerName.ACTOR_TRAINER:
        # What the critic has in common with it need not be what forward-only workers have.
        rows = np.intersect1d(of_fine, of_base, assume_unique=True)
    else:
        rows = of_fine if table.worker is WorkerName.CRITIC_TRAINER else of_base
    return take(table, rows)


def _worker_has_options(tables: Sequence[OptionTable], worker: WorkerName) -> bool:
    return any(table.worker is worker and len(table) for table in tables)


def _serial_workers(rules: FrameworkRules, problem: SearchProblem) -> frozenset[WorkerName]:
    """Workers that never run at the same time: those on the same GPUs. In synchronous iterations without fusion all
    others wait for the rollout, and the update waits for them; a sequential controller waits for each stage."""
    together = max(rules.must_share, key=len, default=frozenset[WorkerName]())
    execution = problem.execution
    if execution.is_asynchronous or execution.fusions:
        return together
    if execution.policy is SchedulingPolicy.SEQUENTIAL:
        return frozenset(worker.name for worker in problem.graph.workers)
    return together | {WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER}


def _serial_s(tables: Sequence[OptionTable], serial: frozenset[WorkerName], execution: Execution) -> float:
    """Seconds that workers which never run at the same time take, each with its fastest option.

    Rollouts of asynchronous plans run beside them, and with fusion so do assessors.
    """
    with_sync = WorkerName.ROLLOUT_ENGINE in serial
    fastest: dict[WorkerName, float] = {}
    for table in tables:
        counted = [i for i, stage in enumerate(table.stages) if _is_serial(stage, execution)]
        if len(table) and table.worker in serial:
            seconds = table.stage_time_s[counted].sum(axis=0)
            if with_sync:
                syncs = (table.sync_colocated_s, table.sync_disaggregated_s, table.sync_cross_pool_s)
                seconds = seconds + np.min(syncs, axis=0)
            fastest[table.worker] = min(float(seconds.min()), fastest.get(table.worker, np.inf))
    return sum(fastest.values())


def _is_serial(stage: StageName, execution: Execution) -> bool:
    if execution.is_asynchronous:
        return stage is not StageName.ROLLOUT
    return not execution.fusions or (stage is not StageName.ROLLOUT and stage not in ASSESSING)
