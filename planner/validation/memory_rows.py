"""Rows of memory.csv as configurations: strategy, recipe by documented default, and the quantity that was measured.

Every default below is stated in docs/validation-protocol.md, which also says which of them were found only after
residuals had been seen. A field that a row leaves out never becomes a free knob of its own: it takes its source's
default, or a rule excludes the row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from planner.cost.activations import STANDARD, Module, Recipe
from planner.domain.model import Model
from planner.domain.strategy import ContextParallel, Offload, Recompute, Sharding, TrainerStrategy
from planner.validation.megatron_tests import has_unfused_attention, is_plain_test, read_flags, test_model
from planner.validation.read import (
    Row,
    RowError,
    degree,
    find_model,
    integer,
    number,
    positive,
    required_degree,
    text,
)

_GIB = 2.0**30
FUSED_LOGITS = 4.0
"""16-bit logits and their gradient: the loss kernel writes no probabilities."""
MEGATRON_LOGITS = 6.0
"""Vocabulary-parallel cross-entropy: fp32 probabilities beside 16-bit logits, then beside their 16-bit gradient."""
EAGER_LOGITS = 12.0
"""PyTorch's cross-entropy on upcast logits: 16-bit logits, fp32 logits, fp32 log-probabilities, 16-bit gradient."""
_UNFUSED_SCORES = 5.0
_TORCHTITAN = Recipe(
    logits_bytes=EAGER_LOGITS,
    has_wgrad_buffer=False,
    fp8_bytes=0.0,
    selective=(Module.EVERY_SECOND_PRODUCT,),
    keeps_live_layer=True,
    has_root_unit=False,
)
_BRIDGE = Recipe(gradient_bytes=2.0, fp8_bytes=0.0, has_fp8_inputs=True, logits_bytes=FUSED_LOGITS)
"""Performance recipes of Megatron-Bridge reduce gradients in 16 bit and keep FP8 weights only (param gather)."""
_BRIDGE_16BIT_MOMENTS = replace(_BRIDGE, optimizer_bytes=8.0)
_HUGGING_FACE = Recipe(
    gradient_bytes=2.0,
    logits_bytes=EAGER_LOGITS,
    has_wgrad_buffer=False,
    sharded_weight_bytes=2.0,
    sharded_optimizer_bytes=12.0,
)
"""DeepSpeed on 16-bit checkpoints: 16-bit weights and gradients, fp32 master weights and moments."""
_PURE_16BIT = replace(_HUGGING_FACE, optimizer_bytes=4.0)
"""Without DeepSpeed the optimizer works on 16-bit weights with 16-bit moments."""
_ADAMW_8BIT_BYTES = 2.0
_MASTER_BYTES = 4.0
NF4_BYTES = 0.55
"""4-bit weights and one fp32 scale per 64 of them."""
_MEGATRON_SELECTIVE = {
    "core_attn": (),
    "layernorm": (Module.NORM,),
    "moe_act": (Module.MOE_ACTIVATION,),
    "mlp": (Module.MLP,),
    "moe": (Module.MOE,),
    "mla_up_proj": (Module.MLA_UP_PROJECTION,),
}
_TORCHTUNE_STEPS = (
    "packed", "compile", "chunked", "checkpointing", "fuse optimizer", "offloading", "8-bit", "lora", "qlora"
)  # fmt: skip
_SIXTEEN_BIT_MOMENTS = ("moonlight", "deepseek", "nemotron-3", "nemotron-3.5", "kimi")
"""Models whose published Megatron-Bridge recipes set a precision-aware optimizer with 16-bit gradients and moments."""


class RuleError(RowError):
    """A fixed rule of the protocol excludes the row."""


