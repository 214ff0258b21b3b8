"""The result of `rlplan validate` as JSON; the keys are documented in docs/validation-protocol.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.validation.records import Priced, Table
from planner.validation.run import GROUPINGS, Evaluation, GroupStatistics
from planner.validation.statistics import ErrorStatistics, group_by, log_residual
from planner.validation.targets import SETS, HeldOutError, members, outcomes, reached_errors

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]


def accuracy_document(
    evaluations: Sequence[Evaluation], known: Sequence[HeldOutError], *, num_worst: int, with_anchors: bool
) -> dict[str, Json]:
    """Everything that the tables show, in full precision."""
    document: dict[str, Json] = {
        "tables": {item.table.value: _table(item, num_worst, with_anchors) for item in evaluations}
    }
    reached = outcomes(evaluations, known, with_anchors=with_anchors)
    if reached:
        document["errors_by_split"] = _splits(evaluations, known, with_anchors)
        document["targets"] = [
            {
                "set": outcome.name, "criterion": outcome.criterion, "wanted": outcome.wanted,
                "reached": outcome.reached, "num": outcome.num, "is_met": outcome.is_met,
            }
            for outcome in reached
        ]  # fmt: skip
    return document


def _splits(evaluations: Sequence[Evaluation], known: Sequence[HeldOutError], with_anchors: bool) -> Json:
    """By set of rows and by what the fit has seen."""
    return {
        target_set.name: {
            split.value: _errors(found)
            for split, found in reached_errors(item, target_set, known, with_anchors=with_anchors).items()
        }
        for item in evaluations
        for target_set in SETS
        if target_set.table is item.table and members(item, target_set)
    }


def _table(item: Evaluation, num_worst: int, with_anchors: bool) -> Json:
    reasons: dict[str, Json] = dict(item.reasons())
    table: dict[str, Json] = {
        "num_rows": item.result.num_rows,
        "num_priced": len(item.rows),
        "num_unpriced": len(item.result.unpriced),
        "num_excluded_by_rule": sum(row.is_rule for row in item.result.unpriced),
        "unpriced_reasons": reasons,
        "unpriced": [
            {"row": row.row, "quality": row.quality, "reason": row.reason, "is_rule": row.is_rule}
            for row in item.result.unpriced
        ],
    }
    if item.table is Table.FITS:
        return {**table, **_fits(item)}
    chosen = item.of_quality("A")
    groups: dict[str, Json] = {}
    for name, key in GROUPINGS.items():
        found = group_by([item.rows[index] for index in chosen], key)
        groups[name] = {
            value: _statistics(item.statistics([chosen[i] for i in part]), with_anchors)
            for value, part in found.items()
        }
    noise = item.noise()
    table["by_quality"] = {
        name: _statistics(item.statistics(part), with_anchors) for name, part in item.by_quality().items()
    }
    table["by_group_quality_A"] = groups
    table["noise_floor"] = {
        "num_same_release": noise.num_same_release,
        "same_release_median_ratio": noise.same_release_median_ratio,
        "same_release_p90_ratio": noise.same_release_p90_ratio,
        "num_other_release": noise.num_other_release,
        "other_release_median_ratio": noise.other_release_median_ratio,
        "other_release_p90_ratio": noise.other_release_p90_ratio,
    }
    table["worst"] = [_worst(row) for row in item.worst(num_worst)]
    if item.table is Table.MEMORY:
        table["large"] = _large(item, with_anchors)
    return table


def _large(item: Evaluation, with_anchors: bool) -> Json:
    """Figures of quality A, and by quality, of rows of 10 GiB and more."""
    large = set(item.large())
    parts = {name: [index for index in part if index in large] for name, part in item.by_quality().items()}
    figures = _statistics(item.statistics(parts["A"]), with_anchors)
    by_quality: dict[str, Json] = {
        name: _statistics(item.statistics(part), with_anchors) for name, part in parts.items()
    }
    return {**figures, "by_quality": by_quality}


def _statistics(found: GroupStatistics, with_anchors: bool) -> dict[str, Json]:
    result: dict[str, Json] = {
        **_errors(found.plain),
        "rank_agreement_ratio": found.order.agreement_ratio,
        "num_ranked_pairs": found.order.num_pairs,
        "regret_median_ratio": found.order.regret_median_ratio,
        "regret_p90_ratio": found.order.regret_p90_ratio,
        "num_choices": found.order.num_choices,
        "band_coverage_ratio": found.coverage_ratio,
        "band_median_width_ratio": found.width_ratio,
    }
    if with_anchors:
        result["anchored"] = {
            **_errors(found.anchored),
            "rank_agreement_ratio": found.anchored_order.agreement_ratio,
            "regret_median_ratio": found.anchored_order.regret_median_ratio,
        }
    return result


def _errors(found: ErrorStatistics) -> dict[str, Json]:
    """Null instead of a figure where there are no rows."""
    is_there = found.num > 0
    return {
        "num": found.num,
        "median_abs_error_ratio": found.median_abs_error_ratio if is_there else None,
        "p90_abs_error_ratio": found.p90_abs_error_ratio if is_there else None,
        "bias_ratio": found.bias_ratio if is_there else None,
    }


def _fits(item: Evaluation) -> dict[str, Json]:
    found = item.fits()
    return {
        "num_determinable": found.num_determinable,
        "num_works": found.num_works,
        "num_oom": found.num_oom,
        "works_accepted_ratio": found.works_accepted_ratio,
        "oom_rejected_ratio": found.oom_rejected_ratio,
        "marginal_ratio": found.marginal_ratio,
        "by_quality": {name: {"num": len(part)} for name, part in item.by_quality().items() if part},
        "wrong": [_verdict(row) for row in item.wrong_verdicts()],
    }


def _verdict(row: Priced) -> Json:
    verdict = row.verdict.value if row.verdict is not None else None
    return {"row": row.row, "measured": "works" if row.measured > 0.5 else "OOM", "verdict": verdict, "note": row.note}


def _worst(row: Priced) -> Json:
    terms: Mapping[str, Json] = {term.name: term.value for term in row.terms}
    return {
        "row": row.row,
        "source": row.source,
        "unit": row.unit,
        "measured": row.measured,
        "predicted": row.predicted,
        "error_ratio": row.error_ratio,
        "log_residual": log_residual(row),
        "terms": dict(terms),
        "note": row.note,
    }
