"""Pools of nodes as a cluster file describes them: which node, on which fabric, without which nodes.

`planner.files.gpus` reads the `--gpus` grammar and makes the cluster of all pools.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.domain.hardware import NodeType, Pool
from planner.domain.plan import Assumption
from planner.errors import InvalidInputError, nearest
from planner.files.outages import Usable, out_numbers, usable
from planner.files.spec import PoolSpec
from planner.units import Dimension, parse

MAX_GPUS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A named kind of node; `is_generic` when the name was a GPU type."""

    node: NodeType
    is_generic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A pool and what the user said about it."""

    pool: Pool
    is_generic: bool
    has_price: bool = False
    has_host_ram: bool = False
    has_nic: bool = False
    assumptions: tuple[Assumption, ...] = ()


def find_kind(name: str, where: str) -> Kind:
    """A GPU type (its generic node) or a node type; raises with the nearest names of both."""
    from planner.files import catalog

    try:
        return Kind(node=catalog.generic_node(name), is_generic=True)
    except InvalidInputError:
        # Not a GPU; the name may still be a node type. Unknown to both is reported below with both lists.
        pass
    try:
        return Kind(node=catalog.load_node(name), is_generic=False)
    except InvalidInputError:
        known = [n for e in catalog.list_gpus() for n in (e.id, *e.aliases)]
        known += [n for e in catalog.list_nodes() for n in (e.id, *e.aliases)]
        raise InvalidInputError(
            f"{name[:60]!r} is no known GPU or node type",
            where=where,
            accepted="see rlplan hardware",
            suggestion=nearest(name, known),
        ) from None


def resized(kind: Kind, gpus_per_node: int, where: str) -> NodeType:
    """The node with fewer GPUs and its share of everything that the GPUs of a node have in common."""
    node = kind.node
    if gpus_per_node == node.gpus_per_node:
        return node
    if not kind.is_generic:
        raise InvalidInputError(f"{node.id} has {node.gpus_per_node} GPUs, not {gpus_per_node}", where=where)
    if gpus_per_node > node.gpus_per_node:
        raise InvalidInputError(
            f"a node of {gpus_per_node} GPUs", where=where, accepted=f"at most {node.gpus_per_node} {node.gpu.id}"
        )
    return node.with_gpus(gpus_per_node)


def list_price(node: NodeType) -> float | None:
    return node.price.usd_per_gpu_hour if node.price is not None else None


def pool_from_spec(pool: PoolSpec, where: str) -> Draft:
    if (pool.gpu is None) == (pool.node is None):
        raise InvalidInputError("needs either 'gpu' or 'node'", where=where, accepted="gpu: h100, or node: p5.48xlarge")
    if pool.name is not None and not pool.name.isprintable():
        raise InvalidInputError(f"{pool.name!r} is no name", where=f"{where}.name", accepted="printable text")
    name = pool.gpu or pool.node or ""
    kind = find_kind(name, f"{where}.{'gpu' if pool.gpu else 'node'}")
    if kind.is_generic != (pool.gpu is not None):
        raise InvalidInputError(f"{name!r} is a {'GPU' if kind.is_generic else 'node type'}", where=where,
                                accepted="GPUs as 'gpu', node types as 'node'")  # fmt: skip
    node = kind.node
    if pool.gpus_per_node is not None:
        node = _built(kind, pool.gpus_per_node, f"{where}.gpus_per_node")
    if pool.host_ram is not None:
        node = replace(node, host_ram_bytes=parse(pool.host_ram, Dimension.SIZE, where=f"{where}.host_ram"))
    if pool.nic is not None:
        node = replace(node, nic_bytes_per_s=parse(pool.nic, Dimension.BANDWIDTH, where=f"{where}.nic"))
    if pool.nodes * node.gpus_per_node > MAX_GPUS:
        raise InvalidInputError(f"{pool.nodes} nodes", where=f"{where}.nodes", accepted=f"at most {MAX_GPUS:,} GPUs")
    price = list_price(node)
    if pool.price is not None:
        price = parse(pool.price, Dimension.MONEY_RATE, where=f"{where}.price")
    node = replace(_on_fabric(node, pool, where), cpu_cores=pool.cpu_cores or node.cpu_cores)
    pool_name = pool.name or name.lower()
    made, assumptions = _without_outages(
        Pool(name=pool_name, node=node, num_nodes=pool.nodes, usd_per_gpu_hour=price), pool.out, f"{where}.out"
    )
    return Draft(
        pool=made,
        is_generic=kind.is_generic,
        has_price=pool.price is not None,
        has_host_ram=pool.host_ram is not None,
        has_nic=pool.nic is not None,
        assumptions=assumptions,
    )


def _built(kind: Kind, gpus_per_node: int, where: str) -> NodeType:
    """A generic node with fewer GPUs, or with more: these share the same host, and each brings its own NIC."""
    node = kind.node
    if not kind.is_generic or gpus_per_node <= node.gpus_per_node:
        return resized(kind, gpus_per_node, where)
    return replace(
        node,
        id=f"{node.id}-{gpus_per_node}",
        name=f"{node.name}, {gpus_per_node} GPUs",
        gpus_per_node=gpus_per_node,
        scale_up_domain_gpus=max(node.scale_up_domain_gpus, gpus_per_node),
    )


def _on_fabric(node: NodeType, pool: PoolSpec, where: str) -> NodeType:
    """The node on the fabric that the user describes.

    Plain leaf switches hold all NICs of a node; below one leaf nothing is oversubscribed. With rails equal GPUs of all
    nodes meet below one rail switch, and what goes to other rails does not.
    """
    for key, value in (("rails", pool.rails), ("nodes_per_leaf", pool.nodes_per_leaf)):
        if value is not None and pool.oversubscription is None:
            raise InvalidInputError(
                "has no effect on a non-blocking fabric",
                where=f"{where}.{key}",
                accepted="together with oversubscription",
            )
    if pool.oversubscription is None:
        return node
    per_leaf = pool.nodes_per_leaf or (pool.nodes if pool.rails else 1)
    is_below_one_leaf = not pool.rails and per_leaf >= pool.nodes
    return replace(
        node,
        oversubscription_ratio=1.0 if is_below_one_leaf else pool.oversubscription,
        nodes_per_leaf=min(per_leaf, pool.nodes),
    )


def _without_outages(pool: Pool, out: int | tuple[str, ...] | None, where: str) -> tuple[Pool, tuple[Assumption, ...]]:
    """The pool without the nodes that are out, and what that takes for granted."""
    if not out:
        return pool, ()
    node = pool.node
    numbers = out_numbers(out, pool.num_nodes, where)
    left = usable(pool.num_nodes, numbers, node.scale_up_domain_gpus // node.gpus_per_node)
    rack_nodes = None
    if left.nodes_per_domain * node.gpus_per_node < node.scale_up_domain_gpus:
        rack_nodes = node.scale_up_domain_gpus // node.gpus_per_node
        node = replace(node, scale_up_domain_gpus=left.nodes_per_domain * node.gpus_per_node)
    made = replace(
        pool,
        node=node,
        num_nodes=pool.num_nodes - len(left.out_nodes),
        out_nodes=left.out_nodes,
        rack_nodes=rack_nodes,
    )
    return made, _outage_assumptions(made, out, left)


def _outage_assumptions(pool: Pool, out: int | tuple[str, ...], left: Usable) -> tuple[Assumption, ...]:
    found = []
    if isinstance(out, int):
        first, last = left.out_nodes[0], left.out_nodes[-1]
        which = f"node-{first}" if first == last else f"node-{first} to node-{last}"
        found.append(
            Assumption(
                what=f"nodes of {pool.name} that are out",
                value=f"the last: {which}",
                source="only their number was given",
                effect="ranks are mapped to the others; name them: out: [node-17]",
            )
        )
    if left.num_idle:
        found.append(
            Assumption(
                what=f"racks of {pool.name}",
                value=f"{left.nodes_per_domain} nodes of each are used, {left.num_idle} more stay idle",
                source="groups are laid out over racks of one size",
                effect="one more node out of each full rack costs nothing",
            )
        )
    return tuple(found)
