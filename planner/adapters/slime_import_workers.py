"""slime's roles: trainers in Megatron's layout, engines of SGLang.

Token budgets are per GPU and multiplied by the context-parallel size (slime/backends/megatron_utils/data.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.adapters.findings import Severity
from planner.adapters.import_recompute import Recomputation, full_recomputation
from planner.adapters.import_trainer import (
    Degrees,
    Place,
    Tokens,
    attention_groups,
    divides,
    engine_words,
    fixed,
    forward_only,
    holds_longest,
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
    ExpertExchange,
    Offload,
    Recompute,
    RolloutStrategy,
    Sharding,
    TrainerStrategy,
)

SGLANG_STATIC = 0.83
"""What SGLang chooses itself on 80 GB (sglang/srt/server_args.py _handle_gpu_memory_settings: 12.8 to 14 GB aside)."""
_CHEAP_MODULES = frozenset({"layernorm", "moe_act"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """GPUs of trainers and engines."""

    trainer_gpus: int
    engine_gpus: int
    is_shared: bool

    @property
    def num_gpus(self) -> int:
        return max(self.trainer_gpus, self.engine_gpus) if self.is_shared else self.trainer_gpus + self.engine_gpus


def read_workers(
    values: Values, pools: Pools, max_tokens: int, model: str | None, *, has_critic: bool, has_reference: bool
) -> tuple[FixedWorker, ...]:
    """The workers whose degrees divide their GPUs."""
    places: list[Place] = []
    if pools.engine_gpus:
        first = 0 if pools.is_shared else pools.trainer_gpus
        engines = _engines(values, pools.engine_gpus, model)
        places.append(
            Place(worker=WorkerName.ROLLOUT_ENGINE, first_gpu=first, num_gpus=pools.engine_gpus, strategy=engines)
        )
    degrees = _degrees(values, model)
    count = pools.trainer_gpus
    if divides(values, "tensor-model-parallel-size", degrees, count):
        tokens = _tokens(values, degrees, max_tokens)
        trainer = _trainer(values, degrees, count, tokens, model, has_critic=has_critic)
        values.say("actor", trainer_words(trainer), "Megatron flags")
        places.append(Place(worker=WorkerName.ACTOR_TRAINER, first_gpu=0, num_gpus=count, strategy=trainer))
        if has_critic:
            values.say("critic", "the actor's layout on the actor's GPUs", "advantage-estimator")
            places.append(Place(worker=WorkerName.CRITIC_TRAINER, first_gpu=0, num_gpus=count, strategy=trainer))
        if has_reference:
            found = forward_only(
                degrees, count, trainer.inference_tokens, sharding=Sharding.DDP, swaps=True, kind=ContextParallel.RING
            )
            values.say("reference", "a copy of the weights in host RAM, run in the actor's layout", "ref-load")
            places.append(Place(worker=WorkerName.REFERENCE, first_gpu=0, num_gpus=count, strategy=found))
    return fixed(places)


def _degrees(values: Values, model: str | None) -> Degrees:
    tp = values.whole("tensor-model-parallel-size", 1, minimum=1)
    pp = values.whole("pipeline-model-parallel-size", 1, minimum=1)
    experts = is_moe(model) or values.config.get("num-experts") is not None
    etp = values.optional_whole("expert-tensor-parallel-size", minimum=1)
    if experts and etp is None and tp > 1:
        values.find(
            "expert-tensor-parallel-size", Severity.WARNING,
            f"not given, which means the tensor parallel size: expert layers are cut {tp} ways as well",
            "--expert-tensor-parallel-size 1 if that is not meant",
        )  # fmt: skip
    return Degrees(
        tp=tp,
        pp=pp,
        vpp=_virtual(values, pp),
        cp=values.whole("context-parallel-size", 1, minimum=1),
        ep=values.whole("expert-model-parallel-size", 1, minimum=1) if experts else 1,
        etp=(etp or tp) if experts else 1,
    )


def _virtual(values: Values, pp: int) -> int:
    given = values.optional_whole("num-virtual-stages-per-pipeline-rank", minimum=1)
    if given is not None:
        return given
    per_stage = values.optional_whole("num-layers-per-virtual-pipeline-stage", minimum=1)
    layers = values.optional_whole("num-layers", minimum=1)
    if per_stage is None or layers is None or layers % (pp * per_stage):
        return 1
    return layers // (pp * per_stage)


def _tokens(values: Values, degrees: Degrees, max_tokens: int) -> Tokens:
    if not values.flag("use-dynamic-batch-size"):
        micro = values.whole("micro-batch-size", 1, minimum=1)
        values.say("micro-batch", f"{micro} sequences, up to {micro * max_tokens:,} tokens", "micro-batch-size")
        return Tokens(train=micro * max_tokens, inference=micro * max_tokens)
    train = values.optional_whole("max-tokens-per-gpu", minimum=1)
    if train is None:
        values.find(
            "max-tokens-per-gpu", Severity.ERROR, "is missing, and --use-dynamic-batch-size needs it",
            f"--max-tokens-per-gpu {-(-max_tokens // degrees.cp)}",
        )  # fmt: skip
        return Tokens(train=max_tokens, inference=max_tokens)
    inference = values.optional_whole("log-probs-max-tokens-per-gpu", minimum=1) or train
    return Tokens(
        train=holds_longest(train * degrees.cp, max_tokens), inference=holds_longest(inference * degrees.cp, max_tokens)
    )


def _trainer(
    values: Values, degrees: Degrees, num_gpus: int, tokens: Tokens, model: str | None, *, has_critic: bool
) -> TrainerStrategy:
    recompute = _recompute(values, degrees, model)
    return TrainerStrategy(
        num_gpus=num_gpus, tp=degrees.tp, pp=degrees.pp, vpp=degrees.vpp, cp=degrees.cp,
        context_parallel=ContextParallel.RING, ep=degrees.ep, etp=degrees.etp, sharding=Sharding.ZERO1,
        shard_ranks=num_gpus // (degrees.tp * degrees.pp), micro_batch_tokens=tokens.train,
        inference_tokens=tokens.inference, recompute=recompute.level, recompute_layers=recompute.layers,
        offload=_offload(values, has_critic=has_critic),
    )  # fmt: skip


def _recompute(values: Values, degrees: Degrees, model: str | None) -> Recomputation:
    if values.text("recompute-granularity") != "full":
        return Recomputation(level=_selective_recompute(values))
    return full_recomputation(
        values, method="recompute-method", layers="recompute-num-layers", model=model, pp=degrees.pp, vpp=degrees.vpp
    )


def _selective_recompute(values: Values) -> Recompute:
    granularity = values.text("recompute-granularity")
    if granularity != "selective":
        if values.flag("recompute-activations"):
            granularity = "selective"
        else:
            return Recompute.NONE
    modules = frozenset(values.texts("recompute-modules")) or frozenset({"core_attn"})
    if modules <= {"core_attn"}:
        values.find("recompute-modules", Severity.NOTE, "flash attention recomputes core_attn anyway: priced as none")
        return Recompute.NONE
    if modules - _CHEAP_MODULES - {"core_attn", "mla_up_proj"}:
        values.find(
            "recompute-modules", Severity.NOTE,
            f"{', '.join(sorted(modules))[:80]} recompute matrix products: priced as full recomputation",
        )  # fmt: skip
        return Recompute.FULL
    return Recompute.SELECTIVE


def _offload(values: Values, *, has_critic: bool) -> Offload:
    """slime/utils/arguments.py: --colocate moves the trainer out unless told otherwise, a critic always does."""
    swaps = values.flag("offload-train", default=values.flag("colocate") or values.flag("offload")) or has_critic
    on_host = values.flag("optimizer-cpu-offload")
    share = values.number("optimizer-offload-fraction", 1.0)
    if on_host and share < 1:
        values.find(
            "optimizer-offload-fraction", Severity.NOTE, f"{share:.0%} of the optimizer on the host is priced as all"
        )
    if on_host:
        return Offload.CPU_OPTIMIZER_STATE_SWAP if swaps else Offload.CPU_OPTIMIZER
    return Offload.STATE_SWAP if swaps else Offload.NONE


def engine_sleeps(values: Values) -> bool:
    return values.flag("offload-rollout", default=values.flag("colocate") or values.flag("offload"))


def _engines(values: Values, num_gpus: int, model: str | None) -> RolloutStrategy | None:
    size = values.whole("rollout-num-gpus-per-engine", 1, minimum=1)
    pp = values.whole("sglang-pp-size", 1, minimum=1)
    if size % pp:
        values.find(
            "sglang-pp-size", Severity.ERROR, f"{pp} does not divide the {size} GPUs of an engine",
            f"a divisor of {size}",
        )  # fmt: skip
        return None
    if num_gpus % size:
        values.find(
            "rollout-num-gpus-per-engine", Severity.ERROR, f"engines of {size} GPUs do not fill {num_gpus} GPUs",
            f"a divisor of {num_gpus}",
        )  # fmt: skip
        return None
    static = values.config.get("sglang-mem-fraction-static")
    if static is None:
        values.find(
            "sglang-mem-fraction-static", Severity.NOTE,
            f"not given: SGLang decides by the GPU, about {SGLANG_STATIC:g} on 80 GB",
            "--sglang-mem-fraction-static 0.7",
        )  # fmt: skip
    fraction = values.number("sglang-mem-fraction-static", SGLANG_STATIC)
    if not 0 < fraction < 1:
        values.wrong("sglang-mem-fraction-static", fraction, "a share of GPU memory between 0 and 1")
        return None
    if values.config.get("sglang-config") is not None:
        values.find("sglang-config", Severity.NOTE, "groups of engines in a file of their own are priced as one group")
    ranks = size // pp
    groups = attention_groups(
        values, "sglang-dp-size", ranks, model, enabled=values.flag("sglang-enable-dp-attention", default=False)
    )
    # DeepEP needs experts on all ranks, and SGLang sets ep so (sglang/srt/server_args.py).
    sends = groups > 1 and values.config.get("sglang-moe-a2a-backend") == "deepep"
    strategy = RolloutStrategy(
        num_gpus=num_gpus, tp=ranks // groups, pp=pp,
        ep=ranks if sends or values.whole("sglang-ep-size", 1) > 1 else 1,
        engine_fraction=sglang_fraction(values, "sglang-mem-fraction-static", fraction, model),
        max_num_seqs=max(1, _max_seqs(values) // groups),
        idle=EngineIdle.SLEEP if engine_sleeps(values) else EngineIdle.RESIDENT,
        attention_dp=groups, exchange=ExpertExchange.ALL_TO_ALL if sends else ExpertExchange.GATHER,
    )  # fmt: skip
    values.say("engines", engine_words(strategy), values.origin("rollout-num-gpus-per-engine"))
    return strategy


def _max_seqs(values: Values) -> int:
    """SGLang's limit, and what slime keeps under way for each engine (--sglang-server-concurrency)."""
    running = values.optional_whole("sglang-max-running-requests", minimum=1)
    under_way = values.whole("sglang-server-concurrency", 512, minimum=1)
    return min(running or under_way, under_way)


