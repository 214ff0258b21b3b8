"""Plans that pictures have to cope with, made from the hand-built ones."""

from __future__ import annotations

from dataclasses import replace

from planner.domain.execution import Execution, ExecutionMode
from planner.domain.plan import Plan, StalenessGain
from planner.domain.stages import StageName
from tests.golden.sample import grpo_plan, split_plan

PERIOD_S = 280.0


def asynchronous_plan(mode: ExecutionMode = ExecutionMode.BATCHES) -> Plan:
    """The split plan one step off: rollout of 155 s on g0, training of 258 s on g1, sync of 2 s on both."""
    gains = (
        StalenessGain(
            staleness=0,
            mode="synchronous",
            time_s=415.125,
            varying_time_s=420.0,
            is_permitted=True,
            num_gpus=32,
        ),
        StalenessGain(
            staleness=1,
            mode="asynchronous batches",
            time_s=PERIOD_S,
            varying_time_s=None,
            is_permitted=True,
            num_gpus=32,
        ),
    )
    return replace(
        split_plan(), execution=Execution(mode=mode, staleness=1), period_s=PERIOD_S, staleness_gains=gains
    )  # fmt: skip


def streaming_plan() -> Plan:
    """A rollout that outlasts the period: two batches are generated at a time."""
    plan = asynchronous_plan(ExecutionMode.STREAMING)
    late = 200.0
    schedule = tuple(
        replace(item, end_s=item.end_s + late)
        if item.stage is StageName.ROLLOUT
        else replace(item, start_s=item.start_s + late, end_s=item.end_s + late)
        for item in plan.schedule
    )
    return replace(plan, schedule=schedule)


def hybrid_plan() -> Plan:
    """The rollout on all GPUs, the reference on the first half, the rest on the second."""
    base = grpo_plan()
    halves = split_plan().device_groups
    whole = replace(base.device_groups[0], id="whole")

    def group(stage: StageName) -> str:
        return {StageName.ROLLOUT: "whole", StageName.REFERENCE_LOGPROB: "g0"}.get(stage, "g1")

    placements = tuple(replace(p, device_group=group(p.stage)) if p.device_group else p for p in base.placements)
    schedule = tuple(
        replace(s, device_groups=("g1", "whole") if s.stage is StageName.WEIGHT_SYNC else (group(s.stage),))
        if s.device_groups
        else s
        for s in base.schedule
    )
    return replace(base, device_groups=(*halves, whole), placements=placements, schedule=schedule)


def large_plan(num_gpus: int) -> Plan:
    """The colocated plan on many nodes of eight: 8 GPUs per engine and trainer replica, so many replicas."""
    base = grpo_plan()
    group = replace(base.device_groups[0], num_gpus=num_gpus, num_nodes=num_gpus // 8)
    pool = replace(base.cluster.pools[0], num_nodes=num_gpus // 8)
    placements = tuple(
        p if p.strategy is None else replace(p, strategy=replace(p.strategy, num_gpus=num_gpus))
        for p in base.placements
    )
    return replace(
        base, device_groups=(group,), placements=placements, cluster=replace(base.cluster, pools=(pool,))
    )  # fmt: skip
