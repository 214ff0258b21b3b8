"""Whether the parts of a plan file agree with each other.

Digests find a plan that was changed; these checks find one whose digests were made anew, and faults of whatever wrote
it. Nothing that is shown, compared or exported may divide by zero, name what is not there, or contradict its own
sums, so that everything is checked here, once, and all problems are named.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from planner.domain.execution import ExecutionMode, Fusion, ShardedSync
from planner.domain.hardware import Cluster, Pool
from planner.domain.links import overused
from planner.domain.model import Model
from planner.domain.plan import Plan, ScheduledStage, Status
from planner.domain.stages import ROLLOUTS, StageGraph, StageKind, StageName, WorkerName, build_graph
from planner.domain.strategy import RolloutStrategy, Strategy, TrainerStrategy
from planner.domain.workload import Workload

if TYPE_CHECKING:
    from planner.files.plan_file import DeviceGroupFile, PlacementFile, PlanFile

MAX_GPUS = 100_000
MAX_NUMBER = 1e30
"""As in planner.files.plan, which refuses larger ones before anything else."""
MAX_SECONDS = 1e12
TOLERANCE_RATIO = 1e-6
"""Sums and capacities are compared in floats."""


def input_problems(workload: Workload, cluster: Cluster) -> tuple[str, ...]:
    """What is impossible about the inputs of a plan, with its place."""
    return (*_cluster_problems(cluster), *_workload_problems(workload))


def _not_positive(place: str, values: dict[str, float | None]) -> Iterator[str]:
    for name, value in values.items():
        if value is not None and not 0 < value <= MAX_NUMBER:
            yield f"{place}.{name}: {value:g} is not a positive size"


def _cluster_problems(cluster: Cluster) -> Iterator[str]:
    yield from _not_positive(
        "inputs.cluster",
        {
            "inter_pool_bytes_per_s": cluster.inter_pool_bytes_per_s,
            "inter_pool_total_bytes_per_s": cluster.inter_pool_total_bytes_per_s,
        },
    )
    for index, pool in enumerate(cluster.pools):
        place = f"inputs.cluster.pools[{index}]"
        node, gpu = pool.node, pool.node.gpu
        if not pool.name.isprintable() or not pool.name.strip():
            yield f"{place}.name: {pool.name!r} is no name"
        yield from _not_positive(
            f"{place}.node",
            {
                "gpus_per_node": node.gpus_per_node, "scale_up_domain_gpus": node.scale_up_domain_gpus,
                "nic_bytes_per_s": node.nic_bytes_per_s, "host_ram_bytes": node.host_ram_bytes,
                "nodes_per_leaf": node.nodes_per_leaf, "cpu_cores": node.cpu_cores,
            },
        )  # fmt: skip
        yield from _not_positive(
            f"{place}.node.gpu",
            {"memory_bytes": gpu.memory_bytes, "hbm_bytes_per_s": gpu.hbm_bytes_per_s},
        )
        for name, law in gpu.collectives:
            if not law.num_ranks or {len(law.alpha_s), len(law.bytes_per_s), len(law.gamma_s)} != {len(law.num_ranks)}:
                yield f"{place}.node.gpu.collectives.{name[:60]}: needs as many values as numbers of ranks"
            if any(b <= a for a, b in pairwise((1, *law.num_ranks))):
                yield f"{place}.node.gpu.collectives.{name[:60]}: numbers of ranks are 2 or more, in ascending order"
        yield from _not_positive(place, {"usd_per_gpu_hour": pool.usd_per_gpu_hour})
        if not 1 <= node.oversubscription_ratio <= MAX_NUMBER:
            yield f"{place}.node.oversubscription_ratio: {node.oversubscription_ratio:g} is below 1"
        if pool.num_nodes > MAX_GPUS or node.gpus_per_node > MAX_GPUS or pool.num_gpus > MAX_GPUS:
            yield f"{place}.num_nodes: more than {MAX_GPUS:,} GPUs"


def _workload_problems(workload: Workload) -> Iterator[str]:
    place = "inputs.workload"
    yield from _not_positive(place, {"prompt_mean_tokens": workload.prompt_mean_tokens})
    if workload.prompt_mean_tokens > workload.prompt_max_tokens:
        yield f"{place}.prompt_mean_tokens: above prompt_max_tokens"
    if not 0 <= workload.memory_margin_ratio < 1:
        yield f"{place}.memory_margin_ratio: {workload.memory_margin_ratio:g} is no share below 1"
    if workload.kl_coefficient < 0:
        yield f"{place}.kl_coefficient: {workload.kl_coefficient:g} is negative"
    if workload.algorithm.oversampling_ratio < 1:
        yield f"{place}.algorithm.oversampling_ratio: {workload.algorithm.oversampling_ratio:g} is below 1"
    steps = workload.num_optimizer_steps
    if workload.num_prompts % steps:
        yield f"{place}.num_optimizer_steps: {steps} does not divide {workload.num_prompts} prompts"
    if workload.lora_rank is not None and workload.lora_rank < 1:
        yield f"{place}.lora_rank: {workload.lora_rank} is no rank"
    yield from _not_positive(f"{place}.reward", {"num_parallel": workload.reward.num_parallel})
    models = {"actor": workload.actor, "critic": workload.critic, "reward.model": workload.reward.model}
    for name, model in models.items():
        if model is not None:
            yield from _model_problems(f"{place}.{name}", model)


def _model_problems(place: str, model: Model) -> Iterator[str]:
    yield from _not_positive(
        place, {"hidden_size": model.hidden_size, "vocab_size": model.vocab_size, "max_positions": model.max_positions}
    )
    if not model.layers or any(layer.num_layers < 1 for layer in model.layers):
        yield f"{place}.layers: has no layers, or a kind without one"


# ---------------------------------------------------------------------------------------------- references


def reference_problems(file: PlanFile) -> tuple[str, ...]:
    """Groups, placements and schedule against each other, the cluster and the stages of the workload."""
    graph = build_graph(file.inputs.workload, is_split=file.execution.second_share_ratio > 0)
    pools = {pool.name: pool for pool in file.inputs.cluster.pools}
    groups = {group.id: group for group in file.device_groups}
    return (
        *_group_problems(file, pools),
        *_stage_problems("placements", [item.stage for item in file.placements], graph),
        *_stage_problems("schedule", [item.stage for item in file.schedule], graph),
        *(
            problem
            for index, item in enumerate(file.placements)
            for problem in _placement_problems(f"placements[{index}]", item, graph, groups, pools)
        ),
        *_worker_problems(file),
        *(
            f"schedule[{index}].device_groups: there is no group {name[:60]!r}"
            for index, item in enumerate(file.schedule)
            for name in item.device_groups
            if name not in groups and not _is_host(graph, item.stage)
        ),
    )


def _is_host(graph: StageGraph, stage: StageName) -> bool:
    return graph.has_stage(stage) and graph.stage(stage).kind is StageKind.HOST


def _group_problems(file: PlanFile, pools: dict[str, Pool]) -> Iterator[str]:
    if not file.device_groups:
        yield "device_groups: there is none"
    for name, count in Counter(group.id for group in file.device_groups).items():
        if count > 1:
            yield f"device_groups: {name[:60]!r} is there {count} times"
        if not name.isprintable() or not name.strip():
            yield f"device_groups: {name[:60]!r} is no name"
    for index, group in enumerate(file.device_groups):
        place = f"device_groups[{index}]"
        pool = pools.get(group.pool)
        if pool is None:
            yield f"{place}.pool: there is no pool {group.pool[:60]!r}"
        else:
            yield from _range_problems(place, group, pool)


def _range_problems(place: str, group: DeviceGroupFile, pool: Pool) -> Iterator[str]:
    if group.gpu not in (pool.node.gpu.id, pool.node.gpu.name):
        yield f"{place}.gpu: {group.gpu[:60]!r} is not the GPU of pool {pool.name!r}, {pool.node.gpu.id!r}"
    end = group.first_gpu + group.num_gpus
    if end > pool.num_gpus:
        yield f"{place}: GPUs {group.first_gpu} to {end - 1} are not all in pool {pool.name!r} of {pool.num_gpus}"
        return
    if group.ranks != list(range(group.first_gpu, end)):
        yield f"{place}.ranks: are not GPUs {group.first_gpu} to {end - 1}"
    per_node = pool.node.gpus_per_node
    num_nodes = (end - 1) // per_node - group.first_gpu // per_node + 1
    if group.num_nodes != num_nodes:
        yield f"{place}.num_nodes: {group.num_nodes}, but these GPUs are on {num_nodes}"


def _stage_problems(place: str, stages: list[StageName], graph: StageGraph) -> Iterator[str]:
    found, wanted = Counter(stages), [stage.name for stage in graph.stages]
    for name in wanted:
        if not found[name]:
            yield f"{place}: stage {name.value!r} is missing"
    for name, count in found.items():
        if name not in wanted:
            yield f"{place}: the workload has no stage {name.value!r}"
        elif count > 1:
            yield f"{place}: stage {name.value!r} is there {count} times"


def _placement_problems(
    place: str, item: PlacementFile, graph: StageGraph, groups: dict[str, DeviceGroupFile], pools: dict[str, Pool]
) -> Iterator[str]:
    if not graph.has_stage(item.stage):
        return
    stage = graph.stage(item.stage)
    if item.worker is not stage.worker or item.role is not stage.role:
        yield f"{place}: stage {item.stage.value!r} is not run by this worker and role"
        return
    if stage.kind is StageKind.HOST:
        if item.strategy is not None or item.gpu_memory is not None:
            yield f"{place}: a stage on the host has no strategy and no GPU memory"
        return
    group = groups.get(item.device_group)
    if group is None:
        yield f"{place}.device_group: there is no group {item.device_group[:60]!r}"
    if (item.strategy is None) != (item.worker is None):
        yield f"{place}.strategy: {'is missing' if item.strategy is None else 'is given without a worker'}"
    elif item.strategy is not None and item.worker is not None:
        kind = "rollout" if graph.worker(item.worker).kind is StageKind.GENERATION else "trainer"
        if item.strategy.kind != kind:
            yield f"{place}.strategy.kind: {item.strategy.kind!r}, but the {item.worker.value} is a {kind}"
        strategy = item.strategy.to_domain()
        yield from _strategy_problems(f"{place}.strategy", strategy, item.strategy.dp)
        if group is not None and strategy.num_gpus > group.num_gpus:
            yield f"{place}.strategy.num_gpus: {strategy.num_gpus} do not fit into a group of {group.num_gpus}"
    pool = pools.get(group.pool) if group is not None else None
    if pool is not None:
        yield from _capacity_problems(place, item, pool)


def _strategy_problems(place: str, strategy: Strategy, dp: int) -> Iterator[str]:
    if isinstance(strategy, RolloutStrategy):
        if strategy.engine_gpus * dp != strategy.num_gpus:
            groups = " x attention_dp" if strategy.attention_dp > 1 else ""
            yield f"{place}: tp{groups} x pp x dp is not num_gpus, {strategy.num_gpus}"
        elif strategy.tp * strategy.attention_dp % strategy.ep:
            yield f"{place}.ep: {strategy.ep} does not divide tp x attention_dp"
        return
    assert isinstance(strategy, TrainerStrategy)
    if strategy.tp * strategy.pp * strategy.cp * dp != strategy.num_gpus:
        yield f"{place}: tp x pp x cp x dp is not num_gpus, {strategy.num_gpus}"
    elif dp * strategy.cp % strategy.shard_ranks:
        yield f"{place}.shard_ranks: {strategy.shard_ranks} does not divide dp x cp"
    if strategy.num_gpus % (strategy.ep * strategy.etp * strategy.pp):
        yield f"{place}: ep x etp x pp does not divide num_gpus, {strategy.num_gpus}"


def _capacity_problems(place: str, item: PlacementFile, pool: Pool) -> Iterator[str]:
    capacities = (
        ("gpu_memory", item.gpu_memory, pool.node.gpu.memory_bytes),
        ("host_ram", item.host_ram, pool.node.host_ram_bytes),
    )
    for name, held, capacity in capacities:
        if held is not None and not 0 < held.usable_bytes <= capacity * (1 + TOLERANCE_RATIO):
            yield f"{place}.{name}.usable_bytes: {held.usable_bytes:g} is not within the {capacity:g} that there are"


def _worker_problems(file: PlanFile) -> Iterator[str]:
    """A worker has one group and one strategy for all its stages."""
    seen: dict[WorkerName, PlacementFile] = {}
    for index, item in enumerate(file.placements):
        if item.worker is None:
            continue
        first = seen.setdefault(item.worker, item)
        if (first.device_group, first.strategy) != (item.device_group, item.strategy):
            yield f"placements[{index}]: the {item.worker.value} has another group or strategy than before"


# ---------------------------------------------------------------------------------------------- numbers


def value_problems(plan: Plan) -> tuple[str, ...]:
    """Times, sizes and proof of a plan whose references hold."""
    return tuple(
        problem
        for check in (
            _term_problems,
            _schedule_problems,
            _order_problems,
            _sync_problems,
            _proof_problems,
            _link_problems,
            _other_problems,
        )
        for problem in check(plan)
    )


def _close(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=TOLERANCE_RATIO, abs_tol=1e-9)


def _term_problems(plan: Plan) -> Iterator[str]:
    for index, item in enumerate(plan.placements):
        memory, host = item.gpu_memory, item.host_ram
        parts = (
            ("terms", item.time_terms, MAX_SECONDS),
            ("gpu_memory.terms", memory.terms if memory is not None else (), MAX_NUMBER),
            ("host_ram.terms", host.terms if host is not None else (), MAX_NUMBER),
        )
        for name, terms, limit in parts:
            for term in terms:
                if not 0 <= term.value <= limit:
                    yield f"placements[{index}].{name}.{term.name[:60]}: {term.value:g} is out of range"
        if plan.status in (Status.OPTIMAL, Status.FEASIBLE):
            for name, held in (("gpu_memory", memory), ("host_ram", host)):
                if held is not None and held.peak_bytes > held.usable_bytes * (1 + TOLERANCE_RATIO):
                    yield f"placements[{index}].{name}: the peak is above what is usable, yet the plan is said to fit"


def _schedule_problems(plan: Plan) -> Iterator[str]:
    duration_s = {item.stage: item.time_s for item in plan.placements}
    group_of = {item.stage: item.device_group for item in plan.placements if item.worker is not None}
    for index, item in enumerate(plan.schedule):
        place = f"schedule[{index}]"
        if not 0 <= item.start_s <= item.end_s <= MAX_SECONDS:
            yield f"{place}: from {item.start_s:g} s to {item.end_s:g} s is no time"
        elif abs(item.end_s - item.start_s - duration_s[item.stage]) > TOLERANCE_RATIO * max(item.end_s, 1e-3):
            yield f"{place}: lasts other than the {duration_s[item.stage]:g} s of stage {item.stage.value!r}"
        if item.stage in group_of and group_of[item.stage] not in item.device_groups:
            yield f"{place}.device_groups: lack the group of stage {item.stage.value!r}"
    if plan.time_s <= 0:
        yield "schedule: the iteration takes no time"


def _order_problems(plan: Plan) -> Iterator[str]:
    """Dependencies are kept, and no GPU runs two stages at a time, but for stages that are fused."""
    at = {item.stage: item for item in plan.schedule}
    slack_s = TOLERANCE_RATIO * max(plan.time_s, 1e-3)
    fused = _fused_stages(plan)
    for before, after in plan.graph.edges:
        is_fused = {before, after} in fused
        if (at[after].end_s if is_fused else at[after].start_s) < at[before].end_s - slack_s:
            yield f"schedule: stage {after.value!r} {'ends' if is_fused else 'starts'} before {before.value!r} ends"
    groups = {group.id: group for group in plan.device_groups}
    for index, item in enumerate(plan.schedule):
        mine = [groups[name] for name in item.device_groups if name in groups]
        for other in plan.schedule[:index]:
            theirs = [groups[name] for name in other.device_groups if name in groups]
            shares = any(
                a.pool == b.pool and max(a.ranks.start, b.ranks.start) < min(a.ranks.stop, b.ranks.stop)
                for a in mine
                for b in theirs
            )
            if shares and {item.stage, other.stage} not in fused and _overlap_s(plan, item, other) > slack_s:
                yield f"schedule: stages {other.stage.value!r} and {item.stage.value!r} share GPUs at the same time"


def _fused_stages(plan: Plan) -> list[set[StageName]]:
    """Pairs of stages of which one may work while the other does: assessors beside the rollout that they follow, and
    both updates in one pipeline."""
    fusions, graph = plan.execution.fusions, plan.graph
    pairs: list[set[StageName]] = []
    if Fusion.INTER_STAGE in fusions:
        kinds = (StageKind.INFERENCE, StageKind.HOST)
        edges = [(a, b) for a, b in graph.edges if a is StageName.ROLLOUT and graph.stage(b).kind in kinds]
        pairs += [{before, after} for before, after in edges]
    if Fusion.INTRA_STAGE in fusions:
        pairs.append({StageName.ACTOR_UPDATE, StageName.CRITIC_UPDATE})
    return pairs


def _overlap_s(plan: Plan, first: ScheduledStage, second: ScheduledStage) -> float:
    """Seconds that two stages run at the same time, whichever batches they belong to."""
    if plan.execution.mode is ExecutionMode.STREAMING and not {first.stage, second.stage}.isdisjoint(ROLLOUTS):
        # Engines go on with the next batch, and through weight syncs.
        return 0.0
    if plan.period_s is None:
        shifts = [0.0]
    else:
        reach = math.ceil(plan.makespan_s / plan.period_s)
        shifts = [i * plan.period_s for i in range(-reach, reach + 1)]
    return max(min(first.end_s, second.end_s + shift) - max(first.start_s, second.start_s + shift) for shift in shifts)


def _sync_problems(plan: Plan) -> Iterator[str]:
    """Each way of moving shards only is for engines on the trainer's GPUs, or for those on others."""
    groups = {group.id: group for group in plan.device_groups}
    placed = {item.worker: groups.get(item.device_group) for item in plan.placements}
    trainer, engine = placed.get(WorkerName.ACTOR_TRAINER), placed.get(WorkerName.ROLLOUT_ENGINE)
    if not plan.execution.sharded_syncs or trainer is None or engine is None:
        return
    meet = max(trainer.ranks.start, engine.ranks.start) < min(trainer.ranks.stop, engine.ranks.stop)
    way = ShardedSync.MICRO_GROUPS if trainer.pool == engine.pool and meet else ShardedSync.SHARD_TO_SHARD
    if plan.execution.sharded_syncs != (way,):
        yield f"execution.sharded_syncs: where the engines sit, shards move by {way.value}, and in no other way"


