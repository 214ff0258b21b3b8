"""What a shell knows while it runs: variables, functions, arguments, directory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING

from planner.adapters.shell_script.marks import mark, unknowns
from planner.errors import InvalidInputError

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_TEXT = 2**20
MAX_ELEMENTS = 10_000

Array = dict[str, str]
"""Elements by index or key, in order."""
Value = str | Array


class Flow(Enum):
    """Why the commands that follow are not run."""

    EXIT = auto()
    RETURN = auto()
    BREAK = auto()
    CONTINUE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of the script with the source that its nodes point into."""

    body: Node
    source: bytes
    file: str


@dataclass(slots=True, kw_only=True)
class State:
    """One shell. `arguments` are $1, $2, ...; None means that nobody can say what they are."""

    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    functions: dict[str, Function] = field(default_factory=dict)
    arguments: list[str] | None = field(default_factory=list)
    directory: str = field(default_factory=lambda: mark("PWD"))
    output: list[str] | None = None
    """Where echo writes to while a command substitution is evaluated."""
    status: str = "0"
    flow: Flow | None = None

    def copy(self, *, output: list[str] | None = None) -> State:
        """A subshell."""
        variables = {name: dict(v) if isinstance(v, dict) else v for name, v in self.variables.items()}
        return replace(
            self, variables=variables, exported=set(self.exported), functions=dict(self.functions),
            arguments=None if self.arguments is None else list(self.arguments), output=output,
        )  # fmt: skip

    def child(self, arguments: list[str]) -> State:
        """A new shell process: it sees what is exported and nothing else."""
        visible = {name: value for name, value in self.variables.items() if name in self.exported}
        return State(
            variables=visible, exported=set(visible), arguments=arguments, directory=self.directory, output=self.output
        )

    def set(self, name: str, value: Value) -> None:
        """Raises InvalidInputError for a value of unreasonable size."""
        size = len(value) if isinstance(value, str) else sum(map(len, value.values()))
        if size > MAX_TEXT or (isinstance(value, dict) and len(value) > MAX_ELEMENTS):
            raise InvalidInputError(f"variable {name[:60]} grows beyond {MAX_TEXT:,} characters", where="shell script")
        self.variables[name] = value

    def adopt(self, other: State) -> None:
        """Goes on as `other`."""
        self.variables, self.exported, self.functions = other.variables, other.exported, other.functions
        self.arguments, self.directory = other.arguments, other.directory
        self.status, self.flow = other.status, other.flow


def _known_cause(*values: Value | None) -> str:
    """The unknown value that one of two differing values depends on already."""
    texts = [text for v in values if v is not None for text in ([v] if isinstance(v, str) else v.values())]
    return next((name for text in texts for name in unknowns(text) if name.isidentifier()), "")


def merged(first: State, second: State, cause: str = "") -> State:
    """What is known when either of two branches was run: where they differ, nothing. `cause` names what the branch
    depends on; without a name, a variable that differs goes by its own.

    A branch that ends the script is left out if the other does not, since it is the launch that is looked for.
    """
    if first.flow is Flow.EXIT and second.flow is not Flow.EXIT:
        return second
    if second.flow is Flow.EXIT and first.flow is not Flow.EXIT:
        return first
    result = first.copy(output=first.output)
    if first.output is not None and second.output is not None and first.output != second.output:
        result.output = [mark(cause or "$(...)")]
    for name in first.variables.keys() | second.variables.keys():
        one, other = first.variables.get(name), second.variables.get(name)
        if one != other:
            result.variables[name] = mark(cause or _known_cause(one, other) or name)
    result.exported |= second.exported
    result.functions |= second.functions
    result.arguments = first.arguments if first.arguments == second.arguments else None
    result.directory = first.directory if first.directory == second.directory else mark("PWD")
    result.status = first.status if first.status == second.status else mark("?")
    # An unknown condition that leaves a loop does so some time.
    flows = {first.flow, second.flow}
    result.flow = first.flow if len(flows) == 1 else Flow.BREAK if Flow.BREAK in flows else None
    return result
