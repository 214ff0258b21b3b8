"""Work and depth of RL post-training: how many operations a stage has, and how many of them must wait for each other.

Work W counts FLOP (a multiply-add is two) of matrix products, attention scores and recurrent states; norms, soft-max
and activation functions are left out. Depth D counts levels of a binary-operation DAG: a contraction of length n is
log2(n) deep, whatever is done beside it. Any p processors need max(W / p, D) <= T <= W / p + D (greedy scheduling,
Graham 1969, Brent 1974). Formulas after arXiv 2608.27046, with the corrections that `docs/work-depth.md` lists.

Lengths are per sequence; `Lengths` holds their first two moments, which is all that causal attention needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil, log2

import numpy as np

from planner.cost.compute import attention_pairs_per_token
from planner.cost.layout import model_totals
from planner.domain.lengths import LengthLaw
from planner.domain.model import LayerClass, Model
from planner.domain.strategy import FloatArray
from planner.domain.workload import GenerationLoad, TokenLoad

GAE_FLOP_PER_TOKEN = 6.0
"""delta = r + gamma V' - V (3), A = delta + gamma lambda A' (2), return = A + V (1)."""
GROUP_FLOP_PER_SAMPLE = 5.0
"""Sum, difference to the mean, square and its sum, division by the deviation."""
_GATED_MATRICES = 3.0


class Head(StrEnum):
    """What a model computes from its last hidden state."""

    VOCABULARY = "vocabulary"
    TOKEN_SCALAR = "token scalar"
    """One number per token: critic, process reward model."""
    SEQUENCE_SCALAR = "sequence scalar"
    """One number per sequence: outcome reward model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Moments of a sequence length in tokens."""

    mean_tokens: float
    mean_square_tokens: float

    @classmethod
    def fixed(cls, num_tokens: float) -> Lengths:
        return cls(mean_tokens=num_tokens, mean_square_tokens=num_tokens * num_tokens)

    @classmethod
    def of_load(cls, load: TokenLoad) -> Lengths:
        return cls(mean_tokens=load.mean_tokens, mean_square_tokens=load.mean_square_tokens)

    @classmethod
    def with_prompt(cls, prompt_tokens: float, response: LengthLaw) -> Lengths:
        """Prompt and response together; the prompt law is taken as its mean."""
        mean, square = response.mean_tokens, response.mean_square_tokens
        return cls(
            mean_tokens=prompt_tokens + mean,
            mean_square_tokens=prompt_tokens**2 + 2.0 * prompt_tokens * mean + square,
        )

    def without_last(self) -> Lengths:
        """One token less: the last token of a response is never fed back."""
        mean = self.mean_tokens - 1.0
        return Lengths(mean_tokens=mean, mean_square_tokens=self.mean_square_tokens - 2.0 * self.mean_tokens + 1.0)


# ---------------------------------------------------------------------------------------------- work


def causal_pairs(lengths: Lengths, window_tokens: int | None) -> float:
    """Mean (query, key) pairs of one sequence under a causal mask, diagonal included: m (m + 1) / 2 without window.

    The cost model's continuum m**2 / 2 plus the half of the diagonal that it leaves out. With a window it is exact
    for equal lengths and evaluated at the length-biased mean otherwise.
    """
    mean, square = lengths.mean_tokens, lengths.mean_square_tokens
    if mean <= 0.0:
        return 0.0
    biased = square / mean
    seen = biased if window_tokens is None else min(float(window_tokens), biased)
    return mean * (float(attention_pairs_per_token(mean, square, window_tokens)) + 0.5 * seen / biased)


def matmul_params(model: Model) -> float:
    """Matrix elements that one token multiplies with in all layers: projections, MLP, router, active experts."""
    return float(sum(layer.num_layers * layer.active_matmul_params for layer in model.layers))


def layers_flop(model: Model, lengths: Lengths) -> float:
    """Forward FLOP of all layers for one sequence, without head.

    m (2 active parameters + state update) + score FLOP per pair * pairs. With score FLOP 4 h d_h this is
    m c_0 + 2 L h d_h m (m + 1).
    """
    return lengths.mean_tokens * 2.0 * matmul_params(model) + mixing_flop(model, lengths)


def mixing_flop(model: Model, lengths: Lengths) -> float:
    """The part of `layers_flop` that has no weights: attention scores and values, recurrent state updates."""
    return sum(
        layer.num_layers
        * (
            layer.attention.score_flop_per_pair * causal_pairs(lengths, layer.attention.window_tokens)
            + layer.attention.state_flop_per_token * lengths.mean_tokens
        )
        for layer in model.layers
    )


def head_flop(model: Model, head: Head, num_tokens: float) -> float:
    """Forward FLOP of the head on one sequence of `num_tokens`: 2 V d or 2 d per token, or 2 d once."""
    if head is Head.VOCABULARY:
        return 2.0 * model.embedding_params * num_tokens
    return 2.0 * model.hidden_size * (num_tokens if head is Head.TOKEN_SCALAR else 1.0)


def forward_flop(model: Model, head: Head, lengths: Lengths) -> float:
    """FLOP of one forward pass over one sequence with the head on every token (or once)."""
    return layers_flop(model, lengths) + head_flop(model, head, lengths.mean_tokens)


def prefill_flop(model: Model, prompt_tokens: float) -> float:
    """FLOP of reading a prompt: all layers, and the vocabulary head on its last token only."""
    return layers_flop(model, Lengths.fixed(prompt_tokens)) + head_flop(model, Head.VOCABULARY, 1.0)


def decode_flop(model: Model, prompt_tokens: float, sequence: Lengths) -> float:
    """FLOP of all responses tokens after the first, which comes from prefill; `sequence` is prompt and response.

    T - 1 tokens at contexts S + 1 ... S + T - 1, each with a head: prefill(S) + decode(S, T) is one causal forward
    over S + T - 1 tokens plus T heads.
    """
    fed = sequence.without_last()
    layers = layers_flop(model, fed) - layers_flop(model, Lengths.fixed(prompt_tokens))
    return layers + head_flop(model, Head.VOCABULARY, fed.mean_tokens - prompt_tokens)


def rollout_flop(model: Model, load: GenerationLoad, *, shares_prefix: bool = True) -> float:
    """FLOP of all responses of an iteration; with a shared prefix each prompt is read once per group."""
    num_prefills = load.num_sequences / (load.num_shared if shares_prefix else 1)
    sequence = Lengths.with_prompt(load.prompt_mean_tokens, load.response)
    return num_prefills * prefill_flop(model, load.prompt_mean_tokens) + load.num_sequences * decode_flop(
        model, load.prompt_mean_tokens, sequence
    )


def backward_flop(model: Model, head: Head, lengths: Lengths, lora_rank: int | None) -> float:
    """FLOP of backward over one sequence: twice the forward.

    With LoRA frozen matrices need no weight gradients, which halves their part; the adapters add their own forward
    and backward, 6 FLOP per parameter and token.
    """
    if lora_rank is None:
        return 2.0 * forward_flop(model, head, lengths)
    frozen = forward_flop(model, head, lengths) - mixing_flop(model, lengths)
    adapters = lora_rank * model_totals(model, head is Head.VOCABULARY).adapter_params_per_rank
    return frozen + 2.0 * mixing_flop(model, lengths) + 6.0 * adapters * lengths.mean_tokens


def training_flop(
    model: Model, head: Head, lengths: Lengths, *, lora_rank: int | None, is_recomputed: bool = False
) -> float:
    """FLOP of forward and backward over one sequence; full recomputation runs the layers' forward again."""
    again = layers_flop(model, lengths) if is_recomputed else 0.0
    return forward_flop(model, head, lengths) + backward_flop(model, head, lengths, lora_rank) + again


