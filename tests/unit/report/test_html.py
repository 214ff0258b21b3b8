"""The page: well-formed, complete, closed to the network, and no text of a plan can become markup."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser

import pytest

from planner.domain.plan import Assumption, Plan
from planner.domain.stages import StageName
from planner.report.html.cluster import MAX_CELLS, gpus_per_cell
from planner.report.html.cost import cost_figure
from planner.report.html.markup import VOID, Html, tag
from planner.report.html.page import asset, plan_page
from planner.report.html.timeline import timeline_figure
from tests.golden.sample import grpo_plan, split_plan
from tests.unit.report.plans import asynchronous_plan, hybrid_plan, large_plan, streaming_plan

PLANS = {
    "colocated": grpo_plan(run=True),
    "split": split_plan(),
    "hybrid": hybrid_plan(),
    "batches": asynchronous_plan(),
    "streaming": streaming_plan(),
    "large": large_plan(1024),
}
FIGURES = ("timeline", "stages", "times", "memory", "cluster", "cost", "accuracy", "alternatives", "proof",
           "assumptions")  # fmt: skip
HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;\x1b[31m\u202e"


class _Checker(HTMLParser):
    """Counts elements, and fails on tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.elements: dict[str, int] = {}
        self.handlers: list[str] = []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements[name] = self.elements.get(name, 0) + 1
        given = dict(attributes)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [value or "" for key, value in attributes if key in ("href", "src", "action", "xlink:href")]
        self.handlers += [key for key in given if key.startswith("on") or key == "style"]
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open and self.open.pop() == name, name


def _checked(page: str) -> _Checker:
    checker = _Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    return checker


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_pages_are_well_formed_complete_and_small(plan: Plan) -> None:
    page = plan_page(plan)
    checker = _checked(page)
    assert len(checker.ids) == len(set(checker.ids))
    assert set(FIGURES) <= set(checker.ids)
    assert len(page.encode()) < 1_000_000
    inside = [link[1:] for link in checker.links if link.startswith("#")]
    assert inside and set(inside) <= set(checker.ids)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_nothing_is_loaded_and_nothing_runs_but_the_script(plan: Plan) -> None:
    page = plan_page(plan)
    checker = _checked(page)
    assert all(link.startswith("#") or link == "data:," for link in checker.links)
    assert (checker.elements["script"], checker.elements["style"]) == (1, 1)
    assert checker.handlers == []
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    for name in ("style", "script"):
        source = asset(f"{name}.css" if name == "style" else f"{name}.js")
        digest = b64encode(sha256(source.encode()).digest()).decode()
        assert f"{name}-src &#x27;sha256-{digest}&#x27;" in policy[1]
        assert f"<{name}>{source}</{name}>" in page
    assert policy[1].startswith("default-src &#x27;none&#x27;;") and "http" not in policy[1]


def test_text_of_a_plan_stays_text() -> None:
    plan = split_plan()
    groups = tuple(replace(group, id=HOSTILE + group.id, gpu=HOSTILE) for group in plan.device_groups)
    renamed = {group.id: HOSTILE + group.id for group in plan.device_groups}
    hostile = replace(
        plan,
        workload=replace(plan.workload, actor=replace(plan.workload.actor, id=HOSTILE)),
        device_groups=groups,
        placements=tuple(
            replace(p, device_group=renamed.get(p.device_group, ""), bound_by=HOSTILE, model=HOSTILE)
            for p in plan.placements
        ),
        schedule=tuple(replace(s, device_groups=tuple(renamed[g] for g in s.device_groups)) for s in plan.schedule),
        assumptions=(Assumption(what=HOSTILE, value=HOSTILE, source=HOSTILE, effect=HOSTILE),),
        alternatives=tuple(replace(item, description=HOSTILE) for item in plan.alternatives),
        search=replace(plan.search, solver=HOSTILE),
        frameworks=tuple(replace(v, framework=HOSTILE, reasons=(HOSTILE,)) for v in plan.frameworks),
    )
    page = plan_page(hostile)
    checker = _checked(page)
    assert "img" not in checker.elements and checker.elements["script"] == 1
    assert checker.handlers == []
    assert "&lt;script&gt;alert(1)" in page
    assert not {"\x1b", "\u202e"} & set(page)
    ordinary = _checked(plan_page(plan))
    assert checker.elements["section"] == ordinary.elements["section"]


def test_tags_escape_text_and_attributes_but_not_markup() -> None:
    made = tag("p", {"title": '"<'}, "<b>", Html("<i>x</i>"))
    assert made == '<p title="&quot;&lt;">&lt;b&gt;<i>x</i></p>'


def _texts(figure: Html, kind: str) -> list[str]:
    """What marks of a class say."""
    root = ElementTree.fromstring(str(figure))
    return [
        mark.attrib["aria-label"]
        for mark in root.iter()
        if "mark" in mark.attrib.get("class", "").split() and kind in mark.attrib["aria-label"]
    ]


