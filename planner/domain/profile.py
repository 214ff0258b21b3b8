"""A calibration profile: what a user's own runs say about the efficiencies of the catalog, and how it enters them.

A profile holds values of few parameters. Those of the software (`StepLosses`, engine step) replace the catalog's
value; those of the hardware are factors on the catalog's efficiencies of one GPU type, because one of them stands for
several constants (all HBM efficiencies, the bandwidths of a collective over all rank counts).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from planner.domain.hardware import Cluster, CollectiveLaw, CollectiveOp, Gpu, KernelEfficiency, NodeType
from planner.domain.overheads import Overheads


class Parameter(StrEnum):
    """What can be calibrated. Software parameters have the unit of their suffix; hardware ones are factors."""

    ROLLOUT_RATIO = "rollout_ratio"
    """StepLosses.rollout_ratio."""
    TRAINING_RATIO = "training_ratio"
    """StepLosses.training_ratio: dense models."""
    MOE_TRAINING_RATIO = "moe_training_ratio"
    """StepLosses.moe_training_ratio."""
    SYNC_RATIO = "sync_ratio"
    """StepLosses.sync_ratio: weight sync between workers on the same GPUs."""
    SWAP_RATE = "swap_bytes_per_s"
    """StepLosses.swap_bytes_per_s."""
    STEP = "step_s"
    """StepLosses.step_s."""
    SEQUENCE = "sequence_s"
    """StepLosses.sequence_s."""
    ENGINE_STEP = "engine_step_s"
    """Overheads.engine_step_s, and that of every engine's profile in proportion."""
    ENGINE_LAUNCH = "engine_launch_ratio"
    """Overheads.engine_launch_ratio, and that of every engine's profile in proportion."""
    HBM = "hbm_factor"
    """On every share of HBM bandwidth that kernels reach."""
    TRAINING_FLOP = "training_flop_factor"
    """On the share of peak that matrix products sustain in training, dense and MoE."""
    ALL_REDUCE_BANDWIDTH = "all_reduce_bandwidth_factor"
    ALL_GATHER_BANDWIDTH = "all_gather_bandwidth_factor"
    REDUCE_SCATTER_BANDWIDTH = "reduce_scatter_bandwidth_factor"
    ALL_TO_ALL_BANDWIDTH = "all_to_all_bandwidth_factor"
    ALL_REDUCE_LATENCY = "all_reduce_latency_factor"
    """On the fixed time and the square-root term of the law; bandwidth factors are on the bandwidth alone."""
    ALL_GATHER_LATENCY = "all_gather_latency_factor"
    REDUCE_SCATTER_LATENCY = "reduce_scatter_latency_factor"
    ALL_TO_ALL_LATENCY = "all_to_all_latency_factor"
    NIC_BANDWIDTH = "nic_bandwidth_factor"
    """On the sustained share of NIC line rate."""
    NIC_LATENCY = "nic_latency_factor"
    """On the fixed time of one phase across nodes; the half-bandwidth size follows, being a latency too."""


SOFTWARE = frozenset(
    {
        Parameter.ROLLOUT_RATIO,
        Parameter.TRAINING_RATIO,
        Parameter.MOE_TRAINING_RATIO,
        Parameter.SYNC_RATIO,
        Parameter.SWAP_RATE,
        Parameter.STEP,
        Parameter.SEQUENCE,
        Parameter.ENGINE_STEP,
        Parameter.ENGINE_LAUNCH,
    }
)
"""Parameters that replace a value of `Overheads`; all others are factors on the hardware of one GPU type."""

_LOSSES = SOFTWARE - {Parameter.ENGINE_STEP, Parameter.ENGINE_LAUNCH}

