"""Small hand-made models, GPUs and jobs for tests of the engine cost model."""

from __future__ import annotations

from planner.cost.worker import EngineJob, Site
from planner.domain.hardware import (
    CollectiveLaw,
    CollectiveOp,
    Gpu,
    KernelEfficiency,
    NetworkEfficiency,
    NodeType,
    Precision,
    Provenance,
)
from planner.domain.lengths import LengthLaw
from planner.domain.model import Attention, LayerClass, Mlp, Model
from planner.domain.overheads import Overheads
from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import EngineIdle, RolloutStrategy
from planner.domain.workload import GenerationLoad

TEST_DATA = Provenance(source="values for tests", date="2025-01-01", confidence="low")
GIB = 2.0**30


def gqa(*, hidden: int, heads: int, kv_heads: int, head_dim: int, window: int | None = None) -> Attention:
    matmul = hidden * (heads + 2 * kv_heads) * head_dim + heads * head_dim * hidden
    return Attention(
        kind="gqa", num_heads=heads, num_kv_heads=kv_heads, matmul_params=matmul, other_params=0, num_gemms=2,
        score_flop_per_pair=4.0 * heads * head_dim, window_tokens=window, state_flop_per_token=0.0,
        kv_elements_per_token=2.0 * kv_heads * head_dim, kv_is_sharded_by_tp=True, state_elements_per_sequence=0.0,
        saved_elements_per_token=1.0, replicated_saved_elements_per_token=1.0,
    )  # fmt: skip


def latent(*, hidden: int, heads: int, rank: int) -> Attention:
    return Attention(
        kind="mla", num_heads=heads, num_kv_heads=heads, matmul_params=hidden * hidden, other_params=0, num_gemms=5,
        score_flop_per_pair=640.0 * heads, window_tokens=None, state_flop_per_token=0.0,
        kv_elements_per_token=float(rank), kv_is_sharded_by_tp=False, state_elements_per_sequence=0.0,
        saved_elements_per_token=1.0, replicated_saved_elements_per_token=1.0,
    )  # fmt: skip


def recurrent(*, hidden: int, state: float) -> Attention:
    return Attention(
        kind="mamba2", num_heads=16, num_kv_heads=16, matmul_params=4 * hidden * hidden, other_params=0, num_gemms=2,
        score_flop_per_pair=0.0, window_tokens=None, state_flop_per_token=4 * state, kv_elements_per_token=0.0,
        kv_is_sharded_by_tp=True, state_elements_per_sequence=state, saved_elements_per_token=1.0,
        replicated_saved_elements_per_token=1.0,
    )  # fmt: skip


def dense_mlp(*, hidden: int, width: int) -> Mlp:
    return Mlp(
        dense_params=3 * hidden * width, other_params=0, num_gemms=2, num_experts=0, num_active_experts=0,
        params_per_expert=0, expert_hidden_size=0, saved_elements_per_token=1.0, saved_elements_per_routed_token=0.0,
        replicated_saved_elements_per_token=1.0,
    )  # fmt: skip


def moe_mlp(*, hidden: int, width: int, experts: int, active: int) -> Mlp:
    return Mlp(
        dense_params=hidden * experts, other_params=0, num_gemms=1, num_experts=experts, num_active_experts=active,
        params_per_expert=3 * hidden * width, expert_hidden_size=width, saved_elements_per_token=1.0,
        saved_elements_per_routed_token=1.0, replicated_saved_elements_per_token=1.0,
    )  # fmt: skip


def model(*layers: tuple[int, Attention, Mlp], hidden: int, vocab: int = 151936) -> Model:
    classes = tuple(
        LayerClass(name=f"class {i}", num_layers=count, attention=attention, mlp=mlp, norm_params=2 * hidden)
        for i, (count, attention, mlp) in enumerate(layers)
    )
    return Model(
        id="test", hf_repo="test/test", architecture="Test", hidden_size=hidden, vocab_size=vocab,
        is_embedding_tied=False, layers=classes, extra_params=hidden, mtp_params=0, max_positions=None,
    )  # fmt: skip


DENSE = model(
    (64, gqa(hidden=5120, heads=64, kv_heads=8, head_dim=128), dense_mlp(hidden=5120, width=25600)), hidden=5120
)
"""The shape of Qwen3-32B."""
SPARSE = model(
    (
        48,
        gqa(hidden=2048, heads=32, kv_heads=4, head_dim=128),
        moe_mlp(hidden=2048, width=768, experts=128, active=8),
    ),
    hidden=2048,
)
"""The shape of Qwen3-30B-A3B."""
LATENT = model((24, latent(hidden=4096, heads=32, rank=576), dense_mlp(hidden=4096, width=11008)), hidden=4096)
HYBRID = model(
    (12, gqa(hidden=4096, heads=32, kv_heads=8, head_dim=128), dense_mlp(hidden=4096, width=11008)),
    (12, gqa(hidden=4096, heads=32, kv_heads=8, head_dim=128, window=1024), dense_mlp(hidden=4096, width=11008)),
    (12, recurrent(hidden=4096, state=5e5), dense_mlp(hidden=4096, width=11008)),
    hidden=4096,
)


