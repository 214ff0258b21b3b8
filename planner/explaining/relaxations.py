"""What more of something would buy: every limit of a request, relaxed alone and planned again."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from planner.domain.execution import Fusion
from planner.domain.hardware import Cluster, NodeType, Pool
from planner.domain.plan import Limits, Objective
from planner.domain.profile import BANDWIDTH_OF, with_hardware
from planner.domain.workload import RewardKind
from planner.explain import ROOMIER_GPUS
from planner.explaining.case import Case
from planner.explaining.replan import best_in, kept_in, world_of
from planner.explaining.score import Score
from planner.files.catalog import generic_node
from planner.units import GIB, format_seconds

MORE_MEMORY_BYTES = 4 * GIB
FASTER = 2.0
SMALLER_MARGIN = 0.5
MAX_MARGIN_SHOWN = 0.01
"""Memory margins at or below that are not halved any more."""


class RelaxationKind(StrEnum):
    """Where a limit comes from."""

    HARDWARE = "hardware"
    PERMISSION = "permission"
    """Changes what is learned, which only the user can decide."""
    RESTRICTION = "restriction"
    """A limit that the user set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """One limit relaxed. `score` is the best plan then, or None where none fits; `gain_ratio` is what it saves of the
    objective against the best plan without the change."""

    kind: RelaxationKind
    what: str
    option: str
    """How to ask for it; empty where only other hardware helps."""
    score: Score | None
    gain_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    kind: RelaxationKind
    what: str
    option: str
    plan: Callable[[], Score | None]


def relax(case: Case) -> tuple[Relaxation, ...]:
    """Every relaxation, by falling gain over the best plan of the request as it is."""
    found = []
    for change in (*_hardware(case), *_permissions(case), *_restrictions(case)):
        answered = case.watch.asked(change.what, partial(_answer, change))
        if answered is None:
            continue
        score = answered.score
        gain = 0.0 if score is None else max(0.0, -score.change_ratio(case.optimum))
        found.append(Relaxation(kind=change.kind, what=change.what, option=change.option, score=score, gain_ratio=gain))
    return tuple(sorted(found, key=lambda item: -item.gain_ratio))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    score: Score | None


def _answer(change: _Change) -> _Answer:
    return _Answer(score=change.plan())


# ---------------------------------------------------------------------------------------------- hardware


def _hardware(case: Case) -> Iterator[_Change]:
    def change(what: str, node: Callable[[NodeType], NodeType], *, is_memory: bool = False) -> _Change:
        world = replace(world_of(case), cluster=each_node(case.cluster, node))
        # Nothing gets slower by it, so that slower options need not be looked at.
        return _Change(
            kind=RelaxationKind.HARDWARE,
            what=what,
            option="",
            plan=lambda: best_in(case, world, case.optimum, has_other_memory=is_memory),
        )

    yield change(
        "4 GiB more memory per GPU",
        lambda node: with_memory(node, node.gpu.memory_bytes + MORE_MEMORY_BYTES),
        is_memory=True,
    )
    yield change(
        "twice the host RAM per node",
        lambda node: replace(node, host_ram_bytes=node.host_ram_bytes * FASTER),
        is_memory=True,
    )
    if case.cluster.num_gpus > max(pool.node.scale_up_domain_gpus for pool in case.cluster.pools):
        yield change("NICs twice as fast", lambda node: faster_nics(node, FASTER))
    yield change(f"{_scale_up(case)} twice as fast", lambda node: faster_scale_up(node, FASTER))
    yield from _more_nodes(case)
    yield from _other_gpus(case)


def _scale_up(case: Case) -> str:
    kinds = {pool.node.gpu.scale_up_kind for pool in case.cluster.pools}
    return kinds.pop() if len(kinds) == 1 else "links within nodes"


def each_node(cluster: Cluster, change: Callable[[NodeType], NodeType]) -> Cluster:
    """The cluster with every node changed."""
    return replace(cluster, pools=tuple(replace(pool, node=change(pool.node)) for pool in cluster.pools))


