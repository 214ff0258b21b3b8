"""Search problems that are split by where engines sit: bounds hold, and nothing that is legal is lost."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from planner.domain.framework_limits import EngineSite
from planner.domain.framework_workload import for_workload
from planner.domain.stages import WorkerName
from planner.files.framework import load_framework
from planner.search import mesh, sites
from planner.search.options import prune, prune_within
from planner.search.problem import SearchLimits, SearchProblem
from planner.search.solve import solve, solve_union
from planner.search.structures import enumerate_structures
from planner.solving import search
from tests.adapters.framework_requests import request_for
from tests.oracle.instances import random_problem

EXACT = SearchLimits(tie_tolerance_ratio=0.0, num_alternatives=0)


def _parts(framework: str, name: str) -> list[tuple[SearchProblem, float]]:
    """The sub-problems of a request on half a node, with their bounds."""
    request = request_for(framework, name)
    assert request.cluster is not None
    pool = request.cluster.pools[0]
    node = replace(pool.node, gpus_per_node=4, scale_up_domain_gpus=4)
    cluster = replace(request.cluster, pools=(replace(pool, node=node, num_nodes=1),))
    rules = for_workload(load_framework(framework), request.workload)
    part = search(replace(request, cluster=cluster), cluster, rules).parts[0]
    variants = sites.variants(rules, part.priced, part.problem)
    pieces = mesh.parts(rules, part.priced, part.problem)
    return [pair for piece in pieces for pair in sites.split(variants, piece.problem, piece.bound_s)]


@pytest.mark.parametrize(
    ("framework", "name"), [("nemo-rl", "dense-one-node"), ("openrlhf", "ppo"), ("slime", "ppo"), ("verl", "epochs")]
)
def test_bounds_of_split_problems_hold(framework: str, name: str) -> None:
    pairs = _parts(framework, name)
    assert len(pairs) > 10
    tight = 0
    for problem, bound_s in pairs[:: max(1, len(pairs) // 40)]:
        result = solve(problem, EXACT)
        assert bound_s <= result.value * (1 + 1e-9)
        tight += result.solution is not None and bound_s >= 0.9 * result.value
    assert tight


@pytest.mark.parametrize(("framework", "name"), [("nemo-rl", "dense-one-node"), ("openrlhf", "dense-one-node")])
def test_bounds_change_no_optimum(framework: str, name: str) -> None:
    pairs = _parts(framework, name)
    problems = [problem for problem, _ in pairs]
    plain, bounded = (solve_union(problems, EXACT, bounds_s=b) for b in (None, [bound_s for _, bound_s in pairs]))
    assert plain.value == pytest.approx(bounded.value, rel=1e-12)


def test_every_legal_structure_belongs_to_one_site() -> None:
    request = request_for("nemo-rl", "dense-one-node")
    assert request.cluster is not None
    rules = for_workload(load_framework("nemo-rl"), request.workload)
    problem = search(request, request.cluster, rules).parts[0].problem
    base = problem.structure_filter
    found = {item.site: item.structure_filter for item in sites.variants(rules, (), problem)}
    workers = [worker.name for worker in problem.graph.workers]
    pool = problem.pools[0].name
    structures = list(enumerate_structures(iter([(pool,) * len(workers)]), workers, nested_single=True))
    legal = [item for item in structures if base is None or base(item) is None]
    assert len(legal) == 2
    for item in structures:
        shares = item.overlap(WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER)
        here, there = (EngineSite.SHARED, EngineSite.APART) if shares else (EngineSite.APART, EngineSite.SHARED)
        assert found[there](item) == sites.ELSEWHERE
        assert found[here](item) == (None if base is None else base(item))


def test_options_that_are_not_alike_are_not_compared() -> None:
    table = random_problem(random.Random(3), num_workers=3).options[0]
    keys = np.arange(len(table)) % 3
    merged = prune(table, alike=keys)
    grouped = prune_within(table, keys, across_sizes=True)
    assert sorted(merged.row) == sorted(grouped.row)
    assert len(prune(table)) <= len(merged)


def test_frameworks_without_such_rules_are_not_split() -> None:
    assert sites.variants(load_framework("areal"), (), random_problem(random.Random(1), num_workers=3)) == ()
    problem = random_problem(random.Random(1), num_workers=3)
    assert sites.split((), problem, 3.0) == ((problem, 3.0),)
