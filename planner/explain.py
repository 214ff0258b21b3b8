"""Why nothing fits: the stage, instant and term that fail, and the smallest change that was checked to work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.terms import total
from planner.cost.worker import WorkerCosts
from planner.domain.hardware import Cluster, NodeType, Pool
from planner.domain.plan import Objective
from planner.domain.request import PlanRequest
from planner.domain.stages import StageKind
from planner.domain.strategy import FloatArray, RolloutStrategy, Strategy
from planner.files.catalog import generic_node
from planner.search.candidates import chunks
from planner.search.pricing import PricedWorker, PricingInputs, price_table, site_of
from planner.units import format_bytes, format_seconds

MAX_NODES_TRIED = 128
MAX_GROWTH_FOR_LIMITS = 16
"""A limit on time or USD is not chased beyond so many times the nodes given."""
ROOMIER_GPUS = ("h200", "b200", "b300")
"""GPU types offered as a change, by rising memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best plan of a changed request, in short."""

    time_s: float
    num_gpus: int
    usd: float | None
    """Per iteration, of the nodes used."""


Feasible = Callable[[PlanRequest, Cluster], Found | None]
"""Plans a request on a cluster; None if nothing fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The least demanding strategy of a worker, and where it still exceeds the hardware."""

    worker: str
    strategy: Strategy
    stage: str
    instant: str
    term: str
    term_bytes: float
    needed_bytes: float
    usable_bytes: float
    resource: str

    def sentence(self, pool: Pool) -> str:
        """One line with stage, place, need, limit and the largest term."""
        return (
            f"stage '{self.stage}' on {self.strategy.num_gpus}x {pool.node.gpu.name}: "
            f"{format_bytes(self.needed_bytes)} of {self.resource} needed at the {self.instant}, "
            f"{format_bytes(self.usable_bytes)} usable; largest term {self.term} ({format_bytes(self.term_bytes)})"
        )


def explain_infeasible(
    request: PlanRequest,
    cluster: Cluster,
    inputs: PricingInputs,
    priced: Sequence[PricedWorker],
    excluded: Sequence[tuple[str, int]],
    feasible: Feasible,
) -> str:
    """The message of an infeasible request.

    `excluded` are structures that framework rules removed, by reason; `feasible` plans a changed request, so that
    every change that is offered is one that was found to work.
    """
    lines = ["no plan fits"]
    limit = _limit_problem(request, cluster, feasible)
    lines += [limit] if limit else list(reasons(priced, inputs, excluded))
    changes = list(_changes(request, cluster, feasible))
    if changes:
        lines.append("smallest changes that work (each was planned): " + "; ".join(changes))
    else:
        lines.append(
            "no small change was found that works"
            + ("" if limit else ": shorten the response, or choose a smaller model")
        )
    return "\n  ".join(lines)


def _limit_problem(request: PlanRequest, cluster: Cluster, feasible: Feasible) -> str | None:
    """A sentence when only the user's own limits are in the way."""
    limits = request.limits
    if limits.max_iteration_s is None and limits.max_gpus is None and limits.max_usd_per_iteration is None:
        return None
    free = replace(limits, max_iteration_s=None, max_gpus=None, max_usd_per_iteration=None)
    best = feasible(replace(request, limits=free), cluster)
    if best is None:
        return None
    wanted = [
        text
        for text in (
            limits.max_iteration_s is not None and f"at most {format_seconds(limits.max_iteration_s)} per iteration",
            limits.max_gpus is not None and f"at most {limits.max_gpus} GPUs",
            limits.max_usd_per_iteration is not None
            and f"at most {limits.max_usd_per_iteration:.2f} USD per iteration",
        )
        if text
    ]
    return (
        f"the limits are in the way ({', '.join(wanted)}): without them the best plan takes "
        f"{format_seconds(best.time_s)} per iteration on {best.num_gpus} GPUs"
    )


def reasons(
    priced: Sequence[PricedWorker], inputs: PricingInputs, excluded: Sequence[tuple[str, int]]
) -> Iterator[str]:
    """What fails: the worker that has no option, and of its strategies the one that exceeds the hardware least; or that
    all fit alone, but not together."""
    by_worker: dict[str, list[PricedWorker]] = {}
    for item in priced:
        by_worker.setdefault(item.worker.name.value, []).append(item)
    alone = False
    for name, items in by_worker.items():
        if any(len(item.options) for item in items):
            continue
        alone = True
        failures = [(failure, item.pool) for item in items if (failure := least_demanding(item, inputs)) is not None]
        if failures:
            failure, pool = min(failures, key=lambda pair: pair[0].needed_bytes / pair[0].usable_bytes)
            yield failure.sentence(pool)
        elif (narrow := _too_narrow(items[0], inputs)) is not None:
            yield narrow
        else:
            reasons = sorted(items[0].rejected, key=lambda pair: -pair[1])[:3]
            yield f"{name}: no legal strategy; " + ", ".join(f"{why} ({count:,})" for why, count in reasons)
    if alone:
        return
    if excluded:
        yield "; ".join(f"{reason} ({count} groupings)" for reason, count in excluded[:3])
    yield _together(priced)


