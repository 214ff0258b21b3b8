"""Time of collectives and sends over a two-level network, on arrays of candidates.

Inside a scale-up domain a collective follows the three-term law `alpha + x / B + gamma * sqrt(x)` for bus
bytes x (fitted per GPU, operation and rank count). Across domains it runs as intra, inter, intra steps that
overlap partially: the longer of the two levels counts whole, the shorter one half (measured on 4 x 8 B200).
Every function returns the exposed seconds of the two levels separately; their sum is the collective's time.

Oversubscribed fabrics: below one leaf switch every NIC has its line rate; a leaf of M GPUs has M NIC rates / f upwards.
All groups of ranks communicate at the same time, so that what they send out of a leaf adds up (`Span.ring_slowdown`,
`Span.exchange_slowdown`). docs/cluster.md derives the factors.

Payload conventions: all-reduce: the tensor on each rank; all-gather and reduce-scatter: the full tensor;
all-to-all: what one rank sends, its own share included.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.domain.hardware import CollectiveLaw, CollectiveOp, NodeType
from planner.domain.strategy import BoolArray, FloatArray, IntArray

LEVEL_OVERLAP_RATIO = 0.5
"""Share of the shorter network level that hides behind the longer one."""

_PASSES = {
    CollectiveOp.ALL_REDUCE: 2.0,
    CollectiveOp.ALL_GATHER: 1.0,
    CollectiveOp.REDUCE_SCATTER: 1.0,
    CollectiveOp.ALL_TO_ALL: 1.0,
}
"""How often each byte of the payload crosses the bus: an all-reduce is a reduce-scatter and an all-gather."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where the ranks of a communicator sit, one row per candidate.

    `num_ranks` ranks, `local_ranks` of them in one scale-up domain, `num_domains` domains. `hop_s` is the
    latency of one inter-domain phase (0 for a group inside one domain).
    """

    num_ranks: FloatArray
    local_ranks: FloatArray
    num_domains: FloatArray
    local_index: IntArray
    hop_s: FloatArray
    crosses: bool
    """Some candidate's group leaves its domain."""
    communicates: bool
    """Some candidate's group has more than one rank."""
    ring_slowdown: FloatArray | None = None
    """How much longer a ring over the group takes than at NIC rate; None on a non-blocking fabric."""
    exchange_slowdown: FloatArray | None = None
    """The same for an all-to-all."""


@dataclass(frozen=True, slots=True)
class _LawTable:
    """Law of one operation by number of local ranks; index 0 and 1 are free. Bus-byte factors included."""

    alpha_s: FloatArray
    slope_s_per_byte: FloatArray
    root_s_per_sqrt_byte: FloatArray


def span(num_ranks: FloatArray, stride: FloatArray | float, node: NodeType) -> Span:
    """The span of a group whose neighbours are `stride` GPUs apart in the machine.

    Ranks are numbered node by node, so `floor(domain / stride)` members share a domain (at least one).
    """
    local = np.minimum(np.maximum(np.floor(node.scale_up_domain_gpus / stride), 1.0), num_ranks)
    domains = np.ceil(num_ranks / local)
    most = int(domains.max(initial=1.0))
    network = node.network
    if most > 1:
        hop = np.zeros(most + 1)
        hop[2:] = (
            network.nic_latency_s
            + network.nic_latency_per_log2_s * np.log2(np.arange(2, most + 1))
            + network.nic_half_bytes / line_rate(node)
        )
        hop_s = hop.take(domains.astype(np.intp))
    else:
        hop_s = np.zeros_like(local)
    ring, exchange = _slowdowns(num_ranks, stride, local, domains, node)
    return Span(
        num_ranks=num_ranks,
        local_ranks=local,
        num_domains=domains,
        local_index=local.astype(np.intp),
        hop_s=hop_s,
        crosses=most > 1,
        communicates=bool(num_ranks.max(initial=1.0) > 1),
        ring_slowdown=ring,
        exchange_slowdown=exchange,
    )


def _slowdowns(
    num_ranks: FloatArray, stride: FloatArray | float, local: FloatArray, domains: FloatArray, node: NodeType
) -> tuple[FloatArray | None, FloatArray | None]:
    """(ring, exchange) factors over NIC rate where groups leave their leaf switch; None on a non-blocking fabric.

    A ring that visits k domains of a leaf in a row leaves it once per k hops, so that the rings of all GPUs of the
    leaf put 1 / k of their NIC rates on its uplinks: max(1, f / k). An all-to-all over L leaves sends (L - 1) / L of
    the payload upwards at 1 / f of the NIC rate, and (N - 1) / N of it through the NIC.
    """
    oversubscription = node.oversubscription_ratio
    if oversubscription <= 1.0:
        return None, None
    in_leaf = np.minimum(np.maximum(np.floor(node.leaf_gpus / stride), local), num_ranks)
    leaves = np.ceil(num_ranks / in_leaf)
    ring = np.maximum(oversubscription * local / in_leaf, 1.0)
    remote = np.maximum(1.0 - 1.0 / domains, 0.5)  # of two domains or more; one has no leaf to leave
    exchange = np.maximum(oversubscription * (1.0 - 1.0 / leaves) / remote, 1.0)
    return np.where(leaves > 1.0, ring, 1.0), np.where(leaves > 1.0, exchange, 1.0)


