"""Points that differ in cluster size only are priced once and solved one by one.

The options of a worker on up to N GPUs are exactly those of up to M > N GPUs that use no more than N: an option's
cost depends on its own GPUs and on its kind of node, and only options on as few or fewer GPUs can dominate it
(`planner.search.options`). So one pricing at the largest size serves all sizes, and every point still gets its own
search with its own proof. The tests compare with `make_plan` point by point.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.terms import total
from planner.domain.budget import Point, Row
from planner.domain.execution import ExecutionMode
from planner.domain.framework import FrameworkRules
from planner.domain.framework_verdict import workload_problems
from planner.domain.hardware import Cluster, NodeType, Pool
from planner.domain.plan import Limits, Objective, Plan, Status
from planner.domain.request import PlanRequest
from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import RolloutStrategy, RolloutTable, Strategy
from planner.errors import InfeasibleError, NoPlanFoundError
from planner.files.catalog import load_overheads
from planner.files.framework import load_framework
from planner.pipeline import make_plan
from planner.search.options import take
from planner.search.pricing import PricedWorker, PricingInputs, price_table, price_worker, site_of
from planner.search.solve import SearchResult, Solution
from planner.sweep.searching import pricing_inputs, search_priced

NO_MEMORY = "no combination fits on the GPUs and in the memory given"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Points of one kind of node and one workload, which share their pricing. `request` has the largest cluster."""

    kind: str
    request: PlanRequest
    validation_prompts: int
    """Responses of one validation; 0 for none."""

    @property
    def node(self) -> NodeType:
        assert self.request.cluster is not None
        return self.request.cluster.pools[0].node

    def at(self, num_gpus: int) -> PlanRequest:
        """The same request on the nodes that `num_gpus` need."""
        assert self.request.cluster is not None
        pool = self.request.cluster.pools[0]
        nodes = -(-num_gpus // pool.node.gpus_per_node)
        return replace(self.request, cluster=Cluster(pools=(replace(pool, num_nodes=nodes),)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One point of a group."""

    group: Group
    num_gpus: int

    @property
    def point(self) -> Point:
        mean = self.group.request.workload.response.mean_tokens
        return Point(kind=self.group.kind, num_gpus=self.num_gpus, response_mean_tokens=float(mean))


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedGroup:
    """The pruned options of all workers of a group at its largest size."""

    group: Group
    request: PlanRequest
    """As the framework runs it."""
    inputs: PricingInputs
    priced: tuple[PricedWorker, ...]

    def at(self, num_gpus: int) -> Cluster:
        cluster = self.group.at(num_gpus).cluster
        assert cluster is not None
        return cluster


def groups_of(kind: str, node: NodeType, request: PlanRequest, sizes: Iterable[int]) -> tuple[tuple[Group, int], ...]:
    """Group and number of GPUs of each size, in ascending order; sizes are rounded up to whole nodes.

    `request` is open: it has a node type and no cluster. Generic nodes may be smaller than a whole one, as in
    `--gpus 4xh100`. Nodes whose GPUs are no power of two have other sizes when there is only one of them, so a
    single one is a group of its own.
    """
    per_node = node.gpus_per_node
    is_generic = node.id.startswith("generic-")
    rounded = sorted({s if s < per_node and is_generic else -(-s // per_node) * per_node for s in sizes})
    is_even = per_node & (per_node - 1) == 0
    parts: dict[int, list[int]] = {}
    for size in rounded:
        # Sizes below a node are machines of their own, and so is one odd node.
        parts.setdefault(size if size < per_node or (size == per_node and not is_even) else 0, []).append(size)
    result = []
    for members in parts.values():
        largest = members[-1]
        whole = node if largest >= per_node else node.with_gpus(largest)
        pool = Pool(
            name=kind, node=whole, num_nodes=-(-largest // whole.gpus_per_node),
            usd_per_gpu_hour=request.open_usd_per_gpu_hour,
        )  # fmt: skip
        limits = replace(request.limits, objective=Objective.TIME)
        closed = replace(
            request, cluster=Cluster(pools=(pool,)), gpu_type_when_open=None, open_usd_per_gpu_hour=None, limits=limits
        )
        group = Group(kind=kind, request=closed, validation_prompts=0)
        result += [(group, size) for size in members]
    return tuple(result)


def digest_of(tasks: Sequence[Task], version: str) -> str:
    """Stands for everything that decides the rows: workloads, nodes, limits, points and the version of rlplan."""
    content = hashlib.sha256(version.encode())
    content.update(repr(load_overheads()).encode())
    seen: set[int] = set()
    for task in tasks:
        if id(task.group) not in seen:
            seen.add(id(task.group))
            request = task.group.request
            assert request.cluster is not None
            pools = [(pool.name, pool.node) for pool in request.cluster.pools]
            content.update(repr((request.workload, pools, request.limits, task.group.validation_prompts)).encode())
        content.update(repr(task.point).encode())
    return content.hexdigest()[:32]


# ---------------------------------------------------------------------------------------------- planning


class Planner:
    """Plans tasks one after the other; the pricing of the last group is kept for the next task."""

    def __init__(self) -> None:
        self._last: PricedGroup | None = None

    def plan(self, task: Task) -> Row:
        """The row of a task; a point where nothing fits is a row too."""
        if not is_shared(task.group.request.limits):
            return _planned_alone(task)
        if self._last is None or self._last.group != task.group:
            self._last = price_group(task.group)
        return solve_point(self._last, task)


def is_shared(limits: Limits) -> bool:
    """Whether the shared pricing covers what the limits permit; other points are planned by `make_plan`."""
    plain = Limits(
        objective=limits.objective,
        max_iteration_s=limits.max_iteration_s,
        max_gpus=limits.max_gpus,
        max_usd_per_iteration=limits.max_usd_per_iteration,
        framework=limits.framework,
        num_alternatives=limits.num_alternatives,
        time_limit_s=limits.time_limit_s,
        solver=limits.solver,
        seed=limits.seed,
    )
    return limits == plain


def price_group(group: Group) -> PricedGroup:
    """Prices every worker once, on the largest cluster of the group."""
    request, rules = _for_framework(group.request)
    assert request.cluster is not None
    inputs = pricing_inputs(request, rules)
    priced: tuple[PricedWorker, ...] = ()
    if rules is None or not workload_problems(rules, request.workload):
        pool = request.cluster.pools[0]
        priced = tuple(price_worker(worker, pool, inputs) for worker in inputs.graph.workers)
    return PricedGroup(group=group, request=request, inputs=inputs, priced=priced)


def _for_framework(request: PlanRequest) -> tuple[PlanRequest, FrameworkRules | None]:
    if request.limits.framework is None:
        return request, None
    rules = load_framework(request.limits.framework)
    if rules.always_recomputes_old_logprob:
        request = replace(request, workload=replace(request.workload, needs_old_logprob=True))
    return request, rules


def solve_point(group: PricedGroup, task: Task) -> Row:
    """The best plan on `task.num_gpus` GPUs of the group's kind."""
    rules = group.inputs.rules
    problems = workload_problems(rules, group.request.workload) if rules is not None else ()
    if problems:
        return Row(point=task.point, status=Status.INFEASIBLE, reason="; ".join(problems))
    priced = tuple(_up_to(item, task.num_gpus) for item in group.priced)
    lacking = [item.worker.name.value for item in priced if not len(item.options)]
    if lacking:
        return Row(point=task.point, status=Status.INFEASIBLE, reason=f"{', '.join(lacking)}: does not fit")
    result = search_priced(group.request, group.inputs, priced, group.at(task.num_gpus), Objective.TIME)
    if result is None or result.solution is None:
        status = Status.INFEASIBLE if result is None else result.status
        reason = NO_MEMORY if status is Status.INFEASIBLE else "the time limit ended the search"
        return Row(point=task.point, status=status, reason=reason)
    return _row(group, priced, task, result, result.solution)


def _up_to(item: PricedWorker, num_gpus: int) -> PricedWorker:
    return replace(item, options=take(item.options, item.options.num_gpus <= num_gpus))


def least_gpus(group: PricedGroup) -> int | None:
    """Fewest GPUs on which any plan fits, among up to the group's largest size; None where none does."""
    assert group.request.cluster is not None
    if any(not len(item.options) for item in group.priced) or not group.priced:
        return None
    result = search_priced(group.request, group.inputs, group.priced, group.request.cluster, Objective.GPUS)
    return None if result is None or result.solution is None else result.solution.num_gpus


def _row(
    group: PricedGroup, priced: Sequence[PricedWorker], task: Task, result: SearchResult, solution: Solution
) -> Row:
    by_worker = {item.worker.name: item for item in priced}
    strategies = {
        choice.worker: by_worker[choice.worker].candidates.row(choice.row) for choice in solution.choices
    }  # fmt: skip
    per_node = group.group.node.gpus_per_node
    engine = strategies[WorkerName.ROLLOUT_ENGINE]
    assert isinstance(engine, RolloutStrategy)
    return Row(
        point=task.point,
        status=result.status,
        time_s=solution.time_s,
        bound_s=min(result.bound, solution.time_s),
        num_gpus=solution.num_gpus,
        num_nodes=-(-solution.num_gpus // per_node),
        gpus_per_node=per_node,
        validation_s=validation_s(group, engine),
        groups=_words_of_groups(solution),
        layouts=tuple(
            _layout(choice.worker, choice.num_gpus, strategies[choice.worker]) for choice in solution.choices
        ),
    )


def _words_of_groups(solution: Solution) -> str:
    """`'rollout engine, actor trainer on 32 GPUs | reference on 8 GPUs'`."""
    return " | ".join(
        f"{', '.join(worker.value for worker in item.workers)} on {item.num_gpus} GPU{'s' * (item.num_gpus != 1)}"
        for item in solution.groups
    )


def _layout(worker: WorkerName, num_gpus: int, strategy: Strategy) -> str:
    if isinstance(strategy, RolloutStrategy):
        degrees = f"{strategy.num_engines} engines of tp {strategy.tp}" + f" pp {strategy.pp}" * (strategy.pp > 1)
    else:
        names = ("tp", "pp", "cp", "ep")
        shown = [f"{name} {getattr(strategy, name)}" for name in names if getattr(strategy, name) > 1]
        degrees = " ".join([*shown, strategy.sharding.value])
    return f"{worker.value}: {num_gpus} GPU{'s' * (num_gpus != 1)}, {degrees}"


def validation_s(group: PricedGroup, engine: RolloutStrategy) -> float:
    """Seconds in which the plan's engines answer the prompts of one validation, one response each."""
    if not group.group.validation_prompts:
        return 0.0
    workload = replace(group.inputs.workload, num_prompts=group.group.validation_prompts, group_size=1)
    inputs = replace(group.inputs, workload=workload)
    worker = inputs.graph.worker(WorkerName.ROLLOUT_ENGINE)
    site = site_of(Pool(name="", node=group.group.node, num_nodes=1, usd_per_gpu_hour=None), inputs)
    costs = price_table(worker, RolloutTable.of((engine,)), site, inputs)
    seconds = float(total(costs.stages[0].time_terms)[0])
    return seconds if np.isfinite(seconds) else 0.0


# ---------------------------------------------------------------------------------------------- without sharing


def _planned_alone(task: Task) -> Row:
    """The row of a plan that `make_plan` made: for what the shared pricing does not know."""
    try:
        plan = make_plan(task.group.at(task.num_gpus))
    except InfeasibleError as error:
        return Row(point=task.point, status=Status.INFEASIBLE, reason=_first_reason(error))
    except NoPlanFoundError as error:
        return Row(point=task.point, status=Status.UNKNOWN, reason=str(error))
    return row_of_plan(task, plan)


def _first_reason(error: InfeasibleError) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[1] if len(lines) > 1 else lines[0]


def row_of_plan(task: Task, plan: Plan) -> Row:
    """A plan in short."""
    group = task.group
    rollout = plan.placement(StageName.ROLLOUT)
    members: dict[str, list[str]] = {}
    layouts: dict[WorkerName, str] = {}
    for item in plan.placements:
        if item.worker is not None and item.strategy is not None:
            names = members.setdefault(item.device_group, [])
            names += [item.worker.value] * (item.worker.value not in names)
            layouts[item.worker] = _layout(item.worker, item.strategy.num_gpus, item.strategy)
    sizes = {item.id: item.num_gpus for item in plan.device_groups}
    seconds = 0.0
    if group.validation_prompts and isinstance(rollout.strategy, RolloutStrategy):
        inputs = pricing_inputs(replace(group.request, workload=plan.workload), None)
        bare = PricedGroup(group=group, request=group.request, priced=(), inputs=inputs)
        seconds = validation_s(bare, rollout.strategy)
    is_synchronous = plan.execution.mode is ExecutionMode.SYNCHRONOUS
    return Row(
        point=task.point,
        status=plan.status,
        time_s=plan.time_s,
        bound_s=min(plan.bound, plan.time_s) if plan.objective_unit == "s" else None,
        num_gpus=plan.num_gpus,
        num_nodes=sum(plan.num_nodes_used.values()),
        gpus_per_node=group.node.gpus_per_node,
        validation_s=seconds,
        groups=" | ".join(f"{', '.join(names)} on {sizes[key]} GPUs" for key, names in members.items()),
        layouts=tuple(layouts.values()),
        execution="synchronous" if is_synchronous else plan.execution.mode.value,
        staleness=plan.execution.staleness,
    )
