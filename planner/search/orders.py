"""Orders of conflicting stages, as sets of maximal paths.

Two stages conflict when their device groups intersect. A choice of direction for every conflicting pair that the
stage graph leaves open, without a cycle, is an order; the makespan for given durations is then the longest path of
a DAG, and the best makespan is the minimum over orders. Stages are few, so all orders are enumerated, and those
whose paths cover another order's paths are dropped: durations are not negative, so they cannot be better.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from planner.domain.stages import StageGraph, StageName
from planner.search.structures import Structure

Arc = tuple[StageName, StageName]
"""(before, after)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """`arcs` are the chosen directions (before, after); `paths` are bit sets over `graph.stages`, maximal paths
    only, none contained in another."""

    arcs: tuple[Arc, ...]
    paths: tuple[int, ...]


class OrderBook:
    """Orders by conflict pattern; patterns repeat across structures, so they are computed once."""

    def __init__(self, graph: StageGraph) -> None:
        names = [stage.name for stage in graph.stages]
        index = {name: i for i, name in enumerate(names)}
        self._graph = graph
        self._names = names
        self._edges = [(index[a], index[b]) for a, b in graph.edges]
        reach = _closure(len(names), self._edges)
        workers = graph.workers
        position = {worker.name: i for i, worker in enumerate(workers)}
        occupied = [
            sorted(position[w] for w in graph.workers_of(stage.name) if w in position) for stage in graph.stages
        ]
        self._open = [
            (i, j, [(a, b) for a in occupied[i] for b in occupied[j]])
            for i, j in combinations(range(len(names)), 2)
            if not reach[i] >> j & 1 and not reach[j] >> i & 1 and occupied[i] and occupied[j]
        ]
        self._cache: dict[tuple[bool, ...], tuple[Order, ...]] = {}

    @property
    def open_pairs(self) -> list[Arc]:
        """Pairs of stages on GPUs between which the graph leaves the order open."""
        return [(self._names[i], self._names[j]) for i, j, _ in self._open]

    def conflicts(self, structure: Structure) -> list[Arc]:
        """Open pairs that share GPUs in a structure."""
        places = structure.places()
        place = [places[worker.name] for worker in self._graph.workers]
        return [
            (self._names[i], self._names[j])
            for i, j, pairs in self._open
            if any(_meet(place[a], place[b]) for a, b in pairs)
        ]

    def orders(self, structure: Structure) -> tuple[Order, ...]:
        """Undominated orders of a structure, at least one."""
        places = structure.places()
        place = [places[worker.name] for worker in self._graph.workers]
        key = tuple(any(_meet(place[a], place[b]) for a, b in pairs) for _, _, pairs in self._open)
        if key not in self._cache:
            conflicts = [(i, j) for (i, j, _), hit in zip(self._open, key, strict=True) if hit]
            self._cache[key] = self._enumerate(conflicts)
        return self._cache[key]

    def _enumerate(self, conflicts: list[tuple[int, int]]) -> tuple[Order, ...]:
        found: dict[frozenset[int], tuple[tuple[int, int], ...]] = {}
        num = len(self._names)

        closure = _closure(num, self._edges)
        serial = _serial(num, closure, conflicts)

        def extend(depth: int, reach: list[int], arcs: tuple[tuple[int, int], ...]) -> bool:
            """Adds the orders that continue `arcs`; True when one of them beats all others for certain."""
            if found or depth == len(conflicts):
                # More arcs only lengthen paths, so what beats a partial order beats all of its completions.
                paths = _maximal_paths(num, [*self._edges, *arcs])
                if any(_beats(other, paths) for other in found):
                    return False
                if depth == len(conflicts):
                    found[paths] = arcs
                    # Stages of which no two can ever overlap lie on one path in every order.
                    return all(_is_clique(path, serial) for path in paths)
            return any(
                extend(depth + 1, _add_arc(reach, before, after), (*arcs, (before, after)))
                for before, after in (conflicts[depth], conflicts[depth][::-1])
                if not reach[after] >> before & 1
            )

        extend(0, closure, ())
        kept = [paths for paths in found if not any(_beats(other, paths) for other in found if other != paths)]
        names = self._names
        return tuple(
            Order(arcs=tuple((names[a], names[b]) for a, b in found[paths]), paths=tuple(sorted(paths)))
            for paths in sorted(kept, key=sorted)
        )


