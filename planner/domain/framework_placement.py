"""Which workers a framework places on the same GPUs."""

from __future__ import annotations

from planner.domain.framework import FrameworkRules
from planner.domain.framework_words import listed
from planner.domain.stages import WorkerName
from planner.domain.workload import Workload


def placement_problem(
    rules: FrameworkRules, groups: tuple[frozenset[WorkerName], ...], present: frozenset[WorkerName]
) -> str | None:
    """Why the framework cannot place workers so, None if it can.

    `groups` are the sets of workers that share GPUs (a worker alone is a set of one), `present` all workers.
    """
    absent = present - rules.workers
    if absent:
        return f"runs no {listed(absent)} on GPUs"
    for together in rules.must_share:
        needed = together & present
        if len(needed) > 1 and not any(needed <= group for group in groups):
            return f"places {listed(needed)} on the same GPUs"
    for group in groups:
        if len(group) > 1 and not any(_is_allowed(rules, group, allowed, present) for allowed in rules.may_share):
            return f"cannot place {listed(group)} on the same GPUs"
    return None


def _is_allowed(
    rules: FrameworkRules,
    group: frozenset[WorkerName],
    allowed: frozenset[WorkerName],
    present: frozenset[WorkerName],
) -> bool:
    return group == allowed & present if allowed in rules.indivisible_shares else group <= allowed


def sharing_problem(rules: FrameworkRules, workload: Workload, groups: tuple[frozenset[WorkerName], ...]) -> str | None:
    """What the workload forbids about sharing GPUs, None if nothing."""
    samples_dynamically = workload.algorithm.oversampling_ratio > 1
    if rules.dynamic_sampling_excludes_shared_reward_model and samples_dynamically:
        for group in groups:
            if WorkerName.REWARD_MODEL in group and len(group) > 1:
                return f"{rules.title}: dynamic sampling needs the reward model on GPUs of its own"
    return None
