"""The Python API: a typed function for everything that the command line does. `from planner import plan, ...`.

Functions return results that show themselves as the command line does (`print(result)`, rich, notebooks) and hold the
values of the library. Modules that a function needs are imported when it is called.
"""

from __future__ import annotations

from planner.api.catalogs import (
    FrameworkResult,
    FrameworksResult,
    HardwareResult,
    ModelResult,
    ModelsResult,
    NodeResult,
    framework,
    frameworks,
    hardware,
    model,
    models,
    node,
)
from planner.api.checking import check_config, validate
from planner.api.given import workload
from planner.api.planning import analyze, describe_space, estimate, plan
from planner.api.results import (
    AnalysisResult,
    BaselinesResult,
    BudgetResult,
    CheckResult,
    DiffResult,
    ParetoResult,
    PlanResult,
    ReplayResult,
    ValidationResult,
)
from planner.api.runs import CalibrationResult, CompareResult, ExplainResult, calibrate, compare, explain_plan
from planner.api.saved import diff, export, read_plan, report_html, simulate_plan, write_plan
from planner.api.sweeps import budget
from planner.domain.plan import Plan
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError, RlplanError
from planner.files.spec import PoolSpec, WorkerSpec, WorkloadSpec

__all__ = [
    "AnalysisResult",
    "BaselinesResult",
    "BudgetResult",
    "CalibrationResult",
    "CheckResult",
    "CompareResult",
    "DiffResult",
    "ExplainResult",
    "FrameworkResult",
    "FrameworksResult",
    "HardwareResult",
    "InfeasibleError",
    "InvalidInputError",
    "ModelResult",
    "ModelsResult",
    "NoPlanFoundError",
    "NodeResult",
    "ParetoResult",
    "Plan",
    "PlanResult",
    "PoolSpec",
    "ReplayResult",
    "RlplanError",
    "ValidationResult",
    "WorkerSpec",
    "WorkloadSpec",
    "analyze",
    "budget",
    "calibrate",
    "check_config",
    "compare",
    "describe_space",
    "diff",
    "estimate",
    "explain_plan",
    "export",
    "framework",
    "frameworks",
    "hardware",
    "model",
    "models",
    "node",
    "plan",
    "read_plan",
    "report_html",
    "simulate_plan",
    "validate",
    "workload",
    "write_plan",
]
