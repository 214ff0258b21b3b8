"""What is printed, as text and as JSON, and the command with its exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.cli import run
from planner.explaining.bottleneck import bottleneck
from planner.explaining.case import open_case
from planner.explaining.conflict import Conflict, Constraint
from planner.explaining.decisions import decide
from planner.explaining.explanation import Explanation
from planner.explaining.relaxations import relax
from planner.explaining.remedies import Remedy, RemedyKind, Topic
from planner.explaining.sensitivity import sensitivity
from planner.explaining.watch import Watch
from planner.files.catalog import load_overheads
from planner.files.plan import write_plan
from planner.report.explain import conflict_report, explanation_document, explanation_report
from planner.report.terminal import plain
from tests.unit.explaining.cases import case_of, decisions_of, plan_of, sensitivity_of


def _explanation(name: str) -> Explanation:
    case = case_of(name)
    return Explanation(
        plan=plan_of(name), base=case.base, optimum=case.optimum, is_found_again=case.is_found_again,
        problems=case.problems,
        bottleneck=bottleneck(case), decisions=decisions_of(name), relaxations=relax(case),
        sensitivity=sensitivity_of(name),
    )  # fmt: skip


def test_the_longest_path_adds_up_to_the_iteration() -> None:
    for name in ("dense", "ppo", "asynchronous", "verl"):
        found = bottleneck(case_of(name))
        assert sum(item.seconds for item in found.path) == pytest.approx(case_of(name).base.time_s, rel=1e-6)
        assert sum(item.share_ratio for item in found.path) == pytest.approx(1.0)
        assert found.gpu_memory is not None and 0 < found.gpu_memory.used_ratio <= 1


@pytest.mark.parametrize("name", ["dense", "asynchronous"])
def test_the_report_fits_the_width_and_says_what_matters(name: str) -> None:
    explanation = _explanation(name)
    text = plain(explanation_report(explanation), width=100)
    assert all(len(line) <= 100 for line in text.splitlines())
    for part in ("What binds", "longest path", "actor trainer", "next best", "What more would buy", "mean response"):
        assert part in text
    assert "the search finds this plan again" in text
    document = json.loads(json.dumps(explanation_document(explanation)))
    assert document["is_found_again"] is True
    assert len(document["decisions"]) == len(explanation.decisions)
    points = document["sensitivity"]["points"]
    assert all(set(point) >= {"what", "kept", "best", "loss_ratio", "is_flip"} for point in points)


def test_a_plan_that_no_longer_fits_is_named() -> None:
    explanation = replace(_explanation("dense"), problems=("rollout: 80 GiB of 70 GiB",), is_found_again=False)
    text = plain(explanation_report(explanation), width=100)
    assert "this plan does not fit: rollout: 80 GiB of 70 GiB" in text
    assert "the search now finds another plan" in text


def test_names_are_printed_without_control_characters() -> None:
    explanation = _explanation("dense")
    actor = replace(explanation.plan.workload.actor, id="bad\x1b[31mname")
    plan = replace(explanation.plan, workload=replace(explanation.plan.workload, actor=actor))
    text = plain(explanation_report(replace(explanation, plan=plan)), width=100)
    assert "\x1b" not in text and "bad\\x1b[31mname" in text


def test_a_conflict_without_limits_says_so() -> None:
    conflict = Conflict(problems=("nothing legal",), constraints=(), remedies=())
    text = plain(conflict_report(conflict), width=100)
    assert "even without any of the limits" in text and "none of the directions" in text
    named = replace(
        conflict,
        constraints=(Constraint(topic=Topic.NUM_GPUS, what="8 GPUs"),),
        remedies=(Remedy(kind=RemedyKind.LEARNING, what="--lora-rank 32", found=None),),
    )
    text = plain(conflict_report(named), width=100)
    assert "- 8 GPUs (hardware)" in text and "changes what is learned" in text


def test_the_command_explains_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    write_plan(plan_of("small"), path)
    assert run(["explain", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_found_again"] is True
    assert run(["explain", str(path), "--gpus", "8xh100"]) == 2
    assert "--gpus: has no effect" in capsys.readouterr().err
    path.write_text(path.read_text().replace('"tp": ', '"tp": 1'))
    assert run(["explain", str(path)]) == 2


def test_the_command_explains_why_there_is_no_plan(capsys: pytest.CaptureFixture[str]) -> None:
    # Eight GPUs cannot be that fast, whatever the strategy.
    options = ["qwen3-8b", "--gpus", "8xh100", "--deadline", "20min", "--steps", "20", "--max-gpus", "4"]
    assert run(["explain", *options]) == 3
    out = capsys.readouterr().out
    assert "Limits that cannot be met together" in out and "deadline" in out and "Traceback" not in out


def test_a_short_limit_gives_a_part_and_names_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One limit for the whole command: what was not reached is named, and nothing is made up."""
    plan = plan_of("dense")
    case = open_case(plan, load_overheads(), Watch(3600.0))
    case.watch.end()
    decided, relaxed, sensitive = decide(case), relax(case), sensitivity(case)
    assert decided == () and relaxed == () and sensitive.points == () and sensitive.growth is None
    assert {"num_gpus of actor trainer", "links within nodes half as fast"} <= {*case.watch.not_reached}
    found = replace(
        _explanation("dense"), decisions=decided, relaxations=relaxed, sensitivity=sensitive,
        not_reached=case.watch.not_reached,
    )  # fmt: skip
    text = plain(explanation_report(found), width=100)
    assert "the time limit left no time for" in text and "--time-limit" in text
    assert "What more would buy" not in text
    file = tmp_path / "plan.json"
    write_plan(plan, file)
    assert run(["explain", str(file), "--time-limit", "2ms", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["not_reached"]) > 10 and document["decisions"] == []
    assert run(["explain", str(file), "--time-limit", "soon"]) == 2
    assert "--time-limit" in capsys.readouterr().err
