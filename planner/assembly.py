"""From chosen strategies to a Plan: every figure is priced again from one-row tables, in floats.

Nothing here trusts the solver: times, memory and schedule are recomputed from the strategies, so that a searched
plan and a fixed configuration (`rlplan estimate`) are priced by the same lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum

from planner.cost.jobs import host_stage_s, trainer_job
from planner.cost.terms import TIME_TERMS, Resource, Terms, bound_by
from planner.cost.worker import StageCost, WorkerCosts
from planner.domain.execution import Execution, ExecutionMode, ShardedSync
from planner.domain.hardware import Pool
from planner.domain.plan import DeviceGroup, GpuMemory, HostRam, NamedValue, Placement, ScheduledStage
from planner.domain.stages import ROLLOUT_ENGINES, Stage, StageKind, StageName, Worker, WorkerName
from planner.domain.strategy import RolloutStrategy, RolloutTable, Strategy, StrategyTable, TrainerTable
from planner.domain.verdict import Misfit, MisfitKind
from planner.errors import InvalidInputError
from planner.search.options import moment_seconds
from planner.search.pricing import PricingInputs, cross_pool_sync, price_table, site_of
from planner.search.schedule import Timeline, timeline
from planner.search.structures import PoolGroups, Structure
from planner.search.timing import Part, Timing, TimingBook, moments_of
from planner.search.units import host_parts

HOST_GROUP = "host"
"""Device group id of stages that occupy no GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStrategy:
    """A worker on the first GPUs of a device group, with its strategy."""

    worker: Worker
    pool: Pool
    group: DeviceGroup
    strategy: Strategy

    @property
    def used(self) -> range:
        """GPUs that the worker really uses: the first of its group."""
        return range(self.group.first_gpu, self.group.first_gpu + self.strategy.num_gpus)

    def overlaps(self, other: PlacedStrategy) -> bool:
        """Whether the two device groups share a GPU."""
        return self.group.pool == other.group.pool and _share(self.group, other.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """Placements and schedule of a configuration; `misfits` names every capacity that it exceeds."""

    device_groups: tuple[DeviceGroup, ...]
    placements: tuple[Placement, ...]
    schedule: tuple[ScheduledStage, ...]
    misfits: tuple[Misfit, ...]
    time_s: float
    """Seconds per iteration: the period of an asynchronous configuration, else the end of its last stage."""
    timing: Timing
    execution: Execution
    """As it turned out: with the fusions that the timing really has, and the ways in which weights are synced."""

    @property
    def problems(self) -> tuple[str, ...]:
        """The misfits in words."""
        return tuple(item.text for item in self.misfits)


def one_row(strategy: Strategy) -> StrategyTable:
    """A table that holds only this strategy."""
    return RolloutTable.of((strategy,)) if isinstance(strategy, RolloutStrategy) else TrainerTable.of((strategy,))


def assemble(placed: Sequence[PlacedStrategy], inputs: PricingInputs, timing: Timing | None) -> Assembled:
    """Price, place and schedule under the execution of `inputs`. None takes the best timing.

    Raises InvalidInputError when device groups overlap other than by one containing the others, or when the execution
    cannot run them, and no `timing` is given.
    """
    costs = {item.worker.name: _price(item, inputs) for item in placed}
    by_name = {item.worker.name: item for item in placed}
    placements = [_placement(stage, by_name, costs, inputs) for stage in inputs.graph.stages]
    groups = {item.group.id: item.group for item in placed}
    chosen, line = _timeline(placed, _seconds(placements, costs, inputs), inputs, timing)
    return Assembled(
        device_groups=tuple(groups[key] for key in sorted(groups)),
        placements=tuple(placements),
        schedule=line.items,
        misfits=_misfits(placements, costs, by_name, inputs),
        time_s=line.time_s,
        timing=chosen,
        execution=replace(inputs.execution, fusions=chosen.fusions, sharded_syncs=_used_syncs(placed, inputs)),
    )


def _used_syncs(placed: Sequence[PlacedStrategy], inputs: PricingInputs) -> tuple[ShardedSync, ...]:
    """Of the ways to sync shards only, the one for where the engine sits."""
    by_name = {item.worker.name: item for item in placed}
    shares = by_name[WorkerName.ACTOR_TRAINER].overlaps(by_name[WorkerName.ROLLOUT_ENGINE])
    used = ShardedSync.MICRO_GROUPS if shares else ShardedSync.SHARD_TO_SHARD
    return tuple(way for way in inputs.execution.sharded_syncs if way is used)


def _seconds(
    placements: Sequence[Placement], costs: dict[WorkerName, WorkerCosts], inputs: PricingInputs
) -> dict[Part, float]:
    """Durations of all stages, and the moments that the execution asks for."""
    seconds: dict[Part, float] = {(item.stage, None): item.time_s for item in placements}
    for stage in inputs.graph.stages:
        if stage.kind is StageKind.HOST:
            least_s = inputs.workload.reward.latency_s
            seconds |= host_parts(stage.name, seconds[stage.name, None], least_s)
    for worker in inputs.graph.workers:
        for part in moments_of(inputs.execution, worker):
            seconds[part] = float(moment_seconds(costs[worker.name], part, inputs.workload.num_samples)[0])
    return seconds


def stage_seconds(placed: Sequence[PlacedStrategy], inputs: PricingInputs) -> dict[Part, float]:
    """Durations and moments of a placed configuration."""
    costs = {item.worker.name: _price(item, inputs) for item in placed}
    by_name = {item.worker.name: item for item in placed}
    return _seconds([_placement(stage, by_name, costs, inputs) for stage in inputs.graph.stages], costs, inputs)


def occupied_groups(
    placed: Sequence[PlacedStrategy], inputs: PricingInputs
) -> tuple[dict[StageName, tuple[str, ...]], tuple[tuple[str, str], ...]]:
    """Device groups of each stage, and the pairs of different groups that share GPUs."""
    group_of = {item.worker.name: item.group.id for item in placed}
    occupied = {
        stage.name: tuple(sorted({group_of[w] for w in inputs.graph.workers_of(stage.name)}))
        for stage in inputs.graph.stages
    }
    overlapping = tuple(
        (a.group.id, b.group.id) for a in placed for b in placed if a.group.id < b.group.id and a.overlaps(b)
    )
    return occupied, overlapping


def _timeline(
    placed: Sequence[PlacedStrategy], seconds: dict[Part, float], inputs: PricingInputs, timing: Timing | None
) -> tuple[Timing, Timeline]:
    occupied, overlapping = occupied_groups(placed, inputs)

    def line(at: Timing) -> Timeline:
        return timeline(inputs.graph, inputs.execution, at, seconds, occupied, overlapping)

    if timing is not None:
        return timing, line(timing)
    choices = TimingBook(inputs.graph, inputs.execution).timings(structure_of(placed))
    if not choices:
        raise InvalidInputError(
            f"{inputs.execution.mode.value} execution needs the rollout engine and the actor trainer on different GPUs"
            + (" and nothing else on the engine's" if inputs.execution.mode is ExecutionMode.STREAMING else ""),
            where="strategies",
        )
    lines = [(at, line(at)) for at in choices]
    return min(lines, key=lambda pair: pair[1].time_s)


def structure_of(placed: Sequence[PlacedStrategy]) -> Structure:
    """The structure of placed workers; InvalidInputError unless, in each pool, groups are disjoint or one holds all."""
    pools = []
    for pool in sorted({item.group.pool for item in placed}):
        here = [item for item in placed if item.group.pool == pool]
        ids = sorted({item.group.id for item in here})
        group = {item.group.id: item.group for item in here}
        members = {key: tuple(i.worker.name for i in here if i.group.id == key) for key in ids}
        clashes = {key: [o for o in ids if o != key and _share(group[key], group[o])] for key in ids}
        whole = [key for key in ids if clashes[key] and len(clashes[key]) == len(ids) - 1]
        if len(ids) == 1 or not whole:
            whole = []
        rest = [key for key in ids if key not in whole[:1]]
        if any(o in rest for key in rest for o in clashes[key]):
            raise InvalidInputError(
                f"device groups of pool '{pool}' overlap only in part: {', '.join(ids)}",
                where="strategies",
                accepted="groups that are disjoint, or one that holds all others of its pool",
            )
        pools.append(
            PoolGroups(
                pool=pool,
                whole=members[whole[0]] if whole else (),
                blocks=tuple(members[key] for key in rest),
            )
        )
    return Structure(pools=tuple(pools))


def _share(first: DeviceGroup, second: DeviceGroup) -> bool:
    return first.ranks.start < second.ranks.stop and second.ranks.start < first.ranks.stop


def _price(item: PlacedStrategy, inputs: PricingInputs) -> WorkerCosts:
    return price_table(item.worker, one_row(item.strategy), site_of(item.pool, inputs), inputs)


def _named(terms: Terms | None) -> tuple[NamedValue, ...]:
    """Terms of a one-row table that are not zero, in registration order for times."""
    if terms is None:
        return ()
    order = {info.name: index for index, info in enumerate(TIME_TERMS)}
    names = sorted(terms, key=lambda name: (order.get(name, len(order)), name))
    values = ((name, float(terms[name][0])) for name in names)
    return tuple(NamedValue(name=name, value=value) for name, value in values if value != 0.0)


def _merged(*parts: tuple[NamedValue, ...]) -> tuple[NamedValue, ...]:
    sums: dict[str, float] = {}
    for part in parts:
        for term in part:
            sums[term.name] = sums.get(term.name, 0.0) + term.value
    return tuple(NamedValue(name=name, value=value) for name, value in sums.items())


def _bound(terms: tuple[NamedValue, ...], scale_up_kind: str) -> str:
    """What bounds a stage; a scale-up link that is not NVLink goes by the name of its kind."""
    if not terms:
        return Resource.HOST.value
    resource = bound_by({term.name: term.value for term in terms})
    if resource is Resource.SCALE_UP and "nvlink" not in scale_up_kind:
        return "PCIe" if "pcie" in scale_up_kind else scale_up_kind
    return resource.value


def _placement(
    stage: Stage,
    placed: dict[WorkerName, PlacedStrategy],
    costs: dict[WorkerName, WorkerCosts],
    inputs: PricingInputs,
) -> Placement:
    if stage.kind is StageKind.HOST:
        seconds = host_stage_s(inputs.workload)
        terms = (NamedValue(name="sandbox", value=seconds),) if seconds else ()
        return _without_worker(stage, HOST_GROUP, "", terms, None)
    if stage.name is StageName.WEIGHT_SYNC:
        return _weight_sync(stage, placed, costs, inputs)
    assert stage.worker is not None
    item, cost = placed[stage.worker], costs[stage.worker]
    stage_cost = next(entry for entry in cost.stages if entry.stage is stage.name)
    time_terms = _named(stage_cost.time_terms)
    return Placement(
        stage=stage.name,
        role=stage.role,
        worker=stage.worker,
        model=item.worker.model.id,
        device_group=item.group.id,
        strategy=item.strategy,
        time_terms=time_terms,
        bound_by=_bound(time_terms, item.pool.node.gpu.scale_up_kind),
        gpu_memory=_gpu_memory(item, stage_cost, placed, costs, inputs),
        host_ram=_host_ram(item, placed, costs, inputs),
    )


def _without_worker(
    stage: Stage,
    group: str,
    model: str,
    terms: tuple[NamedValue, ...],
    memory: GpuMemory | None,
    scale_up_kind: str = "",
) -> Placement:
    return Placement(
        stage=stage.name,
        role=stage.role,
        worker=None,
        model=model,
        device_group=group,
        strategy=None,
        time_terms=terms,
        bound_by=_bound(terms, scale_up_kind),
        gpu_memory=memory,
        host_ram=None,
    )


def _weight_sync(
    stage: Stage,
    placed: dict[WorkerName, PlacedStrategy],
    costs: dict[WorkerName, WorkerCosts],
    inputs: PricingInputs,
) -> Placement:
    """The engines are served one after the other; the group shown is the one whose memory is fullest then."""
    trainer = placed[WorkerName.ACTOR_TRAINER]
    engines = [placed[name] for name in ROLLOUT_ENGINES if name in placed]
    received = [_sync_share(item, trainer, item, costs, inputs) for item in engines]
    terms = _merged(_sync_sent(trainer, engines, costs, inputs), *received)
    peaks = [(_sync_memory(trainer, engine, placed, costs, inputs), engine) for engine in engines]
    peak, engine = max(peaks, key=lambda pair: pair[0].peak_bytes / pair[0].usable_bytes)
    kind = engine.pool.node.gpu.scale_up_kind
    return _without_worker(stage, engine.group.id, engine.worker.model.id, terms, peak, kind)


def _sync_share(
    item: PlacedStrategy,
    trainer: PlacedStrategy,
    engine: PlacedStrategy,
    costs: dict[WorkerName, WorkerCosts],
    inputs: PricingInputs,
) -> tuple[NamedValue, ...]:
    """What the sync from `trainer` to `engine` takes of one of the two."""
    cost = costs[item.worker.name]
    if trainer.overlaps(engine):
        return _named(cost.sync_terms_colocated)
    apart = cost.sync_terms_disaggregated
    if trainer.group.pool != engine.group.pool:
        apart = cross_pool_sync(item.worker, item.pool, one_row(item.strategy), inputs) or apart
    return _named(apart)


def _sync_sent(
    trainer: PlacedStrategy,
    engines: Sequence[PlacedStrategy],
    costs: dict[WorkerName, WorkerCosts],
    inputs: PricingInputs,
) -> tuple[NamedValue, ...]:
    """The trainer's share: what it gathers for engines on its own GPUs also serves others."""
    shares = [_sync_share(trainer, trainer, engine, costs, inputs) for engine in engines]
    if any(trainer.overlaps(engine) for engine in engines):
        return max(shares, key=_sum)
    return _merged(*shares)


def _sync_memory(
    trainer: PlacedStrategy,
    engine: PlacedStrategy,
    placed: dict[WorkerName, PlacedStrategy],
    costs: dict[WorkerName, WorkerCosts],
    inputs: PricingInputs,
) -> GpuMemory:
    """What an engine's GPUs hold during the weight sync."""
    active = (trainer, engine) if trainer.overlaps(engine) else (engine,)
    others = tuple(
        term for term in _idle_terms(active, placed, costs) if term.name != f"idle: {WorkerName.ACTOR_TRAINER.value}"
    )
    own = tuple(
        NamedValue(name=f"{item.worker.name.value}: {term.name}", value=term.value)
        for item in active
        for term in _named(costs[item.worker.name].sync_memory_terms)
    )
    usable = site_of(engine.pool, inputs).usable_bytes
    return GpuMemory(instant="weight sync", terms=own + others, usable_bytes=usable)


def _sum(terms: tuple[NamedValue, ...]) -> float:
    return fsum(term.value for term in terms)


def _worst_residents(
    items: Sequence[PlacedStrategy], placed: dict[WorkerName, PlacedStrategy], weight: dict[WorkerName, float]
) -> tuple[PlacedStrategy, ...]:
    """Other workers on the GPU, among those that all `items` use, where their weights add up to most.

    Which workers share a GPU changes only where some worker's GPUs begin, so only those GPUs are looked at.
    """
    first, last = max(i.used.start for i in items), min(i.used.stop for i in items)
    pool = items[0].group.pool
    others = [o for o in placed.values() if o not in items and o.group.pool == pool]
    starts = {first, *(o.used.start for o in others if first <= o.used.start < last)}
    sets = [tuple(o for o in others if gpu in o.used) for gpu in sorted(starts)]
    return max(sets, key=lambda found: sum(weight[o.worker.name] for o in found))


def _node_mates(
    item: PlacedStrategy, placed: dict[WorkerName, PlacedStrategy], weight: dict[WorkerName, float]
) -> tuple[PlacedStrategy, ...]:
    """Other workers with GPUs in the node, among those that `item` uses, where their weights add up to most."""
    per_node = item.pool.node.gpus_per_node

    def nodes(used: range) -> range:
        return range(used.start // per_node, (used.stop - 1) // per_node + 1)

    others = [o for o in placed.values() if o is not item and o.group.pool == item.group.pool]
    mine = nodes(item.used)
    starts = {mine.start, *(nodes(o.used).start for o in others if nodes(o.used).start in mine)}
    sets = [tuple(o for o in others if node in nodes(o.used)) for node in sorted(starts)]
    return max(sets, key=lambda found: sum(weight[o.worker.name] for o in found))


def _idle_bytes(costs: dict[WorkerName, WorkerCosts]) -> dict[WorkerName, float]:
    return {name: _sum(_named(cost.idle_terms)) for name, cost in costs.items()}


def _idle_terms(
    items: Sequence[PlacedStrategy], placed: dict[WorkerName, PlacedStrategy], costs: dict[WorkerName, WorkerCosts]
) -> tuple[NamedValue, ...]:
    """`idle: <worker>` of the co-residents on the fullest GPU."""
    idle = _idle_bytes(costs)
    residents = _worst_residents(items, placed, idle)
    return tuple(
        NamedValue(name=f"idle: {other.worker.name.value}", value=idle[other.worker.name])
        for other in residents
        if idle[other.worker.name]
    )


def _gpu_memory(
    item: PlacedStrategy,
    stage_cost: StageCost,
    placed: dict[WorkerName, PlacedStrategy],
    costs: dict[WorkerName, WorkerCosts],
    inputs: PricingInputs,
) -> GpuMemory:
    return GpuMemory(
        instant=stage_cost.instant_at(0),
        terms=_named(stage_cost.memory_terms) + _idle_terms((item,), placed, costs),
        usable_bytes=site_of(item.pool, inputs).usable_bytes,
    )


def _host_ram(
    item: PlacedStrategy,
    placed: dict[WorkerName, PlacedStrategy],
    costs: dict[WorkerName, WorkerCosts],
    inputs: PricingInputs,
) -> HostRam:
    own = _named(costs[item.worker.name].host_terms)
    host = {name: _sum(_named(cost.host_terms)) for name, cost in costs.items()}
    others = tuple(
        NamedValue(name=other.worker.name.value, value=host[other.worker.name])
        for other in _node_mates(item, placed, host)
    )
    return HostRam(
        terms=own + tuple(term for term in others if term.value),
        usable_bytes=item.pool.node.host_ram_bytes * (1.0 - inputs.workload.memory_margin_ratio),
    )


def _why_illegal(item: PlacedStrategy, inputs: PricingInputs) -> str:
    """Which rule of the cost model a strategy breaks (`is_legal` of WorkerCosts), in words of the workload file."""
    strategy = item.strategy
    if isinstance(strategy, RolloutStrategy):
        return "weights and one longest sequence do not fit the engine's share of GPU memory"
    job = trainer_job(inputs.workload, inputs.graph, item.worker)
    budgets = [("inference_tokens", strategy.inference_tokens, load.max_tokens) for _, load in job.inference_loads]
    if job.train_load is not None:
        budgets.insert(0, ("micro_batch_tokens", strategy.micro_batch_tokens, job.train_load.max_tokens))
    for key, tokens, longest in budgets:
        if tokens < longest:
            return f"{key} is {tokens:,}, below one longest sequence of {longest:,.0f} tokens"
    if strategy.pp * strategy.vpp > job.model.num_layers:
        return f"pp x vpp is {strategy.pp * strategy.vpp}, above the {job.model.num_layers} layers of the model"
    return "more data-parallel ranks than sequences in a batch"


def _misfits(
    placements: Sequence[Placement],
    costs: dict[WorkerName, WorkerCosts],
    placed: dict[WorkerName, PlacedStrategy],
    inputs: PricingInputs,
) -> tuple[Misfit, ...]:
    found: list[Misfit] = []

    def note(kind: MisfitKind, text: str) -> None:
        found.append(Misfit(kind=kind, text=text))

    for name, cost in costs.items():
        if not bool(cost.is_legal[0]):
            is_engine = isinstance(placed[name].strategy, RolloutStrategy)
            kind = MisfitKind.ENGINE_SHARE if is_engine else MisfitKind.RULE
            note(kind, f"{name.value}: {_why_illegal(placed[name], inputs)}")
    for placement in placements:
        where = f"stage '{placement.stage.value}' on {placement.device_group}"
        memory, ram = placement.gpu_memory, placement.host_ram
        if memory is not None and memory.peak_bytes > memory.usable_bytes * (1 + 1e-9):
            worst = max(memory.terms, key=lambda term: term.value)
            note(
                MisfitKind.GPU_MEMORY,
                f"{where}: {memory.peak_bytes / 2**30:.1f} GiB of GPU memory needed at the {memory.instant}, "
                f"{memory.usable_bytes / 2**30:.1f} GiB usable; largest term {worst.name} "
                f"{worst.value / 2**30:.1f} GiB",
            )
        if ram is not None and ram.peak_bytes > ram.usable_bytes * (1 + 1e-9):
            worst = max(ram.terms, key=lambda term: term.value)
            note(
                MisfitKind.HOST_RAM,
                f"{where}: {ram.peak_bytes / 2**30:.0f} GiB of host RAM needed per node, "
                f"{ram.usable_bytes / 2**30:.0f} GiB usable; largest term {worst.name} {worst.value / 2**30:.0f} GiB",
            )
    return tuple(dict.fromkeys(found))
