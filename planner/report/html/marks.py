"""The marks of bar charts: rectangles over a share of the width, with a label where there is room for it."""

from __future__ import annotations

from dataclasses import dataclass

from planner.report.html.markup import Child, Html, ratio, tag

WIDE_PX = 900
"""Width of a picture for which labels are chosen on a screen or on paper; below it the style sheet shows others."""
NARROW_PX = 300
"""The same on a phone."""
_LETTER_PX = 7.0
"""Width of a letter, on the safe side."""
_PADDING_PX = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A rectangle from `start` to `end` (shares of the width) at `y` px, `height` px high.

    `fills` are classes drawn over each other, `labels` are tried from the longest to the shortest, `tip` is what a
    reader hears, and sees on pointing.
    """

    start: float
    end: float
    y: int
    height: int
    fills: tuple[str, ...]
    tip: str
    labels: tuple[str, ...] = ()
    label_end: float | None = None
    """Where the room for the label ends, if not with the rectangle."""
    ink: str = ""
    """Class of the label where it is not that of the fill."""

    @property
    def room_end(self) -> float:
        return self.end if self.label_end is None else self.label_end


def bar(mark: Bar) -> Html:
    """One rectangle that can be pointed at and reached by keyboard."""
    place: dict[str, str | int] = {
        "x": ratio(mark.start), "width": ratio(max(0.0, mark.end - mark.start)), "y": mark.y, "height": mark.height,
    }  # fmt: skip
    shapes: list[Child] = [tag("rect", {"class": f"fill {fill}", **place}) for fill in mark.fills]
    return tag(
        "g", {"class": "mark", "role": "img", "aria-label": mark.tip}, *shapes, *_labels(mark),
    )  # fmt: skip


def _labels(mark: Bar) -> list[Html]:
    size = mark.room_end - mark.start
    wide, narrow = fitting(mark.labels, size * WIDE_PX), fitting(mark.labels, size * NARROW_PX)
    if wide == narrow:
        return [_label(mark, wide, "")] if wide else []
    return [_label(mark, text, where) for text, where in ((wide, " wide"), (narrow, " narrow")) if text]


def _label(mark: Bar, text: str, where: str) -> Html:
    ink = mark.ink or f"on-{mark.fills[0]}"
    middle = ratio((mark.start + mark.room_end) / 2)
    y = mark.y + mark.height // 2 + 4
    return tag("text", {"class": f"in {ink}{where}", "x": middle, "y": y, "text-anchor": "middle"}, text)


def fitting(labels: tuple[str, ...], width_px: float) -> str:
    """The first label that fits, or none."""
    return next((text for text in labels if len(text) * _LETTER_PX + _PADDING_PX <= width_px), "")


def chart(title: str, height: int, *marks: Child) -> Html:
    """A picture as wide as the page leaves room; its marks are one stop of the keyboard, arrows move between them."""
    return tag("svg", {"class": "chart", "height": height, "role": "group", "aria-label": title}, *marks)
