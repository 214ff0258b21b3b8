"""Moments of a rollout, its gathered tail, and engines that never drain."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from planner.cost.decode import normal_maximum
from planner.cost.generation import price_engine
from planner.cost.rollout import _imbalance_s, _Marginal, _unfinished_s
from planner.cost.terms import total
from planner.cost.trajectory import NODE_FRACTIONS
from planner.cost.worker import ROLLOUT_MOMENTS, EngineJob, Moment
from planner.domain.lengths import LengthLaw
from planner.domain.strategy import FloatArray, RolloutTable
from tests.unit.cost.engines import DENSE, SPARSE, job, site, strategy

TABLE = RolloutTable.of(
    tuple(
        strategy(num_gpus=gpus, tp=tp, max_num_seqs=seqs)
        for gpus in (8, 16, 32)
        for tp in (1, 2, 4, 8)
        for seqs in (64, 512)
    )
)


def moments(engine: EngineJob, table: RolloutTable = TABLE) -> dict[Moment | None, FloatArray]:
    """Seconds of every moment that the job asks for, and of the whole rollout."""
    stage = price_engine(engine, table, site()).stages[0]
    whole = total(stage.time_terms)
    return {None: whole} | {moment: whole - rest for moment, rest in stage.remaining_s.items()}


@pytest.mark.parametrize("model", [DENSE, SPARSE])
def test_moments_follow_each_other(model: object) -> None:
    found = moments(replace(job(), model=model, moments=ROLLOUT_MOMENTS))
    order = (Moment.NINE_TENTHS_LEFT, Moment.HALF_LEFT, Moment.FIFTH_LEFT, None)
    for earlier, later in pairwise(order):
        assert (found[earlier] <= found[later] + 1e-9).all()
    assert (found[Moment.NINE_TENTHS_LEFT] > 0).all()
    assert (found[Moment.GATHERED] >= found[Moment.FIFTH_LEFT]).all()
    assert (found[Moment.GATHERED_END] >= found[Moment.GATHERED]).all()


def test_a_tail_is_gathered_only_where_a_quarter_of_the_engines_can_take_it() -> None:
    found = moments(replace(job(), moments=ROLLOUT_MOMENTS))
    cannot = (TABLE.num_engines < 4) | (TABLE.num_engines % 4 != 0)
    assert cannot.any() and not cannot.all()
    for moment in (Moment.GATHERED, Moment.GATHERED_END):
        assert found[moment][cannot] == pytest.approx(found[None][cannot])
    # Fewer engines with more responses each are never faster than all of them.
    assert (found[Moment.GATHERED_END][~cannot] >= found[None][~cannot]).all()


def test_a_row_does_not_depend_on_the_others_of_its_table() -> None:
    engine = replace(job(), moments=ROLLOUT_MOMENTS)
    together = moments(engine)
    for row in (0, 7, len(TABLE) - 1):
        alone = moments(engine, TABLE.take(np.array([row])))
        for moment, seconds in alone.items():
            assert seconds[0] == together[moment][row]


def test_responses_of_equal_length_have_no_tail() -> None:
    law = LengthLaw(mean_tokens=512.0, cv=0.0, max_tokens=512)
    engine = replace(job(), load=replace(job().load, response=law), moments=ROLLOUT_MOMENTS)
    found = moments(engine)
    assert np.isfinite(found[Moment.GATHERED_END]).all()


def test_streaming_engines_spend_no_longer_on_a_batch_than_draining_ones() -> None:
    """With one batch in flight the slots are the same, and a full engine wastes nothing on a tail; what the weight sync
    interrupts is prefilled again, which is not part of the comparison."""
    batch = price_engine(job(), TABLE, site()).stages[0].time_terms
    stream = price_engine(replace(job(), streamed_batches=1), TABLE, site()).stages[0].time_terms
    assert (total(stream) - stream["reprefill"] <= total(batch) * 1.02).all()
    assert not stream["tail"].any() and not stream["imbalance"].any()


def test_more_batches_in_flight_never_make_a_batch_slower_by_more_than_its_reprefill() -> None:
    times = []
    for batches in (1, 2, 4, 8):
        terms = price_engine(replace(job(), streamed_batches=batches), TABLE, site()).stages[0].time_terms
        times.append(total(terms) - terms["reprefill"])
    for fewer, more in pairwise(times):
        assert (more <= fewer * (1 + 1e-9)).all()


def test_the_longest_response_takes_at_least_as_long_as_a_batch_keeps_the_engines_busy() -> None:
    engine = replace(job(), streamed_batches=2, moments=frozenset({Moment.LONGEST_RESPONSE}))
    found = moments(engine)
    assert (found[Moment.LONGEST_RESPONSE] >= found[None] * (1 - 1e-12)).all()


def test_the_unlucky_engine_needs_cache_for_longer_responses() -> None:
    """The same engine among many decodes no more sequences at a time than alone with its share of the responses."""
    alone = strategy(num_gpus=8, tp=8, max_num_seqs=1024)
    many = strategy(num_gpus=64, tp=8, max_num_seqs=1024)
    law = LengthLaw(mean_tokens=4096.0, cv=0.8, max_tokens=16384)
    one = replace(job(), load=replace(job().load, response=law, num_sequences=512))
    eight = replace(one, load=replace(one.load, num_sequences=8 * 512))
    single = total(price_engine(one, RolloutTable.of((alone,)), site()).stages[0].time_terms)
    fleet = total(price_engine(eight, RolloutTable.of((many,)), site()).stages[0].time_terms)
    assert fleet[0] > single[0]


def test_expected_maxima_are_those_of_samples() -> None:
    random = np.random.default_rng(0)
    for number in (2, 8, 64, 1024):
        sampled = random.normal(size=(4000, number)).max(axis=1).mean()
        assert normal_maximum(np.array([float(number)]))[0] == pytest.approx(sampled, abs=0.03)


@pytest.mark.parametrize("num_groups", [1, 2])
def test_the_slowest_engine_is_that_of_sampled_batches(num_groups: int) -> None:
    """Engines with 768 responses each, all at once, of which each costs its steps and, step by step, its cache."""
    law = LengthLaw(mean_tokens=4000.0, cv=0.6, max_tokens=16384)
    engine = replace(job(), load=replace(job().load, response=law, num_sequences=768 * 16))
    step = _Marginal(full_s=np.array([0.02]), sequence_s=np.array([2e-5]), context_token_s=np.array([1e-8]))
    given = np.array([768.0])
    found = _imbalance_s(engine, np.array([16.0]), np.array([float(num_groups)]), given, given, step)[0]

    random = np.random.default_rng(1)
    mean, deviation = law.normal_parameters
    lengths = np.minimum(np.exp(random.normal(mean, deviation, size=(300, 16 * num_groups, 768 // num_groups))), 16384)
    prompt = engine.load.prompt_mean_tokens
    totals = num_groups * (2e-5 * lengths + 1e-8 * (prompt * lengths + lengths**2 / 2)).sum(axis=2)
    assert found == pytest.approx((totals.max(axis=1) - totals.mean(axis=1)).mean(), rel=0.1)


def test_a_streamed_batch_waits_for_its_tail_and_for_what_the_one_before_left() -> None:
    """Longer than a batch that drains its engines, unless all responses end together: then nothing is left over."""
    streams = replace(job(), streamed_batches=2, moments=frozenset({Moment.LONGEST_RESPONSE}))
    for cv, least, most in ((0.0, 0.99, 1.2), (0.8, 1.0, 2.0)):
        law = LengthLaw(mean_tokens=512.0, cv=cv, max_tokens=2048)
        load = replace(job().load, response=law)
        submitted = moments(replace(streams, load=load))[Moment.LONGEST_RESPONSE]
        again = price_engine(replace(streams, load=load), TABLE, site()).stages[0].time_terms["reprefill"]
        terms = price_engine(replace(job(), load=load), TABLE, site()).stages[0].time_terms
        ratio = (submitted - again) / (total(terms) - terms["imbalance"])
        few = TABLE.max_num_seqs * TABLE.num_engines < load.num_sequences
        assert (ratio[few] >= least).all() and (ratio[few] <= most).all()


def test_what_has_not_ended_waits_or_runs() -> None:
    """A second at each node, ten of waiting, and a tail of five; two responses per slot, or one."""
    seconds = np.array([[1.0] * (len(NODE_FRACTIONS) - 1) + [10.0, 5.0]]).T
    two, one = np.array([2.0]), np.array([1.0])
    drain_s = 5.0 + len(NODE_FRACTIONS) - 1
    assert _unfinished_s(seconds, 0.5, two)[0] == pytest.approx(drain_s), "half are left when the last one starts"
    assert _unfinished_s(seconds, 0.75, two)[0] == pytest.approx(drain_s + 5.0)
    assert _unfinished_s(seconds, 0.1, one)[0] == pytest.approx(5.0)
    assert _unfinished_s(seconds, 0.1, two)[0] == pytest.approx(6.0), "a tenth of all is a fifth of the slots"
    assert _unfinished_s(seconds, 0.15, one)[0] == pytest.approx(5.5)
