"""Plan -> JSON and back, without loss and with the same bytes for the same plan.

Keys are sorted, numbers are in one canonical form (an integral float is written as an integer), and nothing
depends on when or where the plan was made. `inputs` embeds the complete workload, cluster and limits, so that a
saved plan needs no catalog. Every section has a digest: a plan that was changed by hand is not exported.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from planner import __version__
from planner.domain.plan import (
    DeviceGroup,
    GpuMemory,
    HostRam,
    NamedValue,
    Placement,
    Plan,
    ScheduledStage,
    SearchReport,
)
from planner.domain.ranks import rank_map
from planner.domain.strategy import Strategy, TrainerStrategy
from planner.errors import InvalidInputError
from planner.files.atomic import read_limited, write_atomic
from planner.files.problems import raise_all

if TYPE_CHECKING:
    from planner.files.plan_file import PlanFile

FORMAT_VERSION = "1.3"
MAX_BYTES = 64 * 2**20
MAX_DEPTH = 24
MAX_SHOWN = 12
MAX_NUMBER = 1e30
"""Beyond every size, rate or time that a plan holds."""
BAND_REASON = "nothing of the kind was measured"

_CONTROLS = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]


def plan_document(plan: Plan) -> dict[str, Json]:
    """The JSON object of a plan, digests included, without the wall-clock facts of the run."""
    document: dict[str, Json] = {
        "format_version": FORMAT_VERSION,
        "rlplan_version": __version__,
        "status": plan.status.value,
        "objective": {
            "kind": plan.limits.objective.value,
            "value": plan.objective_value,
            "unit": plan.objective_unit,
            "bound": plan.bound,
            "gap_ratio": plan.gap_ratio,
            "unrestricted_value": plan.unrestricted_value,
        },
        "iteration": _iteration(plan),
        "execution": {**_object(plan.execution), "period_s": plan.period_s},
        "staleness_gains": [encode(item) for item in plan.staleness_gains],
        "num_gpus": plan.num_gpus,
        "device_groups": [_group(group) for group in plan.device_groups],
        "links": [encode(item) for item in plan.links],
        "rank_map": [encode(item) for item in rank_map(plan)],
        "placements": [_placement(plan, placement) for placement in plan.placements],
        "schedule": [_scheduled(item) for item in plan.schedule],
        "search": _search(plan.search),
        "alternatives": [encode(item) for item in plan.alternatives],
        "frameworks": [encode(item) for item in plan.frameworks],
        "assumptions": [encode(item) for item in plan.assumptions],
        "bands": {"time": encode(plan.time_band), "memory": encode(plan.memory_band)},
        "inputs": {
            "workload": encode(plan.workload),
            "cluster": encode(plan.cluster),
            "limits": encode(plan.limits),
        },
    }
    canonical = _canonical(document)
    assert isinstance(canonical, dict)
    canonical["digests"] = digests(canonical)
    return canonical


def plan_text(plan: Plan) -> str:
    """The saved form of a plan."""
    return _dump(plan_document(plan)) + "\n"


def json_output(plan: Plan, extra: dict[str, Json] | None = None) -> str:
    """What `--json` prints: the saved form and, under `run`, the wall-clock facts of this run.

    `extra` are further keys that are printed but never saved.
    """
    document = plan_document(plan)
    if plan.run is not None:
        document["run"] = _canonical(encode(plan.run))
    if extra:
        document.update({key: _canonical(value) for key, value in extra.items()})
    return _dump(document) + "\n"


def plan_digest(plan: Plan) -> str:
    """SHA-256 over the saved plan, as hexadecimal; equal for equal plans."""
    return _plan_digest(plan_document(plan))


def write_plan(plan: Plan, path: Path) -> None:
    """Saves a plan; the file is complete or not there. Raises InvalidInputError if it cannot be written."""
    write_atomic(path, plan_text(plan).encode())


def read_plan(path: Path) -> Plan:
    """The plan in a file; raises InvalidInputError that names the place when the file is no intact plan."""
    return parse_plan(read_limited(path, MAX_BYTES, kind="plan file"), where=str(path))


def parse_plan(text: str, *, where: str) -> Plan:
    """The plan in a JSON text; `where` names its origin in messages."""
    document = _parse_json(text, where)
    _check_version(document, where)
    _check_values(document, where, "", 0)
    from planner.files.plan_file import validate

    file = validate(text, where=where)
    _check_digests(document, where)
    return _consistent(file, document, where)


def gpu_hours(plan: Plan) -> float:
    """GPU-hours per iteration of the whole nodes used."""
    nodes = plan.num_nodes_used
    return plan.time_s * sum(plan.cluster.pool(name).node.gpus_per_node * n for name, n in nodes.items()) / 3600.0


def encode(value: object) -> Json:
    """A domain value as JSON: dataclasses become objects of their fields, tuples lists, enumerations values."""
    if isinstance(value, StrEnum):
        return value.value
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if is_dataclass(value):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} has no JSON form")


# ---------------------------------------------------------------------------------------------- writing


def _object(value: object) -> dict[str, Json]:
    encoded = encode(value)
    assert isinstance(encoded, dict)
    return encoded


def _iteration(plan: Plan) -> dict[str, Json]:
    return {
        "time_s": plan.time_s,
        "time_band_s": _time_band(plan),
        "time_band_reason": BAND_REASON if plan.time_band is None else plan.time_band.basis,
        "usd": plan.usd,
        "gpu_hours": gpu_hours(plan),
        "tokens_per_s_per_gpu": plan.tokens_per_s_per_gpu,
        "staleness": plan.execution.staleness,
    }


def _time_band(plan: Plan) -> Json:
    band = plan.time_band
    return None if band is None else [band.low_ratio * plan.time_s, band.high_ratio * plan.time_s]


def _group(group: DeviceGroup) -> dict[str, Json]:
    return {
        "id": group.id,
        "pool": group.pool,
        "gpu": group.gpu,
        "first_gpu": group.first_gpu,
        "num_gpus": group.num_gpus,
        "num_nodes": group.num_nodes,
        "ranks": list(group.ranks),
    }


def _placement(plan: Plan, placement: Placement) -> dict[str, Json]:
    memory, host = placement.gpu_memory, placement.host_ram
    return {
        "stage": placement.stage.value,
        "role": placement.role.value,
        "worker": placement.worker.value if placement.worker is not None else None,
        "model": placement.model,
        "device_group": placement.device_group,
        "strategy": _strategy(placement.strategy),
        "time_s": placement.time_s,
        "bound_by": placement.bound_by,
        "gpu_memory": {
            "instant": memory.instant,
            "verdict": str(plan.memory_verdict(placement)),
            **_peak(memory),
            **_terms(memory.terms),
        }
        if memory
        else None,
        "host_ram": {**_peak(host), **_terms(host.terms)} if host else None,
        **_terms(placement.time_terms),
    }


def _peak(memory: GpuMemory | HostRam) -> dict[str, Json]:
    return {"peak_bytes": memory.peak_bytes, "usable_bytes": memory.usable_bytes}


def _strategy(strategy: Strategy | None) -> Json:
    """Fields and derived degrees. `kind` tells a trainer from an engine."""
    if strategy is None:
        return None
    encoded = encode(strategy)
    assert isinstance(encoded, dict)
    if isinstance(strategy, TrainerStrategy):
        return {"kind": "trainer", "dp": strategy.dp, **encoded}
    return {"kind": "rollout", "dp": strategy.num_engines, "cp": 1, "etp": 1, **encoded}


def _terms(terms: Sequence[NamedValue]) -> dict[str, Json]:
    """Terms by name. JSON objects are sorted here, so their order (and with it the exact sum) is kept beside."""
    values: dict[str, Json] = {term.name: term.value for term in terms}
    if len(values) != len(terms):
        raise ValueError(f"terms are not unique: {[term.name for term in terms]}")
    return {"terms": values, "term_order": [term.name for term in terms]}


def _scheduled(item: ScheduledStage) -> dict[str, Json]:
    return {
        "stage": item.stage.value,
        "device_group": " + ".join(item.device_groups),
        "device_groups": list(item.device_groups),
        "start_s": item.start_s,
        "end_s": item.end_s,
    }


def _search(search: SearchReport) -> dict[str, Json]:
    rejected = _terms(search.num_rejected)
    return {
        "num_priced": search.num_priced,
        "num_rejected": rejected["terms"],
        "rejection_order": rejected["term_order"],
        "num_pruned": search.num_pruned,
        "num_structures": search.num_structures,
        "num_structures_solved": search.num_structures_solved,
        "solver": search.solver,
    }


def _canonical(value: Json) -> Json:
    """The same value with integral floats as integers, so that equal numbers have equal text."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    return value


