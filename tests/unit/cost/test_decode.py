"""Decode and prefill times: against composed kernel tables, limits, and how they must scale."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from planner.cost.decode import decode_step_terms, distinct_experts, engine_layout, engine_node, kv_heads_share
from planner.cost.formats import uniform
from planner.cost.prefill import prefill_s
from planner.domain.hardware import CollectiveOp, NodeType, Precision
from planner.domain.model import Model
from planner.domain.strategy import FloatArray
from tests.unit.cost.engines import DENSE, HYBRID, LATENT, OVERHEADS, SPARSE, node

GPU_ONLY = replace(OVERHEADS, engine_step_s=0.0, engine_step_per_sequence_s=0.0)
MODELS = {"dense": DENSE, "sparse": SPARSE, "latent": LATENT, "hybrid": HYBRID}


def terms(
    model: Model, *, tp: int = 1, pp: int = 1, ep: int = 1, batch: float, context: float, on: NodeType | None = None
) -> dict[str, float]:
    nodes = on or node()
    one = np.ones(1)
    layout = engine_layout(one * tp, one * pp, one * ep, nodes)
    running, tokens = np.full((1, 1), batch), np.full((1, 1), context)
    step = decode_step_terms(model, uniform(Precision.BF16), nodes, GPU_ONLY, layout, running, tokens)
    return {name: float(seconds[0, 0]) for name, seconds in step.items()}


def step_s(
    model: Model, *, tp: int = 1, pp: int = 1, ep: int = 1, batch: float, context: float, on: NodeType | None = None
) -> float:
    return sum(terms(model, tp=tp, pp=pp, ep=ep, batch=batch, context=context, on=on).values())


# (model, tp, ep, sequences, context, ms): decode steps of vLLM on H100 SXM, bf16, composed from measured
# operators by aiconfigurator-core 0.12.0 (PyPI, Apache-2.0). Shapes: Qwen3-32B and Qwen3-30B-A3B.
COMPOSED_MS = [
    ("dense", 2, 1, 1, 2048, 13.45), ("dense", 2, 1, 32, 2048, 17.55), ("dense", 2, 1, 32, 8192, 25.63),
    ("dense", 4, 1, 1, 2048, 8.24), ("dense", 4, 1, 64, 2048, 12.77), ("dense", 4, 1, 256, 2048, 24.40),
    ("dense", 4, 1, 64, 8192, 20.84), ("dense", 8, 1, 1, 2048, 5.71), ("dense", 8, 1, 64, 2048, 8.65),
    ("dense", 8, 1, 256, 2048, 15.37), ("dense", 8, 1, 64, 8192, 12.76),
    ("sparse", 1, 1, 1, 2048, 4.71), ("sparse", 1, 1, 32, 2048, 21.87), ("sparse", 2, 1, 32, 2048, 12.97),
    ("sparse", 2, 1, 256, 2048, 23.87), ("sparse", 4, 1, 64, 8192, 12.74), ("sparse", 4, 1, 256, 8192, 27.91),
    ("sparse", 4, 4, 1, 2048, 3.77), ("sparse", 4, 4, 64, 2048, 10.24), ("sparse", 8, 8, 64, 2048, 8.19),
    ("sparse", 8, 8, 256, 8192, 24.74),
]  # fmt: skip


def test_close_to_composed_kernel_tables() -> None:
    errors = [
        step_s(MODELS[name], tp=tp, ep=ep, batch=batch, context=context) / (ms * 1e-3) - 1
        for name, tp, ep, batch, context, ms in COMPOSED_MS
    ]
    assert float(np.median(np.abs(errors))) < 0.08
    assert float(np.max(np.abs(errors))) < 0.25


# (tp, prompt tokens, ms): one prompt of Qwen3-32B through the same engine and source.
PREFILL_MS = [(2, 2048, 107.2), (2, 8192, 476.0), (4, 2048, 65.5), (4, 8192, 273.6), (8, 2048, 46.3), (8, 8192, 172.5)]


def prompt_s(model: Model, tp: int, tokens: float, *, pp: int = 1, prompts: float = 1.0) -> float:
    one = np.ones(1)
    layout = engine_layout(one * tp, one * pp, one, node())
    return float(prefill_s(model, uniform(Precision.BF16), node(), GPU_ONLY, layout, one * prompts, tokens)[0])


def test_prefill_close_to_composed_kernel_tables() -> None:
    errors = [prompt_s(DENSE, tp, tokens) / (ms * 1e-3) - 1 for tp, tokens, ms in PREFILL_MS]
    assert float(np.max(np.abs(errors))) < 0.25


def test_prefill_grows_with_prompts_and_quadratically_with_their_length() -> None:
    assert prompt_s(DENSE, 4, 512, prompts=64) == pytest.approx(4 * prompt_s(DENSE, 4, 512, prompts=16), rel=1e-6)
    assert prompt_s(DENSE, 4, 65536, prompts=1) > prompt_s(DENSE, 4, 16384, prompts=4)
    assert prompt_s(DENSE, 2, 512, pp=2, prompts=1000) < prompt_s(DENSE, 2, 512, prompts=1000)


def test_one_sequence_reads_every_dense_weight_once() -> None:
    parts = terms(DENSE, batch=1, context=1)
    weights = 2.0 * (DENSE.num_params - DENSE.embedding_params)  # one of the two tables is only looked up
    assert parts["weight_read"] == pytest.approx(weights / (3.35e12 * 0.87), rel=0.01)
    assert parts["gemm"] == 0.0


def test_large_batches_become_compute_bound() -> None:
    parts = terms(DENSE, batch=4096, context=1)
    active = DENSE.num_params - DENSE.embedding_params
    assert parts["gemm"] == pytest.approx(4096 * 2.0 * active / (989e12 * 0.79), rel=0.05)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_more_sequences_or_context_never_shorten_a_step(name: str) -> None:
    model = MODELS[name]
    by_batch = [step_s(model, tp=2, batch=batch, context=2000) for batch in (1, 2, 7, 30, 100, 300, 1000, 3000)]
    assert all(a <= b for a, b in pairwise(by_batch))
    by_context = [step_s(model, tp=2, batch=64, context=context) for context in (1, 100, 1024, 5000, 50000)]
    assert all(a <= b for a, b in pairwise(by_context))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_faster_hardware_never_lengthens_a_step(name: str) -> None:
    model = MODELS[name]
    for batch in (1, 64, 1024):
        base = step_s(model, tp=4, batch=batch, context=4000)
        for better in (
            node(hbm_bytes_per_s=5e12),
            node(peak_flop_per_s=2e15),
            node(scale_up_bytes_per_s=9e11),
        ):
            assert step_s(model, tp=4, batch=batch, context=4000, on=better) <= base


def test_distinct_experts_matches_sampling_and_limits() -> None:
    rng = np.random.default_rng(3)
    expected = distinct_experts(128, 8, np.array([1.0, 11.0, 36.0, 1e6]))
    assert expected[0] == pytest.approx(8.0)
    assert expected[3] == pytest.approx(128.0)
    # a token takes 8 different experts
    seen = [len({e for _ in range(11) for e in rng.choice(128, 8, replace=False)}) for _ in range(400)]
    assert expected[1] == pytest.approx(np.mean(seen), rel=0.02)
    assert distinct_experts(4, 4, np.array([1.0]))[0] == 4.0


def test_kv_heads_replicate_beyond_their_number_and_latent_caches_never_divide() -> None:
    tp = np.array([1.0, 4.0, 8.0, 16.0])
    assert kv_heads_share(DENSE.layers[0], tp) == pytest.approx([1.0, 1 / 4, 1 / 8, 1 / 8])
    assert kv_heads_share(SPARSE.layers[0], tp) == pytest.approx([1.0, 1 / 4, 1 / 4, 1 / 4])
    assert kv_heads_share(LATENT.layers[0], tp) == pytest.approx([1.0] * 4)


def test_window_and_state_cap_the_cache_read() -> None:
    short = terms(HYBRID, batch=8, context=1024)["kv_read"]
    long = terms(HYBRID, batch=8, context=4096)["kv_read"]
    full_layer_bytes = 12 * HYBRID.layers[0].attention.kv_elements_per_token * 2.0
    grown = 8 * (4096 - 1024) * full_layer_bytes / (3.35e12 * 0.88)
    assert long - short == pytest.approx(grown, rel=1e-6)
    assert terms(HYBRID, batch=8, context=0)["kv_read"] > 0  # the recurrent state is read whatever the context


def test_pipeline_keeps_the_latency_of_one_sequence_and_gains_nothing_for_it() -> None:
    single = step_s(DENSE, tp=4, batch=1, context=1000)
    piped = step_s(DENSE, tp=4, pp=2, batch=1, context=1000)
    assert piped >= single
    # A large batch goes round in halves: one step of all costs two periods of half the layers.
    full = terms(DENSE, tp=4, pp=2, batch=256, context=1000)
    half = terms(DENSE, tp=4, batch=128, context=1000)
    assert full["kv_read"] == pytest.approx(half["kv_read"])
    assert full["pp_bubble"] > 0
    assert full["pp_transfer"] > 0


def test_tp_across_nodes_pays_the_nic() -> None:
    inside = terms(DENSE, tp=8, batch=64, context=1000)
    across = terms(DENSE, tp=16, batch=64, context=1000)
    assert inside["tp_scale_out"] == 0.0
    assert across["tp_scale_out"] > 2 * inside["tp_scale_up"]


def test_engine_all_reduce_is_quick_inside_switched_domains_only() -> None:
    switched = engine_node(node(), 0.65).gpu.collective(CollectiveOp.ALL_REDUCE)
    assert max(switched.alpha_s) < 5e-6
    assert engine_node(node(), 0.65).gpu.collective(CollectiveOp.ALL_TO_ALL).alpha_s[-1] == 15e-6
    board = node()
    board = replace(board, gpu=replace(board.gpu, scale_up_kind="pcie"))
    assert engine_node(board, 0.65) is board


def test_expert_parallelism_waits_for_the_busiest_rank() -> None:
    spread = terms(SPARSE, tp=8, ep=8, batch=16, context=1000)
    sliced = terms(SPARSE, tp=8, ep=1, batch=16, context=1000)
    assert spread["weight_read"] > sliced["weight_read"]
    # With every expert visited there is nothing left to be unlucky with.
    many = 4096.0
    assert (
        terms(SPARSE, tp=8, ep=8, batch=many, context=1)["weight_read"]
        <= terms(SPARSE, tp=8, ep=1, batch=many, context=1)["weight_read"] * 1.001
    )


def test_row_equals_table_of_one_row() -> None:
    tp: FloatArray = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 4.0])
    pp: FloatArray = np.array([1.0, 2.0, 1.0, 1.0, 1.0, 4.0])
    ep: FloatArray = np.array([1.0, 2.0, 1.0, 8.0, 1.0, 1.0])
    layout = engine_layout(tp, pp, ep, node())
    batch = np.full((1, 6), 77.0)
    context = np.full((1, 6), 3000.0)
    table = sum(decode_step_terms(SPARSE, uniform(Precision.BF16), node(), GPU_ONLY, layout, batch, context).values())
    for i in range(6):
        alone = step_s(SPARSE, tp=int(tp[i]), pp=int(pp[i]), ep=int(ep[i]), batch=77.0, context=3000.0)
        assert np.asarray(table)[0, i] == pytest.approx(alone, rel=1e-12)
