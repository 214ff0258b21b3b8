"""`rlplan plan --baselines` and `--pareto`: peers beside the plan, and what other plans cost."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.commands.common import deliver, print_table, progress

if TYPE_CHECKING:
    from planner.domain.plan import Plan
    from planner.files.plan import Json
    from planner.pareto import FrontPoint
    from planner.peers.compare import Comparison
    from planner.pipeline import Planned

Baselines = Annotated[
    bool, typer.Option("--baselines", help="also price what other planners and rules of thumb would do")
]


Pareto = Annotated[bool, typer.Option("--pareto", help="also list the plans that trade time for money")]


def deliver_with_more(
    planned: Planned, output: Path | None, *, as_json: bool, wants_baselines: bool, wants_front: bool
) -> None:
    """Saves and prints a plan, then what the peers make of the same request and the front of time against money; the
    saved plan does not hold them."""
    made = planned.plan
    comparison: Comparison | None = None
    front: Sequence[FrontPoint] = ()
    if wants_baselines:
        with progress("running the baselines"):
            from planner.peers.compare import compare_plan

            comparison = compare_plan(made)
    if wants_front:
        with progress("searching the front"):
            from planner.pareto import pareto_front

            front = pareto_front(planned.outcome, made.limits)
    if as_json:
        _deliver_json(made, output, comparison, front)
        return
    deliver(made, output, as_json=False)
    if comparison is not None:
        from planner.report.baselines import baselines_report

        print_table(baselines_report(comparison, made))
    if wants_front:
        from planner.report.pareto import pareto_report

        print_table(pareto_report(front))


def _deliver_json(made: Plan, output: Path | None, comparison: Comparison | None, front: Sequence[FrontPoint]) -> None:
    from planner.files.plan import json_output, write_plan
    from planner.report.baselines import baselines_document
    from planner.report.pareto import pareto_document

    if output is not None:
        write_plan(made, output)
    found = None if comparison is None else baselines_document(comparison)
    extra: dict[str, Json] = {} if found is None else {"baselines": found}
    if front:
        extra["pareto"] = pareto_document(front)
    sys.stdout.write(json_output(made, extra))
