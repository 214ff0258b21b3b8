"""Rules beyond strategies: how iterations overlap, switches for all workers at once, settings for all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.domain.execution import Execution, ExecutionMode, Fusion, SchedulingPolicy
from planner.domain.framework_mesh import mesh_keys
from planner.domain.framework_placement import placement_problem
from planner.domain.framework_verdict import plan_problems
from planner.domain.framework_workload import batches_problem, for_workload
from planner.domain.stages import WorkerName
from planner.domain.strategy import ContextParallel, Offload, Recompute, Sharding, TrainerStrategy, TrainerTable
from planner.domain.technique import Support, TechniqueName
from planner.domain.workload import RewardKind
from planner.errors import InvalidInputError
from planner.files.framework import _techniques, load_framework, load_frameworks
from tests.adapters.plans import engine, forward_only, fsdp, megatron
from tests.adapters.variants import split_plan
from tests.factories import workload

OPENRLHF = load_framework("openrlhf")
W = WorkerName
PLAN = split_plan(workload(), megatron(16, etp=4), engine(16))

SEQUENTIAL = SchedulingPolicy.SEQUENTIAL


def problems(execution: Execution, name: str = "nemo-rl", **changes: object) -> tuple[str, ...]:
    rules = replace(load_framework(name), **changes)  # type: ignore[arg-type]
    return plan_problems(rules, replace(PLAN, execution=execution, period_s=1.0))


def test_synchronous_frameworks_refuse_asynchronous_plans() -> None:
    found = problems(
        Execution(mode=ExecutionMode.BATCHES, staleness=1, policy=SEQUENTIAL),
        execution_modes=frozenset({ExecutionMode.SYNCHRONOUS}),
    )
    assert "it does not run asynchronous batches, only synchronous" in found
    assert not [text for text in problems(Execution(policy=SEQUENTIAL)) if "does not run" in text]


def test_staleness_has_a_limit() -> None:
    assert problems(Execution(mode=ExecutionMode.STREAMING, staleness=2, policy=SEQUENTIAL), max_staleness=2) == ()
    (found,) = problems(Execution(mode=ExecutionMode.STREAMING, staleness=3, policy=SEQUENTIAL), max_staleness=2)
    assert found == "its weights lag at most 2 versions behind, the plan allows 3"


def test_batches_may_have_a_limit_of_their_own() -> None:
    late = Execution(mode=ExecutionMode.BATCHES, staleness=2, policy=SEQUENTIAL)
    (found,) = problems(late, max_batches_staleness=1)
    assert found == "its weights lag at most 1 version behind with asynchronous batches, the plan allows 2"
    assert problems(replace(late, mode=ExecutionMode.STREAMING), max_batches_staleness=1) == ()
    rules = load_framework("verl")
    assert [rules.max_staleness_of(mode) for mode in ExecutionMode] == [0, 1, 1024]


def test_batches_that_cannot_run_a_workload() -> None:
    rules = load_framework("verl")
    plain, scored = workload(), workload("ppo", reward=RewardKind.MODEL)
    for load, lack in ((plain, None), (scored, "no reward model on GPUs"), (workload("dapo"), "no dynamic sampling")):
        assert batches_problem(rules, load) == lack
        assert (ExecutionMode.BATCHES in for_workload(rules, load).execution_modes) is (lack is None)
        assert ExecutionMode.STREAMING in for_workload(rules, load).execution_modes
    assert batches_problem(OPENRLHF, scored) is None


@pytest.mark.parametrize("fusion", Fusion)
def test_fusions_are_named_one_by_one(fusion: Fusion) -> None:
    assert f"it has no {fusion.value} fusion" in problems(Execution(fusions=(fusion,), policy=SEQUENTIAL))
    assert problems(Execution(fusions=(fusion,), policy=SEQUENTIAL), fusions=frozenset({fusion})) == ()


def test_a_switch_for_all_workers_shares_all_or_none() -> None:
    present = frozenset({W.ROLLOUT_ENGINE, W.ACTOR_TRAINER, W.REFERENCE, W.CRITIC_TRAINER})
    assert placement_problem(OPENRLHF, (present,), present) is None
    pair = frozenset({W.ACTOR_TRAINER, W.REFERENCE})
    apart = (pair, frozenset({W.ROLLOUT_ENGINE}), frozenset({W.CRITIC_TRAINER}))
    assert placement_problem(OPENRLHF, apart, present) is None
    three = frozenset({W.ROLLOUT_ENGINE, *pair})
    found = placement_problem(OPENRLHF, (three, frozenset({W.CRITIC_TRAINER})), present)
    assert found == "cannot place rollout engine, actor trainer and reference on the same GPUs"
    # Where no critic exists, the same three are everybody.
    assert placement_problem(OPENRLHF, (three,), three) is None


def key(strategy: TrainerStrategy, *, trains: bool = True, with_vpp: bool = False) -> int:
    worker = W.ACTOR_TRAINER if trains else W.REFERENCE
    return int(mesh_keys(OPENRLHF, TrainerTable.of((strategy,)), trains=trains, with_vpp=with_vpp, worker=worker)[0])


def deepspeed(**changes: object) -> TrainerStrategy:
    settings = {"context_parallel": ContextParallel.RING, "offload": Offload.NONE, **changes}
    return fsdp(16, cp=2, **settings)


def test_one_setting_couples_the_trainers_and_the_zero_stage_of_the_others() -> None:
    zero3, zero2 = deepspeed(), deepspeed(sharding=Sharding.ZERO2)
    assert key(zero3) == key(forward_only(zero3), trains=False)
    assert key(zero2) != key(forward_only(zero3), trains=False)
    assert key(zero2) == key(forward_only(zero2), trains=False)
    for other in (
        deepspeed(sharding=Sharding.ZERO1),
        deepspeed(sharding=Sharding.ZERO2, offload=Offload.CPU_OPTIMIZER),
        deepspeed(sharding=Sharding.ZERO2, recompute=Recompute.NONE),
    ):
        assert key(zero2, with_vpp=True) != key(other, with_vpp=True)
        assert key(zero2) == key(other)
    assert key(zero2, with_vpp=True) == key(deepspeed(sharding=Sharding.ZERO2), with_vpp=True)


def test_keys_of_large_degrees_stay_apart() -> None:
    rows = [megatron(512 * 8, tp=8, pp=1, ep=ep, etp=1) for ep in (1, 2, 256, 512)]
    rows += [megatron(512 * 8, tp=8, pp=1, cp=2, ep=ep, etp=1) for ep in (1, 512)]
    nemo = load_framework("nemo-rl")
    keys = mesh_keys(nemo, TrainerTable.of(tuple(rows)), trains=True, with_vpp=True, worker=W.ACTOR_TRAINER)
    assert len(set(keys.tolist())) == len(rows) and min(keys) > 0


@pytest.mark.parametrize("rules", load_frameworks(), ids=lambda rules: rules.name)
def test_every_framework_says_what_it_does_with_each_technique(rules: object) -> None:
    from planner.domain.framework import FrameworkRules

    assert isinstance(rules, FrameworkRules)
    assert [item.name for item in rules.techniques] == list(TechniqueName)
    for item in rules.techniques:
        assert item.evidence
        assert item.how or item.support is Support.NO
    # What plans may use is among what the framework can do.
    by_name = {item.name: item.support for item in rules.techniques}
    if rules.max_staleness > 0:
        assert by_name[TechniqueName.ASYNC_K_STEP] is not Support.NO
    assert (rules.max_staleness == 0) == (rules.execution_modes == {ExecutionMode.SYNCHRONOUS})


def test_techniques_with_mistakes_are_faults() -> None:
    cell = {"support": "yes", "how": "x", "evidence": "y"}
    with pytest.raises(InvalidInputError, match="unknown 'colocatedd'"):
        _techniques({"colocatedd": cell}, "f.yaml")
    with pytest.raises(InvalidInputError, match="needs support, how and evidence"):
        _techniques({"colocated": {"support": "yes"}}, "f.yaml")
    with pytest.raises(InvalidInputError, match="accepted: yes, partial, no"):
        _techniques({"colocated": {**cell, "support": "maybe"}}, "f.yaml")
