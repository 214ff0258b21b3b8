"""Why there is no plan: a minimal set of limits that cannot be met together, and what it takes to get out of it.

The set is found by a deletion filter (Chinneck & Dravnieks, ORSA Journal on Computing 3(2), 1991): limits are left out
one by one, and those without which there is still no plan stay out. What is left is irreducible: no plan meets all of
it, even with every other limit lifted, and with any one of its limits lifted as well a plan exists. Every statement
rests on a plan that was found, or on a proof that there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from planner.domain.fixed import FixedField
from planner.domain.framework_verdict import workload_problems
from planner.domain.hardware import Cluster, NodeType, Pool
from planner.domain.plan import Limits, Status
from planner.domain.request import PlanRequest
from planner.domain.stages import WorkerName
from planner.errors import InvalidInputError, NoPlanFoundError
from planner.explain import MAX_NODES_TRIED, Found, reasons
from planner.explaining.relaxations import with_memory
from planner.explaining.remedies import Remedy, Topic, remedies
from planner.explaining.requests import as_run_by, rules_of
from planner.explaining.watch import Watch
from planner.parts import lacking_workers
from planner.search.clock import no_plan_within
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
    not_reached: tuple[str, ...] = ()
    """What was not tried because the time was over. A limit that is named here may not be needed for the conflict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    request: PlanRequest
    cluster: Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    constraint: Constraint
    lift: Callable[[_Setting], _Setting]


def explain_conflict(request: PlanRequest, watch: Watch | None = None) -> Conflict | None:
    """Why no plan exists for a request with a cluster; None where one does.

    One time limit holds for all of it: that of `watch`, or of the request. Raises InvalidInputError for a request that
    leaves the cluster open, and NoPlanFoundError when the time limit ends the search before there is either a plan or
    a proof.
    """
    if request.cluster is None:
        raise InvalidInputError("needs a cluster: without one the smallest that works is looked for", where="--gpus")
    watch = watch or Watch(request.limits.time_limit_s)
    rules = rules_of(request.limits)
    if rules is not None and (lacks := workload_problems(rules, as_run_by(request, rules).workload)):
        return _resolved(request, request.cluster, lacks, (), watch)
    outcome = search(as_run_by(request, rules), request.cluster, rules)
    if outcome.result.status is Status.UNKNOWN:
        raise no_plan_within(request.limits.time_limit_s)
    if outcome.result.solution is not None:
        return None
    lacking = lacking_workers(outcome.priced)
    return _resolved(request, request.cluster, tuple(_problems(request, outcome)), lacking, watch)


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
    request: PlanRequest, cluster: Cluster, problems: Sequence[str], lacking: Sequence[WorkerName], watch: Watch
) -> Conflict:
    def feasible(changed: PlanRequest, on: Cluster) -> Found | None:
        changed = replace(changed, limits=replace(changed.limits, time_limit_s=watch.left_s()))
        rules = rules_of(changed.limits)
        changed = as_run_by(changed, rules)
        if rules is not None and workload_problems(rules, changed.workload):
            return None
        try:
            solution = best_solution(replace(changed, cluster=on), on, rules, lacking)
        except NoPlanFoundError:
            # Neither a plan nor a proof.
            watch.over()
        if solution is None:
            watch.left_s()
            return None
        return Found(time_s=solution.time_s, num_gpus=solution.num_gpus, usd=solution.usd)

    start = _Setting(request=request, cluster=cluster)
    found = _minimal(start, lambda setting: feasible(setting.request, setting.cluster) is not None, watch)
    ways = remedies(request, cluster, feasible, frozenset(item.topic for item in found), watch)
    return Conflict(problems=tuple(problems), constraints=tuple(found), remedies=ways, not_reached=watch.not_reached)


def _minimal(start: _Setting, has_plan: Callable[[_Setting], bool], watch: Watch) -> list[Constraint]:
    """The deletion filter; empty where nothing that can be lifted helps. What there is no time for stays in."""
    kept: list[Constraint] = []
    setting = start
    for item in _candidates(start):
        lifted = item.lift(setting)
        answer = watch.asked(f"whether a plan needs more than {item.constraint.what}", partial(has_plan, lifted))
        if answer is None or answer:
            kept.append(item.constraint)
        else:
            setting = lifted
    return kept


def _candidates(start: _Setting) -> Iterator[_Candidate]:
    """Limits in the order in which they are tried: what is tried early stays out more often, so the hardware, which
    users cannot change, comes before their own limits, and the number of GPUs last, since it takes longest."""
    request, cluster = start.request, start.cluster
    for pool in cluster.pools:
        ram = f"host RAM of {format_bytes(pool.node.host_ram_bytes)} per node{_in_words(cluster, pool)}"
        yield _hardware(pool, Topic.HOST_RAM, ram, _with_plenty_of_ram)
    margin = request.workload.memory_margin_ratio
    if margin > 0:
        yield _own(Topic.MARGIN, f"the memory margin of {margin:.0%}", lambda asked: _with_margin(asked, 0.0))
    for pool in cluster.pools:
        memory = f"GPU memory of {format_bytes(pool.node.gpu.memory_bytes)} per GPU{_in_words(cluster, pool)}"
        yield _hardware(pool, Topic.GPU_MEMORY, memory, _with_plenty_of_memory)
    if request.limits.max_iteration_s is not None:
        yield _limit(
            Topic.DEADLINE,
            f"the deadline of {format_seconds(request.limits.max_iteration_s)} per iteration",
            lambda limits: replace(limits, max_iteration_s=None),
        )
    yield from _own_limits(request.limits)
    for pool in cluster.pools:
        yield _Candidate(
            constraint=Constraint(topic=Topic.NUM_GPUS, what=f"{pool.num_gpus} GPUs{_in_words(cluster, pool)}"),
            lift=partial(_with_pool, name=pool.name, change=_with_more_nodes),
        )


def _in_words(cluster: Cluster, pool: Pool) -> str:
    return f" in pool {pool.name}" if len(cluster.pools) > 1 else ""


def _hardware(pool: Pool, topic: Topic, what: str, change: Callable[[NodeType], NodeType]) -> _Candidate:
    """A limit of the nodes of one pool."""
    return _Candidate(
        constraint=Constraint(topic=topic, what=what),
        lift=partial(_with_pool, name=pool.name, change=lambda item: replace(item, node=change(item.node))),
    )


def _with_pool(setting: _Setting, *, name: str, change: Callable[[Pool], Pool]) -> _Setting:
    pools = tuple(change(item) if item.name == name else item for item in setting.cluster.pools)
    return replace(setting, cluster=replace(setting.cluster, pools=pools))


def _with_plenty_of_ram(node: NodeType) -> NodeType:
    return replace(node, host_ram_bytes=node.host_ram_bytes * PLENTY)


def _with_plenty_of_memory(node: NodeType) -> NodeType:
    return with_memory(node, node.gpu.memory_bytes * PLENTY)


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


def _with_more_nodes(pool: Pool) -> Pool:
    return replace(pool, num_nodes=max(pool.num_nodes, min(pool.num_nodes * MORE_NODES, MAX_NODES_TRIED)))
