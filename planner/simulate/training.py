"""Stages of trainers on sampled sequences: packing, pipelines and data-parallel ranks that wait for each other.

From the plan come rates: what its time terms say one token, one squared token (attention), one micro-batch, one
optimizer step and one stage cost. What the plan says about bubbles and uneven ranks is not used: both are played.
Sequences are dealt out as frameworks do it: the longest first to the rank with the least work, and the same way
into the micro-batches of a rank, of which all ranks have as many as the fullest one needs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np

from planner.domain.plan import Placement
from planner.domain.stages import StageKind
from planner.domain.strategy import FloatArray, Sharding, TrainerStrategy
from planner.domain.workload import Workload
from planner.simulate.interleaved import Pipeline, interleaved_s
from planner.simulate.pipeline_order import forward_s, training_s

_LINEAR = ("gemm", "elementwise", "recompute", "tp_scale_up", "tp_scale_out", "cp_scale_up", "cp_scale_out",
           "ep_scale_up", "ep_scale_out")  # fmt: skip
_PER_STAGE = ("reload", "switch")
_PER_STEP = ("optimizer", "cpu_optimizer")
_DATA_PARALLEL = ("dp_scale_up", "dp_scale_out")
_REPLAYED = ("pp_bubble", "imbalance")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRates:
    """What a stage of a trainer costs one data-parallel rank, in seconds.

    `head_ratio` is the part of the work on tokens that only the last pipeline rank has.
    """

    token_s: float
    square_token_s: float
    """Attention per squared length."""
    micro_batch_s: float
    step_s: float
    stage_s: float
    head_ratio: float
    num_steps: int
    """Optimizer steps over all epochs; 1 for a forward pass."""
    num_epochs: int
    is_training: bool
    strategy: TrainerStrategy

    def work_s(self, tokens: FloatArray) -> FloatArray:
        """Sequences on the rank that has them, without what micro-batches and steps cost besides; elementwise."""
        result: FloatArray = tokens * self.token_s + tokens**2 * self.square_token_s
        return result

    @property
    def budget_tokens(self) -> int:
        return self.strategy.micro_batch_tokens if self.is_training else self.strategy.inference_tokens


def trainer_rates(placement: Placement, workload: Workload, kind: StageKind, num_sequences: int) -> TrainerRates:
    """Rates of a stage that works on `num_sequences` sequences, from the terms of its placement.

    Raises ValueError for a term that no rate takes up.
    """
    strategy = placement.strategy
    assert isinstance(strategy, TrainerStrategy)
    terms = {term.name: term.value for term in placement.time_terms}
    known = {*_LINEAR, *_PER_STAGE, *_PER_STEP, *_DATA_PARALLEL, *_REPLAYED, "attention", "launch", "pp_transfer"}
    if set(terms) - known:
        raise ValueError(f"the replay does not know the terms {sorted(set(terms) - known)}")

    def sums(names: tuple[str, ...]) -> float:
        return sum(terms.get(name, 0.0) for name in names)

    is_training = kind is StageKind.TRAINING
    num_epochs = workload.num_epochs if is_training else 1
    per_epoch = workload.num_optimizer_steps if is_training else 1
    num_steps = per_epoch * num_epochs
    rank_sequences = num_sequences * num_epochs / strategy.dp
    budget = strategy.micro_batch_tokens if is_training else strategy.inference_tokens
    step_tokens = num_sequences * workload.mean_tokens / per_epoch / strategy.dp
    num_micro_batches = max(ceil(step_tokens / budget - 1e-9), 1)
    count = num_micro_batches * num_steps
    gathers_per_micro_batch = strategy.sharding is Sharding.ZERO3
    data_parallel = sums(_DATA_PARALLEL)
    linear, attention = sums(_LINEAR), terms.get("attention", 0.0)
    transfers = count + (strategy.pp - 1) * num_steps
    return TrainerRates(
        token_s=linear / (rank_sequences * workload.mean_tokens),
        square_token_s=attention / (rank_sequences * workload.mean_square_tokens),
        micro_batch_s=terms.get("launch", 0.0) / count
        + terms.get("pp_transfer", 0.0) / transfers
        + (data_parallel / count if gathers_per_micro_batch else 0.0),
        step_s=(sums(_PER_STEP) + (0.0 if gathers_per_micro_batch else data_parallel)) / num_steps,
        stage_s=sums(_PER_STAGE),
        head_ratio=_head_ratio(terms, linear + attention, strategy, num_micro_batches, num_steps),
        num_steps=num_steps,
        num_epochs=num_epochs,
        is_training=is_training,
        strategy=strategy,
    )


def _head_ratio(
    terms: dict[str, float], work_s: float, strategy: TrainerStrategy, num_micro_batches: int, num_steps: int
) -> float:
    """Share of the last pipeline rank's work that the others do not have: output head and logits.

    The plan's bubble is (p - 1) / v times (with chunks that an incomplete last group leaves empty) the time of a
    micro-batch without them, which tells the two apart.
    """
    bubble = terms.get("pp_bubble", 0.0)
    if strategy.pp == 1 or bubble <= 0.0:
        return 0.0
    empty = -num_micro_batches % strategy.pp
    slots = ((strategy.pp - 1) + (strategy.vpp - 1) * empty) / strategy.vpp
    body = bubble / (slots * num_steps) * num_micro_batches * num_steps - terms.get("launch", 0.0)
    return min(max(1.0 - body / work_s, 0.0), 1.0)


def stage_s(rates: TrainerRates, tokens: FloatArray, random: np.random.Generator) -> float:
    """Seconds of a stage on sequences of `tokens` tokens each, shape (num_sequences,), prompts included."""
    total = rates.stage_s
    for works in _epochs(rates, tokens, random):
        total += sum(_steps_s(rates, works))
        total += len(works) * rates.step_s
    return total


def interleaved_stages_s(
    rates: tuple[TrainerRates, TrainerRates],
    tokens: FloatArray,
    randoms: tuple[np.random.Generator, np.random.Generator],
) -> tuple[float, float]:
    """When two updates of the same sequences end that share GPUs and one pipeline (intra-stage fusion).

    Steps of both begin together; what a step does outside its pipeline (optimizer, gradient reduction) uses the same
    GPUs, one model after the other. The model whose pipeline is through first has its optimizer step first.
    """
    total = sum(rate.stage_s for rate in rates)
    ends = (total, total)
    first, second = (
        [work for works in _epochs(rate, tokens, random) for work in works]
        for rate, random in zip(rates, randoms, strict=True)
    )
    for works in zip(first, second, strict=True):
        passes = interleaved_s(*(_pipeline(rate, work) for rate, work in zip(rates, works, strict=True)))
        after = [total + rate.step_s + end for rate, end in zip(rates, passes, strict=True)]
        total += max(passes) + sum(rate.step_s for rate in rates)
        ends = (after[0], total) if passes[0] <= passes[1] else (total, after[1])
    return ends


def _pipeline(rates: TrainerRates, work: FloatArray) -> Pipeline:
    head = work * rates.head_ratio
    strategy = rates.strategy
    body = work - head + rates.micro_batch_s
    return Pipeline(body_s=body, head_s=head, num_ranks=strategy.pp, num_chunks=strategy.vpp)


def _epochs(rates: TrainerRates, tokens: FloatArray, random: np.random.Generator) -> Iterator[list[FloatArray]]:
    """Packed work of each optimizer step, epoch by epoch."""
    steps_per_epoch = rates.num_steps // rates.num_epochs
    for _ in range(rates.num_epochs):
        shuffled = random.permutation(tokens) if steps_per_epoch > 1 else tokens
        yield [_packed(rates, part) for part in np.array_split(shuffled, steps_per_epoch) if len(part)]


def _packed(rates: TrainerRates, tokens: FloatArray) -> FloatArray:
    """Work of each micro-batch on each data-parallel rank in seconds; shape (num_micro_batches, dp)."""
    dp = rates.strategy.dp
    work = rates.work_s(tokens)
    # Dealt out by tokens, which is what frameworks count; what a rank takes is its work.
    ranks = _dealt(tokens, dp)
    rank_tokens = np.bincount(ranks, weights=tokens, minlength=dp)
    number = max(ceil(float(rank_tokens.max()) / rates.budget_tokens - 1e-9), 1)
    result = np.zeros((number, dp))
    for rank in range(dp):
        mine = np.flatnonzero(ranks == rank)
        parts = _dealt(tokens[mine], number)
        result[:, rank] = np.bincount(parts, weights=work[mine], minlength=number)
    return result


def _dealt(tokens: FloatArray, number: int) -> np.ndarray:
    """Which of `number` parts each sequence goes to: longest first, to the part with the fewest tokens."""
    parts = np.zeros(len(tokens), dtype=np.int64)
    if number == 1:
        return parts
    heap = [(0.0, part) for part in range(number)]
    for index in np.argsort(-tokens, kind="stable").tolist():
        sum_tokens, part = heap[0]
        parts[index] = part
        heapq.heapreplace(heap, (sum_tokens + float(tokens[index]), part))
    return parts


def _steps_s(rates: TrainerRates, works: list[FloatArray]) -> list[float]:
    """Seconds of each optimizer step: its slowest rank. Steps of equally many micro-batches are played together."""
    result = []
    play = training_s if rates.is_training else forward_s
    for number in sorted({len(work) for work in works}):
        same = [work for work in works if len(work) == number]
        joint = _pipeline(rates, np.concatenate(same, axis=1))
        ends = play(joint.body_s, joint.head_s, joint.num_ranks, joint.num_chunks)
        result += np.split(ends, len(same))
    return [float(end.max()) for end in result]
