"""Rules of verl that a configuration can break without any plan: they fire at start-up, or worse, later.

Sources are the files named at each rule, in verl 0.9.1.
"""

from __future__ import annotations

from planner.adapters.findings import Severity
from planner.adapters.import_trainer import check_pipeline
from planner.adapters.import_values import Values
from planner.adapters.verl_import_execution import Overlap, check_execution
from planner.adapters.verl_import_keys import Tables, is_below
from planner.adapters.verl_import_plan import ReadPlan
from planner.adapters.verl_import_workers import ACTOR, CRITIC, REF, ROLLOUT
from planner.domain.stages import WorkerName
from planner.domain.strategy import TrainerStrategy


def check_rules(values: Values, plan: ReadPlan, entry: str, *, version: str, tables: Tables) -> None:
    """Notes every broken rule."""
    _batches(values, plan, entry)
    _micro_batches(values, plan)
    _engines(values, plan, version, tables)
    check_execution(values, _overlap(plan, entry))
    _dead_sections(values, plan)
    _packing(values, plan)
    if plan.is_megatron:
        section = f"{ACTOR}.megatron"
        check_pipeline(
            values, f"{section}.pipeline_model_parallel_size", f"{section}.override_transformer_config", plan.spec.model
        )


def _overlap(plan: ReadPlan, entry: str) -> Overlap:
    return Overlap(
        entry=entry, sizes=plan.sizes, pools=plan.pools, execution=plan.execution, is_megatron=plan.is_megatron,
        has_lora=plan.spec.lora_rank is not None,
    )  # fmt: skip


def _batches(values: Values, plan: ReadPlan, entry: str) -> None:
    sizes = plan.sizes
    if entry != "fully_async" and sizes.num_prompts < sizes.mini_batch_prompts:
        # workers/config/actor.py validate()
        values.find(
            "data.train_batch_size", Severity.ERROR,
            f"{sizes.num_prompts} prompts are less than one mini-batch of {sizes.mini_batch_prompts}",
            f"{ACTOR}.ppo_mini_batch_size={sizes.num_prompts} or less",
        )  # fmt: skip
    samples = min(sizes.mini_batch_prompts, sizes.num_prompts) * sizes.group_size
    for worker in plan.workers:
        strategy = worker.strategy
        trains = worker.worker in (WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER)
        if trains and isinstance(strategy, TrainerStrategy) and samples % strategy.dp:
            # workers/engine_workers.py, workers/engine/utils.py
            prefix = ACTOR if worker.worker is WorkerName.ACTOR_TRAINER else CRITIC
            values.find(
                f"{prefix}.ppo_mini_batch_size", Severity.ERROR,
                f"{sizes.mini_batch_prompts} prompts x {sizes.group_size} = {samples} samples do not divide over "
                f"{strategy.dp} data-parallel ranks",
                f"a mini-batch whose samples are a multiple of {strategy.dp}",
            )  # fmt: skip


def _micro_batches(values: Values, plan: ReadPlan) -> None:
    """utils/config.py validate_config; workers/config/actor.py."""
    dynamic = values.flag(f"{ACTOR}.use_dynamic_bsz")
    pairs = [(f"{ACTOR}.ppo", dynamic), (f"{ROLLOUT}.log_prob", values.flag(f"{ROLLOUT}.log_prob_use_dynamic_bsz"))]
    if plan.has_reference:
        pairs.append((f"{REF}.log_prob", values.flag(f"{REF}.log_prob_use_dynamic_bsz")))
    if plan.has_critic:
        pairs.append((f"{CRITIC}.ppo", values.flag(f"{CRITIC}.use_dynamic_bsz")))
    for prefix, is_dynamic in pairs:
        _micro_batch(values, plan, prefix, is_dynamic=is_dynamic)
    if dynamic != values.flag(f"{ROLLOUT}.log_prob_use_dynamic_bsz"):
        # workers/engine_workers.py
        values.find(
            f"{ROLLOUT}.log_prob_use_dynamic_bsz", Severity.ERROR,
            f"differs from {ACTOR}.use_dynamic_bsz, and verl asserts that they are equal", "leave it out",
        )  # fmt: skip


