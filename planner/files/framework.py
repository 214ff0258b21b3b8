"""Framework rules from planner/adapters/data/*.yaml.

The files are the project's own, so they are checked for what a typing mistake can do (unknown keys, unknown
members) by plain code: pydantic would cost more start time than it saves here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

import yaml

from planner.domain.execution import ExecutionMode, Fusion, SchedulingPolicy, ShardedSync
from planner.domain.framework import FrameworkRules, TrainerBackend
from planner.domain.framework_limits import (
    EngineSite,
    MultipleEpochs,
    OffloadRule,
    OldLogprobNeed,
    ShardedSyncRule,
)
from planner.domain.hardware import Precision
from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import ContextParallel, EngineIdle, ExpertExchange, Offload, Recompute, Sharding
from planner.domain.technique import Support, Technique, TechniqueName
from planner.domain.workload import RewardKind
from planner.errors import InvalidInputError, nearest

DATA = Path(__file__).parent.parent / "adapters" / "data"

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")

_SETS: dict[str, type[StrEnum]] = {
    "shardings": Sharding,
    "inference_shardings": Sharding,
    "context_parallels": ContextParallel,
    "recomputes": Recompute,
    "offloads": Offload,
    "inference_offloads": Offload,
    "workers": WorkerName,
    "engine_idles": EngineIdle,
    "expert_exchanges": ExpertExchange,
    "train_precisions": Precision,
    "rollout_precisions": Precision,
    "supported_stages": StageName,
    "execution_modes": ExecutionMode,
    "fusions": Fusion,
    "engine_idles_apart": EngineIdle,
    "cpu_optimizer_shardings": Sharding,
    "counts_sequences": WorkerName,
    "shared_train_budget": WorkerName,
    "shared_forward_budget": WorkerName,
    "one_token_budget": WorkerName,
    "old_logprob_needs": OldLogprobNeed,
    "reward_kinds": RewardKind,
}
"""Keys whose values are lists of enumeration members."""
_MEMBERS: dict[str, type[StrEnum]] = {
    "policy": SchedulingPolicy,
    "multiple_epochs": MultipleEpochs,
    "site": EngineSite,
    "way": ShardedSync,
}
"""Keys whose value is one member of an enumeration."""
_BUDGET_RANKS = ("tp", "pp", "cp", "ep", "etp")


def framework_names() -> tuple[str, ...]:
    """Names that `load_framework` knows, sorted; no file is opened."""
    return tuple(sorted(path.stem for path in DATA.glob("*.yaml")))


def load_framework(name: str) -> FrameworkRules:
    """The rules of one framework; case, spaces and punctuation of the name do not matter.

    Raises InvalidInputError with the closest names for an unknown one.
    """
    wanted = _key(name)
    known = framework_names()
    match = next((candidate for candidate in known if _key(candidate) == wanted), None)
    if match is None:
        raise InvalidInputError(
            f"unknown framework {name[:60]!r}", accepted=", ".join(known), suggestion=nearest(name, known)
        )
    return _load(match)


def load_frameworks() -> tuple[FrameworkRules, ...]:
    """All frameworks, by name."""
    return tuple(_load(name) for name in framework_names())


def _key(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


@cache
def _load(name: str) -> FrameworkRules:
    path = DATA / f"{name}.yaml"
    # The loader builds plain values only.
    raw = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    where = path.name
    values = _mapping(raw, where)
    backends = tuple(
        _build(TrainerBackend, _mapping(item, where), f"{where}: backends[{i}]", {})
        for i, item in enumerate(_list(values.pop("backends", None), f"{where}: backends"))
    )
    extra: dict[str, object] = {
        "backends": backends,
        "algorithms": frozenset(map(str, _list(values.pop("algorithms", None), f"{where}: algorithms"))),
        "model_architectures": frozenset(map(str, _list(values.pop("model_architectures", []), where))),
        "offload_rules": tuple(
            _offload_rule(_mapping(item, where), f"{where}: offload_rules[{i}]")
            for i, item in enumerate(_list(values.pop("offload_rules", []), f"{where}: offload_rules"))
        ),
        "sharded_syncs": tuple(
            _sharded_sync(_mapping(item, where), f"{where}: sharded_syncs[{i}]")
            for i, item in enumerate(_list(values.pop("sharded_syncs", []), f"{where}: sharded_syncs"))
        ),
        "must_share": _worker_sets(values.pop("must_share", None), f"{where}: must_share"),
        "may_share": _worker_sets(values.pop("may_share", None), f"{where}: may_share"),
        "indivisible_shares": _worker_sets(values.pop("indivisible_shares", []), f"{where}: indivisible_shares"),
        "techniques": _techniques(values.pop("techniques", {}), f"{where}: techniques"),
        "evidence": tuple((k, str(v)) for k, v in _mapping(values.pop("evidence", None), where).items()),
    }
    return _build(FrameworkRules, values, where, extra)


def _offload_rule(values: dict[str, object], where: str) -> OffloadRule:
    extra: dict[str, object] = {
        "backends": frozenset(map(str, _list(values.pop("backends", None), f"{where}: backends"))),
        "reason": str(values.pop("reason", "")),
    }
    return _build(OffloadRule, values, where, extra)


def _sharded_sync(values: dict[str, object], where: str) -> ShardedSyncRule:
    extra: dict[str, object] = {
        "backends": frozenset(map(str, _list(values.pop("backends", None), f"{where}: backends")))
    }
    return _build(ShardedSyncRule, values, where, extra)


def _build(target: Callable[..., T], values: dict[str, object], where: str, extra: dict[str, object]) -> T:
    members = fields(cast("type[FrameworkRules]", target))
    known = [field.name for field in members]
    for key in values:
        if key not in known:
            raise InvalidInputError(f"unknown key {key!r}", where=where, suggestion=nearest(key, known))
    required = [field.name for field in members if field.default is MISSING]
    missing = [key for key in required if key not in values and key not in extra]
    if missing:
        raise InvalidInputError(f"{', '.join(missing)} missing", where=where)
    built = {key: _value(key, value, f"{where}: {key}") for key, value in values.items()}
    return target(**built, **extra)


def _value(key: str, value: object, where: str) -> object:
    if key in _SETS:
        return _members(_SETS[key], value, where)
    if key in ("name", "title", "version"):
        return str(value)
    if key == "ep_architectures":
        return frozenset(map(str, _list(value, where)))
    if key in _MEMBERS:
        return next(iter(_members(_MEMBERS[key], [value], where)))
    if key == "budget_ranks":
        ranks = tuple(map(str, _list(value, where)))
        if not set(ranks) <= set(_BUDGET_RANKS):
            raise InvalidInputError(f"{value!r} is not accepted", where=where, accepted=", ".join(_BUDGET_RANKS))
        return ranks
    if not isinstance(value, int):
        raise InvalidInputError(f"{value!r} is not accepted", where=where, accepted="a whole number, true or false")
    return value


def _members(kind: type[E], value: object, where: str) -> frozenset[E]:
    known = [str(member) for member in kind]
    result: set[E] = set()
    for item in _list(value, where):
        if item not in known:
            raise InvalidInputError(f"unknown {item!r}", where=where, accepted=", ".join(known))
        result.add(kind(str(item)))
    return frozenset(result)


def _worker_sets(value: object, where: str) -> tuple[frozenset[WorkerName], ...]:
    return tuple(_members(WorkerName, item, where) for item in _list(value, where))


def _techniques(value: object, where: str) -> tuple[Technique, ...]:
    cells: dict[TechniqueName, Technique] = {}
    for key, item in _mapping(value, where).items():
        (name,) = _members(TechniqueName, [key], where)
        cell = {field: str(text) for field, text in _mapping(item, f"{where}: {key}").items()}
        if set(cell) != {"support", "how", "evidence"}:
            raise InvalidInputError("needs support, how and evidence", where=f"{where}: {key}")
        (support,) = _members(Support, [cell["support"]], f"{where}: {key}")
        cells[name] = Technique(name=name, support=support, how=cell["how"], evidence=cell["evidence"])
    return tuple(cells[name] for name in TechniqueName if name in cells)


def _mapping(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InvalidInputError("keys and values expected", where=where)
    return {str(key): item for key, item in value.items()}


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise InvalidInputError("a list expected", where=where)
    return list(value)