def kernel(flop_ratio: float = 0.79) -> KernelEfficiency:
    return KernelEfficiency(
        gemm_flop_ratio=flop_ratio, gemm_hbm_ratio=0.87, gemm_launch_s=3.65e-6, attention_flop_ratio=0.66,
        attention_half_tokens=980.0, decode_attention_hbm_ratio=0.88, decode_attention_launch_s=12.7e-6,
        moe_gemm_flop_ratio=0.43, moe_hbm_ratio=0.87, moe_launch_s=14.8e-6, weight_only_hbm_ratio=0.8,
        weight_only_flop_ratio=0.4, weight_only_launch_s=15e-6, training_flop_ratio=0.87, training_moe_flop_ratio=0.67,
    )  # fmt: skip


def node(
    *,
    memory_bytes: float = 80e9,
    hbm_bytes_per_s: float = 3.35e12,
    peak_flop_per_s: float = 989e12,
    scale_up_bytes_per_s: float = 4e11,
    nic_bytes_per_s: float = 5e10,
) -> NodeType:
    law = CollectiveLaw(
        num_ranks=(2, 4, 8),
        alpha_s=(6e-6, 9e-6, 15e-6),
        bytes_per_s=(scale_up_bytes_per_s,) * 3,
        gamma_s=(6e-9, 5e-9, 6e-9),
    )
    gpu = Gpu(
        id="test", name="Test", vendor="test", architecture="Test", memory_bytes=memory_bytes,
        hbm_bytes_per_s=hbm_bytes_per_s,
        peak_flop_per_s=((Precision.BF16, peak_flop_per_s), (Precision.FP8, 2 * peak_flop_per_s)),
        scale_up_kind="nvlink_switch", scale_up_bytes_per_s=scale_up_bytes_per_s, host_link_bytes_per_s=64e9,
        kernels=((Precision.BF16, kernel()), (Precision.FP8, kernel(0.52))),
        collectives=tuple((op, law) for op in CollectiveOp), provenance=TEST_DATA,
    )  # fmt: skip
    network = NetworkEfficiency(
        nic_ratio=0.8, nic_half_bytes=1e6, nic_latency_s=2e-5, nic_latency_per_log2_s=3e-6, host_link_ratio=0.85,
        host_node_bytes_per_s=300e9, host_memory_bytes_per_s=400e9,
    )  # fmt: skip
    return NodeType(
        id="test", name="Test", gpu=gpu, gpus_per_node=8, scale_up_domain_gpus=8, nic_bytes_per_s=nic_bytes_per_s,
        host_ram_bytes=2048 * GIB, network=network, price=None, provenance=TEST_DATA,
    )  # fmt: skip


OVERHEADS = Overheads(
    context_bytes=0.75 * GIB, communicator_bytes=0.1 * GIB, first_communicator_bytes=0.36 * GIB,
    fragmentation_ratio=0.06, engine_activation_factor=6.0, engine_batched_tokens=8192.0, engine_graph_bytes=GIB,
    engine_sleep_bytes=1.5 * GIB, engine_step_s=7e-4, engine_step_per_sequence_s=5e-6, engine_wake_s=1.5,
    engine_prefill_step_s=2e-3, engine_mixes_prefill=True, engine_all_reduce_latency_ratio=0.65,
    engine_launch_ratio=1.0, engine_stream_per_sequence_s=5e-5, expert_popularity_variance=0.0,
    elementwise_launch_s=2.5e-6, train_kernel_launch_s=5e-6, optimizer_host_s=0.012, swap_transition_s=1.0,
    sync_fixed_s=0.8, sync_per_tensor_s=2e-4, sync_bucket_bytes=GIB, sync_gather_ratio=0.67, stage_switch_s=0.5,
    logits_bytes_per_element=8.0, logprob_logits_bytes_per_element=8.0, provenance=TEST_DATA,
)  # fmt: skip


def site(node_type: NodeType | None = None) -> Site:
    return Site(node=node_type or node(), overheads=OVERHEADS, memory_margin_ratio=0.1)


def job(
    model: Model = DENSE,
    *,
    num_sequences: int = 4096,
    response: LengthLaw | None = None,
    precision: Precision = Precision.BF16,
    receives_weights: bool = True,
    lora_rank: int | None = None,
) -> EngineJob:
    return EngineJob(
        worker=WorkerName.ROLLOUT_ENGINE,
        model=model,
        stage=StageName.ROLLOUT,
        load=GenerationLoad(
            num_sequences=num_sequences,
            num_shared=16,
            prompt_mean_tokens=512.0,
            prompt_max_tokens=1024,
            response=response or LengthLaw(mean_tokens=4096.0, cv=0.6, max_tokens=8192),
        ),
        precision=precision,
        receives_weights=receives_weights,
        lora_rank=lora_rank,
    )


def strategy(
    *,
    num_gpus: int = 32,
    tp: int = 4,
    pp: int = 1,
    ep: int = 1,
    engine_fraction: float = 0.8,
    max_num_seqs: int = 256,
    idle: EngineIdle = EngineIdle.SLEEP,
) -> RolloutStrategy:
    return RolloutStrategy(
        num_gpus=num_gpus, tp=tp, pp=pp, ep=ep, engine_fraction=engine_fraction, max_num_seqs=max_num_seqs, idle=idle
    )
