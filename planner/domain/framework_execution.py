"""How a plan runs its iterations and stages, against what a framework does: parts of the verdict."""

from __future__ import annotations

from math import ceil

from planner.domain.execution import Execution, ExecutionMode, SchedulingPolicy
from planner.domain.framework import FrameworkRules
from planner.domain.framework_placed import PlacedWorker
from planner.domain.framework_sync import sync_problems
from planner.domain.framework_words import joined
from planner.domain.framework_workload import batches_problem, streaming_problem
from planner.domain.plan import Plan
from planner.domain.stages import StageName, WorkerName
from planner.domain.workload import Workload


def execution_problems(rules: FrameworkRules, execution: Execution, workload: Workload) -> list[str]:
    """Overlap of iterations, version lag and fusions that the framework does not have."""
    problems: list[str] = []
    if execution.mode not in rules.execution_modes:
        modes = joined([mode.value for mode in ExecutionMode if mode in rules.execution_modes])
        problems.append(f"it does not run {execution.mode.value}, only {modes}")
    elif execution.staleness > rules.max_staleness_of(execution.mode):
        most = rules.max_staleness_of(execution.mode)
        versions = f"{most} versions" if most != 1 else "1 version"
        how = f" with {execution.mode.value}" if most < rules.max_staleness else ""
        problems.append(f"its weights lag at most {versions} behind{how}, the plan allows {execution.staleness}")
    lack = batches_problem(rules, workload) if execution.mode is ExecutionMode.BATCHES else None
    if execution.mode is ExecutionMode.STREAMING:
        lack = streaming_problem(rules, workload)
    if lack is not None:
        problems.append(f"it has {lack} with {execution.mode.value}")
    problems += [f"it has no {fusion.value} fusion" for fusion in execution.fusions if fusion not in rules.fusions]
    problems += sync_problems(rules, execution, workload)
    return problems


_TOUCHING_RATIO = 1e-5
"""Overlaps below this share of an iteration are rounding."""


def order_problems(rules: FrameworkRules, plan: Plan) -> list[str]:
    """Stages that a plan runs side by side although the controller waits for each before it starts the next."""
    if rules.policy is not SchedulingPolicy.SEQUENTIAL or plan.execution.policy is SchedulingPolicy.SEQUENTIAL:
        return []
    # What asynchronous and fused rollouts run beside is said by the checks of these.
    overlaps = plan.execution.is_asynchronous or bool(plan.execution.fusions)
    ahead = {StageName.ROLLOUT, StageName.SECOND_ROLLOUT} if overlaps else set[StageName]()
    items = [item for item in plan.schedule if item.stage not in ahead]
    shifts = [0.0]
    if plan.period_s:
        reach = ceil(plan.makespan_s / plan.period_s)
        shifts = [number * plan.period_s for number in range(-reach, reach + 1)]
    least_s = _TOUCHING_RATIO * plan.time_s
    for index, first in enumerate(items):
        for second in items[index + 1 :]:
            together = max(
                min(first.end_s, second.end_s + shift) - max(first.start_s, second.start_s + shift) for shift in shifts
            )
            if together > least_s:
                return [
                    f"it runs one stage after the other, the plan {first.stage.value} beside {second.stage.value} "
                    "(--policy sequential plans for that)"
                ]
    return []


def stage_problems(rules: FrameworkRules, plan: Plan, workers: tuple[PlacedWorker, ...]) -> list[str]:
    # A worker that the framework lacks is reported as such, and not once more for each of its stages.
    stages = {item.stage for item in plan.placements if item.worker is None or item.worker in rules.workers}
    missing = [f"'{stage.value}'" for stage in StageName if stage in stages - rules.supported_stages]
    problems = [f"it has no stage {' and '.join(missing)}"] if missing else []
    if rules.dynamic_sampling_excludes_shared_reward_model and plan.workload.algorithm.oversampling_ratio > 1:
        reward = [w for w in workers if w.name is WorkerName.REWARD_MODEL]
        if any(w.overlaps(other) for w in reward for other in workers if other is not w):
            problems.append("its dynamic sampling needs the reward model on GPUs of its own")
    return problems
