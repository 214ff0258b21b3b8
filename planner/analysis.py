"""The work-depth view of a request: what each stage has to do, what must wait for what, and how near a plan is to that.

For every stage of the graph: work W, depth D, bytes per link level and the bound T >= max(W / p, bytes / bandwidth, D).
With a plan its strategies and device groups give the bytes and the processors; without one the whole cluster does.
Formulas: `planner.cost.work_depth` and `planner.cost.link_bytes`; how to read them: `docs/work-depth.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import networkx as nx
import numpy as np

from planner.cost import memory
from planner.cost.asynchronous import AsynchronousTimes, period_s
from planner.cost.jobs import engine_job, host_stage_s, trainer_job
from planner.cost.layout import layout, model_totals
from planner.cost.link_bytes import (
    LinkBytes,
    decode_chain_s,
    decode_step_floor_s,
    engine_bytes,
    engine_slots,
    engine_steps,
    kernel_chain_s,
    least_rollout_bytes,
    synced_bytes,
    trainer_bytes,
)
from planner.cost.offload import offload_flags
from planner.cost.work_bound import head_of, peak_flop_per_s, trainer_flop
from planner.cost.work_depth import (
    GAE_FLOP_PER_TOKEN,
    GROUP_FLOP_PER_SAMPLE,
    Head,
    Lengths,
    TimeBound,
    forward_depth,
    gae_depth,
    generation_depth,
    group_depth,
    layers_flop,
    num_waves,
    rollout_flop,
    training_depth,
)
from planner.cost.worker import EngineJob, Site, TrainerJob
from planner.domain.execution import IN_STEP
from planner.domain.hardware import Cluster, NodeType, Pool, Precision
from planner.domain.overheads import Overheads
from planner.domain.plan import Placement, Plan
from planner.domain.request import PlanRequest
from planner.domain.stages import ROLLOUTS, StageGraph, StageKind, StageName, Worker, WorkerName, build_graph
from planner.domain.strategy import (
    ContextParallel,
    FloatArray,
    Offload,
    Recompute,
    RolloutStrategy,
    Sharding,
    TrainerStrategy,
    TrainerTable,
    recompute_ratio,
)
from planner.domain.workload import TokenLoad, Workload
from planner.files.catalog import load_overheads
from planner.search.space import ATTENTION_DP_DEGREES

ADVANTAGES = "advantages"
"""Not a stage of its own in a plan: the controller computes them."""
SHOWN_DEGREE = 8
"""Degree at which the techniques are compared, or the GPUs of a scale-up domain if fewer."""
STALENESS_SHOWN = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageAnalysis:
    """One stage of one iteration. `links` are bytes per GPU over `num_gpus` GPUs."""

    name: str
    model: str
    work_flop: float
    num_levels: float
    """Depth in operations."""
    num_gpus: int
    """0 for what runs on the host."""
    links: LinkBytes
    bound: TimeBound
    planned_s: float | None
    num_waves: int | None = None
    """Rounds of responses that the KV cache of an engine forces."""

    @property
    def num_parallel(self) -> float:
        """Average parallelism W / D: operations per level."""
        return self.work_flop / self.num_levels if self.num_levels else 0.0

    @property
    def flop_per_byte(self) -> float:
        """Arithmetic intensity over HBM; 0 where nothing is read."""
        total = self.links.hbm_bytes * self.num_gpus
        return self.work_flop / total if total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Technique:
    """What one intra-model technique of degree `degree` does to the actor update, alone, over one iteration."""

    name: str
    degree: int
    work_flop: float
    """Per GPU."""
    num_levels_added: float
    state_bytes: float
    """Weights, gradients and optimizer states per GPU."""
    saved_bytes: float
    """Activations kept for backward, per token of a micro-batch and GPU."""
    links: LinkBytes
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """What an inter-model technique does to the chain of one iteration."""

    name: str
    num_levels: float
    chain_s: float
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The whole view. `plan` is None when no plan was asked for."""

    workload: Workload
    cluster: Cluster
    stages: tuple[StageAnalysis, ...]
    techniques: tuple[Technique, ...]
    arrangements: tuple[Arrangement, ...]
    num_levels: float
    """Depth of a synchronous iteration: the longest path through the stage graph."""
    cluster_bound: TimeBound
    """Of any synchronous plan on the whole cluster: total work, least bytes, depth."""
    path_s: float
    """The same stage by stage: the longest path, each stage on all GPUs."""
    placement_s: float | None
    """Of the plan's own groups and strategies: longest path, and what shares a GPU in turn."""
    plan: Plan | None

    @property
    def work_flop(self) -> float:
        return sum(stage.work_flop for stage in self.stages)

    @property
    def bound_s(self) -> float:
        """Least seconds of an iteration of any synchronous plan on this cluster."""
        return max(self.cluster_bound.time_s, self.path_s)


