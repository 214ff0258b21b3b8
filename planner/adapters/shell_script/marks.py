"""Text with unknown parts: what only the run itself would know stands in the text as a mark with a name.

A mark is a name between two private-use characters, so that unknown values pass through concatenation, splitting and
arrays like any other text. Input that holds these characters itself is cleaned by `clean`.
"""

from __future__ import annotations

import re

_OPEN, _CLOSE = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}")


def clean(text: str) -> str:
    """`text` without the characters that marks are made of."""
    return text.replace(_OPEN, "\ufffd").replace(_CLOSE, "\ufffd")


def mark(name: str) -> str:
    """The unknown value `name`; names are those of variables, or a command in `$(...)`."""
    # Spaces in it must not split a word.
    return _OPEN + "\u00a0".join(name.split()) + _CLOSE


def unknowns(text: str) -> tuple[str, ...]:
    """Names of the unknown values that `text` depends on, each once.

    >>> unknowns("a" + mark("X") + "b" + mark("X"))
    ('X',)
    """
    return tuple(dict.fromkeys(_MARK.findall(text)))


def is_known(text: str) -> bool:
    return _OPEN not in text


def is_mark(text: str) -> bool:
    """Whether `text` is one unknown value and nothing else."""
    return _MARK.fullmatch(text) is not None


def shown(text: str) -> str:
    """`text` for people: `$NAME` where a value is unknown.

    >>> shown(mark("HOME") + "/models")
    '$HOME/models'
    """
    return _MARK.sub(lambda match: match[1] if match[1].startswith("$") else f"${match[1]}", text).replace(
        "\u00a0", " "
    )


def known_tail(text: str) -> str:
    """What follows the last unknown value.

    >>> known_tail(mark("HOME") + "/models/x")
    '/models/x'
    """
    return text.rpartition(_CLOSE)[2]
