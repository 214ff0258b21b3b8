"""Time of collectives and sends over a two-level network, on arrays of candidates.

Inside a scale-up domain a collective follows the three-term law `alpha + x / B + gamma * sqrt(x)` for bus
bytes x (fitted per GPU, operation and rank count). Across domains it runs as intra, inter, intra steps that
overlap partially: the longer of the two levels counts whole, the shorter one half (measured on 4 x 8 B200).
Every function returns the exposed seconds of the two levels separately; their sum is the collective's time.

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
            + network.nic_half_bytes / nic_rate(node)
        )
        hop_s = hop.take(domains.astype(np.intp))
    else:
        hop_s = np.zeros_like(local)
    return Span(
        num_ranks=num_ranks,
        local_ranks=local,
        num_domains=domains,
        local_index=local.astype(np.intp),
        hop_s=hop_s,
        crosses=most > 1,
        communicates=bool(num_ranks.max(initial=1.0) > 1),
    )


def nic_rate(node: NodeType) -> float:
    """Sustained bytes/s of one GPU's NIC for large messages.

    A message of s bytes reaches s / (s + nic_half_bytes) of it, which is the same as a fixed latency of
    nic_half_bytes / rate; `Span.hop_s` and `send_s` contain that latency.
    """
    return node.nic_bytes_per_s * node.network.nic_ratio


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
    wire = remote_ratio * payload_bytes * (_PASSES[op] / nic_rate(node))
    if not is_exchange:
        wire /= group.local_ranks
    wire += group.hop_s
    return overlap(scale_up, wire)


def overlap(scale_up_s: FloatArray, scale_out_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Exposed parts of two levels of one collective: the longer whole, half of the shorter."""
    hidden = LEVEL_OVERLAP_RATIO * np.minimum(scale_up_s, scale_out_s)
    out_is_longer = scale_out_s > scale_up_s
    up_hidden = hidden * out_is_longer
    return scale_up_s - up_hidden, scale_out_s - (hidden - up_hidden)


def send_s(payload_bytes: FloatArray | float, crosses: BoolArray, node: NodeType) -> FloatArray:
    """Seconds of one point-to-point message; `crosses` says which candidates leave the scale-up domain.

    Inside a domain: latency and bandwidth of a two-rank all-gather, whose bus carries the message once.
    """
    law = node.gpu.collective(CollectiveOp.ALL_GATHER)
    inside = law.alpha_s[0] + payload_bytes * (1.0 / law.bytes_per_s[0])
    network = node.network
    rate = nic_rate(node)
    outside = payload_bytes * (1.0 / rate) + (network.nic_latency_s + network.nic_half_bytes / rate)
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
    token_bytes: FloatArray, num_choices: int, group: Span, node: NodeType
) -> tuple[FloatArray, FloatArray]:
    """(scale-up, scale-out) seconds of one expert dispatch or combine.

    `token_bytes` are the bytes of one rank's tokens, each counted once; copies are sent once per domain over
    the NIC and once per rank inside the domain. The two levels run as a stream, so only the longer counts.
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
    sent = token_bytes * exchange_copies(group.local_ranks, num_choices) * (1.0 - 1.0 / group.num_ranks)
    scale_up = (law.alpha_s.take(group.local_index) + sent * slope) * is_group
    if not group.crosses:
        return scale_up, np.zeros_like(scale_up)
    remote = exchange_copies(group.num_domains, num_choices) * (1.0 - 1.0 / group.num_domains)
    wire = token_bytes * remote * (1.0 / nic_rate(node)) + group.hop_s
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
