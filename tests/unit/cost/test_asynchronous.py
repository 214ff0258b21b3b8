"""The steady-state period against the recurrence of events that it summarises."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.asynchronous import AsynchronousTimes, exposed_generation_s, period_s

SECONDS = st.floats(min_value=0.5, max_value=100.0)


def times(generation: float, training: float, sync: float, busy: float | None = None) -> AsynchronousTimes:
    return AsynchronousTimes(
        generation_s=np.array([generation]),
        rollout_busy_s=np.array([generation if busy is None else busy]),
        training_s=np.array([training]),
        sync_s=np.array([sync]),
    )


def simulated_period_s(generation: float, training: float, sync: float, staleness: int, steps: int = 400) -> float:
    """Mean distance of the later weight versions when every event is replayed."""
    generated = [0.0] * (steps + staleness + 1)
    synced = [0.0] * steps
    done = 0

    def generate(batch: int) -> None:
        before = generated[batch - 1] if batch else 0.0
        weights = synced[batch - staleness - 1] if batch > staleness else 0.0
        generated[batch] = max(before, weights) + generation

    for step in range(steps):
        while done <= step + staleness:
            generate(done)
            done += 1
        trained = max(generated[step], synced[step - 1] if step else 0.0) + training
        synced[step] = max(trained, generated[step + staleness]) + sync
    half = steps // 2
    return (synced[-1] - synced[half - 1]) / (steps - half)


@given(SECONDS, SECONDS, SECONDS, st.integers(min_value=0, max_value=4))
def test_period_is_that_of_the_recurrence(generation: float, training: float, sync: float, staleness: int) -> None:
    found = float(period_s(times(generation, training, sync), np.array([float(staleness)]))[0])
    assert found == pytest.approx(simulated_period_s(generation, training, sync, staleness), rel=0.03)


def test_without_staleness_the_stages_add_up() -> None:
    assert period_s(times(60.0, 30.0, 5.0), np.array([0.0]))[0] == pytest.approx(95.0)


def test_sync_stops_both_pools() -> None:
    # 100 / 100 / 20 s: one step of lag hides one pool behind the other, never the sync
    assert period_s(times(100.0, 100.0, 20.0), np.array([1.0]))[0] == pytest.approx(120.0)


def test_streaming_removes_the_tail_from_the_pool_but_not_from_the_cycle() -> None:
    batch = times(100.0, 40.0, 0.0)
    streamed = times(100.0, 40.0, 0.0, busy=60.0)
    lag = np.array([1.0])
    assert period_s(batch, lag)[0] == pytest.approx(100.0)
    assert period_s(streamed, lag)[0] == pytest.approx(70.0)  # half of the cycle of 140 s
    assert period_s(streamed, np.array([8.0]))[0] == pytest.approx(60.0)


def test_exposed_generation_is_what_the_trainer_waits_for() -> None:
    assert exposed_generation_s(times(100.0, 40.0, 10.0), np.array([1.0]))[0] == pytest.approx(60.0)
    assert exposed_generation_s(times(30.0, 40.0, 10.0), np.array([1.0]))[0] == pytest.approx(0.0)


def test_more_staleness_never_slows_a_step_down() -> None:
    lags = np.linspace(0.0, 4.0, 17)
    spread = AsynchronousTimes(
        generation_s=np.full_like(lags, 80.0),
        rollout_busy_s=np.full_like(lags, 50.0),
        training_s=np.full_like(lags, 30.0),
        sync_s=np.full_like(lags, 4.0),
    )
    assert (np.diff(period_s(spread, lags)) <= 0).all()


def test_negative_staleness_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        period_s(times(1.0, 1.0, 1.0), np.array([-0.5]))
