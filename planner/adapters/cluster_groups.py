"""A plan's device groups as Ray placement groups: disjoint sets of GPUs, one bundle per node."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.plan import DeviceGroup, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """GPUs of one node. `resources` are what Ray is asked for, `first_rank` is the first GPU's number in the pool."""

    resources: tuple[tuple[str, int], ...]
    first_rank: int
    num_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Consecutive GPUs of a bundle; `first_gpu` counts from its first one."""

    bundle: int
    first_gpu: int
    num_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Where a device group sits in the placement group that reserves its GPUs."""

    group: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """One placement group. All bundles on different nodes, or on one node when there is one."""

    name: str
    strategy: str
    bundles: tuple[Bundle, ...]
    parts: tuple[Part, ...]


def plan_bundles(plan: Plan) -> tuple[Reservation, ...]:
    """The placement groups of a plan, in the order of its device groups. A bundle has one CPU per GPU."""
    reservations = []
    for index, together in enumerate(_connected(plan.device_groups)):
        per_node = plan.cluster.pool(together[0].pool).node.gpus_per_node
        bundles = _bundles(plan, together, per_node)
        reservations.append(
            Reservation(
                name=f"rlplan-{index}",
                strategy="STRICT_SPREAD" if len(bundles) > 1 else "STRICT_PACK",
                bundles=bundles,
                parts=tuple(Part(group=group.id, spans=_spans(group, bundles)) for group in together),
            )
        )
    return tuple(reservations)


def _connected(groups: tuple[DeviceGroup, ...]) -> list[list[DeviceGroup]]:
    """Device groups that share GPUs, directly or through others."""
    found: list[list[DeviceGroup]] = []
    for group in groups:
        touching = [other for other in found if any(_overlap(group, member) for member in other)]
        merged = [member for other in touching for member in other] + [group]
        found = [other for other in found if other not in touching] + [merged]
    return found


def _overlap(one: DeviceGroup, other: DeviceGroup) -> bool:
    first, last = max(one.ranks.start, other.ranks.start), min(one.ranks.stop, other.ranks.stop)
    return one.pool == other.pool and first < last


def _bundles(plan: Plan, together: list[DeviceGroup], per_node: int) -> tuple[Bundle, ...]:
    ranks = sorted({rank for group in together for rank in group.ranks})
    pool = together[0].pool
    # With several pools nodes are told apart by a resource that `ray start --resources` gives them.
    kind = ((f"pool:{pool}", 1),) if len(plan.cluster.pools) > 1 else ()
    bundles = []
    for node in sorted({rank // per_node for rank in ranks}):
        own = [rank for rank in ranks if rank // per_node == node]
        resources = (("GPU", len(own)), ("CPU", len(own)), *kind)
        bundles.append(Bundle(resources=resources, first_rank=own[0], num_gpus=len(own)))
    return tuple(bundles)


def _spans(group: DeviceGroup, bundles: tuple[Bundle, ...]) -> tuple[Span, ...]:
    """Groups that touch leave no gap between their GPUs, so that a bundle's ranks are consecutive."""
    spans = []
    for index, bundle in enumerate(bundles):
        first = max(group.ranks.start, bundle.first_rank)
        last = min(group.ranks.stop, bundle.first_rank + bundle.num_gpus)
        if first < last:
            spans.append(Span(bundle=index, first_gpu=first - bundle.first_rank, num_gpus=last - first))
    return tuple(spans)
