"""`rlplan plan --baselines`: peers beside the plan."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.commands.common import deliver, print_table, progress

if TYPE_CHECKING:
    from planner.domain.plan import Plan
    from planner.peers.compare import Comparison

Baselines = Annotated[
    bool, typer.Option("--baselines", help="also price what other planners and rules of thumb would do")
]


def deliver_with_baselines(made: Plan, output: Path | None, *, as_json: bool) -> None:
    """Saves and prints a plan, then what the peers make of the same request; the saved plan does not hold them."""
    with progress("running the baselines"):
        from planner.peers.compare import compare_plan

        comparison = compare_plan(made)
    if not as_json:
        deliver(made, output, as_json=False)
        from planner.report.baselines import baselines_report

        if comparison is not None:
            print_table(baselines_report(comparison, made))
        return
    _deliver_json(made, output, comparison)


def _deliver_json(made: Plan, output: Path | None, comparison: Comparison | None) -> None:
    from planner.files.plan import json_output, write_plan
    from planner.report.baselines import baselines_document

    if output is not None:
        write_plan(made, output)
    found = None if comparison is None else baselines_document(comparison)
    sys.stdout.write(json_output(made, {"baselines": found}))
