"""Commands that list what is known: models, hardware, frameworks."""

from __future__ import annotations

from planner import cli_options as opt
from planner.commands.common import print_table


def models(name: opt.Name = None) -> None:
    """List the models of the catalog, or show one."""
    from planner.report.catalog import model_details, model_table

    print_table(model_table() if name is None else model_details(name))


def hardware(name: opt.Name = None) -> None:
    """List GPUs and node types, or show one."""
    from planner.report.catalog import hardware_details, hardware_table

    print_table(hardware_table() if name is None else hardware_details(name))


def frameworks(name: opt.Name = None) -> None:
    """List training frameworks, or show the rules of one with their evidence."""
    from planner.report.frameworks import framework_details, framework_table

    print_table(framework_table() if name is None else framework_details(name))
