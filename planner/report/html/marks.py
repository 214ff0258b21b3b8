"""The marks of bar charts: rectangles over a share of the width, with a label where there is room for it."""

from __future__ import annotations

from dataclasses import dataclass

from planner.report.html.markup import Child, Html, ratio, tag

TIERS_PX = (("at-w", 890), ("at-m", 640), ("at-n", 300))
"""Class and width of a picture for which labels are chosen: a wide screen; a tablet or paper; a phone. The style sheet
shows the labels of one tier, on no narrower picture."""
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
    """The longest label that fits in each tier, equal ones once."""
    size = mark.room_end - mark.start
    shown: dict[str, list[str]] = {}
    for tier, width_px in TIERS_PX:
        text = fitting(mark.labels, size * width_px)
        if text:
            shown.setdefault(text, []).append(tier)
    return [_label(mark, text, " ".join(tiers)) for text, tiers in shown.items()]


def _label(mark: Bar, text: str, tiers: str) -> Html:
    ink = mark.ink or f"on-{mark.fills[0]}"
    middle = ratio((mark.start + mark.room_end) / 2)
    y = mark.y + mark.height // 2 + 4
    return tag("text", {"class": f"in {ink} {tiers}", "x": middle, "y": y, "text-anchor": "middle"}, text)


def fitting(labels: tuple[str, ...], width_px: float) -> str:
    """The first label that fits, or none."""
    return next((text for text in labels if len(text) * _LETTER_PX + _PADDING_PX <= width_px), "")


def chart(title: str, height: int, *marks: Child) -> Html:
    """A picture as wide as the page leaves room; its marks are one stop of the keyboard, arrows move between them."""
    return tag("svg", {"class": "chart", "height": height, "role": "group", "aria-label": title}, *marks)
