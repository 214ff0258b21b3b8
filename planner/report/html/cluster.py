"""Which worker's ranks are on which GPUs, nodes and scale-up domains; large clusters by node or by several nodes.

Ranks are placed as the cost model prices them (planner/cost/layout.py): tensor-parallel ranks are neighbours, then
context-, data- and pipeline-parallel ones; experts: expert tensor, expert, expert data, pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.domain.hardware import Pool
from planner.domain.plan import DeviceGroup, Plan
from planner.domain.stages import WorkerName
from planner.domain.strategy import RolloutStrategy, Strategy, TrainerStrategy
from planner.report.html.markup import Html, details, figure, join, table, tag
from planner.report.words import counted, degrees, strategy_words

MAX_CELLS = 256
"""Cells per map; more GPUs are drawn several to a cell."""
NUM_COLOURS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A worker on its device group."""

    worker: WorkerName
    group: DeviceGroup
    strategy: Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """`size` GPUs of a pool from `first` on. `index` chooses the colour, -1 for GPUs that the worker does not use."""

    first: int
    size: int
    index: int
    label: str
    tip: str


def seats(plan: Plan) -> tuple[Seat, ...]:
    """Each worker once, in the order of its first stage."""
    groups = {group.id: group for group in plan.device_groups}
    found: dict[WorkerName, Seat] = {}
    for placement in plan.placements:
        group, worker = groups.get(placement.device_group), placement.worker
        if worker is not None and group is not None and placement.strategy is not None:
            found.setdefault(worker, Seat(worker=worker, group=group, strategy=placement.strategy))
    return tuple(found.values())


def cluster_figure(plan: Plan) -> Html:
    """One map per worker, and a table of device groups."""
    found = seats(plan)
    return figure(
        "cluster", "Cluster map",
        "One map per worker: which of its ranks sits on which GPU. Boxes are nodes; where a scale-up domain is wider "
        "or narrower than a node, it has a frame of its own.",
        tag("div", {"class": "maps"}, *(_map(plan, seat) for seat in found)),
        details("Device groups and ranks as a table", _group_table(plan), _rank_table(found)),
    )  # fmt: skip