def analyze(request: PlanRequest, plan: Plan | None) -> Analysis:
    """The work-depth view of `request`, beside `plan` if there is one.

    Without plan and cluster one node of the open type stands for the cluster.
    """
    if plan is not None:
        workload, cluster = plan.workload, plan.cluster
    else:
        workload, cluster = request.workload, request.cluster or _one_node(request.gpu_type_when_open)
    overheads = request.overheads or load_overheads()
    free = _View(workload=workload, cluster=cluster, graph=build_graph(workload), plan=None, overheads=overheads)
    view = free if plan is None else replace(free, plan=plan, graph=plan.graph)
    stages = tuple(view.stage(name) for name in _order(view.graph))
    # What holds for any plan knows nothing of a split rollout.
    anywhere = tuple(free.stage(name) for name in _order(free.graph))
    least = {name: stage.bound for name, stage in zip(_order(free.graph), anywhere, strict=True)}
    advantages = _advantages(workload)
    levels = {name: stage.num_levels for name, stage in zip(_order(view.graph), stages, strict=True)}
    chains = {name: bound.depth_s for name, bound in least.items()}
    bounds = {name: stage.bound.time_s for name, stage in zip(_order(view.graph), stages, strict=True)}
    depth = _longest(view.graph, levels) + advantages.num_levels
    return Analysis(
        workload=workload,
        cluster=cluster,
        stages=_with_advantages(stages, advantages),
        techniques=_techniques(replace(view, graph=free.graph)),
        arrangements=_arrangements(free.graph, _unsplit(levels), chains, advantages.num_levels),
        num_levels=depth,
        cluster_bound=free.cluster_bound(anywhere, least, _longest(free.graph, chains)),
        path_s=_longest(free.graph, {name: bound.time_s for name, bound in least.items()}),
        placement_s=None if plan is None else max(_longest(view.graph, bounds), _in_turn(plan, bounds)),
        plan=plan,
    )


def _one_node(node: NodeType | None) -> Cluster:
    assert node is not None
    return Cluster(pools=(Pool(name=node.gpu.id, node=node, num_nodes=1, usd_per_gpu_hour=None),))


def _order(graph: StageGraph) -> tuple[StageName, ...]:
    return tuple(stage.name for stage in graph.stages)


def _with_advantages(stages: tuple[StageAnalysis, ...], advantages: StageAnalysis) -> tuple[StageAnalysis, ...]:
    """Between assessment and the first update."""
    at = next(i for i, stage in enumerate(stages) if stage.name == StageName.ACTOR_UPDATE.value)
    return (*stages[:at], advantages, *stages[at:])


def _longest(graph: StageGraph, weights: Mapping[StageName, float]) -> float:
    """Weight of the heaviest path through the stage graph."""
    reached: dict[StageName, float] = {}
    digraph = graph.digraph()
    for name in nx.topological_sort(digraph):
        reached[name] = weights[name] + max((reached[before] for before in digraph.predecessors(name)), default=0.0)
    return max(reached.values())


def _unsplit(levels: Mapping[StageName, float]) -> dict[StageName, float]:
    """Levels of stages with both parts of a split rollout as one: they run at the same time."""
    rollout = max(levels[name] for name in ROLLOUTS if name in levels)
    others = {name: value for name, value in levels.items() if name not in ROLLOUTS}
    return {StageName.ROLLOUT: rollout, **others}


def _in_turn(plan: Plan, bounds: Mapping[StageName, float]) -> float:
    """Stages that use the same GPU run one after another; the GPU with most of them."""
    groups = {group.id: group for group in plan.device_groups}
    busiest = 0.0
    for corner in plan.device_groups:
        gpu = corner.first_gpu
        here = (
            bounds[item.stage]
            for item in plan.schedule
            if any(groups[g].pool == corner.pool and gpu in groups[g].ranks for g in item.device_groups if g in groups)
        )
        busiest = max(busiest, sum(here))
    return busiest