def _together(priced: Sequence[PricedWorker]) -> str:
    """Every worker fits alone, but not beside the others."""
    pool = priced[0].pool
    parts = []
    for item in priced:
        if item.pool is pool and len(item.options):
            idle = float(item.options.idle_bytes.min())
            active = float(item.options.active_bytes.min())
            parts.append(f"{item.worker.name.value} {format_bytes(active)} active, {format_bytes(idle)} idle")
    return "each worker fits alone but not together, GPU memory per GPU at the least: " + ", ".join(parts)


def least_demanding(item: PricedWorker, inputs: PricingInputs) -> Failure | None:
    """The legal strategy of a worker that exceeds the hardware least; None if no strategy is legal."""
    best: tuple[float, int] | None = None
    for rows in chunks(len(item.candidates)):
        costs = price_table(item.worker, item.candidates.take(rows), site_of(item.pool, inputs), inputs)
        excess = np.where(costs.is_legal, _excess(costs, item, inputs), np.inf)
        row = int(np.argmin(excess))
        if np.isfinite(excess[row]) and (best is None or excess[row] < best[0]):
            best = (float(excess[row]), rows.start + row)
    if best is None:
        return None
    return _failure(item, best[1], inputs)


def _capacities(item: PricedWorker, inputs: PricingInputs) -> tuple[float, float]:
    host = item.pool.node.host_ram_bytes * (1.0 - inputs.workload.memory_margin_ratio)
    return site_of(item.pool, inputs).usable_bytes, host


def _excess(costs: WorkerCosts, item: PricedWorker, inputs: PricingInputs) -> FloatArray:
    gpu, host = _capacities(item, inputs)
    peak = np.asarray(np.max([total(stage.memory_terms) for stage in costs.stages], axis=0) / gpu)
    return np.maximum(peak, total(costs.host_terms) / host) if costs.host_terms else peak


def _failure(item: PricedWorker, row: int, inputs: PricingInputs) -> Failure:
    table = item.candidates.take(slice(row, row + 1))
    costs = price_table(item.worker, table, site_of(item.pool, inputs), inputs)
    gpu, host = _capacities(item, inputs)
    stage = max(costs.stages, key=lambda entry: float(total(entry.memory_terms)[0]))
    peak = float(total(stage.memory_terms)[0])
    host_peak = float(total(costs.host_terms)[0]) if costs.host_terms else 0.0
    by_host = host_peak / host > peak / gpu
    terms = costs.host_terms if by_host else stage.memory_terms
    term = max(terms, key=lambda name: float(terms[name][0]))
    return Failure(
        worker=item.worker.name.value,
        strategy=item.candidates.row(row),
        stage=stage.stage.value,
        instant="update" if by_host else stage.instant_at(0),
        term=term,
        term_bytes=float(terms[term][0]),
        needed_bytes=host_peak if by_host else peak,
        usable_bytes=host if by_host else gpu,
        resource="host RAM per node" if by_host else "GPU memory",
    )


def _too_narrow(item: PricedWorker, inputs: PricingInputs) -> str | None:
    """An engine whose weights no layout on these GPUs can hold; None for other workers or reasons."""
    if item.worker.kind is not StageKind.GENERATION or not len(item.candidates):
        return None
    costs = price_table(item.worker, item.candidates, site_of(item.pool, inputs), inputs)
    weights = costs.stages[0].memory_terms["weights"]
    row = int(np.argmin(weights))
    strategy = item.candidates.row(row)
    usable = site_of(item.pool, inputs).usable_bytes
    spread = strategy.num_gpus // strategy.num_engines if isinstance(strategy, RolloutStrategy) else 1
    where = f"spread over {spread} GPU{'' if spread == 1 else 's'}"
    return (
        f"stage '{costs.stages[0].stage.value}' on {strategy.num_gpus}x {item.pool.node.gpu.name}: weights take at "
        f"least {format_bytes(float(weights[row]))} of GPU memory ({where}), and "
        f"no engine fraction leaves room for them, the cache and its overheads in {format_bytes(usable)} usable"
    )


