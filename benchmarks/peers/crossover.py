"""HybridFlow's crossover from colocated to split to standalone placements as GPUs grow, over our cost model.

    python -m benchmarks.peers.crossover [--cases 0,1] [--all-used]

Every placement takes the allocation of GPUs that HybridFlow's algorithm gives it and is priced by our schedule, beside
our optimum over all structures. With --all-used no GPU may stay idle and every model uses all GPUs of its set.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from planner.domain.request import PlanRequest
from planner.domain.stages import WorkerName
from planner.files.spec import WorkloadSpec
from planner.files.workload import build_request
from planner.peers import compare
from planner.peers.colocated import ColocatedTable
from planner.peers.hybridflow import Partition, best_mapping, partitions, realise
from planner.peers.task import Configured, PeerTask, describe
from planner.search.pricing import price_worker

CASES = Path(__file__).with_name("crossovers.yaml")
COLOCATED, SPLIT, STANDALONE, CRITIC_APART = "colocated", "split", "standalone", "critic apart"
ACTOR = frozenset({WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER})
PLACEMENTS: Mapping[str, frozenset[frozenset[WorkerName]]] = {
    COLOCATED: frozenset({ACTOR | {WorkerName.REFERENCE, WorkerName.CRITIC_TRAINER, WorkerName.REWARD_MODEL}}),
    SPLIT: frozenset({ACTOR | {WorkerName.REFERENCE}, frozenset({WorkerName.CRITIC_TRAINER, WorkerName.REWARD_MODEL})}),
    CRITIC_APART: frozenset(
        {ACTOR | {WorkerName.REFERENCE, WorkerName.REWARD_MODEL}, frozenset({WorkerName.CRITIC_TRAINER})}
    ),
    STANDALONE: frozenset(
        {
            ACTOR,
            frozenset({WorkerName.REFERENCE}),
            frozenset({WorkerName.CRITIC_TRAINER}),
            frozenset({WorkerName.REWARD_MODEL}),
        }
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Models of one figure, and the placement published for each number of GPUs."""

    title: str
    model: str
    critic: str | None
    published: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One number of GPUs: seconds and words of each placement (None: does not fit), and our optimum."""

    num_gpus: int
    published: str
    placements: Mapping[str, tuple[float, str] | None]
    optimum_s: float
    optimum: str

    @property
    def best(self) -> str:
        """The fastest of the placements."""
        fitting = {name: found[0] for name, found in self.placements.items() if found is not None}
        return min(fitting, key=fitting.__getitem__, default="none")


def read_cases() -> tuple[Case, ...]:
    entries = yaml.load(CASES.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return tuple(
        Case(title=e["title"], model=e["model"], critic=e.get("critic"), published=e["published"]) for e in entries
    )


def request_of(case: Case, num_gpus: int) -> PlanRequest:
    """PPO in the setting of the paper; the critic's model scores too."""
    here = CASES.parent
    model = str(here / case.model) if case.model.endswith(".json") else case.model
    critic = case.critic or model
    spec = WorkloadSpec(
        model=model, algorithm="ppo", critic=critic, reward="model", reward_model=critic, gpus=f"{num_gpus}xa100-80gb",
        num_prompts=1024, group_size=1, num_optimizer_steps=8, prompt_max=1024, prompt_mean=1024, response_max=1024,
        response_mean=1024, response_cv=0.0,
    )  # fmt: skip
    return build_request(spec)


def measure(case: Case, num_gpus: int, *, all_used: bool = False) -> Point:
    """The placements and our optimum on one number of GPUs."""
    request = compare.synchronous(request_of(case, num_gpus))
    return measure_request(request, published=case.published.get(num_gpus, ""), all_used=all_used)


def measure_request(request: PlanRequest, *, published: str = "", all_used: bool = False) -> Point:
    """The same for any request on one pool."""
    assert request.cluster is not None
    num_gpus = request.cluster.num_gpus
    outcome = compare.search(request, request.cluster, None, with_splits=False)
    task = PeerTask.of(outcome)
    if all_used:
        task = every_size(task)
    (pool,) = task.pools
    table = ColocatedTable(task, pool, exact=all_used)
    found: dict[str, tuple[float, str] | None] = {}
    for name, wanted in PLACEMENTS.items():
        chosen = [p for p in partitions(task) if frozenset(frozenset(block) for block in p) == wanted]
        best = _priced(task, table, chosen, num_gpus if all_used else 0)
        found[name] = None if best is None else (best.solution.time_s, describe(best.solution))
    solution = outcome.result.solution
    return Point(
        num_gpus=num_gpus,
        published=published,
        placements=found,
        optimum_s=outcome.result.bound,
        optimum="does not fit" if solution is None else describe(solution),
    )


def every_size(task: PeerTask) -> PeerTask:
    """The task with options of every size, also those that no more GPUs would make faster."""
    inputs = replace(task.inputs, across_sizes=False)
    priced = tuple(price_worker(item.worker, item.pool, inputs) for item in task.priced)
    problem = replace(task.problem, options=tuple(item.options for item in priced))
    return PeerTask(inputs=task.inputs, priced=priced, problem=problem)


def _priced(task: PeerTask, table: ColocatedTable, chosen: list[Partition], least_gpus: int) -> Configured | None:
    (pool,) = task.pools
    mapping, _ = best_mapping(task, pool, table, chosen, least_gpus=least_gpus)
    return None if mapping is None else realise(task, pool, table, mapping)


def points(case: Case, *, all_used: bool) -> Iterator[Point]:
    for num_gpus in case.published:
        yield measure(case, num_gpus, all_used=all_used)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.crossover", description=__doc__)
    parser.add_argument("--cases", default="", help="numbers of cases, joined by commas [all]")
    parser.add_argument("--all-used", action="store_true", help="no GPU may stay idle")
    arguments = parser.parse_args()
    cases = read_cases()
    numbers = [int(n) for n in arguments.cases.split(",") if n] or range(len(cases))
    for case in (cases[n] for n in numbers):
        print(case.title)
        for point in points(case, all_used=arguments.all_used):
            times = ", ".join(
                f"{name} {'-' if found is None else f'{found[0]:.1f} s'}" for name, found in point.placements.items()
            )
            print(f"  {point.num_gpus:4} GPUs: {times}; best of these {point.best}, published {point.published}")
            print(f"       optimum {point.optimum_s:.1f} s: {point.optimum}", flush=True)


if __name__ == "__main__":
    main()
