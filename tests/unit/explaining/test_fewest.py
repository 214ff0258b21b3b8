"""Trainers that are not priced at all could not have been fast enough."""

import numpy as np
import pytest

from planner.domain.stages import StageKind
from planner.explaining.fewest import NONE_SUFFICES, fewest_gpus, least_rollout_s
from planner.explaining.market import Desk
from tests.unit.explaining.cases import case_of


@pytest.mark.parametrize("name", ["dense", "moe", "ppo", "asynchronous", "verl"])
def test_no_option_on_fewer_gpus_is_fast_enough(name: str) -> None:
    case = case_of(name)
    desk = Desk(case.market, case.setting, None, keeps_memory=True)
    pool = desk.cluster.pools[0]
    checked = 0
    for execution in case.executions:
        inputs = desk.inputs(execution)
        tables = {worker.name: desk.item(worker, pool, inputs).options for worker in inputs.graph.workers}
        rollout_s = least_rollout_s(list(tables.values()))
        assert rollout_s > 0.0
        for worker in inputs.graph.workers:
            if worker.kind is not StageKind.TRAINING:
                continue
            table = tables[worker.name]
            # What an iteration takes at least: all of an asynchronous trainer, or the rollout and the update.
            own_s = table.stage_time_s.sum(axis=0) if execution.is_asynchronous else table.stage_time_s[-1] + rollout_s
            for size in np.unique(table.num_gpus):
                best_s = float(own_s[table.num_gpus == size].min())
                assert fewest_gpus(worker, pool, inputs, rollout_s, best_s) <= size
                checked += 1
            assert fewest_gpus(worker, pool, inputs, rollout_s, case.base.time_s) <= pool.num_gpus
            if not execution.is_asynchronous:
                assert fewest_gpus(worker, pool, inputs, rollout_s, rollout_s * 0.99) == NONE_SUFFICES
    assert checked >= 2
