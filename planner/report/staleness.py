"""What each step of staleness would buy, side by side."""

from __future__ import annotations

from rich.table import Table

from planner.domain.plan import Plan
from planner.units import format_seconds_like


def staleness_table(plan: Plan) -> Table | None:
    """The best plan at every permitted lag, and streaming where it was not permitted; None without asynchrony."""
    if not plan.staleness_gains:
        return None
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("at most", "best plan", "iteration", "if lengths vary", "vs lag 0", ""):
        table.add_column(name, justify="left" if name in ("best plan", "") else "right", overflow="fold")
    base_s = plan.staleness_gains[0].time_s
    for gain in plan.staleness_gains:
        if gain.time_s is None:
            table.add_row(f"lag {gain.staleness}", "nothing fits", "", "", "", "")
            continue
        change = "" if base_s is None or gain.staleness == 0 else f"{gain.time_s / base_s - 1.0:+.0%}"
        varying = "" if gain.varying_time_s is None else format_seconds_like(gain.varying_time_s, gain.time_s)
        taken = gain.is_permitted and gain.staleness == plan.execution.staleness
        note = "this plan" if taken else "" if gain.is_permitted else "needs --allow partial-rollouts"
        time = format_seconds_like(gain.time_s, gain.time_s)
        table.add_row(f"lag {gain.staleness}", gain.mode, time, varying, change.replace("-0%", "0%"), note)
    return table
