"""From a row of rl.csv to a run that can be priced: workload, placed strategies and mode.

What a source does not state gets a default per source, each named here and in docs/validation-protocol.md; a row
without a fact that has no such default raises `RowError`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from planner.assembly import PlacedStrategy
from planner.domain.algorithm import Algorithm, find_algorithm
from planner.domain.hardware import NodeType, Pool, Precision
from planner.domain.lengths import LengthLaw
from planner.domain.model import Model
from planner.domain.plan import DeviceGroup
from planner.domain.stages import WorkerName, build_graph
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
from planner.domain.workload import Reward, RewardKind, Workload
from planner.validation import read
from planner.validation.read import Row, RowError

NEMO_RL, VERL, RLINF, SKYRL = "NeMo-RL", "verl", "RLinf", "SkyRL"

LENGTH_CV = 0.9
"""No source publishes a length distribution; reasoning models spread by 0.6 to 1.2 before clipping."""
PROMPT_TOKENS = 115.0
"""Mean prompt of OpenMathInstruct-2 (100 - 130)."""
DAPO_PROMPT_TOKENS = 165.0
"""Mean prompt of DAPO-math (155 - 175)."""
MAX_NUM_SEQS = 1024
"""Default of vLLM's offline engine on 80 GB GPUs, and of verl's rollouts."""
ENGINE_FRACTIONS = ((NEMO_RL, 0.6), (VERL, 0.5), (RLINF, 0.5), (SKYRL, 0.5))
MEMORY_MARGIN_RATIO = 0.05
_UNSTATED_GPU = (("nemorl", "h100-sxm"), ("rlinf", "h100-sxm"))
"""(start of the row id, GPU) where a row names none but its source publishes on one type only."""
_MFU_PEAK_FLOP_PER_S = (("h100", 989e12), ("h100-sxm", 989e12), ("h800", 989e12), ("h20", 148e12))
"""Peaks by which verl divides when it prints MFU."""
_KL_COEFFICIENT = 0.001
_SKIPPED_OLD_LOGPROB = ("force_on_policy_ratio=1", "old_log_prob taken from rollout")
_V03_RECIPES = (
    ("meta-llama/Llama-3.1-8B-Instruct", "megatron", 1, 2, 1),
    ("meta-llama/Llama-3.1-8B-Instruct", "dtensor", 1, 1, 1),
    ("meta-llama/Llama-3.1-70B", "megatron", 4, 4, 4),
    ("meta-llama/Llama-3.1-70B", "dtensor", 8, 1, 4),
)
"""(model, back end, train tp, train pp, rollout tp) of the recipes that the v0.3 table was published with."""


class ExcludedError(RowError):
    """A fixed rule of docs/validation-protocol.md excludes the row; the text is the rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One published run, ready to be priced."""

    framework: str
    release: str
    workload: Workload
    placed: tuple[PlacedStrategy, ...]
    staleness: float
    is_asynchronous: bool
    is_streaming: bool
    """Rollout batches overlap, so that the tail of one is filled by the next."""
    is_eager: bool
    """The engine runs without CUDA graphs."""
    num_draft_tokens: int
    """Tokens drafted per decode step by multi-token-prediction layers; 0 without speculative decoding."""


# Cells -----------------------------------------------------------------------------------------------------------


def _integer(row: Row, column: str, default: int) -> int:
    value = read.number(row, column)
    return default if value is None else round(value)


def _num_gpus(row: Row) -> int:
    if not row["n_gpus"]:
        raise ExcludedError("number of GPUs not published")
    return read.required_degree(row, "n_gpus")


def _need(row: Row, column: str, what: str) -> float:
    value = read.number(row, column)
    if value is None:
        raise ExcludedError(f"{what} not published")
    return value


# Facts -----------------------------------------------------------------------------------------------------------


def row_gpu(row: Row) -> str:
    """GPU code of the row, or of its source where that has one type only."""
    code = row["gpu"] or next((gpu for start, gpu in _UNSTATED_GPU if row["id"].startswith(start)), "")
    if not code:
        raise ExcludedError("GPU type not published")
    return code


def _node(row: Row) -> NodeType:
    """The generic node of the row's GPU, or its share of it when the run is smaller."""
    node = read.find_node(row_gpu(row), row["system"])
    num_gpus = _num_gpus(row)
    return node.with_gpus(num_gpus) if num_gpus < node.gpus_per_node else node


