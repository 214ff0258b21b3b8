"""What all results of the API have in common: they show themselves in a terminal, in rich and in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH = 100
"""Columns of a report as text."""


class Shown(ABC):
    """A result with a report: `str()` is it as text, notebooks and rich show it formatted; `repr()` is one line."""

    __slots__ = ()

    @abstractmethod
    def _summary(self) -> str:
        """One line."""

    @abstractmethod
    def _report(self, width: int) -> RenderableType:
        """The report that the command line prints, for `width` columns."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._summary()}>"

    def __str__(self) -> str:
        from planner.report.console import plain

        return plain(self._report(WIDTH), width=WIDTH)

    def __rich__(self) -> RenderableType:
        from planner.report.notebook import Plainly

        return Plainly(self._report)

    def _repr_html_(self) -> str:
        from planner.report.notebook import text_html

        return text_html(self._report(WIDTH), width=WIDTH)
