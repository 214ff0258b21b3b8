"""The best plan of a changed request, as fast as it can be had: what everything costs is known once, for all questions.

A question about a plan changes one thing, so most of what it needs has been priced before: trainers cost the same
whatever memory is left over, engines whatever training takes. And a good plan is known, so that options which no plan
as good can have are dropped before anything is pruned (`planner.explaining.shortlist`). Where the guess was too good,
the search is repeated with a larger one, so that the answer is the optimum in any case (tested against planning from
scratch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.cost.jobs import engine_job, trainer_job
from planner.domain.execution import Execution, ExecutionMode
from planner.domain.framework import FrameworkRules
from planner.domain.framework_workload import for_workload
from planner.domain.hardware import Cluster, Pool
from planner.domain.overheads import Overheads
from planner.domain.plan import Limits, Objective, Status
from planner.domain.request import PlanRequest
from planner.domain.stages import ROLLOUT_ENGINES, StageKind, Worker, WorkerName
from planner.domain.strategy import BoolArray, FloatArray, StrategyTable
from planner.domain.workload import Workload
from planner.executions import permitted_executions
from planner.explaining.requests import as_run_by, exact, rules_of
from planner.explaining.score import Score, billed_rate, solution_score
from planner.explaining.shelf import BoundBook, Same, Shelf
from planner.explaining.watch import Watch
from planner.parts import SearchPart, make_inputs, make_problem, reachable
from planner.search import mesh
from planner.search.candidates import chunks
from planner.search.options import build_options, merge, prune, prune_within, take
from planner.search.pricing import (
    PricedWorker,
    PricingInputs,
    as_second_engine,
    candidates_of,
    cross_pool_sync,
    price_table,
    search_pool,
    site_of,
)
from planner.search.problem import SLACK_BYTES, OptionTable, SearchPool
from planner.search.solve import SearchResult
from planner.search.timing import moments_of
from planner.solving import solve_parts
from planner.splitting import SHARES, may_split, rest_s, tables_below, without_fusions

Allowed = Callable[[StrategyTable, Pool], BoolArray]
"""The candidates that are left of a worker on a pool, shape (num_candidates,)."""
ROUNDING = 1e-9
"""Sums of seconds are added in another order than those of the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything that a plan depends on."""

    workload: Workload
    cluster: Cluster
    overheads: Overheads
    limits: Limits

    @classmethod
    def of(cls, request: PlanRequest) -> Setting:
        assert request.cluster is not None and request.overheads is not None
        return cls(
            workload=request.workload, cluster=request.cluster, overheads=request.overheads, limits=request.limits
        )

    def request(self) -> PlanRequest:
        return PlanRequest(
            workload=self.workload, cluster=self.cluster, gpu_type_when_open=None, limits=self.limits, assumptions=(),
            overheads=self.overheads,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Forbidden:
    """A worker that may only have some of its candidates."""

    worker: WorkerName
    allowed: Allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The best plan of a setting, and the part of the search that it is from."""

    part: SearchPart
    result: SearchResult
    score: Score