def _map(plan: Plan, seat: Seat) -> Html:
    pool = plan.cluster.pool(seat.group.pool)
    size = gpus_per_cell(pool)
    cells = list(_cells(pool, seat, size))
    what, key = _colour_words(seat.strategy)
    trains = seat.worker not in (WorkerName.REFERENCE, WorkerName.REWARD_MODEL)
    scale = (
        "" if size == 1 else (f" One cell is {'a node' if size == pool.node.gpus_per_node else counted(size, 'GPU')}.")
    )
    return tag(
        "div", {"class": "map"},
        tag("h3", {}, seat.worker.value),
        tag("p", {"class": "note"}, f"{seat.group.id}: {strategy_words(seat.strategy, trains=trains)}"),
        tag("p", {"class": "note"}, f"Colour and {key}: {what}.{scale}"),
        tag("div", {"class": "pool", "role": "group", "aria-label": f"GPUs of {seat.worker.value}"},
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
        used = range(max(first, seat.group.ranks.start), min(end, seat.group.ranks.stop))
        per_node = pool.node.gpus_per_node
        last_node = (end - 1) // per_node
        node = (
            f"node {first // per_node}" if last_node == first // per_node else f"nodes {first // per_node}-{last_node}"
        )
        gpus = f"GPU {first}" if size == 1 else f"GPU {first}-{end - 1}"
        if not used:
            yield Cell(first=first, size=end - first, index=-1, label="", tip=f"{gpus}, {node}: not used")
            continue
        ranks = [gpu - seat.group.first_gpu for gpu in (used[0], used[-1])]
        index, label = _coordinate(seat.strategy, ranks[0], ranks[1])
        yield Cell(first=first, size=end - first, index=index, label=label,
                   tip=f"{gpus}, {node}: {_rank_words(seat.strategy, ranks[0], ranks[1])}")  # fmt: skip


def _colour_words(strategy: Strategy) -> tuple[str, str]:
    """(what the colour stands for, what is written in a cell)."""
    if isinstance(strategy, RolloutStrategy):
        return "the engine", "number"
    if strategy.pp > 1:
        return "the pipeline stage, then the data-parallel replica" if strategy.dp > 1 else "the pipeline stage", (
            "number"
        )
    return "the data-parallel replica", "number"


def _coordinate(strategy: Strategy, first: int, last: int) -> tuple[int, str]:
    """Colour and text of ranks `first` to `last`."""
    if isinstance(strategy, RolloutStrategy):
        low, high = (rank // (strategy.tp * strategy.pp) for rank in (first, last))
        return low, _span(low, high)
    low, high = (_stage(strategy, rank) for rank in (first, last))
    replicas = [_replica(strategy, rank) for rank in (first, last)]
    if strategy.pp == 1:
        return replicas[0], _span(replicas[0], replicas[1])
    if strategy.dp == 1 or low != high:
        return low, _span(low, high)
    return low, f"{low}·{_span(replicas[0], replicas[1])}"


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def _stage(strategy: TrainerStrategy, rank: int) -> int:
    return rank // (strategy.num_gpus // strategy.pp)


def _replica(strategy: TrainerStrategy, rank: int) -> int:
    return rank % (strategy.num_gpus // strategy.pp) // (strategy.tp * strategy.cp)


def _rank_words(strategy: Strategy, first: int, last: int) -> str:
    """`'rank 13: pp 1, dp 0, cp 1, tp 1'`, or only what all ranks of a cell have in common."""
    ranks = f"rank {first}" if first == last else f"ranks {first}-{last}"
    low, high = _coordinates(strategy, first), _coordinates(strategy, last)
    return f"{ranks}: " + ", ".join(
        f"{name} {_span(min(a, b), max(a, b))}" for (name, a), (_, b) in zip(low, high, strict=True)
        if name in ("engine", "pp", "dp") or first == last
    )  # fmt: skip


def _coordinates(strategy: Strategy, rank: int) -> list[tuple[str, int]]:
    """Where a rank is in each dimension that the strategy has, from the slowest to the fastest."""
    if isinstance(strategy, RolloutStrategy):
        within = rank % (strategy.tp * strategy.pp)
        found = [("engine", rank // (strategy.tp * strategy.pp)), ("pp", within // strategy.tp),
                 ("tp", within % strategy.tp)]  # fmt: skip
        return [item for item in found if item[0] == "engine" or getattr(strategy, item[0]) > 1]
    within = rank % (strategy.num_gpus // strategy.pp)
    found = [
        ("pp", _stage(strategy, rank)), ("dp", _replica(strategy, rank)),
        ("cp", within // strategy.tp % strategy.cp), ("tp", within % strategy.tp),
        ("ep", within // strategy.etp % strategy.ep),
    ]  # fmt: skip
    return [item for item in found if item[0] == "dp" or getattr(strategy, item[0]) > 1]


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
            tag("div", {"class": "node"}, tag("span", {"class": "node-name"}, f"node {first // node}"), content)
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
        workers = ", ".join(seat.worker.value for seat in seats(plan) if seat.group.id == group.id)
        rows.append((group.id, pool.node.name, f"{group.ranks.start}-{group.ranks.stop - 1}", _span(first, last),
                     f"{pool.node.scale_up_domain_gpus} GPUs, {pool.node.gpu.scale_up_kind}", workers))  # fmt: skip
    return table(("group", "node type", "GPUs", "nodes", "scale-up domain", "workers"), rows, caption="Device groups")


def _rank_table(found: tuple[Seat, ...]) -> Html:
    rows = []
    for seat in found:
        strategy = seat.strategy
        if isinstance(strategy, RolloutStrategy):
            size, units = strategy.tp * strategy.pp, "engine"
            shape = degrees(("tp", strategy.tp), ("pp", strategy.pp), ("ep", strategy.ep), always=("tp",))
        else:
            size, units = strategy.num_gpus // strategy.pp, "pipeline stage"
            shape = degrees(("tp", strategy.tp), ("cp", strategy.cp), ("dp", strategy.dp), ("ep", strategy.ep),
                            always=("dp",))  # fmt: skip
        number = seat.group.num_gpus // size
        rows.append((seat.worker.value, counted(number, units), f"{size} neighbouring GPUs each", shape,
                     str(seat.group.first_gpu) + (f", then every {size}" if number > 1 else "")))  # fmt: skip
    return table(("worker", "consists of", "on", "inside", "first GPUs"), rows, caption="Ranks of each worker")
