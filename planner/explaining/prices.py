"""What candidates cost, each priced once for all questions that do not change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.cost.jobs import engine_job, trainer_job
from planner.domain.execution import ExecutionMode
from planner.domain.hardware import Pool
from planner.domain.stages import ROLLOUT_ENGINES, StageKind, Worker, WorkerName
from planner.domain.strategy import BoolArray, IntArray, StrategyTable
from planner.explaining.shelf import Same, Shelf
from planner.explaining.shortlist import costless
from planner.search.candidates import chunks
from planner.search.options import build_options, merge, take
from planner.search.pricing import (
    PricedWorker,
    PricingInputs,
    as_second_engine,
    candidates_of,
    cross_pool_sync,
    price_table,
    prune_alike,
    search_pool,
    site_of,
)
from planner.search.problem import SLACK_BYTES, OptionTable, SearchPool
from planner.search.timing import Part, moments_of

_ALL = (False, 0)
"""All candidates, on any number of GPUs."""


@dataclass(slots=True)
class PriceBook:
    """Candidates of workers and their unpruned options."""

    _candidates: dict[tuple[object, ...], StrategyTable] = field(default_factory=dict)
    _prices: Shelf = field(default_factory=Shelf)
    _moments: dict[object, tuple[Part, ...]] = field(default_factory=dict)
    """Moments with which candidates were priced first."""
    _within: Shelf = field(default_factory=Shelf)
    _fitting: dict[tuple[object, ...], OptionTable] = field(default_factory=dict)
    """What fits in the plan's own setting, by candidates."""

    def candidates(self, worker: Worker, pool: Pool, inputs: PricingInputs) -> StrategyTable:
        """All legal candidates of a worker, enumerated once."""
        key = _candidate_key(worker, pool, inputs)
        if key not in self._candidates:
            self._candidates[key] = candidates_of(worker, pool, inputs)
        return self._candidates[key]

    def fitting(self, worker: Worker, pool: Pool, inputs: PricingInputs) -> OptionTable | None:
        """The options that fit in the plan's own setting, where it has these candidates."""
        return self._fitting.get(_candidate_key(worker, pool, inputs))

    def remember(self, worker: Worker, pool: Pool, inputs: PricingInputs, options: OptionTable) -> None:
        self._fitting[_candidate_key(worker, pool, inputs)] = options

    def of(
        self, worker: Worker, pool: Pool, inputs: PricingInputs, rows: OptionTable | None, fewest: int = 0
    ) -> OptionTable:
        """Unpruned options whatever memory there is; `row` indexes the candidates. `rows` restricts them to the
        candidates of other options, `fewest` to those on as many GPUs; a table of all counts as well."""
        price, moments = _price_key(worker, pool, inputs), moments_of(inputs.execution, worker)
        for extent in (_ALL, (rows is not None, fewest)):
            known = self._prices.get((price, moments, extent))
            if known is not None:
                return known
            richer = self._prices.get((price, self._moments.get((price, extent)), extent))
            if not moments and richer is not None:
                # What an execution without fusion needs is part of what one with it does.
                plain = replace(richer, moments=(), moment_s=np.zeros((0, len(richer))))
                self._prices.put((price, moments, extent), plain)
                return plain
        table = self.candidates(worker, pool, inputs)
        chosen = np.arange(len(table)) if rows is None else rows.row
        found = priced(worker, pool, inputs, table, chosen[table.num_gpus[chosen] >= fewest])
        self._prices.put((price, moments, extent), found)
        self._moments[price, extent] = moments
        return found

    def second_engine(self, item: PricedWorker, worker: Worker) -> PricedWorker:
        """A group of engines as the second one; the same tables for the same question."""
        key = (Same(item.options), worker)
        known = self._within.get(key)
        if known is None:
            known = as_second_engine(item, worker).options
            self._within.put(key, known)
        return replace(item, worker=worker, options=known)

    def free(self, item: PricedWorker) -> PricedWorker:
        """A worker with one option that takes no time."""
        key = (Same(item.options), "free")
        known = self._within.get(key)
        if known is None:
            known = costless(item.options)
            self._within.put(key, known)
        return replace(item, options=known)

    def within(self, table: OptionTable, pool: SearchPool) -> OptionTable:
        """The options that fit alone on the GPUs of a pool; the same table for the same question."""
        key = (Same(table), pool)
        known = self._within.get(key)
        if known is None:
            fits = (
                (np.maximum(table.active_bytes, table.sync_bytes) <= pool.usable_bytes + SLACK_BYTES)
                & (table.host_bytes <= pool.host_ram_bytes + SLACK_BYTES)
                & (table.num_gpus <= pool.num_gpus)
            )  # fmt: skip
            known = take(table, fits)
            self._within.put(key, known)
        return known


