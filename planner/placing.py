"""Physical GPUs for the device groups of a solution: which numbers of its pool each group gets.

A group that fits into a scale-up domain lies in one, and a larger one begins with one, wherever the pool has room for
that; a group of whole nodes begins with a node. Where domains are nodes, the search's sizes leave no choice but order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from planner.assembly import PlacedStrategy
from planner.cost.communication import span
from planner.domain.hardware import Cluster, NodeType, Pool
from planner.domain.plan import Assumption, DeviceGroup
from planner.domain.ranks import MeshAxis, worker_ranks
from planner.domain.stages import ROLLOUT_ENGINES, WorkerName
from planner.search.pricing import PricedWorker
from planner.search.solve import ChosenGroup, Solution

SYNCED_WORKERS = frozenset({WorkerName.ACTOR_TRAINER, *ROLLOUT_ENGINES})


def place(solution: Solution, priced: Sequence[PricedWorker], cluster: Cluster) -> tuple[PlacedStrategy, ...]:
    """Physical GPUs for the groups of a solution.

    A pool-wide group is as large as its largest worker and begins near the trainer or the engine that it syncs with.
    """
    by_place = {(item.worker.name, item.pool.name): item for item in priced}
    sizes: dict[str, int] = {}
    for choice in solution.choices:
        sizes[choice.group] = max(sizes.get(choice.group, 0), choice.num_gpus)
    groups: dict[str, DeviceGroup] = {}
    for pool in cluster.pools:
        here = [group for group in solution.groups if group.pool == pool.name]
        starts = _starts(here, sizes, pool)
        groups |= {name: device_group(name, pool, first, sizes[name]) for name, first in starts.items()}
    return tuple(
        PlacedStrategy(
            worker=by_place[choice.worker, choice.pool].worker,
            pool=cluster.pool(choice.pool),
            group=groups[choice.group],
            strategy=by_place[choice.worker, choice.pool].candidates.row(choice.row),
        )
        for choice in solution.choices
    )


def device_group(group_id: str, pool: Pool, first_gpu: int, num_gpus: int) -> DeviceGroup:
    """The group of `num_gpus` GPUs of a pool from `first_gpu` on."""
    per_node = pool.node.gpus_per_node
    num_nodes = (first_gpu + num_gpus - 1) // per_node - first_gpu // per_node + 1
    return DeviceGroup(
        id=group_id,
        pool=pool.name,
        gpu=pool.node.gpu.id,
        first_gpu=first_gpu,
        num_gpus=num_gpus,
        num_nodes=num_nodes,
    )


def _starts(groups: Sequence[ChosenGroup], sizes: dict[str, int], pool: Pool) -> dict[str, int]:
    """First GPU of every group of a pool."""
    blocks = sorted((g for g in groups if not g.is_whole), key=lambda g: (-sizes[g.id], g.id))
    wholes = [g for g in groups if g.is_whole]
    # The search counts the larger of the blocks together and the pool-wide group: no GPU beyond that is used.
    used = max([sum(sizes[g.id] for g in blocks), *(sizes[g.id] for g in wholes)])
    result = block_starts([(g.id, sizes[g.id]) for g in blocks], pool, used if wholes else pool.num_gpus)
    synced = [result[g.id] for g in blocks if SYNCED_WORKERS & set(g.workers)]
    for whole in wholes:
        result[whole.id] = _whole_start(sizes[whole.id], used, synced[-1] if synced else 0, pool)
    return result


def _whole_start(size: int, used: int, anchor: int, pool: Pool) -> int:
    """Where a pool-wide group begins: nearest to `anchor` of what lets it not stray."""
    step = min(size, pool.node.gpus_per_node)
    nearest: int = min(anchor // step * step, used - size)
    domain = pool.node.scale_up_domain_gpus
    if domain <= pool.node.gpus_per_node:
        return nearest
    open_starts: list[int] = [nearest, *range(0, used - size + 1, step)]
    open_starts.sort(key=lambda first: (strays(first, size, domain), abs(first - nearest)))
    return open_starts[0]


def crossing_notes(placed: Sequence[PlacedStrategy]) -> tuple[Assumption, ...]:
    """Groups of ranks that are priced inside fewer scale-up domains than some of them lie in.

    That is so where the GPUs of a group do not divide those of a rack: the last one of a rack goes on in the next.
    """
    notes = []
    for item in placed:
        domain = item.pool.node.scale_up_domain_gpus
        if domain <= item.pool.node.gpus_per_node or item.group.num_gpus <= domain:
            continue
        mapped = worker_ranks(item.worker.name, item.strategy, item.group, item.pool)
        crossing = [axis for axis in (*mapped.axes, *mapped.expert_axes) if axis.num_domains > _priced(axis, item.pool)]
        if not crossing:
            continue
        # Of the degrees that cross, the outermost one that racks can hold decides how large they should be.
        block = max(axis.size * axis.stride for axis in crossing)
        advice = (
            f"; racks of {domain // block * block} GPUs keep it whole (out: in --cluster)" if block <= domain else ""
        )
        words = ", ".join(dict.fromkeys(f"{axis.name} {axis.size}" for axis in crossing))
        notes.append(
            Assumption(
                what="racks", value=f"{item.worker.name.value}: {words} inside racks", source="cost model",
                effect=f"some of these groups lie in two racks of {domain} GPUs and are slower than priced{advice}",
            )
        )  # fmt: skip
    return tuple(notes)


def _priced(axis: MeshAxis, pool: Pool) -> float:
    """Domains that the cost model counts for one group along an axis."""
    return float(span(np.array([float(axis.size)]), float(axis.stride), pool.node).num_domains[0])


# ---------------------------------------------------------------------------------------------- blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """What lies together: one block, or one after the other all those that are smaller than a node."""

    blocks: tuple[tuple[str, int], ...]
    """(name, size)"""
    is_of_parts: bool = False

    @property
    def size(self) -> int:
        return sum(size for _, size in self.blocks)


def block_starts(blocks: Sequence[tuple[str, int]], pool: Pool, num_gpus: int) -> dict[str, int]:
    """First GPU of disjoint blocks (name, size) on the first `num_gpus` GPUs of a pool, which hold them all.

    Given from the largest to the smallest, they lie in this order where domains are no larger than nodes: each then
    begins at a multiple of its size, or with a node. In larger domains order and gaps, where there is room for them,
    are those with which fewest blocks stray (`strays`); of these the ones that end first, and in the given order.
    """
    if not blocks:
        return {}
    node = pool.node
    items = _items(blocks, node.gpus_per_node)
    spans_nodes = node.scale_up_domain_gpus > node.gpus_per_node
    orders = permutations(items) if spans_nodes else iter((items,))
    layouts = ((order, _laid_out(order, node, num_gpus)) for order in orders)
    # The given order always fits: it needs no gap.
    fitting = ((order, starts) for order, starts in layouts if starts[-1] + order[-1].size <= num_gpus)
    order, starts = min(fitting, key=lambda found: _score(found[0], found[1], node.scale_up_domain_gpus))
    return dict(_named(order, starts))


def strays(first_gpu: int, num_gpus: int, domain_gpus: int) -> bool:
    """Whether a group that fits into a scale-up domain lies in two, or a larger one begins inside a domain."""
    if num_gpus > domain_gpus:
        return first_gpu % domain_gpus != 0
    return first_gpu // domain_gpus != (first_gpu + num_gpus - 1) // domain_gpus


def _items(blocks: Sequence[tuple[str, int]], per_node: int) -> tuple[_Item, ...]:
    whole = [_Item(blocks=(block,)) for block in blocks if block[1] >= per_node]
    parts = tuple(block for block in blocks if block[1] < per_node)
    return (*whole, *([_Item(blocks=parts, is_of_parts=True)] if parts else []))


def _laid_out(order: Sequence[_Item], node: NodeType, num_gpus: int) -> tuple[int, ...]:
    """Where the items of an order begin: with a domain rather than astray while the rest still fits."""
    domain, per_node = node.scale_up_domain_gpus, node.gpus_per_node
    left = sum(item.size for item in order)
    starts: list[int] = []
    position = 0
    for index, item in enumerate(order):
        if index and order[index - 1].is_of_parts:
            position = -(-position // per_node) * per_node
        next_domain = -(-position // domain) * domain
        if domain > per_node and strays(position, item.size, domain) and next_domain + left <= num_gpus:
            position = next_domain
        starts.append(position)
        position += item.size
        left -= item.size
    return tuple(starts)


def _score(order: Sequence[_Item], starts: Sequence[int], domain_gpus: int) -> tuple[int, int]:
    """(items that stray, first GPU behind all)."""
    astray = sum(strays(first, item.size, domain_gpus) for item, first in zip(order, starts, strict=True))
    return astray, starts[-1] + order[-1].size


def _named(order: Sequence[_Item], starts: Sequence[int]) -> Iterator[tuple[str, int]]:
    for item, first in zip(order, starts, strict=True):
        position = first
        for name, size in item.blocks:
            yield name, position
            position += size
