"""Rows of train.csv as configurations: model, node, precision and strategy of one measured training run.

What a row does not state gets the default of its source, fixed in docs/validation-protocol.md before any fit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache

from planner.domain.hardware import NodeType, Precision
from planner.domain.model import LayerClass, Model
from planner.domain.strategy import ContextParallel, Offload, Recompute, Sharding, TrainerStrategy
from planner.errors import InvalidInputError
from planner.files import catalog
from planner.files.architecture import build_model

Row = Mapping[str, str]


class Backend(StrEnum):
    """Which training stack ran a row."""

    MEGATRON = "megatron"
    MEGATRON_WITHOUT_OVERLAP = "megatron without overlap"
    FSDP = "fsdp"


class UnpricedRow(Exception):
    """A row that states too little or describes what the cost model does not know; `is_rule`: excluded by a rule."""

    def __init__(self, reason: str, *, is_rule: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_rule = is_rule


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRow:
    """One row, ready to price."""

    row: Row
    model: Model
    node: NodeType
    precision: Precision
    is_block_scaled: bool
    """mxfp8: scales per 32 elements, priced as fp8 with more quantisation work."""
    backend: Backend
    framework: str
    release: str
    release_year: float
    """Release date in years, or the year of the source."""
    strategy: TrainerStrategy
    seq_tokens: int
    num_sequences: int
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

_GPUS: Mapping[str, str] = {
    "h100": "h100-sxm",
    "h100-sxm": "h100-sxm",
    "h100-96g-hbm2e-500w": "h100-sxm",
    "h200": "h200-sxm",
    "h800": "h800-sxm",
    "h20": "h20-96g",
    "h20-96g": "h20-96g",
    "h20-141g": "h20-141g",
    "a100-40g": "a100-sxm-40g",
    "a100-80g": "a100-sxm-80g",
    "a800-80g": "a800-sxm-80g",
    "b200": "b200-sxm",
    "b300": "b300-sxm",
    "gb200": "gb200",
    "gb300": "gb300",
}
_POWER_EXPONENT = 1.0 / 3.0
"""Dynamic power grows as frequency times voltage squared, and voltage with frequency: clock ~ power ** (1/3)."""
_H100_POWER_W = 700.0
_LIMITED_POWER_W = 500.0
_LIMITED_HBM_BYTES_PER_S = 2.4e12

_ALIASES: Mapping[str, str] = {
    "moonshotai/Kimi-K2-Base": "kimi-k2",
    "Qwen/Qwen3-30B-A3B-Base": "qwen3-30b-a3b",
    "Qwen/Qwen3-14B-FP8": "qwen3-14b",
    "megatron-22B": "hidden 6144, ffn 24576, heads 64, layers 48",
    "turing-530B": "hidden 20480, ffn 81920, heads 128, layers 105",
    "GPT3-5B": "hidden 4096, heads 32, layers 24",
    "Nemotron-8B": "hidden 4096, heads 32, layers 32, vocab 256000",
    # llm-foundry scripts/train/yamls/pretrain/mpt-*.yaml
    "MPT-125m": "hidden 768, heads 12, layers 12, vocab 50368",
    "MPT-350m": "hidden 1024, heads 16, layers 24, vocab 50368",
    "MPT-760m": "hidden 1536, heads 12, layers 24, vocab 50368",
    "MPT-1b": "hidden 2048, heads 16, layers 24, vocab 50368",
    "MPT-3b": "hidden 2560, heads 20, layers 32, vocab 50368",
    "MPT-7b": "hidden 4096, heads 32, layers 32, vocab 50368",
    "MPT-13b": "hidden 5120, heads 40, layers 40, vocab 50368",
}
_NAME_TEXT = re.compile(r"^(?P<name>[A-Za-z0-9./_-]+?)(?: \(\d\d\.\d\d\))?$")
_SHAPE = re.compile(r"\b(hidden|heads|layers|ffn|vocab) (\d+)")
_TRUNCATED = re.compile(r"truncated to (\d+) layers")


def read_row(row: Row) -> TrainRow:
    """The configuration of a row; UnpricedRow with the reason where it cannot be priced."""
    framework, release, year = _software(row)
    model, note = _model(row)
    if "mtp counted" in row["flags"] or "mtp=on" in row["flags"]:
        model = with_mtp(model)
    seq = _count(row, "seq_len")
    gbs = _count(row, "gbs")
    precision, is_block_scaled = _precision(row)
    strategy = _strategy(row, framework, seq, gbs)
    node = node_type(row["gpu"])
    if not node.gpu.supports(precision):
        raise UnpricedRow(f"no {precision.value} efficiencies of {node.gpu.id} in the catalog")
    return TrainRow(
        row=row,
        model=model,
        node=node,
        precision=precision,
        is_block_scaled=is_block_scaled,
        backend=_backend(row, framework),
        framework=framework,
        release=release,
        release_year=year,
        strategy=strategy,
        seq_tokens=seq,
        num_sequences=gbs,
        lora_rank=_LORA_RANK if row["peft"] == "lora" else None,
        is_balanced=_is_balanced(row, framework, model),
        measured_s=_measured_s(row, gbs, seq, strategy.num_gpus),
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
        return framework, "", float(row["year"] or 0) + 0.5
    year, month = release.split(".")[:2]
    return framework, release, 2000.0 + float(year) + (float(month) - 0.5) / 12.0


def _model(row: Row) -> tuple[Model, str]:
    """The model of a row, truncated where the row says so, and a remark on what was assumed."""
    name, text = row["model"], row["params_note"]
    found = _TRUNCATED.search(text)
    try:
        model = load_model(_ALIASES.get(name, name), text)
    except InvalidInputError as error:
        raise UnpricedRow(f"model {name!r} is not in the catalog and no shape is stated") from error
    if found is not None:
        return truncated(model, int(found[1])), f"first {found[1]} layers"
    return model, ""


@cache
def load_model(name: str, text: str = "") -> Model:
    """A catalog model, or a GPT-like one from 'hidden .., heads .., layers ..' in `name` or `text`."""
    shape = {key: int(value) for key, value in _SHAPE.findall(f"{name} {text}")}
    if not {"hidden", "heads", "layers"} <= shape.keys():
        return catalog.load_model(name)
    hidden = shape["hidden"]
    config: dict[str, object] = {
        "model_type": "gpt_megatron",
        "hidden_size": hidden,
        "intermediate_size": shape.get("ffn", 4 * hidden),
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["heads"],
        "head_dim": hidden // shape["heads"],
        "vocab_size": shape.get("vocab", 51200),
        "tie_word_embeddings": True,
        "attention_bias": True,
        "max_position_embeddings": 2048,
        "hidden_act": "gelu",
    }
    return build_model(config, model_id=f"gpt-{hidden}-{shape['layers']}", hf_repo="", where=text)


def truncated(model: Model, num_layers: int) -> Model:
    """The first layers of `model`; leading dense layers come first in the order of its classes."""
    classes: list[LayerClass] = []
    left = num_layers
    ordered = sorted(model.layers, key=lambda x: x.mlp.is_moe)
    for layer in ordered:
        taken = min(left, layer.num_layers)
        if taken:
            classes.append(replace(layer, num_layers=taken))
        left -= taken
    return replace(model, id=f"{model.id}-{num_layers}-layers", layers=tuple(classes))


@cache
def with_mtp(model: Model) -> Model:
    """`model` with one multi-token-prediction module: a layer, a projection of two hidden states and the head."""
    last = max(model.layers, key=lambda x: x.mlp.is_moe)
    extra = 2 * model.hidden_size**2 + model.embedding_params
    attention = replace(last.attention, matmul_params=last.attention.matmul_params + extra)
    module = replace(last, name="mtp", num_layers=1, attention=attention)
    return replace(model, id=f"{model.id}-mtp", layers=(*model.layers, module))


@cache
def node_type(gpu: str) -> NodeType:
    """The node that a GPU code of the tables means; UnpricedRow for an unknown or empty one."""
    if gpu not in _GPUS:
        raise UnpricedRow(f"GPU type {gpu!r} is not stated or not in the catalog")
    node = catalog.generic_node(_GPUS[gpu])
    if gpu != "h100-96g-hbm2e-500w":
        return node
    clock = (_LIMITED_POWER_W / _H100_POWER_W) ** _POWER_EXPONENT
    limited = replace(
        node.gpu,
        id=gpu,
        name="H100 96GB HBM2e, 500 W",
        memory_bytes=96e9,
        hbm_bytes_per_s=_LIMITED_HBM_BYTES_PER_S,
        peak_flop_per_s=tuple((p, rate * clock) for p, rate in node.gpu.peak_flop_per_s),
    )
    return replace(node, id=gpu, gpu=limited)


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
    raise UnpricedRow(f"precision {text!r} is not known")


def _backend(row: Row, framework: str) -> Backend:
    if framework in _FSDP_FRAMEWORKS or "deepspeed" in row["flags"]:
        return Backend.FSDP
    if "no TP/P2P/grad overlap" in row["flags"] or row["id"].startswith("calculon-"):
        return Backend.MEGATRON_WITHOUT_OVERLAP
    return Backend.MEGATRON


def _strategy(row: Row, framework: str, seq: int, gbs: int) -> TrainerStrategy:
    num_gpus = _count(row, "n_gpus")
    is_fsdp = framework in _FSDP_FRAMEWORKS
    for key in ("tp", "pp"):
        if not row[key] and not is_fsdp:
            raise UnpricedRow(f"{key} is not stated")
    tp, pp, cp = _count(row, "tp", 1), _count(row, "pp", 1), _count(row, "cp", 1)
    if num_gpus % (tp * pp * cp):
        raise UnpricedRow(f"tp x pp x cp = {tp * pp * cp} does not divide {num_gpus} GPUs")
    dp = num_gpus // (tp * pp * cp)
    stated_dp = _count(row, "dp", dp)
    if stated_dp != dp:
        raise UnpricedRow(f"printed degrees give dp {dp}, the row says {stated_dp}")
    if dp > gbs:
        raise UnpricedRow(f"{gbs} sequences for {dp} data-parallel ranks")
    micro = _count(row, "mbs", 1)
    if row["tokens_per_s_per_gpu"] and micro * dp > gbs:
        raise UnpricedRow(f"micro-batch {micro} x dp {dp} exceeds the global batch {gbs}")
    sharding, ranks = _sharding(row, framework, dp * cp)
    return TrainerStrategy(
        num_gpus=num_gpus,
        tp=tp,
        pp=pp,
        vpp=_count(row, "vpp", 1),
        cp=cp,
        context_parallel=ContextParallel.RING,
        ep=_count(row, "ep", 1),
        etp=_count(row, "etp", 1),
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
    width = _count(row, "fsdp", 0) if row["fsdp"] not in ("", "0") else 0
    if "SHARD_GRAD_OP" in row["flags"]:
        return Sharding.ZERO2, ranks
    if framework in _FSDP_FRAMEWORKS or width or "zero3" in row["flags"]:
        return Sharding.ZERO3, width if 1 < width < ranks and ranks % width == 0 else ranks
    return Sharding.ZERO1, ranks


def _recompute(row: Row) -> Recompute:
    text = row["recompute"]
    if text.startswith("full"):
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


def _measured_s(row: Row, gbs: int, seq: int, num_gpus: int) -> float:
    """Seconds per optimizer step: from tokens/s per GPU, else the stated step time."""
    if row["tokens_per_s_per_gpu"]:
        return gbs * seq / (float(row["tokens_per_s_per_gpu"]) * num_gpus)
    if row["step_time_s"]:
        return float(row["step_time_s"])
    raise UnpricedRow("only FLOP/s stated, under a FLOP convention that the source does not define")


def _count(row: Row, key: str, default: int | None = None) -> int:
    text = row[key]
    if text.isdigit() and (int(text) > 0 or default == 0):
        return int(text)
    if text == "" and default is not None:
        return default
    raise UnpricedRow(f"{key} is not stated" if text == "" else f"{key} is {text!r}")
