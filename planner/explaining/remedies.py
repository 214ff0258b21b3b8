"""The cheapest way out of a conflict in each direction: every one was planned and has a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from planner.domain.hardware import Cluster, Pool, Precision
from planner.domain.plan import Limits
from planner.domain.request import PlanRequest
from planner.explain import MAX_NODES_TRIED, Feasible, Found, more_hardware, relaxed_limits
from planner.explaining.relaxations import each_node, free_limits, with_memory
from planner.explaining.requests import rules_of
from planner.explaining.watch import Watch
from planner.units import format_bytes

LORA_RANK = 32
MARGINS = (0.08, 0.05, 0.03, 0.0)
MAX_MEMORY_FACTOR = 4.0
SHORTER = tuple(share / 16 for share in range(15, 0, -1))
MIN_RESPONSE_TOKENS = 128
MAX_GROWTH = 8
"""Times the nodes of one of several pools that are tried."""
STEPS = 6
"""Bisections of an amount of memory: the answer is exact to 1/64 of the interval."""


class Topic(StrEnum):
    """What a limit is about."""

    GPU_MEMORY = "GPU memory"
    HOST_RAM = "host RAM"
    NUM_GPUS = "number of GPUs"
    MARGIN = "memory margin"
    DEADLINE = "deadline"
    BUDGET = "budget"
    MAX_GPUS = "max GPUs"
    FRAMEWORK = "framework"
    OTHER = "other"
    """Sharing, fixed strategies, the order of stages."""


_MEMORY = frozenset({Topic.GPU_MEMORY, Topic.HOST_RAM, Topic.MARGIN})
_RUN = frozenset({Topic.DEADLINE, Topic.BUDGET})


_Direction = Callable[[PlanRequest, Cluster, Feasible], Iterator["Remedy"]]


class RemedyKind(StrEnum):
    """What a way out touches."""

    LIMIT = "limit"
    """A limit that the user set."""
    HARDWARE = "hardware"
    WORKLOAD = "workload"
    LEARNING = "changes what is learned"
    """Offered as a hint: only the user can decide that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change with which a plan exists. `found` is that plan where it was asked for in full, else None."""

    kind: RemedyKind
    what: str
    found: Found | None


def remedies(
    request: PlanRequest, cluster: Cluster, feasible: Feasible, topics: frozenset[Topic], watch: Watch
) -> tuple[Remedy, ...]:
    """One way out per direction, as far as one exists; `feasible` plans a changed request.

    Directions that have nothing to do with the `topics` of a conflict are only tried where no other one helps.
    """
    directions: tuple[tuple[frozenset[Topic], str, _Direction], ...] = (
        (frozenset(Topic), "other limits", _limits),
        (_MEMORY, "a smaller memory margin", _margin),
        (frozenset({Topic.NUM_GPUS, Topic.GPU_MEMORY}), "more or roomier GPUs", _more_hardware),
        (frozenset({Topic.GPU_MEMORY}), "more GPU memory", _gpu_memory),
        (frozenset({Topic.HOST_RAM}), "more host RAM", _host_ram),
        (_MEMORY | _RUN | {Topic.NUM_GPUS}, "shorter responses", _shorter),
        (_MEMORY | _RUN | {Topic.NUM_GPUS}, "LoRA and 8-bit rollouts", _precision),
        (_RUN, "staleness", _staleness),
    )

    def found(words: str, search: _Direction) -> tuple[Remedy, ...]:
        # Ways out that were found before the time was over count.
        ways: list[Remedy] = []
        watch.asked(words, lambda: ways.extend(search(request, cluster, feasible)))
        return tuple(ways)

    near = [item for about, words, search in directions if about & topics for item in found(words, search)]
    if near:
        return tuple(near)
    return tuple(item for about, words, search in directions if not about & topics for item in found(words, search))


def _more_hardware(request: PlanRequest, cluster: Cluster, feasible: Feasible) -> Iterator[Remedy]:
    if request.limits.max_gpus is not None:
        return
    if len(cluster.pools) == 1:
        for words in more_hardware(request, cluster.pools[0], feasible):
            yield Remedy(kind=RemedyKind.HARDWARE, what=words, found=None)
        return
    for pool in cluster.pools:
        yield from _more_nodes(request, cluster, pool, feasible)


def _more_nodes(request: PlanRequest, cluster: Cluster, pool: Pool, feasible: Feasible) -> Iterator[Remedy]:
    """The fewest nodes of one of several pools."""
    most = min(MAX_NODES_TRIED, pool.num_nodes * MAX_GROWTH)

    def grown(num_nodes: int) -> Cluster:
        bigger = replace(pool, num_nodes=num_nodes)
        return replace(cluster, pools=tuple(bigger if item is pool else item for item in cluster.pools))

    low, high = pool.num_nodes, pool.num_nodes * 2
    while high <= most and feasible(request, grown(high)) is None:
        low, high = high, high * 2
    if high > most:
        return
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if feasible(request, grown(middle)) is None else (low, middle)
    words = f"{high * pool.node.gpus_per_node} GPUs in pool {pool.name} ({high} nodes)"
    yield from _one(RemedyKind.HARDWARE, words, feasible(request, grown(high)))


def _limits(request: PlanRequest, cluster: Cluster, feasible: Feasible) -> Iterator[Remedy]:
    for words in relaxed_limits(request, cluster, feasible):
        yield Remedy(kind=RemedyKind.LIMIT, what=words, found=None)
    for _, option, relaxed in _without_amounts(request.limits):
        yield from _one(RemedyKind.LIMIT, option, feasible(replace(request, limits=relaxed), cluster))


def _without_amounts(limits: Limits) -> Iterator[tuple[str, str, Limits]]:
    """Restrictions that are lifted as a whole: amounts give way as little as possible instead."""
    for what, option, relaxed in free_limits(limits):
        has_amount = (relaxed.max_gpus, relaxed.max_usd_per_iteration) != (
            limits.max_gpus,
            limits.max_usd_per_iteration,
        )
        if not has_amount:
            yield what, option, relaxed


def _one(kind: RemedyKind, what: str, found: Found | None) -> Iterator[Remedy]:
    if found is not None:
        yield Remedy(kind=kind, what=what, found=found)


def _margin(request: PlanRequest, cluster: Cluster, feasible: Feasible) -> Iterator[Remedy]:
    """The largest of a few smaller margins."""
    for margin in MARGINS:
        if margin < request.workload.memory_margin_ratio:
            changed = replace(request, workload=replace(request.workload, memory_margin_ratio=margin))
            found = feasible(changed, cluster)
            if found is not None:
                yield Remedy(kind=RemedyKind.LIMIT, what=f"--memory-margin {margin:.0%}", found=found)
                return


def _gpu_memory(request: PlanRequest, cluster: Cluster, feasible: Feasible) -> Iterator[Remedy]:
    """The least GPU memory with which a plan exists."""

    def grown(factor: float) -> Cluster:
        return each_node(cluster, lambda node: with_memory(node, node.gpu.memory_bytes * factor))

    sizes = {pool.name: pool.node.gpu.memory_bytes for pool in cluster.pools}
    yield from _amount(request, sizes, "of memory per GPU", grown, feasible)


def _host_ram(request: PlanRequest, cluster: Cluster, feasible: Feasible) -> Iterator[Remedy]:
    """The least host RAM with which a plan exists."""

    def grown(factor: float) -> Cluster:
        return each_node(cluster, lambda node: replace(node, host_ram_bytes=node.host_ram_bytes * factor))

    sizes = {pool.name: pool.node.host_ram_bytes for pool in cluster.pools}
    yield from _amount(request, sizes, "of host RAM per node", grown, feasible)


def _amount(
    request: PlanRequest,
    sizes_bytes: Mapping[str, float],
    what: str,
    grown: Callable[[float], Cluster],
    feasible: Feasible,
) -> Iterator[Remedy]:
    """The least amount in all pools, by the same factor."""
    factor = _least(lambda value: feasible(request, grown(value)) is not None)
    if factor is not None:
        many = len(sizes_bytes) > 1
        amounts = [
            f"{format_bytes(size * factor)}{f' in {name}' if many else ''}" for name, size in sizes_bytes.items()
        ]
        words = f"{' and '.join(amounts)} {what}"
        yield from _one(RemedyKind.HARDWARE, words, feasible(request, grown(factor)))


def _least(works: Callable[[float], bool]) -> float | None:
    """The least factor above 1 that works, to 1/64 of a doubling; None where none up to MAX_MEMORY_FACTOR does."""
    low, high = 1.0, 2.0
    while not works(high):
        low, high = high, high * 2.0
        if high > MAX_MEMORY_FACTOR:
            return None
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if works(middle) else (middle, high)
    return high


def _shorter(request: PlanRequest, cluster: Cluster, feasible: Feasible) -> Iterator[Remedy]:
    """The longest responses, in sixteenths, with which a plan exists; the mean shrinks with them."""
    low, high = -1, len(SHORTER)
    at: dict[int, Found | None] = {}

    def found(index: int) -> Found | None:
        if index not in at:
            at[index] = feasible(_with_responses(request, SHORTER[index]), cluster)
        return at[index]

    law = request.workload.response
    if law.max_tokens * SHORTER[-1] < MIN_RESPONSE_TOKENS or found(len(SHORTER) - 1) is None:
        return
    high = len(SHORTER) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if found(middle) is not None else (middle, high)
    shortened = _with_responses(request, SHORTER[high]).workload.response
    yield from _one(
        RemedyKind.WORKLOAD,
        f"--response-max {shortened.max_tokens} --response-mean {shortened.mean_tokens:.0f}",
        found(high),
    )


def _with_responses(request: PlanRequest, share: float) -> PlanRequest:
    law = request.workload.response
    longest = max(1, int(law.max_tokens * share))
    shorter = replace(law, max_tokens=longest, mean_tokens=min(law.mean_tokens * share, float(longest)))
    return replace(request, workload=replace(request.workload, response=shorter))


def _precision(request: PlanRequest, cluster: Cluster, feasible: Feasible) -> Iterator[Remedy]:
    """Hints: LoRA and 8-bit rollouts."""
    workload = request.workload
    if workload.lora_rank is None:
        changed = replace(request, workload=replace(workload, lora_rank=LORA_RANK))
        yield from _one(RemedyKind.LEARNING, f"--lora-rank {LORA_RANK}", feasible(changed, cluster))
    can_fp8 = all(pool.node.gpu.supports(Precision.FP8) for pool in cluster.pools)
    if can_fp8 and workload.rollout_precision is Precision.BF16:
        changed = replace(request, workload=replace(workload, rollout_precision=Precision.FP8))
        yield from _one(RemedyKind.LEARNING, "--rollout-precision fp8", feasible(changed, cluster))


def _staleness(request: PlanRequest, cluster: Cluster, feasible: Feasible) -> Iterator[Remedy]:
    """Hint: asynchronous iterations."""
    limits, rules = request.limits, rules_of(request.limits)
    if limits.max_staleness == 0 and (rules is None or rules.max_staleness):
        changed = replace(request, limits=replace(limits, max_staleness=1))
        yield from _one(RemedyKind.LEARNING, "--staleness 1", feasible(changed, cluster))
