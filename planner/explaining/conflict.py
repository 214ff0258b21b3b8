"""Why there is no plan: a minimal set of limits that cannot be met together, and what it takes to get out of it.

The set is found by a deletion filter (Chinneck & Dravnieks, ORSA Journal on Computing 3(2), 1991): limits are left out
one by one, and those without which there is still no plan stay out. What is left is irreducible: no plan meets all of
it, even with every other limit lifted, and with any one of its limits lifted as well a plan exists. Every statement
rests on a plan that was found, or on a proof that there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from planner.domain.fixed import FixedField
from planner.domain.framework_verdict import workload_problems
from planner.domain.hardware import Cluster, NodeType, Pool
from planner.domain.plan import Limits, Status
from planner.domain.request import PlanRequest
from planner.domain.stages import WorkerName
from planner.errors import InvalidInputError, NoPlanFoundError
from planner.explain import MAX_NODES_TRIED, Found, reasons
from planner.explaining.relaxations import each_node, with_memory
from planner.explaining.remedies import Remedy, Topic, remedies
from planner.explaining.requests import as_run_by, rules_of
from planner.parts import lacking_workers
from planner.solving import Outcome, best_solution, search
from planner.units import format_bytes, format_seconds

PLENTY = 64.0
"""Times the memory of a GPU or the RAM of a node that count as no limit at all."""
MORE_NODES = 8
"""Times the nodes that count as no limit on their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A limit in words."""

    topic: Topic
    what: str

    @property
    def is_own(self) -> bool:
        """Whether the user set it; else it is one of the hardware."""
        return self.topic not in (Topic.GPU_MEMORY, Topic.HOST_RAM, Topic.NUM_GPUS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Why a request has no plan. `constraints` is empty where lifting all of them still leaves none."""

    problems: tuple[str, ...]
    """What fails, with stage, instant and term."""
    constraints: tuple[Constraint, ...]
    remedies: tuple[Remedy, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    request: PlanRequest
    cluster: Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    constraint: Constraint
    lift: Callable[[_Setting], _Setting]


def explain_conflict(request: PlanRequest) -> Conflict | None:
    """Why no plan exists for a request with a cluster; None where one does.

    Raises InvalidInputError for a request that leaves the cluster open, and NoPlanFoundError when the time limit ends
    the search before there is either a plan or a proof.
    """
    if request.cluster is None:
        raise InvalidInputError("needs a cluster: without one the smallest that works is looked for", where="--gpus")
    rules = rules_of(request.limits)
    if rules is not None and (lacks := workload_problems(rules, as_run_by(request, rules).workload)):
        return _resolved(request, request.cluster, lacks, ())
    outcome = search(as_run_by(request, rules), request.cluster, rules)
    if outcome.result.status is Status.UNKNOWN:
        raise NoPlanFoundError(
            f"no plan found within {request.limits.time_limit_s:g} s, and no proof that there is none; "
            f"allow more time with --time-limit"
        )
    if outcome.result.solution is not None:
        return None
    return _resolved(request, request.cluster, tuple(_problems(request, outcome)), lacking_workers(outcome.priced))


def _problems(request: PlanRequest, outcome: Outcome) -> Iterator[str]:
    beyond = outcome.result.best_beyond_limits
    if beyond is None:
        yield from reasons(outcome.priced, outcome.inputs, outcome.result.num_excluded)
        return
    yield (
        f"plans exist, but none within the limits: the fastest takes {format_seconds(beyond.time_s)} per iteration on "
        f"{beyond.num_gpus} GPUs" + ("" if beyond.usd is None else f" for {beyond.usd:,.2f} USD")
    )


def _resolved(
    request: PlanRequest, cluster: Cluster, problems: Sequence[str], lacking: Sequence[WorkerName]
) -> Conflict:
    def feasible(changed: PlanRequest, on: Cluster) -> Found | None:
        rules = rules_of(changed.limits)
        changed = as_run_by(changed, rules)
        if rules is not None and workload_problems(rules, changed.workload):
            return None
        solution = best_solution(replace(changed, cluster=on), on, rules, lacking)
        if solution is None:
            return None
        return Found(time_s=solution.time_s, num_gpus=solution.num_gpus, usd=solution.usd)

    start = _Setting(request=request, cluster=cluster)
    found = _minimal(start, lambda setting: feasible(setting.request, setting.cluster) is not None)
    return Conflict(
        problems=tuple(problems),
        constraints=tuple(found),
        remedies=remedies(request, cluster, feasible, frozenset(item.topic for item in found)),
    )


def _minimal(start: _Setting, has_plan: Callable[[_Setting], bool]) -> list[Constraint]:
    """The deletion filter; empty where nothing that can be lifted helps."""
    kept: list[Constraint] = []
    setting = start
    for item in _candidates(start):
        lifted = item.lift(setting)
        if has_plan(lifted):
            kept.append(item.constraint)
        else:
            setting = lifted
    return kept


def _candidates(start: _Setting) -> Iterator[_Candidate]:
    """Limits in the order in which they are tried: what is tried early stays out more often, so the hardware, which
    users cannot change, comes before their own limits, and the number of GPUs last, since it takes longest."""
    request, cluster = start.request, start.cluster
    node = cluster.pools[0].node
    many = len(cluster.pools) > 1

    def hardware(topic: Topic, what: str, change: Callable[[NodeType], NodeType]) -> _Candidate:
        return _Candidate(
            constraint=Constraint(topic=topic, what=what),
            lift=lambda setting: replace(setting, cluster=each_node(setting.cluster, change)),
        )

    ram = "host RAM" if many else f"host RAM of {format_bytes(node.host_ram_bytes)} per node"
    yield hardware(Topic.HOST_RAM, ram, lambda item: replace(item, host_ram_bytes=item.host_ram_bytes * PLENTY))
    margin = request.workload.memory_margin_ratio
    if margin > 0:
        yield _own(Topic.MARGIN, f"the memory margin of {margin:.0%}", lambda asked: _with_margin(asked, 0.0))
    memory = "GPU memory" if many else f"GPU memory of {format_bytes(node.gpu.memory_bytes)} per GPU"
    yield hardware(Topic.GPU_MEMORY, memory, lambda item: with_memory(item, item.gpu.memory_bytes * PLENTY))
    if request.limits.max_iteration_s is not None:
        yield _limit(
            Topic.DEADLINE,
            f"the deadline of {format_seconds(request.limits.max_iteration_s)} per iteration",
            lambda limits: replace(limits, max_iteration_s=None),
        )
    yield from _own_limits(request.limits)
    yield _Candidate(
        constraint=Constraint(topic=Topic.NUM_GPUS, what=f"{cluster.num_gpus} GPUs"),
        lift=lambda setting: replace(setting, cluster=_with_more_nodes(setting.cluster)),
    )


def _own(topic: Topic, what: str, change: Callable[[PlanRequest], PlanRequest]) -> _Candidate:
    return _Candidate(
        constraint=Constraint(topic=topic, what=what),
        lift=lambda setting: replace(setting, request=change(setting.request)),
    )


def _limit(topic: Topic, what: str, change: Callable[[Limits], Limits]) -> _Candidate:
    return _own(topic, what, lambda request: replace(request, limits=change(request.limits)))


def _own_limits(limits: Limits) -> Iterator[_Candidate]:
    if limits.framework is not None:
        yield _limit(Topic.FRAMEWORK, f"framework {limits.framework}", lambda now: replace(now, framework=None))
    if limits.max_gpus is not None:
        yield _limit(Topic.MAX_GPUS, f"at most {limits.max_gpus} GPUs", lambda now: replace(now, max_gpus=None))
    if limits.max_usd_per_iteration is not None:
        yield _limit(
            Topic.BUDGET,
            f"the budget of {limits.max_usd_per_iteration:,.2f} USD per iteration",
            lambda now: replace(now, max_usd_per_iteration=None),
        )
    if limits.policy is not None:
        yield _limit(Topic.OTHER, f"policy {limits.policy.value}", lambda now: replace(now, policy=None))
    yield from (_sharing(members) for members in limits.must_share)
    yield from (_apart(members) for members in limits.must_not_share)
    yield from (_fixed(item) for item in limits.fixed)


def _sharing(members: tuple[WorkerName, ...]) -> _Candidate:
    def lift(limits: Limits) -> Limits:
        return replace(limits, must_share=tuple(item for item in limits.must_share if item != members))

    return _limit(Topic.OTHER, f"{_names(members)} share GPUs", lift)


def _apart(members: tuple[WorkerName, ...]) -> _Candidate:
    def lift(limits: Limits) -> Limits:
        return replace(limits, must_not_share=tuple(item for item in limits.must_not_share if item != members))

    return _limit(Topic.OTHER, f"{_names(members)} share no GPUs", lift)


def _fixed(fixed: FixedField) -> _Candidate:
    def lift(limits: Limits) -> Limits:
        return replace(limits, fixed=tuple(item for item in limits.fixed if item != fixed))

    return _limit(Topic.OTHER, f"fixed {fixed}", lift)


def _names(members: Sequence[WorkerName]) -> str:
    return " and ".join(member.value for member in members)


def _with_margin(request: PlanRequest, ratio: float) -> PlanRequest:
    return replace(request, workload=replace(request.workload, memory_margin_ratio=ratio))


def _with_more_nodes(cluster: Cluster) -> Cluster:
    def grown(pool: Pool) -> Pool:
        return replace(pool, num_nodes=max(pool.num_nodes, min(pool.num_nodes * MORE_NODES, MAX_NODES_TRIED)))

    return replace(cluster, pools=tuple(grown(pool) for pool in cluster.pools))
