from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.domain.framework_engines import rollout_rejections
from planner.domain.framework_mesh import mesh_keys
from planner.domain.framework_placement import placement_problem
from planner.domain.framework_trainers import backend_of, pipeline_ends, trainer_rejections
from planner.domain.framework_verdict import plan_problems, workload_problems
from planner.domain.plan import DeviceGroup
from planner.domain.stages import WorkerName
from planner.domain.strategy import (
    ContextParallel,
    EngineIdle,
    ExpertExchange,
    Offload,
    Recompute,
    RolloutTable,
    Sharding,
    TrainerTable,
)
from planner.domain.workload import RewardKind
from planner.files.framework import framework_names, load_framework, load_frameworks
from tests.adapters.plans import colocated, engine, forward_only, fsdp, make_plan, megatron, moe_model
from tests.factories import dense_model, workload

VERL = load_framework("verl")
W = WorkerName
ALL = frozenset(WorkerName)


def rejected(rows: tuple, *, trains: bool = True, **options: object) -> list[bool]:
    table = TrainerTable.of(rows)
    found = trainer_rejections(VERL, table, trains=trains, **options)  # type: ignore[arg-type]
    masks = [mask for _, mask in found]
    if masks:
        # A rejected row has exactly one reason.
        assert np.stack(masks).sum(axis=0).max() == 1
    return list(np.any(masks, axis=0)) if masks else [False] * len(rows)


def test_each_back_end_has_its_own_space() -> None:
    rows = (
        fsdp(32),
        megatron(32),
        fsdp(32, sharding=Sharding.ZERO2),
        fsdp(32, context_parallel=ContextParallel.RING),
        fsdp(32, offload=Offload.CPU_OPTIMIZER),
        fsdp(32, recompute=Recompute.SELECTIVE),
        megatron(32, offload=Offload.OPTIMIZER_SWAP),
        megatron(32, tp=8, pp=4, cp=1, offload=Offload.CPU_OPTIMIZER),
    )
    assert rejected(rows) == [False, False, True, True, True, True, True, False]
    assert [b and b.name for b in (backend_of(VERL, row) for row in rows[:3])] == ["fsdp", "megatron", None]


def test_reasons_name_the_closest_back_end() -> None:
    table = TrainerTable.of((megatron(32, offload=Offload.OPTIMIZER_SWAP),))
    reasons = [reason for reason, _ in trainer_rejections(VERL, table, trains=True)]
    assert reasons == ["verl, megatron: offload not offered"]


def test_fsdp_reference_is_always_offloaded() -> None:
    kept = replace(forward_only(fsdp(32)), offload=Offload.NONE)
    rows = (forward_only(fsdp(32)), kept, replace(forward_only(megatron(32)), offload=Offload.NONE))
    assert rejected(rows, trains=False, worker=W.REFERENCE) == [False, True, False]


def test_reward_models_are_engines() -> None:
    rows = (forward_only(megatron(8, tp=4, pp=1)), forward_only(megatron(8, tp=2, pp=2)))
    assert rejected(rows, trains=False, worker=W.REWARD_MODEL) == [False, True]


def test_model_rules_need_a_model() -> None:
    row = megatron(32, tp=2, pp=16, recompute=Recompute.SELECTIVE)
    assert rejected((row,)) == [False]
    assert rejected((row,), model=moe_model(layers=48)) == [False]
    assert rejected((row,), model=moe_model(layers=28)) == [True]
    assert rejected((row,), model=dense_model(layers=64)) == [True]


def test_a_worker_that_the_framework_lacks_rejects_everything() -> None:
    table = TrainerTable.of((megatron(8), megatron(16)))
    ((reason, mask),) = trainer_rejections(load_framework("areal"), table, trains=False, worker=W.REWARD_MODEL)
    assert "reward model" in reason
    assert mask.all()


