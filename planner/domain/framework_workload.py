"""Rules of a framework that depend on the workload: what one way to run cannot do for it."""

from __future__ import annotations

from dataclasses import replace

from planner.domain.execution import ExecutionMode
from planner.domain.framework import FrameworkRules
from planner.domain.workload import Workload


def batches_problem(rules: FrameworkRules, workload: Workload) -> str | None:
    """Why asynchronous batches cannot run the workload, None if they can or if the framework has none.

    Completes "it has ... with asynchronous batches".
    """
    if ExecutionMode.BATCHES not in rules.execution_modes:
        return None
    if rules.batches_exclude_reward_model and workload.reward.model is not None:
        return "no reward model on GPUs"
    if rules.batches_exclude_dynamic_sampling and workload.algorithm.oversampling_ratio > 1:
        return "no dynamic sampling"
    return None


def for_workload(rules: FrameworkRules, workload: Workload) -> FrameworkRules:
    """The rules without the ways to run that are not open to the workload."""
    if batches_problem(rules, workload) is None:
        return rules
    return replace(rules, execution_modes=rules.execution_modes - {ExecutionMode.BATCHES})
