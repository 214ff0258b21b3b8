"""The strategies of verl's workers, with the units of a plan: tokens per micro-batch, GPUs per engine."""

from __future__ import annotations

from dataclasses import dataclass

from planner.adapters.findings import Severity
from planner.adapters.import_recompute import Recomputation, full_recomputation
from planner.adapters.import_trainer import Place, fixed
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
    Strategy,
    TrainerStrategy,
)

ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
CRITIC = "critic"
REWARD_ROLLOUT = "reward.reward_model.rollout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """GPUs by use; the trainer comes first, then engines apart from it, then a reward model of its own."""

    trainer_gpus: int
    engine_gpus: int
    """0: engines share the trainer's."""
    reward_gpus: int
    """0: a reward model shares the trainer's."""
    gpus_per_node: int
    trainer_nodes: int
    num_nodes: int
    node_parts: tuple[tuple[int, int], ...] = ()
    """(nodes, GPUs of each) of trainer, engines and reward model where there is more than one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Batch and lengths; prompts per iteration and per update."""

    num_prompts: int
    group_size: int
    mini_batch_prompts: int
    num_optimizer_steps: int
    prompt_max: int
    response_max: int

    @property
    def max_tokens(self) -> int:
        return self.prompt_max + self.response_max


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Parallel degrees of a trainer; dp is what remains."""

    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1


def read_workers(
    values: Values,
    pools: Pools,
    sizes: Sizes,
    *,
    is_megatron: bool,
    has_critic: bool,
    has_reference: bool,
    reward_model: str | None,
    model: str | None,
    critic: str | None,
    runs_ahead: bool,
) -> tuple[FixedWorker, ...]:
    """The workers whose degrees divide their GPUs; for the others a finding says what does not fit."""
    reader = _Reader(values, pools, sizes, is_megatron=is_megatron)
    placed: list[tuple[WorkerName, int, int, Strategy | None]] = []
    engine_gpus = pools.engine_gpus or pools.trainer_gpus
    first = pools.trainer_gpus if pools.engine_gpus else 0
    engine = reader.engine(engine_gpus, model, runs_ahead=runs_ahead)
    placed.append((WorkerName.ROLLOUT_ENGINE, first, engine_gpus, engine))
    actor = reader.trainer(ACTOR, "fsdp_config", pools.trainer_gpus, model)
    placed.append((WorkerName.ACTOR_TRAINER, 0, pools.trainer_gpus, actor))
    if has_reference:
        reference = reader.reference(pools.trainer_gpus, actor)
        placed.append((WorkerName.REFERENCE, 0, pools.trainer_gpus, reference))
    if has_critic:
        placed.append((
            WorkerName.CRITIC_TRAINER, 0, pools.trainer_gpus,
            reader.trainer(CRITIC, "fsdp", pools.trainer_gpus, critic),
        ))  # fmt: skip
    if reward_model is not None:
        gpus = pools.reward_gpus or pools.trainer_gpus
        start = pools.trainer_gpus + pools.engine_gpus if pools.reward_gpus else 0
        placed.append((WorkerName.REWARD_MODEL, start, gpus, reader.reward_model(gpus, _is_moe(reward_model))))
    return fixed(
        Place(worker=name, first_gpu=start, num_gpus=num_gpus, strategy=strategy)
        for name, start, num_gpus, strategy in placed
    )


def _is_moe(model: str | None) -> bool:
    from planner.files.catalog import load_model

    return model is not None and load_model(model).is_moe


class _Reader:
    def __init__(self, values: Values, pools: Pools, sizes: Sizes, *, is_megatron: bool) -> None:
        self.values = values
        self.pools = pools
        self.sizes = sizes
        self.is_megatron = is_megatron

    # Engines -----------------------------------------------------------------------------------------------------

    def engine(self, num_gpus: int, model: str | None, *, runs_ahead: bool) -> RolloutStrategy | None:
        """The rollout engines; those that run ahead of the updates never sleep, and drop their cache at most for the
        weight sync."""
        values = self.values
        tp = values.whole(f"{ROLLOUT}.tensor_model_parallel_size", 2, minimum=1)
        pp = values.whole(f"{ROLLOUT}.pipeline_model_parallel_size", 1, minimum=1)
        dp = values.whole(f"{ROLLOUT}.data_parallel_size", 1, minimum=1)
        ep = values.whole(f"{ROLLOUT}.expert_parallel_size", 1, minimum=1)
        # Of a dense model the ranks are engines of their own.
        groups = dp if _is_moe(model) else 1
        size = tp * groups * pp
        if num_gpus % size:
            values.find(
                f"{ROLLOUT}.tensor_model_parallel_size", Severity.ERROR,
                f"engines of {size} GPUs do not fill {num_gpus} GPUs", f"a divisor of {num_gpus}",
            )  # fmt: skip
            return None
        fraction = values.number(f"{ROLLOUT}.gpu_memory_utilization", 0.5)
        if not 0 < fraction <= 1:
            values.wrong(f"{ROLLOUT}.gpu_memory_utilization", fraction, "a share of GPU memory above 0 and up to 1")
            return None
        seqs = values.whole(f"{ROLLOUT}.max_num_seqs", 256, minimum=1)
        if values.config.get(f"{ROLLOUT}.name") == "sglang":
            # SGLang's limit is that of an engine, vLLM's that of each of its ranks.
            seqs = max(1, seqs // groups)
        sleeps = values.flag(f"{ROLLOUT}.free_cache_engine", default=True) and not runs_ahead
        engines = num_gpus // size
        meanwhile = f"{'sleep' if sleeps else 'stay in memory'} while others run"
        if self.pools.engine_gpus:
            meanwhile = "on GPUs of their own"
        values.say(
            "engines",
            f"{engines} of tp {tp}"
            + (f" attention dp {groups}" if groups > 1 else "")
            + (f" ep {ep}" if ep > 1 else "")
            + f", {fraction:.0%} of GPU memory, up to {seqs:,} sequences "
            + f"{'each' if groups == 1 else 'per attention group'}, {meanwhile}",
            values.origin(f"{ROLLOUT}.tensor_model_parallel_size"),
        )  # fmt: skip
        return RolloutStrategy(
            num_gpus=num_gpus, tp=tp, pp=pp, ep=tp * groups if ep > 1 else 1, engine_fraction=fraction,
            max_num_seqs=seqs, idle=EngineIdle.SLEEP if sleeps else EngineIdle.RESIDENT, attention_dp=groups,
        )  # fmt: skip

    def reward_model(self, num_gpus: int, is_moe: bool) -> TrainerStrategy | None:
        """A reward model is an inference server: one forward pass with tensor parallelism."""
        values = self.values
        tp = values.whole(f"{REWARD_ROLLOUT}.tensor_model_parallel_size", 2, minimum=1)
        if num_gpus % tp:
            values.find(
                f"{REWARD_ROLLOUT}.tensor_model_parallel_size", Severity.ERROR,
                f"engines of {tp} GPUs do not fill {num_gpus} GPUs", f"a divisor of {num_gpus}",
            )  # fmt: skip
            return None
        sleeps = values.flag(f"{REWARD_ROLLOUT}.free_cache_engine", default=True)
        tokens = max(
            values.whole(f"{REWARD_ROLLOUT}.max_num_batched_tokens", 8192, minimum=1), self.sizes.max_tokens
        )  # fmt: skip
        return TrainerStrategy(
            num_gpus=num_gpus, tp=tp, pp=1, vpp=1, cp=1, context_parallel=ContextParallel.RING, ep=1,
            etp=tp if is_moe else 1, sharding=Sharding.DDP, shard_ranks=num_gpus // tp,
            micro_batch_tokens=tokens, inference_tokens=tokens,
            recompute=Recompute.NONE, offload=Offload.STATE_SWAP if sleeps else Offload.NONE,
        )  # fmt: skip

    # Trainers ----------------------------------------------------------------------------------------------------

    def trainer(self, prefix: str, fsdp_key: str, num_gpus: int, model: str | None) -> TrainerStrategy | None:
        """The actor or the critic."""
        values, is_moe = self.values, _is_moe(model)
        section = f"{prefix}.megatron" if self.is_megatron else f"{prefix}.{fsdp_key}"
        degrees = self._megatron_degrees(section, is_moe) if self.is_megatron else self._ulysses(prefix, section)
        if not self._divides(section, degrees, num_gpus):
            return None
        data_ranks = num_gpus // (degrees.tp * degrees.pp)
        name = "actor" if prefix == ACTOR else "critic"
        train, inference = self._budgets(prefix, degrees)
        if self.is_megatron:
            zero1 = values.flag(f"{section}.use_distributed_optimizer", default=True)
            sharding, shard_ranks = (Sharding.ZERO1 if zero1 else Sharding.DDP), data_ranks
            recompute = self._megatron_recompute(section, degrees, model)
        else:
            sharding, shard_ranks = Sharding.ZERO3, self._shard_ranks(section, data_ranks)
            model_key = "actor_rollout_ref.model" if prefix == ACTOR else "critic.model"
            checkpoints = values.flag(f"{model_key}.enable_gradient_checkpointing", default=True)
            recompute = Recomputation(level=Recompute.FULL if checkpoints else Recompute.NONE)
        offload = self._offload(prefix, section)
        strategy = TrainerStrategy(
            num_gpus=num_gpus, tp=degrees.tp, pp=degrees.pp, vpp=degrees.vpp, cp=degrees.cp,
            context_parallel=ContextParallel.RING if self.is_megatron else ContextParallel.ULYSSES,
            ep=degrees.ep, etp=degrees.etp, sharding=sharding, shard_ranks=shard_ranks, micro_batch_tokens=train,
            inference_tokens=inference, recompute=recompute.level, recompute_layers=recompute.layers, offload=offload,
        )  # fmt: skip
        values.say(name, _described(strategy, is_moe), section)
        return strategy

    def reference(self, num_gpus: int, actor: TrainerStrategy | None) -> TrainerStrategy | None:
        values = self.values
        if actor is None:
            return None
        if self.is_megatron:
            section = f"{REF}.megatron"
            degrees = self._megatron_degrees(section, actor.ep > 1 or actor.etp > 1)
            if not self._divides(section, degrees, num_gpus):
                return None
            sharding, shard_ranks = Sharding.DDP, num_gpus // (degrees.tp * degrees.pp)
            swaps = values.flag(f"{section}.param_offload")
        else:
            cp = values.whole(f"{REF}.ulysses_sequence_parallel_size", 1, minimum=1)
            degrees = Degrees(cp=cp)
            if not self._divides(f"{REF}.ulysses_sequence_parallel_size", degrees, num_gpus):
                return None
            sharding, shard_ranks = Sharding.ZERO3, self._shard_ranks(f"{REF}.fsdp_config", num_gpus)
            # verl streams the shards of a forward-only FSDP model from host RAM, whatever the key says.
            swaps = True
        tokens = self._budget(f"{REF}.log_prob", f"{REF}.log_prob_use_dynamic_bsz", degrees.cp, actor.inference_tokens)
        if actor.ep * actor.etp > 1 and not self.is_megatron:
            degrees = Degrees(cp=degrees.cp)
        strategy = TrainerStrategy(
            num_gpus=num_gpus, tp=degrees.tp, pp=degrees.pp, vpp=1, cp=degrees.cp,
            context_parallel=actor.context_parallel, ep=degrees.ep, etp=degrees.etp, sharding=sharding,
            shard_ranks=shard_ranks, micro_batch_tokens=tokens, inference_tokens=tokens, recompute=Recompute.NONE,
            offload=Offload.STATE_SWAP if swaps else Offload.NONE,
        )  # fmt: skip
        values.say("reference", _described(strategy, degrees.ep > 1), "the actor's layout unless set")
        return strategy

    def _ulysses(self, prefix: str, section: str) -> Degrees:
        own = self.values.whole(f"{prefix}.ulysses_sequence_parallel_size", 1, minimum=1)
        return Degrees(cp=max(own, self.values.whole(f"{section}.ulysses_sequence_parallel_size", 1, minimum=1)))

    def _megatron_degrees(self, section: str, is_moe: bool) -> Degrees:
        values = self.values
        tp = values.whole(f"{section}.tensor_model_parallel_size", 1, minimum=1)
        etp = values.optional_whole(f"{section}.expert_tensor_parallel_size", minimum=1)
        if etp is None and is_moe and tp > 1 and section.startswith(ACTOR):
            values.find(
                f"{section}.expert_tensor_parallel_size", Severity.WARNING,
                f"null means the tensor parallel size: expert layers are cut {tp} ways as well",
                f"{section}.expert_tensor_parallel_size=1 if that is not meant",
            )  # fmt: skip
        return Degrees(
            tp=tp,
            pp=values.whole(f"{section}.pipeline_model_parallel_size", 1, minimum=1),
            vpp=values.optional_whole(f"{section}.virtual_pipeline_model_parallel_size", minimum=1) or 1,
            cp=values.whole(f"{section}.context_parallel_size", 1, minimum=1),
            ep=values.whole(f"{section}.expert_model_parallel_size", 1, minimum=1) if is_moe else 1,
            etp=(etp or tp) if is_moe else 1,
        )

    def _divides(self, section: str, degrees: Degrees, num_gpus: int) -> bool:
        dense = degrees.tp * degrees.pp * degrees.cp
        experts = degrees.ep * degrees.etp * degrees.pp
        if num_gpus % dense:
            self.values.find(
                section, Severity.ERROR, f"tp x pp x cp = {dense} does not divide {num_gpus} GPUs",
                "degrees whose product divides the trainer's GPUs",
            )  # fmt: skip
            return False
        if experts > 1 and num_gpus % experts:
            self.values.find(
                section, Severity.ERROR,
                f"ep {degrees.ep} x etp {degrees.etp} x pp {degrees.pp} = {experts} does not divide {num_gpus} GPUs",
                f"{section}.expert_tensor_parallel_size=1" if degrees.etp > 1 else "smaller expert_model_parallel_size",
            )  # fmt: skip
            return False
        return True

    def _shard_ranks(self, section: str, data_ranks: int) -> int:
        value = self.values.config.get(f"{section}.fsdp_size")
        if value is None or value == -1:
            return data_ranks
        size = self.values.whole(f"{section}.fsdp_size", data_ranks, minimum=1)
        if data_ranks % size:
            self.values.find(
                f"{section}.fsdp_size", Severity.ERROR, f"{size} does not divide {data_ranks} GPUs", "-1 or a divisor"
            )
            return data_ranks
        return size

    # Batches -----------------------------------------------------------------------------------------------------

    def _budgets(self, prefix: str, degrees: Degrees) -> tuple[int, int]:
        """Tokens per micro-batch of updates and of forward passes."""
        train = self._budget(f"{prefix}.ppo", f"{prefix}.use_dynamic_bsz", degrees.cp, self.sizes.max_tokens)
        if prefix == CRITIC:
            inference_key = f"{CRITIC}.ppo_infer_max_token_len_per_gpu"
            given = self.values.optional_whole(inference_key, minimum=1)
            return train, given * degrees.cp if given else train
        inference = self._budget(f"{ROLLOUT}.log_prob", f"{ROLLOUT}.log_prob_use_dynamic_bsz", degrees.cp, train)
        return train, inference

    def _budget(self, prefix: str, dynamic_key: str, cp: int, default: int) -> int:
        """Packed tokens of a micro-batch, all its sequence-parallel ranks together.

        Token budgets are per GPU and multiplied by the sequence-parallel size; static micro-batches count sequences,
        of which each may have the longest length.
        """
        values = self.values
        if values.flag(dynamic_key):
            return values.whole(f"{prefix}_max_token_len_per_gpu", 16384, minimum=1) * cp
        per_gpu = values.optional_whole(f"{prefix}_micro_batch_size_per_gpu", minimum=1)
        if per_gpu is None:
            whole = values.optional_whole(f"{prefix}_micro_batch_size", minimum=1)
            if whole is None:
                return default
            ranks = max(1, self.pools.trainer_gpus // cp)
            per_gpu = max(1, whole // ranks)
            values.find(
                f"{prefix}_micro_batch_size", Severity.WARNING,
                f"deprecated: it counts the sequences of all GPUs, {whole} here are {per_gpu} per data-parallel rank",
                f"{prefix}_micro_batch_size_per_gpu={per_gpu}",
            )  # fmt: skip
        values.say(
            f"micro-batch of {prefix.rpartition('.')[2]}" + (" (reference)" if prefix.startswith(REF) else ""),
            f"{per_gpu} sequences, up to {per_gpu * self.sizes.max_tokens:,} tokens",
            f"{prefix}_micro_batch_size_per_gpu",
        )  # fmt: skip
        return per_gpu * self.sizes.max_tokens

    # Memory ------------------------------------------------------------------------------------------------------

    def _megatron_recompute(self, section: str, degrees: Degrees, model: str | None) -> Recomputation:
        override = f"{section}.override_transformer_config"
        if self.values.text(f"{override}.recompute_granularity") != "full":
            return Recomputation(level=self._selective_recompute(override, _is_moe(model)))
        return full_recomputation(
            self.values, method=f"{override}.recompute_method", layers=f"{override}.recompute_num_layers", model=model,
            pp=degrees.pp, vpp=degrees.vpp,
        )  # fmt: skip

    def _selective_recompute(self, override: str, is_moe: bool) -> Recompute:
        values = self.values
        if values.text(f"{override}.recompute_granularity") != "selective":
            return Recompute.NONE
        modules = set(values.texts(f"{override}.recompute_modules"))
        if modules <= {"core_attn"}:
            values.find(
                f"{override}.recompute_modules", Severity.NOTE,
                "flash attention recomputes core_attn anyway: priced as no recomputation",
            )  # fmt: skip
            return Recompute.NONE
        if "mlp" in modules or "moe" in modules or not is_moe:
            values.find(
                f"{override}.recompute_modules", Severity.NOTE,
                f"{', '.join(sorted(modules))} recompute matrix products: priced as full recomputation",
            )  # fmt: skip
            return Recompute.FULL
        return Recompute.SELECTIVE

    def _offload(self, prefix: str, section: str) -> Offload:
        values = self.values
        weights = values.flag(f"{section}.param_offload")
        optimizer = values.flag(f"{section}.optimizer_offload")
        if values.flag(f"{prefix}.optim.override_optimizer_config.optimizer_cpu_offload"):
            share = values.number(f"{prefix}.optim.override_optimizer_config.optimizer_offload_fraction", 1.0)
            if share < 1:
                values.find(
                    f"{prefix}.optim.override_optimizer_config.optimizer_offload_fraction", Severity.NOTE,
                    f"{share:.0%} of the optimizer on the host is priced as all of it",
                )  # fmt: skip
            return Offload.CPU_OPTIMIZER_STATE_SWAP if weights else Offload.CPU_OPTIMIZER
        if not self.is_megatron and values.flag(f"{section}.offload_policy"):
            values.find(
                f"{section}.offload_policy", Severity.NOTE,
                "streaming of all states from host RAM is priced as moving them once per iteration",
            )  # fmt: skip
            return Offload.STATE_SWAP
        if weights and optimizer:
            return Offload.STATE_SWAP
        if optimizer and not self.is_megatron:
            return Offload.OPTIMIZER_SWAP
        if weights or optimizer:
            missing = "optimizer_offload" if weights else "param_offload"
            what = "optimizer states stay" if weights else "weights and gradients stay"
            values.find(
                f"{section}.{missing}", Severity.WARNING,
                f"only one of param_offload and optimizer_offload is on: {what} on the GPUs while engines run, and so "
                "do all states in the prediction",
                f"{section}.{missing}=True",
            )  # fmt: skip
        return Offload.NONE


def _described(strategy: TrainerStrategy, is_moe: bool) -> str:
    degrees = [f"tp {strategy.tp}", f"pp {strategy.pp}", f"cp {strategy.cp}", f"dp {strategy.dp}"]
    if strategy.vpp > 1:
        degrees.append(f"vpp {strategy.vpp}")
    if is_moe:
        degrees += [f"ep {strategy.ep}", f"etp {strategy.etp}"]
    shown = " ".join(item for item in degrees if not item.endswith(" 1") or item.startswith(("dp", "etp")))
    is_partial = strategy.sharding is Sharding.ZERO3 and strategy.shard_ranks < strategy.dp * strategy.cp
    over = f" over {strategy.shard_ranks} ranks" if is_partial else ""
    layers = f" ({strategy.recompute_layers} layers per stage)" if strategy.recompute_layers else ""
    return (
        f"{shown}, {strategy.sharding.value}{over}, {strategy.micro_batch_tokens:,} tokens per micro-batch "
        f"({strategy.inference_tokens:,} forward), recompute {strategy.recompute.value}{layers}, "
        f"offload {strategy.offload.value}"
    )
