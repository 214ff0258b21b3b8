"""Packing and rates of trainers."""

from dataclasses import replace

import numpy as np
import pytest

from planner.domain.plan import NamedValue
from planner.domain.stages import StageKind, StageName
from planner.simulate.training import _dealt, stage_s, trainer_rates
from tests.unit.simulate.plans import NUM_RESPONSES, split_plan, synchronous_plan


@pytest.mark.parametrize("stage", [StageName.REFERENCE_LOGPROB, StageName.OLD_LOGPROB, StageName.ACTOR_UPDATE])
def test_equal_sequences_take_what_the_plan_says(stage: StageName) -> None:
    """Without spread nothing is left of packing and waiting; attention alone sees squares."""
    for plan in (split_plan(4, cv=0.0), synchronous_plan()):
        kind = StageKind.TRAINING if stage is StageName.ACTOR_UPDATE else StageKind.INFERENCE
        placement, workload = plan.placement(stage), plan.workload
        rates = trainer_rates(placement, workload, kind, NUM_RESPONSES)
        tokens = np.full(NUM_RESPONSES, workload.mean_tokens)
        waiting = sum(term.value for term in placement.time_terms if term.name == "imbalance")
        found = stage_s(rates, tokens, np.random.default_rng(0))
        assert found == pytest.approx(placement.time_s - waiting, rel=0.03)


def test_the_rank_with_the_longest_sequence_is_waited_for() -> None:
    plan = split_plan(4)
    rates = trainer_rates(plan.placement(StageName.OLD_LOGPROB), plan.workload, StageKind.INFERENCE, NUM_RESPONSES)
    even = np.full(8, 1000.0)
    uneven = np.array([4000.0] + [4000.0 / 7] * 7)
    random = np.random.default_rng(0)
    assert stage_s(rates, uneven, random) - rates.stage_s > 1.9 * (stage_s(rates, even, random) - rates.stage_s)


def test_sequences_are_dealt_out_evenly() -> None:
    tokens = np.random.default_rng(1).lognormal(6, 1, size=400)
    sums = np.bincount(_dealt(tokens, 8), weights=tokens)
    assert sums.max() / sums.mean() < 1.01


def test_a_term_that_nobody_takes_up_is_an_error() -> None:
    plan = split_plan(4)
    placement = plan.placement(StageName.ACTOR_UPDATE)
    placement = replace(placement, time_terms=(*placement.time_terms, NamedValue(name="magic", value=1.0)))
    with pytest.raises(ValueError, match="magic"):
        trainer_rates(placement, plan.workload, StageKind.TRAINING, NUM_RESPONSES)