@dataclass(slots=True)
class Market:
    """Candidates and prices of one explanation."""

    watch: Watch
    bounds: BoundBook = field(default_factory=BoundBook)
    _candidates: dict[tuple[object, ...], StrategyTable] = field(default_factory=dict)
    _prices: Shelf = field(default_factory=Shelf)
    _within: Shelf = field(default_factory=Shelf)
    _fitting: dict[tuple[object, ...], OptionTable] = field(default_factory=dict)
    """What fits in the plan's own setting, by candidates."""

    def best(
        self,
        setting: Setting,
        guesses: Sequence[Score | None] = (None,),
        *,
        forbidden: Forbidden | None = None,
        executions: Sequence[Execution] | None = None,
        shares: Sequence[float] = SHARES,
        without_split: bool = True,
        keeps_memory: bool = False,
    ) -> Offer | None:
        """The best plan; None where nothing fits, or nothing is as good as the last of `guesses`.

        `guesses` are scores that a plan is expected to reach, the best first; None stands for any plan. `executions`
        and `shares` of a split rollout may be less than what the limits permit, `without_split=False` leaves out
        plans that are not split. `keeps_memory` says that GPU memory, host RAM, candidates and what trainers hold are
        those of the plan's own setting, so that what did not fit there need not be priced. Raises TimeIsUpError when
        the time of the explanation is over.
        """
        desk = _Desk(self, setting, forbidden, keeps_memory=keeps_memory)
        asked = permitted_executions(setting.limits, desk.rules) if executions is None else executions
        for guess in dict.fromkeys(guesses):
            found = desk.best(asked, guess, shares, without_split=without_split)
            if found is not None:
                return found
        return None

    def knows(self, setting: Setting) -> None:
        """Makes a setting the one whose fitting candidates others need not exceed (`keeps_memory`)."""
        desk = _Desk(self, setting, None, keeps_memory=False)
        for execution in permitted_executions(setting.limits, desk.rules):
            inputs = desk.inputs(execution)
            for worker in inputs.graph.workers:
                for pool in desk.cluster.pools:
                    desk.remember(worker, pool, inputs)

    def candidates(self, worker: Worker, pool: Pool, inputs: PricingInputs) -> StrategyTable:
        """All legal candidates of a worker, enumerated once."""
        key = _candidate_key(worker, pool, inputs)
        if key not in self._candidates:
            self._candidates[key] = candidates_of(worker, pool, inputs)
        return self._candidates[key]

    def fitting(self, worker: Worker, pool: Pool, inputs: PricingInputs) -> OptionTable | None:
        """The options that fit in the plan's own setting, where it has these candidates."""
        return self._fitting.get(_candidate_key(worker, pool, inputs))

    def remember(self, worker: Worker, pool: Pool, inputs: PricingInputs, options: OptionTable) -> None:
        self._fitting[_candidate_key(worker, pool, inputs)] = options

    def prices(self, worker: Worker, pool: Pool, inputs: PricingInputs, rows: OptionTable | None) -> OptionTable:
        """Unpruned options whatever memory there is; `row` indexes the candidates. `rows` restricts them to the
        candidates of other options."""
        price = _price_key(worker, pool, inputs)
        known = self._prices.get((price, True)) or self._prices.get((price, rows is None))
        if known is None:
            table = self.candidates(worker, pool, inputs)
            known = priced(worker, pool, inputs, table, None if rows is None else rows.row)
            self._prices.put((price, rows is None), known)
        return known

    def within(self, table: OptionTable, pool: SearchPool) -> OptionTable:
        """The options that fit alone on the GPUs of a pool; the same table for the same question."""
        key = (Same(table), pool)
        known = self._within.get(key)
        if known is None:
            fits = (
                (np.maximum(table.active_bytes, table.sync_bytes) <= pool.usable_bytes + SLACK_BYTES)
                & (table.host_bytes <= pool.host_ram_bytes + SLACK_BYTES)
                & (table.num_gpus <= pool.num_gpus)
            )  # fmt: skip
            known = take(table, fits)
            self._within.put(key, known)
        return known