def _advantages(workload: Workload) -> StageAnalysis:
    tokens = workload.num_samples * workload.response.mean_tokens
    if workload.algorithm.has_critic:
        longest = workload.response.expected_maximum(workload.num_samples)
        work, depth = GAE_FLOP_PER_TOKEN * tokens, gae_depth(longest)
    else:
        work, depth = GROUP_FLOP_PER_SAMPLE * workload.num_samples, group_depth(workload.group_size)
    return StageAnalysis(
        name=ADVANTAGES, model="", work_flop=work, num_levels=depth, num_gpus=0, links=LinkBytes(),
        bound=TimeBound(), planned_s=None,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- stages


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """A workload on a cluster, with or without a plan; builds the rows."""

    workload: Workload
    cluster: Cluster
    graph: StageGraph
    plan: Plan | None
    overheads: Overheads

    def stage(self, name: StageName) -> StageAnalysis:
        stage = self.graph.stage(name)
        if stage.kind is StageKind.HOST:
            return self._host(name)
        if name is StageName.WEIGHT_SYNC:
            return self._sync()
        assert stage.worker is not None
        worker = self.graph.worker(stage.worker)
        if stage.kind is StageKind.GENERATION:
            return self._generation(name, worker)
        return self._trainer(name, worker, trains=stage.kind is StageKind.TRAINING)

    def _placement(self, name: StageName) -> Placement | None:
        return None if self.plan is None else self.plan.placement(name)

    def _planned_s(self, name: StageName) -> float | None:
        placement = self._placement(name)
        return None if placement is None else placement.time_s

    def _pool(self, placement: Placement) -> Pool:
        assert self.plan is not None
        group = next(item for item in self.plan.device_groups if item.id == placement.device_group)
        return self.cluster.pool(group.pool)

    def site(self, pool: Pool) -> Site:
        return Site(node=pool.node, overheads=self.overheads, memory_margin_ratio=self.workload.memory_margin_ratio)

    def _host(self, name: StageName) -> StageAnalysis:
        return StageAnalysis(
            name=name.value, model="", work_flop=0.0, num_levels=0.0, num_gpus=0, links=LinkBytes(),
            bound=TimeBound(depth_s=host_stage_s(self.workload)), planned_s=self._planned_s(name),
        )  # fmt: skip

    def _sync(self) -> StageAnalysis:
        """No work: the engine's weights are read from where they arrive and written; other GPUs' come over links."""
        base = StageAnalysis(
            name=StageName.WEIGHT_SYNC.value, model=self.workload.actor.id, work_flop=0.0, num_levels=0.0, num_gpus=0,
            links=LinkBytes(), bound=TimeBound(), planned_s=self._planned_s(StageName.WEIGHT_SYNC),
        )  # fmt: skip
        engine = self._placement(StageName.ROLLOUT)
        # Of two groups of engines, which receive the same weights, the first one.
        if self.plan is None or engine is None or not isinstance(engine.strategy, RolloutStrategy):
            return base
        strategy, pool = engine.strategy, self._pool(engine)
        job = engine_job(self.workload, self.graph.worker(WorkerName.ROLLOUT_ENGINE))
        shard = synced_bytes(job, strategy)
        links = LinkBytes(hbm_bytes=2.0 * shard) + self._arriving(engine, shard, pool.node)
        return replace(
            base,
            num_levels=float(np.ceil(np.log2(strategy.num_engines))),
            num_gpus=strategy.num_gpus,
            links=links,
            bound=_link_bound(links, pool.node),
        )

    def _arriving(self, engine: Placement, shard_bytes: float, node: NodeType) -> LinkBytes:
        """What comes from the trainer's GPUs; on the same GPUs the part that they do not hold is left out."""
        assert self.plan is not None
        groups = {group.id: group for group in self.plan.device_groups}
        target = groups[engine.device_group]
        source = groups[self.plan.placement(StageName.ACTOR_UPDATE).device_group]
        if source.pool == target.pool and set(source.ranks) & set(target.ranks):
            return LinkBytes()
        first = min(source.first_gpu, target.first_gpu) // node.scale_up_domain_gpus
        last = (max(source.ranks[-1], target.ranks[-1])) // node.scale_up_domain_gpus
        if source.pool == target.pool and first == last:
            return LinkBytes(scale_up_bytes=shard_bytes)
        return LinkBytes(nic_bytes=shard_bytes)

    def _generation(self, name: StageName, worker: Worker) -> StageAnalysis:
        job = engine_job(self.workload, worker, IN_STEP if self.plan is None else self.plan.execution)
        load = job.load
        longest = load.response.expected_maximum(load.num_sequences)
        base = StageAnalysis(
            name=name.value,
            model=worker.model.id,
            work_flop=rollout_flop(worker.model, load),
            num_levels=generation_depth(worker.model, load.prompt_mean_tokens, longest),
            num_gpus=self.cluster.num_gpus,
            links=LinkBytes(hbm_bytes=least_rollout_bytes(job) / self.cluster.num_gpus),
            bound=TimeBound(),
            planned_s=self._planned_s(name),
        )
        placement = self._placement(name)
        if placement is None or not isinstance(placement.strategy, RolloutStrategy):
            least = replace(
                self._least(base, job.precision),
                depth_s=min(
                    float(decode_chain_s(job, _degrees(job, pool), self.site(pool), attention_dp=_groups(job)).min())
                    for pool in self.cluster.pools
                ),
            )
            return replace(base, bound=least)
        return self._engine(base, job, placement, placement.strategy)

    def _engine(
        self, base: StageAnalysis, job: EngineJob, placement: Placement, strategy: RolloutStrategy
    ) -> StageAnalysis:
        pool = self._pool(placement)
        site = self.site(pool)
        assert placement.gpu_memory is not None
        cache_bytes = sum(term.value for term in placement.gpu_memory.terms if term.name == "kv_cache")
        slots = engine_slots(job, strategy, cache_bytes)
        links = engine_bytes(job, strategy, slots, site)
        steps = engine_steps(job, strategy.num_engines, slots)
        tp = np.array([float(strategy.tp)])
        groups = float(strategy.attention_dp)
        step_s = float(decode_step_floor_s(job.model, job.precision, tp, site, attention_dp=groups)[0])
        bound = replace(
            _link_bound(links, pool.node),
            compute_s=base.work_flop / (strategy.num_gpus * peak_flop_per_s(pool.node.gpu, job.precision)),
            depth_s=float(decode_chain_s(job, tp, site, attention_dp=groups)[0]),
            slots_s=steps.num_tokens / steps.num_slots * step_s,
        )
        return replace(
            base,
            num_gpus=strategy.num_gpus,
            links=links,
            bound=bound,
            num_waves=num_waves(max(job.load.num_sequences / strategy.num_engines, 1.0), slots),
        )

    def _trainer(self, name: StageName, worker: Worker, *, trains: bool) -> StageAnalysis:
        job = trainer_job(self.workload, self.graph, worker)
        load = job.train_load if trains else dict(job.inference_loads)[name]
        assert load is not None
        head, lengths = head_of(self.workload, worker.name), Lengths.of_load(load)
        base = StageAnalysis(
            name=name.value,
            model=worker.model.id,
            work_flop=trainer_flop(job, head, load, trains=trains),
            num_levels=training_depth(
                job.model, head, load, num_optimizer_steps=job.num_optimizer_steps, num_epochs=job.num_epochs
            )
            if trains
            else forward_depth(job.model, head, load.max_tokens),
            num_gpus=self.cluster.num_gpus,
            links=LinkBytes(hbm_bytes=_least_weight_bytes(job, trains=trains) / self.cluster.num_gpus),
            bound=TimeBound(),
            planned_s=self._planned_s(name),
        )
        placement = self._placement(name)
        if placement is None or not isinstance(placement.strategy, TrainerStrategy):
            chain = min(kernel_chain_s(job, self.site(pool), trains=trains) for pool in self.cluster.pools)
            return replace(base, bound=replace(self._least(base, job.precision), depth_s=chain))
        strategy, pool = placement.strategy, self._pool(placement)
        ratio = float(recompute_ratio(TrainerTable.of((strategy,)), job.model.num_layers)[0]) if trains else 0.0
        again = ratio * job.num_epochs * load.num_sequences * layers_flop(job.model, lengths)
        links = trainer_bytes(job, load, strategy, self.site(pool), trains=trains)
        bound = replace(
            _link_bound(links, pool.node),
            compute_s=(base.work_flop + again) / (strategy.num_gpus * peak_flop_per_s(pool.node.gpu, job.precision)),
            depth_s=kernel_chain_s(job, self.site(pool), trains=trains, recomputed=ratio),
        )
        levels = base.num_levels
        if ratio:
            levels += ratio * job.num_epochs * job.num_optimizer_steps * forward_depth(job.model, head, load.max_tokens)
        return replace(base, num_levels=levels, num_gpus=strategy.num_gpus, links=links, bound=bound)

    # ------------------------------------------------------------------------------------------ without a plan

    def _least(self, stage: StageAnalysis, precision: Precision) -> TimeBound:
        """Work and bytes of one stage over the whole cluster."""
        peak = sum(pool.num_gpus * peak_flop_per_s(pool.node.gpu, precision) for pool in self.cluster.pools)
        bandwidth = sum(pool.num_gpus * pool.node.gpu.hbm_bytes_per_s for pool in self.cluster.pools)
        return TimeBound(
            compute_s=stage.work_flop / peak, hbm_s=stage.links.hbm_bytes * self.cluster.num_gpus / bandwidth
        )

    def cluster_bound(
        self, stages: tuple[StageAnalysis, ...], least: Mapping[StageName, TimeBound], chain_s: float
    ) -> TimeBound:
        """Total work, least bytes and depth of an iteration on all GPUs.

        With several pools the work of a stage counts at the best ratio of its precision to 16 bit of any pool, so that
        no division of the work can beat the sum.
        """
        work = 0.0
        for name in least:
            stage = self.graph.stage(name)
            precision = (
                self.workload.rollout_precision if stage.kind is StageKind.GENERATION else self.workload.train_precision
            )
            gpus = [pool.node.gpu for pool in self.cluster.pools]
            ratio = max(peak_flop_per_s(gpu, precision) / peak_flop_per_s(gpu, Precision.BF16) for gpu in gpus)
            work += next(item.work_flop for item in stages if item.name == name.value) / ratio
        rate = sum(pool.num_gpus * peak_flop_per_s(pool.node.gpu, Precision.BF16) for pool in self.cluster.pools)
        return TimeBound(compute_s=work / rate, hbm_s=sum(bound.hbm_s for bound in least.values()), depth_s=chain_s)


def _degrees(job: EngineJob, pool: Pool) -> FloatArray:
    """TP degrees that divide the query heads, up to all GPUs of a pool."""
    heads = max(layer.attention.num_heads for layer in job.model.layers)
    most = min(max(heads, 1), pool.num_gpus)
    return np.array([float(tp) for tp in range(1, most + 1) if max(heads, 1) % tp == 0])


def _groups(job: EngineJob) -> float:
    """Most attention groups of one engine: their experts are read side by side."""
    return float(max(ATTENTION_DP_DEGREES)) if job.model.is_moe else 1.0


def _link_bound(links: LinkBytes, node: NodeType) -> TimeBound:
    """Bytes over line rates; a level without a link is never used."""

    def seconds(num_bytes: float, bytes_per_s: float) -> float:
        return num_bytes / bytes_per_s if bytes_per_s > 0.0 else 0.0

    return TimeBound(
        hbm_s=seconds(links.hbm_bytes, node.gpu.hbm_bytes_per_s),
        scale_up_s=seconds(links.scale_up_bytes, node.gpu.scale_up_bytes_per_s),
        nic_s=seconds(links.nic_bytes, node.nic_bytes_per_s),
    )


def _least_weight_bytes(job: TrainerJob, *, trains: bool) -> float:
    """HBM bytes that any strategy reads in all: dense matrices once per dependent pass of an optimizer step."""
    weights = model_totals(job.model, job.has_vocabulary_head).dense_matmul_params * job.precision.num_bytes
    if not trains:
        return weights
    return weights * job.num_optimizer_steps * job.num_epochs * (2.0 if job.lora_rank is not None else 3.0)


# ---------------------------------------------------------------------------------------------- techniques


def _techniques(view: _View) -> tuple[Technique, ...]:
    """Each intra-model technique alone on the actor update, on the first pool's nodes."""
    worker = view.graph.worker(WorkerName.ACTOR_TRAINER)
    job, site = trainer_job(view.workload, view.graph, worker), view.site(view.cluster.pools[0])
    load = job.train_load
    assert load is not None
    degree = max(min(SHOWN_DEGREE, site.node.scale_up_domain_gpus), 2)
    collective = float(np.log2(degree))
    steps = job.num_optimizer_steps * job.num_epochs
    layers = model_totals(job.model, True)
    one = TrainerStrategy(
        num_gpus=1, tp=1, pp=1, vpp=1, cp=1, context_parallel=ContextParallel.RING, ep=1, etp=1,
        sharding=Sharding.DDP, shard_ranks=1, micro_batch_tokens=load.max_tokens, inference_tokens=load.max_tokens,
        recompute=Recompute.NONE, offload=Offload.NONE,
    )  # fmt: skip
    spread = replace(one, num_gpus=degree, shard_ranks=degree)
    again = steps * forward_depth(job.model, Head.VOCABULARY, load.max_tokens)

    def row(name: str, strategy: TrainerStrategy, levels: float, note: str) -> Technique:
        return _technique(job, load, site, strategy, name=name, levels=levels, note=note)

    rows = [
        row("none", one, 0.0, "one GPU"),
        row("full recompute", replace(one, recompute=Recompute.FULL), again, "layers run twice; depth grows too"),
        row("DP", spread, steps * collective, "gradient sum per optimizer step"),
        row("ZeRO-1", replace(spread, sharding=Sharding.ZERO1), steps * collective, "optimizer states divided"),
        row("ZeRO-2", replace(spread, sharding=Sharding.ZERO2), steps * collective, "gradients too"),
        row("ZeRO-3", replace(spread, sharding=Sharding.ZERO3), steps * collective, "weights too, gathered per layer"),
        row("TP + SP", replace(spread, tp=degree, shard_ranks=1), 0.0, "log(d/t) + log t = log d: no depth"),
        row("PP", replace(spread, pp=degree, shard_ranks=1), 0.0, "layers are a chain anyway; bubbles"),
        row("CP", replace(spread, cp=degree), 2.0 * steps * collective * layers.num_layers, "soft-max merged by tree"),
    ]
    if job.model.is_moe:
        exchanged = 4.0 * steps * collective * layers.num_expert_layers
        rows.append(row("EP", replace(spread, ep=degree), exchanged, "dispatch and combine per layer"))
    return tuple(rows)


def _technique(
    job: TrainerJob, load: TokenLoad, site: Site, strategy: TrainerStrategy, *, name: str, levels: float, note: str
) -> Technique:
    totals = model_totals(job.model, job.has_vocabulary_head)
    at = layout(TrainerTable.of((strategy,)), totals, site.node)
    is_fp8 = job.precision is Precision.FP8
    states = memory.training_states(at, offload_flags(at.offload), lora_rank=job.lora_rank, is_fp8=is_fp8)
    work = trainer_flop(job, Head.VOCABULARY, load, trains=True)
    is_full = strategy.recompute is Recompute.FULL
    if is_full:
        work += job.num_epochs * load.num_sequences * layers_flop(job.model, Lengths.of_load(load))
    kept = float(totals.num_layers * totals.hidden_size) if is_full else totals.saved_elements
    return Technique(
        name=name,
        degree=strategy.num_gpus,
        work_flop=work / strategy.num_gpus,
        num_levels_added=levels,
        state_bytes=float((states.weights + states.gradients + states.optimizer)[0]),
        saved_bytes=2.0 * kept * float(at.depth_ratio[0]) / (strategy.tp * strategy.cp),
        links=trainer_bytes(job, load, strategy, site, trains=True),
        note=note,
    )


def _arrangements(
    graph: StageGraph, levels: Mapping[StageName, float], chains: Mapping[StageName, float], advantage_levels: float
) -> tuple[Arrangement, ...]:
    """How stages may wait for each other, over one iteration."""
    apart = _longest(graph, levels) + advantage_levels
    apart_s = _longest(graph, chains)

    rows = [
        Arrangement(
            name="colocated, in turn",
            num_levels=sum(levels.values()) + advantage_levels,
            chain_s=sum(chains.values()),
            note="assessors and updates add up",
        ),
        Arrangement(name="disaggregated", num_levels=apart, chain_s=apart_s, note="longest of each side by side"),
        Arrangement(name="stage fusion", num_levels=apart, chain_s=apart_s, note="fills idle time; no shorter chain"),
    ]
    generation = chains[StageName.ROLLOUT]
    times = AsynchronousTimes(
        generation_s=np.array([generation]),
        rollout_busy_s=np.array([generation]),
        training_s=np.array([apart_s - generation]),
        sync_s=np.zeros(1),
    )
    for staleness in STALENESS_SHOWN:
        rows.append(
            Arrangement(
                name=f"asynchronous, staleness {staleness}",
                num_levels=max(levels[StageName.ROLLOUT], apart / (staleness + 1)),
                chain_s=float(period_s(times, np.array([float(staleness)]))[0]),
                note="whole batches; streaming hides the longest response too",
            )
        )
    return tuple(rows)
