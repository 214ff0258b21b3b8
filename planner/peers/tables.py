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
from planner.search.candidates import chunks
from planner.search.options import build_options, merge, prune, prune_within, take
from planner.search.pricing import PricedWorker, PricingInputs, cross_pool_sync, price_table, search_pool, site_of
from planner.search.problem import OptionTable

Keep = Callable[[StrategyTable], BoolArray]
"""Candidates that a recipe allows, shape (num_candidates,)."""


def everything(table: StrategyTable) -> BoolArray:
    return np.ones(len(table), dtype=np.bool_)


def restricted(item: PricedWorker, rows: IntArray, inputs: PricingInputs) -> PricedWorker:
    """The worker with the candidates `rows` only; its option rows index the new candidate table."""
    candidates = item.candidates.take(rows)
    if not len(candidates) or not len(item.candidates):
        return replace(item, candidates=candidates, options=_none(item))
    site, limits = site_of(item.pool, inputs), search_pool(item.pool, inputs)
    tables = []
    for part in chunks(len(candidates)):
        chunk = candidates.take(part)
        options, _ = build_options(
            price_table(item.worker, chunk, site, inputs),
            limits,
            first_row=part.start,
            cross_pool_sync=cross_pool_sync(item.worker, item.pool, chunk, inputs),
            whole_groups=not inputs.across_sizes,
        )
        tables.append(options)
    unpruned = replace(item, candidates=candidates, options=merge(tables))
    keys = None
    if inputs.rules is not None:
        found = mesh.option_keys(inputs.rules, (unpruned,), with_vpp=True)
        keys = found.get((item.worker.name, item.pool.name))
    if keys is None:
        options = prune(unpruned.options, across_sizes=inputs.across_sizes)
    else:
        options = prune_within(unpruned.options, keys, across_sizes=inputs.across_sizes)
    return replace(unpruned, options=options)


def _none(item: PricedWorker) -> OptionTable:
    return take(item.options, slice(0, 0))


def on_group(item: PricedWorker, num_gpus: int, keep: Keep, inputs: PricingInputs) -> PricedWorker:
    """The candidates that `keep` allows and that use as many GPUs of a group of `num_gpus` as any of them can."""
    table = item.candidates
    allowed = keep(table) & (table.num_gpus <= num_gpus)
    if not allowed.any():
        return restricted(item, np.zeros(0, dtype=np.int64), inputs)
    largest = float(table.num_gpus[allowed].max())
    return restricted(item, np.flatnonzero(allowed & (table.num_gpus == largest)), inputs)
