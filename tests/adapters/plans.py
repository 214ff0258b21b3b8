"""Plans written by hand, as the pipeline would make them, for adapter tests."""

from __future__ import annotations

from dataclasses import replace

from planner.domain.hardware import Cluster, Gpu, NetworkEfficiency, NodeType, Pool, Provenance
from planner.domain.model import LayerClass, Model
from planner.domain.plan import (
    DeviceGroup,
    GpuMemory,
    Limits,
    NamedValue,
    Placement,
    Plan,
    ScheduledStage,
    SearchReport,
    Status,
)
from planner.domain.stages import StageKind, WorkerName, build_graph
from planner.domain.strategy import (
    ContextParallel,
    EngineIdle,
    Offload,
    Recompute,
    RolloutStrategy,
    Sharding,
    Strategy,
    TrainerStrategy,
)
from planner.domain.workload import Workload
from tests.factories import dense_model

PROVENANCE = Provenance(source="test", date="2026-01-01", confidence="low")
GIB = 2.0**30


def node(gpus_per_node: int = 8) -> NodeType:
    gpu = Gpu(
        id="h100", name="H100", vendor="NVIDIA", architecture="hopper", memory_bytes=80 * GIB,
        hbm_bytes_per_s=3.35e12, peak_flop_per_s=(), scale_up_kind="NVLink", scale_up_bytes_per_s=450e9,
        host_link_bytes_per_s=50e9, kernels=(), collectives=(), provenance=PROVENANCE,
    )  # fmt: skip
    network = NetworkEfficiency(
        nic_ratio=0.9, nic_half_bytes=1e6, nic_latency_s=1e-5, nic_latency_per_log2_s=1e-6, host_link_ratio=0.8,
        host_node_bytes_per_s=2e11, host_memory_bytes_per_s=4e11,
    )  # fmt: skip
    return NodeType(
        id="hgx-h100", name="HGX H100", gpu=gpu, gpus_per_node=gpus_per_node, scale_up_domain_gpus=gpus_per_node,
        nic_bytes_per_s=5e10, host_ram_bytes=2048 * GIB, network=network, price=None, provenance=PROVENANCE,
    )  # fmt: skip


def fsdp(num_gpus: int, *, cp: int = 4, **changes: object) -> TrainerStrategy:
    strategy = TrainerStrategy(
        num_gpus=num_gpus, tp=1, pp=1, vpp=1, cp=cp, context_parallel=ContextParallel.ULYSSES, ep=1, etp=1,
        sharding=Sharding.ZERO3, shard_ranks=num_gpus, micro_batch_tokens=36864, inference_tokens=73728,
        recompute=Recompute.FULL, offload=Offload.STATE_SWAP,
    )  # fmt: skip
    return replace(strategy, **changes)  # type: ignore[arg-type]


def megatron(num_gpus: int, *, tp: int = 4, pp: int = 2, cp: int = 1, **changes: object) -> TrainerStrategy:
    strategy = TrainerStrategy(
        num_gpus=num_gpus, tp=tp, pp=pp, vpp=1, cp=cp, context_parallel=ContextParallel.RING, ep=1, etp=1,
        sharding=Sharding.ZERO1, shard_ranks=num_gpus // (tp * pp), micro_batch_tokens=18432,
        inference_tokens=36864, recompute=Recompute.FULL, offload=Offload.STATE_SWAP,
    )  # fmt: skip
    return replace(strategy, **changes)  # type: ignore[arg-type]


def forward_only(strategy: TrainerStrategy) -> TrainerStrategy:
    """The same layout for a worker that only runs forward passes."""
    sharding = Sharding.ZERO3 if strategy.sharding is Sharding.ZERO3 else Sharding.DDP
    whole = replace(strategy, recompute=Recompute.NONE, recompute_layers=0)
    return replace(whole, sharding=sharding, offload=Offload.STATE_SWAP, vpp=1)


def engine(num_gpus: int, *, tp: int = 4, **changes: object) -> RolloutStrategy:
    strategy = RolloutStrategy(
        num_gpus=num_gpus, tp=tp, pp=1, ep=1, engine_fraction=0.6, max_num_seqs=256, idle=EngineIdle.SLEEP
    )
    return replace(strategy, **changes)  # type: ignore[arg-type]