def test_the_timeline_has_every_stage_its_tail_and_idle_time() -> None:
    figure = timeline_figure(split_plan())
    for stage in (item.stage.value for item in split_plan().schedule if item.end_s > item.start_s):
        assert _texts(figure, f"{stage}:"), stage
    assert _texts(figure, "rollout tail: 12.0 s of 154.9 s")
    assert len(_texts(figure, "idle:")) == 2
    assert not _texts(timeline_figure(grpo_plan()), "idle:")


def test_blocks_lie_where_the_schedule_says() -> None:
    plan = grpo_plan()
    root = ElementTree.fromstring(str(timeline_figure(plan)))
    rects = {
        rect.attrib["class"]: rect.attrib
        for rect in root.iter("rect")
        if rect.attrib["class"].startswith("fill s-") and rect.attrib.get("width") != "100%"
    }
    for item in plan.schedule:
        if item.end_s > item.start_s:
            rect = rects[f"fill s-{item.stage.value.replace(' ', '-')}"]
            assert float(rect["x"].rstrip("%")) == pytest.approx(100 * item.start_s / plan.time_s, abs=1e-3)
            width = 100 * (item.end_s - item.start_s) / plan.time_s
            assert float(rect["width"].rstrip("%")) == pytest.approx(width, abs=1e-3)


def test_an_asynchronous_timeline_shows_several_batches() -> None:
    figure = timeline_figure(asynchronous_plan())
    assert len(_texts(figure, "rollout, batch n:")) == 1
    assert len(_texts(figure, "rollout, batch n+1:")) == 1
    assert _texts(figure, "actor update, batch n-1:")
    assert "Staleness up to 1" in figure


def test_memory_bars_add_up_to_the_peaks() -> None:
    plan = grpo_plan()
    page = plan_page(plan)
    for placement in plan.placements:
        if placement.gpu_memory is not None:
            assert placement.gpu_memory.instant in page
    rollout = next(p for p in plan.placements if p.stage is StageName.ROLLOUT)
    assert rollout.gpu_memory is not None
    section = page[page.index('<section id="memory"') : page.index('<section id="cluster"')]
    picture = section[section.index('aria-label="GPU memory of rollout"') :]
    picture = picture[: picture.index("</svg>")]
    widths = [float(width) for width in re.findall(r'class="fill m-[^"]*" x="[^"]*" width="([\d.e+-]+)%"', picture)]
    device = plan.cluster.pools[0].node.gpu.memory_bytes
    assert sum(widths) == pytest.approx(100 * rollout.gpu_memory.peak_bytes / device, rel=1e-3)


def test_large_clusters_are_drawn_by_node() -> None:
    for num_gpus in (32, 256, 1024, 4096, 16384):
        pool = replace(grpo_plan().cluster.pools[0], num_nodes=num_gpus // 8)
        size = gpus_per_cell(pool)
        assert size == 1 if num_gpus <= MAX_CELLS else size % 8 == 0
        assert num_gpus / size <= MAX_CELLS
    page = plan_page(large_plan(4096))
    assert page.count('class="cell mark') <= 3 * MAX_CELLS
    assert "GPU 4080-4095, nodes 510-511: ranks 4080-4095" in page
    assert len(page.encode()) < 1_000_000


def test_cells_say_rank_and_place() -> None:
    page = plan_page(split_plan())
    # tp 8 dp 2 on g1: GPU 25 is rank 9 there.
    assert "GPU 25, node 3: rank 9: dp 1, tp 1" in page
    assert "GPU 0, node 0: not used" in page


def test_the_bill_is_in_one_unit() -> None:
    priced = cost_figure(grpo_plan())
    assert "USD, 37%" in priced or "USD, 38%" in priced
    unpriced = cost_figure(split_plan())
    assert not re.search(r"[\d.]+ USD", unpriced)
    assert "no price is known" in unpriced


def test_pages_of_the_same_plan_are_the_same() -> None:
    assert plan_page(grpo_plan()) == plan_page(grpo_plan())


# ---------------------------------------------------------------------------------------------- contrast


def _colours(css: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", css))


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(first: str, second: str) -> float:
    """WCAG 2.2 contrast ratio of two colours."""
    high, low = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _schemes() -> dict[str, dict[str, str]]:
    css = asset("style.css")
    blocks = re.findall(r":root \{([^}]*)\}", css)
    light, dark, palette, printed = (_colours(block) for block in blocks)
    return {
        "light": {**light, **palette},
        "dark": {**light, **palette, **dark},
        "print": {**light, **palette, **printed},
    }


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_text_and_outlines_have_contrast(scheme: str) -> None:
    colours = _schemes()[scheme]
    for back in ("paper", "panel"):
        for ink in ("ink", "soft", "accent", "good"):
            assert _contrast(colours[ink], colours[back]) >= 4.5, (ink, back)
        # What is filled is outlined, so that pale fills keep their shape.
        assert _contrast(colours["edge"], colours[back]) >= 3, back
    assert _contrast(colours["warn"], colours["warn-back"]) >= 4.5
    for fill in ("orange", "green", "sky", "vermillion", "purple", "yellow", "grey"):
        assert _contrast("#000000", colours[fill]) >= 4.5, fill
    assert _contrast("#ffffff", colours["blue"]) >= 4.5
