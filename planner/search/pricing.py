"""Prices all candidates of one worker on one pool and keeps the options worth searching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.cost.generation import engine_peak, price_engine
from planner.cost.jobs import engine_job, trainer_job
from planner.cost.step_losses import with_step_losses
from planner.cost.terms import Terms
from planner.cost.training import price_trainer
from planner.cost.training_memory import trainer_peak
from planner.cost.trunk import weight_copy_bytes, within_trunk
from planner.cost.work_bound import peak_flop_per_s
from planner.cost.worker import Site, WorkerCosts
from planner.domain.execution import IN_STEP, Execution
from planner.domain.fixed import FixedField
from planner.domain.framework import FrameworkRules
from planner.domain.framework_budgets import budget_keys, budget_rejections, rounded_budgets
from planner.domain.framework_engines import rollout_rejections
from planner.domain.framework_mesh import coupled_workers, mesh_keys
from planner.domain.framework_sites import site_classes
from planner.domain.framework_trainers import trainer_rejections
from planner.domain.hardware import Pool, Precision
from planner.domain.overheads import Overheads
from planner.domain.stages import ROLLOUT_ENGINES, ROLLOUTS, StageGraph, StageKind, Worker, WorkerName
from planner.domain.strategy import (
    BoolArray,
    FloatArray,
    IntArray,
    RolloutStrategy,
    RolloutTable,
    Strategy,
    StrategyTable,
    TrainerTable,
)
from planner.domain.workload import Workload
from planner.search.candidates import Layouts, chunks, engine_layouts, filtered, trainer_layouts
from planner.search.clock import Clock
from planner.search.legality import ROLLOUT_RULES, TRAINER_RULES, RolloutFacts, TrainerFacts
from planner.search.options import OptionCounts, build_options, merge, prune, prune_alone, prune_within
from planner.search.parallel import in_shares
from planner.search.problem import SLACK_BYTES, OptionTable, SearchPool
from planner.search.space import WHOLE, Coverage
from planner.search.timing import moments_of

_BLOCK_CHUNKS = 12
"""Fewer are priced in less time than a second process takes to start and answer."""
PRICED_AND_REJECTED = ("cannot run on these GPUs", "more GPU memory than usable", "more host RAM than a node has")
"""Reasons that only pricing finds; all others are known before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricingInputs:
    """What all workers of one request share."""

    workload: Workload
    graph: StageGraph
    overheads: Overheads
    rules: FrameworkRules | None
    cross_pool_bytes_per_s: float | None
    """Slowest link between pools per GPU, NICs included; None for a single pool."""
    across_sizes: bool
    """Prune across group sizes (not when co-located workers must have equal sizes)."""
    cross_pool_total_bytes_per_s: float | None = None
    """Of all GPUs together; None for no limit."""
    execution: Execution = IN_STEP
    fixed: tuple[FixedField, ...] = ()
    coverage: Coverage = WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedWorker:
    """The pruned options of one worker on one pool, and what became of all candidates.

    `OptionTable.row` indexes `candidates`, which hold every strategy of the layouts that fit with some budget and
    technique, and those with least memory of the others; `candidates_of` gives all.
    """

    worker: Worker
    pool: Pool
    candidates: StrategyTable
    num_candidates: int
    """Of all layouts."""
    options: OptionTable
    rejected: tuple[tuple[str, int], ...]
    """Legality and framework rules, then memory, by reason."""

    def strategy(self, option: int) -> Strategy:
        """The strategy behind an option index."""
        return self.candidates.row(int(self.options.row[option]))


def site_of(pool: Pool, inputs: PricingInputs) -> Site:
    return Site(node=pool.node, overheads=inputs.overheads, memory_margin_ratio=inputs.workload.memory_margin_ratio)


