"""A check for a terminal and as JSON: what the configuration does, what is wrong with it, what would be better."""

from __future__ import annotations

import re

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.adapters.findings import SEVERITIES, Finding, Severity
from planner.adapters.imported import Imported
from planner.check import Change, CheckView, assignment
from planner.domain.plan import Assumption, Placement, Plan
from planner.domain.verdict import Verdict
from planner.files.plan import Json, encode
from planner.report.words import counted, one_line, percent, strategy_words, term_words
from planner.units import format_bytes, format_seconds, format_seconds_like

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
_VERDICT_STYLES = {Verdict.FITS: "bold green", Verdict.MARGINAL: "bold yellow", Verdict.DOES_NOT_FIT: "bold red"}
_SHOWN_TERMS = 4
_KEY_WIDTH = 28
"""Longer keys are broken where their last part begins, not in the middle of a word."""


def check_report(view: CheckView) -> Group:
    """The whole report: answer first."""
    view = one_line(view)
    sections: list[RenderableType] = [_headline(view)]
    sections += import_sections(view.imported)
    if view.plan is not None:
        overlap = " (batches overlap: shares add up to more than all)" if view.plan.execution.is_asynchronous else ""
        sections += _section(f"Predicted step{overlap}", _stages(view.plan))
        sections += _section("The best plan for the same GPUs and framework", _best(view, view.plan))
        sections += _section(_changes_title(view), _changes(view, view.plan))
        assumed = [item for item in view.plan.assumptions if item.what != "does not fit"]
        if assumed:
            sections += _section("Assumptions (not in the configuration)", _assumptions(assumed))
    return Group(*sections)


def import_report(imported: Imported) -> Group:
    """What a configuration says where it cannot be priced."""
    imported = one_line(imported)
    return Group(_title(imported), *import_sections(imported))


def import_sections(imported: Imported) -> list[RenderableType]:
    sections: list[RenderableType] = []
    if imported.settings:
        sections += _section("What the configuration really does", _settings(imported))
    for severity in SEVERITIES:
        found = [item for item in imported.findings if item.severity is severity]
        if found:
            noun = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}[severity]
            title = counted(len(found), noun).capitalize()
            sections += _section(title, _findings(found, _STYLES[severity], imported.file))
    return sections


def _section(title: str, body: RenderableType) -> list[RenderableType]:
    return [Text(), Text(title, style="bold cyan"), Padding(body, (0, 0, 0, 2))]


