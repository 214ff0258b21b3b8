"""The page of guidelines: what the planner finds on the grid of `benchmarks/guidelines`, in numbers."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.guidelines.findings import (
    ATTRIBUTES,
    EQUAL_RATIO,
    Point,
    Row,
    Rule,
    best_rule,
    by_variant,
    compared,
    in_order,
    loses,
    median,
    read_rows,
    savings,
    wins,
)
from benchmarks.guidelines.grid import read_grid

WIDTH = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Two variants to compare: `name` wins where `variant` is faster than `other`."""

    title: str
    name: str
    variant: str
    other: str
    rival: str
    """What the other variant is called."""
    note: str = ""
    only: str = ""
    """Algorithm to which the comparison is limited."""


PLACEMENT = (
    Question(
        title="Colocated or split", name="sharing GPUs between engines and trainer", variant="colocated",
        other="split", rival="GPUs of their own for each",
        note="Both synchronous: `--share rollout+actor` against `--apart rollout+actor`.",
    ),
)  # fmt: skip
OVERLAP = (
    Question(
        title="Staleness", name="staleness of 1", variant="lag 1", other="best", rival="the synchronous plan",
        note="`--staleness 1` permits it, and the plan takes it only where it is faster; batches, no partial rollouts. "
        "Times are those of average rollouts.",
    ),
    Question(
        title="More staleness", name="staleness of 4", variant="lag 4", other="lag 1", rival="staleness of 1",
        note="`--staleness 4` against `--staleness 1`, batches.",
    ),
    Question(
        title="Streaming", name="streaming", variant="lag 1 streaming", other="lag 1", rival="batches",
        note="`--staleness 1 --allow partial-rollouts` against `--staleness 1`, at average rollouts.",
    ),
    Question(
        title="Stage fusion beside the rollout", name="inter-stage fusion", variant="best", other="no fusion",
        rival="no fusion",
        note="Forward passes start on finished responses in the rollout's tail; the default, against `--fusion none`.",
    ),
    Question(
        title="Actor and critic in one pipeline", name="intra-stage fusion", variant="all fusions", other="best",
        rival="inter-stage fusion alone", note="`--fusion all` against the default, PPO only.", only="ppo",
    ),
)  # fmt: skip
TRAINER = (
    Question(title="Offload of the actor", name="offload", variant="best", other="no offload", rival="none",
             note="Against `--fix 'actor: offload=none'`."),
    Question(title="Tensor parallelism of the actor", name="tensor parallelism", variant="best",
             other="no tensor parallelism", rival="none", note="Against `--fix 'actor: tp=1'`."),
    Question(title="Pipeline parallelism of the actor", name="pipeline parallelism", variant="best",
             other="no pipeline", rival="none", note="Against `--fix 'actor: pp=1'`."),
    Question(title="Context parallelism of the actor", name="context parallelism", variant="best",
             other="no context parallelism", rival="none", note="Against `--fix 'actor: cp=1'`."),
    Question(title="ZeRO-3 (FSDP) or ZeRO-1", name="ZeRO-3", variant="zero3", other="zero1", rival="ZeRO-1",
             note="`--fix 'actor: sharding=zero3'` (pp 1, no expert parallelism) against `sharding=zero1`."),
    Question(title="Recomputation", name="choosing recomputation", variant="best", other="full recomputation",
             rival="full recomputation", note="Against `--fix 'actor: recompute=full'`."),
    Question(title="Expert parallelism of the actor", name="expert parallelism", variant="best",
             other="no expert parallelism", rival="none",
             note="Mixture of experts only; against `--fix 'actor: ep=1'`."),
    Question(title="Data-parallel attention in engines", name="data-parallel attention", variant="best",
             other="no data-parallel attention", rival="none",
             note="Mixture of experts only: engines that spread experts over all their ranks while groups of ranks "
             "decode requests of their own; against `--fix 'rollout: attention_dp=1'`."),
    Question(title="Weight syncs that move shards", name="sharded weight sync", variant="sharded syncs", other="best",
             rival="full gather", note="`--sync shards` against the default; few frameworks run it."),
    Question(title="Engines of one GPU", name="engines of tp 1", variant="engines of tp 1", other="best",
             rival="the engines chosen", note="`--fix 'rollout: tp=1'` against the free choice."),
    Question(title="Engines of one node", name="engines of tp 8", variant="engines of tp 8", other="best",
             rival="the engines chosen", note="`--fix 'rollout: tp=8'` against the free choice."),
)  # fmt: skip