# ---------------------------------------------------------------------------------------------- depth


def levels(length: float | FloatArray) -> FloatArray:
    """log2 of a contraction length, 0 for lengths up to 1."""
    result: FloatArray = np.log2(np.maximum(length, 1.0))
    return result


def contraction_levels(layer: LayerClass, hidden_size: int, num_new: float, context: FloatArray) -> FloatArray:
    """Levels of the dependent matrix products of one layer: hidden size, head size, keys, all heads, hidden, MLP width.

    For multi-head attention with h d_h = d that is log2(d**4 d_ff m / h). Sequence mixing without scores is a scan
    over the `num_new` tokens. Routed and shared experts run side by side, so the wider one counts, after the router
    and before the sum over chosen experts.
    """
    attention, mlp = layer.attention, layer.mlp
    result = np.zeros_like(context)
    if attention.score_flop_per_pair > 0.0:
        inner = attention.score_flop_per_pair / 4.0
        seen = context if attention.window_tokens is None else np.minimum(context, attention.window_tokens)
        result += levels(hidden_size) + levels(inner / max(attention.num_heads, 1)) + levels(seen) + levels(inner)
    elif attention.matmul_params:
        result += 2.0 * levels(hidden_size) + levels(num_new)
    router = mlp.num_experts * hidden_size
    dense_width = max(mlp.dense_params - router, 0) / (_GATED_MATRICES * hidden_size)
    width = max(dense_width, float(mlp.expert_hidden_size))
    if width > 0.0:
        result += levels(hidden_size) + levels(width)
    if mlp.is_moe:
        result += levels(hidden_size) + levels(mlp.num_experts) + levels(mlp.num_active_experts)
    return result


