"""Time of the prompts of one iteration through an inference engine, on arrays of candidates.

Prompts are packed into steps of at most `engine_batched_tokens` tokens. Weights are read once per step,
matrix products and causal attention follow the rooflines of `planner.cost.compute`, each block ends with an
all-reduce. With pipeline parallelism the steps follow each other through the stages. The output head runs on
the last token of each prompt only and is left out.
"""

from __future__ import annotations

import numpy as np

from planner.cost.communication import collective_s
from planner.cost.compute import attention_flop_per_token
from planner.cost.decode import (
    ACTIVATION_BYTES,
    EngineLayout,
    elementwise_bytes,
    expert_tokens_s,
    layer_launch_s,
    linear_s,
    num_mixers,
)
from planner.cost.formats import WeightFormats, engine_rates
from planner.domain.hardware import CollectiveOp, NodeType, Precision
from planner.domain.model import Model
from planner.domain.overheads import Overheads
from planner.domain.strategy import FloatArray


def prefill_s(
    model: Model,
    formats: WeightFormats,
    node: NodeType,
    overheads: Overheads,
    layout: EngineLayout,
    num_prompts: FloatArray,
    prompt_tokens: float | FloatArray,
) -> FloatArray:
    """Seconds to read `num_prompts` prompts of `prompt_tokens` tokens with one engine; shape (num_candidates,)."""
    num_tokens = num_prompts * prompt_tokens
    num_steps = np.maximum(num_tokens / overheads.engine_batched_tokens, 1.0)
    step_tokens = num_tokens / num_steps
    step_s = linear_s(model, formats, node, overheads, layout, step_tokens)
    step_s += attention_s(model, formats, node, layout, step_tokens, prompt_tokens)
    step_s += step_communication_s(model, layout, step_tokens, node)
    step_s += step_launch_s(model, formats, node, overheads) + overheads.engine_step_s
    fill: FloatArray = (num_steps + layout.pp - 1.0) / layout.pp
    return step_s * fill


def attention_s(
    model: Model,
    formats: WeightFormats,
    node: NodeType,
    layout: EngineLayout,
    step_tokens: FloatArray,
    prompt_tokens: float | FloatArray,
) -> FloatArray:
    """Causal attention and element-wise passes of `step_tokens` tokens of whole prompts of `prompt_tokens` each.

    Groups of data-parallel attention read different prompts at the same time.
    """
    rates = engine_rates(node.gpu, Precision.BF16)
    rate = rates.attention_s_per_flop * (prompt_tokens + rates.attention_half_tokens) / prompt_tokens
    seconds = np.zeros_like(step_tokens)
    group = step_tokens / layout.attention_dp if layout.has_attention_dp else step_tokens
    lengths = np.asarray(prompt_tokens, dtype=np.float64)
    for layer in model.layers:
        flop = attention_flop_per_token(layer.attention, lengths, lengths**2)
        one = group * (flop * rate) / layout.tp
        one += elementwise_bytes(layer, model.hidden_size, layout, group) * rates.hbm_s_per_byte
        seconds += one * layer.num_layers
    return seconds


def step_communication_s(model: Model, layout: EngineLayout, step_tokens: FloatArray, node: NodeType) -> FloatArray:
    """All-reduces (and gathers of data-parallel attention) of one prefill step over all layers."""
    num_all_reduces = 1 + sum(layer.num_layers * num_mixers(layer) for layer in model.layers)
    group = step_tokens / layout.attention_dp if layout.has_attention_dp else step_tokens
    up, out = collective_s(
        CollectiveOp.ALL_REDUCE, group * (ACTIVATION_BYTES * model.hidden_size), layout.tp_span, node
    )
    seconds: FloatArray = num_all_reduces * (up + out)
    if layout.has_attention_dp:
        up, out = expert_tokens_s(model, layout, step_tokens, node, merges_copies=True)
        seconds = seconds + up + out
    return seconds


def step_launch_s(model: Model, formats: WeightFormats, node: NodeType, overheads: Overheads) -> float:
    """Fixed kernel times of one step over all layers."""
    return sum(layer.num_layers * layer_launch_s(layer, node.gpu, formats, overheads) for layer in model.layers)
