"""Steady state of asynchronous iterations: the cycles of the recurrence that relates successive batches.

Stages of one batch follow the stage graph and an order on shared GPUs. A device group finishes a batch before it
starts the next one; the rollout runs ahead of the updates by at most the staleness K, so that it waits for the weight
sync of the batch K + 1 before. On the engines' GPUs the sync comes between two stages (the *lead*). The period is the
largest mean of a cycle: its seconds by the batches that it spans (max-plus cycle ratio, Karp 1978).

Where two groups of engines share the rollout, the second one runs nothing else: both generate the same batch with the
same weights, so that the lead in batches is the same for both.

Stages are numbered as in the graph and sets of them are bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise

from planner.domain.stages import ROLLOUTS, StageName
from planner.search.orders import Arc, maximal_paths, orientations, sequence

Cycle = tuple[int, int]
"""(set of stages, batches that the cycle spans)"""
_Edges = dict[tuple[int, int], int]
_MEAN_OF = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """Where the weight sync interrupts the engines' device group: before it come the first `num_before` stages of that
    group (in the order of a batch) of the batch that is `num_batches` ahead of the one that was trained."""

    num_batches: int
    num_before: int


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Which stages wait for which: the pattern of a structure, without seconds.

    `cliques` are sets of stages of which no two run at the same time; `engine` are the stages on the engines' GPUs.
    `streams` says that engines are never interrupted, and `orders` restricts the orders within a batch (None: all).
    """

    names: tuple[StageName, ...]
    edges: tuple[Arc, ...]
    cliques: tuple[tuple[StageName, ...], ...]
    engine: tuple[StageName, ...]
    open_pairs: tuple[Arc, ...]
    staleness: int
    streams: bool
    orders: tuple[tuple[Arc, ...], ...] | None

    def least(self) -> tuple[Cycle, ...]:
        """Cycles that no order avoids: the work of each clique, and the dependencies around the staleness."""
        found = [(self._bits(clique), 1) for clique in self.cliques if not self._is_streaming(clique)]
        sync, rollouts = self._bits((StageName.WEIGHT_SYNC,)), self._bits(self.rollouts)
        for path in maximal_paths(self.names, self.edges):
            # What follows the sync on a path is part of no cycle.
            if path & sync and path & rollouts:
                found.append((path, self.staleness + 1))
        return _maximal(found)

    def solutions(self) -> tuple[Solution, ...]:
        """Undominated orders and leads with their cycles."""
        return _solutions(self)

    @property
    def rollouts(self) -> tuple[StageName, ...]:
        """The rollout, or both parts of a split one."""
        return tuple(name for name in ROLLOUTS if name in self.names)

    def _bits(self, stages: Iterable[StageName]) -> int:
        return sum(1 << self.names.index(name) for name in stages)

    def _is_streaming(self, clique: Sequence[StageName]) -> bool:
        return self.streams and not set(ROLLOUTS).isdisjoint(clique)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """An order within a batch, the lead, and the cycles that follow."""

    arcs: tuple[Arc, ...]
    lead: Lead | None
    cycles: tuple[Cycle, ...]


@lru_cache(maxsize=4096)
def _solutions(pattern: Recurrence) -> tuple[Solution, ...]:
    least = pattern.least()
    found: list[Solution] = []
    orders = pattern.orders
    if orders is None:
        orders = tuple(orientations(pattern.names, pattern.edges, pattern.open_pairs))
    for arcs in orders:
        for lead in _leads(pattern):
            cycles = _cycles_of(pattern, arcs, lead)
            if cycles is None:
                continue
            solution = Solution(arcs=arcs, lead=lead, cycles=cycles)
            if all(_is_implied(cycle, least, pattern.staleness) for cycle in cycles):
                # No order has smaller cycles.
                return (solution,)
            if not any(_beats(other, solution) for other in found):
                found = [other for other in found if not _beats(solution, other)]
                found.append(solution)
    return tuple(found)


def _leads(pattern: Recurrence) -> Iterator[Lead | None]:
    if pattern.streams:
        yield None
        return
    num_members = sum(name is not StageName.WEIGHT_SYNC for name in pattern.engine)
    for num_batches in range(pattern.staleness, 0, -1):
        for num_before in range(num_members, 0, -1):
            yield Lead(num_batches=num_batches, num_before=num_before)


