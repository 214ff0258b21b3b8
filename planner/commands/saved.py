"""Commands on saved plans: show, diff, export."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from planner import cli_options as opt
from planner.commands.common import print_plan, print_table
from planner.errors import DifferenceError, InvalidInputError, nearest, printable


def show(file: opt.PlanFile, as_json: opt.AsJson = False) -> None:
    """Show a saved plan."""
    from planner.files.plan import read_plan

    plan = read_plan(file)
    print_plan(plan, as_json=as_json, has_pictures=True)
    if not as_json:
        from planner.report.cluster import link_section, rank_section

        print_table(rank_section(plan))
        print_table(link_section(plan))


def diff(before: opt.Before, after: opt.After, as_json: opt.AsJson = False) -> None:
    """Compare two saved plans; exit code 5 when they differ."""
    from planner.files.plan import read_plan
    from planner.report.difference import change_table, differences

    changes = differences(read_plan(before), read_plan(after))
    if as_json:
        import json

        rows = [{"place": c.place, "before": c.before, "after": c.after} for c in changes]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    elif not changes:
        print("The plans are the same.")
    else:
        names = (str(before), str(after)) if before.name == after.name else (before.name, after.name)
        print_table(change_table(changes, before=names[0], after=names[1]))
    if changes:
        raise typer.Exit(DifferenceError.exit_code)


WithRay = Annotated[bool, typer.Option("--ray", help="add placement groups for Ray: ray_bundles.json")]
LauncherName = Annotated[
    str | None,
    typer.Option("--launcher", metavar="NAME", help="add a job file for the nodes: skypilot, kuberay or slurm"),
]
Image = Annotated[
    str | None, typer.Option("--image", metavar="IMAGE", help="container image for the job file; KubeRay needs one")
]


def export(
    file: opt.PlanFile,
    to: opt.Target,
    directory: opt.Directory,
    ray: WithRay = False,
    launcher: LauncherName = None,
    image: Image = None,
) -> None:
    """Write the files that start exactly this plan in a framework."""
    if to.lower() not in opt.EXPORTS:
        raise InvalidInputError(
            f"{to[: opt.SHOWN_LENGTH]!r} has no export",
            where="--to",
            accepted=", ".join(opt.EXPORTS),
            suggestion=nearest(to, opt.EXPORTS),
        )
    from planner.exporting import export as write_export
    from planner.files.plan import read_plan

    written = write_export(to.lower(), read_plan(file), directory, with_ray=ray, launcher=launcher, image=image)
    for path in written.paths:
        print(printable(str(path)), flush=True)
    # Paths alone go to the standard output, for programs.
    print(printable(written.summary), file=sys.stderr)
