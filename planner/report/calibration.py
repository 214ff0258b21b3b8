"""Calibrations and comparisons for a terminal and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.calibration.calibrate import Calibration
from planner.calibration.compare import ComparedStage, Comparison, Explanation
from planner.calibration.fit import Verdict
from planner.domain.plan import Plan
from planner.domain.profile import Parameter
from planner.errors import printable
from planner.files.bench_logs import LinkBench
from planner.files.plan import Json
from planner.files.run_logs import BadLine, RunLog
from planner.report.words import counted, one_line, percent
from planner.units import GB, format_range, format_seconds, format_seconds_like


def calibration_report(
    calibration: Calibration, runs: Sequence[RunLog], links: Sequence[LinkBench], assumed: Sequence[str]
) -> Group:
    """What was read, what could be told, what could not, and the errors before and after."""
    identified = calibration.identified
    total = len(calibration.result.verdicts)
    title = Text.assemble(
        (f"{len(identified)} of {counted(total, 'parameter')}", "bold"), " can be told from these logs"
    )
    sections: list[RenderableType] = [title, *_sources(calibration)]
    if identified:
        sections += _section("Calibrated", _values(identified))
    others = [item for item in calibration.result.verdicts if not item.is_identified]
    if others:
        sections += _section("Cannot tell from these logs; stays as in the catalog", _others(others))
    sections += _section(_error_title(calibration), _errors(calibration))
    sections += _notes([*calibration.notes, *assumed])
    for log in runs:
        sections += _bad_lines(log.file, log.bad, log.num_bad)
    for bench in links:
        sections += _bad_lines(bench.file, bench.bad, len(bench.bad))
    return Group(*sections)


def _section(title: str, body: RenderableType) -> list[RenderableType]:
    return [Text(), Text(title, style="bold cyan"), Padding(body, (0, 0, 0, 2))]


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(first, style="bold", no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _sources(calibration: Calibration) -> list[RenderableType]:
    lines = []
    for item in calibration.profile.sources:
        what = counted(item.num_used, "iteration" if item.kind.startswith("run") else "result")
        lines.append(Text(f"{printable(item.name)}: {item.kind}, {what}", style="dim"))
    return list(lines)


def _values(verdicts: Sequence[Verdict]) -> Table:
    table = _table("parameter", "value", "90 % interval", "catalog")
    for item in verdicts:
        shown = [_quantity(item, value) for value in (item.value, item.low, item.high, item.unknown.catalog)]
        table.add_row(_name(item), shown[0], f"{shown[1]} to {shown[2]}", shown[3])
    return table


def _others(verdicts: Sequence[Verdict]) -> Table:
    table = _table("parameter", "catalog")
    table.add_column("why")
    for item in verdicts:
        table.add_row(_name(item), _quantity(item, item.unknown.catalog), item.reason)
    return table


def _name(item: Verdict) -> str:
    key = item.unknown.key
    words = key.parameter.value.removesuffix("_bytes_per_s").removesuffix("_s").replace("_", " ")
    return f"{words} ({key.gpu})" if key.gpu is not None else words


def _quantity(item: Verdict, value: float) -> str:
    parameter = item.unknown.key.parameter
    if parameter is Parameter.SWAP_RATE:
        return f"{value / GB:.2f} GB/s"
    if parameter.value.endswith("_s"):
        return f"{value * 1e3:.3g} ms" if value < 0.1 else f"{value:.2f} s"
    return f"{value:.3f}"


def _error_title(calibration: Calibration) -> str:
    folds = calibration.result.num_folds
    left = f"left out: each of {folds} parts predicted from the others" if folds else "one part only: cannot be checked"
    return f"Median error of predictions ({left})"


def _errors(calibration: Calibration) -> Table:
    table = _table("what", "n", "before", "after", "left out")
    for row in calibration.result.errors:
        left_out = "-" if row.left_out_ratio is None else _ratio(row.left_out_ratio)
        table.add_row(row.label, str(row.num), _ratio(row.before_ratio), _ratio(row.after_ratio), left_out)
    return table


def _ratio(ratio: float) -> str:
    return f"{ratio:.1%}" if ratio < 0.1 else f"{ratio:.0%}"


def _notes(lines: Sequence[str]) -> list[RenderableType]:
    return [Text(), *(Text(f"note: {printable(line)}", style="yellow") for line in lines)] if lines else []


def _bad_lines(file: str, bad: Sequence[BadLine], num_bad: int) -> list[RenderableType]:
    """Each line that was skipped, by place."""
    if not num_bad:
        return []
    lines: list[RenderableType] = [
        Text(),
        Text(f"{counted(num_bad, 'line')} of {printable(file)} skipped", style="yellow"),
    ]
    lines += [Text(f"  {printable(file)}:{item.line}: {item.reason}: {item.text}") for item in bad]
    if num_bad > len(bad):
        lines.append(Text(f"  and {num_bad - len(bad):,} more"))
    return lines


def calibration_document(
    calibration: Calibration, runs: Sequence[RunLog], links: Sequence[LinkBench], assumed: Sequence[str]
) -> dict[str, Json]:
    """The same for programs. Values are in SI units."""
    result = calibration.result
    bad: list[Json] = [
        {"file": file, "line": item.line, "text": item.text, "reason": item.reason}
        for file, items in [*((log.file, log.bad) for log in runs), *((b.file, b.bad) for b in links)]
        for item in items
    ]
    return {
        "parameters": [_verdict_document(item) for item in result.verdicts],
        "errors": [
            {
                "what": row.label, "num": row.num, "before_ratio": row.before_ratio, "after_ratio": row.after_ratio,
                "left_out_ratio": row.left_out_ratio,
            }
            for row in result.errors
        ],
        "num_folds": result.num_folds,
        "condition": result.condition if math.isfinite(result.condition) else None,
        "sources": [
            {"name": s.name, "sha256": s.sha256, "kind": s.kind, "num_used": s.num_used}
            for s in calibration.profile.sources
        ],
        "skipped_lines": bad,
        "num_skipped_lines": sum(log.num_bad for log in runs) + sum(len(bench.bad) for bench in links),
        "notes": [*calibration.notes, *assumed],
    }  # fmt: skip


def _verdict_document(item: Verdict) -> Json:
    key = item.unknown.key
    return {
        "parameter": key.parameter.value, "gpu": key.gpu, "is_identified": item.is_identified, "reason": item.reason,
        "value": item.value, "low": item.low, "high": item.high, "catalog": item.unknown.catalog,
        "posterior_ratio": item.posterior_ratio,
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------- comparison


def comparison_report(plan: Plan, comparison: Comparison) -> Group:
    """Says first whether the iteration lies in the plan's band, then stage by stage, then what would explain it."""
    plan = one_line(plan)
    work = plan.workload
    title = Text.assemble(
        (f"{work.algorithm.title} on {work.actor.id}", "bold"),
        f" · {counted(plan.num_gpus, 'GPU')} · planned against {printable(comparison.log.file)}",
    )
    sections: list[RenderableType] = [title, *_lengths(plan, comparison), Text(), _headline(comparison)]
    sections += _section("Stages", _stages(comparison))
    if comparison.unplanned:
        words = ", ".join(f"{item.name} ({format_seconds(item.value)})" for item in comparison.unplanned)
        note = f"logged, but no stage of the configuration: {words}; one of the two is of another run"
        sections.append(Padding(Text(note, style="yellow"), (0, 0, 0, 2)))
    if comparison.explanation is not None:
        sections += _section("The largest gap", _explained(comparison.explanation, comparison))
    sections += _bad_lines(comparison.log.file, comparison.log.bad, comparison.log.num_bad)
    return Group(*sections)


