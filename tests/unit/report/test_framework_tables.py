"""`rlplan frameworks`: the matrix of techniques and the rules of one framework."""

from __future__ import annotations

from rich.console import Console, RenderableType

from planner.domain.technique import TechniqueName
from planner.files.framework import framework_names
from planner.report.frameworks import framework_details, framework_table


def text(renderable: RenderableType, width: int = 160) -> str:
    console = Console(width=width, record=True, file=None, force_terminal=False)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_the_matrix_has_a_row_per_technique_and_a_column_per_framework() -> None:
    lines = text(framework_table()).splitlines()
    header = next(line for line in lines if line.startswith("technique"))
    assert header.split()[1:] == list(framework_names())
    rows = {line[: header.index(framework_names()[0])].strip(): line for line in lines}
    for name in TechniqueName:
        assert set(rows[name.value].split()[-5:]) <= {"yes", "partial", "no"}
    assert rows["pipeline parallel"].split()[-5:] == ["yes", "yes", "no", "yes", "yes"]


def test_one_framework_shows_limits_techniques_and_evidence() -> None:
    shown = text(framework_details("openrlhf"))
    assert "asynchronous batches, streaming, lag up to 1024" in shown
    assert "--train.partial_rollout_enable" in shown
    assert "backends.deepspeed.one_setting" in shown


def test_narrow_terminals_lose_no_text() -> None:
    wide, narrow = (text(framework_details("nemo-rl"), width).split() for width in (200, 80))
    assert sum(map(len, wide)) == sum(map(len, narrow))
