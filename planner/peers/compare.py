"""All peers on one request, beside the optimum of the same tables."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.domain.plan import Limits, Objective, Plan
from planner.domain.request import PlanRequest
from planner.files.framework import load_framework
from planner.peers.by_hand import by_hand
from planner.peers.colocated import MAX_UNITS
from planner.peers.hybridflow import hybridflow
from planner.peers.real_heuristic import real_heuristic
from planner.peers.real_search import real_search
from planner.peers.rlinf import rlinf
from planner.peers.task import Configured, PeerPlan, PeerTask, peer_plan
from planner.solving import Outcome, search

OURS = "rlplan"
GPU_HOURS = "GPU-hours"
"""The unit of cost where a price is missing."""
SEARCH_S = 2.0
"""For peers that search until they are stopped."""
QUICK_UNITS = 16
"""Parts of a pool for peers that divide it, where someone waits for the answer."""
_ROUNDING_RATIO = 1e-5
"""Bounds of CP-SAT and the ILP are counted in ticks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The peers' plans, and what they are measured by.

    `ours` and `bound` are those of the best synchronous plan of the same tables with one group of engines: no peer here
    runs iterations ahead of each other or splits a rollout, so that a plan that does is another policy. `bound` is in
    the unit of the objective: seconds, USD or GPUs; None where the peers' plans are not known in that unit (cost
    without prices).
    """

    limits: Limits
    ours: PeerPlan
    bound: float | None
    peers: tuple[PeerPlan, ...]

    @property
    def time_s(self) -> float:
        """Seconds per iteration of our plan."""
        assert self.ours.time_s is not None
        return self.ours.time_s

    def value(self, peer: PeerPlan) -> float | None:
        """What the objective minimises, of a plan: seconds, USD or GPUs."""
        if peer.time_s is None:
            return None
        if self.limits.objective is Objective.COST:
            return peer.usd
        return float(peer.num_gpus) if self.limits.objective is Objective.GPUS else peer.time_s

    def relative(self, peer: PeerPlan) -> float | None:
        """That value over the one of our plan."""
        value, ours = self.value(peer), self.value(self.ours)
        return None if value is None or not ours else value / ours

    def keeps_limits(self, peer: PeerPlan) -> bool:
        """Whether a plan is within the limits on time, GPUs and USD, which peers do not know of."""
        limits = self.limits
        assert peer.time_s is not None
        return (
            (limits.max_iteration_s is None or peer.time_s <= limits.max_iteration_s)
            and (limits.max_gpus is None or peer.num_gpus <= limits.max_gpus)
            and (limits.max_usd_per_iteration is None or (peer.usd or 0.0) <= limits.max_usd_per_iteration)
        )

    def impossible(self) -> tuple[PeerPlan, ...]:
        """Peers with a plan that is better than our proof allows any plan to be: a fault of ours if there is one."""
        if self.bound is None:
            return ()
        least = self.bound * (1.0 - _ROUNDING_RATIO)
        return tuple(
            peer
            for peer in self.peers
            if (value := self.value(peer)) is not None and value < least and self.keeps_limits(peer)
        )


def synchronous(request: PlanRequest) -> PlanRequest:
    """The request without permission to run iterations ahead or stages into each other: the policy of the peers."""
    limits = replace(request.limits, max_staleness=0, allow_partial_rollouts=False, fusions=(), sharded_syncs=())
    return replace(request, limits=limits)


def compare_plan(plan: Plan, *, search_s: float = SEARCH_S) -> Comparison | None:
    """All peers on the request that a plan answers; None where no synchronous plan exists."""
    request = PlanRequest(
        workload=plan.workload, cluster=plan.cluster, gpu_type_when_open=None, limits=plan.limits, assumptions=()
    )
    return compare_request(request, search_s=search_s, max_units=QUICK_UNITS)


def compare_request(
    request: PlanRequest, *, search_s: float = SEARCH_S, max_units: int = MAX_UNITS
) -> Comparison | None:
    """Searches the synchronous space of a request with a cluster and runs all peers on it.

    `search_s` seconds are for the peer that searches until it is stopped; those that divide a pool among sets of
    workers do so in at most `max_units` parts.
    """
    request = synchronous(request)
    assert request.cluster is not None
    limits = request.limits
    rules = load_framework(limits.framework) if limits.framework else None
    outcome = search(request, request.cluster, rules, with_splits=False)
    return compare(outcome, limits, search_s=search_s, max_units=max_units)


def compare(
    outcome: Outcome, limits: Limits, *, search_s: float = SEARCH_S, max_units: int = MAX_UNITS
) -> Comparison | None:
    """All peers on the tables of a synchronous search without split rollouts; None where that found nothing."""
    solution = outcome.result.solution
    if solution is None:
        return None
    task = PeerTask.of(outcome)
    ours = peer_plan(
        task,
        Configured(solution=solution, items=outcome.priced),
        name=OURS,
        description="the plan, with a proof",
        found_after_s=outcome.first_s,
        took_s=outcome.result.time_s,
        evaluations=sum(item.num_candidates for item in outcome.priced),
    )
    return Comparison(
        limits=limits,
        ours=ours,
        bound=None if outcome.result.unit == GPU_HOURS else outcome.result.bound,
        peers=run_peers(task, search_s=search_s, seed=limits.seed, max_units=max_units),
    )


def run_peers(
    task: PeerTask, *, search_s: float = SEARCH_S, seed: int = 0, max_units: int = MAX_UNITS
) -> tuple[PeerPlan, ...]:
    """Every peer's plan, rules of thumb first."""
    return (
        *by_hand(task),
        real_heuristic(task),
        hybridflow(task, max_units=max_units),
        rlinf(task, max_units=max_units),
        real_search(task, search_s=search_s, seed=seed),
    )
