"""Structures and orders are complete and without duplicates."""

from __future__ import annotations

import random
from itertools import permutations, product
from math import comb

import pytest

from planner.domain.stages import StageName, WorkerName
from planner.search.orders import OrderBook
from planner.search.structures import PoolGroups, Structure, enumerate_structures, set_partitions
from tests.oracle.instances import graph_of

WORKERS = tuple(name for name in WorkerName if name is not WorkerName.SECOND_ENGINE)
BELL = (1, 1, 2, 5, 15, 52)


@pytest.mark.parametrize("num", range(6))
def test_set_partitions_are_counted_by_bell_numbers(num: int) -> None:
    partitions = list(set_partitions(WORKERS[:num]))
    assert len(partitions) == len(set(partitions)) == BELL[num]


@pytest.mark.parametrize("num", range(1, 6))
def test_one_pool_has_a_whole_set_and_a_partition_of_the_rest(num: int) -> None:
    def count(*, nested_single: bool) -> int:
        found = list(enumerate_structures(iter([("p",) * num]), WORKERS[:num], nested_single=nested_single))
        assert len(found) == len(set(found))
        return len(found)

    every = sum(comb(num, whole) * BELL[num - whole] for whole in range(num))
    single_block = sum(comb(num, whole) for whole in range(1, num))
    assert count(nested_single=True) == every
    assert count(nested_single=False) == every - single_block


def test_overlap_follows_from_groups() -> None:
    engine, actor, reference, critic, _ = WORKERS
    structure = Structure(
        pools=(
            PoolGroups(pool="a", whole=(engine,), blocks=((actor,), (reference,))),
            PoolGroups(pool="b", whole=(), blocks=((critic,),)),
        )
    )
    assert structure.overlap(engine, actor) and structure.overlap(engine, reference)
    assert not structure.overlap(actor, reference)
    assert not structure.overlap(engine, critic)
    assert structure.overlap(critic, critic)
    assert structure.num_groups == 4
    with pytest.raises(KeyError):
        structure.pool_of(WorkerName.REWARD_MODEL)


def best_over_sequences(structure: Structure, graph, duration_s: dict[StageName, float]) -> float:  # type: ignore[no-untyped-def]
    """Least makespan over all sequences in which stages could start."""
    names = [stage.name for stage in graph.stages]
    users = {name: [w for w in graph.workers_of(name) if graph.has_worker(w)] for name in names}
    clash = {(a, b): any(structure.overlap(x, y) for x in users[a] for y in users[b]) for a, b in product(names, names)}
    best = float("inf")
    for sequence in permutations(names):
        end: dict[StageName, float] = {}
        for name in sequence:
            before = [a for a, b in graph.edges if b is name]
            if any(a not in end for a in before):
                break
            waits = [end[a] for a in before] + [end[b] for b in end if clash[name, b]]
            end[name] = max(waits, default=0.0) + duration_s[name]
        else:
            best = min(best, max(end.values()))
    return best


def test_orders_give_the_best_makespan_for_any_durations() -> None:
    rng = random.Random(3)
    several = 0
    for trial in range(40):
        workers = (*WORKERS[:2], rng.choice(WORKERS[2:]))
        graph = graph_of(workers, host_reward=False, edge_rng=rng if trial % 2 else None)
        structures = list(enumerate_structures(iter([("p",) * 3]), workers, nested_single=False))
        structure = rng.choice(structures)
        names = [stage.name for stage in graph.stages]
        orders = OrderBook(graph).orders(structure)
        several += len(orders) > 1
        duration_s = {name: rng.uniform(1, 10) for name in names}
        lengths = [
            max(sum(duration_s[name] for i, name in enumerate(names) if path >> i & 1) for path in order.paths)
            for order in orders
        ]
        assert min(lengths) == pytest.approx(best_over_sequences(structure, graph, duration_s))
    assert several > 0