@dataclass(slots=True)
class _Desk:
    """One question to the market."""

    market: Market
    setting: Setting
    forbidden: Forbidden | None
    keeps_memory: bool
    rules: FrameworkRules | None = field(init=False)
    cluster: Cluster = field(init=False)
    workload: Workload = field(init=False)
    """As the framework runs it."""

    def __post_init__(self) -> None:
        limits = self.setting.limits
        rules = rules_of(limits)
        self.workload = as_run_by(self.setting.request(), rules).workload
        self.rules = None if rules is None else for_workload(rules, self.workload)
        self.cluster = reachable(self.setting.cluster, limits.max_gpus)

    def inputs(self, execution: Execution) -> PricingInputs:
        setting = self.setting
        return make_inputs(self.workload, self.cluster, self.rules, execution, setting.limits.fixed, setting.overheads)

    def best(
        self, executions: Sequence[Execution], guess: Score | None, shares: Sequence[float], *, without_split: bool
    ) -> Offer | None:
        """The best plan that is as good as `guess`."""
        found: Offer | None = None
        if without_split:
            parts = [part for e in executions if (part := self.part(e, guess)) is not None]
            found = self._solved(parts, guess)
        limits = self.setting.limits
        if shares and may_split(self.cluster, self.rules, self.workload, limits):
            best = guess if found is None else found.score
            plain = without_fusions(executions)
            split = self._solved([part for e in plain for part in self.split_parts(e, best, shares)], best)
            if split is not None and (found is None or split.score.key < found.score.key):
                found = split
        return found

    def _solved(self, parts: Sequence[SearchPart], guess: Score | None) -> Offer | None:
        if not parts:
            return None
        setting, watch = self.setting, self.market.watch
        limits = replace(exact(setting.limits), time_limit_s=watch.left_s())
        beat = None if guess is None else float(np.nextafter(guess.value * (1.0 + ROUNDING), np.inf))
        part, result = solve_parts(parts, self.rules, limits, beat=beat)
        if result.status in (Status.FEASIBLE, Status.UNKNOWN):
            watch.over()
        if result.solution is None:
            return None
        score = solution_score(setting.limits.objective, setting.cluster, result.solution)
        return Offer(part=part, result=result, score=score)

    # ------------------------------------------------------------------------------------------ parts

    def part(self, execution: Execution, guess: Score | None) -> SearchPart | None:
        """The search problem of one execution; None where some worker has no option that is good enough."""
        inputs = self.inputs(execution)
        items = [self._item(worker, pool, inputs) for worker in inputs.graph.workers for pool in self.cluster.pools]
        kept = self._pruned(items, inputs, guess)
        if not _is_complete(kept, inputs):
            return None
        problem = make_problem(kept, inputs, self.cluster, self.setting.limits)
        return SearchPart(inputs=inputs, priced=tuple(kept), problem=problem)

    def split_parts(self, execution: Execution, guess: Score | None, shares: Sequence[float]) -> Iterator[SearchPart]:
        """The search problem of every share of a split rollout that may be good enough."""
        cutoff_s = self._cutoff_s(guess)
        inputs = self.inputs(execution)
        others = [
            self._item(worker, pool, inputs)
            for worker in inputs.graph.workers
            if worker.name is not WorkerName.ROLLOUT_ENGINE
            for pool in self.cluster.pools
        ]
        trainer_s = rest_s([item.options for item in others])
        spare_s = cutoff_s if execution.is_asynchronous else cutoff_s - trainer_s
        if trainer_s > cutoff_s:
            return
        most = {pool.name: self._largest_share(execution, pool, spare_s) for pool in self.cluster.pools}
        problem = None
        for share in shares:
            if not any(1.0 - share <= most[one] and share <= most[two] for one in most for two in most if one != two):
                continue
            split = replace(execution, second_share_ratio=share)
            inputs = self.inputs(split)
            engines = [self._engine(name, pool, inputs) for name in ROLLOUT_ENGINES for pool in self.cluster.pools]
            kept = self._pruned([*self._on_useful_pools(engines, trainer_s, split, cutoff_s), *others], inputs, guess)
            if not _is_complete(kept, inputs):
                continue
            if problem is None:
                problem = make_problem(kept, inputs, self.cluster, self.setting.limits)
            # One structure filter for all, so that the search knows that they have the same structures.
            mine = replace(problem, graph=inputs.graph, options=tuple(item.options for item in kept), execution=split)
            yield SearchPart(inputs=inputs, priced=tuple(kept), problem=mine)

    def _on_useful_pools(
        self, engines: Sequence[PricedWorker], trainer_s: float, execution: Execution, cutoff_s: float
    ) -> list[PricedWorker]:
        first, second = ([item for item in engines if item.worker.name is name] for name in ROLLOUT_ENGINES)
        left = tables_below(
            [item.options for item in first],
            [item.options for item in second],
            trainer_s,
            execution,
            float(np.nextafter(cutoff_s * (1.0 + ROUNDING), np.inf)),
        )
        return [item for item in engines if any(item.options is table for table in left.tables)]

    def _largest_share(self, execution: Execution, pool: Pool, spare_s: float) -> float:
        """The largest share of the responses that engines of a pool can generate in `spare_s` seconds; 0 if none.

        Fewer responses never take longer.
        """
        if not np.isfinite(spare_s):
            return 1.0
        low, high = 0, len(SHARES) + 1
        while high - low > 1:
            middle = (low + high) // 2
            split = replace(execution, second_share_ratio=1.0 - SHARES[middle - 1])
            inputs = self.inputs(split)
            table = self._options(inputs.graph.worker(WorkerName.ROLLOUT_ENGINE), pool, inputs)
            least_s = float(np.min(table.stage_time_s.sum(axis=0), initial=np.inf))
            low, high = (middle, high) if least_s <= spare_s * (1.0 + ROUNDING) else (low, middle)
        return SHARES[low - 1] if low else 0.0

    def _engine(self, name: WorkerName, pool: Pool, inputs: PricingInputs) -> PricedWorker:
        """A group of engines with its share; the second one costs what the first would with that share."""
        if name is WorkerName.ROLLOUT_ENGINE:
            return self._item(inputs.graph.worker(name), pool, inputs)
        share = inputs.execution.second_share_ratio
        mirrored = self.inputs(replace(inputs.execution, second_share_ratio=1.0 - share))
        first = mirrored.graph.worker(WorkerName.ROLLOUT_ENGINE)
        item = _held(first, pool, self.market.candidates(first, pool, mirrored), self._options(first, pool, mirrored))
        return as_second_engine(self._allowed(item, name), inputs.graph.worker(name))

    def _item(self, worker: Worker, pool: Pool, inputs: PricingInputs) -> PricedWorker:
        options = self._options(worker, pool, inputs)
        return _held(worker, pool, self.market.candidates(worker, pool, inputs), options)

    def _allowed(self, item: PricedWorker, name: WorkerName) -> PricedWorker:
        """The item, which stands for worker `name`, with the candidates that may be used."""
        if self.forbidden is None or name is not self.forbidden.worker:
            return item
        if item.worker.name is WorkerName.SECOND_ENGINE:
            # Done before its options were pruned.
            return item
        rows = self.forbidden.allowed(item.candidates, item.pool)[item.options.row]
        return replace(item, options=take(item.options, rows))

    def _options(self, worker: Worker, pool: Pool, inputs: PricingInputs) -> OptionTable:
        """Unpruned options that fit alone."""
        is_engine = worker.kind is StageKind.GENERATION
        known = None if is_engine or not self.keeps_memory else self.market.fitting(worker, pool, inputs)
        table = self.market.prices(worker, pool, inputs, known)
        if known is not None and len(table) == len(known):
            return table
        return self.market.within(table, search_pool(pool, inputs))

    def remember(self, worker: Worker, pool: Pool, inputs: PricingInputs) -> None:
        if worker.kind is not StageKind.GENERATION:
            self.market.remember(worker, pool, inputs, self._options(worker, pool, inputs))

    # ------------------------------------------------------------------------------------------ cutting

    def _cutoff_s(self, guess: Score | None) -> float:
        limits = self.setting.limits
        cutoff_s = np.inf if limits.max_iteration_s is None else limits.max_iteration_s
        if guess is not None and limits.objective is Objective.TIME:
            cutoff_s = min(cutoff_s, guess.value)
        return float(cutoff_s)

    def _pruned(self, items: Sequence[PricedWorker], inputs: PricingInputs, guess: Score | None) -> list[PricedWorker]:
        """The items with the options that may be good enough, are allowed, and that no other one beats."""
        bounds = self.market.bounds
        is_cut = guess is not None or np.isfinite(self._cutoff_s(guess))
        if is_cut:
            # What is forbidden only makes plans slower, so that all questions have these bounds in common.
            found = bounds.of(items, inputs, self.cluster)
            items = [self._cut(item, bound, guess) for item, bound in zip(items, found, strict=True)]
        if self.forbidden is not None:
            items = [self._allowed(item, item.worker.name) for item in items]
            if is_cut:
                found = bounds.anew(items, inputs, self.cluster)
                items = [self._cut(item, bound, guess) for item, bound in zip(items, found, strict=True)]
        return [pruned(item, inputs) for item in items]

    def _cut(self, item: PricedWorker, bound_s: FloatArray, guess: Score | None) -> PricedWorker:
        return replace(item, options=take(item.options, self._is_good_enough(item, bound_s, guess)))

    def _is_good_enough(self, item: PricedWorker, bound_s: np.ndarray, guess: Score | None) -> BoolArray:
        limits = self.setting.limits
        good = bound_s <= self._cutoff_s(guess) * (1.0 + ROUNDING)
        if guess is not None and limits.objective is Objective.GPUS:
            good &= item.options.num_gpus <= guess.num_gpus
        if guess is not None and limits.objective is Objective.COST:
            rate = billed_rate(self.setting.cluster, item.pool, item.options.num_gpus)
            good &= rate * bound_s <= guess.value * (1.0 + ROUNDING)
        return np.asarray(good)


