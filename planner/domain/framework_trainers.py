"""Which trainer strategies a framework can express: rules over rows of a table, by back end.

The search (many rows) and the verdict on a plan (one row) read the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.domain.codes import is_in
from planner.domain.framework import HOST_STEPS, FrameworkRules, TrainerBackend
from planner.domain.model import Model
from planner.domain.stages import WorkerName
from planner.domain.strategy import (
    CONTEXT_PARALLELS,
    OFFLOADS,
    RECOMPUTES,
    SHARDINGS,
    BoolArray,
    IntArray,
    Recompute,
    Sharding,
    TrainerStrategy,
    TrainerTable,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowRule:
    """`allows` gives the rows that a back end can express.

    `reason` completes "<back end>: ..." for many rows, `fault` says the same about one strategy.
    """

    reason: str
    allows: Callable[[TrainerBackend, TrainerTable, bool, Model | None], BoolArray]
    fault: Callable[[TrainerBackend, TrainerStrategy], str] | None = None
    """None: `reason` says it all."""

    def fault_of(self, backend: TrainerBackend, strategy: TrainerStrategy) -> str:
        return self.reason if self.fault is None else self.fault(backend, strategy)


def _constant(table: TrainerTable, value: bool) -> BoolArray:
    return np.full(len(table), value)


def _hybrid(backend: TrainerBackend, table: TrainerTable, trains: bool, _: Model | None) -> BoolArray:
    if backend.allows_hybrid_shard or not trains:
        return _constant(table, True)
    is_sharded = table.sharding != SHARDINGS.index(Sharding.DDP)
    return np.asarray(~is_sharded | (table.shard_ranks >= np.floor(table.dp * table.cp)))


def _expert_tp(backend: TrainerBackend, table: TrainerTable, _: bool, model: Model | None) -> BoolArray:
    if backend.allows_etp or (model is not None and not model.is_moe):
        return _constant(table, True)
    # Without a model, etp = 1 may as well be a dense layer.
    return np.asarray((table.etp == table.tp) | ((table.etp == 1) & (model is None)))


def _expert_parallel_alone(backend: TrainerBackend, table: TrainerTable, _: bool, __: Model | None) -> BoolArray:
    if not backend.ep_stands_alone:
        return _constant(table, True)
    is_alone = (table.tp == 1) & (table.cp == 1) & (table.shard_ranks >= np.floor(table.dp * table.cp))
    return np.asarray((table.ep == 1) | is_alone)


def _expert_architecture(backend: TrainerBackend, table: TrainerTable, _: bool, model: Model | None) -> BoolArray:
    if not backend.ep_architectures or model is None or model.architecture in backend.ep_architectures:
        return _constant(table, True)
    return np.asarray(table.ep == 1)


def _kv_heads(backend: TrainerBackend, table: TrainerTable, _: bool, model: Model | None) -> BoolArray:
    legal = _constant(table, True)
    if not backend.tp_divides_kv_heads or model is None:
        return legal
    for heads in {layer.attention.num_kv_heads for layer in model.layers} - {0}:
        legal &= np.mod(heads, table.tp) == 0
    return legal


def _recurrent(backend: TrainerBackend, table: TrainerTable, _: bool, model: Model | None) -> BoolArray:
    if backend.recurrent_tp or model is None or not model.needs_whole_sequence:
        return _constant(table, True)
    return np.asarray(table.tp == 1)


def _cpu_optimizer(backend: TrainerBackend, table: TrainerTable, trains: bool, _: Model | None) -> BoolArray:
    if not trains:
        return _constant(table, True)
    on_host = is_in(table.offload, OFFLOADS, frozenset(HOST_STEPS))
    return np.asarray(~on_host | is_in(table.sharding, SHARDINGS, frozenset(backend.cpu_optimizer_shardings)))


def _even_pipeline(backend: TrainerBackend, table: TrainerTable, _: bool, model: Model | None) -> BoolArray:
    if model is None or backend.allows_any_pp:
        return _constant(table, True)
    degrees = np.unique(table.pp).astype(int).tolist()
    fits = {pp: _splits(model.num_layers, pp, uneven=backend.allows_uneven_pp) for pp in degrees}
    bad = [pp for pp in degrees if not fits[pp]]
    return np.asarray(~np.isin(table.pp, bad))


def _splits(num_layers: int, pp: int, *, uneven: bool) -> bool:
    return num_layers % pp == 0 or (uneven and pipeline_ends(num_layers, pp) is not None)


def pipeline_ends(num_layers: int, pp: int) -> tuple[int, int] | None:
    """Layers of the first and the last pipeline rank when all others hold ceil(num_layers / pp).

    None when that would leave an end without layers, or with more than the others.

    >>> pipeline_ends(28, 8)
    (2, 2)
    """
    middle = -(-num_layers // pp)
    rest = num_layers - (pp - 2) * middle
    first, last = rest - rest // 2, rest // 2
    return (first, last) if pp > 1 and last >= 1 and first <= middle else None


def _recompute(backend: TrainerBackend, table: TrainerTable, trains: bool, model: Model | None) -> BoolArray:
    if not trains:
        return _constant(table, True)
    allowed = set(backend.recomputes)
    if backend.selective_needs_experts and model is not None and not model.is_moe:
        allowed.discard(Recompute.SELECTIVE)
    return is_in(table.recompute, RECOMPUTES, frozenset(allowed))


_ROW_RULES: tuple[_RowRule, ...] = (
    _RowRule(
        reason="ZeRO level not offered",
        allows=lambda b, t, trains, _: is_in(
            t.sharding, SHARDINGS, frozenset(b.shardings if trains else b.inference_shardings)
        ),
        fault=lambda _, s: f"{s.sharding.value} is not offered",
    ),
    _RowRule(reason="no sharding over only a part of the ranks", allows=_hybrid),
    _RowRule(
        reason="tp above the limit",
        allows=lambda b, t, *_: np.asarray(t.tp <= b.max_tp),
        fault=lambda b, s: f"tp is {s.tp}, at most {b.max_tp}",
    ),
    _RowRule(
        reason="pp above the limit",
        allows=lambda b, t, *_: np.asarray(t.pp <= b.max_pp),
        fault=lambda b, s: f"pp is {s.pp}, at most {b.max_pp}",
    ),
    _RowRule(
        reason="vpp above the limit",
        allows=lambda b, t, *_: np.asarray(t.vpp <= b.max_vpp),
        fault=lambda b, s: f"vpp is {s.vpp}, at most {b.max_vpp}",
    ),
    _RowRule(
        reason="cp above the limit",
        allows=lambda b, t, *_: np.asarray(t.cp <= b.max_cp),
        fault=lambda b, s: f"cp is {s.cp}, at most {b.max_cp}",
    ),
    _RowRule(
        reason="kind of context parallelism not offered",
        allows=lambda b, t, *_: np.asarray(
            (t.cp == 1) | is_in(t.context_parallel, CONTEXT_PARALLELS, frozenset(b.context_parallels))
        ),
        fault=lambda _, s: f"{s.context_parallel.value} context parallelism is not offered",
    ),
    _RowRule(reason="no expert parallelism", allows=lambda b, t, *_: np.asarray((t.ep == 1) | b.allows_ep)),
    _RowRule(reason="expert parallelism together with tp, cp or hybrid sharding", allows=_expert_parallel_alone),
    _RowRule(reason="no expert parallelism for this architecture", allows=_expert_architecture),
    _RowRule(
        reason="expert tp differs from tp",
        allows=_expert_tp,
        fault=lambda _, s: f"expert tp {s.etp} differs from tp {s.tp}",
    ),
    _RowRule(
        reason="expert tp above the limit",
        allows=lambda b, t, *_: np.asarray((t.etp <= b.max_etp) if b.max_etp is not None else _constant(t, True)),
        fault=lambda b, s: f"expert tp is {s.etp}, at most {b.max_etp}",
    ),
    _RowRule(
        reason="layers do not split over pp",
        allows=_even_pipeline,
        fault=lambda _, s: f"layers do not split over pp {s.pp}",
    ),
    _RowRule(
        reason="recomputation not offered",
        allows=_recompute,
        fault=lambda _, s: f"recomputation '{s.recompute.value}' is not offered",
    ),
    _RowRule(
        reason="offload not offered",
        allows=lambda b, t, trains, _: is_in(
            t.offload, OFFLOADS, frozenset(b.offloads if trains else b.inference_offloads)
        ),
        fault=lambda _, s: f"offload '{s.offload.value}' is not offered",
    ),
    _RowRule(reason="tp must divide heads and key/value heads", allows=_kv_heads),
    _RowRule(reason="tp does not divide recurrent layers", allows=_recurrent),
    _RowRule(
        reason="ZeRO level not offered with the optimizer step on the host",
        allows=_cpu_optimizer,
        fault=lambda b, _: (
            "the optimizer step on the host needs "
            + " or ".join(level.value for level in SHARDINGS if level in b.cpu_optimizer_shardings)
        ),
    ),
)


def _candidates(rules: FrameworkRules, worker: WorkerName | None) -> tuple[TrainerBackend, ...]:
    return tuple(b for b in rules.backends if worker is None or worker in b.workers)


def trainer_rejections(
    rules: FrameworkRules,
    table: TrainerTable,
    *,
    trains: bool,
    worker: WorkerName | None = None,
    model: Model | None = None,
) -> tuple[tuple[str, BoolArray], ...]:
    """Rows that no back end of the framework can express, by reason; masks of shape (num_candidates,), disjoint.

    A row that several back ends reject is counted with the first rule of the back end that breaks fewest rules.
    `worker` limits the back ends to those that serve it, `model` adds the rules that depend on layers and experts.
    """
    backends = _candidates(rules, worker)
    if not backends:
        who = "such worker" if worker is None else worker.value
        return ((f"{rules.title} runs no {who} on GPUs", _constant(table, True)),)
    broken = [np.stack([~rule.allows(b, table, trains, model) for rule in _ROW_RULES]) for b in backends]
    counts = np.stack([violations.sum(axis=0) for violations in broken])
    rejected = np.flatnonzero(counts.min(axis=0) > 0)
    closest = counts[:, rejected].argmin(axis=0)
    result: list[tuple[str, BoolArray]] = []
    for index, backend in enumerate(backends):
        rows = rejected[closest == index]
        first = broken[index][:, rows].argmax(axis=0)
        for number in np.unique(first).tolist():
            mask = _constant(table, False)
            mask[rows[first == number]] = True
            result.append((f"{rules.title}, {backend.name}: {_ROW_RULES[number].reason}", mask))
    return tuple(result)


def trainer_faults(
    rules: FrameworkRules, strategy: TrainerStrategy, *, trains: bool, worker: WorkerName, model: Model
) -> tuple[str, tuple[str, ...]]:
    """The back end that comes closest to a strategy, and what it lacks: nothing where some back end can express it."""
    table = TrainerTable.of((strategy,))
    found = [
        (
            backend.name,
            tuple(
                rule.fault_of(backend, strategy)
                for rule in _ROW_RULES
                if not rule.allows(backend, table, trains, model)[0]
            ),
        )
        for backend in _candidates(rules, worker)
    ]
    return min(found, key=lambda item: len(item[1]), default=("", ()))


def first_backends(
    rules: FrameworkRules, table: TrainerTable, *, trains: bool, worker: WorkerName | None, model: Model | None
) -> IntArray:
    """Index of the first back end that allows each row, -1 if none; shape (num_candidates,)."""
    result = np.full(len(table), -1, dtype=np.int64)
    for index, backend in reversed(tuple(enumerate(rules.backends))):
        if worker is not None and worker not in backend.workers:
            continue
        allowed = _constant(table, True)
        for rule in _ROW_RULES:
            allowed &= rule.allows(backend, table, trains, model)
        result[allowed] = index
    return result


def backend_of(
    rules: FrameworkRules,
    strategy: TrainerStrategy,
    *,
    trains: bool = True,
    worker: WorkerName | None = None,
    model: Model | None = None,
) -> TrainerBackend | None:
    """The first back end that can express the strategy, None if there is none."""
    table = TrainerTable.of((strategy,))
    index = int(first_backends(rules, table, trains=trains, worker=worker, model=model)[0])
    return rules.backends[index] if index >= 0 else None
