"""What a plan comes to, in sentences that the terminal and the page share."""

from __future__ import annotations

from planner.domain.execution import NUM_SHARES
from planner.domain.plan import Plan, Status
from planner.files.plan import gpu_hours
from planner.report.words import is_fixed, percent, quantity
from planner.units import format_range, format_seconds

ROUNDING_GAP_RATIO = 1e-5
"""The search counts time in ticks; a gap below this is their rounding."""


def cost_words(plan: Plan) -> str:
    """What the nodes cost that the plan uses."""
    return f"{plan.usd:,.2f} USD" if plan.usd is not None else f"{gpu_hours(plan):.2f} GPU-hours (no price known)"


def whole_cost_words(plan: Plan) -> str:
    """What the whole cluster costs, where nodes are left idle; else nothing."""
    if plan.num_nodes_used == {pool.name: pool.num_nodes for pool in plan.cluster.pools}:
        return ""
    if plan.usd is not None and plan.cluster_usd is not None:
        return f"{plan.cluster_usd:,.2f} USD with idle nodes"
    return f"{plan.time_s * plan.cluster.num_gpus / 3600.0:.2f} GPU-hours with idle nodes"


def band_words(plan: Plan) -> str:
    """Where the measured time should lie, and what that rests on; nothing without a band."""
    band = plan.time_band
    if band is None:
        return ""
    span = format_range(band.low_ratio * plan.time_s, band.high_ratio * plan.time_s)
    return f"{percent(band.coverage_ratio)} band {span}; {band.basis}"


def limit_words(plan: Plan) -> str:
    """The user's limits, all of which the plan keeps; nothing where there are none."""
    limits = plan.limits
    parts = [
        f"{format_seconds(limits.max_iteration_s)} per iteration" if limits.max_iteration_s is not None else "",
        f"{limits.max_usd_per_iteration:,.2f} USD per iteration" if limits.max_usd_per_iteration is not None else "",
        f"{limits.max_gpus:,} GPUs" if limits.max_gpus is not None else "",
    ]
    given = [part for part in parts if part]
    return f"within the limits: at most {', '.join(given)}" if given else ""


def proof_words(plan: Plan) -> tuple[str, str]:
    """(the verdict of the search, the rest of the sentence)."""
    if is_fixed(plan):
        return "", "Priced as given; nothing was searched."
    kind, bound = plan.limits.objective.value, quantity(plan.bound, plan.objective_unit)
    if plan.status is not Status.OPTIMAL:
        gap = f"{kind}: lower bound {bound}, gap {percent(plan.gap_ratio)}"
        return plan.status.value, f", best found but not proven optimal, {gap}"
    if plan.gap_ratio <= ROUNDING_GAP_RATIO:
        return "proven optimal", f" in the declared space, {kind}: lower bound {bound}"
    return (
        f"within {percent(plan.gap_ratio)} of the proven optimum",
        f" ({kind} {bound}); preferred for fewer GPUs, headroom or simplicity",
    )


def restriction_words(plan: Plan) -> str:
    """`'verl costs 3.2% against the best plan of any framework (616 s)'`; empty without a framework."""
    if plan.unrestricted_value is None or plan.limits.framework is None:
        return ""
    best = plan.unrestricted_value
    cost_ratio = plan.objective_value / best - 1.0 if best else 0.0
    if cost_ratio < 5e-4:
        return f"the restriction to {plan.limits.framework} costs nothing"
    values = {"s": format_seconds(best), "GPUs": f"{best:.0f} GPUs", "USD": f"{best:,.2f} USD"}
    shown = values.get(plan.objective_unit, f"{best:,.2f} {plan.objective_unit}")
    return f"the restriction to {plan.limits.framework} costs {cost_ratio:.1%} (best plan of any framework: {shown})"


def execution_words(plan: Plan) -> str:
    """`'synchronous'`, `'asynchronous batches, staleness 1'`, with what is fused and how a rollout is split."""
    execution = plan.execution
    words = execution.mode.value
    if execution.is_asynchronous:
        words += f", staleness {execution.staleness}"
    if execution.fusions:
        words += f", {' and '.join(fusion.value for fusion in execution.fusions)} fusion"
    for way in execution.sharded_syncs:
        words += f", {way.value} weight sync"
    if execution.is_split:
        words += f", {round(execution.second_share_ratio * NUM_SHARES)}/{NUM_SHARES} of the rollout on a second group"
    return words
