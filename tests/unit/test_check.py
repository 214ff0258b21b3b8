"""Checks of imported configurations: verdicts, changes, the best plan beside them, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from planner.adapters.import_source import open_source
from planner.adapters.imported import Imported
from planner.adapters.importers import import_source
from planner.check import Change, CheckView, assignment, check, gpus_text, placed
from planner.cli import run
from planner.domain.execution import ExecutionMode, SchedulingPolicy
from planner.domain.framework_verdict import plan_problems
from planner.domain.stages import WorkerName
from planner.domain.verdict import Verdict
from planner.errors import InvalidInputError
from planner.files.framework import load_framework
from planner.files.spec import WorkloadSpec, override
from planner.files.workload import build_request
from planner.pipeline import estimate
from planner.report.check import check_document, check_report
from planner.report.terminal import plain

SCRIPTS = Path(__file__).parent.parent / "adapters" / "import_verl" / "scripts"


def imported(name: str = "plain_fsdp.sh", **given: str) -> Imported:
    return import_source(open_source(SCRIPTS / name, given=given))


@cache
def view(name: str = "plain_fsdp.sh", **engine: float) -> CheckView:
    """A check on H100s, of an engine with some knobs turned."""
    given = {f"actor_rollout_ref.rollout.{key}": f"{value:g}" for key, value in engine.items()}
    found = imported(name, **given)
    flags = WorkloadSpec(gpus=gpus_text(found, "h100"), response_mean=2000.0)
    return check(found, build_request(override(found.spec, flags)))


def slow() -> CheckView:
    """Engines that decode few sequences at a time: more of them gain much."""
    return view(max_num_seqs=16)


def test_a_configuration_that_fits() -> None:
    found = view()
    assert found.verdict is Verdict.FITS and not found.has_problem and found.smallest_fix is None
    assert found.plan is not None and found.best is not None
    assert found.best.time_s <= found.plan.time_s
    assert not plan_problems(load_framework("verl"), found.best)


def test_changes_gain_fit_and_are_legal() -> None:
    found = slow()
    assert found.plan is not None and found.changes
    times = [change.time_s for change in found.changes]
    assert times == sorted(times) and times[-1] < found.plan.time_s
    rules = load_framework("verl")
    for change in found.changes:
        assert change.fits and not plan_problems(rules, change.plan)


def test_each_change_is_what_an_import_of_it_prices() -> None:
    """The assignment that is shown, given with --set, has the predicted effect."""
    found = slow()
    num_written = 0
    for change in found.changes:
        words = assignment(change, found.imported.knobs).split()
        if not words:
            continue
        num_written += 1
        given = {"actor_rollout_ref.rollout.max_num_seqs": "16", **dict(word.split("=", 1) for word in words)}
        again = imported(**given)
        request = build_request(override(again.spec, WorkloadSpec(gpus="1x8xh100", response_mean=2000.0)))
        request = replace(request, workload=change.plan.workload)
        assert estimate(request, placed(again, request)).time_s == pytest.approx(change.time_s), words
    assert num_written


def test_a_configuration_that_does_not_fit_gets_the_smallest_fix_first() -> None:
    found = view(gpu_memory_utilization=0.8, free_cache_engine=0)
    assert found.has_problem and found.verdict is Verdict.DOES_NOT_FIT and found.problems
    fix = found.smallest_fix
    assert fix is not None and fix is found.changes[0] and fix.fits
    assert fix.workers == (WorkerName.ROLLOUT_ENGINE,)
    assert fix.size == min(change.size for change in found.changes)
    assert found.worst is not None and found.worst.gpu_memory is not None


def test_memory_above_the_margin_is_no_failure_but_said() -> None:
    found = view(gpu_memory_utilization=0.95)
    assert found.verdict is Verdict.MARGINAL and not found.problems and found.above_margin and not found.has_problem
    assert found.smallest_fix is not None and found.smallest_fix.field == "engine_fraction"


def test_asynchronous_configurations_are_priced_by_their_period() -> None:
    found = view("separate_async.sh")
    assert found.plan is not None and found.plan.execution.mode is ExecutionMode.STREAMING
    assert found.plan.period_s is not None and found.plan.time_s == found.plan.period_s
    # Rules are checked, those of engines apart included; verl's controller runs one stage after the other.
    assert not found.problems and found.verdict is not None
    assert found.plan.execution.policy is load_framework("verl").policy is SchedulingPolicy.SEQUENTIAL
    assert found.best is not None and not plan_problems(load_framework("verl"), found.best)
    text = plain(check_report(found), width=120)
    assert (
        "on GPUs of their own" in text and "batches overlap" in text and "streaming, weights 1 version behind" in text
    )


def test_states_over_a_part_of_the_ranks_may_be_spread_over_all() -> None:
    found = imported(**{"actor_rollout_ref.actor.fsdp_config.fsdp_size": "2"})
    flags = WorkloadSpec(gpus="1x8xh100", response_mean=2000.0)
    result = check(found, build_request(override(found.spec, flags)))
    assert result.verdict is Verdict.DOES_NOT_FIT
    fixes = {(change.field, change.after) for change in result.changes if change.fits}
    assert ("shard_ranks", "8") in fixes
    change = next(item for item in result.changes if item.field == "shard_ranks" and item.after == "8")
    assert assignment(change, found.knobs) == "actor_rollout_ref.actor.fsdp_config.fsdp_size=8"


def test_errors_come_first_and_places_are_short(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    text = (SCRIPTS / "plain_fsdp.sh").read_text()
    file.write_text(text.rstrip() + " actor_rollout_ref.rollout.pipeline_model_parallel_size=2\n")
    found = import_source(open_source(file))
    flags = WorkloadSpec(gpus=gpus_text(found, "h100"), response_mean=2000.0)
    shown = plain(check_report(check(found, build_request(override(found.spec, flags)))), width=120)
    assert "does not run as it is: 1 error" in shown and shown.count(str(file)) == 1
    assert any(line.strip().startswith("line ") for line in shown.splitlines())


def test_a_cluster_that_is_too_small_is_said() -> None:
    found = imported()
    request = build_request(override(found.spec, WorkloadSpec(gpus="4xh100")))
    result = check(found, request)
    assert result.plan is None and "8" in result.why_not
    with pytest.raises(InvalidInputError):
        check(found, build_request(override(found.spec, WorkloadSpec(gpus="h100"))))


@pytest.mark.parametrize(
    ("given", "expected"),
    [("h100", "1x8xh100"), ("16xh100", "16xh100"), ("2x8xh100", "2x8xh100"), ("p5.48xlarge", "1xp5.48xlarge")],
)
def test_a_bare_type_takes_the_size_of_the_configuration(given: str, expected: str) -> None:
    assert gpus_text(imported(), given) == expected


def test_the_report_and_the_document_say_the_same() -> None:
    found = slow()
    text = plain(check_report(found), width=120)
    document = json.loads(json.dumps(check_document(found)))
    assert document["verdict"] == "fits" and text.splitlines()[2].startswith("fits: ")
    for part in ("What the configuration really does", "Predicted step", "The best plan", "Single changes", "CV 0.6"):
        assert part in text
    first: Change = found.changes[0]
    assert document["changes"][0]["write"] == assignment(first, found.imported.knobs)
    assert document["changes"][0]["iteration_s"] == first.time_s


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    fitting = str(SCRIPTS / "plain_fsdp.sh")
    assert run(["check", fitting, "--gpus", "h100", "--response-mean", "2000"]) == 0
    assert run(["check", "--from", "verl", str(SCRIPTS / "broken_continuation.sh"), "--gpus", "h100"]) == 5
    capsys.readouterr()
    assert run(["check", str(SCRIPTS / "undefined.sh"), "--gpus", "h100"]) == 2
    captured = capsys.readouterr()
    assert "--set WORLD_SIZE=..." in captured.err and "What the configuration really does" in captured.out
    assert run(["check", fitting]) == 2
    assert "--gpus TYPE" in capsys.readouterr().err
    assert run(["check", "--from", "odd", fitting]) == 2
    assert run(["check", fitting, "--set", "NOTHING"]) == 2
    assert run(["check", str(SCRIPTS / "missing.sh")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_json_is_for_programs_even_where_values_are_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(SCRIPTS / "undefined.sh"), "--gpus", "h100", "--json"]) == 2
    assert set(json.loads(capsys.readouterr().out)["unresolved"]) == {"WORLD_SIZE", "MAX_TOKENS"}


def test_text_of_a_script_cannot_reach_the_terminal_as_control(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.sh"
    file.write_text("python3 -m verl.trainer.main_ppo 'actor_rollout_ref.model.path=\x1b[31mred' '+x.y=\x1b]0;t\x07'\n")
    run(["check", str(file), "--gpus", "h100"])
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err
