"""GPU memory: published peaks, closed forms of states, and a simulated pipeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.activations import Module, Recipe, saved_bytes
from planner.cost.layout import layout, model_totals
from planner.cost.memory import FORWARD_INSTANTS, UPDATE_INSTANTS, in_flight
from planner.cost.training import price_trainer
from planner.domain.model import Model
from planner.domain.stages import StageName
from planner.domain.strategy import Offload, Recompute, Sharding, TrainerTable
from planner.domain.verdict import Verdict, memory_verdict
from planner.files.catalog import load_model
from tests.unit.cost.trainer_cases import (
    GIB,
    QWEN3_32B,
    equal_load,
    job,
    memory_term,
    price,
    random_strategies,
    site,
    strategy,
    time_term,
)

TENSOR_TERMS = ("weights", "gradients", "optimizer", "activations", "logits", "unsharded", "wgrad_buffer")
"""What the framework's allocator counts as allocated."""
FUSED_CROSS_ENTROPY_BYTES = 4.0
"""Live bytes per logit with a fused loss: 16-bit logits and gradient."""


def truncated(model: Model, num_layers: int, num_dense: int = 0) -> Model:
    """`num_layers` layers of a model, the first `num_dense` of them dense."""
    if len(model.layers) == 1:
        return replace(model, layers=(replace(model.layers[0], num_layers=num_layers),))
    dense, sparse = model.layers
    return replace(
        model,
        layers=(replace(dense, num_layers=num_dense), replace(sparse, num_layers=num_layers - num_dense)),
    )


SIMUMAX_B200 = [
    # layers, tp, pp, cp, ep, sequence, measured GiB (max over ranks of max_memory_allocated)
    ("llama-3.1-70b", 12, 1, 2, 1, 1, 4096, 66.552),
    ("llama-3.1-70b", 12, 2, 1, 1, 1, 4096, 60.680),
    ("llama-3.1-70b", 12, 4, 1, 1, 1, 4096, 39.072),
    ("llama-3.1-70b", 12, 8, 1, 1, 1, 4096, 28.286),
    ("llama-3.1-70b", 12, 1, 1, 8, 1, 32768, 104.51),
    ("llama-3.1-70b", 12, 2, 1, 4, 1, 131072, 112.67),
    ("llama-3.1-70b", 12, 1, 1, 8, 1, 131072, 147.99),
    ("deepseek-v2", 4, 1, 1, 1, 8, 4096, 45.635),
    ("deepseek-v2", 4, 1, 2, 1, 4, 4096, 44.703),
]


@pytest.mark.parametrize(("name", "layers", "tp", "pp", "cp", "ep", "sequence", "measured_gib"), SIMUMAX_B200)
def test_peak_of_truncated_models_on_8_b200(
    name: str, layers: int, tp: int, pp: int, cp: int, ep: int, sequence: int, measured_gib: float
) -> None:
    """SimuMax docs/b200 (v1.2): Megatron, distributed optimizer, bf16, no recomputation, fused loss.

    Not blind: the rule for leading dense layers was added after the DeepSeek-V2 rows were seen.
    """
    model = truncated(load_model(name), layers, 1)
    at = site("b200")
    fused = replace(at.overheads, vocabulary_parallel_logits_bytes_per_element=FUSED_CROSS_ENTROPY_BYTES)
    at = replace(at, overheads=fused)
    data_parallel = 8 // (tp * pp * cp)
    work = job(model, tokens=equal_load(4 * data_parallel, sequence), steps=1, inference=False)
    costs = price(strategy(8, tp=tp, pp=pp, cp=cp, ep=ep, tokens=sequence), work=work, at=at)
    peak = sum(float(memory_term(costs, term)[0]) for term in TENSOR_TERMS)
    assert peak / GIB == pytest.approx(measured_gib, rel=0.055 if ep > 1 else 0.015)


@pytest.mark.parametrize(
    ("sharding", "bytes_per_param"),
    [
        (Sharding.DDP, 18.0),
        (Sharding.ZERO1, 6.0 + 12.0 / 16),
        (Sharding.ZERO2, 2.0 + 14.0 / 16),
        (Sharding.ZERO3, 16.0 / 16),
    ],
)
def test_state_bytes_per_parameter(sharding: Sharding, bytes_per_param: float) -> None:
    costs = price(strategy(16, sharding=sharding))
    states = sum(float(memory_term(costs, term)[0]) for term in ("weights", "gradients", "optimizer"))
    assert states / QWEN3_32B.num_params == pytest.approx(bytes_per_param, rel=1e-6)


def test_context_parallel_ranks_share_optimizer_states() -> None:
    plain, context = (memory_term(price(strategy(16, cp=cp)), "optimizer")[0] for cp in (1, 8))
    assert plain == pytest.approx(context)


