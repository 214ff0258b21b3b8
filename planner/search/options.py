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
from planner.cost.worker import Moment, WorkerCosts
from planner.domain.strategy import BoolArray, FloatArray, IntArray, TrainerTable
from planner.search.problem import SLACK_BYTES, OptionTable, SearchPool
from planner.search.timing import LAST_SHARE, Part

_BLOCK_ROWS = 64
_NUM_BINS = 128
_SAMPLE_ROWS = 1024
_GUARD = np.uint64(0x8080808080808080)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionCounts:
    """What became of the candidates of one table."""

    num_illegal: int
    num_gpu_memory: int
    """Do not fit even alone."""
    num_host_ram: int


def build_options(
    costs: WorkerCosts,
    pool: SearchPool,
    *,
    first_row: int = 0,
    cross_pool_sync: Terms | None = None,
    whole_groups: bool = False,
    moments: tuple[Part, ...] = (),
    num_sequences: float = 1.0,
) -> tuple[OptionTable, OptionCounts]:
    """The legal candidates that fit alone on their GPUs; `row` counts from `first_row`.

    `cross_pool_sync` are the sync terms over the link between pools; None: as within the pool. With `whole_groups` a
    worker must use all GPUs of its group. `moments` are those that the rows of the execution need,
    `num_sequences` what forward passes work on.

    Nothing is pruned here.
    """
    num = len(costs.strategies)
    zero = np.zeros(num)

    def summed(terms: Terms | None) -> FloatArray:
        return total(terms) if terms else zero

    active = np.max([total(stage.memory_terms) for stage in costs.stages], axis=0)
    sync = summed(costs.sync_memory_terms)
    # Groups below a node may share one, so each worker is charged as if its neighbours held as much as it does.
    sizes = pool.group_sizes(costs.num_gpus)
    host = summed(costs.host_terms) * np.maximum(1.0, pool.gpus_per_node / sizes)
    legal = costs.is_legal
    fits_gpu = np.maximum(active, sync) <= pool.usable_bytes + SLACK_BYTES
    fits_host = host <= pool.host_ram_bytes + SLACK_BYTES
    fits_pool = sizes <= pool.num_gpus
    if whole_groups:
        fits_pool &= sizes == np.rint(costs.num_gpus)
    times = np.array([total(stage.time_terms) for stage in costs.stages]).reshape(len(costs.stages), num)
    finite = np.isfinite(times).all(axis=0)
    legal = legal & finite & fits_pool
    keep = legal & fits_gpu & fits_host
    moment_s = np.array([moment_seconds(costs, part, num_sequences) for part in moments]).reshape(len(moments), num)
    table = OptionTable(
        worker=costs.worker,
        pool=pool.name,
        stages=tuple(stage.stage for stage in costs.stages),
        num_gpus=sizes[keep],
        stage_time_s=times[:, keep],
        sync_colocated_s=summed(costs.sync_terms_colocated)[keep],
        sync_disaggregated_s=summed(costs.sync_terms_disaggregated)[keep],
        sync_cross_pool_s=summed(cross_pool_sync or costs.sync_terms_disaggregated)[keep],
        active_bytes=active[keep],
        sync_bytes=sync[keep],
        idle_bytes=summed(costs.idle_terms)[keep],
        host_bytes=host[keep],
        row=np.flatnonzero(keep).astype(np.int64) + first_row,
        moments=moments,
        moment_s=moment_s[:, keep],
    )
    counts = OptionCounts(
        num_illegal=int(np.count_nonzero(~legal)),
        num_gpu_memory=int(np.count_nonzero(legal & ~fits_gpu)),
        num_host_ram=int(np.count_nonzero(legal & fits_gpu & ~fits_host)),
    )
    return table, counts


