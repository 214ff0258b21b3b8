"""Rollouts split over two pools: what is open, the lower bound, real plans with and without, saved and refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from planner import parts, solving
from planner.adapters.export import check_exportable
from planner.analysis import analyze
from planner.cost.jobs import engine_job
from planner.domain.execution import NUM_SHARES, Execution, ExecutionMode, Fusion, SchedulingPolicy
from planner.domain.fixed import FixedField
from planner.domain.hardware import Cluster, Pool
from planner.domain.plan import Limits, Objective, Plan, Status
from planner.domain.request import PlanRequest
from planner.domain.stages import StageName, WorkerName, build_graph
from planner.domain.strategy import RolloutStrategy
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError
from planner.files.catalog import generic_node, load_model, load_overheads
from planner.files.framework import load_framework
from planner.files.plan import parse_plan, plan_text
from planner.parts import SearchPart, Shop
from planner.pipeline import make_plan
from planner.report.terminal import plan_report
from planner.search.clock import Clock
from planner.search.solve import SearchResult
from planner.simulate.replay import ReplaySettings, replay
from planner.solving import search
from planner.splitting import may_split, rest_s, tables_below
from tests.factories import workload

FIRST, SECOND = WorkerName.ROLLOUT_ENGINE, WorkerName.SECOND_ENGINE


def request(
    gpus: dict[str, int], model: str = "qwen3-8b", *, prompts: int = 64, limits: Limits | None = None
) -> PlanRequest:
    pools = tuple(
        Pool(name=gpu, node=generic_node(gpu), num_nodes=nodes, usd_per_gpu_hour=2.0) for gpu, nodes in gpus.items()
    )
    return PlanRequest(
        workload=replace(workload("grpo", prompts=prompts), actor=load_model(model)),
        cluster=Cluster(pools=pools),
        gpu_type_when_open=None,
        limits=limits or Limits(),
        assumptions=(),
    )


def search_value(asked: PlanRequest) -> float:
    assert asked.cluster is not None
    return search(asked, asked.cluster, None).result.value


# ---------------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize("share", [1 / 16, 0.4375, 15 / 16])
def test_two_engines_generate_all_responses_once(share: float) -> None:
    work = workload("grpo")
    execution = Execution(second_share_ratio=share)
    graph = build_graph(work, is_split=True)
    loads = [engine_job(work, graph.worker(name), execution).load.num_sequences for name in (FIRST, SECOND)]
    assert sum(loads) == work.num_generated
    assert loads[1] == round(share * work.num_generated)
    assert execution.share_ratio(FIRST) + execution.share_ratio(SECOND) == 1.0


def test_whatever_waits_for_the_rollout_waits_for_both_parts() -> None:
    whole, split = build_graph(workload("ppo")), build_graph(workload("ppo"), is_split=True)
    after = {b for a, b in whole.edges if a is StageName.ROLLOUT}
    for name in (StageName.ROLLOUT, StageName.SECOND_ROLLOUT):
        assert {b for a, b in split.edges if a is name} == after
    assert set(split.workers_of(StageName.WEIGHT_SYNC)) == {WorkerName.ACTOR_TRAINER, FIRST, SECOND}
    assert SECOND not in whole.workers_of(StageName.WEIGHT_SYNC)


@pytest.mark.parametrize(
    "changes",
    [
        {"second_share_ratio": 0.3},
        {"second_share_ratio": 1.0},
        {"second_share_ratio": -1 / 16},
        {"second_share_ratio": 0.5, "fusions": (Fusion.INTER_STAGE,)},
        {"second_share_ratio": 0.5, "policy": SchedulingPolicy.SEQUENTIAL},
    ],
)
def test_executions_that_contradict_a_split(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"share|split"):
        Execution(**changes)  # type: ignore[arg-type]


def test_where_a_split_is_open() -> None:
    asked = request({"h100": 1, "h20": 1})
    assert asked.cluster is not None
    cluster, work = asked.cluster, asked.workload
    assert may_split(cluster, None, work, Limits())
    assert not may_split(replace(cluster, pools=cluster.pools[:1]), None, work, Limits())
    assert not may_split(cluster, load_framework("verl"), work, Limits())
    assert not may_split(cluster, None, replace(work, num_prompts=1, group_size=NUM_SHARES - 1), Limits())
    assert not may_split(cluster, None, work, Limits(policy=SchedulingPolicy.SEQUENTIAL))
    assert not may_split(cluster, None, work, Limits(must_share=((FIRST, WorkerName.ACTOR_TRAINER),)))
    assert may_split(cluster, None, work, Limits(fixed=(FixedField(worker=FIRST, field="tp", value="4"),)))
    assert not may_split(cluster, None, work, Limits(fixed=(FixedField(worker=FIRST, field="num_gpus", value="8"),)))


def test_the_bound_of_a_share_is_below_its_optimum_and_cuts_at_it() -> None:
    asked = request({"h100": 1, "h20": 1})
    assert asked.cluster is not None
    shop = Shop(asked, asked.cluster, None, Clock(60.0))
    for execution in (Execution(), Execution(mode=ExecutionMode.BATCHES, staleness=1)):
        parts = list(shop.split_parts(execution, np.inf))
        assert len(parts) == NUM_SHARES - 1
        for part, bound_s in parts[::5]:
            optimum_s = solving.solve(part.problem, solving.search_limits(asked.limits)).value
            assert 0 < bound_s <= optimum_s * (1 + 1e-12)
            by_worker = {w: [t for t in part.problem.options if t.worker is w] for w in (FIRST, SECOND)}
            trainer_s = rest_s(part.problem.options)
            split = part.inputs.execution
            assert not tables_below(by_worker[FIRST], by_worker[SECOND], trainer_s, split, bound_s).tables


# ---------------------------------------------------------------------------------------------- whole plans


@pytest.fixture(scope="module")
def split_plan() -> Plan:
    """Four nodes of H100 beside eight of H20, of which neither alone generates fastest."""
    return make_plan(unfused())


@pytest.mark.parametrize("fixed", [(), (FixedField(worker=FIRST, field="tp", value="2"),)])
def test_equal_shares_of_an_odd_number_of_responses(fixed: tuple[FixedField, ...]) -> None:
    """The second group generates one more than the first, and is what the plan waits for."""
    asked = two_nodes(prompts=41, group=7, limits=Limits(fixed=fixed, fusions=()))
    plan = make_plan(asked)
    assert plan.execution.second_share_ratio == 0.5 and asked.workload.num_generated % 2
    first, second = plan.placement(StageName.ROLLOUT), plan.placement(StageName.SECOND_ROLLOUT)
    assert first.time_s < second.time_s
    for item in (first, second):
        assert isinstance(item.strategy, RolloutStrategy)
        assert not fixed or item.strategy.tp == 2


def test_a_plan_without_a_split_stays_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = two_nodes()
    assert asked.cluster is not None
    whole = search(asked, asked.cluster, None, with_splits=False).result

    def late(*_: object) -> None:
        raise NoPlanFoundError("no plan found within 1 s")

    monkeypatch.setattr(Shop, "split_parts", late)
    found = search(asked, asked.cluster, None).result
    assert found.status is Status.FEASIBLE
    assert found.solution is not None and found.value == whole.value
    monkeypatch.undo()
    assert 0.0 < found.bound < search_value(asked)


def test_no_bound_of_plans_without_a_split_is_one_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is over before there is a plan: what a split rollout could reach is not known then."""
    asked = two_nodes()
    assert asked.cluster is not None
    best_s = search_value(asked)
    solve_parts = solving.solve_parts

    def ended(*args: object, **options: object) -> tuple[SearchPart, SearchResult]:
        part, result = solve_parts(*args, **options)  # type: ignore[arg-type]
        return part, replace(result, status=Status.UNKNOWN, solution=None)

    monkeypatch.setattr(solving, "solve_parts", ended)
    found = search(asked, asked.cluster, None).result
    assert found.status is Status.UNKNOWN and 0.0 < found.bound < best_s


