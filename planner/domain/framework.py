"""What a training framework can run, as rules over strategies and placements (data: planner/adapters/data)."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import (
    ContextParallel,
    EngineIdle,
    Offload,
    Recompute,
    Sharding,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerBackend:
    """One training back end of a framework: the degrees and techniques that its configuration can express."""

    name: str
    """`megatron`, `fsdp`, `deepspeed`, ..."""
    shardings: frozenset[Sharding]
    allows_hybrid_shard: bool
    """HSDP: sharding over fewer ranks than all data-parallel ranks."""
    max_tp: int
    max_pp: int
    max_vpp: int
    max_cp: int
    context_parallels: frozenset[ContextParallel]
    allows_ep: bool
    allows_etp: bool
    """Expert-TP different from TP."""
    recomputes: frozenset[Recompute]
    offloads: frozenset[Offload]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkRules:
    """Capabilities of one framework version for synchronous plans. Every limit names its evidence."""

    name: str
    title: str
    version: str
    backends: tuple[TrainerBackend, ...]
    max_rollout_pp: int
    rollout_ep_equals_tp: bool
    """An engine with expert parallelism spreads experts over all its TP ranks."""
    engine_idles: frozenset[EngineIdle]
    must_share: tuple[frozenset[WorkerName], ...]
    """Workers that always sit on one device group."""
    may_share: tuple[frozenset[WorkerName], ...]
    """Sets of workers that may sit on one device group; any other sharing is impossible."""
    shared_workers_use_whole_group: bool
    """Workers on one device group all span it completely."""
    whole_nodes_only: bool
    """Device groups of several nodes consist of whole nodes (one node may be used in part)."""
    always_recomputes_old_logprob: bool
    supported_stages: frozenset[StageName]
    evidence: tuple[tuple[str, str], ...]
    """(rule, file or page that shows it)."""
