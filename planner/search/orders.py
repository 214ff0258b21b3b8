"""Orders of conflicting stages, as sets of maximal paths.

Two stages conflict when their device groups intersect. A choice of direction for every conflicting pair that the
stage graph leaves open, without a cycle, is an order; the makespan for given durations is then the longest path of
a DAG, and the best makespan is the minimum over orders. Stages are few, so all orders are enumerated, and those
whose paths cover another order's paths are dropped: durations are not negative, so they cannot be better.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from planner.domain.stages import StageGraph, StageName
from planner.search.structures import Structure


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """`arcs` are the chosen directions (before, after); `paths` are bit sets over `graph.stages`, maximal paths
    only, none contained in another."""

    arcs: tuple[tuple[StageName, StageName], ...]
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

    def orders(self, structure: Structure) -> tuple[Order, ...]:
        """Undominated orders of a structure, at least one."""
        workers = self._graph.workers
        num = len(workers)
        overlap = [[structure.overlap(workers[a].name, workers[b].name) for b in range(num)] for a in range(num)]
        key = tuple(any(overlap[a][b] for a, b in pairs) for _, _, pairs in self._open)
        if key not in self._cache:
            conflicts = [(i, j) for (i, j, _), hit in zip(self._open, key, strict=True) if hit]
            self._cache[key] = self._enumerate(conflicts)
        return self._cache[key]

    def _enumerate(self, conflicts: list[tuple[int, int]]) -> tuple[Order, ...]:
        found: dict[frozenset[int], tuple[tuple[int, int], ...]] = {}
        num = len(self._names)

        def extend(depth: int, reach: list[int], arcs: tuple[tuple[int, int], ...]) -> None:
            if depth == len(conflicts):
                found.setdefault(_maximal_paths(num, [*self._edges, *arcs]), arcs)
                return
            for before, after in (conflicts[depth], conflicts[depth][::-1]):
                if not reach[after] >> before & 1:
                    extend(depth + 1, _add_arc(reach, before, after), (*arcs, (before, after)))

        extend(0, _closure(num, self._edges), ())
        names = self._names
        return tuple(
            Order(arcs=tuple((names[a], names[b]) for a, b in arcs), paths=tuple(sorted(paths)))
            for paths, arcs in _undominated(found)
        )


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


def _undominated(
    found: dict[frozenset[int], tuple[tuple[int, int], ...]],
) -> list[tuple[frozenset[int], tuple[tuple[int, int], ...]]]:
    """Orders whose paths are not all supersets of another order's paths."""
    items = sorted(found.items(), key=lambda item: (sum(p.bit_count() for p in item[0]), sorted(item[0])))

    def beats(first: frozenset[int], second: frozenset[int]) -> bool:
        return all(any(p & q == p for q in second) for p in first)

    kept: list[tuple[frozenset[int], tuple[tuple[int, int], ...]]] = []
    for paths, arcs in items:
        if not any(beats(other, paths) for other, _ in kept):
            kept = [(o, a) for o, a in kept if not beats(paths, o)]
            kept.append((paths, arcs))
    return kept
