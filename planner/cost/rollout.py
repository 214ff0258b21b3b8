"""Time of the responses of one iteration, on arrays of candidates.

A batch is: prefill of each prompt once per group, then decode steps along the fluid trajectory
(`planner.cost.trajectory`) at the step times of `planner.cost.decode`, then waiting for the slowest engine. Streaming
engines stay full instead: the tail of one batch is decoded beside the beginning of the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.decode import EngineLayout, decode_step_terms, normal_maximum
from planner.cost.formats import uniform
from planner.cost.prefill import prefill_s
from planner.cost.trajectory import NODE_FRACTIONS, TrajectoryTable
from planner.cost.worker import EngineJob, Moment, Site
from planner.domain.execution import GATHER_SHARE, GATHERED_LEFT_RATIO
from planner.domain.hardware import Precision
from planner.domain.strategy import FloatArray

STEADY_BATCHES = 64.0
"""Batches that wait behind each other in the steady state; more change nothing."""
_LEFT = {Moment.NINE_TENTHS_LEFT: 0.9, Moment.HALF_LEFT: 0.5, Moment.FIFTH_LEFT: 0.2}


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTime:
    """Exposed seconds by term, and the seconds after each moment that was asked for; arrays of shape
    (num_candidates,)."""

    terms: dict[str, FloatArray]
    remaining_s: Mapping[Moment, FloatArray]


def batch_rollout(
    job: EngineJob,
    precision: Precision,
    num_engines: FloatArray,
    site: Site,
    layout: EngineLayout,
    law: TrajectoryTable,
    requests: FloatArray,
    slots: FloatArray,
) -> RolloutTime:
    """From the first prompt to the last token of the slowest engine.

    `requests` per engine; `slots` of them at a time.
    """
    load = job.load
    trajectory = law.at(requests / slots, slots * np.minimum(num_engines, load.num_sequences))
    running = np.maximum(slots * trajectory.running_ratio, 1.0)
    step = decode_step_terms(
        job.model, uniform(precision), site.node, site.overheads, layout, running, trajectory.context_tokens
    )
    weight = trajectory.num_steps
    terms = {name: (weight[:-1] * seconds[:-1]).sum(axis=0) for name, seconds in step.items()}
    tail_step: FloatArray = sum((seconds[-1] for seconds in step.values()), start=np.zeros_like(slots))
    terms["tail"] = weight[-1] * tail_step
    prompts = np.maximum(requests / load.num_shared, 1.0)
    terms["prefill"] = prefill_s(
        job.model, uniform(precision), site.node, site.overheads, layout, prompts, load.prompt_mean_tokens
    )
    marginal = _marginal_work(step, weight, running, trajectory.context_tokens)
    # The slowest attention group holds up its engine as the slowest engine holds up the rollout.
    terms["imbalance"] = _imbalance_s(job, num_engines, layout.attention_dp, requests, slots, marginal)
    remaining: dict[Moment, FloatArray] = {}
    if job.moments:
        node_s = weight * sum(step.values(), start=np.zeros_like(weight))
        remaining = {moment: _unfinished_s(node_s, share, requests / slots) for moment, share in _LEFT.items()}
        gather_s, gathered_tail_s = _gathered(
            job, precision, site, layout, slots, running, trajectory.context_tokens, weight
        )
        can_gather = (num_engines >= GATHER_SHARE) & (num_engines % GATHER_SHARE == 0)
        gathered = _after(node_s, GATHERED_LEFT_RATIO) - gather_s
        remaining[Moment.GATHERED] = np.where(can_gather, gathered, 0.0)
        remaining[Moment.GATHERED_END] = np.where(can_gather, gathered - gathered_tail_s, 0.0)
    return RolloutTime(terms=terms, remaining_s={moment: remaining[moment] for moment in job.moments})


def _unfinished_s(node_s: FloatArray, left: float, load_ratio: FloatArray) -> FloatArray:
    """Seconds after the moment when at most the share `left` of all responses has not ended.

    While some wait, responses end at an even rate, and all slots run; afterwards what has not ended runs. Between two
    nodes time is divided evenly, all of a node's own above it, so that the moment is never too early.
    """
    fraction = left * load_ratio
    result: FloatArray = node_s[-1].copy()
    for seconds, low, high in zip(node_s[:-2], NODE_FRACTIONS, NODE_FRACTIONS[1:], strict=False):
        result += seconds * np.clip((fraction - low) / (high - low), 0.0, 1.0)
    waiting = np.clip((fraction - 1.0) / np.maximum(load_ratio - 1.0, 1e-9), 0.0, 1.0)
    result += node_s[-2] * waiting
    return result


def _after(node_s: FloatArray, left: float) -> FloatArray:
    """Seconds spent at running fractions below `left`. The node at `left` itself counts as before it, so that the
    moment is never too early."""
    below = np.array([*(fraction < left - 1e-9 for fraction in NODE_FRACTIONS), True])
    result: FloatArray = node_s[below].sum(axis=0)
    return result


def _gathered(
    job: EngineJob,
    precision: Precision,
    site: Site,
    layout: EngineLayout,
    slots: FloatArray,
    running: FloatArray,
    context_tokens: FloatArray,
    num_steps: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Seconds to move the last fifth of the responses to a quarter of the engines, which prefill what they did not
    hold, and seconds to finish them there."""
    node, overheads, formats = site.node, site.overheads, uniform(precision)
    place = NODE_FRACTIONS.index(GATHERED_LEFT_RATIO)
    below = np.array([*(fraction < GATHERED_LEFT_RATIO - 1e-9 for fraction in NODE_FRACTIONS), True])
    moved = slots * GATHERED_LEFT_RATIO * (GATHER_SHARE - 1.0)
    # A rollout without tail never stays at this fraction.
    context = np.maximum(context_tokens[place], 1.0)
    gather = prefill_s(job.model, formats, node, overheads, layout, moved, context)
    step = decode_step_terms(
        job.model, formats, node, overheads, layout, running[below] * GATHER_SHARE, context_tokens[below]
    )
    tail: FloatArray = (num_steps[below] * sum(step.values(), start=np.zeros_like(running[below]))).sum(axis=0)
    return gather, tail


