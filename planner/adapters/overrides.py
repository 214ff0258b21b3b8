"""Hydra overrides as values, in sections that say which plan decision they come from."""

from __future__ import annotations

from dataclasses import dataclass

from planner.adapters.shell import comment, hydra_text, shell_word


@dataclass(frozen=True, slots=True)
class UserText:
    """A string that came from outside and must stay data."""

    text: str


@dataclass(frozen=True, slots=True)
class ShellValue:
    """The value of a shell variable that the generated script defines, as Hydra text."""

    variable: str


Value = bool | int | float | str | None | tuple[str, ...] | UserText | ShellValue
"""`str` is a word that the adapter itself chose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """`key=value`; `is_added` writes `+key=value` for a key that the schema has no default for."""

    key: str
    value: Value
    is_added: bool = False

    def word(self) -> str:
        """The override as one word of a shell script."""
        name = f"+{self.key}" if self.is_added else self.key
        if isinstance(self.value, ShellValue):
            return f'"{name}=${self.value.variable}"'
        return shell_word(f"{name}={_render(self.value)}")


def _render(value: Value) -> str:
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return f"[{','.join(value)}]"
    if isinstance(value, UserText):
        return hydra_text(value.text)
    return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Overrides of one bash array `name`, with the decisions that they come from as comment lines."""

    name: str
    decisions: tuple[str, ...]
    overrides: tuple[Override, ...]

    def script(self) -> str:
        lines = [f"# {comment(decision)}" for decision in self.decisions]
        lines.append(f"{self.name}=(")
        lines += [f"  {override.word()}" for override in self.overrides]
        return "\n".join([*lines, ")"])


def under(prefix: str, *pairs: tuple[str, Value], is_added: bool = False) -> tuple[Override, ...]:
    """Overrides whose keys share a prefix."""
    return tuple(Override(key=f"{prefix}.{key}", value=value, is_added=is_added) for key, value in pairs)