def _micro_batch(values: Values, plan: ReadPlan, prefix: str, *, is_dynamic: bool) -> None:
    per_gpu, whole = f"{prefix}_micro_batch_size_per_gpu", f"{prefix}_micro_batch_size"
    if not is_dynamic:
        given = [key for key in (per_gpu, whole) if values.config.get(key) is not None]
        if not given:
            values.find(
                per_gpu, Severity.ERROR, "is missing, and use_dynamic_bsz is off",
                f"{per_gpu}=N, or {ACTOR}.use_dynamic_bsz=True with a token budget",
            )  # fmt: skip
        elif len(given) > 1:
            values.find(whole, Severity.ERROR, f"is given together with {per_gpu}", f"remove {whole}")
        elif prefix == f"{ACTOR}.ppo" and given == [per_gpu]:
            _divides_mini_batch(values, plan, per_gpu)
        return
    budget_key = f"{prefix}_max_token_len_per_gpu"
    actor = next((w.strategy for w in plan.workers if w.worker is WorkerName.ACTOR_TRAINER), None)
    cp = actor.cp if isinstance(actor, TrainerStrategy) else 1
    budget = values.whole(budget_key, 16384) * cp
    if budget < plan.sizes.max_tokens:
        times = f" x {cp} sequence-parallel ranks" if cp > 1 else ""
        values.find(
            budget_key, Severity.ERROR,
            f"{budget // cp:,} tokens{times} are less than one sequence of {plan.sizes.max_tokens:,} "
            "(prompt and response)",
            f"{budget_key}={-(-plan.sizes.max_tokens // cp)} or more",
        )  # fmt: skip
    if values.config.is_set(per_gpu) and values.config.get(per_gpu) is not None:
        values.find(per_gpu, Severity.NOTE, "is not read: use_dynamic_bsz is on", "remove it")


