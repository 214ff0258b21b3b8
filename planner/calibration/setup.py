"""The configuration of a run, as `rlplan estimate` prices it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.assembly import Assembled, PlacedStrategy, assemble
from planner.domain.execution import IN_STEP, Execution
from planner.domain.hardware import Cluster
from planner.domain.overheads import Overheads
from planner.domain.plan import DeviceGroup, Plan
from planner.domain.request import FixedWorker
from planner.domain.stages import WorkerName
from planner.domain.workload import Workload
from planner.errors import InvalidInputError
from planner.files.calibrated import CALIBRATED
from planner.parts import make_inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """The configuration of a run: what `rlplan estimate` prices."""

    workload: Workload
    cluster: Cluster
    workers: tuple[FixedWorker, ...]
    execution: Execution = IN_STEP

    @property
    def is_colocated(self) -> bool:
        """Whether the rollout engine and the actor trainer share GPUs."""
        synced = [w for w in self.workers if w.worker in (WorkerName.ROLLOUT_ENGINE, WorkerName.ACTOR_TRAINER)]
        if len(synced) < 2 or synced[0].pool != synced[1].pool:
            return False
        a, b = synced[0], synced[1]
        return a.first_gpu < b.first_gpu + b.num_gpus and b.first_gpu < a.first_gpu + a.num_gpus


def setup_of(plan: Plan, workers: tuple[FixedWorker, ...], where: str) -> RunSetup:
    """The configuration of a saved plan; InvalidInputError for one that is calibrated already."""
    for item in plan.assumptions:
        if item.what == CALIBRATED:
            raise InvalidInputError(
                f"is {item.value}", where=where,
                accepted="a plan without --profile: a fit starts from the catalog",
            )  # fmt: skip
    return RunSetup(workload=plan.workload, cluster=plan.cluster, workers=workers, execution=plan.execution)


def price_setup(setup: RunSetup, overheads: Overheads) -> Assembled:
    """Stages and schedule of a configuration."""
    inputs = make_inputs(setup.workload, setup.cluster, None, setup.execution, overheads=overheads)
    places = sorted({(item.pool, item.first_gpu, item.num_gpus) for item in setup.workers})
    groups = {place: _group(f"{place[0]}/{index}", place, setup.cluster) for index, place in enumerate(places)}
    placed = [
        PlacedStrategy(
            worker=inputs.graph.worker(item.worker), pool=setup.cluster.pool(item.pool),
            group=groups[item.pool, item.first_gpu, item.num_gpus], strategy=item.strategy,
        )
        for item in setup.workers
    ]  # fmt: skip
    return assemble(placed, inputs, None)


def _group(name: str, place: tuple[str, int, int], cluster: Cluster) -> DeviceGroup:
    pool, first, num = place
    node = cluster.pool(pool).node
    num_nodes = (first + num - 1) // node.gpus_per_node - first // node.gpus_per_node + 1
    return DeviceGroup(id=name, pool=pool, gpu=node.gpu.id, first_gpu=first, num_gpus=num, num_nodes=num_nodes)


def with_lengths(setup: RunSetup, response_tokens: float | None, prompt_tokens: float | None) -> RunSetup:
    """The configuration at other mean lengths; None keeps its own. Lengths are cut at the workload's limits."""
    work = setup.workload
    if response_tokens is not None:
        law = replace(work.response, mean_tokens=min(response_tokens, float(work.response.max_tokens)))
        work = replace(work, response=law)
    if prompt_tokens is not None:
        work = replace(work, prompt_mean_tokens=min(prompt_tokens, float(work.prompt_max_tokens)))
    return replace(setup, workload=work)
