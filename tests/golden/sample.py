"""Hand-built plans: the numbers are plausible and fixed, so that a change of the report or the JSON is visible."""

from __future__ import annotations

from dataclasses import replace

from planner.domain.bands import Band
from planner.domain.hardware import (
    Cluster,
    CollectiveLaw,
    CollectiveOp,
    Gpu,
    KernelEfficiency,
    NetworkEfficiency,
    NodeType,
    Pool,
    Precision,
    Price,
    Provenance,
)
from planner.domain.plan import (
    Alternative,
    Assumption,
    DeviceGroup,
    FrameworkVerdict,
    GpuMemory,
    HostRam,
    Limits,
    NamedValue,
    Placement,
    Plan,
    RunReport,
    ScheduledStage,
    SearchReport,
    Status,
)
from planner.domain.stages import Role, StageName, WorkerName
from planner.domain.strategy import (
    ContextParallel,
    EngineIdle,
    Offload,
    Recompute,
    RolloutStrategy,
    Sharding,
    TrainerStrategy,
)
from planner.units import GB, GIB
from tests.factories import workload

SOURCE = Provenance(source="hand-built for tests", date="2026-11-01", confidence="low")


def gpu() -> Gpu:
    """An H100-like GPU."""
    kernel = KernelEfficiency(
        gemm_flop_ratio=0.7, gemm_hbm_ratio=0.85, gemm_launch_s=5e-6, attention_flop_ratio=0.6,
        attention_half_tokens=512.0, decode_attention_hbm_ratio=0.8, decode_attention_launch_s=8e-6,
        moe_gemm_flop_ratio=0.43, moe_hbm_ratio=0.85, moe_launch_s=15e-6, weight_only_hbm_ratio=0.8,
        weight_only_flop_ratio=0.4, weight_only_launch_s=15e-6, training_flop_ratio=0.87,
        training_moe_flop_ratio=0.66,
    )  # fmt: skip
    law = CollectiveLaw(num_ranks=(2, 8), alpha_s=(1e-5, 2e-5), bytes_per_s=(3e11, 3.6e11), gamma_s=(1e-9, 2e-9))
    return Gpu(
        id="h100-sxm", name="H100-SXM5-80GB", vendor="nvidia", architecture="Hopper", memory_bytes=81559 * 2.0**20,
        hbm_bytes_per_s=3.35e12, peak_flop_per_s=((Precision.BF16, 989.4e12), (Precision.FP8, 1978.9e12)),
        scale_up_kind="NVLink4", scale_up_bytes_per_s=450 * GB, host_link_bytes_per_s=63 * GB,
        kernels=((Precision.BF16, kernel), (Precision.FP8, kernel)),
        collectives=((CollectiveOp.ALL_REDUCE, law), (CollectiveOp.ALL_GATHER, law)), provenance=SOURCE,
    )  # fmt: skip


def node(*, price: bool = True) -> NodeType:
    """A generic node of eight."""
    network = NetworkEfficiency(
        nic_ratio=0.8, nic_half_bytes=4e6, nic_latency_s=1e-5, nic_latency_per_log2_s=2e-6, host_link_ratio=0.85,
        host_node_bytes_per_s=200 * GB, host_memory_bytes_per_s=400 * GB,
    )  # fmt: skip
    listed = Price(usd_per_gpu_hour=6.88, provider="AWS", region="us-east-1", date="2026-11-01", kind="on-demand")
    return NodeType(
        id="generic-h100-sxm", name="Generic 8x H100", gpu=gpu(), gpus_per_node=8, scale_up_domain_gpus=8,
        nic_bytes_per_s=50 * GB, host_ram_bytes=2048 * GIB, network=network, price=listed if price else None,
        provenance=SOURCE,
    )  # fmt: skip


def terms(**values: float) -> tuple[NamedValue, ...]:
    """Named values in the order given."""
    return tuple(NamedValue(name=name.replace("__", ": ").replace("_engine", " engine"), value=value)
                 for name, value in values.items())  # fmt: skip


def memory(instant: str, values: tuple[NamedValue, ...]) -> GpuMemory:
    """GPU memory with values in GiB."""
    scaled = tuple(NamedValue(name=item.name, value=item.value * GIB) for item in values)
    return GpuMemory(instant=instant, terms=scaled, usable_bytes=0.9 * 81559 * 2.0**20)


def host(**values: float) -> HostRam:
    """Host RAM with values in GiB."""
    return HostRam(terms=tuple(NamedValue(name=n, value=v * GIB) for n, v in values.items()), usable_bytes=2048 * GIB)


