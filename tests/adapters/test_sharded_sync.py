"""Which framework can move shards only in a weight sync, and how its files say so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.domain.execution import Execution, ExecutionMode, SchedulingPolicy, ShardedSync
from planner.domain.framework import FrameworkRules
from planner.domain.framework_sync import narrowed
from planner.domain.framework_verdict import plan_problems
from planner.domain.framework_workload import for_workload
from planner.domain.hardware import Precision
from planner.domain.plan import Limits, Plan
from planner.domain.workload import Workload
from planner.executions import permitted_executions
from planner.files.framework import framework_names, load_framework, load_frameworks
from planner.pipeline import plan_with_search
from tests.adapters.imports import read
from tests.adapters.plans import engine, megatron
from tests.adapters.test_import_nemo_rl import CHAIN
from tests.adapters.test_nemo_rl import config
from tests.adapters.variants import BATCHES, catalog_workload, shared_plan, split_plan
from tests.factories import workload
from tests.unit.test_pipeline import qwen_workload, request_on

MICRO, DIRECT = ShardedSync.MICRO_GROUPS, ShardedSync.SHARD_TO_SHARD
NEMO, SLIME = load_framework("nemo-rl"), load_framework("slime")


def synced(plan: Plan, *ways: ShardedSync) -> Plan:
    return replace(plan, execution=replace(plan.execution, sharded_syncs=ways))


def ways_of(rules: FrameworkRules, work: Workload) -> list[ShardedSync]:
    return [rule.way for rule in for_workload(rules, work).sharded_syncs]


def apart(**changes: int) -> Plan:
    return split_plan(workload(), megatron(16, **changes), engine(16), mode=BATCHES, staleness=1)


def test_only_those_that_have_it_may_run_it() -> None:
    offered = {rules.name: tuple(rule.way for rule in rules.sharded_syncs) for rules in load_frameworks()}
    assert offered == dict.fromkeys(framework_names(), ()) | {"nemo-rl": (DIRECT,), "slime": (MICRO,)}
    for rules in load_frameworks():
        assert dict(rules.evidence)["sharded_syncs"]
        for way in set(ShardedSync) - set(offered[rules.name]):
            assert f"it has no {way.value} weight sync" in plan_problems(rules, synced(apart(), way))


def test_what_it_asks_of_strategies_is_a_reason_against_a_plan() -> None:
    good = [text for text in plan_problems(NEMO, synced(apart(etp=1), DIRECT)) if "expert tp" in text]
    assert good == [] == [text for text in plan_problems(NEMO, apart(etp=4)) if "expert tp" in text]
    found = plan_problems(NEMO, synced(apart(etp=4), DIRECT))
    assert any("expert tp is 4, at most 1" in text for text in found)
    piped = split_plan(workload(), megatron(16, etp=1), engine(16, pp=2))
    assert any("rollout pp above 1" in text for text in plan_problems(NEMO, synced(piped, DIRECT)))
    assert not any("rollout pp above 1" in text for text in plan_problems(NEMO, piped))


def test_formats_adapters_and_dense_models() -> None:
    load = catalog_workload("qwen3-30b-a3b")
    assert ways_of(NEMO, load) == [DIRECT] and ways_of(SLIME, load) == [MICRO]
    assert ways_of(NEMO, replace(load, rollout_precision=Precision.FP8)) == []
    assert ways_of(NEMO, replace(load, lora_rank=16)) == []
    assert ways_of(SLIME, workload()) == [] and ways_of(NEMO, workload()) == [DIRECT]


def test_narrowed_rules_leave_other_frameworks_as_they_are() -> None:
    assert narrowed(NEMO, (MICRO,)) is NEMO and narrowed(SLIME, ()) is SLIME
    assert [backend.name for backend in narrowed(NEMO, (DIRECT,)).backends] == ["megatron"]
    assert narrowed(SLIME, (MICRO,)).rollout_needs_ep and narrowed(SLIME, (MICRO,)).max_rollout_pp == 1


def test_full_gather_stays_open_for_what_a_framework_cannot_move_so() -> None:
    limits = Limits(max_staleness=1, sharded_syncs=tuple(ShardedSync))
    ways = {execution.sharded_syncs for execution in permitted_executions(limits, NEMO)}
    assert ways == {(), (DIRECT,)}
    assert {e.sharded_syncs for e in permitted_executions(limits, load_framework("verl"))} == {()}


@pytest.mark.parametrize(("name", "staleness", "way"), [("nemo-rl", 1, DIRECT), ("slime", 0, MICRO)])
def test_plans_for_a_framework_can_be_run_by_it(name: str, staleness: int, way: ShardedSync) -> None:
    limits = Limits(framework=name, max_staleness=staleness, sharded_syncs=(way,), num_alternatives=0)
    plan = plan_with_search(
        request_on(qwen_workload("qwen3-30b-a3b"), 2, gpu="h200", limits=limits), with_unrestricted=False
    ).plan
    assert plan.execution.sharded_syncs == (way,)
    assert plan_problems(load_framework(name), plan) == ()


def test_nemo_rl_is_told_which_transport() -> None:
    assert config(apart(etp=1))["policy.generation.refit_transport"] is None
    assert config(synced(apart(etp=1), DIRECT))["policy.generation.refit_transport"] == "nccl_reshard"
    assert config(shared_plan(workload(), megatron(16, etp=1), engine(16)))["policy.generation.refit_transport"] is None


@pytest.mark.parametrize(
    ("given", "ways"),
    [
        ((), ()),
        (("policy.generation.refit_transport=nccl_reshard",), (DIRECT,)),
        (("policy.generation.refit_transport=nixl",), ()),
        (("policy.generation.refit_transport=nccl_reshard", "policy.generation.colocated.enabled=true"), ()),
    ],
)
def test_nemo_rl_is_read_back(tmp_path: Path, given: tuple[str, ...], ways: tuple[ShardedSync, ...]) -> None:
    script = f"uv run examples/run_grpo.py --config recipes/async.yaml {' '.join(given)}\n"
    found = read(tmp_path, {"run.sh": script, **CHAIN}).execution
    assert found == Execution(mode=ExecutionMode.STREAMING, staleness=2, sharded_syncs=ways)


def test_an_order_of_stages_is_no_matter_of_the_sync() -> None:
    plan = synced(apart(etp=1), DIRECT)
    plan = replace(plan, execution=replace(plan.execution, policy=SchedulingPolicy.SEQUENTIAL))
    assert not [text for text in plan_problems(NEMO, plan) if "weight sync" in text]
