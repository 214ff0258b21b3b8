"""The shell grammar: source text -> syntax tree, or a message."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from planner.errors import InvalidInputError

if TYPE_CHECKING:
    from tree_sitter import Parser, Tree

MAX_NESTING = 400
"""Brackets and keywords that may be open at the same time; the grammar's time grows with them."""


@cache
def _parser() -> Parser:
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError:
        raise InvalidInputError(
            "reading shell scripts needs tree-sitter and tree-sitter-bash", accepted="pip install 'rlplan[check]'"
        ) from None
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parse(text: str, where: str) -> tuple[Tree, bytes]:
    """The syntax tree and the bytes that its nodes point into. Carriage returns before line feeds are dropped."""
    # A command that ends in a carriage return is reported by the evaluator, from the text as it is.
    source = text.encode("utf-8", "replace")
    _check_nesting(source, where)
    tree = _parser().parse(source)
    if tree is None:
        raise InvalidInputError("is no shell script", where=where)
    return tree, source


def _check_nesting(source: bytes, where: str) -> None:
    depth = worst = 0
    for byte in source:
        if byte in b"({[":
            depth += 1
            worst = max(worst, depth)
        elif byte in b")}]" and depth:
            depth -= 1
    if worst > MAX_NESTING:
        raise InvalidInputError(f"brackets nest deeper than {MAX_NESTING} levels", where=where)
