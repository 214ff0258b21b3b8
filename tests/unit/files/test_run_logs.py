"""Logs as frameworks write them, and what is not one."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from planner.errors import InvalidInputError
from planner.files.run_logs import LogKind, RunLog, Timer, read_run_log

LOGS = Path(__file__).parents[3] / "examples" / "logs"


def read(path: Path, text: str | bytes, name: str = "run.log") -> RunLog:
    file = path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    log = read_run_log(file)
    assert log is not None
    return log


def test_verl_on_a_console_of_ray() -> None:
    log = read_run_log(LOGS / "verl-qwen3-8b.log")
    assert log is not None and log.kind is LogKind.VERL
    assert [record.iteration for record in log.records] == list(range(1, 9))
    first = log.records[0]
    assert set(first.seconds) >= {Timer.ROLLOUT, Timer.ACTOR_UPDATE, Timer.ITERATION, Timer.WEIGHT_SYNC}
    assert first.prompt_tokens == 412.0 and first.response_tokens is not None
    assert Timer.BESIDE in log.records[4].seconds
    (bad,) = log.bad
    assert bad.line == 10 and "breaks off" in bad.reason and bad.text.startswith("(TaskRunner pid=41213) step:6")


def test_numbers_as_numpy_prints_them_and_similar_names(tmp_path: Path) -> None:
    text = (
        "step:7 - training/global_step:7 - timing_s/gen:np.float64(12.5) - timing_s/gen/slowest:99 "
        "- timing_s/agent_loop/generate_sequences/mean:11 - timing_per_token_ms/gen:0.3 - timing_s/step:2.5e1\n"
    )
    (record,) = read(tmp_path, text).records
    assert record.seconds == {Timer.ROLLOUT: 12.5, Timer.ITERATION: 25.0}
    assert record.iteration == 7


@pytest.mark.parametrize(
    ("value", "is_bad"), [("nan", True), ("inf", True), ("-1", True), ("1e99", True), ("abc", True), ("0", False)]
)
def test_times_that_cannot_be_spoil_their_line(tmp_path: Path, value: str, is_bad: bool) -> None:
    good = "step:1 - timing_s/gen:1.0 - timing_s/step:2.0\n"
    log = read(tmp_path, good + f"step:2 - timing_s/gen:{value} - timing_s/step:2.0\n")
    assert len(log.records) == (1 if is_bad else 2)
    assert [bad.line for bad in log.bad] == ([2] if is_bad else [])


def test_nemo_rl_on_a_console() -> None:
    log = read_run_log(LOGS / "nemo-rl-qwen3-8b.log")
    assert log is not None and log.kind is LogKind.NEMO_RL and not log.num_bad
    assert [record.iteration for record in log.records] == [1, 2, 3, 4, 5, 6]
    first = log.records[0].seconds
    assert set(first) == {
        Timer.ROLLOUT, Timer.ACTOR_UPDATE, Timer.LOGPROBS, Timer.REFIT, Timer.REWARD, Timer.ITERATION
    }  # fmt: skip
    assert log.records[0].response_tokens is not None


def test_json_lines_flat_and_nested(tmp_path: Path) -> None:
    rows = [
        {"step": 1, "data": {"timing_s/gen": 3.0, "timing_s/step": 9.0, "response_length/mean": 800}},
        {"_step": 2, "timing_s/gen": 4.0, "timing_s/step": 10.0},
    ]
    text = "\n".join(json.dumps(row) for row in rows) + '\n{"step": 3, "timing_s/gen": 4.'
    log = read(tmp_path, text, "metrics.jsonl")
    assert [(r.iteration, r.seconds[Timer.ROLLOUT]) for r in log.records] == [(1, 3.0), (2, 4.0)]
    assert log.records[0].response_tokens == 800
    assert [(bad.line, bad.reason) for bad in log.bad] == [(3, "is not JSON")]


def test_a_column_per_metric(tmp_path: Path) -> None:
    text = "step,timing_s/gen,timing_s/step,actor/loss\n1,3.5,9,0.1\n2,oops,9,0.1\n3,4\n4,,8,\n"
    log = read(tmp_path, text, "wandb.csv")
    assert [(r.iteration, r.seconds) for r in log.records] == [
        (1, {Timer.ROLLOUT: 3.5, Timer.ITERATION: 9.0}),
        (4, {Timer.ITERATION: 8.0}),
    ]
    assert [bad.line for bad in log.bad] == [3, 4]


def test_the_documented_table(tmp_path: Path) -> None:
    text = (
        "stage,seconds,iteration,response_mean\nrollout,10,1,500\nactor_update,5,1,500\niteration,20,1,500\n"
        "rollout,11,2,510\nsleep,3,2,510\nold log-prob,fast,2,510\n\nupdate_actor,6,2,510\n"
    )
    log = read(tmp_path, text, "stages.csv")
    assert [r.seconds for r in log.records] == [
        {Timer.ROLLOUT: 10.0, Timer.ACTOR_UPDATE: 5.0, Timer.ITERATION: 20.0},
        {Timer.ROLLOUT: 11.0, Timer.ACTOR_UPDATE: 6.0},
    ]
    assert [(bad.line, bad.reason) for bad in log.bad] == [
        (6, "'sleep' is no stage"), (7, "'fast' is no time in seconds")
    ]  # fmt: skip


def test_a_table_without_iterations_begins_anew_where_a_stage_repeats(tmp_path: Path) -> None:
    log = read(tmp_path, "\ufeffstage,seconds\nrollout,10\nactor update,5\nrollout,12\nactor update,6\n", "t.csv")
    assert [r.seconds[Timer.ROLLOUT] for r in log.records] == [10.0, 12.0]


def test_binary_junk_and_other_text_are_no_logs(tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_bytes(random.Random(0).randbytes(300_000))
    assert read_run_log(junk) is None
    (tmp_path / "prose").write_text("step: by step, timing is everything\n{}\n[]\n")
    assert read_run_log(tmp_path / "prose") is None
    (tmp_path / "empty").write_text("")
    assert read_run_log(tmp_path / "empty") is None


def test_junk_between_good_lines_is_passed_over(tmp_path: Path) -> None:
    good = b"step:%d - timing_s/gen:1.0 - timing_s/step:2.0\n"
    junk = random.Random(1).randbytes(100_000)
    log = read(tmp_path, good % 1 + junk + b"\n" + b"x" * 3_000_000 + b"\n" + good % 2)
    assert [record.iteration for record in log.records] == [1, 2]


@pytest.mark.parametrize("odd", [b"Progress: 3%\rProgress: 4%, stage\n", b'"' + b"x" * 200_000 + b",stage\n"])
def test_lines_that_are_no_csv_are_passed_over(tmp_path: Path, odd: bytes) -> None:
    good = (LOGS / "verl-qwen3-8b.log").read_bytes()
    log = read(tmp_path, odd + good)
    assert len(log.records) == 8


def test_many_bad_lines_are_counted_and_the_first_are_shown(tmp_path: Path) -> None:
    text = "step:1 - timing_s/gen:1.0\n" + "step:2 - timing_s/gen:\x1b[31mred\n" * 500
    log = read(tmp_path, text)
    assert log.num_bad == 500 and len(log.bad) == 20
    assert all(bad.text.isprintable() and len(bad.text) <= 80 for bad in log.bad)


def test_long_logs_are_read_as_a_stream(tmp_path: Path) -> None:
    line = b"step:%d - timing_s/gen:1.0 - timing_s/step:2.0\n"
    log = read(tmp_path, b"".join(line % n + b"noise " * 40 + b"\n" for n in range(20_000)))
    assert len(log.records) == 20_000 and log.num_lines == 40_000


def test_what_is_no_file_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place, problem in ((tmp_path, "directory"), (tmp_path / "pipe", "pipe"), (tmp_path / "none", "exist")):
        with pytest.raises(InvalidInputError, match=problem):
            read_run_log(place)
