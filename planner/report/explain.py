"""An explanation for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from typing import Literal

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.domain.plan import Plan
from planner.explaining.alone import Rival
from planner.explaining.bottleneck import Bottleneck, FullMemory
from planner.explaining.conflict import Conflict
from planner.explaining.decisions import Decision
from planner.explaining.explanation import Explanation
from planner.explaining.relaxations import Relaxation, RelaxationKind
from planner.explaining.remedies import Remedy
from planner.explaining.score import Score
from planner.explaining.sensitivity import FLIP_RATIO, Flip, Point, Sensitivity
from planner.files.plan import Json, encode
from planner.report.facts import execution_words
from planner.report.words import counted, one_line, percent, term_words
from planner.units import format_bytes, format_seconds, format_seconds_like

AS_GOOD_RATIO = 0.001
"""Smaller differences are no difference."""
LEAST_GAIN_RATIO = 0.005
"""Relaxations that gain less are listed as gaining nothing."""
SHOWN_QUESTIONS = 4
"""So many of the questions that there was no time for are named; all of them are in the JSON."""
_FIELD_WORDS = {
    "num_gpus": "GPUs used",
    "dp": "engines",
    "micro_batch_tokens": "micro-batch tokens",
    "inference_tokens": "log-prob tokens",
    "engine_fraction": "GPU memory share",
    "max_num_seqs": "sequences per engine",
    "idle": "while idle",
}
_KIND_WORDS = {
    RelaxationKind.HARDWARE: "hardware",
    RelaxationKind.PERMISSION: "changes what is learned",
    RelaxationKind.RESTRICTION: "your limit",
}


def explanation_report(explanation: Explanation) -> Group:
    """The whole report: what binds, why each decision, what more would buy, where the plan flips."""
    shown = one_line(explanation)
    base = shown.base
    sections: list[RenderableType] = [_headline(shown)]
    sections += _section("What binds", _bottleneck(shown.bottleneck, base))
    sections += _section(
        "Why these decisions: the next-best alternative of each",
        _Decisions(shown.decisions, base, _stages_of(shown.plan)),
        _decision_note(),
    )
    if shown.relaxations:
        sections += _section("What more would buy: each planned on its own", *_relaxations(shown.relaxations, base))
    flips = _sensitivity(shown, base)
    if flips:
        sections += _section("Where another plan takes over", *flips)
    return Group(*sections)


def _section(title: str, *bodies: RenderableType) -> list[RenderableType]:
    return [Text(), Text(title, style="bold cyan"), *(Padding(body, (0, 0, 0, 2)) for body in bodies)]


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name, justify in columns:
        is_right = justify == "right"
        table.add_column(name, justify="right" if is_right else "left", no_wrap=is_right, overflow="fold")
    return table


# ---------------------------------------------------------------------------------------------- headline


def _headline(shown: Explanation) -> Group:
    plan, base, optimum = shown.plan, shown.base, shown.optimum
    title = Text.assemble(
        (f"{plan.workload.algorithm.title} on {plan.workload.actor.id}", "bold"),
        f" · {counted(plan.num_gpus, 'GPU')} · {execution_words(plan)}",
    )
    time = Text.assemble((format_seconds(base.time_s), "bold"), " per iteration")
    if abs(base.time_s / plan.time_s - 1.0) > AS_GOOD_RATIO:
        time.append(f"; saved with {format_seconds_like(plan.time_s, base.time_s)}, by another cost model", "yellow")
    lines = [title, time, _found(shown, base, optimum)]
    lines += [Text(f"this plan does not fit: {problem}", style="bold red") for problem in shown.problems]
    if shown.not_reached:
        lines.append(Text(_not_reached(shown.not_reached), style="yellow"))
    return Group(*lines)


def _not_reached(questions: Sequence[str]) -> str:
    first = ", ".join(questions[:SHOWN_QUESTIONS])
    more = len(questions) - SHOWN_QUESTIONS
    rest = f" and {counted(more, 'other question')}" if more > 0 else ""
    return f"the time limit left no time for {first}{rest}; allow more with --time-limit"


def _found(shown: Explanation, base: Score, optimum: Score) -> Text:
    above = base.change_ratio(optimum)
    if shown.is_found_again:
        text = Text("the search finds this plan again", style="dim")
        if above > AS_GOOD_RATIO:
            text.append(
                f"; {percent(above)} above the optimum of {_value(optimum, base)}, preferred for fewer GPUs, "
                "headroom or simplicity"
            )
        return text
    if above <= AS_GOOD_RATIO:
        return Text("the search now finds another plan that is as good", style="yellow")
    return Text(f"the search now finds another plan: {_value(optimum, base)}, {percent(above)} better", style="yellow")


def _value(score: Score, base: Score) -> str:
    if score.unit == "s":
        return format_seconds_like(score.time_s, base.time_s)
    if score.unit == "GPUs":
        return f"{counted(score.num_gpus, 'GPU')}, {format_seconds_like(score.time_s, base.time_s)}"
    return f"{score.value:,.2f} {score.unit}"


def _price(score: Score, base: Score) -> str:
    """`'+6.1 s (+1.2%)'`; in the unit of the objective where that differs."""
    ratio = score.change_ratio(base)
    if abs(ratio) <= AS_GOOD_RATIO:
        return "as good"
    share = _signed_percent(ratio)
    if score.unit == base.unit == "GPUs" and score.num_gpus != base.num_gpus:
        return f"{score.num_gpus - base.num_gpus:+,} GPUs"
    if score.unit == base.unit and score.unit not in ("s", "GPUs"):
        return f"{score.value - base.value:+,.2f} {score.unit} ({share})"
    return f"{_signed_seconds(score.time_s - base.time_s)} ({share})"


def _signed_seconds(value: float) -> str:
    return f"{'+' if value >= 0 else '-'}{format_seconds(abs(value))}"


def _signed_percent(ratio: float) -> str:
    return f"{'+' if ratio >= 0 else '-'}{percent(abs(ratio))}"


# ---------------------------------------------------------------------------------------------- what binds


def _bottleneck(found: Bottleneck, base: Score) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    resources = dict(found.resources)
    path = " > ".join(
        f"{item.stage.value} {format_seconds_like(item.seconds, base.time_s)} ({percent(item.share_ratio)}, "
        f"{resources[item.stage]})"
        for item in found.path
        if item.share_ratio >= LEAST_GAIN_RATIO
    )
    table.add_row("longest path", path)
    for memory in (found.gpu_memory, found.host_ram):
        if memory is not None:
            table.add_row(memory.resource, _memory(memory))
    if found.links:
        table.add_row(
            "links",
            "; ".join(f"{item.link} {percent(item.used_ratio)} used in {item.stage.value}" for item in found.links),
        )
    return table


def _memory(memory: FullMemory) -> str:
    free = memory.usable_bytes - memory.peak_bytes
    return (
        f"{percent(memory.used_ratio)} of {format_bytes(memory.usable_bytes)} in {memory.stage.value} "
        f"({memory.instant}); most is {term_words(memory.largest_term)}, {format_bytes(max(free, 0.0))} left"
    )


# ---------------------------------------------------------------------------------------------- decisions


def _stages_of(plan: Plan) -> dict[str, set[str]]:
    """The stages that each worker serves, by name."""
    result: dict[str, set[str]] = {}
    for item in plan.placements:
        if item.worker is not None:
            result.setdefault(item.worker.value, set()).add(item.stage.value)
    return result


_COLUMNS = (("decision", 22, False), ("this plan", 13, False), ("next best", 13, False), ("price", 16, True))
LEAST_WIDTH = 94
"""Columns that the table of decisions needs for what grows beside all else; below that it stands under the decision."""


class _Decisions:
    """One table per subject, with the same columns, for the width at hand."""

    def __init__(self, decisions: Sequence[Decision], base: Score, stages: Mapping[str, Set[str]]) -> None:
        self._decisions, self._base, self._stages = decisions, base, stages

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        is_wide = options.max_width >= LEAST_WIDTH
        for number, subject in enumerate(dict.fromkeys(item.subject for item in self._decisions)):
            yield self._table(subject, is_wide=is_wide, has_header=not number)

    def _table(self, subject: str, *, is_wide: bool, has_header: bool) -> Table:
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim", show_header=has_header)
        for name, columns, is_right in _COLUMNS:
            justify: Literal["left", "right"] = "right" if is_right else "left"
            table.add_column(name, width=columns, justify=justify, overflow="fold")
        table.add_column("alone", width=9, justify="right", no_wrap=True)
        if is_wide:
            table.add_column("what grows", overflow="fold")
        table.add_row(Text(subject, style="bold"))
        for item in self._decisions:
            if item.subject == subject:
                self._add(table, item, is_wide=is_wide)
        return table

    def _add(self, table: Table, item: Decision, *, is_wide: bool) -> None:
        name = f"  {_FIELD_WORDS.get(item.what, item.what)}"
        *cells, grows = _rival(item, self._base, self._stages.get(item.subject, set()))
        table.add_row(name, _shown(item.value), *cells, *((grows,) if is_wide else ()))
        if grows and not is_wide:
            table.add_row(Padding(Text(grows, style="dim"), (0, 0, 0, 4)))


def _shown(value: str) -> str:
    return f"{int(value):,}" if value.isdigit() else value.replace("+", " + ")


def _rival(item: Decision, base: Score, stages: Set[str]) -> tuple[str, str, str, str]:
    rival = item.rival
    if rival is None:
        return "none", "", "", item.reason
    alone = rival.equal_problem
    if rival.equal_s is not None:
        extra_s = rival.equal_s - base.time_s
        is_same = abs(extra_s) <= AS_GOOD_RATIO * base.time_s
        alone = "as good" if is_same else _signed_seconds(extra_s)
    price = _price(rival.score, base)
    return _shown(rival.value), price, alone, _growth(rival, base, stages)


def _growth(rival: Rival, base: Score, stages: Set[str]) -> str:
    """`'kv read +6.5 s'`, with the stage where that is none of the worker's."""
    growth = rival.growth
    if (
        growth is None
        or growth.extra_s <= AS_GOOD_RATIO * base.time_s
        or rival.score.change_ratio(base) <= AS_GOOD_RATIO
    ):
        return ""
    where = "" if growth.stage.value in stages else f"{growth.stage.value}: "
    return f"{where}{term_words(growth.term)} {_signed_seconds(growth.extra_s)}"


