"""What a sweep says, against definitions worked out here."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from planner.domain.budget import KindPrice, Point, Row, RunTotal, Sweep
from planner.domain.hardware import Price
from planner.domain.plan import Status
from planner.files.spec import WorkloadSpec
from planner.sweep.request import PreparedSweep, SweepOptions, prepare
from planner.sweep.service import run_sweep
from planner.sweep.smallest import smallest_fits
from planner.whatif import (
    Entry,
    break_even,
    choose,
    full_plans,
    group_of,
    is_allowed,
    nearest_misses,
    pareto_front,
    sensitivity,
    time_at_mean,
)

MODEL = "qwen3-0.6b"


def entry(kind: str, num_gpus: int, hours: float, gpu_hours: float, usd: float | None) -> Entry:
    row = Row(
        point=Point(kind=kind, num_gpus=num_gpus, response_mean_tokens=1000.0), status=Status.OPTIMAL, time_s=1.0,
        num_gpus=num_gpus, num_nodes=1, gpus_per_node=num_gpus,
    )  # fmt: skip
    run = RunTotal(
        iterations_s=hours * 3600, startup_s=0.0, validation_s=0.0, checkpoint_s=0.0, failure_s=0.0,
        checkpoint_every=20, num_interruptions=0.0, gpu_hours=gpu_hours, usd=usd,
    )  # fmt: skip
    return Entry(row=row, run=run)


@pytest.mark.parametrize("seed", range(20))
def test_the_front_is_what_nothing_beats(seed: int) -> None:
    draw = random.Random(seed)
    entries = [
        entry(kind, i + 1, draw.randint(1, 8), draw.randint(1, 8), draw.randint(1, 8) if has_price else None)
        for i in range(30)
        for kind, has_price in [draw.choice([("a", True), ("b", True), ("c", False), ("d", False)])]
    ]

    def comparable(first: Entry, second: Entry) -> bool:
        return (first.run.usd is None) == (second.run.usd is None)

    def figures(item: Entry) -> tuple[float, float, float]:
        return item.run.time_s, item.run.gpu_hours, item.run.usd or 0.0

    def beaten(item: Entry) -> bool:
        return any(
            comparable(other, item)
            and figures(other) != figures(item)
            and all(a <= b for a, b in zip(figures(other), figures(item), strict=True))
            for other in entries
        )

    front = pareto_front(entries)
    assert {figures(e) for e in front} == {figures(e) for e in entries if not beaten(e)}
    assert [e.run.time_s for e in front] == sorted(e.run.time_s for e in front)


def test_limits() -> None:
    run = entry("a", 1, 10.0, 10.0, 100.0).run
    assert is_allowed(run, 36_000.0, 100.0)
    assert not is_allowed(run, 35_999.0, None)
    assert not is_allowed(run, None, 99.0)
    # money that is not known is not within a budget
    assert not is_allowed(replace(run, usd=None), None, 1e9)
    assert is_allowed(replace(run, usd=None), None, None)
    assert not is_allowed(replace(run, failure_s=float("inf")), None, None)


@cache
def swept() -> tuple[PreparedSweep, Sweep]:
    spec = WorkloadSpec(model=MODEL, num_prompts=64, response_max=4096, response_mean=1000, steps=100)
    options = SweepOptions(sizes="1,2,8,16", types="h100,gb200", response_means="500")
    prepared = prepare(spec, options)
    return prepared, run_sweep(prepared).sweep


def test_picks_are_the_least_of_all_entries() -> None:
    _, sweep = swept()
    choice = choose(sweep)
    entries = choice.entries
    assert len(entries) == 8
    priced = [e for e in entries if e.run.usd is not None]
    assert {e.point.kind for e in priced} == {"h100"}
    assert choice.unpriced == ("gb200",)
    cheapest, fastest, smallest = (choice.pick(name) for name in ("cheapest", "fastest", "smallest"))
    assert cheapest is not None and cheapest.run.usd == min(e.run.usd or 0.0 for e in priced)
    assert fastest is not None and fastest.run.time_s == min(e.run.time_s for e in entries)
    assert smallest is not None and smallest.row.billed_gpus == 1
    assert {id(e) for e in choice.front} <= {id(e) for e in choice.allowed}
    assert all(pick.entry in choice.front for pick in choice.picks if pick.name == "fastest")


def test_without_any_price_gpu_hours_stand_for_money() -> None:
    _, sweep = swept()
    bare = replace(sweep, head=replace(sweep.head, prices=(KindPrice(kind="h100", price=None),)))
    cheapest = choose(bare).picks[0]
    assert "GPU-hours: no price is known" in cheapest.why
    assert cheapest.entry.run.gpu_hours == min(e.run.gpu_hours for e in choose(bare).entries)


def test_limits_that_nothing_meets_name_what_comes_nearest() -> None:
    _, sweep = swept()
    strict = replace(sweep, head=replace(sweep.head, max_time_s=60.0, max_usd=0.01))
    choice = choose(strict)
    assert not choice.picks and not choice.front
    text = nearest_misses(strict, choice)
    assert "no plan stays within 0.01667 h and 0 USD" in text
    assert "the fastest takes" in text and "the cheapest takes" in text


def test_the_chosen_plan_at_its_own_length_is_itself() -> None:
    prepared, sweep = swept()
    choice = choose(sweep)
    plans = full_plans(prepared.tasks, choice)
    for plan, point in zip(plans, dict.fromkeys(p.entry.point for p in choice.picks), strict=True):
        row = next(row for row in sweep.rows if row.point == point)
        assert plan.time_s == pytest.approx(row.time_s, rel=1e-9)
        request = group_of(prepared.tasks, point).at(point.num_gpus)
        same = time_at_mean(plan, request, plan.workload.response.mean_tokens)
        assert same == pytest.approx(plan.time_s, rel=1e-9)


def test_sensitivity_scales_with_what_it_says() -> None:
    prepared, sweep = swept()
    choice = choose(sweep)
    cheapest = choice.pick("cheapest")
    assert cheapest is not None
    plan = full_plans(prepared.tasks, choice)[0]
    request = group_of(prepared.tasks, cheapest.point).at(cheapest.point.num_gpus)
    found = sensitivity(sweep, choice, cheapest, plan, request)
    by_name = {effect.what: effect for effect in found.effects}
    half, more = by_name["mean response 500 tokens"].run, by_name["mean response 1,500 tokens"].run
    grown = by_name["mean response grows to 2,000 during the run"].run
    twice = by_name["mean response 2,000 tokens"].run
    assert half is not None and more is not None and grown is not None and twice is not None
    assert half.time_s < cheapest.run.time_s < more.time_s < twice.time_s
    # linear growth: near the run at the mean of the means
    assert grown.time_s == pytest.approx(more.time_s, rel=0.05)
    assert "cheapest then: " in by_name["mean response 500 tokens"].note
    dearer = next(effect.run for what, effect in by_name.items() if what.startswith("price +25%"))
    assert dearer is not None and cheapest.run.usd is not None and dearer.usd is not None
    assert dearer.usd == pytest.approx(1.25 * cheapest.run.usd)
    assert dearer.time_s == pytest.approx(cheapest.run.time_s)
    assert "gb200 is as cheap at" in found.break_even
    # what lag would buy, although none is permitted
    lags = [gain.staleness for gain in found.staleness]
    assert 0 in lags and max(lags) > 0
    assert not any(gain.is_permitted for gain in found.staleness if gain.staleness)


def test_break_even_prices_make_the_rival_as_cheap() -> None:
    _, sweep = swept()
    price = Price(usd_per_gpu_hour=50.0, provider="", region="", date="", kind="")
    head = sweep.head
    dear = replace(sweep, head=replace(head, prices=(head.prices[0], KindPrice(kind="gb200", price=price))))
    choice = choose(dear)
    cheapest = choice.pick("cheapest")
    assert cheapest is not None and cheapest.point.kind == "h100"
    text = break_even(choice, cheapest)
    equal = float(text.split("at ")[1].split(" USD")[0])
    at = replace(price, usd_per_gpu_hour=equal)
    even = replace(sweep, head=replace(head, prices=(head.prices[0], KindPrice(kind="gb200", price=at))))
    rival = min(e.run.usd or 0.0 for e in choose(even).entries if e.point.kind == "gb200")
    # the price is shown with two decimals
    assert rival == pytest.approx(cheapest.run.usd, rel=0.005 / equal + 1e-9)


def test_the_smallest_cluster_is_where_the_term_below_binds() -> None:
    spec = WorkloadSpec(model="qwen3-32b", num_prompts=64, response_max=4096)
    prepared = prepare(spec, SweepOptions(sizes="8,16", types="h100"))
    sweep = run_sweep(prepared).sweep
    (fit,) = smallest_fits(prepared.tasks, sweep)
    assert (fit.kind, fit.num_gpus, fit.below_gpus) == ("h100", 4, 2)
    assert "stage 'actor update' on 2x" in fit.binding
    assert "needed at the" in fit.binding and "largest term" in fit.binding


def test_nothing_fits() -> None:
    spec = WorkloadSpec(model="deepseek-v3", num_prompts=64, response_max=4096)
    prepared = prepare(spec, SweepOptions(sizes="8", types="h100"))
    sweep = run_sweep(prepared).sweep
    assert [row.status for row in sweep.rows] == [Status.INFEASIBLE]
    (fit,) = smallest_fits(prepared.tasks, sweep)
    assert fit.num_gpus is None
    assert "GPU memory" in fit.binding
    assert "no point of the sweep has a plan" in nearest_misses(sweep, choose(sweep))


def test_groups_are_found_by_point() -> None:
    prepared, _ = swept()
    task = prepared.tasks[-1]
    assert group_of(prepared.tasks, task.point) is task.group
