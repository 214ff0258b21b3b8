"""Which model of the catalog a path in a configuration names."""

from __future__ import annotations

from planner.adapters.findings import Severity
from planner.adapters.import_values import Values
from planner.adapters.shell_script import is_known, known_tail, shown
from planner.errors import InvalidInputError

NOT_KNOWN = "no model is known by"
NOT_MODELLED = "is known and cannot be priced"
"""How the two reasons begin, for whoever counts them."""


def read_model(values: Values, key: str) -> str | None:
    """A reference that the catalog loads, from a repository id, a path to a model, or the name at the end of a path.

    None when none of them is known; then the key is asked for.
    """
    value = values.config.get(key)
    text = value if isinstance(value, str) else ""
    if not text or value is None:
        values.ask(key)
        return None
    for candidate in _candidates(text):
        if _is_model(candidate):
            if candidate != text:
                values.find(key, Severity.NOTE, f"{shown(text)[:100]} is read as {candidate}, which its path ends in")
            note_left_out(values, key, candidate)
            return candidate
    values.ask(key)
    values.find(
        key,
        Severity.NOTE,
        _why_unknown(text, shown(text)[:100]),
        f"--set {key}=ID with a catalog id or a path to config.json",
    )
    return None


def _why_unknown(text: str, tail: str) -> str:
    from planner.files.catalog import why_not_modelled

    for candidate in _candidates(text):
        reason = why_not_modelled(candidate)
        if reason:
            return f"{tail!r} {NOT_MODELLED}: {reason}"
    return f"{NOT_KNOWN} {tail!r}"


def note_left_out(values: Values, key: str, model: str) -> None:
    """Says what of the network behind a name is not priced."""
    from planner.files.catalog import left_out_of

    left_out = left_out_of(model)
    if left_out:
        values.find(key, Severity.NOTE, f"{shown(model)[:100]}: the text part is priced; {left_out} is left out")


def _candidates(text: str) -> list[str]:
    """The text itself, then the last two and the last part of a path."""
    parts = [part for part in known_tail(text).replace("\\", "/").split("/") if part]
    whole = [text] if is_known(text) else []
    ends = ["/".join(parts[-2:])] if len(parts) > 1 else []
    return [*whole, *ends, *parts[-1:]]


def _is_model(reference: str) -> bool:
    from planner.files.catalog import load_model

    if "~" in reference:
        return False
    try:
        load_model(reference)
    except InvalidInputError:
        return False
    return True
