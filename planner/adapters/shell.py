"""User text in generated scripts: shell words, Hydra values and comments that stay data, whatever they hold."""

from __future__ import annotations

import re
import shlex

from planner.errors import InvalidInputError


def shell_word(text: str) -> str:
    """One word of a POSIX shell that expands to exactly `text`. Raises InvalidInputError for a NUL byte."""
    if "\0" in text:
        raise InvalidInputError("a NUL byte cannot be passed to a program", where=repr(text[:60]))
    return shlex.quote(text)


def hydra_text(text: str) -> str:
    """The value part of a Hydra 1.3 override that composes to exactly the string `text`.

    Inside Hydra's single quotes a quote is escaped by a backslash, and so are backslashes before it or at the end.
    Raises InvalidInputError as `omegaconf_text` does.
    """
    literal = omegaconf_text(text)
    quoted = re.sub(r"(\\*)'", lambda match: match.group(1) * 2 + r"\'", literal)
    closed = re.sub(r"(\\+)$", lambda match: match.group(1) * 2, quoted)
    return f"'{closed}'"


def omegaconf_text(text: str) -> str:
    """What OmegaConf resolves to exactly the string `text`.

    It reads `${` as an interpolation unless a backslash precedes it, and halves the backslashes before that. Raises
    InvalidInputError for `???`, which it always reads as a missing value.
    """
    if text == "???":
        raise InvalidInputError("'???' means a missing value in Hydra", accepted="another name")
    return re.sub(r"(\\*)\$\{", lambda match: match.group(1) * 2 + r"\${", text)


def comment(text: str) -> str:
    """`text` on one line that a shell comment can hold; other control characters become spaces."""
    return "".join(c if c.isprintable() else " " for c in text)
