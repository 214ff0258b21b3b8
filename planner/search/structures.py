"""Structures: which workers sit on which device groups, before any size or strategy is chosen.

In each pool some workers may sit on the whole pool and the others on disjoint blocks. Device groups are therefore
laminar: a block overlaps the whole-pool group of its own pool and nothing else. Not in the space: groups that span
pools, blocks nested in blocks, one worker on several groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from planner.domain.stages import WorkerName


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGroups:
    """The device groups of one pool: workers on the whole pool, and disjoint blocks of workers.

    `whole` is empty unless there are blocks below it: workers that share one group are one block.
    """

    pool: str
    whole: tuple[WorkerName, ...]
    blocks: tuple[tuple[WorkerName, ...], ...]

    @property
    def workers(self) -> tuple[WorkerName, ...]:
        return self.whole + tuple(worker for block in self.blocks for worker in block)

    @property
    def memory_groups(self) -> tuple[tuple[WorkerName, ...], ...]:
        """Sets of workers that meet on the same GPUs: each block together with the pool-wide workers."""
        return tuple(block + self.whole for block in self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """Device groups of every pool that is used. Each worker appears exactly once."""

    pools: tuple[PoolGroups, ...]

    def pool_of(self, worker: WorkerName) -> str:
        """The pool that the worker is on; StopIteration-free KeyError for a worker that is not placed."""
        for groups in self.pools:
            if worker in groups.workers:
                return groups.pool
        raise KeyError(worker)

    def overlap(self, first: WorkerName, second: WorkerName) -> bool:
        """Whether the device groups of two workers intersect (a worker overlaps itself)."""
        if first is second:
            return True
        for groups in self.pools:
            if first in groups.workers and second in groups.workers:
                if first in groups.whole or second in groups.whole:
                    return True
                return any(first in block and second in block for block in groups.blocks)
        return False

    def places(self) -> dict[WorkerName, tuple[str, int]]:
        """Pool and block number of every worker, -1 for the whole pool. Two workers overlap if they have the same
        pool, and the same block or one of them the whole pool."""
        result = {}
        for groups in self.pools:
            result.update(dict.fromkeys(groups.whole, (groups.pool, -1)))
            for i, block in enumerate(groups.blocks):
                result.update(dict.fromkeys(block, (groups.pool, i)))
        return result

    @property
    def num_groups(self) -> int:
        """Distinct device groups."""
        return sum(len(groups.blocks) + bool(groups.whole) for groups in self.pools)

    def describe(self) -> str:
        """`'pool: {rollout engine, actor trainer} | {reference}'`; pool-wide workers after `whole`."""
        parts = []
        for groups in self.pools:
            blocks = " | ".join("{" + ", ".join(worker.value for worker in block) + "}" for block in groups.blocks)
            whole = "whole {" + ", ".join(worker.value for worker in groups.whole) + "} over " if groups.whole else ""
            parts.append(f"{groups.pool}: {whole}{blocks}")
        return "; ".join(parts)


StructureFilter = Callable[[Structure], str | None]
"""The reason why a framework cannot run a structure, or None if it can."""


def set_partitions(items: Sequence[WorkerName]) -> Iterator[tuple[tuple[WorkerName, ...], ...]]:
    """All partitions of `items` into non-empty sets, in a fixed order; one empty partition for no items."""
    if not items:
        yield ()
        return
    first, rest = items[0], items[1:]
    for partition in set_partitions(rest):
        yield ((first,), *partition)
        for i, block in enumerate(partition):
            yield (*partition[:i], (first, *block), *partition[i + 1 :])


def pool_groupings(pool: str, workers: Sequence[WorkerName], *, nested_single: bool) -> Iterator[PoolGroups]:
    """All groupings of `workers` on one pool.

    Pool-wide workers over a single block form the same conflicts and memory rows as one block of all of them, so
    that case is produced only with `nested_single`: it differs when workers of one block must have equal sizes.
    """
    for num_whole in range(len(workers)):
        for whole in combinations(workers, num_whole):
            others = [worker for worker in workers if worker not in whole]
            for blocks in set_partitions(others):
                if not whole or len(blocks) > 1 or nested_single:
                    yield PoolGroups(pool=pool, whole=whole, blocks=blocks)


def with_second_engine(structure: Structure, pool: str) -> Structure | None:
    """The structure with a second group of engines alone on a block of `pool`; None where that is not in the space.

    It sits in another pool than the first group, and in one without pool-wide workers: it then shares GPUs with nobody.
    """
    if structure.pool_of(WorkerName.ROLLOUT_ENGINE) == pool:
        return None
    here = next((groups for groups in structure.pools if groups.pool == pool), None)
    if here is not None and here.whole:
        return None
    blocks = (*(here.blocks if here is not None else ()), (WorkerName.SECOND_ENGINE,))
    others = tuple(groups for groups in structure.pools if groups.pool != pool)
    pools = (*others, PoolGroups(pool=pool, whole=(), blocks=blocks))
    return Structure(pools=tuple(sorted(pools, key=lambda groups: groups.pool)))


def enumerate_structures(
    assignments: Iterator[tuple[str, ...]], workers: Sequence[WorkerName], *, nested_single: bool
) -> Iterator[Structure]:
    """All structures of the given pool assignments (one pool name per worker), in a fixed order."""
    cache: dict[tuple[str, tuple[WorkerName, ...]], tuple[PoolGroups, ...]] = {}
    for assignment in assignments:
        members: dict[str, list[WorkerName]] = {}
        for worker, pool in zip(workers, assignment, strict=True):
            members.setdefault(pool, []).append(worker)
        per_pool = []
        for pool in sorted(members):
            key = (pool, tuple(members[pool]))
            if key not in cache:
                cache[key] = tuple(pool_groupings(pool, key[1], nested_single=nested_single))
            per_pool.append(cache[key])
        for groupings in product(*per_pool):
            yield Structure(pools=groupings)
