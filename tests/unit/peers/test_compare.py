"""All peers beside the optimum: none may beat the proof, and the report says what it should."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner import cli
from planner.domain.execution import Execution, ExecutionMode
from planner.domain.plan import Limits, Objective
from planner.peers.compare import Comparison, compare, compare_plan
from planner.pipeline import make_plan
from planner.report.baselines import baselines_document, baselines_report, relative_words
from planner.report.terminal import plain
from tests.unit.peers.cases import grpo, outcome_of, request_on

CASES = {
    "grpo on a node": ("grpo", (("h100", 1),)),
    "ppo on two nodes": ("ppo", (("a100-80gb", 2),)),
    "ppo on three nodes": ("ppo", (("h100", 3),)),
    "grpo on two pools": ("grpo", (("h100", 1), ("h20", 2))),
    "ppo on small GPUs": ("ppo", (("l40s", 2),)),
}


def comparison_of(name: str, limits: Limits | None = None) -> Comparison:
    found = compare(outcome_of(*CASES[name]), limits or Limits(), search_s=0.5)
    assert found is not None
    return found


@pytest.mark.parametrize("name", CASES)
def test_no_peer_is_better_than_the_proof_allows(name: str) -> None:
    found = comparison_of(name)
    assert found.bound is not None and found.bound > 0
    assert found.impossible() == ()
    times = [peer.time_s for peer in found.peers if peer.time_s is not None]
    assert len(times) >= 3
    assert min(times) >= found.bound * (1 - 1e-5)


def test_a_peer_below_the_bound_is_a_fault() -> None:
    found = comparison_of("grpo on a node")
    assert found.bound is not None
    cheat = replace(found.peers[0], time_s=found.bound * 0.99)
    cheated = replace(found, peers=(cheat, *found.peers[1:]))
    assert cheated.impossible() == (cheat,)
    plan = make_plan(request_on(grpo(), ("h100", 1)))
    assert "Fault: by hand: colocated, TP 8" in plain(baselines_report(cheated, plan), width=100)


def test_a_peer_beyond_a_limit_is_no_fault() -> None:
    found = comparison_of("grpo on a node")
    cheat = replace(found.peers[0], time_s=1e-3)
    limited = replace(found, peers=(cheat,), limits=Limits(max_gpus=cheat.num_gpus - 1))
    assert limited.impossible() == ()


@pytest.mark.parametrize("objective", [Objective.COST, Objective.GPUS])
def test_other_objectives_are_compared_in_their_own_unit(objective: Objective) -> None:
    request = request_on(grpo(), ("h100", 1), limits=Limits(objective=objective))
    plan = make_plan(request)
    found = compare_plan(plan, search_s=0.2)
    assert found is not None
    assert found.value(found.ours) == pytest.approx(plan.objective_value)
    assert found.impossible() == ()
    text = plain(baselines_report(found, plan), width=100)
    assert f"{'USD' if objective is Objective.COST else 'GPUs'} vs plan" in text


def test_an_asynchronous_plan_is_said_to_be_another_policy() -> None:
    plan = make_plan(request_on(grpo(), ("h100", 1)))
    ahead = replace(plan, execution=Execution(mode=ExecutionMode.BATCHES, staleness=1), period_s=plan.time_s / 2)
    text = plain(baselines_report(comparison_of("grpo on a node"), ahead), width=100)
    assert "one iteration after the other" in text
    assert "one iteration after the other" not in plain(
        baselines_report(comparison_of("grpo on a node"), plan), width=100
    )


def test_a_plan_with_a_split_rollout_is_compared_with_one_group_of_engines() -> None:
    plan = make_plan(request_on(grpo(), ("h100", 1), ("a100-80gb", 1)))
    assert plan.execution.is_split
    found = compare_plan(plan, search_s=0.2)
    assert found is not None
    assert found.time_s > plan.time_s
    assert "one group of engines" in plain(baselines_report(found, plan), width=100)


def test_a_document_names_every_worker_of_every_plan() -> None:
    found = comparison_of("ppo on two nodes")
    document = json.loads(json.dumps(baselines_document(found)))
    assert [peer["name"] for peer in document["peers"]] == [peer.name for peer in found.peers]
    for peer in document["peers"]:
        assert len(peer["workers"]) == (5 if peer["time_s"] else 0)
        assert peer["relative"] is None or peer["relative"] > 0.98


def test_relative_words_keep_their_sign() -> None:
    assert [relative_words(ratio) for ratio in (1.0, 1.0002, 0.9998, 1.123, 0.95, None)] == [
        "+0.0%",
        "+0.0%",
        "+0.0%",
        "+12.3%",
        "-5.0%",
        "-",
    ]


def test_the_command_prints_baselines_and_saves_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "plan.json"
    arguments = ["plan", "qwen3-8b", "--gpus", "8xh100", "--baselines"]
    assert cli.run([*arguments, "-o", str(target), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    saved = json.loads(target.read_text())
    assert len(printed["baselines"]["peers"]) == 8
    assert "baselines" not in saved
    assert printed["baselines"]["ours"]["time_s"] > 0
    assert cli.run(arguments) == 0
    assert "Baselines: other planners" in capsys.readouterr().out
