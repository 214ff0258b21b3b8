"""Text on a terminal or in a file: tables that fold where they are narrow, and nothing that a terminal would act on.

Knows no plans, so that lists of the catalogs start quickly.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table

from planner.errors import printable

MAX_WIDTH = 100
MIN_WIDTH = 60
_CUT = "…"
"""What stands for text that a column has no room for."""
_ASCII = str.maketrans({"·": "-", "×": "x", _CUT: "~", "–": "-"})
"""The report's own letters beyond ASCII, one for one so that columns stay."""


def print_renderable(renderable: RenderableType, stream: TextIO, *, width: int = MAX_WIDTH) -> None:
    """Writes any renderable of `width` columns: to a terminal with colours, elsewhere as plain text."""
    width = max(MIN_WIDTH, width)
    for table in tables([renderable]):
        fold_if_narrow(table, width)
    if stream.isatty():
        _SafeConsole(stream, width, has_colours=True).print(renderable)
    else:
        stream.write(_encodable(plain(renderable, width=width), stream.encoding))


def plain(renderable: RenderableType, *, width: int = MAX_WIDTH) -> str:
    """Any renderable as plain text without trailing spaces."""
    buffer = io.StringIO()
    _SafeConsole(buffer, width, has_colours=False).print(renderable)
    return "".join(line.rstrip() + "\n" for line in buffer.getvalue().splitlines())


def tables(parts: Iterable[RenderableType]) -> Iterable[Table]:
    """All tables in sections, at any depth."""
    for part in parts:
        if isinstance(part, Table):
            yield part
        elif isinstance(part, Padding):
            yield from tables([part.renderable])
        elif isinstance(part, Group):
            yield from tables(part.renderables)


def fold_if_narrow(table: Table, width: int) -> None:
    """Lets all columns of a table break where it would lose text in `width` columns; a timeline is drawn to fit."""
    is_drawn = any(column.overflow == "crop" for column in table.columns)
    if is_drawn or _CUT not in plain(table, width=width):
        return
    for column in table.columns:
        column.no_wrap, column.overflow = False, "fold"


class _SafeConsole(Console):
    """A console on which text is only text: no markup, and nothing that a terminal would act on."""

    def __init__(self, stream: TextIO, width: int, *, has_colours: bool) -> None:
        # The kind of terminal is found out by rich itself where there is one.
        super().__init__(
            file=stream, width=width, highlight=False, markup=False, emoji=False,
            color_system="auto" if has_colours else None, force_terminal=None if has_colours else False,
        )  # fmt: skip

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(_encodable(segment.text, self.encoding)), segment.style)


def _encodable(text: str, encoding: str | None) -> str:
    """`text` in letters that a stream of the encoding can write, where the report has others to offer."""
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return text.translate(_ASCII)
    except LookupError:
        pass
    return text
