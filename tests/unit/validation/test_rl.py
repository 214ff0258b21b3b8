"""RL steps: rows become runs with their own configuration; each row is priced or says why not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import EngineIdle, Offload, Recompute, RolloutStrategy, Sharding, TrainerStrategy
from planner.files.catalog import load_overheads
from planner.validation.read import Row, RowError, parse_table, read_tables
from planner.validation.records import Table
from planner.validation.rl import load_conditions, mean_engine_s, price, price_run
from planner.validation.rl_runs import ExcludedError, Run, implied_lengths, read_run

ROWS = read_tables(None, (Table.RL,))[Table.RL].rows
IMPLIED = implied_lengths(ROWS)


def row(row_id: str, **cells: str) -> Row:
    """A shipped row, with other cells where given."""
    found = next(item for item in ROWS if item["id"] == row_id)
    values = ('"' + {**found, **cells}[key].replace('"', "'") + '"' for key in found)
    text = "\n".join((",".join(found), ",".join(values)))
    return parse_table(text, Table.RL, where="test").rows[0]


def run(row_id: str, **cells: str) -> Run:
    return read_run(row(row_id, **cells), IMPLIED)


def strategy(found: Run, worker: WorkerName) -> TrainerStrategy | RolloutStrategy:
    return next(item.strategy for item in found.placed if item.worker.name is worker)


def seconds(found: Run) -> float:
    return price_run(found, load_overheads(), load_conditions()).step_s


def test_every_row_is_priced_or_has_a_reason() -> None:
    steps, stages = price(ROWS)
    assert steps.num_rows == len(ROWS) == 158
    assert {item.row for item in steps.priced} | {item.row for item in steps.unpriced} == {r["id"] for r in ROWS}
    assert all(item.reason for item in (*steps.unpriced, *stages.unpriced))
    assert len({item.row for item in (*stages.priced, *stages.unpriced)}) == stages.num_rows > 250
    for item in (*steps.priced, *stages.priced):
        assert item.predicted > 0
        assert sum(term.value for term in item.terms) == pytest.approx(item.predicted)


def test_all_quality_a_rows_with_a_known_gpu_are_priced() -> None:
    steps, _ = price([item for item in ROWS if item["quality"] == "A"])
    assert {item.reason for item in steps.unpriced} == {"GPU type not published"}


def test_a_recipe_becomes_its_own_strategies() -> None:
    found = run("nemorl-v0.6-04")
    trainer, engine = strategy(found, WorkerName.ACTOR_TRAINER), strategy(found, WorkerName.ROLLOUT_ENGINE)
    assert isinstance(trainer, TrainerStrategy)
    assert isinstance(engine, RolloutStrategy)
    assert (trainer.tp, trainer.cp, trainer.pp, trainer.ep, trainer.dp) == (2, 2, 8, 16, 4)
    assert (trainer.micro_batch_tokens, trainer.recompute, trainer.sharding) == (8192, Recompute.FULL, Sharding.ZERO1)
    assert (engine.tp, engine.num_engines, engine.engine_fraction, engine.idle) == (16, 8, 0.6, EngineIdle.SLEEP)
    assert trainer.offload is Offload.STATE_SWAP
    assert (found.workload.num_prompts, found.workload.group_size, found.workload.num_optimizer_steps) == (16, 32, 1)
    assert found.workload.response.mean_tokens == 5698
    assert not found.is_asynchronous


def test_gpus_of_the_other_side_are_the_rest_or_not_known() -> None:
    whole, half = run("nemorl-v0.6-09"), run("nemorl-v0.6-09", n_gpus_train="")
    assert [item.group.ranks for item in half.placed] == [item.group.ranks for item in whole.placed]
    with pytest.raises(ExcludedError, match="split of GPUs"):
        run("nemorl-v0.6-09", n_gpus_train="", n_gpus_gen="")
    with pytest.raises(RowError, match="leave none"):
        run("nemorl-v0.6-09", n_gpus_train="", n_gpus_gen="192")


def test_a_stage_that_is_no_time_costs_that_stage_only() -> None:
    plain, damaged = row("nemorl-v0.6-04"), row("nemorl-v0.6-04", logprob_s="n/a")
    steps, stages = price([plain, damaged])
    assert steps.priced[0].predicted == steps.priced[1].predicted
    assert len(steps.priced) == 2
    assert [(item.row, item.reason) for item in stages.unpriced] == [
        ("nemorl-v0.6-04/logprob_s", "logprob_s = 'n/a' is no number")
    ]


def test_impossible_values_cost_their_own_row_and_leave_the_others_alone() -> None:
    # mean lengths come from all rows of a workload, so a bad row must not split the table
    expected, _ = price(ROWS)
    bad = [
        row("nemorl-v0.6-04", n_optim_steps="0"),
        row("nemorl-v0.6-04", step_time_s="-inf"),
        row("nemorl-v0.6-04", gens_per_prompt="1e308"),
    ]
    steps, _ = price([*ROWS[:80], *bad, *ROWS[80:]])
    assert steps.priced == expected.priced
    assert len(steps.unpriced) == len(expected.unpriced) + len(bad)


def test_disaggregated_runs_use_disjoint_gpus_and_keep_their_states() -> None:
    found = run("nemorl-v0.6-09")
    groups = {item.worker.name: item.group.ranks for item in found.placed}
    assert groups[WorkerName.ACTOR_TRAINER] == range(128)
    assert groups[WorkerName.ROLLOUT_ENGINE] == range(128, 192)
    trainer = strategy(found, WorkerName.ACTOR_TRAINER)
    assert isinstance(trainer, TrainerStrategy)
    assert trainer.offload is Offload.NONE
    assert (found.staleness, found.is_streaming) == (8.0, True)


def test_forced_on_policy_ratio_drops_old_log_probs() -> None:
    assert not run("nemorl-v0.7-04").workload.needs_old_logprob
    assert run("nemorl-v0.6-04").workload.needs_old_logprob


def test_generated_samples_beyond_the_trained_ones_are_oversampling() -> None:
    workload = run("nemorl-v0.5-05").workload
    assert workload.num_samples == 512
    assert workload.num_generated == 4096


def test_budgets_of_ulysses_ranks_add_up() -> None:
    trainer = strategy(run("verlmp-dapo7b-14"), WorkerName.ACTOR_TRAINER)
    assert isinstance(trainer, TrainerStrategy)
    assert (trainer.cp, trainer.sharding) == (4, Sharding.ZERO3)
    assert trainer.micro_batch_tokens == 4 * 20000


def test_lengths_follow_from_the_published_amount_of_work() -> None:
    # 0.44 MFU x 167 s x 8 x 989 TFLOP/s over 6 x 7.6e9 FLOP per token and 8,192 samples, less the prompt: 1,400
    length = run("verlmp-dapo7b-07").workload.response.mean_tokens
    assert 1200 < length < 1700
    assert {run(f"verlmp-dapo7b-{i:02d}").workload.response.mean_tokens for i in (5, 9, 14)} == {length}


def test_verl_runs_engines_without_graphs_unless_a_row_says_otherwise() -> None:
    assert run("verlmp-dapo7b-07").is_eager
    assert not run("verlmp-grpo_qwen2.5_7b-08").is_eager
    assert not run("nemorl-v0.6-04").is_eager
    eager = run("verlmp-dapo7b-07")
    assert seconds(eager) > seconds(replace(eager, is_eager=False))


def test_drafted_tokens_shorten_the_rollout() -> None:
    found = run("nemorl-v0.7-01")
    assert found.num_draft_tokens == 1
    assert seconds(found) < seconds(replace(found, num_draft_tokens=0))


def test_an_older_release_is_slower_by_the_trend() -> None:
    conditions = load_conditions()
    found = run("nemorl-v0.6-07")
    assert seconds(replace(found, release="0.4")) / seconds(found) == pytest.approx(
        conditions.release_ratio("NeMo-RL", "0.4") / conditions.release_ratio("NeMo-RL", "0.6")
    )
    assert conditions.release_ratio("NeMo-RL", "0.7") == 1.0
    assert conditions.release_ratio("verl", "0.1") == 1.0


def test_one_engine_is_faster_than_the_slowest_of_all() -> None:
    found = run("verlmp-dapo32b-02")
    whole = price_run(found, load_overheads(), load_conditions()).stage_s(StageName.ROLLOUT)
    assert 0 < mean_engine_s(found, load_overheads(), load_conditions()) < whole


def test_asynchronous_steps_hide_one_pool_behind_the_other() -> None:
    found = run("nemorl-v0.6-08")
    times = price_run(found, load_overheads(), load_conditions())
    rollout, sync = times.stage_s(StageName.ROLLOUT), times.stage_s(StageName.WEIGHT_SYNC)
    training = sum(times.stage_s(stage) for stage in times.stages) - rollout - sync
    assert times.step_s == pytest.approx(max(rollout, training) + sync)


@pytest.mark.parametrize(
    ("cells", "error", "reason"),
    [
        ({"avg_gen_len": "", "tokens_per_s_per_gpu": ""}, ExcludedError, "response length not published"),
        ({"avg_gen_len": "99999"}, ExcludedError, "above its limit"),
        ({"avg_gen_len": "long"}, RowError, "no number"),
        ({"gpu": "tpu-v99", "system": ""}, RowError, "not known"),
        ({"model": "no/such-model"}, RowError, "not known"),
        ({"algorithm": "alphazero"}, ExcludedError, "not modelled"),
        ({"gen_tp": "0"}, RowError, "gen_tp"),
        ({"gen_tp": "7"}, ExcludedError, "does not divide"),
        ({"train_pp": "9"}, ExcludedError, "do not divide"),
        ({"prompts_per_step": ""}, ExcludedError, "batch size not published"),
        ({"async_lag": ""}, ExcludedError, "asynchronous"),
        ({"n_gpus": ""}, ExcludedError, "number of GPUs"),
    ],
)
def test_what_is_missing_or_wrong_is_said(cells: dict[str, str], error: type[RowError], reason: str) -> None:
    with pytest.raises(error, match=reason):
        run("nemorl-v0.6-04", **cells)
    steps, _ = price([row("nemorl-v0.6-04", **cells)])
    assert len(steps.unpriced) == 1
    assert steps.unpriced[0].is_rule == (error is ExcludedError)


def test_more_gpus_for_the_rollout_never_slow_the_rollout_down() -> None:
    few, many = run("nemorl-v0.7-04"), run("nemorl-v0.7-05")
    assert len(next(iter(few.placed)).used) < len(next(iter(many.placed)).used)
    overheads, conditions = load_overheads(), load_conditions()
    assert price_run(many, overheads, conditions).stage_s(StageName.ROLLOUT) < price_run(
        few, overheads, conditions
    ).stage_s(StageName.ROLLOUT)