@pytest.mark.parametrize("layers", range(1, 65))
def test_pipeline_ends_add_up(layers: int) -> None:
    for pp in range(2, layers + 1):
        ends = pipeline_ends(layers, pp)
        if ends is not None:
            middle = -(-layers // pp)
            assert sum(ends) + (pp - 2) * middle == layers
            assert 1 <= min(ends) <= max(ends) <= middle


def test_pipeline_ends_where_none_exist() -> None:
    assert pipeline_ends(28, 16) is None
    assert pipeline_ends(10, 1) is None


def test_rollout_rules() -> None:
    table = RolloutTable.of((engine(32), engine(32, pp=2), engine(32, ep=2), engine(32, ep=4)))
    masks = dict(rollout_rejections(VERL, table))
    assert masks["verl: rollout pp above 1"].tolist() == [False, True, False, False]
    assert masks["verl: rollout ep differs from tp"].tolist() == [False, False, True, False]
    resident = RolloutTable.of((engine(32, idle=EngineIdle.RESIDENT), engine(32, idle=EngineIdle.SLEEP)))
    ((_, mask),) = rollout_rejections(load_framework("areal"), resident)
    assert mask.tolist() == [False, True]


@pytest.mark.parametrize(
    ("name", "overlaps", "runs"),
    [
        ("verl", False, [True, True, False]),
        ("verl", True, [True, True, False]),
        ("nemo-rl", False, [True, False, False]),
        ("nemo-rl", True, [False, False, False]),
        ("areal", True, [True, True, False]),
        ("slime", False, [True, True, True]),
        ("openrlhf", False, [False, False, False]),
    ],
)
def test_data_parallel_attention_where_it_can_be_said(name: str, overlaps: bool, runs: list[bool]) -> None:
    """Experts over all ranks, split in width, and reached by an all-to-all."""
    rules = load_framework(name)
    idle = next(iter(rules.engine_idles))
    wide = engine(32, tp=2, attention_dp=4, ep=8, idle=idle)
    table = RolloutTable.of((wide, replace(wide, ep=1), replace(wide, exchange=ExpertExchange.ALL_TO_ALL)))
    masks = [mask for _, mask in rollout_rejections(rules, table, overlaps=overlaps)]
    assert [not any(mask[row] for mask in masks) for row in range(3)] == runs
    # Experts over one attention group only are nobody's.
    half = RolloutTable.of((replace(wide, ep=2),))
    assert any(mask[0] for _, mask in rollout_rejections(rules, half, overlaps=overlaps))


def test_mesh_keys_couple_megatron_degrees_and_not_fsdp_ones() -> None:
    table = TrainerTable.of(
        (megatron(32), megatron(32, micro_batch_tokens=9216), megatron(32, tp=8), fsdp(32, cp=1), fsdp(32, cp=4),
         megatron(32, vpp=2), fsdp(32, sharding=Sharding.ZERO2))
    )  # fmt: skip
    keys = mesh_keys(VERL, table, trains=True, with_vpp=False)
    assert keys[0] == keys[1] == keys[5] != keys[2]
    assert keys[3] == keys[4] != keys[0]
    assert keys[6] == -1
    with_vpp = mesh_keys(VERL, table, trains=True, with_vpp=True)
    assert with_vpp[0] != with_vpp[5]
    reference = mesh_keys(VERL, TrainerTable.of((forward_only(megatron(32)),)), trains=False, with_vpp=False)
    assert reference[0] == keys[0]


def test_placement_rules() -> None:
    trainers = frozenset({W.ACTOR_TRAINER, W.REFERENCE})
    together = trainers | {W.ROLLOUT_ENGINE}
    assert placement_problem(VERL, (together,), together) is None
    assert placement_problem(VERL, (together, frozenset({W.REWARD_MODEL})), together | {W.REWARD_MODEL}) is None
    assert placement_problem(VERL, (trainers, frozenset({W.ROLLOUT_ENGINE})), together) is None
    apart = placement_problem(VERL, (frozenset({W.ACTOR_TRAINER}), frozenset({W.REFERENCE})), trainers)
    assert apart is not None and "same GPUs" in apart
    # With engines apart, a reward model has GPUs of its own.
    scored = trainers | {W.REWARD_MODEL}
    shared = placement_problem(VERL, (scored, frozenset({W.ROLLOUT_ENGINE})), scored | {W.ROLLOUT_ENGINE})
    assert shared is not None and "cannot place" in shared
    nemo = load_framework("nemo-rl")
    assert placement_problem(nemo, (trainers, frozenset({W.ROLLOUT_ENGINE})), together) is None
    lacking = placement_problem(nemo, (ALL,), ALL)
    assert lacking is not None and "reward model" in lacking
    openrlhf = load_framework("openrlhf")
    odd = frozenset({W.ROLLOUT_ENGINE, W.CRITIC_TRAINER})
    rest = frozenset({W.ACTOR_TRAINER, W.REFERENCE})
    assert placement_problem(openrlhf, (rest,), rest) is None
    areal = load_framework("areal")
    assert placement_problem(areal, (odd, rest), odd | rest) is not None


def test_a_colocated_plan_is_fine_and_each_fault_is_named() -> None:
    load = workload("ppo")
    good = make_plan(load, colocated(load, megatron(32), engine(32)))
    assert plan_problems(VERL, good) == ()

    strategies = colocated(load, megatron(32), engine(32))
    other_degrees = {**strategies, W.CRITIC_TRAINER: megatron(32, tp=8, pp=1)}
    assert any("equal tp" in p for p in plan_problems(VERL, make_plan(load, other_degrees)))
    other_vpp = {**strategies, W.CRITIC_TRAINER: megatron(32, vpp=2)}
    assert any("equal tp" in p for p in plan_problems(VERL, make_plan(load, other_vpp)))
    other_backend = {**strategies, W.REFERENCE: forward_only(fsdp(32))}
    assert any("one back end" in p for p in plan_problems(VERL, make_plan(load, other_backend)))
    half = {**strategies, W.ACTOR_TRAINER: megatron(16)}
    assert plan_problems(VERL, make_plan(load, half)) == (
        "actor trainer must use all GPUs that it shares with others, the plan gives it 16 of 32",
    )


def test_verdicts_say_each_thing_once_in_plain_words() -> None:
    load = workload("ppo", reward=RewardKind.MODEL)
    plan = make_plan(load, colocated(load, megatron(32, vpp=4, recompute=Recompute.SELECTIVE), engine(32, pp=2)))
    assert plan_problems(VERL, plan)[:2] == (
        "rollout engine: rollout pp above 1",
        "actor trainer and critic trainer (megatron): recomputation 'selective' is not offered",
    )
    problems = plan_problems(load_framework("slime"), plan)
    assert sum("reward model" in problem for problem in problems) == 1
    for rules in load_frameworks():
        for problem in plan_problems(rules, plan):
            assert rules.title not in problem


def test_partial_sharing_is_not_called_all_of_all() -> None:
    load = workload()
    plan = make_plan(load, colocated(load, megatron(32), engine(32)))
    group = replace(plan.device_groups[0], id="g1", num_gpus=16, num_nodes=2)
    reference = replace(forward_only(megatron(16)), num_gpus=16)
    placements = tuple(
        replace(item, device_group="g1", strategy=reference) if item.worker is W.REFERENCE else item
        for item in plan.placements
    )
    split = replace(plan, device_groups=(*plan.device_groups, group), placements=placements)
    problems = plan_problems(VERL, split)
    assert "actor trainer and reference share only a part of their GPUs" in problems
    assert not any("32 of 32" in problem or "16 of 16" in problem for problem in problems)


def test_batch_faults() -> None:
    load = replace(workload(), num_optimizer_steps=7)
    plan = make_plan(load, colocated(load, fsdp(32), engine(32)))
    assert any("mini-batches" in p for p in plan_problems(VERL, plan))
    small = workload()
    plan = make_plan(small, colocated(small, fsdp(32, micro_batch_tokens=4096), engine(32)))
    assert any("below one sequence" in p for p in plan_problems(VERL, plan))
    odd = replace(workload(prompts=3, group=2), num_optimizer_steps=1)
    plan = make_plan(odd, colocated(odd, fsdp(32), engine(32)))
    assert any("dp 8 does not divide 6" in p for p in plan_problems(VERL, plan))


def test_workload_faults() -> None:
    def problems(load: object) -> str:
        return "; ".join(plan_problems(VERL, make_plan(load, colocated(load, fsdp(32), engine(32)))))  # type: ignore[arg-type]

    assert "no ReMax" in problems(workload("remax"))
    assert "recomputes old log-probs" in problems(workload(old_logprob=False))
    assert "LoRA ranks up to 512" in problems(workload(lora_rank=1024))
    assert "dynamic sampling" in problems(workload("dapo", reward=RewardKind.MODEL))
    assert problems(workload("dapo")) == ""


def test_partial_nodes_are_refused_where_groups_are_whole_nodes() -> None:
    load = workload()
    plan = make_plan(load, colocated(load, fsdp(12, cp=1, shard_ranks=12), engine(12)), num_nodes=2)
    group = DeviceGroup(id="g0", pool="pool", gpu="h100", first_gpu=0, num_gpus=12, num_nodes=2)
    assert any("whole nodes" in p for p in plan_problems(VERL, replace(plan, device_groups=(group,))))


def test_every_framework_loads_with_evidence_for_its_limits() -> None:
    frameworks = load_frameworks()
    assert [rules.name for rules in frameworks] == list(framework_names())
    assert {"verl", "nemo-rl", "openrlhf", "areal", "slime"} <= set(framework_names())
    for rules in frameworks:
        topics = {topic.split(".")[0] for topic, _ in rules.evidence}
        assert {"backends", "algorithms", "may_share", "one_pool", "whole_nodes_only"} <= topics
        assert all(text for _, text in rules.evidence)
        assert all(set(group) <= rules.workers for group in (*rules.must_share, *rules.may_share))


def test_workload_problems_are_known_before_any_search() -> None:
    assert workload_problems(VERL, workload("ppo", reward=RewardKind.MODEL)) == ()
    slime = load_framework("slime")
    assert len(workload_problems(slime, workload("rloo", reward=RewardKind.MODEL, lora_rank=8))) == 3
