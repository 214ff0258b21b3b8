"""Expert parallelism of NeMo-RL's DTensor back end: what the rules allow, the export says and the import reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.domain.framework_trainers import first_backends
from planner.domain.framework_workload import for_workload
from planner.domain.stages import WorkerName
from planner.domain.strategy import Sharding, TrainerStrategy, TrainerTable
from planner.domain.workload import Workload
from planner.files.framework import load_framework
from tests.adapters.imports import messages, read, trainer
from tests.adapters.nemo_rl_cases import cases, dtensor
from tests.adapters.test_import_nemo_rl import CHAIN
from tests.adapters.test_nemo_rl import config
from tests.adapters.variants import catalog_workload

EP = dtensor(32, tp=1, ep=16)


def backend(strategy: TrainerStrategy, load: Workload, worker: WorkerName = WorkerName.ACTOR_TRAINER) -> str | None:
    rules = for_workload(load_framework("nemo-rl"), load)
    index = first_backends(rules, TrainerTable.of((strategy,)), trains=True, worker=worker, model=load.actor)
    return None if index[0] < 0 else rules.backends[int(index[0])].name


def test_experts_spread_over_fsdp_ranks_of_models_that_automodel_implements() -> None:
    moe = catalog_workload("qwen3-30b-a3b")
    assert backend(EP, moe) == "dtensor"
    assert backend(EP, catalog_workload("mixtral-8x7b")) is None
    assert backend(replace(EP, ep=1), catalog_workload("mixtral-8x7b")) == "dtensor"


@pytest.mark.parametrize(
    "changes",
    [{"tp": 2, "shard_ranks": 16}, {"cp": 2}, {"shard_ranks": 16}, {"sharding": Sharding.ZERO2}],
    ids=["tp", "cp", "hsdp", "zero2"],
)
def test_not_with_other_degrees(changes: dict[str, object]) -> None:
    assert backend(replace(EP, **changes), catalog_workload("qwen3-30b-a3b")) is None  # type: ignore[arg-type]


def test_not_with_a_critic_or_adapters() -> None:
    assert backend(EP, catalog_workload("qwen3-30b-a3b", "ppo")) is None
    assert backend(EP, catalog_workload("qwen3-30b-a3b", lora_rank=32)) is None


def test_the_export_batches_by_tokens_and_gathers_anew_for_backward() -> None:
    found = config(cases()["moe-dtensor-ep"])
    section = "policy.dtensor_cfg"
    assert found[f"{section}.expert_parallel_size"] == 16
    assert found[f"{section}.moe_parallelizer.reshard_after_forward"] is True
    assert found[f"{section}.moe_parallelizer.ignore_router_for_ac"] is True
    assert found["policy.sequence_packing.enabled"] is False
    assert found["policy.dynamic_batching.enabled"] is True


@pytest.mark.parametrize("reshards", [True, False])
def test_the_import_reads_ep_and_says_what_is_priced(tmp_path: Path, reshards: bool) -> None:
    own = "defaults: base.yaml\npolicy:\n  megatron_cfg: {enabled: false}\n  sequence_packing: {enabled: false}\n"
    own += "  dynamic_batching: {enabled: true, train_mb_tokens: 4096, logprob_mb_tokens: 4096}\n"
    own += "  dtensor_cfg: {enabled: true, expert_parallel_size: 8, tensor_parallel_size: 1, context_parallel_size: 1, "
    own += f"moe_parallelizer: {{reshard_after_forward: {str(reshards).lower()}}}}}\n"
    found = read(tmp_path, {"own.yaml": own, "base.yaml": CHAIN["base.yaml"]})
    actor = trainer(found)
    assert (actor.ep, actor.etp, actor.sharding) == (8, 1, Sharding.ZERO3)
    assert trainer(found, WorkerName.REFERENCE).ep == 8
    assert ("stay gathered" in messages(found)) is not reshards


def test_without_ep_experts_are_split_by_tp(tmp_path: Path) -> None:
    own = "defaults: base.yaml\npolicy:\n  megatron_cfg: {enabled: false}\n"
    own += "  dtensor_cfg: {enabled: true, tensor_parallel_size: 2}\n"
    actor = trainer(read(tmp_path, {"own.yaml": own, "base.yaml": CHAIN["base.yaml"]}))
    assert (actor.tp, actor.ep, actor.etp) == (2, 1, 2)
