"""Plans whose weight sync may move shards only: what is found, said, saved, replayed and explained."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from planner.domain.execution import Execution, ExecutionMode, Fusion, ShardedSync
from planner.domain.fixed import FixedField
from planner.domain.plan import Limits, Plan
from planner.domain.stages import StageName, WorkerName
from planner.errors import InvalidInputError
from planner.executions import permitted_executions
from planner.explaining.explanation import explain_plan
from planner.files.catalog import load_overheads
from planner.files.permissions import SYNCS
from planner.files.plan import digests, parse_plan, plan_text
from planner.files.workload import WorkloadSpec, build_request
from planner.files.workload_file import read_workload
from planner.pipeline import make_plan
from planner.report.facts import execution_words
from planner.simulate.replay import ReplaySettings, replay
from tests.unit.test_pipeline import qwen_workload, request_on

MICRO, DIRECT = ShardedSync.MICRO_GROUPS, ShardedSync.SHARD_TO_SHARD
EVERY = tuple(ShardedSync)
ENGINE, ACTOR = WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER


def planned(model: str = "qwen3-32b", nodes: int = 4, **limits: object) -> Plan:
    return make_plan(request_on(qwen_workload(model), nodes, limits=Limits(**limits)))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def shared() -> Plan:
    return planned(sharded_syncs=EVERY, must_share=((ACTOR, ENGINE),))


@pytest.fixture(scope="module")
def apart() -> Plan:
    return planned(sharded_syncs=EVERY, must_not_share=((ACTOR, ENGINE),))


def test_each_site_has_its_way_and_says_what_it_saves(shared: Plan, apart: Plan) -> None:
    for plan, way in ((shared, MICRO), (apart, DIRECT)):
        assert plan.execution.sharded_syncs == (way,)
        assert f"{way.value} weight sync" in execution_words(plan)
        (told,) = (item for item in plan.assumptions if item.what == "weight sync")
        assert told.value == way.value and told.effect.startswith("saves ")
        terms = {term.name for term in plan.placement(StageName.WEIGHT_SYNC).time_terms}
        assert ("sync_gather" in terms) == (way is MICRO) and ("sync_send" in terms) == (way is DIRECT)


def test_what_it_saves_is_the_same_placement_under_full_gather(shared: Plan) -> None:
    full = planned(must_share=((ACTOR, ENGINE),))
    assert full.execution.sharded_syncs == () and not [a for a in full.assumptions if a.what == "weight sync"]
    assert shared.bound <= full.bound and shared.time_s < full.time_s * 1.01


def test_nobody_gets_it_unasked() -> None:
    for execution in permitted_executions(Limits(max_staleness=2, allow_partial_rollouts=True), None):
        assert execution.sharded_syncs == ()


def test_full_gather_stays_where_ranks_hold_almost_everything() -> None:
    whole = tuple(
        FixedField(worker=ACTOR, field=name, value=value)
        for name, value in (("tp", "1"), ("pp", "1"), ("sharding", "zero1"))
    )
    plan = planned("qwen3-8b", 1, sharded_syncs=EVERY, must_share=((ACTOR, ENGINE),), fixed=whole)
    (told,) = (item for item in plan.assumptions if item.what == "weight sync")
    assert (plan.execution.sharded_syncs, told.value) == ((), "full gather")


@pytest.mark.parametrize("seed", range(4))
def test_allowing_it_never_makes_the_optimum_worse(seed: int) -> None:
    rng = random.Random(seed)
    model, nodes = rng.choice((("qwen3-8b", 1), ("qwen3-8b", 3), ("qwen3-30b-a3b", 2), ("qwen3-32b", 4)))
    work = replace(qwen_workload(model), lora_rank=rng.choice((None, None, 16)), num_prompts=rng.choice((16, 64)))
    base = Limits(
        max_staleness=rng.choice((0, 1)), allow_partial_rollouts=rng.random() < 0.5,
        fusions=rng.choice(((), (Fusion.INTER_STAGE,))), num_alternatives=0,
    )  # fmt: skip
    gpu = rng.choice(("h100", "h200"))
    full = make_plan(request_on(work, nodes, gpu=gpu, limits=base))
    for ways in SYNCS.values():
        other = make_plan(request_on(work, nodes, gpu=gpu, limits=replace(base, sharded_syncs=ways)))
        assert other.bound <= full.bound * (1 + 1e-9), ways
        assert other.bound <= other.objective_value * (1 + 1e-9)


def test_such_plans_are_saved_read_replayed_and_explained(shared: Plan, apart: Plan) -> None:
    for plan in (shared, apart):
        assert parse_plan(plan_text(plan), where="plan") == replace(plan, run=None)
        report = replay(plan, load_overheads(), ReplaySettings(num_iterations=3))
        (sync,) = (item for item in report.stages if item.stage is StageName.WEIGHT_SYNC)
        assert sync.replayed_s.mean == pytest.approx(sync.planned_s, rel=1e-3)
    small = planned("qwen3-8b", 1, sharded_syncs=EVERY)
    (decision,) = (i for i in explain_plan(small, load_overheads()).decisions if i.what == "weight sync")
    assert decision.value == MICRO.value and decision.rival is not None and decision.rival.value == "full gather"
    assert decision.rival.score.time_s >= small.bound


def test_a_saved_plan_cannot_have_the_way_of_another_site(shared: Plan) -> None:
    wrong = replace(shared, execution=replace(shared.execution, sharded_syncs=(DIRECT,)))
    with pytest.raises(InvalidInputError, match="shards move by micro-groups"):
        parse_plan(plan_text(wrong), where="plan")


def test_plans_of_earlier_versions_gather_full_tensors() -> None:
    plan = planned("qwen3-8b", 1)
    document = json.loads(plan_text(plan))
    document["format_version"] = "1.2"
    assert document["execution"].pop("sharded_syncs") == [] == document["inputs"]["limits"].pop("sharded_syncs")
    document["digests"] = digests({key: value for key, value in document.items() if key != "digests"})
    assert parse_plan(json.dumps(document), where="plan") == replace(plan, run=None)


def test_it_is_permitted_by_an_option_or_a_key(tmp_path: Path) -> None:
    for name, ways in SYNCS.items():
        spec = WorkloadSpec(model="qwen3-8b", gpus="8xh100", sync=name.upper())
        assert build_request(spec).limits.sharded_syncs == ways
    file = tmp_path / "w.yaml"
    file.write_text("model: qwen3-8b\ngpus: 8xh100\nlimits: {sync: shards}\n")
    assert build_request(read_workload(file)).limits.sharded_syncs == EVERY
    with pytest.raises(InvalidInputError, match=r"--sync.*did you mean 'shards'"):
        build_request(WorkloadSpec(model="qwen3-8b", sync="shard", flags=frozenset({"sync"})))


@pytest.mark.parametrize(
    "changes",
    [
        {"sharded_syncs": (DIRECT, MICRO)},
        {"sharded_syncs": (MICRO, MICRO)},
        {"sharded_syncs": (DIRECT,), "second_share_ratio": 0.5},
    ],
)
def test_contradictions_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="weight sync"):
        Execution(**changes)  # type: ignore[arg-type]


def test_staleness_keeps_engines_apart_so_that_only_one_way_is_searched() -> None:
    found = permitted_executions(Limits(max_staleness=1, sharded_syncs=EVERY), None)
    ahead = [execution for execution in found if execution.mode is ExecutionMode.BATCHES]
    assert [execution.sharded_syncs for execution in ahead] == [(DIRECT,)]
    in_step = [execution for execution in found if not execution.is_asynchronous]
    assert [execution.sharded_syncs for execution in in_step] == [(DIRECT,), EVERY]
