"""What the cost model should reach, and whether it does. Errors on quality A rows; nothing is tuned to a single row.

Held-out errors come from the fit modules, which take minutes; they are data (data/held_out.yaml) with the date of the
fit. Everything else is computed from the rows at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from planner.files.fields import Fields
from planner.validation import read
from planner.validation.anchors import single_anchor_errors
from planner.validation.records import Table
from planner.validation.run import Evaluation
from planner.validation.statistics import ErrorStatistics, errors

MIN_BAND_COVERAGE_RATIO, MAX_BAND_COVERAGE_RATIO = 0.75, 0.88
MIN_AGREEMENT_RATIO = 0.9
MAX_REGRET_RATIO = 0.05
MIN_WORKS_ACCEPTED_RATIO = 0.97
MIN_OOM_REJECTED_RATIO = 0.9
MAX_MARGINAL_RATIO = 0.15


class Split(StrEnum):
    """On which rows an error is taken."""

    FITTED = "fitted"
    CONFIGURATION = "configuration held out"
    FAMILY = "family held out"
    GPU = "GPU held out"
    ANCHORS = "anchored"
    """Corrected by all other rows of the same model, release and precision."""
    ANCHOR_ROW = "one anchor row"
    """Corrected by one other row of the same model and framework, each in turn."""


ANCHOR_SPLITS = frozenset((Split.ANCHORS, Split.ANCHOR_ROW))


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorTarget:
    """Largest median and 90th percentile of the absolute error."""

    split: Split
    median_ratio: float
    p90_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSet:
    """Rows with targets of their own. `subset` empty means all of the table."""

    name: str
    table: Table
    subset: str
    targets: tuple[ErrorTarget, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutError:
    """Errors of rows that a fit had not seen."""

    set_name: str
    split: Split
    errors: ErrorStatistics
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One target with what was reached; `is_met` is None where there is no figure."""

    name: str
    criterion: str
    wanted: str
    reached: str
    num: int
    is_met: bool | None


def _targets(configuration: tuple[float, float], family: tuple[float, float] | None,
             anchor: tuple[float, float] | None) -> tuple[ErrorTarget, ...]:  # fmt: skip
    pairs = (
        (Split.CONFIGURATION, configuration),
        (Split.FAMILY, family),
        (Split.ANCHORS, anchor),
        (Split.ANCHOR_ROW, anchor),
    )
    return tuple(
        ErrorTarget(split=split, median_ratio=pair[0], p90_ratio=pair[1]) for split, pair in pairs if pair is not None
    )


SETS: tuple[TargetSet, ...] = (
    TargetSet(
        name="training, dense", table=Table.TRAIN, subset="dense",
        targets=_targets((0.06, 0.15), (0.10, 0.30), (0.04, 0.10)),
    ),
    TargetSet(
        name="training, MoE", table=Table.TRAIN, subset="moe",
        targets=_targets((0.12, 0.30), (0.15, 0.40), (0.06, 0.20)),
    ),
    TargetSet(
        name="generation: time per output token", table=Table.GENERATION, subset="time per token",
        targets=_targets((0.10, 0.25), (0.12, 0.32), (0.05, 0.15)),
    ),
    TargetSet(
        name="RL step, synchronous", table=Table.RL, subset="synchronous",
        targets=_targets((0.08, 0.20), (0.11, 0.30), (0.06, 0.15)),
    ),
    TargetSet(
        name="RL step, asynchronous", table=Table.RL, subset="asynchronous",
        targets=_targets((0.15, 0.40), (0.20, 0.50), (0.10, 0.30)),
    ),
    TargetSet(name="RL stages", table=Table.RL_STAGES, subset="", targets=_targets((0.15, 0.40), None, None)),
    TargetSet(
        name="peak memory, exact recipe, 10 GiB and more", table=Table.MEMORY, subset="exact recipe",
        targets=_targets((0.03, 0.10), None, None),
    ),
    TargetSet(
        name="peak memory, optimizer not stated", table=Table.MEMORY, subset="optimizer not stated",
        targets=_targets((0.10, 0.30), None, None),
    ),
)  # fmt: skip
WITHOUT_FIT = frozenset((Table.MEMORY,))
"""Tables that no parameter is fitted to: every row counts as held out."""


def outcomes(
    evaluations: Sequence[Evaluation], known: Sequence[HeldOutError], *, with_anchors: bool = True
) -> tuple[Outcome, ...]:
    """All targets that the evaluated tables allow; `known` are the held-out errors of these rows."""
    found: list[Outcome] = []
    for item in evaluations:
        for target_set in SETS:
            if target_set.table is item.table:
                found += _error_outcomes(item, target_set, known)
    for item in evaluations:
        found += _fit_outcomes(item) if item.table is Table.FITS else _common_outcomes(item)
    return tuple(found if with_anchors else [item for item in found if item.criterion not in ANCHOR_SPLITS])


def members(item: Evaluation, target_set: TargetSet) -> tuple[int, ...]:
    """Indices of the quality A rows of a set."""
    chosen = item.of_quality("A")
    if target_set.table is Table.MEMORY and target_set.subset == "exact recipe":
        large = set(item.large())
        chosen = tuple(index for index in chosen if index in large)
    return tuple(index for index in chosen if target_set.subset in ("", item.rows[index].keys.subset))


