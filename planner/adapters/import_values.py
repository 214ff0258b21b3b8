"""Typed reading of a configuration: what is not known is noted by name, what is wrong becomes a finding."""

from __future__ import annotations

import re

from planner.adapters.findings import Finding, Severity
from planner.adapters.hydra import Config, Value, displayed
from planner.adapters.imported import Setting
from planner.adapters.shell_script import is_known, unknowns

MAX_WHOLE = 2**40
_WHOLE = re.compile(r"[+-]?[0-9]+")


class Values:
    """Reads values of a configuration; collects what was found, what is not known and what it says."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.findings: list[Finding] = []
        self.settings: list[Setting] = []
        self.engine_static_ratio: float | None = None
        self._unresolved: dict[str, None] = {}
        self._reported: set[str] = set()

    @property
    def unresolved(self) -> tuple[str, ...]:
        return tuple(self._unresolved)

    def find(self, place: str, severity: Severity, message: str, remedy: str = "") -> None:
        """Notes a finding; `place` is a key (with where it was set, if it was) or any other place."""
        where = self.config.place(place)
        shown_place = f"{where}: {place}" if where and where != place else place
        found = Finding(place=shown_place, severity=severity, message=message, remedy=remedy)
        if found not in self.findings:
            self.findings.append(found)

    def say(self, what: str, value: str, source: str = "") -> None:
        """Notes what the configuration really does."""
        self.settings.append(Setting(what=what, value=value, source=source))

    def ask(self, name: str) -> None:
        """Notes a value that has to be given."""
        self._unresolved[name] = None

    def origin(self, key: str) -> str:
        """The key, and that it has its default where nobody set it."""
        return key if self.config.is_set(key) else f"{key}, default"

    def _known(self, key: str, value: Value) -> bool:
        """Whether a value is known; asks for the names that it depends on otherwise."""
        text = value if isinstance(value, str) else ""
        if is_known(text):
            return True
        for name in unknowns(text):
            self.ask(name if name.isidentifier() else key)
        return False

    def wrong(self, key: str, value: Value, accepted: str) -> None:
        if key not in self._reported:
            self._reported.add(key)
            self.find(key, Severity.ERROR, f"{displayed(value)[:60]!r} is not {accepted}")

    def whole(self, key: str, default: int = 1, *, minimum: int = 0) -> int:
        """A whole number; `default` where it is null, not known (then it is asked for) or wrong."""
        found = self.optional_whole(key, minimum=minimum)
        return default if found is None else found

    def optional_whole(self, key: str, *, minimum: int = 0) -> int | None:
        """A whole number of at least `minimum`; None for null and for what is not known or wrong."""
        value = self.config.get(key)
        if value is None or not self._known(key, value):
            return None
        if isinstance(value, str) and len(value) < 19 and _WHOLE.fullmatch(value.strip()):
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= MAX_WHOLE:
            self.wrong(key, value, f"a whole number of at least {minimum}")
            return None
        return value

    def number(self, key: str, default: float) -> float:
        """A finite number; `default` where it is null, not known or wrong."""
        value = self.config.get(key)
        if value is None or not self._known(key, value):
            return default
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                self.wrong(key, value, "a number")
                return default
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) > 1e30:
            self.wrong(key, value, "a number")
            return default
        return float(value)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """True or false; `default` where it is null, not known or wrong."""
        value = self.config.get(key)
        if value is None or not self._known(key, value):
            return default
        words = {
            "true": True,
            "yes": True,
            "on": True,
            "1": True,
            "false": False,
            "no": False,
            "off": False,
            "0": False,
        }
        found = value if isinstance(value, bool) else words.get(str(value).strip().lower())
        if found is None:
            self.wrong(key, value, "true or false")
            return default
        return found

    def text(self, key: str, default: str = "") -> str:
        """Text; `default` where it is null or not known (then it is asked for)."""
        value = self.config.get(key)
        if value is None or not self._known(key, value):
            return default
        return displayed(value) if not isinstance(value, str) else value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, or one text as a list of one; empty for null."""
        value = self.config.get(key)
        if value is None:
            return ()
        return tuple(displayed(item) for item in value) if isinstance(value, list) else (displayed(value),)
