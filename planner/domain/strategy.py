"""Parallel strategies: one as a value, many as a table of columns."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


class Sharding(StrEnum):
    """How data-parallel ranks divide weights, gradients and optimizer states."""

    DDP = "ddp"
    """Every rank holds everything."""
    ZERO1 = "zero1"
    """Optimizer states sharded (Megatron distributed optimizer)."""
    ZERO2 = "zero2"
    """Gradients too."""
    ZERO3 = "zero3"
    """Weights too (FSDP); with `shard_ranks` below all data-parallel ranks: HSDP."""


class Recompute(StrEnum):
    """Activation recomputation in backward."""

    NONE = "none"
    SELECTIVE = "selective"
    """Norms and MLP activation functions are recomputed."""
    FULL = "full"
    """Only layer inputs are kept."""
    PARTIAL = "partial"
    """FULL in the first layers of each (virtual) pipeline stage, NONE in the others (Megatron's method `block`)."""


class Offload(StrEnum):
    """What leaves the GPU, and when."""

    NONE = "none"
    OPTIMIZER_SWAP = "optimizer-swap"
    """Gradients and optimizer states go to host RAM while other workers run; back for the update."""
    STATE_SWAP = "state-swap"
    """Weights too."""
    CPU_OPTIMIZER = "cpu-optimizer"
    """The optimizer step runs on the host: states never visit the GPU."""
    CPU_OPTIMIZER_STATE_SWAP = "cpu-optimizer+state-swap"
    """And weights and gradients go to host RAM while other workers run."""


class ContextParallel(StrEnum):
    """How context-parallel ranks exchange keys and values."""

    RING = "ring"
    ULYSSES = "ulysses"
    """Heads are redistributed by all-to-all; cp must divide the heads that TP leaves."""


class EngineIdle(StrEnum):
    """What an engine keeps on its GPUs while other workers run on them."""

    RESIDENT = "resident"
    SLEEP = "sleep"
    """Weights and KV cache are released; the next weight sync brings weights back."""


class ExpertExchange(StrEnum):
    """How tokens reach the experts of an engine whose attention is data-parallel."""

    GATHER = "gather"
    """Tokens of all attention groups are gathered on every rank before a MoE layer, sums are scattered after it."""
    ALL_TO_ALL = "all-to-all"
    """Each token goes to the ranks that hold its experts, and the results come back: dispatch and combine."""


SHARDINGS = tuple(Sharding)
RECOMPUTES = tuple(Recompute)
OFFLOADS = tuple(Offload)
CONTEXT_PARALLELS = tuple(ContextParallel)
ENGINE_IDLES = tuple(EngineIdle)
EXPERT_EXCHANGES = tuple(ExpertExchange)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerStrategy:
    """Strategy of a worker that trains or only runs forward passes.

    num_gpus = tp * pp * cp * dp, and num_gpus = ep * etp * pp * expert_dp. Sequence parallelism is on
    whenever tp > 1.
    """

    num_gpus: int
    tp: int
    pp: int
    vpp: int
    """Virtual pipeline chunks per rank; 1 is plain 1F1B."""
    cp: int
    context_parallel: ContextParallel
    ep: int
    etp: int
    sharding: Sharding
    shard_ranks: int
    """Ranks over which ZeRO divides states: dp * cp, or fewer for HSDP."""
    micro_batch_tokens: int
    """Packed tokens per micro-batch of one data-parallel rank (all its CP ranks together)."""
    inference_tokens: int
    """The same for forward-only passes."""
    recompute: Recompute
    offload: Offload
    recompute_layers: int = 0
    """Layers at the start of each (virtual) pipeline stage that are recomputed with `Recompute.PARTIAL`; else 0."""

    @property
    def dp(self) -> int:
        return self.num_gpus // (self.tp * self.pp * self.cp)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStrategy:
    """Strategy of generation engines; num_gpus = tp * attention_dp * pp * num_engines."""

    num_gpus: int
    tp: int
    pp: int
    ep: int
    """Expert parallelism inside one engine; divides tp * attention_dp. Each expert's width is spread over the rest."""
    engine_fraction: float
    """Share of GPU memory that the engine may use, weights included."""
    max_num_seqs: int
    """Most sequences that one engine, or each of its attention groups, decodes at the same time."""
    idle: EngineIdle
    attention_dp: int = 1
    """Groups of `tp` ranks in one engine, each with attention weights, sequences and a KV cache of its own; experts
    are spread over all of them."""
    exchange: ExpertExchange = ExpertExchange.GATHER
    """How tokens reach experts; matters where attention_dp > 1."""

    @property
    def engine_gpus(self) -> int:
        """GPUs of one engine."""
        return self.tp * self.attention_dp * self.pp

    @property
    def num_engines(self) -> int:
        return self.num_gpus // self.engine_gpus


Strategy = TrainerStrategy | RolloutStrategy


def frozen(array: npt.ArrayLike) -> FloatArray:
    """A read-only float64 copy."""
    result = np.array(array, dtype=np.float64)
    result.setflags(write=False)
    return result


def sealed(array: FloatArray) -> FloatArray:
    """The array itself, made read-only: for columns that nobody else holds."""
    array.setflags(write=False)
    return array


class _Table:
    """Columns of equal shape (num_candidates,); subclasses are dataclasses of FloatArray fields."""

    __slots__ = ()

    def __len__(self) -> int:
        return int(getattr(self, fields(self)[0].name).shape[0])  # type: ignore[arg-type]

    def take(self, rows: IntArray | BoolArray | slice) -> Self:
        """The rows that an index, a mask or a slice selects, as a table."""
        if isinstance(rows, np.ndarray) and rows.dtype == np.bool_:
            # Once for all columns.
            rows = np.flatnonzero(rows)
        # Indexing makes new columns, and a slice of a read-only column is read-only.
        return type(self)(**{f.name: sealed(getattr(self, f.name)[rows]) for f in fields(self)})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerTable(_Table):
    """Columns as in TrainerStrategy; enumerations are indices into SHARDINGS, RECOMPUTES, OFFLOADS and
    CONTEXT_PARALLELS."""

    num_gpus: FloatArray
    tp: FloatArray
    pp: FloatArray
    vpp: FloatArray
    cp: FloatArray
    context_parallel: FloatArray
    ep: FloatArray
    etp: FloatArray
    sharding: FloatArray
    shard_ranks: FloatArray
    micro_batch_tokens: FloatArray
    inference_tokens: FloatArray
    recompute: FloatArray
    offload: FloatArray
    recompute_layers: FloatArray

    @property
    def dp(self) -> FloatArray:
        return self.num_gpus / (self.tp * self.pp * self.cp)

    @property
    def expert_dp(self) -> FloatArray:
        """Ranks that hold the same experts."""
        return self.num_gpus / (self.pp * self.ep * self.etp)

    def row(self, index: int) -> TrainerStrategy:
        def value(name: str) -> int:
            return round(float(getattr(self, name)[index]))

        return TrainerStrategy(
            num_gpus=value("num_gpus"), tp=value("tp"), pp=value("pp"), vpp=value("vpp"), cp=value("cp"),
            context_parallel=CONTEXT_PARALLELS[value("context_parallel")], ep=value("ep"), etp=value("etp"),
            sharding=SHARDINGS[value("sharding")], shard_ranks=value("shard_ranks"),
            micro_batch_tokens=value("micro_batch_tokens"), inference_tokens=value("inference_tokens"),
            recompute=RECOMPUTES[value("recompute")], offload=OFFLOADS[value("offload")],
            recompute_layers=value("recompute_layers"),
        )  # fmt: skip

    @classmethod
    def of(cls, strategies: tuple[TrainerStrategy, ...]) -> TrainerTable:
        """One row per strategy."""
        codes = {
            "context_parallel": CONTEXT_PARALLELS,
            "sharding": SHARDINGS,
            "recompute": RECOMPUTES,
            "offload": OFFLOADS,
        }
        return cls(
            **{
                f.name: frozen(
                    [
                        codes[f.name].index(getattr(s, f.name)) if f.name in codes else getattr(s, f.name)
                        for s in strategies
                    ]
                )
                for f in fields(cls)
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTable(_Table):
    """Columns as in RolloutStrategy; `idle` and `exchange` are indices into ENGINE_IDLES and EXPERT_EXCHANGES."""

    num_gpus: FloatArray
    tp: FloatArray
    pp: FloatArray
    ep: FloatArray
    engine_fraction: FloatArray
    max_num_seqs: FloatArray
    idle: FloatArray
    attention_dp: FloatArray
    exchange: FloatArray

    @property
    def engine_gpus(self) -> FloatArray:
        """GPUs of one engine."""
        return self.tp * self.attention_dp * self.pp

    @property
    def num_engines(self) -> FloatArray:
        return self.num_gpus / self.engine_gpus

    @property
    def num_groups(self) -> FloatArray:
        """Attention groups of all engines: each has a KV cache of its own."""
        return self.num_engines * self.attention_dp

    def row(self, index: int) -> RolloutStrategy:
        def value(name: str) -> int:
            return round(float(getattr(self, name)[index]))

        return RolloutStrategy(
            num_gpus=value("num_gpus"), tp=value("tp"), pp=value("pp"), ep=value("ep"),
            engine_fraction=float(self.engine_fraction[index]), max_num_seqs=value("max_num_seqs"),
            idle=ENGINE_IDLES[value("idle")], attention_dp=value("attention_dp"),
            exchange=EXPERT_EXCHANGES[value("exchange")],
        )  # fmt: skip

    @classmethod
    def of(cls, strategies: tuple[RolloutStrategy, ...]) -> RolloutTable:
        """One row per strategy."""
        codes: dict[str, tuple[StrEnum, ...]] = {"idle": ENGINE_IDLES, "exchange": EXPERT_EXCHANGES}
        return cls(
            **{
                f.name: frozen(
                    [
                        codes[f.name].index(getattr(s, f.name)) if f.name in codes else getattr(s, f.name)
                        for s in strategies
                    ]
                )
                for f in fields(cls)
            }
        )


StrategyTable = TrainerTable | RolloutTable


def stage_layers(num_layers: int, pp: FloatArray, vpp: FloatArray) -> FloatArray:
    """Layers of the largest (virtual) pipeline stage."""
    layers: FloatArray = np.ceil(num_layers / (pp * vpp))
    return layers


def recompute_ratio(table: TrainerTable, num_layers: int) -> FloatArray:
    """Share of the layers of the largest stage whose forward pass backward repeats: 1 with FULL, 0 with NONE and
    SELECTIVE."""
    result: FloatArray = (table.recompute == RECOMPUTES.index(Recompute.FULL)).astype(np.float64)
    is_partial = table.recompute == RECOMPUTES.index(Recompute.PARTIAL)
    if is_partial.any():
        layers = stage_layers(num_layers, table.pp, table.vpp)
        result = np.where(is_partial, np.minimum(table.recompute_layers / layers, 1.0), result)
    return result


T = TypeVar("T", TrainerTable, RolloutTable)


def concatenate(tables: list[T]) -> T:
    """Rows of all tables, in order; at least one table."""
    first = tables[0]
    return type(first)(**{f.name: frozen(np.concatenate([getattr(t, f.name) for t in tables])) for f in fields(first)})
