"""`[ ... ]` and `[[ ... ]]`: true, false, or None where it depends on what only the run knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.adapters.shell_script import patterns
from planner.adapters.shell_script.marks import is_known, is_mark, unknowns
from planner.adapters.shell_script.words import Expander

if TYPE_CHECKING:
    from tree_sitter import Node

_NUMERIC = {"-eq", "-ne", "-lt", "-le", "-gt", "-ge"}
_SIGNS = {"<": "-lt", ">": "-gt", "<=": "-le", ">=": "-ge"}


def test_node(shell: Expander, node: Node) -> bool | None:
    """The verdict of a test command or of a part of it."""
    kind = node.type
    named = [child for child in node.named_children if child.type != "comment"]
    if kind in ("test_command", "parenthesized_expression") and len(named) == 1:
        return test_node(shell, named[0])
    if kind == "negated_command" and named:
        return _not(test_node(shell, named[0]))
    if kind == "unary_expression":
        return _unary(shell, node, named)
    if kind == "binary_expression":
        return _binary(shell, node)
    if kind in ("test_command", "ERROR") or not shell.text_of(node).strip():
        return None
    return _is_filled(shell, shell.value(node))


def _unary(shell: Expander, node: Node, named: Sequence[Node]) -> bool | None:
    operator = shell.text_of(node.children[0]) if node.children else ""
    operand = named[-1]
    if operator == "!":
        return _not(test_node(shell, operand))
    if operator == "-v":
        return _is_set(shell, shell.value(operand))
    return _unary_text(shell, operator, shell.value(operand))


def _is_set(shell: Expander, name: str) -> bool | None:
    return shell.scalar(name) is not None or name in shell.state.variables if is_known(name) else None


def _unary_text(shell: Expander, operator: str, text: str) -> bool | None:
    if operator == "-z":
        return _not(_is_filled(shell, text))
    return _is_filled(shell, text) if operator == "-n" else None


def _binary(shell: Expander, node: Node) -> bool | None:
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    operator_node = node.child_by_field_name("operator")
    if left is None or right is None or operator_node is None:
        return None
    operator = shell.text_of(operator_node)
    if operator in ("&&", "-a", "||", "-o"):
        first = test_node(shell, left)
        is_and = operator in ("&&", "-a")
        if first is not None and first is not is_and:
            return first
        second = test_node(shell, right)
        if first is None:
            return second if second is not None and second is not is_and else None
        return second
    if operator in _NUMERIC:
        numbers = [shell.calculated(shell.value(part)) for part in (left, right)]
        return compare_numbers(operator, *numbers)
    text, other = shell.value(left), shell.value(right)
    if operator == "=~":
        return patterns.matches_regex(_as_empty(shell, text), other)
    is_quoted = right.type in ("string", "raw_string")
    return compare_texts(shell, operator, text, other, is_pattern=not is_quoted)


def compare_numbers(operator: str, left: str, right: str) -> bool | None:
    """`left -lt right` and its kin; None for what is no known integer."""
    try:
        one, two = int(left), int(right)
    except ValueError:
        return None
    return {
        "-eq": one == two, "-ne": one != two, "-lt": one < two, "-le": one <= two, "-gt": one > two, "-ge": one >= two,
    }[_SIGNS.get(operator, operator)]  # fmt: skip


def compare_texts(shell: Expander, operator: str, left: str, right: str, *, is_pattern: bool) -> bool | None:
    """`=`, `==`, `!=`, `<` and `>`."""
    left, right = _as_empty(shell, left), _as_empty(shell, right)
    if operator in ("=", "==", "!="):
        if is_pattern and any(char in right for char in "*?["):
            same = patterns.matches(left, right)
        elif is_known(left) and is_known(right):
            same = left == right
        else:
            return None
        return _not(same) if operator == "!=" else same
    if operator in ("<", ">") and is_known(left) and is_known(right):
        return left < right if operator == "<" else left > right
    return None


def _as_empty(shell: Expander, text: str) -> str:
    """A variable that nothing sets is empty in a condition, as it is when the script is started by itself.

    One that the script sets to what only the run knows has a value, even where it goes by the variable's name.
    """
    if not is_mark(text):
        return text
    name = unknowns(text)[0]
    return "" if name in shell.missing and name not in shell.state.variables else text


def _is_filled(shell: Expander, text: str) -> bool | None:
    text = _as_empty(shell, text)
    if is_known(text):
        return bool(text)
    return None if is_mark(text) else True


def _not(verdict: bool | None) -> bool | None:
    return None if verdict is None else not verdict


def test_words(shell: Expander, words: Sequence[str]) -> bool | None:
    """`test` with its arguments expanded; only the forms that POSIX defines for up to four arguments."""
    if words and words[0] == "!":
        return _not(test_words(shell, words[1:]))
    if len(words) == 1:
        return _is_filled(shell, words[0])
    if len(words) == 2:
        return _unary_text(shell, words[0], words[1])
    if len(words) == 3 and words[1] in _NUMERIC:
        return compare_numbers(words[1], words[0], words[2])
    if len(words) == 3:
        return compare_texts(shell, words[1], words[0], words[2], is_pattern=False)
    return False if not words else None
