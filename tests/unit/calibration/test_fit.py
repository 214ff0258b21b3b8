"""Known parameters come back, and what cannot be told is said."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from planner.calibration.calibrate import Calibration, Evidence, calibrate
from planner.calibration.fit import Verdict
from planner.calibration.parameters import Key
from planner.domain.execution import Execution, ExecutionMode
from planner.domain.profile import Parameter
from planner.domain.request import FixedWorker
from planner.domain.stages import WorkerName
from planner.errors import InvalidInputError
from planner.files.catalog import load_overheads
from planner.files.run_logs import RunLog, read_run_log
from tests.unit.calibration import samples

H100 = "h100-sxm"


def log_of(path: Path) -> RunLog:
    log = read_run_log(path)
    assert log is not None
    return log


def calibrated(path: Path, rows: list[dict[str, float]]) -> Calibration:
    log = log_of(samples.verl_log(path / "run.log", rows))
    return calibrate(Evidence(runs=((log, samples.setup()),)), load_overheads())


def verdict(calibration: Calibration, parameter: Parameter) -> Verdict:
    return next(item for item in calibration.result.verdicts if item.unknown.key.parameter is parameter)


@pytest.mark.parametrize(("num", "noise"), [(3, 0.0), (3, 0.03), (12, 0.05)])
def test_known_parameters_come_back(tmp_path: Path, num: int, noise: float) -> None:
    found = calibrated(tmp_path, samples.iterations(num, noise=noise, seed=3))
    for key, factor in samples.TRUE.items():
        item = verdict(found, key.parameter)
        true = item.unknown.catalog * factor
        assert item.is_identified, item
        assert item.low <= true <= item.high
        assert item.value == pytest.approx(true, rel=0.12 if key.parameter is Parameter.STEP else 0.05 + noise)
    by_label = {row.label: row for row in found.result.errors}
    whole = by_label["iteration"]
    assert whole.after_ratio < 0.3 * whole.before_ratio
    assert whole.left_out_ratio is not None and whole.left_out_ratio < 0.3 * whole.before_ratio


def test_an_exact_log_of_the_catalog_changes_nothing(tmp_path: Path) -> None:
    found = calibrated(tmp_path, samples.iterations(5, true={}))
    for item in found.identified:
        assert item.value == pytest.approx(item.unknown.catalog, rel=1e-6)
    assert all(row.before_ratio < 1e-6 for row in found.result.errors)


def test_one_iteration_helps_but_cannot_be_checked(tmp_path: Path) -> None:
    found = calibrated(tmp_path, samples.iterations(1))
    assert {item.unknown.key.parameter for item in found.identified} == {key.parameter for key in samples.TRUE}
    assert found.result.num_folds == 0
    assert all(row.left_out_ratio is None for row in found.result.errors)


def test_what_moves_the_same_stages_alike_is_not_fitted_apart(tmp_path: Path) -> None:
    found = calibrated(tmp_path, samples.iterations(6))
    flop, nic = verdict(found, Parameter.TRAINING_FLOP), verdict(found, Parameter.NIC_BANDWIDTH)
    assert flop.reason == "cannot be told apart from training ratio"
    assert flop.value == flop.unknown.catalog
    assert nic.reason == "nothing in these logs depends on it"
    assert math.isinf(found.result.condition) or found.result.condition > 10


@pytest.mark.parametrize("missing", ["gen", "update_actor", "step", "update_weights"])
def test_missing_stages_leave_their_parameters_open(tmp_path: Path, missing: str) -> None:
    rows = samples.iterations(4)
    for row in rows:
        del row[missing]
    found = calibrated(tmp_path, rows)
    open_ = {"gen": Parameter.ROLLOUT_RATIO, "step": Parameter.STEP}.get(missing)
    for key, factor in samples.TRUE.items():
        item = verdict(found, key.parameter)
        if key.parameter is open_:
            assert not item.is_identified
        elif missing in ("step", "update_actor") and item.is_identified:
            assert item.value == pytest.approx(item.unknown.catalog * factor, rel=0.15)


def test_only_whole_iterations_support_one_parameter_at_most(tmp_path: Path) -> None:
    rows = [{"step": row["step"], "tokens": row["tokens"]} for row in samples.iterations(8)]
    found = calibrated(tmp_path, rows)
    assert len(found.identified) <= 1


def test_one_wild_iteration_moves_little(tmp_path: Path) -> None:
    rows = samples.iterations(8, noise=0.01)
    rows[5] = {name: value * (8.0 if name != "tokens" else 1.0) for name, value in rows[5].items()}
    found = calibrated(tmp_path, rows)
    item = verdict(found, Parameter.TRAINING_RATIO)
    assert item.value == pytest.approx(1.15, rel=0.06)


def test_the_first_iteration_is_warm_up(tmp_path: Path) -> None:
    rows = samples.iterations(4)
    rows[0] = {name: value * (4.0 if name != "tokens" else 1.0) for name, value in rows[0].items()}
    assert verdict(calibrated(tmp_path, rows), Parameter.TRAINING_RATIO).value == pytest.approx(1.15, rel=0.03)


def test_checkpoints_inside_and_beside_the_iteration_do_not_count(tmp_path: Path) -> None:
    inside, beside = samples.iterations(5), samples.iterations(5)
    for row in inside:
        row["save_checkpoint"] = 60.0
        row["step"] += 60.0
    for row in beside:
        row["testing"] = 60.0
    first, second = calibrated(tmp_path, inside), calibrated(tmp_path, beside)
    for found in (first, second):
        assert verdict(found, Parameter.STEP).value == pytest.approx(6.0, rel=0.12)


def test_the_weight_sync_hides_in_the_rollout_where_verl_does_not_log_it(tmp_path: Path) -> None:
    rows = samples.iterations(5)
    for row in rows:
        row["gen"] += row.pop("update_weights")
    found = calibrated(tmp_path, rows)
    assert found.result.errors[0].label == "rollout with weight sync"
    assert verdict(found, Parameter.ROLLOUT_RATIO).value == pytest.approx(1.5, rel=0.04)
    assert not verdict(found, Parameter.SYNC_RATIO).is_identified


def apart() -> tuple[FixedWorker, ...]:
    """The workers of the sample with the engine on the second half of the node."""
    workers = []
    for item in samples.setup().workers:
        is_engine = item.worker is WorkerName.ROLLOUT_ENGINE
        changes = {"num_gpus": 4} if is_engine else {"num_gpus": 4, "shard_ranks": 4}
        strategy = replace(item.strategy, **changes)
        workers.append(replace(item, first_gpu=4 if is_engine else 0, num_gpus=4, strategy=strategy))
    return tuple(workers)


def test_an_asynchronous_run_is_fitted_by_its_trainer_and_its_period(tmp_path: Path) -> None:
    execution = Execution(mode=ExecutionMode.BATCHES, staleness=1)
    base = replace(samples.setup(), workers=apart(), execution=execution)
    rows = samples.iterations(5, base=base)
    for row in rows:
        # The trainer waits for what of the rollout is not hidden, and logs that.
        row["gen"] = 1.0
    log = log_of(samples.verl_log(tmp_path / "run.log", rows))
    found = calibrate(Evidence(runs=((log, base),)), load_overheads())
    labels = [row.label for row in found.result.errors]
    assert "rollout" not in labels and "outside stages" not in labels
    assert {"actor update", "iteration"} <= set(labels)
    assert verdict(found, Parameter.TRAINING_RATIO).value == pytest.approx(1.15, rel=0.05)


def test_two_runs_are_left_out_whole_and_the_same_run_counts_once(tmp_path: Path) -> None:
    first = log_of(samples.verl_log(tmp_path / "a.log", samples.iterations(3, noise=0.02, seed=1)))
    second = log_of(samples.verl_log(tmp_path / "b.log", samples.iterations(3, noise=0.02, seed=2)))
    copy = log_of(samples.verl_log(tmp_path / "c.log", samples.iterations(3, noise=0.02, seed=1)))
    runs = tuple((log, samples.setup()) for log in (first, second, copy))
    found = calibrate(Evidence(runs=runs), load_overheads())
    assert found.result.num_folds == 2
    assert len(found.profile.sources) == 2
    assert any("c.log: is the same as" in note for note in found.notes)


def test_hard_to_believe_values_are_questioned(tmp_path: Path) -> None:
    true = {Key(Parameter.TRAINING_RATIO): 2.5}
    found = calibrated(tmp_path, samples.iterations(3, true=true))
    assert any("training ratio is 2." in note for note in found.notes)
    assert not calibrated(tmp_path, samples.iterations(3)).notes


def test_a_log_without_a_stage_of_the_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no logged time belongs to a stage"):
        calibrated(tmp_path, [{"values": 3.0}])
