"""What logged durations cover, in terms of the stages and terms of a priced configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from planner.calibration.setup import RunSetup
from planner.domain.overheads import Overheads
from planner.domain.plan import NamedValue, Placement
from planner.domain.stages import ROLLOUTS, StageName
from planner.domain.workload import Workload
from planner.files.run_logs import LogKind, Timer

OUTSIDE = "outside stages"
ITERATION = "iteration"
_SERIAL_RATIO = 0.01
_ENGINE_TERMS = frozenset({"wake", "reload"})


class Priced(Protocol):
    """What a logged duration is compared with: a plan, or a configuration that was priced again."""

    @property
    def placements(self) -> tuple[Placement, ...]: ...

    @property
    def time_s(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """A logged duration in terms of the priced stages: its label, and the terms by stage that it holds."""

    label: str
    timers: tuple[Timer, ...]
    parts: tuple[tuple[StageName, frozenset[str], frozenset[str]], ...]
    """(stage, only these terms if any are named, but not these)."""

    def terms(self, priced: Priced, controller_s: float) -> tuple[NamedValue, ...]:
        """Seconds by term; the controller's own seconds, which the model books with the actor update, are left out."""
        sums: dict[str, float] = {}
        # The two halves of a split rollout run side by side, and the longer one is what is logged.
        rollouts = [item for item in priced.placements if item.stage in ROLLOUTS]
        longest = max(rollouts, key=lambda item: item.time_s, default=None)
        for item in priced.placements:
            for stage, only, without in self.parts:
                is_it = item is longest if stage is StageName.ROLLOUT else item.stage is stage
                if not is_it:
                    continue
                for term in item.time_terms:
                    if (not only or term.name in only) and term.name not in without:
                        own = controller_s if stage is StageName.ACTOR_UPDATE and term.name == "switch" else 0.0
                        sums[term.name] = sums.get(term.name, 0.0) + term.value - own
        return tuple(NamedValue(name=name, value=value) for name, value in sums.items())

    def seconds(self, priced: Priced, controller_s: float) -> float:
        return math.fsum(term.value for term in self.terms(priced, controller_s))


_NONE: frozenset[str] = frozenset()
_STAGE_OF = {
    Timer.REWARD: StageName.REWARD,
    Timer.REFERENCE: StageName.REFERENCE_LOGPROB,
    Timer.OLD_LOGPROB: StageName.OLD_LOGPROB,
    Timer.VALUES: StageName.CRITIC_VALUE,
    Timer.ACTOR_UPDATE: StageName.ACTOR_UPDATE,
    Timer.CRITIC_UPDATE: StageName.CRITIC_UPDATE,
    Timer.WEIGHT_SYNC: StageName.WEIGHT_SYNC,
}


def coverage(kind: LogKind, timers: frozenset[Timer], setup: RunSetup) -> tuple[Covered, ...]:
    """What the logged durations of a run cover.

    verl's `gen` holds the weight sync of colocated workers where none is logged beside it. NeMo-RL wakes the engine in
    its refit, and has both log-probs in one. An asynchronous trainer logs how long it waits for a rollout, which is not
    how long one takes: frameworks' rollouts are then left out.
    """
    result: list[Covered] = []
    has_refit = Timer.REFIT in timers
    waits = setup.execution.is_asynchronous and kind is not LogKind.TABLE
    if Timer.ROLLOUT in timers and not waits:
        parts = [(StageName.ROLLOUT, _NONE, _ENGINE_TERMS if has_refit else _NONE)]
        label = StageName.ROLLOUT.value
        if kind is LogKind.VERL and Timer.WEIGHT_SYNC not in timers and setup.is_colocated:
            parts.append((StageName.WEIGHT_SYNC, _NONE, _NONE))
            label = f"{label} with {StageName.WEIGHT_SYNC.value}"
        result.append(Covered(label=label, timers=(Timer.ROLLOUT,), parts=tuple(parts)))
    if has_refit:
        refit = ((StageName.WEIGHT_SYNC, _NONE, _NONE), (StageName.ROLLOUT, _ENGINE_TERMS, _NONE))
        result.append(Covered(label="weight sync and wake-up", timers=(Timer.REFIT,), parts=refit))
    if Timer.LOGPROBS in timers:
        both = ((StageName.OLD_LOGPROB, _NONE, _NONE), (StageName.REFERENCE_LOGPROB, _NONE, _NONE))
        result.append(Covered(label="log-probs", timers=(Timer.LOGPROBS,), parts=both))
    for timer, stage in _STAGE_OF.items():
        if timer in timers:
            result.append(Covered(label=stage.value, timers=(timer,), parts=((stage, _NONE, _NONE),)))
    return tuple(result)


def is_serial(priced: Priced) -> bool:
    """Whether stages follow one another, so that what an iteration takes beside them is the controller's."""
    return abs(math.fsum(item.time_s for item in priced.placements) / priced.time_s - 1.0) < _SERIAL_RATIO


def controller_s(workload: Workload, overheads: Overheads) -> float:
    """Seconds of the controller per iteration, outside all stages."""
    losses = overheads.step_losses
    return losses.step_s + losses.sequence_s * workload.num_generated