class MemoryKind(StrEnum):
    """What was measured."""

    ALLOCATED = "allocated"
    """Live tensors: no context, no communicators, no fragmentation."""
    RESERVED = "reserved"
    """What the caching allocator holds: allocated and fragmentation."""
    DEVICE = "device"
    """What the driver shows: reserved, context and communicators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRun:
    """One measured peak and the run that had it."""

    model: Model
    recipe: Recipe
    strategy: TrainerStrategy
    num_micro_batches: float
    seq_tokens: float
    lora_rank: int | None
    is_fp8: bool
    host_optimizer_ratio: float
    """Share of the optimizer that works on the host."""
    kind: MemoryKind
    measured_bytes: float
    is_optimizer_stated: bool
    assumed: str
    """Defaults that the row did not state."""


def read_run(row: Row) -> MemoryRun:
    """The run of a row; RuleError where a rule excludes it, RowError where it states too little."""
    _check_rules(row)
    framework, source = text(row, "framework"), text(row, "source")
    if source.startswith("NVIDIA/Megatron-LM"):
        return _megatron_test(row)
    if source.startswith("SimuMax"):
        return _run(row, replace(STANDARD, logits_bytes=FUSED_LOGITS), default_sharding=Sharding.ZERO1)
    if framework == "torchtitan":
        return _run(row, _TORCHTITAN, default_sharding=Sharding.ZERO3)
    if framework == "megatron-bridge":
        return _bridge(row)
    if framework in ("megatron", "megatron-fsdp"):
        sharding = Sharding.ZERO3 if framework == "megatron-fsdp" else Sharding.ZERO1
        return _run(row, replace(STANDARD, logits_bytes=MEGATRON_LOGITS), default_sharding=sharding)
    if framework == "megatron-swift":
        return _run(row, replace(STANDARD, logits_bytes=MEGATRON_LOGITS), default_sharding=Sharding.ZERO1)
    if framework.startswith("ms-swift"):
        return _swift(row)
    if framework == "torchtune":
        return _torchtune(row)
    if framework == "litgpt":
        return _litgpt(row)
    if framework == "verl":
        return _run(
            row, replace(STANDARD, logits_bytes=EAGER_LOGITS, has_wgrad_buffer=False), default_sharding=Sharding.ZERO3
        )
    raise RowError(f"framework {framework[:40]!r} has no documented recipe")


def _check_rules(row: Row) -> None:
    if number(row, "mem_gib") is None:
        raise RuleError("states no peak")
    if text(row, "measured") == "0":
        raise RuleError("analytic value, not a measurement")
    task = text(row, "task")
    if any(word in task for word in ("rollout", "infer", "export", "predict", "deploy", "eval", "sample")):
        raise RuleError("engine or inference memory, not a training peak")
    if text(row, "framework") == "vllm":
        raise RuleError("engine memory, not a training peak")
    if "card size" in text(row, "note") or "may only mean" in text(row, "note"):
        raise RuleError("the figure may be the size of the card")
    if any(
        word in text(row, "model").lower()
        for word in ("-vl", "omni", "ocr", "internvl", "llava", "mimo test", "emu", "vl2")
    ):
        raise RuleError("multimodal: the vision or audio tower is not modelled")
    if "distill" in text(row, "id"):
        raise RuleError("distillation: the teacher shares the GPU and its size is not stated")
    if any(word in task for word in ("gkd", "ppo", "grpo", "kto", "rl-")):
        raise RuleError("several models share the GPU and the row does not say how")
    if _filling(row) < 1.0 and degree(row, "mbs") > 1:
        raise RuleError("several samples per micro-batch, not packed: their lengths are not stated")
    sample, batch, micro = integer(row, "gbs"), integer(row, "mbs"), integer(row, "dp")
    if sample and batch and micro and sample % (batch * micro):
        raise RuleError("global batch is no multiple of micro batch x data-parallel ranks: the row contradicts itself")


# ------------------------------------------------------------------------------------------- by source


def _megatron_test(row: Row) -> MemoryRun:
    """Golden values of Megatron-LM's functional tests: the logging rank is the last pipeline rank."""
    flags = read_flags(row)
    tp = degree(row, "tp")
    is_plain = is_plain_test(row)
    # the fused loss of these tests is Megatron's own ("native"), which keeps fp32 probabilities as well
    recipe = Recipe(
        gradient_bytes=2.0 if flags.has("grad-reduce-in-bf16") else 4.0,
        logits_bytes=MEGATRON_LOGITS,
        has_wgrad_buffer=not flags.has("no-gradient-accumulation-fusion"),
        is_sequence_parallel=tp == 1 or flags.has("sequence-parallel"),
        has_dropout=is_plain,
        score_bytes_per_pair=_UNFUSED_SCORES if has_unfused_attention(row, flags) else 0.0,
        only_last_rank=True,
    )
    num_gpus = degree(row, "n_gpus") if integer(row, "n_gpus") else None
    assumed = ""
    if not num_gpus:
        if not is_plain:
            raise RuleError("number of GPUs not resolved for a test that needs more than a node")
        num_gpus = 4 if text(row, "gpu") in ("gb200", "gb300") else 8
        assumed = f"{num_gpus} GPUs (one node)"
    sharding = Sharding.ZERO3 if flags.has("use-megatron-fsdp") else None
    run = _run(
        row,
        recipe,
        default_sharding=sharding or Sharding.DDP,
        model=test_model(row, flags, tp),
        num_gpus=num_gpus,
        fixed_sharding=sharding,
    )
    return replace(run, assumed=assumed)


