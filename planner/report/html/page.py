"""The page: answer first, then when, why, what fits, where, what it costs, how sure, and what was assumed."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files

from planner import __version__
from planner.domain.plan import Plan
from planner.report.facts import (
    band_words,
    cost_words,
    execution_words,
    limit_words,
    proof_words,
    restriction_words,
    whole_cost_words,
)
from planner.report.html.cluster import cluster_figure
from planner.report.html.context import (
    accuracy_figure,
    alternatives_figure,
    assumptions_figure,
    frameworks_figure,
    host_figure,
    proof_figure,
    stages_figure,
    staleness_figure,
)
from planner.report.html.cost import cost_figure
from planner.report.html.markup import Child, Html, tag
from planner.report.html.memory import memory_figure
from planner.report.html.timeline import timeline_figure
from planner.report.html.times import times_figure
from planner.report.words import arrangement, counted, misfits, one_line, rests_on_defaults
from planner.units import format_range, format_seconds


def plan_page(plan: Plan) -> str:
    """The HTML document of a plan. Nothing in it is loaded from elsewhere, and all text of the plan is escaped."""
    plan = one_line(plan)
    work = plan.workload
    title = f"{work.algorithm.title} on {work.actor.id}"
    sections = [
        timeline_figure(plan), stages_figure(plan), times_figure(plan), memory_figure(plan), cluster_figure(plan),
        cost_figure(plan), accuracy_figure(plan), staleness_figure(plan), alternatives_figure(plan), proof_figure(plan),
        frameworks_figure(plan), host_figure(plan), assumptions_figure(plan),
    ]  # fmt: skip
    return document(title, [_headline(plan, title), _contents(plan), *sections])


def document(title: str, body: Sequence[Child]) -> str:
    """A page around `body` that may run its own script and style, and load nothing."""
    style, script = asset("style.css"), asset("script.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    head = tag(
        "head", {},
        tag("meta", {"charset": "utf-8"}),
        tag("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        tag("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        tag("meta", {"name": "color-scheme", "content": "light dark"}),
        tag("meta", {"name": "generator", "content": f"rlplan {__version__}"}),
        tag("title", {}, f"{title} · rlplan"),
        tag("link", {"rel": "icon", "href": "data:,"}),
        tag("style", {}, Html(style)),
    )  # fmt: skip
    main = tag("main", {"id": "top"}, *body, tag("footer", {}, f"Made by rlplan {__version__}. Times and memory are "
               "estimates of its cost model; the bands say how far off it has been."))  # fmt: skip
    tip = tag("div", {"id": "tip", "role": "tooltip", "hidden": "hidden"})
    page = tag("html", {"lang": "en"}, head, tag("body", {}, _patterns(), main, tip, tag("script", {}, Html(script))))
    return f"<!doctype html>\n{page}\n"


@cache
def asset(name: str) -> str:
    """A file of this package as text."""
    return (files("planner.report.html") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _patterns() -> Html:
    """Hatches that figures share: what must not be told by colour alone."""
    line = tag("path", {"d": "M0 8 L8 0 M-2 2 L2 -2 M6 10 L10 6", "class": "hatch"})
    back = tag("path", {"d": "M0 0 L6 6 M-2 4 L2 8 M4 -2 L8 2", "class": "hatch-dark"})
    dots = tag("circle", {"cx": 3, "cy": 3, "r": 1, "class": "dot"})
    bars = tag("path", {"d": "M2 0 V6", "class": "hatch-dark"})
    shapes = (("idle", 8, line), ("waiting", 6, back), ("tail", 6, dots), ("setup", 4, bars))
    return tag("svg", {"class": "defs", "width": 0, "height": 0, "aria-hidden": "true", "focusable": "false"},
               tag("defs", {}, *(
                   tag("pattern", {"id": f"hatch-{name}", "width": size, "height": size,
                                   "patternUnits": "userSpaceOnUse"}, shape)
                   for name, size, shape in shapes)))  # fmt: skip


# ---------------------------------------------------------------------------------------------- the answer


def _headline(plan: Plan, title: str) -> Html:
    work = plan.workload
    pools = " + ".join(f"{pool.num_gpus:,} × {pool.node.gpu.id}" for pool in plan.cluster.pools)
    how = ", ".join(part for part in (arrangement(plan), execution_words(plan)) if part)
    framework = f" · for {plan.limits.framework}" if plan.limits.framework else ""
    verdict, rest = proof_words(plan)
    notes: list[Html] = []
    if plan.time_band is not None:
        notes.append(tag("p", {}, band_words(plan) + "."))
    notes.append(tag("p", {}, tag("b", {"class": "status"}, verdict), rest + ("" if rest.endswith(".") else ".")))
    if limit_words(plan):
        notes.append(tag("p", {}, limit_words(plan) + "."))
    if restriction_words(plan):
        words = restriction_words(plan)
        notes.append(tag("p", {}, f"{words[0].upper()}{words[1:]}."))
    if plan.frameworks and not any(item.can_run for item in plan.frameworks):
        notes.append(_warning("No known framework can run this plan as it is; see Frameworks."))
    if rests_on_defaults(plan):
        notes.append(_warning("This plan rests on defaults alone: check the assumptions before you rely on it."))
    notes += [_warning(f"Does not fit: {problem}") for problem in misfits(plan)]
    return tag(
        "header", {},
        tag("h1", {}, title),
        tag("p", {"class": "lead"}, f"{pools}{framework} · {how}"),
        tag("p", {"class": "note"}, f"{work.num_prompts:,} prompts × {work.group_size}; prompt up to "
            f"{work.prompt_max_tokens:,}, response up to {work.response.max_tokens:,} "
            f"(mean {work.response.mean_tokens:,.0f}) tokens"),
        tag("dl", {"class": "tiles"}, *_tiles(plan)),
        *notes,
    )  # fmt: skip


def _warning(text: str) -> Html:
    return tag("p", {"class": "warning"}, text)


def _tiles(plan: Plan) -> list[Html]:
    band = plan.time_band
    span = "" if band is None else format_range(band.low_ratio * plan.time_s, band.high_ratio * plan.time_s)
    cost, _, why = cost_words(plan).partition(" (")
    used = (
        f"of {plan.cluster.num_gpus:,} in the cluster"
        if plan.num_gpus != plan.cluster.num_gpus
        else f"all, on {counted(sum(plan.num_nodes_used.values()), 'node')}"
    )
    tiles = (
        ("time per iteration", format_seconds(plan.time_s), span),
        ("cost per iteration", cost, whole_cost_words(plan) or why.rstrip(")")),
        ("throughput", f"{plan.tokens_per_s_per_gpu:,.0f}", "tokens/s/GPU"),
        ("GPUs", f"{plan.num_gpus:,}", used),
    )
    return [
        tag("div", {"class": "tile"}, tag("dt", {}, name), tag("dd", {}, value), tag("dd", {"class": "note"}, more))
        for name, value, more in tiles
    ]


_LINKS = (
    ("timeline", "Timeline"), ("stages", "Stages"), ("times", "Time"), ("memory", "Memory"), ("cluster", "Cluster"),
    ("cost", "Cost"), ("accuracy", "How sure"), ("staleness", "Staleness"), ("alternatives", "Alternatives"),
    ("proof", "Proof"), ("frameworks", "Frameworks"), ("host", "Host RAM"), ("assumptions", "Assumptions"),
)  # fmt: skip


def _contents(plan: Plan) -> Html:
    absent = {name for name, has in (("staleness", plan.staleness_gains), ("frameworks", plan.frameworks),
                                     ("host", any(p.host_ram for p in plan.placements))) if not has}  # fmt: skip
    items = (tag("li", {}, tag("a", {"href": f"#{name}"}, words)) for name, words in _LINKS if name not in absent)
    return tag("nav", {"aria-label": "Contents"}, tag("ul", {}, *items))