def moment_seconds(costs: WorkerCosts, part: Part, num_sequences: float) -> FloatArray:
    """Seconds of a moment of a stage, shape (num_candidates,)."""
    name, moment = part
    stage = next(item for item in costs.stages if item.stage is name)
    whole = total(stage.time_terms)
    assert moment is not None
    if moment in LAST_SHARE:
        assert isinstance(costs.strategies, TrainerTable)
        # However few responses are left, each rank that has one works on at least one.
        least = costs.strategies.dp / num_sequences
        lasting: FloatArray = whole * np.minimum(1.0, np.maximum(LAST_SHARE[moment], least))
        return lasting
    if moment is Moment.WITHOUT_BUBBLE:
        return whole - stage.time_terms["pp_bubble"]
    return whole - stage.remaining_s[moment]


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
        sync_cross_pool_s=np.concatenate([t.sync_cross_pool_s for t in tables]),
        active_bytes=np.concatenate([t.active_bytes for t in tables]),
        sync_bytes=np.concatenate([t.sync_bytes for t in tables]),
        idle_bytes=np.concatenate([t.idle_bytes for t in tables]),
        host_bytes=np.concatenate([t.host_bytes for t in tables]),
        row=np.concatenate([t.row for t in tables]),
        moments=first.moments,
        moment_s=np.concatenate([t.moment_s for t in tables], axis=1) if first.moments else first.moment_s,
    )


def take(table: OptionTable, rows: IntArray | BoolArray | slice) -> OptionTable:
    """The selected rows, as a table."""
    return OptionTable(
        worker=table.worker,
        pool=table.pool,
        stages=table.stages,
        num_gpus=table.num_gpus[rows],
        stage_time_s=table.stage_time_s[:, rows],
        sync_colocated_s=table.sync_colocated_s[rows],
        sync_disaggregated_s=table.sync_disaggregated_s[rows],
        sync_cross_pool_s=table.sync_cross_pool_s[rows],
        active_bytes=table.active_bytes[rows],
        sync_bytes=table.sync_bytes[rows],
        idle_bytes=table.idle_bytes[rows],
        host_bytes=table.host_bytes[rows],
        row=table.row[rows],
        moments=table.moments,
        moment_s=table.moment_s[:, rows] if table.moments else table.moment_s,
    )


def prune(table: OptionTable, *, across_sizes: bool = True, alike: IntArray | None = None) -> OptionTable:
    """The options that no other dominates, in ascending order of size and row; of equal options the first stays.

    `across_sizes=False` compares options of the same number of GPUs only; `alike`, small numbers of shape
    (num_options,), options with equal numbers only.
    """
    # Equal is no larger and no smaller.
    equal = [] if alike is None else [alike.astype(np.float64), -alike.astype(np.float64)]
    columns = np.vstack(
        [
            *equal,
            table.stage_time_s,
            *table.moment_s,
            table.sync_colocated_s,
            table.sync_disaggregated_s,
            table.sync_cross_pool_s,
            table.active_bytes,
            table.sync_bytes,
            table.idle_bytes,
            table.host_bytes,
        ]
    )
    return take(table, pareto_rows(columns, table.num_gpus, across_sizes=across_sizes))


def prune_alone(table: OptionTable) -> OptionTable:
    """As `prune`, for a worker that meets no other on its GPUs: memory matters to nobody once an option fits."""
    columns = [table.stage_time_s, *table.moment_s, table.sync_disaggregated_s, table.sync_cross_pool_s]
    return take(table, pareto_rows(np.vstack(columns), table.num_gpus, across_sizes=True))


def prune_within(
    table: OptionTable, keys: IntArray, *, across_sizes: bool, alike: IntArray | None = None
) -> OptionTable:
    """As `prune`, but only options of equal key (shape (num_options,)) are compared: for rules that couple workers.

    `alike` says the same about few options of each key.
    """
    if not len(table):
        return table
    order = np.argsort(keys, kind="stable")
    ordered, same = take(table, order), None if alike is None else alike[order]
    parts = [
        prune(take(ordered, rows), across_sizes=across_sizes, alike=None if same is None else same[rows])
        for rows in runs(keys[order]).values()
    ]
    merged = merge(parts)
    return take(merged, np.lexsort((merged.row, merged.num_gpus)))


def runs(ordered: IntArray) -> dict[int, slice]:
    """Where each value of an ascending array is."""
    values, starts = np.unique(ordered, return_index=True)
    bounds = [*starts.tolist(), len(ordered)]
    return {int(value): slice(begin, end) for value, (begin, end) in zip(values, pairwise(bounds), strict=True)}


