"""The best plan of a changed request, as fast as it can be had: what everything costs is known once, for all questions.

A question about a plan changes one thing, so most of what it needs has been priced before: trainers cost the same
whatever memory is left over, engines whatever training takes. And a good plan is known, so that options which no plan
as good can have are dropped before anything is pruned (`planner.explaining.shortlist`). Where the guess was too good,
the search is repeated with a larger one, so that the answer is the optimum in any case (tested against planning from
scratch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.domain.execution import Execution
from planner.domain.framework import FrameworkRules
from planner.domain.framework_workload import for_workload
from planner.domain.hardware import Cluster, Pool
from planner.domain.overheads import Overheads
from planner.domain.plan import Limits, Objective, Status
from planner.domain.request import PlanRequest
from planner.domain.stages import StageKind, Worker, WorkerName
from planner.domain.strategy import BoolArray, StrategyTable
from planner.domain.workload import Workload
from planner.executions import permitted_executions
from planner.explaining.fewest import fewest_gpus, least_rollout_s
from planner.explaining.prices import PriceBook, held, is_complete, pruned
from planner.explaining.requests import as_run_by, exact, rules_of
from planner.explaining.score import Score, billed_rate, solution_score
from planner.explaining.shelf import BoundBook
from planner.explaining.shortlist import ROUNDING
from planner.explaining.splits import SplitShop
from planner.explaining.watch import Watch
from planner.parts import SearchPart, make_inputs, make_problem, reachable
from planner.search.options import take
from planner.search.pricing import (
    PricedWorker,
    PricingInputs,
    search_pool,
)
from planner.search.problem import OptionTable, SearchProblem
from planner.search.solve import SearchResult
from planner.search.structures import StructureFilter
from planner.solving import solve_parts
from planner.splitting import SHARES, may_split, without_fusions

Allowed = Callable[[StrategyTable, Pool], BoolArray]
"""The candidates that are left of a worker on a pool, shape (num_candidates,)."""


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
    prices: PriceBook = field(default_factory=PriceBook)
    _home: Setting | None = None
    _filters: dict[object, StructureFilter] = field(default_factory=dict)
    _split_shops: dict[Execution, SplitShop] = field(default_factory=dict)
    home_share: float = 0.5
    """The share of a second group of engines near which the best one is looked for first."""

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
        desk = Desk(self, setting, forbidden, keeps_memory=keeps_memory)
        asked = permitted_executions(setting.limits, desk.rules) if executions is None else executions
        for guess in dict.fromkeys(guesses):
            found = desk.best(asked, guess, shares, without_split=without_split)
            if found is not None:
                return found
        return None

    def knows(self, setting: Setting) -> None:
        """Makes a setting the one whose fitting candidates others need not exceed (`keeps_memory`)."""
        self._home = setting
        desk = Desk(self, setting, None, keeps_memory=False)
        for execution in permitted_executions(setting.limits, desk.rules):
            inputs = desk.inputs(execution)
            for worker in inputs.graph.workers:
                for pool in desk.cluster.pools:
                    desk.remember(worker, pool, inputs)

    def filter_of(self, problem: SearchProblem, inputs: PricingInputs, limits: Limits) -> StructureFilter | None:
        """The filter of a problem; the same object for the same rules, by which the search knows structures again."""
        if problem.structure_filter is None:
            return None
        key = (inputs.rules, inputs.workload, limits.must_share, limits.must_not_share)
        return self._filters.setdefault(key, problem.structure_filter)

    def split_shop(self, desk: Desk, execution: Execution) -> SplitShop:
        """The problems of a split rollout; the same ones for all questions about the plan's own setting."""
        limits = replace(desk.setting.limits, must_share=(), must_not_share=())
        if (
            not self.is_home(desk.setting)
            or self._home is None
            or limits != replace(self._home.limits, must_share=(), must_not_share=())
        ):
            return SplitShop(desk, execution)
        if execution not in self._split_shops:
            self._split_shops[execution] = SplitShop(desk, execution)
        return self._split_shops[execution]

    def is_home(self, setting: Setting) -> bool:
        """Whether a setting is the plan's own but for the limits: then the same tables are asked for again."""
        return self._home is not None and replace(setting, limits=self._home.limits) == self._home


