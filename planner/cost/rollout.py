"""Time of the responses of one iteration, on arrays of candidates.

A batch is: prefill of each prompt once per group, then decode steps along the fluid trajectory
(`planner.cost.trajectory`) at the step times of `planner.cost.decode`, then waiting for the slowest engine. Streaming
engines stay full instead: the tail of one batch is decoded beside the beginning of the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.cost.decode import EngineLayout, decode_step_terms
from planner.cost.formats import uniform
from planner.cost.prefill import prefill_s
from planner.cost.trajectory import NODE_FRACTIONS, TrajectoryTable
from planner.cost.worker import EngineJob, Moment, Site
from planner.domain.execution import GATHER_SHARE, GATHERED_LEFT_RATIO
from planner.domain.hardware import Precision
from planner.domain.strategy import FloatArray

STEADY_BATCHES = 64.0
"""Batches that wait behind each other in the steady state; more change nothing."""
_LEFT = {Moment.HALF_LEFT: 0.5, Moment.FIFTH_LEFT: 0.2, Moment.TENTH_LEFT: 0.1}


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
    full_step: FloatArray = sum((seconds[-2] for seconds in step.values()), start=np.zeros_like(slots))
    tail_step: FloatArray = sum((seconds[-1] for seconds in step.values()), start=np.zeros_like(slots))
    terms["tail"] = weight[-1] * tail_step
    prompts = np.maximum(requests / load.num_shared, 1.0)
    terms["prefill"] = prefill_s(
        job.model, uniform(precision), site.node, site.overheads, layout, prompts, load.prompt_mean_tokens
    )
    # The slowest attention group holds up its engine as the slowest engine holds up the rollout.
    groups = layout.attention_dp
    terms["imbalance"] = _imbalance_s(
        job, num_engines * groups, requests / groups, slots / groups, full_step, tail_step
    )
    remaining: dict[Moment, FloatArray] = {}
    if job.moments:
        node_s = weight * sum(step.values(), start=np.zeros_like(weight))
        remaining = {moment: _after(node_s, share) for moment, share in _LEFT.items()}
        gather_s, gathered_tail_s = _gathered(
            job, precision, site, layout, slots, running, trajectory.context_tokens, weight
        )
        can_gather = (num_engines >= GATHER_SHARE) & (num_engines % GATHER_SHARE == 0)
        gathered = remaining[Moment.FIFTH_LEFT] - gather_s
        remaining[Moment.GATHERED] = np.where(can_gather, gathered, 0.0)
        remaining[Moment.GATHERED_END] = np.where(can_gather, gathered - gathered_tail_s, 0.0)
    return RolloutTime(terms=terms, remaining_s={moment: remaining[moment] for moment in job.moments})


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
    busy: FloatArray = sum(terms.values(), start=np.zeros_like(slots))
    step_s: FloatArray = sum((seconds[0] for seconds in step.values()), start=np.zeros_like(slots))
    longest = load.response.expected_maximum(load.num_sequences) * step_s + terms["reprefill"]
    # A batch is complete when its work and its longest response are.
    remaining = {Moment.LONGEST_RESPONSE: np.minimum(busy - longest, 0.0)}
    return RolloutTime(terms=terms, remaining_s={moment: remaining[moment] for moment in job.moments})


def _imbalance_s(
    job: EngineJob,
    num_engines: FloatArray,
    requests: FloatArray,
    slots: FloatArray,
    full_step_s: FloatArray,
    tail_step_s: FloatArray,
) -> FloatArray:
    """Extra seconds of the slowest engine when each gets an equal number of requests up front.

    Expected maximum of R nearly normal totals: sigma * sqrt(2 ln R), sigma = sqrt(N) * sd(length) tokens per
    engine. One more token costs step / slots seconds while requests wait, and only the slope of the step
    time over the running sequences when all started at once.
    """
    law = job.load.response
    deviation = np.sqrt(max(law.mean_square_tokens - law.mean_tokens**2, 0.0))
    waiting_ratio = 1.0 - slots / requests
    slope = np.maximum(full_step_s - tail_step_s, 0.0)
    per_token = (waiting_ratio * full_step_s + (1.0 - waiting_ratio) * slope) / slots
    engines = np.minimum(num_engines, job.load.num_sequences)
    result: FloatArray = np.sqrt(2.0 * np.log(engines) * requests) * deviation * per_token
    return result