def line_rate(node: NodeType) -> float:
    """Sustained bytes/s of one GPU's NIC for large messages below one leaf switch.

    A message of s bytes reaches s / (s + nic_half_bytes) of it, which is the same as a fixed latency of
    nic_half_bytes / rate; `Span.hop_s` and `send_s` contain that latency.
    """
    return node.nic_bytes_per_s * node.network.nic_ratio


def nic_rate(node: NodeType) -> float:
    """Sustained bytes/s of one GPU while all GPUs send to anywhere in the pool: the line rate, or its share of the
    uplinks of an oversubscribed leaf."""
    return line_rate(node) / node.oversubscription_ratio


def group_rate(num_gpus: FloatArray, node: NodeType) -> FloatArray | float:
    """`nic_rate` within groups of `num_gpus` adjacent GPUs: those that fit below one leaf keep the line rate."""
    if node.oversubscription_ratio <= 1.0:
        return line_rate(node)
    return np.where(num_gpus <= node.leaf_gpus, line_rate(node), nic_rate(node))


def pipeline_slowdown(num_gpus: FloatArray, num_stages: FloatArray, node: NodeType) -> FloatArray | float:
    """Factor over NIC rate of sends between pipeline stages that are num_gpus / num_stages GPUs apart.

    All ranks send at the same time; of the M GPUs of a leaf the last num_gpus / num_stages send upwards:
    max(1, f * min(distance, M) / M), and 1 for a pipeline below one leaf.
    """
    oversubscription, leaf = node.oversubscription_ratio, float(node.leaf_gpus)
    if oversubscription <= 1.0:
        return 1.0
    upwards = np.minimum(num_gpus / num_stages, leaf) / leaf
    return np.where(num_gpus > leaf, np.maximum(oversubscription * upwards, 1.0), 1.0)


def collective_s(
    op: CollectiveOp, payload_bytes: FloatArray | float, group: Span, node: NodeType
) -> tuple[FloatArray, FloatArray]:
    """(scale-up, scale-out) seconds of one collective; both 0 for a group of one rank.

    Inter-domain traffic per NIC is `passes * (N - 1) / N * payload / g` for N domains of g ranks, since all
    ranks of a domain send through their own NIC; an all-to-all sends `(N - 1) / N` of each rank's payload.
    """
    if not group.communicates:
        return np.zeros_like(group.num_ranks), np.zeros_like(group.num_ranks)
    is_exchange = op is CollectiveOp.ALL_TO_ALL
    if not group.crosses:
        return _local_s(op, payload_bytes, group, node), np.zeros_like(group.num_ranks)
    local_bytes = payload_bytes / group.num_domains if is_exchange else payload_bytes
    scale_up = _local_s(op, local_bytes, group, node)
    remote_ratio = 1.0 - 1.0 / group.num_domains
    wire = remote_ratio * payload_bytes * (_PASSES[op] / line_rate(node))
    if not is_exchange:
        wire /= group.local_ranks
    slowdown = group.exchange_slowdown if is_exchange else group.ring_slowdown
    if slowdown is not None:
        wire *= slowdown
    wire += group.hop_s
    return overlap(scale_up, wire)


