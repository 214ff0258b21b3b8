"""What every table of measurements becomes: priced rows, and rows that cannot be priced with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from planner.domain.plan import NamedValue
from planner.domain.verdict import Verdict as Verdict


class Table(StrEnum):
    """Tables of measurements; `RL_STAGES` are the stage times inside rows of `RL`."""

    TRAIN = "train"
    RL = "rl"
    RL_STAGES = "rl_stages"
    MEMORY = "memory"
    GENERATION = "generation"
    FITS = "fits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """By what rows are grouped, held out, anchored and ranked. Empty text where a row does not say."""

    model: str
    family: str
    """Model family (`qwen3`, `llama3`, `deepseek-v3`, ...), the unit of leave-one-family-out."""
    gpu: str
    precision: str
    framework: str
    """Framework or engine."""
    release: str
    """Its version."""
    configuration: str
    """Rows of equal configuration are repeats of one another; held out together."""
    workload: str
    """Rows of equal workload differ only in how it is run: their order is a prediction."""
    subset: str
    """Rows with targets of their own: `dense`, `moe`, `synchronous`, `asynchronous`, ... or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A row with what was measured and what the cost model says, in `unit`.

    `predicted` is the cost model alone, without anchor. `terms` sum to `predicted` in the model's own unit
    (seconds or bytes) where the measured quantity is a rate. For FITS, measured is 1 for works and 0 for OOM, and
    `verdict` is set.
    """

    table: Table
    row: str
    source: str
    quality: str
    """A, B or C as in measurements/README.md."""
    keys: Keys
    unit: str
    measured: float
    predicted: float
    terms: tuple[NamedValue, ...]
    verdict: Verdict | None = None
    note: str = ""

    @property
    def error_ratio(self) -> float:
        """predicted / measured - 1; positive is too high."""
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpriced:
    """A row that cannot be priced, and why; `is_rule` marks rows that a fixed rule excludes before any fit."""

    table: Table
    row: str
    quality: str
    reason: str
    is_rule: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResult:
    """All rows of one table: every row is in exactly one of the two."""

    table: Table
    priced: tuple[Priced, ...]
    unpriced: tuple[Unpriced, ...]

    @property
    def num_rows(self) -> int:
        return len(self.priced) + len(self.unpriced)
