"""What every peer gets and returns, and the one way in which its configurations are priced.

A peer chooses device groups and options; the time and the memory of what it chose always come from the evaluation that
prices our own plans (`search.solve` on the one configuration, then `assembly.assemble`), never from the peer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose
from typing import Self

from planner.assembly import assemble
from planner.domain.hardware import Cluster, Pool
from planner.domain.plan import Objective
from planner.domain.stages import WorkerName
from planner.domain.strategy import Strategy
from planner.domain.verdict import Verdict, memory_verdict
from planner.parts import SearchPart
from planner.placing import place
from planner.search.options import take
from planner.search.pricing import PricedWorker, PricingInputs
from planner.search.problem import SearchLimits, SearchProblem
from planner.search.solve import SearchResult, Solution
from planner.search.structures import Structure
from planner.solving import Outcome, solve_parts

SOLVE_LIMIT_S = 20.0
"""For the best remaining knobs of one recipe; a leaf of one structure needs milliseconds as a rule."""
_VERDICTS = (Verdict.FITS, Verdict.MARGINAL, Verdict.DOES_NOT_FIT)
_RELATIVE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTask:
    """The priced workers and the search problem of one request: the same for us and for every peer."""

    inputs: PricingInputs
    priced: tuple[PricedWorker, ...]
    problem: SearchProblem

    @classmethod
    def of(cls, outcome: Outcome) -> Self:
        return cls(inputs=outcome.inputs, priced=outcome.priced, problem=outcome.problem)

    @property
    def pools(self) -> tuple[Pool, ...]:
        return tuple({item.pool.name: item.pool for item in self.priced}.values())

    @property
    def workers(self) -> tuple[WorkerName, ...]:
        return tuple(worker.name for worker in self.inputs.graph.workers)

    def item(self, worker: WorkerName, pool: str) -> PricedWorker:
        return next(item for item in self.priced if item.worker.name is worker and item.pool.name == pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerChoice:
    """Where a peer puts a worker, and its strategy."""

    worker: WorkerName
    group: str
    num_gpus: int
    strategy: Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPlan:
    """A peer's plan, priced by our evaluation. `time_s` is None, and `problem` says why, where it has none."""

    name: str
    description: str
    """What the peer does, in a few words."""
    time_s: float | None
    """Seconds per iteration."""
    num_gpus: int
    usd: float | None
    """USD per iteration of the whole nodes used; None without prices."""
    structure: str
    """Workers by device group."""
    choices: tuple[PeerChoice, ...]
    verdict: Verdict | None
    """The worst memory verdict over all stages."""
    problem: str
    own_objective_s: float | None
    """What the peer's own objective said of this plan, in seconds; None where it has none or it is `time_s`."""
    found_after_s: float
    """From the peer's start to the plan; pricing of the option tables is not in it."""
    took_s: float
    evaluations: int
    """Configurations that the peer looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """A complete configuration with the workers whose options it chose from."""

    solution: Solution
    items: tuple[PricedWorker, ...]


@dataclass(slots=True)
class Stopwatch:
    """Seconds since it was made."""

    begin: float = 0.0

    def __post_init__(self) -> None:
        self.begin = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.begin


def structure_key(structure: Structure) -> frozenset[object]:
    """Equal for structures that differ in the order of their groups and workers only."""
    return frozenset(
        (item.pool, frozenset(item.whole), frozenset(frozenset(block) for block in item.blocks))
        for item in structure.pools
    )


def best_of(task: PeerTask, structure: Structure, items: Sequence[PricedWorker]) -> SearchResult:
    """The fastest plan of one structure with the options of `items`; INFEASIBLE where none fits.

    Rules of a framework hold as in our own search: what a framework cannot run is no plan of a peer either.
    """
    wanted = structure_key(structure)
    outer = task.problem.structure_filter
    refused = None if outer is None else outer(structure)

    def only(candidate: Structure) -> str | None:
        return refused or (None if structure_key(candidate) == wanted else "another structure")

    problem = replace(task.problem, options=tuple(item.options for item in items), structure_filter=only)
    return solve_coupled(task, problem, items)


def solve_coupled(task: PeerTask, problem: SearchProblem, items: Sequence[PricedWorker]) -> SearchResult:
    """The fastest plan with the options of `items`; with equal degrees where the framework demands them."""
    limits = SearchLimits(
        objective=Objective.TIME, time_limit_s=SOLVE_LIMIT_S, tie_tolerance_ratio=0.0, num_alternatives=0
    )
    part = SearchPart(inputs=task.inputs, priced=tuple(items), problem=problem)
    return solve_parts((part,), limits)[1]


def configured(task: PeerTask, structure: Structure, items: Sequence[PricedWorker]) -> Configured | None:
    """As `best_of`, with the items that the solution's rows refer to; None where nothing fits."""
    solution = best_of(task, structure, items).solution
    return None if solution is None else Configured(solution=solution, items=tuple(items))