@pytest.mark.parametrize("end", ["nothing", "worse"])
def test_a_proven_split_stays_when_the_time_ends_the_search_for_near_equal_plans(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    asked = two_nodes()
    assert asked.cluster is not None
    best = search(asked, asked.cluster, None).result
    solve_parts = solving.solve_parts

    def ended(parts: Sequence[SearchPart], *args: object, **options: object) -> tuple[SearchPart, SearchResult]:
        part, result = solve_parts(parts, *args, **options)  # type: ignore[arg-type]
        if not part.inputs.execution.is_split:
            return part, result
        worse = replace(result, value=result.value * 2, status=Status.FEASIBLE)
        return part, replace(worse, solution=None) if end == "nothing" else worse

    monkeypatch.setattr(solving, "solve_parts", ended)
    found = search(asked, asked.cluster, None).result
    assert found.solution is not None and found.solution.execution.is_split
    assert found.value <= best.value and found.status is Status.OPTIMAL


def two_nodes(*, prompts: int = 40, group: int = 8, limits: Limits | None = None) -> PlanRequest:
    """Two pools of one node each, on which engines of both together are fastest."""
    pools = tuple(Pool(name=n, node=generic_node("h100"), num_nodes=1, usd_per_gpu_hour=2.0) for n in ("a", "b"))
    work = replace(workload("grpo", prompts=prompts, group=group), actor=load_model("qwen3-8b"), num_optimizer_steps=1)
    asked = request({"h100": 1}, limits=limits or Limits(fusions=()))
    return replace(asked, workload=work, cluster=Cluster(pools=pools))


def unfused() -> PlanRequest:
    """Without fusion: a reference on the H20 beside the rollout would be faster still."""
    return request({"h100": 4, "h20": 8}, "qwen3-32b", prompts=256, limits=Limits(fusions=()))


def test_a_plan_that_gains_from_two_pools(split_plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    assert split_plan.execution.is_split
    first, second = split_plan.placement(StageName.ROLLOUT), split_plan.placement(StageName.SECOND_ROLLOUT)
    assert first.device_group != second.device_group
    monkeypatch.setattr(parts, "may_split", lambda *_: False)
    whole_s = search_value(unfused())
    assert split_plan.objective_value < whole_s * (1.0 - solving.TIE_TOLERANCE_RATIO)
    assert split_plan.bound < whole_s


def test_the_parts_take_about_as_long(split_plan: Plan) -> None:
    """A sixteenth more or less for one of them would make the longer one longer."""
    times = [split_plan.placement(name).time_s for name in (StageName.ROLLOUT, StageName.SECOND_ROLLOUT)]
    share = split_plan.execution.second_share_ratio
    step = 1.0 / NUM_SHARES / min(share, 1.0 - share)
    assert max(times) <= min(times) * (1.0 + 2.0 * step)


def test_a_saved_split_plan_is_read_back(split_plan: Plan) -> None:
    again = parse_plan(plan_text(split_plan), where="p")
    assert again == replace(split_plan, run=None)
    broken = plan_text(split_plan).replace('"second_share_ratio": 0.', '"second_share_ratio": 0.1')
    with pytest.raises(InvalidInputError):
        parse_plan(broken, where="p")


def test_reports_show_both_parts(split_plan: Plan) -> None:
    text = plan_report(split_plan)
    sixteenths = round(split_plan.execution.second_share_ratio * NUM_SHARES)
    assert "second rollout" in text
    assert f"{sixteenths}/16 of the rollout on a second group" in " ".join(text.split())


def test_work_and_bounds_are_those_of_one_rollout(split_plan: Plan) -> None:
    asked = request({"h100": 4, "h20": 8}, "qwen3-32b", prompts=256)
    with_plan, without = analyze(asked, split_plan), analyze(asked, None)
    assert with_plan.work_flop == pytest.approx(without.work_flop, rel=1e-3)
    assert with_plan.bound_s == pytest.approx(without.bound_s)
    assert with_plan.bound_s < split_plan.time_s


def test_frameworks_say_that_they_cannot_and_the_replay_agrees(split_plan: Plan) -> None:
    assert all(not item.can_run and any("second rollout" in r for r in item.reasons) for item in split_plan.frameworks)
    assert replay(split_plan, load_overheads(), ReplaySettings(num_iterations=2)).is_inside
    with pytest.raises(InvalidInputError, match="second rollout"):
        check_exportable(load_framework("verl"), split_plan)


@pytest.mark.parametrize(
    "limits",
    [
        Limits(),
        Limits(max_staleness=1),
        Limits(max_staleness=2, allow_partial_rollouts=True),
        Limits(objective=Objective.COST),
        Limits(objective=Objective.GPUS),
    ],
)
@pytest.mark.parametrize("gpus", [{"h100": 1, "h20": 2}, {"h100": 1, "h200": 1, "h20": 1}])
def test_allowing_a_split_never_hurts(gpus: dict[str, int], limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request(gpus, limits=limits)
    assert asked.cluster is not None
    with_split = search(asked, asked.cluster, None).result
    monkeypatch.setattr(parts, "may_split", lambda *_: False)
    without = search(asked, asked.cluster, None).result
    # Near-equal plans count as equal, so that the optimum itself is what may not be worse.
    assert with_split.bound <= without.bound * (1 + 1e-12)
    assert with_split.value <= without.value * (1 + solving.TIE_TOLERANCE_RATIO)


def test_a_deadline_that_only_a_split_meets(split_plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    deadline_s = split_plan.time_s * 1.005
    asked = request(
        {"h100": 4, "h20": 8}, "qwen3-32b", prompts=256, limits=Limits(fusions=(), max_iteration_s=deadline_s)
    )
    assert make_plan(asked).time_s <= deadline_s
    monkeypatch.setattr(parts, "may_split", lambda *_: False)
    with pytest.raises(InfeasibleError):
        make_plan(asked)
