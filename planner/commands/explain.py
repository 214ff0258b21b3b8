"""`rlplan explain`: why a plan is as it is, or why there is none."""

from __future__ import annotations

from pathlib import Path

from planner import cli_options as opt
from planner.commands.common import print_table, progress


def explain(file: opt.PlanFile, profile: opt.Profile = None, as_json: opt.AsJson = False) -> None:
    """Say why a saved plan is as it is: what each decision is worth, what binds, and where another plan takes over."""
    from planner.files.calibrated import overheads_with
    from planner.files.plan import read_plan

    plan = read_plan(Path(file))
    overheads = overheads_with(profile, plan)
    with progress("explaining: some dozen searches"):
        from planner.explaining.explanation import explain_plan

        explanation = explain_plan(plan, overheads)
    if as_json:
        import json

        from planner.report.explain import explanation_document

        print(json.dumps(explanation_document(explanation), indent=1, ensure_ascii=False))
        return
    from planner.report.explain import explanation_report

    print_table(explanation_report(explanation))
