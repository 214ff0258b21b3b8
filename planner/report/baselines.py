"""Peers beside the optimum, for a terminal and as JSON; who they are is in docs/peers.md."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.domain.plan import Objective, Plan
from planner.domain.stages import WorkerName
from planner.files.plan import Json, encode
from planner.peers.compare import Comparison
from planner.peers.task import PeerPlan
from planner.report.words import one_line, strategy_words
from planner.units import format_seconds_like

TITLE = "Baselines: other planners and rules of thumb, priced by the same cost model"
_AGAINST = {Objective.TIME: "vs plan", Objective.COST: "USD vs plan", Objective.GPUS: "GPUs vs plan"}
_TRAINERS = (WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER)
_SAME_RATIO = 5e-4
"""Less is shown as no difference."""


def baselines_report(comparison: Comparison, plan: Plan) -> Group:
    """One row per peer: time, how much more than the plan, GPUs, memory verdict and placement."""
    comparison = one_line(comparison)
    sections: list[RenderableType] = [Text(), Text(TITLE, style="bold cyan"), Padding(_table(comparison), (0, 0, 0, 2))]
    sections += [Padding(Text(note, style="dim"), (0, 0, 0, 2)) for note in _notes(comparison, plan)]
    return Group(*sections)


def _table(comparison: Comparison) -> Table:
    in_usd = comparison.limits.objective is Objective.COST
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("planner", style="bold", no_wrap=True)
    for name in ("time", *(("USD",) if in_usd else ()), "GPUs", _AGAINST[comparison.limits.objective]):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("memory", no_wrap=True)
    table.add_column("placement", overflow="fold")
    for peer in (comparison.ours, *comparison.peers):
        if peer.time_s is None:
            table.add_row(peer.name, "-", *(("-",) if in_usd else ()), "-", "-", "-", f"no plan: {peer.problem}")
            continue
        usd = "-" if peer.usd is None else f"{peer.usd:,.2f}"
        table.add_row(
            peer.name,
            format_seconds_like(peer.time_s, comparison.time_s),
            *((usd,) if in_usd else ()),
            str(peer.num_gpus),
            "" if peer is comparison.ours else relative_words(comparison.relative(peer)),
            "" if peer.verdict is None else peer.verdict.value,
            peer.structure if comparison.keeps_limits(peer) else f"(beyond the limits) {peer.structure}",
        )
    return table


def relative_words(ratio: float | None) -> str:
    """`1.123` -> `'+12.3%'`; what rounds to nothing has a plus sign."""
    if ratio is None:
        return "-"
    return "+0.0%" if abs(ratio - 1.0) < _SAME_RATIO else f"{ratio - 1.0:+.1%}"


def _notes(comparison: Comparison, plan: Plan) -> list[str]:
    notes = []
    if plan.execution.is_asynchronous or plan.execution.fusions or plan.execution.is_split:
        notes.append(
            "All of these run one iteration after the other and stage by stage, with one group of engines. The plan "
            "above does not: it takes "
            f"{_shown(plan.time_s, comparison)} per iteration."
        )
    impossible = comparison.impossible()
    ratios = [comparison.relative(peer) for peer in comparison.peers if peer.time_s and comparison.keeps_limits(peer)]
    if not impossible and any(ratio is not None and ratio < 1.0 - _SAME_RATIO for ratio in ratios):
        notes.append(
            "Some are below the plan, none below its bound: within 1% of it the plan prefers fewer GPUs, headroom "
            "and simplicity."
        )
    notes += [f"Fault: {peer.name} is better than the proven bound; please report it." for peer in impossible]
    return notes


def _shown(seconds: float, comparison: Comparison) -> str:
    return format_seconds_like(seconds, comparison.time_s)


def baselines_document(comparison: Comparison) -> dict[str, Json]:
    """The same for programs; `relative` and `bound` are in terms of the objective."""
    return {
        "bound": comparison.bound,
        "ours": _peer(comparison.ours, comparison),
        "peers": [_peer(peer, comparison) for peer in comparison.peers],
    }


def _peer(peer: PeerPlan, comparison: Comparison) -> dict[str, Json]:
    return {
        "name": peer.name,
        "description": peer.description,
        "time_s": peer.time_s,
        "relative": comparison.relative(peer),
        "num_gpus": peer.num_gpus,
        "usd": peer.usd,
        "structure": peer.structure,
        "workers": [
            {
                "worker": choice.worker.value,
                "device_group": choice.group,
                "num_gpus": choice.num_gpus,
                "strategy": encode(choice.strategy),
                "strategy_words": strategy_words(choice.strategy, trains=choice.worker in _TRAINERS),
            }
            for choice in peer.choices
        ],
        "memory_verdict": None if peer.verdict is None else peer.verdict.value,
        "problem": peer.problem,
        "own_objective_s": peer.own_objective_s,
        "found_after_s": peer.found_after_s,
        "took_s": peer.took_s,
        "evaluations": peer.evaluations,
    }
