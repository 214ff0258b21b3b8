"""Which GPU each rank of a worker runs on, and how its parallel axes lie over nodes and scale-up domains.

Ranks of a worker are numbered from 0 on the first GPU of its device group, node by node. Trainers order their axes
tp, cp, dp, pp from fastest to slowest (Megatron's default `tp-cp-ep-dp-pp`; experts: etp, ep, expert dp, pp), so that
tensor-parallel neighbours are adjacent and pipeline ranks furthest apart. Engines order tp, attention dp, pp, engine
(experts: their width, ep, pp, engine): every engine is a block of adjacent GPUs. `planner.cost.layout` prices the same
order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd

from planner.domain.hardware import Pool
from planner.domain.plan import DeviceGroup, Placement, Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import RolloutStrategy, Strategy, TrainerStrategy


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshAxis:
    """One parallel axis: `size` ranks that are `stride` ranks apart.

    `num_nodes` and `num_domains` are the most nodes and scale-up domains that one group along the axis touches; 1
    says that all its traffic stays inside a node, or on the scale-up link.
    """

    name: str
    size: int
    stride: int
    num_nodes: int
    num_domains: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRun:
    """Consecutive places (nodes or scale-up domains) that hold equally many consecutive ranks each.

    Place `first + i` for i below `count` holds ranks `first_rank + i * ranks_each` to `+ ranks_each - 1`, on its own
    GPUs from `first_gpu` on. Nodes and domains are numbered as the machine room does, those that are out included.
    """

    first: int
    count: int
    first_rank: int
    ranks_each: int
    first_gpu: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRanks:
    """The mesh of one worker on one device group, innermost axis first, and where its ranks are.

    `expert_axes` is empty for a strategy without expert parallelism.
    """

    worker: WorkerName
    device_group: str
    pool: str
    num_ranks: int
    axes: tuple[MeshAxis, ...]
    expert_axes: tuple[MeshAxis, ...]
    nodes: tuple[RankRun, ...]
    domains: tuple[RankRun, ...]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Index of a rank along every axis; ValueError for a rank that there is not."""
        self._check(rank)
        return {axis.name: rank // axis.stride % axis.size for axis in self.axes}

    def node_of(self, rank: int) -> tuple[int, int]:
        """(node, GPU within it) of a rank; ValueError for a rank that there is not."""
        return self._place(rank, self.nodes)

    def domain_of(self, rank: int) -> int:
        """Scale-up domain of a rank; ValueError for a rank that there is not."""
        return self._place(rank, self.domains)[0]

    def _place(self, rank: int, runs: tuple[RankRun, ...]) -> tuple[int, int]:
        self._check(rank)
        run = next(run for run in reversed(runs) if run.first_rank <= rank)
        place, gpu = divmod(rank - run.first_rank, run.ranks_each)
        return run.first + place, run.first_gpu + gpu

    def _check(self, rank: int) -> None:
        if not 0 <= rank < self.num_ranks:
            raise ValueError(f"{self.worker.value} has ranks 0 to {self.num_ranks - 1}, not {rank}")


def rank_map(plan: Plan) -> tuple[WorkerRanks, ...]:
    """The ranks of every worker of a plan, in the order of its placements; one entry per worker and device group."""
    groups = {group.id: group for group in plan.device_groups}
    found: dict[tuple[WorkerName, str], Placement] = {}
    for item in plan.placements:
        if item.worker is not None and item.strategy is not None:
            found.setdefault((item.worker, item.device_group), item)
    result = []
    for (worker, group_id), item in found.items():
        assert item.strategy is not None
        group = groups[group_id]
        result.append(worker_ranks(worker, item.strategy, group, plan.cluster.pool(group.pool)))
    return tuple(result)


def worker_ranks(worker: WorkerName, strategy: Strategy, group: DeviceGroup, pool: Pool) -> WorkerRanks:
    """The ranks of one worker on the first GPUs of a device group."""
    node = pool.node
    per_node, per_domain = node.gpus_per_node, node.scale_up_domain_gpus
    used = range(group.first_gpu, group.first_gpu + strategy.num_gpus)
    dense, experts = _axes(strategy)

    def placed(axes: tuple[tuple[str, int], ...]) -> tuple[MeshAxis, ...]:
        result, stride = [], 1
        for name, size in axes:
            result.append(
                MeshAxis(
                    name=name, size=size, stride=stride,
                    num_nodes=_most_places(used, size, stride, per_node),
                    num_domains=_most_places(used, size, stride, per_domain),
                )
            )  # fmt: skip
            stride *= size
        return tuple(result)

    return WorkerRanks(
        worker=worker,
        device_group=group.id,
        pool=group.pool,
        num_ranks=strategy.num_gpus,
        axes=placed(dense),
        expert_axes=placed(experts),
        nodes=tuple(_renumbered(_runs(used, per_node), pool)),
        domains=tuple(_in_machine_room(_runs(used, per_domain), pool)),
    )


def _axes(strategy: Strategy) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]:
    """(name, size) of the dense and of the expert axes, innermost first."""
    if isinstance(strategy, RolloutStrategy):
        outer = (("pp", strategy.pp), ("engine", strategy.num_engines))
        ranks = strategy.tp * strategy.attention_dp
        groups = (("attention dp", strategy.attention_dp),) if strategy.attention_dp > 1 else ()
        dense = (("tp", strategy.tp), *groups, *outer)
        if strategy.ep == 1 and not groups:
            return dense, ()
        width = (("expert tp", ranks // strategy.ep),) if strategy.ep < ranks else ()
        return dense, (*width, ("ep", strategy.ep), *outer)
    assert isinstance(strategy, TrainerStrategy)
    trainer = (("tp", strategy.tp), ("cp", strategy.cp), ("dp", strategy.dp), ("pp", strategy.pp))
    if strategy.ep * strategy.etp == 1:
        return trainer, ()
    expert_dp = strategy.num_gpus // (strategy.pp * strategy.ep * strategy.etp)
    return trainer, (("etp", strategy.etp), ("ep", strategy.ep), ("expert dp", expert_dp), ("pp", strategy.pp))


def _most_places(used: range, size: int, stride: int, per_place: int) -> int:
    """Most blocks of `per_place` GPUs that one of the groups of `size` GPUs, `stride` apart, touches."""
    if size == 1:
        return 1
    if stride >= per_place:
        return size
    reach, block = (size - 1) * stride, size * stride
    # Groups begin at every GPU whose index along the axis is 0. Only its position within a place matters, and
    # positions repeat after so many blocks.
    num_blocks = min(len(used) // block, per_place // gcd(block, per_place))
    starts = (used.start + number * block + offset for number in range(num_blocks) for offset in range(stride))
    return max((start % per_place + reach) // per_place + 1 for start in starts)


def _runs(used: range, per_place: int) -> Iterator[RankRun]:
    """Places of `per_place` GPUs: a part of one, whole ones, and a part of another."""
    gpu = used.start
    while gpu < used.stop:
        place, offset = divmod(gpu, per_place)
        whole = (used.stop - gpu) // per_place
        count = whole if offset == 0 and whole > 0 else 1
        each = per_place if offset == 0 and whole > 0 else min(per_place - offset, used.stop - gpu)
        yield RankRun(first=place, count=count, first_rank=gpu - used.start, ranks_each=each, first_gpu=offset)
        gpu += count * each


def _in_machine_room(runs: Iterator[RankRun], pool: Pool) -> Iterator[RankRun]:
    """Runs of scale-up domains by their numbers in the machine room, split where another one lies in between."""
    if not pool.out_nodes:
        yield from runs
        return
    for run in runs:
        numbers = [pool.physical_domain(run.first + i) for i in range(run.count)]
        starts = [i for i in range(run.count) if i == 0 or numbers[i] != numbers[i - 1] + 1]
        for start, end in pairwise([*starts, run.count]):
            first_rank = run.first_rank + start * run.ranks_each
            yield replace(run, first=numbers[start], count=end - start, first_rank=first_rank)


def _renumbered(runs: Iterator[RankRun], pool: Pool) -> Iterator[RankRun]:
    """The runs with nodes that are out counted, split where one lies in between."""
    for run in runs:
        done = 0
        while done < run.count:
            first = pool.physical_node(run.first + done)
            free = next((out - first for out in pool.out_nodes if out > first), run.count)
            count = min(free, run.count - done)
            yield replace(run, first=first, count=count, first_rank=run.first_rank + done * run.ranks_each)
            done += count
