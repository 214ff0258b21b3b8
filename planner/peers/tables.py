"""Options of a worker under the extra conditions of a recipe, from the same candidates and the same prices as ours.

Our own tables have lost options that others dominate, for instance those that need more GPUs for the same time. A
practitioner takes them nevertheless, so a recipe filters the candidates before pricing, and prunes only among what is
left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner.domain.strategy import BoolArray, IntArray, StrategyTable
from planner.search import mesh
from planner.search.options import prune, prune_within, take
from planner.search.pricing import PricedWorker, PricingInputs, reprice

Keep = Callable[[StrategyTable], BoolArray]
"""Candidates that a recipe allows, shape (num_candidates,)."""


def everything(table: StrategyTable) -> BoolArray:
    return np.ones(len(table), dtype=np.bool_)


def restricted(item: PricedWorker, rows: IntArray, inputs: PricingInputs) -> PricedWorker:
    """The worker with the candidates `rows` only; its option rows index the new candidate table."""
    if not rows.size:
        none = slice(0, 0)
        return replace(item, candidates=item.candidates.take(none), options=take(item.options, none))
    # Pricing again looks at nothing but the rows, so that these may be any candidates.
    found = reprice(replace(item, options=replace(item.options, row=rows)), inputs)
    keys = None
    if inputs.rules is not None:
        keys = mesh.option_keys(inputs.rules, (found,), with_vpp=True).get((item.worker.name, item.pool.name))
    if keys is None:
        options = prune(found.options, across_sizes=inputs.across_sizes)
    else:
        options = prune_within(found.options, keys, across_sizes=inputs.across_sizes)
    return replace(found, options=options)


def on_group(item: PricedWorker, num_gpus: int, keep: Keep, inputs: PricingInputs) -> PricedWorker:
    """The candidates that `keep` allows and that use as many GPUs of a group of `num_gpus` as any of them can."""
    table = item.candidates
    allowed = keep(table) & (table.num_gpus <= num_gpus)
    if not allowed.any():
        return restricted(item, np.zeros(0, dtype=np.int64), inputs)
    largest = float(table.num_gpus[allowed].max())
    return restricted(item, np.flatnonzero(allowed & (table.num_gpus == largest)), inputs)
