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
from planner.domain.strategy import BoolArray
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
        result += [Variant(structure_filter=keeps, allowed=allowed, sizes=sizes) for sizes in by_size]
    return tuple(result)


def split(variants: Sequence[Variant], problem: SearchProblem) -> tuple[SearchProblem, ...]:
    """The problem of each variant in which every worker has an option; the problem itself without variants."""
    if not variants:
        return (problem,)
    found = tuple(variant.of(problem) for variant in variants)
    return tuple(item for item in found if _all_have_options(item))


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
