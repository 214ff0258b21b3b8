"""Rules of AReaL that a configuration can break. Sources are named at each, in AReaL 1.0.4."""

from __future__ import annotations

from planner.adapters.areal_import_keys import is_old
from planner.adapters.areal_import_plan import ReadPlan
from planner.adapters.findings import Severity
from planner.adapters.import_values import Values


def check_rules(values: Values, plan: ReadPlan) -> None:
    """Notes every broken rule."""
    _batches(values)
    _off_policy(values, plan)
    _lengths(values, plan)
    if is_old(values.config):
        return
    _colocation(values, plan)
    _offload(values)
    _heads(values, plan)
    _lora(values, plan)


def _batches(values: Values) -> None:
    consumer = values.whole("rollout.consumer_batch_size", 1, minimum=1)
    batch = values.whole("train_dataset.batch_size", 1, minimum=1)
    if values.config.is_set("rollout.consumer_batch_size") and consumer != batch:
        values.find(
            "rollout.consumer_batch_size", Severity.WARNING,
            f"{consumer} differs from train_dataset.batch_size, {batch}: the limit of the lag counts other batches",
            "rollout.consumer_batch_size=${train_dataset.batch_size}",
        )  # fmt: skip


def _off_policy(values: Values, plan: ReadPlan) -> None:
    """areal/trainer/ppo/actor.py."""
    if not plan.execution.is_asynchronous:
        return
    if not values.flag("actor.use_decoupled_loss"):
        values.find(
            "actor.use_decoupled_loss", Severity.WARNING, "responses of older weights are trained on without it",
            "actor.use_decoupled_loss=true and actor.rejection_sampling",
        )  # fmt: skip
    elif values.config.get("actor.rejection_sampling") is None and not is_old(values.config):
        values.find(
            "actor.rejection_sampling", Severity.WARNING, "null: tokens that moved too far are no longer masked",
            "actor.rejection_sampling.metric=ratio and upper=5.0",
        )  # fmt: skip


def _lengths(values: Values, plan: ReadPlan) -> None:
    for name, key in (("sglang", "sglang.context_length"), ("vllm", "vllm.max_model_len")):
        role = plan.layout.role("rollout")
        limit = values.optional_whole(key, minimum=1)
        is_given = values.config.get("train_dataset.max_length") is not None
        used = role is not None and role.allocation.engine == name and is_given
        if used and limit is not None and limit < plan.max_tokens:
            values.find(
                key, Severity.WARNING, f"{limit:,} tokens are less than prompt and response, {plan.max_tokens:,}",
                f"{key}={plan.max_tokens}",
            )  # fmt: skip
    budget = values.optional_whole("actor.mb_spec.max_tokens_per_mb", minimum=1)
    if budget is not None and budget < plan.max_tokens:
        values.find(
            "actor.mb_spec.max_tokens_per_mb", Severity.WARNING,
            f"{budget:,} tokens are less than the longest sequence, {plan.max_tokens:,}: such a one exceeds the budget",
            f"actor.mb_spec.max_tokens_per_mb={plan.max_tokens}",
        )  # fmt: skip


def _colocation(values: Values, plan: ReadPlan) -> None:
    """areal/infra/scheduler/local.py, ray.py: a colocated role has the replicas of its target."""
    for role in plan.layout.roles:
        prefix = f"{role.name}.scheduling_strategy"
        if values.text(f"{prefix}.type", "separation") != "colocation":
            continue
        target = plan.layout.role(values.text(f"{prefix}.target", "actor"))
        if target is None:
            values.find(f"{prefix}.target", Severity.ERROR, "is no role that starts before it", "actor")
            continue
        replicas = role.allocation.dp if role.name == "rollout" else role.num_gpus
        others = target.allocation.dp if target.name == "rollout" else target.num_gpus
        if replicas != others:
            counts = "engines" if role.name == "rollout" else "GPUs"
            values.find(
                f"{role.name}.backend", Severity.ERROR,
                f"{replicas} replicas ({counts}) cannot share the {others} of {target.name}: AReaL wants equally many",
                "engines of one GPU, or scheduling_strategy.type=separation"
                if role.name == "rollout"
                else f"a backend of {others} GPUs",
            )  # fmt: skip
    if plan.layout.engines_share and values.text("actor.weight_update_mode", "xccl") != "disk":
        # areal/trainer/rl_trainer.py _validate_cfg
        values.find(
            "actor.weight_update_mode", Severity.ERROR, "actor and rollout share GPUs, which needs disk",
            "actor.weight_update_mode=disk",
        )  # fmt: skip


def _offload(values: Values) -> None:
    """areal/trainer/rl_trainer.py _validate_cfg."""
    wanted = [name for name in ("actor", "critic", "ref") if values.flag(f"{name}.offload")]
    if wanted and not values.flag("enable_offload"):
        values.find(f"{wanted[0]}.offload", Severity.ERROR, "needs enable_offload", "enable_offload=true")


def _heads(values: Values, plan: ReadPlan) -> None:
    """areal/engine/fsdp_utils/parallel.py."""
    from planner.files.catalog import load_model

    actor = plan.layout.role("actor")
    if plan.spec.model is None or actor is None or actor.allocation.engine != "fsdp":
        return
    tp = actor.allocation.degrees.tp
    counts = {layer.attention.num_kv_heads for layer in load_model(plan.spec.model).layers}
    wrong = [count for count in counts if count and count % tp]
    if wrong:
        values.find(
            "actor.backend", Severity.ERROR, f"t {tp} does not divide {wrong[0]} key/value heads", "a smaller t"
        )


def _lora(values: Values, plan: ReadPlan) -> None:
    """areal/trainer/rl_trainer.py _validate_cfg."""
    actor, rollout = plan.layout.role("actor"), plan.layout.role("rollout")
    if plan.spec.lora_rank is None or actor is None or rollout is None:
        return
    if actor.allocation.engine == "megatron" and rollout.allocation.engine == "sglang":
        values.find(
            "rollout.backend", Severity.ERROR, "adapters that Megatron trains are not served by SGLang",
            "a vllm backend, or an fsdp backend of the actor",
        )  # fmt: skip
