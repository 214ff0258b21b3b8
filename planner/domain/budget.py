"""What a whole training run takes: rows of a sweep over clusters, rates beyond the iterations, and totals from both."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, sqrt

from planner.domain.hardware import Price
from planner.domain.plan import Status
from planner.units import HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Point:
    """A cluster and a workload to plan: `num_gpus` of one kind of node, at one mean response length (tokens)."""

    kind: str
    """A GPU type (generic nodes) or a node type, as the user calls it."""
    num_gpus: int
    response_mean_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The best plan of a point, in short. Times are None, and `reason` says why, where there is none.

    `status` OPTIMAL and INFEASIBLE are proven. `validation_s` are the seconds that the plan's engines need for one
    validation, 0 without validations.
    """

    point: Point
    status: Status
    time_s: float | None = None
    """Seconds per iteration."""
    bound_s: float | None = None
    """No plan takes less."""
    num_gpus: int = 0
    """Used."""
    num_nodes: int = 0
    """With at least one used GPU."""
    gpus_per_node: int = 0
    validation_s: float = 0.0
    groups: str = ""
    """Who shares GPUs with whom."""
    layouts: tuple[str, ...] = ()
    """The strategy of each worker, such as `actor trainer: 16 GPUs, tp 8 pp 2`."""
    execution: str = "synchronous"
    staleness: int = 0
    reason: str = ""

    def __post_init__(self) -> None:
        if (self.time_s is None) != (self.status in (Status.INFEASIBLE, Status.UNKNOWN)):
            raise ValueError(f"a row that is {self.status.value} with a time of {self.time_s}")
        if self.time_s is not None and (not isfinite(self.time_s) or self.time_s <= 0 or self.num_nodes < 1):
            raise ValueError(f"{self.time_s} s on {self.num_nodes} nodes is no plan")

    @property
    def billed_gpus(self) -> int:
        """GPUs of the whole nodes used."""
        return self.num_nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRates:
    """What a run does beyond its iterations, and how often it is interrupted.

    `checkpoint_bytes` is the size of one checkpoint. `failures_per_gpu_hour` are hardware and software faults;
    `interruptions_per_node_hour` are spot nodes taken back.
    """

    num_steps: int
    startup_s: float
    """From the request of the nodes to the first iteration, at the start and after each interruption."""
    checkpoint_bytes: float
    checkpoint_bytes_per_s_per_node: float
    checkpoint_every: int
    """Iterations between checkpoints at the most; fewer where Young's interval is shorter."""
    validation_every: int
    """Iterations between validations; 0 for none."""
    validation_prompts: int
    failures_per_gpu_hour: float
    interruptions_per_node_hour: float

    def __post_init__(self) -> None:
        if self.num_steps < 1 or self.checkpoint_every < 1 or self.validation_every < 0 or self.validation_prompts < 1:
            raise ValueError("steps, checkpoints and validation prompts are counted from 1, validations from 0")
        for name in ("startup_s", "checkpoint_bytes", "failures_per_gpu_hour", "interruptions_per_node_hour"):
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name} must be finite and not negative, got {getattr(self, name)}")
        if not 0 < self.checkpoint_bytes_per_s_per_node < inf:
            raise ValueError("checkpoints must be written at a positive rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTotal:
    """A whole run, in seconds by what they are spent on. `failure_s` is infinite when a run cannot get to its end."""

    iterations_s: float
    startup_s: float
    validation_s: float
    checkpoint_s: float
    failure_s: float
    """Iterations repeated and starts after interruptions."""
    checkpoint_every: int
    num_interruptions: float
    gpu_hours: float
    """Of the whole nodes used."""
    usd: float | None
    """None without a price."""

    @property
    def time_s(self) -> float:
        return self.iterations_s + self.startup_s + self.validation_s + self.checkpoint_s + self.failure_s

    @property
    def hours(self) -> float:
        return self.time_s / HOUR_S

    @property
    def is_finite(self) -> bool:
        return isfinite(self.time_s)


def run_total(row: Row, rates: RunRates, price: Price | None, *, time_s: float | None = None) -> RunTotal:
    """The run of a row's plan; `time_s` replaces its seconds per iteration (for what-if questions).

    An interruption costs half the work between two checkpoints and a new start, so with a rate r per second and a
    loss l per interruption a run of W seconds of work takes W / (1 - r l). Checkpoints are written while the trainer
    waits, by all nodes in parallel, every `checkpoint_every` iterations or at Young's interval sqrt(2 C / r) for a
    checkpoint of C seconds (Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9),
    1974), whichever is shorter. Raises ValueError for a row without a plan.
    """
    step_s = row.time_s if time_s is None else time_s
    if step_s is None:
        raise ValueError("a point without a plan has no run")
    rate = (rates.failures_per_gpu_hour * row.billed_gpus + rates.interruptions_per_node_hour * row.num_nodes) / HOUR_S
    write_s = rates.checkpoint_bytes / (rates.checkpoint_bytes_per_s_per_node * row.num_nodes)
    every = _checkpoint_every(step_s, write_s, rate, rates)
    iterations_s = rates.num_steps * step_s
    validation_s = row.validation_s * (rates.num_steps // rates.validation_every) if rates.validation_every else 0.0
    # The last state is always written, whatever the interval.
    checkpoint_s = write_s * -(-rates.num_steps // every)
    work_s = iterations_s + validation_s + checkpoint_s + rates.startup_s
    lost_share = rate * (rates.startup_s + 0.5 * every * step_s)
    total_s = work_s / (1.0 - lost_share) if lost_share < 1.0 else inf
    gpu_hours = total_s / HOUR_S * row.billed_gpus
    return RunTotal(
        iterations_s=iterations_s,
        startup_s=rates.startup_s,
        validation_s=validation_s,
        checkpoint_s=checkpoint_s,
        failure_s=total_s - work_s,
        checkpoint_every=every,
        num_interruptions=rate * total_s,
        gpu_hours=gpu_hours,
        usd=None if price is None else gpu_hours * price.usd_per_gpu_hour,
    )


def _checkpoint_every(step_s: float, write_s: float, rate: float, rates: RunRates) -> int:
    if rate <= 0:
        return rates.checkpoint_every
    young_s = sqrt(2.0 * write_s / rate)
    return max(1, min(rates.checkpoint_every, round(young_s / step_s)))


@dataclass(frozen=True, slots=True, kw_only=True)
class KindPrice:
    """What an hour of a kind of node costs; None where no price is known."""

    kind: str
    price: Price | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepHead:
    """What a sweep is about: everything that its rows need to be understood.

    `digest` stands for all that decides the plans; prices, rates and limits only decide what is shown of them.
    """

    digest: str
    version: str
    """Of rlplan."""
    title: str
    """Algorithm, model and framework in words."""
    kinds: tuple[str, ...]
    sizes: tuple[int, ...]
    """As asked for; each kind rounds them up to whole nodes."""
    response_means: tuple[float, ...]
    """Mean response lengths in tokens; the first is the workload's own."""
    response_max_tokens: int
    num_points: int
    rates: RunRates
    prices: tuple[KindPrice, ...]
    max_time_s: float | None = None
    max_usd: float | None = None
    assumptions: tuple[str, ...] = ()

    def price(self, kind: str) -> Price | None:
        return next((item.price for item in self.prices if item.kind == kind), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep and its rows so far, in the order of their points."""

    head: SweepHead
    rows: tuple[Row, ...]

    @property
    def is_complete(self) -> bool:
        return len(self.rows) == self.head.num_points