TRAINER = TrainerStrategy(
    num_gpus=32, tp=8, pp=1, vpp=1, cp=1, context_parallel=ContextParallel.RING, ep=1, etp=1, sharding=Sharding.ZERO1,
    shard_ranks=4, micro_batch_tokens=9216, inference_tokens=36864, recompute=Recompute.FULL,
    offload=Offload.OPTIMIZER_SWAP,
)  # fmt: skip
ENGINE = RolloutStrategy(num_gpus=32, tp=4, pp=1, ep=1, engine_fraction=0.8, max_num_seqs=512, idle=EngineIdle.SLEEP)


def grpo_plan(*, run: bool = False) -> Plan:
    """GRPO on 32 GPUs, everything on one device group."""
    group = DeviceGroup(id="g0", pool="h100", gpu="H100-SXM5-80GB", first_gpu=0, num_gpus=32, num_nodes=4)
    reference = replace(TRAINER, sharding=Sharding.ZERO3, shard_ranks=32, tp=1, recompute=Recompute.NONE,
                        offload=Offload.STATE_SWAP)  # fmt: skip
    placements = (
        Placement(
            stage=StageName.ROLLOUT, role=Role.ACTOR, worker=WorkerName.ROLLOUT_ENGINE, strategy=ENGINE,
            time_terms=terms(weight_read=61.25, kv_read=44.5, prefill=3.125, launch=9.75, engine_host=21.5, tail=12.0,
                             wake=1.5, switch=1.25),
            bound_by="HBM", host_ram=host(weights_staging=61.0),
            gpu_memory=memory("decode", terms(weights=15.3, kv_cache=43.1, engine_workspace=3.2, context=0.6,
                                              idle__actor_trainer=0.9, idle__reference=0.4)),
            model="qwen3-32b", device_group="g0",
        ),
        Placement(
            stage=StageName.REWARD, role=Role.REWARD, worker=None, model="", device_group="", strategy=None,
            time_terms=(), bound_by="host", gpu_memory=None, host_ram=None,
        ),
        Placement(
            stage=StageName.REFERENCE_LOGPROB, role=Role.REFERENCE, worker=WorkerName.REFERENCE, strategy=reference,
            time_terms=terms(gemm=30.25, attention=5.5, dp_scale_out=1.5, reload=0.75, switch=1.25),
            bound_by="compute", host_ram=host(host_weights=16.0),
            gpu_memory=memory("forward with logits", terms(weights=1.9, unsharded=3.6, activations=6.2, logits=10.4,
                                                           context=0.6, idle__rollout_engine=1.5)),
            model="qwen3-32b", device_group="g0",
        ),
        Placement(
            stage=StageName.OLD_LOGPROB, role=Role.ACTOR, worker=WorkerName.ACTOR_TRAINER, strategy=TRAINER,
            time_terms=terms(gemm=29.5, attention=5.25, tp_scale_up=6.5, reload=0.25, switch=1.25),
            bound_by="compute", host_ram=host(host_optimizer=320.0, pinned=8.0),
            gpu_memory=memory("forward with logits", terms(weights=7.7, activations=4.1, logits=2.6, context=0.6,
                                                           idle__rollout_engine=1.5)),
            model="qwen3-32b", device_group="g0",
        ),
        Placement(
            stage=StageName.ACTOR_UPDATE, role=Role.ACTOR, worker=WorkerName.ACTOR_TRAINER, strategy=TRAINER,
            time_terms=terms(gemm=88.5, attention=18.25, recompute=34.75, tp_scale_up=21.5, dp_scale_out=2.5,
                             optimizer=0.5, imbalance=4.25, launch=1.25, reload=3.5, switch=1.25),
            bound_by="compute", host_ram=host(host_optimizer=320.0, pinned=8.0),
            gpu_memory=memory("first optimizer step", terms(weights=7.7, gradients=15.3, optimizer=11.5,
                                                            activations=6.25, logits=5.2, communicator=2.1,
                                                            context=0.6, fragmentation=1.4,
                                                            idle__rollout_engine=1.5)),
            model="qwen3-32b", device_group="g0",
        ),
        Placement(
            stage=StageName.WEIGHT_SYNC, role=Role.ACTOR, worker=None, strategy=None,
            time_terms=terms(sync_gather=0.75, sync_load=0.5, sync_fixed=0.75), bound_by="NVLink",
            gpu_memory=memory("weight sync", terms(weights=7.7, buckets=2.0, engine_weights=15.3, context=1.2)),
            host_ram=None, model="qwen3-32b", device_group="g0",
        ),
    )  # fmt: skip
    schedule, clock = [], 0.0
    for placement in placements:
        groups = ("g0",) if placement.device_group else ()
        end = clock + placement.time_s
        schedule.append(ScheduledStage(stage=placement.stage, device_groups=groups, start_s=clock, end_s=end))
        clock = end
    return Plan(
        status=Status.OPTIMAL,
        workload=workload(),
        cluster=Cluster(pools=(Pool(name="h100", node=node(), num_nodes=4, usd_per_gpu_hour=6.88),)),
        limits=Limits(framework="verl"),
        objective_unit="s",
        objective_value=clock,
        bound=clock - 0.25,
        device_groups=(group,),
        placements=placements,
        schedule=tuple(schedule),
        search=SearchReport(
            num_priced=184_320,
            num_rejected=(
                NamedValue(name="GPU memory", value=41_212),
                NamedValue(name="verl: engine spans the pool", value=9_216),
                NamedValue(name="heads not divisible by tp", value=768),
            ),
            num_pruned=132_870, num_structures=5, num_structures_solved=1, solver="cpsat",
        ),
        alternatives=(
            Alternative(description="rollout on 16 GPUs, the rest on 16", time_s=clock * 1.21, num_gpus=32),
            Alternative(description="reference on its own 8 GPUs", time_s=clock * 1.34, num_gpus=32),
        ),
        frameworks=(
            FrameworkVerdict(framework="verl 0.9.1", can_run=True, reasons=()),
            FrameworkVerdict(framework="nemo-rl 0.4", can_run=False, reasons=("reference must share the layout",)),
        ),
        assumptions=(
            Assumption(what="mean response", value="4096 tokens, half of the longest", source="default",
                       effect="rollout and update time grow with it; measure yours and give --response-mean"),
            Assumption(what="response spread", value="CV 0.6, clipped lognormal", source="default",
                       effect="a wider spread lengthens the rollout tail"),
            Assumption(what="node of h100", value="8 GPUs, 400 Gbit/s NIC per GPU, 2.00 TiB host RAM",
                       source="generic node", effect="less host RAM forbids offload"),
            Assumption(what="price of h100", value="6.88 USD per GPU-hour", source="AWS us-east-1, 2026-11-01"),
        ),
        time_band=Band(low_ratio=0.8, high_ratio=1.45, coverage_ratio=0.8, num_near_rows=3,
                       nearest_row="nemorl-v0.6-07 (qwen3-32b on h100-sxm, NeMo-RL)"),
        memory_band=Band(low_ratio=0.95, high_ratio=1.125, coverage_ratio=0.8, num_near_rows=0, nearest_row=""),
        run=RunReport(time_s=0.84, time_to_first_s=0.31, peak_rss_bytes=2.4e8) if run else None,
    )  # fmt: skip


