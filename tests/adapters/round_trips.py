"""Plans through an export and back: what the configuration says must price like the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from planner.adapters.import_source import open_source
from planner.adapters.imported import Imported
from planner.adapters.importers import import_source
from planner.check import placed
from planner.domain.framework_placed import placed_workers
from planner.domain.hardware import Cluster
from planner.domain.plan import Plan
from planner.domain.request import FixedWorker, PlanRequest
from planner.domain.stages import WorkerName
from planner.domain.strategy import RolloutStrategy, Strategy
from planner.files.catalog import generic_node
from planner.pipeline import estimate

MODULES = {"verl": "verl", "nemo-rl": "nemo_rl", "openrlhf": "openrlhf", "areal": "areal", "slime": "slime"}
ENTRY = {"areal": "config.yaml"}
GIVEN = {"TRAIN_DATA": "data.jsonl", "REWARD_FUNCTION": "reward.py", "NEMO_RL": "/opt/nemo-rl", "AREAL_FILEROOT": "out"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip:
    """A plan as priced, what its export says, and the price of that."""

    plan: Plan
    imported: Imported
    again: Plan


def plan_cases(framework: str) -> dict[str, Plan]:
    """The plans that the framework's export is tested with."""
    found = import_module(f"tests.adapters.{MODULES[framework]}_cases").cases()
    assert isinstance(found, dict)
    return found


def request_of(plan: Plan) -> PlanRequest:
    """The plan's workload on nodes of the catalog, which have the rates that those of the test plans lack."""
    pools = tuple(
        replace(pool, node=replace(generic_node("h100"), gpus_per_node=pool.node.gpus_per_node))
        for pool in plan.cluster.pools
    )
    return PlanRequest(
        workload=plan.workload,
        cluster=Cluster(pools=pools),
        gpu_type_when_open=None,
        limits=plan.limits,
        assumptions=(),
    )


def priced(plan: Plan) -> Plan:
    """The plan with the times and memory that the cost model gives its strategies."""
    workers = tuple(
        FixedWorker(
            worker=item.name, pool=item.group.pool, first_gpu=item.group.first_gpu, num_gpus=item.strategy.num_gpus,
            strategy=item.strategy,
        )
        for item in placed_workers(plan)
    )  # fmt: skip
    return estimate(request_of(plan), workers, plan.execution)


def imported_again(framework: str, plan: Plan, directory: Path, given: Mapping[str, str] | None = None) -> Imported:
    """What the export of a plan says."""
    adapter = import_module(f"planner.adapters.{MODULES[framework]}")
    for file in adapter.exported_files(plan):
        (directory / file.name).write_text(file.text, encoding="utf-8")
    values = {**GIVEN, **(given or {})}
    if framework == "openrlhf":
        # vLLM's own limit, for which OpenRLHF has no flag.
        values["vllm.max_num_seqs"] = str(rollout(plan).max_num_seqs)
    source = open_source(directory / ENTRY.get(framework, "run.sh"), given=values)
    return import_source(source)


def rollout(plan: Plan) -> RolloutStrategy:
    strategy = next(item.strategy for item in placed_workers(plan) if item.name is WorkerName.ROLLOUT_ENGINE)
    assert isinstance(strategy, RolloutStrategy)
    return strategy


def round_trip(framework: str, plan: Plan, directory: Path) -> RoundTrip:
    first = priced(plan)
    imported = imported_again(framework, first, directory)
    # A configuration does not say in which order its framework runs the stages.
    execution = replace(imported.execution, policy=first.execution.policy)
    imported = replace(imported, execution=execution)
    workers = placed(imported, request_of(first))
    imported = replace(imported, workers=workers)
    return RoundTrip(plan=first, imported=imported, again=estimate(request_of(first), workers, imported.execution))


def strategies(plan: Plan) -> dict[WorkerName, Strategy]:
    return {item.name: item.strategy for item in placed_workers(plan)}
