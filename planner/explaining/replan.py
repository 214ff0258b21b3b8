"""The best plan in another world: other lengths, links, efficiencies or memory, under the limits of the request.

Such changes leave the candidates of every worker as they are. What a trainer holds depends on the longest sequences
only, so that where memory stays as it is, trainers that do not fit in the plan's own world fit in no other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.assembly import assemble
from planner.domain.hardware import Cluster
from planner.domain.overheads import Overheads
from planner.domain.workload import Workload
from planner.explaining.case import Case
from planner.explaining.market import Setting
from planner.explaining.score import Score, score_of
from planner.search.pricing import PricingInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What may differ from the case without changing which strategies exist. `cluster` has the same pools, with the
    same numbers of nodes and GPUs."""

    workload: Workload
    cluster: Cluster
    overheads: Overheads


def world_of(case: Case) -> World:
    """The case as it is."""
    overheads = case.request.overheads
    assert overheads is not None
    return World(workload=case.request.workload, cluster=case.cluster, overheads=overheads)


def setting_in(case: Case, world: World) -> Setting:
    """The case's request in another world."""
    return Setting(workload=world.workload, cluster=world.cluster, overheads=world.overheads, limits=case.limits)


def best_in(
    case: Case, world: World, guess: Score | None = None, *, has_other_memory: bool = False, at_least: bool = False
) -> Score | None:
    """The best plan of the case's request in another world; None where nothing fits.

    `guess` is a score that some plan is expected to reach; with `at_least` nothing worse counts. `has_other_memory`
    says that GPU memory, host RAM or the share of them that plans may use differs.
    """
    guesses = (guess,) if at_least else (guess, None)
    found = case.market.best(setting_in(case, world), guesses, keeps_memory=not has_other_memory)
    return None if found is None else found.score


def inputs_in(inputs: PricingInputs, world: World) -> PricingInputs:
    """Pricing inputs of one execution in another world."""
    workload = replace(world.workload, needs_old_logprob=inputs.workload.needs_old_logprob)
    return replace(
        inputs,
        workload=workload,
        overheads=world.overheads,
        cross_pool_bytes_per_s=world.cluster.cross_pool_bytes_per_s,
        cross_pool_total_bytes_per_s=world.cluster.inter_pool_total_bytes_per_s,
    )


def kept_in(case: Case, world: World) -> Score | None:
    """Exactly this plan in another world; None where it does not fit."""
    inputs = inputs_in(case.inputs, world)
    placed = tuple(replace(item, pool=world.cluster.pool(item.pool.name)) for item in case.placed)
    assembled = assemble(placed, inputs, None)
    if assembled.problems:
        return None
    return score_of(case.limits.objective, world.cluster, assembled.time_s, case.used_gpus)
