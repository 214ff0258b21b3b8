"""Requests as a framework runs them, and limits as an explanation searches under them."""

from __future__ import annotations

from dataclasses import replace

from planner.domain import framework_workload
from planner.domain.framework import FrameworkRules
from planner.domain.plan import Limits
from planner.domain.request import PlanRequest
from planner.files.framework import load_framework
from planner.search.problem import SearchLimits
from planner.solving import search_limits


def exact(limits: Limits) -> SearchLimits:
    """Limits under which the search returns the optimum itself, and nothing that only a report needs."""
    return replace(search_limits(limits), tie_tolerance_ratio=0.0, num_alternatives=0)


def as_run_by(request: PlanRequest, rules: FrameworkRules | None) -> PlanRequest:
    """The request as the framework runs it."""
    if rules is None:
        return request
    return replace(request, workload=framework_workload.as_run_by(rules, request.workload))


def rules_of(limits: Limits) -> FrameworkRules | None:
    """The rules of the framework that a request is restricted to."""
    return load_framework(limits.framework) if limits.framework else None
