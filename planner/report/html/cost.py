"""Where the money goes: GPU-hours and USD of an iteration by stage, idle time and unused GPUs."""

from __future__ import annotations

from math import fsum

from planner.domain.plan import Plan
from planner.domain.stages import StageName
from planner.report.html.marks import Bar, bar, chart
from planner.report.html.markup import Html, details, figure, slug, table, tag
from planner.report.occupancy import IDLE, UNUSED_NODES, Share, bill
from planner.report.words import percent
from planner.units import HOUR_S

HEIGHT = 22
_STAGES = frozenset(stage.value for stage in StageName)


def cost_figure(plan: Plan) -> Html:
    """One bar per entry of the bill, largest possible first: program order, then what earns nothing."""
    shares = bill(plan)
    if not shares:
        return figure("cost", "Cost", "Nothing on a GPU takes time.")
    total = fsum(share.gpu_s for share in shares)
    length = max(share.gpu_s for share in shares)
    in_usd = all(share.usd is not None for share in shares)
    return figure(
        "cost", "Cost of an iteration", _note(plan, shares),
        *(_row(share, total, length, in_usd=in_usd) for share in shares),
        details("Cost as a table", _share_table(shares, total), _price_table(plan)),
    )  # fmt: skip


def _note(plan: Plan, shares: tuple[Share, ...]) -> str:
    idle = fsum(share.gpu_s for share in shares if share.what == IDLE)
    total = fsum(share.gpu_s for share in shares)
    whole = any(share.what == UNUSED_NODES for share in shares)
    billed = "All nodes of the cluster are counted." if whole else "Whole nodes are counted."
    waste = f" {percent(idle / total)} of the GPU-hours are idle." if idle > 0 else ""
    if plan.usd is None:
        return f"In GPU-hours, since no price is known for all pools. {billed}{waste}"
    return f"{billed}{waste}"


def money(share: Share, *, in_usd: bool) -> str:
    """`'8.44 USD'`, or GPU-hours: all entries of a bill in the same unit."""
    return f"{share.usd:,.2f} USD" if in_usd and share.usd is not None else f"{share.gpu_s / HOUR_S:,.2f} GPU-hours"


def _row(share: Share, total: float, length: float, *, in_usd: bool) -> Html:
    fill = f"s-{slug(share.what)}" if share.what in _STAGES else "p-idle"
    hours = f"{share.gpu_s / HOUR_S:,.2f} GPU-hours"
    tip = f"{share.what}: {money(share, in_usd=in_usd)}, {hours}, {percent(share.gpu_s / total)}"
    return tag(
        "div", {"class": "lane"},
        tag("p", {"class": "row"}, tag("span", {}, tag("b", {}, share.what)),
            tag("span", {"class": "value"}, f"{money(share, in_usd=in_usd)}, {percent(share.gpu_s / total)}")),
        chart(f"Cost of {share.what}", HEIGHT,
              bar(Bar(start=0.0, end=share.gpu_s / length, y=1, height=HEIGHT - 2, fills=(fill,), tip=tip))),
    )  # fmt: skip


def _share_table(shares: tuple[Share, ...], total: float) -> Html:
    rows = [
        (share.what, f"{share.gpu_s / HOUR_S:,.3f}", "-" if share.usd is None else f"{share.usd:,.2f}",
         percent(share.gpu_s / total))
        for share in shares
    ]  # fmt: skip
    usd = None if any(share.usd is None for share in shares) else fsum(share.usd or 0.0 for share in shares)
    rows.append(("sum", f"{total / HOUR_S:,.3f}", "-" if usd is None else f"{usd:,.2f}", "100%"))
    return table(("what", "GPU-hours", "USD", "share"), rows, caption="Cost of an iteration", numeric=3)


def _price_table(plan: Plan) -> Html:
    rows = []
    for pool in plan.cluster.pools:
        rate, listed = pool.usd_per_gpu_hour, pool.node.price
        source = "given by the user"
        if rate is None:
            source = "no price known"
        elif listed is not None and listed.usd_per_gpu_hour == rate:
            source = f"{listed.provider}, {listed.region}, {listed.kind}, {listed.date}"
        rows.append((pool.name, source, "-" if rate is None else f"{rate:,.2f}"))
    return table(("pool", "source", "USD per GPU-hour"), rows, caption="Prices", numeric=1)
