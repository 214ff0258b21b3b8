"""The work-depth view: no plan beats its bounds, and the view is the same in text, JSON and on the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest

from planner import cli
from planner.analysis import ADVANTAGES, Analysis, analyze
from planner.cost.jobs import engine_job
from planner.cost.link_bytes import engine_slots
from planner.cost.work_depth import TimeBound
from planner.domain.stages import StageName, WorkerName, build_graph
from planner.domain.strategy import EngineIdle, RolloutStrategy
from planner.files.spec import WorkloadSpec
from planner.files.workload import build_request
from planner.pipeline import make_plan
from planner.report.analysis import analysis_document, analysis_report
from planner.report.terminal import plain
from tests.factories import workload

CASES = {
    "grpo 8b": WorkloadSpec(model="qwen3-8b", gpus="8xh100"),
    "verl": WorkloadSpec(model="qwen3-32b", gpus="32xh100", framework="verl"),
    "ppo": WorkloadSpec(
        model="llama-2-7b", algorithm="ppo", gpus="16xa100-80gb", response_max=1024, response_mean=1024.0,
        num_prompts=1024, reward="model",
    ),
    "one prompt": WorkloadSpec(model="qwen3-8b", gpus="8xh100", num_prompts=1, group_size=8),
    "moe": WorkloadSpec(model="qwen3-30b-a3b", gpus="16xh100"),
    "one gpu": WorkloadSpec(model="qwen3-0.6b", gpus="1xh100", response_max=2048),
    "lora": WorkloadSpec(model="qwen3-8b", gpus="8xh100", lora_rank=64),
    "fp8": WorkloadSpec(model="qwen3-8b", gpus="8xh100", rollout_precision="fp8", train_precision="fp8"),
    "windows": WorkloadSpec(model="gemma-3-12b", gpus="8xh200"),
    "recurrent": WorkloadSpec(model="qwen3.5-4b", gpus="8xh100"),
    "two pools": WorkloadSpec(model="qwen3-8b", algorithm="dapo", gpus="8xh100,8xl40s"),
    "judge": WorkloadSpec(model="qwen3-8b", gpus="8xh100", reward="judge"),
    "long tail": WorkloadSpec(
        model="qwen3-8b", gpus="16xh100", response_max=32768, response_mean=2000.0, num_prompts=8
    ),
    "pcie": WorkloadSpec(model="qwen3-4b", gpus="8xl40s"),
    "mla": WorkloadSpec(model="deepseek-v2-lite", gpus="16xh100"),
    "rack": WorkloadSpec(model="qwen3-235b-a22b", gpus="64xgb200"),
}  # fmt: skip


@cache
def view(name: str) -> Analysis:
    request = build_request(CASES[name])
    return analyze(request, make_plan(request))


# ---------------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize("name", CASES)
def test_no_stage_is_planned_faster_than_any_of_its_bounds(name: str) -> None:
    checked = 0
    for stage in view(name).stages:
        for what, seconds in stage.bound.parts:
            if stage.planned_s is not None:
                assert seconds <= stage.planned_s, (stage.name, what, seconds, stage.planned_s)
                checked += seconds > 0
    assert checked >= 8


@pytest.mark.parametrize("name", CASES)
def test_bounds_of_an_iteration_are_in_order(name: str) -> None:
    """Any plan <= this plan's groups <= the planned time."""
    found = view(name)
    assert found.plan is not None and found.placement_s is not None
    assert 0 < found.path_s <= found.placement_s * (1 + 1e-9)
    assert found.bound_s <= found.placement_s * (1 + 1e-9) <= found.plan.time_s * (1 + 1e-9)
    assert found.plan.time_s < 12 * found.placement_s, "a bound so far away says nothing"


@pytest.mark.parametrize("name", CASES)
def test_the_cluster_bound_does_not_depend_on_the_plan(name: str) -> None:
    found = view(name)
    alone = analyze(build_request(CASES[name]), None)
    if CASES[name].framework is None:
        assert alone.cluster_bound == found.cluster_bound
        assert alone.path_s == found.path_s
    assert alone.plan is None and alone.placement_s is None
    assert all(stage.planned_s is None for stage in alone.stages)


def test_what_binds_follows_the_workload() -> None:
    assert view("one prompt").cluster_bound.binding == "depth"
    assert view("verl").cluster_bound.binding == "compute"
    assert view("one gpu").cluster_bound.binding == "HBM"
    assert TimeBound().binding == ""


def test_more_gpus_lower_work_and_bytes_but_not_depth() -> None:
    small, large = (
        analyze(build_request(WorkloadSpec(model="qwen3-8b", gpus=gpus)), None) for gpus in ("32xh100", "64xh100")
    )
    assert large.cluster_bound.compute_s == pytest.approx(small.cluster_bound.compute_s / 2)
    assert large.cluster_bound.hbm_s == pytest.approx(small.cluster_bound.hbm_s / 2)
    # with 32 query heads TP ends at 32, so the chain is what it was
    assert large.cluster_bound.depth_s == small.cluster_bound.depth_s


