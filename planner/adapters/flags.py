"""Flags of argparse programs as values, in sections that say which plan decision they come from."""

from __future__ import annotations

from dataclasses import dataclass

from planner.adapters.overrides import ShellValue, UserText
from planner.adapters.shell import comment, shell_word

FlagValue = int | float | str | UserText | ShellValue
"""`str` is a word that the adapter itself chose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """`--name`, `--name=value` (a value that starts with a hyphen stays one) or `--name value value`."""

    name: str
    values: tuple[FlagValue, ...] = ()

    def words(self) -> str:
        """The flag as words of a shell script."""
        if len(self.values) == 1:
            (value,) = self.values
            if isinstance(value, ShellValue):
                return f'"--{self.name}=${value.variable}"'
            return shell_word(f"--{self.name}={_text(value)}")
        return " ".join([f"--{self.name}", *(shell_word(_text(value)) for value in self.values)])


def _text(value: FlagValue) -> str:
    return value.text if isinstance(value, UserText) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagSection:
    """Flags of one bash array `name`, with the decisions that they come from as comment lines."""

    name: str
    decisions: tuple[str, ...]
    flags: tuple[Flag, ...]

    def script(self) -> str:
        lines = [f"# {comment(decision)}" for decision in self.decisions]
        lines.append(f"{self.name}=(")
        lines += [f"  {flag.words()}" for flag in self.flags]
        return "\n".join([*lines, ")"])


def flags(prefix: str, *pairs: tuple[str, FlagValue | bool | tuple[FlagValue, ...]]) -> tuple[Flag, ...]:
    """Flags whose names share a prefix; False leaves a switch out, True writes it, tuples are several values."""
    found: list[Flag] = []
    for key, value in pairs:
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, bool):
            found += [Flag(name=name)] if value else []
        else:
            found.append(Flag(name=name, values=value if isinstance(value, tuple) else (value,)))
    return tuple(found)
