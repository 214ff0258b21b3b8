"""check(): whether an imported configuration runs and fits, and what would be better."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log2

from planner.adapters.findings import Finding, Severity
from planner.adapters.imported import Imported, Knob
from planner.domain.execution import ExecutionMode
from planner.domain.framework import ONE_BACKEND_WORKERS, FrameworkRules
from planner.domain.framework_verdict import TOLERATED, FrameworkProblem, ProblemKind, framework_problems
from planner.domain.hardware import Cluster
from planner.domain.plan import Placement, Plan, Status
from planner.domain.request import FixedWorker, PlanRequest
from planner.domain.stages import WorkerName, build_graph
from planner.domain.strategy import EngineIdle, Offload, Recompute, RolloutStrategy, Sharding, Strategy, TrainerStrategy
from planner.domain.verdict import Misfit, MisfitKind, Verdict
from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError
from planner.files.catalog import generic_node, load_node
from planner.files.framework import load_framework
from planner.pipeline import FixedPlan, engine_overhead_ratio, make_plan, price_fixed
from planner.search.legality import UNPLANNED
from planner.search.space import engine_fractions

MIN_GAIN_RATIO = 0.01
"""Smaller gains are within what the cost model can tell apart."""
MAX_CHANGES = 8
_DEGREES = ("tp", "pp", "cp", "ep", "etp")
_FRACTION_DIGITS = 4
_MAX_SEQS = 4096
_SAME = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One knob turned for one worker, or for all workers that share a process."""

    workers: tuple[WorkerName, ...]
    field: str
    before: str
    after: str
    size: float
    """How far the knob is turned: doublings, or steps of a list."""
    plan: Plan
    fits: bool

    @property
    def time_s(self) -> float:
        return self.plan.time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckView:
    """What a check found. `plan` is None where the configuration could not be priced; `why_not` then says why."""

    imported: Imported
    plan: Plan | None
    why_not: str
    problems: tuple[str, ...]
    """Rules of the cost model and of the framework that the configuration breaks."""
    above_margin: tuple[str, ...]
    """Stages that would run, but use memory that `--memory-margin` keeps free."""
    worst: Placement | None
    """The stage that comes closest to the limit of GPU memory."""
    verdict: Verdict | None
    best: Plan | None
    no_best: str
    """Why there is no best plan."""
    changes: tuple[Change, ...]
    """The smallest change that makes it fit first, then by gain; empty where nothing helps."""

    @property
    def has_problem(self) -> bool:
        """Whether the configuration does not run as it is."""
        return self.imported.has_errors or bool(self.problems) or self.verdict is Verdict.DOES_NOT_FIT

    @property
    def smallest_fix(self) -> Change | None:
        """The least change that makes a configuration fit that does not."""
        if self.plan is None or _fits(self.plan, (*self.problems, *self.above_margin)):
            return None
        fixes = [change for change in self.changes if change.fits]
        return min(fixes, key=lambda change: (change.size, len(change.workers), change.time_s), default=None)


def check(imported: Imported, request: PlanRequest) -> CheckView:
    """Prices a configuration on the request's cluster, and its neighbours, and the best plan for the same framework.

    `request` is built from `imported.spec` and what the user added, on a given cluster. Raises InvalidInputError for
    a request without one.
    """
    if request.cluster is None:
        raise InvalidInputError("a check needs the cluster that the configuration is for", where="--gpus")
    rules = load_framework(imported.framework)
    imported = _on_cluster(imported, request.cluster, rules)
    request = as_run(imported, request)
    best, no_best = _best(imported, request)
    try:
        workers = tuple(_whole(worker) for worker in placed(imported, request))
        priced = price_fixed(request, workers, imported.execution)
    except InvalidInputError as error:
        return replace(unpriced(imported, str(error)), best=best, no_best=no_best)
    plan = priced.plan
    problems = _problems(imported, priced, rules)
    imported = _with_notes(imported, priced)
    worst = _worst(plan)
    # A peak that the device holds, but not without the margin.
    above = () if _verdict(plan) is Verdict.DOES_NOT_FIT else _texts(priced.misfits, MisfitKind.GPU_MEMORY)
    return CheckView(
        imported=imported,
        plan=plan,
        why_not="",
        problems=tuple(text for text in problems if text not in above),
        above_margin=above,
        worst=worst,
        verdict=_verdict(plan),
        best=best,
        no_best=no_best,
        changes=_ranked(tuple(_changes(imported, request, rules, plan, workers)), plan, problems),
    )


