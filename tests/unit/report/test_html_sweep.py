"""Fronts, and the page of a sweep."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from planner.domain.budget import KindPrice, Point, Row, RunRates, Sweep, SweepHead
from planner.domain.hardware import Price
from planner.domain.plan import Status
from planner.report.html.pareto import MAX_DRAWN, ParetoPoint, front, pareto_figure


def _point(hours: float, usd: float | None, gpus: int = 8, label: str = "x", series: str = "") -> ParetoPoint:
    return ParetoPoint(hours=hours, usd=usd, gpus=gpus, label=label, series=series)


def test_the_front_has_what_nothing_beats() -> None:
    fast, cheap, middle = _point(1, 9), _point(3, 2), _point(2, 5)
    beaten, equal = _point(2.5, 6), _point(2, 5, label="y")
    assert front([cheap, beaten, fast, equal, middle]) == (fast, middle, cheap)


def test_without_all_prices_cost_is_gpu_hours() -> None:
    few, many = _point(4, None, gpus=8), _point(1, 100.0, gpus=64)
    assert front([few, many]) == (many, few)
    assert "GPU-hours" in pareto_figure([few, many]) and "USD" not in pareto_figure([few, many])


def test_points_on_the_front_are_marked_and_named() -> None:
    text = pareto_figure([_point(1, 9, label="32 × <b>"), _point(2, 10, label="worse")])
    assert 'aria-label="32 × &lt;b&gt;: 1 h, 9.00 USD, 8 GPUs, on the front"' in text
    assert 'aria-label="worse: 2 h, 10.00 USD, 8 GPUs"' in text
    assert text.count('class="front"') == 0
    assert pareto_figure([_point(1, 9), _point(2, 5)]).count('class="front"') == 2


def test_many_points_keep_the_page_small() -> None:
    points = [_point(1 + i % 1000 / 100, 10 + i // 1000, label=f"p{i}") for i in range(20_000)]
    text = pareto_figure(points)
    assert text.count('class="symbol"') < 3 * MAX_DRAWN
    assert len(text) < 1_000_000
    assert "of 20,000 points" in text


def test_one_point_and_no_point() -> None:
    assert pareto_figure([_point(1, 0.0)]).count('class="symbol"') == 1
    assert "no points" in pareto_figure([])


def test_series_have_a_legend() -> None:
    text = pareto_figure([_point(1, 9, series="h100"), _point(2, 10, series="h200")])
    assert '<ul class="legend">' in text and "h200" in text
    # Not by colour alone.
    shapes = set(re.findall(r'<path class="point d\d" d="([^"]*)"', text))
    assert len(shapes) > 2


# ---------------------------------------------------------------------------------------------- sweeps

RATES = RunRates(
    num_steps=500, startup_s=900.0, checkpoint_bytes=4.6e11, checkpoint_bytes_per_s_per_node=2e9, checkpoint_every=20,
    validation_every=0, validation_prompts=500, failures_per_gpu_hour=2e-5, interruptions_per_node_hour=0.0,
)  # fmt: skip
PRICE = Price(usd_per_gpu_hour=2.5, provider="ACME <b>", region="moon", date="2026-01", kind="on-demand")


def _row(kind: str, gpus: int, time_s: float | None, mean: float = 3000.0) -> Row:
    point = Point(kind=kind, num_gpus=gpus, response_mean_tokens=mean)
    if time_s is None:
        return Row(point=point, status=Status.INFEASIBLE, reason="gradients of the actor <i>")
    return Row(
        point=point, status=Status.OPTIMAL, time_s=time_s, bound_s=time_s, num_gpus=gpus, num_nodes=gpus // 8,
        gpus_per_node=8, groups="all", layouts=("actor trainer: dp 8",),
    )  # fmt: skip


def _sweep() -> Sweep:
    head = SweepHead(
        digest="0", version="0", title="GRPO on <script>x</script> · 256 prompts", kinds=("h100", "h200"),
        sizes=(8, 16, 32), response_means=(3000.0, 6000.0), response_max_tokens=8192, num_points=8, rates=RATES,
        prices=(KindPrice(kind="h100", price=PRICE), KindPrice(kind="h200", price=PRICE)), assumptions=("a & b",),
    )  # fmt: skip
    rows = (
        _row("h100", 8, None), _row("h100", 16, 400.0), _row("h100", 32, 250.0), _row("h200", 16, 300.0),
        _row("h200", 32, 200.0), _row("h100", 32, 500.0, mean=6000.0), _row("h200", 32, 400.0, mean=6000.0),
    )  # fmt: skip
    return Sweep(head=head, rows=rows)


@pytest.fixture(name="page")
def _page() -> str:
    from planner.report.html.sweep import sweep_page

    return sweep_page(_sweep())


def test_a_sweep_has_picks_front_failures_prices_and_lengths(page: str) -> None:
    for part in (
        "32 × h200", "16 × h200", "By mean response", "6,000 tokens", "gradients of the actor &lt;i&gt;",
        "2.50 USD per GPU-hour (ACME &lt;b&gt;", "a &amp; b", "1 point of the sweep not planned yet",
    ):  # fmt: skip
        assert part in page, part
    assert "<script>x" not in page
    # h100 is slower and no cheaper: the front is h200 alone.
    assert page.count(", on the front") == 2


def test_limits_that_nothing_keeps_are_said() -> None:
    from planner.report.html.sweep import sweep_page

    sweep = _sweep()
    page = sweep_page(replace(sweep, head=replace(sweep.head, max_usd=1.0)))
    assert "No run is within the limits" in page
    assert "There are no points" in page
