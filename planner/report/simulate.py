"""The outcome of a replay for a terminal and as JSON."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.domain.plan import Plan
from planner.files.plan import Json
from planner.report.words import counted, one_line, percent
from planner.simulate.record import ReplayReport, RolloutReplay, Spread
from planner.units import format_range, format_seconds, format_seconds_like

_BAR = 30


def replay_report(plan: Plan, report: ReplayReport) -> Group:
    """The whole report; says first whether plan and replay agree."""
    plan = one_line(plan)
    sections: list[RenderableType] = [_headline(plan, report)]
    sections += _section("Stages", _stages(report))
    sections += _section("Device groups", _groups(plan, report))
    sections += _section("Rollout", _rollout(report.rollout))
    if report.second_rollout is not None:
        sections += _section("Second rollout", _rollout(report.second_rollout))
    if len(report.staleness) > 1 or (report.staleness and report.staleness[0][0]):
        sections += _section("Versions between the weights that began a response and those trained", _lags(report))
    return Group(*sections)


def _section(title: str, body: RenderableType) -> list[RenderableType]:
    return [Text(), Text(title, style="bold cyan"), Padding(body, (0, 0, 0, 2))]


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", show_header=bool(first))
    table.add_column(first, style="bold", no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _headline(plan: Plan, report: ReplayReport) -> Group:
    work, spread = plan.workload, report.iteration_s
    title = Text.assemble(
        (f"{work.algorithm.title} on {work.actor.id}", "bold"),
        f" · {counted(plan.num_gpus, 'GPU')} · {plan.execution.mode.value} · replay",
    )
    warm_up = f" after {counted(report.num_warm_up, 'iteration')} of warm-up" if report.num_warm_up else ""
    job = (
        f"{counted(len(report.iterations_s), 'iteration')}{warm_up}, seed {report.seed}; "
        f"responses of {report.mean_response_tokens:,.0f} tokens on average"
    )
    replayed = Text.assemble(
        "replayed ", (format_seconds(spread.mean), "bold"),
        f" per iteration; 5 to 95 % of them {format_range(spread.low, spread.high)}, "
        f"median {format_seconds_like(spread.median, spread.mean)}",
    )  # fmt: skip
    inside = report.is_inside
    difference = _difference(report.predicted_s, spread.mean)
    verdict = Text.assemble(
        "planned  ", (format_seconds_like(report.predicted_s, spread.mean), "bold"), ", ",
        ("inside" if inside else "OUTSIDE", "bold green" if inside else "bold red"),
        f" the 95 % band of the replay, {format_range(*report.band_s)} ({difference})",
    )  # fmt: skip
    return Group(title, Text(job, style="dim"), Text(), replayed, verdict)


def _difference(planned_s: float, replayed_s: float) -> str:
    """`'plan 3.1 % above the replay'`."""
    ratio = planned_s / replayed_s - 1.0
    return f"plan {abs(ratio):.1%} {'above' if ratio >= 0 else 'below'} the replay"


def _stages(report: ReplayReport) -> Table:
    table = _table("stage", "planned", "replayed", "5 to 95 %", "difference")
    for stage in report.stages:
        planned, replayed = stage.planned_s, stage.replayed_s
        if not planned and not replayed.mean:
            continue
        change = "" if not planned else f"{replayed.mean / planned - 1.0:+.1%}"
        table.add_row(
            stage.stage.value,
            format_seconds(planned),
            format_seconds_like(replayed.mean, planned or replayed.mean),
            format_range(replayed.low, replayed.high),
            change,
        )
    return table


def _groups(plan: Plan, report: ReplayReport) -> Table:
    table = _table("group", "GPUs", "idle")
    for group in report.groups:
        table.add_row(group.group, f"{group.num_gpus:,}", percent(group.idle_ratio))
    return table


def _rollout(rollout: RolloutReplay) -> Table:
    table = _table("", "")
    table.columns[1].justify = "left"
    if rollout.tail_s is not None:
        tail = rollout.tail_s
        table.add_row(
            "tail", f"{format_seconds(tail.mean)} with less than a tenth of the sequences, {_five(tail)} (5 to 95 %)"
        )
    table.add_row("idle engines", f"{percent(rollout.idle_engine_ratio)} of their time in rollouts")
    table.add_row("sequences at a time", f"{rollout.mean_running:,.0f} on average, on all engines")
    table.add_row("preempted", f"{counted(rollout.num_preempted, 'sequence')}, for want of cache")
    return table


def _five(spread: Spread) -> str:
    return format_range(spread.low, spread.high)


def _lags(report: ReplayReport) -> Table:
    table = _table("lag", "responses", "share")
    table.add_column()
    total = sum(count for _, count in report.staleness)
    for lag, count in report.staleness:
        table.add_row(f"{lag}", f"{count:,}", percent(count / total), "#" * round(_BAR * count / total))
    return table


# ---------------------------------------------------------------------------------------------- JSON


def replay_document(report: ReplayReport) -> dict[str, Json]:
    """The same for programs. Seconds, shares of one, counts."""
    iterations: list[Json] = list(report.iterations_s)
    stages: list[Json] = [
        {
            "stage": stage.stage.value,
            "group": stage.group,
            "planned_s": stage.planned_s,
            "replayed_s": _spread(stage.replayed_s),
        }
        for stage in report.stages
    ]
    groups: list[Json] = [
        {"group": item.group, "num_gpus": item.num_gpus, "idle_ratio": item.idle_ratio} for item in report.groups
    ]
    staleness: list[Json] = [{"lag": lag, "num_responses": count} for lag, count in report.staleness]
    return {
        "is_inside": report.is_inside,
        "predicted_s": report.predicted_s,
        "iteration_s": _spread(report.iteration_s),
        "band_s": [*report.band_s],
        "iterations_s": iterations,
        "num_warm_up": report.num_warm_up,
        "seed": report.seed,
        "mean_response_tokens": report.mean_response_tokens,
        "stages": stages,
        "device_groups": groups,
        "rollout": _engines(report.rollout),
        "second_rollout": None if report.second_rollout is None else _engines(report.second_rollout),
        "staleness": staleness,
    }


def _engines(rollout: RolloutReplay) -> Json:
    return {
        "tail_s": None if rollout.tail_s is None else _spread(rollout.tail_s),
        "idle_engine_ratio": rollout.idle_engine_ratio,
        "num_preempted": rollout.num_preempted,
        "mean_running": rollout.mean_running,
    }


def _spread(spread: Spread) -> Json:
    return {"mean": spread.mean, "q05": spread.low, "q50": spread.median, "q95": spread.high}
