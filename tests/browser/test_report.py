"""The page in a real browser: no error, no request, every figure visible, labels inside their blocks, keyboard, paper.

RLPLAN_SCREENSHOTS=DIRECTORY keeps a screenshot of every figure in every mode, to look at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from planner.report.html.page import plan_page
from tests.golden.sample import grpo_plan, split_plan
from tests.unit.report.plans import asynchronous_plan, hybrid_plan, large_plan, streaming_plan

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request

PLANS = {
    "colocated": grpo_plan(run=True),
    "split": split_plan(),
    "hybrid": hybrid_plan(),
    "batches": asynchronous_plan(),
    "streaming": streaming_plan(),
    "large": large_plan(1024),
}
MODES = {"light": 1100, "dark": 1100, "tablet": 768, "phone": 375}
MAX_OPEN_S = 2.0
CASES = [("hybrid", mode) for mode in MODES] + [(name, mode) for name in PLANS for mode in ("light", "phone")
                                               if name != "hybrid"]  # fmt: skip
"""Colours and widths do not depend on the plan: one plan in all modes, the others on a wide and a narrow screen."""
PICTURES = ("timeline", "times", "memory", "cost", "proof")


@contextmanager
def _opened(browser: Browser, path: Path, mode: str) -> Iterator[tuple[Page, list[str]]]:
    """The page from a file, and everything that it complained about or asked the network for."""
    context = browser.new_context(
        viewport={"width": MODES[mode], "height": 800}, color_scheme="dark" if mode == "dark" else "light"
    )
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))

    def note_request(request: Request) -> None:
        # The page itself is the only thing that may be asked for.
        if request.url != path.as_uri():
            complaints.append(f"request: {request.url}")

    page.on("request", note_request)
    page.goto(path.as_uri())
    try:
        yield page, complaints
    finally:
        context.close()


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.html"
    path.write_text(plan_page(grpo_plan()), encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_every_figure_is_there_and_fits(browser: Browser, tmp_path: Path, name: str, mode: str) -> None:
    file = tmp_path / "plan.html"
    file.write_text(plan_page(PLANS[name]), encoding="utf-8")
    start = time.perf_counter()
    with _opened(browser, file, mode) as (page, complaints):
        assert time.perf_counter() - start < MAX_OPEN_S
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, "the page scrolls sideways"
        for figure in (*PICTURES, *(["accuracy"] if PLANS[name].time_band is not None else [])):
            marks = page.locator(f"section#{figure} svg.chart .mark")
            assert marks.count() > 0, figure
            box = marks.first.bounding_box()
            assert box is not None and box["width"] > 0 and box["height"] > 0, figure
        assert page.locator("section#cluster .cell").count() > 0
        assert page.evaluate(_LABELS_OUTSIDE) == []
        _shoot(page, name, mode)
        assert complaints == []


_LABELS_OUTSIDE = """() => [...document.querySelectorAll("g.mark > text")].filter((text) => {
  const own = text.getBoundingClientRect(), block = text.parentNode.querySelector("rect").getBoundingClientRect();
  return own.width && (own.left < block.left - 1 || own.right > block.right + 1);
}).map((text) => text.textContent)"""


def _shoot(page: Page, name: str, mode: str) -> None:
    directory = os.environ.get("RLPLAN_SCREENSHOTS")
    if directory:
        Path(directory).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(directory) / f"{name}-{mode}.png", full_page=True)
        for section in page.locator("section").all():
            section.screenshot(path=Path(directory) / f"{name}-{mode}-{section.get_attribute('id')}.png")


def test_pointing_and_keyboard_name_each_mark(browser: Browser, plan_file: Path) -> None:
    with _opened(browser, plan_file, "light") as (page, complaints):
        tip = page.locator("#tip")
        assert not tip.is_visible()
        page.locator("section#timeline .mark").first.hover()
        assert "rollout: 154.9 s" in tip.inner_text()
        page.mouse.move(5, 5)
        assert not tip.is_visible()
        page.locator("section#timeline .mark").first.focus()
        assert "rollout: 154.9 s" in tip.inner_text()
        page.keyboard.press("ArrowRight")
        assert "rollout tail: 12.0 s" in tip.inner_text()
        page.keyboard.press("End")
        assert "weight sync" in tip.inner_text()
        page.keyboard.press("Escape")
        assert not tip.is_visible()
        # One stop per picture, so that the keyboard gets past it.
        stops = page.evaluate("[...document.querySelectorAll('#timeline .mark')].filter(m => m.tabIndex === 0).length")
        assert stops == 1
        assert complaints == []


def test_a_tap_names_a_mark(browser: Browser, plan_file: Path) -> None:
    context = browser.new_context(viewport={"width": 375, "height": 700}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(plan_file.as_uri())
    page.locator("section#memory .mark").first.tap()
    assert "GiB" in page.locator("#tip").inner_text()
    box = page.locator("#tip").bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 375
    context.close()


def test_paper_shows_the_tables_too(browser: Browser, plan_file: Path) -> None:
    with _opened(browser, plan_file, "dark") as (page, complaints):
        assert not page.locator("#timeline table").first.is_visible()
        page.emulate_media(media="print", color_scheme="dark")
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert page.locator("#timeline table").first.is_visible()
        assert not page.locator("nav").is_visible()
        # Paper is white, whatever the screen was.
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
        page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert not page.locator("#timeline table").first.is_visible()
        assert len(page.pdf(format="A4")) > 10_000
        assert complaints == []


def test_the_page_is_complete_without_script(browser: Browser, plan_file: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(plan_file.as_uri())
    assert page.locator("section#timeline .mark").count() > 4
    page.locator("section#timeline summary").click()
    assert page.locator("section#timeline table").first.is_visible()
    context.close()


def test_the_policy_stops_what_is_foreign(browser: Browser, plan_file: Path) -> None:
    text = plan_file.read_text(encoding="utf-8").replace("</main>", "<script>document.title = 'pwned'</script></main>")
    plan_file.write_text(text, encoding="utf-8")
    with _opened(browser, plan_file, "light") as (page, complaints):
        assert "pwned" not in page.title()
        assert any("Content Security Policy" in complaint for complaint in complaints)