def reached_errors(
    item: Evaluation, target_set: TargetSet, known: Sequence[HeldOutError], *, with_anchors: bool = True
) -> dict[Split, ErrorStatistics]:
    """Errors of the quality A rows of a set by split; splits without figures are left out."""
    chosen = members(item, target_set)
    rows = [item.rows[index] for index in chosen]
    found = {Split.FITTED: errors(rows)}
    if target_set.table in WITHOUT_FIT:
        found[Split.CONFIGURATION] = found[Split.FITTED]
    found |= {entry.split: entry.errors for entry in known if entry.set_name == target_set.name}
    if with_anchors:
        found[Split.ANCHORS] = errors(rows, [item.corrections[index] for index in chosen])
        found[Split.ANCHOR_ROW] = single_anchor_errors(rows)
    return found


def _error_outcomes(item: Evaluation, target_set: TargetSet, known: Sequence[HeldOutError]) -> list[Outcome]:
    if not members(item, target_set):
        return []
    reached = reached_errors(item, target_set, known)
    return [_error_outcome(target_set, target, reached.get(target.split)) for target in target_set.targets]


def _error_outcome(target_set: TargetSet, target: ErrorTarget, reached: ErrorStatistics | None) -> Outcome:
    is_known = reached is not None and reached.num > 0
    return Outcome(
        name=target_set.name,
        criterion=target.split.value if target_set.table not in WITHOUT_FIT else "all rows",
        wanted=pair_words(target.median_ratio, target.p90_ratio),
        reached=error_words(reached) if reached is not None and is_known else "",
        num=reached.num if reached is not None else 0,
        is_met=reached.median_abs_error_ratio <= target.median_ratio and reached.p90_abs_error_ratio <= target.p90_ratio
        if reached is not None and is_known
        else None,
    )


def _common_outcomes(item: Evaluation) -> list[Outcome]:
    chosen = item.of_quality("A")
    if not chosen:
        return []
    found = item.statistics(chosen)
    name = f"table {item.table.value}"
    agreement, regret, coverage = found.order.agreement_ratio, found.order.regret_median_ratio, found.coverage_ratio
    return [
        _limit_outcome(name, "pairs in the right order", agreement, found.order.num_pairs, low=MIN_AGREEMENT_RATIO),
        _limit_outcome(name, "median regret", regret, found.order.num_choices, high=MAX_REGRET_RATIO),
        _limit_outcome(
            name, "80 % bands hold", coverage, len(chosen), low=MIN_BAND_COVERAGE_RATIO, high=MAX_BAND_COVERAGE_RATIO
        ),
    ]


def _fit_outcomes(item: Evaluation) -> list[Outcome]:
    found = item.fits()
    works, oom, marginal = found.works_accepted_ratio, found.oom_rejected_ratio, found.marginal_ratio
    return [
        _limit_outcome("fits", "works gets fits or marginal", works, found.num_works, low=MIN_WORKS_ACCEPTED_RATIO),
        _limit_outcome("fits", "OOM gets does not fit or marginal", oom, found.num_oom, low=MIN_OOM_REJECTED_RATIO),
        _limit_outcome("fits", "marginal", marginal, found.num_determinable, high=MAX_MARGINAL_RATIO),
    ]


def _limit_outcome(
    name: str, criterion: str, value: float | None, num: int, *, low: float | None = None, high: float | None = None
) -> Outcome:
    limits = [f"at least {low:.0%}"] if low is not None and high is None else []
    limits += [f"at most {high:.0%}"] if high is not None and low is None else []
    limits += [f"{low:.0%} to {high:.0%}"] if low is not None and high is not None else []
    is_met = None
    if value is not None:
        is_met = (low is None or value >= low) and (high is None or value <= high)
    return Outcome(
        name=name,
        criterion=criterion,
        wanted=" ".join(limits),
        reached="" if value is None else f"{value:.1%}",
        num=num,
        is_met=is_met,
    )


def pair_words(median_ratio: float, p90_ratio: float) -> str:
    """`'6 / 15 %'`."""
    return f"{_percent(median_ratio)} / {_percent(p90_ratio)} %"


def error_words(found: ErrorStatistics) -> str:
    """Median and 90th percentile of the absolute error; empty without rows."""
    return pair_words(found.median_abs_error_ratio, found.p90_abs_error_ratio) if found.num else ""


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f}".removesuffix(".0") if ratio < 0.0995 else f"{100 * ratio:.0f}"


def held_out_errors() -> tuple[HeldOutError, ...]:
    """The held-out errors of the last fits."""
    entries = Fields(read.own_data("held_out.yaml"), where="held_out.yaml").sections("entries")
    return tuple(
        HeldOutError(
            set_name=entry.text("set"),
            split=Split(entry.text("split")),
            errors=ErrorStatistics(
                num=entry.count("num", limit=10**6),
                median_abs_error_ratio=entry.number("median_abs_error_ratio", limit=100.0),
                p90_abs_error_ratio=entry.number("p90_abs_error_ratio", limit=1000.0),
                bias_ratio=0.0,
            ),
            date=entry.text("date"),
        )
        for entry in entries
    )
