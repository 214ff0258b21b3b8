"""The verdict on a finished plan: what keeps a framework from running it, from the same rules as the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from planner.domain.framework import FrameworkRules
from planner.domain.framework_execution import execution_problems, order_problems, stage_problems
from planner.domain.framework_limits import EngineSite
from planner.domain.framework_nodes import placement_problems, whole_node_problems
from planner.domain.framework_placed import placed_workers
from planner.domain.framework_strategies import (
    batch_problems,
    budget_problems,
    gentle,
    idle_problems,
    mesh_problems,
    offload_problems,
    strategy_problems,
)
from planner.domain.framework_sync import narrowed
from planner.domain.framework_workload import (
    for_workload,
    position_problem,
    runs_old_logprob,
    scope_lacks,
    workload_lacks,
)
from planner.domain.plan import Plan
from planner.domain.workload import Workload


class ProblemKind(StrEnum):
    """What a problem is about."""

    WORKLOAD = "workload"
    """No plan would remove it."""
    SCOPE = "scope"
    """Algorithms and architectures that plans are not made for: no verdict on a launch script that has them."""
    OLD_LOGPROB = "old log-prob"
    """The framework computes old log-probs that the plan leaves out."""
    EXECUTION = "execution"
    STAGE = "stage"
    STRATEGY = "strategy"
    MESH = "mesh"
    PLACEMENT = "placement"
    NODES = "nodes"
    """Parts of several nodes."""
    BATCH = "batch"
    OFFLOAD = "offload"
    """States leave the GPUs, or stay there, whatever the plan says."""
    IDLE = "idle"
    """The same for engines."""
    TOKEN_BUDGET = "token budget"
    """Budgets that the framework has in common."""


TOLERATED = frozenset({ProblemKind.OFFLOAD, ProblemKind.IDLE, ProblemKind.TOKEN_BUDGET})
"""A plan with such a problem starts and computes the same; its price is another one. No search for the framework finds
it, exports say what differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkProblem:
    """A clause about the framework ("it has no PPO") or about workers of the plan."""

    kind: ProblemKind
    text: str


def plan_problems(rules: FrameworkRules, plan: Plan) -> tuple[str, ...]:
    """Everything that keeps the framework from running the plan as it is; empty if it can."""
    return tuple(item.text for item in framework_problems(rules, plan) if item.kind not in TOLERATED)


def framework_problems(rules: FrameworkRules, plan: Plan) -> tuple[FrameworkProblem, ...]:
    """Everything in which the framework would run the plan in another way, or not at all; each once."""
    workers = placed_workers(plan)
    strict = for_workload(rules, plan.workload, tolerant=True)
    scope = scope_lacks(rules, plan.workload)
    lacks = tuple(lack for lack in workload_lacks(rules, plan.workload) if lack not in scope)
    found: tuple[tuple[ProblemKind, Sequence[str]], ...] = (
        (ProblemKind.WORKLOAD, tuple(f"it {lack}" for lack in lacks)),
        (ProblemKind.SCOPE, tuple(f"it {lack}" for lack in scope)),
        (ProblemKind.OLD_LOGPROB, _old_logprob_problems(rules, plan.workload)),
        (ProblemKind.EXECUTION, execution_problems(rules, plan.execution, plan.workload)),
        (ProblemKind.EXECUTION, order_problems(rules, plan)),
        (ProblemKind.STAGE, stage_problems(rules, plan, workers)),
        (ProblemKind.STRATEGY, strategy_problems(narrowed(strict, plan.execution.sharded_syncs), plan, workers)),
        (ProblemKind.MESH, mesh_problems(strict, plan.workload, workers)),
        (ProblemKind.PLACEMENT, placement_problems(rules, plan, workers)),
        (ProblemKind.NODES, whole_node_problems(rules, plan, workers)),
        (ProblemKind.BATCH, batch_problems(plan.workload, workers)),
        (ProblemKind.STRATEGY, offload_problems(strict, plan, workers)),
        (ProblemKind.OFFLOAD, offload_problems(gentle(rules, plan.workload), plan, workers)),
        # What engines beside a trainer keep decides what fits there; with GPUs of their own it is a matter of price.
        (ProblemKind.STRATEGY, idle_problems(rules, workers, EngineSite.SHARED)),
        (ProblemKind.IDLE, idle_problems(rules, workers, EngineSite.APART)),
        (ProblemKind.TOKEN_BUDGET, budget_problems(rules, plan.workload, workers)),
    )
    problems = [FrameworkProblem(kind=kind, text=text) for kind, texts in found for text in texts]
    return tuple({item.text: item for item in reversed(problems)}.values())[::-1]


def workload_problems(rules: FrameworkRules, workload: Workload) -> tuple[str, ...]:
    """What the framework lacks for the workload, whatever the plan: to be asked before any search."""
    positions = position_problem(workload)
    found = (*workload_lacks(rules, workload), *_old_logprob_lacks(rules, workload))
    return tuple(f"{rules.title} {lack}" for lack in (*found, *([positions] if positions is not None else [])))


def _old_logprob_lacks(rules: FrameworkRules, workload: Workload) -> list[str]:
    if workload.needs_old_logprob or not runs_old_logprob(rules, workload):
        return []
    when = "always" if rules.always_recomputes_old_logprob else "for this workload"
    return [f"recomputes old log-probs {when}, the plan leaves that stage out"]


def _old_logprob_problems(rules: FrameworkRules, workload: Workload) -> list[str]:
    return [f"it {lack}" for lack in _old_logprob_lacks(rules, workload)]
