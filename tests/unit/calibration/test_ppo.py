"""PPO: critic, reference and reward model, in the formats of verl and NeMo-RL."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from planner.calibration.calibrate import Evidence, calibrate
from planner.calibration.compare import Comparison, compare
from planner.domain.stages import StageName
from planner.files.catalog import load_overheads
from planner.files.run_logs import LogKind, RunLog, Timer, read_run_log
from tests.unit.calibration import samples

PPO_STAGES = {
    "rollout", "reward", "reference log-prob", "old log-prob", "critic value", "critic update", "actor update",
    "weight sync",
}  # fmt: skip


def _read(path: Path, text: str) -> RunLog:
    path.write_text(text, encoding="utf-8")
    log = read_run_log(path)
    assert log is not None and not log.num_bad, log
    return log


def _console(step: int, row: Mapping[str, float]) -> str:
    """A line as verl prints it for PPO: metrics of the critic beside `timing_s`, times per token, the prefix of Ray."""
    metrics = {
        "global_seqlen/mean": 81920.0, "critic/vf_loss": 0.113, "critic/vf_clipfrac": 0.0, "critic/lr": 1e-05,
        "critic/score/mean": 0.41, "critic/values/mean": -0.21, "actor/pg_loss": -0.004,
        "response_length/mean": row["tokens"], "response_length/max": 2048.0,
        "prompt_length/mean": samples.ppo_plan().workload.prompt_mean_tokens,
        "timing_s/generate_sequences": row["gen"] * 0.97, "timing_s/reshard": 0.4, "timing_s/adv": 0.06,
        "timing_s/start_profile": 0.0002, "timing_s/stop_profile": 0.0001,
        **{f"timing_s/{name}": value for name, value in row.items() if name != "tokens"},
        "timing_per_token_ms/values": 0.002, "timing_per_token_ms/update_critic": 0.01,
        "perf/time_per_step": row["step"], "perf/throughput": 1200.0,
    }  # fmt: skip
    words = " - ".join(f"{name}:np.float64({value!r})" for name, value in metrics.items())
    return f"\x1b[36m(TaskRunner pid=7741)\x1b[0m step:{step} - {words}"


def _verl(path: Path, rows: list[dict[str, float]]) -> RunLog:
    return _read(path, "\n".join(_console(index + 1, row) for index, row in enumerate(rows)) + "\n")


def _rows(num: int, *, true: Mapping[object, float] | None = None) -> list[dict[str, float]]:
    factors = {} if true is None else dict(samples.TRUE)
    return samples.iterations(num, true=factors, base=samples.ppo_setup(), start=1.0)


def _compared(log: RunLog) -> Comparison:
    return compare(samples.ppo_plan(), samples.ppo_setup(), log, load_overheads())


def test_all_stages_of_ppo_are_read_from_the_console(tmp_path: Path) -> None:
    found = _compared(_verl(tmp_path / "ppo.log", _rows(1)))
    assert {stage.label for stage in found.stages} >= PPO_STAGES
    for stage in found.stages:
        assert stage.ratio == pytest.approx(1.0, abs=1e-6), stage
    assert found.iteration is not None and found.iteration.ratio == pytest.approx(1.0, abs=1e-6)


def test_verls_file_logger_says_the_same(tmp_path: Path) -> None:
    rows = _rows(3)
    lines = [
        json.dumps({"step": i + 1, "data": {f"timing_s/{n}": v for n, v in row.items() if n != "tokens"}})
        for i, row in enumerate(rows)
    ]
    log = _read(tmp_path / "ppo.jsonl", "\n".join(lines) + "\n")
    assert log.kind is LogKind.VERL
    assert {stage.label for stage in _compared(log).stages} >= PPO_STAGES
    # Cut down to perf/*, the iteration is still there; beside timing_s/step it does not count twice.
    bare = json.dumps({"step": 1, "data": {"timing_s/gen": 5.0, "perf/time_per_step": 21.0}})
    assert _read(tmp_path / "a.jsonl", bare + "\n").records[0].seconds[Timer.ITERATION] == 21.0
    both = json.dumps({"step": 1, "data": {"timing_s/step": 20.0, "perf/time_per_step": 21.0}})
    assert _read(tmp_path / "b.jsonl", both + "\n").records[0].seconds[Timer.ITERATION] == 20.0


def test_greedy_baselines_are_part_of_the_rollout(tmp_path: Path) -> None:
    log = _read(tmp_path / "remax.log", "step:1 - timing_s/gen:10.0 - timing_s/gen_max:2.5 - timing_s/step:20.0\n")
    assert log.records[0].seconds[Timer.ROLLOUT] == 12.5


def _nemo(step: int, seconds: Mapping[StageName, float], total: float) -> str:
    """The timing table that NeMo-RL prints after a step of PPO."""
    table = {
        "policy_training": seconds[StageName.ACTOR_UPDATE] * 0.95,
        "policy_training_prep": seconds[StageName.ACTOR_UPDATE] * 0.05,
        "generation": seconds[StageName.ROLLOUT],
        "value_training": seconds[StageName.CRITIC_UPDATE] * 0.9,
        "value_training_prep": seconds[StageName.CRITIC_UPDATE] * 0.1,
        "value_training/sharding_data": 0.2,
        "policy_and_reference_logprobs": seconds[StageName.OLD_LOGPROB] + seconds[StageName.REFERENCE_LOGPROB],
        "value_inference": seconds[StageName.CRITIC_VALUE],
        "reward_calculation": seconds[StageName.REWARD],
        "weight_sync": seconds[StageName.WEIGHT_SYNC],
        "data_processing": 0.3,
    }
    bullets = [f"  • {name}: {value:.4f}s ({100 * value / total:.1f}%)" for name, value in table.items()]
    head = f"========================= Step {step}/400 ========================="
    length = samples.ppo_plan().workload.response.mean_tokens
    results = f"📊 Training Results:\n  • Loss: 0.0132\n  • Mean Generation Length: {length:.4f}"
    return "\n".join([head, results, "", "⏱️  Timing:", f"  • Total step time: {total:.4f}s", *bullets, ""])


def test_the_timing_table_of_nemo_rl(tmp_path: Path) -> None:
    plan = samples.ppo_plan()
    overheads = load_overheads()
    own = overheads.step_losses.step_s + overheads.step_losses.sequence_s * plan.workload.num_generated
    seconds = {item.stage: item.time_s for item in plan.placements}
    seconds[StageName.ACTOR_UPDATE] -= own
    text = "\n".join(_nemo(step, seconds, plan.time_s) for step in (1, 2))
    log = _read(tmp_path / "nemo.log", text)
    assert log.kind is LogKind.NEMO_RL and len(log.records) == 2
    found = {stage.label: stage for stage in _compared(log).stages}
    assert set(found) >= {"rollout", "log-probs", "critic value", "critic update", "actor update", "reward"}
    for stage in found.values():
        assert stage.ratio == pytest.approx(1.0, rel=1e-3), stage


def test_json_lines_of_nemo_rl(tmp_path: Path) -> None:
    line = json.dumps(
        {
            "timing/train/generation": 4.0, "timing/train/value_inference": 1.0, "timing/train/value_training": 3.0,
            "timing/train/value_training_prep": 0.5, "timing/train/policy_training": 6.0,
            "timing/train/total_step_time": 16.0, "step": 7,
        }
    )  # fmt: skip
    record = _read(tmp_path / "nemo.jsonl", line + "\n").records[0]
    assert record.seconds[Timer.VALUES] == 1.0 and record.seconds[Timer.CRITIC_UPDATE] == 3.5


def test_calibration_uses_the_stages_of_the_critic(tmp_path: Path) -> None:
    log = _verl(tmp_path / "ppo.log", _rows(4, true={}))
    found = calibrate(Evidence(runs=((log, samples.ppo_setup()),)), load_overheads())
    labels = {row.label for row in found.result.errors}
    assert labels >= {"critic value", "critic update", "reward", "iteration"}
    whole = next(row for row in found.result.errors if row.label == "iteration")
    assert whole.after_ratio < 0.5 * whole.before_ratio
    critic = next(row for row in found.result.errors if row.label == "critic update")
    assert critic.after_ratio < 0.05
