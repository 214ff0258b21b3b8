"""What a replay writes down while it runs, and what it reports at the end."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.domain.stages import StageName


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stage of one batch on its device groups (none for host stages), in seconds since the start."""

    stage: StageName
    batch: int
    groups: tuple[str, ...]
    start_s: float
    end_s: float


@dataclass(slots=True, kw_only=True)
class EngineLog:
    """Of all engines of one worker together."""

    num_engines: int
    changes: list[tuple[float, int]] = field(default_factory=list)
    """(time, change of the number of running sequences), not in order of time."""
    busy_s: float = 0.0
    """Engine seconds with work."""
    num_preempted: int = 0


@dataclass(slots=True, kw_only=True)
class Recording:
    """Everything that happened. Times in seconds since the start of the replay."""

    spans: list[Span] = field(default_factory=list)
    engines: dict[StageName, EngineLog] = field(default_factory=dict)
    iteration_ends_s: list[float] = field(default_factory=list)
    """End of each iteration: of all its stages, or of its weight sync when iterations overlap."""
    lags: list[tuple[int, int]] = field(default_factory=list)
    """(batch, version of the trained weights minus that of those which began the response), one per response."""
    num_tokens: list[int] = field(default_factory=list)
    """Response tokens trained on, by batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A distribution over iterations: mean, 5, 50 and 95 per cent."""

    mean: float
    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReplay:
    """A stage over the measured iterations beside what the plan says."""

    stage: StageName
    group: str
    planned_s: float
    replayed_s: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReplay:
    """A device group over the measured time: share in which no stage runs on it."""

    group: str
    num_gpus: int
    idle_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReplay:
    """How the rollout went on one group of engines.

    `tail_s` is from when fewer than a tenth of the most sequences run until the last one ends; None for streaming
    engines, which never drain."""

    tail_s: Spread | None
    idle_engine_ratio: float
    """Share of the rollout's engine seconds in which an engine had nothing to do."""
    num_preempted: int
    """Sequences thrown out of a full cache and read again later, over the whole replay."""
    mean_running: float
    """Sequences that run at a time on all engines, over the rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """Outcome of a replay of `num_iterations` iterations after `num_warm_up` that are left out.

    `band_s` is where the plan's iteration time should lie; see `planner.simulate.verdict`.
    """

    predicted_s: float
    iteration_s: Spread
    iterations_s: tuple[float, ...]
    band_s: tuple[float, float]
    num_warm_up: int
    seed: int
    stages: tuple[StageReplay, ...]
    groups: tuple[GroupReplay, ...]
    rollout: RolloutReplay
    second_rollout: RolloutReplay | None
    """Of the second group of engines; None where one group generates everything."""
    staleness: tuple[tuple[int, int], ...]
    """(lag in versions, responses)."""
    mean_response_tokens: float
    recording: Recording

    @property
    def is_inside(self) -> bool:
        """Whether the plan's prediction lies in the band."""
        return self.band_s[0] <= self.predicted_s <= self.band_s[1]
