"""The smallest cluster on which anything fits, and the term that is in the way one size below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.domain.budget import Sweep
from planner.domain.hardware import Cluster, NodeType, Pool
from planner.domain.request import PlanRequest
from planner.explain import explain_infeasible
from planner.sweep.points import Group, Task, least_gpus, price_group


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestFit:
    """The fewest GPUs of a kind on which any plan fits, limits aside, and what is in the way one size below.

    `num_gpus` is None where nothing fits up to `tried_gpus`; then `binding` says why there.
    """

    kind: str
    num_gpus: int | None
    tried_gpus: int
    below_gpus: int | None
    binding: str


def smallest_fit(group: Group) -> SmallestFit:
    """The smallest cluster of a group's kind, up to the group's largest. The size below it is planned as well."""
    assert group.request.cluster is not None
    tried = group.request.cluster.num_gpus
    found = least_gpus(price_group(group))
    if found is None:
        return SmallestFit(
            kind=group.kind, num_gpus=None, tried_gpus=tried, below_gpus=tried, binding=_binding(group, tried)
        )
    while (below := _size_below(group.node, found)) is not None:
        binding = _binding(group, below)
        if binding:
            return SmallestFit(kind=group.kind, num_gpus=found, tried_gpus=tried, below_gpus=below, binding=binding)
        # A machine with fewer GPUs has its own share of host RAM: it may do where a part of a larger one does not.
        found = below
    return SmallestFit(kind=group.kind, num_gpus=found, tried_gpus=tried, below_gpus=None, binding="one GPU is enough")


def smallest_fits(tasks: Sequence[Task], sweep: Sweep) -> tuple[SmallestFit, ...]:
    """The smallest cluster of each kind, at the first mean response."""
    mean = sweep.head.response_means[0]
    planned: dict[str, int] = {}
    for row in sweep.rows:
        if row.time_s is not None and row.point.response_mean_tokens == mean:
            planned.setdefault(row.point.kind, row.point.num_gpus)
    largest: dict[str, Group] = {}
    for task in tasks:
        if task.point.response_mean_tokens == mean:
            # Nothing smaller than what already has a plan needs more GPUs than that.
            known = planned.get(task.group.kind)
            if known is None or task.num_gpus == known:
                request = task.group.at(task.num_gpus)
                # Asynchronous plans need device groups apart: where they fit, a synchronous one does.
                limits = replace(request.limits, max_staleness=0)
                largest[task.group.kind] = replace(task.group, request=replace(request, limits=limits))
    return tuple(smallest_fit(group) for group in largest.values())


def _size_below(node: NodeType, num_gpus: int) -> int | None:
    per_node = node.gpus_per_node
    if num_gpus > per_node:
        return (-(-num_gpus // per_node) - 1) * per_node
    if not node.id.startswith("generic-") or num_gpus == 1:
        return None
    return num_gpus // 2 if per_node & (per_node - 1) == 0 else num_gpus - 1


def _binding(group: Group, num_gpus: int) -> str:
    """The stage, instant and term that do not fit on so many GPUs; empty where a plan fits after all."""
    assert group.request.cluster is not None
    node = group.node
    whole = node if num_gpus >= node.gpus_per_node else node.with_gpus(num_gpus)
    pool = Pool(
        name=group.kind, node=whole, num_nodes=-(-num_gpus // whole.gpus_per_node), usd_per_gpu_hour=None
    )  # fmt: skip
    cluster = Cluster(pools=(pool,))
    limits = replace(group.request.limits, max_iteration_s=None, max_gpus=None, max_usd_per_iteration=None)
    small = replace(group, request=replace(group.request, cluster=cluster, limits=limits))
    priced = price_group(small)
    if least_gpus(priced) is not None:
        return ""
    if not priced.parts:
        return "; ".join(priced.problems)
    # Only what is in the way: what would help is the next larger size.
    part = priced.parts[0]
    lines = explain_infeasible(small.request, cluster, part.inputs, part.priced, (), _no_plan).splitlines()
    reasons = [line.strip() for line in lines[1:] if "change" not in line]
    return reasons[0] if reasons else lines[0]


def _no_plan(request: PlanRequest, cluster: Cluster) -> None:
    return None