def streaming_rollout(
    job: EngineJob,
    precision: Precision,
    num_engines: FloatArray,
    site: Site,
    layout: EngineLayout,
    law: TrajectoryTable,
    requests: FloatArray,
    slots: FloatArray,
) -> RolloutTime:
    """How long engines are busy per batch when every finished response makes room for one of a later batch.

    All `slots` decode at the mean context of the steady state, so a batch takes requests x mean length / slots
    steps. After each weight sync the unfinished responses are prefilled again with the new weights.
    """
    load, formats = job.load, uniform(precision)
    node, overheads = site.node, site.overheads
    num_steps = requests * load.response.mean_tokens / slots
    context = np.full_like(slots, law.steady_context_tokens)
    step = decode_step_terms(job.model, formats, node, overheads, layout, slots[None], context[None])
    terms = {name: num_steps * seconds[0] for name, seconds in step.items()}
    prompts = np.maximum(requests / load.num_shared, 1.0)
    prefill = prefill_s(job.model, formats, node, overheads, layout, prompts, load.prompt_mean_tokens)
    terms["prefill"] = prefill
    terms["reprefill"] = prefill_s(job.model, formats, node, overheads, layout, slots, law.steady_context_tokens)
    terms["tail"] = np.zeros_like(slots)
    terms["imbalance"] = np.zeros_like(slots)
    if not job.moments:
        return RolloutTime(terms=terms, remaining_s={})
    busy: FloatArray = sum(terms.values(), start=np.zeros_like(slots))
    submitted = _submitted_s(job, precision, num_engines, site, layout, law, requests, slots) + terms["reprefill"]
    remaining = {Moment.LONGEST_RESPONSE: np.minimum(busy - submitted, 0.0)}
    return RolloutTime(terms=terms, remaining_s={moment: remaining[moment] for moment in job.moments})


