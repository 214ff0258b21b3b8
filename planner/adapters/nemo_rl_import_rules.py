"""Rules of NeMo-RL that a configuration can break. Sources are named at each, in the commit of the tables."""

from __future__ import annotations

from collections.abc import Mapping

from planner.adapters.findings import Severity
from planner.adapters.import_trainer import check_pipeline
from planner.adapters.import_values import Values
from planner.adapters.nemo_rl_import_plan import ReadPlan
from planner.adapters.nemo_rl_import_workers import GENERATION, is_megatron


def check_rules(values: Values, plan: ReadPlan, section: str, environment: Mapping[str, str]) -> None:
    """Notes every broken rule."""
    for path in ("policy", "value") if section == "ppo" else ("policy",):
        _backend(values, path)
        _batching(values, path, environment)
    if is_megatron(values, "policy"):
        megatron = "policy.megatron_cfg"
        check_pipeline(values, f"{megatron}.pipeline_model_parallel_size", megatron, plan.spec.model)
    _generation(values, plan)
    _asynchrony(values, plan, section)
    _reference(values, section)
    _batches(values, plan)


def _backend(values: Values, path: str) -> None:
    """nemo_rl/models/policy/lm_policy.py."""
    megatron, dtensor = is_megatron(values, path), values.flag(f"{path}.dtensor_cfg.enabled")
    if megatron == dtensor:
        both = "both are enabled" if megatron else "none is enabled"
        values.find(
            f"{path}.megatron_cfg.enabled", Severity.ERROR, f"DTensor and Megatron: {both}, and one is needed",
            f"{path}.dtensor_cfg.enabled=false" if megatron else f"{path}.megatron_cfg.enabled=true",
        )  # fmt: skip
    replicates = dtensor and values.whole(f"{path}.dtensor_cfg.dp_replicate_size", 1) > 1
    if replicates and not values.flag(f"{path}.dtensor_cfg._v2", default=True):
        values.find(f"{path}.dtensor_cfg._v2", Severity.ERROR, "replicas need it", f"{path}.dtensor_cfg._v2=true")


def _batching(values: Values, path: str, environment: Mapping[str, str]) -> None:
    """nemo_rl/models/policy/lm_policy.py, nemo_rl/models/megatron/setup.py."""
    packs = values.flag(f"{path}.sequence_packing.enabled")
    dynamic = values.flag(f"{path}.dynamic_batching.enabled")
    section = f"{path}.megatron_cfg" if is_megatron(values, path) else f"{path}.dtensor_cfg"
    if packs and dynamic:
        values.find(
            f"{path}.dynamic_batching.enabled", Severity.ERROR, "cannot be combined with sequence packing",
            f"{path}.dynamic_batching.enabled=false",
        )  # fmt: skip
    if is_megatron(values, path):
        if dynamic and values.whole(f"{section}.pipeline_model_parallel_size", 1) > 1:
            values.find(
                f"{path}.dynamic_batching.enabled", Severity.ERROR, "is refused with pipeline parallelism",
                f"{path}.sequence_packing.enabled=true",
            )  # fmt: skip
        if values.whole(f"{section}.context_parallel_size", 1) > 1 and not packs:
            values.find(
                f"{section}.context_parallel_size", Severity.ERROR, "above 1 needs sequence packing",
                f"{path}.sequence_packing.enabled=true",
            )  # fmt: skip
    tp_key = f"{section}.tensor_model_parallel_size" if is_megatron(values, path) else f"{section}.tensor_parallel_size"
    train, forward = (
        values.whole(f"{path}.train_micro_batch_size", 1, minimum=1),
        values.whole(f"{path}.logprob_batch_size", 1, minimum=1),
    )
    ignored = environment.get("NRL_IGNORE_TP_ACCURACY_CHECK", "0") not in ("", "0")
    matters = path == "policy" and train != forward and values.whole(tp_key, 1) >= 4
    if matters and not ignored and not values.flag("loss_fn.force_on_policy_ratio"):
        values.find(
            f"{path}.logprob_batch_size", Severity.ERROR,
            f"{forward} differs from train_micro_batch_size, {train}, which is refused with tensor parallelism of 4 "
            "and more", f"{path}.logprob_batch_size={train}, or NRL_IGNORE_TP_ACCURACY_CHECK=1",
        )  # fmt: skip
    chunks = is_megatron(values, path) and values.config.get(f"{path}.logprob_chunk_size") not in (None, 0)
    if chunks and not values.flag(f"{section}.defer_fp32_logits"):
        values.find(
            f"{path}.logprob_chunk_size", Severity.ERROR, "needs deferred fp32 logits",
            f"{section}.defer_fp32_logits=true",
        )  # fmt: skip


