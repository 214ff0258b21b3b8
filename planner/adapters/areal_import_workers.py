"""AReaL's roles: which GPUs they get from their backend strings, and the strategy of each.

`mb_spec.max_tokens_per_mb` is per data-parallel rank, all context-parallel ranks together, for forward passes and for
the update alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.adapters.areal_import_backend import Allocation, parse_backend, parse_old_mode
from planner.adapters.areal_import_keys import OLD_MODE, is_old
from planner.adapters.findings import Severity
from planner.adapters.import_recompute import Recomputation, full_recomputation
from planner.adapters.import_trainer import (
    Degrees,
    Place,
    attention_groups,
    divides,
    engine_words,
    fixed,
    forward_only,
    is_moe,
    sglang_fraction,
    trainer_words,
)
from planner.adapters.import_values import Values
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

ROLES = {"critic": WorkerName.CRITIC_TRAINER, "ref": WorkerName.REFERENCE}
SGLANG_MAX_SEQS = 2048
"""A limit that SGLang's own rule reaches on large caches (sglang/srt/managers/scheduler.py)."""
_CHEAP_MODULES = frozenset({"layernorm", "moe_act", "mla_up_proj", "core_attn"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """GPUs of one role, and what its backend string says."""

    name: str
    first_gpu: int
    allocation: Allocation

    @property
    def num_gpus(self) -> int:
        return self.allocation.num_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Roles by name: actor, critic, ref, rollout. Trainers come first, engines last."""

    roles: tuple[Role, ...]
    num_gpus: int
    num_nodes: int
    gpus_per_node: int

    def role(self, name: str) -> Role | None:
        return next((item for item in self.roles if item.name == name), None)

    @property
    def engines_share(self) -> bool:
        actor, rollout = self.role("actor"), self.role("rollout")
        return actor is not None and rollout is not None and actor.first_gpu == rollout.first_gpu


def read_layout(values: Values, names: tuple[str, ...]) -> Layout:
    """Places every role; a colocated one joins the GPUs of its target."""
    allocations = _old_allocations(values, names) if is_old(values.config) else _allocations(values, names)
    roles: list[Role] = []
    end = 0
    for name in names:
        allocation = allocations.get(name)
        if allocation is None:
            continue
        target = next((item for item in roles if item.name == _target(values, name, roles)), None)
        if target is None:
            roles.append(Role(name=name, first_gpu=end, allocation=allocation))
            end += allocation.num_gpus
        else:
            roles.append(Role(name=name, first_gpu=target.first_gpu, allocation=allocation))
    per_node = values.whole("cluster.n_gpus_per_node", 8, minimum=1)
    size = min(per_node, end) if end else per_node
    nodes = max(1, math.ceil(end / size))
    _compare_cluster(values, end, per_node)
    return Layout(roles=tuple(roles), num_gpus=end, num_nodes=nodes, gpus_per_node=size)


def _target(values: Values, name: str, before: list[Role]) -> str:
    if is_old(values.config):
        mode = parse_old_mode(values.text(OLD_MODE))
        joins = name in ("critic", "ref") or (name == "rollout" and mode.is_shared)
        return "actor" if joins and before else ""
    prefix = f"{name}.scheduling_strategy"
    if values.text(f"{prefix}.type", "separation") != "colocation":
        return ""
    return values.text(f"{prefix}.target", "actor")


def _allocations(values: Values, names: tuple[str, ...]) -> dict[str, Allocation]:
    found: dict[str, Allocation] = {}
    for name in names:
        key = f"{name}.backend"
        text = values.text(key)
        if not text:
            if values.config.raw(key) is None:
                values.ask(key)
            continue
        allocation = parse_backend(text, is_engine=name == "rollout")
        if allocation.problem:
            values.find(key, Severity.ERROR, allocation.problem, "such as sglang:d4t2, fsdp:d8 or megatron:d2p2t4")
        else:
            found[name] = allocation
    return found


def _old_allocations(values: Values, names: tuple[str, ...]) -> dict[str, Allocation]:
    mode = parse_old_mode(values.text(OLD_MODE))
    values.find(
        OLD_MODE, Severity.WARNING, "is deprecated: only the launchers of before 1.0 read it",
        "rollout.backend, actor.backend and a scheduling_strategy for each further role",
    )  # fmt: skip
    if mode.problem:
        values.find(OLD_MODE, Severity.ERROR, mode.problem)
        return {}
    found: dict[str, Allocation] = {}
    if mode.engine is not None:
        found["rollout"] = mode.engine
    for name in names:
        if name != "rollout" and mode.trainers:
            named = next((item for item in mode.trainers if item.name == name), mode.trainers[0])
            found[name] = named
    if "rollout" not in found or "actor" not in found:
        missing = "engine" if "rollout" not in found else "trainer"
        values.find(OLD_MODE, Severity.ERROR, f"names no {missing}", "such as sglang:d4t2+fsdp:d8")
    return found


def _compare_cluster(values: Values, num_gpus: int, per_node: int) -> None:
    nodes = values.whole("cluster.n_nodes", 32, minimum=1)
    total = nodes * per_node
    if not values.config.is_set("cluster.n_nodes") or total == num_gpus or not num_gpus:
        return
    if num_gpus > total:
        values.find(
            "cluster.n_nodes", Severity.ERROR, f"the roles take {num_gpus} GPUs, the cluster has {total}",
            f"cluster.n_nodes={math.ceil(num_gpus / per_node)}",
        )  # fmt: skip
    else:
        values.find(
            "cluster.n_nodes", Severity.NOTE,
            f"the roles take {num_gpus} of the cluster's {total} GPUs; the others are left out of the prediction",
        )  # fmt: skip


def read_workers(
    values: Values, layout: Layout, models: dict[str, str | None], max_tokens: int, concurrent: int
) -> tuple[FixedWorker, ...]:
    """The workers of all roles; `concurrent` is the number of responses under way."""
    places: list[Place] = []
    actor: TrainerStrategy | None = None
    for role in layout.roles:
        if role.name == "rollout":
            engine = _engines(values, role, models.get("actor"), concurrent, shares=layout.engines_share)
            places.append(
                Place(
                    worker=WorkerName.ROLLOUT_ENGINE, first_gpu=role.first_gpu, num_gpus=role.num_gpus, strategy=engine
                )
            )  # fmt: skip
            continue
        worker = ROLES.get(role.name, WorkerName.ACTOR_TRAINER)
        strategy = _trainer(values, role, models.get(role.name), max_tokens)
        if role.name == "ref" and strategy is not None:
            strategy = _reference(values, role, strategy)
        if strategy is not None:
            values.say(role.name, trainer_words(strategy), f"{role.name}.backend")
        actor = strategy if role.name == "actor" else actor
        places.append(Place(worker=worker, first_gpu=role.first_gpu, num_gpus=role.num_gpus, strategy=strategy))
    return fixed(places)


def _trainer(values: Values, role: Role, model: str | None, max_tokens: int) -> TrainerStrategy | None:
    allocation = role.allocation
    megatron = allocation.engine == "megatron"
    degrees = _with_experts(values, role, model)
    if not divides(values, f"{role.name}.backend", degrees, role.num_gpus):
        return None
    ranks = role.num_gpus // (degrees.tp * degrees.pp)
    if allocation.engine == "archon":
        values.find(f"{role.name}.backend", Severity.NOTE, "archon is priced like FSDP")
    sharded = values.flag(f"{role.name}.megatron.ddp.use_distributed_optimizer", default=True)
    sharding = (Sharding.ZERO1 if sharded else Sharding.DDP) if megatron else Sharding.ZERO3
    tokens = _tokens(values, role.name, max_tokens)
    recompute = _recompute(values, role.name, degrees, model, megatron=megatron)
    return TrainerStrategy(
        num_gpus=role.num_gpus, tp=degrees.tp, pp=degrees.pp, vpp=degrees.vpp, cp=degrees.cp,
        context_parallel=ContextParallel.RING if megatron else ContextParallel.ULYSSES, ep=degrees.ep,
        etp=degrees.etp, sharding=sharding, shard_ranks=ranks, micro_batch_tokens=tokens, inference_tokens=tokens,
        recompute=recompute.level, recompute_layers=recompute.layers, offload=_offload(values, role.name),
    )  # fmt: skip


def _with_experts(values: Values, role: Role, model: str | None) -> Degrees:
    """Degrees of experts only where there are some."""
    found = role.allocation.degrees
    vpp = 1
    if role.allocation.engine == "megatron":
        vpp = values.whole(f"{role.name}.megatron.virtual_pipeline_parallel_size", 1, minimum=1)
    experts = is_moe(model)
    etp = found.etp if experts else 1
    return Degrees(tp=found.tp, pp=found.pp, vpp=vpp, cp=found.cp, ep=found.ep if experts else 1, etp=etp)


def _reference(values: Values, role: Role, strategy: TrainerStrategy) -> TrainerStrategy:
    degrees = Degrees(tp=strategy.tp, pp=strategy.pp, cp=strategy.cp, ep=strategy.ep, etp=strategy.etp)
    sharding = Sharding.DDP if role.allocation.engine == "megatron" else Sharding.ZERO3
    return forward_only(
        degrees, role.num_gpus, strategy.inference_tokens, sharding=sharding,
        swaps=strategy.offload is not Offload.NONE, kind=strategy.context_parallel,
    )  # fmt: skip


def _tokens(values: Values, name: str, max_tokens: int) -> int:
    budget = values.optional_whole(f"{name}.mb_spec.max_tokens_per_mb", minimum=1)
    if budget is not None:
        return budget
    values.find(
        f"{name}.mb_spec.max_tokens_per_mb", Severity.WARNING,
        f"not given: a rank's whole mini-batch in {values.whole(f'{name}.mb_spec.n_mbs', 1)} micro-batches; priced as "
        "one longest sequence", f"{name}.mb_spec.max_tokens_per_mb={max_tokens}",
    )  # fmt: skip
    return max_tokens


def _recompute(values: Values, name: str, degrees: Degrees, model: str | None, *, megatron: bool) -> Recomputation:
    if not values.flag(f"{name}.gradient_checkpointing"):
        return Recomputation(level=Recompute.NONE)
    if not megatron:
        return Recomputation(level=Recompute.FULL)
    section = f"{name}.megatron"
    if values.text(f"{section}.recompute_granularity") != "full":
        return Recomputation(level=_selective_recompute(values, name))
    return full_recomputation(
        values, method=f"{section}.recompute_method", layers=f"{section}.recompute_num_layers", model=model,
        pp=degrees.pp, vpp=degrees.vpp,
    )  # fmt: skip


def _selective_recompute(values: Values, name: str) -> Recompute:
    key = f"{name}.megatron.recompute_granularity"
    if values.text(key) != "selective":
        return Recompute.NONE
    modules = frozenset(values.texts(f"{name}.megatron.recompute_modules")) or frozenset({"core_attn"})
    if modules <= {"core_attn"}:
        values.find(key, Severity.NOTE, "flash attention recomputes core_attn anyway: priced as no recomputation")
        return Recompute.NONE
    if modules - _CHEAP_MODULES:
        values.find(key, Severity.NOTE, "modules with matrix products are priced as full recomputation")
        return Recompute.FULL
    return Recompute.SELECTIVE


def _offload(values: Values, name: str) -> Offload:
    if values.flag(f"{name}.fsdp.offload_params"):
        values.find(
            f"{name}.fsdp.offload_params", Severity.NOTE, "states streamed from host RAM are priced as moved once"
        )
        return Offload.STATE_SWAP
    swaps = values.flag(f"{name}.offload") and values.flag("enable_offload")
    return Offload.STATE_SWAP if swaps else Offload.NONE


def _engines(values: Values, role: Role, model: str | None, concurrent: int, *, shares: bool) -> RolloutStrategy | None:
    allocation = role.allocation
    tp, pp = allocation.degrees.tp, allocation.degrees.pp
    groups = 1
    if allocation.engine == "vllm":
        fraction = values.number("vllm.gpu_memory_utilization", 0.9)
        seqs, ep = values.whole("vllm.max_num_seqs", 256, minimum=1), 1
        key = "vllm.gpu_memory_utilization"
    else:
        key = "sglang.mem_fraction_static"
        static = values.number(key, 0.9)
        fraction = sglang_fraction(values, key, static, model) if 0 < static < 1 else static
        ep = values.whole("sglang.ep_size", 1, minimum=1)
        groups = attention_groups(
            values, "sglang.dp_size", tp, model, enabled=values.flag("sglang.enable_dp_attention")
        )
        given = values.optional_whole("sglang.max_running_requests", minimum=1)
        seqs = given or max(1, min(math.ceil(concurrent / allocation.dp), SGLANG_MAX_SEQS))
        if given is None:
            values.find(
                "sglang.max_running_requests", Severity.NOTE,
                f"not given: SGLang takes what its cache holds, priced as up to {seqs:,} responses under way",
            )  # fmt: skip
    if not 0 < fraction <= 1:
        values.wrong(key, fraction, "a share of GPU memory above 0 and below 1")
        return None
    strategy = RolloutStrategy(
        num_gpus=role.num_gpus, tp=tp // groups, pp=pp, ep=tp if ep > 1 else 1, engine_fraction=fraction,
        max_num_seqs=max(1, seqs // groups), idle=EngineIdle.SLEEP if shares else EngineIdle.RESIDENT,
        attention_dp=groups,
    )  # fmt: skip
    values.say(f"engines ({allocation.engine})", engine_words(strategy), "rollout.backend")
    return strategy
