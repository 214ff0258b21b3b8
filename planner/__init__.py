"""rlplan: proven placement and parallelism plans for RL post-training of language models.

`from planner import plan` and so on: see `planner.api`, which is imported when one of its names is asked for, so that
importing the package costs nothing.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from planner.api import (
        AnalysisResult,
        BaselinesResult,
        BudgetResult,
        CalibrationResult,
        CheckResult,
        CompareResult,
        DiffResult,
        ExplainResult,
        FrameworkResult,
        FrameworksResult,
        HardwareResult,
        InfeasibleError,
        InvalidInputError,
        ModelResult,
        ModelsResult,
        NodeResult,
        NoPlanFoundError,
        ParetoResult,
        Plan,
        PlanResult,
        PoolSpec,
        ReplayResult,
        RlplanError,
        ValidationResult,
        WorkerSpec,
        WorkloadSpec,
        analyze,
        budget,
        calibrate,
        check_config,
        compare,
        describe_space,
        diff,
        estimate,
        explain_plan,
        export,
        framework,
        frameworks,
        hardware,
        model,
        models,
        node,
        plan,
        read_plan,
        report_html,
        simulate_plan,
        validate,
        workload,
        write_plan,
    )

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
    "__version__",
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

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in __all__:
            from planner import api

            return getattr(api, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
