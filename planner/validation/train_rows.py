"""Rows of train.csv as configurations: model, node, precision and strategy of one measured training run.

What a row does not state gets the default of its source, fixed in docs/validation-protocol.md before any fit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.cost.compute import attention_flop_per_token
from planner.domain.hardware import NodeType, Precision
from planner.domain.model import Model
from planner.domain.strategy import ContextParallel, Offload, Recompute, Sharding, TrainerStrategy
from planner.validation import read
from planner.validation.read import Row, RowError


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The training stack that ran a row."""

    is_fsdp: bool
    """FSDP2, DTensor or DeepSpeed; otherwise Megatron, whatever it shards."""
    overlaps: bool
    """Data-parallel collectives hide behind compute."""
    overlaps_tp: bool
    """Forward TP collectives too: performance recipes of Megatron-Bridge and NeMo."""
    overlaps_experts: bool
    """Expert exchange hides behind other micro-batches: performance recipes with an interleaved pipeline, which the
    overlap needs, and the newest stack."""
    has_fast_experts: bool
    """Releases from 26.06 on: MoE blocks in CUDA graphs, fused quantisation and permutation."""
    has_fixed_shapes: bool
    """Tokens beyond an expert's capacity are dropped: the host need not wait for token counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRow:
    """One row, ready to price."""

    row: Row
    model: Model
    node: NodeType
    precision: Precision
    is_block_scaled: bool
    """mxfp8: scales per 32 elements, priced as fp8 with more quantisation work."""
    software: Software
    framework: str
    release: str
    release_year: float
    """Release date in years, or the year of the source."""
    strategy: TrainerStrategy
    seq_tokens: int
    num_sequences: int
    num_mtp_modules: int
    lora_rank: int | None
    is_balanced: bool
    """Experts are forced to equal load, or tokens beyond it are dropped."""
    measured_s: float
    note: str


_SOURCES: tuple[tuple[str, str], ...] = (
    ("mb-", "megatron-bridge"),
    ("mbcard-", "megatron-bridge"),
    ("mbskill-", "megatron-bridge"),
    ("nemo2407-", "nemo"),
    ("nemolong-", "nemo"),
    ("mlm-", "megatron-lm"),
    ("calculon-", "megatron-lm"),
    ("simumax-", "megatron-lm"),
    ("modelzoo-", "megatron-lm"),
    ("automodel-", "automodel"),
    ("titan-", "torchtitan"),
    ("foundry-", "llm-foundry"),
    ("verlmp-", "verl"),
    ("user-rl", "nemo-rl"),
    ("train-swift-", "ms-swift"),
)
_FSDP_FRAMEWORKS = frozenset(("automodel", "torchtitan", "llm-foundry"))
_RELEASE = re.compile(r"\b(\d\d)\.(\d\d)(?:\.(\d\d))?\b")
_CARD_RELEASE = "26.08"
"""Verification cards and skills belong to the tree of that release."""
_LORA_RANK = 16
"""Where a LoRA row does not state its rank (rank 8-32 is below 1 % of the work)."""

_FAST_EXPERTS_SINCE = 2026.4
"""Between the containers 26.04 and 26.06."""
_TRUNCATED = re.compile(r"truncated to (\d+) layers")


def read_row(row: Row) -> TrainRow:
    """The configuration of a row; RowError with the reason where it cannot be priced."""
    framework, release, year = _software(row)
    model, note = _model(row)
    seq = read.required_degree(row, "seq_len")
    gbs = read.required_degree(row, "gbs")
    precision, is_block_scaled = _precision(row)
    strategy = _strategy(row, framework, seq, gbs)
    node, _ = read.find_node_of_size(read.required(row, "gpu"), row["system"], strategy.num_gpus)
    if not node.gpu.supports(precision):
        raise RowError(f"no {precision.value} efficiencies of {node.gpu.id} in the catalog")
    return TrainRow(
        row=row,
        model=model,
        node=node,
        precision=precision,
        is_block_scaled=is_block_scaled,
        software=_stack(row, framework, year),
        framework=framework,
        release=release,
        release_year=year,
        strategy=strategy,
        seq_tokens=seq,
        num_sequences=gbs,
        num_mtp_modules=int("mtp counted" in row["flags"] or "mtp=on" in row["flags"]),
        lora_rank=_LORA_RANK if row["peft"] == "lora" else None,
        is_balanced=_is_balanced(row, framework, model),
        measured_s=_measured_s(row, model, gbs, seq, strategy.num_gpus),
        note=note,
    )


def _software(row: Row) -> tuple[str, str, float]:
    """(framework, release, date in years)."""
    framework = next((name for prefix, name in _SOURCES if row["id"].startswith(prefix)), "")
    if not framework:
        framework = row["source"].split(" ")[0].split("/")[-1].lower()
    found = _RELEASE.search(row["source"]) if framework in ("megatron-bridge", "nemo") else None
    if found is not None:
        release = found[0]
    elif framework == "megatron-bridge":
        release = _CARD_RELEASE
    elif framework == "nemo":
        release = "24.07"
    else:
        return framework, "", (read.number(row, "year") or 0.0) + 0.5
    year, month = release.split(".")[:2]
    return framework, release, 2000.0 + float(year) + (float(month) - 0.5) / 12.0


def _model(row: Row) -> tuple[Model, str]:
    """The model of a row, truncated where the row says so, and a remark on what was assumed."""
    found = _TRUNCATED.search(row["params_note"])
    layers = int(found[1]) if found is not None else None
    seq = read.integer(row, "seq_len")
    model = read.find_model(row["model"], num_layers=layers, stated_shape=row["params_note"], max_positions=seq or None)
    return model, read.model_note(row["model"])


def _precision(row: Row) -> tuple[Precision, bool]:
    text = row["precision"]
    if text in ("bf16", "fp16"):
        return Precision.BF16, False
    if text.startswith("fp8"):
        return Precision.FP8, False
    if text == "mxfp8":
        return Precision.FP8, True
    if text in ("nvfp4", "fp4"):
        return Precision.FP4, True
    raise RowError(f"precision {text!r} is not known")


def _stack(row: Row, framework: str, release_year: float) -> Software:
    is_fsdp = framework in _FSDP_FRAMEWORKS or "deepspeed" in row["flags"]
    is_check = row["id"].startswith("mbcard-") and not row["task"].startswith(("pretrain_performance", "pretrain_weak"))
    is_bridge = framework == "megatron-bridge"
    is_recipe = (is_bridge or framework == "nemo") and not is_check
    has_fast_experts = is_bridge and not is_check and release_year > _FAST_EXPERTS_SINCE
    return Software(
        is_fsdp=is_fsdp,
        overlaps="no TP/P2P/grad overlap" not in row["flags"] and not row["id"].startswith("calculon-"),
        overlaps_tp=is_recipe,
        overlaps_experts=has_fast_experts or (is_recipe and read.degree(row, "vpp") > 1),
        has_fixed_shapes="token-drop" in row["flags"].split("; ") or "capacity factor" in row["flags"],
        has_fast_experts=has_fast_experts,
    )


def _strategy(row: Row, framework: str, seq: int, gbs: int) -> TrainerStrategy:
    num_gpus = read.required_degree(row, "n_gpus")
    is_fsdp = framework in _FSDP_FRAMEWORKS
    for key in ("tp", "pp"):
        if not row[key] and not is_fsdp:
            raise RowError(f"{key} is not stated")
    tp, pp, cp = read.degree(row, "tp", 1), read.degree(row, "pp", 1), read.degree(row, "cp", 1)
    if num_gpus % (tp * pp * cp):
        raise RowError(f"tp x pp x cp = {tp * pp * cp} does not divide {num_gpus} GPUs")
    dp = num_gpus // (tp * pp * cp)
    stated_dp = read.degree(row, "dp", dp)
    if stated_dp != dp:
        raise RowError(f"printed degrees give dp {dp}, the row says {stated_dp}")
    if dp > gbs:
        raise RowError(f"{gbs} sequences for {dp} data-parallel ranks")
    micro = read.degree(row, "mbs", 1)
    if row["tokens_per_s_per_gpu"] and micro * dp > gbs:
        raise RowError(f"micro-batch {micro} x dp {dp} exceeds the global batch {gbs}")
    sharding, ranks = _sharding(row, framework, dp * cp)
    return TrainerStrategy(
        num_gpus=num_gpus,
        tp=tp,
        pp=pp,
        vpp=read.degree(row, "vpp", 1),
        cp=cp,
        context_parallel=ContextParallel.RING,
        ep=read.degree(row, "ep", 1),
        etp=read.degree(row, "etp", 1),
        sharding=sharding,
        shard_ranks=ranks,
        micro_batch_tokens=micro * seq,
        inference_tokens=micro * seq,
        recompute=_recompute(row),
        offload=Offload.CPU_OPTIMIZER if "optimizer cpu offload" in row["flags"].replace("_", " ") else Offload.NONE,
    )


def _sharding(row: Row, framework: str, ranks: int) -> tuple[Sharding, int]:
    if "no distributed optimizer" in row["flags"]:
        return Sharding.DDP, ranks
    width = read.integer(row, "fsdp") or 0
    keeps_weights = framework == "torchtitan" and read.degree(row, "pp") > 1
    if "SHARD_GRAD_OP" in row["flags"] or keeps_weights:
        return Sharding.ZERO2, ranks
    if framework in _FSDP_FRAMEWORKS or width or "zero3" in row["flags"]:
        return Sharding.ZERO3, width if 1 < width < ranks and ranks % width == 0 else ranks
    return Sharding.ZERO1, ranks


def _recompute(row: Row) -> Recompute:
    text = row["recompute"]
    if text.startswith("full") or row["id"].startswith("mlm-selene-"):
        return Recompute.FULL
    if text.startswith("selective"):
        return Recompute.SELECTIVE
    return Recompute.NONE


def _is_balanced(row: Row, framework: str, model: Model) -> bool:
    """Performance tables force balance (README, trap 2); functional checks and fine-tuning route naturally."""
    flags = row["flags"]
    if not model.is_moe or "natural routing" in flags:
        return not model.is_moe
    if any(word in flags for word in ("forced", "force-balance", "token-drop", "balanced gate", "capacity factor")):
        return True
    if row["id"].startswith("mbcard-"):
        return row["task"].startswith(("pretrain_performance", "pretrain_weak"))
    return framework in ("megatron-bridge", "megatron-lm", "nemo") and row["task"] == "pretrain"


def _measured_s(row: Row, model: Model, gbs: int, seq: int, num_gpus: int) -> float:
    """Seconds per optimizer step: from tokens/s per GPU, else the stated step time, else FLOP/s where the source
    defines how it counts them."""
    tokens = read.number(row, "tokens_per_s_per_gpu")
    if tokens:
        return gbs * seq / (tokens * num_gpus)
    seconds = read.number(row, "step_time_s")
    if seconds:
        return seconds
    rate = read.positive(row, "model_tflops_per_gpu") * 1e12
    return gbs * seq * _counted_flop_per_token(row, model, seq) / (rate * num_gpus)


def _counted_flop_per_token(row: Row, model: Model, seq: int) -> float:
    """FLOP of one trained token as the source counts them.

    Megatron-LM's scaling tables count the whole attention matrix (arXiv 2104.04473, 4.1; the 2021 table also the
    forward pass that is repeated); Megatron-Bridge counts half of it, as its rows with both figures show.
    """
    linear = 6.0 * (sum(x.num_layers * x.active_matmul_params for x in model.layers) + model.embedding_params)
    attention = 6.0 * sum(
        x.num_layers * attention_flop_per_token(x.attention, float(seq), float(seq) ** 2) / 2.0 for x in model.layers
    )
    if row["id"].startswith("mlm-selene-"):
        return (linear + 2.0 * attention) * 4.0 / 3.0
    if row["id"].startswith("mlm-"):
        return linear + 2.0 * attention
    if row["id"].startswith(("mb-", "mbskill-", "modelzoo-")):
        return linear + attention
    raise RowError("only FLOP/s stated, and the source does not say how it counts them")
