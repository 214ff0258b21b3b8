"""Limits on how a plan may run its stages: overlap, order, sharing, and what is fixed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.domain.execution import Fusion, SchedulingPolicy, ShardedSync
from planner.domain.fixed import ENGINE_FIELDS, ENUMERATED, TRAINER_FIELDS, FixedField
from planner.domain.plan import Limits
from planner.domain.stages import WorkerName, build_graph
from planner.domain.workload import Workload
from planner.errors import InvalidInputError, nearest
from planner.files.problems import Problems
from planner.files.spec import WorkloadSpec

MAX_STALENESS = 64
MAX_ALTERNATIVES = 50
PARTIAL_ROLLOUTS = "partial-rollouts"
FUSIONS: dict[str, tuple[Fusion, ...]] = {
    "none": (),
    "inter": (Fusion.INTER_STAGE,),
    "all": (Fusion.INTER_STAGE, Fusion.INTRA_STAGE),
}
SYNCS: dict[str, tuple[ShardedSync, ...]] = {
    "full": (),
    "micro-groups": (ShardedSync.MICRO_GROUPS,),
    "shard-to-shard": (ShardedSync.SHARD_TO_SHARD,),
    "shards": tuple(ShardedSync),
}
WORKERS: dict[str, WorkerName] = {
    "rollout": WorkerName.ROLLOUT_ENGINE,
    "actor": WorkerName.ACTOR_TRAINER,
    "reference": WorkerName.REFERENCE,
    "critic": WorkerName.CRITIC_TRAINER,
    "reward": WorkerName.REWARD_MODEL,
} | {name.value: name for name in WorkerName if name is not WorkerName.SECOND_ENGINE}
"""Short and full names of workers; what is asked of the rollout engine holds for a second group of engines too."""
_NUM_SHORT = 5
_SHOWN = 60

Workers = tuple[WorkerName, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """What `planner.domain.plan.Limits` takes over."""

    max_staleness: int
    allow_partial_rollouts: bool
    fusions: tuple[Fusion, ...]
    sharded_syncs: tuple[ShardedSync, ...]
    policy: SchedulingPolicy | None
    must_share: tuple[tuple[WorkerName, ...], ...]
    must_not_share: tuple[tuple[WorkerName, ...], ...]
    fixed: tuple[FixedField, ...]
    num_alternatives: int


def read_permissions(spec: WorkloadSpec, problems: Problems) -> Permissions:
    """The permissions that a spec gives, noting every problem."""
    share, apart = _worker_sets(spec, problems, "share"), _worker_sets(spec, problems, "apart")
    fixed = tuple(item for text in spec.fix for item in _fixed(spec, problems, text))
    _check_sets(spec, problems, share, apart)
    _check_fixed(spec, problems, fixed)
    return Permissions(
        max_staleness=_count(spec, problems, "staleness", 0, MAX_STALENESS) or 0,
        allow_partial_rollouts=_allows_partial_rollouts(spec, problems),
        fusions=FUSIONS[_choice(spec, problems, "fusion", tuple(FUSIONS)) or "inter"],
        sharded_syncs=SYNCS[_choice(spec, problems, "sync", tuple(SYNCS)) or "full"],
        policy=_policy(spec, problems),
        must_share=share,
        must_not_share=apart,
        fixed=fixed,
        num_alternatives=_given(_count(spec, problems, "alternatives", 0, MAX_ALTERNATIVES), 5),
    )


_FREEDOM = (SchedulingPolicy.SEQUENTIAL, SchedulingPolicy.FIFO, SchedulingPolicy.PLANNED)
"""Controllers, each with the orders of all before it and more."""
_CONTROLLERS = {
    SchedulingPolicy.SEQUENTIAL: "waits for each stage before it starts the next",
    SchedulingPolicy.FIFO: "starts stages in the order in which they become ready",
}


def check_policy(
    spec: WorkloadSpec, problems: Problems, policy: SchedulingPolicy | None, framework: str | None
) -> None:
    """Notes an order of stages that the framework's controller does not have: no plan with it could be exported."""
    if policy is None or framework is None:
        return
    from planner.files.framework import load_framework

    rules = load_framework(framework)
    if _FREEDOM.index(policy) <= _FREEDOM.index(rules.policy):
        return
    works = f"{rules.policy.value}, the default with {rules.title}"
    message = f"{policy.value}: the controller of {rules.title} {_CONTROLLERS[rules.policy]}"
    _fail(spec, problems, "policy", message, works)


def check_workers(spec: WorkloadSpec, problems: Problems, permitted: Limits, workload: Workload) -> None:
    """Notes what is asked of workers that the workload does not have: it would never be kept."""
    known = {worker.name for worker in build_graph(workload).workers}
    names = ", ".join(short for short, name in list(WORKERS.items())[:_NUM_SHORT] if name in known)
    asked = {
        "share": {name for members in permitted.must_share for name in members},
        "apart": {name for members in permitted.must_not_share for name in members},
        "fix": {item.worker for item in permitted.fixed},
    }
    for option, workers in asked.items():
        for name in WorkerName:
            if name in workers - known:
                _fail(spec, problems, option, f"this workload has no {name.value}", f"its workers: {names}")


