"""Peak GPU memory: every row of memory.csv priced with its own configuration.

Allocator peak and device peak are different quantities, and the last pipeline rank is not the fullest one: each row
is compared with the quantity and the rank that it measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.cost import memory
from planner.cost.activations import saved_bytes
from planner.cost.layout import layout, model_totals
from planner.cost.offload import offload_flags
from planner.domain.hardware import NodeType
from planner.domain.overheads import Overheads
from planner.domain.plan import NamedValue
from planner.domain.strategy import FloatArray, TrainerTable, frozen
from planner.files.catalog import generic_node, load_overheads
from planner.validation.memory_rows import MemoryKind, MemoryRun, RuleError, read_run
from planner.validation.read import Row, RowError, model_family, quality, text
from planner.validation.records import Keys, Priced, Table, TableResult, Unpriced

_ANY_GPU = "h100"
"""Memory does not depend on the GPU: spans of groups do, and they carry time only."""
_OUTSIDE_ALLOCATOR = ("communicator", "context")
_WORKSPACE_BYTES = 32.0 * 2**20
"""cuBLAS workspace inside the allocator: 8 buffers of 4 MiB (PyTorch's default on Hopper, and what the tests set)."""
EXACT = "exact recipe"
NOT_STATED = "optimizer not stated"


def price(rows: Sequence[Row]) -> TableResult:
    """Peaks of all rows, in their order; rows that a rule excludes or that state too little become `Unpriced`."""
    runs: list[tuple[Row, MemoryRun]] = []
    unpriced: list[Unpriced] = []
    for row in rows:
        try:
            runs.append((row, read_run(row)))
        except RowError as error:
            unpriced.append(
                Unpriced(
                    table=Table.MEMORY,
                    row=text(row, "id"),
                    quality=quality(row),
                    reason=str(error),
                    is_rule=isinstance(error, RuleError),
                )
            )
    terms = peak_terms([run for _, run in runs], load_overheads())
    priced = tuple(_priced(row, run, values) for (row, run), values in zip(runs, terms, strict=True))
    return TableResult(table=Table.MEMORY, priced=priced, unpriced=tuple(unpriced))


def peak_terms(runs: Sequence[MemoryRun], overheads: Overheads) -> list[dict[str, float]]:
    """Bytes by term of the quantity that each run measured; one table per model and recipe."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, run in enumerate(runs):
        key = (run.model, run.recipe, run.lora_rank, run.is_fp8, run.seq_tokens)
        groups.setdefault(key, []).append(index)
    node = generic_node(_ANY_GPU)
    result: list[dict[str, float]] = [{} for _ in runs]
    for indices in groups.values():
        priced = _group_terms([runs[index] for index in indices], node, overheads)
        for place, index in enumerate(indices):
            kind = runs[index].kind
            result[index] = {
                name: float(values[place]) for name, values in priced.items() if values[place] and _counts(name, kind)
            }
    return result


def _counts(term: str, kind: MemoryKind) -> bool:
    if kind is MemoryKind.DEVICE:
        return True
    return term not in _OUTSIDE_ALLOCATOR and (term != "fragmentation" or kind is MemoryKind.RESERVED)


def _group_terms(runs: Sequence[MemoryRun], node: NodeType, overheads: Overheads) -> dict[str, FloatArray]:
    first = runs[0]
    table = TrainerTable.of(tuple(run.strategy for run in runs))
    at = layout(table, model_totals(first.model, True), node)
    states = memory.training_states(
        at, offload_flags(at.offload), lora_rank=first.lora_rank, is_fp8=first.is_fp8, recipe=first.recipe
    )
    transient = memory.training_transient(
        at,
        table,
        frozen([run.num_micro_batches for run in runs]),
        overheads,
        is_lora=first.lora_rank is not None,
        recipe=first.recipe,
        saved=saved_bytes(first.model, first.recipe, first.seq_tokens),
    )
    workspace = np.full(len(runs), _WORKSPACE_BYTES)
    on_gpu = 1.0 - np.array([run.host_optimizer_ratio for run in runs])
    terms = memory.stage_terms(
        states.weights,
        states.gradients,
        states.optimizer * on_gpu,
        transient,
        memory.communicator_bytes(at, table, overheads),
        overheads,
    )
    return {**terms, "workspace": workspace}


def _priced(row: Row, run: MemoryRun, terms: dict[str, float]) -> Priced:
    framework, precision = text(row, "framework"), text(row, "precision")
    strategy = run.strategy
    # tests share a name, not a network: its size tells them apart
    shape = (text(row, "model"), f"{run.model.num_params}", text(row, "layers"))
    workload = (*shape, text(row, "seq_len"), text(row, "gbs"), text(row, "task"))
    configuration = (*workload, framework, precision, str(strategy), text(row, "recompute"), text(row, "flags"))
    return Priced(
        table=Table.MEMORY,
        row=text(row, "id"),
        source=text(row, "source"),
        quality=quality(row),
        keys=Keys(
            model=text(row, "model"),
            family="megatron tests" if run.model.id.startswith("test:") else model_family(run.model),
            gpu=text(row, "gpu"),
            precision=precision,
            framework=framework,
            release="",
            configuration="|".join(configuration),
            workload="|".join(workload),
            subset=EXACT if run.is_optimizer_stated else NOT_STATED,
        ),
        unit="bytes",
        measured=run.measured_bytes,
        predicted=sum(terms.values()),
        terms=tuple(NamedValue(name=name, value=value) for name, value in terms.items()),
        note="; ".join(part for part in (f"{run.kind.value} peak", run.assumed) if part),
    )