def _table(*columns: str, fixed: int = 1) -> Table:
    """Columns of text; the first `fixed` are never broken."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", show_header=bool(columns[0]))
    for index, name in enumerate(columns):
        table.add_column(name, no_wrap=index < fixed, overflow="fold")
    return table


def _title(imported: Imported) -> Text:
    size = f"{imported.num_nodes} x {imported.gpus_per_node} GPUs" if imported.workers else "GPUs not known"
    versions = f"keys of {imported.framework} {imported.version}"
    return Text.assemble((imported.file, "bold"), f" · {versions} · {size}")


def _headline(view: CheckView) -> Group:
    lines: list[RenderableType] = [_title(view.imported), Text(), _answer(view)]
    if view.problems:
        lines += [Text(f"- {problem}", style="red") for problem in view.problems]
    lines += [Text(f"- {text} (--memory-margin)", style="yellow") for text in view.above_margin]
    return Group(*lines)


def _answer(view: CheckView) -> Text:
    if view.plan is None or view.verdict is None:
        errors = sum(finding.severity is Severity.ERROR for finding in view.imported.findings)
        why = f"{counted(errors, 'error')} in the configuration" if errors else view.why_not
        return Text.assemble(("cannot be priced", "bold red"), f": {why}")
    words: list[str | tuple[str, str]] = []
    errors = sum(finding.severity is Severity.ERROR for finding in view.imported.findings)
    faults = [counted(errors, "error")] if errors else []
    if view.problems and view.verdict is not Verdict.DOES_NOT_FIT:
        faults.append(counted(len(view.problems), "broken rule"))
    if faults:
        words += [("does not run as it is", "bold red"), f": {' and '.join(faults)}; memory "]
    words.append((view.verdict.value, _VERDICT_STYLES[view.verdict]))
    if view.worst is not None:
        words.append(f": {_peak_words(view.plan, view.worst)}")
    words.append(f"; {format_seconds(view.plan.time_s)} per iteration predicted")
    return Text.assemble(*words)


def _peak_words(plan: Plan, placement: Placement) -> str:
    """Stage, instant, peak and the largest term."""
    memory = placement.gpu_memory
    assert memory is not None
    top = max(memory.terms, key=lambda term: term.value)
    group = next(item for item in plan.device_groups if item.id == placement.device_group)
    device_bytes = plan.cluster.pool(group.pool).node.gpu.memory_bytes
    when = "" if memory.instant == placement.stage.value else f" at {memory.instant}"
    return (
        f"{placement.stage.value} needs {format_bytes(memory.peak_bytes)} of {format_bytes(device_bytes)}{when} "
        f"({term_words(top.name)} {format_bytes(top.value)})"
    )


def _settings(imported: Imported) -> Table:
    table = _table("what", "value", "from")
    for item in imported.settings:
        table.add_row(item.what, item.value, Text(_broken(item.source), style="dim"))
    return table


def _findings(findings: list[Finding], style: str, file: str) -> Group:
    lines: list[RenderableType] = []
    for item in findings:
        lines.append(Text.assemble((_place(item.place, file), style)))
        lines.append(Padding(Text(item.message), (0, 0, 0, 2)))
        if item.remedy:
            lines.append(Padding(Text(f"-> {item.remedy}", style="green"), (0, 0, 0, 2)))
    return Group(*lines)


_LINE = re.compile(r":(\d+)(?::\s*|$)")


def _place(place: str, file: str) -> str:
    """A place without the name of the file that the report is about: `line 12: trainer.nnodes`."""
    if not place.startswith(file):
        return place
    rest = place[len(file) :]
    if rest.startswith(": "):
        return rest[2:]
    found = _LINE.match(rest)
    if found is None:
        return place
    key = rest[found.end() :]
    return f"line {found[1]}" + (f": {key}" if key else "")


def _broken(key: str) -> str:
    """A long key in two lines, broken before its last part."""
    head, dot, last = key.rpartition(".")
    return f"{head}.\n{last}" if dot and len(key) > _KEY_WIDTH and " " not in key else key


def _stages(plan: Plan) -> Table:
    table = _table("stage", "time", "share", "peak", "largest at the worst instant", fixed=4)
    for item in plan.placements:
        memory = item.gpu_memory
        peak = terms = ""
        if memory is not None:
            top = sorted(memory.terms, key=lambda term: -term.value)[:_SHOWN_TERMS]
            peak = format_bytes(memory.peak_bytes)
            terms = f"{memory.instant}: " + ", ".join(f"{term_words(t.name)} {format_bytes(t.value)}" for t in top)
        share = percent(item.time_s / plan.time_s) if plan.time_s else ""
        table.add_row(item.stage.value, format_seconds(item.time_s), share, peak, terms)
    return table


def _best(view: CheckView, plan: Plan) -> RenderableType:
    best = view.best
    if best is None:
        return Text(view.no_best or "none")
    gain = 1.0 - best.time_s / plan.time_s
    time = format_seconds_like(best.time_s, plan.time_s)
    if gain > 0:
        answer = f"{time} per iteration instead of {format_seconds(plan.time_s)}: {percent(gain)} less time"
    else:
        answer = f"{time} per iteration: the configuration is as good"
    if best.num_gpus < plan.num_gpus:
        answer += f", on {best.num_gpus} of the GPUs"
    table = _table("", "")
    if best.execution.is_asynchronous or plan.execution.is_asynchronous:
        table.add_row("execution", _execution_words(best))
    for item in best.placements:
        if item.strategy is not None and item.worker is not None:
            trains = item.stage.value.endswith("update")
            table.add_row(item.stage.value, strategy_words(item.strategy, trains=trains))
    return Group(Text(answer, style="bold"), table)


def _execution_words(plan: Plan) -> str:
    execution = plan.execution
    if not execution.is_asynchronous:
        return execution.mode.value
    return f"{execution.mode.value}, weights {counted(execution.staleness, 'version')} behind"


def _changes_title(view: CheckView) -> str:
    if view.smallest_fix is not None:
        return "Single changes that make it fit, the smallest first"
    return "Single changes, by gain"


def _changes(view: CheckView, plan: Plan) -> RenderableType:
    if not view.changes and view.verdict is Verdict.DOES_NOT_FIT:
        return Text("none makes it fit: that takes more than one change (see the best plan)")
    if not view.changes:
        return Text("none of the neighbouring configurations is better by more than 1%")
    table = _table("change", "iteration", "gain", "fits", fixed=0)
    table.columns[1].no_wrap = table.columns[2].no_wrap = table.columns[3].no_wrap = True
    for change in view.changes:
        verdict = "yes" if change.fits else "no"
        table.add_row(
            _change_words(change, view.imported), format_seconds_like(change.time_s, plan.time_s),
            f"{1.0 - change.time_s / plan.time_s:+.0%}", verdict,
        )  # fmt: skip
    return table


def _change_words(change: Change, imported: Imported) -> str:
    who = " and ".join(name.value for name in change.workers)
    what = f"{who}: {change.field.replace('_', ' ')} {change.before} -> {change.after}"
    written = assignment(change, imported.knobs)
    return f"{what}\n{written}" if written else what


def _assumptions(assumed: list[Assumption]) -> Table:
    table = _table("what", "value", "effect")
    for item in assumed:
        table.add_row(item.what, item.value, item.effect)
    return table


# JSON ------------------------------------------------------------------------------------------------------------


def check_document(view: CheckView) -> dict[str, Json]:
    """The check for programs."""
    smallest = view.smallest_fix
    return {
        **import_document(view.imported),
        "verdict": None if view.verdict is None else view.verdict.value,
        "has_problem": view.has_problem,
        "why_not_priced": view.why_not,
        "problems": list(view.problems),
        "above_margin": list(view.above_margin),
        "worst_stage": None if view.worst is None else view.worst.stage.value,
        "worst_instant": None if view.worst is None or view.worst.gpu_memory is None else view.worst.gpu_memory.instant,
        "iteration_s": None if view.plan is None else view.plan.time_s,
        "best_iteration_s": None if view.best is None else view.best.time_s,
        "no_best": view.no_best,
        "stages": [] if view.plan is None else [_stage_document(item) for item in view.plan.placements],
        "changes": [_change_document(item, view.imported) for item in view.changes],
        "smallest_fix": None if smallest is None else _change_document(smallest, view.imported),
    }


def import_document(imported: Imported) -> dict[str, Json]:
    """What was read, for programs."""
    return {
        "file": imported.file,
        "framework": imported.framework,
        "version": imported.version,
        "num_nodes": imported.num_nodes,
        "gpus_per_node": imported.gpus_per_node,
        "execution": encode(imported.execution),
        "settings": [{"what": item.what, "value": item.value, "source": item.source} for item in imported.settings],
        "findings": [
            {"place": item.place, "severity": item.severity.value, "message": item.message, "remedy": item.remedy}
            for item in imported.findings
        ],
        "workers": [encode(worker) for worker in imported.workers],
        "unresolved": list(imported.unresolved),
    }


def _stage_document(placement: Placement) -> dict[str, Json]:
    memory = placement.gpu_memory
    return {
        "stage": placement.stage.value,
        "time_s": placement.time_s,
        "peak_bytes": None if memory is None else memory.peak_bytes,
        "instant": None if memory is None else memory.instant,
    }


def _change_document(change: Change, imported: Imported) -> dict[str, Json]:
    return {
        "workers": [name.value for name in change.workers],
        "field": change.field,
        "before": change.before,
        "after": change.after,
        "write": assignment(change, imported.knobs),
        "iteration_s": change.time_s,
        "fits": change.fits,
    }