def _generation(values: Values, plan: ReadPlan) -> None:
    """nemo_rl/algorithms/grpo.py setup, nemo_rl/models/generation/vllm/vllm_generation.py."""
    prefix = f"{GENERATION}.vllm_cfg"
    if values.text(f"{GENERATION}.backend", "vllm") == "vllm":
        tp = values.whole(f"{prefix}.tensor_parallel_size", 1, minimum=1)
        ep = values.whole(f"{prefix}.expert_parallel_size", 1, minimum=1)
        asynchronous = values.flag(f"{prefix}.async_engine")
        if values.whole(f"{prefix}.pipeline_parallel_size", 1) > 1 and not asynchronous:
            values.find(
                f"{prefix}.pipeline_parallel_size", Severity.ERROR, "above 1 needs the asynchronous engine",
                f"{prefix}.async_engine=true",
            )  # fmt: skip
        if ep > 1 and ep % tp:
            values.find(f"{prefix}.expert_parallel_size", Severity.ERROR, f"{ep} is no multiple of tp {tp}")
        if ep > 1 and ep != tp and asynchronous:
            values.find(
                f"{prefix}.expert_parallel_size", Severity.ERROR,
                f"{ep} differs from tp {tp}, which the asynchronous engine refuses",
                f"{prefix}.expert_parallel_size={tp}",
            )  # fmt: skip
    per_node = values.optional_whole(f"{GENERATION}.colocated.resources.gpus_per_node")
    pools = plan.pools
    if not pools.is_shared and pools.num_nodes > 1 and per_node not in (None, pools.gpus_per_node):
        values.find(
            f"{GENERATION}.colocated.resources.gpus_per_node", Severity.ERROR,
            f"{per_node} of the {pools.gpus_per_node} GPUs of a node: on several nodes generation takes whole ones",
            f"{GENERATION}.colocated.resources.gpus_per_node={pools.gpus_per_node}",
        )  # fmt: skip


def _asynchrony(values: Values, plan: ReadPlan, section: str) -> None:
    """nemo_rl/algorithms/grpo.py async_grpo_train."""
    if not plan.execution.is_asynchronous:
        return
    prefix = f"{section}.async_{section}"
    backend = values.text(f"{GENERATION}.backend", "vllm")
    if backend not in ("vllm", "megatron", "trtllm", "dynamo"):
        values.find(f"{GENERATION}.backend", Severity.ERROR, f"asynchronous training is refused with {backend[:30]}")
    if backend == "vllm" and not values.flag(f"{GENERATION}.vllm_cfg.async_engine"):
        key = f"{GENERATION}.vllm_cfg.async_engine"
        values.find(key, Severity.ERROR, "asynchronous training needs it", f"{key}=true")
    if not values.flag("loss_fn.use_importance_sampling_correction"):
        key = "loss_fn.use_importance_sampling_correction"
        values.find(key, Severity.ERROR, "asynchronous training asserts it", f"{key}=true")
    if plan.pools.is_shared and backend != "megatron":
        values.find(
            f"{GENERATION}.colocated.enabled", Severity.ERROR,
            "asynchronous training needs GPUs of its own to generate",
            f"{GENERATION}.colocated.enabled=false with resources, or {prefix}.enabled=false",
        )  # fmt: skip
    if values.flag(f"{section}.use_dynamic_sampling"):
        values.find(f"{section}.use_dynamic_sampling", Severity.ERROR, "asynchronous training has none")


def _reference(values: Values, section: str) -> None:
    skips = values.flag(f"{section}.skip_reference_policy_logprobs_calculation")
    if skips and values.number("loss_fn.reference_policy_kl_penalty", 0.0):
        values.find(
            f"{section}.skip_reference_policy_logprobs_calculation", Severity.ERROR, "needs a KL penalty of 0",
            "loss_fn.reference_policy_kl_penalty=0",
        )  # fmt: skip


def _batches(values: Values, plan: ReadPlan) -> None:
    """nemo_rl/models/policy/lm_policy.py: a global batch is divided over the data-parallel ranks."""
    from planner.domain.stages import WorkerName
    from planner.domain.strategy import TrainerStrategy

    actor = next((item.strategy for item in plan.workers if item.worker is WorkerName.ACTOR_TRAINER), None)
    if isinstance(actor, TrainerStrategy) and plan.samples_per_update % actor.dp:
        values.find(
            "policy.train_global_batch_size", Severity.ERROR,
            f"{plan.samples_per_update} samples do not divide over {actor.dp} data-parallel ranks",
            f"a multiple of {actor.dp}",
        )  # fmt: skip
    if plan.samples_per_update > plan.num_samples:
        values.find(
            "policy.train_global_batch_size", Severity.ERROR,
            f"{plan.samples_per_update} is more than the {plan.num_samples} samples of a step",
            f"policy.train_global_batch_size={plan.num_samples} or less",
        )  # fmt: skip
