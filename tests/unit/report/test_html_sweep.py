"""Fronts, and the page of a sweep."""

from __future__ import annotations

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
    assert text.count("<circle") < 3 * MAX_DRAWN
    assert len(text) < 1_000_000
    assert "of 20,000 points" in text


def test_one_point_and_no_point() -> None:
    assert pareto_figure([_point(1, 0.0)]).count("<circle") == 1
    assert "no points" in pareto_figure([])


def test_series_have_a_legend() -> None:
    text = pareto_figure([_point(1, 9, series="h100"), _point(2, 10, series="h200")])
    assert '<ul class="legend">' in text and "h200" in text
