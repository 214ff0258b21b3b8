"""What crosses pools: one copy of the weights, all trajectories, and the floor that a total capacity sets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.jobs import trainer_job
from planner.cost.layout import layout, model_totals
from planner.cost.trunk import (
    TRAJECTORY_BYTES_PER_TOKEN,
    trajectory_bytes,
    weight_copy_bytes,
    within_trunk,
)
from planner.cost.weight_sync import sync_bytes
from planner.domain.hardware import Precision
from planner.domain.stages import WorkerName, build_graph
from planner.domain.strategy import TrainerTable
from planner.files.catalog import generic_node
from tests.factories import workload
from tests.golden.sample import TRAINER


@pytest.mark.parametrize("lora_rank", [None, 32])
@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP8])
def test_the_copy_is_what_the_weight_sync_sends(lora_rank: int | None, precision: Precision) -> None:
    work = replace(workload(lora_rank=lora_rank), rollout_precision=precision)
    graph = build_graph(work)
    job = trainer_job(work, graph, graph.worker(WorkerName.ACTOR_TRAINER))
    at = layout(TrainerTable.of((TRAINER,)), model_totals(work.actor, True), generic_node("h100"))
    assert weight_copy_bytes(work) == pytest.approx(sync_bytes(job, at))


def test_trajectories_are_all_generated_tokens() -> None:
    work = workload()
    assert trajectory_bytes(work) == 4096 * (512 + 4096) * TRAJECTORY_BYTES_PER_TOKEN
    more = replace(work, algorithm=replace(work.algorithm, oversampling_ratio=2.0))
    assert trajectory_bytes(more) == 2 * trajectory_bytes(work)


def test_the_trunk_is_a_floor_of_what_the_trainer_sends() -> None:
    terms = {"sync_gather": np.array([1.0, 1.0]), "sync_send": np.array([0.5, 8.0])}
    assert within_trunk(terms, 4e9, None) is terms
    limited = within_trunk(terms, 4e9, 1e9)
    assert list(limited["sync_send"]) == [4.0, 8.0]
    assert list(limited["sync_gather"]) == [1.0, 1.0]
    assert list(within_trunk(terms, 4e9, 1e12)["sync_send"]) == [0.5, 8.0]