def maximal_paths(names: Sequence[StageName], edges: Iterable[Arc]) -> tuple[int, ...]:
    """Bit sets over `names` of the paths from sources to sinks, without those contained in another; sorted."""
    index = {name: i for i, name in enumerate(names)}
    return tuple(sorted(_maximal_paths(len(names), [(index[a], index[b]) for a, b in edges])))


def orientations(names: Sequence[StageName], edges: Sequence[Arc], pairs: Sequence[Arc]) -> Iterator[tuple[Arc, ...]]:
    """All ways to order each of `pairs` that make no cycle with `edges`."""
    index = {name: i for i, name in enumerate(names)}

    def extend(depth: int, reach: list[int], arcs: tuple[Arc, ...]) -> Iterator[tuple[Arc, ...]]:
        if depth == len(pairs):
            yield arcs
            return
        for before, after in (pairs[depth], pairs[depth][::-1]):
            if not reach[index[after]] >> index[before] & 1:
                longer = _add_arc(reach, index[before], index[after])
                yield from extend(depth + 1, longer, (*arcs, (before, after)))

    yield from extend(0, _closure(len(names), [(index[a], index[b]) for a, b in edges]), ())


def sequence(names: Sequence[StageName], edges: Iterable[Arc]) -> list[StageName]:
    """A topological order; of the stages that are ready, the first of `names` goes first."""
    left, result, pairs = list(names), [], list(edges)
    while left:
        name = next(n for n in left if not any(b is n and a in left for a, b in pairs))
        left.remove(name)
        result.append(name)
    return result


def _meet(first: tuple[str, int], second: tuple[str, int]) -> bool:
    return first[0] == second[0] and (first[1] == second[1] or -1 in (first[1], second[1]))


def _closure(num: int, edges: list[tuple[int, int]]) -> list[int]:
    """Bit set of the nodes reachable from each node, itself included."""
    reach = [1 << i for i in range(num)]
    for before, after in edges:
        reach = _add_arc(reach, before, after)
    return reach


def _add_arc(reach: list[int], before: int, after: int) -> list[int]:
    target = reach[after]
    return [bits | target if bits >> before & 1 else bits for bits in reach]


def _maximal_paths(num: int, edges: list[tuple[int, int]]) -> frozenset[int]:
    """Node sets of the paths from sources to sinks, without those contained in another."""
    follow: list[list[int]] = [[] for _ in range(num)]
    has_before = [False] * num
    for before, after in edges:
        follow[before].append(after)
        has_before[after] = True
    paths: set[int] = set()

    def walk(node: int, bits: int) -> None:
        if not follow[node]:
            paths.add(bits)
        for after in follow[node]:
            walk(after, bits | 1 << after)

    for node in range(num):
        if not has_before[node]:
            walk(node, 1 << node)
    return frozenset(p for p in paths if not any(p != q and p & q == p for q in paths))


def _serial(num: int, closure: list[int], conflicts: list[tuple[int, int]]) -> list[int]:
    """Bit set per node of the nodes that can never run beside it, itself included."""
    serial = list(closure)
    for i in range(num):
        for j in range(num):
            serial[i] |= (closure[j] >> i & 1) << j
    for a, b in conflicts:
        serial[a] |= 1 << b
        serial[b] |= 1 << a
    return serial


def _is_clique(nodes: int, serial: list[int]) -> bool:
    return all(nodes & ~serial[i] == 0 for i in range(len(serial)) if nodes >> i & 1)


def _beats(first: frozenset[int], second: frozenset[int]) -> bool:
    """Whether each path of `first` is part of a path of `second`, which therefore cannot be shorter."""
    return all(any(p & q == p for q in second) for p in first)
