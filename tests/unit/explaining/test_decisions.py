"""Every price of a decision is that of an independent plan in which this one decision is forced."""

from dataclasses import replace

import pytest

from planner.domain.fixed import FixedField
from planner.domain.plan import Limits
from planner.domain.stages import WorkerName
from planner.explaining.alone import value_of
from planner.explaining.case import Case, open_case
from planner.explaining.decisions import APART, GROUPS, ITERATIONS, Decision, decide, fields_of
from planner.files.catalog import load_overheads
from planner.pipeline import estimate, make_plan
from planner.whatif import fixed_workers
from tests.unit.explaining.cases import REQUESTS, case_of, decisions_of, plan_of, planned

NAMES = ("dense", "moe", "ppo", "asynchronous", "verl")


def _forced(decision: Decision, limits: Limits) -> Limits | None:
    """Limits under which a plan must have what the rival of a decision has; None where no limit says that."""
    assert decision.rival is not None
    value = decision.rival.value
    if decision.subject == GROUPS:
        first, second = (WorkerName(name) for name in decision.what.split(" and "))
        if value == APART:
            return replace(limits, must_not_share=((first, second),))
        return replace(limits, must_share=((first, second),))
    if decision.subject == ITERATIONS:
        return replace(limits, fusions=()) if decision.what == "fusion" else None
    fixed = FixedField(worker=WorkerName(decision.subject), field=decision.what, value=value)
    return replace(limits, fixed=(fixed,))


@pytest.mark.parametrize("name", NAMES)
def test_prices_are_those_of_plans_with_the_decision_forced(name: str) -> None:
    case = case_of(name)
    decisions = [item for item in decisions_of(name) if item.rival is not None]
    assert {item.subject for item in decisions} >= {worker.name.value for worker in case.inputs.graph.workers}
    # All of them would take too long: another part for every plan.
    checked = 0
    for item in decisions[NAMES.index(name) :: len(NAMES)]:
        limits = _forced(item, case.limits)
        if limits is None:
            continue
        solution = planned(replace(REQUESTS[name], limits=limits))
        assert solution is not None and item.rival is not None, item
        assert item.rival.score.time_s == pytest.approx(solution.time_s, rel=1e-9), item
        checked += 1
    assert checked >= 3


def test_the_rival_is_the_best_of_all_other_values() -> None:
    case = case_of("dense")
    trainer = WorkerName.ACTOR_TRAINER
    found = {item.what: item for item in decisions_of("dense") if item.subject == trainer.value}
    for field, values in (("tp", ("1", "2", "4", "8")), ("offload", ("none", "state-swap", "cpu-optimizer"))):
        item = found[field]
        times = {}
        for value in values:
            if value != item.value:
                fixed = FixedField(worker=trainer, field=field, value=value)
                solution = planned(replace(REQUESTS["dense"], limits=replace(case.limits, fixed=(fixed,))))
                times[value] = float("inf") if solution is None else solution.time_s
        assert item.rival is not None
        assert item.rival.score.time_s <= min(times.values()) * (1 + 1e-9)
        assert times.get(item.rival.value, item.rival.score.time_s) == pytest.approx(item.rival.score.time_s)


def test_staleness_and_mode_are_those_of_other_permissions() -> None:
    case = case_of("asynchronous")
    found = {item.what: item for item in decisions_of("asynchronous") if item.subject == ITERATIONS}
    if case.plan.execution.is_asynchronous:
        best = min(
            solution.time_s
            for limits in (Limits(), Limits(max_staleness=1, allow_partial_rollouts=True))
            if (solution := planned(replace(REQUESTS["asynchronous"], limits=limits))) is not None
        )
        rival = found["staleness"].rival
        assert rival is not None and rival.value != str(case.plan.execution.staleness)
        assert rival.score.time_s >= best * (1 - 1e-9)


@pytest.mark.parametrize("name", ["dense", "asynchronous"])
def test_alone_means_that_nothing_else_is_changed(name: str) -> None:
    """The seconds are those of `rlplan estimate` for the plan with one field, and what follows from it, replaced."""
    plan = plan_of(name)
    for item in decisions_of(name):
        if item.rival is None or item.rival.equal_s is None or item.what != "max_num_seqs":
            continue
        workers = tuple(
            replace(w, strategy=replace(w.strategy, max_num_seqs=int(item.rival.value)))  # type: ignore[call-arg]
            if w.worker.value == item.subject
            else w
            for w in fixed_workers(plan)
        )
        priced = estimate(REQUESTS[name], workers, plan.execution)
        assert priced.time_s == pytest.approx(item.rival.equal_s, rel=1e-9)
        return
    pytest.fail("no decision on the number of sequences")


def test_what_grows_is_on_the_longest_path_and_grows() -> None:
    for item in decisions_of("dense"):
        if item.rival is not None and item.rival.growth is not None:
            assert item.rival.growth.extra_s > 0
            assert item.rival.growth.resource
    assert any(item.rival is not None and item.rival.growth is not None for item in decisions_of("dense"))


def test_what_the_user_fixed_is_no_decision() -> None:
    limits = Limits(fixed=(FixedField(worker=WorkerName.ACTOR_TRAINER, field="tp", value="2"),))
    case = open_case(make_plan(replace(REQUESTS["dense"], limits=limits)), load_overheads())
    item = next(d for d in decide(case) if d.subject == WorkerName.ACTOR_TRAINER.value and d.what == "tp")
    assert item.value == "2" and item.rival is None and item.reason == "fixed by the user"


def test_values_are_written_as_fix_reads_them() -> None:
    case: Case = case_of("dense")
    for worker in case.inputs.graph.workers:
        strategy = case.strategy(worker.name)
        table = case.market.prices.candidates(worker, case.cluster.pools[0], case.inputs)
        for field in fields_of(worker):
            fixed = FixedField(worker=worker.name, field=field, value=value_of(strategy, field))
            rows = fixed.allows(table)
            assert any(table.row(int(row)) == strategy for row in rows.nonzero()[0])
