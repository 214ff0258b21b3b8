"""Runs of nccl-tests as observations of the collective laws and of the NIC."""

from __future__ import annotations

import math
import re

import numpy as np

from planner.calibration.parameters import Key, Point, node_at
from planner.calibration.source import Observation
from planner.cost.communication import collective_s, send_s, span
from planner.domain.hardware import CollectiveOp, NodeType
from planner.domain.lengths import FloatArray
from planner.domain.profile import BANDWIDTH_OF, LATENCY_OF, Parameter
from planner.errors import InvalidInputError
from planner.files.bench_logs import LinkBench, LinkTest
from planner.files.catalog import generic_node, list_gpus

ROW_LOG_SD = 0.1
"""What one size may be off: the law is smooth, libraries switch algorithms between sizes."""
FREE_ROWS = 6
"""Sizes of one test that count fully; more of them repeat each other."""
MAX_ROWS = 64
_OPS = {
    LinkTest.ALL_REDUCE: CollectiveOp.ALL_REDUCE,
    LinkTest.ALL_GATHER: CollectiveOp.ALL_GATHER,
    LinkTest.REDUCE_SCATTER: CollectiveOp.REDUCE_SCATTER,
    LinkTest.ALL_TO_ALL: CollectiveOp.ALL_TO_ALL,
}
_WORDS = re.compile(r"[a-z0-9]+")


class LinkSource:
    """The sizes of one run of nccl-tests on nodes of one type. What is sent between nodes tells about NICs, else about
    the scale-up links."""

    def __init__(self, bench: LinkBench, node: NodeType) -> None:
        """Raises InvalidInputError for one rank, or ranks that the node cannot hold."""
        self.bench, self.node = bench, node
        self.per_node = bench.num_ranks / bench.num_nodes
        if bench.num_ranks < 2:
            raise InvalidInputError("ran on one rank, which sends nothing", where=bench.file)
        if self.per_node > node.gpus_per_node or self.per_node != int(self.per_node):
            raise InvalidInputError(
                f"{bench.num_ranks} ranks on {bench.num_nodes} nodes do not fit nodes of {node.gpus_per_node} GPUs",
                where=bench.file, accepted="--gpus with the node type that it ran on",
            )  # fmt: skip
        # A rack-scale domain may hold all of the nodes: then nothing crosses a NIC.
        self.crosses = bench.num_nodes > 1 and bench.num_nodes * node.gpus_per_node > node.scale_up_domain_gpus
        self._rows = bench.rows[-MAX_ROWS:]
        self.num_used = len(self._rows)
        where = f"{bench.num_ranks} ranks on {bench.num_nodes} node{'s' if bench.num_nodes > 1 else ''}"
        log_sd = ROW_LOG_SD * math.sqrt(max(1.0, len(self._rows) / FREE_ROWS))
        self.observations: tuple[Observation, ...] = tuple(
            Observation(
                label=f"{bench.test.value}, {where}", kind=f"{bench.file} {row.line}", measured=row.seconds,
                log_sd=log_sd, fold=f"{bench.file} {row.line}",
            )
            for row in self._rows
        )  # fmt: skip
        self.keys: tuple[Key, ...] = tuple(Key(parameter, node.gpu.id) for parameter in self._parameters())

    def _parameters(self) -> tuple[Parameter, ...]:
        if self.crosses:
            return (Parameter.NIC_BANDWIDTH, Parameter.NIC_LATENCY)
        op = _OPS.get(self.bench.test, CollectiveOp.ALL_GATHER)
        return (BANDWIDTH_OF[op], LATENCY_OF[op])

    def predict(self, point: Point) -> FloatArray:
        node = node_at(point, self.node)
        payload = np.array([row.num_bytes for row in self._rows])
        if self.bench.test is LinkTest.SENDRECV:
            return send_s(payload, np.full(len(payload), self.crosses), node)
        stride = node.gpus_per_node / self.per_node if self.bench.num_nodes > 1 else 1.0
        group = span(np.full(len(payload), float(self.bench.num_ranks)), stride, node)
        scale_up, scale_out = collective_s(_OPS[self.bench.test], payload, group, node)
        return scale_up + scale_out


def node_of_device(name: str, file: str) -> NodeType:
    """The generic node of the GPU that a driver calls `name`; raises InvalidInputError when the catalog has none."""
    words = set(_WORDS.findall(name.lower()))
    best, most = "", 0
    for entry in list_gpus():
        for alias in (entry.id, *entry.aliases):
            parts = set(_WORDS.findall(alias.lower()))
            # "NVIDIA H100 80GB HBM3" and "NVIDIA A100-SXM4-80GB": all words of the alias, the more the better.
            if parts <= words | {word.removesuffix("b") for word in words} and len(parts) > most:
                best, most = entry.id, len(parts)
    if not best:
        raise InvalidInputError(
            f"the GPU {name[:60]!r} is in no catalog", where=file, accepted="--gpus TYPE says which one it is"
        )
    return generic_node(best)