def forward_levels(model: Model, head: Head, num_new: float, context: FloatArray) -> FloatArray:
    """Depth of one forward pass of `num_new` tokens that end at `context` keys; shape of `context`.

    Contractions, maximum and sum of each soft-max (2 log2 keys), the norms (2 log2 d per layer), the head and, for a
    vocabulary, the soft-max over it. Tensor parallelism does not change it: log2(d / t) + log2(t) = log2(d).
    """
    hidden = model.hidden_size
    total = np.zeros_like(context)
    for layer in model.layers:
        attention = layer.attention
        seen = context if attention.window_tokens is None else np.minimum(context, attention.window_tokens)
        softmax = 2.0 * levels(seen) * (attention.score_flop_per_pair > 0.0)
        total += layer.num_layers * (
            contraction_levels(layer, hidden, num_new, context) + softmax + 2.0 * levels(hidden)
        )
    return total + 2.0 * levels(hidden) + (2.0 * levels(model.vocab_size) if head is Head.VOCABULARY else 0.0)


def forward_depth(model: Model, head: Head, num_tokens: float) -> float:
    """Depth of a forward pass over a whole sequence."""
    return float(forward_levels(model, head, num_tokens, np.array([float(num_tokens)]))[0])


def generation_depth(model: Model, prompt_tokens: float, longest_tokens: float) -> float:
    """Depth of a rollout: prefill, then one forward of one token after another of the longest response.

    `longest_tokens` is the expected longest response: the mean length says nothing about the chain.
    """
    context = prompt_tokens + np.arange(1.0, max(ceil(longest_tokens), 1))
    steps = float(forward_levels(model, Head.VOCABULARY, 1.0, context).sum())
    return forward_depth(model, Head.VOCABULARY, prompt_tokens) + steps


def training_depth(
    model: Model, head: Head, load: TokenLoad, *, num_optimizer_steps: int, num_epochs: int, is_recomputed: bool = False
) -> float:
    """Depth of an update: epochs x mini-batches x (forward + backward + optimizer step), one after another.

    Backward is as deep as forward plus the sum of gradients over the tokens of a mini-batch; the optimizer waits for
    the global gradient norm, log2(parameters).
    """
    forward = forward_depth(model, head, load.max_tokens)
    backward = forward * (2.0 if is_recomputed else 1.0) + log2(max(load.num_tokens / num_optimizer_steps, 1.0))
    return num_epochs * num_optimizer_steps * (forward + backward + log2(model.num_params))


def gae_depth(longest_tokens: float) -> float:
    """Depth of generalised advantage estimation: a linear recurrence, so a scan (up and down sweep), not a loop."""
    return 2.0 * log2(max(longest_tokens, 1.0))


def group_depth(group_size: int) -> float:
    """Depth of group advantages: sums for mean and variance."""
    return 2.0 * log2(max(group_size, 1))


def num_waves(num_sequences: float, num_slots: float) -> int:
    """Rounds of responses one after another when only `num_slots` fit the KV cache at a time."""
    return ceil(num_sequences / num_slots - 1e-9)


# ---------------------------------------------------------------------------------------------- bound


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBound:
    """Lower bounds of a time, in seconds, by what they come from. None of them can be beaten, so the largest binds."""

    compute_s: float = 0.0
    """Work / peak rate of all GPUs."""
    hbm_s: float = 0.0
    scale_up_s: float = 0.0
    nic_s: float = 0.0
    depth_s: float = 0.0
    """The chain of dependent operations on the given hardware."""
    slots_s: float = 0.0
    """Decode steps that the KV cache forces to follow each other."""

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        return (
            ("compute", self.compute_s),
            ("HBM", self.hbm_s),
            ("scale-up", self.scale_up_s),
            ("NIC", self.nic_s),
            ("depth", self.depth_s),
            ("KV slots", self.slots_s),
        )

    @property
    def time_s(self) -> float:
        return max(value for _, value in self.parts)

    @property
    def binding(self) -> str:
        """What the bound comes from; empty when there is none."""
        name, value = max(self.parts, key=lambda part: part[1])
        return name if value > 0.0 else ""