def _bridge(row: Row) -> MemoryRun:
    model = text(row, "model").lower()
    is_small = any(part in model for part in _SIXTEEN_BIT_MOMENTS)
    recipe = _BRIDGE_16BIT_MOMENTS if is_small else _BRIDGE
    sharding = Sharding.ZERO3 if "FSDP" in text(row, "flags") else Sharding.ZERO1
    if text(row, "mem_kind").endswith("iteration 1"):
        # Adam's moments appear at the first optimizer step, after the first backward pass
        recipe = replace(recipe, optimizer_bytes=_MASTER_BYTES)
    run = _run(row, recipe, default_sharding=sharding)
    return replace(run, assumed="gradients and optimizer states of the published recipe")


def _swift(row: Row) -> MemoryRun:
    """ms-swift on transformers: DeepSpeed when a ZeRO level is given, else plain 16-bit training or DDP."""
    zero = integer(row, "zero")
    note = text(row, "note").lower()
    recipe = _HUGGING_FACE if zero else _PURE_16BIT
    if "liger" in note and "not using use_liger" not in note:
        recipe = replace(recipe, logits_bytes=0.0)
    if any(name in text(row, "model").lower() for name in ("awq", "gptq", "int4")):
        recipe = replace(recipe, frozen_bytes=NF4_BYTES)
    return _run(row, recipe, default_sharding=Sharding.DDP)


def _torchtune(row: Row) -> MemoryRun:
    """Default recipes checkpoint activations and chunk the loss; the ablation adds one step after another."""
    flags = text(row, "flags").lower()
    is_ablation = "cumulative" in flags
    reached = max((index for index, step in enumerate(_TORCHTUNE_STEPS) if step in flags), default=-1)

    def has(step: str) -> bool:
        return is_ablation and reached >= _TORCHTUNE_STEPS.index(step)

    recipe = replace(_PURE_16BIT, sharded_optimizer_bytes=_PURE_16BIT.optimizer_bytes)
    if not is_ablation or has("chunked"):
        recipe = replace(recipe, logits_bytes=FUSED_LOGITS)
    if has("fuse optimizer") or "optimizer in backward" in flags:
        recipe = replace(recipe, gradient_bytes=0.0)
    if has("8-bit"):
        recipe = replace(recipe, optimizer_bytes=_ADAMW_8BIT_BYTES)
    if "qlora" in text(row, "task") or "qlora" in flags:
        recipe = replace(recipe, frozen_bytes=NF4_BYTES)
    if "cpu offload" in flags:
        recipe = replace(recipe, sharded_weight_bytes=0.0, sharded_optimizer_bytes=0.0)
    if not is_ablation and text(row, "strategy") == "single" and text(row, "task").startswith("full"):
        recipe = replace(recipe, gradient_bytes=0.0, optimizer_bytes=_ADAMW_8BIT_BYTES)
    sharding = Sharding.ZERO3 if text(row, "strategy") == "FSDP" else Sharding.DDP
    run = _run(row, recipe, default_sharding=sharding)
    if is_ablation:
        return run
    return replace(run, strategy=replace(run.strategy, recompute=Recompute.FULL), assumed="activation checkpointing")


def _litgpt(row: Row) -> MemoryRun:
    recipe = replace(_PURE_16BIT, logits_bytes=EAGER_LOGITS)
    if "nf4" in text(row, "precision"):
        recipe = replace(recipe, frozen_bytes=NF4_BYTES)
    if integer(row, "n_gpus", 1) != 1:
        raise RuleError("sharding over several GPUs not stated")
    return _run(row, recipe, default_sharding=Sharding.DDP)


# ------------------------------------------------------------------------------------------- common parts


