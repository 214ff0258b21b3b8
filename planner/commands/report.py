"""The command that makes a page of a saved plan."""

from __future__ import annotations

import sys

from planner import cli_options as opt
from planner.commands.common import check_output
from planner.errors import printable


def report(file: opt.PlanFile, output: opt.Page = None) -> None:
    """Make an HTML page of a saved plan: timeline, memory, cluster map, cost, proof, assumptions. Needs no network."""
    from planner.files.plan import read_plan

    target = output if output is not None else file.with_suffix(".html")
    check_output(target)
    plan = read_plan(file)
    from planner.files.atomic import write_atomic
    from planner.report.html.page import plan_page

    write_atomic(target, plan_page(plan).encode())
    print(f"saved {printable(str(target))}", file=sys.stderr)