def _divides_mini_batch(values: Values, plan: ReadPlan, key: str) -> None:
    actor = next((w.strategy for w in plan.workers if w.worker is WorkerName.ACTOR_TRAINER), None)
    micro = values.whole(key, 1, minimum=1)
    sizes = plan.sizes
    if not isinstance(actor, TrainerStrategy):
        return
    samples = min(sizes.mini_batch_prompts, sizes.num_prompts) * sizes.group_size
    if samples % actor.dp == 0 and (samples // actor.dp) % micro:
        values.find(
            key, Severity.ERROR,
            f"{samples // actor.dp} samples per data-parallel rank and update are no multiple of {micro}",
            f"a divisor of {samples // actor.dp}",
        )  # fmt: skip


def _engines(values: Values, plan: ReadPlan, version: str, tables: Tables) -> None:
    """workers/config/rollout.py."""
    name = values.config.get(f"{ROLLOUT}.name")
    is_current = version == tables.version
    if not isinstance(name, str) or "\ue000" in name:
        values.find(
            f"{ROLLOUT}.name", Severity.ERROR if is_current else Severity.WARNING,
            "is mandatory since verl 0.6 (vllm before)", f"{ROLLOUT}.name=vllm",
        )  # fmt: skip
    if values.text(f"{ROLLOUT}.mode", "async") == "sync":
        values.find(
            f"{ROLLOUT}.mode", Severity.ERROR if is_current else Severity.WARNING,
            f"sync has been removed and is refused by verl {tables.version}", "remove it",
        )  # fmt: skip
    tp = values.whole(f"{ROLLOUT}.tensor_model_parallel_size", 2, minimum=1)
    dp = values.whole(f"{ROLLOUT}.data_parallel_size", 1, minimum=1)
    ep = values.whole(f"{ROLLOUT}.expert_parallel_size", 1, minimum=1)
    if ep > 1 and ep != tp * dp and name != "trtllm":
        values.find(
            f"{ROLLOUT}.expert_parallel_size", Severity.ERROR, f"{ep} is neither 1 nor tp x dp = {tp * dp}",
            f"{ROLLOUT}.expert_parallel_size={tp * dp}",
        )  # fmt: skip
    if values.whole(f"{ROLLOUT}.pipeline_model_parallel_size", 1) > 1:
        values.find(
            f"{ROLLOUT}.pipeline_model_parallel_size", Severity.ERROR, "above 1 is refused for every engine",
            f"{ROLLOUT}.pipeline_model_parallel_size=1",
        )  # fmt: skip
    longest = values.optional_whole(f"{ROLLOUT}.max_model_len", minimum=1)
    if longest is not None and longest < plan.sizes.max_tokens:
        values.find(
            f"{ROLLOUT}.max_model_len", Severity.ERROR,
            f"{longest:,} tokens are less than prompt and response, {plan.sizes.max_tokens:,}",
            f"{ROLLOUT}.max_model_len={plan.sizes.max_tokens}",
        )  # fmt: skip
    per_node = plan.pools.trainer_gpus // plan.pools.trainer_nodes
    if tp * dp > per_node and (tp * dp) % per_node:
        values.find(
            f"{ROLLOUT}.tensor_model_parallel_size", Severity.ERROR,
            f"an engine of {tp * dp} GPUs is no multiple of the {per_node} GPUs of a node",
        )  # fmt: skip
    batched, seqs = (
        values.whole(f"{ROLLOUT}.max_num_batched_tokens", 8192),
        values.whole(f"{ROLLOUT}.max_num_seqs", 256),
    )
    if batched < seqs:
        values.find(
            f"{ROLLOUT}.max_num_batched_tokens", Severity.ERROR,
            f"{batched} tokens per engine step are less than max_num_seqs, {seqs}: vLLM refuses it",
            f"{ROLLOUT}.max_num_batched_tokens={seqs}",
        )  # fmt: skip
    whole = longest or plan.sizes.max_tokens
    if not values.flag(f"{ROLLOUT}.enable_chunked_prefill", default=True) and batched < whole:
        values.find(
            f"{ROLLOUT}.max_num_batched_tokens", Severity.ERROR,
            f"{batched:,} are less than one sequence of {whole:,}, and chunked prefill is off",
            f"{ROLLOUT}.enable_chunked_prefill=True",
        )  # fmt: skip


def _dead_sections(values: Values, plan: ReadPlan) -> None:
    """Sections of the back end that is not in use, and of roles that are not there."""
    dead = [
        (f"{ACTOR}.fsdp_config", f"{REF}.fsdp_config", "critic.fsdp")
        if plan.is_megatron
        else (f"{ACTOR}.megatron", f"{REF}.megatron", "critic.megatron")
    ][0]
    why = "Megatron is the back end" if plan.is_megatron else "FSDP is the back end"
    sections = [(section, why) for section in dead]
    if not plan.has_critic:
        sections.append(("critic", "there is no critic"))
    if not plan.has_reference:
        sections.append((REF, "there is no reference"))
    for section, reason in sections:
        found = [key for key in values.config.places if is_below(key, section) and key != "critic.enable"]
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            values.find(found[0], Severity.NOTE, f"{found[0]}{more}: nothing reads it, {reason}", "")


def _packing(values: Values, plan: ReadPlan) -> None:
    """workers/config/actor.py."""
    packs = values.flag("actor_rollout_ref.model.use_remove_padding", default=True)
    if packs:
        return
    actor = next((w.strategy for w in plan.workers if w.worker is WorkerName.ACTOR_TRAINER), None)
    if isinstance(actor, TrainerStrategy) and actor.cp > 1 and not plan.is_megatron:
        values.find(
            "actor_rollout_ref.model.use_remove_padding", Severity.ERROR, "Ulysses needs packed sequences",
            "actor_rollout_ref.model.use_remove_padding=True",
        )  # fmt: skip
        return
    values.find(
        "actor_rollout_ref.model.use_remove_padding", Severity.WARNING,
        "sequences are padded to the longest length, and padding is computed; the prediction assumes packing",
        "actor_rollout_ref.model.use_remove_padding=True",
    )  # fmt: skip
