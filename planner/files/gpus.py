"""The `--gpus` grammar, and pools of nodes from it or from a workload file.

32xh100            32 GPUs in generic nodes
4x8xh100           4 nodes of 8 GPUs
4xp5.48xlarge      4 nodes of a catalog type
8xh100,16xh200     several pools
h200, p5.48xlarge  the smallest cluster of that kind that works
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from planner.domain.hardware import Cluster, NodeType, Pool
from planner.domain.plan import Assumption
from planner.errors import InvalidInputError, nearest
from planner.files.pools import MAX_GPUS, Draft, Kind, find_kind, list_price, pool_from_spec, resized
from planner.files.problems import Problems
from planner.files.spec import ClusterSpec, PoolSpec, WorkloadSpec
from planner.units import Dimension, format_bytes, parse

GRAMMAR = "32xh100, 4x8xh100, 4xp5.48xlarge, several joined by commas, or only a type such as h200"
DEFAULT_GPU = "h100"
MAX_TEXT = 400
MAX_POOLS = 16

_TOKEN = re.compile(
    r"(?:(?P<first>\d+)\s*[xX×*]\s*)?(?:(?P<second>\d+)\s*[xX×*]\s*)?(?P<name>(?!\d+[xX×*])[A-Za-z0-9][\w.+-]*)",
    re.ASCII,
)
_REVERSED = re.compile(r"(?P<name>[A-Za-z][\w.+-]*)\s*[xX×*:]\s*(?P<count>\d+)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A cluster, or the node type to build the smallest one from, with the assumptions behind it."""

    cluster: Cluster | None
    open_node: NodeType | None
    open_usd_per_gpu_hour: float | None
    assumptions: tuple[Assumption, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    """The link between pools as given, and where."""

    per_gpu: str | None
    total: str | None
    per_gpu_where: str
    total_where: str


def read_hardware(spec: WorkloadSpec, problems: Problems) -> Hardware | None:
    """The hardware that a spec asks for; None after a problem."""
    if spec.gpus is not None and (spec.pools or spec.cluster is not None):
        other = "--cluster" if spec.cluster is not None else "cluster.pools"
        problems.add(InvalidInputError(f"given together with {other}", where=spec.place("gpus"), accepted="one"))
        return None
    if spec.cluster is not None:
        found = problems.attempt(lambda: _read_cluster(spec.cluster or ""), None)
        return None if found is None else _from_pools(spec, found, f"{spec.cluster}: ", problems)
    if spec.pools:
        given = ClusterSpec(pools=spec.pools, inter_pool=spec.inter_pool, inter_pool_total=spec.inter_pool_total)
        return _from_pools(spec, given, "", problems)
    return problems.attempt(lambda: _from_text(spec, problems), None)


def _read_cluster(path: str) -> ClusterSpec:
    from planner.files.workload_file import read_cluster

    return read_cluster(Path(path))


def _from_pools(spec: WorkloadSpec, given: ClusterSpec, prefix: str, problems: Problems) -> Hardware | None:
    """The cluster of a file of its own (`prefix` names it) or of the section of a workload file."""
    place = f"{prefix}pools" if prefix else spec.place("pools")
    drafts = [_attempt_spec(pool, f"{place}[{i}]", problems) for i, pool in enumerate(given.pools)]
    link = _plain_link(spec)
    # In a file of its own both are only what flags do not say otherwise.
    if prefix and spec.inter_pool is None:
        link = replace(link, per_gpu=given.inter_pool, per_gpu_where=f"{prefix}inter_pool")
    if prefix and spec.inter_pool_total is None:
        link = replace(link, total=given.inter_pool_total, total_where=f"{prefix}inter_pool_total")
    return _complete(spec, drafts, link, problems)


def _from_text(spec: WorkloadSpec, problems: Problems) -> Hardware | None:
    where = spec.place("gpus")
    text = spec.gpus if spec.gpus is not None else DEFAULT_GPU
    if len(text) > MAX_TEXT:
        raise InvalidInputError(f"{len(text)} characters are too many", where=where, accepted=GRAMMAR)
    tokens = [token.strip() for token in text.split(",")]
    if len(tokens) > MAX_POOLS:
        raise InvalidInputError(f"{len(tokens)} pools are too many", where=where, accepted=f"at most {MAX_POOLS}")
    if len(tokens) == 1 and (match := _TOKEN.fullmatch(tokens[0])) and not match["first"]:
        if _REVERSED.fullmatch(tokens[0]) is not None:
            raise _not_understood(tokens[0], where)
        return _open(spec, find_kind(match["name"], where), problems)
    return _complete(spec, [_attempt_token(token, where, problems) for token in tokens], _plain_link(spec), problems)


def _plain_link(spec: WorkloadSpec) -> _Link:
    return _Link(
        per_gpu=spec.inter_pool,
        total=spec.inter_pool_total,
        per_gpu_where=spec.place("inter_pool"),
        total_where=spec.place("inter_pool_total"),
    )


def _complete(spec: WorkloadSpec, drafts: list[Draft | None], link: _Link, problems: Problems) -> Hardware | None:
    found = [draft for draft in drafts if draft is not None]
    return _with_prices(spec, found, link, problems) if len(found) == len(drafts) else None


def _attempt_token(token: str, where: str, problems: Problems) -> Draft | None:
    return problems.attempt(lambda: _pool_from_token(token, where), None)


def _attempt_spec(pool: PoolSpec, where: str, problems: Problems) -> Draft | None:
    return problems.attempt(lambda: pool_from_spec(pool, where), None)


def _pool_from_token(token: str, where: str) -> Draft:
    match = _TOKEN.fullmatch(token)
    if match is None or not match["first"]:
        raise _not_understood(token, where)
    first, second = int(match["first"]), int(match["second"]) if match["second"] else None
    if first == 0 or second == 0:
        raise InvalidInputError(f"{token!r} asks for no GPU", where=where, accepted="counts from 1")
    if first > MAX_GPUS or (second or 1) > MAX_GPUS or first * (second or 1) > MAX_GPUS:
        raise InvalidInputError(f"{token[:60]!r} is too large", where=where, accepted=f"at most {MAX_GPUS:,} GPUs")
    kind = find_kind(match["name"], where)
    if not kind.is_generic and second is None:
        node, num_nodes = kind.node, first
    elif second is not None:
        node, num_nodes = resized(kind, second, f"{where}: {token!r}"), first
    else:
        node, num_nodes = _whole_nodes(kind, first, match["name"], where)
    if num_nodes * node.gpus_per_node > MAX_GPUS:
        raise InvalidInputError(f"{token!r} is too large", where=where, accepted=f"at most {MAX_GPUS:,} GPUs")
    pool = Pool(name=match["name"].lower(), node=node, num_nodes=num_nodes, usd_per_gpu_hour=list_price(node))
    return Draft(pool=pool, is_generic=kind.is_generic)


def _whole_nodes(kind: Kind, num_gpus: int, name: str, where: str) -> tuple[NodeType, int]:
    """Generic nodes that hold exactly `num_gpus`: whole ones, or a single one with fewer GPUs."""
    per_node = kind.node.gpus_per_node
    if num_gpus < per_node:
        return resized(kind, num_gpus, where), 1
    if num_gpus % per_node:
        below = num_gpus // per_node * per_node
        raise InvalidInputError(
            f"{num_gpus} GPUs are no whole number of nodes of {per_node} {name}",
            where=where,
            accepted=f"multiples of {per_node}, or NODESxGPUSx{name} for smaller nodes",
            suggestion=f"'{below}x{name}' or '{below + per_node}x{name}'",
        )
    return kind.node, num_gpus // per_node


def _not_understood(token: str, where: str) -> InvalidInputError:
    match = _REVERSED.fullmatch(token)
    suggestion = f"'{match['count']}x{match['name']}'" if match else ""
    return InvalidInputError(f"{token[:60]!r} is not understood", where=where, accepted=GRAMMAR, suggestion=suggestion)


def _open(spec: WorkloadSpec, kind: Kind, problems: Problems) -> Hardware:
    name = spec.gpus if spec.gpus is not None else DEFAULT_GPU
    pool = Pool(name=name.strip().lower(), node=kind.node, num_nodes=1, usd_per_gpu_hour=list_price(kind.node))
    priced = _with_prices(spec, [Draft(pool=pool, is_generic=kind.is_generic)], _plain_link(spec), problems)
    assumptions = priced.assumptions
    if spec.gpus is None:
        chosen = Assumption(
            what="GPU type", value=kind.node.gpu.name, source="default", effect="give --gpus h200 to size another type"
        )
        assumptions = (chosen, *assumptions)
    price = priced.cluster.pools[0].usd_per_gpu_hour if priced.cluster is not None else None
    return Hardware(cluster=None, open_node=kind.node, open_usd_per_gpu_hour=price, assumptions=assumptions)


def _with_prices(spec: WorkloadSpec, drafts: list[Draft], link: _Link, problems: Problems) -> Hardware:
    """The cluster with unique pool names and the user's prices, and what is assumed about it."""
    drafts = _unique_names(drafts)
    given = _user_prices(spec, [draft.pool for draft in drafts], problems)
    named: list[Pool] = []
    assumptions: list[Assumption] = []
    for draft in drafts:
        pool = draft.pool
        if draft.is_generic and not (draft.has_host_ram and draft.has_nic):
            assumptions.append(_node_assumption(draft))
        if pool.name in given:
            pool = replace(pool, usd_per_gpu_hour=given[pool.name])
        elif not draft.has_price:
            assumptions.append(_price_assumption(pool))
        named.append(pool)
        assumptions += draft.assumptions
    per_gpu = _bandwidth(link.per_gpu, link.per_gpu_where, problems)
    total = _bandwidth(link.total, link.total_where, problems)
    if len(named) > 1 and link.per_gpu is None:
        assumptions.append(
            Assumption(
                what="link between pools",
                value="the slower NIC of the two",
                source="default",
                effect="a slower link lengthens the weight sync; give --inter-pool '100 Gbit/s'",
            )
        )
    cluster = Cluster(pools=tuple(named), inter_pool_bytes_per_s=per_gpu, inter_pool_total_bytes_per_s=total)
    return Hardware(cluster=cluster, open_node=None, open_usd_per_gpu_hour=None, assumptions=tuple(assumptions))


def _bandwidth(text: str | None, where: str, problems: Problems) -> float | None:
    return None if text is None else problems.attempt(lambda: parse(text, Dimension.BANDWIDTH, where=where), None)


def _unique_names(drafts: list[Draft]) -> list[Draft]:
    result: list[Draft] = []
    for draft in drafts:
        taken = {other.pool.name for other in result}
        name, number = draft.pool.name, 2
        while name in taken:
            name, number = f"{draft.pool.name}-{number}", number + 1
        result.append(replace(draft, pool=replace(draft.pool, name=name)))
    return result


def _user_prices(spec: WorkloadSpec, pools: list[Pool], problems: Problems) -> dict[str, float]:
    """Pool name -> USD per GPU-hour from `--price NAME=VALUE`."""
    result: dict[str, float] = {}
    for item in spec.prices:
        try:
            result |= _user_price(item, pools, spec.place("prices"))
        except InvalidInputError as error:
            problems.add(error)
    return result


def _user_price(item: str, pools: list[Pool], where: str) -> dict[str, float]:
    name, separator, value = item.partition("=")
    text = value.strip()
    if not separator or not text:
        raise InvalidInputError(f"{item[:60]!r} is not understood", where=where, accepted="h100=2.50")
    # The flag is defined in USD per GPU-hour, so that its number may stand alone.
    quantity = text if any(c.isalpha() and c not in "eE" for c in text) else f"{text} USD/hour"
    price = parse(quantity, Dimension.MONEY_RATE, where=where)
    key = name.strip().lower()
    matching = [p.name for p in pools if key in (p.name, p.node.id, p.node.gpu.id)]
    if not matching:
        known = [p.name for p in pools]
        raise InvalidInputError(
            f"no pool is called {name[:60]!r}", where=where, accepted=", ".join(known), suggestion=nearest(name, known)
        )
    return dict.fromkeys(matching, price)


def _node_assumption(draft: Draft) -> Assumption:
    """Host RAM and NIC of a generic node. A catalog node type is the user's own statement instead."""
    node = draft.pool.node
    parts = [f"{node.gpus_per_node} GPUs"]
    if not draft.has_nic:
        parts.append(f"{node.nic_bytes_per_s * 8 / 1e9:.4g} Gbit/s NIC per GPU")
    if not draft.has_host_ram:
        parts.append(f"{format_bytes(node.host_ram_bytes)} host RAM")
    return Assumption(
        what=f"node of {draft.pool.name}",
        value=", ".join(parts),
        source="generic node",
        effect="less host RAM forbids offload, slower NICs favour smaller groups; name a node type (4xp5.48xlarge)",
    )


def _price_assumption(pool: Pool) -> Assumption:
    price = pool.node.price
    if price is None or pool.usd_per_gpu_hour is None:
        return Assumption(
            what=f"price of {pool.name}", value="unknown", source="no price in the catalog",
            effect=f"cost is in GPU-hours; give --price {pool.name}=2.50",
        )  # fmt: skip
    return Assumption(
        what=f"price of {pool.name}",
        value=f"{pool.usd_per_gpu_hour:.2f} USD per GPU-hour",
        source=f"{price.provider} {price.kind}, {price.date}",
        effect="scales USD; the fastest plan stays the same",
    )
