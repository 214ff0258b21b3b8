"""The stage graph of one iteration: what runs, on whose weights, after what."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import networkx as nx

from planner.domain.model import Model
from planner.domain.workload import RewardKind, Workload


class Role(StrEnum):
    """Whose weights."""

    ACTOR = "actor"
    CRITIC = "critic"
    REFERENCE = "reference"
    REWARD = "reward"


class StageKind(StrEnum):
    """How a stage is priced."""

    GENERATION = "generation"
    INFERENCE = "inference"
    """Forward only."""
    TRAINING = "training"
    TRANSFER = "transfer"
    HOST = "host"
    """CPU work; occupies no GPU."""


class StageName(StrEnum):
    """The stages of an iteration."""

    ROLLOUT = "rollout"
    SECOND_ROLLOUT = "second rollout"
    """The responses that a second group of engines generates at the same time, where the rollout is split."""
    REWARD = "reward"
    REFERENCE_LOGPROB = "reference log-prob"
    OLD_LOGPROB = "old log-prob"
    CRITIC_VALUE = "critic value"
    ACTOR_UPDATE = "actor update"
    CRITIC_UPDATE = "critic update"
    WEIGHT_SYNC = "weight sync"


class WorkerName(StrEnum):
    """A set of processes that holds one role's weights in one layout and serves one or more stages."""

    ROLLOUT_ENGINE = "rollout engine"
    SECOND_ENGINE = "second rollout engine"
    ACTOR_TRAINER = "actor trainer"
    REFERENCE = "reference"
    CRITIC_TRAINER = "critic trainer"
    REWARD_MODEL = "reward model"


