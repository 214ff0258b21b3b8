"""Bytes per link level: the textbook formulas, and that no priced strategy is faster than its own bytes and chain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.communication import span
from planner.cost.jobs import engine_job, trainer_job
from planner.cost.link_bytes import (
    LinkBytes,
    cache_read_bytes,
    decode_chain_s,
    decode_step_floor_s,
    decode_weight_bytes,
    dispatch_bytes,
    engine_bytes,
    engine_slots,
    engine_steps,
    exchange_bytes,
    kernel_chain_s,
    ring_bytes,
    synced_bytes,
    trainer_bytes,
)
from planner.cost.memory import REDUCE_BYTES
from planner.cost.terms import total
from planner.cost.work_depth import Lengths
from planner.cost.worker import Site, TrainerJob
from planner.domain.hardware import NodeType, Pool, Precision
from planner.domain.stages import StageName, WorkerName, build_graph
from planner.domain.strategy import (
    ContextParallel,
    EngineIdle,
    Offload,
    Recompute,
    RolloutStrategy,
    RolloutTable,
    Sharding,
    TrainerStrategy,
    TrainerTable,
    recompute_ratio,
)
from planner.domain.workload import RewardKind, TokenLoad
from planner.files.catalog import generic_node, load_model, load_overheads
from planner.search.pricing import PricingInputs, price_table, price_worker
from tests.factories import workload

H100 = generic_node("h100")
SITE = Site(node=H100, overheads=load_overheads(), memory_margin_ratio=0.1)
MODEL = load_model("qwen3-8b")
TOKENS = 64 * 4096


def job(*, steps: int = 1, lora_rank: int | None = None, name: str = "qwen3-8b") -> TrainerJob:
    load = TokenLoad(num_sequences=64, mean_tokens=4096, mean_square_tokens=4096.0**2, max_tokens=4096)
    return TrainerJob(
        worker=WorkerName.ACTOR_TRAINER, model=load_model(name), train_stage=StageName.ACTOR_UPDATE, train_load=load,
        num_optimizer_steps=steps, num_epochs=1, inference_loads=(), has_vocabulary_head=True, lora_rank=lora_rank,
        precision=Precision.BF16, sends_weights=True, rollout_precision=Precision.BF16,
    )  # fmt: skip


def strategy(num_gpus: int = 8, **changes: object) -> TrainerStrategy:
    base = TrainerStrategy(
        num_gpus=num_gpus, tp=1, pp=1, vpp=1, cp=1, context_parallel=ContextParallel.RING, ep=1, etp=1,
        sharding=Sharding.DDP, shard_ranks=num_gpus, micro_batch_tokens=4096, inference_tokens=4096,
        recompute=Recompute.NONE, offload=Offload.NONE,
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def moved(given: TrainerJob, plan: TrainerStrategy, *, trains: bool = True) -> LinkBytes:
    assert given.train_load is not None
    return trainer_bytes(given, given.train_load, plan, SITE, trains=trains)


# ---------------------------------------------------------------------------------------------- formulas


@pytest.mark.parametrize(("ranks", "local", "domains"), [(1, 1, 1), (8, 8, 1), (32, 8, 4)])
def test_a_ring_sends_everything_but_its_own_share(ranks: int, local: int, domains: int) -> None:
    group = span(np.array([float(ranks)]), 1.0, H100)
    sent = ring_bytes(1e9, group)
    assert sent.scale_up_bytes == pytest.approx(1e9 * (local - 1) / local)
    assert sent.nic_bytes == pytest.approx(1e9 * (domains - 1) / domains / local)
    exchanged = exchange_bytes(1e9, group)
    assert exchanged.scale_up_bytes + exchanged.nic_bytes == pytest.approx(1e9 * (ranks - 1) / ranks)


def test_dispatch_sends_a_token_to_at_most_all_its_experts() -> None:
    wide = span(np.array([8.0]), 1.0, H100)
    assert 0 < dispatch_bytes(1.0, 2, wide).scale_up_bytes < 2
    assert dispatch_bytes(1.0, 2, wide).nic_bytes == 0
    assert dispatch_bytes(1.0, 8, span(np.array([1.0]), 1.0, H100)) == LinkBytes()


def test_data_parallel_gradients() -> None:
    """2 (P - 1) / P of the gradients, in 32 bit; optimizer steps multiply it; ZeRO-1 gathers 16-bit weights."""
    plain = moved(job(), strategy()).scale_up_bytes
    assert plain == pytest.approx(2 * 7 / 8 * MODEL.num_params * REDUCE_BYTES, rel=1e-6)
    assert moved(job(steps=4), strategy()).scale_up_bytes == pytest.approx(4 * plain)
    sharded = moved(job(), strategy(sharding=Sharding.ZERO1)).scale_up_bytes
    assert sharded == pytest.approx(7 / 8 * MODEL.num_params * (REDUCE_BYTES + 2), rel=1e-6)
    # ZeRO-3: two 16-bit gathers and a reduction per micro-batch of 4,096 tokens
    whole = moved(job(), strategy(sharding=Sharding.ZERO3)).scale_up_bytes
    assert whole == pytest.approx(8 * 7 / 8 * MODEL.num_params * (REDUCE_BYTES + 4), rel=1e-6)
    assert moved(job(lora_rank=8), strategy()).scale_up_bytes == 0
    assert moved(job(), strategy(), trains=False).scale_up_bytes == 0


def test_tensor_parallel_layers() -> None:
    """An all-reduce is 2 (t - 1) / t of the tokens; two forward, two backward per layer, and half of one again."""
    one = 2 * 7 / 8 * TOKENS * 4096 * 2
    sent = moved(job(), strategy(tp=8, shard_ranks=1)).scale_up_bytes
    assert sent == pytest.approx(36 * one * (4 + 1), rel=1e-6)
    full = moved(job(), strategy(tp=8, shard_ranks=1, recompute=Recompute.FULL)).scale_up_bytes
    assert full == pytest.approx(36 * one * (4 + 2 + 1), rel=1e-6)
    assert moved(job(), strategy(tp=8, shard_ranks=1), trains=False).scale_up_bytes == pytest.approx(36 * one * 2)


def test_context_parallel_ring() -> None:
    """(c - 1) / c of the sequence's keys and values per layer forward, twice that backward."""
    cached = TOKENS * 2 * 8 * 128 * 2 * 36
    gradients = moved(job(), strategy()).scale_up_bytes
    sent = moved(job(), strategy(cp=8)).scale_up_bytes - gradients
    assert sent == pytest.approx(3 * 7 / 8 * cached, rel=1e-6)
    assert moved(job(), strategy(cp=8), trains=False).scale_up_bytes == pytest.approx(7 / 8 * cached, rel=1e-6)


