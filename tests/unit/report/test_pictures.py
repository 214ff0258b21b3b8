"""Pictures in ASCII: as wide as asked for, with tail, idle time, batches and capacity in them."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from planner.domain.plan import Plan
from planner.domain.stages import StageName
from planner.report.pictures import memory_bars, timeline
from planner.report.terminal import plain, print_plan
from tests.golden.sample import grpo_plan, split_plan
from tests.unit.report.plans import asynchronous_plan, hybrid_plan, streaming_plan

PLANS = {
    "colocated": grpo_plan(),
    "split": split_plan(),
    "hybrid": hybrid_plan(),
    "batches": asynchronous_plan(),
    "streaming": streaming_plan(),
}


def _timeline(plan: Plan, width: int = 100) -> list[str]:
    picture = timeline(plan, width)
    assert picture is not None
    return plain(picture, width=width).splitlines()


def _bars(plan: Plan, width: int = 80) -> list[str]:
    picture = memory_bars(plan, width)
    assert picture is not None
    return plain(picture, width=width).splitlines()


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_pictures_fit_and_are_ascii(plan: Plan, width: int) -> None:
    for line in [*_timeline(plan, width), *_bars(plan, width)]:
        assert len(line) <= width
        assert line.isascii()


def test_the_tail_is_as_long_as_its_share() -> None:
    plan = grpo_plan()
    rollout = next(p for p in plan.placements if p.stage is StageName.ROLLOUT)
    lane = _timeline(plan)[0]
    block = lane[lane.index("[") : lane.index("]") + 1]
    assert block.startswith("[rollout-") and block.endswith("~]")
    tail = next(t.value for t in rollout.time_terms if t.name == "tail")
    assert block.count("~") == pytest.approx(len(block) * tail / rollout.time_s, abs=1)
    assert "~ rollout tail" in "\n".join(_timeline(plan))
    without = replace(rollout, time_terms=tuple(t for t in rollout.time_terms if t.name != "tail"))
    text = "\n".join(_timeline(replace(plan, placements=(without, *plan.placements[1:]))))
    assert "~" not in text


def test_idle_time_is_drawn_and_said() -> None:
    lines = _timeline(split_plan())
    assert lines[0].count(".") > 20 and lines[1].count(".") > 20
    assert ". idle: 62% of g0, 37% of g1" in lines[-1]
    assert "idle" not in "\n".join(_timeline(grpo_plan()))


def test_batches_are_numbered_in_a_steady_state() -> None:
    text = "\n".join(_timeline(asynchronous_plan()))
    assert "rollout +1" in text and "actor update -1" in text
    assert "weight sync every 280.0 s" in " ".join(text.split())


def test_overlapping_batches_take_several_rows() -> None:
    lines = _timeline(streaming_plan())
    rows = [line for line in lines if "rollout" in line and "[" in line]
    assert len(rows) > 1
    # The engines always run: no dots, whichever row a batch is on.
    assert not any("." in line[line.index("[") :] for line in rows)
    assert all(line.strip() for line in lines)


def test_bars_stand_for_the_device() -> None:
    plan = grpo_plan()
    lines = _bars(plan)
    held = [p for p in plan.placements if p.gpu_memory is not None]
    device = plan.cluster.pools[0].node.gpu.memory_bytes
    for placement, line in zip(held, lines, strict=False):
        assert placement.gpu_memory is not None
        bar = line[line.index("[") + 1 : -1]
        filled = sum(letter.isalpha() for letter in bar)
        assert filled == pytest.approx(len(bar) * placement.gpu_memory.peak_bytes / device, abs=1.5)
        assert bar.index("|") == pytest.approx(len(bar) * placement.gpu_memory.usable_bytes / device, abs=1)
    assert "k KV cache" in " ".join(" ".join(lines).split())


def test_more_than_the_device_has_is_marked() -> None:
    plan = grpo_plan()
    first = plan.placements[0]
    assert first.gpu_memory is not None
    terms = tuple(replace(term, value=term.value * 2) for term in first.gpu_memory.terms)
    full = replace(first, gpu_memory=replace(first.gpu_memory, terms=terms))
    assert _bars(replace(plan, placements=(full, *plan.placements[1:])))[0].endswith(">")


class _Stream(io.StringIO):
    def __init__(self, encoding: str, *, is_terminal: bool) -> None:
        super().__init__()
        self._encoding, self._is_terminal = encoding, is_terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_stream_without_unicode_gets_ascii(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = _Stream("ascii", is_terminal=is_terminal)
    print_plan(grpo_plan(), stream, width=80, has_pictures=True)
    text = re.sub(r"\x1b\[\d+m", "", stream.getvalue())
    assert text.isascii()
    assert "GRPO on dense-test - 32 x h100-sxm" in text
    other = _Stream("utf-8", is_terminal=is_terminal)
    print_plan(grpo_plan(), other, width=80, has_pictures=True)
    assert "GRPO on dense-test · 32 x h100-sxm" in re.sub(r"\x1b\[\d+m", "", other.getvalue())


def test_only_show_has_bars() -> None:
    stream = io.StringIO()
    print_plan(grpo_plan(), stream, width=80)
    assert "against the device" not in stream.getvalue()
    print_plan(grpo_plan(), stream, width=80, has_pictures=True)
    assert "against the device" in stream.getvalue()