def _submitted_s(
    job: EngineJob,
    precision: Precision,
    num_engines: FloatArray,
    site: Site,
    layout: EngineLayout,
    law: TrajectoryTable,
    requests: FloatArray,
    slots: FloatArray,
) -> FloatArray:
    """From the submission of a batch to streaming engines until it is complete.

    A permission to start responses covers whole batches, which are submitted when a weight sync ends. For engines to
    stay full, that must happen when those of the batch before start to drain: what these still have to generate comes
    first, and nothing of later batches fills the slots that the tail leaves free, as the staleness only just suffices.
    """
    at_once = np.minimum(slots, requests)
    draining = law.at(requests / at_once, at_once * np.minimum(num_engines, job.load.num_sequences))
    is_draining = np.array([*(fraction < 1.0 for fraction in NODE_FRACTIONS), True])
    left_tokens = (draining.num_steps * draining.running_ratio)[is_draining].sum(axis=0) * at_once
    work = requests + left_tokens / job.load.response.mean_tokens
    alone = replace(job, moments=frozenset(), streamed_batches=None)
    batch = batch_rollout(alone, precision, num_engines, site, layout, law, work, np.minimum(slots, work))
    # Engines take groups as they have room, so that none gets the longest responses up front.
    return sum((seconds for name, seconds in batch.terms.items() if name != "imbalance"), start=np.zeros_like(requests))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marginal:
    """What a decode step is made of, in seconds; arrays of shape (num_candidates,)."""

    full_s: FloatArray
    """A step of all slots without its reading of the cache."""
    sequence_s: FloatArray
    """One more running sequence, without its cache."""
    context_token_s: FloatArray
    """One more cached token of any sequence."""


def _marginal_work(
    step: Mapping[str, FloatArray], num_steps: FloatArray, running: FloatArray, context_tokens: FloatArray
) -> _Marginal:
    cached = (num_steps * running * context_tokens).sum(axis=0)
    read_s = (num_steps * step["kv_read"]).sum(axis=0)
    rest: FloatArray = sum((s for name, s in step.items() if name != "kv_read"), start=np.zeros_like(running))
    full, tail = rest[-2], rest[-1]
    return _Marginal(
        full_s=full,
        sequence_s=np.maximum(full - tail, 0.0) / np.maximum(running[-2] - running[-1], 1.0),
        context_token_s=read_s / np.maximum(cached, 1.0),
    )


def _imbalance_s(
    job: EngineJob,
    num_engines: FloatArray,
    num_groups: FloatArray,
    requests: FloatArray,
    slots: FloatArray,
    marginal: _Marginal,
) -> FloatArray:
    """Extra seconds of the slowest engine when each gets an equal number of requests up front.

    A response of L tokens is in L steps, and its prompt P and what it has grown to are read in each: it adds
    `sequence_s` L + `context_token_s` (P L + L**2 / 2) to the time of its engine. While requests wait, an engine is
    always full, and a token adds its share of a whole step instead. Totals of B independent responses are nearly normal
    with deviation sqrt(B) that of one, and R engines end with the expected maximum of R such totals. `num_groups`
    attention groups of an engine divide its requests and wait for each other too. Totals of few
    responses are skewed, and their maximum is larger: with 96 of them by a seventh.
    """
    law, prompt = job.load.response, job.load.prompt_mean_tokens
    mean, square, cube, fourth = law.mean_tokens, law.mean_square_tokens, law.moment(3), law.moment(4)
    waiting_ratio = 1.0 - slots / requests
    token_s = waiting_ratio * marginal.full_s / slots + (1.0 - waiting_ratio) * marginal.sequence_s
    linear = (token_s + marginal.context_token_s * prompt) * num_groups
    quadratic = 0.5 * marginal.context_token_s * num_groups
    variance = (
        linear**2 * max(square - mean**2, 0.0)
        + 2.0 * linear * quadratic * max(cube - mean * square, 0.0)
        + quadratic**2 * max(fourth - square**2, 0.0)
    )
    engines = np.minimum(num_engines * num_groups, job.load.num_sequences)
    result: FloatArray = normal_maximum(engines) * np.sqrt(requests / num_groups * variance)
    return result