def test_experts_divide_by_their_own_ranks() -> None:
    """With EP 8 on 8 GPUs every expert lives once: 18 bytes per parameter, nothing to shard."""
    model = load_model("qwen3-30b-a3b")
    costs = price(strategy(8, ep=8), work=job(model))
    expected = 18 * model.num_expert_params / 8 + (6 + 12 / 8) * model.num_dense_params
    states = sum(float(memory_term(costs, term)[0]) for term in ("weights", "gradients", "optimizer"))
    assert states == pytest.approx(expected, rel=1e-6)


def test_lora_trains_adapters_only() -> None:
    costs = price(strategy(8), work=job(lora_rank=32))
    states = sum(float(memory_term(costs, term)[0]) for term in ("weights", "gradients", "optimizer"))
    adapters = 32 * model_totals(QWEN3_32B, True).adapter_params_per_rank
    assert 1e8 < adapters < 4e8
    assert states == pytest.approx(2 * QWEN3_32B.num_params + 18 * adapters, rel=1e-6)


def test_a_frozen_worker_holds_weights_only() -> None:
    costs = price(strategy(8, sharding=Sharding.DDP), strategy(8, sharding=Sharding.ZERO3), work=job(trains=False))
    weights = memory_term(costs, "weights", StageName.REFERENCE_LOGPROB)
    assert weights == pytest.approx([2 * QWEN3_32B.num_params, 2 * QWEN3_32B.num_params / 8])
    assert not memory_term(costs, "optimizer", StageName.REFERENCE_LOGPROB).any()


def simulated_in_flight(pp: int, vpp: int, num_micro_batches: int, rank: int) -> int:
    """Most chunks alive on a pipeline rank: warm-up forwards, then one forward and one backward in turn."""
    total = num_micro_batches * vpp
    warm_up = min(total, pp - rank - 1 if vpp == 1 else 2 * (pp - rank - 1) + (vpp - 1) * pp)
    alive = most = warm_up
    for _ in range(total - warm_up):
        alive += 1
        most = max(most, alive)
        alive -= 1
    return most


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), *((pp, vpp) for pp in (2, 4, 8) for vpp in (1, 2, 4))])
@pytest.mark.parametrize("factor", [1, 2, 5])
def test_in_flight_micro_batches_match_a_schedule(pp: int, vpp: int, factor: int) -> None:
    number = pp * factor
    table = TrainerTable.of((strategy(8 * pp, pp=pp, vpp=vpp),))
    first, last = in_flight(table, np.array([float(number)]))
    assert first[0] * vpp == simulated_in_flight(pp, vpp, number, 0)
    assert last[0] * vpp == simulated_in_flight(pp, vpp, number, pp - 1)


def test_few_micro_batches_limit_activations() -> None:
    table = TrainerTable.of((strategy(64, pp=8),))
    first, _ = in_flight(table, np.array([2.0]))
    assert first[0] == 2


def test_recomputation_trades_memory_for_time() -> None:
    whole = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
    levels = [strategy(32, tp=4, recompute=level) for level in whole]
    costs = price(*levels)
    none, selective, full = memory_term(costs, "activations")
    assert none > selective > full
    times = time_term(costs, "recompute")
    assert times[0] == 0 < times[1] < times[2]


def test_full_recomputation_keeps_layer_inputs_and_one_layer() -> None:
    costs = price(strategy(8, tp=8, tokens=8192, recompute=Recompute.FULL), work=job(tokens=equal_load(64, 8192)))
    live = model_totals(QWEN3_32B, True).live_elements
    head = 4 * 5120
    gathered = 2 * 2 * 5120 * 8192
    expected = (64 * 2 * 5120 + 2 * live + head) * 8192 / 8 + gathered
    assert memory_term(costs, "activations")[0] == pytest.approx(expected)


def test_the_fuller_of_backward_and_optimizer_step_counts() -> None:
    """PyTorch's Adam holds an fp32 copy of its shard at the step; few tokens on few GPUs make that the peak."""
    small = strategy(8, sharding=Sharding.ZERO3, tokens=64, recompute=Recompute.FULL)
    large = strategy(8, sharding=Sharding.ZERO3, tokens=65536, recompute=Recompute.FULL)
    megatron = strategy(8, tokens=64, recompute=Recompute.FULL)
    costs = price(small, large, megatron, work=job(tokens=equal_load(512, 64), steps=1))
    update = next(stage for stage in costs.stages if stage.stage is StageName.ACTOR_UPDATE)
    assert [update.instant_at(row) for row in range(3)] == [UPDATE_INSTANTS[1], UPDATE_INSTANTS[0], UPDATE_INSTANTS[0]]
    assert memory_term(costs, "optimizer_step") == pytest.approx([4 * QWEN3_32B.num_params / 8, 0.0, 0.0])
    assert memory_term(costs, "activations")[0] == 0.0
    assert memory_term(costs, "activations")[1] > 0.0


