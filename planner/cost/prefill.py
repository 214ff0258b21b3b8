"""Time of the prompts of one iteration through an inference engine, on arrays of candidates.

Prompts are packed into steps of at most `engine_batched_tokens` tokens. Weights are read once per step,
matrix products and causal attention follow the rooflines of `planner.cost.compute`, each block ends with an
all-reduce. With pipeline parallelism the steps follow each other through the stages. The output head runs on
the last token of each prompt only and is left out.
"""

from __future__ import annotations

import numpy as np

from planner.cost.communication import collective_s
from planner.cost.compute import attention_flop_per_token, kernel_rates, roofline_s
from planner.cost.decode import (
    ACTIVATION_BYTES,
    EngineLayout,
    distinct_experts,
    elementwise_bytes,
    layer_launch_s,
    num_mixers,
)
from planner.domain.hardware import CollectiveOp, NodeType, Precision
from planner.domain.model import Model
from planner.domain.overheads import Overheads
from planner.domain.strategy import FloatArray


def prefill_s(
    model: Model,
    precision: Precision,
    node: NodeType,
    overheads: Overheads,
    layout: EngineLayout,
    num_prompts: FloatArray,
    prompt_tokens: float,
) -> FloatArray:
    """Seconds to read `num_prompts` prompts of `prompt_tokens` tokens with one engine; shape (num_candidates,)."""
    rates = kernel_rates(node.gpu, precision, is_training=False)
    num_tokens = num_prompts * prompt_tokens
    num_steps = np.maximum(num_tokens / overheads.engine_batched_tokens, 1.0)
    step_tokens = num_tokens / num_steps
    attention_rate = rates.attention_s_per_flop * (prompt_tokens + rates.attention_half_tokens) / prompt_tokens
    seconds = np.zeros_like(num_tokens)
    launch = overheads.engine_step_s
    num_all_reduces = 1
    for layer in model.layers:
        mlp = layer.mlp
        dense = (layer.attention.matmul_params + mlp.dense_params) / layout.tp
        one = roofline_s(
            2.0 * num_tokens * dense,
            rates.gemm_s_per_flop,
            num_steps * dense * rates.weight_bytes_per_param,
            rates.hbm_s_per_byte,
        )
        if mlp.is_moe:
            expert = mlp.params_per_expert / layout.tp
            visited = distinct_experts(mlp.num_experts, mlp.num_active_experts, step_tokens)
            one += roofline_s(
                2.0 * num_tokens * mlp.num_active_experts * expert,
                rates.moe_gemm_s_per_flop,
                num_steps * visited * expert * rates.weight_bytes_per_param,
                rates.hbm_s_per_byte,
            )
        flop = attention_flop_per_token(layer.attention, prompt_tokens, prompt_tokens**2)
        one += num_tokens * (flop * attention_rate) / layout.tp
        one += elementwise_bytes(layer, model.hidden_size, layout, num_tokens) * rates.hbm_s_per_byte
        seconds += one * layer.num_layers
        launch += layer.num_layers * layer_launch_s(layer, node.gpu, precision, overheads)
        num_all_reduces += layer.num_layers * num_mixers(layer)
    up, out = collective_s(
        CollectiveOp.ALL_REDUCE, step_tokens * (ACTIVATION_BYTES * model.hidden_size), layout.tp_span, node
    )
    seconds += num_steps * (num_all_reduces * (up + out) + launch)
    fill: FloatArray = (num_steps + layout.pp - 1.0) / (num_steps * layout.pp)
    return seconds * fill
