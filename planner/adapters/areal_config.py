"""A plan as the YAML of AReaL 1.0.4 (`PPOConfig` of areal/api/cli_args.py).

Units that differ from the plan's: `batch_size`, `consumer_batch_size` and `max_concurrent_rollouts` count prompts
(one rollout is a whole group); `max_tokens_per_mb` is per data-parallel rank, all context-parallel ranks together,
as in a plan; there is one token budget per role for forward passes and for the update.
"""

from __future__ import annotations

from planner.adapters.areal_context import ROLES, ArealContext, Entries
from planner.adapters.areal_loss import loss_entries, off_policy_entries
from planner.adapters.export import execution_text, model_path
from planner.adapters.overrides import UserText
from planner.adapters.sglang import ENGINE_TOKENS, max_running_requests, static_memory_fraction
from planner.adapters.yaml_text import Block, FlowMap, YamlValue
from planner.domain.framework_placed import worker_model
from planner.domain.stages import WorkerName
from planner.domain.strategy import Offload, Recompute, Sharding, TrainerStrategy
from planner.domain.workload import Workload

CPUS_PER_GPU = 4
HOST_GB_PER_GPU = 32
"""What AReaL's schedulers reserve per worker; modest, so that no node is too small for them."""


def config_blocks(context: ArealContext) -> tuple[Block, ...]:
    """The whole configuration, in the order in which AReaL's own examples have it."""
    trainers = tuple(_trainer(context, name) for name in ROLES if name in context.workers)
    return (
        _run(context),
        _cluster(context),
        _scheduler(context),
        _rollout(context),
        _generation(context),
        *trainers,
        _vllm(context) if context.engine_kind == "vllm" else _sglang(context),
        _data(context),
        *_bookkeeping(),
    )


def training_backend(strategy: TrainerStrategy, backend: str, *, is_moe: bool) -> str:
    """The `backend` string: `fsdp:d8c2`, `megatron:d2p2t4`, or with experts `megatron:(attn:...|ffn:...)`.

    Experts are always written in the folded form, because only that one has a TP degree for them.
    """
    if backend == "fsdp":
        return f"fsdp:d{strategy.dp}t{strategy.tp}c{strategy.cp}"
    dims = f"d{strategy.dp}p{strategy.pp}t{strategy.tp}c{strategy.cp}"
    if not is_moe:
        return f"megatron:{dims}"
    expert_dp = strategy.num_gpus // (strategy.pp * strategy.ep * strategy.etp)
    return f"megatron:(attn:{dims}|ffn:d{expert_dp}p{strategy.pp}t{strategy.etp}e{strategy.ep})"


def shared_budget(strategy: TrainerStrategy, *, trains: bool) -> int:
    """Tokens of a micro-batch: a role has one budget for forward passes and update, so the smaller one."""
    return min(strategy.micro_batch_tokens, strategy.inference_tokens) if trains else strategy.inference_tokens


def _run(context: ArealContext) -> Block:
    return Block(
        path="",
        decisions=(),
        entries=(
            ("experiment_name", f"rlplan-{context.workload.algorithm.name}"),
            ("trial_name", "trial0"),
            ("seed", 1),
            # Switches AReaL's memory saver on in every worker; each role says itself whether it leaves its GPUs.
            ("enable_offload", context.has_offload),
            ("total_train_epochs", 1),
            ("tokenizer_path", "${actor.path}"),
            ("dynamic_bs", context.workload.algorithm.oversampling_ratio > 1),
        ),
    )


def _cluster(context: ArealContext) -> Block:
    groups = ", ".join(f"{group.id}: {group.num_gpus} x {group.gpu}" for group in context.plan.device_groups)
    return Block(
        path="cluster",
        decisions=(f"device groups {groups}",),
        entries=(
            ("n_nodes", context.num_nodes),
            ("n_gpus_per_node", context.gpus_per_node),
            ("fileroot", "${oc.env:AREAL_FILEROOT}"),
            ("name_resolve.type", "nfs"),
            ("name_resolve.nfs_record_root", "${oc.env:AREAL_FILEROOT}/name_resolve"),
        ),
    )


def _scheduler(context: ArealContext) -> Block:
    is_local = context.num_nodes == 1
    return Block(
        path="scheduler",
        decisions=("one node: processes on this machine" if is_local else "several nodes: workers of a Ray cluster",),
        entries=(("type", "local" if is_local else "ray"),),
    )


def _names() -> Entries:
    return (("experiment_name", "${experiment_name}"), ("trial_name", "${trial_name}"))


def _worker_spec(placement: str) -> YamlValue:
    """The one `SchedulingSpec` of a role; engines multiply it by their GPUs."""
    spec: Entries = (
        ("task_type", "worker"),
        ("cpu", CPUS_PER_GPU),
        ("gpu", 1),
        ("mem", HOST_GB_PER_GPU),
        ("port_count", 2),
        ("cmd", "python3 -m areal.infra.rpc.rpc_server"),
        ("ray_placement_strategy", placement),
    )
    return (FlowMap(spec),)