def _lengths(plan: Plan, comparison: Comparison) -> list[RenderableType]:
    iterations = max((stage.num_iterations for stage in _all(comparison)), default=0)
    warm_up = ", the first one left out" if comparison.has_warm_up else ""
    text = f"{counted(iterations, 'iteration')}{warm_up}"
    if comparison.response_tokens is not None:
        planned = plan.workload.response.mean_tokens
        text += f"; responses of {comparison.response_tokens:,.0f} tokens on average, {planned:,.0f} planned"
    return [Text(text, style="dim")]


def _all(comparison: Comparison) -> tuple[ComparedStage, ...]:
    return comparison.stages if comparison.iteration is None else (*comparison.stages, comparison.iteration)


def _headline(comparison: Comparison) -> Text:
    whole, band = comparison.iteration, comparison.band_s
    if whole is None:
        return Text("The log has no whole iterations, so nothing can be said of the plan's band.")
    text = Text.assemble("measured ", (format_seconds(whole.measured_s), "bold"), " per iteration, ")
    text.append(f"planned {format_seconds_like(whole.planned_s, whole.measured_s)}")
    if band is None:
        return text.append("; the plan has no band")
    inside = bool(comparison.is_inside)
    text.append("\n").append("inside" if inside else "OUTSIDE", style="bold green" if inside else "bold red")
    text.append(f" the plan's band, {format_range(*band)}")
    if whole.at_lengths_s is not None:
        again = format_seconds_like(whole.at_lengths_s, whole.measured_s)
        text.append(f"\nat the logged lengths the plan takes {again}; ratios below are to that")
    return text


