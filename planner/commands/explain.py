"""`rlplan explain`: why a plan is as it is, or why there is none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from planner import cli_options as opt
from planner.commands.common import print_table, progress
from planner.commands.workload import OPTIONS, with_spec
from planner.errors import InfeasibleError
from planner.files.spec import WorkloadSpec

if TYPE_CHECKING:
    from rich.console import RenderableType

    from planner.explaining.conflict import Conflict
    from planner.explaining.explanation import Explanation
    from planner.files.plan import Json


@with_spec(*OPTIONS)
def explain(spec: WorkloadSpec, as_json: opt.AsJson = False) -> None:
    """Say why a plan (MODEL is then its file) is as it is, or why a request has none.

    Of a plan: what each decision is worth, what binds it, what more would buy, and where another plan takes over. Of a
    request without a plan: which limits cannot be met together, and the ways out; exit code 3.
    """
    from planner.explaining.asking import explain_plan_file, explain_request, is_plan_file

    found: Explanation | Conflict
    with progress("explaining: some dozen searches"):
        if spec.model is not None and is_plan_file(Path(spec.model)):
            found = explain_plan_file(spec)
        else:
            found = explain_request(spec)
    _print(found, as_json=as_json)


def _print(found: Explanation | Conflict, *, as_json: bool) -> None:
    from planner.explaining.conflict import Conflict
    from planner.report.explain import (
        conflict_document,
        conflict_report,
        explanation_document,
        explanation_report,
    )

    has_plan = not isinstance(found, Conflict)
    if as_json:
        import json

        document: dict[str, Json]
        document = conflict_document(found) if isinstance(found, Conflict) else explanation_document(found)
        print(json.dumps(document, indent=1, ensure_ascii=False))
    else:
        report: RenderableType
        report = conflict_report(found) if isinstance(found, Conflict) else explanation_report(found)
        print_table(report)
    if not has_plan:
        raise typer.Exit(InfeasibleError.exit_code)
