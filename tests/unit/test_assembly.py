"""What a fixed configuration breaks is said in words of the workload file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.domain.stages import WorkerName
from planner.domain.strategy import Recompute, TrainerStrategy
from planner.pipeline import estimate
from tests.unit.test_pipeline import engine, fixed, qwen_workload, request_on, trainer


@pytest.mark.parametrize(
    ("actor", "expected"),
    [
        (replace(trainer(8), micro_batch_tokens=100), "micro_batch_tokens is 100, below one longest sequence of"),
        (replace(trainer(8), inference_tokens=1), "inference_tokens is 1, below one longest sequence of"),
        (
            replace(trainer(8, pp=8, cp=1, shard_ranks=1), vpp=64),
            "pp x vpp is 512, above the 36 layers of the model",
        ),
    ],
)
def test_a_rule_of_the_cost_model_is_named(actor: TrainerStrategy, expected: str) -> None:
    plan = estimate(
        request_on(qwen_workload()),
        (
            fixed(WorkerName.ROLLOUT_ENGINE, engine(8)),
            fixed(WorkerName.ACTOR_TRAINER, actor),
            fixed(WorkerName.REFERENCE, trainer(8, recompute=Recompute.NONE)),
        ),
    )
    reasons = [item.value for item in plan.assumptions if item.what == "does not fit"]
    assert any(reason.startswith(f"actor trainer: {expected}") for reason in reasons), reasons


def test_an_engine_without_room_is_named() -> None:
    plan = estimate(
        request_on(qwen_workload()),
        (
            fixed(WorkerName.ROLLOUT_ENGINE, replace(engine(8), tp=1, engine_fraction=0.1)),
            fixed(WorkerName.ACTOR_TRAINER, trainer(8)),
            fixed(WorkerName.REFERENCE, trainer(8, recompute=Recompute.NONE)),
        ),
    )
    reasons = [item.value for item in plan.assumptions if item.what == "does not fit"]
    assert "rollout engine: weights and one longest sequence do not fit the engine's share of GPU memory" in reasons
