"""The tabulated fluid recurrence against a step-accurate simulator and against its analytic limits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from planner.cost.trajectory import Trajectory, trajectory_table
from planner.domain.lengths import LengthLaw
from planner.domain.strategy import FloatArray

PROMPT_TOKENS = 300.0


@dataclass(frozen=True)
class StepTime:
    """Seconds of a decode step: fixed, per sequence, per context token."""

    fixed_s: float
    per_sequence_s: float
    per_context_token_s: float


LATENCY_BOUND = StepTime(1e-2, 0.0, 0.0)
MIXED = StepTime(1e-2, 2e-4, 1e-7)


def draw(law: LengthLaw, rng: np.random.Generator, count: int) -> FloatArray:
    """Integer lengths of at least one token by inverting the survival."""
    grid = np.linspace(0.0, law.max_tokens, 4001)
    cdf = 1.0 - law.survival(grid)
    cdf[-1] = 1.0
    return np.maximum(np.round(np.interp(rng.random(count), cdf, grid)), 1.0)


def simulate(lengths: FloatArray, slots: int, step: StepTime) -> float:
    """Seconds until the last of `lengths` is generated on `slots` slots, one token per step."""
    waiting = list(lengths)
    remaining = np.zeros(0)
    age = np.zeros(0)
    seconds = 0.0
    while waiting or len(remaining):
        room = slots - len(remaining)
        if room and waiting:
            new = np.array(waiting[:room])
            del waiting[:room]
            remaining = np.concatenate([remaining, new])
            age = np.concatenate([age, np.zeros(len(new))])
        # Until the next one finishes nothing changes but the context, which grows linearly.
        steps = float(remaining.min())
        count = len(remaining)
        context = count * PROMPT_TOKENS + float(age.sum()) + count * steps / 2
        seconds += steps * (step.fixed_s + step.per_sequence_s * count + step.per_context_token_s * context)
        remaining = remaining - steps
        age = age + steps
        alive = remaining > 0
        remaining, age = remaining[alive], age[alive]
    return seconds


def fluid_seconds(trajectory: Trajectory, slots: float, step: StepTime) -> FloatArray:
    running = np.maximum(slots * trajectory.running_ratio, 1.0)
    per_step = step.fixed_s + running * (step.per_sequence_s + step.per_context_token_s * trajectory.context_tokens)
    return np.asarray((trajectory.num_steps * per_step).sum(axis=0))


@pytest.mark.parametrize("step", [LATENCY_BOUND, MIXED])
@pytest.mark.parametrize("load_ratio", [0.25, 1.0, 1.5, 3.0, 8.0, 20.0])
@pytest.mark.parametrize("cv", [0.0, 0.3, 0.6, 1.0, 1.5])
def test_agrees_with_step_accurate_simulation(cv: float, load_ratio: float, step: StepTime) -> None:
    law = LengthLaw(mean_tokens=600.0, cv=cv, max_tokens=2400)
    slots = 32
    count = round(load_ratio * slots)
    rng = np.random.default_rng(7)
    simulated = float(np.mean([simulate(draw(law, rng, count), slots, step) for _ in range(40)]))
    busiest = min(count, slots)
    table = trajectory_table(law, PROMPT_TOKENS)
    fluid = fluid_seconds(table.at(np.array([count / busiest]), np.array([float(busiest)])), busiest, step)[0]
    # Equal lengths run in waves, so between two multiples of the slots interpolation smooths a jump.
    assert fluid == pytest.approx(simulated, rel=0.10)


@pytest.mark.parametrize("cv", [0.0, 0.4, 1.2])
def test_all_at_once_follows_the_survival_curve(cv: float) -> None:
    law = LengthLaw(mean_tokens=3000.0, cv=cv, max_tokens=16384)
    trajectory = trajectory_table(law, PROMPT_TOKENS).at(np.ones(3), np.array([64.0, 512.0, 4096.0]))
    steps = trajectory.num_steps.sum(axis=0)
    expected = [law.expected_maximum(n) for n in (64, 512, 4096)]
    assert steps == pytest.approx(expected, rel=0.02)
    tokens = (trajectory.num_steps * trajectory.running_ratio).sum(axis=0)
    assert tokens == pytest.approx(law.mean_tokens, rel=0.01)


def test_many_requests_reach_the_renewal_steady_state() -> None:
    law = LengthLaw(mean_tokens=1000.0, cv=0.8, max_tokens=4000)
    table = trajectory_table(law, PROMPT_TOKENS)
    trajectory = table.at(np.array([100.0, 200.0]), np.array([64.0, 64.0]))
    steps = trajectory.num_steps.sum(axis=0)
    assert steps[1] - steps[0] == pytest.approx(100 * law.mean_tokens)
    expected = PROMPT_TOKENS + law.mean_square_tokens / (2 * law.mean_tokens)
    full = trajectory.context_tokens[-2]
    assert full == pytest.approx(expected, rel=0.02)
    # The recurrence itself has converged where the extension begins.
    inside = table.at(np.array([6.0, 8.0]), np.full(2, 64.0))
    running = inside.num_steps[-2] * inside.running_ratio[-2]
    context = running * inside.context_tokens[-2]
    assert (context[1] - context[0]) / (running[1] - running[0]) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("cv", [0.0, 0.6, 1.5])
def test_tokens_and_context_are_conserved_between_grid_points(cv: float) -> None:
    law = LengthLaw(mean_tokens=2000.0, cv=cv, max_tokens=8192)
    loads = np.linspace(1.0, 30.0, 200)
    fleet = np.full(200, 2.0**20)
    trajectory = trajectory_table(law, PROMPT_TOKENS).at(loads, fleet)
    running_steps = trajectory.num_steps * trajectory.running_ratio
    assert running_steps.sum(axis=0) == pytest.approx(loads * law.mean_tokens, rel=0.01)
    context = (running_steps * trajectory.context_tokens).sum(axis=0)
    per_request = PROMPT_TOKENS * law.mean_tokens + law.mean_square_tokens / 2
    assert context == pytest.approx(loads * per_request, rel=0.02)


@pytest.mark.parametrize("cv", [0.0, 0.1, 0.6, 1.5])
def test_steps_grow_with_requests_and_fleet(cv: float) -> None:
    table = trajectory_table(LengthLaw(mean_tokens=2000.0, cv=cv, max_tokens=8192), PROMPT_TOKENS)
    by_load = table.at(np.geomspace(1.0, 40.0, 400), np.full(400, 256.0)).num_steps.sum(axis=0)
    assert np.all(np.diff(by_load) >= -1e-6 * by_load[:-1])
    by_fleet = table.at(np.full(100, 2.3), np.geomspace(1.0, 1e6, 100)).num_steps.sum(axis=0)
    assert np.all(np.diff(by_fleet) >= -1e-6 * by_fleet[:-1])


@pytest.mark.parametrize("cv", [0.0, 0.6, 1.5])
def test_slots_within_inverts_the_peak(cv: float) -> None:
    table = trajectory_table(LengthLaw(mean_tokens=2000.0, cv=cv, max_tokens=8192), PROMPT_TOKENS)
    requests = np.full(200, 512.0)
    budget = np.geomspace(2e4, 512 * 2e4, 200)
    slots = table.slots_within(requests, budget, 3.0, 5000.0)
    assert np.all(np.diff(slots) >= 0)
    assert slots[-1] == 512
    inner = slots < 512
    assert np.any(inner)
    need = slots * (3.0 * table.peak_context_tokens(requests / slots) + 5000.0)
    assert need[inner] == pytest.approx(budget[inner], rel=0.02)
    assert np.all(need[~inner] <= budget[~inner] * 1.001)


def test_long_tail_law_with_short_mean_keeps_its_mean() -> None:
    law = LengthLaw(mean_tokens=250.0, cv=2.0, max_tokens=65536)
    trajectory = trajectory_table(law, 0.0).at(np.array([1.0]), np.array([128.0]))
    assert (trajectory.num_steps * trajectory.running_ratio).sum() == pytest.approx(250.0, rel=0.02)
    assert trajectory.num_steps.sum() == pytest.approx(law.expected_maximum(128), rel=0.05)
