"""Recomputation of some layers, by hand for a dense model (Qwen3-32B) and one with experts (Qwen3-30B-A3B)."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.layout import model_totals
from planner.cost.terms import total
from planner.cost.worker import WorkerCosts
from planner.domain.model import Model
from planner.domain.stages import StageName
from planner.domain.strategy import FloatArray, Recompute, TrainerStrategy
from planner.files.catalog import load_model
from tests.unit.cost.trainer_cases import job, memory_term, price, stage_seconds, strategy, time_term

DENSE, MOE = load_model("qwen3-32b"), load_model("qwen3-30b-a3b")
LINEAR_TERMS = ("recompute", "tp_scale_up", "ep_scale_up", "ep_scale_out", "cp_scale_up", "cp_scale_out")


def partial(layers: int, **degrees: int) -> TrainerStrategy:
    return strategy(32, recompute=Recompute.PARTIAL, recompute_layers=layers, **degrees)


def ends(**degrees: int) -> tuple[TrainerStrategy, TrainerStrategy]:
    return strategy(32, recompute=Recompute.NONE, **degrees), strategy(32, recompute=Recompute.FULL, **degrees)


def priced(layers: tuple[int, ...], model: Model, **degrees: int) -> WorkerCosts:
    """No recomputation, `layers` of a stage, all layers."""
    none, full = ends(**degrees)
    return price(none, *(partial(count, **degrees) for count in layers), full, work=job(model))


CASES = [(DENSE, {"tp": 4, "pp": 2}, 32), (DENSE, {"tp": 8, "pp": 4, "vpp": 2}, 8), (MOE, {"pp": 4, "ep": 8}, 12)]


@pytest.mark.parametrize(("model", "degrees", "stage"), CASES, ids=["dense", "interleaved", "experts"])
def test_time_is_linear_in_the_layers(model: Model, degrees: dict[str, int], stage: int) -> None:
    counts = (1, stage // 3, stage - 1)
    costs = priced(counts, model, **degrees)
    ratios = np.array([0.0, *(count / stage for count in counts), 1.0])
    for name in LINEAR_TERMS:
        term = time_term(costs, name)
        assert term == pytest.approx(term[0] + ratios * (term[-1] - term[0])), name
    assert (np.diff(stage_seconds(costs)) > 0).all()


def kept(costs: WorkerCosts) -> FloatArray:
    return memory_term(costs, "activations")


def test_dense_activations_by_hand() -> None:
    """tp 4, one pipeline stage of 64 equal layers: inputs of n, everything of 64 - n, which the live layer replaces."""
    totals = model_totals(DENSE, True)
    tokens, hidden = 9216 / 4, totals.hidden_size
    layer = totals.saved_elements / 64
    gathered = 9216 * 4.0 * hidden + tokens * 4.0 * hidden
    for count, found in zip((0, 16, 63, 64), kept(priced((16, 63), DENSE, tp=4)), strict=True):
        live = 2.0 * tokens * layer if count == 64 else 0.0
        by_hand = 2.0 * tokens * (count * hidden + (64 - count) * layer) + live + gathered
        assert found == pytest.approx(by_hand), count


def test_experts_activations_by_hand() -> None:
    """48 equal layers on 4 pipeline ranks: the first holds 4 micro-batches; one live layer does not exceed the 8 that
    backward has freed."""
    totals = model_totals(MOE, True)
    tokens, hidden = 9216.0, totals.hidden_size
    found = kept(price(partial(4, pp=4, ep=8), work=job(MOE)))[0]
    layer = totals.saved_elements / 48
    assert found == pytest.approx(4 * 2.0 * tokens * (4 * hidden + 8 * layer))


def test_the_last_layer_of_a_stage_is_recomputed_for_nothing() -> None:
    """Its activations come back at once: full recomputation needs as much memory and more time."""
    costs = priced((63,), DENSE, tp=4)
    _, one_left, full = kept(costs)
    assert one_left <= full
    assert stage_seconds(costs)[1] < stage_seconds(costs)[2]


@pytest.mark.parametrize(("model", "degrees", "stage"), CASES, ids=["dense", "interleaved", "experts"])
def test_memory_falls_with_every_layer_but_the_last(model: Model, degrees: dict[str, int], stage: int) -> None:
    costs = priced(tuple(range(1, stage)), model, **degrees)
    peak = next(total(cost.memory_terms) for cost in costs.stages if cost.stage is StageName.ACTOR_UPDATE)
    assert (np.diff(peak[:-1]) < 0).all()


def test_unequal_layers_leave_part_of_the_largest_one() -> None:
    """Where the live layer is larger than what backward has freed the rest of it counts."""
    model = load_model("nemotron-3-nano-30b-a3b")
    totals = model_totals(model, True)
    stage = totals.num_layers
    average = totals.saved_elements / stage
    assert totals.live_elements > average
    tokens, hidden = 9216.0, totals.hidden_size
    found = kept(price(partial(stage - 1), work=job(model)))[0]
    # the average layer that is kept, and what the live one exceeds it by
    by_hand = 2.0 * tokens * ((stage - 1) * hidden + totals.live_elements) + tokens * 4.0 * hidden
    assert found == pytest.approx(by_hand)


def test_log_probs_do_not_change() -> None:
    costs = priced((21,), DENSE, tp=4)
    assert len(set(stage_seconds(costs, StageName.OLD_LOGPROB).tolist())) == 1
