"""Parts of a strategy that the user fixes; the search chooses the rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.domain.stages import WorkerName
from planner.domain.strategy import (
    CONTEXT_PARALLELS,
    ENGINE_IDLES,
    EXPERT_EXCHANGES,
    OFFLOADS,
    RECOMPUTES,
    SHARDINGS,
    BoolArray,
    FloatArray,
    RolloutTable,
    StrategyTable,
)

ENUMERATED: dict[str, tuple[str, ...]] = {
    "context_parallel": tuple(CONTEXT_PARALLELS),
    "sharding": tuple(SHARDINGS),
    "recompute": tuple(RECOMPUTES),
    "offload": tuple(OFFLOADS),
    "idle": tuple(ENGINE_IDLES),
    "exchange": tuple(EXPERT_EXCHANGES),
}
"""Fields whose values are names."""
TRAINER_FIELDS = (
    "num_gpus", "tp", "pp", "vpp", "cp", "dp", "context_parallel", "ep", "etp", "sharding", "shard_ranks",
    "micro_batch_tokens", "inference_tokens", "recompute", "recompute_layers", "offload",
)  # fmt: skip
ENGINE_FIELDS = (
    "num_gpus", "tp", "pp", "attention_dp", "ep", "exchange", "dp", "engine_fraction", "max_num_seqs", "idle",
)  # fmt: skip
"""`dp` is the number of engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedField:
    """One field of a worker's strategy and the value that it must have, as text: `tp` `8`, `recompute` `full`."""

    worker: WorkerName
    field: str
    value: str

    def __str__(self) -> str:
        return f"{self.worker.value}: {self.field}={self.value}"

    def allows(self, table: StrategyTable) -> BoolArray:
        """Rows of the worker's candidates that have the value."""
        name = "num_engines" if self.field == "dp" and isinstance(table, RolloutTable) else self.field
        column: FloatArray = getattr(table, name)
        if self.field in ENUMERATED:
            return np.asarray(column == ENUMERATED[self.field].index(self.value))
        return np.asarray(np.isclose(column, float(self.value)))
