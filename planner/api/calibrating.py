"""Functions on a user's own runs: calibration from logs, and a plan beside the log of a run of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import InvalidInputError
from planner.files.spec import WorkloadSpec, override

if TYPE_CHECKING:
    from planner.calibration.calibrate import Calibration, Evidence
    from planner.calibration.compare import Comparison
    from planner.calibration.engines import EngineSetup
    from planner.calibration.setup import RunSetup
    from planner.domain.execution import Execution
    from planner.domain.hardware import NodeType
    from planner.domain.overheads import Overheads
    from planner.domain.plan import Plan
    from planner.domain.request import FixedWorker, PlanRequest
    from planner.files.bench_logs import EngineBench, LinkBench
    from planner.files.run_logs import RunLog

_WORKLOADS = (".yaml", ".yml")
_COUNTS = re.compile(r"^(?:\s*\d+\s*x)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationOptions:
    """How configurations are read: the framework of scripts (None: workload files by their suffix, scripts by what
    they start), NAME=VALUE texts, the root of files that may be read, and the model."""

    framework: str | None = None
    given: tuple[str, ...] = ()
    root: Path | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationReport:
    """The outcome and the logs of runs behind it, for what was skipped in them."""

    calibration: Calibration
    runs: tuple[RunLog, ...]
    links: tuple[LinkBench, ...]
    assumed: tuple[str, ...]
    """What about the configurations was neither given nor logged."""


def calibrate_logs(
    logs: Sequence[Path],
    configurations: Sequence[Path] = (),
    *,
    spec: WorkloadSpec | None = None,
    options: ConfigurationOptions | None = None,
    date: str = "",
) -> CalibrationReport:
    """Fits a profile to logs of runs and outputs of micro-benchmarks: `rlplan calibrate`.

    One configuration stands for all runs; as many as there are runs belong to them in order. A configuration is a
    saved plan, a workload file with strategies, or what an importer reads. `spec` gives what configurations do not say
    (`gpus`, `response_mean`). Raises InvalidInputError for files that hold nothing, and for missing configurations.
    """
    from planner.calibration.calibrate import calibrate
    from planner.files.catalog import load_overheads
    from planner.files.profile import checked_date

    spec, options = spec or WorkloadSpec(), options or ConfigurationOptions()
    checked_date(date, "--date")
    evidence, assumed = gather(logs, configurations, spec, options)
    return CalibrationReport(
        calibration=calibrate(evidence, load_overheads(), date=date),
        runs=tuple(log for log, _ in evidence.runs),
        links=tuple(bench for bench, _ in evidence.links),
        assumed=assumed,
    )


def gather(
    logs: Sequence[Path], configurations: Sequence[Path], spec: WorkloadSpec, options: ConfigurationOptions
) -> tuple[Evidence, tuple[str, ...]]:
    """(everything that the files say with what it belongs to, what had to be assumed)."""
    from planner.calibration.calibrate import Evidence
    from planner.calibration.links import node_of_device
    from planner.files.bench_logs import read_benches
    from planner.files.run_logs import read_run_log

    runs: list[RunLog] = []
    links: list[LinkBench] = []
    engines: list[EngineBench] = []
    for path in logs:
        log = read_run_log(path)
        if log is not None:
            runs.append(log)
            continue
        found_links, found_engines = read_benches(path)
        if not found_links and not found_engines:
            raise InvalidInputError(
                "holds no seconds per stage and no result of a benchmark", where=str(path)[:200],
                accepted="a log of verl or NeMo-RL, a CSV with stage,seconds, or output of nccl-tests or vllm bench",
            )  # fmt: skip
        links += found_links
        engines += found_engines
    setups = [read_setup(path, spec, options) for path in configurations]
    pairs = _paired(runs, setups)
    node = None if spec.gpus is None else node_named(spec.gpus)
    evidence = Evidence(
        runs=pairs,
        links=tuple((b, node or _node_of(b, setups) or node_of_device(b.gpu, b.file)) for b in links),
        engines=tuple((bench, _engine_setup(bench, setups)) for bench in engines),
    )
    assumed = () if spec.response_mean is not None else tuple(_assumed(log, setup) for log, setup in pairs)
    return evidence, tuple(item for item in assumed if item)


def compare_log(
    configuration: Path,
    log_file: Path,
    *,
    spec: WorkloadSpec | None = None,
    options: ConfigurationOptions | None = None,
) -> tuple[Plan, Comparison]:
    """A configuration and what a log of a run of it says: `rlplan compare`.

    The configuration is a saved plan (`spec.profile` is then the one that it was made with), a workload file with
    strategies, or what an importer reads, as for `calibrate_logs`. For the latter two the logged mean lengths count
    where `spec` gives none. Raises InvalidInputError for files that are none, and for options that a saved plan has no
    use for.
    """
    from planner.calibration.compare import compare
    from planner.files.run_logs import read_run_log

    spec, options = spec or WorkloadSpec(), options or ConfigurationOptions()
    log = read_run_log(log_file)
    if log is None:
        raise InvalidInputError(
            "holds no seconds per stage", where=str(log_file)[:200],
            accepted="a log of verl or NeMo-RL, or a CSV with stage,seconds",
        )  # fmt: skip
    plan, setup, overheads = _planned(configuration, log, spec, options)
    return plan, compare(plan, setup, log, overheads)


def _planned(
    file: Path, log: RunLog, spec: WorkloadSpec, options: ConfigurationOptions
) -> tuple[Plan, RunSetup, Overheads]:
    """What was planned, its configuration, and what it was priced with."""
    from planner.calibration.setup import RunSetup
    from planner.files.calibrated import overheads_with
    from planner.files.catalog import load_overheads

    if _is_plan(file, options):
        from planner.files.plan import read_plan
        from planner.whatif import fixed_workers

        _refuse_others(file, spec, options)
        plan = read_plan(file)
        setup = RunSetup(
            workload=plan.workload, cluster=plan.cluster, workers=fixed_workers(plan), execution=plan.execution
        )
        return plan, setup, overheads_with(spec.profile, plan)
    from planner.calibration.blocks import blocks_of
    from planner.pipeline import estimate

    logged = blocks_of(log.records, 1)[0]
    spec = replace(
        spec,
        response_mean=logged.response_tokens if spec.response_mean is None else spec.response_mean,
        prompt_mean=logged.prompt_tokens if spec.prompt_mean is None else spec.prompt_mean,
    )
    found = _configured(file, spec, options)
    assert found.request.cluster is not None
    setup = RunSetup(
        workload=found.request.workload, cluster=found.request.cluster, workers=found.workers,
        execution=found.execution,
    )  # fmt: skip
    plan = estimate(found.request, found.workers, found.execution)
    return plan, setup, found.request.overheads or load_overheads()


def _is_plan(file: Path, options: ConfigurationOptions) -> bool:
    return file.suffix.lower() == ".json" and options.framework is None


def _refuse_others(file: Path, spec: WorkloadSpec, options: ConfigurationOptions) -> None:
    """A saved plan says all that options could."""
    from planner.files.spec import PLACES

    given = [PLACES[name][0] for name in sorted(spec.flags - {"profile"})]
    given += ["--set"] if options.given else []
    given += [f"--{name}" for name in ("root", "model") if getattr(options, name) is not None]
    if given:
        raise InvalidInputError(
            f"has no effect on {str(file)[:200]}, a saved plan", where=", ".join(given),
            accepted="a plan and --profile, or a workload file or launch script with these options",
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Configured:
    request: PlanRequest
    workers: tuple[FixedWorker, ...]
    execution: Execution


def read_setup(file: Path, spec: WorkloadSpec, options: ConfigurationOptions) -> RunSetup:
    """The configuration in a file; raises InvalidInputError when it is none, or lacks what only the user knows."""
    from planner.calibration.setup import RunSetup, setup_of

    if _is_plan(file, options):
        from planner.files.plan import read_plan
        from planner.whatif import fixed_workers

        plan = read_plan(file)
        return setup_of(plan, fixed_workers(plan), str(file))
    found = _configured(file, spec, options)
    assert found.request.cluster is not None
    return RunSetup(
        workload=found.request.workload, cluster=found.request.cluster, workers=found.workers,
        execution=found.execution,
    )  # fmt: skip


def _configured(file: Path, spec: WorkloadSpec, options: ConfigurationOptions) -> _Configured:
    """A workload file with strategies, or what an importer reads."""
    if file.suffix.lower() in _WORKLOADS and options.framework is None:
        return _workload(file, spec)
    return _imported(file, spec, options)


def _workload(file: Path, spec: WorkloadSpec) -> _Configured:
    from planner.domain.execution import IN_STEP
    from planner.files.fixed import build_fixed_workers
    from planner.files.workload import build_request
    from planner.files.workload_file import read_workload

    given = override(read_workload(file), spec)
    request = build_request(given)
    return _Configured(request=request, workers=build_fixed_workers(given, request), execution=IN_STEP)


def _imported(file: Path, spec: WorkloadSpec, options: ConfigurationOptions) -> _Configured:
    from planner.adapters.import_source import open_source, parse_given, with_accelerator
    from planner.adapters.importers import import_source
    from planner.api.checking import lacking
    from planner.check import as_run, gpus_text, placed
    from planner.files.workload import build_request

    known = with_accelerator(parse_given(options.given, model=options.model), spec.gpus)
    source = open_source(file, given=known, root=options.root)
    imported = import_source(source, (options.framework or "auto").lower())
    missing = lacking(imported, spec)
    if missing is not None:
        raise missing
    request = build_request(override(imported.spec, replace(spec, gpus=gpus_text(imported, spec.gpus or ""))))
    request = as_run(imported, request)
    return _Configured(request=request, workers=placed(imported, request), execution=imported.execution)


def _paired(runs: Sequence[RunLog], setups: Sequence[RunSetup]) -> tuple[tuple[RunLog, RunSetup], ...]:
    if not runs:
        return ()
    if len(setups) == 1:
        return tuple((log, setups[0]) for log in runs)
    if len(setups) != len(runs):
        names = ", ".join(log.file for log in runs[:5])
        raise InvalidInputError(
            f"{len(setups)} configurations for {len(runs)} logs of runs ({names})", where="--config",
            accepted="one for all logs, or one per log in their order: a plan, a workload file with strategies, "
            "or a launch script with --gpus TYPE",
        )  # fmt: skip
    return tuple(zip(runs, setups, strict=True))


def _assumed(log: RunLog, setup: RunSetup) -> str:
    """A note where responses are neither logged nor given; empty otherwise."""
    if any(record.response_tokens is not None for record in log.records):
        return ""
    mean = setup.workload.response.mean_tokens
    return f"{log.file}: no response lengths, so the configuration's mean of {mean:,.0f} tokens; give --response-mean"


def _node_of(bench: LinkBench, setups: Sequence[RunSetup]) -> NodeType | None:
    """The node of the configurations for an output without a header."""
    nodes = [pool.node for setup in setups for pool in setup.cluster.pools]
    return nodes[0] if nodes and not bench.gpu else None


def node_named(gpus: str) -> NodeType:
    """The node that `--gpus` names: a GPU type or a node type, perhaps after a number of them."""
    from planner.files.catalog import generic_node, load_node

    name = _COUNTS.sub("", gpus).strip()
    try:
        return generic_node(name)
    except InvalidInputError as unknown:
        try:
            return load_node(name)
        except InvalidInputError:
            raise unknown from None


def _engine_setup(bench: EngineBench, setups: Sequence[RunSetup]) -> EngineSetup:
    """The engine of the first configuration that has one."""
    from planner.calibration.engines import EngineSetup
    from planner.domain.strategy import RolloutStrategy

    for setup in setups:
        for worker in setup.workers:
            if isinstance(worker.strategy, RolloutStrategy):
                return EngineSetup(
                    model=setup.workload.actor, precision=setup.workload.rollout_precision,
                    node=setup.cluster.pool(worker.pool).node, strategy=worker.strategy,
                )  # fmt: skip
    raise InvalidInputError(
        f"the output of {bench.kind.value} says neither model nor layout", where=bench.file,
        accepted="--config with a plan or workload file whose rollout engine is the one that was measured",
    )  # fmt: skip
