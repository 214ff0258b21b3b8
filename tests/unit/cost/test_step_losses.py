"""Losses inside RL steps scale work, not host terms, and add the controller's seconds once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.step_losses import with_step_losses
from planner.cost.worker import Site, WorkerCosts
from planner.domain.overheads import StepLosses
from planner.domain.stages import StageName
from planner.domain.strategy import Offload
from tests.unit.cost.trainer_cases import price, site, stage_seconds, strategy, time_term

NEUTRAL = StepLosses()


def losing(losses: StepLosses) -> Site:
    base = site()
    return replace(base, overheads=replace(base.overheads, step_losses=losses))


def lost(costs: WorkerCosts, losses: StepLosses, sequences: float = 1000.0) -> WorkerCosts:
    return with_step_losses(costs, losing(losses), sequences)


def test_the_defaults_lose_nothing() -> None:
    costs = price(strategy(offload=Offload.STATE_SWAP))
    same = lost(costs, NEUTRAL)
    for stage in (StageName.ACTOR_UPDATE, StageName.OLD_LOGPROB):
        assert stage_seconds(same, stage) == pytest.approx(stage_seconds(costs, stage))


def test_the_training_factor_scales_work_but_no_host_term() -> None:
    costs = price(strategy(offload=Offload.STATE_SWAP))
    slow = lost(costs, replace(NEUTRAL, training_ratio=1.5))
    assert time_term(slow, "gemm") == pytest.approx(1.5 * time_term(costs, "gemm"))
    for name in ("reload", "switch"):
        assert time_term(slow, name) == pytest.approx(time_term(costs, name))


def test_a_dense_model_ignores_the_factor_of_experts_and_of_rollouts() -> None:
    costs = price(strategy())
    same = lost(costs, replace(NEUTRAL, moe_training_ratio=3.0, rollout_ratio=3.0))
    assert stage_seconds(same) == pytest.approx(stage_seconds(costs))


def test_pageable_copies_limit_a_swap_only_where_the_link_is_faster() -> None:
    costs = price(strategy(offload=Offload.STATE_SWAP))
    free = time_term(costs, "reload")
    slow = time_term(lost(costs, replace(NEUTRAL, swap_bytes_per_s=5e9)), "reload")
    slower = time_term(lost(costs, replace(NEUTRAL, swap_bytes_per_s=2.5e9)), "reload")
    assert slower == pytest.approx(2.0 * slow)
    assert (slow > free).all()
    assert time_term(lost(costs, replace(NEUTRAL, swap_bytes_per_s=1e13)), "reload") == pytest.approx(free)


def test_a_sync_loses_time_only_where_memory_changes_hands() -> None:
    costs = price(strategy())
    slow = lost(costs, replace(NEUTRAL, sync_ratio=2.0))
    assert costs.sync_terms_colocated is not None
    assert slow.sync_terms_colocated is not None
    for name, seconds in costs.sync_terms_colocated.items():
        assert slow.sync_terms_colocated[name] == pytest.approx(2.0 * seconds)
    assert slow.sync_terms_disaggregated == costs.sync_terms_disaggregated


def test_the_controller_is_paid_once_per_iteration() -> None:
    costs = price(strategy())
    busy = lost(costs, replace(NEUTRAL, step_s=4.0, sequence_s=1e-3), sequences=2000.0)
    assert time_term(busy, "switch") - time_term(costs, "switch") == pytest.approx(np.array([6.0]))
    logprob = StageName.OLD_LOGPROB
    assert stage_seconds(busy, logprob) == pytest.approx(stage_seconds(costs, logprob))
