"""Shell arithmetic on text, without `eval`: integers of 64 bits, C operators, assignments."""

from __future__ import annotations

import re
from collections.abc import Callable

from planner.adapters.shell_script.marks import unknowns

MAX_LENGTH = 2_000
MAX_DEPTH = 40
_TOKEN = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]+|\d+)|([A-Za-z_]\w*)|(\*\*|<<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%&|^]=|[-+*/%<>=!~&|^?:(),]))"
)
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"),
)  # fmt: skip
_ASSIGN = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}


class UnknownNumber(Exception):
    """The value depends on these unknown values."""

    def __init__(self, *names: str) -> None:
        super().__init__(", ".join(names))
        self.names = names


def evaluate(text: str, look_up: Callable[[str], str], assign: Callable[[str, str], None]) -> int:
    """The value of an arithmetic expression in which `$` is expanded already.

    Raises UnknownNumber when it depends on a value that is not known, or is no integer arithmetic at all.
    """
    return _Parser(text, look_up, assign, 0).whole()


class _Parser:
    def __init__(
        self, text: str, look_up: Callable[[str], str], assign: Callable[[str, str], None], depth: int
    ) -> None:
        if unknowns(text):
            raise UnknownNumber(*unknowns(text))
        if len(text) > MAX_LENGTH or depth > MAX_DEPTH:
            raise UnknownNumber("$((...))")
        self.tokens = _tokens(text)
        self.position = 0
        self.look_up, self.assign, self.depth = look_up, assign, depth
        self.is_inside_variable = depth > 0

    def whole(self) -> int:
        if not self.tokens:
            return 0
        value = self.comma()
        if self.position != len(self.tokens):
            raise UnknownNumber("$((...))")
        return value

    def peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.position += 1
        return token

    def expect(self, token: str) -> None:
        if self.take() != token:
            raise UnknownNumber("$((...))")

    def comma(self) -> int:
        value = self.ternary()
        while self.peek() == ",":
            self.take()
            value = self.ternary()
        return value

    def ternary(self) -> int:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UnknownNumber("$((...))")
        condition = self.binary(0)
        if self.peek() == "?":
            self.take()
            yes = self.ternary()
            self.expect(":")
            no = self.ternary()
            condition = yes if condition else no
        self.depth -= 1
        return condition

    def binary(self, level: int) -> int:
        if level == len(_LEVELS):
            return self.power()
        value = self.binary(level + 1)
        while self.peek() in _LEVELS[level]:
            operator = self.take()
            value = _apply(operator, value, self.binary(level + 1))
        return value

    def power(self) -> int:
        base = self.unary()
        if self.peek() == "**":
            self.take()
            exponent = self.power()
            if not 0 <= exponent <= 64:
                raise UnknownNumber("$((...))")
            return _wrapped(base**exponent)
        return base

    def unary(self) -> int:
        signs: list[str] = []
        while self.peek() in ("!", "~", "-", "+", "++", "--"):
            signs.append(self.take())
        if signs and signs[-1] in ("++", "--") and self.peek().isidentifier():
            name = self.take()
            value = self.change(name, 1 if signs.pop() == "++" else -1)
        else:
            value = self.primary()
        for sign in reversed(signs):
            value = {"!": int(not value), "~": ~value, "-": -value}.get(sign, value)
        return _wrapped(value)

    def primary(self) -> int:
        token = self.take()
        if token == "(":
            value = self.comma()
            self.expect(")")
            return value
        if token[:1].isdigit():
            return _number(token)
        if not token.isidentifier():
            raise UnknownNumber("$((...))")
        if self.peek() in ("++", "--"):
            step = 1 if self.take() == "++" else -1
            return self.change(token, step) - step
        if self.peek() in _ASSIGN:
            operator = self.take()
            value = self.ternary()
            if operator != "=":
                value = _apply(operator[:-1], self.variable(token), value)
            self.assign(token, str(value))
            return value
        return self.variable(token)

    def change(self, name: str, step: int) -> int:
        value = _wrapped(self.variable(name) + step)
        self.assign(name, str(value))
        return value

    def variable(self, name: str) -> int:
        value = self.look_up(name)
        if self.is_inside_variable and unknowns(value) == (name,):
            # Text inside a variable is a name in turn, and one that is not set counts as 0.
            return 0
        return _Parser(value, self.look_up, self.assign, self.depth + 1).whole()


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    position, text = 0, text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise UnknownNumber("$((...))")
        tokens.append(match[0].strip())
        position = match.end()
    return tokens


def _number(token: str) -> int:
    if len(token) > 20:
        raise UnknownNumber("$((...))")
    if token[:2].lower() == "0x":
        return int(token, 16)
    if token.startswith("0") and token != "0":
        if not re.fullmatch("[0-7]+", token):
            raise UnknownNumber("$((...))")
        return int(token, 8)
    return int(token)


def _wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def _apply(operator: str, left: int, right: int) -> int:
    if operator in ("/", "%"):
        if right == 0:
            raise UnknownNumber("$((...))")
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if operator == "/" else left - quotient * right
    operations: dict[str, Callable[[], int]] = {
        "+": lambda: left + right, "-": lambda: left - right, "*": lambda: left * right,
        "<": lambda: int(left < right), "<=": lambda: int(left <= right), ">": lambda: int(left > right),
        ">=": lambda: int(left >= right), "==": lambda: int(left == right), "!=": lambda: int(left != right),
        "&&": lambda: int(bool(left) and bool(right)), "||": lambda: int(bool(left) or bool(right)),
        "&": lambda: left & right, "|": lambda: left | right, "^": lambda: left ^ right,
        "<<": lambda: left << (right & 63), ">>": lambda: left >> (right & 63),
    }  # fmt: skip
    return _wrapped(operations[operator]())
