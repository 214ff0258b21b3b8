"""Where the ranks of each worker are, and how far each link class is used, as tables for the terminal."""

from __future__ import annotations

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.domain.links import Link, StageLinks
from planner.domain.plan import Plan
from planner.domain.ranks import MeshAxis, RankRun, WorkerRanks, rank_map
from planner.link_use import link_use
from planner.report.words import one_line, percent

MAX_RUNS = 4
"""Runs of nodes that a cell lists."""


def rank_section(plan: Plan) -> Group:
    """The table under its title, as the sections of a report have it."""
    return Group(Text(), Text("Ranks", style="bold cyan"), Padding(rank_table(plan), (0, 0, 0, 2)))


def rank_table(plan: Plan) -> Table:
    """One row per worker: its axes from the innermost to the outermost, and the nodes that its ranks are on."""
    plan = one_line(plan)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("worker", style="bold", no_wrap=True)
    table.add_column("ranks", no_wrap=True)
    table.add_column("axes, innermost first", ratio=1)
    table.add_column("nodes: ranks on GPUs of each", ratio=1)
    for item in rank_map(plan):
        node = plan.cluster.pool(item.pool).node
        is_rack_scale = node.scale_up_domain_gpus > node.gpus_per_node
        table.add_row(
            item.worker.value,
            f"0-{item.num_ranks - 1}" if item.num_ranks > 1 else "0",
            axis_words(item, is_rack_scale=is_rack_scale),
            f"{item.pool} {_runs(item.nodes)}",
        )
    return table


def link_table(stages: tuple[StageLinks, ...]) -> Table:
    """One row per stage: the share of each link class that it uses on average, at line rate."""
    shown = [link for link in Link if any(use.link is link for item in stages for use in item.uses)]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("stage", style="bold", no_wrap=True)
    for link in shown:
        table.add_column(link.value, justify="right", no_wrap=True)
    for item in stages:
        used = {use.link: percent(item.used_ratio(use)) for use in item.uses}
        name = "trajectories" if item.stage is None else item.stage.value
        table.add_row(name, *(used.get(link, "") for link in shown))
    return table


def link_section(plan: Plan) -> Group:
    """The table of link use under its title."""
    body = Padding(link_table(plan.links or link_use(plan)), (0, 0, 0, 2))
    return Group(Text(), Text("Links: bytes over what each carries in the stage's time", style="bold cyan"), body)


def axis_words(item: WorkerRanks, *, is_rack_scale: bool) -> str:
    """`'tp 8 in a node; dp 4 over 4 nodes'`: axes of more than one rank; those that only experts have in brackets."""
    words = _axes(item.axes, is_rack_scale=is_rack_scale)
    own = tuple(axis for axis in item.expert_axes if axis.name not in {other.name for other in item.axes})
    experts = _axes(own, is_rack_scale=is_rack_scale)
    return f"{words} (experts: {experts})" if item.expert_axes else words


def _axes(axes: tuple[MeshAxis, ...], *, is_rack_scale: bool) -> str:
    return "; ".join(_axis(axis, is_rack_scale=is_rack_scale) for axis in axes if axis.size > 1) or "one rank"


def _axis(axis: MeshAxis, *, is_rack_scale: bool) -> str:
    if axis.num_nodes == 1:
        return f"{axis.name} {axis.size} in a node"
    if not is_rack_scale:
        return f"{axis.name} {axis.size} over {axis.num_nodes} nodes"
    domains = "one domain" if axis.num_domains == 1 else f"{axis.num_domains} domains"
    return f"{axis.name} {axis.size} over {axis.num_nodes} nodes of {domains}"


def _runs(runs: tuple[RankRun, ...]) -> str:
    """`'node 0-3: 8 on 0-7'`, one part per run."""
    parts = []
    for run in runs[:MAX_RUNS]:
        last = run.first + run.count - 1
        nodes = f"node {run.first}" if run.count == 1 else f"nodes {run.first}-{last}"
        end = run.first_gpu + run.ranks_each - 1
        gpus = f"GPU {end}" if run.ranks_each == 1 else f"GPU {run.first_gpu}-{end}"
        parts.append(f"{nodes}, {gpus}")
    more = len(runs) - MAX_RUNS
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")
