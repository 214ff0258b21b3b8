"""The GPUs of a plan against what a framework can place: parts of the verdict."""

from __future__ import annotations

from planner.domain.framework import FrameworkRules
from planner.domain.framework_placed import PlacedWorker
from planner.domain.framework_placement import placement_problem
from planner.domain.framework_sites import sizes_fit
from planner.domain.framework_words import listed
from planner.domain.plan import Plan
from planner.domain.stages import WorkerName


def placement_problems(rules: FrameworkRules, plan: Plan, workers: tuple[PlacedWorker, ...]) -> list[str]:
    problems: list[str] = []
    groups = {frozenset(other.name for other in workers if worker.overlaps(other)) for worker in workers}
    ordered = tuple(sorted(groups, key=listed))
    problem = placement_problem(rules, ordered, frozenset(worker.name for worker in workers))
    if problem is not None:
        problems.append(f"it {problem}")
    if rules.one_pool and len({worker.group.pool for worker in workers}) > 1:
        problems.append("it cannot be told which pool a worker gets")
    if rules.shared_workers_use_whole_group:
        problems += _partial_use_problems(workers)
    problems += _node_share_problems(rules, plan, workers)
    return problems


def whole_node_problems(rules: FrameworkRules, plan: Plan, workers: tuple[PlacedWorker, ...]) -> list[str]:
    problems: list[str] = []
    for group in {worker.group.id: worker.group for worker in workers}.values() if rules.whole_nodes_only else ():
        gpus_per_node = plan.cluster.pool(group.pool).node.gpus_per_node
        if group.num_nodes > 1 and group.num_gpus != group.num_nodes * gpus_per_node:
            problems.append(
                f"it takes whole nodes, the plan has {group.num_gpus} GPUs on {group.num_nodes} nodes "
                f"of {gpus_per_node}"
            )
    return problems


def _node_share_problems(rules: FrameworkRules, plan: Plan, workers: tuple[PlacedWorker, ...]) -> list[str]:
    """Trainers and engines apart that take unequal parts of nodes."""
    by_name = {worker.name: worker for worker in workers}
    engine, trainer = by_name.get(WorkerName.ROLLOUT_ENGINE), by_name.get(WorkerName.ACTOR_TRAINER)
    if engine is None or trainer is None or engine.overlaps(trainer) or engine.group.pool != trainer.group.pool:
        return []
    per_node = plan.cluster.pool(trainer.group.pool).node.gpus_per_node
    nodes = {rank // per_node for w in (engine, trainer) for rank in (w.group.ranks.start, w.group.ranks.stop - 1)}
    sizes = trainer.group.num_gpus, engine.group.num_gpus
    if sizes_fit(rules, *sizes, per_node, is_one_node=len(nodes) == 1):
        return []
    return [
        f"it takes equally many GPUs of every node, the plan has {sizes[0]} for training and {sizes[1]} for engines"
    ]


def _partial_use_problems(workers: tuple[PlacedWorker, ...]) -> list[str]:
    problems: list[str] = []
    for index, worker in enumerate(workers):
        neighbours = [other for other in workers if worker.overlaps(other) and other is not worker]
        used, held = worker.strategy.num_gpus, worker.group.num_gpus
        if neighbours and used != held:
            problems.append(
                f"{worker.name.value} must use all GPUs that it shares with others, the plan gives it {used} of {held}"
            )
        problems += [
            f"{other.name.value} and {worker.name.value} share only a part of their GPUs"
            for other in workers[:index]
            if other in neighbours and other.group.ranks != worker.group.ranks
        ]
    return problems
