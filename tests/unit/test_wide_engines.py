"""Plans whose engines have data-parallel attention: never worse than without, saved, replayed, explained and fixed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.domain.fixed import FixedField
from planner.domain.hardware import Cluster, Pool
from planner.domain.plan import Limits, Plan
from planner.domain.ranks import rank_map
from planner.domain.request import PlanRequest
from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import ExpertExchange, RolloutStrategy
from planner.domain.workload import RewardKind
from planner.errors import InvalidInputError
from planner.files.catalog import generic_node, load_model, load_overheads
from planner.files.fixed import build_fixed_workers
from planner.files.plan import digests, parse_plan, plan_text
from planner.files.workload import build_request
from planner.files.workload_file import read_workload
from planner.pipeline import estimate, make_plan
from planner.report.words import strategy_words
from planner.simulate.replay import ReplaySettings, replay
from planner.solving import best_solution
from tests.factories import workload

ENGINE = WorkerName.ROLLOUT_ENGINE
WITHOUT = FixedField(worker=ENGINE, field="attention_dp", value="1")
WITH = FixedField(worker=ENGINE, field="attention_dp", value="4")
SENT = FixedField(worker=ENGINE, field="exchange", value="all-to-all")


def asked(model: str, gpu: str, num_nodes: int, *fixed: FixedField, algorithm: str = "grpo") -> PlanRequest:
    base = workload(algorithm, prompts=32, group=8, reward=RewardKind.RULE)
    found = load_model(model)
    work = replace(base, actor=found, critic=found if base.critic else None)
    pool = Pool(name="pool", node=generic_node(gpu), num_nodes=num_nodes, usd_per_gpu_hour=2.0)
    return PlanRequest(
        workload=work, cluster=Cluster(pools=(pool,)), gpu_type_when_open=None, limits=Limits(fixed=fixed),
        assumptions=(),
    )  # fmt: skip


def best_s(request: PlanRequest) -> float:
    assert request.cluster is not None
    solution = best_solution(request, request.cluster, None, ())
    assert solution is not None
    return solution.time_s


def engine_of(plan: Plan) -> RolloutStrategy:
    strategy = plan.placement(StageName.ROLLOUT).strategy
    assert isinstance(strategy, RolloutStrategy)
    return strategy


@pytest.mark.parametrize(
    ("model", "gpu", "num_nodes"),
    [("qwen3-30b-a3b", "h100", 1), ("qwen3-30b-a3b", "h100", 3), ("deepseek-v2-lite", "l40s", 2),
     ("qwen3-235b-a22b", "h200", 8)],
)  # fmt: skip
def test_permitting_it_never_makes_a_plan_worse(model: str, gpu: str, num_nodes: int) -> None:
    free = best_s(asked(model, gpu, num_nodes))
    for fixed in (WITHOUT, WITH, SENT):
        assert free <= best_s(asked(model, gpu, num_nodes, fixed)) * (1 + 1e-9)


def test_a_latent_cache_makes_groups_pay() -> None:
    """DeepSeek-V3 on 32 H200: tensor-parallel ranks would each hold the whole cache."""
    request = asked("deepseek-v3", "h200", 16)
    assert best_s(request) < 0.95 * best_s(replace(request, limits=Limits(fixed=(WITHOUT,))))


def test_such_a_plan_is_saved_shown_mapped_and_replayed() -> None:
    plan = make_plan(asked("qwen3-30b-a3b", "h100", 2, WITH, SENT))
    engine = engine_of(plan)
    assert (engine.attention_dp, engine.exchange) == (4, ExpertExchange.ALL_TO_ALL)
    assert parse_plan(plan_text(plan), where="plan") == replace(plan, run=None)
    words = strategy_words(engine)
    assert "attention dp 4" in words and "all-to-all" in words and "per attention group" in words
    mapped = next(item for item in rank_map(plan) if item.worker is ENGINE)
    assert next(axis for axis in mapped.axes if axis.name == "attention dp").size == 4
    report = replay(plan, load_overheads(), ReplaySettings(num_iterations=3))
    rollout = next(item for item in report.stages if item.stage is StageName.ROLLOUT)
    assert rollout.replayed_s.mean == pytest.approx(rollout.planned_s, rel=0.15)


def test_plans_of_earlier_versions_have_no_groups() -> None:
    plan = make_plan(asked("qwen3-8b", "h100", 1))
    document = json.loads(plan_text(plan))
    document["format_version"] = "1.1"
    engines = [item["strategy"] for item in document["placements"] if item["stage"] == "rollout"]
    assert [(engine.pop("attention_dp"), engine.pop("exchange")) for engine in engines] == [(1, "gather")]
    document["digests"] = digests({key: value for key, value in document.items() if key != "digests"})
    assert parse_plan(json.dumps(document), where="plan") == replace(plan, run=None)


def fixed_file(path: Path, engine: str) -> Path:
    file = path / "fixed.yaml"
    file.write_text(
        "model: qwen3-30b-a3b\ngpus: 16xh100\nbatch: {prompts: 64, kl: 0}\n"
        f"strategies:\n- {{worker: rollout engine, {engine}}}\n"
        "- {worker: actor trainer, tp: 4, ep: 4, pp: 2}\n"
    )
    return file


def test_a_fixed_configuration_has_groups(tmp_path: Path) -> None:
    spec = read_workload(fixed_file(tmp_path, "tp: 2, attention_dp: 4, ep: 8, exchange: all-to-all"))
    request = build_request(spec)
    plan = estimate(request, build_fixed_workers(spec, request))
    engine = engine_of(plan)
    assert (engine.num_engines, engine.attention_dp, engine.exchange) == (2, 4, ExpertExchange.ALL_TO_ALL)
    assert any(term.name == "ep_scale_up" for term in plan.placement(StageName.ROLLOUT).time_terms)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("tp: 2, attention_dp: 3", "tp x attention_dp x pp = 6 does not divide 16 GPUs"),
        ("tp: 2, exchange: broadcast", "gather, all-to-all"),
    ],
)
def test_what_is_wrong_about_groups_is_said(engine: str, message: str, tmp_path: Path) -> None:
    spec = read_workload(fixed_file(tmp_path, engine))
    with pytest.raises(InvalidInputError) as caught:
        build_fixed_workers(spec, build_request(spec))
    assert message in str(caught.value)