def test_pipeline_boundaries() -> None:
    """tokens d b per boundary and direction, over the NIC once the pipeline leaves a node."""
    inside = moved(job(), strategy(pp=4, num_gpus=4, shard_ranks=1))
    assert inside.scale_up_bytes == pytest.approx(2 * TOKENS * 4096 * 2)
    outside = moved(job(), strategy(pp=4, num_gpus=16, tp=4, shard_ranks=1))
    assert outside.nic_bytes == pytest.approx(2 * TOKENS * 4096 * 2 / 4)


def test_expert_parallel_exchange_is_four_per_layer_and_step() -> None:
    forward = moved(job(name="qwen3-30b-a3b"), strategy(ep=8), trains=False)
    both = moved(job(name="qwen3-30b-a3b"), strategy(ep=8))
    alone = moved(job(name="qwen3-30b-a3b"), strategy(ep=8, tp=8, shard_ranks=1), trains=False)
    assert forward.scale_up_bytes > 0
    assert both.scale_up_bytes > 2 * forward.scale_up_bytes
    assert alone.scale_up_bytes > 0


def test_memory_traffic_counts_weights_activations_and_optimizer() -> None:
    plain, full = (moved(job(), strategy(recompute=kind)).hbm_bytes for kind in (Recompute.NONE, Recompute.FULL))
    forward = moved(job(), strategy(), trains=False).hbm_bytes
    body = sum(x.num_layers * (x.attention.matmul_params + x.mlp.dense_params) for x in MODEL.layers)
    assert forward == pytest.approx(8 * 2 * (body + MODEL.embedding_params))
    assert plain > 3 * forward + 30 * MODEL.num_params
    assert full < plain, "kept activations outweigh reading the weights again"


def test_experts_read_are_those_that_tokens_visit() -> None:
    """Never all of them: 18 times too much for one DeepSeek-V3 stream."""
    model = load_model("deepseek-v3")
    one = decode_weight_bytes(model, Precision.FP8, 1, 0.0)
    many = decode_weight_bytes(model, Precision.FP8, 10**6, 0.0)
    assert one == pytest.approx(model.num_active_params, rel=0.05)
    assert many > 15 * one


def test_caches_are_read_once_per_token() -> None:
    model = load_model("gemma-3-4b")
    expected = 0.0
    for layer in model.layers:
        seen = [min(c, layer.attention.window_tokens or c) for c in range(1001, 5000)]
        expected += layer.num_layers * layer.attention.kv_elements_per_token * 2 * sum(seen)
    got = float(cache_read_bytes(model, 1000, Lengths.fixed(5000), np.ones(1))[0])
    assert got == pytest.approx(expected, rel=1e-9)
    shares = cache_read_bytes(MODEL, 1000, Lengths.fixed(5000), np.array([1.0, 8.0, 16.0]))
    assert shares[0] == pytest.approx(8 * shares[1]) and shares[2] == shares[1], "8 KV heads divide 8 times"