def cross_pool_sync(worker: Worker, pool: Pool, table: StrategyTable, inputs: PricingInputs) -> Terms | None:
    """Sync terms towards another pool; None when that link is no slower than the pool's own NICs."""
    link, trunk = inputs.cross_pool_bytes_per_s, inputs.cross_pool_total_bytes_per_s
    takes_part = worker.name in (WorkerName.ACTOR_TRAINER, *ROLLOUT_ENGINES)
    if link is None or not takes_part or (link >= pool.node.nic_bytes_per_s and trunk is None):
        return None
    node = replace(pool.node, nic_bytes_per_s=min(link, pool.node.nic_bytes_per_s))
    terms = price_table(worker, table, site_of(replace(pool, node=node), inputs), inputs).sync_terms_disaggregated
    if terms is None or worker.name in ROLLOUT_ENGINES:
        return terms
    return within_trunk(terms, weight_copy_bytes(inputs.workload), trunk)


def search_pool(pool: Pool, inputs: PricingInputs) -> SearchPool:
    """Capacity of a pool as the search sees it."""
    return SearchPool(
        name=pool.name,
        num_nodes=pool.num_nodes,
        gpus_per_node=pool.node.gpus_per_node,
        usable_bytes=site_of(pool, inputs).usable_bytes,
        host_ram_bytes=pool.node.host_ram_bytes * (1.0 - inputs.workload.memory_margin_ratio),
        usd_per_gpu_hour=pool.usd_per_gpu_hour,
        peak_flop_per_s=peak_flop_per_s(pool.node.gpu, Precision.BF16),
    )


def price_table(worker: Worker, table: StrategyTable, site: Site, inputs: PricingInputs) -> WorkerCosts:
    """Costs of given strategies of a worker: the one way in which anything is priced."""
    if isinstance(table, RolloutTable):
        costs = price_engine(engine_job(inputs.workload, worker, inputs.execution), table, site)
    else:
        costs = price_trainer(trainer_job(inputs.workload, inputs.graph, worker, inputs.execution), table, site)
    return with_step_losses(costs, site, inputs.workload.num_generated)


def price_worker(worker: Worker, pool: Pool, inputs: PricingInputs, clock: Clock | None = None) -> PricedWorker:
    """Enumerate, price in cache-sized chunks, drop what does not fit alone, and prune what is dominated.

    A technique that does not fit a layout even with the smallest budgets is counted as unfit with all others, which are
    never built. NoPlanFoundError when the time of `clock` is over first.
    """
    layouts = _layouts(worker, pool, inputs)
    if not pool.node.gpu.supports(_precision(worker, inputs)):
        return _without_options(worker, pool, layouts.whole(), inputs)
    fits, unbuilt = _fits(worker, pool, inputs, layouts, clock)
    candidates, rejected = _allowed(worker, pool, inputs, layouts.fitting(fits), layouts.rejected)
    pieces = list(chunks(len(candidates))) or [slice(0, 0)]
    blocks = [pieces[i : i + _BLOCK_CHUNKS] for i in range(0, len(pieces), _BLOCK_CHUNKS)]
    price = partial(_price_blocks, worker, pool, inputs, candidates, clock)
    priced = [item for share in in_shares(price, blocks, least_items=1) for item in share]
    tables, counts = [options for options, _ in priced], [count for _, found in priced for count in found]
    by_reason = dict(rejected)
    unfit = (
        sum(c.num_illegal for c in counts) + unbuilt[0],
        sum(c.num_gpu_memory for c in counts) + unbuilt[1],
        sum(c.num_host_ram for c in counts),
    )
    for reason, number in zip(PRICED_AND_REJECTED, unfit, strict=True):
        if number:
            by_reason[reason] = by_reason.get(reason, 0) + number
    return PricedWorker(
        worker=worker,
        pool=pool,
        candidates=candidates,
        num_candidates=len(candidates) + sum(unbuilt),
        options=prune_alike(merge(tables), candidates, worker, inputs),
        rejected=tuple(by_reason.items()),
    )


