"""How many sequences run, and with how much context, while an engine works through its requests.

All requests of an iteration are there at the start. An engine decodes at most `B` of them at a time; a
finished sequence makes room for a waiting one. In units of B this *fluid recurrence* depends only on the
length law and on `load_ratio = requests / B`, so it is tabulated once per law and interpolated for every
candidate:

    while some wait:  admitted[t] = (1 - sum_j admitted[t - j] * S[j]) / S[0]     (B stay busy)
    afterwards:       running[t]  = sum_j admitted[t - j] * S[j]                  (drain)

with S the survival of the response length on a grid of cells, and j the age in cells. The integral over
time of any step time that is piecewise linear in the running fraction is then a short weighted sum: each
instant is shared between the two nearest of a few fractions (a partition of unity), which keeps the number
of generated tokens and of context tokens exact. Below a tenth of the busiest moment lies the tail, whose
length also depends on how many sequences the whole fleet runs: it lasts until the last of them ends.

Limits that the tests check: all requests at once reproduces the survival curve and the expected maximum;
many requests per slot reproduce the renewal steady state with context P + E[L^2] / (2 E[L]).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.domain.lengths import LengthLaw
from planner.domain.strategy import FloatArray, IntArray

TAIL_FRACTION = 0.1
"""Below this share of the busiest moment the engine is in its tail."""

NODE_FRACTIONS = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0)
_NUM_NODES = len(NODE_FRACTIONS)
_LOADS_PER_OCTAVE = 12
_NUM_OCTAVES = 3
_LOAD_RATIOS = 2.0 ** (np.arange(_LOADS_PER_OCTAVE * _NUM_OCTAVES + 1) / _LOADS_PER_OCTAVE)
"""Beyond the last one the engine is in its steady state, which is extended exactly."""
_FLEET_SLOTS = 2.0 ** np.arange(0.0, 24.0)
_CELLS_PER_MAXIMUM = 256
_CELLS_PER_MEAN = 32
_MAX_CELLS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Quadrature of one rollout for many candidates; arrays of shape (num_nodes, num_candidates).

    Node i stands for `num_steps[i]` decode steps in which the share `running_ratio[i]` of the busiest
    moment's sequences run, with `context_tokens[i]` tokens (prompt and what was generated) each. The last
    node is the tail.
    """

    num_steps: FloatArray
    running_ratio: FloatArray
    context_tokens: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryTable:
    """The tabulated recurrence of one length law and prompt mean; see `trajectory_table`."""

    mean_tokens: float
    steady_context_tokens: float
    columns: FloatArray
    """(num_loads, 3 * num_nodes): steps, running * steps, context * running * steps, per node."""
    tail: FloatArray
    """(num_loads, 2): running * steps and context * running * steps of the tail."""
    tail_steps: FloatArray
    """(num_loads, num_fleets): steps of the tail until the last of the fleet's sequences ends."""
    peak_context: FloatArray
    """(num_loads,): largest total context over time, per sequence of the busiest moment."""

    def peak_context_tokens(self, load_ratio: FloatArray) -> FloatArray:
        """Largest total context over time, per sequence of the busiest moment; shape of `load_ratio`."""
        return np.interp(load_ratio, _LOAD_RATIOS, self.peak_context)

    def slots_within(
        self,
        num_requests: FloatArray,
        max_bytes: FloatArray,
        bytes_per_context_token: float,
        bytes_per_sequence: float,
    ) -> FloatArray:
        """Most sequences at a time whose cache never exceeds `max_bytes`; at most `num_requests`, not an integer.

        N requests on B slots need B * (peak(N / B) * bytes_per_context_token + bytes_per_sequence) bytes at
        the worst moment, which grows with B, so the load ratio is found by inverse interpolation. Above the
        tabulated load ratios the need per slot is constant. All arrays of shape (num_candidates,).
        """
        per_slot = self.peak_context * bytes_per_context_token + bytes_per_sequence
        if per_slot[-1] <= 0:
            return num_requests * 1.0
        per_request = per_slot / _LOAD_RATIOS  # falls with the load ratio
        allowed = np.maximum(max_bytes, 0.0) / num_requests
        reciprocal = np.interp(allowed, per_request[::-1], 1.0 / _LOAD_RATIOS[::-1])
        result: FloatArray = np.where(
            allowed < per_request[-1], np.maximum(max_bytes, 0.0) / per_slot[-1], num_requests * reciprocal
        )
        return result

    def at(self, load_ratio: FloatArray, num_fleet_slots: FloatArray) -> Trajectory:
        """Trajectories of candidates.

        `load_ratio` = requests per slot of one engine, 1 when all start at once; `num_fleet_slots` = slots
        of all engines together. Both of shape (num_candidates,).
        """
        inside = np.minimum(load_ratio, _LOAD_RATIOS[-1])
        low = np.minimum((np.log2(inside) * _LOADS_PER_OCTAVE).astype(np.int64), len(_LOAD_RATIOS) - 2)
        share = (inside - _LOAD_RATIOS[low]) / (_LOAD_RATIOS[low + 1] - _LOAD_RATIOS[low])
        columns = _between(self.columns, low, share)
        tail = _between(self.tail, low, share)
        steps, running, context = columns[:_NUM_NODES], columns[_NUM_NODES : 2 * _NUM_NODES], columns[2 * _NUM_NODES :]

        extra_steps = (load_ratio - inside) * self.mean_tokens
        steps[-1] += extra_steps
        running[-1] += extra_steps
        context[-1] += extra_steps * self.steady_context_tokens

        tiny = 1e-9
        ratio = running / np.maximum(steps, tiny)
        # A slot of the fleet is busy with probability `ratio`; a step exists only while any slot is busy.
        steps[:-1] *= 1.0 - np.exp(num_fleet_slots * np.log1p(-np.minimum(ratio[:-1], 1.0 - tiny)))
        tail_steps = self._tail_steps(low, share, num_fleet_slots)
        return Trajectory(
            num_steps=np.vstack([steps, tail_steps]),
            running_ratio=np.vstack([ratio, tail[0] / np.maximum(tail_steps, tiny)]),
            context_tokens=np.vstack([context / np.maximum(running, tiny), tail[1] / np.maximum(tail[0], tiny)]),
        )

    def _tail_steps(self, low: IntArray, share: FloatArray, num_fleet_slots: FloatArray) -> FloatArray:
        """Bilinear in load ratio and log2(fleet slots)."""
        position = np.clip(np.log2(num_fleet_slots), 0.0, len(_FLEET_SLOTS) - 1.0)
        column = np.minimum(position.astype(np.int64), len(_FLEET_SLOTS) - 2)
        weight = position - column
        table = self.tail_steps
        left: FloatArray = table[low, column] * (1 - share) + table[low + 1, column] * share
        right: FloatArray = table[low, column + 1] * (1 - share) + table[low + 1, column + 1] * share
        result: FloatArray = left + weight * (right - left)
        return result