def _decision_note() -> Text:
    return Text(
        "price: the best plan in which this one decision differs, everything else chosen again; below 0: a plan that "
        "is faster but was not preferred. alone: nothing else changed, as far as that is legal and fits. what grows: "
        "the term on the longest path that grows most.",
        style="dim",
    )


# ---------------------------------------------------------------------------------------------- relaxations


def _relaxations(relaxations: Sequence[Relaxation], base: Score) -> list[RenderableType]:
    table = _table(("change", ""), ("best plan", "right"), ("gain", "right"), ("", ""))
    gaining = [item for item in relaxations if item.score is not None and item.gain_ratio >= LEAST_GAIN_RATIO]
    for item in gaining:
        assert item.score is not None
        note = _KIND_WORDS[item.kind] + (f": {item.option}" if item.option else "")
        table.add_row(item.what, _value(item.score, base), f"-{percent(item.gain_ratio)}", note)
    others = [item.what for item in relaxations if item not in gaining]
    result: list[RenderableType] = [table] if gaining else []
    if others:
        result.append(Text(f"less than {percent(LEAST_GAIN_RATIO)}: {'; '.join(others)}", style="dim"))
    return result


# ---------------------------------------------------------------------------------------------- sensitivity


def _sensitivity(shown: Explanation, base: Score) -> list[RenderableType]:
    found = shown.sensitivity
    table = _table(("if", ""), ("this plan", "right"), ("best plan", "right"), ("loss", "right"), ("", ""))
    for item in found.points:
        table.add_row(*_point(item, base))
    lines: list[RenderableType] = []
    if found.flips or found.growth is not None:
        lines = [Text("\n".join(_flip_lines(shown, base))), Text()]
    return [*lines, table] if found.points else lines


