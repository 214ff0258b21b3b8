"""Which worker's ranks are on which GPUs, nodes and scale-up domains; large clusters by node or by several nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.domain.hardware import Pool
from planner.domain.plan import DeviceGroup, Plan
from planner.domain.ranks import MeshAxis, WorkerRanks, rank_map
from planner.domain.stages import WorkerName
from planner.domain.strategy import Strategy
from planner.report.cluster import axis_words
from planner.report.html.markup import Html, details, figure, join, table, tag
from planner.report.words import counted, strategy_words

MAX_CELLS = 256
"""Cells per map; more GPUs are drawn several to a cell."""
NUM_COLOURS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A worker on its device group."""

    ranks: WorkerRanks
    group: DeviceGroup
    strategy: Strategy

    def size(self, axis: str) -> int:
        """Ranks along an axis; 1 for one that the worker does not have."""
        return next((item.size for item in self.ranks.axes if item.name == axis), 1)

    @property
    def is_engine(self) -> bool:
        return any(axis.name == "engine" for axis in self.ranks.axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """`size` GPUs of a pool from `first` on. `index` chooses the colour, -1 for GPUs that the worker does not use."""

    first: int
    size: int
    index: int
    label: str
    tip: str


def seats(plan: Plan) -> tuple[Seat, ...]:
    """Each worker on its device group, in the order of the placements."""
    groups = {group.id: group for group in plan.device_groups}
    strategies = {(p.worker, p.device_group): p.strategy for p in reversed(plan.placements)}
    found = []
    for ranks in rank_map(plan):
        strategy = strategies[ranks.worker, ranks.device_group]
        assert strategy is not None
        found.append(Seat(ranks=ranks, group=groups[ranks.device_group], strategy=strategy))
    return tuple(found)


def cluster_figure(plan: Plan) -> Html:
    """One map per worker, and a table of device groups."""
    found = seats(plan)
    return figure(
        "cluster", "Cluster map",
        "One map per worker: which of its ranks sits on which GPU. Boxes are nodes; where a scale-up domain is wider "
        "or narrower than a node, it has a frame of its own.",
        tag("div", {"class": "maps"}, *(_map(plan, seat) for seat in found)),
        details("Device groups and ranks as a table", _group_table(plan), _rank_table(plan, found)),
    )  # fmt: skip


def _map(plan: Plan, seat: Seat) -> Html:
    pool = plan.cluster.pool(seat.group.pool)
    size = gpus_per_cell(pool)
    cells = list(_cells(pool, seat, size))
    what, key = _colour_words(seat, size)
    trains = seat.ranks.worker not in (WorkerName.REFERENCE, WorkerName.REWARD_MODEL)
    scale = (
        "" if size == 1 else (f" One cell is {'a node' if size == pool.node.gpus_per_node else counted(size, 'GPU')}.")
    )
    return tag(
        "div", {"class": "map"},
        tag("h3", {}, seat.ranks.worker.value),
        tag("p", {"class": "note"}, f"{seat.group.id}: {strategy_words(seat.strategy, trains=trains)}"),
        tag("p", {"class": "note"}, f"Colour and {key}: {what}.{scale}"),
        tag("div", {"class": "pool", "role": "group", "aria-label": f"GPUs of {seat.ranks.worker.value}"},
            *_boxes(pool, cells, size)),
    )  # fmt: skip


def gpus_per_cell(pool: Pool) -> int:
    """1, a whole node, or twice, four times, ... a node: what keeps a map below MAX_CELLS cells."""
    if pool.num_gpus <= MAX_CELLS:
        return 1
    size = pool.node.gpus_per_node
    while -(-pool.num_gpus // size) > MAX_CELLS:
        size *= 2
    return size


def _cells(pool: Pool, seat: Seat, size: int) -> Iterator[Cell]:
    for first in range(0, pool.num_gpus, size):
        end = min(first + size, pool.num_gpus)
        gpus = f"GPU {first}" if size == 1 else f"GPU {first}-{end - 1}"
        where = f"{gpus}, {_node_words(pool, first, end - 1)}"
        low, high = max(first, seat.group.first_gpu), min(end, seat.group.first_gpu + seat.ranks.num_ranks)
        if low >= high:
            yield Cell(first=first, size=end - first, index=-1, label="", tip=f"{where}: not used")
            continue
        ranks = (low - seat.group.first_gpu, high - 1 - seat.group.first_gpu)
        index, label = _coordinate(seat, *ranks)
        tip = f"{where}: {_rank_words(seat.ranks, *ranks)}"
        yield Cell(first=first, size=end - first, index=index, label=label, tip=tip)


def _node_words(pool: Pool, first_gpu: int, last_gpu: int) -> str:
    nodes = [pool.physical_node(gpu // pool.node.gpus_per_node) for gpu in (first_gpu, last_gpu)]
    return f"node {nodes[0]}" if nodes[0] == nodes[1] else f"nodes {nodes[0]}-{nodes[1]}"


def _colour_words(seat: Seat, size: int) -> tuple[str, str]:
    """(what the colour stands for, what is written in a cell)."""
    if seat.is_engine:
        return "the engine", "number"
    if seat.size("pp") == 1:
        return "the data-parallel replica", "number"
    both = seat.size("dp") > 1 and size == 1
    return "the pipeline stage, then the data-parallel replica" if both else "the pipeline stage", "number"


def _coordinate(seat: Seat, first: int, last: int) -> tuple[int, str]:
    """Colour and text of ranks `first` to `last`."""
    low, high = seat.ranks.coordinates(first), seat.ranks.coordinates(last)
    axis = "engine" if seat.is_engine else "dp" if seat.size("pp") == 1 else "pp"
    label = _span(low[axis], high[axis])
    # There is no room for both where a cell is many ranks; what is pointed at says everything.
    if axis == "pp" and seat.size("dp") > 1 and first == last:
        label += f"·{low['dp']}"
    return low[axis], label


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def _rank_words(ranks: WorkerRanks, first: int, last: int) -> str:
    """`'rank 13: pp 1, dp 0, cp 1, tp 1'`, or the range of each axis over the ranks of a cell."""
    own = {axis.name for axis in ranks.axes}
    axes = [*reversed(ranks.axes), *(axis for axis in reversed(ranks.expert_axes) if axis.name not in own)]
    told = [f"{axis.name} {_range_on(axis, first, last)}" for axis in axes if axis.size > 1]
    name = f"rank {first}" if first == last else f"ranks {first}-{last}"
    return f"{name}: {', '.join(told)}" if told else name


def _range_on(axis: MeshAxis, first: int, last: int) -> str:
    """The indices that ranks `first` to `last` have along an axis."""
    low, high = first // axis.stride, last // axis.stride
    if high - low >= axis.size or low % axis.size > high % axis.size:
        return f"0-{axis.size - 1}"
    return _span(low % axis.size, high % axis.size)


# ---------------------------------------------------------------------------------------------- boxes


def _boxes(pool: Pool, cells: list[Cell], size: int) -> Iterator[Html]:
    """Cells in their nodes, nodes in their scale-up domains where those are wider."""
    node, domain = pool.node.gpus_per_node, pool.node.scale_up_domain_gpus
    if size > 1:
        nodes = tag("div", {"class": "cells"}, *(_cell(cell) for cell in cells))
        yield nodes
        return
    boxes = []
    for first in range(0, pool.num_gpus, node):
        inner = [cell for cell in cells if first <= cell.first < first + node]
        if domain < node:
            parts = [inner[i : i + domain] for i in range(0, node, domain)]
            content = join(tag("span", {"class": "cells domain"}, *map(_cell, part)) for part in parts)
        else:
            content = tag("span", {"class": "cells"}, *map(_cell, inner))
        boxes.append(
            tag("div", {"class": "node"}, tag("span", {"class": "node-name"}, _node_words(pool, first, first)), content)
        )
    if domain <= node:
        yield from boxes
        return
    per_domain = domain // node
    for index in range(0, len(boxes), per_domain):
        name = f"scale-up domain {index // per_domain}, {counted(domain, 'GPU')}"
        yield tag("div", {"class": "domain"}, tag("span", {"class": "node-name"}, name),
                  *boxes[index : index + per_domain])  # fmt: skip


def _cell(cell: Cell) -> Html:
    colour = "unused" if cell.index < 0 else f"c{cell.index % NUM_COLOURS}"
    return tag("span", {"class": f"cell mark {colour}", "role": "img", "aria-label": cell.tip}, cell.label)


def _group_table(plan: Plan) -> Html:
    rows = []
    for group in plan.device_groups:
        pool = plan.cluster.pool(group.pool)
        first, last = (gpu // pool.node.gpus_per_node for gpu in (group.ranks.start, group.ranks.stop - 1))
        workers = ", ".join(seat.ranks.worker.value for seat in seats(plan) if seat.group.id == group.id)
        rows.append((group.id, pool.node.name, f"{group.ranks.start}-{group.ranks.stop - 1}", _span(first, last),
                     f"{pool.node.scale_up_domain_gpus} GPUs, {pool.node.gpu.scale_up_kind}", workers))  # fmt: skip
    return table(("group", "node type", "GPUs", "nodes", "scale-up domain", "workers"), rows, caption="Device groups")


def _rank_table(plan: Plan, found: tuple[Seat, ...]) -> Html:
    rows = []
    for seat in found:
        node = plan.cluster.pool(seat.ranks.pool).node
        words = axis_words(seat.ranks, is_rack_scale=node.scale_up_domain_gpus > node.gpus_per_node)
        rows.append((seat.ranks.worker.value, seat.group.id, _span(0, seat.ranks.num_ranks - 1), words))
    return table(("worker", "group", "ranks", "axes, innermost first"), rows, caption="Ranks of each worker")