def with_memory(node: NodeType, memory_bytes: float) -> NodeType:
    return replace(node, gpu=replace(node.gpu, memory_bytes=memory_bytes))


def faster_nics(node: NodeType, factor: float) -> NodeType:
    return replace(node, nic_bytes_per_s=node.nic_bytes_per_s * factor)


def faster_scale_up(node: NodeType, factor: float) -> NodeType:
    """The node with `factor` times the bandwidth of every collective inside it; latencies stay."""
    line = replace(node, gpu=replace(node.gpu, scale_up_bytes_per_s=node.gpu.scale_up_bytes_per_s * factor))
    return with_hardware(line, dict.fromkeys(BANDWIDTH_OF.values(), factor))


def _more_nodes(case: Case) -> Iterator[_Change]:
    for pool in case.cluster.pools:
        grown = replace(pool, num_nodes=pool.num_nodes + 1)
        pools = tuple(grown if item is pool else item for item in case.cluster.pools)
        name = f" of {pool.name}" if len(case.cluster.pools) > 1 else ""
        yield _anew(
            case, RelaxationKind.HARDWARE, f"one more node{name} ({grown.num_gpus} GPUs)", "",
            cluster=replace(case.cluster, pools=pools),
        )  # fmt: skip


def _other_gpus(case: Case) -> Iterator[_Change]:
    """The same number of roomier GPUs, where nodes of the catalog have as many."""
    limits = case.limits
    if len(case.cluster.pools) > 1:
        return
    pool = case.cluster.pools[0]
    for name in ROOMIER_GPUS:
        node = generic_node(name)
        wants_price = limits.objective is Objective.COST or limits.max_usd_per_iteration is not None
        if node.gpu.memory_bytes <= pool.node.gpu.memory_bytes or node.gpus_per_node < pool.node.gpus_per_node:
            continue
        if wants_price and (node.price is None or pool.usd_per_gpu_hour is None):
            continue
        if node.gpus_per_node != pool.node.gpus_per_node:
            node = node.with_gpus(pool.node.gpus_per_node)
        price = node.price.usd_per_gpu_hour if node.price else None
        other = Pool(name=pool.name, node=node, num_nodes=pool.num_nodes, usd_per_gpu_hour=price)
        yield _anew(
            case, RelaxationKind.HARDWARE, f"{other.num_gpus} x {node.gpu.name} instead",
            f"--gpus {other.num_gpus}x{name}", cluster=Cluster(pools=(other,)),
            guess=partial(_kept_on, case, Cluster(pools=(other,))),
        )  # fmt: skip


def _kept_on(case: Case, cluster: Cluster) -> Score | None:
    """This plan on other GPUs, where it fits."""
    return kept_in(case, replace(world_of(case), cluster=cluster))


# ---------------------------------------------------------------------------------------------- permissions


def _permissions(case: Case) -> Iterator[_Change]:
    limits, rules = case.limits, case.rules
    more = limits.max_staleness + 1
    if rules is None or rules.max_staleness >= more:
        yield _permit(case, f"staleness {more}", f"--staleness {more}", replace(limits, max_staleness=more))
    if not limits.allow_partial_rollouts and (rules is None or rules.max_staleness >= 1):
        lag = max(1, limits.max_staleness)
        yield _permit(
            case, f"partial rollouts with staleness {lag}", f"--staleness {lag} --allow partial-rollouts",
            replace(limits, max_staleness=lag, allow_partial_rollouts=True),
        )  # fmt: skip


def _permit(case: Case, what: str, option: str, limits: Limits) -> _Change:
    return _anew(case, RelaxationKind.PERMISSION, what, option, limits=limits)


# ---------------------------------------------------------------------------------------------- restrictions