def _changes(request: PlanRequest, cluster: Cluster, feasible: Feasible) -> Iterator[str]:
    limits = request.limits
    if limits.framework is not None:
        found = feasible(replace(request, limits=replace(limits, framework=None)), cluster)
        if found is not None:
            yield f"without --framework {limits.framework}: {format_seconds(found.time_s)} per iteration"
    yield from lifted_decisions(request, cluster, feasible)
    yield from relaxed_limits(request, cluster, feasible)
    if len(cluster.pools) == 1 and limits.max_gpus is None:
        yield from more_hardware(request, cluster.pools[0], feasible)


def lifted_decisions(request: PlanRequest, cluster: Cluster, feasible: Feasible) -> Iterator[str]:
    """What the user decided in place of the search, each option on its own, where a plan exists without it."""
    limits = request.limits
    for option, free in (
        ("--fix", replace(limits, fixed=())),
        ("--share", replace(limits, must_share=())),
        ("--apart", replace(limits, must_not_share=())),
    ):
        found = feasible(replace(request, limits=free), cluster) if free != limits else None
        if found is not None:
            yield f"without {option}: {format_seconds(found.time_s)} per iteration"


def relaxed_limits(request: PlanRequest, cluster: Cluster, feasible: Feasible) -> Iterator[str]:
    """Each of the user's limits on its own, as far as it must give way while the others stay."""
    limits = request.limits
    if limits.max_gpus is not None:
        free = replace(limits, max_gpus=None, objective=Objective.GPUS)
        found = feasible(replace(request, limits=free), cluster)
        if found is not None:
            yield f"--max-gpus {found.num_gpus}"
    if limits.max_usd_per_iteration is not None:
        free = replace(limits, max_usd_per_iteration=None, objective=Objective.COST)
        found = feasible(replace(request, limits=free), cluster)
        if found is not None and found.usd is not None:
            yield f"a budget of {found.usd:.2f} USD per iteration"
    if limits.max_iteration_s is not None:
        free = replace(limits, max_iteration_s=None, objective=Objective.TIME)
        found = feasible(replace(request, limits=free), cluster)
        if found is not None:
            yield f"a deadline of {format_seconds(found.time_s)} per iteration"


def more_hardware(request: PlanRequest, pool: Pool, feasible: Feasible) -> Iterator[str]:
    """The fewest nodes of the same type, and the same number of roomier GPUs, on which a plan exists."""
    node = generic_node(pool.node.gpu.id) if _is_part_of_a_node(pool) else pool.node
    grown = _fewest_gpus(request, pool, node, feasible)
    if grown is not None:
        yield grown
    for name in ROOMIER_GPUS:
        other = generic_node(name)
        if other.gpu.memory_bytes <= pool.node.gpu.memory_bytes or other.gpus_per_node < pool.node.gpus_per_node:
            continue
        if other.gpus_per_node != pool.node.gpus_per_node:
            other = other.with_gpus(pool.node.gpus_per_node)
        if feasible(request, _cluster_of(other, pool.num_nodes)) is not None:
            yield f"{pool.num_gpus}x {other.gpu.name} instead"
            return


def _is_part_of_a_node(pool: Pool) -> bool:
    return pool.num_nodes == 1 and pool.node.gpus_per_node < generic_node(pool.node.gpu.id).gpus_per_node


def _cluster_of(node: NodeType, num_nodes: int) -> Cluster:
    price = node.price.usd_per_gpu_hour if node.price else None
    return Cluster(pools=(Pool(name=node.gpu.id, node=node, num_nodes=num_nodes, usd_per_gpu_hour=price),))


def _fewest_gpus(request: PlanRequest, pool: Pool, node: NodeType, feasible: Feasible) -> str | None:
    """The smallest larger cluster on which a plan exists: within a node, then nodes doubled and bisected."""
    per_node = pool.node.gpus_per_node * 2
    while per_node < node.gpus_per_node:
        if feasible(request, _cluster_of(node.with_gpus(per_node), 1)) is not None:
            return f"{per_node} GPUs in one node"
        per_node *= 2
    low = 0 if node is not pool.node else pool.num_nodes
    limit = MAX_NODES_TRIED
    if request.limits.max_iteration_s is not None or request.limits.max_usd_per_iteration is not None:
        limit = min(limit, pool.num_nodes * MAX_GROWTH_FOR_LIMITS)
    high = max(1, low * 2)
    while high <= limit and feasible(request, _cluster_of(node, high)) is None:
        low, high = high, high * 2
    if high > limit:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if feasible(request, _cluster_of(node, middle)) is None:
            low = middle
        else:
            high = middle
    return f"{high * node.gpus_per_node} GPUs ({high}x {node.name})"
