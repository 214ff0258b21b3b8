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
from planner.domain.framework import FrameworkRules
from planner.domain.framework_verdict import workload_problems
from planner.domain.framework_workload import as_run_by
from planner.domain.hardware import Cluster, NodeType, Pool
from planner.domain.plan import Objective, Plan, Status
from planner.domain.request import PlanRequest
from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import RolloutStrategy, RolloutTable, Strategy
from planner.errors import InfeasibleError, NoPlanFoundError
from planner.files.catalog import load_overheads
from planner.files.framework import load_framework
from planner.parts import SearchPart, make_inputs
from planner.pipeline import make_plan
from planner.search.pricing import PricingInputs, price_table, site_of
from planner.search.solve import SearchResult, Solution
from planner.sweep.searching import is_shared, lacking, part_within, priced_parts, search_parts

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
    rules: FrameworkRules | None
    parts: tuple[SearchPart, ...]
    """One per execution; none where the framework cannot run the workload."""
    problems: tuple[str, ...]
    """Why the framework cannot."""

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
            if request.overheads is not None:
                content.update(repr(request.overheads).encode())
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


def price_group(group: Group) -> PricedGroup:
    """Prices every worker once, on the largest cluster of the group."""
    request, rules = _for_framework(group.request)
    problems = () if rules is None else workload_problems(rules, request.workload)
    parts = () if problems else priced_parts(request, rules)
    return PricedGroup(group=group, request=request, rules=rules, parts=parts, problems=tuple(problems))


def _for_framework(request: PlanRequest) -> tuple[PlanRequest, FrameworkRules | None]:
    if request.limits.framework is None:
        return request, None
    rules = load_framework(request.limits.framework)
    return replace(request, workload=as_run_by(rules, request.workload)), rules


def solve_point(group: PricedGroup, task: Task) -> Row:
    """The best plan on `task.num_gpus` GPUs of the group's kind."""
    if group.problems:
        return Row(point=task.point, status=Status.INFEASIBLE, reason="; ".join(group.problems))
    limits = group.request.limits
    parts = tuple(part_within(part, group.at(task.num_gpus), limits) for part in group.parts)
    missing = lacking(parts[0])
    if missing:
        return Row(point=task.point, status=Status.INFEASIBLE, reason=f"{', '.join(missing)}: does not fit")
    part, result = search_parts(parts, limits, Objective.TIME)
    if result.solution is None:
        reason = NO_MEMORY if result.status is Status.INFEASIBLE else "the time limit ended the search"
        return Row(point=task.point, status=result.status, reason=reason)
    return _row(group, part, task, result, result.solution)


def least_gpus(group: PricedGroup) -> int | None:
    """Fewest GPUs on which any plan fits, among up to the group's largest size; None where none does."""
    if not group.parts or lacking(group.parts[0]):
        return None
    limits = replace(group.request.limits, max_iteration_s=None, max_gpus=None, max_usd_per_iteration=None)
    result = search_parts(group.parts, limits, Objective.GPUS)[1]
    return None if result.solution is None else result.solution.num_gpus


def _row(group: PricedGroup, part: SearchPart, task: Task, result: SearchResult, solution: Solution) -> Row:
    by_worker = {item.worker.name: item for item in part.priced}
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
        validation_s=validation_s(group.group, part.inputs, engine),
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
        degrees += f" attention dp {strategy.attention_dp}" * (strategy.attention_dp > 1)
    else:
        names = ("tp", "pp", "cp", "ep")
        shown = [f"{name} {getattr(strategy, name)}" for name in names if getattr(strategy, name) > 1]
        degrees = " ".join([*shown, strategy.sharding.value])
    return f"{worker.value}: {num_gpus} GPU{'s' * (num_gpus != 1)}, {degrees}"


def validation_s(group: Group, inputs: PricingInputs, engine: RolloutStrategy) -> float:
    """Seconds in which the plan's engines answer the prompts of one validation, one response each."""
    if not group.validation_prompts:
        return 0.0
    workload = replace(inputs.workload, num_prompts=group.validation_prompts, group_size=1)
    inputs = replace(inputs, workload=workload)
    worker = inputs.graph.worker(WorkerName.ROLLOUT_ENGINE)
    site = site_of(Pool(name="", node=group.node, num_nodes=1, usd_per_gpu_hour=None), inputs)
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
        inputs = make_inputs(plan.workload, plan.cluster, None, plan.execution, overheads=group.request.overheads)
        seconds = validation_s(group, inputs, rollout.strategy)
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
        execution=plan.execution.mode.value,
        staleness=plan.execution.staleness,
    )
