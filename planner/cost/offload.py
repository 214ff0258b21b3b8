"""Host RAM and the host link: what each offload mode moves, keeps on the GPU and keeps on the host.

Stage swap and CPU optimizer are different things. A swap takes states off the GPU only while other workers
run, so the peak of the worker's own stages does not change; a CPU optimizer never brings them to the GPU.
Each stage pays its own loads: a forward-only stage loads weights (the host copy stays valid, nothing is
written back), the update loads and stores weights and optimizer states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.domain.hardware import NodeType
from planner.domain.strategy import OFFLOADS, FloatArray, Offload


def _flags(*modes: Offload) -> FloatArray:
    flags = np.array([float(mode in modes) for mode in OFFLOADS])
    flags.setflags(write=False)
    return flags


SWAPS_WEIGHTS = _flags(Offload.STATE_SWAP, Offload.CPU_OPTIMIZER_STATE_SWAP)
"""1 by index into OFFLOADS where weights and gradients leave the GPU between stages."""
SWAPS_GRADIENTS = _flags(Offload.OPTIMIZER_SWAP, Offload.STATE_SWAP, Offload.CPU_OPTIMIZER_STATE_SWAP)
SWAPS_OPTIMIZER = _flags(Offload.OPTIMIZER_SWAP, Offload.STATE_SWAP)
HAS_CPU_OPTIMIZER = _flags(Offload.CPU_OPTIMIZER, Offload.CPU_OPTIMIZER_STATE_SWAP)

CPU_MASTER_BYTES = 12.0
"""Host bytes per parameter of fp32 master weights and two Adam moments."""
CPU_GRADIENT_BYTES = 4.0
CPU_OPTIMIZER_LINK_BYTES = CPU_GRADIENT_BYTES + 2.0
"""Bytes over the host link per parameter and step: gradients come down, 16-bit weights go up."""
CPU_OPTIMIZER_TRAFFIC_BYTES = 28.0
"""Host DRAM traffic per parameter: read gradient, master, two moments; write master and moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadFlags:
    """The flags of each candidate as 0/1 columns."""

    weights: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    cpu_optimizer: FloatArray


def offload_flags(offload: np.ndarray[tuple[int, ...], np.dtype[np.intp]]) -> OffloadFlags:
    """Columns of flags from indices into OFFLOADS."""
    return OffloadFlags(
        weights=SWAPS_WEIGHTS.take(offload),
        gradients=SWAPS_GRADIENTS.take(offload),
        optimizer=SWAPS_OPTIMIZER.take(offload),
        cpu_optimizer=HAS_CPU_OPTIMIZER.take(offload),
    )


def host_link_rate(node: NodeType, node_gpus: FloatArray) -> FloatArray:
    """Bytes/s per GPU between host RAM and GPU when `node_gpus` GPUs of a node move data at the same time.

    min(link * sustained share, what the node's DRAM and root ports give in total / GPUs).
    """
    network = node.network
    link = node.gpu.host_link_bytes_per_s * network.host_link_ratio
    return np.minimum(link, network.host_node_bytes_per_s / node_gpus)


def update_swap_bytes(weights: FloatArray, optimizer: FloatArray, flags: OffloadFlags) -> FloatArray:
    """Bytes per GPU over the host link that the update loads and stores of what its offload mode swaps.

    Gradients are allocated again, not copied. A CPU optimizer leaves fresh weights on the host, so weights need no
    store then.
    """
    stores_weights = 1.0 - flags.cpu_optimizer
    return weights * flags.weights * (1.0 + stores_weights) + 2.0 * optimizer * flags.optimizer


def cpu_optimizer_s(
    shard_params: FloatArray, node_gpus: FloatArray, link_bytes_per_s: FloatArray, node: NodeType
) -> FloatArray:
    """Seconds of one optimizer step on the host for `shard_params` parameters per GPU.

    Gradients come down (4 bytes) and 16-bit weights go up (2 bytes) over the host link; all GPUs of a node
    share its DRAM bandwidth.
    """
    step = shard_params * node_gpus * (CPU_OPTIMIZER_TRAFFIC_BYTES / node.network.host_memory_bytes_per_s)
    return step + shard_params * CPU_OPTIMIZER_LINK_BYTES / link_bytes_per_s
