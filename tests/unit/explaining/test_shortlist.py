"""No plan takes less than the bound of any of its options: what the shortlist leaves out is in no plan as good."""

from dataclasses import replace

import numpy as np
import pytest

from planner.domain.plan import Limits
from planner.explaining.case import open_case
from planner.explaining.market import Forbidden, Market, Offer, Setting
from planner.explaining.shortlist import bounds_s
from planner.explaining.watch import Watch
from planner.files.catalog import load_overheads
from planner.pipeline import make_plan
from planner.search.problem import OptionTable
from tests.unit.explaining.cases import REQUESTS, case_of


def _assert_bounded(offer: Offer, num_gpus: dict[str, int]) -> None:
    tables = list(offer.part.problem.options)
    solution = offer.result.solution
    assert solution is not None
    bounds = bounds_s(tables, num_gpus, offer.part.inputs.graph, offer.part.inputs.execution)
    for choice in solution.choices:
        index, table = next((i, t) for i, t in enumerate(tables) if t.worker is choice.worker and t.pool == choice.pool)
        at = int(np.flatnonzero(table.row == choice.row)[0])
        assert bounds[index][at] <= solution.time_s * (1 + 1e-9), (choice, offer.part.inputs.execution)


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_plans_take_no_less_than_the_bounds_of_their_options(name: str) -> None:
    """Of many different plans: each has to do without one more of the options of the plan before."""
    case = case_of(name)
    market = Market(watch=Watch(600.0))
    num_gpus = {pool.name: pool.num_gpus for pool in case.cluster.pools}
    num_plans = 0
    for execution in case.executions:
        for worker in case.inputs.graph.workers:
            taken: list[int] = []
            for _ in range(6):
                forbidden = Forbidden(
                    worker=worker.name, allowed=lambda table, _, t=tuple(taken): ~np.isin(np.arange(len(table)), t)
                )
                offer = market.best(case.setting, forbidden=forbidden, executions=(execution,), shares=())
                if offer is None:
                    break
                _assert_bounded(offer, num_gpus)
                assert offer.result.solution is not None
                taken.append(offer.result.solution.choice(worker.name).row)
                num_plans += 1
    assert num_plans >= 12


def test_bounds_of_a_plan_with_little_room_are_near_its_time() -> None:
    """They would be of no use otherwise: the chosen options of colocated plans are bounded to a tenth."""
    case = case_of("dense")
    offer = case.market.best(case.setting)
    assert offer is not None and offer.result.solution is not None
    tables: list[OptionTable] = list(offer.part.problem.options)
    num_gpus = {pool.name: pool.num_gpus for pool in case.cluster.pools}
    bounds = bounds_s(tables, num_gpus, offer.part.inputs.graph, offer.part.inputs.execution)
    least = [float(bound.min()) for bound in bounds]
    assert max(least) > 0.8 * offer.score.time_s


def test_a_guess_changes_no_answer_and_saves_options() -> None:
    request = replace(REQUESTS["dense"], limits=Limits())
    case = open_case(make_plan(request), load_overheads())
    setting = Setting.of(case.request)
    free, guessed = case.market.best(setting), case.market.best(setting, (case.base,))
    assert free is not None and guessed is not None
    assert free.score == guessed.score
    num_free, num_guessed = (sum(len(t) for t in offer.part.problem.options) for offer in (free, guessed))
    assert num_guessed < num_free / 2
