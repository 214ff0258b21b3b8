"""Shared pricing finds, point by point, the plan that `make_plan` finds."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from planner.domain.plan import Status
from planner.errors import InfeasibleError
from planner.files.spec import WorkloadSpec
from planner.pipeline import make_plan
from planner.sweep.points import Planner, Task, least_gpus, price_group
from planner.sweep.request import PreparedSweep, SweepOptions, prepare
from planner.sweep.searching import is_shared


def sweep_of(model: str, sizes: str, types: str, more: WorkloadSpec | None = None) -> PreparedSweep:
    spec = replace(more or WorkloadSpec(), model=model, num_prompts=64, response_max=2048)
    return prepare(spec, SweepOptions(sizes=sizes, types=types, response_means="300,900"))


@pytest.mark.parametrize(
    ("model", "sizes", "types", "more"),
    [
        ("qwen3-1.7b", "2,8,16", "h100,h200", WorkloadSpec()),
        ("qwen3-0.6b", "8..16", "h100", WorkloadSpec(algorithm="ppo")),
        ("qwen3-8b", "4..16", "a100", WorkloadSpec(framework="verl")),
        ("qwen3-30b-a3b", "8,16", "h200", WorkloadSpec(algorithm="dapo")),
        ("qwen3-8b", "1..8", "l40s", WorkloadSpec(lora_rank=32)),
    ],
)
def test_points_drawn_at_random_have_the_plan_of_make_plan(
    model: str, sizes: str, types: str, more: WorkloadSpec
) -> None:
    prepared = sweep_of(model, sizes, types, more)
    planner = Planner()
    found = {task.point: planner.plan(task) for task in prepared.tasks}
    assert len(found) == prepared.head.num_points
    for task in random.Random(5).sample(prepared.tasks, 3):
        row = found[task.point]
        try:
            plan = make_plan(task.group.at(task.num_gpus))
        except InfeasibleError:
            assert row.status is Status.INFEASIBLE
            assert row.reason
            continue
        assert row.time_s == pytest.approx(plan.time_s, rel=1e-9)
        assert row.num_gpus == plan.num_gpus
        assert row.num_nodes == sum(plan.num_nodes_used.values())
        assert row.status is plan.status


def test_rows_do_not_depend_on_the_order_of_tasks() -> None:
    prepared = sweep_of("qwen3-0.6b", "1..16", "h100")
    planner = Planner()
    forward = {task.point: planner.plan(task) for task in prepared.tasks}
    planner = Planner()
    backward = {task.point: planner.plan(task) for task in reversed(prepared.tasks)}
    assert forward == backward


def test_points_of_one_kind_and_length_are_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.sweep import points

    prepared = sweep_of("qwen3-0.6b", "8..32", "h100,h200")
    calls = []
    monkeypatch.setattr(points, "price_group", lambda group: calls.append(group) or price_group(group))
    planner = Planner()
    for task in prepared.tasks:
        planner.plan(task)
    assert len(calls) == 2 * 2, "two types, two mean responses"


def test_sizes_are_rounded_to_whole_nodes_and_small_machines_are_their_own() -> None:
    prepared = sweep_of("qwen3-0.6b", "2,6,12,13,16", "h100")
    sizes = {(t.num_gpus, t.group.node.gpus_per_node) for t in prepared.tasks}
    assert sizes == {(2, 2), (6, 6), (16, 8)}


def test_least_gpus_is_where_plans_begin() -> None:
    prepared = sweep_of("qwen3-32b", "8..32", "h100")
    group = prepared.tasks[0].group
    least = least_gpus(price_group(group))
    assert least == 4
    with pytest.raises(InfeasibleError):
        # half of it, as a machine of its own
        half = sweep_of("qwen3-32b", "2", "h100").tasks[0]
        make_plan(half.group.at(2))


def test_what_the_shared_pricing_does_not_know_is_planned_alone() -> None:
    task = sweep_of("qwen3-0.6b", "8", "h100").tasks[0]
    shared = Planner().plan(task)
    limits = replace(task.group.request.limits, max_staleness=1)
    assert is_shared(task.group.request.limits)
    assert not is_shared(limits)
    group = replace(task.group, request=replace(task.group.request, limits=limits))
    alone = Planner().plan(Task(group=group, num_gpus=task.num_gpus))
    assert alone.time_s is not None and shared.time_s is not None
    assert alone.time_s <= shared.time_s * 1.01
    assert alone.validation_s > 0
