"""Which nodes of a pool can be used when some are out.

A node that is out takes its GPUs with it, and where a scale-up domain spans nodes (a rack of 18 trays) its domain
becomes smaller. Groups of ranks are laid out over domains of one size, so that racks are cut to the size that leaves
most GPUs; trays beyond it stay idle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.errors import InvalidInputError

_NODE = re.compile(r"node-(\d{1,6})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """What is left of a pool: numbers of the nodes that are not used, and nodes per scale-up domain.

    `num_idle` of them work but would make racks unequal.
    """

    out_nodes: tuple[int, ...]
    nodes_per_domain: int
    num_idle: int


def out_numbers(out: int | tuple[str, ...], num_nodes: int, where: str) -> tuple[int, ...]:
    """Numbers of the nodes that are out; of a mere count, the last ones.

    Raises InvalidInputError for a name that is none of `node-0` to `node-<num_nodes - 1>`, and where nothing is left.
    """
    if isinstance(out, int):
        numbers = tuple(range(max(num_nodes - out, 0), num_nodes))
    else:
        numbers = tuple(sorted({_number(name, num_nodes, where) for name in out}))
    if len(numbers) >= num_nodes:
        raise InvalidInputError(
            f"{len(numbers)} of {num_nodes} nodes are out: none is left",
            where=where,
            accepted=f"at most {num_nodes - 1}",
        )
    return numbers


def _number(name: str, num_nodes: int, where: str) -> int:
    match = _NODE.fullmatch(name.strip())
    if match is None or int(match[1]) >= num_nodes:
        raise InvalidInputError(
            f"there is no node {name[:60]!r}", where=where, accepted=f"node-0 to node-{num_nodes - 1}, or how many"
        )
    return int(match[1])


def usable(num_nodes: int, out: tuple[int, ...], nodes_per_domain: int) -> Usable:
    """What can be used of `num_nodes` nodes when `out` are out and `nodes_per_domain` share a scale-up domain."""
    if nodes_per_domain <= 1 or not out:
        return Usable(out_nodes=out, nodes_per_domain=nodes_per_domain, num_idle=0)
    gone = set(out)
    racks = [
        [number for number in range(start, min(start + nodes_per_domain, num_nodes)) if number not in gone]
        for start in range(0, num_nodes, nodes_per_domain)
    ]
    kept = max(
        (_kept(racks, size) for size in range(1, nodes_per_domain + 1)), key=lambda item: (len(item[1]), item[0])
    )
    size, numbers = kept
    unused = tuple(number for number in range(num_nodes) if number not in numbers)
    return Usable(out_nodes=unused, nodes_per_domain=size, num_idle=len(unused) - len(gone))


def _kept(racks: list[list[int]], size: int) -> tuple[int, frozenset[int]]:
    """Nodes that stay when every rack has `size` of them; the last one may have fewer, as in any pool."""
    whole = [rack[:size] for rack in racks if len(rack) >= size]
    if racks and len(racks[-1]) < size:
        whole.append(racks[-1])
    return size, frozenset(number for rack in whole for number in rack)
