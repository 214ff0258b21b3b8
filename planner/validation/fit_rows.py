"""Rows of fit.csv as configurations: what a row states, what its framework adds, and what stays open.

Frameworks count differently: verl and slime give tokens per GPU (a micro-batch of `cp` GPUs holds `cp` times as many),
NeMo-RL and ROLL tokens of a whole micro-batch. A field that a row leaves open takes its framework's documented
default; where there is none, the row is priced at the most and at the least favourable value
(docs/validation-protocol.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product

from planner.domain.hardware import NodeType, Precision
from planner.domain.model import Model
from planner.domain.strategy import (
    ContextParallel,
    EngineIdle,
    Offload,
    Recompute,
    RolloutStrategy,
    Sharding,
    TrainerStrategy,
)
from planner.files.catalog import generic_node
from planner.validation.read import (
    Row,
    RowError,
    degree,
    find_model,
    find_node,
    flag,
    integer,
    number,
    positive,
    required_degree,
    text,
)

_GIB = 2.0**30
_REPORTED_RATIO = 0.995
"""Share of the nominal GiB of a card that its driver reports (81,559 MiB of 80 GiB)."""
_SHORT_RATIO = 0.1
"""Length of the other samples of a micro-batch over the longest at the favourable end."""
_DEFAULT_FRACTION = 0.5
_MOST_SEQUENCES = 4
"""Sequences of a micro-batch at the unfavourable end where a row does not say."""
_MAX_SEQUENCES = 256
_SEQUENCES_PER_RANK = 64
_FSDP = ("fsdp", "fsdp2", "fsdp2 (dtensor)", "fsdp2_train", "deepspeed zero3", "archon")
_TOKENS_PER_GPU = ("verl", "slime", "areal")
_TRAINED_ALONE = ("sft", "dpo", "lora sft", "sft full", "sft/dpo/rm")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitCase:
    """One completion of a row: nothing is open any more. `engine` is None where the row only trains."""

    trainer: TrainerStrategy
    engine: RolloutStrategy | None
    is_colocated: bool
    has_critic: bool
    host_optimizer_ratio: float
    longest_tokens: int
    num_sequences: float
    """Per optimizer step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRun:
    """A row with the completions that span what it leaves open; they share engine, lengths and batch."""

    model: Model
    node: NodeType
    capacity_bytes: float
    lora_rank: int | None
    precision: Precision
    cases: tuple[FitCase, ...]
    open_fields: tuple[str, ...]
    works: bool
    is_eager: bool
    """PyTorch's own loss on upcast logits (litgpt, transformers), as in the table of peaks."""
    is_4bit: bool
    """The frozen base is stored in 4 bit."""