def knobs(workers: tuple[FixedWorker, ...], *, is_dynamic: bool) -> tuple[Knob, ...]:
    """How slime writes the fields of the workers that a configuration has."""
    found: list[Knob] = []
    for worker in workers:
        name = worker.worker
        if name is WorkerName.ROLLOUT_ENGINE:
            found += [
                Knob(
                    worker=name,
                    field="tp",
                    keys=("--rollout-num-gpus-per-engine",),
                    factor_fields=("pp", "attention_dp"),
                ),
                Knob(
                    worker=name,
                    field="max_num_seqs",
                    keys=("--sglang-max-running-requests",),
                    factor_fields=("attention_dp",),
                ),
            ]
            continue
        keys = (
            ("tp", "tensor-model-parallel-size"), ("pp", "pipeline-model-parallel-size"),
            ("cp", "context-parallel-size"), ("ep", "expert-model-parallel-size"),
            ("etp", "expert-tensor-parallel-size"),
        )  # fmt: skip
        found += [Knob(worker=name, field=field, keys=(f"--{key}",)) for field, key in keys]
        if name in (WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER):
            recompute = (("full", ("full", "uniform", "1")),)
            parts = tuple(f"--recompute-{part}" for part in ("granularity", "method", "num-layers"))
            found.append(Knob(worker=name, field="recompute", keys=parts, words=recompute))
        if is_dynamic:
            found += [
                Knob(worker=name, field="micro_batch_tokens", keys=("--max-tokens-per-gpu",), divisor_field="cp"),
                Knob(
                    worker=name, field="inference_tokens", keys=("--log-probs-max-tokens-per-gpu",), divisor_field="cp"
                ),
            ]
    return tuple(found)