def guidelines_page() -> str:
    """The page as Markdown."""
    rows = in_order(read_rows())
    parts = [_head(rows), _summary(rows), "## Placement\n", *(_section(rows, item) for item in PLACEMENT)]
    parts += ["## Overlap\n", *(_section(rows, item) for item in OVERLAP)]
    parts += ["## Strategies\n", _chosen(rows), *(_section(rows, item) for item in TRAINER)]
    return "\n".join(parts)


def _head(rows: Sequence[Row]) -> str:
    cases = by_variant(rows)
    all_cases = {(row["model"], row["num_gpus"], row["response_mean"], row["algorithm"]) for row in rows}
    unfit = sorted({f"{row['model']} on {row['num_gpus']} ({row['algorithm'].upper()})" for row in rows  # type: ignore[union-attr]
                    if row["variant"] == "best" and row["time_s"] is None})  # fmt: skip
    first = next(iter(cases.values()))["best"]
    lines = [
        "# Guidelines",
        "",
        "Which technique wins where: not rules of thumb, but what the planner finds when it plans a grid of workloads "
        "with and without each technique.",
        "",
        f"* **Grid**: {_listed(rows, 'model')}; {_listed(rows, 'num_gpus')} {str(first['gpu']).upper()}; "
        f"mean responses of {_listed(rows, 'response_mean')} tokens; GRPO, and on {_ppo_sizes(rows)} GPUs PPO with a "
        f"critic and a reward model of the actor's size; {first['prompts']} x {first['group']} responses each. "
        f"{len(cases)} of {len(all_cases)} workloads have a plan, {len(rows):,} plans in all.",
        f"* **Equal** are times within {EQUAL_RATIO:.0%}. *Saved* is the share of the other variant's time.",
        "* It holds under the cost model, whose errors are in [accuracy.md](accuracy.md), for this grid: yours may "
        "differ, and one `rlplan plan` tells.",
        "* **Again**: `python -m benchmarks.guidelines --workers 2` plans "
        "[the grid](../benchmarks/guidelines/grid.yaml), `make docs` makes this page. Every row of "
        "[the results](../benchmarks/guidelines/results.jsonl) holds its command.",
    ]
    missing = len(read_grid()[0]) - len(all_cases)
    if missing:
        lines.append(f"* {missing} workloads of the grid are not planned yet.")
    if unfit:
        lines.append(f"* Without any plan: {', '.join(unfit)}.")
    return "\n".join(_wrapped(line, "  " if line.startswith("* ") else "") for line in lines) + "\n"


def _ppo_sizes(rows: Sequence[Row]) -> str:
    return _listed([row for row in rows if row["algorithm"] == "ppo"], "num_gpus")


def _listed(rows: Sequence[Row], name: str) -> str:
    values = list(dict.fromkeys(row[name] for row in rows))
    texts = [f"{value:,}" if isinstance(value, int) else str(value) for value in values]
    return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else texts[0]


# ---------------------------------------------------------------------------------------------- comparisons


def _points(rows: Sequence[Row], question: Question) -> list[Point]:
    keep: Callable[[Row], bool] = lambda row: not question.only or row["algorithm"] == question.only  # noqa: E731
    return compared(rows, question.variant, question.other, keep)