def row_algorithm(row: Row) -> Algorithm:
    """GPG is GRPO without KL term; other names that the planner does not know cannot be priced."""
    name = "dr-grpo" if row["algorithm"] == "gpg" else row["algorithm"]
    algorithm = find_algorithm(name)
    if algorithm is None:
        raise ExcludedError(f"algorithm {row['algorithm']!r} is not modelled")
    return algorithm


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    num_prompts: int
    group_size: int
    num_steps: int
    oversampling_ratio: float


def _batch(row: Row) -> _Batch:
    """Prompts that are trained on, and how many times more are generated."""
    is_v03 = row["framework"] == NEMO_RL and row["fw_version"] == "0.3"
    prompts = _integer(row, "prompts_per_step", 64 if is_v03 else 0)
    group = _integer(row, "gens_per_prompt", 32 if is_v03 else 0)
    train_gbs = read.number(row, "train_gbs") or (512.0 if is_v03 else None)
    if not prompts or not group:
        raise ExcludedError("batch size not published")
    generated = prompts * group
    steps = _integer(row, "n_optim_steps", max(1, round(generated / train_gbs)) if train_gbs else 1)
    trained = min(generated, round(train_gbs * steps)) if train_gbs else generated
    if row["algorithm"] == "ppo" and train_gbs and train_gbs * steps > generated:
        trained = generated
    kept = max(1, trained // group)
    return _Batch(num_prompts=kept, group_size=group, num_steps=steps, oversampling_ratio=prompts / kept)


def _prompt_tokens(row: Row) -> float:
    if row["avg_prompt_len_src"] == "logged":
        return _need(row, "avg_prompt_len", "prompt length")
    return PROMPT_TOKENS if row["framework"] == NEMO_RL else DAPO_PROMPT_TOKENS


def workload_key(row: Row) -> tuple[str, ...]:
    """Rows with an equal key train on the same prompts with the same limits."""
    lengths = (row["max_seq_len"], row["max_prompt_len"], row["max_response_len"])
    source = row["id"].rsplit("-", 1)[0]
    return (source, row["model"], row["algorithm"], *lengths, row["prompts_per_step"], row["gens_per_prompt"])


def implied_lengths(rows: Sequence[Row]) -> dict[tuple[str, ...], float]:
    """Mean response tokens by workload where no length is published but the amount of work is.

    tokens/s/GPU x step time x GPUs is the number of tokens; so is MFU x training time x GPUs x peak / (6 x active
    parameters), which is how verl defines the MFU that it prints. The median over the rows of a workload.
    """
    found: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        length = _implied_length(row)
        if length is not None:
            found.setdefault(workload_key(row), []).append(length)
    return {key: median(values) for key, values in found.items()}


def _implied_length(row: Row) -> float | None:
    try:
        tokens = _counted_tokens(row)
        samples = _integer(row, "gen_batch", 0)
        if row["avg_gen_len"] or tokens is None or not samples:
            return None
        return max(tokens / samples - _prompt_tokens(row), 0.0) or None
    except RowError:
        return None  # the row itself is reported when it is read


def _counted_tokens(row: Row) -> float | None:
    num_gpus, step = read.number(row, "n_gpus"), read.number(row, "step_time_s")
    rate = read.number(row, "tokens_per_s_per_gpu")
    if rate and step and num_gpus:
        return rate * step * num_gpus
    mfu, train = read.number(row, "train_mfu"), read.number(row, "train_s")
    peak = dict(_MFU_PEAK_FLOP_PER_S).get(row["gpu"])
    if not (row["framework"] == VERL and mfu and train and num_gpus and peak):
        return None
    return mfu * train * num_gpus * peak / (6.0 * read.find_model(row["model"]).num_active_params)


def _lengths(row: Row, implied: Mapping[tuple[str, ...], float]) -> tuple[float, int, LengthLaw]:
    """(mean prompt, longest prompt, response law)."""
    prompt = _prompt_tokens(row)
    mean = read.number(row, "avg_gen_len") or implied.get(workload_key(row))
    if mean is None:
        raise ExcludedError("response length not published")
    is_v03 = row["framework"] == NEMO_RL and row["fw_version"] == "0.3"
    whole = _integer(row, "max_seq_len", 4096 if is_v03 else 0)
    longest_prompt = _integer(row, "max_prompt_len", math.ceil(prompt))
    longest = _integer(row, "max_response_len", whole - math.ceil(prompt))
    if longest <= 0:
        raise ExcludedError("longest response not published")
    if mean > longest:
        raise ExcludedError(f"mean response {mean:g} above its limit {longest}")
    return prompt, longest_prompt, LengthLaw(mean_tokens=mean, cv=LENGTH_CV, max_tokens=longest)


def _has_reference(row: Row) -> bool:
    if row["ref_model"]:
        return row["ref_model"] == "1"
    return bool(row["ref_logprob_s"]) or row["algorithm"] in ("grpo", "ppo")


def _critic(row: Row, algorithm: Algorithm, actor: Model) -> Model | None:
    if not algorithm.has_critic:
        return None
    return actor if row["critic"] in ("", "yes") else read.find_model(row["critic"])


def row_precision(text: str) -> Precision:
    return Precision.FP8 if text == "fp8" else Precision.BF16


def _workload(row: Row, implied: Mapping[tuple[str, ...], float]) -> Workload:
    algorithm, batch = row_algorithm(row), _batch(row)
    actor = read.find_model(row["model"])
    prompt, longest_prompt, law = _lengths(row, implied)
    skips_old = any(text in row["note"] for text in _SKIPPED_OLD_LOGPROB)
    return Workload(
        algorithm=Algorithm(
            name=algorithm.name,
            title=algorithm.title,
            has_critic=algorithm.has_critic,
            default_kl_coefficient=algorithm.default_kl_coefficient,
            default_group_size=algorithm.default_group_size,
            oversampling_ratio=batch.oversampling_ratio,
        ),
        actor=actor,
        critic=_critic(row, algorithm, actor),
        reward=Reward(kind=RewardKind.RULE),
        num_prompts=batch.num_prompts,
        group_size=batch.group_size,
        prompt_mean_tokens=prompt,
        prompt_max_tokens=longest_prompt,
        response=law,
        num_optimizer_steps=batch.num_steps,
        num_epochs=1,
        kl_coefficient=_KL_COEFFICIENT if _has_reference(row) else 0.0,
        needs_old_logprob=not skips_old,
        train_precision=row_precision(row["train_precision"]),
        rollout_precision=row_precision(row["gen_precision"]),
        lora_rank=None,
        memory_margin_ratio=MEMORY_MARGIN_RATIO,
    )


# Strategies ------------------------------------------------------------------------------------------------------


def _is_fsdp(row: Row) -> bool:
    return row["train_backend"] in ("fsdp", "fsdp2", "dtensor")


def _v03(row: Row) -> tuple[int, int, int] | None:
    for model, backend, tp, pp, rollout_tp in _V03_RECIPES:
        if row["fw_version"] == "0.3" and row["model"] == model and row["train_backend"] == backend:
            return tp, pp, rollout_tp
    return None


def _partial_layers(row: Row) -> int:
    """`20 blocks`: so many layers of each pipeline stage are recomputed; 0 where the row says something else."""
    found = re.fullmatch(r"(\d+) blocks", row["recompute"])
    return int(found.group(1)) if found else 0


def _recompute(row: Row) -> Recompute:
    """Empty: FSDP recipes set gradient checkpointing; Megatron's own default is none."""
    text = row["recompute"]
    if _partial_layers(row):
        return Recompute.PARTIAL
    if text == "none":
        return Recompute.NONE
    if text == "selective":
        return Recompute.SELECTIVE
    if text:
        return Recompute.FULL
    return Recompute.FULL if _is_fsdp(row) else Recompute.NONE


def _offload(row: Row, *, is_colocated: bool) -> Offload:
    """Empty: frameworks move trainer states to host RAM while an engine on the same GPUs generates."""
    if not is_colocated or row["offload"] in ("none", "ref param"):
        return Offload.NONE
    return Offload.STATE_SWAP


def _default_sequences(row: Row, batch_column: str) -> int:
    """Sequences per micro-batch without dynamic batching: 2, and 4 for log-probs, as in the scripts of that source."""
    if row["framework"] != VERL or read.flag(row, "dynamic_batch") is not False:
        return 0
    return 2 if batch_column == "mbs" else 4


def _budget(row: Row, column: str, batch_column: str, sequence_ranks: int, workload: Workload) -> int:
    """Tokens per micro-batch of one data-parallel rank.

    verl's budgets are per GPU of a context-parallel group. Without a budget: sequences per micro-batch times their
    mean length; without either, as many tokens as the longest sequence has.
    """
    budget = _integer(row, column, 0)
    if budget:
        return budget * (sequence_ranks if row["framework"] == VERL else 1)
    sequences = _integer(row, batch_column, 0) or _default_sequences(row, batch_column)
    if sequences:
        return max(1, round(sequences * workload.mean_tokens))
    return workload.max_tokens


def _trainer(row: Row, num_gpus: int, workload: Workload, *, is_colocated: bool) -> TrainerStrategy:
    defaults = _v03(row) or (1, 1, 1)
    is_fsdp = _is_fsdp(row)
    ulysses = read.degree(row, "ulysses_sp")
    tp = read.degree(row, "train_tp", defaults[0])
    pp = read.degree(row, "train_pp", defaults[1])
    cp = ulysses if is_fsdp and ulysses > 1 else read.degree(row, "train_cp")
    if not is_fsdp and not row["train_tp"] and _v03(row) is None:
        raise ExcludedError("training parallelism not published")
    ep = read.degree(row, "train_ep")
    etp = read.degree(row, "train_etp")
    if num_gpus % (tp * pp * cp) or num_gpus % (ep * etp * pp):
        raise ExcludedError(f"tp {tp} pp {pp} cp {cp} ep {ep} do not divide {num_gpus} GPUs")
    return TrainerStrategy(
        num_gpus=num_gpus,
        tp=tp,
        pp=pp,
        vpp=read.degree(row, "train_vpp"),
        cp=cp,
        context_parallel=ContextParallel.ULYSSES if ulysses > 1 else ContextParallel.RING,
        ep=ep,
        etp=etp,
        sharding=Sharding.ZERO3 if is_fsdp else Sharding.ZERO1,
        shard_ranks=num_gpus // (tp * pp),
        micro_batch_tokens=_budget(row, "token_budget_train", "mbs", cp, workload),
        inference_tokens=_budget(row, "token_budget_logprob", "logprob_mbs", cp, workload),
        recompute=_recompute(row),
        recompute_layers=_partial_layers(row),
        offload=_offload(row, is_colocated=is_colocated),
    )


def _engine(row: Row, num_gpus: int, *, is_colocated: bool) -> RolloutStrategy:
    defaults = _v03(row)
    if not row["gen_tp"] and defaults is None:
        raise ExcludedError("rollout parallelism not published")
    tp = read.degree(row, "gen_tp", defaults[2] if defaults else 1)
    pp = read.degree(row, "gen_pp")
    if num_gpus % (tp * pp):
        raise ExcludedError(f"rollout tp {tp} pp {pp} does not divide {num_gpus} GPUs")
    fraction = read.number(row, "gen_mem_util") or dict(ENGINE_FRACTIONS).get(row["framework"], 0.5)
    return RolloutStrategy(
        num_gpus=num_gpus,
        tp=tp,
        pp=pp,
        ep=1,
        engine_fraction=fraction,
        max_num_seqs=MAX_NUM_SEQS,
        idle=EngineIdle.SLEEP if is_colocated else EngineIdle.RESIDENT,
    )


def _group(name: str, pool: Pool, first: int, count: int) -> DeviceGroup:
    per_node = pool.node.gpus_per_node
    return DeviceGroup(
        id=name,
        pool=pool.name,
        gpu=pool.node.gpu.id,
        first_gpu=first,
        num_gpus=count,
        num_nodes=(first + count - 1) // per_node - first // per_node + 1,
    )


def _split(row: Row, *, is_colocated: bool) -> tuple[int, int]:
    """(GPUs of the trainer, GPUs of the engines): all of them when shared; else what the row states, or the rest."""
    total = _num_gpus(row)
    if is_colocated:
        return read.degree(row, "n_gpus_train", total), read.degree(row, "n_gpus_gen", total)
    stated = [row[column] for column in ("n_gpus_train", "n_gpus_gen")]
    if not any(stated):
        raise ExcludedError("split of GPUs between trainer and engines not published")
    if all(stated):
        return read.degree(row, "n_gpus_train"), read.degree(row, "n_gpus_gen")
    known = read.degree(row, "n_gpus_train" if stated[0] else "n_gpus_gen")
    if known >= total:
        raise RowError(f"{known} of {total} GPUs leave none for the other side")
    return (known, total - known) if stated[0] else (total - known, known)


def _place(row: Row, workload: Workload, *, is_colocated: bool) -> tuple[PlacedStrategy, ...]:
    train, rollout = _split(row, is_colocated=is_colocated)
    node = _node(row)
    for precision in {workload.train_precision, workload.rollout_precision}:
        if not node.gpu.supports(precision):
            raise RowError(f"{node.gpu.name} has no {precision.value}")
    used = max(train, rollout) if is_colocated else train + rollout
    pool = Pool(name="pool", node=node, num_nodes=-(-used // node.gpus_per_node), usd_per_gpu_hour=None)
    trainer_group = _group("train", pool, 0, train)
    engine_group = trainer_group if is_colocated else _group("rollout", pool, train, rollout)
    trainer = _trainer(row, train, workload, is_colocated=is_colocated)
    # The reference holds weights only, in the trainer's layout, and waits in host RAM.
    reference = _swapped(trainer)
    engine = _engine(row, rollout, is_colocated=is_colocated)
    choices: dict[WorkerName, tuple[DeviceGroup, Strategy]] = {
        WorkerName.ROLLOUT_ENGINE: (engine_group, engine),
        WorkerName.ACTOR_TRAINER: (trainer_group, trainer),
        WorkerName.CRITIC_TRAINER: (trainer_group, trainer),
        WorkerName.REFERENCE: (trainer_group, reference),
    }
    return tuple(
        PlacedStrategy(worker=worker, pool=pool, group=choices[worker.name][0], strategy=choices[worker.name][1])
        for worker in build_graph(workload).workers
    )


def _swapped(trainer: TrainerStrategy) -> TrainerStrategy:
    return replace(trainer, offload=Offload.STATE_SWAP, recompute=Recompute.NONE, recompute_layers=0, vpp=1)


# Mode ------------------------------------------------------------------------------------------------------------


def _is_eager(row: Row) -> bool:
    """verl's own configuration of 2025 runs vLLM without CUDA graphs unless a script switches them on."""
    stated = read.flag(row, "gen_enforce_eager")
    if stated is not None:
        return stated
    return row["framework"] == VERL and row["gen_engine"] == "vllm" and "cuda graph" not in row["note"].lower()


def read_run(row: Row, implied: Mapping[tuple[str, ...], float]) -> Run:
    """The run behind a row; raises RowError with what is missing or not understood."""
    if row["algorithm"] == "weight-sync-only":
        raise ExcludedError("only the weight sync was measured, parallel sizes not published")
    lag = read.number(row, "async_lag")
    if lag is None:
        raise ExcludedError("synchronous or asynchronous, and by how much, is not published")
    is_colocated = row["colocated"] != "0"
    workload = _workload(row, implied)
    draft = row["gen_spec_decode"]
    return Run(
        framework=row["framework"],
        release=row["fw_version"],
        workload=workload,
        placed=_place(row, workload, is_colocated=is_colocated),
        staleness=lag,
        is_asynchronous=lag > 0,
        is_streaming=lag > 1 or (row["framework"] == VERL and lag < 1),
        is_eager=_is_eager(row),
        num_draft_tokens=int(draft.rsplit(":", 1)[1]) if ":" in draft else 0,
    )