class NotDeterminable(RowError):
    """The row does not state what decides the verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stated:
    """What all completions of a row share."""

    num_gpus: int
    tp: int
    pp: int
    cp: int
    ep: int
    is_fsdp: bool
    is_colocated: bool
    trains_alone: bool
    longest: int


def read_fit(row: Row) -> FitRun:
    """The completions of a row; NotDeterminable where the rule of the protocol leaves its verdict open."""
    outcome = text(row, "outcome")
    if outcome not in ("works", "OOM"):
        raise NotDeterminable("an estimate, neither run nor out of memory")
    for key, name in (("gpu_mem_gb", "GPU memory"), ("n_gpus", "number of GPUs"), ("backend", "training back end")):
        if not text(row, key):
            raise NotDeterminable(f"{name} not stated")
    lowered = text(row, "model").lower()
    if any(part in lowered for part in ("-vl", "omni")):
        raise NotDeterminable("multimodal: image tokens and the vision tower are not stated")
    named = re.search(r"-(\d+)n(\d+)g", text(row, "id"))
    if named and int(named.group(1)) * int(named.group(2)) != integer(row, "n_gpus"):
        raise NotDeterminable("name and number of GPUs of the recipe contradict each other")
    if text(row, "backend") in ("vllm", "sglang"):
        raise NotDeterminable("training back end not stated")
    if text(row, "task") == "distillation":
        raise NotDeterminable("distillation: the teacher's placement is not stated")
    stated = _stated(row)
    cases, open_fields = _completions(row, stated)
    return FitRun(
        model=find_model(text(row, "model")),
        node=_node(row),
        capacity_bytes=positive(row, "gpu_mem_gb") * _GIB * _REPORTED_RATIO,
        lora_rank=_lora_rank(row),
        precision=Precision.FP8 if "fp8" in text(row, "precision") else Precision.BF16,
        cases=cases,
        open_fields=open_fields,
        works=outcome == "works",
        is_eager=text(row, "framework").startswith(("litgpt", "ms-swift")),
        is_4bit="nf4" in text(row, "precision"),
    )


def _lora_rank(row: Row) -> int | None:
    rank = integer(row, "lora_rank")
    return rank or (8 if "lora" in text(row, "task") else None)


def _node(row: Row) -> NodeType:
    """Memory does not depend on the GPU type: only group sizes per node matter, so any node of that size serves."""
    per_node = degree(row, "gpus_per_node", 8)
    try:
        node = find_node(text(row, "gpu"), default_gpu="h100")
    except RowError:
        node = generic_node("h100")
    return node if per_node >= node.gpus_per_node else node.with_gpus(per_node)


def _stated(row: Row) -> _Stated:
    backend, note = text(row, "backend"), text(row, "note")
    is_fsdp = backend in _FSDP or backend in ("FSDP", "ms-swift deepspeed")
    if not is_fsdp and backend != "single" and not text(row, "tp"):
        raise NotDeterminable("tensor-parallel degree not stated")
    num_gpus, is_colocated = _trainer_gpus(row, note)
    tp, pp = degree(row, "tp"), degree(row, "pp")
    cp = max(degree(row, "cp"), degree(row, "ulysses_sp"))
    if num_gpus % (tp * pp * cp):
        raise RowError(f"tp x pp x cp = {tp * pp * cp} does not divide {num_gpus} trainer GPUs")
    return _Stated(
        num_gpus=num_gpus,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=degree(row, "ep"),
        is_fsdp=is_fsdp,
        is_colocated=is_colocated,
        trains_alone=text(row, "task") in _TRAINED_ALONE,
        longest=_longest(row, note),
    )


def _trainer_gpus(row: Row, note: str) -> tuple[int, bool]:
    """(GPUs of the trainer, whether engines share them). Colocated unless the row says otherwise."""
    total = required_degree(row, "n_gpus")
    split = re.search(r"non-colocated, generation nodes (\d+)", note)
    if split:
        per_node = degree(row, "gpus_per_node", 8)
        return max(total - int(split.group(1)) * per_node, 1), False
    named = re.search(r"(?:actor|train GPUs) (\d+)", note)
    if named and ("separate" in note or "actor" in note) and int(named.group(1)) < total:
        return int(named.group(1)), False
    if any(word in text(row, "id") for word in ("fully-async", "one-step-off")):
        raise NotDeterminable("asynchronous: split of GPUs between trainer and engines not stated")
    return total, True


def _longest(row: Row, note: str) -> int:
    """Tokens of the longest sequence: the total where it is stated, else prompt and response."""
    stated = re.search(r"max_total_sequence_length (\d+)", note)
    if stated:
        return int(stated.group(1))
    prompt, response = integer(row, "max_prompt_len", 0) or 0, integer(row, "max_response_len", 0) or 0
    if not prompt + response:
        raise NotDeterminable("lengths not stated")
    return prompt + response


def _completions(row: Row, stated: _Stated) -> tuple[tuple[FitCase, ...], tuple[str, ...]]:
    """All combinations of the values that open fields can take, favourable ones first."""
    tokens, tokens_open = _micro_batch_tokens(row, stated)
    recomputes, recompute_open = _recomputes(row, stated)
    offloads, offload_open = _offloads(row, stated)
    cases = tuple(
        _case(row, stated, one_tokens, one_recompute, one_offload)
        for one_tokens, one_recompute, one_offload in product(tokens, recomputes, offloads)
    )
    named = (("micro-batch", tokens_open), ("recomputation", recompute_open), ("offload", offload_open))
    return cases, tuple(name for name, is_open in named if is_open)


def _micro_batch_tokens(row: Row, stated: _Stated) -> tuple[tuple[float, ...], bool]:
    """Tokens of the fullest micro-batch: of a packed budget, or of a number of sequences, at both ends of lengths.

    At the favourable end one sequence is the longest and the others are short, so that a budget may never be filled.
    """
    budget, longest = number(row, "token_budget"), float(stated.longest)
    is_packed = bool(budget) and flag(row, "dynamic_bsz") is not False
    sequences = _rank_sequences(row, stated) if is_packed else integer(row, "micro_batch")
    short = longest * (1.0 + _SHORT_RATIO * ((sequences or 1) - 1))
    full = longest * (sequences or _MOST_SEQUENCES)
    if is_packed:
        per_gpu = any(text(row, "framework").startswith(name) for name in _TOKENS_PER_GPU)
        most = max((budget or 0.0) * (stated.cp if per_gpu else 1), longest)
        short, full = (min(short, most), min(full, most)) if sequences else (most, most)
    elif stated.trains_alone:
        short = full
    return ((full,), False) if short == full else ((short, full), True)


def _rank_sequences(row: Row, stated: _Stated) -> int | None:
    """Sequences of one data-parallel rank in an optimizer step; None where the batch is not stated."""
    samples = integer(row, "mini_batch") or integer(row, "train_batch")
    if not samples or text(row, "framework") == "areal":
        return None
    if text(row, "framework") in ("verl", "skyrl"):
        samples *= integer(row, "rollout_n") or 1
    return max(1, samples * stated.tp * stated.pp * stated.cp // stated.num_gpus)


def _recomputes(row: Row, stated: _Stated) -> tuple[tuple[Recompute, ...], bool]:
    value = text(row, "recompute")
    if value.startswith("full"):
        return (Recompute.FULL,), False
    if value == "selective" and text(row, "framework") == "verl":
        # verl leaves the recomputed modules to Megatron's options, which the row does not repeat
        return (Recompute.FULL, Recompute.SELECTIVE), True
    if value.startswith("selective"):
        return (Recompute.SELECTIVE,), False
    if value:
        return (Recompute.NONE,), False
    if text(row, "framework") == "litgpt":
        return (Recompute.NONE,), False
    if stated.is_fsdp:
        # verl, SkyRL and OpenRLHF switch gradient checkpointing on for FSDP and DeepSpeed unless told otherwise
        return (Recompute.FULL,), False
    return (Recompute.FULL, Recompute.NONE), True


def _offloads(row: Row, stated: _Stated) -> tuple[tuple[Offload, ...], bool]:
    framework = text(row, "framework")
    on_host = (number(row, "cpu_optimizer_offload") or 0.0) >= 1.0
    if stated.trains_alone or not stated.is_colocated:
        return (Offload.CPU_OPTIMIZER if on_host else Offload.NONE,), False
    states = [flag(row, key) for key in ("param_offload", "optim_offload")]
    if framework != "verl" or all(state is True for state in states):
        # NeMo-RL, slime, ROLL, SkyRL and OpenRLHF move trainer states away while colocated engines run
        return (Offload.CPU_OPTIMIZER_STATE_SWAP if on_host else Offload.STATE_SWAP,), False
    if states == [None, None]:
        return (Offload.STATE_SWAP, Offload.NONE), True
    if states[1]:
        return (Offload.CPU_OPTIMIZER if on_host else Offload.OPTIMIZER_SWAP,), False
    return (Offload.NONE,), False


def _case(row: Row, stated: _Stated, tokens: float, recompute: Recompute, offload: Offload) -> FitCase:
    dp = stated.num_gpus // (stated.tp * stated.pp * stated.cp)
    ranks = dp * stated.cp
    shard_ranks = integer(row, "fsdp_size") if text(row, "fsdp_size") not in ("", "-1") else None
    if not shard_ranks or ranks % shard_ranks or shard_ranks > ranks:
        shard_ranks = ranks
    backend = text(row, "backend")
    sharding = Sharding.ZERO3 if stated.is_fsdp else Sharding.ZERO1
    if backend in ("single", "deepspeed zero2"):
        sharding = Sharding.DDP if backend == "single" else Sharding.ZERO2
    trainer = TrainerStrategy(
        num_gpus=stated.num_gpus,
        tp=stated.tp,
        pp=stated.pp,
        vpp=degree(row, "vpp"),
        cp=stated.cp,
        context_parallel=ContextParallel.ULYSSES if stated.is_fsdp else ContextParallel.RING,
        ep=stated.ep,
        etp=degree(row, "etp") if text(row, "etp") else 1,
        sharding=sharding,
        shard_ranks=shard_ranks,
        micro_batch_tokens=round(tokens),
        inference_tokens=round(tokens),
        recompute=recompute,
        offload=offload,
    )
    return FitCase(
        trainer=trainer,
        engine=_engine(row, stated),
        is_colocated=stated.is_colocated,
        has_critic=text(row, "algorithm") in ("ppo", "gae") and not stated.trains_alone,
        host_optimizer_ratio=min(number(row, "cpu_optimizer_offload") or 0.0, 1.0),
        longest_tokens=stated.longest,
        num_sequences=float(_SEQUENCES_PER_RANK * max(dp, 1)),
    )


def _engine(row: Row, stated: _Stated) -> RolloutStrategy | None:
    if stated.trains_alone or not text(row, "gen_tp") or text(row, "gen_engine") == "megatron":
        # generation inside the trainer uses the trainer's own weights
        return None
    total = required_degree(row, "n_gpus")
    num_gpus = total if stated.is_colocated else total - stated.num_gpus
    # experts over more GPUs than TP: data-parallel attention, and weights spread over all of them
    tp, pp = max(degree(row, "gen_tp"), degree(row, "gen_ep")), degree(row, "gen_pp")
    if num_gpus < tp * pp:
        raise RowError(f"engines of {tp * pp} GPUs do not fit on {num_gpus}")
    return RolloutStrategy(
        num_gpus=num_gpus // (tp * pp) * tp * pp,
        tp=tp,
        pp=pp,
        ep=min(degree(row, "gen_ep"), tp),
        engine_fraction=number(row, "gpu_mem_util") or _DEFAULT_FRACTION,
        max_num_seqs=_MAX_SEQUENCES,
        idle=EngineIdle.SLEEP if stated.is_colocated else EngineIdle.RESIDENT,
    )
