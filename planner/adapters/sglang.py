"""SGLang's memory fraction from a plan: AReaL and slime start their engines with SGLang."""

from __future__ import annotations

import math

from planner.cost.generation import STATIC_TERMS
from planner.domain.framework_placed import placed_workers
from planner.domain.plan import Plan
from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import ExpertExchange, RolloutStrategy

ENGINE_TOKENS = 8192
"""Tokens of one prefill step, as the cost model takes them."""

_STEPS = 1_000_000
"""A share of GPU memory is written in millionths: finer than anything that the planner tells apart."""


def rollout_strategy(plan: Plan) -> RolloutStrategy:
    """The strategy of the rollout engines. Raises TypeError when the plan has none."""
    for worker in placed_workers(plan):
        if worker.name is WorkerName.ROLLOUT_ENGINE and isinstance(worker.strategy, RolloutStrategy):
            return worker.strategy
    raise TypeError("the plan has no rollout engine")


def max_running_requests(strategy: RolloutStrategy) -> int:
    """SGLang's limit is that of a whole engine, which its attention groups share equally."""
    return strategy.max_num_seqs * strategy.attention_dp


def exchange_tokens(strategy: RolloutStrategy) -> int:
    """Most tokens of a rank in one decode step, which size the buffers of an all-to-all; 0 without one. The ranks of a
    group divide its tokens before they are sent."""
    if strategy.exchange is ExpertExchange.GATHER:
        return 0
    return math.ceil(strategy.max_num_seqs / strategy.tp)


def static_memory_fraction(plan: Plan) -> float:
    """Value of `mem_fraction_static`: the share of GPU memory for weights and KV cache.

    The engine fraction of a plan also covers activations, CUDA graphs, communicators and the context, which SGLang
    takes beside its fraction (sglang/srt/server_args.py: "the fraction of the memory used for static allocation
    (model weights and KV cache memory pool)"). So the plan's own terms are summed; a plan without a KV term gives its
    engine fraction.
    """
    fraction = rollout_strategy(plan).engine_fraction
    placement = plan.placement(StageName.ROLLOUT)
    terms = {term.name: term.value for term in placement.gpu_memory.terms} if placement.gpu_memory is not None else {}
    if not all(name in terms for name in STATIC_TERMS):
        return fraction
    group = next(item for item in plan.device_groups if item.id == placement.device_group)
    total_bytes = plan.cluster.pool(group.pool).node.gpu.memory_bytes
    static = sum(terms[name] for name in STATIC_TERMS) / total_bytes
    return min(fraction, math.floor(_STEPS * static) / _STEPS)