def _stages(comparison: Comparison) -> Table:
    has_lengths = any(stage.at_lengths_s is not None for stage in _all(comparison))
    names = ("planned", *(("at logged lengths",) if has_lengths else ()), "measured", "5 to 95 %", "ratio")
    table = _table("stage", *names)
    for stage in _all(comparison):
        again = () if not has_lengths else (_seconds(stage.predicted_s),)
        ratio = f"{stage.ratio:.2f}" if math.isfinite(stage.ratio) else "-"
        spread = format_range(stage.low_s, stage.high_s) if stage.high_s > 0 else "-"
        table.add_row(stage.label, _seconds(stage.planned_s), *again, _seconds(stage.measured_s), spread, ratio)
    return table


def _seconds(value: float) -> str:
    return format_seconds(value) if value >= 0.0005 else "~0 s"


def _explained(item: Explanation, comparison: Comparison) -> Text:
    gap = f"{format_seconds(abs(item.gap_s))} {'more' if item.gap_s > 0 else 'less'} than predicted"
    text = Text.assemble((item.stage, "bold"), f": {gap}. ")
    if item.closes:
        text.append(
            f"{item.title} ({item.resource}, {format_seconds(item.predicted_s)} predicted) times {item.factor:.2f} "
            "would close it."
        )
        return text
    closed = abs(item.predicted_s * (item.factor - 1.0)) / abs(item.gap_s)
    return text.append(
        f"No single term explains it within plausible limits; {item.title} ({item.resource}) times {item.factor:.2f} "
        f"would close {percent(min(closed, 1.0))} of it. Then several are off, which rlplan calibrate can fit, or the "
        "log is of another configuration."
    )


def comparison_document(comparison: Comparison) -> dict[str, Json]:
    """The same for programs; seconds."""
    item = comparison.explanation
    explanation: Json = None
    if item is not None:
        explanation = {
            "stage": item.stage, "gap_s": item.gap_s, "term": item.term, "resource": item.resource,
            "predicted_s": item.predicted_s, "factor": item.factor, "closes": item.closes,
        }  # fmt: skip
    band: Json = None if comparison.band_s is None else list(comparison.band_s)
    return {
        "is_inside": comparison.is_inside,
        "band_s": band,
        "stages": [_stage_document(stage) for stage in comparison.stages],
        "iteration": None if comparison.iteration is None else _stage_document(comparison.iteration),
        "unplanned": [{"stage": item.name, "measured_s": item.value} for item in comparison.unplanned],
        "response_tokens": comparison.response_tokens,
        "prompt_tokens": comparison.prompt_tokens,
        "explanation": explanation,
        "skipped_lines": [
            {"file": comparison.log.file, "line": b.line, "text": b.text, "reason": b.reason}
            for b in comparison.log.bad
        ],
        "num_skipped_lines": comparison.log.num_bad,
    }


def _stage_document(stage: ComparedStage) -> Json:
    return {
        "stage": stage.label, "planned_s": stage.planned_s, "at_lengths_s": stage.at_lengths_s,
        "measured_s": stage.measured_s, "low_s": stage.low_s, "high_s": stage.high_s,
        "num_iterations": stage.num_iterations, "ratio": stage.ratio if math.isfinite(stage.ratio) else None,
    }  # fmt: skip