def _between(table: FloatArray, low: IntArray, share: FloatArray) -> FloatArray:
    """Rows of `table` interpolated between `low` and `low + 1`, transposed to (num_columns, num_candidates)."""
    lower, upper = table[low].T, table[low + 1].T
    result: FloatArray = lower + share * (upper - lower)
    return result


@dataclass(frozen=True, slots=True)
class _Cells:
    """Survival on equal cells of the response length; `survival.sum() * width` is the mean length."""

    width: float
    survival: FloatArray

    @property
    def age_tokens(self) -> FloatArray:
        return np.asarray((np.arange(len(self.survival)) + 0.5) * self.width, dtype=np.float64)


def _cells(law: LengthLaw) -> _Cells:
    if law.is_fixed:
        return _Cells(law.mean_tokens / _CELLS_PER_MAXIMUM, np.ones(_CELLS_PER_MAXIMUM, dtype=np.float64))
    width = min(law.max_tokens / _CELLS_PER_MAXIMUM, law.mean_tokens / _CELLS_PER_MEAN)
    num_cells = min(int(np.ceil(law.max_tokens / width)), _MAX_CELLS)
    width = law.max_tokens / num_cells
    # Four points per cell: the survival of a short-mean law bends within one cell.
    points: FloatArray = (np.arange(4 * num_cells, dtype=np.float64) + 0.5) * (width / 4)
    survival = law.survival(points).reshape(num_cells, 4).mean(axis=1)
    survival = np.minimum(survival * (law.mean_tokens / (survival.sum() * width)), 1.0)
    return _Cells(width, survival)