def _rollout(context: ArealContext) -> Block:
    plan, workload, engine = context.plan, context.workload, context.engine
    staleness = plan.execution.staleness
    spans_nodes = engine.engine_gpus > context.gpus_per_node
    # SGLang's tp counts all ranks of an engine, those of every attention group.
    tp = engine.tp * engine.attention_dp
    return Block(
        path="rollout",
        decisions=(context.decision(WorkerName.ROLLOUT_ENGINE), f"iterations: {execution_text(plan)}"),
        entries=(
            ("backend", f"{context.engine_kind}:d{engine.num_engines}t{tp}p{engine.pp}"),
            *_names(),
            ("fileroot", "${cluster.fileroot}"),
            ("tokenizer_path", "${tokenizer_path}"),
            ("max_head_offpolicyness", staleness),
            ("consumer_batch_size", workload.num_prompts),
            # The lag and the engines' own limit bind first: this one never keeps them from work.
            ("max_concurrent_rollouts", workload.num_prompts * (staleness + 1)),
            ("use_lora", workload.lora_rank is not None),
            ("scheduling_strategy.type", "separation"),
            ("scheduling_strategy.target", None),
            ("scheduling_spec", _worker_spec("deferred" if spans_nodes else "separate")),
        ),
    )


def _generation(context: ArealContext) -> Block:
    workload = context.workload
    return Block(
        path="gconfig",
        decisions=(f"workload: {workload.num_prompts} prompts x {workload.group_size} responses",),
        entries=(
            ("n_samples", workload.group_size),
            ("min_new_tokens", 0),
            ("max_new_tokens", workload.response.max_tokens),
            ("greedy", False),
            ("temperature", 1.0),
            ("lora_name", "" if workload.lora_rank is None else "rlplan"),
        ),
    )


def _trainer(context: ArealContext, name: WorkerName) -> Block:
    workload, strategy, backend = context.workload, context.trainer(name), context.backends[name]
    model = worker_model(workload, name)
    trains = context.workers[name].trains
    spec = "${actor.scheduling_spec}" if name is not WorkerName.ACTOR_TRAINER else _worker_spec("shared")
    target = _colocation_target(context, name)
    return Block(
        path=ROLES[name],
        decisions=(context.decision(name), *_batch_decision(context, name)),
        entries=(
            ("backend", training_backend(strategy, backend, is_moe=model.is_moe)),
            *_names(),
            ("path", UserText(model_path(model))),
            ("init_from_scratch", False),
            ("is_critic", name is WorkerName.CRITIC_TRAINER),
            ("disable_dropout", True),
            ("dtype", "bfloat16"),
            ("gradient_checkpointing", strategy.recompute is not Recompute.NONE),
            ("mb_spec.max_tokens_per_mb", shared_budget(strategy, trains=trains)),
            ("mb_spec.packing_algorithm", "ffd"),
            ("offload", strategy.offload is not Offload.NONE),
            *(_megatron(strategy, trains=trains) if backend == "megatron" else _fsdp()),
            *(_optimizer(name) if trains else (("optimizer", None),)),
            *(_actor(context) if name is WorkerName.ACTOR_TRAINER else ()),
            *(_critic(workload) if name is WorkerName.CRITIC_TRAINER else ()),
            ("scheduling_strategy.type", "separation" if target is None else "colocation"),
            ("scheduling_strategy.target", target),
            ("scheduling_spec", spec),
        ),
    )


def _colocation_target(context: ArealContext, name: WorkerName) -> str | None:
    """The first role on the same GPUs, which the others join."""
    ranks = context.workers[name].group.ranks
    first = next(other for other in ROLES if other in context.workers and context.workers[other].group.ranks == ranks)
    return None if first is name else ROLES[first]


def _batch_decision(context: ArealContext, name: WorkerName) -> tuple[str, ...]:
    if not context.workers[name].trains:
        return ()
    workload = context.workload
    return (f"workload: {workload.num_samples} samples in {workload.num_optimizer_steps} optimizer steps",)


def _megatron(strategy: TrainerStrategy, *, trains: bool) -> Entries:
    recomputes: dict[Recompute, Entries] = {
        Recompute.NONE: (("recompute_granularity", None), ("recompute_method", None), ("recompute_num_layers", None)),
        Recompute.SELECTIVE: (
            ("recompute_granularity", "selective"),
            ("recompute_modules", ("layernorm", "moe_act")),
            ("recompute_method", None),
            ("recompute_num_layers", None),
        ),
        Recompute.FULL: (
            ("recompute_granularity", "full"),
            ("recompute_method", "uniform"),
            ("recompute_num_layers", 1),
        ),
        Recompute.PARTIAL: (
            ("recompute_granularity", "full"),
            ("recompute_method", "block"),
            ("recompute_num_layers", strategy.recompute_layers),
        ),
    }
    entries: Entries = (
        ("virtual_pipeline_parallel_size", strategy.vpp),
        *recomputes[strategy.recompute],
        *((("ddp.use_distributed_optimizer", strategy.sharding is Sharding.ZERO1),) if trains else ()),
    )
    return tuple((f"megatron.{key}", value) for key, value in entries)


