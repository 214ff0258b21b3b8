"""Rollouts split over two groups of engines: the search against plain enumeration, on small random problems."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from planner.cost.worker import Moment
from planner.domain.execution import Execution, ExecutionMode
from planner.domain.plan import Objective, Status
from planner.domain.stages import Role, Stage, StageGraph, StageKind, StageName, Worker, WorkerName
from planner.search.problem import OptionTable, SearchLimits, SearchPool, SearchProblem
from planner.search.solve import Solution, solve, solve_union
from planner.units import GB
from tests.oracle.evaluation import Placement, Wait, conflicts_of, elementary_cycles, groups_of, meet, sequences
from tests.oracle.executions import random_execution_problem

FIRST, SECOND, TRAINER = WorkerName.ROLLOUT_ENGINE, WorkerName.SECOND_ENGINE, WorkerName.ACTOR_TRAINER
ROLLOUT, OTHER, SYNC = StageName.ROLLOUT, StageName.SECOND_ROLLOUT, StageName.WEIGHT_SYNC
SYNCED = (FIRST, SECOND, TRAINER)
MODES = tuple(ExecutionMode)
SEEDS_PER_TEST = 8
Picked = dict[WorkerName, tuple[OptionTable, int]]


def split_graph(graph: StageGraph) -> StageGraph:
    """The graph with a second part of the rollout, which everything waits for that waits for the first."""
    second = Worker(
        name=SECOND, role=Role.ACTOR, model=graph.worker(FIRST).model, kind=StageKind.GENERATION, stages=(OTHER,)
    )
    stage = Stage(name=OTHER, kind=StageKind.GENERATION, role=Role.ACTOR, worker=SECOND)
    at = [item.name for item in graph.stages].index(ROLLOUT) + 1
    return StageGraph(
        stages=(*graph.stages[:at], stage, *graph.stages[at:]),
        workers=(graph.workers[0], second, *graph.workers[1:]),
        edges=(*graph.edges, *((OTHER, after) for before, after in graph.edges if before is ROLLOUT)),
    )


def make(mode: ExecutionMode, seed: int) -> SearchProblem:
    """Two or three pools, two or three workers beside the second engine."""
    rng = random.Random(f"{mode} {seed}")
    execution = Execution(mode=mode, staleness=0 if mode is ExecutionMode.SYNCHRONOUS else rng.randint(1, 2))
    num_workers = rng.choice((2, 3))
    base = random_execution_problem(
        rng, execution, num_workers=num_workers, num_pools=rng.choice((2, 3) if num_workers == 2 else (2,)),
        num_options=2, tightness=rng.choice((0.5, 1.0)),
    )  # fmt: skip
    tables = [second_table(rng, pool, mode) for pool in base.pools if rng.random() < 0.9]
    return replace(
        base,
        graph=split_graph(base.graph),
        options=(*base.options, *tables),
        execution=replace(execution, second_share_ratio=0.25),
    )


def second_table(rng: random.Random, pool: SearchPool, mode: ExecutionMode) -> OptionTable:
    sizes = [n for n in (1, 2, 4) if n <= pool.num_gpus and (n < pool.gpus_per_node or n % pool.gpus_per_node == 0)]
    num_gpus = np.array([rng.choice(sizes) for _ in range(2)], dtype=np.int64)

    def drawn(low: float, high: float) -> np.ndarray:
        return np.array([rng.uniform(low, high) for _ in num_gpus])

    rollout_s, active, apart_s = drawn(2, 25), drawn(30, 120) * GB, drawn(0, 4)
    is_streaming = mode is ExecutionMode.STREAMING
    return OptionTable(
        worker=SECOND,
        pool=pool.name,
        stages=(OTHER,),
        num_gpus=num_gpus,
        stage_time_s=rollout_s[None],
        sync_colocated_s=drawn(0, 3),
        sync_disaggregated_s=apart_s,
        sync_cross_pool_s=2.0 * apart_s,
        active_bytes=active,
        sync_bytes=active * drawn(0.5, 1.2),
        idle_bytes=active * 0.3,
        host_bytes=drawn(0, 60) * GB,
        row=np.arange(len(num_gpus), dtype=np.int64),
        moments=((OTHER, Moment.LONGEST_RESPONSE),) if is_streaming else (),
        moment_s=(rollout_s * drawn(1.0, 3.0))[None] if is_streaming else np.zeros((0, len(num_gpus))),
    )


# ---------------------------------------------------------------------------------------------- plain enumeration


def plain(problem: SearchProblem) -> Iterator[tuple[float, int]]:
    """Seconds and GPUs of every plan."""
    workers = [worker.name for worker in problem.graph.workers]
    tables = {(t.worker, t.pool): t for t in problem.options}
    for placement in placements(problem, workers):
        if any((w, placement[w][0]) not in tables for w in workers):
            continue
        waits = list(recurrences(problem, placement)) if problem.execution.is_asynchronous else []
        for rows in itertools.product(*(range(len(tables[w, placement[w][0]])) for w in workers)):
            picked = {w: (tables[w, placement[w][0]], row) for w, row in zip(workers, rows, strict=True)}
            used = num_gpus(problem, placement, picked)
            if used is not None and fits(problem, placement, picked):
                if problem.execution.is_asynchronous:
                    yield period_s(problem, placement, picked, waits), used
                else:
                    yield iteration_s(problem, placement, picked), used


def placements(problem: SearchProblem, workers: list[WorkerName]) -> Iterator[Placement]:
    """All places; the second engine is alone on its GPUs, in another pool than the first."""
    names = [pool.name for pool in problem.pools]
    seen = set()
    for labels in itertools.product(itertools.product(names, range(-1, len(workers))), repeat=len(workers)):
        number: dict[tuple[str, int], int] = {}
        places = tuple((p, b if b < 0 else number.setdefault((p, b), len(number))) for p, b in labels)
        if places in seen:
            continue
        seen.add(places)
        placement = dict(zip(workers, places, strict=True))
        second = placement[SECOND]
        others = [place for w, place in placement.items() if w is not SECOND]
        if second[1] < 0 or second[0] == placement[FIRST][0] or any(meet(second, place) for place in others):
            continue
        beside = [w for w in workers if w is not FIRST and meet(placement[w], placement[FIRST])]
        shared_by = {ExecutionMode.STREAMING: set(beside), ExecutionMode.BATCHES: {TRAINER} & set(beside)}
        if shared_by.get(problem.execution.mode):
            continue
        yield placement


def num_gpus(problem: SearchProblem, placement: Placement, picked: Picked) -> int | None:
    total = 0
    for pool in problem.pools:
        blocks: dict[int, list[int]] = {}
        for w, (name, block) in placement.items():
            if name == pool.name:
                table, row = picked[w]
                blocks.setdefault(block, []).append(int(table.num_gpus[row]))
        if problem.equal_size and any(len(set(sizes)) > 1 for sizes in blocks.values()):
            return None
        whole = max(blocks.pop(-1, [0]))
        apart = sum(max(sizes) for sizes in blocks.values())
        if max(whole, apart) > pool.num_gpus or (problem.equal_size and 0 < whole < apart):
            return None
        total += max(whole, apart)
    return total


def fits(problem: SearchProblem, placement: Placement, picked: Picked) -> bool:
    pools = {pool.name: pool for pool in problem.pools}
    for members in groups_of(placement):
        pool = pools[placement[members[0]][0]]
        at = {w: picked[w] for w in members}
        idle = {w: float(t.idle_bytes[row]) for w, (t, row) in at.items()}
        peaks = [float(t.active_bytes[row]) + sum(idle.values()) - idle[w] for w, (t, row) in at.items()]
        if set(SYNCED) & set(members):
            peaks.append(sum(float(t.sync_bytes[row]) if w in SYNCED else idle[w] for w, (t, row) in at.items()))
        host = sum(float(t.host_bytes[row]) for t, row in at.values())
        if max(peaks) > pool.usable_bytes + 1 or host > pool.host_ram_bytes + 1:
            return False
    return True


def sync_s(placement: Placement, picked: Picked) -> float:
    """Engines are served one after the other; a trainer that gathers for its own GPUs has gathered for both."""

    def share(w: WorkerName, engine: WorkerName) -> float:
        table, row = picked[w]
        source, target = placement[TRAINER], placement[engine]
        if meet(source, target):
            return float(table.sync_colocated_s[row])
        return float((table.sync_disaggregated_s if source[0] == target[0] else table.sync_cross_pool_s)[row])

    sent = [share(TRAINER, FIRST), share(TRAINER, SECOND)]
    total = max(sent) if meet(placement[TRAINER], placement[FIRST]) else sum(sent)
    return total + share(FIRST, FIRST) + share(SECOND, SECOND)


def durations(problem: SearchProblem, placement: Placement, picked: Picked) -> dict[StageName, float]:
    result = dict(problem.host_stage_s)
    for table, row in picked.values():
        result |= {stage: float(table.stage_time_s[i, row]) for i, stage in enumerate(table.stages)}
    return result | {SYNC: sync_s(placement, picked)}


def iteration_s(problem: SearchProblem, placement: Placement, picked: Picked) -> float:
    """Shortest over all sequences of stages."""
    seconds, conflicts = durations(problem, placement, picked), conflicts_of(problem.graph, placement)
    edges = set(problem.graph.edges)
    best = math.inf
    for sequence in sequences(tuple(stage.name for stage in problem.graph.stages), edges):
        end: dict[StageName, float] = {}
        for name in sequence:
            before = [a for a in end if (a, name) in edges or frozenset((a, name)) in conflicts]
            end[name] = max((end[a] for a in before), default=0.0) + seconds[name]
        best = min(best, max(end.values()))
    return best


def recurrences(problem: SearchProblem, placement: Placement) -> Iterator[frozenset[Wait]]:
    """The waits of every order within a batch and every place of the sync; both engines are as far ahead of it."""
    graph, staleness = problem.graph, problem.execution.staleness
    names, edges = tuple(stage.name for stage in graph.stages), set(graph.edges)
    busy = [{n for n in names if set(members) & set(graph.workers_of(n))} for members in groups_of(placement)]
    base: set[Wait] = {(a, b, 0) for a, b in edges} | {(SYNC, name, staleness + 1) for name in (ROLLOUT, OTHER)}
    for sequence in sequences(names, edges):
        fixed = set(base)
        for group in busy:
            if not {ROLLOUT, OTHER} & group:
                fixed |= cyclic([(n, 0) for n in sequence if n in group])
        if problem.execution.mode is ExecutionMode.STREAMING:
            yield frozenset(fixed)
            continue
        order = [n for n in sequence if n is not SYNC and any(ROLLOUT in group and n in group for group in busy)]
        for ahead, num in itertools.product(range(staleness + 1), range(1, len(order) + 1)):
            waits = fixed | cyclic([(OTHER, 0), (SYNC, -ahead)])
            for group in busy:
                if ROLLOUT in group:
                    first = [(n, 0) for n in order[:num] if n in group]
                    rest = [(n, 0) for n in order[num:] if n in group]
                    waits |= cyclic([*first, (SYNC, -ahead), *rest])
            yield frozenset(waits)


def cyclic(chunk: list[tuple[StageName, int]]) -> set[Wait]:
    following = [*chunk[1:], (chunk[0][0], chunk[0][1] + 1)]
    return {(a, b, at_b - at_a) for (a, at_a), (b, at_b) in zip(chunk, following, strict=True)}


def period_s(problem: SearchProblem, placement: Placement, picked: Picked, waits: list[frozenset[Wait]]) -> float:
    seconds, floor_s = durations(problem, placement, picked), 0.0
    if problem.execution.mode is ExecutionMode.STREAMING:
        floor_s = max(seconds[ROLLOUT], seconds[OTHER]) + seconds[SYNC]
        for engine, stage in ((FIRST, ROLLOUT), (SECOND, OTHER)):
            table, row = picked[engine]
            seconds[stage] = float(table.moment_s[table.moments.index((stage, Moment.LONGEST_RESPONSE)), row])
    best = math.inf
    for item in waits:
        cycles = elementary_cycles(item)
        if cycles is not None:
            means = [sum(seconds[n] for n in members) / batches for members, batches in cycles]
            best = min(best, max([floor_s, *means]))
    return best


# ---------------------------------------------------------------------------------------------- tests


def no_ties(objective: Objective = Objective.TIME) -> SearchLimits:
    return SearchLimits(objective=objective, tie_tolerance_ratio=0.0, num_alternatives=0)


@pytest.mark.parametrize("chunk", range(6))
@pytest.mark.parametrize("mode", MODES)
def test_least_time_and_fewest_gpus_are_those_of_plain_enumeration(mode: ExecutionMode, chunk: int) -> None:
    num_found = 0
    for seed in range(chunk * SEEDS_PER_TEST, (chunk + 1) * SEEDS_PER_TEST):
        problem = make(mode, seed)
        plans = [(time_s, used) for time_s, used in plain(problem) if math.isfinite(time_s)]
        result = solve(problem, no_ties())
        if not plans:
            assert result.status is Status.INFEASIBLE, seed
            continue
        num_found += 1
        truth = min(time_s for time_s, _ in plans)
        assert result.status is Status.OPTIMAL and result.solution is not None, seed
        assert result.value == pytest.approx(truth, rel=1e-9), seed
        assert result.bound == pytest.approx(truth, rel=1e-9), seed
        check_places(result.solution)
        assert solve(problem, no_ties(Objective.GPUS)).value == min(used for _, used in plans), seed
    assert num_found >= SEEDS_PER_TEST // 2


def check_places(solution: Solution) -> None:
    """The second engine is alone, in another pool; both rollouts are over before what waits for them."""
    first, second = solution.choice(FIRST), solution.choice(SECOND)
    assert first.pool != second.pool
    group = next(group for group in solution.groups if group.id == second.group)
    assert group.workers == (SECOND,)
    assert not any(other.is_whole for other in solution.groups if other.pool == second.pool)


def test_shares_in_one_union_are_the_best_of_all() -> None:
    """Problems that differ in shares have structures in common, and their own options and execution."""
    for seed in range(400, 412):
        mode = MODES[seed % len(MODES)]
        base = make(mode, seed)
        rng = random.Random(seed)
        parts = []
        for share in (0.25, 0.5, 0.75):
            kept = [t for t in base.options if t.worker is not SECOND]
            tables = [second_table(rng, pool, mode) for pool in base.pools if rng.random() < 0.8]
            execution = replace(base.execution, second_share_ratio=share)
            parts.append(replace(base, options=(*kept, *tables), execution=execution))
        single = [solve(part, no_ties()) for part in parts]
        union = solve_union(parts, no_ties())
        best = min(result.value for result in single)
        assert math.isclose(union.value, best, rel_tol=1e-12), seed
        if union.solution is not None:
            assert union.solution.execution == parts[union.part].execution
            assert math.isclose(single[union.part].value, best, rel_tol=1e-12), seed
