"""What reading a configuration found: one finding per place, with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters, most first."""

    ERROR = "error"
    """The run does not start, dies, or does something else than what is written."""
    WARNING = "warning"
    """The run starts, and something in it is probably not meant."""
    NOTE = "note"
    """How the configuration was read where it leaves a choice."""


SEVERITIES = tuple(Severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`place` is `file:line`, a key or both; `remedy` is an instruction, empty where there is nothing to do."""

    place: str
    severity: Severity
    message: str
    remedy: str = ""
