"""Conflicts are irreducible, and every way out has a plan."""

from dataclasses import replace

import pytest

from planner.domain.fixed import FixedField
from planner.domain.plan import Limits
from planner.domain.request import PlanRequest
from planner.domain.stages import WorkerName
from planner.errors import InvalidInputError
from planner.explaining.conflict import explain_conflict
from planner.explaining.remedies import RemedyKind, Topic
from tests.unit.explaining.cases import REQUESTS, planned, request_on, work

TRAINER = WorkerName.ACTOR_TRAINER


def _fixed(*pairs: tuple[str, str]) -> Limits:
    return Limits(fixed=tuple(FixedField(worker=TRAINER, field=field, value=value) for field, value in pairs))


def test_a_request_with_a_plan_has_no_conflict() -> None:
    assert explain_conflict(REQUESTS["dense"]) is None


def test_an_open_cluster_is_refused() -> None:
    request = REQUESTS["dense"]
    assert request.cluster is not None
    node = request.cluster.pools[0].node
    with pytest.raises(InvalidInputError, match="needs a cluster"):
        explain_conflict(replace(request, cluster=None, gpu_type_when_open=node))


def test_memory_and_number_of_gpus() -> None:
    request = request_on(work("qwen3-32b"), 1, "h100", Limits(), per_node=2)
    found = explain_conflict(request)
    assert found is not None
    assert {item.topic for item in found.constraints} <= {
        Topic.GPU_MEMORY,
        Topic.NUM_GPUS,
        Topic.HOST_RAM,
        Topic.MARGIN,
    }
    assert any(item.topic is Topic.NUM_GPUS for item in found.constraints)
    assert any("usable" in problem or "together" in problem for problem in found.problems)
    assert any(item.kind is RemedyKind.HARDWARE for item in found.remedies)


def test_a_deadline_beside_a_fixed_strategy() -> None:
    """The deadline is met without the fixed strategy, and the fixed strategy without the deadline."""
    base = REQUESTS["dense"]
    free, slow = planned(base), planned(replace(base, limits=_fixed(("num_gpus", "2"))))
    assert free is not None and slow is not None and slow.time_s > free.time_s * 1.05
    limits = replace(_fixed(("num_gpus", "2"), ("recompute", "full")), max_iteration_s=free.time_s * 1.2)
    request = replace(base, limits=limits)
    assert planned(request) is None
    found = explain_conflict(request)
    assert found is not None
    words = [item.what for item in found.constraints]
    assert any("deadline" in word for word in words)
    assert any("num_gpus=2" in word for word in words)
    assert not any("recompute" in word for word in words)
    assert {item.what for item in found.remedies if item.kind is RemedyKind.LIMIT} >= {
        "without 'actor trainer: num_gpus=2' in --fix"
    }


def _without(request: PlanRequest, topic: Topic) -> PlanRequest:
    limits = request.limits
    changes = {
        Topic.DEADLINE: replace(limits, max_iteration_s=None),
        Topic.MAX_GPUS: replace(limits, max_gpus=None),
        Topic.BUDGET: replace(limits, max_usd_per_iteration=None),
    }
    return replace(request, limits=changes[topic])


def test_the_limits_of_a_conflict_are_each_necessary() -> None:
    base = REQUESTS["dense"]
    free = planned(base)
    assert free is not None
    # Too few GPUs for the deadline; the budget is no part of it.
    limits = Limits(max_iteration_s=free.time_s * 1.05, max_gpus=4, max_usd_per_iteration=1e6)
    request = replace(base, limits=limits)
    assert planned(request) is None
    found = explain_conflict(request)
    assert found is not None
    assert {item.topic for item in found.constraints} == {Topic.DEADLINE, Topic.MAX_GPUS}
    for item in found.constraints:
        assert planned(_without(request, item.topic)) is not None
    assert planned(_without(request, Topic.BUDGET)) is None
    assert all(item.is_own for item in found.constraints)


def test_shorter_responses_are_as_long_as_they_can_be() -> None:
    base = REQUESTS["dense"]
    free = planned(base)
    assert free is not None
    request = replace(base, limits=Limits(max_iteration_s=free.time_s * 0.6))
    found = explain_conflict(request)
    assert found is not None
    shorter = next(item for item in found.remedies if item.kind is RemedyKind.WORKLOAD)
    words = shorter.what.split()
    longest, mean = int(words[1]), float(words[3])
    law = base.workload.response

    def at(max_tokens: int, mean_tokens: float) -> PlanRequest:
        response = replace(law, max_tokens=max_tokens, mean_tokens=mean_tokens)
        return replace(request, workload=replace(request.workload, response=response))

    assert planned(at(longest, mean)) is not None
    more = longest + law.max_tokens // 16
    assert planned(at(more, mean * more / longest)) is None
    assert shorter.found is not None and request.limits.max_iteration_s is not None
    assert shorter.found.time_s <= request.limits.max_iteration_s
    assert any(item.what == "--staleness 1" for item in found.remedies) == (
        planned(replace(request, limits=replace(request.limits, max_staleness=1))) is not None
    )