def with_rows(task: PeerTask, options: Mapping[WorkerName, tuple[str, int]]) -> tuple[PricedWorker, ...]:
    """One option per worker: `options` gives its pool and its row in the option table."""
    items = []
    for worker, (pool, row) in options.items():
        item = task.item(worker, pool)
        items.append(replace(item, options=take(item.options, slice(row, row + 1))))
    return tuple(items)


def peer_plan(
    task: PeerTask,
    found: Configured,
    *,
    name: str,
    description: str,
    own_objective_s: float | None = None,
    found_after_s: float,
    took_s: float,
    evaluations: int,
) -> PeerPlan:
    """The plan of a configuration, priced once more from its strategies alone.

    Raises RuntimeError if that does not fit or differs from what the solver said: a fault of ours.
    """
    solution = found.solution
    placed = place(solution, found.items, Cluster(pools=task.pools))
    assembled = assemble(placed, task.inputs, solution.timing)
    if assembled.problems:
        raise RuntimeError(f"the plan of {name} does not fit after all: {assembled.problems[0]}")
    if not isclose(assembled.time_s, solution.time_s, rel_tol=_RELATIVE_TOLERANCE):
        raise RuntimeError(f"the plan of {name} takes {assembled.time_s} s, the search said {solution.time_s} s")
    pool_of = {pool.name: pool for pool in task.pools}
    device_bytes = {group.id: pool_of[group.pool].node.gpu.memory_bytes for group in assembled.device_groups}
    verdicts = [
        memory_verdict(item.gpu_memory.peak_bytes, device_bytes[item.device_group])
        for item in assembled.placements
        if item.gpu_memory is not None
    ]
    return PeerPlan(
        name=name,
        description=description,
        time_s=assembled.time_s,
        num_gpus=solution.num_gpus,
        usd=solution.usd,
        structure=describe(solution),
        choices=tuple(
            PeerChoice(
                worker=item.worker.name, group=item.group.id, num_gpus=item.strategy.num_gpus, strategy=item.strategy
            )
            for item in placed
        ),
        verdict=max(verdicts, key=_VERDICTS.index, default=None),
        problem="",
        own_objective_s=own_objective_s,
        found_after_s=found_after_s,
        took_s=took_s,
        evaluations=evaluations,
    )


def no_plan(*, name: str, description: str, problem: str, took_s: float, evaluations: int) -> PeerPlan:
    """A peer that has no plan, and why."""
    return PeerPlan(
        name=name, description=description, time_s=None, num_gpus=0, usd=None, structure="", choices=(), verdict=None,
        problem=problem, own_objective_s=None, found_after_s=took_s, took_s=took_s, evaluations=evaluations,
    )  # fmt: skip


def describe(solution: Solution) -> str:
    """`'h100: {rollout engine} 16 | {actor trainer, reference} 16'`: workers and GPUs of each group, by pool."""
    pools = []
    for pool in dict.fromkeys(group.pool for group in solution.groups):
        groups = sorted((g for g in solution.groups if g.pool == pool), key=lambda g: (not g.is_whole, g.id))
        words = ["{" + ", ".join(w.value for w in group.workers) + f"}} {group.num_gpus}" for group in groups]
        shared = groups[0].is_whole
        pools.append(f"{pool}: " + (f"{words[0]} over " if shared else "") + " | ".join(words[1:] if shared else words))
    return "; ".join(pools)
