"""From priced candidates to the options worth searching: drop what cannot run, then prune what is dominated.

An option dominates another of the same worker and pool if it is no worse in GPUs, in every stage time, in both
weight-sync shares and in every memory figure. All constraints and objectives of the search are monotone in these, so
pruning keeps an optimum (oracle-tested). Where workers of one group must have equal sizes, the size is a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from planner.cost.terms import Terms, total
from planner.cost.worker import WorkerCosts
from planner.domain.strategy import BoolArray, FloatArray, IntArray
from planner.search.problem import SLACK_BYTES, OptionTable, SearchPool

_CROSS_BLOCK_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionCounts:
    """What became of the candidates of one table."""

    num_candidates: int
    num_illegal: int
    num_gpu_memory: int
    """Do not fit even alone."""
    num_host_ram: int
    min_active_bytes: float
    """Smallest GPU memory peak of a legal candidate; infinite if there is none."""
    min_host_bytes: float


def build_options(costs: WorkerCosts, pool: SearchPool, *, first_row: int = 0) -> tuple[OptionTable, OptionCounts]:
    """The legal candidates that fit alone on their GPUs; `row` counts from `first_row`.

    Nothing is pruned here.
    """
    num = len(costs.strategies)
    zero = np.zeros(num)

    def summed(terms: Terms | None) -> FloatArray:
        return total(terms) if terms else zero

    active = np.max([total(stage.memory_terms) for stage in costs.stages], axis=0)
    sync = summed(costs.sync_memory_terms)
    host = summed(costs.host_terms)
    legal = costs.is_legal
    fits_gpu = np.maximum(active, sync) <= pool.usable_bytes + SLACK_BYTES
    fits_host = host <= pool.host_ram_bytes + SLACK_BYTES
    fits_pool = costs.num_gpus <= pool.num_gpus
    times = np.array([total(stage.time_terms) for stage in costs.stages]).reshape(len(costs.stages), num)
    finite = np.isfinite(times).all(axis=0)
    legal = legal & finite & fits_pool
    keep = legal & fits_gpu & fits_host
    table = OptionTable(
        worker=costs.worker,
        pool=pool.name,
        stages=tuple(stage.stage for stage in costs.stages),
        num_gpus=np.rint(costs.num_gpus[keep]).astype(np.int64),
        stage_time_s=times[:, keep],
        sync_colocated_s=summed(costs.sync_terms_colocated)[keep],
        sync_disaggregated_s=summed(costs.sync_terms_disaggregated)[keep],
        active_bytes=active[keep],
        sync_bytes=sync[keep],
        idle_bytes=summed(costs.idle_terms)[keep],
        host_bytes=host[keep],
        row=np.flatnonzero(keep).astype(np.int64) + first_row,
    )
    counts = OptionCounts(
        num_candidates=num,
        num_illegal=int(np.count_nonzero(~legal)),
        num_gpu_memory=int(np.count_nonzero(legal & ~fits_gpu)),
        num_host_ram=int(np.count_nonzero(legal & fits_gpu & ~fits_host)),
        min_active_bytes=float(np.min(np.maximum(active, sync)[legal], initial=np.inf)),
        min_host_bytes=float(np.min(host[legal], initial=np.inf)),
    )
    return table, counts


def merge(tables: Sequence[OptionTable]) -> OptionTable:
    """Rows of all tables of one worker on one pool, in order; at least one table."""
    first = tables[0]
    return OptionTable(
        worker=first.worker,
        pool=first.pool,
        stages=first.stages,
        num_gpus=np.concatenate([t.num_gpus for t in tables]),
        stage_time_s=np.concatenate([t.stage_time_s for t in tables], axis=1),
        sync_colocated_s=np.concatenate([t.sync_colocated_s for t in tables]),
        sync_disaggregated_s=np.concatenate([t.sync_disaggregated_s for t in tables]),
        active_bytes=np.concatenate([t.active_bytes for t in tables]),
        sync_bytes=np.concatenate([t.sync_bytes for t in tables]),
        idle_bytes=np.concatenate([t.idle_bytes for t in tables]),
        host_bytes=np.concatenate([t.host_bytes for t in tables]),
        row=np.concatenate([t.row for t in tables]),
    )


def take(table: OptionTable, rows: IntArray | BoolArray) -> OptionTable:
    """The selected rows, as a table."""
    return OptionTable(
        worker=table.worker,
        pool=table.pool,
        stages=table.stages,
        num_gpus=table.num_gpus[rows],
        stage_time_s=table.stage_time_s[:, rows],
        sync_colocated_s=table.sync_colocated_s[rows],
        sync_disaggregated_s=table.sync_disaggregated_s[rows],
        active_bytes=table.active_bytes[rows],
        sync_bytes=table.sync_bytes[rows],
        idle_bytes=table.idle_bytes[rows],
        host_bytes=table.host_bytes[rows],
        row=table.row[rows],
    )


def prune(table: OptionTable, *, across_sizes: bool = True) -> OptionTable:
    """The options that no other dominates, in ascending order of size and row; of equal options the first stays.

    `across_sizes=False` compares options of the same number of GPUs only.
    """
    columns = np.vstack(
        [
            table.stage_time_s,
            table.sync_colocated_s,
            table.sync_disaggregated_s,
            table.active_bytes,
            table.sync_bytes,
            table.idle_bytes,
            table.host_bytes,
        ]
    )
    return take(table, pareto_rows(columns, table.num_gpus, across_sizes=across_sizes))


def prune_within(table: OptionTable, keys: IntArray, *, across_sizes: bool) -> OptionTable:
    """As `prune`, but only options of equal key (shape (num_options,)) are compared: for rules that couple workers."""
    parts = [prune(take(table, keys == key), across_sizes=across_sizes) for key in np.unique(keys)]
    if not parts:
        return table
    merged = merge(parts)
    return take(merged, np.lexsort((merged.row, merged.num_gpus)))


def pareto_rows(columns: FloatArray, num_gpus: IntArray, *, across_sizes: bool) -> IntArray:
    """Rows of `columns` (num_columns, n) that are minimal in all columns, within each size or across sizes.

    Exact: rounding in the ordering heuristic can only keep a dominated row until the last pass, never drop a
    minimal one.
    """
    num = num_gpus.shape[0]
    if num == 0:
        return np.empty(0, dtype=np.int64)
    varying = [row for row in columns if row.size and np.any(row != row[0])]
    stable = np.argsort(num_gpus, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(num_gpus[stable]) != 0])
    bounds = np.r_[starts, num]
    if not varying:
        first = stable[starts]
        return first[:1] if across_sizes else first
    values = np.ascontiguousarray(np.vstack(varying)[:, stable])
    scale = 1.0 / np.maximum(np.mean(np.abs(values), axis=1), 1e-300)
    score = scale @ values
    kept = [begin + _minimal(values[:, begin:end], score[begin:end]) for begin, end in pairwise(bounds)]
    rows = np.concatenate(kept)
    if across_sizes and len(kept) > 1:
        rows = rows[_minimal_across(values[:, rows], num_gpus[stable][rows])]
    result: IntArray = stable[rows]
    return result


def _minimal(values: FloatArray, score: FloatArray) -> IntArray:
    """Minimal rows among rows of one size, ascending. Repeatedly keeps the row with the smallest score, which no
    other can dominate, and drops everything that it dominates."""
    alive = np.arange(values.shape[1])
    kept: list[int] = []
    while alive.size:
        best = int(np.argmin(score))
        point = values[:, best]
        worse = values[0] >= point[0]
        for column, limit in zip(values[1:], point[1:], strict=True):
            worse &= column >= limit
        kept.append(int(alive[best]))
        better = ~worse
        better[best] = False
        alive, values, score = alive[better], values[:, better], score[better]
    return np.sort(np.array(kept, dtype=np.int64))


def _minimal_across(values: FloatArray, num_gpus: IntArray) -> npt.NDArray[np.bool_]:
    """Mask of rows (sorted by size) that no row of at most the same size dominates."""
    num = values.shape[1]
    result = np.ones(num, dtype=np.bool_)
    for begin in range(0, num, _CROSS_BLOCK_ROWS):
        block = slice(begin, min(num, begin + _CROSS_BLOCK_ROWS))
        smaller = np.flatnonzero(result[: block.stop])
        rows = np.arange(block.start, block.stop)
        dominated = num_gpus[smaller][:, None] <= num_gpus[rows][None, :]
        ties = np.ones_like(dominated)
        for column in values:
            left, right = column[smaller][:, None], column[rows][None, :]
            dominated &= left <= right
            ties &= left == right
        # An equal row counts only when it comes first; a row never dominates itself.
        dominated &= ~ties | (smaller[:, None] < rows[None, :])
        result[rows] &= ~dominated.any(axis=0)
    return result
