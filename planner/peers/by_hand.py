"""What people do by hand: everything on all GPUs with TP 8, a fixed split, an equal share per model.

The recipe fixes where workers sit, and with TP 8 also the layout. Every knob that it leaves open is chosen best, which
is kinder to it than practice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from planner.domain.hardware import Pool
from planner.domain.stages import WorkerName
from planner.domain.strategy import BoolArray, RolloutTable, StrategyTable
from planner.peers.meshes import Mesh, structure_of
from planner.peers.tables import Keep, everything, on_group
from planner.peers.task import Configured, PeerPlan, PeerTask, Stopwatch, configured, no_plan, peer_plan

COLOCATED = "by hand: colocated, TP 8"
SPLIT_50 = "by hand: 50:50 split"
SPLIT_75 = "by hand: 75:25 split"
EQUAL_SHARES = "by hand: equal share per model"
OWN_POOLS = "by hand: rollout on its own pool"
USUAL_TP = 8

MODELS: tuple[tuple[WorkerName, ...], ...] = (
    (WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER),
    (WorkerName.REFERENCE,),
    (WorkerName.CRITIC_TRAINER,),
    (WorkerName.REWARD_MODEL,),
)
"""Workers of one model: an engine generates where its actor is trained."""

Placement = Mapping[WorkerName, Mesh] | str
"""Where a recipe puts the workers, or why it cannot."""
Placing = Callable[[PeerTask], Iterable[Placement]]
"""All places that a recipe may mean: one for each pool, or pair of pools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A placement, and what is allowed of each worker's layout: the first of `layouts` with a plan that fits."""

    name: str
    description: str
    place: Placing
    layouts: tuple[Callable[[int], Keep], ...]
    """Group size -> allowed candidates."""


def by_hand(task: PeerTask) -> tuple[PeerPlan, ...]:
    """The plans of all recipes, each on the pool where it is fastest."""
    recipes = (*RECIPES, POOLS_RECIPE) if len(task.pools) > 1 else RECIPES
    return tuple(run_recipe(task, recipe) for recipe in recipes)


def run_recipe(task: PeerTask, recipe: Recipe) -> PeerPlan:
    watch = Stopwatch()
    best: tuple[Configured, float] | None = None
    problems: list[str] = []
    tried = 0
    for meshes in recipe.place(task):
        if isinstance(meshes, str):
            problems.append(meshes)
            continue
        for layout in recipe.layouts:
            tried += 1
            found = on_meshes(task, meshes, {w: layout(m.num_gpus) for w, m in meshes.items()})
            if isinstance(found, Configured):
                if best is None or found.solution.time_s < best[0].solution.time_s:
                    best = found, watch.elapsed_s
                break
            problems.append(found)
    if best is None:
        return no_plan(
            name=recipe.name,
            description=recipe.description,
            problem=problems[-1],
            took_s=watch.elapsed_s,
            evaluations=tried,
        )
    return peer_plan(
        task,
        best[0],
        name=recipe.name,
        description=recipe.description,
        found_after_s=best[1],
        took_s=watch.elapsed_s,
        evaluations=tried,
    )


def on_meshes(task: PeerTask, meshes: Mapping[WorkerName, Mesh], keeps: Mapping[WorkerName, Keep]) -> Configured | str:
    """The best plan of workers that fill their ranges, or why there is none."""
    items = [
        on_group(task.item(worker, mesh.pool), mesh.num_gpus, keeps[worker], task.inputs)
        for worker, mesh in meshes.items()
    ]
    for item in items:
        if not len(item.options):
            where = f"{item.worker.name.value} on {meshes[item.worker.name].num_gpus} GPUs"
            return f"{where} has no such layout" if not len(item.candidates) else f"{where} does not fit"
    structure = structure_of(meshes)
    reason = task.problem.structure_filter(structure) if task.problem.structure_filter is not None else None
    if reason is not None:
        return reason
    return configured(task, structure, items) or "the workers of a group do not fit in memory together"


# ---------------------------------------------------------------------------------------------- placements


def whole_pool(task: PeerTask) -> Iterator[Placement]:
    """Every worker on all GPUs of a pool."""
    for pool in task.pools:
        yield dict.fromkeys(task.workers, _all_of(pool))


def pool_each(task: PeerTask) -> Iterator[Placement]:
    """The engine on one pool, everything else on another."""
    for rollout, rest in permutations(task.pools, 2):
        yield {w: _all_of(rollout if w is WorkerName.ROLLOUT_ENGINE else rest) for w in task.workers}


