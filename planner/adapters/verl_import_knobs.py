"""How verl writes the fields of a strategy."""

from __future__ import annotations

from planner.adapters.imported import Knob
from planner.domain.request import FixedWorker
from planner.domain.stages import WorkerName

_ACTOR = "actor_rollout_ref.actor"
_REF = "actor_rollout_ref.ref"
_ROLLOUT = "actor_rollout_ref.rollout"
_SECTIONS = {
    WorkerName.ACTOR_TRAINER: (_ACTOR, "fsdp_config"),
    WorkerName.REFERENCE: (_REF, "fsdp_config"),
    WorkerName.CRITIC_TRAINER: ("critic", "fsdp"),
}
_MEGATRON_DEGREES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}


def knobs(workers: tuple[FixedWorker, ...], *, is_megatron: bool, is_dynamic: bool) -> tuple[Knob, ...]:
    """Keys for the workers that a configuration has."""
    found: list[Knob] = []
    for worker in workers:
        if worker.worker is WorkerName.ROLLOUT_ENGINE:
            found += _engine()
        elif worker.worker in _SECTIONS:
            prefix, fsdp = _SECTIONS[worker.worker]
            found += _degrees(worker.worker, prefix, is_megatron=is_megatron)
            found += _memory(worker.worker, prefix, fsdp, is_megatron=is_megatron)
            if is_dynamic:
                found += _budgets(worker.worker, prefix)
    return tuple(found)


def _engine() -> list[Knob]:
    name = WorkerName.ROLLOUT_ENGINE
    return [
        Knob(worker=name, field="tp", keys=(f"{_ROLLOUT}.tensor_model_parallel_size",)),
        Knob(worker=name, field="engine_fraction", keys=(f"{_ROLLOUT}.gpu_memory_utilization",)),
        Knob(worker=name, field="max_num_seqs", keys=(f"{_ROLLOUT}.max_num_seqs",)),
        Knob(
            worker=name, field="idle", keys=(f"{_ROLLOUT}.free_cache_engine",),
            words=(("sleep", ("True",)), ("resident", ("False",))),
        ),
    ]  # fmt: skip


def _degrees(name: WorkerName, prefix: str, *, is_megatron: bool) -> list[Knob]:
    if not is_megatron:
        return [Knob(worker=name, field="cp", keys=(f"{prefix}.ulysses_sequence_parallel_size",))]
    return [
        Knob(worker=name, field=field, keys=(f"{prefix}.megatron.{key}",)) for field, key in _MEGATRON_DEGREES.items()
    ]


def _memory(name: WorkerName, prefix: str, fsdp: str, *, is_megatron: bool) -> list[Knob]:
    section = f"{prefix}.megatron" if is_megatron else f"{prefix}.{fsdp}"
    offload = Knob(
        worker=name, field="offload", keys=(f"{section}.param_offload", f"{section}.optimizer_offload"),
        words=(("none", ("False", "False")), ("state-swap", ("True", "True")), ("optimizer-swap", ("False", "True"))),
    )  # fmt: skip
    found = [offload]
    if name is WorkerName.REFERENCE:
        swap = (("none", ("False",)), ("state-swap", ("True",)))
        return [Knob(worker=name, field="offload", keys=(f"{section}.param_offload",), words=swap)]
    if is_megatron:
        override = f"{section}.override_transformer_config"
        keys = tuple(f"{override}.recompute_{part}" for part in ("granularity", "method", "num_layers"))
        words = (("none", ("null", "null", "null")), ("full", ("full", "uniform", "1")))
        found.append(Knob(worker=name, field="recompute", keys=keys, words=words))
        found.append(
            Knob(
                worker=name, field="sharding", keys=(f"{section}.use_distributed_optimizer",),
                words=(("zero1", ("True",)), ("ddp", ("False",))),
            )
        )  # fmt: skip
        return found
    model = "actor_rollout_ref.model" if name is WorkerName.ACTOR_TRAINER else "critic.model"
    key = f"{model}.enable_gradient_checkpointing"
    found.append(Knob(worker=name, field="shard_ranks", keys=(f"{section}.fsdp_size",)))
    found.append(Knob(worker=name, field="recompute", keys=(key,), words=(("full", ("True",)), ("none", ("False",)))))
    return found


def _budgets(name: WorkerName, prefix: str) -> list[Knob]:
    """Token budgets are per GPU: verl multiplies them by the sequence-parallel size."""
    update = Knob(
        worker=name, field="micro_batch_tokens", keys=(f"{prefix}.ppo_max_token_len_per_gpu",), divisor_field="cp"
    )
    forward_key = {
        WorkerName.ACTOR_TRAINER: f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
        WorkerName.REFERENCE: f"{_REF}.log_prob_max_token_len_per_gpu",
    }.get(name, f"{prefix}.ppo_infer_max_token_len_per_gpu")
    forward = Knob(worker=name, field="inference_tokens", keys=(forward_key,), divisor_field="cp")
    return [forward] if name is WorkerName.REFERENCE else [update, forward]