def _dump(value: Json, indent: str = "") -> str:
    """Indented JSON with sorted keys; a list of plain values stays on one line (ranks of 1,024 GPUs)."""
    if isinstance(value, dict) and value:
        inner = indent + "  "
        items = [f"{inner}{_scalar(key)}: {_dump(value[key], inner)}" for key in sorted(value)]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        inner = indent + "  "
        return "[\n" + ",\n".join(inner + _dump(item, inner) for item in value) + f"\n{indent}]"
    if isinstance(value, list):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    return _scalar(value)


def _scalar(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    # Control characters that JSON allows as they are, and a terminal may obey.
    return _CONTROLS.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


# ---------------------------------------------------------------------------------------------- digests

_NOT_DIGESTED = ("digests", "run")
_NOT_DERIVED = frozenset({"digests", "run", "format_version", "rlplan_version"})


def _digest(value: Json) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _plan_digest(document: dict[str, Json]) -> str:
    return _digest({key: value for key, value in document.items() if key not in _NOT_DIGESTED})


def digests(document: dict[str, Json]) -> dict[str, Json]:
    """One digest over all of a canonical document, and one per section so that a message can name what was changed."""
    sections: dict[str, Json] = {
        key: _digest(value)[:16] for key, value in document.items() if key not in _NOT_DIGESTED
    }
    return {"plan": _plan_digest(document), "sections": sections}


def _check_digests(document: dict[str, Json], where: str) -> None:
    canonical = _canonical(document)
    assert isinstance(canonical, dict)
    stated = canonical.get("digests")
    actual = digests(canonical)
    if stated == actual:
        return
    changed: list[str] = []
    if isinstance(stated, dict) and isinstance(stated.get("sections"), dict):
        before, after = stated["sections"], actual["sections"]
        assert isinstance(before, dict) and isinstance(after, dict)
        changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    raise InvalidInputError(
        f"was changed after it was saved (in {', '.join(changed) or 'digests'}): the digest does not match",
        where=where,
        accepted="a plan as rlplan wrote it; make a new one with rlplan plan",
    )


# ---------------------------------------------------------------------------------------------- reading


def _parse_json(text: str, where: str) -> dict[str, Json]:
    try:
        document = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        # A text that is never closed starts long before the end of the file.
        at_end = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        problem = "is truncated" if at_end else f"is not JSON ({error.msg})"
        raise InvalidInputError(
            f"{problem} at line {error.lineno}, column {error.colno}", where=where, accepted="a plan file"
        ) from None
    except RecursionError:
        raise InvalidInputError("is nested too deeply", where=where, accepted="a plan file") from None
    except ValueError as error:
        # The error of a huge number goes on with advice to Python programmers.
        raise InvalidInputError(
            f"is not a plan: {str(error).split(';')[0]}", where=where, accepted="a plan file"
        ) from None
    if not isinstance(document, dict):
        raise InvalidInputError("is not a JSON object", where=where, accepted="a plan file")
    return document


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [key for key, _ in pairs]
        raise ValueError(f"key {next(n for n in names if names.count(n) > 1)[:60]!r} is given twice")
    return result


def _check_version(document: dict[str, Json], where: str) -> None:
    version = document.get("format_version")
    place = f"{where}: format_version"
    if version is None:
        raise InvalidInputError("is missing, so this is no plan", where=place, accepted="a file from rlplan plan -o")
    parts = version.split(".") if isinstance(version, str) else []
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts):
        raise InvalidInputError(f"{str(version)[:60]!r} is no version", where=place, accepted=FORMAT_VERSION)
    if int(parts[0]) != int(FORMAT_VERSION.split(".")[0]):
        raise InvalidInputError(
            f"format {version} is not readable by rlplan {__version__}",
            where=place,
            accepted=f"{FORMAT_VERSION.split('.')[0]}.x; update rlplan or make the plan anew",
        )