def _proof_problems(plan: Plan) -> Iterator[str]:
    values = {"s": plan.time_s, "GPUs": float(plan.num_gpus), "USD": plan.usd}
    if not 0 < plan.objective_value <= MAX_NUMBER:
        yield f"objective.value: {plan.objective_value:g} is out of range"
    expected = values.get(plan.objective_unit)
    if expected is not None and not _close(plan.objective_value, expected):
        yield f"objective.value: {plan.objective_value:g} {plan.objective_unit}, but the plan has {expected:g}"
    if not 0 <= plan.bound <= plan.objective_value * (1 + TOLERANCE_RATIO):
        yield f"objective.bound: {plan.bound:g} is no lower bound of {plan.objective_value:g}"


def _link_problems(plan: Plan) -> Iterator[str]:
    for index, item in enumerate(plan.links):
        for use in item.uses:
            if not 0 < use.bytes_per_s <= MAX_NUMBER or not 0 <= use.num_bytes <= MAX_NUMBER:
                yield f"links[{index}]: {use.num_bytes:g} bytes at {use.bytes_per_s:g} bytes/s are out of range"
                return
    if plan.status in (Status.OPTIMAL, Status.FEASIBLE):
        yield from (f"links: {problem}" for problem in overused(plan.links))


def _other_problems(plan: Plan) -> Iterator[str]:
    limits = plan.limits
    for name, value in (
        ("max_iteration_s", limits.max_iteration_s),
        ("max_usd_per_iteration", limits.max_usd_per_iteration),
        ("max_gpus", limits.max_gpus),
        ("time_limit_s", limits.time_limit_s),
    ):
        if value is not None and not 0 < value <= MAX_NUMBER:
            yield f"inputs.limits.{name}: {value:g} is out of range"
    for index, other in enumerate(plan.alternatives):
        if not 0 < other.time_s <= MAX_SECONDS or not 0 < other.num_gpus <= plan.cluster.num_gpus:
            yield f"alternatives[{index}]: {other.time_s:g} s on {other.num_gpus} GPUs is impossible"
    for reason in plan.search.num_rejected:
        if not 0 <= reason.value <= MAX_NUMBER:
            yield f"search.num_rejected.{reason.name[:60]}: {reason.value:g} is no count"
    if plan.search.num_pruned > plan.search.num_priced:
        yield f"search.num_pruned: {plan.search.num_pruned} is above num_priced"
