"""A saved plan, opened again: its request, the search over all plans, and the plan itself as the cost model sees it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.assembly import Assembled, PlacedStrategy, assemble
from planner.domain.execution import Execution, ExecutionMode
from planner.domain.framework import FrameworkRules
from planner.domain.hardware import Cluster
from planner.domain.overheads import Overheads
from planner.domain.plan import Limits, Plan
from planner.domain.request import PlanRequest
from planner.domain.stages import WorkerName
from planner.domain.strategy import Strategy
from planner.domain.workload import Workload
from planner.errors import InfeasibleError
from planner.explaining.market import Market, Setting
from planner.explaining.requests import as_run_by, rules_of
from planner.explaining.score import Score, score_of, solution_score
from planner.explaining.watch import Watch
from planner.parts import make_inputs
from planner.placing import place
from planner.search.pricing import PricingInputs
from planner.solving import Outcome, search
from planner.splitting import may_split

OLD_LOGPROBS = "old log-probs"
"""The assumption with which a plan says that its execution or framework made this stage necessary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is explained. `base` is the plan in figures, priced again now."""

    plan: Plan
    request: PlanRequest
    rules: FrameworkRules | None
    placed: tuple[PlacedStrategy, ...]
    inputs: PricingInputs
    """Of the plan's execution."""
    assembled: Assembled
    base: Score
    optimum: Score
    """The best plan of the request, which may be better than the plan by the tolerance within which simpler ones are
    preferred."""
    is_found_again: bool
    """Whether the search finds exactly this plan."""
    executions: tuple[Execution, ...]
    """All that were searched, those of intermediate steps of staleness included; none of a split rollout."""
    market: Market

    @property
    def problems(self) -> tuple[str, ...]:
        """Capacities that the plan exceeds under this cost model; none unless another version made it."""
        return self.assembled.problems

    @property
    def cluster(self) -> Cluster:
        return self.plan.cluster

    @property
    def limits(self) -> Limits:
        return self.request.limits

    @property
    def setting(self) -> Setting:
        """The request as it is."""
        return Setting.of(self.request)

    @property
    def watch(self) -> Watch:
        return self.market.watch

    @property
    def used_gpus(self) -> dict[str, int]:
        """GPUs that the plan uses, by pool."""
        return _used_gpus(self.plan)

    @property
    def may_split(self) -> bool:
        """Whether the request leaves open that two groups of engines share the rollout."""
        return may_split(self.cluster, self.rules, self.request.workload, self.limits)

    def strategy(self, worker: WorkerName) -> Strategy:
        return next(item.strategy for item in self.placed if item.worker.name is worker)


def request_of(plan: Plan, overheads: Overheads) -> PlanRequest:
    """The request that a saved plan answers.

    Old log-probs that only an asynchronous execution or a framework made necessary are left to these again.
    """
    return PlanRequest(
        workload=own_workload(plan),
        cluster=plan.cluster,
        gpu_type_when_open=None,
        limits=plan.limits,
        assumptions=plan.assumptions,
        overheads=overheads,
    )


def own_workload(plan: Plan) -> Workload:
    """The workload of a plan as the user gave it."""
    if any(item.what == OLD_LOGPROBS for item in plan.assumptions):
        return replace(plan.workload, needs_old_logprob=False)
    return plan.workload


def open_case(plan: Plan, overheads: Overheads, watch: Watch | None = None) -> Case:
    """Searches the plan's space once more and prices the plan itself.

    One time limit holds for everything that is asked about the case: that of `watch`, or of the plan's request.
    Raises InfeasibleError where the search finds nothing, which can only happen to a plan of another version.
    """
    market = Market(watch=watch or Watch(plan.limits.time_limit_s), home_share=plan.execution.second_share_ratio or 0.5)
    rules = rules_of(plan.limits)
    request = request_of(plan, overheads)
    outcome = search(as_run_by(request, rules), plan.cluster, rules)
    if outcome.result.solution is None:
        raise InfeasibleError("this version of rlplan finds no plan for the request of the saved one")
    inputs = _inputs_of(plan, outcome, rules, overheads)
    placed = _placed(plan, inputs)
    assembled = assemble(placed, inputs, None)
    base = score_of(plan.limits.objective, plan.cluster, assembled.time_s, _used_gpus(plan))
    chosen = solution_score(plan.limits.objective, plan.cluster, outcome.result.solution)
    return Case(
        plan=plan,
        request=request,
        rules=rules,
        placed=placed,
        inputs=inputs,
        assembled=assembled,
        base=base,
        optimum=_optimum(market, Setting.of(request), chosen),
        is_found_again=_is_same(placed, outcome, plan.cluster, plan.execution),
        executions=tuple(dict.fromkeys(replace(e, second_share_ratio=0.0) for e in _executions(outcome))),
        market=market,
    )


def _executions(outcome: Outcome) -> Iterator[Execution]:
    # A split rollout is fused with nothing, so that its execution is no other one than that of the plan without.
    yield from (part.inputs.execution for part in outcome.parts if not part.inputs.execution.is_split)


def _optimum(market: Market, setting: Setting, chosen: Score) -> Score:
    """The best of all that is searched, without the preference for simpler plans."""
    market.watch.asked("the optimum", lambda: market.knows(setting))
    best = market.watch.asked("the optimum", lambda: market.best(setting, (chosen,)))
    return chosen if best is None else min(chosen, best.score, key=lambda score: score.key)


def _inputs_of(plan: Plan, outcome: Outcome, rules: FrameworkRules | None, overheads: Overheads) -> PricingInputs:
    """Of the plan's execution. A plan without fusion may come from a search with it, so fusions are not compared."""
    for part in (outcome.chosen, *outcome.parts):
        execution = part.inputs.execution
        if replace(execution, fusions=()) == replace(plan.execution, fusions=()):
            return replace(part.inputs, execution=plan.execution)
    return make_inputs(plan.workload, plan.cluster, rules, plan.execution, plan.limits.fixed, overheads)


def _placed(plan: Plan, inputs: PricingInputs) -> tuple[PlacedStrategy, ...]:
    groups = {group.id: group for group in plan.device_groups}
    found: dict[WorkerName, PlacedStrategy] = {}
    for item in plan.placements:
        if item.worker is not None and item.strategy is not None:
            group = groups[item.device_group]
            found[item.worker] = PlacedStrategy(
                worker=inputs.graph.worker(item.worker),
                pool=plan.cluster.pool(group.pool),
                group=group,
                strategy=item.strategy,
            )
    # In the order of the graph, so that everything below reads the same for every plan.
    return tuple(found[worker.name] for worker in inputs.graph.workers if worker.name in found)


def _used_gpus(plan: Plan) -> dict[str, int]:
    used: dict[str, set[int]] = {}
    for group in plan.device_groups:
        used.setdefault(group.pool, set()).update(group.ranks)
    return {pool: len(ranks) for pool, ranks in sorted(used.items())}


def _is_same(placed: tuple[PlacedStrategy, ...], outcome: Outcome, cluster: Cluster, execution: Execution) -> bool:
    solution = outcome.result.solution
    if solution is None or _overlap(solution.execution) != _overlap(execution):
        return False
    again = place(solution, outcome.priced, cluster)
    return _places(again) == _places(placed)


def _overlap(execution: Execution) -> tuple[ExecutionMode, int]:
    return execution.mode, execution.staleness


def _places(placed: tuple[PlacedStrategy, ...]) -> set[tuple[WorkerName, str, range, Strategy]]:
    return {(item.worker.name, item.group.pool, item.group.ranks, item.strategy) for item in placed}