BANDWIDTH_OF = {
    CollectiveOp.ALL_REDUCE: Parameter.ALL_REDUCE_BANDWIDTH,
    CollectiveOp.ALL_GATHER: Parameter.ALL_GATHER_BANDWIDTH,
    CollectiveOp.REDUCE_SCATTER: Parameter.REDUCE_SCATTER_BANDWIDTH,
    CollectiveOp.ALL_TO_ALL: Parameter.ALL_TO_ALL_BANDWIDTH,
}
LATENCY_OF = {
    CollectiveOp.ALL_REDUCE: Parameter.ALL_REDUCE_LATENCY,
    CollectiveOp.ALL_GATHER: Parameter.ALL_GATHER_LATENCY,
    CollectiveOp.REDUCE_SCATTER: Parameter.REDUCE_SCATTER_LATENCY,
    CollectiveOp.ALL_TO_ALL: Parameter.ALL_TO_ALL_LATENCY,
}
_MAX_FLOP_RATIO = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileValue:
    """One calibrated value with the interval that should hold it (90 %), and the catalog's.

    `gpu` is the id of the GPU type that a hardware factor belongs to, None for software. Raises ValueError for values
    that are not positive, an interval that does not hold the value, or a GPU where none belongs.
    """

    parameter: Parameter
    gpu: str | None
    value: float
    low: float
    high: float
    catalog: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.value <= self.high < float("inf") or not 0 < self.catalog < float("inf"):
            raise ValueError(
                f"{self.parameter.value}: {self.low:g} to {self.high:g} is no interval around {self.value:g}"
            )
        if (self.parameter in SOFTWARE) != (self.gpu is None):
            needs = "names no GPU" if self.parameter in SOFTWARE else "needs the GPU that it is for"
            raise ValueError(f"{self.parameter.value} {needs}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSource:
    """A file that a profile was made from: its name, the SHA-256 of its bytes, its kind, and how much of it counted."""

    name: str
    sha256: str
    kind: str
    num_used: int
    """Iterations of a run, or lines of a benchmark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Calibrated values, and where they come from. Raises ValueError when a value is given twice."""

    values: tuple[ProfileValue, ...]
    sources: tuple[ProfileSource, ...] = ()
    date: str = ""
    """ISO date that the user gave for the runs; empty if none."""
    name: str = ""
    """The file it was read from, for messages."""

    def __post_init__(self) -> None:
        keys = [(item.parameter, item.gpu) for item in self.values]
        if len(set(keys)) < len(keys):
            raise ValueError("a parameter is given twice")

    def of(self, parameter: Parameter, gpu: str | None = None) -> float | None:
        """The calibrated value, or None where the profile has none."""
        for item in self.values:
            if item.parameter is parameter and item.gpu == gpu:
                return item.value
        return None

    def overheads(self, base: Overheads) -> Overheads:
        """`base` with the calibrated software costs."""
        return with_software(base, {item.parameter: item.value for item in self.values if item.gpu is None})

    def node(self, base: NodeType) -> NodeType:
        """`base` with the calibrated efficiencies of its GPU type; unchanged for other types."""
        return with_hardware(base, {item.parameter: item.value for item in self.values if item.gpu == base.gpu.id})

    def cluster(self, base: Cluster) -> Cluster:
        """`base` with every pool's node calibrated."""
        return replace(base, pools=tuple(replace(pool, node=self.node(pool.node)) for pool in base.pools))


def software_value(overheads: Overheads, parameter: Parameter) -> float:
    """The value of a software parameter in `overheads`."""
    if parameter is Parameter.ENGINE_STEP:
        return overheads.engine_step_s
    if parameter is Parameter.ENGINE_LAUNCH:
        return overheads.engine_launch_ratio
    value: float = getattr(overheads.step_losses, parameter.value)
    return value


def with_software(base: Overheads, values: dict[Parameter, float]) -> Overheads:
    """`base` with the values of software parameters."""
    losses = base.step_losses
    for parameter in _LOSSES & values.keys():
        losses = replace(losses, **{parameter.value: values[parameter]})
    result = replace(base, step_losses=losses)
    if Parameter.ENGINE_STEP in values and base.engine_step_s > 0:
        factor = values[Parameter.ENGINE_STEP] / base.engine_step_s
        engines = tuple(replace(item, step_s=item.step_s * factor) for item in base.engines)
        result = replace(result, engine_step_s=values[Parameter.ENGINE_STEP], engines=engines)
    if Parameter.ENGINE_LAUNCH in values:
        factor = values[Parameter.ENGINE_LAUNCH] / base.engine_launch_ratio
        engines = tuple(replace(item, launch_ratio=item.launch_ratio * factor) for item in result.engines)
        result = replace(result, engine_launch_ratio=values[Parameter.ENGINE_LAUNCH], engines=engines)
    return result


def with_hardware(base: NodeType, factors: dict[Parameter, float]) -> NodeType:
    """`base` with factors on its efficiencies. Shares of a peak stay at most 1, and no collective sends faster than its
    link can (`most_bytes_per_s`)."""
    if not factors:
        return base
    gpu = base.gpu
    kernels = tuple((precision, _kernel(item, factors)) for precision, item in gpu.kernels)
    laws = tuple((op, _law(item, op, factors, gpu.scale_up_bytes_per_s)) for op, item in gpu.collectives)
    calibrated: Gpu = replace(gpu, kernels=kernels, collectives=laws)
    bandwidth = factors.get(Parameter.NIC_BANDWIDTH, 1.0)
    latency = factors.get(Parameter.NIC_LATENCY, 1.0)
    network = replace(
        base.network,
        nic_ratio=min(base.network.nic_ratio * bandwidth, _MAX_FLOP_RATIO),
        nic_latency_s=base.network.nic_latency_s * latency,
        nic_latency_per_log2_s=base.network.nic_latency_per_log2_s * latency,
        nic_half_bytes=base.network.nic_half_bytes * latency,
        nic_small_half_bytes=base.network.nic_small_half_bytes * latency,
    )
    return replace(base, gpu=calibrated, network=network)


def _kernel(base: KernelEfficiency, factors: dict[Parameter, float]) -> KernelEfficiency:
    hbm = factors.get(Parameter.HBM, 1.0)
    flop = factors.get(Parameter.TRAINING_FLOP, 1.0)
    return replace(
        base,
        gemm_hbm_ratio=_share(base.gemm_hbm_ratio, hbm),
        decode_attention_hbm_ratio=_share(base.decode_attention_hbm_ratio, hbm),
        moe_hbm_ratio=_share(base.moe_hbm_ratio, hbm),
        weight_only_hbm_ratio=_share(base.weight_only_hbm_ratio, hbm),
        training_flop_ratio=_share(base.training_flop_ratio, flop),
        training_moe_flop_ratio=_share(base.training_moe_flop_ratio, flop),
    )


def _share(ratio: float, factor: float) -> float:
    return min(ratio * factor, max(_MAX_FLOP_RATIO, ratio))


def _law(
    base: CollectiveLaw, op: CollectiveOp, factors: dict[Parameter, float], line_bytes_per_s: float
) -> CollectiveLaw:
    bandwidth = factors.get(BANDWIDTH_OF[op], 1.0)
    latency = factors.get(LATENCY_OF[op], 1.0)
    return replace(
        base,
        alpha_s=tuple(value * latency for value in base.alpha_s),
        bytes_per_s=tuple(
            min(value * bandwidth, max(value, most_bytes_per_s(value, ranks, line_bytes_per_s)))
            for value, ranks in zip(base.bytes_per_s, base.num_ranks, strict=True)
        ),
        gamma_s=tuple(value * latency for value in base.gamma_s),
    )


def most_bytes_per_s(catalog_bytes_per_s: float, num_ranks: int, line_bytes_per_s: float) -> float:
    """The bus bandwidth that a collective of `num_ranks` GPUs cannot exceed: the line rate.

    Where the catalog's is above it already, a switch reduces on the way (NVLink SHARP): of S bytes each GPU then sends
    S (1 + 1/n) instead of the 2 S (n - 1) / n that bus bandwidth counts.
    """
    if catalog_bytes_per_s <= line_bytes_per_s:
        return line_bytes_per_s
    counted, sent = 2.0 * (num_ranks - 1) / num_ranks, 1.0 + 1.0 / num_ranks
    return line_bytes_per_s * max(counted / sent, 1.0)
