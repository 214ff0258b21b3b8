"""Options that pruning dropped: a decision that is forbidden makes room for options that it dominated.

The search keeps, of each worker, the options that no other one beats. Without the values that a plan chose, others
come up, so the options of that worker are priced again, unpruned, and pruned after the restriction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from planner.domain.stages import StageKind, WorkerName
from planner.domain.strategy import BoolArray
from planner.parts import SearchPart
from planner.search import mesh
from planner.search.candidates import chunks
from planner.search.options import build_options, merge, prune, prune_within, take
from planner.search.pricing import (
    PricedWorker,
    PricingInputs,
    cross_pool_sync,
    price_table,
    search_pool,
    site_of,
)
from planner.search.problem import OptionTable
from planner.search.timing import moments_of

Allowed = Callable[[PricedWorker], BoolArray]
"""The candidates that are left of a worker on a pool, shape (num_candidates,)."""


def unpruned(item: PricedWorker, inputs: PricingInputs) -> OptionTable:
    """All candidates of a worker that fit alone, priced under `inputs`; `row` indexes `item.candidates`.

    They are those of `planner.search.pricing.price_worker`, before it prunes.
    """
    tables = []
    for rows in chunks(len(item.candidates)):
        chunk = item.candidates.take(rows)
        options, _ = build_options(
            price_table(item.worker, chunk, site_of(item.pool, inputs), inputs),
            search_pool(item.pool, inputs),
            first_row=rows.start,
            cross_pool_sync=cross_pool_sync(item.worker, item.pool, chunk, inputs),
            whole_groups=not inputs.across_sizes,
            moments=moments_of(inputs.execution, item.worker),
            num_sequences=inputs.workload.num_samples,
        )
        tables.append(options)
    return merge(tables) if tables else item.options


def pruned(item: PricedWorker, options: OptionTable, inputs: PricingInputs) -> PricedWorker:
    """The worker with those of `options` that no other beats; within a mesh where degrees are coupled."""
    held = replace(item, options=options)
    keys = {} if inputs.rules is None else mesh.option_keys(inputs.rules, (held,), with_vpp=True)
    key = keys.get((item.worker.name, item.pool.name))
    if key is None:
        return replace(item, options=prune(options, across_sizes=inputs.across_sizes))
    return replace(item, options=prune_within(options, key, across_sizes=inputs.across_sizes))


def within(options: OptionTable, cutoff_s: float) -> OptionTable:
    """Options with which an iteration of at most `cutoff_s` is possible: a worker runs its own stages one by one, and
    no iteration, nor the period of an asynchronous plan, is shorter than that."""
    if not np.isfinite(cutoff_s):
        return options
    return take(options, options.stage_time_s.sum(axis=0) <= cutoff_s * (1.0 + 1e-9))


@dataclass(slots=True)
class OptionBook:
    """Unpruned options of the workers of some parts, priced when first asked for."""

    _known: dict[tuple[object, ...], OptionTable] = field(default_factory=dict)

    def options(self, item: PricedWorker, inputs: PricingInputs) -> OptionTable:
        # Trainers cost the same under all executions that need the same moments.
        is_engine = item.worker.kind is StageKind.GENERATION
        moments = moments_of(inputs.execution, item.worker)
        key = (item.worker, item.pool.name, moments, inputs.execution if is_engine else None)
        if key not in self._known:
            self._known[key] = unpruned(item, inputs)
        return self._known[key]

    def restricted(
        self, part: SearchPart, worker: WorkerName, allowed: Allowed, cutoff_s: float = np.inf
    ) -> SearchPart | None:
        """The part with only the `allowed` candidates of a worker; None where it has none of them left."""
        priced = []
        for item in part.priced:
            if item.worker.name is worker:
                options = self.options(item, part.inputs)
                options = within(take(options, allowed(item)[options.row]), cutoff_s)
                item = pruned(item, options, part.inputs)
            priced.append(item)
        if not any(item.worker.name is worker and len(item.options) for item in priced):
            return None
        problem = replace(part.problem, options=tuple(item.options for item in priced))
        return SearchPart(inputs=part.inputs, priced=tuple(priced), problem=problem)
