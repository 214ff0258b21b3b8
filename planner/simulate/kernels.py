"""Seconds of engine steps as tables, so that a replay looks them up instead of pricing them one by one."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from planner.cost.decode import KV_BYTES, EngineLayout, decode_step_terms, engine_layout, kv_heads_share, linear_s
from planner.cost.formats import uniform
from planner.cost.prefill import attention_s, step_communication_s, step_launch_s
from planner.domain.hardware import NodeType, Precision
from planner.domain.model import Model
from planner.domain.overheads import Overheads
from planner.domain.strategy import FloatArray, RolloutStrategy, RolloutTable

_CONTEXT_POINTS = 17
_PROMPT_POINTS = 33
BLOCK_TOKENS = 16
"""Tokens per block of a paged cache (vLLM's default); the last block of a sequence is half empty on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKernels:
    """Times of one engine, and what its cache holds.

    `step_s[n - 1][j]` is a decode step of n sequences with j * `context_step_tokens` tokens each;
    `tokens_s[j]` are all matrix products and collectives of a step with j * `token_step` tokens, and `prompt_s[j]`
    the attention of one prompt of j * `prompt_step_tokens` tokens. Everything already includes the losses of engines
    inside RL steps.
    """

    step_s: list[list[float]]
    context_step_tokens: float
    tokens_s: list[float]
    token_step: float
    prompt_s: list[float]
    prompt_step_tokens: float
    lone_step_s: float
    """Fixed time of a step with prompts only: launches and the engine's own."""
    prompt_step_s: float
    """What any step with prompts takes beyond its kernels."""
    num_stages: int
    """Pipeline stages: prompt chunks follow each other through them."""
    mixes_prompts: bool
    batched_tokens: int
    cache_tokens: float
    """Context tokens that the caches of the engine hold."""
    sequence_tokens: float
    """What a running sequence occupies beside its context, in context tokens: half a block, windowed layers, states."""
    max_num_seqs: int

    def decode_s(self, num_running: int, context_tokens: float) -> float:
        """One decode step of `num_running` sequences of `context_tokens` each."""
        return _at(self.step_s[num_running - 1], context_tokens / self.context_step_tokens)

    def prompts_s(self, prompt_tokens: list[int], num_running: int) -> tuple[int, float]:
        """(steps, seconds beyond the decode steps that they ride on) of reading prompts while sequences decode."""
        total = sum(prompt_tokens)
        room = max(self.batched_tokens - num_running, self.batched_tokens // 8)
        steps = ceil(total / room)
        chunk = total / steps
        beside = num_running if self.mixes_prompts else 0
        products = self._products_s(chunk + beside) - (self._products_s(beside) if beside else 0.0)
        fixed = self.prompt_step_s + (0.0 if beside else self.lone_step_s)
        attention = sum(_at(self.prompt_s, tokens / self.prompt_step_tokens) for tokens in prompt_tokens)
        stages = self.num_stages
        return steps, (steps * (products + fixed) + attention) * (steps + stages - 1.0) / (steps * stages)

    def _products_s(self, num_tokens: float) -> float:
        return _at(self.tokens_s, num_tokens / self.token_step)


def _at(table: list[float], position: float) -> float:
    """Linear interpolation at `position` in units of the grid, extended beyond its end."""
    low = min(int(position), len(table) - 2)
    return table[low] + (position - low) * (table[low + 1] - table[low])


def engine_kernels(
    model: Model,
    precision: Precision,
    strategy: RolloutStrategy,
    node: NodeType,
    overheads: Overheads,
    cache_bytes: float,
    max_tokens: int,
) -> EngineKernels:
    """Tables of one engine. `cache_bytes` per GPU are free for the cache, `max_tokens` is the longest sequence.

    The attention groups of an engine step together, so they are replayed as one: their caches and sequences are pooled,
    and how unevenly responses fall on the groups is not seen.
    """
    precision = precision if node.gpu.supports(precision) else Precision.BF16
    formats, loss = uniform(precision), overheads.step_losses.rollout_ratio
    groups = strategy.attention_dp
    layout = one_layout(strategy, node)
    contexts = np.linspace(0.0, max_tokens, _CONTEXT_POINTS)
    counts = np.arange(1.0, strategy.max_num_seqs * groups + 1.0)
    running, context = (grid.reshape(-1, 1) for grid in np.meshgrid(counts, contexts, indexing="ij"))
    terms = decode_step_terms(model, formats, node, overheads, layout, running, context)
    steps = loss * sum(terms.values(), start=np.zeros_like(running)).reshape(len(counts), -1)

    batched = int(overheads.engine_batched_tokens)
    tokens = np.linspace(1.0, 2.0 * batched, 2 * _PROMPT_POINTS - 1).reshape(-1, 1)
    products = linear_s(model, formats, node, overheads, layout, tokens)
    products = products + step_communication_s(model, layout, tokens, node)
    prompts = np.linspace(0.0, max_tokens, _PROMPT_POINTS).reshape(-1, 1)
    safe = np.maximum(prompts, 1.0)
    attention = attention_s(model, formats, node, layout, safe, safe) * (prompts > 0)
    token_bytes, sequence_bytes = _cache_bytes(model, strategy, float(max_tokens))
    return EngineKernels(
        step_s=steps.tolist(),
        context_step_tokens=max_tokens / (_CONTEXT_POINTS - 1),
        tokens_s=(loss * products).reshape(-1).tolist(),
        token_step=float(tokens[1, 0] - tokens[0, 0]),
        prompt_s=(loss * attention).reshape(-1).tolist(),
        prompt_step_tokens=max_tokens / (_PROMPT_POINTS - 1),
        lone_step_s=loss * (step_launch_s(model, formats, node, overheads) + overheads.engine_step_s),
        prompt_step_s=loss * overheads.engine_prefill_step_s,
        num_stages=strategy.pp,
        mixes_prompts=overheads.engine_mixes_prefill,
        batched_tokens=batched,
        cache_tokens=groups * cache_bytes / token_bytes,
        sequence_tokens=BLOCK_TOKENS / 2 + sequence_bytes / token_bytes,
        max_num_seqs=strategy.max_num_seqs * groups,
    )


def one_layout(strategy: RolloutStrategy, node: NodeType) -> EngineLayout:
    """The layout of one strategy, as a table of one row."""
    table = RolloutTable.of((strategy,))
    return engine_layout(table.tp, table.pp, table.ep, node, table.attention_dp, table.exchange)


def _cache_bytes(model: Model, strategy: RolloutStrategy, longest_tokens: float) -> tuple[float, float]:
    """(bytes per context token, bytes per sequence) on one GPU of the fullest pipeline stage.

    Layers of a window keep the window, recurrent layers a state. A model without any growing layer still needs a
    unit to count in, so a token never takes less than a byte.
    """
    tp: FloatArray = np.array([float(strategy.tp)])
    share = ceil(model.num_layers / strategy.pp) / model.num_layers
    per_token = per_sequence = 0.0
    for layer in model.layers:
        attention = layer.attention
        elements = attention.kv_elements_per_token * float(kv_heads_share(layer, tp)[0])
        window = attention.window_tokens
        if window is None or window >= longest_tokens:
            per_token += layer.num_layers * elements * KV_BYTES
        else:
            per_sequence += layer.num_layers * elements * KV_BYTES * window
        per_sequence += layer.num_layers * attention.state_elements_per_sequence * KV_BYTES / strategy.tp
    return max(per_token * share, 1.0), per_sequence * share