def _check_values(value: Json, where: str, path: str, depth: int) -> None:
    """Refuses deep nesting and numbers that JSON allows but no plan holds (1e999, a hundred digits)."""
    if depth > MAX_DEPTH:
        raise InvalidInputError("is nested too deeply", where=f"{where}: {path[:80]}")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInputError("is not a finite number", where=f"{where}: {path}")
    if isinstance(value, int | float) and abs(value) > MAX_NUMBER:
        raise InvalidInputError("is too large a number", where=f"{where}: {path}")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_values(item, where, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_values(item, where, f"{path}[{index}]", depth + 1)


def _consistent(file: PlanFile, document: dict[str, Json], where: str) -> Plan:
    """The plan of a file whose parts agree; raises InvalidInputError with everything that does not."""
    from planner.files.plan_checks import input_problems, reference_problems, value_problems

    # Each step relies on what the ones before it have found to be right.
    _refuse(input_problems(file.inputs.workload, file.inputs.cluster), where)
    _refuse(reference_problems(file), where)
    plan = _to_plan(file)
    _refuse(value_problems(plan), where)
    _refuse(tuple(_contradictions("", document, plan_document(plan))), where)
    return plan


def _refuse(problems: tuple[str, ...], where: str) -> None:
    hidden = len(problems) - MAX_SHOWN
    shown = problems[:MAX_SHOWN] + ((f"and {hidden} more",) if hidden > 0 else ())
    raise_all([f"{where}: {problem}" for problem in shown])


def _contradictions(path: str, stated: Json, derived: Json) -> Iterator[str]:
    """Where a file says other than what follows from the rest of it; keys that only one side has are left out."""
    if isinstance(stated, dict) and isinstance(derived, dict):
        for key in sorted(stated.keys() & derived.keys() - _NOT_DERIVED):
            yield from _contradictions(f"{path}.{key}" if path else key, stated[key], derived[key])
    elif isinstance(stated, list) and isinstance(derived, list) and len(stated) == len(derived):
        for index, (first, second) in enumerate(zip(stated, derived, strict=True)):
            yield from _contradictions(f"{path}[{index}]", first, second)
    elif isinstance(stated, int | float) and isinstance(derived, int | float):
        if not math.isclose(stated, derived, rel_tol=1e-9, abs_tol=1e-12):
            yield f"{path}: {stated:g}, but {derived:g} follows from the rest of the plan"
    elif stated != derived:
        yield f"{path}: does not follow from the rest of the plan"


def _to_plan(file: PlanFile) -> Plan:
    """The domain plan of a validated file. Derived numbers (times, peaks, gaps) are recomputed, not copied."""
    return Plan(
        status=file.status,
        workload=file.inputs.workload,
        cluster=file.inputs.cluster,
        limits=file.inputs.limits,
        objective_unit=file.objective.unit,
        objective_value=file.objective.value,
        bound=file.objective.bound,
        device_groups=tuple(group.to_domain() for group in file.device_groups),
        placements=tuple(placement.to_domain() for placement in file.placements),
        schedule=tuple(item.to_domain() for item in file.schedule),
        search=file.search.to_domain(),
        alternatives=tuple(file.alternatives),
        frameworks=tuple(file.frameworks),
        assumptions=tuple(file.assumptions),
        time_band=file.bands.time,
        memory_band=file.bands.memory,
        execution=file.execution.to_domain(),
        period_s=file.execution.period_s,
        staleness_gains=tuple(file.staleness_gains),
        unrestricted_value=file.objective.unrestricted_value,
        links=tuple(file.links),
        run=file.run,
    )