def moe_model(*, layers: int = 48, experts: int = 128) -> Model:
    """A model whose layers all have routed experts."""
    base = dense_model(hidden=2048, layers=layers, heads=32, kv_heads=4, width=6144)
    layer = base.layers[0]
    mlp = replace(
        layer.mlp, dense_params=2048 * experts, num_experts=experts, num_active_experts=8,
        params_per_expert=3 * 2048 * 768, expert_hidden_size=768,
    )  # fmt: skip
    expert_layer = LayerClass(
        name="moe", num_layers=layers, attention=layer.attention, mlp=mlp, norm_params=layer.norm_params
    )
    return replace(base, id="moe-test", hf_repo="test/moe", layers=(expert_layer,))


def make_plan(
    workload: Workload,
    strategies: dict[WorkerName, Strategy],
    *,
    num_nodes: int = 4,
    reward_nodes: int = 0,
) -> Plan:
    """All workers on one group of `num_nodes` nodes; the reward model on `reward_nodes` further ones if given."""
    pool = Pool(name="pool", node=node(), num_nodes=num_nodes + reward_nodes, usd_per_gpu_hour=2.0)
    groups = [DeviceGroup(id="g0", pool="pool", gpu="h100", first_gpu=0, num_gpus=8 * num_nodes, num_nodes=num_nodes)]
    if reward_nodes:
        groups.append(
            DeviceGroup(
                id="g1", pool="pool", gpu="h100", first_gpu=8 * num_nodes, num_gpus=8 * reward_nodes,
                num_nodes=reward_nodes,
            )
        )  # fmt: skip
    graph = build_graph(workload)
    placements: list[Placement] = []
    schedule: list[ScheduledStage] = []
    for i, stage in enumerate(graph.stages):
        on_reward_nodes = bool(reward_nodes) and stage.worker is WorkerName.REWARD_MODEL
        group = groups[1] if on_reward_nodes else groups[0]
        has_gpus = stage.kind is not StageKind.HOST
        memory = GpuMemory(
            instant="peak",
            terms=(NamedValue(name="weights", value=30 * GIB), NamedValue(name="idle: others", value=20 * GIB)),
            usable_bytes=72 * GIB,
        )
        placements.append(
            Placement(
                stage=stage.name, role=stage.role, worker=stage.worker, model="test/model", device_group=group.id,
                strategy=None if stage.worker is None else strategies[stage.worker],
                time_terms=(NamedValue(name="gemm", value=10.0),), bound_by="compute",
                gpu_memory=memory if has_gpus and stage.worker is not None else None, host_ram=None,
            )
        )  # fmt: skip
        schedule.append(
            ScheduledStage(stage=stage.name, device_groups=(group.id,), start_s=10.0 * i, end_s=10.0 * (i + 1))
        )
    return Plan(
        status=Status.OPTIMAL, workload=workload, cluster=Cluster(pools=(pool,)), limits=Limits(),
        objective_unit="s", objective_value=100.0, bound=100.0, device_groups=tuple(groups),
        placements=tuple(placements), schedule=tuple(schedule),
        search=SearchReport(num_priced=1, num_rejected=(), num_pruned=0, num_structures=1, num_structures_solved=1,
                            solver="test"),
        alternatives=(), frameworks=(), assumptions=(),
    )  # fmt: skip


def colocated(workload: Workload, trainer: TrainerStrategy, rollout: RolloutStrategy) -> dict[WorkerName, Strategy]:
    """One trainer layout for actor, reference, critic and reward model."""
    return {
        WorkerName.ROLLOUT_ENGINE: rollout,
        WorkerName.ACTOR_TRAINER: trainer,
        WorkerName.REFERENCE: forward_only(trainer),
        WorkerName.CRITIC_TRAINER: trainer,
        WorkerName.REWARD_MODEL: replace(
            forward_only(megatron(trainer.num_gpus, tp=4, pp=1)), inference_tokens=4 * workload.max_tokens
        ),
    }


