"""Totals of whole runs, checked by hand."""

from __future__ import annotations

from dataclasses import replace
from math import isinf, sqrt

import pytest

from planner.domain.budget import Point, Row, RunRates, run_total
from planner.domain.hardware import Price
from planner.domain.plan import Status

ROW = Row(
    point=Point(kind="h100", num_gpus=16, response_mean_tokens=1000.0), status=Status.OPTIMAL, time_s=100.0,
    bound_s=99.0, num_gpus=12, num_nodes=2, gpus_per_node=8, validation_s=30.0,
)  # fmt: skip
RATES = RunRates(
    num_steps=90, startup_s=600.0, checkpoint_bytes=40e9, checkpoint_bytes_per_s_per_node=1e9, checkpoint_every=20,
    validation_every=40, validation_prompts=100, failures_per_gpu_hour=0.0, interruptions_per_node_hour=0.0,
)  # fmt: skip
PRICE = Price(usd_per_gpu_hour=2.0, provider="X", region="r", date="2026-01", kind="on-demand")


def test_a_run_without_failures_is_the_sum_of_its_parts() -> None:
    run = run_total(ROW, RATES, PRICE)
    assert run.iterations_s == 9000.0
    assert run.validation_s == 60.0
    # 20 s each on two nodes; after iterations 20, 40, 60, 80 and at the end
    assert run.checkpoint_s == 100.0
    assert run.failure_s == 0.0
    assert run.time_s == 9000.0 + 60.0 + 100.0 + 600.0
    # whole nodes are billed
    assert run.gpu_hours == pytest.approx(16 * 9760 / 3600)
    assert run.usd == pytest.approx(2.0 * 16 * 9760 / 3600)


def test_interruptions_repeat_half_an_interval_and_the_start() -> None:
    rates = replace(RATES, failures_per_gpu_hour=0.001, interruptions_per_node_hour=0.02)
    run = run_total(ROW, rates, None)
    rate = (0.001 * 16 + 0.02 * 2) / 3600
    young_s = sqrt(2 * 20.0 / rate)
    assert run.checkpoint_every == round(young_s / 100.0) < 20
    work_s = 9000.0 + 60.0 + 600.0 + 20.0 * -(-90 // run.checkpoint_every)
    # in the total, each of rate x total interruptions costs a start and half an interval
    assert run.time_s == pytest.approx(work_s + rate * run.time_s * (600.0 + 50.0 * run.checkpoint_every))
    assert run.num_interruptions == pytest.approx(rate * run.time_s)
    assert run.usd is None


def test_a_run_that_is_interrupted_faster_than_it_progresses_never_ends() -> None:
    run = run_total(ROW, replace(RATES, interruptions_per_node_hour=5.0), PRICE)
    assert isinf(run.time_s)
    assert not run.is_finite


def test_no_validation() -> None:
    assert run_total(ROW, replace(RATES, validation_every=0), None).validation_s == 0.0


@pytest.mark.parametrize("change", [{"num_steps": 0}, {"startup_s": -1.0}, {"checkpoint_bytes_per_s_per_node": 0.0}])
def test_rates_that_cannot_be_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"."):
        replace(RATES, **change)  # type: ignore[arg-type]


def test_a_row_has_a_time_exactly_when_it_has_a_plan() -> None:
    with pytest.raises(ValueError, match="infeasible"):
        replace(ROW, status=Status.INFEASIBLE)
    with pytest.raises(ValueError, match="optimal"):
        replace(ROW, time_s=None)
    with pytest.raises(ValueError, match="no run"):
        run_total(replace(ROW, status=Status.INFEASIBLE, time_s=None), RATES, None)
