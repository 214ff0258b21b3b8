"""Device groups on physical GPUs: nodes and scale-up domains are kept whole wherever the pool has room for that."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from planner.assembly import PlacedStrategy
from planner.cost.communication import span
from planner.domain.hardware import NodeType, Pool
from planner.domain.plan import Assumption, Limits, Plan
from planner.domain.ranks import rank_map, worker_ranks
from planner.domain.stages import WorkerName, build_graph
from planner.files.catalog import generic_node, load_node
from planner.pipeline import make_plan
from planner.placing import block_starts, crossing_notes, device_group, strays
from tests.unit.test_pipeline import qwen_workload, request_on, trainer

RACK = 72
TRAY = replace(generic_node("gb200"), gpus_per_node=4, scale_up_domain_gpus=RACK)


def pool(num_nodes: int, node: NodeType = TRAY) -> Pool:
    return Pool(name="racks", node=node, num_nodes=num_nodes, usd_per_gpu_hour=None)


def laid(sizes: list[int], num_nodes: int, num_gpus: int | None = None) -> list[int]:
    """First GPUs in the order of the sizes, which descend."""
    here = pool(num_nodes)
    starts = block_starts([(str(i), size) for i, size in enumerate(sizes)], here, num_gpus or here.num_gpus)
    return [starts[str(i)] for i in range(len(sizes))]


def astray(sizes: list[int], starts: list[int], domain: int = RACK) -> int:
    return sum(strays(first, size, domain) for first, size in zip(starts, sizes, strict=True))


def random_sizes(rng: random.Random, num_nodes: int) -> list[int]:
    sizes: list[int] = []
    for _ in range(rng.randint(1, 5)):
        size = rng.choice((1, 2, *(4 * rng.randint(1, max(num_nodes // 2, 1)) for _ in range(4))))
        if sum(sizes) + size <= 4 * num_nodes - 4:
            sizes.append(size)
    return sorted(sizes or [4], reverse=True)


@pytest.mark.parametrize("seed", range(120))
def test_blocks_are_disjoint_inside_the_pool_and_begin_with_nodes(seed: int) -> None:
    rng = random.Random(seed)
    num_nodes = rng.randint(2, 54)
    sizes = random_sizes(rng, num_nodes)
    starts = laid(sizes, num_nodes)
    ranges = sorted((first, first + size) for first, size in zip(starts, sizes, strict=True))
    assert ranges[0][0] >= 0 and ranges[-1][1] <= 4 * num_nodes
    assert all(a[1] <= b[0] for a, b in pairwise(ranges))
    for first, size in zip(starts, sizes, strict=True):
        assert first % min(size, 4) == 0
    used = {gpu // 4 for first, last in ranges for gpu in range(first, last)}
    assert len(used) == -(-sum(sizes) // 4), "as many nodes as the search counts"


def fewest_astray(sizes: list[int], num_gpus: int) -> int:
    """By trying every start at every node, one block after the other, largest last: for a few blocks of whole nodes."""

    def best(left: tuple[int, ...], taken: frozenset[int]) -> int:
        if not left:
            return 0
        found = len(left)
        for first in range(0, num_gpus - left[0] + 1, 4):
            here = frozenset(range(first, first + left[0]))
            if not here & taken:
                found = min(found, strays(first, left[0], RACK) + best(left[1:], taken | here))
                if found == 0:
                    break
        return found

    return best(tuple(sizes), frozenset())


@pytest.mark.parametrize("seed", range(25))
def test_no_other_places_would_keep_more_blocks_in_their_domains(seed: int) -> None:
    rng = random.Random(1000 + seed)
    num_nodes = rng.choice((18, 20, 27, 36))
    sizes = [4 * rng.randint(1, num_nodes // 2) for _ in range(3)]
    while sum(sizes) > 4 * num_nodes:
        sizes.remove(max(sizes))
    sizes = sorted(sizes or [8], reverse=True)
    assert astray(sizes, laid(sizes, num_nodes)) == fewest_astray(sizes, 4 * num_nodes)


def test_by_hand() -> None:
    # largest first would put 44..83 over the border of the racks
    assert laid([44, 40], 36) == [0, 72]
    assert laid([44, 40, 28], 36) == [0, 72, 44]
    # a group of more than a rack begins with one, and others fill what is left of its last
    assert laid([100, 40], 54) == [0, 100] and astray([100, 40], [0, 100]) == 0
    assert laid([48, 48, 48], 36) == [0, 48, 96] and astray([48, 48, 48], [0, 48, 96]) == 1
    # below a pool-wide group there is no room for gaps
    assert laid([44, 40], 36, 84) == [0, 44]


def test_nodes_that_are_domains_leave_the_order_of_sizes() -> None:
    node = generic_node("h100")
    blocks = [("a", 16), ("b", 8), ("c", 4), ("d", 2), ("e", 2)]
    assert block_starts(blocks, pool(8, node), 64) == {"a": 0, "b": 16, "c": 24, "d": 28, "e": 30}
    assert block_starts([], pool(8, node), 64) == {}


@pytest.mark.parametrize("seed", range(80))
def test_axes_touch_no_more_domains_than_are_priced(seed: int) -> None:
    """Of groups that do not stray, for meshes whose blocks divide a domain: what the cost model counts is what the rank
    map shows."""
    rng = random.Random(seed)
    tp, cp, dp, pp = rng.choice((1, 2, 4, 8)), rng.choice((1, 2)), rng.choice((1, 3, 9)), rng.choice((1, 2, 4))
    size = tp * cp * dp * pp
    first, other = rng.choice((36, 72, 24)), 4 * -(-size // 4)
    sizes = sorted((other, first), reverse=True)
    start = laid(sizes, 216)[sizes.index(other)]
    assert not strays(start, other, RACK)
    strategy = trainer(size, tp=tp, cp=cp, pp=pp, shard_ranks=1)
    group = device_group("racks/0", pool(216), start, other)
    stride = 1
    for axis in worker_ranks(WorkerName.ACTOR_TRAINER, strategy, group, pool(216)).axes:
        counted = span(np.array([float(axis.size)]), float(stride), TRAY).num_domains[0]
        block = stride * axis.size
        if RACK % block == 0 or block % RACK == 0 or other <= RACK:
            assert axis.num_domains <= counted, (axis, sizes, start)
        stride *= axis.size


@pytest.fixture(scope="module")
def two_groups() -> Plan:
    limits = Limits(must_not_share=((WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER),))
    request = request_on(qwen_workload("qwen3-32b"), 30, gpu="gb200", limits=limits)
    tray = load_node("gb200-nvl72-tray")
    assert request.cluster is not None
    rack = replace(request.cluster.pools[0], node=tray)
    return make_plan(replace(request, cluster=replace(request.cluster, pools=(rack,))))


def test_a_plan_over_racks_keeps_groups_in_them(two_groups: Plan) -> None:
    domain = two_groups.cluster.pools[0].node.scale_up_domain_gpus
    assert domain == RACK and len(two_groups.device_groups) >= 2
    assert not [g for g in two_groups.device_groups if strays(g.first_gpu, g.num_gpus, domain)]
    for item in rank_map(two_groups):
        if item.num_ranks <= RACK:
            assert all(axis.num_domains == 1 for axis in item.axes)


def test_groups_of_ranks_that_cross_racks_are_named() -> None:
    """Blocks of 32 GPUs do not divide racks of 72: the third one goes on in the next rack, and is priced in one."""
    work = qwen_workload()
    here = pool(36)

    def notes(size: int, tp: int, cp: int) -> tuple[Assumption, ...]:
        item = PlacedStrategy(
            worker=build_graph(work).worker(WorkerName.ACTOR_TRAINER), pool=here,
            group=device_group("racks/0", here, 0, size), strategy=trainer(size, tp=tp, cp=cp, shard_ranks=1),
        )  # fmt: skip
        return crossing_notes((item,))

    (note,) = notes(128, 4, 8)
    assert note.value == "actor trainer: cp 8 inside racks" and "racks of 64 GPUs" in note.effect
    assert notes(64, 4, 8) == () and notes(144, 4, 2) == ()
