"""The work-depth view for a terminal and as JSON; what the numbers mean is in docs/work-depth.md."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.analysis import Analysis, Arrangement, StageAnalysis, Technique
from planner.cost.link_bytes import LinkBytes
from planner.cost.work_depth import TimeBound
from planner.files.plan import Json, encode
from planner.report.words import counted, one_line
from planner.units import format_bytes, format_seconds

NOTES_FROM_WIDTH = 96
"""Below this the techniques' notes would leave the numbers no room."""
_NONE = "-"


def analysis_report(analysis: Analysis, *, width: int) -> Group:
    """The whole view."""
    analysis = one_line(analysis)
    sections: list[RenderableType] = [_headline(analysis)]
    sections += _section("Work and depth of one iteration", _work(analysis))
    sections += _section("Bytes per GPU", _links(analysis))
    sections += _section("Lower bounds of each stage: T >= max(W / p, bytes / bandwidth, D)", _bounds(analysis))
    sections += _section("Lower bounds of an iteration", _iteration(analysis))
    sections += _section(
        "Techniques, each alone on the actor update", _techniques(analysis.techniques, width >= NOTES_FROM_WIDTH)
    )
    sections += _section("Arrangements of the stages", _arrangements(analysis.arrangements))
    return Group(*sections)


def _section(title: str, body: RenderableType) -> list[RenderableType]:
    return [Text(), Text(title, style="bold cyan"), Padding(body, (0, 0, 0, 2))]


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(first, style="bold", no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _number(value: float) -> str:
    """Large counts in powers of ten; nothing for zero."""
    if value == 0.0:
        return _NONE
    return f"{value:,.1f}" if value < 1000 else f"{value:.2e}".replace("e+0", "e").replace("e+", "e")


def _size(num_bytes: float) -> str:
    return format_bytes(num_bytes) if num_bytes else _NONE


def _seconds(value: float | None) -> str:
    return _NONE if not value else format_seconds(value)


def _headline(analysis: Analysis) -> Group:
    work = analysis.workload
    pools = " + ".join(f"{pool.num_gpus} x {pool.node.gpu.id}" for pool in analysis.cluster.pools)
    title = Text.assemble((f"{work.algorithm.title} on {work.actor.id}", "bold"), f" · {pools} · work and depth")
    longest = work.response.expected_maximum(work.num_generated)
    job = (
        f"{work.num_prompts:,} prompts x {work.group_size}; prompt {work.prompt_mean_tokens:,.0f}, "
        f"response {work.response.mean_tokens:,.0f} on average, {longest:,.0f} the longest"
    )
    return Group(title, Text(job, style="dim"), Text(), _answer(analysis))


def _answer(analysis: Analysis) -> Text:
    """How far the plan is from the limit, and what limits it."""
    bound = analysis.cluster_bound
    limit = Text.assemble(
        "no synchronous plan on this cluster takes less than ", (format_seconds(analysis.bound_s), "bold"),
        f"; of its totals {bound.binding or 'nothing'} binds",
    )  # fmt: skip
    if analysis.plan is None or analysis.placement_s is None:
        return limit
    ratio = analysis.plan.time_s / analysis.bound_s
    return Text.assemble(
        "planned ", (format_seconds(analysis.plan.time_s), "bold"), f", {ratio:.1f} x the limit: ", limit
    )


def _work(analysis: Analysis) -> Table:
    table = _table("stage", "W FLOP", "D levels", "W / D", "FLOP/byte", "waves")
    for stage in analysis.stages:
        table.add_row(
            stage.name,
            _number(stage.work_flop),
            _number(stage.num_levels),
            _number(stage.num_parallel),
            _number(stage.flop_per_byte),
            _NONE if stage.num_waves is None else f"{stage.num_waves:,}",
        )
    total = analysis.work_flop
    table.add_row(
        "iteration", _number(total), _number(analysis.num_levels), _number(total / analysis.num_levels), "", ""
    )
    return table


def _links(analysis: Analysis) -> Table:
    table = _table("stage", "GPUs", "HBM", "scale-up", "NIC")
    for stage in analysis.stages:
        if stage.num_gpus:
            links = stage.links
            table.add_row(
                stage.name,
                f"{stage.num_gpus:,}",
                _size(links.hbm_bytes),
                _size(links.scale_up_bytes),
                _size(links.nic_bytes),
            )
    return table


def _bytes_s(bound: TimeBound) -> float:
    return max(bound.hbm_s, bound.scale_up_s, bound.nic_s)


def _chain_s(bound: TimeBound) -> float:
    return max(bound.depth_s, bound.slots_s)


def _bounds(analysis: Analysis) -> Table:
    table = _table("stage", "W / p", "bytes / bw", "D", "binds", "planned", "x least")
    for stage in analysis.stages:
        if not stage.bound.time_s and not stage.planned_s:
            continue
        table.add_row(
            stage.name,
            _seconds(stage.bound.compute_s),
            _seconds(_bytes_s(stage.bound)),
            _seconds(_chain_s(stage.bound)),
            stage.bound.binding or _NONE,
            _seconds(stage.planned_s),
            _ratio(stage),
        )
    return table


def _ratio(stage: StageAnalysis) -> str:
    """Planned over least; a stage without real work has no meaningful ratio."""
    if not stage.planned_s or not stage.work_flop or not stage.bound.time_s:
        return _NONE
    return f"{stage.planned_s / stage.bound.time_s:.1f}"


def _iteration(analysis: Analysis) -> Table:
    table = _table("of", "W / p", "bytes / bw", "D", "least", "binds")
    total = analysis.cluster_bound
    table.add_row(
        "all stages together", _seconds(total.compute_s), _seconds(_bytes_s(total)), _seconds(_chain_s(total)),
        _seconds(total.time_s), total.binding or _NONE,
    )  # fmt: skip
    table.add_row("longest path of stages", "", "", "", _seconds(analysis.path_s), "")
    if analysis.placement_s is not None:
        table.add_row("the plan's own groups", "", "", "", _seconds(analysis.placement_s), "")
    if analysis.plan is not None:
        table.add_row("planned", "", "", "", _seconds(analysis.plan.time_s), "")
    return table


def _techniques(techniques: tuple[Technique, ...], has_notes: bool) -> Table:
    table = _table("technique", "W / GPU", "D added", "states/GPU", "saved/token", "sent/GPU")
    if has_notes:
        table.add_column("", ratio=1, style="dim")
    for item in techniques:
        sent = item.links.scale_up_bytes + item.links.nic_bytes
        name = f"{item.name} {item.degree}" if item.degree > 1 else item.name
        cells = [
            name,
            _number(item.work_flop),
            _number(item.num_levels_added),
            _size(item.state_bytes),
            _small_size(item.saved_bytes),
            _size(sent),
        ]
        table.add_row(*cells, *([item.note] if has_notes else []))
    return table


def _small_size(num_bytes: float) -> str:
    """Activations of one token are KiB to MiB."""
    return f"{num_bytes / 1024:,.0f} KiB"


def _arrangements(arrangements: tuple[Arrangement, ...]) -> Table:
    table = _table("arrangement", "D levels", "chain")
    table.add_column("", ratio=1, style="dim")
    for item in arrangements:
        table.add_row(item.name, _number(item.num_levels), _seconds(item.chain_s), item.note)
    return table


# ---------------------------------------------------------------------------------------------- JSON


def analysis_document(analysis: Analysis) -> dict[str, Json]:
    """The view for programs; every key ends in its unit."""
    return {
        "model": analysis.workload.actor.id,
        "algorithm": analysis.workload.algorithm.name,
        "num_gpus": analysis.cluster.num_gpus,
        "cluster": [f"{counted(pool.num_nodes, 'node')} of {pool.node.id}" for pool in analysis.cluster.pools],
        "work_flop": analysis.work_flop,
        "num_levels": analysis.num_levels,
        "bound_s": analysis.bound_s,
        "cluster_bound": _bound_document(analysis.cluster_bound),
        "path_s": analysis.path_s,
        "placement_s": analysis.placement_s,
        "planned_s": None if analysis.plan is None else analysis.plan.time_s,
        "stages": [_stage_document(stage) for stage in analysis.stages],
        "techniques": [encode(item) for item in analysis.techniques],
        "arrangements": [encode(item) for item in analysis.arrangements],
    }


def _bound_document(bound: TimeBound) -> Json:
    return {
        "compute_s": bound.compute_s,
        "hbm_s": bound.hbm_s,
        "scale_up_s": bound.scale_up_s,
        "nic_s": bound.nic_s,
        "depth_s": bound.depth_s,
        "slots_s": bound.slots_s,
        "least_s": bound.time_s,
        "binding": bound.binding,
    }


def _stage_document(stage: StageAnalysis) -> Json:
    return {
        "stage": stage.name,
        "model": stage.model,
        "work_flop": stage.work_flop,
        "num_levels": stage.num_levels,
        "num_parallel": stage.num_parallel,
        "flop_per_byte": stage.flop_per_byte,
        "num_gpus": stage.num_gpus,
        "bytes_per_gpu": _links_document(stage.links),
        "bound": _bound_document(stage.bound),
        "planned_s": stage.planned_s,
        "num_waves": stage.num_waves,
    }


def _links_document(links: LinkBytes) -> Json:
    return {
        "hbm_bytes": links.hbm_bytes,
        "scale_up_bytes": links.scale_up_bytes,
        "nic_bytes": links.nic_bytes,
    }