def test_log_probs_peak_at_the_vocabulary_head_with_a_large_vocabulary_only() -> None:
    load_of_one = equal_load(512, 4096)
    whole = strategy(32, tp=1, tokens=32768, inference_tokens=32768)
    costs = price(whole, work=job(tokens=load_of_one, steps=1))
    stage = next(item for item in costs.stages if item.stage is StageName.OLD_LOGPROB)
    assert stage.instant_at(0) == FORWARD_INSTANTS[1]
    no_head = price(whole, work=job(tokens=load_of_one, steps=1, has_head=False))
    stage = next(item for item in no_head.stages if item.stage is StageName.OLD_LOGPROB)
    assert stage.instant_at(0) == FORWARD_INSTANTS[0]


def test_selective_recomputation_by_module_drops_what_it_names() -> None:
    model = load_model("deepseek-v3")
    kept = {
        modules: saved_bytes(model, Recipe(selective=modules), 4096.0).selective_sharded
        for modules in ((), (Module.NORM,), (Module.MOE_ACTIVATION,), (Module.MLA_UP_PROJECTION,), (Module.MOE,))
    }
    everything = kept[()]
    assert everything == pytest.approx(2 * model_totals(model, True).saved_elements)
    assert all(part < everything for modules, part in kept.items() if modules)
    assert kept[(Module.MOE,)] < kept[(Module.MOE_ACTIVATION,)]


def test_without_sequence_parallelism_norms_stay_whole() -> None:
    saved = saved_bytes(QWEN3_32B, Recipe(is_sequence_parallel=False), 4096.0)
    assert saved.all_whole == pytest.approx(64 * 2 * 4 * 5120)
    assert saved.all_sharded + saved.all_whole == pytest.approx(2 * model_totals(QWEN3_32B, True).saved_elements)


def test_three_verdicts_at_the_edges_of_the_band() -> None:
    assert memory_verdict(92.0, 100.0, 0.08) is Verdict.FITS
    assert memory_verdict(93.0, 100.0, 0.08) is Verdict.MARGINAL
    assert memory_verdict(108.0, 100.0, 0.08) is Verdict.MARGINAL
    assert memory_verdict(109.0, 100.0, 0.08) is Verdict.DOES_NOT_FIT


def test_logits_are_on_the_last_rank_only() -> None:
    """One pipeline rank pays for logits or for most activations in flight, never for both."""
    deep = price(strategy(64, pp=8, recompute=Recompute.FULL), strategy(64, pp=8))
    logits = memory_term(deep, "logits")
    assert logits[0] > 0
    assert logits[1] == 0


def test_a_value_head_has_no_logits() -> None:
    assert not memory_term(price(strategy(8), work=job(has_head=False)), "logits").any()


def test_entropy_over_a_large_vocabulary_is_the_peak_of_log_probs() -> None:
    costs = price(strategy(32, tp=1, tokens=32768, inference_tokens=32768))
    logits = memory_term(costs, "logits", StageName.OLD_LOGPROB)[0]
    expected = 32768 * 151936 * site().overheads.logprob_logits_bytes_per_element
    assert logits == pytest.approx(expected)


def test_cpu_optimizer_relieves_the_update_and_a_swap_does_not() -> None:
    plain, swapped, on_host = (
        sum(float(memory_term(costs, term)[0]) for term in TENSOR_TERMS)
        for costs in (
            price(strategy(8, tp=8, offload=mode))
            for mode in (Offload.NONE, Offload.OPTIMIZER_SWAP, Offload.CPU_OPTIMIZER)
        )
    )
    assert plain == swapped
    assert on_host == pytest.approx(plain - 12 * QWEN3_32B.num_params / 8, rel=1e-6)


def test_pipeline_ranks_never_hold_less_than_their_share() -> None:
    table = TrainerTable.of(random_strategies(200, seed=3))
    at = layout(table, model_totals(QWEN3_32B, True), site().node)
    assert (at.dense_params * table.tp * table.pp >= QWEN3_32B.num_params * (1 - 1e-12)).all()


def test_leading_dense_layers_leave_other_ranks_full_of_experts() -> None:
    model = load_model("deepseek-v3")
    table = TrainerTable.of((strategy(256, pp=8, ep=32),))
    at = layout(table, model_totals(model, True), site().node)
    assert at.expert_params[0] == pytest.approx(model.num_expert_params / 58 * 8 / 32)


def test_memory_terms_of_all_rows_are_finite_and_not_negative() -> None:
    for name in ("qwen3-32b", "deepseek-v3", "gemma-3-27b", "qwen3-next-80b-a3b"):
        model = load_model(name)
        table = TrainerTable.of(random_strategies(300, seed=5, is_moe=model.is_moe))
        costs = price_trainer(job(model), table, site())
        for terms in (*(cost.memory_terms for cost in costs.stages), costs.idle_terms, costs.host_terms):
            for term, values in terms.items():
                assert values.shape == (300,), term
                assert np.isfinite(values).all(), term
                assert (values >= 0).all(), term