def _flip_lines(shown: Explanation, base: Score) -> list[str]:
    found: Sensitivity = shown.sensitivity
    mean = shown.plan.workload.response.mean_tokens
    lines = [f"mean response {mean:,.0f} tokens; {_flip(item, base)}" for item in found.flips]
    if found.growth is not None:
        lines.append(_growing(found, base))
    return lines


def _flip(flip: Flip, base: Score) -> str:
    side = "above" if flip.is_upwards else "below"
    if flip.mean_tokens is None or flip.at is None:
        return (
            f"no other plan is better by {percent(FLIP_RATIO)} up to {flip.searched_tokens:,.0f}"
            if (flip.is_upwards)
            else f"no other plan is better by {percent(FLIP_RATIO)} down to {flip.searched_tokens:,.0f}"
        )
    if flip.at.kept is None:
        return f"plan again {side} {flip.mean_tokens:,.0f}: this plan no longer fits"
    loss = flip.at.loss_ratio
    return f"plan again {side} {flip.mean_tokens:,.0f}: keeping this plan then loses {percent(loss or 0.0)}"


def _growing(found: Sensitivity, base: Score) -> str:
    growth = found.growth
    assert growth is not None
    words = f"if it grows to {growth.last_tokens:,.0f} during the run: "
    if growth.kept_s is None:
        return words + "this plan does not fit all the way; plan again on the way"
    kept = f"{format_seconds_like(growth.kept_s, base.time_s)} on average with this plan"
    if growth.best_s is None:
        return words + kept
    loss = growth.kept_s / growth.best_s - 1.0
    return (
        f"{words}{kept}, {format_seconds_like(growth.best_s, base.time_s)} planned again on the way (-{percent(loss)})"
    )


