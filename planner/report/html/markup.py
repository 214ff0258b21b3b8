"""HTML and SVG as text in which only markup is markup: all other text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

VOID = frozenset({"meta", "br", "link"})
"""Elements without an end tag."""


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | Html
Attributes = Mapping[str, str | int]
NONE: Attributes = {}


def join(parts: Iterable[Child]) -> Html:
    """The parts one after the other; those that are no markup are escaped."""
    return Html("".join(part if isinstance(part, Html) else escape(part, quote=True) for part in parts))


def tag(name: str, attributes: Attributes = NONE, *children: Child) -> Html:
    """One element. `name` and the names of attributes are the program's own; values and text may be anyone's."""
    opened = name + "".join(f' {key}="{escape(str(value), quote=True)}"' for key, value in attributes.items())
    if name in VOID:
        return Html(f"<{opened}>")
    return Html(f"<{opened}>{join(children)}</{name}>")


def ratio(value: float) -> str:
    """A share as a length: `'12.5%'`."""
    return f"{100.0 * value:.6g}%"


def slug(text: str) -> str:
    """A class name for one of the program's own words: `'old log-prob'` -> `'old-log-prob'`."""
    return "".join(c if c.isalnum() else "-" for c in text.lower())


def table(header: tuple[str, ...], rows: Iterable[tuple[Child, ...]], *, caption: str, numeric: int = 0) -> Html:
    """A table that becomes a list of cards where there is no room. The last `numeric` columns are numbers."""
    first_number = len(header) - numeric
    head = tag("tr", NONE, *(tag("th", {"scope": "col", **_number(i, first_number)}, name) for i, name in
                             enumerate(header)))  # fmt: skip
    body = [
        tag("tr", NONE, *(
            tag("th", {"scope": "row"}, cell) if i == 0 else
            tag("td", {"data-label": header[i], **_number(i, first_number)}, cell)
            for i, cell in enumerate(row)
        ))
        for row in rows
    ]  # fmt: skip
    made = tag("table", {"class": "cards"}, tag("caption", NONE, caption), tag("thead", NONE, head),
               tag("tbody", NONE, *body))  # fmt: skip
    return tag("div", {"class": "scroll"}, made)


def _number(column: int, first: int) -> dict[str, str | int]:
    return {"class": "n"} if column >= first else {}


def details(summary: str, *children: Child) -> Html:
    """A closed part that opens on demand, and for printing."""
    return tag("details", NONE, tag("summary", NONE, summary), *children)


def figure(name: str, title: str, note: Child, *children: Child) -> Html:
    """A section with one figure: heading, one sentence that says how to read it, the picture, its table."""
    return tag(
        "section", {"id": name, "aria-labelledby": f"{name}-title"},
        tag("h2", {"id": f"{name}-title"}, title),
        tag("p", {"class": "note"}, note) if note else "",
        *children,
    )  # fmt: skip


def legend(entries: Iterable[tuple[str, str]]) -> Html:
    """(class of the fill, words) of everything that a picture shows, in its order."""
    items = (
        tag("li", NONE, tag("svg", {"class": "key", "aria-hidden": "true"},
                            *(tag("rect", {"class": name, "width": "100%", "height": "100%"}) for name in
                              classes.split("+"))), words)
        for classes, words in entries
    )  # fmt: skip
    return tag("ul", {"class": "legend"}, *items)