def rule_problems(imported: Imported, request: PlanRequest) -> tuple[str, ...]:
    """Rules that a configuration breaks on the request's cluster, without capacities: a check without its searches.

    Raises InvalidInputError where it cannot be priced.
    """
    if request.cluster is None:
        raise InvalidInputError("a check needs the cluster that the configuration is for", where="--gpus")
    rules = load_framework(imported.framework)
    imported = _on_cluster(imported, request.cluster, rules)
    request = as_run(imported, request)
    workers = tuple(_whole(worker) for worker in placed(imported, request))
    priced = price_fixed(request, workers, imported.execution)
    capacities = _texts([item for item in priced.misfits if item.kind is not MisfitKind.RULE])
    return tuple(text for text in _problems(imported, priced, rules) if text not in capacities)


def _on_cluster(imported: Imported, cluster: Cluster, rules: FrameworkRules) -> Imported:
    """The configuration on the nodes that are there, with the controller of its framework."""
    nodes, per_node = imported.node_shape(cluster.pools[0].node.gpus_per_node)
    execution = replace(imported.execution, policy=rules.policy)
    return replace(imported, num_nodes=nodes, gpus_per_node=per_node, execution=execution)


def unpriced(imported: Imported, why: str) -> CheckView:
    """The view of a configuration that cannot be priced."""
    return CheckView(
        imported=imported, plan=None, why_not=why, problems=(), above_margin=(), worst=None, verdict=None,
        best=None, no_best="",
        changes=(),
    )  # fmt: skip


def as_run(imported: Imported, request: PlanRequest) -> PlanRequest:
    """The request with the stages that the configuration runs."""
    if imported.recomputes_old_logprob is None:
        return request
    return replace(request, workload=replace(request.workload, needs_old_logprob=imported.recomputes_old_logprob))


def gpus_text(imported: Imported, given: str) -> str:
    """A cluster as `--gpus` takes it: the configuration's size for a bare GPU type, else what was given."""
    if "," in given or re.match(r"\s*\d+\s*x", given):
        return given
    name = given.strip()
    try:
        nodes, per_node = imported.node_shape(generic_node(name).gpus_per_node)
    except InvalidInputError:
        return f"{_nodes_of_type(imported, name)}x{name}"
    return f"{nodes}x{per_node}x{name}"


def _nodes_of_type(imported: Imported, name: str) -> int:
    """Nodes of a type, which has its own number of GPUs; the reader of --gpus complains about an unknown name."""
    try:
        per_node = load_node(name).gpus_per_node
    except InvalidInputError:
        return imported.num_nodes
    return imported.node_shape(per_node)[0]


def placed(imported: Imported, request: PlanRequest) -> tuple[FixedWorker, ...]:
    """The imported workers on the first pool of the cluster; InvalidInputError where they do not fit on it."""
    assert request.cluster is not None
    pool = request.cluster.pools[0]
    last = max((worker.first_gpu + worker.num_gpus for worker in imported.workers), default=0)
    if not imported.workers:
        raise InvalidInputError("no worker could be made out", where=imported.file)
    found = {worker.worker for worker in imported.workers}
    missing = [item.name.value for item in build_graph(request.workload).workers if item.name not in found]
    if missing:
        raise InvalidInputError(f"{' and '.join(missing)}: the layout could not be made out", where=imported.file)
    if last > pool.num_gpus:
        raise InvalidInputError(
            f"{pool.num_gpus} GPUs are less than the {last} of the configuration", where="--gpus",
            accepted=f"{imported.num_nodes}x{imported.gpus_per_node}x{pool.node.gpu.id}, or the type alone",
        )  # fmt: skip
    workers = _within_nodes(imported.workers, pool.node.gpus_per_node)
    return tuple(replace(_sized(worker, imported, request), pool=pool.name) for worker in workers)