ROLLOUT_ENGINES = (WorkerName.ROLLOUT_ENGINE, WorkerName.SECOND_ENGINE)
ROLLOUTS = (StageName.ROLLOUT, StageName.SECOND_ROLLOUT)
"""The stages that `ROLLOUT_ENGINES` serve, in the same order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One unit of work per iteration. `worker` is None for host stages and for the weight sync, which
    occupies the actor trainer and all rollout engines together."""

    name: StageName
    kind: StageKind
    role: Role
    worker: WorkerName | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Weights in one layout, placed as a whole: all its stages run on its device group."""

    name: WorkerName
    role: Role
    model: Model
    kind: StageKind
    """GENERATION (an engine), TRAINING (weights, gradients, optimizer) or INFERENCE (weights only)."""
    stages: tuple[StageName, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGraph:
    """Stages in topological order, the workers that serve them, and precedence edges."""

    stages: tuple[Stage, ...]
    workers: tuple[Worker, ...]
    edges: tuple[tuple[StageName, StageName], ...]

    def stage(self, name: StageName) -> Stage:
        return next(stage for stage in self.stages if stage.name is name)

    def has_stage(self, name: StageName) -> bool:
        return any(stage.name is name for stage in self.stages)

    def worker(self, name: WorkerName) -> Worker:
        return next(worker for worker in self.workers if worker.name is name)

    def has_worker(self, name: WorkerName) -> bool:
        return any(worker.name is name for worker in self.workers)

    @property
    def is_split(self) -> bool:
        """Whether two groups of engines share the rollout."""
        return self.has_worker(WorkerName.SECOND_ENGINE)

    def workers_of(self, stage: StageName) -> tuple[WorkerName, ...]:
        """Workers whose devices the stage occupies; empty for host stages."""
        if stage is StageName.WEIGHT_SYNC:
            second = (WorkerName.SECOND_ENGINE,) if self.is_split else ()
            return (WorkerName.ACTOR_TRAINER, WorkerName.ROLLOUT_ENGINE, *second)
        worker = self.stage(stage).worker
        return () if worker is None else (worker,)

    def digraph(self) -> nx.DiGraph[StageName]:
        """The same graph for networkx; nodes are StageName."""
        graph: nx.DiGraph[StageName] = nx.DiGraph()
        graph.add_nodes_from(stage.name for stage in self.stages)
        graph.add_edges_from(self.edges)
        return graph


def build_graph(workload: Workload, *, is_split: bool = False) -> StageGraph:
    """The stage graph of a synchronous iteration of `workload`.

    With `is_split` a second group of engines generates a share of the responses: whatever waits for the rollout waits
    for both.

    KL coefficient 0 drops the reference; with LoRA the reference is the actor's base model, so the actor
    trainer computes reference log-probs itself. Edges are transitively reduced.
    """
    stages: list[Stage] = []
    workers: list[Worker] = []
    graph: nx.DiGraph[StageName] = nx.DiGraph()

    def add(name: StageName, kind: StageKind, role: Role, worker: WorkerName | None, *after: StageName) -> None:
        stages.append(Stage(name=name, kind=kind, role=role, worker=worker))
        graph.add_node(name)
        after = (*after, StageName.SECOND_ROLLOUT) if StageName.ROLLOUT in after else after
        graph.add_edges_from((before, name) for before in after if before in graph and before is not name)

    add(StageName.ROLLOUT, StageKind.GENERATION, Role.ACTOR, WorkerName.ROLLOUT_ENGINE)
    if is_split:
        add(StageName.SECOND_ROLLOUT, StageKind.GENERATION, Role.ACTOR, WorkerName.SECOND_ENGINE)
    _add_reward(workload, add)
    reference_is_actor = workload.lora_rank is not None
    if workload.has_reference:
        holder = WorkerName.ACTOR_TRAINER if reference_is_actor else WorkerName.REFERENCE
        add(StageName.REFERENCE_LOGPROB, StageKind.INFERENCE, Role.REFERENCE, holder, StageName.ROLLOUT)
    if workload.needs_old_logprob:
        add(
            StageName.OLD_LOGPROB,
            StageKind.INFERENCE,
            Role.ACTOR,
            WorkerName.ACTOR_TRAINER,
            StageName.ROLLOUT,
        )
    if workload.critic is not None:
        add(
            StageName.CRITIC_VALUE,
            StageKind.INFERENCE,
            Role.CRITIC,
            WorkerName.CRITIC_TRAINER,
            StageName.ROLLOUT,
        )
    add(
        StageName.ACTOR_UPDATE, StageKind.TRAINING, Role.ACTOR, WorkerName.ACTOR_TRAINER,
        StageName.REWARD, StageName.REFERENCE_LOGPROB, StageName.OLD_LOGPROB, StageName.CRITIC_VALUE,
    )  # fmt: skip
    if workload.critic is not None:
        # GAE needs rewards and values, and the reference too because PPO puts the KL term into the reward.
        add(
            StageName.CRITIC_UPDATE, StageKind.TRAINING, Role.CRITIC, WorkerName.CRITIC_TRAINER,
            StageName.REWARD, StageName.REFERENCE_LOGPROB, StageName.CRITIC_VALUE,
        )  # fmt: skip
    add(StageName.WEIGHT_SYNC, StageKind.TRANSFER, Role.ACTOR, None, StageName.ACTOR_UPDATE)

    served = {name: tuple(stage.name for stage in stages if stage.worker is name) for name in WorkerName}
    for name, role, model, kind in (
        (WorkerName.ROLLOUT_ENGINE, Role.ACTOR, workload.actor, StageKind.GENERATION),
        (WorkerName.SECOND_ENGINE, Role.ACTOR, workload.actor, StageKind.GENERATION),
        (WorkerName.ACTOR_TRAINER, Role.ACTOR, workload.actor, StageKind.TRAINING),
        (WorkerName.REFERENCE, Role.REFERENCE, workload.actor, StageKind.INFERENCE),
        (WorkerName.CRITIC_TRAINER, Role.CRITIC, workload.critic, StageKind.TRAINING),
        (WorkerName.REWARD_MODEL, Role.REWARD, workload.reward.model, _reward_kind(workload)),
    ):
        if served[name] and model is not None:
            workers.append(Worker(name=name, role=role, model=model, kind=kind, stages=served[name]))
    reduced: nx.DiGraph[StageName] = nx.transitive_reduction(graph)
    order = {stage.name: i for i, stage in enumerate(stages)}
    edges = tuple(sorted(reduced.edges, key=lambda edge: (order[edge[0]], order[edge[1]])))
    return StageGraph(stages=tuple(stages), workers=tuple(workers), edges=edges)


class _AddStage(Protocol):
    def __call__(
        self, name: StageName, kind: StageKind, role: Role, worker: WorkerName | None, *after: StageName
    ) -> None: ...


def _reward_kind(workload: Workload) -> StageKind:
    return StageKind.GENERATION if workload.reward.kind is RewardKind.JUDGE else StageKind.INFERENCE


def _add_reward(workload: Workload, add: _AddStage) -> None:
    on_gpu = workload.reward.model is not None
    kind = _reward_kind(workload) if on_gpu else StageKind.HOST
    add(StageName.REWARD, kind, Role.REWARD, WorkerName.REWARD_MODEL if on_gpu else None, StageName.ROLLOUT)