def pruned(item: PricedWorker, inputs: PricingInputs) -> PricedWorker:
    """The worker with those of its options that no other beats; within a mesh where degrees are coupled."""
    if item.worker.name is WorkerName.SECOND_ENGINE:
        return item
    options = item.options
    keys = {} if inputs.rules is None else mesh.option_keys(inputs.rules, (item,), with_vpp=True)
    key = keys.get((item.worker.name, item.pool.name))
    if key is None:
        return replace(item, options=prune(options, across_sizes=inputs.across_sizes))
    return replace(item, options=prune_within(options, key, across_sizes=inputs.across_sizes))


def _held(worker: Worker, pool: Pool, candidates: StrategyTable, options: OptionTable) -> PricedWorker:
    return PricedWorker(
        worker=worker, pool=pool, candidates=candidates, num_candidates=len(candidates), options=options, rejected=(),
    )  # fmt: skip


def _is_complete(items: Sequence[PricedWorker], inputs: PricingInputs) -> bool:
    able = {item.worker.name for item in items if len(item.options)}
    return all(worker.name in able for worker in inputs.graph.workers)


def priced(
    worker: Worker, pool: Pool, inputs: PricingInputs, table: StrategyTable, rows: np.ndarray | None
) -> OptionTable:
    """The candidates of some rows (None: all) that can run, whatever memory there is; nothing is pruned."""
    chosen = np.arange(len(table)) if rows is None else rows
    space = replace(search_pool(pool, inputs), usable_bytes=np.inf, host_ram_bytes=np.inf)
    tables = []
    for some in chunks(max(len(chosen), 1)):
        chunk = table.take(chosen[some])
        options, _ = build_options(
            price_table(worker, chunk, site_of(pool, inputs), inputs),
            space,
            cross_pool_sync=cross_pool_sync(worker, pool, chunk, inputs),
            whole_groups=not inputs.across_sizes,
            moments=moments_of(inputs.execution, worker),
            num_sequences=inputs.workload.num_samples,
        )
        tables.append(replace(options, row=chosen[some][options.row]))
    return merge(tables)