def pareto_rows(columns: FloatArray, num_gpus: IntArray, *, across_sizes: bool) -> IntArray:
    """Rows of `columns` (num_columns, n) that are minimal in all columns, within each size or across sizes.

    Rows are visited such that what dominates a row comes before it: by size, then by a weighted sum. Each block of
    survivors strikes out what it dominates among the rows after it. Exact up to one case: rows whose sums differ by
    less than floats resolve may both stay. A minimal row is never dropped; of equal rows the first stays.
    """
    num = num_gpus.shape[0]
    if num == 0:
        return np.empty(0, dtype=np.int64)
    varying = [row for row in columns if row.size and np.any(row != row[0])]
    if not varying:
        varying = [np.zeros(num)]
    values = np.vstack(varying)
    scale = 1.0 / np.maximum(np.mean(np.abs(values), axis=1), 1e-300)
    order = np.lexsort((scale @ values, num_gpus))
    values = np.ascontiguousarray(values[:, order])
    codes = _codes(values)
    sizes = num_gpus[order]
    bounds = np.r_[0, np.flatnonzero(np.diff(sizes)) + 1, num]
    kept = np.concatenate(
        [begin + _minimal(values[:, begin:end], codes[:, begin:end]) for begin, end in pairwise(bounds)]
    )
    if across_sizes and bounds.size > 2:
        kept = kept[_minimal(values[:, kept], codes[:, kept])]
    result: IntArray = order[kept]
    return result[np.lexsort((result, num_gpus[result]))]


def _codes(values: FloatArray) -> npt.NDArray[np.uint64]:
    """Eight columns per word, each as a 7-bit bin number: smaller values never have larger bins.

    One subtraction then compares eight columns: with the guard bits of `y` set, (y - x) keeps the guard bit of every
    field in which y's bin is at least x's.
    """
    num_columns, num = values.shape
    codes = np.zeros((-(-num_columns // 8), num), dtype=np.uint64)
    sample = np.sort(values[:, :: max(1, num // _SAMPLE_ROWS)], axis=1)
    edges = sample[:, np.linspace(0, sample.shape[1] - 1, _NUM_BINS - 1).astype(np.int64)]
    for i, column in enumerate(values):
        bins = np.searchsorted(edges[i], column, side="right").astype(np.uint64)
        codes[i // 8] |= bins << np.uint64(8 * (i % 8))
    return codes


def _minimal(values: FloatArray, codes: npt.NDArray[np.uint64]) -> IntArray:
    """Positions of minimal rows, ascending, of rows in which no row dominates an earlier one."""
    alive = np.arange(values.shape[1])
    guarded = codes | _GUARD
    kept: list[IntArray] = []
    while alive.size:
        block, alive = alive[:_BLOCK_ROWS], alive[_BLOCK_ROWS:]
        striker, struck = _strikes(values, codes, guarded, block, block)
        # Of rows in one block only earlier ones strike; a row that is itself struck has a striker that is not.
        block = np.delete(block, struck[striker < struck])
        kept.append(block)
        _, struck = _strikes(values, codes, guarded, block, alive)
        alive = np.delete(alive, struck)
    return np.concatenate(kept) if kept else np.empty(0, dtype=np.int64)


def _strikes(
    values: FloatArray,
    codes: npt.NDArray[np.uint64],
    guarded: npt.NDArray[np.uint64],
    first: IntArray,
    second: IntArray,
) -> tuple[IntArray, IntArray]:
    """Pairs of a position in `first` and one in `second` whose rows are, of the first, no worse in all columns."""
    # Bins only rule out, the first eight columns most of all; what is left is compared in full.
    ahead = guarded[0][second] - codes[0][first][:, None]
    ahead &= _GUARD
    row, column = np.divmod(np.flatnonzero(ahead == _GUARD), max(1, second.size))
    for word, guarded_word in zip(codes[1:], guarded[1:], strict=True):
        left = ((guarded_word[second[column]] - word[first[row]]) & _GUARD) == _GUARD
        row, column = row[left], column[left]
    left = np.ones(row.size, dtype=np.bool_)
    a, b = first[row], second[column]
    for value in values:
        left &= value[a] <= value[b]
    return row[left], column[left]