def _whole(worker: FixedWorker) -> FixedWorker:
    """What is sharded over one rank is whole, whatever the back end calls it."""
    strategy = worker.strategy
    if not isinstance(strategy, TrainerStrategy) or strategy.shard_ranks > 1:
        return worker
    return replace(worker, strategy=replace(strategy, sharding=Sharding.DDP))


def _within_nodes(workers: tuple[FixedWorker, ...], gpus_per_node: int) -> tuple[FixedWorker, ...]:
    """The workers with the largest groups first where a group would otherwise begin within a node and end in another:
    configurations count GPUs by group, the scheduler sees to it that each finds a place."""
    groups = {(worker.first_gpu, worker.num_gpus) for worker in workers}
    ordered = sorted(groups)
    is_disjoint = all(a[0] + a[1] <= b[0] for a, b in pairwise(ordered))
    is_cut = any(first % gpus_per_node and first % gpus_per_node + size > gpus_per_node for first, size in groups)
    if not (is_disjoint and is_cut):
        return workers
    begin, place = 0, dict[tuple[int, int], int]()
    for first, size in sorted(groups, key=lambda group: (-group[1], group[0])):
        place[first, size] = begin
        begin += size
    return tuple(replace(worker, first_gpu=place[worker.first_gpu, worker.num_gpus]) for worker in workers)


def _sized(worker: FixedWorker, imported: Imported, request: PlanRequest) -> FixedWorker:
    """Engines with the share of GPU memory that they take on the real GPU, where the configuration says a part of it.

    The share is rounded: exports write it with more digits than plans have.
    """
    static, strategy = imported.engine_static_ratio, worker.strategy
    if static is None or not isinstance(strategy, RolloutStrategy) or worker.worker is not WorkerName.ROLLOUT_ENGINE:
        return worker
    assert request.cluster is not None
    beside = engine_overhead_ratio(request, strategy, request.cluster.pools[0], imported.execution)
    fraction = round(min(static + beside, 1.0), _FRACTION_DIGITS)
    return replace(worker, strategy=replace(strategy, engine_fraction=fraction))


def _best(imported: Imported, request: PlanRequest) -> tuple[Plan | None, str]:
    """The best plan of the framework on the same cluster, no staler than the configuration."""
    execution = imported.execution
    limits = replace(
        request.limits,
        framework=imported.framework,
        max_staleness=execution.staleness,
        allow_partial_rollouts=execution.mode is ExecutionMode.STREAMING,
        sharded_syncs=execution.sharded_syncs,
        num_alternatives=0,
    )
    try:
        return make_plan(replace(request, limits=limits), with_unrestricted=False), ""
    except (InfeasibleError, NoPlanFoundError) as error:
        return None, str(error)


def _problems(imported: Imported, priced: FixedPlan, rules: FrameworkRules) -> tuple[str, ...]:
    """Capacities and rules that the plan breaks, once each."""
    # What the framework does whatever is written is how the configuration was read.
    broken = (item.text for item in _rule_problems(imported, priced.plan, rules) if item.kind not in TOLERATED)
    return tuple(dict.fromkeys([*_texts(_serious(priced)), *broken]))


def _serious(priced: FixedPlan) -> tuple[Misfit, ...]:
    """Misfits without what frameworks run although no plan has it."""
    return tuple(item for item in priced.misfits if _rule(item) not in UNPLANNED)


def _rule(misfit: Misfit) -> str:
    """The cost model's rule that a misfit is about: its text names the worker first."""
    return misfit.text.partition(": ")[2] if misfit.kind is MisfitKind.RULE else ""


def _with_notes(imported: Imported, priced: FixedPlan) -> Imported:
    """The configuration with a note for everything that no plan has and the framework runs."""
    notes = tuple(
        Finding(place=item.text.partition(": ")[0], severity=Severity.NOTE, message=f"{rule}: {UNPLANNED[rule]}")
        for item in priced.misfits
        if (rule := _rule(item)) in UNPLANNED
    )
    return replace(imported, findings=(*imported.findings, *notes))


def _texts(misfits: Sequence[Misfit], kind: MisfitKind | None = None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item.text for item in misfits if kind in (None, item.kind)))