def _run(
    row: Row,
    recipe: Recipe,
    *,
    default_sharding: Sharding,
    model: Model | None = None,
    num_gpus: int | None = None,
    fixed_sharding: Sharding | None = None,
) -> MemoryRun:
    model = model or find_model(text(row, "model"), num_layers=integer(row, "layers"))
    num_gpus = num_gpus or required_degree(row, "n_gpus")
    tp, pp, cp, ep = (degree(row, key) for key in ("tp", "pp", "cp", "ep"))
    cp = max(cp, _ulysses(row))
    if num_gpus % (tp * pp * cp):
        raise RowError(f"tp x pp x cp = {tp * pp * cp} does not divide {num_gpus} GPUs")
    dp = num_gpus // (tp * pp * cp)
    seq_tokens = positive(row, "seq_len")
    micro_batch = degree(row, "mbs")
    lora_rank = _lora_rank(row)
    if "dpo" in text(row, "task") and lora_rank is None:
        # the reference model stays on the GPU in 16 bit, sharded like the policy
        recipe = replace(
            recipe, weight_bytes=recipe.weight_bytes + 2.0, sharded_weight_bytes=recipe.sharded_weight_bytes + 2.0
        )
    recompute, recipe = _recompute(row, recipe)
    is_fp8 = "fp8" in text(row, "precision").lower()
    if not is_fp8:
        recipe = replace(recipe, has_fp8_inputs=False)
    tokens = micro_batch * seq_tokens * _filling(row)
    strategy = TrainerStrategy(
        num_gpus=num_gpus,
        tp=tp,
        pp=pp,
        vpp=degree(row, "vpp"),
        cp=cp,
        context_parallel=ContextParallel.RING,
        ep=ep,
        etp=degree(row, "etp") if text(row, "etp") else (1 if ep > 1 else tp),
        sharding=fixed_sharding or _sharding(row, default_sharding),
        shard_ranks=dp * cp,
        micro_batch_tokens=round(tokens),
        inference_tokens=round(tokens),
        recompute=recompute,
        offload=Offload.NONE,
    )
    batch = number(row, "gbs")
    number_ = number(row, "micro_batches") or (batch / (dp * micro_batch) if batch else 1.0)
    return MemoryRun(
        model=model,
        recipe=recipe,
        strategy=strategy,
        num_micro_batches=max(number_, 1.0),
        seq_tokens=seq_tokens,
        lora_rank=lora_rank,
        is_fp8=is_fp8,
        host_optimizer_ratio=_host_ratio(row),
        kind=_kind(row),
        measured_bytes=positive(row, "mem_gib") * _GIB,
        is_optimizer_stated=bool(text(row, "optimizer")),
        assumed="",
    )


def _ulysses(row: Row) -> int:
    found = re.search(r"sequence_parallel_size=(\d+)", text(row, "flags"))
    return int(found.group(1)) if found else 1


def _filling(row: Row) -> float:
    """Tokens of a micro-batch over micro batch x maximum length: 1 when packed, a half where samples are not.

    ms-swift and torchtune say whether samples are packed; all other sources train on full sequences.
    """
    framework, flags = text(row, "framework"), text(row, "flags").lower()
    if framework == "torchtune":
        return 0.5 if flags == "cumulative: baseline" else 1.0
    if not framework.startswith(("ms-swift", "megatron-swift")):
        return 1.0
    return 1.0 if "packing=true" in flags else 0.5


def _sharding(row: Row, default: Sharding) -> Sharding:
    zero = integer(row, "zero")
    if zero is None:
        return default
    levels = (Sharding.DDP, Sharding.ZERO1, Sharding.ZERO2, Sharding.ZERO3)
    if zero >= len(levels):
        raise RowError(f"zero = {zero} is no ZeRO level")
    return levels[zero]


def _lora_rank(row: Row) -> int | None:
    task, flags = text(row, "task").lower(), text(row, "flags")
    if "lora" not in task and "peft" not in task and "adapter" not in task:
        return None
    found = re.search(r"lora_rank=(\d+)", flags)
    return int(found.group(1)) if found else 8


def _recompute(row: Row, recipe: Recipe) -> tuple[Recompute, Recipe]:
    stated = text(row, "recompute")
    if stated.startswith("full"):
        return Recompute.FULL, recipe
    if stated == "selective_moe":
        return Recompute.SELECTIVE, replace(recipe, selective=(Module.MOE,))
    if not stated.startswith("selective"):
        return Recompute.NONE, recipe
    modules = re.search(r"\[(.*)\]", stated)
    if modules is None:
        # Megatron's plain "selective" recomputes core attention, of which flash attention keeps nothing
        is_megatron = text(row, "framework").startswith("megatron")
        return Recompute.SELECTIVE, replace(recipe, selective=()) if is_megatron else recipe
    names = [name.strip() for name in modules.group(1).split(",")]
    unknown = [name for name in names if name not in _MEGATRON_SELECTIVE]
    if unknown:
        raise RowError(f"recomputed module {unknown[0][:40]!r} is not known")
    chosen = tuple(part for name in names for part in _MEGATRON_SELECTIVE[name])
    return Recompute.SELECTIVE, replace(recipe, selective=chosen)


def _host_ratio(row: Row) -> float:
    found = re.search(
        r"(?:cpu offload|optimizer_cpu_offload_fraction=)\s*([\d.]+)", text(row, "optimizer") + " " + text(row, "flags")
    )
    return min(float(found.group(1)), 1.0) if found else 0.0


def _kind(row: Row) -> MemoryKind:
    """`allocated` where the source says so or logs that counter; `reserved` for logs of the allocator's peak."""
    stated = text(row, "mem_kind")
    if stated.startswith(("peak reserved", "per-GPU memory")):
        return MemoryKind.RESERVED
    return MemoryKind.ALLOCATED
