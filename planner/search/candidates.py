"""Enumerates the strategies of a worker: the declared space, less what the rules reject, with counts by reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Generic, TypeVar

import numpy as np

from planner.domain.model import Model
from planner.domain.stages import StageKind
from planner.domain.strategy import (
    CONTEXT_PARALLELS,
    ENGINE_IDLES,
    OFFLOADS,
    RECOMPUTES,
    SHARDINGS,
    BoolArray,
    FloatArray,
    IntArray,
    Recompute,
    RolloutTable,
    TrainerTable,
    sealed,
    stage_layers,
)
from planner.search import space
from planner.search.legality import ROLLOUT_RULES, TRAINER_RULES, RolloutFacts, TrainerFacts

TrainerFilter = Callable[[TrainerTable], tuple[tuple[str, BoolArray], ...]]
RolloutFilter = Callable[[RolloutTable], tuple[tuple[str, BoolArray], ...]]
"""Reasons with the rows that they reject (framework rules)."""


Table = TypeVar("Table", TrainerTable, RolloutTable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates(Generic[Table]):
    """Legal strategies, and how many were rejected for which reason."""

    table: Table
    rejected: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Layouts with the same inner choices."""

    rows: IntArray
    """Of the table of layouts."""
    choices: tuple[FloatArray, ...]
    """A column for each inner field, shape (num_choices,)."""
    least_of: IntArray
    """The choice with the same technique that needs least memory, shape (num_choices,)."""

    @property
    def is_least(self) -> BoolArray:
        return np.asarray(self.least_of == np.arange(self.least_of.size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts(Generic[Table]):
    """Legal degrees of a worker on every number of GPUs, to be crossed with inner choices: budgets and techniques."""

    table: Table
    """Inner fields are placeholders."""
    inner: tuple[str, ...]
    blocks: tuple[_Block, ...]
    rejected: tuple[tuple[str, int], ...]

    def whole(self) -> Table:
        """Every layout with every inner choice."""
        wide = [(block.rows, block.choices) for block in self.blocks]
        columns = {
            name: _spread([(column[rows], choices[0].size) for rows, choices in wide])
            for name, column in self._outer().items()
        }
        for i, name in enumerate(self.inner):
            columns[name] = _tiled([(choices[i], rows.size) for rows, choices in wide])
        return replace(self.table, **{name: sealed(column) for name, column in columns.items()})

    def least(self) -> Table:
        """Every layout with, of each technique, the inner choice that needs least memory."""
        return self._crossed([np.broadcast_to(b.is_least, (b.rows.size, b.least_of.size)) for b in self.blocks])

    def fitting(self, fits: BoolArray) -> Table:
        """As `whole`, without the choices whose technique does not fit even with least memory; `fits` is about the
        rows of `least`. Of a layout that fits with no technique these rows stay: there is something to say of them."""
        if fits.all():
            return self.whole()
        keeps = []
        for block, fit in self._by_block(fits):
            ranks = np.cumsum(block.is_least) - 1
            is_hopeless = ~fit.any(axis=1, keepdims=True)
            keeps.append(fit[:, ranks[block.least_of]] | (is_hopeless & block.is_least))
        return self._crossed(keeps)

    def num_left_out(self, fits: BoolArray) -> IntArray:
        """Combinations that `fitting` does not build, by the row of `least` that stands for them."""
        counts = []
        for block, fit in self._by_block(fits):
            alike = np.bincount(block.least_of, minlength=block.least_of.size)[block.is_least]
            is_hopeless = ~fit.any(axis=1, keepdims=True)
            counts.append((~fit * (alike - is_hopeless)).ravel())
        return np.concatenate(counts)

    def _by_block(self, fits: BoolArray) -> Iterator[tuple[_Block, BoolArray]]:
        start = 0
        for block in self.blocks:
            shape = (block.rows.size, int(np.count_nonzero(block.is_least)))
            stop = start + shape[0] * shape[1]
            yield block, fits[start:stop].reshape(shape)
            start = stop

    def _crossed(self, keeps: Sequence[BoolArray]) -> Table:
        """The combinations that are True, shape (num_rows, num_choices) for each block."""
        flat = [np.flatnonzero(keep) for keep in keeps]
        sizes = [max(1, block.least_of.size) for block in self.blocks]
        owner = np.concatenate(
            [block.rows[at // size] for block, at, size in zip(self.blocks, flat, sizes, strict=True)]
        )
        columns = {name: column[owner] for name, column in self._outer().items()}
        for i, name in enumerate(self.inner):
            columns[name] = np.concatenate(
                [block.choices[i][at % size] for block, at, size in zip(self.blocks, flat, sizes, strict=True)]
            )
        return replace(self.table, **{name: sealed(column) for name, column in columns.items()})

    def _outer(self) -> dict[str, FloatArray]:
        return {f.name: getattr(self.table, f.name) for f in fields(self.table) if f.name not in self.inner}


def _product(*axes: tuple[float, ...]) -> tuple[FloatArray, ...]:
    """Columns of the Cartesian product, last axis fastest."""
    grids = np.meshgrid(*[np.asarray(axis, dtype=np.float64) for axis in axes], indexing="ij")
    return tuple(grid.ravel() for grid in grids)


def trainer_layouts(
    facts: TrainerFacts, *, max_tokens: int, num_nodes: int, coverage: space.Coverage = space.WHOLE
) -> Layouts[TrainerTable]:
    """All legal degrees and shardings of a training or forward-only worker on `num_nodes` nodes.

    They are filtered before they are crossed with budgets, recomputation and offload, so that most illegal
    combinations are never built; a rejected layout counts with all its combinations.
    """
    inner = _InnerChoices(facts, max_tokens, coverage)
    sizes = np.array(space.SizeGrid.of(facts.node, num_nodes, coverage).sizes, dtype=np.float64)
    rejected: dict[str, int] = {rule.reason: 0 for rule in TRAINER_RULES}
    degrees = _legal_degrees(_degrees(facts), facts, sizes, inner, rejected)
    legal = _joined([_legal_layouts(_on_size(degrees, size, facts), facts, inner, rejected) for size in sizes.tolist()])
    keys = inner.keys(legal)
    blocks = [
        _Block(rows=np.flatnonzero(keys == key), choices=choices, least_of=_least_tokens(choices))
        for key, choices in ((key, inner.of(key)) for key in np.unique(keys).tolist())
    ]
    return Layouts(
        table=legal,
        inner=_TRAINER_INNER,
        blocks=tuple(blocks),
        rejected=tuple((reason, count) for reason, count in rejected.items() if count),
    )


_TRAINER_INNER = ("micro_batch_tokens", "inference_tokens", "recompute", "recompute_layers", "offload")


def _least_tokens(choices: tuple[FloatArray, ...]) -> IntArray:
    """For each choice the one with the same recomputation and offload and the smallest budgets: smaller ones never
    need more memory."""
    micro, inference, *technique = choices
    return _least_alike(np.vstack(technique), np.vstack((micro, inference)))


def _least_alike(technique: FloatArray, tokens: FloatArray) -> IntArray:
    """For each column the one with equal `technique` and the smallest `tokens`; its tokens are smallest in all rows."""
    order = np.lexsort(tokens[::-1])
    _, alike = np.unique(technique, axis=1, return_inverse=True)
    first = {int(alike[i]): int(i) for i in order[::-1]}
    return np.array([first[int(kind)] for kind in alike], dtype=np.int64)


def enumerate_trainer(
    facts: TrainerFacts,
    *,
    max_tokens: int,
    num_nodes: int,
    framework: TrainerFilter | None = None,
    coverage: space.Coverage = space.WHOLE,
) -> Candidates[TrainerTable]:
    """All legal strategies of a training or forward-only worker on `num_nodes` nodes."""
    layouts = trainer_layouts(facts, max_tokens=max_tokens, num_nodes=num_nodes, coverage=coverage)
    return filtered(layouts.whole(), layouts.rejected, framework)


def filtered(
    table: Table,
    rejected: tuple[tuple[str, int], ...],
    framework: Callable[[Table], tuple[tuple[str, BoolArray], ...]] | None,
) -> Candidates[Table]:
    """Candidates without those that a framework rejects, which are counted under its reasons."""
    if framework is None:
        return Candidates(table=table, rejected=rejected)
    counts = dict(rejected)
    keep = np.full(len(table), True)
    for reason, rejects in framework(table):
        keep = _apply(reason, ~rejects, keep, np.ones(len(table)), counts)
    return Candidates(table=table.take(np.flatnonzero(keep)), rejected=tuple(counts.items()))


def _apply(
    reason: str, allowed: BoolArray, keep: BoolArray, weights: FloatArray, rejected: dict[str, int]
) -> BoolArray:
    count = int(weights[keep & ~allowed].sum())
    if count:
        rejected[reason] = rejected.get(reason, 0) + count
    return keep & allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Degrees:
    """Degrees x sharding before a number of GPUs is chosen."""

    table: TrainerTable
    """`num_gpus` holds the least number; `shard_ranks` and inner choices are placeholders."""
    is_hybrid: BoolArray
    """HSDP."""

    def take(self, rows: BoolArray) -> _Degrees:
        return _Degrees(table=self.table.take(rows), is_hybrid=self.is_hybrid[rows])


def _degrees(facts: TrainerFacts) -> _Degrees:
    model, node = facts.model, facts.node
    choices = space.TRAIN_SHARDINGS if facts.trains else space.INFERENCE_SHARDINGS
    experts = tuple(e for e in space.EP_DEGREES if e <= max(1, model.max_experts)) if model.is_moe else (1,)
    tp, pp, vpp, cp, ep, etp_is_tp, choice = _product(
        space.TP_DEGREES,
        space.pp_degrees(model, StageKind.TRAINING),
        space.VPP_DEGREES if facts.trains else (1,),
        space.CP_DEGREES,
        experts,
        (0, 1) if model.is_moe else (0,),
        tuple(range(len(choices))),
    )
    # Degrees that exceed the group, or a second spelling of the same layout, are no candidates at all.
    needed = np.maximum(tp * pp * cp, ep)
    is_spelling = ((etp_is_tp == 0) | (tp > 1)) & (tp <= node.scale_up_domain_gpus)
    tp, pp, vpp, cp, ep, etp_is_tp, choice, needed = (
        column[is_spelling] for column in (tp, pp, vpp, cp, ep, etp_is_tp, choice, needed)
    )
    index = choice.astype(np.int64)
    placeholder = sealed(np.zeros_like(tp))
    table = TrainerTable(
        num_gpus=sealed(needed), tp=sealed(tp), pp=sealed(pp), vpp=sealed(vpp), cp=sealed(cp),
        context_parallel=sealed(
            np.array([CONTEXT_PARALLELS.index(c.context_parallel) for c in choices], dtype=np.float64)[index]
        ),
        ep=sealed(ep), etp=sealed(np.where(etp_is_tp == 1, tp, 1.0)),
        sharding=sealed(np.array([SHARDINGS.index(c.sharding) for c in choices], dtype=np.float64)[index]),
        shard_ranks=placeholder, micro_batch_tokens=placeholder, inference_tokens=placeholder,
        recompute=placeholder, recompute_layers=placeholder, offload=placeholder,
    )  # fmt: skip
    return _Degrees(table=table, is_hybrid=np.array([c.is_hybrid for c in choices])[index])


def _legal_degrees(
    degrees: _Degrees,
    facts: TrainerFacts,
    sizes: FloatArray,
    inner: _InnerChoices,
    rejected: dict[str, int],
) -> _Degrees:
    """Degrees that pass the rules that look at no number of GPUs; the others count once for each size that has them."""
    for rule in TRAINER_RULES:
        if not rule.of_size:
            allowed = rule.allows(degrees.table, facts)
            num_sizes = sizes.size - np.searchsorted(sizes, degrees.table.num_gpus[~allowed])
            rejected[rule.reason] += int((inner.numbers(degrees.table.take(~allowed)) * num_sizes).sum())
            degrees = degrees.take(allowed)
    return degrees


def _on_size(degrees: _Degrees, size: float, facts: TrainerFacts) -> TrainerTable:
    """Layouts of degrees on groups of `size` GPUs."""
    degrees = degrees.take(degrees.table.num_gpus <= size)
    table = degrees.table
    num_gpus = np.full_like(table.num_gpus, size)
    dp_cp = np.floor(num_gpus / (table.tp * table.pp))
    node_ranks = np.maximum(1.0, np.floor(facts.node.gpus_per_node / table.tp))
    # HSDP within one node exists only when the ranks span several nodes.
    shard_ranks = np.where(degrees.is_hybrid, np.where(dp_cp > node_ranks, node_ranks, 0.0), dp_cp)
    return replace(table, num_gpus=sealed(num_gpus), shard_ranks=sealed(shard_ranks))


def _legal_layouts(
    layouts: TrainerTable, facts: TrainerFacts, inner: _InnerChoices, rejected: dict[str, int]
) -> TrainerTable:
    """Layouts that pass the rules of their size; the others are counted in `rejected` under the first rule that they
    break.

    Each rule sees only what the rules before it left: most layouts break the first one.
    """
    for rule in TRAINER_RULES:
        if rule.of_size:
            allowed = rule.allows(layouts, facts)
            rejected[rule.reason] += int(inner.numbers(layouts.take(~allowed)).sum())
            layouts = layouts.take(allowed)
    return layouts


def _joined(tables: Sequence[TrainerTable]) -> TrainerTable:
    """The rows of all tables, in order."""
    columns = {f.name: [getattr(table, f.name) for table in tables] for f in fields(TrainerTable)}
    return replace(tables[0], **{name: sealed(np.concatenate(parts)) for name, parts in columns.items()})


_CP_KEYS = 64
"""Above every CP degree."""


class _InnerChoices:
    """Budgets and techniques of layouts. A budget is legal for every layout of its cp, and what partial recomputation
    can take depends on the layers of a stage, so layouts with both alike share a set of choices."""

    def __init__(self, facts: TrainerFacts, max_tokens: int, coverage: space.Coverage) -> None:
        self._facts = facts
        self._max_tokens = max_tokens
        self._coverage = coverage
        self._known: dict[int, tuple[FloatArray, ...]] = {}

    def keys(self, layouts: TrainerTable) -> IntArray:
        """Layouts with equal keys have equal choices; shape (num_layouts,)."""
        cp = layouts.cp.astype(np.int64)
        if not self._facts.trains or Recompute.PARTIAL not in self._coverage.recomputes:
            return cp
        is_partial = np.isin(layouts.sharding, [SHARDINGS.index(level) for level in space.PARTIAL_SHARDINGS])
        layers = stage_layers(self._facts.model.num_layers, layouts.pp, layouts.vpp)
        result: IntArray = np.where(is_partial, layers, 0.0).astype(np.int64) * _CP_KEYS + cp
        return result

    def of(self, key: int) -> tuple[FloatArray, ...]:
        """Columns of the inner fields for layouts of one key."""
        if key not in self._known:
            layers, cp = divmod(key, _CP_KEYS)
            self._known[key] = self._choices(cp, space.partial_layers(layers))
        return self._known[key]

    def numbers(self, layouts: TrainerTable) -> IntArray:
        """How many candidates each layout stands for."""
        keys, owner = np.unique(self.keys(layouts), return_inverse=True)
        numbers = np.array([self.of(key)[0].size for key in keys.tolist()], dtype=np.int64)
        result: IntArray = numbers[owner]
        return result

    def _choices(self, cp: int, partial: tuple[int, ...]) -> tuple[FloatArray, ...]:
        coverage, trains = self._coverage, self._facts.trains
        whole = coverage.recomputes if trains else (Recompute.NONE,)
        levels: list[tuple[Recompute, int]] = [(level, 0) for level in whole if level is not Recompute.PARTIAL]
        levels += [(Recompute.PARTIAL, layers) for layers in partial]
        offloads = coverage.train_offloads if trains else space.INFERENCE_OFFLOADS
        micro, factor, level, offload = _product(
            tuple(float(b) for b in space.token_budgets(self._max_tokens, cp, coverage)),
            tuple(float(f) for f in coverage.inference_multiples) if trains else (1.0,),
            tuple(float(i) for i in range(len(levels))),
            tuple(float(OFFLOADS.index(o)) for o in offloads),
        )
        codes = np.array([(RECOMPUTES.index(r), layers) for r, layers in levels], dtype=np.float64)[level.astype(int)]
        return micro, micro * factor, codes[:, 0].copy(), codes[:, 1].copy(), offload


def _spread(parts: Sequence[tuple[FloatArray, int]]) -> FloatArray:
    """Each value of each part so many times. Written once: whole tables do not fit in any cache."""
    result = np.empty(sum(len(values) * width for values, width in parts))
    start = 0
    for values, width in parts:
        stop = start + len(values) * width
        result[start:stop].reshape(len(values), width)[:] = values[:, None]
        start = stop
    return result


def _tiled(parts: Sequence[tuple[FloatArray, int]]) -> FloatArray:
    """The values of each part so many times over."""
    result = np.empty(sum(len(values) * times for values, times in parts))
    start = 0
    for values, times in parts:
        stop = start + len(values) * times
        result[start:stop].reshape(times, len(values))[:] = values
        start = stop
    return result


def engine_layouts(
    facts: RolloutFacts,
    *,
    num_nodes: int,
    memory_margin_ratio: float,
    can_sleep: bool,
    coverage: space.Coverage = space.WHOLE,
) -> Layouts[RolloutTable]:
    """All legal degrees of a generation engine on `num_nodes` nodes.

    `can_sleep` is False for engines whose weights no sync brings back (a judge).
    """
    idles = tuple(float(i) for i, idle in enumerate(ENGINE_IDLES) if can_sleep or idle is ENGINE_IDLES[0])
    choices = _product(space.engine_fractions(memory_margin_ratio, coverage), coverage.max_num_seqs, idles)
    layouts = _engine_layouts(facts, num_nodes, coverage)
    rejected: dict[str, int] = {}
    for rule in ROLLOUT_RULES:
        allowed = rule.allows(layouts, facts)
        count = int(np.count_nonzero(~allowed)) * len(choices[0])
        if count:
            rejected[rule.reason] = rejected.get(rule.reason, 0) + count
        layouts = layouts.take(allowed)
    # Fewer sequences never need more memory; a larger share has more to give, and less to leave for others.
    least_of = _least_alike(np.vstack((choices[0], choices[2])), choices[1][None, :])
    block = _Block(rows=np.arange(len(layouts)), choices=choices, least_of=least_of)
    return Layouts(table=layouts, inner=_ENGINE_INNER, blocks=(block,), rejected=tuple(rejected.items()))


_ENGINE_INNER = ("engine_fraction", "max_num_seqs", "idle")


def enumerate_rollout(
    facts: RolloutFacts,
    *,
    num_nodes: int,
    memory_margin_ratio: float,
    can_sleep: bool,
    framework: RolloutFilter | None = None,
    coverage: space.Coverage = space.WHOLE,
) -> Candidates[RolloutTable]:
    """All legal strategies of a generation engine on `num_nodes` nodes, as `engine_layouts`."""
    layouts = engine_layouts(
        facts,
        num_nodes=num_nodes,
        memory_margin_ratio=memory_margin_ratio,
        can_sleep=can_sleep,
        coverage=coverage,
    )
    return filtered(layouts.whole(), layouts.rejected, framework)


def _engine_layouts(facts: RolloutFacts, num_nodes: int, coverage: space.Coverage) -> RolloutTable:
    """Unfiltered degrees on every number of GPUs; inner choices are placeholders."""
    model = facts.model
    layouts = np.array(space.engine_layouts(model, facts.node), dtype=np.float64)
    sizes = np.asarray(space.SizeGrid.of(facts.node, num_nodes, coverage).sizes, dtype=np.float64)
    num_gpus = np.repeat(sizes, len(layouts))
    tp, pp, attention_dp, ep, exchange = np.tile(layouts, (len(sizes), 1)).T
    exists = tp * pp * attention_dp <= num_gpus
    num_gpus, tp, pp, attention_dp, ep, exchange = (
        column[exists] for column in (num_gpus, tp, pp, attention_dp, ep, exchange)
    )
    placeholder = sealed(np.zeros_like(num_gpus))
    return RolloutTable(
        num_gpus=sealed(num_gpus), tp=sealed(tp), pp=sealed(pp), ep=sealed(ep),
        engine_fraction=placeholder, max_num_seqs=placeholder, idle=placeholder,
        attention_dp=sealed(attention_dp), exchange=sealed(exchange),
    )  # fmt: skip


def chunks(table_length: int, size: int = 4096) -> Iterator[slice]:
    """Consecutive slices of at most `size` rows: temporaries of the cost model then stay in cache."""
    for start in range(0, table_length, size):
        yield slice(start, min(start + size, table_length))


def in_space(table: TrainerTable, model: Model, *, max_tokens: int) -> BoolArray:
    """Rows whose degrees and techniques the declared space contains (budgets: within the searched range)."""
    budgets_low = max_tokens
    budgets_high = np.maximum(max_tokens, space.MAX_BUDGET_TOKENS * table.cp)
    return np.asarray(
        np.isin(table.tp, space.TP_DEGREES)
        & np.isin(table.pp, space.pp_degrees(model, StageKind.TRAINING))
        & np.isin(table.vpp, space.VPP_DEGREES)
        & np.isin(table.cp, space.CP_DEGREES)
        & np.isin(table.ep, space.EP_DEGREES)
        & _has_searched_part(table, model)
        & (table.micro_batch_tokens >= budgets_low)
        & (table.micro_batch_tokens <= budgets_high)
    )


def _has_searched_part(table: TrainerTable, model: Model) -> BoolArray:
    """Partial recomputation only where and as the declared space has it."""
    is_partial = table.recompute == RECOMPUTES.index(Recompute.PARTIAL)
    layers = stage_layers(model.num_layers, table.pp, table.vpp).astype(int).tolist()
    chosen = table.recompute_layers.tolist()
    is_searched = [number in space.partial_layers(stage) for number, stage in zip(chosen, layers, strict=True)]
    shardings = [SHARDINGS.index(level) for level in space.PARTIAL_SHARDINGS]
    return np.asarray(~is_partial | (np.array(is_searched, dtype=np.bool_) & np.isin(table.sharding, shardings)))