def _rule_problems(imported: Imported, plan: Plan, rules: FrameworkRules) -> tuple[FrameworkProblem, ...]:
    """What the framework's rules say against a plan; they say nothing about ways to run that they do not cover."""
    execution = imported.execution
    if execution.mode not in rules.execution_modes:
        return ()
    # The configuration is one of the framework's own, so that it can run with this lag; rules limit what plans ask for.
    lag = min(execution.staleness, rules.max_staleness_of(execution.mode))
    found = framework_problems(
        _for_scripts(rules, imported), replace(plan, execution=replace(execution, staleness=lag))
    )
    passed = _not_for_scripts(imported, rules)
    return tuple(item for item in found if item.kind not in passed)


def _for_scripts(rules: FrameworkRules, imported: Imported) -> FrameworkRules:
    """The rules with what only a configuration can say: layers of each pipeline rank, shards of a single rank, layers
    that every rank computes whole."""
    whole = frozenset({Sharding.DDP})
    is_alone = any(
        isinstance(item.strategy, TrainerStrategy) and item.strategy.shard_ranks == 1 for item in imported.workers
    )
    more = whole if is_alone else frozenset[Sharding]()
    backends = tuple(
        replace(
            item,
            allows_any_pp=imported.layers_are_given,
            recurrent_tp=True,
            shardings=item.shardings | more,
            inference_shardings=item.inference_shardings | more,
        )
        for item in rules.backends
    )
    return replace(rules, backends=backends)


def _not_for_scripts(imported: Imported, rules: FrameworkRules) -> frozenset[ProblemKind]:
    """Rules on what plans are made for, which say nothing against a configuration of the framework's own."""
    passed = {ProblemKind.SCOPE}
    if rules.own_degrees_in_scripts:
        passed.add(ProblemKind.MESH)
    if imported.node_parts:
        # Parts of nodes are sized in the configuration, and each is a whole group to the framework.
        passed.add(ProblemKind.NODES)
    if imported.recomputes_old_logprob is False:
        # The configuration takes the engine's log-probs, which changes the ratio of the loss: plans never do.
        passed.add(ProblemKind.OLD_LOGPROB)
    return frozenset(passed)


def _ratio(plan: Plan, placement: Placement) -> float:
    memory = placement.gpu_memory
    return 0.0 if memory is None else memory.peak_bytes / memory.usable_bytes


def _worst(plan: Plan) -> Placement | None:
    on_gpus = [item for item in plan.placements if item.gpu_memory is not None]
    return max(on_gpus, key=lambda item: _ratio(plan, item), default=None)


def _verdict(plan: Plan) -> Verdict | None:
    """The worst verdict of all stages, of the whole device without any margin."""
    order = tuple(Verdict)
    found = [verdict for item in plan.placements if (verdict := plan.memory_verdict(item)) is not None]
    return max(found, key=order.index, default=None)


def _fits(plan: Plan, problems: Sequence[str]) -> bool:
    return not problems and plan.status is not Status.INFEASIBLE and _verdict(plan) is not Verdict.DOES_NOT_FIT


# Changes ---------------------------------------------------------------------------------------------------------


def _changes(
    imported: Imported, request: PlanRequest, rules: FrameworkRules, plan: Plan, workers: tuple[FixedWorker, ...]
) -> Iterator[Change]:
    """All single changes that the framework allows, priced."""
    work = request.workload
    fractions = engine_fractions(work.memory_margin_ratio)
    seen: set[tuple[Strategy, ...]] = set()
    for worker in workers:
        for field, strategy, size in _neighbours(worker.strategy, work.max_tokens, fractions, is_moe=work.actor.is_moe):
            for changed in _variants(worker, field, strategy, workers):
                key = tuple(item.strategy for item in changed)
                if key in seen:
                    continue
                seen.add(key)
                change = _priced(imported, request, rules, plan, workers, changed, worker, field, size)
                if change is not None:
                    yield change
                    break


def _variants(
    worker: FixedWorker, field: str, strategy: Strategy, workers: tuple[FixedWorker, ...]
) -> Iterator[tuple[FixedWorker, ...]]:
    """The worker changed alone, then with the workers of its back end, which some frameworks give equal degrees."""
    yield tuple(replace(item, strategy=strategy) if item is worker else item for item in workers)
    if worker.worker not in ONE_BACKEND_WORKERS or field not in _DEGREES or isinstance(strategy, RolloutStrategy):
        return
    together = []
    for item in workers:
        other = item.strategy
        if item.worker in ONE_BACKEND_WORKERS and isinstance(other, TrainerStrategy):
            moved = _with_degree(other, field, getattr(strategy, field))
            if moved is None:
                return
            together.append(replace(item, strategy=moved))
        else:
            together.append(item)
    yield tuple(together)


