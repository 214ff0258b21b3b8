"""Answers in notebooks and in the consoles of others: HTML without scripts of ours, and text that is only text."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from html import escape

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from planner.errors import printable

_PAGE_HEIGHT_PX = 720
_STYLE = "white-space:pre;overflow-x:auto;line-height:1.25;font-family:ui-monospace,Menlo,Consolas,monospace"


class Plainly:
    """A report that any console shows without reading markup in it, and without what a terminal would act on.

    `build` makes it for a number of columns.
    """

    def __init__(self, build: Callable[[int], RenderableType]) -> None:
        self.build = build

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        del console
        return _segments(self.build(options.max_width), options.max_width)


def text_html(renderable: RenderableType, *, width: int) -> str:
    """A report as one `<pre>` of `width` columns, escaped; what a terminal shows bold is bold."""
    parts = []
    for segment in _segments(renderable, width):
        text = escape(segment.text)
        is_bold = segment.style is not None and segment.style.bold
        parts.append(f"<b>{text}</b>" if is_bold and text.strip() else text)
    lines = (line.rstrip() for line in "".join(parts).splitlines())
    return f'<pre style="{_STYLE}">' + "\n".join(lines) + "</pre>"


def page_html(page: str, *, title: str) -> str:
    """A whole page inside a notebook: a frame of its own, so that neither side's style or script reaches the other."""
    return (
        f'<iframe title="{escape(title, quote=True)}" sandbox="allow-scripts" '
        f'style="width:100%;height:{_PAGE_HEIGHT_PX}px;border:0" srcdoc="{escape(page, quote=True)}"></iframe>'
    )


def _segments(renderable: RenderableType, width: int) -> Iterable[Segment]:
    console = Console(
        file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False, color_system=None,
        force_terminal=False,
    )  # fmt: skip
    for segment in console.render(renderable):
        if not segment.control:
            yield Segment(printable(segment.text), segment.style)