def overlap(scale_up_s: FloatArray, scale_out_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Exposed parts of two levels of one collective: the longer whole, half of the shorter."""
    hidden = LEVEL_OVERLAP_RATIO * np.minimum(scale_up_s, scale_out_s)
    out_is_longer = scale_out_s > scale_up_s
    up_hidden = hidden * out_is_longer
    return scale_up_s - up_hidden, scale_out_s - (hidden - up_hidden)


def send_s(
    payload_bytes: FloatArray | float, crosses: BoolArray, node: NodeType, slowdown: FloatArray | float | None = None
) -> FloatArray:
    """Seconds of one point-to-point message; `crosses` says which candidates leave the scale-up domain.

    `slowdown` is a factor over NIC rate on an oversubscribed fabric; None: all GPUs send out of their leaf.
    Inside a domain: latency and bandwidth of a two-rank all-gather, whose bus carries the message once.
    """
    law = node.gpu.collective(CollectiveOp.ALL_GATHER)
    inside = law.alpha_s[0] + payload_bytes * (1.0 / law.bytes_per_s[0])
    network = node.network
    rate = line_rate(node)
    on_wire = payload_bytes * (1.0 / rate)
    if node.oversubscription_ratio > 1.0:
        on_wire = on_wire * (node.oversubscription_ratio if slowdown is None else slowdown)
    outside = on_wire + (network.nic_latency_s + network.nic_half_bytes / rate)
    return np.where(crosses, np.maximum(inside, outside), inside)


def exchange_copies(num_places: FloatArray, num_choices: int) -> FloatArray:
    """Expected number of distinct places that one token's `num_choices` routed copies visit.

    Uniform routing over `num_places` ranks or domains: n * (1 - (1 - 1/n)**k). A dispatch that sends a token
    once per destination moves that many copies (DeepEP, arXiv 2412.19437 section 3.2.2).
    """
    most = int(num_places.max(initial=1.0))
    places = np.arange(1, most + 1, dtype=np.float64)
    table = np.concatenate([[0.0], places * (1.0 - (1.0 - 1.0 / places) ** num_choices)])
    return table.take(num_places.astype(np.intp))


def expert_exchange_s(
    token_bytes: FloatArray, num_choices: int, group: Span, node: NodeType, *, merges_copies: bool = True
) -> tuple[FloatArray, FloatArray]:
    """(scale-up, scale-out) seconds of one expert dispatch or combine.

    `token_bytes` are the bytes of one rank's tokens, each counted once; copies are sent once per domain over
    the NIC and once per rank inside the domain. The two levels run as a stream, so only the longer counts.

    With `merges_copies` False each of a token's copies travels alone to the rank of its expert, as kernels for the few
    tokens of a decode step send them: (g - 1) / N of the copies stay in a domain of g ranks, 1 - g / N leave it. Such
    messages are small (the whole three-term law counts) and written without a handshake (one latency of the NIC).
    Within 15 % of published DeepEP low-latency kernels of 128 tokens on 8 to 64 H100 (tests).
    """
    if not group.communicates:
        return np.zeros_like(token_bytes), np.zeros_like(token_bytes)
    # nodes of one GPU have no pairs inside, but the slope of a pair is looked up for every row
    most_ranks = max(node.scale_up_domain_gpus, 2)
    law = _law_table(node.gpu.collective(CollectiveOp.ALL_TO_ALL), CollectiveOp.ALL_TO_ALL, most_ranks)
    is_group = group.num_ranks > 1.0
    # bandwidth without the (g-1)/g of the table: the share that stays on the rank is subtracted below
    local = np.maximum(group.local_ranks, 2.0)
    slope = law.slope_s_per_byte.take(local.astype(np.intp)) * (local / (local - 1.0))
    if merges_copies:
        inside = exchange_copies(group.local_ranks, num_choices) * (1.0 - 1.0 / group.num_ranks)
    else:
        inside = num_choices * (group.local_ranks - 1.0) / group.num_ranks
    sent = token_bytes * inside
    scale_up = (law.alpha_s.take(group.local_index) + sent * slope) * is_group
    if not merges_copies:
        root = law.root_s_per_sqrt_byte.take(local.astype(np.intp)) * np.sqrt(local / (local - 1.0))
        scale_up = scale_up + np.sqrt(sent) * root * is_group
    if not group.crosses:
        return scale_up, np.zeros_like(scale_up)
    copies = exchange_copies(group.num_domains, num_choices) if merges_copies else float(num_choices)
    remote = copies * (1.0 - 1.0 / group.num_domains)
    wire = token_bytes * remote * (1.0 / line_rate(node))
    if group.exchange_slowdown is not None:
        wire *= group.exchange_slowdown
    wire = wire + (group.hop_s if merges_copies else node.network.nic_latency_s * (group.num_domains > 1.0))
    out_is_longer = wire > scale_up
    return scale_up * ~out_is_longer, wire * out_is_longer


def _local_s(op: CollectiveOp, payload_bytes: FloatArray | float, group: Span, node: NodeType) -> FloatArray:
    law = _law_table(node.gpu.collective(op), op, node.scale_up_domain_gpus)
    index = group.local_index
    result = payload_bytes * law.slope_s_per_byte.take(index)
    result += law.alpha_s.take(index)
    result += np.sqrt(payload_bytes) * law.root_s_per_sqrt_byte.take(index)
    return result


@lru_cache(maxsize=256)
def _law_table(law: CollectiveLaw, op: CollectiveOp, most_ranks: int) -> _LawTable:
    """Constants for 0..most_ranks local ranks, interpolated in log2(ranks), constant outside the tabulated range."""
    ranks = np.arange(most_ranks + 1, dtype=np.float64)
    position = np.log2(np.maximum(ranks, 1.0))
    known = np.log2(np.asarray(law.num_ranks, dtype=np.float64))
    bus_factor = np.zeros_like(ranks)
    bus_factor[2:] = _PASSES[op] * (ranks[2:] - 1.0) / ranks[2:]
    is_group = (ranks > 1.0).astype(np.float64)
    return _LawTable(
        alpha_s=np.interp(position, known, law.alpha_s) * is_group,
        slope_s_per_byte=bus_factor / np.interp(position, known, law.bytes_per_s),
        root_s_per_sqrt_byte=np.interp(position, known, law.gamma_s) * np.sqrt(bus_factor),
    )
