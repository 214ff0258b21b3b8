"""Recomputation of some layers: what exports write and imports read, and who has none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.adapters.findings import Severity
from planner.adapters.hydra import Config
from planner.adapters.import_recompute import full_recomputation
from planner.adapters.import_values import Values
from planner.domain.framework_trainers import first_backends
from planner.domain.plan import Plan
from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import Recompute, TrainerStrategy, TrainerTable
from planner.files.framework import load_framework
from tests.adapters.plans import megatron
from tests.adapters.round_trips import plan_cases, round_trip, strategies
from tests.adapters.variants import catalog_workload, with_strategy

ACTOR = WorkerName.ACTOR_TRAINER
CASES = {"slime": "qwen3-32b-16-together", "areal": "qwen3-32b-64+32-sync", "verl": "qwen3-32b-32+16-sync"}


def actor_of(plan: Plan) -> TrainerStrategy:
    found = strategies(plan)[ACTOR]
    assert isinstance(found, TrainerStrategy)
    return found


def partial_plan(framework: str, layers: int) -> Plan:
    plan = plan_cases(framework)[CASES[framework]]
    return with_strategy(plan, ACTOR, replace(actor_of(plan), recompute=Recompute.PARTIAL, recompute_layers=layers))


@pytest.mark.parametrize("framework", CASES)
def test_an_export_is_read_exactly(framework: str, tmp_path: Path) -> None:
    trip = round_trip(framework, partial_plan(framework, 5), tmp_path)
    again = actor_of(trip.again)
    assert (again.recompute, again.recompute_layers) == (Recompute.PARTIAL, 5)
    times = [item.placement(StageName.ACTOR_UPDATE).time_s for item in (trip.plan, trip.again)]
    assert times[0] == pytest.approx(times[1])


@pytest.mark.parametrize("framework", ["nemo-rl", "openrlhf"])
def test_frameworks_without_it_forbid_it(framework: str) -> None:
    load = catalog_workload("qwen3-32b")
    strategy = megatron(32, recompute=Recompute.PARTIAL, recompute_layers=10)
    table = TrainerTable.of((strategy,))
    rules = load_framework(framework)
    assert first_backends(rules, table, trains=True, worker=ACTOR, model=load.actor)[0] < 0


@pytest.mark.parametrize(
    ("method", "layers", "pp", "expected"),
    [
        ("block", 20, 1, (Recompute.PARTIAL, 20)),
        ("block", 20, 4, (Recompute.FULL, 0)),
        ("block", 0, 1, (Recompute.NONE, 0)),
        ("uniform", 20, 1, (Recompute.FULL, 0)),
        ("block", None, 1, (Recompute.FULL, 0)),
    ],
    ids=["some layers", "all of a stage", "no layer", "uniform", "not said"],
)
def test_layers_that_a_configuration_names(
    method: str, layers: int | None, pp: int, expected: tuple[Recompute, int]
) -> None:
    """Qwen3-32B has 64 layers: 20 of a stage of 64, but all of a stage of 16."""
    values = Values(Config({"method": method, "layers": layers}))
    found = full_recomputation(values, method="method", layers="layers", model="qwen3-32b", pp=pp, vpp=1)
    assert (found.level, found.layers) == expected
    assert any(item.severity is Severity.ERROR for item in values.findings) is (layers is None)