def _fsdp() -> Entries:
    return (("fsdp.offload_params", False), ("fsdp.per_layer_optim_step", False))


def _optimizer(name: WorkerName) -> Entries:
    """Not decided by the plan."""
    entries: Entries = (
        ("type", "adam"),
        ("lr", 1e-6 if name is WorkerName.ACTOR_TRAINER else 1e-5),
        ("weight_decay", 0.01),
        ("lr_scheduler_type", "constant"),
        ("gradient_clipping", 1.0),
    )
    return tuple((f"optimizer.{key}", value) for key, value in entries)


def _actor(context: ArealContext) -> Entries:
    workload = context.workload
    rank = workload.lora_rank
    lora: Entries = (("use_lora", False),)
    if rank is not None:
        lora = (
            ("use_lora", True),
            ("peft_type", "lora"),
            ("lora_rank", rank),
            ("lora_alpha", rank),
            ("target_modules", ("all-linear",)),
        )
        if context.backends[WorkerName.ACTOR_TRAINER] == "megatron":
            lora = (*lora, ("megatron.bridge_type", "megatron-bridge"))
    return (
        ("ppo_n_minibatches", workload.num_optimizer_steps),
        ("max_new_tokens", "${gconfig.max_new_tokens}"),
        ("temperature", "${gconfig.temperature}"),
        *loss_entries(workload),
        *off_policy_entries(workload, is_asynchronous=context.plan.execution.is_asynchronous),
        # Adapters go through files, whole weights from GPU to GPU.
        ("weight_update_mode", "xccl" if rank is None else "disk"),
        *lora,
    )


def _critic(workload: Workload) -> Entries:
    return (("ppo_n_minibatches", workload.num_optimizer_steps), ("eps_clip", 0.5))


def _sglang(context: ArealContext) -> Block:
    workload, engine = context.workload, context.engine
    lora: Entries = (("enable_lora", False),)
    if workload.lora_rank is not None:
        lora = (("enable_lora", True), ("max_lora_rank", workload.lora_rank))
    return Block(
        path="sglang",
        decisions=(
            f"{WorkerName.ROLLOUT_ENGINE.value}: {engine.engine_fraction:g} of GPU memory with graphs and activations; "
            "SGLang's fraction is the weights and the KV cache alone",
        ),
        entries=(
            ("model_path", "${actor.path}"),
            ("random_seed", "${seed}"),
            ("skip_tokenizer_init", True),
            ("dtype", "bfloat16"),
            ("context_length", workload.max_tokens),
            ("mem_fraction_static", static_memory_fraction(context.plan)),
            ("max_running_requests", max_running_requests(engine)),
            ("cuda_graph_max_bs", engine.max_num_seqs),
            ("chunked_prefill_size", ENGINE_TOKENS),
            ("disable_radix_cache", False),
            ("ep_size", engine.ep),
            *((("enable_dp_attention", True), ("dp_size", engine.attention_dp)) if engine.attention_dp > 1 else ()),
            *lora,
        ),
    )


def _vllm(context: ArealContext) -> Block:
    workload, engine = context.workload, context.engine
    return Block(
        path="vllm",
        decisions=("adapters that Megatron trains are served by vLLM only",),
        entries=(
            ("model", "${actor.path}"),
            ("seed", "${seed}"),
            ("skip_tokenizer_init", False),
            ("dtype", "bfloat16"),
            ("max_model_len", workload.max_tokens),
            ("gpu_memory_utilization", engine.engine_fraction),
            ("max_num_seqs", engine.max_num_seqs),
            ("no_enable_prefix_caching", False),
            ("enable_lora", True),
            ("max_lora_rank", workload.lora_rank or 0),
        ),
    )


def _data(context: ArealContext) -> Block:
    workload = context.workload
    return Block(
        path="train_dataset",
        decisions=("workload: the batch counts prompts, the length is that of the prompt",),
        entries=(
            ("path", "${oc.env:TRAIN_DATA}"),
            ("type", "rl"),
            ("batch_size", workload.num_prompts),
            ("max_length", workload.prompt_max_tokens),
            ("shuffle", True),
            ("drop_last", True),
        ),
    )


def _bookkeeping() -> tuple[Block, ...]:
    """Not decided by the plan."""
    common: Entries = (*_names(), ("fileroot", "${cluster.fileroot}"))
    why = ("not decided by the plan: change as you like",)
    return (
        Block(path="saver", decisions=why, entries=(*common, ("freq_steps", 20))),
        Block(path="evaluator", decisions=(), entries=common),
        Block(path="recover", decisions=(), entries=(*common, ("mode", "disabled"))),
        Block(path="stats_logger", decisions=(), entries=(*common, ("wandb.mode", "disabled"))),
    )
