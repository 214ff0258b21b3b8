"""What a framework can run depending on where the engines sit: on the trainers' GPUs, or on their own."""

from __future__ import annotations

import numpy as np

from planner.domain.execution import ExecutionMode
from planner.domain.framework import TRAINING_WORKERS, FrameworkRules
from planner.domain.framework_limits import EngineSite, OffloadRule
from planner.domain.framework_trainers import first_backends
from planner.domain.model import Model
from planner.domain.stages import ROLLOUT_ENGINES, WorkerName
from planner.domain.strategy import (
    ENGINE_IDLES,
    OFFLOADS,
    BoolArray,
    EngineIdle,
    IntArray,
    RolloutTable,
    StrategyTable,
)


def depends_on_site(rules: FrameworkRules) -> bool:
    """Whether any rule asks where the engines sit."""
    return bool(rules.offload_rules or rules.engine_idles_apart is not None or rules.equal_gpus_per_node)


def idles_at(rules: FrameworkRules, site: EngineSite) -> frozenset[EngineIdle]:
    """What engines may keep on their GPUs while other workers run."""
    if site is EngineSite.APART and rules.engine_idles_apart is not None:
        return rules.engine_idles_apart
    return rules.engine_idles


def allowed_at(
    rules: FrameworkRules,
    table: StrategyTable,
    worker: WorkerName,
    model: Model,
    mode: ExecutionMode,
    site: EngineSite,
) -> BoolArray:
    """Candidates of a worker that the framework can run at a site; shape (num_candidates,)."""
    if isinstance(table, RolloutTable):
        if worker not in ROLLOUT_ENGINES:
            return np.full(len(table), True)
        allowed = np.array([idle in idles_at(rules, site) for idle in ENGINE_IDLES])
        return np.asarray(allowed[table.idle.astype(np.int64)])
    keep = np.full(len(table), True)
    if worker not in TRAINING_WORKERS or not rules.offload_rules:
        return keep
    backend = first_backends(rules, table, trains=True, worker=worker, model=model)
    for number, name in enumerate(item.name for item in rules.backends):
        for rule in rules.offload_rules:
            if rule.holds_for(worker, name, mode, site):
                keep &= (backend != number) | _has(rule, table.offload.astype(np.int64))
    return keep


def site_classes(rules: FrameworkRules, table: StrategyTable, worker: WorkerName) -> IntArray:
    """Equal for candidates that are allowed at the same sites whatever the execution: only these may be compared."""
    key = np.zeros(len(table), dtype=np.int64)
    if isinstance(table, RolloutTable):
        return table.idle.astype(np.int64) if rules.engine_idles_apart is not None else key
    for rule in rules.offload_rules if worker in TRAINING_WORKERS else ():
        key = key * 2 + _has(rule, table.offload.astype(np.int64))
    return key


def _has(rule: OffloadRule, offload: IntArray) -> BoolArray:
    allowed = np.array([mode in rule.offloads for mode in OFFLOADS])
    return np.asarray(allowed[offload])


def sizes_fit(
    rules: FrameworkRules, trainer_gpus: int, engine_gpus: int, gpus_per_node: int, *, is_one_node: bool
) -> bool:
    """Whether trainers and engines apart from them have sizes that the framework can place."""
    if not rules.equal_gpus_per_node or is_one_node:
        return True
    return trainer_gpus % gpus_per_node == 0 and engine_gpus % gpus_per_node == 0