def split_plan() -> Plan:
    """The same job on two device groups of one pool, without a price, with a worse bound."""
    base = grpo_plan()
    groups = (
        DeviceGroup(id="g0", pool="h100", gpu="H100-SXM5-80GB", first_gpu=0, num_gpus=16, num_nodes=2),
        DeviceGroup(id="g1", pool="h100", gpu="H100-SXM5-80GB", first_gpu=16, num_gpus=16, num_nodes=2),
    )
    engine = replace(ENGINE, num_gpus=16)
    reference = replace(TRAINER, num_gpus=16, tp=1, sharding=Sharding.ZERO3, shard_ranks=16)
    trainer = replace(TRAINER, num_gpus=16, shard_ranks=2)
    placements = tuple(
        replace(p, strategy=engine)
        if p.stage is StageName.ROLLOUT
        else replace(p, device_group="g1", strategy=reference if p.worker is WorkerName.REFERENCE else trainer)
        if p.worker is not None
        else p
        for p in base.placements
    )
    schedule = tuple(
        replace(s, device_groups=("g0", "g1") if s.stage is StageName.WEIGHT_SYNC else s.device_groups)
        if s.stage in (StageName.WEIGHT_SYNC, StageName.ROLLOUT) or not s.device_groups
        else replace(s, device_groups=("g1",))
        for s in base.schedule
    )
    pool = replace(base.cluster.pools[0], usd_per_gpu_hour=None)
    return replace(
        base,
        status=Status.FEASIBLE,
        bound=base.bound * 0.9,
        device_groups=groups,
        placements=placements,
        schedule=schedule,
        cluster=replace(base.cluster, pools=(pool,)),
        assumptions=(),
        time_band=None,
        memory_band=None,
    )