# ---------------------------------------------------------------------------------------------- rows


def test_rows_are_the_stage_graph_and_the_advantages() -> None:
    names = [stage.name for stage in view("ppo").stages]
    assert names.index(ADVANTAGES) == names.index(StageName.ACTOR_UPDATE.value) - 1
    assert [name for name in names if name != ADVANTAGES] == [
        stage.name.value for stage in build_graph(view("ppo").workload).stages
    ]
    grpo = {stage.name: stage for stage in view("grpo 8b").stages}
    assert grpo["actor update"].work_flop == pytest.approx(3 * grpo["reference log-prob"].work_flop)
    assert grpo[ADVANTAGES].num_levels == pytest.approx(8) and grpo["reward"].work_flop == 0


def test_slots_are_those_of_the_priced_engine() -> None:
    """The same concurrency as the cost model's: at once if everything fits, else waves."""
    work = replace(workload(), memory_margin_ratio=0.1)
    job = engine_job(work, build_graph(work).worker(WorkerName.ROLLOUT_ENGINE))
    strategy = RolloutStrategy(
        num_gpus=8, tp=8, pp=1, ep=1, engine_fraction=0.8, max_num_seqs=256,
        idle=EngineIdle.SLEEP,
    )  # fmt: skip
    assert engine_slots(job, strategy, 1e15) == 256
    few = engine_slots(job, strategy, 2e9)
    assert 1 < few < 256 and few == int(few)
    assert engine_slots(job, strategy, 1e3) == 1


def test_techniques_say_what_they_change() -> None:
    rows = {item.name: item for item in view("moe").techniques}
    none, tp, dp, full = rows["none"], rows["TP + SP"], rows["DP"], rows["full recompute"]
    assert tp.num_levels_added == 0 == rows["PP"].num_levels_added
    assert dp.num_levels_added == pytest.approx(4 * 3)  # 4 optimizer steps, 8 ranks
    assert full.work_flop > none.work_flop and full.saved_bytes < none.saved_bytes / 10
    for name, item in rows.items():
        if item.degree == 8:
            assert item.work_flop == pytest.approx(none.work_flop / 8), name
            assert item.links.scale_up_bytes > 0
    assert dp.state_bytes == none.state_bytes > rows["ZeRO-1"].state_bytes > rows["ZeRO-2"].state_bytes
    assert rows["ZeRO-2"].state_bytes > rows["ZeRO-3"].state_bytes
    assert rows["EP"].state_bytes < dp.state_bytes
    assert rows["TP + SP"].saved_bytes == pytest.approx(none.saved_bytes / 8)


def test_arrangements_shorten_the_chain_as_far_as_they_can() -> None:
    rows = {item.name: item for item in view("ppo").arrangements}
    turn, apart, fused = rows["colocated, in turn"], rows["disaggregated"], rows["stage fusion"]
    assert apart.num_levels < turn.num_levels and apart.chain_s < turn.chain_s
    assert (fused.num_levels, fused.chain_s) == (apart.num_levels, apart.chain_s)
    first, second = rows["asynchronous, staleness 1"], rows["asynchronous, staleness 2"]
    assert second.chain_s <= first.chain_s < apart.chain_s


# ---------------------------------------------------------------------------------------------- output


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", ["verl", "ppo", "moe", "rack"])
def test_text_fits_and_nothing_is_cut(name: str, width: int) -> None:
    text = plain(analysis_report(view(name), width=width), width=width)
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= width
    assert "…" not in text
    for stage in view(name).stages:
        assert stage.name in text


def test_without_a_plan_the_cluster_is_left() -> None:
    found = analyze(build_request(CASES["moe"]), None)
    text = plain(analysis_report(found, width=80), width=80)
    assert "no synchronous plan on this cluster takes less than" in " ".join(text.split())
    assert "planned " not in text.split("Work and depth")[0]
    assert analysis_document(found)["planned_s"] is None


def test_json_has_numbers_with_units() -> None:
    document = analysis_document(view("ppo"))
    again = json.loads(json.dumps(document))
    assert again["planned_s"] >= again["placement_s"] >= again["bound_s"] > 0
    assert sum(stage["work_flop"] for stage in again["stages"]) == pytest.approx(again["work_flop"])
    rollout = next(stage for stage in again["stages"] if stage["stage"] == "rollout")
    assert rollout["bound"]["least_s"] == max(v for k, v in rollout["bound"].items() if k.endswith("_s"))


def test_command_prints_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["analyze", "qwen3-8b", "--gpus", "8xh100", "--prompts", "64"]) == 0
    assert "Lower bounds of an iteration" in capsys.readouterr().out
    assert cli.run(["analyze", "qwen3-8b", "--gpus", "8xh100", "--no-plan", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["planned_s"] is None and document["num_gpus"] == 8
    assert cli.run(["analyze", "qwen3-8b", "--no-plan"]) == 0
    assert cli.run(["analyze", "no-such-model"]) == 2
    assert cli.run(["analyze", "qwen3-235b-a22b", "--gpus", "8xh100"]) == 3