def test_fewest_steps_keep_tokens_and_the_longest_response() -> None:
    work = workload()
    given = engine_job(work, build_graph(work).worker(WorkerName.ROLLOUT_ENGINE))
    for slots in (1.0, 16.0, 100.0, 4096.0):
        steps = engine_steps(given, 4, slots)
        assert steps.num_full * steps.num_slots + steps.num_single == pytest.approx(steps.num_tokens)
        assert steps.num_steps >= steps.num_tokens / steps.num_slots
        assert steps.num_steps >= given.load.response.expected_maximum(1024) - 1


# ---------------------------------------------------------------------------------------------- against prices


def inputs_of(model: str, *, lora_rank: int | None = None) -> PricingInputs:
    actor = load_model(model)
    base = workload("ppo", prompts=64, group=4, reward=RewardKind.MODEL, lora_rank=lora_rank)
    work = replace(base, actor=actor, critic=actor, reward=replace(base.reward, model=actor))
    return PricingInputs(
        cross_pool_bytes_per_s=None, workload=work, graph=build_graph(work), overheads=load_overheads(), rules=None,
        across_sizes=True,
    )  # fmt: skip


def sampled(size: int, *, count: int = 60) -> np.ndarray:
    return np.unique(np.random.default_rng(7).integers(0, size, count))


SITES = [
    ("qwen3-8b", generic_node("h100"), 2),
    ("qwen3-30b-a3b", generic_node("h100"), 4),
    ("deepseek-v2-lite", generic_node("l40s"), 2),
    ("gemma-3-12b", generic_node("gb200"), 8),
    ("qwen3.5-4b", generic_node("a100-80gb"), 1),
]


@pytest.mark.parametrize(("model", "node", "num_nodes"), SITES, ids=[item[0] for item in SITES])
def test_no_strategy_of_the_space_beats_its_bytes_or_its_chain(model: str, node: NodeType, num_nodes: int) -> None:
    """Random legal strategies of every worker, far from the best ones too."""
    inputs = inputs_of(model)
    pool = Pool(name="pool", node=node, num_nodes=num_nodes, usd_per_gpu_hour=None)
    site = Site(node=node, overheads=inputs.overheads, memory_margin_ratio=0.1)
    checked = 0
    for worker in inputs.graph.workers:
        candidates = price_worker(worker, pool, inputs).candidates
        table = candidates.take(sampled(len(candidates)))
        costs = price_table(worker, table, site, inputs)
        for stage in costs.stages:
            seconds = total(stage.time_terms)
            for row in np.flatnonzero(costs.is_legal):
                if isinstance(table, RolloutTable):
                    given = engine_job(inputs.workload, worker)
                    engine = table.row(int(row))
                    slots = engine_slots(given, engine, float(stage.memory_terms["kv_cache"][row]))
                    links = engine_bytes(given, engine, slots, site)
                    tp = np.array([float(engine.tp)])
                    steps = engine_steps(given, engine.num_engines, slots)
                    groups = float(engine.attention_dp)
                    step_s = decode_step_floor_s(given.model, given.precision, tp, site, attention_dp=groups)[0]
                    waves = steps.num_tokens / slots * step_s
                    chain = max(float(decode_chain_s(given, tp, site, attention_dp=groups)[0]), float(waves))
                else:
                    assert isinstance(table, TrainerTable)
                    task = trainer_job(inputs.workload, inputs.graph, worker)
                    trains = stage.stage is task.train_stage
                    load = task.train_load if trains else dict(task.inference_loads)[stage.stage]
                    assert load is not None
                    trainer = table.row(int(row))
                    links = trainer_bytes(task, load, trainer, site, trains=trains)
                    ratio = float(recompute_ratio(table, task.model.num_layers)[row]) if trains else 0.0
                    chain = kernel_chain_s(task, site, trains=trains, recomputed=ratio)
                bounds = {
                    "HBM": links.hbm_bytes / node.gpu.hbm_bytes_per_s,
                    "scale-up": links.scale_up_bytes / node.gpu.scale_up_bytes_per_s,
                    "NIC": links.nic_bytes / node.nic_bytes_per_s,
                    "chain": chain,
                }
                for what, bound in bounds.items():
                    assert bound <= seconds[row], (stage.stage, what, bound, seconds[row], table.row(int(row)))
                checked += 1
    assert checked > 100


def test_lora_moves_adapters_only() -> None:
    work = inputs_of("qwen3-8b", lora_rank=16).workload
    given = engine_job(work, build_graph(work).worker(WorkerName.ROLLOUT_ENGINE))
    engine = RolloutStrategy(num_gpus=8, tp=2, pp=1, ep=1, engine_fraction=0.6, max_num_seqs=128, idle=EngineIdle.SLEEP)
    assert 0 < synced_bytes(given, engine) < synced_bytes(replace(given, lora_rank=None), engine) / 50