def _price_blocks(
    worker: Worker,
    pool: Pool,
    inputs: PricingInputs,
    candidates: StrategyTable,
    clock: Clock | None,
    blocks: Sequence[Sequence[slice]],
) -> list[tuple[OptionTable, list[OptionCounts]]]:
    """The options of each block of chunks of the candidates, pruned within each chunk and then within the block: that
    does not depend on how many processes share the blocks."""
    found = []
    for pieces in blocks:
        tables, counts = [], []
        for rows in pieces:
            if clock is not None:
                clock.check()
            options, count = _options(worker, pool, inputs, candidates.take(rows), first_row=rows.start)
            tables.append(prune_alike(options, candidates, worker, inputs))
            counts.append(count)
        found.append((prune_alike(merge(tables), candidates, worker, inputs), counts))
    return found


def _options(
    worker: Worker, pool: Pool, inputs: PricingInputs, table: StrategyTable, *, first_row: int = 0
) -> tuple[OptionTable, OptionCounts]:
    """The strategies of `table` that fit alone, unpruned; option rows count from `first_row`."""
    return build_options(
        price_table(worker, table, site_of(pool, inputs), inputs),
        search_pool(pool, inputs),
        first_row=first_row,
        cross_pool_sync=cross_pool_sync(worker, pool, table, inputs),
        whole_groups=not inputs.across_sizes,
        moments=moments_of(inputs.execution, worker),
        num_sequences=inputs.workload.num_samples,
    )


def _fits(
    worker: Worker,
    pool: Pool,
    inputs: PricingInputs,
    layouts: Layouts[TrainerTable] | Layouts[RolloutTable],
    clock: Clock | None,
) -> tuple[BoolArray, tuple[int, int]]:
    """(which rows of `Layouts.least` fit alone; of the combinations that are therefore not built, how many cannot run,
    and how many need too much GPU memory)."""
    least = layouts.least()
    site = site_of(pool, inputs)
    legal = np.empty(len(least), dtype=np.bool_)
    peak = np.empty(len(least))
    for rows in chunks(len(least)):
        if clock is not None:
            clock.check()
        legal[rows], peak[rows] = _peak(worker, least.take(rows), site, inputs)
    fits = legal & (peak <= site.usable_bytes + SLACK_BYTES)
    left_out = layouts.num_left_out(fits)
    return fits, (int(left_out[~legal].sum()), int(left_out[legal].sum()))


def _peak(worker: Worker, table: StrategyTable, site: Site, inputs: PricingInputs) -> tuple[BoolArray, FloatArray]:
    """(whether a strategy is legal, its GPU memory peak in bytes), as pricing says, each of shape (num_candidates,)."""
    if isinstance(table, RolloutTable):
        return engine_peak(engine_job(inputs.workload, worker, inputs.execution), table, site)
    return trainer_peak(trainer_job(inputs.workload, inputs.graph, worker), table, site)


def _without_options(worker: Worker, pool: Pool, candidates: StrategyTable, inputs: PricingInputs) -> PricedWorker:
    """A worker that cannot run on the GPUs of a pool at all."""
    reason = f"{pool.node.gpu.name} has no {_precision(worker, inputs).value}"
    none = np.zeros(0)
    rows = np.zeros(0, dtype=np.int64)
    moments = moments_of(inputs.execution, worker)
    options = OptionTable(
        worker=worker.name, pool=pool.name, stages=worker.stages, num_gpus=rows,
        stage_time_s=np.zeros((len(worker.stages), 0)), sync_colocated_s=none, sync_disaggregated_s=none,
        sync_cross_pool_s=none,
        active_bytes=none, sync_bytes=none, idle_bytes=none, host_bytes=none, row=rows,
        moments=moments, moment_s=np.zeros((len(moments), 0)),
    )  # fmt: skip
    return PricedWorker(
        worker=worker, pool=pool, candidates=candidates.take(rows), num_candidates=0, options=options,
        rejected=((reason, len(candidates)),),
    )  # fmt: skip


def _precision(worker: Worker, inputs: PricingInputs) -> Precision:
    is_engine = worker.kind is StageKind.GENERATION
    return inputs.workload.rollout_precision if is_engine else inputs.workload.train_precision


def without_moments(item: PricedWorker, inputs: PricingInputs) -> PricedWorker:
    """The options for an execution that needs no moments: they are among those that survived with them."""
    plain = replace(item.options, moments=(), moment_s=np.zeros((0, 0)))
    return replace(item, options=prune_alike(plain, item.candidates, item.worker, inputs))


