"""What is known of placements as GPUs grow at a fixed batch: HybridFlow's crossover, and more GPUs that slow down."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.peers.crossover import COLOCATED, SPLIT, STANDALONE, every_size, measure_request, read_cases, request_of
from planner.domain.lengths import LengthLaw
from planner.domain.workload import Workload
from planner.peers.colocated import ColocatedTable
from planner.peers.task import PeerTask
from planner.solving import search
from tests.factories import workload
from tests.unit.peers.cases import ppo, request_on


def small_batch() -> Workload:
    """PPO with four models, 1,024 + 1,024 tokens, and so few samples that one node is already too much for some."""
    response = LengthLaw(mean_tokens=1024, cv=0.0, max_tokens=1024)
    return replace(ppo(), num_prompts=64, num_optimizer_steps=2, prompt_mean_tokens=1024, response=response)


def test_colocated_gives_way_to_split_and_standalone_placements_as_gpus_grow() -> None:
    ratios: dict[str, list[float]] = {SPLIT: [], STANDALONE: []}
    best = []
    for num_nodes in (2, 4, 8):
        point = measure_request(request_on(small_batch(), ("a100-80gb", num_nodes)), all_used=True)
        colocated = point.placements[COLOCATED]
        assert colocated is not None
        for name, values in ratios.items():
            found = point.placements[name]
            assert found is not None
            values.append(found[0] / colocated[0])
            # The optimum over all structures is no worse than any of them.
            assert point.optimum_s <= found[0] * (1 + 1e-6)
        best.append(point.best)
    assert best[0] == COLOCATED
    assert best[-1] == SPLIT
    for values in ratios.values():
        assert values == sorted(values, reverse=True)


def test_more_gpus_are_slower_when_all_of_them_must_be_used_and_never_when_some_may_idle() -> None:
    few_samples = replace(workload("grpo", prompts=2, group=4), num_optimizer_steps=1)
    request = request_on(few_samples, ("h100", 16))
    assert request.cluster is not None
    task = PeerTask.of(search(request, request.cluster, None))
    (pool,) = task.pools
    everyone = frozenset(task.workers)
    all_used, some_idle = ColocatedTable(every_size(task), pool, exact=True), ColocatedTable(task, pool)
    used = [all_used.best(everyone, num_gpus) for num_gpus in (8, 64, 128)]
    idle = [some_idle.best(everyone, num_gpus) for num_gpus in (8, 64, 128)]
    used_s = [joint.total_s for joint in used if joint is not None]
    idle_s = [joint.total_s for joint in idle if joint is not None]
    assert len(used_s) == len(idle_s) == 3
    assert used_s[1] < used_s[0]
    assert used_s[2] > used_s[1] * 1.1
    assert idle_s == sorted(idle_s, reverse=True)


def test_published_cases_are_read_and_planned_as_stated() -> None:
    cases = read_cases()
    assert [case.published[128] for case in cases if 128 in case.published] == ["standalone", "split", "critic apart"]
    work = request_of(cases[-1], 32).workload
    assert (work.num_samples, work.num_optimizer_steps, work.mean_tokens) == (1024, 8, 2048)
    assert work.critic is not None and work.critic.id == "llama-2-70b"
    assert work.reward.model is not None and work.reward.model.id == "llama-2-70b"