def _summary(rows: Sequence[Row]) -> str:
    lines = ["| technique | against | wins | equal | loses | saved, median (most) | where it wins |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for question in (*PLACEMENT, *OVERLAP, *TRAINER):
        points = _points(rows, question)
        won, lost = sum(map(wins, points)), sum(map(loses, points))
        saved = savings(points)
        lines.append(
            f"| [{question.name}](#{_anchor(question.title)}) | {question.rival} | {won} | {len(points) - won - lost} "
            f"| {lost} | {median(saved):+.0%} ({max(saved, default=0.0):+.0%}) | {_where(points)} |"
        )
    return "\n".join(lines) + "\n"


def _anchor(title: str) -> str:
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")


def _where(points: Sequence[Point]) -> str:
    won = sum(map(wins, points))
    if won == len(points):
        return "everywhere"
    if won == 0:
        return "nowhere"
    rule = best_rule(points)
    return "no single condition tells" if rule is None else f"{_rule_words(rule)} ({rule.num_right} of {rule.num_all})"


def _rule_words(rule: Rule) -> str:
    name = dict(ATTRIBUTES)[rule.attribute]
    if rule.attribute in ("is_ppo", "is_moe"):
        return f"{name}" if rule.is_above else f"not {name}"
    sign = ">=" if rule.is_above else "<"
    value = f"{rule.threshold / 1e9:,.3g} B" if rule.attribute == "params" else f"{rule.threshold:,.3g}"
    value = f"{rule.threshold:,.0f}" if rule.attribute in ("num_gpus", "response_mean") else value
    return f"{name} {sign} {value}"


def _section(rows: Sequence[Row], question: Question) -> str:
    points = _points(rows, question)
    lines = [f"### {question.title}", "", _wrapped(question.note), ""]
    lines += [_verdict(question, points), "", *_table(points), ""]
    extreme = _extreme(points)
    if extreme is not None and abs(extreme.saved_ratio or 0.0) > EQUAL_RATIO:
        lines += ["The largest difference:", "", "```", *_commands(extreme), "```", ""]
    return "\n".join(lines)


def _verdict(question: Question, points: Sequence[Point]) -> str:
    won, lost = sum(map(wins, points)), sum(map(loses, points))
    only, none = sum(p.fits and p.saved_ratio is None for p in points), sum(not p.fits for p in points)
    name = f"{question.name[0].upper()}{question.name[1:]}"
    rival = "plans without it" if question.rival == "none" else question.rival
    text = (
        f"**{name}** wins in {won} of {len(points)} workloads, is equal in {len(points) - won - lost}, loses in {lost}."
    )
    saved = savings(points)
    if saved:
        middle = median(saved)
        text += f" Median: {abs(middle):.1%} {'less' if middle >= 0 else 'more'} time than {rival}."
    if only:
        text += f" In {only} of them only this fits."
    if none:
        text += f" In {none} it does not fit."
    rule = best_rule(points)
    if rule is not None:
        text += (
            f" What tells best where it wins: **{_rule_words(rule)}**, right in {rule.num_right} of {rule.num_all} "
            f"(always giving the more frequent answer: {rule.num_without})."
        )
    return _wrapped(text)


def _wrapped(text: str, indent: str = "") -> str:
    """Lines of a page."""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _table(points: Sequence[Point]) -> list[str]:
    """Median saving by GPUs and response length, and how many of the workloads win."""
    lengths = sorted({point.case["response_mean"] for point in points}, key=float)  # type: ignore[arg-type]
    sizes = sorted({point.case["num_gpus"] for point in points}, key=float)  # type: ignore[arg-type]
    heads = " | ".join(f"mean {length:,}" for length in lengths)
    lines = [f"| GPUs | {heads} |", "|---|" + "---|" * len(lengths)]
    for size in sizes:
        cells = []
        for length in lengths:
            here = [p for p in points if p.case["num_gpus"] == size and p.case["response_mean"] == length]
            cells.append(_cell(here))
        lines.append(f"| {size} | {' | '.join(cells)} |")
    return lines


def _cell(points: Sequence[Point]) -> str:
    if not points:
        return ""
    saved = savings(points)
    words = f"{median(saved):+.0%}" if saved else "-"
    return f"{words} (wins {sum(map(wins, points))} of {len(points)})"


def _extreme(points: Sequence[Point]) -> Point | None:
    found = [point for point in points if point.saved_ratio is not None]
    return max(found, key=lambda point: abs(point.saved_ratio or 0.0), default=None)


def _commands(point: Point) -> list[str]:
    pairs = ((point.row, ""), (point.other, ""))
    return [f"{row['command']}    # {row['time_s']:,.1f} s" for row, _ in pairs]


# ---------------------------------------------------------------------------------------------- what plans use


def _chosen(rows: Sequence[Row]) -> str:
    """The strategies of the best synchronous plans by model and size."""
    lines = [
        "### What the best plans use",
        "",
        "Of the best synchronous plans over lengths and algorithms: the most frequent value, in brackets the others.",
        "",
        "| model | GPUs | actor tp | pp | cp | ep | sharding | recomputation | offload | engines: tp | pp | ep | "
        "attention dp |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, int], list[Row]] = {}
    for (model, size, _, _), variants in by_variant(rows).items():
        groups.setdefault((model, size), []).append(variants["best"])
    names = ("tp", "pp", "cp", "ep", "sharding", "recompute", "offload", "engine_tp", "engine_pp",
             "engine_ep", "engine_attention_dp")  # fmt: skip
    for (model, size), found in sorted(groups.items(), key=lambda item: (item[1][0]["params"], item[0][1])):
        cells = " | ".join(_most(found, name) for name in names)
        lines.append(f"| {model} | {size} | {cells} |")
    return "\n".join(lines) + "\n"


def _most(rows: Sequence[Row], name: str) -> str:
    counted = Counter(str(row[name]) for row in rows).most_common()
    others = ", ".join(sorted(value for value, _ in counted[1:]))
    return counted[0][0] + (f" ({others})" if others else "")
