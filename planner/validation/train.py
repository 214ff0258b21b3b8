"""Training throughput: every row of train.csv priced as one optimizer step with its own configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.cost.terms import TIME_TERMS
from planner.cost.training import price_trainer
from planner.cost.worker import Site, TrainerJob
from planner.domain.hardware import NodeType, Precision
from planner.domain.model import Model
from planner.domain.overheads import Overheads
from planner.domain.plan import NamedValue
from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import TrainerTable
from planner.domain.workload import TokenLoad
from planner.files import catalog
from planner.validation import read
from planner.validation.records import Keys, Priced, Table, TableResult
from planner.validation.train_rows import Software, TrainRow, read_row

_LEFT_OUT = frozenset(("reload", "switch"))
"""Terms of an RL iteration that a training benchmark does not have."""


def price(rows: Sequence[read.Row]) -> TableResult:
    """Step times of all rows, in their order; those that state too little become `Unpriced`."""
    found, unpriced = read.collect(rows, Table.TRAIN, read_row)
    ready = [row for _, row in found]
    terms = step_terms(ready, catalog.load_overheads())
    priced = tuple(_priced(row, values) for row, values in zip(ready, terms, strict=True))
    return TableResult(table=Table.TRAIN, priced=priced, unpriced=tuple(unpriced))


@dataclass(frozen=True, slots=True)
class _Group:
    """What rows of one table of candidates have in common."""

    model: Model
    node: NodeType
    precision: Precision
    is_block_scaled: bool
    software: Software
    seq_tokens: int
    num_sequences: int
    num_mtp_modules: int
    lora_rank: int | None
    is_balanced: bool


def step_terms(rows: Sequence[TrainRow], overheads: Overheads) -> list[dict[str, float]]:
    """Seconds by term of each row; rows that share all but the strategy are one table of candidates."""
    groups: dict[_Group, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(_group(row), []).append(i)
    result: list[dict[str, float]] = [{} for _ in rows]
    for group, members in groups.items():
        table = TrainerTable.of(tuple(rows[i].strategy for i in members))
        stage = price_trainer(_job(group), table, _site(group, overheads)).stages[-1]
        for position, i in enumerate(members):
            result[i] = {
                name: float(column[position]) for name, column in stage.time_terms.items() if name not in _LEFT_OUT
            }
    return result


def _group(row: TrainRow) -> _Group:
    return _Group(
        row.model,
        row.node,
        row.precision,
        row.is_block_scaled,
        row.software,
        row.seq_tokens,
        row.num_sequences,
        row.num_mtp_modules,
        row.lora_rank,
        row.is_balanced,
    )


def _job(group: _Group) -> TrainerJob:
    load = TokenLoad(
        num_sequences=float(group.num_sequences),
        mean_tokens=float(group.seq_tokens),
        mean_square_tokens=float(group.seq_tokens) ** 2,
        max_tokens=group.seq_tokens,
    )
    return TrainerJob(
        worker=WorkerName.ACTOR_TRAINER,
        model=group.model,
        train_stage=StageName.ACTOR_UPDATE,
        train_load=load,
        num_optimizer_steps=1,
        num_epochs=1,
        inference_loads=(),
        has_vocabulary_head=True,
        lora_rank=group.lora_rank,
        precision=group.precision,
        sends_weights=False,
        rollout_precision=Precision.BF16,
        num_mtp_modules=group.num_mtp_modules,
        is_block_scaled=group.is_block_scaled,
        is_routing_balanced=group.is_balanced,
    )


def _site(group: _Group, overheads: Overheads) -> Site:
    """The node with the training stack that ran the row, whatever its sharding."""
    software = group.software
    stack = overheads.fsdp if software.is_fsdp else overheads.megatron
    if software.has_fast_experts:
        stack = overheads.megatron_graphs
    stack = replace(
        stack,
        overlap_ratio=stack.overlap_ratio if software.overlaps else 0.0,
        ep_overlap_ratio=overheads.megatron_graphs.ep_overlap_ratio if software.overlaps_experts else 0.0,
        moe_layer_host_s=0.0 if software.has_fixed_shapes else stack.moe_layer_host_s,
        tp_overlap_ratio=stack.overlap_ratio if software.overlaps_tp else stack.tp_overlap_ratio,
    )
    overheads = replace(overheads, megatron=stack, fsdp=stack)
    return Site(node=group.node, overheads=overheads, memory_margin_ratio=0.0)


def _priced(row: TrainRow, terms: dict[str, float]) -> Priced:
    ordered = [info.name for info in TIME_TERMS if info.name in terms]
    return Priced(
        table=Table.TRAIN,
        row=row.row["id"],
        source=row.row["source"],
        quality=read.quality(row.row),
        keys=keys(row),
        unit="s",
        measured=row.measured_s,
        predicted=sum(terms[name] for name in ordered),
        terms=tuple(NamedValue(name=name, value=terms[name]) for name in ordered if terms[name] > 0.0),
        note=row.note,
    )


def keys(row: TrainRow) -> Keys:
    """Groups of a row; releases and containers of one configuration are repeats of each other."""
    s = row.strategy
    work = (row.model.id, row.row["gpu"], s.num_gpus, row.row["precision"], row.seq_tokens, row.num_sequences,
            row.num_mtp_modules, row.lora_rank or 0, row.is_balanced)  # fmt: skip
    run = (*work, row.framework, s.tp, s.pp, s.cp, s.vpp, s.ep, s.etp, s.sharding.value, s.shard_ranks,
           s.micro_batch_tokens, s.recompute.value)  # fmt: skip
    return Keys(
        model=row.model.id,
        family=read.model_family(row.model),
        gpu=row.row["gpu"],
        precision=row.row["precision"],
        framework=row.framework,
        release=row.release,
        configuration="/".join(map(str, run)),
        workload="/".join(map(str, work)),
        subset="moe" if row.model.is_moe else "dense",
    )