def cases() -> dict[str, Plan]:
    """Plans that verl can run, by name: each exercises other keys."""
    from planner.domain.hardware import Precision
    from planner.domain.workload import RewardKind
    from tests.factories import workload

    plans: dict[str, Plan] = {}

    def add(name: str, load: Workload, trainer: TrainerStrategy, rollout: RolloutStrategy, **sizes: int) -> None:
        plans[name] = make_plan(load, colocated(load, trainer, rollout), **sizes)

    grpo = workload()
    add("grpo-fsdp", grpo, fsdp(32), engine(32))
    add(
        "grpo-fsdp-hsdp",
        grpo,
        fsdp(32, cp=1, shard_ranks=8, offload=Offload.NONE, recompute=Recompute.NONE),
        engine(32, idle=EngineIdle.RESIDENT),
    )
    add("grpo-fsdp-optimizer-swap", grpo, fsdp(32, cp=2, offload=Offload.OPTIMIZER_SWAP), engine(32))
    add("grpo-megatron", grpo, megatron(32), engine(32))
    add("grpo-megatron-vpp", grpo, megatron(32, vpp=2), engine(32))
    add("grpo-megatron-cp-cpu", grpo, megatron(32, cp=2, offload=Offload.CPU_OPTIMIZER), engine(32))
    add("grpo-megatron-cpu-swap", grpo, megatron(32, offload=Offload.CPU_OPTIMIZER_STATE_SWAP), engine(32))
    add(
        "grpo-megatron-ddp-plain",
        grpo,
        megatron(32, sharding=Sharding.DDP, offload=Offload.NONE, recompute=Recompute.NONE),
        engine(32),
    )
    add("grpo-one-node", grpo, fsdp(8, cp=1), engine(8, tp=2), num_nodes=1)
    uneven = replace(grpo, actor=dense_model(layers=62))
    add("grpo-megatron-uneven", uneven, megatron(32, tp=2, pp=8), engine(32))
    moe = replace(grpo, actor=moe_model())
    add("grpo-moe", moe, megatron(32, tp=4, pp=1, ep=8, etp=1, recompute=Recompute.SELECTIVE), engine(32, ep=4))
    add("grpo-fp8-rollout", replace(grpo, rollout_precision=Precision.FP8), megatron(32), engine(32))
    add("ppo-fsdp", workload("ppo"), fsdp(32), engine(32))
    add("ppo-megatron", workload("ppo", group=4), megatron(32), engine(32))
    add("ppo-reward-model-shared", workload("ppo", reward=RewardKind.MODEL), megatron(32), engine(32))
    add("ppo-reward-model-alone", workload("ppo", reward=RewardKind.MODEL), fsdp(32), engine(32), reward_nodes=1)
    add("vapo", workload("vapo"), megatron(32), engine(32))
    add("dapo", workload("dapo"), fsdp(32), engine(32))
    add("dr-grpo", workload("dr-grpo"), fsdp(32), engine(32))
    add("gspo", workload("gspo"), megatron(32), engine(32))
    add("rloo", workload("rloo", group=4), fsdp(32), engine(32))
    add("reinforce++", workload("reinforce++", group=8), megatron(32), engine(32))
    add("grpo-lora-fsdp", workload(lora_rank=32), fsdp(32), engine(32))
    add("grpo-lora-megatron", workload(lora_rank=32), megatron(32), engine(32))
    add("grpo-sandbox", workload(reward=RewardKind.SANDBOX), fsdp(32), engine(32))
    judged = workload(reward=RewardKind.JUDGE)
    placed = colocated(judged, fsdp(32), engine(32))
    placed[WorkerName.REWARD_MODEL] = engine(8, idle=EngineIdle.RESIDENT)
    plans["grpo-judge"] = make_plan(judged, placed, reward_nodes=1)
    alone = make_plan(
        workload("ppo", reward=RewardKind.MODEL),
        {**colocated(grpo, fsdp(32), engine(32)), WorkerName.REWARD_MODEL: forward_only(megatron(8, pp=1))},
        reward_nodes=1,
    )
    plans["ppo-reward-model-alone"] = alone
    return plans


HOSTILE = "/models/my model's \"x\" $(touch pwned) `id` ${oc.env:HOME} a,b=[1] \\\nnext; rm -rf \\'"


def hostile_case() -> Plan:
    """A model path with everything that a shell, Hydra or OmegaConf could take for syntax."""
    from tests.factories import workload

    load = workload("ppo")
    bad = replace(load.actor, hf_repo=HOSTILE)
    load = replace(load, actor=bad, critic=bad)
    return make_plan(load, colocated(load, fsdp(32), engine(32)))
