"""A plan beside the log of a run of it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from planner import cli
from planner.calibration.compare import ComparedStage, Comparison, compare, explain
from planner.calibration.parameters import Key
from planner.domain.bands import Band
from planner.domain.plan import NamedValue, Plan
from planner.domain.profile import Parameter
from planner.domain.stages import StageName
from planner.files.catalog import load_overheads
from planner.files.fixed import build_fixed_workers
from planner.files.plan import write_plan
from planner.files.run_logs import read_run_log
from planner.files.workload import build_request
from planner.files.workload_file import read_workload
from planner.pipeline import estimate
from planner.report.calibration import comparison_document, comparison_report
from planner.report.terminal import plain
from tests.unit.calibration import samples


@cache
def plan() -> Plan:
    spec = read_workload(samples.FIXED)
    request = build_request(spec)
    return estimate(request, build_fixed_workers(spec, request))


def compared(path: Path, rows: list[dict[str, float]], made: Plan | None = None) -> Comparison:
    log = read_run_log(samples.verl_log(path / "run.log", rows))
    assert log is not None
    return compare(made or plan(), samples.setup(), log, load_overheads())


def as_planned(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """The rows without lengths, so that the plan's own count."""
    return [{name: value for name, value in row.items() if name != "tokens"} for row in rows]


def test_a_run_as_predicted_has_ratios_of_one_at_its_lengths(tmp_path: Path) -> None:
    found = compared(tmp_path, samples.iterations(1, true={}))
    assert found.iteration is not None
    for stage in (*found.stages, found.iteration):
        assert stage.at_lengths_s is not None
        assert stage.ratio == pytest.approx(1.0, abs=1e-6), stage
    assert found.stages[0].planned_s > 1.2 * found.stages[0].measured_s
    # Lengths are an input: what the plan promised was for others.
    assert found.is_inside is False


def test_medians_spread_and_band(tmp_path: Path) -> None:
    row = as_planned(samples.iterations(1, true={}))[0]
    factors = (9.0, 1.0, 1.1, 1.2, 1.3)
    rows = [{name: value * factor for name, value in row.items()} for factor in factors]
    found = compared(tmp_path, rows)
    rollout = found.stages[0]
    assert found.has_warm_up and rollout.num_iterations == 4
    assert rollout.measured_s == pytest.approx(1.15 * row["gen"])
    assert row["gen"] < rollout.low_s < rollout.measured_s < rollout.high_s < 1.3 * row["gen"]
    assert rollout.at_lengths_s is None


@pytest.mark.parametrize(("low", "high", "inside"), [(0.5, 2.0, True), (1.0, 1.01, False)])
def test_the_band_of_the_plan_decides(tmp_path: Path, low: float, high: float, inside: bool) -> None:
    band = plan().time_band
    assert isinstance(band, Band)
    made = replace(plan(), time_band=replace(band, low_ratio=low, high_ratio=high))
    rows = as_planned(samples.iterations(3, true=dict.fromkeys([Key(Parameter.TRAINING_RATIO)], 1.3)))
    found = compared(tmp_path, rows, made)
    assert found.is_inside is inside
    bare = compared(tmp_path, rows, replace(plan(), time_band=None))
    assert bare.is_inside is None and bare.band_s is None


def test_of_a_split_rollout_the_longer_half_is_logged(tmp_path: Path) -> None:
    rollout = plan().placement(StageName.ROLLOUT)
    slower = tuple(NamedValue(name=term.name, value=1.5 * term.value) for term in rollout.time_terms)
    second = replace(rollout, stage=StageName.SECOND_ROLLOUT, time_terms=slower)
    made = replace(plan(), placements=(*plan().placements, second))
    rows = as_planned(samples.iterations(2))
    first = next(item for item in compared(tmp_path, rows, made).stages if item.label == "rollout")
    assert first.planned_s == pytest.approx(1.5 * rollout.time_s)


def stage(measured_s: float, **terms: float) -> ComparedStage:
    named = tuple(NamedValue(name=name, value=value) for name, value in terms.items())
    total = sum(terms.values())
    return ComparedStage(
        label="actor update", planned_s=total, at_lengths_s=None, measured_s=measured_s, low_s=measured_s,
        high_s=measured_s, num_iterations=1, terms=named,
    )  # fmt: skip


def test_the_least_surprising_single_term_explains_a_gap() -> None:
    # 20 s more: matrix products times 1.33, or a NIC that is 3 times as slow, which is less rare for its kind.
    found = explain([stage(110.0, gemm=60.0, dp_scale_out=10.0, attention=20.0)])
    assert found is not None and found.closes
    assert (found.term, found.factor) == ("gemm", pytest.approx(1.0 + 20.0 / 60.0))
    found = explain([stage(100.0, gemm=50.0, dp_scale_out=30.0)])
    assert found is not None and found.term == "dp_scale_out"