def _check_sets(spec: WorkloadSpec, problems: Problems, share: tuple[Workers, ...], apart: tuple[Workers, ...]) -> None:
    for members in apart:
        for together in share:
            both = " and ".join(name.value for name in members if name in together)
            if len(set(members) & set(together)) > 1:
                _fail(spec, problems, "apart", f"{both} have to share GPUs", f"what {spec.place('share')} leaves open")


def _check_fixed(spec: WorkloadSpec, problems: Problems, fixed: tuple[FixedField, ...]) -> None:
    values: dict[tuple[WorkerName, str], str] = {}
    for item in fixed:
        first = values.setdefault((item.worker, item.field), item.value)
        if first != item.value:
            text = f"{item.field} of the {item.worker.value} is {first} and {item.value}"
            _fail(spec, problems, "fix", text, "one value per field")


def _given(value: int | None, default: int) -> int:
    return default if value is None else value


def _fail(spec: WorkloadSpec, problems: Problems, name: str, message: str, accepted: str, near: str = "") -> None:
    problems.add(InvalidInputError(message, where=spec.place(name), accepted=accepted, suggestion=near))


def _count(spec: WorkloadSpec, problems: Problems, name: str, least: int, most: int) -> int | None:
    value: int | None = getattr(spec, name)
    if value is not None and not least <= value <= most:
        _fail(spec, problems, name, f"{value} is out of range", f"an integer from {least} to {most}")
        return None
    return value


def _choice(spec: WorkloadSpec, problems: Problems, name: str, known: tuple[str, ...]) -> str | None:
    value: str | None = getattr(spec, name)
    if value is None or value.lower() in known:
        return None if value is None else value.lower()
    near = nearest(value, known)
    _fail(spec, problems, name, f"{value[:_SHOWN]!r} is not known", ", ".join(known), near)
    return None


def _policy(spec: WorkloadSpec, problems: Problems) -> SchedulingPolicy | None:
    value = _choice(spec, problems, "policy", tuple(policy.value for policy in SchedulingPolicy))
    return None if value is None else SchedulingPolicy(value)


def _allows_partial_rollouts(spec: WorkloadSpec, problems: Problems) -> bool:
    given = [item.strip().lower() for text in spec.allow for item in text.split(",")]
    for item in given:
        if item != PARTIAL_ROLLOUTS:
            _fail(spec, problems, "allow", f"{item[:_SHOWN]!r} is not known", PARTIAL_ROLLOUTS)
    allowed = PARTIAL_ROLLOUTS in given
    if allowed and not spec.staleness:
        _fail(spec, problems, "allow", "partial rollouts need a staleness of at least 1", "--staleness 1 or more")
    return allowed


def _worker(spec: WorkloadSpec, problems: Problems, name: str, text: str) -> WorkerName | None:
    found = WORKERS.get(" ".join(text.lower().split()))
    if found is None:
        known = tuple(WORKERS)
        _fail(
            spec, problems, name, f"{text[:_SHOWN]!r} is no worker", ", ".join(known[:_NUM_SHORT]), nearest(text, known)
        )
    return found


def _worker_sets(spec: WorkloadSpec, problems: Problems, name: str) -> tuple[tuple[WorkerName, ...], ...]:
    result = []
    for text in getattr(spec, name):
        members = [_worker(spec, problems, name, part) for part in text.split("+")]
        distinct = tuple(worker for worker in WorkerName if worker in members)
        if None not in members and len(distinct) < 2:
            _fail(spec, problems, name, f"{text[:_SHOWN]!r} names one worker", "two or more, such as actor+reference")
        elif None not in members:
            result.append(distinct)
    return tuple(result)


def _fixed(spec: WorkloadSpec, problems: Problems, text: str) -> list[FixedField]:
    """`'actor: tp=8, recompute=full'`"""
    head, colon, rest = text.partition(":")
    example = "such as 'actor: tp=8, recompute=full'"
    if not colon:
        _fail(spec, problems, "fix", f"{text[:_SHOWN]!r} names no worker", example)
        return []
    worker = _worker(spec, problems, "fix", head)
    if worker is None:
        return []
    known = ENGINE_FIELDS if worker is WorkerName.ROLLOUT_ENGINE else TRAINER_FIELDS
    result = []
    for part in rest.replace(",", " ").split():
        field, _, value = part.partition("=")
        if field not in known:
            _fail(
                spec, problems, "fix", f"{field[:_SHOWN]!r} is no field of the {worker.value}", ", ".join(known),
                nearest(field, known),
            )  # fmt: skip
        elif field in ENUMERATED and value not in ENUMERATED[field]:
            choices = ENUMERATED[field]
            message = f"{field} {value[:_SHOWN]!r} is not known"
            _fail(spec, problems, "fix", message, ", ".join(choices), nearest(value, choices))
        elif field not in ENUMERATED and not _is_number(value):
            _fail(spec, problems, "fix", f"{field} {value[:_SHOWN]!r} is no number above 0", example)
        else:
            result.append(FixedField(worker=worker, field=field, value=value))
    if not rest.split():
        _fail(spec, problems, "fix", f"{text[:_SHOWN]!r} fixes nothing", example)
    return result


def _is_number(text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return math.isfinite(value) and value > 0
