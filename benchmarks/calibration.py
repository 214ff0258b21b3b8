"""What calibration gains on published runs: each run of a series predicted from the others of it.

    python -m benchmarks.calibration

Every series of measurements/rl.csv is one cluster and one framework with several configurations, whose stage times are
published. Each row stands for a log of one iteration under its own configuration; cross-validation leaves out whole
runs. Nothing that the rows say about old releases, engines without CUDA graphs or discarded prompts is told to the fit.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files

from planner.calibration.calibrate import Evidence, calibrate
from planner.calibration.setup import RunSetup
from planner.domain.hardware import Cluster
from planner.domain.request import FixedWorker
from planner.files.catalog import load_overheads
from planner.files.run_logs import LogKind, LogRecord, RunLog, Timer
from planner.validation.read import RowError
from planner.validation.rl_runs import Run, implied_lengths, read_run

SERIES = (
    ("verlmp-dapo7b", "h100"),
    ("verlmp-dapo32b", "h20"),
    ("verlmp-dapo_moe30b", "h100"),
    ("verlmp-grpo_qwen2.5_7b", "h100"),
    ("nemorl-v0.3", ""),
    ("verllog-ds7b", "mi300x"),
)
"""(beginning of the row's id, GPU as published; where it is empty the reader of rows knows it from the series)."""
SHOWN = ("rollout", "rollout with weight sync", "actor update", "iteration")

Row = Mapping[str, str]


def main() -> None:
    with files("measurements").joinpath("rl.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    print(f"{'series':24s} {'runs':>4s}  {'what':26s} {'before':>7s} {'after':>7s} {'left out':>8s}  fitted")
    for prefix, gpu in SERIES:
        runs = tuple(_runs(rows, prefix, gpu))
        result = calibrate(Evidence(runs=runs), load_overheads())
        fitted = ", ".join(
            f"{item.unknown.key.parameter.value} x{item.value / item.unknown.catalog:.2f}" for item in result.identified
        )
        for row in result.result.errors:
            if row.label in SHOWN:
                left_out = f"{row.left_out_ratio:8.0%}" if row.left_out_ratio is not None else f"{'-':>8s}"
                errors = f"{row.before_ratio:7.0%} {row.after_ratio:7.0%} {left_out}"
                is_last = row.label == "iteration"
                print(f"{prefix:24s} {len(runs):4d}  {row.label:26s} {errors}  {fitted if is_last else ''}".rstrip())


def _runs(rows: Sequence[Row], prefix: str, gpu: str) -> Iterator[tuple[RunLog, RunSetup]]:
    implied = implied_lengths(rows)
    for row in rows:
        if not row["id"].startswith(prefix) or row["gpu"] != gpu or not row["step_time_s"] or not row["gen_s"]:
            continue
        try:
            run = read_run(row, implied)
        except RowError:
            continue
        yield _log(row), _setup(run)


def _setup(run: Run) -> RunSetup:
    pools = {item.pool.name: item.pool for item in run.placed}
    workers = tuple(
        FixedWorker(
            worker=item.worker.name, pool=item.pool.name, first_gpu=item.group.first_gpu,
            num_gpus=item.strategy.num_gpus, strategy=item.strategy,
        )
        for item in run.placed
    )  # fmt: skip
    return RunSetup(workload=run.workload, cluster=Cluster(pools=tuple(pools.values())), workers=workers)


def _log(row: Row) -> RunLog:
    """One iteration. verl's `gen` holds the weight sync, NeMo-RL's log-prob stage both log-probs."""
    is_verl = row["framework"] == "verl"
    columns = {
        "gen_s": Timer.ROLLOUT,
        "logprob_s": Timer.OLD_LOGPROB if is_verl else Timer.LOGPROBS,
        "ref_logprob_s": Timer.REFERENCE,
        "train_s": Timer.ACTOR_UPDATE,
        "step_time_s": Timer.ITERATION,
    }
    if not is_verl:
        columns["refit_s"] = Timer.WEIGHT_SYNC
    seconds = {timer: float(row[column]) for column, timer in columns.items() if row[column]}
    return RunLog(
        file=row["id"], sha256=row["id"], kind=LogKind.VERL if is_verl else LogKind.NEMO_RL,
        records=(LogRecord(seconds=seconds),), bad=(), num_bad=0, num_lines=1,
    )  # fmt: skip


if __name__ == "__main__":
    main()