def as_second_engine(item: PricedWorker, worker: Worker) -> PricedWorker:
    """What a group of engines costs, as the second one on the same pool with the same share of the responses.

    It shares its GPUs with nobody: of its options only size, seconds and sync matter.
    """
    first, second = ROLLOUTS
    table = replace(
        item.options,
        worker=worker.name,
        stages=(second,),
        moments=tuple((second if stage is first else stage, moment) for stage, moment in item.options.moments),
    )
    return replace(item, worker=worker, options=prune_alone(table))


def reprice(item: PricedWorker, inputs: PricingInputs) -> PricedWorker:
    """The surviving options under other inputs (another length law): fast, and exact for these options only."""
    candidates = item.candidates.take(item.options.row)
    if not len(candidates):
        return item
    costs = price_table(item.worker, candidates, site_of(item.pool, inputs), inputs)
    across = cross_pool_sync(item.worker, item.pool, candidates, inputs)
    options, _ = build_options(
        costs,
        search_pool(item.pool, inputs),
        cross_pool_sync=across,
        whole_groups=not inputs.across_sizes,
        moments=moments_of(inputs.execution, item.worker),
        num_sequences=inputs.workload.num_samples,
    )
    return replace(item, candidates=candidates, options=options)


def prune_alike(options: OptionTable, candidates: StrategyTable, worker: Worker, inputs: PricingInputs) -> OptionTable:
    """Drop dominated options, among those that the framework's rules about other workers treat alike: one mesh where
    it couples degrees, one budget where workers have one in common, the same sites."""
    rules = inputs.rules
    if rules is None:
        return prune(options, across_sizes=inputs.across_sizes)
    table = candidates.take(options.row)
    classes = [site_classes(rules, table, worker.name)]
    if worker.name not in coupled_workers(rules) or not isinstance(table, TrainerTable):
        return prune(options, across_sizes=inputs.across_sizes, alike=_numbered(classes))
    classes += _shared_budgets(rules, table, worker.name, inputs.workload)
    keys = mesh_keys(
        rules,
        table,
        trains=worker.kind is StageKind.TRAINING,
        with_vpp=inputs.workload.critic is not None,
        worker=worker.name,
        model=worker.model,
    )
    return prune_within(options, keys, across_sizes=inputs.across_sizes, alike=_numbered(classes))


def _shared_budgets(
    rules: FrameworkRules, table: TrainerTable, worker: WorkerName, workload: Workload
) -> list[IntArray]:
    """Budgets that the worker has in common with another one of the workload."""
    has_critic = workload.critic is not None
    forward_only = workload.has_reference or workload.reward.model is not None
    compared = (*((True,) if has_critic else ()), *((False,) if forward_only else ()))
    return [budget_keys(rules, table, worker, among_trainers=among, has_critic=has_critic) for among in compared]


def _numbered(columns: Sequence[IntArray]) -> IntArray | None:
    """Rows of several columns as one small number each, equal for equal rows; None where all are equal."""
    varying = [column for column in columns if column.size and np.any(column != column[0])]
    if not varying:
        return None
    result = np.zeros(len(varying[0]), dtype=np.int64)
    for column in varying:
        _, place = np.unique(column, return_inverse=True)
        result = np.unique(result * (len(column) + 1) + place, return_inverse=True)[1].astype(np.int64)
    return result


def broken_rules(worker: Worker, pool: Pool, strategy: Strategy, inputs: PricingInputs) -> tuple[str, ...]:
    """Legality rules that a given strategy breaks; empty for every candidate that is ever searched."""
    if isinstance(strategy, RolloutStrategy):
        engines = RolloutTable.of((strategy,))
        facts = _rollout_facts(worker, pool, inputs)
        return tuple(rule.reason for rule in ROLLOUT_RULES if not bool(rule.allows(engines, facts)[0]))
    table = TrainerTable.of((strategy,))
    trainer = _trainer_facts(worker, pool, inputs)
    return tuple(rule.reason for rule in TRAINER_RULES if not bool(rule.allows(table, trainer)[0]))


