"""`python -m benchmarks.guidelines [--workers N]`: plans the grid and writes results.jsonl; `make docs` reads it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks.guidelines.grid import GRID, RESULTS, Case, Variant, command, read_grid
from planner import InfeasibleError, NoPlanFoundError, plan
from planner.domain.plan import Plan
from planner.domain.stages import StageName, WorkerName
from planner.domain.strategy import RolloutStrategy, TrainerStrategy
from planner.files.atomic import write_atomic

TIME_LIMIT = "30s"

Row = dict[str, str | int | float | bool | None]


def planned(case: Case, variant: Variant) -> Row:
    """One row: the case, the variant, and the plan in numbers."""
    row: Row = {**asdict(case), "variant": variant.name, "command": command(case, variant)}
    try:
        found = plan(
            case.model, gpus=f"{case.num_gpus}x{case.gpu}", algorithm=case.algorithm, reward=case.reward,
            num_prompts=case.prompts, group_size=case.group, response_max=case.response_max,
            response_mean=case.response_mean, fusion=variant.fusion, share=variant.share, apart=variant.apart,
            staleness=variant.staleness, allow=variant.allow, fix=variant.fix, sync=variant.sync, alternatives=0,
            time_limit=TIME_LIMIT,
        ).plan  # fmt: skip
    except InfeasibleError:
        return {**row, "status": "infeasible", "time_s": None}
    except NoPlanFoundError:
        return {**row, "status": "unknown", "time_s": None}
    return {**row, "status": found.status.value, "time_s": found.time_s, **facts(found)}


def facts(found: Plan) -> Row:
    """What the guidelines speak of."""
    actor, engine = found.placement(StageName.ACTOR_UPDATE), found.placement(StageName.ROLLOUT)
    assert isinstance(actor.strategy, TrainerStrategy) and isinstance(engine.strategy, RolloutStrategy)
    groups = {group.id: (group.pool, set(group.ranks)) for group in found.device_groups}
    trainer, rollout = groups[actor.device_group], groups[engine.device_group]
    return {
        "bound": found.bound,
        "used_gpus": found.num_gpus,
        "is_colocated": trainer[0] == rollout[0] and bool(trainer[1] & rollout[1]),
        "mode": found.execution.mode.value,
        "staleness": found.execution.staleness,
        "fusions": "+".join(fusion.value for fusion in found.execution.fusions),
        "actor_gpus": actor.strategy.num_gpus,
        "tp": actor.strategy.tp,
        "pp": actor.strategy.pp,
        "cp": actor.strategy.cp,
        "ep": actor.strategy.ep,
        "dp": actor.strategy.dp,
        "sharding": actor.strategy.sharding.value,
        "recompute": actor.strategy.recompute.value,
        "offload": actor.strategy.offload.value,
        "engine_gpus": engine.strategy.num_gpus,
        "engine_tp": engine.strategy.tp,
        "engine_pp": engine.strategy.pp,
        "engine_attention_dp": engine.strategy.attention_dp,
        "engine_ep": engine.strategy.ep,
        "num_engines": engine.strategy.num_engines,
        "engine_fraction": engine.strategy.engine_fraction,
        "rollout_share": engine.time_s / found.time_s,
        "reference_apart": _is_apart(found),
        "params": float(found.workload.actor.num_params),
        "is_moe": found.workload.actor.num_active_params != found.workload.actor.num_params,
    }


def _is_apart(found: Plan) -> bool:
    """Whether the reference sits on GPUs of its own."""
    where = {item.worker: item.device_group for item in found.placements if item.worker is not None}
    mine = where.get(WorkerName.REFERENCE)
    others = {group for worker, group in where.items() if worker is not WorkerName.REFERENCE}
    return mine is not None and mine not in others


def rows(cases: tuple[Case, ...], variants: tuple[Variant, ...], num_workers: int) -> Iterator[list[Row]]:
    """The rows of each workload, in the order of the grid."""
    work = partial(_case_rows, variants)
    if num_workers == 1:
        yield from map(work, cases)
        return
    with ProcessPoolExecutor(num_workers) as pool:
        yield from pool.map(work, cases)


def _case_rows(variants: tuple[Variant, ...], case: Case) -> list[Row]:
    first = planned(case, variants[0])
    if first["time_s"] is None:
        # Nothing fits: permitting less will not help.
        return [first]
    return [first, *(planned(case, variant) for variant in variants[1:] if variant.is_about(case))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--grid", type=Path, default=GRID)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("--only", default="", help="cases whose model contains this")
    options = parser.parse_args()
    cases, variants = read_grid(options.grid)
    cases = tuple(case for case in cases if options.only in case.model)
    start = time.perf_counter()
    lines: list[str] = []
    for number, found in enumerate(rows(cases, variants, options.workers), 1):
        lines += [json.dumps(row, ensure_ascii=False) for row in found]
        # After each workload, so that an interrupted run has what it planned.
        write_atomic(options.output, ("\n".join(lines) + "\n").encode())
        told = f"{number} of {len(cases)} workloads, {len(lines)} plans, {time.perf_counter() - start:.0f} s"
        print(told, file=sys.stderr, flush=True)
    print(f"{len(cases)} workloads, {len(lines)} plans: {options.output}")


if __name__ == "__main__":
    main()