def taken(item: PricedWorker, rows: BoolArray) -> PricedWorker:
    return replace(item, options=take(item.options, np.asarray(rows)))


def pruned(item: PricedWorker, inputs: PricingInputs) -> PricedWorker:
    """The worker with those of its options that no other beats; where a framework couples workers, of those alike."""
    if item.worker.name is WorkerName.SECOND_ENGINE:
        return item
    return replace(item, options=prune_alike(item.options, item.candidates, item.worker, inputs))


def held(worker: Worker, pool: Pool, candidates: StrategyTable, options: OptionTable) -> PricedWorker:
    return PricedWorker(
        worker=worker, pool=pool, candidates=candidates, num_candidates=len(candidates), options=options, rejected=(),
    )  # fmt: skip


def is_complete(items: Sequence[PricedWorker], inputs: PricingInputs) -> bool:
    able = {item.worker.name for item in items if len(item.options)}
    return all(worker.name in able for worker in inputs.graph.workers)


def priced(worker: Worker, pool: Pool, inputs: PricingInputs, table: StrategyTable, chosen: IntArray) -> OptionTable:
    """The candidates of some rows that can run, whatever memory there is; nothing is pruned."""
    space = replace(search_pool(pool, inputs), usable_bytes=np.inf, host_ram_bytes=np.inf)
    tables = []
    for some in chunks(max(len(chosen), 1)):
        chunk = table.take(chosen[some])
        options, _ = build_options(
            price_table(worker, chunk, site_of(pool, inputs), inputs),
            space,
            cross_pool_sync=cross_pool_sync(worker, pool, chunk, inputs),
            whole_groups=not inputs.across_sizes,
            moments=moments_of(inputs.execution, worker),
            num_sequences=inputs.workload.num_samples,
        )
        tables.append(replace(options, row=chosen[some][options.row]))
    return merge(tables)


# ---------------------------------------------------------------------------------------------- what depends on what


def _candidate_key(worker: Worker, pool: Pool, inputs: PricingInputs) -> tuple[object, ...]:
    """Everything that decides which candidates are legal."""
    workload, execution = inputs.workload, inputs.execution
    is_engine = worker.kind is StageKind.GENERATION
    share = execution.share_ratio(worker.name) if worker.name in ROLLOUT_ENGINES else 1.0
    return (
        worker,
        pool.name,
        pool.num_nodes,
        pool.node.gpu.id,
        pool.node.gpus_per_node,
        pool.node.scale_up_domain_gpus,
        inputs.rules,
        inputs.across_sizes,
        tuple(item for item in inputs.fixed if item.worker is worker.name),
        (workload.max_tokens, workload.num_samples, workload.num_generated, workload.num_optimizer_steps),
        (workload.memory_margin_ratio, share, execution.is_asynchronous) if is_engine else None,
    )


def _price_key(worker: Worker, pool: Pool, inputs: PricingInputs) -> tuple[object, ...]:
    """Everything that decides what a candidate costs: trainers do not see how much memory there is, engines not what
    training takes."""
    workload, execution, node = inputs.workload, inputs.execution, pool.node
    losses = inputs.overheads.step_losses
    shared = (
        _candidate_key(worker, pool, inputs),
        (inputs.cross_pool_bytes_per_s, inputs.cross_pool_total_bytes_per_s),
        (workload.num_samples, workload.num_generated),
    )
    if worker.kind is StageKind.GENERATION:
        losses = replace(losses, training_ratio=1.0, moe_training_ratio=1.0)
        streams = execution.mode is ExecutionMode.STREAMING
        return (
            *shared,
            engine_job(workload, worker, execution),
            node,
            workload.memory_margin_ratio,
            execution.staleness if streams else None,
            replace(inputs.overheads, step_losses=losses),
        )
    losses = replace(losses, rollout_ratio=1.0)
    return (
        *shared,
        trainer_job(workload, inputs.graph, worker, execution),
        replace(node, host_ram_bytes=0.0, gpu=replace(node.gpu, memory_bytes=0.0)),
        replace(inputs.overheads, step_losses=losses),
    )
