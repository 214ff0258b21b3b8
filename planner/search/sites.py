"""Frameworks whose rules ask where the engines sit: a search problem is split by that, and by what is then allowed.

Engines on the trainers' GPUs and engines on their own are problems of their own, with the options that the framework
can run there. Their union holds every legal plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.domain.framework import FrameworkRules
from planner.domain.framework_limits import EngineSite
from planner.domain.framework_sites import allowed_at, depends_on_site
from planner.domain.stages import ROLLOUT_ENGINES, WorkerName
from planner.domain.strategy import BoolArray, FloatArray
from planner.search.options import take
from planner.search.pricing import PricedWorker
from planner.search.problem import OptionTable, SearchProblem
from planner.search.structures import Structure, StructureFilter

ELSEWHERE = ""
"""Why a structure is left out here: another problem of the union has it. It is no reason to tell anybody."""

_Sizes = Callable[[OptionTable, int], BoolArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What a search problem keeps: structures of one site, and options by (worker, pool) as masks over candidates."""

    site: EngineSite
    serial: frozenset[WorkerName]
    """Workers of one device group: they never run at the same time."""
    structure_filter: StructureFilter
    allowed: Mapping[tuple[WorkerName, str], BoolArray]
    sizes: _Sizes | None

    def of(self, problem: SearchProblem) -> SearchProblem:
        """The problem with the options of the variant."""
        options = tuple(self._kept(table, problem) for table in problem.options)
        return replace(problem, options=options, structure_filter=self.structure_filter)

    def _kept(self, table: OptionTable, problem: SearchProblem) -> OptionTable:
        mask = self.allowed.get((table.worker, table.pool))
        keep = np.full(len(table), True) if mask is None else mask[table.row]
        if self.sizes is not None:
            keep = keep & self.sizes(table, problem.pool(table.pool).gpus_per_node)
        return table if keep.all() else take(table, keep)


def variants(rules: FrameworkRules, priced: Sequence[PricedWorker], problem: SearchProblem) -> tuple[Variant, ...]:
    """How a problem is split; empty where no rule asks for the site."""
    if not depends_on_site(rules):
        return ()
    result: list[Variant] = []
    for site in EngineSite:
        if site is EngineSite.SHARED and problem.execution.is_asynchronous:
            continue
        allowed = {
            (item.worker.name, item.pool.name): allowed_at(
                rules, item.candidates, item.worker.name, item.worker.model, problem.execution.mode, site
            )
            for item in priced
        }
        keeps = partial(_site_problem, problem.structure_filter, site)
        by_size: tuple[_Sizes | None, ...] = (None,)
        if site is EngineSite.APART and rules.equal_gpus_per_node:
            by_size = (_whole_nodes, _below_a_node)
        # On several pools groups of one pool tell nothing about the others.
        serial = _serial(rules, problem, site) if rules.one_pool else frozenset[WorkerName]()
        result += [
            Variant(site=site, serial=serial, structure_filter=keeps, allowed=allowed, sizes=sizes) for sizes in by_size
        ]
    return tuple(result)


def split(
    variants: Sequence[Variant], problem: SearchProblem, bound_s: float
) -> tuple[tuple[SearchProblem, float], ...]:
    """The problem of each variant in which every worker has an option, with a lower bound on its seconds; the problem
    itself, which takes at least `bound_s`, without variants."""
    if not variants:
        return ((problem, bound_s),)
    found = ((variant, variant.of(problem)) for variant in variants)
    return tuple((item, max(bound_s, _least_s(variant, item))) for variant, item in found if _all_have_options(item))


def _serial(rules: FrameworkRules, problem: SearchProblem, site: EngineSite) -> frozenset[WorkerName]:
    """The actor trainer and whoever has to be on its GPUs, engines included where they share them."""
    members = frozenset({WorkerName.ACTOR_TRAINER})
    if site is EngineSite.SHARED:
        members |= {WorkerName.ROLLOUT_ENGINE}
        sets = [shared for shared in rules.may_share if members <= shared]
        if sets and all(shared in rules.indivisible_shares for shared in sets):
            members |= frozenset.intersection(*sets)
    for together in rules.must_share:
        members |= together if members & together else frozenset()
    return members & frozenset(worker.name for worker in problem.graph.workers)


def _least_s(variant: Variant, problem: SearchProblem) -> float:
    """A lower bound on the seconds of a synchronous iteration, from the sizes of the groups: engines and trainers on
    one group have equal sizes, apart from each other theirs add up to no more than the pool. All that the trainer does
    comes after the rollout."""
    execution = problem.execution
    if execution.is_asynchronous or execution.fusions or not problem.equal_size:
        return 0.0
    return min((_least_on(variant, problem, pool.name, pool.num_gpus) for pool in problem.pools), default=0.0)


def _least_on(variant: Variant, problem: SearchProblem, pool: str, num_gpus: int) -> float:
    group = np.zeros(num_gpus + 1)
    for worker in variant.serial:
        group = group + _by_size(problem.table(worker, pool), num_gpus)
    if variant.site is EngineSite.SHARED:
        return float(group.min())
    engines = _by_size(problem.table(WorkerName.ROLLOUT_ENGINE, pool), num_gpus)
    # The best group of trainers on the GPUs that engines of each size leave.
    rest = np.minimum.accumulate(group)[::-1]
    return float((engines + rest).min())


def _by_size(table: OptionTable | None, num_gpus: int) -> FloatArray:
    """Least seconds of all stages of a worker and its share of the weight sync on groups of 0 to `num_gpus` GPUs;
    infinite where it has no option, so that a group of no GPUs is never the best."""
    least = np.full(num_gpus + 1, np.inf)
    if table is not None and len(table):
        syncs = (table.sync_colocated_s, table.sync_disaggregated_s, table.sync_cross_pool_s)
        np.minimum.at(least, table.num_gpus, table.stage_time_s.sum(axis=0) + np.min(syncs, axis=0))
    return least


def _all_have_options(problem: SearchProblem) -> bool:
    able = {table.worker for table in problem.options if len(table)}
    return all(worker.name in able for worker in problem.graph.workers)


def _site_problem(base: StructureFilter | None, site: EngineSite, structure: Structure) -> str | None:
    found = base(structure) if base is not None else None
    shares = structure.overlap(WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER)
    if shares is not (site is EngineSite.SHARED):
        return ELSEWHERE
    return found


def _takes_part(table: OptionTable) -> bool:
    return table.worker in (WorkerName.ACTOR_TRAINER, *ROLLOUT_ENGINES)


def _whole_nodes(table: OptionTable, gpus_per_node: int) -> BoolArray:
    if not _takes_part(table):
        return np.full(len(table), True)
    return np.asarray(table.num_gpus % gpus_per_node == 0)


def _below_a_node(table: OptionTable, gpus_per_node: int) -> BoolArray:
    """Two groups that are each smaller than a node come to lie on one: their sizes are halvings of it."""
    if not _takes_part(table):
        return np.full(len(table), True)
    return np.asarray(table.num_gpus < gpus_per_node)