def _all_of(pool: Pool) -> Mesh:
    return Mesh(pool=pool.name, first_gpu=0, num_gpus=pool.num_gpus)


def split(rollout_share: float) -> Placing:
    """The engine on a share of the pool, everything else on the rest."""

    def place(task: PeerTask, pool: Pool) -> Placement:
        sizes = shares(pool, (rollout_share, 1.0 - rollout_share))
        if sizes is None:
            return f"{pool.num_gpus} GPUs do not split {rollout_share:.0%} to {1.0 - rollout_share:.0%}"
        rollout = Mesh(pool=pool.name, first_gpu=0, num_gpus=sizes[0])
        rest = Mesh(pool=pool.name, first_gpu=sizes[0], num_gpus=sizes[1])
        return {worker: rollout if worker is WorkerName.ROLLOUT_ENGINE else rest for worker in task.workers}

    return lambda task: (place(task, pool) for pool in task.pools)


def equal_shares(task: PeerTask) -> Iterator[Placement]:
    """The same number of GPUs of a pool for each model."""
    return (_equal_shares(task, pool) for pool in task.pools)


def _equal_shares(task: PeerTask, pool: Pool) -> Placement:
    models = [[w for w in members if w in task.workers] for members in MODELS]
    models = [members for members in models if members]
    sizes = shares(pool, (1.0 / len(models),) * len(models))
    if sizes is None:
        return f"{pool.num_gpus} GPUs are too few for {len(models)} models apart"
    meshes: dict[WorkerName, Mesh] = {}
    first = 0
    for members, size in zip(models, sizes, strict=True):
        meshes.update(dict.fromkeys(members, Mesh(pool=pool.name, first_gpu=first, num_gpus=size)))
        first += size
    return {worker: meshes[worker] for worker in task.workers}


def shares(pool: Pool, ratios: Sequence[float]) -> tuple[int, ...] | None:
    """GPUs per share: whole nodes where every share has one, else GPUs; None where one would get nothing.

    Rounded down, and what is left goes to the first shares.
    """
    unit = pool.node.gpus_per_node if all(ratio * pool.num_nodes >= 1 - 1e-9 for ratio in ratios) else 1
    units = pool.num_gpus // unit
    sizes = [int(ratio * units + 1e-9) for ratio in ratios]
    for i in range(units - sum(sizes)):
        sizes[i % len(sizes)] += 1
    return tuple(size * unit for size in sizes) if min(sizes) > 0 else None


# ---------------------------------------------------------------------------------------------- layouts


def tensor_parallel(*, with_pipeline: bool) -> Callable[[int], Keep]:
    """TP as large as legal up to 8, in trainers beside any sharding, micro-batch, recomputation and offload."""

    def layout(num_gpus: int) -> Keep:
        def keep(table: StrategyTable) -> BoolArray:
            allowed = (table.tp <= min(USUAL_TP, num_gpus)) & (table.num_gpus <= num_gpus)
            if not with_pipeline:
                allowed &= table.pp == 1
            if not isinstance(table, RolloutTable):
                allowed &= (table.cp == 1) & (table.vpp == 1)
            # Sizes that the largest degree does not divide have no such row; it is looked for on the largest size.
            largest = np.max(table.tp, where=allowed, initial=0.0)
            return np.asarray(allowed & (table.tp == largest))

        return keep

    return layout


def any_layout(_num_gpus: int) -> Keep:
    return everything


RECIPES: tuple[Recipe, ...] = (
    Recipe(
        name=COLOCATED,
        description="all workers on all GPUs, TP 8 in engines and trainers, any ZeRO level; pipelines if it must be",
        place=whole_pool,
        layouts=(tensor_parallel(with_pipeline=False), tensor_parallel(with_pipeline=True)),
    ),
    Recipe(
        name=SPLIT_50,
        description="half of the GPUs generate, the other half do everything else",
        place=split(0.5),
        layouts=(any_layout,),
    ),
    Recipe(
        name=SPLIT_75,
        description="three quarters of the GPUs generate, the rest do everything else",
        place=split(0.75),
        layouts=(any_layout,),
    ),
    Recipe(
        name=EQUAL_SHARES,
        description="each model on its own GPUs, as many for each",
        place=equal_shares,
        layouts=(any_layout,),
    ),
)
POOLS_RECIPE = Recipe(
    name=OWN_POOLS,
    description="one pool generates, another one does everything else",
    place=pool_each,
    layouts=(any_layout,),
)
"""Where there are several pools."""