def _restrictions(case: Case) -> Iterator[_Change]:
    limits, workload = case.limits, case.request.workload
    for what, option, relaxed in free_limits(limits):
        yield _anew(case, RelaxationKind.RESTRICTION, what, option, limits=relaxed)
    if case.limits.objective is not Objective.TIME and limits.max_iteration_s is not None:
        yield _anew(
            case, RelaxationKind.RESTRICTION, f"no deadline of {format_seconds(limits.max_iteration_s)} per iteration",
            "without --deadline", limits=replace(limits, max_iteration_s=None),
        )  # fmt: skip
    margin = workload.memory_margin_ratio
    if margin > MAX_MARGIN_SHOWN:
        less = margin * SMALLER_MARGIN
        yield _anew(
            case, RelaxationKind.RESTRICTION, f"a memory margin of {less:.3g}, not {margin:.3g}",
            f"--memory-margin {less:.3g}", margin=less,
        )  # fmt: skip
    if workload.critic is not None and Fusion.INTRA_STAGE not in limits.fusions:
        yield _anew(
            case, RelaxationKind.RESTRICTION, "fused actor and critic updates too", "--fusion all",
            limits=replace(limits, fusions=tuple(Fusion)),
        )  # fmt: skip
    if workload.reward.kind is RewardKind.SANDBOX:
        world = world_of(case)
        reward = replace(workload.reward, num_parallel=workload.reward.num_parallel * 2)
        more = replace(world, workload=replace(world.workload, reward=reward))
        yield _Change(
            kind=RelaxationKind.HARDWARE,
            what=f"{reward.num_parallel} sandboxes at a time",
            option=f"--reward-parallel {reward.num_parallel}",
            plan=lambda: best_in(case, more),
        )


def free_limits(limits: Limits) -> Iterator[tuple[str, str, Limits]]:
    """Each restriction that keeps plans out, without it: in words, as an option, and the limits that are left."""
    if limits.framework is not None:
        yield f"any framework, not only {limits.framework}", "without --framework", replace(limits, framework=None)
    if limits.max_gpus is not None:
        yield f"more than {limits.max_gpus} GPUs", "without --max-gpus", replace(limits, max_gpus=None)
    if limits.max_usd_per_iteration is not None:
        yield (
            f"more than {limits.max_usd_per_iteration:,.2f} USD per iteration",
            "without --budget",
            replace(limits, max_usd_per_iteration=None),
        )
    if limits.policy is not None:
        yield f"any order of stages, not only {limits.policy.value}", "without --policy", replace(limits, policy=None)
    for i, members in enumerate(limits.must_share):
        rest = (*limits.must_share[:i], *limits.must_share[i + 1 :])
        names = " and ".join(member.value for member in members)
        yield f"{names} need not share GPUs", "without this --share", replace(limits, must_share=rest)
    for i, members in enumerate(limits.must_not_share):
        rest = (*limits.must_not_share[:i], *limits.must_not_share[i + 1 :])
        names = " and ".join(member.value for member in members)
        yield f"{names} may share GPUs", "without this --apart", replace(limits, must_not_share=rest)
    for i, item in enumerate(limits.fixed):
        left = (*limits.fixed[:i], *limits.fixed[i + 1 :])
        yield f"{item} not fixed", f"without {shlex.quote(str(item))} in --fix", replace(limits, fixed=left)


def _anew(
    case: Case,
    kind: RelaxationKind,
    what: str,
    option: str,
    *,
    limits: Limits | None = None,
    cluster: Cluster | None = None,
    margin: float | None = None,
    guess: Callable[[], Score | None] | None = None,
) -> _Change:
    """A change that may bring other candidates. Without a `guess` it is one that can only make plans better."""
    workload = case.request.workload
    if margin is not None:
        workload = replace(workload, memory_margin_ratio=margin)
    setting = replace(case.setting, limits=limits or case.limits, cluster=cluster or case.cluster, workload=workload)

    def plan() -> Score | None:
        near = case.optimum if guess is None else guess()
        found = case.market.best(setting, (near, None))
        return None if found is None else found.score

    return _Change(kind=kind, what=what, option=option, plan=plan)
