"""How much longer iterations take when response lengths vary from batch to batch.

Durations of stages are averages. A batch with long responses delays all that waits for it, and a synchronous plan, or
one with little staleness, cannot make up for that with the next batch: this is what more staleness than the averages
need is good for. Every batch draws its mean and its longest length from the length law; stages take time in
proportion to the tokens, and the tail of the rollout in proportion to the longest response.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.assembly import PlacedStrategy, assemble, occupied_groups, stage_seconds
from planner.cost.worker import Moment
from planner.domain.lengths import LengthLaw
from planner.domain.stages import ROLLOUTS, StageKind, StageName
from planner.domain.strategy import FloatArray
from planner.search.pricing import PricingInputs
from planner.search.schedule import mean_time_s
from planner.search.timing import Part, Timing

NUM_BATCHES = 240
WARM_UP = 40
_GRID = 4096


def varying_time_s(placed: Sequence[PlacedStrategy], inputs: PricingInputs, timing: Timing, *, seed: int) -> float:
    """Mean seconds per iteration of a placed configuration whose batches vary, from simulated batches."""
    assembled = assemble(placed, inputs, timing)
    seconds = stage_seconds(placed, inputs)
    tails_s = {
        item.stage: sum(term.value for term in item.time_terms if term.name == "tail")
        for item in assembled.placements
        if item.stage in ROLLOUTS
    }
    work, longest = _batches(inputs.workload.response, inputs.workload.num_generated, seed)
    host = {stage.name for stage in inputs.graph.stages if stage.kind is StageKind.HOST}
    varied = {
        part: _varied(part, value, tails_s.get(part[0], 0.0), work, longest, host) for part, value in seconds.items()
    }
    groups, overlapping = occupied_groups(placed, inputs)
    return mean_time_s(inputs.graph, inputs.execution, timing, varied, groups, overlapping, warm_up=WARM_UP)


def _varied(
    part: Part, value: float, tail_s: float, work: FloatArray, longest: FloatArray, host: set[StageName]
) -> FloatArray:
    """Seconds of a part of a stage in each batch."""
    stage, moment = part
    if stage is StageName.WEIGHT_SYNC or stage in host:
        return np.full_like(work, value)
    if stage not in ROLLOUTS:
        return value * work
    if moment is Moment.LONGEST_RESPONSE:
        return value * longest
    has_tail = moment in (None, Moment.GATHERED_END)
    own_tail_s = min(tail_s, value) if has_tail else 0.0
    return (value - own_tail_s) * work + own_tail_s * longest


def _batches(law: LengthLaw, num_responses: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """(total tokens, longest response) of each batch relative to their means."""
    generator = np.random.default_rng(seed)
    variance = max(law.mean_square_tokens - law.mean_tokens**2, 0.0)
    spread = np.sqrt(variance / num_responses) / law.mean_tokens
    work = np.maximum(generator.normal(1.0, spread, NUM_BATCHES), 0.1)
    if law.is_fixed:
        return work, np.ones(NUM_BATCHES)
    # The longest of n responses lies where the survival is 1 - u^(1/n).
    lengths: FloatArray = np.linspace(0.0, float(law.max_tokens), _GRID)
    survival = law.survival(lengths)
    wanted = -np.expm1(np.log(generator.uniform(size=NUM_BATCHES)) / num_responses)
    longest = np.interp(-wanted, -survival, lengths)
    return work, longest / longest.mean()
