"""Continuous batching of one engine, against a simulation that takes every single step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.simulate.engine import Engine, Request
from planner.simulate.kernels import EngineKernels

STEP_S = 0.01
MAX_CONTEXT = 1000


def kernels(*, max_num_seqs: int = 8, cache_tokens: float = 1e6, per_context_s: float = 0.0) -> EngineKernels:
    """A step takes STEP_S plus `per_context_s` per context token and sequence; prompts are read for free."""
    step = [[STEP_S + n * per_context_s * c for c in (0.0, float(MAX_CONTEXT))] for n in range(1, max_num_seqs + 1)]
    return EngineKernels(
        step_s=step,
        context_step_tokens=float(MAX_CONTEXT),
        tokens_s=[0.0, 0.0],
        token_step=1.0,
        prompt_s=[0.0, 0.0],
        prompt_step_tokens=1.0,
        lone_step_s=0.0,
        prompt_step_s=0.0,
        num_stages=1,
        mixes_prompts=False,
        batched_tokens=8192,
        cache_tokens=cache_tokens,
        sequence_tokens=0.0,
        max_num_seqs=max_num_seqs,
    )


def requests(lengths: list[int], *, prompt: int = 10, group: int = 0) -> list[Request]:
    """One request per length; with `group` of them in a group, else each on its own."""
    return [
        Request(group=number // group if group else number, prompt_tokens=prompt, response_tokens=length)
        for number, length in enumerate(lengths)
    ]


def play(engine: Engine) -> tuple[float, list[Request]]:
    """(seconds, requests in the order of their ends) until the engine has nothing left."""
    time_s, ended = 0.0, []
    while (phase := engine.begin()) is not None:
        time_s += phase.time_s
        ended += engine.end(phase.num_steps)
        # What has just been admitted may have its first token beyond the cache until the next phase makes room.
        assert engine.used_tokens <= engine.kernels.cache_tokens + engine.num_running
        assert engine.num_running <= engine.kernels.max_num_seqs
    return time_s, ended


def step_by_step(lengths: list[int], slots: int) -> float:
    """The same without jumps: reading a prompt yields the first token, each step one more per sequence."""
    waiting, running, num_steps = list(lengths), [], 0
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(max(waiting.pop(0) - 1, 1))
        num_steps += 1
        running = [left - 1 for left in running if left > 1]
    return num_steps * STEP_S


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 8))
@settings(max_examples=100, deadline=None)
def test_jumps_take_as_long_as_single_steps(lengths: list[int], slots: int) -> None:
    engine = Engine(kernels(max_num_seqs=slots))
    engine.waiting.extend(requests(lengths))
    time_s, ended = play(engine)
    assert time_s == pytest.approx(step_by_step(lengths, slots))
    assert sorted(r.num_done for r in ended) == sorted(lengths)


def test_time_follows_the_growing_context() -> None:
    """Two sequences of 101 tokens: the first by reading, then 100 steps at contexts 11 to 110."""
    engine = Engine(kernels(per_context_s=1e-6))
    engine.waiting.extend(requests([101, 101]))
    expected = sum(STEP_S + 2 * 1e-6 * context for context in range(11, 111))
    assert play(engine)[0] == pytest.approx(expected)


@given(st.lists(st.integers(1, 80), min_size=2, max_size=30), st.integers(100, 300))
@settings(max_examples=60, deadline=None)
def test_a_small_cache_preempts_and_finishes_all(lengths: list[int], cache: int) -> None:
    """Everything ends with all its tokens, nothing stays in the cache, and no sequence is lost on the way."""
    engine = Engine(kernels(cache_tokens=float(cache)))
    engine.waiting.extend(requests(lengths))
    _, ended = play(engine)
    assert len(ended) == len(lengths) and sum(r.num_done for r in ended) == sum(lengths)
    assert engine.used_tokens == 0 and engine.num_running == 0


def test_preemption_takes_the_last_admitted_and_costs_time() -> None:
    lengths = [200] * 4
    roomy, tight = Engine(kernels()), Engine(kernels(cache_tokens=500.0))
    for engine in (roomy, tight):
        engine.waiting.extend(requests(lengths))
    (fast_s, _), (slow_s, ended) = play(roomy), play(tight)
    assert roomy.num_preempted == 0 and tight.num_preempted >= 2
    assert slow_s > 1.3 * fast_s
    assert [r.group for r in ended][:2] == [0, 1], "those admitted first stay"


def test_a_group_holds_its_prompt_once() -> None:
    alone, together = Engine(kernels()), Engine(kernels())
    alone.waiting.extend(requests([50] * 4, prompt=100))
    together.waiting.extend(requests([50] * 4, prompt=100, group=4))
    alone.begin()
    together.begin()
    assert alone.used_tokens == 400 and together.used_tokens == 100


def test_a_sequence_longer_than_the_cache_is_an_error() -> None:
    engine = Engine(kernels(cache_tokens=100.0))
    engine.waiting.extend(requests([200]))
    with pytest.raises(ValueError, match="smaller than one sequence"):
        play(engine)


def test_a_cut_phase_goes_on_where_it_stopped() -> None:
    whole, cut = Engine(kernels()), Engine(kernels())
    for engine in (whole, cut):
        engine.waiting.extend(requests([40, 90, 70]))
        phase = engine.begin()
        assert phase is not None and phase.is_reading
        engine.end(phase.num_steps)
    phase = cut.begin()
    assert phase is not None
    cut.end(phase.num_steps // 2)
    cut_s = phase.time_s * (phase.num_steps // 2) / phase.num_steps
    assert cut_s + play(cut)[0] == pytest.approx(play(whole)[0])


def test_withdrawn_requests_keep_their_tokens_and_end_elsewhere() -> None:
    first, second = Engine(kernels()), Engine(kernels())
    first.waiting.extend(requests([40, 90, 70]))
    for _ in range(2):
        phase = first.begin()
        assert phase is not None
        ended = first.end(phase.num_steps)
    assert [r.response_tokens for r in ended] == [40]
    for request in first.withdraw():
        assert request.num_done == 40
        second.add(request)
    assert first.num_unfinished == 0 and first.used_tokens == 0
    assert sorted(r.num_done for r in play(second)[1]) == [70, 90]


def test_prompts_cost_what_their_kernels_say() -> None:
    """A lone prompt of 20 tokens in two chunks: products, attention, and the fixed part twice."""
    priced = replace(
        kernels(), tokens_s=[0.0, 1.0], prompt_s=[0.0, 0.1], lone_step_s=3.0, prompt_step_s=5.0, batched_tokens=10
    )
    assert priced.prompts_s([20], 0) == (2, pytest.approx(20 * 1.0 + 20 * 0.1 + 2 * 8.0))