# ---------------------------------------------------------------------------------------------- what depends on what


def _candidate_key(worker: Worker, pool: Pool, inputs: PricingInputs) -> tuple[object, ...]:
    """Everything that decides which candidates are legal."""
    workload, execution = inputs.workload, inputs.execution
    is_engine = worker.kind is StageKind.GENERATION
    share = execution.share_ratio(worker.name) if worker.name in ROLLOUT_ENGINES else 1.0
    return (
        worker,
        pool.name,
        pool.num_nodes,
        pool.node.gpu.id,
        pool.node.gpus_per_node,
        pool.node.scale_up_domain_gpus,
        inputs.rules,
        inputs.across_sizes,
        tuple(item for item in inputs.fixed if item.worker is worker.name),
        (workload.max_tokens, workload.num_samples, workload.num_generated, workload.num_optimizer_steps),
        (workload.memory_margin_ratio, share, execution.is_asynchronous) if is_engine else None,
    )


def _price_key(worker: Worker, pool: Pool, inputs: PricingInputs) -> tuple[object, ...]:
    """Everything that decides what a candidate costs: trainers do not see how much memory there is, engines not what
    training takes."""
    workload, execution, node = inputs.workload, inputs.execution, pool.node
    losses = inputs.overheads.step_losses
    shared = (
        _candidate_key(worker, pool, inputs),
        moments_of(execution, worker),
        (inputs.cross_pool_bytes_per_s, inputs.cross_pool_total_bytes_per_s),
        (workload.num_samples, workload.num_generated),
    )
    if worker.kind is StageKind.GENERATION:
        losses = replace(losses, training_ratio=1.0, moe_training_ratio=1.0)
        streams = execution.mode is ExecutionMode.STREAMING
        return (
            *shared,
            engine_job(workload, worker, execution),
            node,
            workload.memory_margin_ratio,
            execution.staleness if streams else None,
            replace(inputs.overheads, step_losses=losses),
        )
    losses = replace(losses, rollout_ratio=1.0)
    return (
        *shared,
        trainer_job(workload, inputs.graph, worker, execution),
        replace(node, host_ram_bytes=0.0, gpu=replace(node.gpu, memory_bytes=0.0)),
        replace(inputs.overheads, step_losses=losses),
    )
