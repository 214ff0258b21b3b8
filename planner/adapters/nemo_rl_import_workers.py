"""The strategies of NeMo-RL's workers: policy, value model and generation.

Token budgets are per micro-batch of one data-parallel rank, as in plans. Policy and reference are one process group:
the reference is the policy with other weights, which wait in host RAM.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.adapters.findings import Severity
from planner.adapters.import_trainer import (
    Degrees,
    Place,
    Tokens,
    divides,
    engine_words,
    fixed,
    forward_only,
    is_moe,
    sglang_fraction,
    trainer_words,
)
from planner.adapters.import_values import Values
from planner.adapters.imported import Knob
from planner.domain.request import FixedWorker
from planner.domain.stages import WorkerName
from planner.domain.strategy import (
    ContextParallel,
    EngineIdle,
    Offload,
    Recompute,
    RolloutStrategy,
    Sharding,
    TrainerStrategy,
)

VLLM_MAX_SEQS = 256
"""vLLM's own limit of sequences on most GPUs (vllm/engine/arg_utils.py)."""
GENERATION = "policy.generation"
_CHEAP_MODULES = frozenset({"layernorm", "moe_act", "mla_up_proj", "core_attn"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """GPUs by use: trainers first, then engines apart from them."""

    trainer_gpus: int
    engine_gpus: int
    is_shared: bool
    num_nodes: int
    gpus_per_node: int


def is_megatron(values: Values, path: str) -> bool:
    return values.flag(f"{path}.megatron_cfg.enabled")


def read_workers(
    values: Values, pools: Pools, model: str | None, critic: str | None, *, has_critic: bool, has_reference: bool
) -> tuple[FixedWorker, ...]:
    """The workers whose degrees divide their GPUs."""
    takes_turns = pools.is_shared or has_critic
    count = pools.trainer_gpus
    first = 0 if pools.is_shared else count
    places = [
        Place(
            worker=WorkerName.ROLLOUT_ENGINE, first_gpu=first, num_gpus=pools.engine_gpus,
            strategy=_engines(values, pools.engine_gpus, model, shares=pools.is_shared),
        )
    ]  # fmt: skip
    actor = _trainer(values, "policy", count, model, takes_turns=takes_turns)
    places.append(Place(worker=WorkerName.ACTOR_TRAINER, first_gpu=0, num_gpus=count, strategy=actor))
    if has_reference and actor is not None:
        sharding = Sharding.DDP if is_megatron(values, "policy") else Sharding.ZERO3
        degrees = Degrees(tp=actor.tp, pp=actor.pp, cp=actor.cp, ep=actor.ep, etp=actor.etp)
        reference = forward_only(
            degrees, count, actor.inference_tokens, sharding=sharding, swaps=True, kind=ContextParallel.RING
        )
        if sharding is Sharding.ZERO3:
            reference = _with_ranks(reference, actor.shard_ranks)
        values.say("reference", "the policy's processes with other weights, which wait in host RAM", "loss_fn")
        places.append(Place(worker=WorkerName.REFERENCE, first_gpu=0, num_gpus=count, strategy=reference))
    if has_critic:
        value = _trainer(values, "value", count, critic, takes_turns=takes_turns)
        places.append(Place(worker=WorkerName.CRITIC_TRAINER, first_gpu=0, num_gpus=count, strategy=value))
    return fixed(places)


def _with_ranks(strategy: TrainerStrategy, ranks: int) -> TrainerStrategy:
    from dataclasses import replace

    return replace(strategy, shard_ranks=ranks)


def _trainer(
    values: Values, path: str, num_gpus: int, model: str | None, *, takes_turns: bool
) -> TrainerStrategy | None:
    megatron = is_megatron(values, path)
    section = f"{path}.megatron_cfg" if megatron else f"{path}.dtensor_cfg"
    degrees = _megatron_degrees(values, section, model) if megatron else _dtensor_degrees(values, section, model)
    if not divides(values, section, degrees, num_gpus):
        return None
    ranks = num_gpus // (degrees.tp * degrees.pp)
    if megatron:
        sharded = values.flag(f"{section}.optimizer.use_distributed_optimizer", default=True)
        sharding, recompute = (Sharding.ZERO1 if sharded else Sharding.DDP), _recompute(values, section)
    else:
        sharding = Sharding.ZERO3
        checkpoints = values.flag(f"{section}.activation_checkpointing")
        recompute = Recompute.FULL if checkpoints else Recompute.NONE
        replicas = values.whole(f"{section}.dp_replicate_size", 1, minimum=1)
        if ranks % replicas:
            values.find(
                f"{section}.dp_replicate_size", Severity.ERROR, f"{replicas} does not divide {ranks} ranks", "a divisor"
            )
        else:
            ranks //= replicas
    tokens = _tokens(values, path)
    strategy = TrainerStrategy(
        num_gpus=num_gpus, tp=degrees.tp, pp=degrees.pp, vpp=1, cp=degrees.cp, context_parallel=ContextParallel.RING,
        ep=degrees.ep, etp=degrees.etp, sharding=sharding, shard_ranks=ranks, micro_batch_tokens=tokens.train,
        inference_tokens=tokens.inference, recompute=recompute,
        offload=_offload(values, path, section, takes_turns=takes_turns),
    )  # fmt: skip
    values.say("actor" if path == "policy" else "critic", trainer_words(strategy), section)
    return strategy


def _megatron_degrees(values: Values, section: str, model: str | None) -> Degrees:
    experts = is_moe(model)
    return Degrees(
        tp=values.whole(f"{section}.tensor_model_parallel_size", 1, minimum=1),
        pp=values.whole(f"{section}.pipeline_model_parallel_size", 1, minimum=1),
        cp=values.whole(f"{section}.context_parallel_size", 1, minimum=1),
        ep=values.whole(f"{section}.expert_model_parallel_size", 1, minimum=1) if experts else 1,
        etp=values.whole(f"{section}.expert_tensor_parallel_size", 1, minimum=1) if experts else 1,
    )


def _dtensor_degrees(values: Values, section: str, model: str | None) -> Degrees:
    """Experts are spread over `ep` ranks, or without that split by tp like everything else."""
    tp = values.whole(f"{section}.tensor_parallel_size", 1, minimum=1)
    ep = values.whole(f"{section}.expert_parallel_size", 1, minimum=1)
    experts = is_moe(model)
    key = f"{section}.moe_parallelizer.reshard_after_forward"
    if experts and ep > 1 and not values.flag(key):
        values.find(
            key, Severity.NOTE,
            "without it weights outside experts stay gathered between forward and backward: priced as if they left",
            f"{key}=true",
        )  # fmt: skip
    return Degrees(
        tp=tp,
        cp=values.whole(f"{section}.context_parallel_size", 1, minimum=1),
        ep=ep if experts else 1,
        etp=tp if experts and ep == 1 else 1,
    )


def _tokens(values: Values, path: str) -> Tokens:
    """Budgets where sequences are packed or batched by tokens, else sequences of the longest length."""
    for way in ("sequence_packing", "dynamic_batching"):
        if values.flag(f"{path}.{way}.enabled"):
            longest = values.whole(f"{path}.max_total_sequence_length", 512, minimum=1)
            train = values.whole(f"{path}.{way}.train_mb_tokens", longest, minimum=1)
            return Tokens(train=train, inference=values.whole(f"{path}.{way}.logprob_mb_tokens", train, minimum=1))
    longest = values.whole(f"{path}.max_total_sequence_length", 512, minimum=1)
    train = values.whole(f"{path}.train_micro_batch_size", 1, minimum=1)
    inference = values.whole(f"{path}.logprob_batch_size", train, minimum=1)
    values.find(
        f"{path}.sequence_packing.enabled", Severity.WARNING,
        "sequences are neither packed nor batched by tokens: padding is computed, and the prediction assumes packing",
        f"{path}.sequence_packing.enabled=true",
    )  # fmt: skip
    return Tokens(train=train * longest, inference=inference * longest)


def _recompute(values: Values, section: str) -> Recompute:
    if not values.flag(f"{section}.activation_checkpointing"):
        return Recompute.NONE
    if values.text(f"{section}.recompute_granularity", "full") != "selective":
        return Recompute.FULL
    modules = frozenset(values.texts(f"{section}.recompute_modules")) or frozenset({"core_attn"})
    key = f"{section}.recompute_modules"
    if modules <= {"core_attn"}:
        values.find(key, Severity.NOTE, "flash attention recomputes core_attn anyway: priced as no recomputation")
        return Recompute.NONE
    if modules - _CHEAP_MODULES:
        shown = ", ".join(sorted(modules))[:80]
        values.find(key, Severity.NOTE, f"{shown} recompute matrix products: priced as full recomputation")
        return Recompute.FULL
    return Recompute.SELECTIVE


def _offload(values: Values, path: str, section: str, *, takes_turns: bool) -> Offload:
    """Weights and optimizer of a trainer leave its GPUs whenever another model runs there, without a key."""
    swaps = takes_turns or (path == "policy" and values.flag("policy.offload_optimizer_for_logprob"))
    on_host = values.flag(f"{section}.optimizer.optimizer_cpu_offload")
    if on_host:
        share = values.number(f"{section}.optimizer.optimizer_offload_fraction", 0.0)
        if share < 1:
            key = f"{section}.optimizer.optimizer_offload_fraction"
            values.find(key, Severity.NOTE, f"{share:.0%} of the optimizer on the host is priced as all of it")
        return Offload.CPU_OPTIMIZER_STATE_SWAP if swaps else Offload.CPU_OPTIMIZER
    if values.flag(f"{section}.cpu_offload"):
        key = f"{section}.cpu_offload"
        values.find(key, Severity.NOTE, "states streamed from host RAM are priced as moved once per iteration")
        return Offload.STATE_SWAP
    return Offload.STATE_SWAP if swaps else Offload.NONE


def _engines(values: Values, num_gpus: int, model: str | None, *, shares: bool) -> RolloutStrategy | None:
    """The engines. Those with GPUs of their own only drop their prefix cache (vllm_generation.py finish_generation)."""
    backend = values.text(f"{GENERATION}.backend", "vllm")
    groups = 1
    if backend == "sglang":
        tp, pp, ep, fraction, seqs = _sglang(values, model)
        key = f"{GENERATION}.sglang_cfg"
    elif backend == "megatron":
        tp, pp, ep, fraction, seqs = _megatron_engine(values)
        key = f"{GENERATION}.mcore_generation_config"
    else:
        if backend != "vllm":
            values.find(f"{GENERATION}.backend", Severity.NOTE, f"{backend[:30]} is priced like vLLM")
        tp, pp, ep, fraction, seqs = _vllm(values)
        # vLLM's ep is tp times its data-parallel ranks (nemo_rl/models/generation/vllm/vllm_generation.py).
        groups = ep // tp if ep > tp and is_moe(model) else 1
        key = f"{GENERATION}.vllm_cfg.tensor_parallel_size"
    size = tp * groups * pp
    if num_gpus < 1 or num_gpus % size:
        values.find(
            key, Severity.ERROR, f"engines of {size} GPUs do not fill {num_gpus} GPUs", f"a divisor of {num_gpus}"
        )
        return None
    if not 0 < fraction <= 1:
        values.wrong(f"{GENERATION}.vllm_cfg.gpu_memory_utilization", fraction, "a share of GPU memory up to 1")
        return None
    strategy = RolloutStrategy(
        num_gpus=num_gpus, tp=tp, pp=pp, ep=tp * groups if ep > 1 else 1, engine_fraction=fraction, max_num_seqs=seqs,
        idle=EngineIdle.SLEEP if shares else EngineIdle.RESIDENT, attention_dp=groups,
    )  # fmt: skip
    values.say(f"engines ({backend})", engine_words(strategy), values.origin(key))
    return strategy


def _vllm(values: Values) -> tuple[int, int, int, float, int]:
    prefix = f"{GENERATION}.vllm_cfg"
    tp = values.whole(f"{prefix}.tensor_parallel_size", 1, minimum=1)
    ep = values.whole(f"{prefix}.expert_parallel_size", 1, minimum=1)
    key = f"{GENERATION}.vllm_kwargs.max_num_seqs"
    seqs = values.optional_whole(key, minimum=1)
    if seqs is None:
        values.find(key, Severity.NOTE, f"not given: vLLM's own limit, taken as {VLLM_MAX_SEQS}", f"--set {key}=N")
    return (
        tp,
        values.whole(f"{prefix}.pipeline_parallel_size", 1, minimum=1),
        ep,
        values.number(f"{prefix}.gpu_memory_utilization", 0.6),
        seqs or VLLM_MAX_SEQS,
    )


def _sglang(values: Values, model: str | None) -> tuple[int, int, int, float, int]:
    prefix = f"{GENERATION}.sglang_cfg"
    key = f"{prefix}.mem_fraction_static"
    fraction = sglang_fraction(values, key, values.number(key, 0.6), model)
    running = values.optional_whole(f"{prefix}.max_running_requests", minimum=1)
    under_way = values.whole(f"{prefix}.sglang_server_config.sglang_server_concurrency", 1024, minimum=1)
    return (
        values.whole(f"{prefix}.tp_size", 1, minimum=1),
        values.whole(f"{prefix}.pp_size", 1, minimum=1),
        values.whole(f"{prefix}.ep_size", 1, minimum=1),
        fraction,
        min(running or under_way, under_way),
    )


def _megatron_engine(values: Values) -> tuple[int, int, int, float, int]:
    """Megatron's own inference: engines in the layout of the policy."""
    section = "policy.megatron_cfg"
    tp = values.whole(f"{section}.tensor_model_parallel_size", 1, minimum=1)
    values.find(
        f"{GENERATION}.backend", Severity.NOTE,
        f"Megatron generates in the policy's layout: priced as vLLM engines of tp {tp}, half of GPU memory",
    )  # fmt: skip
    return tp, values.whole(f"{section}.pipeline_model_parallel_size", 1, minimum=1), 1, 0.5, VLLM_MAX_SEQS


def knobs(values: Values, workers: tuple[FixedWorker, ...]) -> tuple[Knob, ...]:
    """How NeMo-RL writes the fields of the workers that a configuration has."""
    found: list[Knob] = []
    for worker in workers:
        name = worker.worker
        if name is WorkerName.ROLLOUT_ENGINE:
            if values.text(f"{GENERATION}.backend", "vllm") == "vllm":
                prefix = f"{GENERATION}.vllm_cfg"
                found += [
                    Knob(worker=name, field="tp", keys=(f"{prefix}.tensor_parallel_size",)),
                    Knob(worker=name, field="engine_fraction", keys=(f"{prefix}.gpu_memory_utilization",)),
                    Knob(worker=name, field="max_num_seqs", keys=(f"{GENERATION}.vllm_kwargs.max_num_seqs",)),
                ]
            continue
        path = "value" if name is WorkerName.CRITIC_TRAINER else "policy"
        found += _trainer_knobs(values, name, path)
    return tuple(found)


def _trainer_knobs(values: Values, name: WorkerName, path: str) -> list[Knob]:
    megatron = is_megatron(values, path)
    section = f"{path}.megatron_cfg" if megatron else f"{path}.dtensor_cfg"
    names = {"tp": "tensor_parallel_size", "cp": "context_parallel_size", "ep": "expert_parallel_size"}
    if megatron:
        names = {
            "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
            "ep": "expert_model_parallel_size", "etp": "expert_tensor_parallel_size",
        }  # fmt: skip
    found = [Knob(worker=name, field=field, keys=(f"{section}.{key}",)) for field, key in names.items()]
    switch = f"{section}.activation_checkpointing"
    if name is not WorkerName.REFERENCE:
        found.append(
            Knob(worker=name, field="recompute", keys=(switch,), words=(("full", ("true",)), ("none", ("false",))))
        )
    packing = next(
        (way for way in ("sequence_packing", "dynamic_batching") if values.flag(f"{path}.{way}.enabled")), ""
    )
    if packing:
        found.append(Knob(worker=name, field="micro_batch_tokens", keys=(f"{path}.{packing}.train_mb_tokens",)))
        found.append(Knob(worker=name, field="inference_tokens", keys=(f"{path}.{packing}.logprob_mb_tokens",)))
    return found