def _cycles_of(pattern: Recurrence, arcs: tuple[Arc, ...], lead: Lead | None) -> tuple[Cycle, ...] | None:
    """Cycles of one recurrence; None if it contradicts itself (a batch would have to wait for a later one)."""
    names = pattern.names
    index = {name: i for i, name in enumerate(names)}
    ranks = sequence(names, [*pattern.edges, *arcs])
    sync, rollouts = index[StageName.WEIGHT_SYNC], [index[name] for name in pattern.rollouts]
    ahead = [index[name] for name in ranks if name in pattern.engine and name is not StageName.WEIGHT_SYNC]
    edges: _Edges = {}

    def add(before: int, after: int, batches: int) -> None:
        known = edges.get((before, after))
        if known is None or batches < known:
            edges[before, after] = batches

    for before, after in [*pattern.edges, *arcs]:
        add(index[before], index[after], 0)
    for clique in pattern.cliques:
        members = [index[name] for name in ranks if name in clique]
        if sync in members and not set(rollouts).isdisjoint(members):
            # The sync has a place of its own among the stages of the engines' group.
            if lead is None:
                continue
            members.remove(sync)
            first = [m for m in members if m in ahead[: lead.num_before] or m not in ahead]
            rest = [m for m in members if m not in first]
            add(first[-1], sync, -lead.num_batches)
            if rest:
                add(sync, rest[0], lead.num_batches)
            else:
                add(sync, members[0], lead.num_batches + 1)
        for a, b in pairwise(members):
            add(a, b, 0)
        add(members[-1], members[0], 1)
    for rollout in rollouts:
        add(sync, rollout, pattern.staleness + 1)
    found: list[Cycle] = []
    for bits, batches in _elementary(len(names), edges):
        if batches <= 0:
            return None
        found.append((bits, batches))
    return _needed(_maximal(found), pattern.staleness)


def _elementary(num: int, edges: _Edges) -> Iterator[Cycle]:
    """Elementary cycles; each is found from its smallest stage."""
    follow: list[list[tuple[int, int]]] = [[] for _ in range(num)]
    for (before, after), batches in edges.items():
        follow[before].append((after, batches))
    for start in range(num):
        stack = [(start, 1 << start, 0)]
        while stack:
            node, bits, total = stack.pop()
            for after, batches in follow[node]:
                if after == start:
                    yield bits, total + batches
                elif after > start and not bits >> after & 1:
                    stack.append((after, bits | 1 << after, total + batches))


def _covers(first: Cycle, second: Cycle) -> bool:
    """Whether the mean of `first` is never smaller than that of `second`."""
    return first[0] & second[0] == second[0] and first[1] <= second[1]


def _maximal(cycles: Iterable[Cycle]) -> tuple[Cycle, ...]:
    distinct = sorted(set(cycles))
    return tuple(c for c in distinct if not any(d != c and _covers(d, c) for d in distinct))


def _is_implied(cycle: Cycle, others: Sequence[Cycle], staleness: int) -> bool:
    """Whether `cycle` can never have the largest mean: another covers it, or the mean of some others does."""
    if any(_covers(other, cycle) for other in others):
        return True
    bits, batches = cycle
    weight = batches / (staleness + 1.0)
    useful = [other for other in others if other[0] & bits]
    for num in range(2, min(staleness + 1, _MEAN_OF) + 1):
        for some in combinations(useful, num):
            union = 0
            for other in some:
                union |= other[0]
            if union & bits == bits and all(_weight(i, some) * weight >= 1.0 for i in _members(bits)):
                return True
    return False


def _weight(stage: int, cycles: Sequence[Cycle]) -> float:
    return sum(1.0 / batches for bits, batches in cycles if bits >> stage & 1)


def _members(bits: int) -> Iterator[int]:
    return (i for i in range(bits.bit_length()) if bits >> i & 1)


def _needed(cycles: tuple[Cycle, ...], staleness: int) -> tuple[Cycle, ...]:
    """Without cycles that a mean of others implies."""
    kept = list(cycles)
    for cycle in cycles:
        others = [other for other in kept if other != cycle]
        if _is_implied(cycle, others, staleness):
            kept = others
    return tuple(kept)


def _beats(first: Solution, second: Solution) -> bool:
    return all(any(_covers(cycle, mine) for cycle in second.cycles) for mine in first.cycles)