def _priced(
    imported: Imported,
    request: PlanRequest,
    rules: FrameworkRules,
    plan_before: Plan,
    before: tuple[FixedWorker, ...],
    after: tuple[FixedWorker, ...],
    worker: FixedWorker,
    field: str,
    size: float,
) -> Change | None:
    """A change with its plan; None where the framework or the model rules it out."""
    priced = price_fixed(request, after, imported.execution)
    plan = priced.plan
    allowed = set(_rule_problems(imported, plan_before, rules))
    is_legal = all(item.kind is not MisfitKind.RULE for item in _serious(priced))
    if not is_legal or not allowed.issuperset(_rule_problems(imported, plan, rules)):
        return None
    new = next(item.strategy for item in after if item.worker is worker.worker)
    moved = tuple(a.worker for a, b in zip(after, before, strict=True) if a.strategy != b.strategy)
    return Change(
        workers=moved,
        field=field,
        before=shown_value(worker.strategy, field),
        after=shown_value(new, field),
        size=size,
        plan=plan,
        fits=_fits(plan, _texts(_serious(priced))),
    )


def shown_value(strategy: Strategy, field: str) -> str:
    """The value of a strategy's field as text."""
    value = getattr(strategy, field)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value.value)


def _neighbours(
    strategy: Strategy, max_tokens: int, fractions: Sequence[float], *, is_moe: bool
) -> Iterator[tuple[str, Strategy, float]]:
    """(field, strategy with one knob turned, size of the change); `fractions` are the shares that engines may have."""
    if isinstance(strategy, RolloutStrategy):
        yield from _engine_neighbours(strategy, fractions)
        return
    for name in _DEGREES:
        if name in ("ep", "etp") and not is_moe:
            continue
        value = getattr(strategy, name)
        for other in (value * 2, value // 2):
            moved = _with_degree(strategy, name, other) if other >= 1 else None
            if moved is not None:
                yield name, moved, 1.0
    for tokens in _budgets(strategy.micro_batch_tokens, max_tokens):
        size = abs(log2(tokens / strategy.micro_batch_tokens))
        yield "micro_batch_tokens", replace(strategy, micro_batch_tokens=tokens), size
    for tokens in _budgets(strategy.inference_tokens, max_tokens):
        yield (
            "inference_tokens",
            replace(strategy, inference_tokens=tokens),
            abs(log2(tokens / strategy.inference_tokens)),
        )
    levels = (Recompute.NONE, Recompute.SELECTIVE, Recompute.PARTIAL, Recompute.FULL)
    for recompute in levels:
        # How many layers a part may have depends on the model: other levels are within reach of one key.
        if recompute not in (strategy.recompute, Recompute.PARTIAL):
            steps = abs(levels.index(recompute) - levels.index(strategy.recompute))
            yield "recompute", replace(strategy, recompute=recompute, recompute_layers=0), float(steps)
    for offload in Offload:
        if offload is not strategy.offload:
            yield "offload", replace(strategy, offload=offload), 1.0
    if strategy.sharding in (Sharding.DDP, Sharding.ZERO1):
        other_sharding = Sharding.ZERO1 if strategy.sharding is Sharding.DDP else Sharding.DDP
        yield "sharding", replace(strategy, sharding=other_sharding), 1.0
    if strategy.sharding is Sharding.ZERO3:
        for ranks in _shard_ranks(strategy):
            yield "shard_ranks", replace(strategy, shard_ranks=ranks), abs(log2(ranks / strategy.shard_ranks))


def _shard_ranks(strategy: TrainerStrategy) -> list[int]:
    """Other numbers of ranks that share the states: half, twice as many, all."""
    whole = strategy.dp * strategy.cp
    other = dict.fromkeys((strategy.shard_ranks // 2, strategy.shard_ranks * 2, whole))
    return [ranks for ranks in other if 1 < ranks <= whole and whole % ranks == 0 and ranks != strategy.shard_ranks]


def _budgets(tokens: int, max_tokens: int) -> list[int]:
    """Other token budgets: larger ones, half, and one longest sequence."""
    other = dict.fromkeys((tokens * 2, tokens * 4, max(max_tokens, tokens // 2), max_tokens))
    return [value for value in other if value != tokens]


def _engine_neighbours(strategy: RolloutStrategy, fractions: Sequence[float]) -> Iterator[tuple[str, Strategy, float]]:
    for other in (strategy.tp * 2, strategy.tp // 2):
        if other >= 1 and strategy.num_gpus % (other * strategy.attention_dp * strategy.pp) == 0:
            ep = other * strategy.attention_dp if strategy.ep > 1 else 1
            yield "tp", replace(strategy, tp=other, ep=ep), 1.0
    for fraction in fractions:
        if abs(fraction - strategy.engine_fraction) > _SAME:
            size = abs(fraction - strategy.engine_fraction) / 0.1
            yield "engine_fraction", replace(strategy, engine_fraction=fraction), size
    for factor in (0.25, 0.5, 2, 4):
        seqs = round(strategy.max_num_seqs * factor)
        if 1 <= seqs <= _MAX_SEQS and seqs != strategy.max_num_seqs:
            yield "max_num_seqs", replace(strategy, max_num_seqs=seqs), abs(log2(factor))
    idle = EngineIdle.RESIDENT if strategy.idle is EngineIdle.SLEEP else EngineIdle.SLEEP
    yield "idle", replace(strategy, idle=idle), 1.0


def _with_degree(strategy: TrainerStrategy, name: str, value: int) -> TrainerStrategy | None:
    """A strategy with another degree, data parallelism taking up the difference; None where nothing divides."""
    degrees = {"tp": strategy.tp, "pp": strategy.pp, "cp": strategy.cp, "ep": strategy.ep, "etp": strategy.etp}
    degrees[name] = value
    moved = replace(
        strategy, tp=degrees["tp"], pp=degrees["pp"], cp=degrees["cp"], ep=degrees["ep"], etp=degrees["etp"]
    )
    if strategy.num_gpus % (moved.tp * moved.pp * moved.cp) or strategy.num_gpus % (moved.ep * moved.etp * moved.pp):
        return None
    ranks = moved.dp * moved.cp
    was_whole = strategy.shard_ranks == strategy.dp * strategy.cp
    return replace(moved, shard_ranks=ranks if was_whole else min(strategy.shard_ranks, ranks))


def _ranked(changes: tuple[Change, ...], plan: Plan, problems: Sequence[str]) -> tuple[Change, ...]:
    """Changes that make it fit, or that gain, best first; one per worker and knob."""
    fits = _fits(plan, problems)
    useful = [
        change
        for change in changes
        if change.fits and (not fits or change.time_s < plan.time_s * (1.0 - MIN_GAIN_RATIO))
    ]
    best: dict[tuple[tuple[WorkerName, ...], str], list[Change]] = {}
    for change in sorted(useful, key=lambda item: item.time_s):
        best.setdefault((change.workers, change.field), []).append(change)
    kept: dict[int, Change] = {}
    for group in best.values():
        kept[id(group[0])] = group[0]
        if not fits:
            smallest = min(group, key=lambda item: (item.size, item.time_s))
            kept[id(smallest)] = smallest
    ranked = sorted(kept.values(), key=lambda item: item.time_s)
    if fits or not ranked:
        return tuple(ranked[:MAX_CHANGES])
    smallest = min(ranked, key=lambda item: (item.size, len(item.workers), item.time_s))
    return (smallest, *[item for item in ranked if item is not smallest][: MAX_CHANGES - 1])


def assignment(change: Change, knobs: Sequence[Knob]) -> str:
    """What to write in the framework's configuration, `key=value`; empty where the importer names no key."""
    words: list[str] = []
    for name in change.workers:
        knob = next((item for item in knobs if item.worker is name and item.field == change.field), None)
        placement = next((item for item in change.plan.placements if item.worker is name), None)
        if knob is None or placement is None or placement.strategy is None:
            return ""
        words += knob.written(placement.strategy)
    return " ".join(dict.fromkeys(words))
