"""Ranges of GPUs, and the structure of our space that a set of them amounts to.

Peers give every worker a range of GPUs of its own. In our space the groups of a pool are disjoint blocks, and groups
over all of them. Any ranges are read as such: workers that overlap every other one of their pool become pool-wide,
and the others form one block per connected set. Two workers that only meet through a third one share its block then,
so that they run one after the other although their ranges are disjoint: nesting of that kind is not in our space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from planner.domain.stages import WorkerName
from planner.search.structures import PoolGroups, Structure


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """`num_gpus` GPUs of a pool, from `first_gpu` on."""

    pool: str
    first_gpu: int
    num_gpus: int

    def overlaps(self, other: Mesh) -> bool:
        return (
            self.pool == other.pool
            and self.first_gpu < other.first_gpu + other.num_gpus
            and other.first_gpu < self.first_gpu + self.num_gpus
        )


def structure_of(meshes: Mapping[WorkerName, Mesh]) -> Structure:
    """The structure of ranges, workers in the order of `meshes`."""
    names = tuple(meshes)
    pools = tuple(meshes[name].pool for name in names)
    overlaps = 0
    bit = 1
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            if meshes[first].overlaps(meshes[second]):
                overlaps |= bit
            bit <<= 1
    return structure_of_pairs(names, pools, overlaps)


@lru_cache(maxsize=65536)
def structure_of_pairs(names: tuple[WorkerName, ...], pools: tuple[str, ...], overlaps: int) -> Structure:
    """The structure of workers on `pools`; bit k of `overlaps` is set where the k-th pair (i, j > i) shares GPUs."""
    neighbours: dict[WorkerName, set[WorkerName]] = {name: set() for name in names}
    bit = 1
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            if overlaps & bit:
                neighbours[first].add(second)
                neighbours[second].add(first)
            bit <<= 1
    groups = []
    for pool in sorted(set(pools)):
        here = [name for name, where in zip(names, pools, strict=True) if where == pool]
        whole = [name for name in here if len(neighbours[name]) == len(here) - 1]
        blocks = _components([name for name in here if name not in whole], neighbours)
        if len(blocks) < 2:
            # Everything meets everything: one group.
            whole, blocks = [], [tuple(here)]
        groups.append(PoolGroups(pool=pool, whole=tuple(whole), blocks=tuple(blocks)))
    return Structure(pools=tuple(groups))


def _components(
    names: list[WorkerName], neighbours: Mapping[WorkerName, set[WorkerName]]
) -> list[tuple[WorkerName, ...]]:
    left, result = list(names), []
    while left:
        block = {left[0]}
        while grown := {o for name in block for o in neighbours[name] if o in left} - block:
            block |= grown
        result.append(tuple(name for name in left if name in block))
        left = [name for name in left if name not in block]
    return result
