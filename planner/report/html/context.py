"""What surrounds a plan: strategies, alternatives, proof and search, frameworks, host RAM, assumptions."""

from __future__ import annotations

from math import fsum

from planner.domain.plan import HostRam, Plan
from planner.domain.stages import WorkerName
from planner.report.facts import band_words, proof_words
from planner.report.html.axis import grid, time_ticks, x_axis
from planner.report.html.marks import Bar, bar, chart
from planner.report.html.markup import Html, details, figure, ratio, table, tag
from planner.report.html.pareto import ParetoPoint, pareto_figure
from planner.report.words import MISFIT, counted, is_fixed, percent, quantity, strategy_words, term_words
from planner.units import HOUR_S, format_bytes, format_range, format_seconds


def stages_figure(plan: Plan) -> Html:
    """Where each stage runs and with which strategy."""
    rows = []
    for placement in plan.placements:
        scheduled = next((item for item in plan.schedule if item.stage is placement.stage), None)
        groups = " + ".join(scheduled.device_groups) if scheduled is not None else placement.device_group
        trains = placement.worker not in (WorkerName.REFERENCE, WorkerName.REWARD_MODEL)
        rows.append((
            placement.stage.value, groups or "host",
            strategy_words(placement.strategy, trains=trains) or "-", placement.bound_by,
            format_seconds(placement.time_s) if placement.time_s else "~0 s",
            percent(placement.time_s / plan.time_s) if plan.time_s else "",
        ))  # fmt: skip
    return figure(
        "stages", "Stages and strategies", "",
        table(("stage", "group", "strategy", "bound by", "time", "share"), rows, caption="Stages of an iteration",
              numeric=2),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- how sure


def accuracy_figure(plan: Plan) -> Html:
    """The predicted time with its band of measured errors."""
    band = plan.time_band
    if band is None:
        return figure("accuracy", "How sure", "No error band: nothing of the kind was measured.")
    low, high = band.low_ratio * plan.time_s, band.high_ratio * plan.time_s
    length = high * 1.08
    ticks = time_ticks(length)
    span = format_range(low, high)
    tip = f"{percent(band.coverage_ratio)} band of the iteration time: {span}"
    here = ratio(plan.time_s / length)
    marks = [
        *grid(ticks, length, 44),
        bar(Bar(start=low / length, end=high / length, y=12, height=20, fills=("band",), tip=tip, labels=(span,))),
        tag("line", {"class": "estimate", "x1": here, "x2": here, "y1": 4, "y2": 40}),
    ]
    memory = plan.memory_band
    rows = [("iteration time", format_seconds(plan.time_s), span, band.basis)]
    if memory is not None:
        rows.append(("GPU memory peak of a stage", "see GPU memory",
                     f"{memory.low_ratio:.2f} to {memory.high_ratio:.2f} times", memory.basis))  # fmt: skip
    return figure(
        "accuracy", "How sure",
        f"The line is the predicted iteration time, the bar where a measured one should lie: {band_words(plan)}.",
        chart("Error band of the iteration time", 44, *marks),
        tag("div", {"class": "axis"}, x_axis(ticks, length)),
        details("Bands as a table", table(("what", "predicted", "band", "rests on"), rows, caption="Error bands")),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- alternatives


def plan_points(plan: Plan) -> list[ParetoPoint]:
    """The plan and its alternatives as hours and GPU-hours of one iteration."""
    hour = plan.time_s / HOUR_S
    others = [
        ParetoPoint(hours=item.time_s / HOUR_S, usd=None, gpus=item.num_gpus, label=item.description)
        for item in plan.alternatives
    ]
    return [ParetoPoint(hours=hour, usd=None, gpus=plan.num_gpus, label="this plan"), *others]


def alternatives_figure(plan: Plan) -> Html:
    """Structurally different plans, as points and as a table."""
    if not plan.alternatives:
        return figure("alternatives", "Alternatives", "No structurally different plan was kept.")
    rows = [("this plan", counted(plan.num_gpus, "GPU"), format_seconds(plan.time_s), "")]
    rows += [
        (item.description, counted(item.num_gpus, "GPU"), format_seconds(item.time_s),
         f"{item.time_s / plan.time_s - 1:+.1%}" if plan.time_s else "")
        for item in plan.alternatives
    ]  # fmt: skip
    return tag(
        "div", {},
        figure("alternatives", "Alternatives", "Structurally different plans that were priced.",
               table(("plan", "GPUs", "time", "change"), rows, caption="Alternatives", numeric=3)),
        pareto_figure(plan_points(plan), title="Time against GPU-hours of an iteration"),
    )  # fmt: skip


def staleness_figure(plan: Plan) -> Html:
    """What each step of staleness buys; nothing where it was not asked."""
    if not plan.staleness_gains:
        return Html("")
    rows = [
        (str(item.staleness), item.mode, "yes" if item.is_permitted else "no", counted(item.num_gpus, "GPU"),
         "-" if item.time_s is None else format_seconds(item.time_s),
         "-" if item.varying_time_s is None else format_seconds(item.varying_time_s))
        for item in plan.staleness_gains
    ]  # fmt: skip
    return figure(
        "staleness", "What staleness buys",
        "The best plan for each lag in versions between the weights that generate and those that learn.",
        table(("staleness", "execution", "permitted", "GPUs", "time", "time with varying lengths"), rows,
              caption="Time per iteration by staleness", numeric=3),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- proof


def proof_figure(plan: Plan) -> Html:
    """Status, bound and gap, and how the search got there."""
    verdict, rest = proof_words(plan)
    if is_fixed(plan):
        return figure("proof", "Proof", rest)
    search = plan.search
    rows = [
        ("status", plan.status.value),
        (f"objective ({plan.limits.objective.value})", quantity(plan.objective_value, plan.objective_unit)),
        ("proven lower bound", quantity(plan.bound, plan.objective_unit)),
        ("gap", percent(plan.gap_ratio)),
        ("candidates priced", f"{search.num_priced:,}"),
        ("pruned as never better", f"{search.num_pruned:,}"),
        ("rejected", f"{fsum(reason.value for reason in search.num_rejected):,.0f}"),
        ("groupings of stages", f"{search.num_structures:,}"),
        ("solver", f"{counted(search.num_structures_solved, 'sub-problem')} closed by {search.solver}, "
                   "the rest excluded by bounds"),
    ]  # fmt: skip
    if plan.run is not None:
        rows.append(("run", f"{format_seconds(plan.run.time_s)}, peak {format_bytes(plan.run.peak_rss_bytes)} of RAM"))
    reasons = sorted(search.num_rejected, key=lambda reason: (-reason.value, reason.name))
    rejected = [(reason.name, f"{reason.value:,.0f}") for reason in reasons]
    return figure(
        "proof", "Proof and search", tag("span", {}, tag("b", {}, verdict), rest + "."), _gap(plan),
        table(("what", "value"), rows, caption="Search"),
        details("Why candidates were rejected", table(("reason", "candidates"), rejected, caption="Rejected",
                                                      numeric=1)) if rejected else "",
    )  # fmt: skip


def _gap(plan: Plan) -> Html:
    """The bound and the plan on one scale."""
    if plan.objective_value <= 0:
        return Html("")
    share = min(1.0, max(0.0, plan.bound / plan.objective_value))
    bound = f"proven: no plan below {quantity(plan.bound, plan.objective_unit)}"
    parts = [bar(Bar(start=0.0, end=share, y=2, height=24, fills=("proven",), tip=bound, labels=(bound, "proven")))]
    if share < 1.0:
        tip = f"gap: {percent(plan.gap_ratio)}, up to the plan's {quantity(plan.objective_value, plan.objective_unit)}"
        parts.append(bar(Bar(start=share, end=1.0, y=2, height=24, fills=("p-idle",), tip=tip,
                             labels=(f"gap {percent(plan.gap_ratio)}",), ink="on-idle")))  # fmt: skip
    return chart("Lower bound and gap", 28, *parts)


# ---------------------------------------------------------------------------------------------- the rest


def frameworks_figure(plan: Plan) -> Html:
    """Which frameworks can run the plan."""
    if not plan.frameworks:
        return Html("")
    rows = [(v.framework, "yes" if v.can_run else "no", "; ".join(v.reasons) or "-") for v in plan.frameworks]
    return figure("frameworks", "Frameworks", "Which frameworks can run this plan as it is.",
                  table(("framework", "can run it", "why not"), rows, caption="Frameworks"))  # fmt: skip


def host_figure(plan: Plan) -> Html:
    """Host RAM per node of the fullest placement of each pool."""
    pool_of = {group.id: group.pool for group in plan.device_groups}
    fullest: dict[str, HostRam] = {}
    for placement in plan.placements:
        host, pool = placement.host_ram, pool_of.get(placement.device_group)
        if host is not None and pool is not None and (
            pool not in fullest or host.peak_bytes > fullest[pool].peak_bytes
        ):  # fmt: skip
            fullest[pool] = host
    if not fullest:
        return Html("")
    rows = [
        (pool, ", ".join(f"{term_words(t.name)} {format_bytes(t.value)}" for t in host.terms if t.value > 0) or "-",
         format_bytes(host.peak_bytes), format_bytes(host.usable_bytes),
         percent(host.peak_bytes / host.usable_bytes))
        for pool, host in sorted(fullest.items())
    ]  # fmt: skip
    return figure("host", "Host RAM", "Per node, at the fullest placement.",
                  table(("pool", "holds", "peak", "usable", "share"), rows, caption="Host RAM per node",
                        numeric=3))  # fmt: skip


def assumptions_figure(plan: Plan) -> Html:
    """Everything that was not given."""
    rows = [(item.what, item.value, item.source, item.effect or "-") for item in plan.assumptions
            if item.what != MISFIT]  # fmt: skip
    if not rows:
        return figure("assumptions", "Assumptions", "Everything was given; nothing was assumed.")
    return figure("assumptions", "Assumptions", "Values that were not given, and so were assumed.",
                  table(("what", "value", "source", "effect"), rows, caption="Assumptions"))  # fmt: skip