@dataclass(slots=True)
class Desk:
    """One question to the market."""

    market: Market
    setting: Setting
    forbidden: Forbidden | None
    keeps_memory: bool
    rules: FrameworkRules | None = field(init=False)
    cluster: Cluster = field(init=False)
    workload: Workload = field(init=False)
    """As the framework runs it."""
    _inputs: dict[Execution, PricingInputs] = field(default_factory=dict)

    def __post_init__(self) -> None:
        limits = self.setting.limits
        rules = rules_of(limits)
        self.workload = as_run_by(self.setting.request(), rules).workload
        self.rules = None if rules is None else for_workload(rules, self.workload)
        self.cluster = reachable(self.setting.cluster, limits.max_gpus)

    def inputs(self, execution: Execution) -> PricingInputs:
        """What all workers have in common under an execution."""
        if execution not in self._inputs:
            limits, overheads = self.setting.limits, self.setting.overheads
            self._inputs[execution] = make_inputs(
                self.workload, self.cluster, self.rules, execution, limits.fixed, overheads
            )
        return self._inputs[execution]

    def best(
        self, executions: Sequence[Execution], guess: Score | None, shares: Sequence[float], *, without_split: bool
    ) -> Offer | None:
        """The best plan that is as good as `guess`."""
        found: Offer | None = None
        if without_split:
            parts = [part for e in executions if (part := self.part(e, guess)) is not None]
            found = self.solved(parts, guess)
        limits = self.setting.limits
        if shares and may_split(self.cluster, self.rules, self.workload, limits):
            split = self._best_split(executions, guess if found is None else found.score, shares)
            if split is not None and (found is None or split.score.key < found.score.key):
                found = split
        return found

    def _best_split(
        self, executions: Sequence[Execution], guess: Score | None, shares: Sequence[float]
    ) -> Offer | None:
        """The best plan with a split rollout, share by share; of no interest is what is worse than the best so far."""
        best: Offer | None = None
        near = self.market.home_share
        for execution in without_fusions(executions):
            shop = self.market.split_shop(self, execution)
            for share in sorted(shares, key=lambda value: abs(value - near)):
                limit = guess if best is None else best.score
                part = shop.part(self, share, guess, limit)
                found = None if part is None else self.solved([part], limit)
                if found is not None and (best is None or found.score.key < best.score.key):
                    best = found
        return best

    def solved(self, parts: Sequence[SearchPart], guess: Score | None) -> Offer | None:
        if not parts:
            return None
        setting, watch = self.setting, self.market.watch
        limits = replace(exact(setting.limits), time_limit_s=watch.left_s())
        beat = None if guess is None else float(np.nextafter(guess.value * (1.0 + ROUNDING), np.inf))
        part, result = solve_parts(parts, limits, beat=beat)
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
        kept = self.pruned(self._items(inputs, guess), inputs, guess)
        if not is_complete(kept, inputs):
            return None
        return SearchPart(inputs=inputs, priced=tuple(kept), problem=self.problem(kept, inputs))

    def problem(self, items: Sequence[PricedWorker], inputs: PricingInputs) -> SearchProblem:
        """The search problem of priced workers."""
        problem = make_problem(items, inputs, self.cluster, self.setting.limits)
        return replace(problem, structure_filter=self.market.filter_of(problem, inputs, self.setting.limits))

    def _items(self, inputs: PricingInputs, guess: Score | None) -> list[PricedWorker]:
        """All workers on all pools. Trainers that must be too slow are not priced, unless that will be asked again."""
        cutoff_s, pools = self.cutoff_s(guess), self.cluster.pools
        workers = [worker for worker in inputs.graph.workers if worker.kind is not StageKind.TRAINING]
        found = {(w.name, pool.name): self.item(w, pool, inputs) for w in workers for pool in pools}
        is_cut = np.isfinite(cutoff_s) and len(pools) == 1 and not self.market.is_home(self.setting)
        rollout_s = least_rollout_s([item.options for item in found.values()])
        for worker in inputs.graph.workers:
            for pool in pools if worker.kind is StageKind.TRAINING else ():
                fewest = fewest_gpus(worker, pool, inputs, rollout_s, cutoff_s) if is_cut else 0
                found[worker.name, pool.name] = self.item(worker, pool, inputs, fewest)
        return [found[worker.name, pool.name] for worker in inputs.graph.workers for pool in pools]

    def item(self, worker: Worker, pool: Pool, inputs: PricingInputs, fewest: int = 0) -> PricedWorker:
        """A worker on a pool, unpruned, on at least `fewest` GPUs."""
        options = self.options(worker, pool, inputs, fewest)
        return held(worker, pool, self.market.prices.candidates(worker, pool, inputs), options)

    def allowed(self, item: PricedWorker, name: WorkerName) -> PricedWorker:
        """The item, which stands for worker `name`, with the candidates that may be used."""
        if self.forbidden is None or name is not self.forbidden.worker:
            return item
        if item.worker.name is WorkerName.SECOND_ENGINE:
            # Done before its options were pruned.
            return item
        rows = self.forbidden.allowed(item.candidates, item.pool)[item.options.row]
        return replace(item, options=take(item.options, rows))

    def options(self, worker: Worker, pool: Pool, inputs: PricingInputs, fewest: int = 0) -> OptionTable:
        """Unpruned options that fit alone."""
        is_engine = worker.kind is StageKind.GENERATION
        known = None if is_engine or not self.keeps_memory else self.market.prices.fitting(worker, pool, inputs)
        table = self.market.prices.of(worker, pool, inputs, known, fewest)
        return self.market.prices.within(table, search_pool(pool, inputs))

    def remember(self, worker: Worker, pool: Pool, inputs: PricingInputs) -> None:
        if worker.kind is not StageKind.GENERATION:
            self.market.prices.remember(worker, pool, inputs, self.options(worker, pool, inputs))

    # ------------------------------------------------------------------------------------------ cutting

    def cutoff_s(self, guess: Score | None) -> float:
        limits = self.setting.limits
        cutoff_s = np.inf if limits.max_iteration_s is None else limits.max_iteration_s
        if guess is not None and limits.objective is Objective.TIME:
            cutoff_s = min(cutoff_s, guess.value)
        return float(cutoff_s)

    def pruned(self, items: Sequence[PricedWorker], inputs: PricingInputs, guess: Score | None) -> list[PricedWorker]:
        """The items with the options that may be good enough, are allowed, and that no other one beats."""
        if guess is None and not np.isfinite(self.cutoff_s(guess)):
            return [pruned(self.allowed(item, item.worker.name), inputs) for item in items]
        # What is forbidden only makes plans slower, so that all questions have these bounds in common, and with the
        # same guess whatever they leave of workers that may have all options.
        book = self.market.bounds.of(items, inputs, self.cluster, keep=self.market.is_home(self.setting))
        left = []
        for index, item in enumerate(items):
            key = (index, guess, self.cutoff_s(guess))
            is_whole = self.forbidden is None or item.worker.name is not self.forbidden.worker
            found = book.left.get(key) if is_whole else None
            if found is None:
                good = self.is_good_enough(item, book.bounds_s[index], guess)
                found = pruned(self.allowed(replace(item, options=take(item.options, good)), item.worker.name), inputs)
                if is_whole:
                    book.left[key] = found
            left.append(found)
        return left

    def is_good_enough(self, item: PricedWorker, bound_s: np.ndarray, guess: Score | None) -> BoolArray:
        limits = self.setting.limits
        good = bound_s <= self.cutoff_s(guess) * (1.0 + ROUNDING)
        if guess is not None and limits.objective is Objective.GPUS:
            good &= item.options.num_gpus <= guess.num_gpus
        if guess is not None and limits.objective is Objective.COST:
            rate = billed_rate(self.setting.cluster, item.pool, item.options.num_gpus)
            good &= rate * bound_s <= guess.value * (1.0 + ROUNDING)
        return np.asarray(good)