def test_a_gap_that_no_term_can_close_is_said_to_be_one() -> None:
    found = explain([stage(400.0, gemm=50.0, attention=10.0)])
    assert found is not None and not found.closes and found.term == "gemm"
    found = explain([stage(1.0, gemm=50.0, attention=50.0)])
    assert found is not None and not found.closes and found.factor < 1.0
    assert explain([]) is None


def test_the_report_names_band_lengths_and_gap(tmp_path: Path) -> None:
    found = compared(tmp_path, samples.iterations(5, noise=0.02))
    text = plain(comparison_report(plan(), found), width=100)
    for words in ("the plan's band", "at logged lengths", "rollout", "The largest gap", "the first one left out"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 100
    document = comparison_document(found)
    assert json.loads(json.dumps(document, allow_nan=False))["iteration"]["num_iterations"] == 4


def test_commands_from_a_log_to_a_calibrated_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = samples.verl_log(tmp_path / "run.log", samples.iterations(5, noise=0.01, true={**samples.TRUE, SLOW: 2.4}))
    plan_file, profile, again = (str(tmp_path / name) for name in ("plan.json", "p.yaml", "again.json"))
    write_plan(plan(), Path(plan_file))

    def shown(*arguments: str, code: int = 0) -> str:
        assert cli.run(list(arguments)) == code
        return capsys.readouterr().out

    assert "OUTSIDE" in shown("compare", plan_file, str(log), code=5)
    fitted = shown("calibrate", str(log), "--config", plan_file, "-o", profile)
    assert "Calibrated" in fitted and "left out" in fitted
    mean = ("--response-mean", "1680", "--profile", profile)
    assert "calibrated by profile" in shown("estimate", str(samples.FIXED), *mean, "-o", again)
    second = json.loads(shown("compare", again, str(log), "--profile", profile, "--json"))
    assert second["iteration"]["ratio"] == pytest.approx(1.0, abs=0.03)
    assert cli.run(["calibrate", str(log), "--config", again]) == 2
    assert "fit starts from the catalog" in capsys.readouterr().err


SCRIPT = samples.ROOT / "tests" / "adapters" / "import_verl" / "scripts" / "old_ppo.sh"
"""PPO on two nodes: critic, reference and reward model."""


def test_a_launch_script_or_a_workload_file_stands_for_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planned is what the script's configuration takes at the logged lengths: no plan file is needed."""
    timers = ("gen", "reward", "ref", "old_log_prob", "values", "update_actor", "update_critic")
    rows = [{**dict.fromkeys(timers, 20.0), "step": 150.0, "tokens": 700.0} for _ in range(3)]
    log = samples.verl_log(tmp_path / "ppo.log", rows)
    arguments = ["compare", str(SCRIPT), str(log), "--from", "verl", "--gpus", "h100", "--json"]
    assert cli.run(arguments) in (0, 5)
    document = json.loads(capsys.readouterr().out)
    stages = {stage["stage"] for stage in document["stages"]}
    assert stages >= {"critic value", "critic update", "old log-prob", "reward"}
    # The script has no KL term, hence no reference: the log is of another run.
    assert document["unplanned"] == [{"stage": "reference log-prob", "measured_s": 20.0}]
    assert document["response_tokens"] == 700.0
    assert all(stage["at_lengths_s"] is None for stage in document["stages"])
    checked = cli.run(["check", str(SCRIPT), "--from", "verl", "--gpus", "h100", "--response-mean", "700", "--json"])
    assert checked in (0, 5)
    view = json.loads(capsys.readouterr().out)
    assert document["iteration"]["planned_s"] == pytest.approx(view["iteration_s"], rel=1e-6)
    fixed = ["compare", str(samples.FIXED), str(samples.LOGS / "verl-qwen3-8b.log"), "--json"]
    assert cli.run(fixed) in (0, 5)
    assert json.loads(capsys.readouterr().out)["iteration"]["at_lengths_s"] is None


SLOW = Key(Parameter.TRAINING_RATIO)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["calibrate", "{log}"], "0 configurations for 1 logs"),
        (["calibrate", "{log}", "--config", "{fixed}", "--date", "May"], "no date"),
        (["calibrate", "{fixed}", "--config", "{fixed}"], "holds no seconds per stage"),
        (["calibrate", "{log}", "--config", "{fixed}", "-o", "/nonexistent/p.yaml"], "does not exist"),
        (["compare", "{log}", "{log}"], "no framework recognises it"),
        (["compare", "{fixed}", "{fixed}"], "holds no seconds per stage"),
        (["compare", "{script}", "{log}", "--from", "verl"], "--gpus TYPE"),
        (["compare", "{plan}", "{log}", "--gpus", "8xh100"], "has no effect on"),
        (["compare", "{plan}", "{log}", "--set", "A=1"], "has no effect on"),
    ],
)
def test_wrong_input_is_named(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    places = {"log": str(samples.LOGS / "verl-qwen3-8b.log"), "fixed": str(samples.FIXED), "script": str(SCRIPT)}
    places["plan"] = str(tmp_path / "plan.json")
    write_plan(plan(), Path(places["plan"]))
    assert cli.run([text.format(**places) for text in arguments]) == 2
    assert words in capsys.readouterr().err
