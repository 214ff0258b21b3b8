"""Accelerators, nodes, pools and clusters, with the efficiencies that turn peaks into sustained rates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Precision(StrEnum):
    """Number format of matrix inputs."""

    BF16 = "bf16"
    FP8 = "fp8"
    FP4 = "fp4"

    @property
    def num_bytes(self) -> float:
        return {Precision.BF16: 2.0, Precision.FP8: 1.0, Precision.FP4: 0.5}[self]


class CollectiveOp(StrEnum):
    """Collective operations whose cost is tabulated."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a number comes from: source text, date (ISO) and confidence (high, medium, low)."""

    source: str
    date: str
    confidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEfficiency:
    """Sustained over peak for the kernels of one GPU and precision.

    time = launch_s + max(flop / (peak * flop_ratio), bytes / (hbm * hbm_ratio)). Attention reaches
    `attention_flop_ratio * s / (s + attention_half_tokens)` of peak at sequence length s.
    """

    gemm_flop_ratio: float
    gemm_hbm_ratio: float
    gemm_launch_s: float
    attention_flop_ratio: float
    attention_half_tokens: float
    decode_attention_hbm_ratio: float
    decode_attention_launch_s: float
    moe_gemm_flop_ratio: float
    moe_hbm_ratio: float
    """Share of HBM bandwidth at which grouped products stream the weights of routed experts."""
    moe_launch_s: float
    """Fixed time of the routed-expert part of one layer: routing, permutation, two grouped products, combination."""
    weight_only_hbm_ratio: float
    """The same for experts whose narrower weights are widened on the fly to this format."""
    weight_only_flop_ratio: float
    weight_only_launch_s: float
    training_flop_ratio: float
    """Share of peak that dense matrix products sustain in training (sustained clocks, training libraries)."""
    training_moe_flop_ratio: float
    """The same for grouped products of routed experts, router and permutation included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveLaw:
    """Three-term law `t = alpha + x / bandwidth + gamma * sqrt(x)` for bus bytes x, tabulated over ranks.

    Tuples run over `num_ranks`, ascending; between them the constants are interpolated in log2(ranks), and
    beyond the last they stay constant. `alpha_s` in s, `bytes_per_s` in bytes/s, `gamma_s` in s per sqrt(byte).
    """

    num_ranks: tuple[int, ...]
    alpha_s: tuple[float, ...]
    bytes_per_s: tuple[float, ...]
    gamma_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkEfficiency:
    """Scale-out and host-link behaviour of a node."""

    nic_ratio: float
    """Sustained share of NIC line rate for large messages."""
    nic_half_bytes: float
    """Message size per NIC at which half of that is reached."""
    nic_small_half_bytes: float = 1e6
    """The same for messages below about 1 MB, which go by low-latency protocols without chunk pipelines."""
    nic_latency_s: float
    nic_latency_per_log2_s: float
    host_link_ratio: float
    """Sustained share of the host link for one GPU with pinned memory."""
    host_node_bytes_per_s: float
    """All GPUs of a node together cannot exceed this (DRAM or root-port limit)."""
    host_memory_bytes_per_s: float
    """Host DRAM bandwidth per node that a CPU optimizer can use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator as the driver reports it; bandwidths are one direction per GPU."""

    id: str
    name: str
    vendor: str
    architecture: str
    memory_bytes: float
    hbm_bytes_per_s: float
    peak_flop_per_s: tuple[tuple[Precision, float], ...]
    scale_up_kind: str
    scale_up_bytes_per_s: float
    host_link_bytes_per_s: float
    kernels: tuple[tuple[Precision, KernelEfficiency], ...]
    collectives: tuple[tuple[CollectiveOp, CollectiveLaw], ...]
    provenance: Provenance

    def supports(self, precision: Precision) -> bool:
        return any(p is precision for p, _ in self.peak_flop_per_s) and any(p is precision for p, _ in self.kernels)

    def peak(self, precision: Precision) -> float:
        """Dense peak in FLOP/s; KeyError when the GPU has no such mode."""
        return dict(self.peak_flop_per_s)[precision]

    def kernel(self, precision: Precision) -> KernelEfficiency:
        return dict(self.kernels)[precision]

    def collective(self, op: CollectiveOp) -> CollectiveLaw:
        return dict(self.collectives)[op]


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """On-demand list price of one GPU-hour with where and when it was valid."""

    usd_per_gpu_hour: float
    provider: str
    region: str
    date: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType:
    """A kind of machine: GPUs, the domain they share at scale-up speed, NICs, host RAM and price."""

    id: str
    name: str
    gpu: Gpu
    gpus_per_node: int
    scale_up_domain_gpus: int
    """GPUs that reach each other at scale-up speed; above `gpus_per_node` for rack-scale systems."""
    nic_bytes_per_s: float
    """One direction, per GPU."""
    host_ram_bytes: float
    network: NetworkEfficiency
    price: Price | None
    provenance: Provenance
    oversubscription_ratio: float = 1.0
    """NIC rate of all GPUs below a leaf switch over what the leaf has upwards; 1 for a non-blocking fabric."""
    nodes_per_leaf: int = 1
    """Nodes that reach each other below one leaf switch (or one set of rail switches); matters when oversubscribed."""
    cpu_cores: int | None = None
    """Per node, for sandboxes and reward code; None where nobody said."""

    @property
    def leaf_gpus(self) -> int:
        """GPUs that reach each other without the oversubscribed level: at least those of a scale-up domain."""
        return max(self.nodes_per_leaf * self.gpus_per_node, self.scale_up_domain_gpus)

    def with_gpus(self, gpus_per_node: int) -> NodeType:
        """The node with fewer GPUs and its share of everything that the GPUs of a node have in common."""
        share = gpus_per_node / self.gpus_per_node
        network = replace(
            self.network,
            host_node_bytes_per_s=self.network.host_node_bytes_per_s * share,
            host_memory_bytes_per_s=self.network.host_memory_bytes_per_s * share,
        )
        is_rack_scale = self.scale_up_domain_gpus > self.gpus_per_node
        return replace(
            self,
            id=f"{self.id}-{gpus_per_node}",
            name=f"{self.name}, {gpus_per_node} of {self.gpus_per_node} GPUs",
            gpus_per_node=gpus_per_node,
            # A rack-scale domain spans nodes and stays; a board's domain ends with the GPUs that one has.
            scale_up_domain_gpus=self.scale_up_domain_gpus if is_rack_scale else gpus_per_node,
            host_ram_bytes=self.host_ram_bytes * share,
            network=network,
            cpu_cores=None if self.cpu_cores is None else max(1, round(self.cpu_cores * share)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Homogeneous nodes that can be allocated. `name` is unique in the cluster.

    GPUs are numbered over the nodes that can be used; `out_nodes` are the numbers of the others, ascending, in the
    numbering of the machine room (0, 1, ...), so that ranks can be mapped to real nodes.
    """

    name: str
    node: NodeType
    num_nodes: int
    """Nodes that can be used."""
    usd_per_gpu_hour: float | None
    out_nodes: tuple[int, ...] = ()
    rack_nodes: int | None = None
    """Nodes of a scale-up domain in the machine room, where fewer of each are used because some are out; None: as many
    as the domain of `node` has."""

    def __post_init__(self) -> None:
        if self.num_nodes < 1:
            raise ValueError(f"pool {self.name!r} needs at least one node, got {self.num_nodes}")
        if list(self.out_nodes) != sorted({max(node, 0) for node in self.out_nodes}):
            raise ValueError(f"pool {self.name!r}: nodes that are out ascend from 0, got {self.out_nodes}")
        if self.rack_nodes is not None and self.rack_nodes * self.node.gpus_per_node <= self.node.scale_up_domain_gpus:
            raise ValueError(f"pool {self.name!r}: no racks of {self.rack_nodes} nodes are made smaller")

    def physical_domain(self, index: int) -> int:
        """Number in the machine room of the usable scale-up domain `index`: of a rack, or of a part of a node."""
        per_node, per_domain = self.node.gpus_per_node, self.node.scale_up_domain_gpus
        if per_domain < per_node:
            node, part = divmod(index, per_node // per_domain)
            return self.physical_node(node) * (per_node // per_domain) + part
        nodes = per_domain // per_node
        return self.physical_node(index * nodes) // (self.rack_nodes or nodes)

    def physical_node(self, index: int) -> int:
        """Number in the machine room of the usable node `index`."""
        for out in self.out_nodes:
            if out > index:
                break
            index += 1
        return index

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.node.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """All pools that the user has, and the link between pools (bytes/s, one direction)."""

    pools: tuple[Pool, ...]
    inter_pool_bytes_per_s: float | None = None
    """Per GPU; None: the slower NIC of the two pools."""
    inter_pool_total_bytes_per_s: float | None = None
    """Of all GPUs together; None: no limit but the rate of each."""

    def __post_init__(self) -> None:
        names = [pool.name for pool in self.pools]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"pool names must be given and unique, got {names}")

    @property
    def num_gpus(self) -> int:
        return sum(pool.num_gpus for pool in self.pools)

    @property
    def num_cpu_cores(self) -> int | None:
        """Of all usable nodes; None unless every pool says how many it has."""
        cores = [pool.node.cpu_cores for pool in self.pools]
        known = [number for number in cores if number is not None]
        if len(known) < len(cores):
            return None
        return sum(pool.num_nodes * number for pool, number in zip(self.pools, known, strict=True))

    @property
    def cross_pool_bytes_per_s(self) -> float | None:
        """What one GPU can send to another pool at the least: the slowest NIC, or the link if slower; None for one
        pool."""
        if len(self.pools) == 1:
            return None
        slowest = min(pool.node.nic_bytes_per_s for pool in self.pools)
        return min(slowest, self.inter_pool_bytes_per_s or slowest)

    def pool(self, name: str) -> Pool:
        return next(pool for pool in self.pools if pool.name == name)
