"""Permissions: overlap, order, sharing and what is fixed, as flags and files give them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.domain.execution import Fusion, SchedulingPolicy
from planner.domain.fixed import FixedField
from planner.domain.stages import WorkerName
from planner.errors import InvalidInputError
from planner.files.permissions import Permissions, read_permissions
from planner.files.problems import Problems
from planner.files.spec import WorkloadSpec
from planner.files.workload import build_request

ACTOR, ENGINE, REFERENCE = WorkerName.ACTOR_TRAINER, WorkerName.ROLLOUT_ENGINE, WorkerName.REFERENCE


def read(**given: object) -> Permissions:
    problems = Problems()
    result = read_permissions(WorkloadSpec(**given), problems)  # type: ignore[arg-type]
    problems.raise_if_any()
    return result


def refused(**given: object) -> str:
    with pytest.raises(InvalidInputError) as caught:
        read(**given)
    return str(caught.value)


def test_nothing_that_changes_learning_is_permitted_unasked() -> None:
    found = read()
    assert found.max_staleness == 0 and not found.allow_partial_rollouts
    assert found.fusions == (Fusion.INTER_STAGE,) and found.policy is None
    assert not found.must_share and not found.must_not_share and not found.fixed


def test_all_permissions_are_read() -> None:
    found = read(
        staleness=2, allow=("partial-rollouts",), fusion="all", policy="FIFO", share=("actor+reference",),
        apart=("rollout+actor trainer",), fix=("actor: tp=8, recompute=full", "rollout: idle=sleep"), alternatives=0,
    )  # fmt: skip
    assert found.max_staleness == 2 and found.allow_partial_rollouts
    assert found.fusions == (Fusion.INTER_STAGE, Fusion.INTRA_STAGE)
    assert found.policy is SchedulingPolicy.FIFO
    assert found.must_share == ((ACTOR, REFERENCE),)
    assert found.must_not_share == ((ENGINE, ACTOR),)
    assert found.fixed == (
        FixedField(worker=ACTOR, field="tp", value="8"),
        FixedField(worker=ACTOR, field="recompute", value="full"),
        FixedField(worker=ENGINE, field="idle", value="sleep"),
    )
    assert found.num_alternatives == 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"staleness": -1}, "--staleness: -1 is out of range"),
        ({"staleness": 65}, "from 0 to 64"),
        ({"allow": ("partial-rollouts",)}, "need a staleness of at least 1"),
        ({"allow": ("lora",), "staleness": 1}, "'lora' is not known"),
        ({"fusion": "intre"}, "did you mean 'inter'"),
        ({"policy": "lifo"}, "accepted: planned, fifo, sequential"),
        ({"share": ("actor",)}, "names one worker"),
        ({"apart": ("actor+critik",)}, "did you mean 'critic'"),
        ({"fix": ("actor tp=8",)}, "names no worker"),
        ({"fix": ("actor:",)}, "fixes nothing"),
        ({"fix": ("actor: tq=8",)}, "no field of the actor trainer"),
        ({"fix": ("actor: recompute=some",)}, "recompute 'some' is not known"),
        ({"fix": ("rollout: tp=-2",)}, "no number above 0"),
        ({"fix": ("rollout: tp=nan",)}, "no number above 0"),
        ({"fix": ("rollout: cp=2",)}, "no field of the rollout engine"),
        ({"alternatives": 51}, "from 0 to 50"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, object], words: str) -> None:
    assert words in refused(**{**given, "flags": frozenset(given)})


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (WorkloadSpec(share=("actor+critic",)), "--share: this workload has no critic trainer"),
        (WorkloadSpec(fix=("critic: tp=8",)), "--fix: this workload has no critic trainer"),
        (WorkloadSpec(apart=("actor+reference",), kl_coefficient=0.0), "--apart: this workload has no reference"),
        (WorkloadSpec(apart=("actor+reward",), reward="rule"), "--apart: this workload has no reward model"),
        (
            WorkloadSpec(share=("actor+reference",), apart=("rollout+reference+actor",)),
            "--apart: actor trainer and ref",
        ),
        (WorkloadSpec(fix=("actor: tp=8, tp=4",)), "--fix: tp of the actor trainer is 8 and 4"),
        (
            WorkloadSpec(policy="planned", framework="verl"),
            "controller of verl waits for each stage before it starts the next; accepted: sequential, the default",
        ),
        (WorkloadSpec(policy="fifo", framework="NeMo RL"), "--policy: fifo: the controller of NeMo-RL waits"),
        (WorkloadSpec(policy="planned", framework="openrlhf"), "accepted: fifo, the default with OpenRLHF"),
        (WorkloadSpec(fix=("actor: tp=8", "actor trainer: tp=4")), "--fix: tp of the actor trainer is 8 and 4"),
    ],
)
def test_what_can_never_be_kept_is_refused(spec: WorkloadSpec, expected: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        build_request(replace(spec, model="qwen3-8b", gpus="16xh100"))
    assert expected in str(refused.value)


def test_what_holds_for_other_algorithms_is_kept() -> None:
    spec = WorkloadSpec(model="qwen3-8b", gpus="16xh100", algorithm="ppo", share=("actor+critic",))
    fixed = build_request(replace(spec, fix=("critic: tp=8", "critic trainer: tp=8"))).limits.fixed
    assert {(item.worker, item.value) for item in fixed} == {(WorkerName.CRITIC_TRAINER, "8")}


def test_orders_that_the_controller_of_a_framework_has() -> None:
    def asked(policy: str, framework: str) -> SchedulingPolicy | None:
        spec = WorkloadSpec(model="qwen3-8b", gpus="8xh100", policy=policy, framework=framework)
        return build_request(spec).limits.policy

    assert asked("sequential", "verl") is SchedulingPolicy.SEQUENTIAL
    assert asked("sequential", "openrlhf") is SchedulingPolicy.SEQUENTIAL
    assert asked("fifo", "openrlhf") is SchedulingPolicy.FIFO