def _admissions(survival: FloatArray, most: float) -> FloatArray:
    """Admissions per cell that keep all slots busy, until their sum reaches `most`; in units of slots."""
    num_cells = len(survival)
    older_first = survival[:0:-1].copy()
    admitted = np.zeros(2 * num_cells + int(2 * most * survival.sum()) + 2)
    admitted[num_cells - 1] = total = 1.0 / survival[0]
    time = 0
    while total < most:
        time += 1
        busy = float(older_first @ admitted[time : time + num_cells - 1])
        admitted[num_cells - 1 + time] = step = max(1.0 - busy, 0.0) / survival[0]
        total += step
    return admitted[num_cells - 1 : num_cells + time]


def _hats(ratio: FloatArray) -> FloatArray:
    """Partition of unity over the node fractions and the tail (last); shape (num_nodes + 1, *ratio.shape)."""
    knots = np.array((TAIL_FRACTION / 2, *NODE_FRACTIONS))
    index = np.interp(ratio, knots, np.arange(len(knots)))
    memberships = np.maximum(1.0 - np.abs(index - np.arange(len(knots)).reshape(-1, *([1] * ratio.ndim))), 0.0)
    return np.roll(memberships, -1, axis=0)


@lru_cache(maxsize=64)
def trajectory_table(law: LengthLaw, prompt_mean_tokens: float) -> TrajectoryTable:
    """Tabulate the fluid recurrence of `law` with prompts of `prompt_mean_tokens`."""
    cells = _cells(law)
    survival, width, age = cells.survival, cells.width, cells.age_tokens
    num_cells = len(survival)
    admitted = _admissions(survival, float(_LOAD_RATIOS[-1]))
    cumulative = np.cumsum(admitted)
    last = np.searchsorted(cumulative, _LOAD_RATIOS - 1e-9)  # cell in which the last request is admitted

    # Admissions by age at that moment, the newest cut to what is left.
    padded = np.concatenate([np.zeros(num_cells - 1), admitted])
    history = np.stack([padded[t : t + num_cells][::-1] for t in last])
    history[:, 0] = _LOAD_RATIOS - (cumulative[last] - admitted[last])

    later = np.lib.stride_tricks.sliding_window_view(
        np.concatenate([np.stack([survival, survival * age]), np.zeros((2, num_cells - 1))], axis=1), num_cells, axis=1
    )
    running = history @ later[0]
    generated = history @ later[1]
    context = generated + prompt_mean_tokens * running

    busy_generated = np.convolve(admitted, survival * age)[: len(admitted)]
    busy_context = prompt_mean_tokens + busy_generated
    busy_steps = last * width
    busy_total = np.concatenate([[0.0], np.cumsum(busy_context)])[last] * width
    busy_peak = np.concatenate([[0.0], np.maximum.accumulate(busy_context)])[last]

    hats = _hats(running)
    steps = hats.sum(axis=2) * width
    running_steps = np.einsum("krt,rt->kr", hats, running) * width
    context_steps = np.einsum("krt,rt->kr", hats, context) * width
    steps[_NUM_NODES - 1] += busy_steps
    running_steps[_NUM_NODES - 1] += busy_steps
    context_steps[_NUM_NODES - 1] += busy_total

    columns = np.concatenate([steps[:-1], running_steps[:-1], context_steps[:-1]]).T.copy()
    mean_square = float(np.sum(2.0 * survival * age)) * width
    return TrajectoryTable(
        mean_tokens=law.mean_tokens,
        steady_context_tokens=prompt_mean_tokens + mean_square / (2.0 * law.mean_tokens),
        columns=columns,
        tail=np.stack([running_steps[-1], context_steps[-1]], axis=1),
        tail_steps=_fleet_tail_steps(running, hats[-1], width),
        peak_context=np.maximum.accumulate(np.maximum(busy_peak, context.max(axis=1))),
    )


def _fleet_tail_steps(running: FloatArray, is_tail: FloatArray, width: float) -> FloatArray:
    """Integral over the tail of 1 - (1 - running)**slots: steps while any slot of the fleet is busy."""
    result = np.empty((len(running), len(_FLEET_SLOTS)))
    for i in range(len(running)):
        cells = is_tail[i] > 0
        idle = np.log1p(-np.minimum(running[i, cells], 1.0 - 1e-12))
        result[i] = -np.expm1(np.outer(_FLEET_SLOTS, idle)) @ is_tail[i, cells] * width
    return result