def _point(item: Point, base: Score) -> tuple[str, str, str, str, str]:
    best = "nothing fits" if item.best is None else _value(item.best, base)
    if item.kept is None:
        return item.what, "does not fit", best, "", "plan again"
    loss = item.loss_ratio or 0.0
    return item.what, _value(item.kept, base), best, percent(loss), "plan again" if item.is_flip else ""


# ---------------------------------------------------------------------------------------------- no plan


def conflict_report(conflict: Conflict) -> Group:
    """Why there is no plan, and the ways out."""
    shown = one_line(conflict)
    sections: list[RenderableType] = [Text("No plan fits.", style="bold red")]
    sections += [Padding(Text(problem), (0, 0, 0, 2)) for problem in shown.problems]
    if shown.not_reached:
        sections.append(Padding(Text(_not_reached(shown.not_reached), style="yellow"), (0, 0, 0, 2)))
    sections += _section("Limits that cannot be met together", *_constraints(shown))
    ways = _table(("change", ""), ("best plan then", ""), ("", ""))
    for item in shown.remedies:
        ways.add_row(item.what, _found_words(item), item.kind.value)
    nothing = Text("none of the directions tried has a plan: a smaller model, or more than one change at a time")
    sections += _section("Ways out: each has a plan", ways if shown.remedies else nothing)
    return Group(*sections)


def _constraints(shown: Conflict) -> list[RenderableType]:
    if not shown.constraints:
        return [Text("even without any of the limits there is no plan: see above")]
    lines = [Text(f"- {item.what}{'' if item.is_own else ' (hardware)'}") for item in shown.constraints]
    note = "every other limit may be lifted and there is still no plan"
    note += "; not all of these were tried" if shown.not_reached else "; without one of these there is"
    return [*lines, Text(note, style="dim")]


def _found_words(item: Remedy) -> str:
    found = item.found
    if found is None:
        return ""
    usd = "" if found.usd is None else f", {found.usd:,.2f} USD"
    return f"{format_seconds(found.time_s)} per iteration on {counted(found.num_gpus, 'GPU')}{usd}"


# ---------------------------------------------------------------------------------------------- JSON


def explanation_document(explanation: Explanation) -> dict[str, Json]:
    """The same for programs, without the plan itself. Seconds, bytes, tokens, shares of one."""
    document: dict[str, Json] = {}
    for item in fields(explanation):
        if item.name != "plan":
            document[item.name] = _encoded(getattr(explanation, item.name))
    return document


def conflict_document(conflict: Conflict) -> dict[str, Json]:
    """The same for programs."""
    encoded = _encoded(conflict)
    assert isinstance(encoded, dict)
    return encoded


def _encoded(value: object) -> Json:
    if isinstance(value, tuple):
        return [_encoded(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        encoded: dict[str, Json] = {field.name: _encoded(getattr(value, field.name)) for field in fields(value)}
        if isinstance(value, Point):
            encoded |= {"loss_ratio": value.loss_ratio, "is_flip": value.is_flip}
        return encoded
    return encode(value)
