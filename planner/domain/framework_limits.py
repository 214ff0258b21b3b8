"""Limits of a framework that depend on the workload, or on where the engines sit: values of its data file."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from planner.domain.execution import ExecutionMode, ShardedSync
from planner.domain.stages import WorkerName
from planner.domain.strategy import Offload
from planner.domain.workload import Workload


class EngineSite(StrEnum):
    """Where the rollout engines sit, seen from the actor trainer."""

    SHARED = "shared"
    """On the same GPUs: the two take turns."""
    APART = "apart"
    """On GPUs of their own."""


class MultipleEpochs(StrEnum):
    """When a framework passes over a batch more than once."""

    ALWAYS = "always"
    WITH_CRITIC = "with a critic"
    NEVER = "never"


class OldLogprobNeed(StrEnum):
    """What makes a framework compute old log-probs where an update does not need them."""

    CRITIC = "critic"
    SEVERAL_STEPS = "several steps"
    KL_IN_REWARD = "kl in reward"
    """A KL term, in an algorithm that subtracts it from the reward."""


KL_IN_REWARD_ALGORITHMS = ("ppo", "reinforce++")
"""Algorithms whose estimators subtract the KL term from the reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedSyncRule:
    """A way of moving only shards in a weight sync, and what it needs of the plan."""

    way: ShardedSync
    backends: frozenset[str]
    """Names of training back ends that have it."""
    max_etp: int | None = None
    """Largest expert-TP of trainers; None: no limit."""
    max_rollout_pp: int | None = None
    needs_rollout_ep: bool = False
    """Only routed experts move so, to engines that spread them over their ranks."""
    equal_precisions: bool = False
    """Training and rollout have one number format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadRule:
    """The offload modes that training workers may have under a condition.

    Without `site` the condition is one of the workload alone; then the rule holds for all training workers.
    """

    backends: frozenset[str]
    """Names of back ends."""
    offloads: frozenset[Offload]
    reason: str
    """Completes "<framework>: ..."."""
    breaks: bool
    """Whether any other mode stops the run or spoils it. False: the framework does so whatever the plan says, so that
    only the price of the plan is wrong."""
    workers: frozenset[WorkerName] = frozenset({WorkerName.ACTOR_TRAINER, WorkerName.CRITIC_TRAINER})
    site: EngineSite | None = None
    execution_modes: frozenset[ExecutionMode] = frozenset(ExecutionMode)
    needs_critic: bool = False
    min_optimizer_steps: int = 1

    def concerns(self, workload: Workload) -> bool:
        """Whether the condition on the workload holds."""
        if self.needs_critic and workload.critic is None:
            return False
        return workload.num_optimizer_steps >= self.min_optimizer_steps

    def holds_for(self, worker: WorkerName, backend: str, mode: ExecutionMode, site: EngineSite) -> bool:
        return (
            worker in self.workers
            and backend in self.backends
            and mode in self.execution_modes
            and self.site in (None, site)
        )
