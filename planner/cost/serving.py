"""Time per output token and throughput of an engine under a given load, on arrays of deployments.

A *closed loop* keeps `concurrency` requests in flight: as one ends the next one comes. During the `O` steps of one
request each of the others needs one prompt read, so decode steps share the engine with prompt chunks:

    time per token = decode step + (steps with prompt tokens per output token) * (their additional time)

Engines either let chunks ride on decode steps (weights are read once for both) or stop decoding meanwhile.
A *maximum load* has all requests there at the start; it follows the fluid trajectory of a rollout.
Arrays have shape (num_deployments,), one engine each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from planner.cost.decode import EngineLayout, decode_step_terms, linear_s
from planner.cost.formats import WeightFormats
from planner.cost.generation import cache_bytes_per_gpu, engine_weight_bytes
from planner.cost.prefill import attention_s, step_communication_s, step_launch_s
from planner.domain.hardware import NodeType
from planner.domain.model import Model
from planner.domain.overheads import Overheads
from planner.domain.strategy import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """Load of one engine; columns of shape (num_deployments,).

    `concurrency` requests in flight of `prompt_tokens` and `output_tokens` each; a step carries at most
    `batched_tokens` prompt tokens.
    """

    concurrency: FloatArray
    prompt_tokens: FloatArray
    output_tokens: FloatArray
    batched_tokens: FloatArray


def closed_loop_terms(
    model: Model,
    formats: WeightFormats,
    node: NodeType,
    overheads: Overheads,
    layout: EngineLayout,
    load: ClosedLoop,
) -> dict[str, FloatArray]:
    """Seconds per output token by term: those of a decode step, and `prefill` for interleaved prompts.

    Requests whose prompt is being read do not decode: with time to first token F and token time t the running
    share is O t / (F + O t), taken from the step at full concurrency.
    """
    overheads = replace(overheads, engine_step_per_sequence_s=overheads.engine_stream_per_sequence_s)
    context = load.prompt_tokens + 0.5 * load.output_tokens
    full = _sum(decode_step_terms(model, formats, node, overheads, layout, load.concurrency, context))
    extra = prompt_step_extra_s(model, formats, node, overheads, layout, load, load.concurrency)
    chunks = np.ceil(load.prompt_tokens / load.batched_tokens)
    token = full + extra.num_steps_per_token * extra.seconds
    first = chunks * (full + extra.seconds)
    running = load.concurrency * (load.output_tokens * token / (first + load.output_tokens * token))
    running = np.maximum(running, 1.0)
    terms = decode_step_terms(model, formats, node, overheads, layout, running, context)
    terms["prefill"] = extra.num_steps_per_token * extra.seconds
    return terms


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSteps:
    """Steps with prompt tokens per output token, and what one of them takes beyond a decode step."""

    num_steps_per_token: FloatArray
    seconds: FloatArray


def prompt_step_extra_s(
    model: Model,
    formats: WeightFormats,
    node: NodeType,
    overheads: Overheads,
    layout: EngineLayout,
    load: ClosedLoop,
    running: FloatArray,
) -> PromptSteps:
    """Prompt chunks between decode steps. While one request decodes, all others bring one prompt each.

    Chunks that ride on decode steps add the rise of the rooflines only; chunks alone cost a whole step.
    Prompts are read one after another in chunks of `batched_tokens`, several in one step when more arrive than there
    are steps.
    """
    arrivals = np.maximum(load.concurrency - 1.0, 0.0) / load.output_tokens
    chunks = arrivals * np.ceil(load.prompt_tokens / load.batched_tokens)
    steps = np.minimum(chunks, 1.0)
    tokens = np.where(steps > 0, arrivals * load.prompt_tokens / np.maximum(steps, 1e-12), load.prompt_tokens)
    attention = attention_s(model, formats, node, layout, tokens, load.prompt_tokens)
    communication = step_communication_s(model, layout, tokens, node)
    if overheads.engine_mixes_prefill:
        linear = linear_s(model, formats, node, overheads, layout, running + tokens) - linear_s(
            model, formats, node, overheads, layout, running
        )
        latency = step_communication_s(model, layout, np.zeros_like(tokens), node)
        seconds = linear + attention + communication - latency
    else:
        linear = linear_s(model, formats, node, overheads, layout, tokens)
        seconds = linear + attention + communication + step_launch_s(model, formats, node, overheads)
        seconds = seconds + overheads.engine_step_s
    return PromptSteps(num_steps_per_token=steps, seconds=seconds + overheads.engine_prefill_step_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaximumLoad:
    """All `requests` of one engine queued at once, at most `slots` running; columns of shape (num_deployments,)."""

    requests: FloatArray
    slots: FloatArray
    prompt_tokens: FloatArray
    output_tokens: FloatArray
    batched_tokens: FloatArray


def maximum_load_terms(
    model: Model,
    formats: WeightFormats,
    node: NodeType,
    overheads: Overheads,
    layout: EngineLayout,
    load: MaximumLoad,
) -> dict[str, FloatArray]:
    """Seconds by term until all requests have their `output_tokens`, all of equal length.

    Equal lengths that start together end together: floor(requests / slots) waves with all slots and one with the rest,
    each of `output_tokens` steps at the mean context. Prompts ride on or interrupt the steps as in a closed loop.
    """
    context = load.prompt_tokens + 0.5 * load.output_tokens
    num_waves = np.floor(load.requests / load.slots)
    rest = load.requests - num_waves * load.slots
    step = decode_step_terms(model, formats, node, overheads, layout, load.slots, context)
    last = decode_step_terms(model, formats, node, overheads, layout, np.maximum(rest, 1.0), context)
    num_steps = load.requests / load.slots * load.output_tokens
    loop = ClosedLoop(
        concurrency=load.slots + 1.0,
        prompt_tokens=load.prompt_tokens,
        output_tokens=load.output_tokens,
        batched_tokens=load.batched_tokens,
    )
    extra = prompt_step_extra_s(model, formats, node, overheads, layout, loop, load.slots)
    terms = {
        name: load.output_tokens * (seconds * num_waves + last[name] * (rest > 0)) for name, seconds in step.items()
    }
    terms["prefill"] = num_steps * extra.num_steps_per_token * extra.seconds
    return terms


class CacheRule(StrEnum):
    """What an engine's memory fraction is a share of."""

    TOTAL = "total"
    """GPU memory, all that the engine uses included (vLLM)."""
    STATIC = "static"
    """GPU memory, weights and cache only (SGLang)."""
    FREE = "free"
    """What weights and activations leave (TensorRT-LLM)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBudget:
    """How much memory an engine gives to its KV cache."""

    memory_fraction: float
    rule: CacheRule


def cache_slots(
    model: Model,
    formats: WeightFormats,
    node: NodeType,
    overheads: Overheads,
    layout: EngineLayout,
    budget: CacheBudget,
    mean_context_tokens: FloatArray,
) -> FloatArray:
    """Sequences of `mean_context_tokens` that the KV cache of one engine holds; below 1 when weights do not fit."""
    weights = engine_weight_bytes(model, formats, layout.tp, layout.pp, layout.attention_dp)
    activations = overheads.engine_activation_factor * overheads.engine_batched_tokens * model.hidden_size * 2.0
    fixed = activations + overheads.engine_graph_bytes + overheads.context_bytes + overheads.first_communicator_bytes
    memory = node.gpu.memory_bytes
    if budget.rule is CacheRule.TOTAL:
        left = budget.memory_fraction * memory - weights - fixed
    elif budget.rule is CacheRule.STATIC:
        left = budget.memory_fraction * memory - weights
    else:
        left = budget.memory_fraction * (memory - weights - fixed)
    per_sequence = np.empty_like(weights)
    for index, (tp, context) in enumerate(zip(layout.tp, mean_context_tokens, strict=True)):
        token_bytes, state_bytes = cache_bytes_per_gpu(model, float(tp), float(context))
        per_sequence[index] = (token_bytes * context + state_bytes) * (formats.cache_bytes / 2.0)
    result: FloatArray = np.maximum(left * layout.pp / per_sequence * layout.attention_dp, 0.0)
    return result


def _sum(terms: dict[str, FloatArray]) -> FloatArray:
    return sum(terms.values(), start=np.zeros(1))
