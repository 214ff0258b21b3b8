"""Techniques of RL post-training as facts about frameworks: what a framework does, how, and where that is seen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Support(StrEnum):
    """Whether a framework has a technique."""

    YES = "yes"
    PARTIAL = "partial"
    NO = "no"


class TechniqueName(StrEnum):
    """What frameworks are compared by: between models first, then inside one."""

    COLOCATED = "colocated"
    """Training and generation take turns on the same GPUs."""
    DISAGGREGATED = "disaggregated"
    """Training and generation on GPUs of their own."""
    HYBRID_RESHARDING = "hybrid resharding"
    """Weights go from the training layout to the generation layout without a file."""
    STAGE_OVERLAP = "stage overlap"
    ASYNC_K_STEP = "asynchronous by k steps"
    PARTIAL_ROLLOUT = "partial rollouts"
    PER_ROLE_POOLS = "pools per role"
    SEPARATE_REWARD_REFERENCE = "reward and reference apart"
    HETEROGENEOUS_POOLS = "heterogeneous pools"
    DATA_PARALLEL = "data parallel"
    TENSOR_PARALLEL = "tensor parallel"
    PIPELINE_PARALLEL = "pipeline parallel"
    SEQUENCE_PARALLEL = "sequence parallel"
    CONTEXT_PARALLEL = "context parallel"
    EXPERT_PARALLEL = "expert parallel"
    ZERO3_FSDP = "ZeRO-3 or FSDP"
    OFFLOAD = "offload"
    FP8_ROLLOUT = "FP8 rollout"
    BUILT_IN_PLANNING = "built-in planning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Technique:
    """One cell of the matrix; `how` is empty where there is nothing to say, `evidence` names a file or page."""

    name: TechniqueName
    support: Support
    how: str
    evidence: str