def _rollout_facts(worker: Worker, pool: Pool, inputs: PricingInputs) -> RolloutFacts:
    return RolloutFacts(
        model=worker.model,
        node=pool.node,
        num_sequences=engine_job(inputs.workload, worker, inputs.execution).load.num_sequences,
        precision=inputs.workload.rollout_precision,
    )


def _trainer_facts(worker: Worker, pool: Pool, inputs: PricingInputs) -> TrainerFacts:
    workload = inputs.workload
    trains = worker.kind is StageKind.TRAINING
    steps = workload.num_optimizer_steps if trains else 1
    sequences = workload.num_generated if worker.name is WorkerName.REWARD_MODEL else workload.num_samples
    return TrainerFacts(
        model=worker.model,
        node=pool.node,
        mini_batch_sequences=max(1, sequences // steps),
        trains=trains,
        precision=workload.train_precision,
    )


def candidates_of(worker: Worker, pool: Pool, inputs: PricingInputs) -> StrategyTable:
    """All candidates of a worker: none where the GPUs of the pool lack the number format."""
    layouts = _layouts(worker, pool, inputs)
    table, _ = _allowed(worker, pool, inputs, layouts.whole(), layouts.rejected)
    return table if pool.node.gpu.supports(_precision(worker, inputs)) else table.take(np.zeros(0, dtype=np.int64))


def _layouts(worker: Worker, pool: Pool, inputs: PricingInputs) -> Layouts[TrainerTable] | Layouts[RolloutTable]:
    """Legal degrees of a worker, before frameworks and the user are asked."""
    workload = inputs.workload
    if worker.kind is StageKind.GENERATION:
        return engine_layouts(
            _rollout_facts(worker, pool, inputs),
            num_nodes=pool.num_nodes,
            memory_margin_ratio=workload.memory_margin_ratio,
            can_sleep=engine_job(workload, worker).receives_weights,
            coverage=inputs.coverage,
        )
    return trainer_layouts(
        _trainer_facts(worker, pool, inputs),
        max_tokens=workload.max_tokens,
        num_nodes=pool.num_nodes,
        coverage=inputs.coverage,
    )


def _allowed(
    worker: Worker, pool: Pool, inputs: PricingInputs, table: StrategyTable, rejected: tuple[tuple[str, int], ...]
) -> tuple[StrategyTable, tuple[tuple[str, int], ...]]:
    """Candidates that the framework can run and that have what the user fixed; rejections by reason."""
    if isinstance(table, RolloutTable):
        engines = filtered(table, rejected, None if inputs.rules is None else partial(_engine_reasons, inputs))
        table, rejected = engines.table, engines.rejected
    else:
        trains = worker.kind is StageKind.TRAINING
        trainers = filtered(
            table, rejected, None if inputs.rules is None else partial(_trainer_reasons, worker, inputs)
        )
        table, rejected = trainers.table, trainers.rejected
        if inputs.rules is not None:
            table = rounded_budgets(inputs.rules, table, trains=trains, worker=worker.name, model=worker.model)
    for item in inputs.fixed:
        if item.worker is worker.name:
            kept = np.flatnonzero(item.allows(table))
            rejected = (*rejected, (f"fixed by the user: {item}", len(table) - len(kept)))
            table = table.take(kept)
    return table, rejected


def _engine_reasons(inputs: PricingInputs, table: RolloutTable) -> tuple[tuple[str, BoolArray], ...]:
    assert inputs.rules is not None
    return rollout_rejections(inputs.rules, table, overlaps=inputs.execution.is_asynchronous)


def _trainer_reasons(worker: Worker, inputs: PricingInputs, table: TrainerTable) -> tuple[tuple[str, BoolArray], ...]:
    assert inputs.rules is not None
    trains = worker.kind is StageKind.TRAINING
    found = trainer_rejections(inputs.rules, table, trains=trains, worker=worker.name, model=worker.model)
    return (*found, *budget_rejections(inputs.rules, table, worker.name))
