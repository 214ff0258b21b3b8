"""calibrate(): from logs with their configurations to a profile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.calibration.engines import EngineSetup, EngineSource
from planner.calibration.fit import FitResult, Verdict, fit
from planner.calibration.links import LinkSource
from planner.calibration.parameters import Key, unknown
from planner.calibration.runs import RunSource
from planner.calibration.setup import RunSetup
from planner.calibration.source import Source
from planner.domain.hardware import NodeType
from planner.domain.overheads import Overheads
from planner.domain.profile import Profile, ProfileSource, ProfileValue
from planner.errors import InvalidInputError
from planner.files.bench_logs import EngineBench, LinkBench
from planner.files.run_logs import RunLog

SURPRISING_SDS = 2.0
"""Prior deviations from the catalog beyond which a value is worth a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that is known: runs with their configurations, links with their nodes, engines with their layout."""

    runs: tuple[tuple[RunLog, RunSetup], ...] = ()
    links: tuple[tuple[LinkBench, NodeType], ...] = ()
    engines: tuple[tuple[EngineBench, EngineSetup], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The outcome: the profile with what could be told, the verdict on every parameter, and the errors."""

    profile: Profile
    result: FitResult
    notes: tuple[str, ...]
    """Logs that could not be used, and why; values that are hard to believe."""

    @property
    def identified(self) -> tuple[Verdict, ...]:
        return tuple(item for item in self.result.verdicts if item.is_identified)


def calibrate(evidence: Evidence, overheads: Overheads, *, date: str = "") -> Calibration:
    """Fits what the evidence can tell, starting from `overheads` (the catalog's) and the catalog's hardware.

    Raises InvalidInputError when nothing can be used; benchmarks that do not say enough are skipped and named.
    """
    sources: list[tuple[Source, ProfileSource]] = []
    skipped: list[str] = []
    seen: dict[str, str] = {}
    has_several = len({log.sha256 for log, _ in evidence.runs}) > 1
    for log, setup in evidence.runs:
        if log.sha256 in seen:
            skipped.append(f"{log.file}: is the same as {seen[log.sha256]}")
            continue
        seen[log.sha256] = log.file
        # What a configuration has of its own shows only where the whole run is left out.
        run = RunSource(log, setup, overheads, is_one_fold=has_several)
        sources.append((run, _source(log.file, log.sha256, f"run of {log.kind.value}", run.num_used)))
    for bench, node in evidence.links:
        try:
            link = LinkSource(bench, node)
        except InvalidInputError as error:
            skipped.append(str(error))
            continue
        sources.append((link, _source(bench.file, bench.sha256, f"nccl-tests {bench.test.value}", link.num_used)))
    for engine_bench, engine_setup in evidence.engines:
        try:
            engine = EngineSource(engine_bench, engine_setup, overheads)
        except InvalidInputError as error:
            skipped.append(str(error))
            continue
        kind = engine_bench.kind.value
        sources.append((engine, _source(engine_bench.file, engine_bench.sha256, kind, engine.num_used)))
    if not sources:
        raise InvalidInputError("; ".join(skipped) or "no log was given", accepted="logs with seconds per stage")
    keys: dict[Key, None] = {}
    for source, _ in sources:
        keys |= dict.fromkeys(source.keys)
    result = fit([source for source, _ in sources], [unknown(key, overheads) for key in keys])
    profile = Profile(
        values=tuple(_value(item) for item in result.verdicts if item.is_identified),
        sources=_merged([item for _, item in sources]),
        date=date,
    )
    return Calibration(profile=profile, result=result, notes=(*skipped, *_surprises(result)))


def _surprises(result: FitResult) -> tuple[str, ...]:
    """Values that are so far from the catalog's that the configuration is more likely to be wrong."""
    return tuple(
        f"{item.unknown.key.parameter.value.replace('_', ' ')} is {item.value / item.unknown.catalog:.2f} times the "
        "catalog's, which is rare: is the configuration the one that ran?"
        for item in result.verdicts
        if item.is_identified
        and abs(math.log(item.value / item.unknown.catalog)) > SURPRISING_SDS * item.unknown.prior_log_sd
    )


def _source(file: str, sha256: str, kind: str, num_used: int) -> ProfileSource:
    return ProfileSource(name=Path(file).name, sha256=sha256, kind=kind, num_used=num_used)


def _merged(items: Sequence[ProfileSource]) -> tuple[ProfileSource, ...]:
    """One entry per file and kind."""
    counts: dict[tuple[str, str, str], int] = {}
    for item in items:
        key = (item.name, item.sha256, item.kind)
        counts[key] = counts.get(key, 0) + item.num_used
    return tuple(ProfileSource(name=n, sha256=s, kind=k, num_used=num) for (n, s, k), num in counts.items())


def _value(item: Verdict) -> ProfileValue:
    key = item.unknown.key
    return ProfileValue(
        parameter=key.parameter, gpu=key.gpu, value=item.value, low=item.low, high=item.high,
        catalog=item.unknown.catalog,
    )  # fmt: skip
