"""Training frameworks as tables: `rlplan frameworks`."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from planner.domain.execution import ExecutionMode, Fusion
from planner.domain.framework import FrameworkRules
from planner.domain.stages import WorkerName
from planner.domain.technique import Support, TechniqueName
from planner.files.framework import load_framework, load_frameworks
from planner.report.catalog import pair_table, plain_table


def framework_table() -> Group:
    """Every framework with rules, and what each can do by technique."""
    frameworks = load_frameworks()
    versions = plain_table()
    versions.add_column("framework", style="bold", no_wrap=True)
    versions.add_column("version", no_wrap=True)
    versions.add_column("training back ends", ratio=1)
    versions.add_column("iterations", ratio=1)
    for rules in frameworks:
        backends = ", ".join(backend.name for backend in rules.backends)
        versions.add_row(rules.name, rules.version, backends, _iterations(rules))
    return Group(versions, Text(), _technique_matrix(frameworks))


def _iterations(rules: FrameworkRules) -> str:
    return ", ".join(mode.value for mode in ExecutionMode if mode in rules.execution_modes)


def _technique_matrix(frameworks: tuple[FrameworkRules, ...]) -> Table:
    table = plain_table()
    table.add_column("technique", style="bold", no_wrap=True)
    for rules in frameworks:
        table.add_column(rules.name, no_wrap=True)
    cells = {(rules.name, item.name): item.support for rules in frameworks for item in rules.techniques}
    for name in TechniqueName:
        row = [cells.get((rules.name, name)) for rules in frameworks]
        table.add_row(name.value, *(_support(support) for support in row))
    return table


def _support(support: Support | None) -> Text:
    if support is None:
        return Text("unknown", style="dim")
    styles = {Support.YES: "green", Support.PARTIAL: "yellow", Support.NO: "red"}
    return Text(support.value, style=styles[support])


def framework_details(name: str) -> Group:
    """One framework: what plans may use, its techniques and rules with the evidence for each."""
    rules = load_framework(name)
    limits = [
        ("iterations", _iterations(rules) + (f", lag up to {rules.max_staleness}" if rules.max_staleness else "")),
        ("order of stages", rules.policy.value),
        ("fusions", ", ".join(fusion.value for fusion in Fusion if fusion in rules.fusions) or "none"),
        ("weight sync", ", ".join(["full gather", *(rule.way.value for rule in rules.sharded_syncs)])),
        ("algorithms", ", ".join(sorted(rules.algorithms))),
        ("workers on GPUs", ", ".join(worker.value for worker in WorkerName if worker in rules.workers)),
    ]
    table = plain_table()
    table.add_column("technique", style="bold", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("how", ratio=3, overflow="fold")
    table.add_column("evidence", ratio=2, overflow="fold")
    for item in rules.techniques:
        table.add_row(item.name.value, _support(item.support), Text(item.how), Text(item.evidence, style="dim"))
    title = Text(f"{rules.title} {rules.version}", style="bold")
    heading = Text("Rules of plans and their evidence", style="bold")
    return Group(title, pair_table(limits), Text(), table, Text(), heading, pair_table(list(rules.evidence)))
