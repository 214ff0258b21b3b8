"""Walks a parsed shell script and notes the programs that it would start. Nothing is executed, nothing is written.

Variables, functions, arithmetic, loops and conditions are followed as far as their values are known. Where a condition
is not, both branches are followed and what they disagree on becomes unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planner.adapters.findings import Finding, Severity
from planner.adapters.shell_script import builtin
from planner.adapters.shell_script.conditions import test_node
from planner.adapters.shell_script.launches import Command, InnerScript, inner_script
from planner.adapters.shell_script.machine import ACCELERATOR, PROBES, probe
from planner.adapters.shell_script.marks import is_known, is_mark, mark, shown, unknowns
from planner.adapters.shell_script.parse import parse
from planner.adapters.shell_script.patterns import matches
from planner.adapters.shell_script.state import Array, Flow, Function, State, Value, merged
from planner.adapters.shell_script.words import Expander, expansions
from planner.errors import InvalidInputError

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_STEPS = 50_000
MAX_TIME_S = 10.0
MAX_NESTING = 60
MAX_CALLS = 25
MAX_ITERATIONS = 2_000
MAX_COMMANDS = 5_000
MAX_WORDS = 10_000
MAX_BYTES = 2**20

_Status = bool | None


class Shell(Expander):
    """Evaluates one script and what it sources or starts below `root`."""

    def __init__(self, file: Path, root: Path, given: dict[str, str], arguments: list[str] | None) -> None:
        state = State(arguments=arguments)
        for name, value in given.items():
            if name.isidentifier():
                state.variables[name] = value
                state.exported.add(name)
        super().__init__(state, given, str(file))
        self.root = root
        self.commands: list[Command] = []
        self.findings: list[Finding] = []
        self.sources: dict[str, str] = {}
        self.steps = self.nesting = self.calls = self.forks = 0
        self.start_s = time.monotonic()
        self.locals: dict[str, Value | None] | None = None
        """What the local variables of the running function hide."""

    # Sources -----------------------------------------------------------------------------------------------------

    def run_file(self, file: Path) -> None:
        """Evaluates a file in the present state; raises InvalidInputError for what cannot be read."""
        from planner.files.atomic import read_limited

        text = read_limited(file, MAX_BYTES, kind="shell script")
        self.sources.setdefault(str(file), text)
        self.run_text(text, str(file))

    def run_text(self, text: str, file: str) -> None:
        self._enter(file)
        outer = self.source, self.file
        tree, source = parse(text, file)
        self.source, self.file = source, file
        self._note_broken_lines(source.decode(), file)
        self.sequence(tree.root_node.children)
        self.source, self.file = outer
        self.calls -= 1

    def _enter(self, what: str) -> None:
        self.calls += 1
        if self.calls > MAX_CALLS:
            raise InvalidInputError(f"calls nest deeper than {MAX_CALLS} levels", where=what)

    def _note_broken_lines(self, text: str, file: str) -> None:
        for number, line in enumerate(text.split("\n"), 1):
            bare = line.rstrip()
            if line != bare and bare.endswith("\\") and not bare.endswith("\\\\") and not bare.lstrip().startswith("#"):
                end = "a carriage return" if line.endswith("\r") else "a blank"
                self.find(
                    f"{file}:{number}",
                    Severity.ERROR,
                    f"the backslash is followed by {end}, so that the command ends here",
                    "remove what follows the backslash",
                )

    def find(self, place: str, severity: Severity, message: str, remedy: str = "") -> None:
        found = Finding(place=place, severity=severity, message=message, remedy=remedy)
        if found not in self.findings:
            self.findings.append(found)

    # Statements --------------------------------------------------------------------------------------------------

    def sequence(self, nodes: Iterable[Node]) -> _Status:
        status: _Status = True
        for node in nodes:
            if node.is_named and node.type not in ("comment", "heredoc_body"):
                status = self.run(node)
                if self.state.flow is not None:
                    break
        return status

    def run(self, node: Node) -> _Status:
        """Evaluates a statement: True for status 0, False for another one, None where it is not known."""
        self.steps += 1
        self.nesting += 1
        if self.steps > MAX_STEPS or time.monotonic() - self.start_s > MAX_TIME_S:
            raise InvalidInputError(
                f"the script does not end within {MAX_STEPS:,} steps or {MAX_TIME_S:g} s", where=self.place(node)
            )
        if self.nesting > MAX_NESTING:
            raise InvalidInputError(f"statements nest deeper than {MAX_NESTING} levels", where=self.place(node))
        handler = _HANDLERS.get(node.type)
        status = handler(self, node) if handler is not None else self._unread(node)
        self.state.status = {True: "0", False: "1", None: mark("?")}[status]
        self.nesting -= 1
        return status

    def _unread(self, node: Node) -> _Status:
        self.find(self.place(node), Severity.WARNING, f"not understood: {self.text_of(node)[:60].splitlines()[:1]}")
        return None

    def fork(self, *branches: Callable[[], object], cause: str = "") -> None:
        """Follows all branches from the present state and goes on with what they agree on."""
        start = self.state
        ends: list[State] = []
        self.forks += 1
        for branch in branches:
            self.state = start.copy(output=None if start.output is None else list(start.output))
            branch()
            ends.append(self.state)
        self.forks -= 1
        result = ends[0]
        for other in ends[1:]:
            result = merged(result, other, cause)
        if start.output is not None and result.output is not None:
            start.output[:] = result.output
        start.adopt(result)
        self.state = start

    def _assignment(self, node: Node) -> _Status:
        self.assign(node)
        return True

    def assign(self, node: Node, *, is_local: Callable[[str], None] | None = None) -> str:
        """Evaluates `NAME=value`, `NAME+=value`, `NAME[i]=value` or `NAME=(...)`; returns the name."""
        target = node.child_by_field_name("name")
        value_node = node.child_by_field_name("value")
        if target is None:
            return ""
        adds = any(child.type == "+=" for child in node.children)
        subscript = target.type == "subscript"
        inner = target.child_by_field_name("name") if subscript else target
        name = self.text_of(inner) if inner is not None else ""
        if is_local is not None:
            is_local(name)
        if value_node is not None and value_node.type == "array":
            self._assign_array(name, value_node, adds=adds)
            return name
        value = self.value(value_node)
        if subscript:
            index = target.child_by_field_name("index")
            self._assign_element(name, self.value(index), value, adds=adds)
            return name
        if is_mark(value) and name in self.given:
            # What the script cannot know, the user has said.
            value = self.given[name]
        if adds:
            value = self._added(name, value)
        self.state.set(name, self.renamed(name, value))
        return name

    def renamed(self, name: str, value: str) -> str:
        """An unknown value of a command goes by the name of the variable that holds it: it can be given by name."""
        return mark(name) if is_mark(value) and not value[1:-1].isidentifier() else value

    def _added(self, name: str, value: str) -> str:
        old = self.state.variables.get(name, "")
        return (old if isinstance(old, str) else old.get("0", "")) + value

    def _assign_element(self, name: str, index: str, value: str, *, adds: bool) -> None:
        old = self.state.variables.get(name, {})
        elements: Array = dict(old) if isinstance(old, dict) else {"0": old}
        key = self.calculated(index) if index.replace("_", "a").isalnum() and index[:1].isdigit() else index
        if not is_known(key):
            self.state.set(name, mark(name))
            return
        elements[key] = elements.get(key, "") + value if adds else value
        self.state.set(name, elements)

    def _assign_array(self, name: str, node: Node, *, adds: bool) -> None:
        old = self.state.variables.get(name, {})
        elements: Array = (dict(old) if isinstance(old, dict) else {"0": old}) if adds else {}
        for child in node.named_children:
            if child.type == "comment":
                continue
            raw = self.text_of(child)
            if raw.startswith("[") and "]=" in raw:
                key, _, value = self.value(child).partition("]=")
                elements[key[1:].strip("\"'")] = value
                continue
            for field in self.fields(child):
                elements[str(len(elements))] = field
        self.state.set(name, elements)

    def _command(self, node: Node) -> _Status:
        words: list[str] = []
        environment: list[tuple[str, str]] = []
        heredoc: str | None = None
        for index, child in enumerate(node.children):
            if child.type == "variable_assignment":
                target = child.child_by_field_name("name")
                name = self.text_of(target) if target is not None else ""
                environment.append((name, self.value(child.child_by_field_name("value"))))
            elif child.type == "herestring_redirect":
                heredoc = self.value(child.named_children[-1]) if child.named_children else ""
            elif child.is_named and child.type not in ("file_redirect", "heredoc_redirect", "comment"):
                words += self.fields(child)
            elif not child.is_named and index and node.field_name_for_child(index) == "argument":
                words.append(self.text_of(child))
            if len(words) > MAX_WORDS:
                raise InvalidInputError(f"a command has more than {MAX_WORDS:,} words", where=self.place(node))
        return self.start(node, words, environment, heredoc)

    def start(
        self, node: Node, words: Sequence[str], environment: Sequence[tuple[str, str]] = (), heredoc: str | None = None
    ) -> _Status:
        """A command whose words are expanded: a function, a builtin or a program."""
        if not words:
            for name, value in environment:
                self.state.set(name, value)
            return True
        name = words[0]
        if name in self.state.functions:
            return self.call(name, list(words[1:]), environment)
        handler = builtin.BUILTINS.get(name)
        if handler is not None:
            return handler(self, node, list(words[1:]), heredoc)
        return self.program(node, words, environment, heredoc)

    def call(self, name: str, arguments: list[str], environment: Sequence[tuple[str, str]] = ()) -> _Status:
        self._enter(f"{self.file}: function {name[:40]}")
        function = self.state.functions[name]
        outer = self.source, self.file, self.state.arguments
        saved: dict[str, Value | None] = {}
        locals_before = self.locals
        self.locals = saved
        for variable, value in environment:
            saved.setdefault(variable, self.state.variables.get(variable))
            self.state.set(variable, value)
        self.source, self.file, self.state.arguments = function.source, function.file, arguments
        status = self.run(function.body)
        self.source, self.file, self.state.arguments = outer
        if self.state.flow is Flow.RETURN:
            self.state.flow = None
            status = {"0": True}.get(self.state.status, None if not is_known(self.state.status) else False)
        for variable, old in saved.items():
            if old is None:
                self.state.variables.pop(variable, None)
            else:
                self.state.variables[variable] = old
        self.locals = locals_before
        self.calls -= 1
        return status

    def program(
        self, node: Node, words: Sequence[str], environment: Sequence[tuple[str, str]], heredoc: str | None
    ) -> _Status:
        """Notes a program, or follows it when it is another script of the same directory."""
        if len(self.commands) >= MAX_COMMANDS:
            raise InvalidInputError(f"starts more than {MAX_COMMANDS:,} programs", where=self.place(node))
        variables = self.state.variables.items()
        exported = [(n, v) for n, v in variables if n in self.state.exported and isinstance(v, str)]
        command = Command(
            words=tuple(words),
            place=self.place(node),
            environment=(*exported, *environment),
            is_conditional=self.forks > 0,
            heredoc=heredoc,
        )
        inner = inner_script(command)
        if inner is not None:
            return self._inner(command, inner)
        probed = probe(words, self.given.get(ACCELERATOR))
        if probed is not None:
            self.find(self.place(node), Severity.NOTE, f"{shown(' '.join(words))[:60]}: {PROBES[probed]}")
            return probed
        self.commands.append(command)
        if self.state.output is not None:
            self.state.output.append(mark(f"$({shown(' '.join(words))[:40]})"))
        return None

    def _inner(self, command: Command, inner: InnerScript) -> _Status:
        """A script that is started by a script: in a new shell that sees only what is exported."""
        outer = self.state
        child = outer.child(list(inner.arguments))
        for name, value in command.environment:
            child.set(name, value)
            child.exported.add(name)
        self.state = child
        if inner.text is not None:
            self.run_text(inner.text, command.place)
        else:
            file = self.resolve(inner.file or "", command.place)
            if file is not None:
                self.run_file(file)
        self.state = outer
        return None

    def resolve(self, name: str, place: str) -> Path | None:
        """A file that the script names, if it lies below the root; else a finding says why it is not read."""
        if not is_known(name):
            self.find(place, Severity.NOTE, f"{shown(name)} is not followed: its place is not known")
            return None
        path = Path(name)
        if not path.is_absolute():
            base = (
                Path(self.state.directory) if is_known(self.state.directory) else Path(self.file.split(":")[0]).parent
            )
            candidates = [base / path, Path(self.file.split(":")[0]).parent / path, self.root / path]
            path = next((c for c in candidates if c.is_file()), candidates[0])
        resolved = path.resolve()
        if not resolved.is_relative_to(self.root):
            self.find(
                place,
                Severity.NOTE,
                f"{name[:100]} is not read: it lies outside of {self.root}",
                "--root DIRECTORY allows reading below another directory",
            )
            return None
        if not resolved.is_file():
            self.find(place, Severity.WARNING, f"{name[:100]} is not read: there is no such file")
            return None
        return resolved

    # Control flow ------------------------------------------------------------------------------------------------

    def _list(self, node: Node) -> _Status:
        left, right = node.named_children[0], node.named_children[-1]
        wants = any(child.type == "&&" for child in node.children)
        status = self.run(left)
        if self.state.flow is not None:
            return status
        if status is None:
            self.fork(lambda: None, lambda: self.run(right), cause=self.cause([left]))
            return None
        return self.run(right) if status is wants else status

    def _pipeline(self, node: Node) -> _Status:
        parts = [child for child in node.children if child.is_named and child.type != "comment"]
        status: _Status = None
        outer = self.state
        for index, part in enumerate(parts):
            is_last = index + 1 == len(parts)
            self.state = outer.copy(output=outer.output if is_last else [])
            status = self.run(part)
        self.state = outer
        return status

    def _redirected(self, node: Node) -> _Status:
        body = node.child_by_field_name("body")
        heredoc = next((child for child in node.children if child.type == "heredoc_redirect"), None)
        if body is None:
            return True
        text = self._heredoc(heredoc) if heredoc is not None else None
        if heredoc is not None and body.type == "command":
            words = [field for child in body.children if (child.is_named and child.type == "command_name")
                     or (child.is_named and child.type not in ("variable_assignment", "file_redirect", "command_name"))
                     for field in self.fields(child)]  # fmt: skip
            extra = [child for child in heredoc.children if heredoc_argument(child)]
            words += [field for child in extra for field in self.fields(child)]
            return self.start(node, words, (), text)
        writes_file = any(child.type == "file_redirect" and self._is_output(child) for child in node.children)
        if writes_file and self.state.output is not None:
            outer, self.state = self.state, self.state.copy(output=[])
            status = self.run(body)
            self.state.output = outer.output
            outer.adopt(self.state)
            self.state = outer
            return status
        return self.run(body)

    def _is_output(self, redirect: Node) -> bool:
        text = self.text_of(redirect)
        return text.startswith((">", "1>", "&>")) and not text.startswith((">&", "1>&"))

    def _heredoc(self, node: Node) -> str:
        """The text of a here-document, expanded unless its delimiter is quoted."""
        start = next((child for child in node.children if child.type == "heredoc_start"), None)
        body = next((child for child in node.children if child.type == "heredoc_body"), None)
        if body is None:
            return ""
        delimiter = self.text_of(start) if start is not None else ""
        text = self.text_of(body)
        if not any(char in delimiter for char in "'\"\\"):
            text = self._as_string(text, self.place(node))
        if any(child.type == "<<-" for child in node.children):
            text = "\n".join(line.lstrip("\t") for line in text.split("\n"))
        return text

    def _as_string(self, text: str, place: str) -> str:
        """A here-document expanded like a string in double quotes, in which its own quotes are escaped.

        The grammar finds only the first expansion of a here-document.
        """
        *parts, last = text.split('"')
        quoted = "".join(part + "\\" * (len(part) - len(part.rstrip("\\"))) + '\\"' for part in parts) + last
        tree, source = parse(f'text="{quoted}"', place)
        outer, self.source = self.source, source
        assignment = tree.root_node.children[0] if tree.root_node.children else None
        value = assignment.child_by_field_name("value") if assignment is not None else None
        result = text if value is None else self.value(value)
        self.source = outer
        return result

    def _if(self, node: Node) -> _Status:
        branches = _branches(node)
        return self._choose(branches)

    def cause(self, nodes: Sequence[Node]) -> str:
        """The first unknown value that has a name and that conditions look at; empty if there is none."""
        outer = self.state
        self.state = outer.copy(output=[])
        names = [
            name
            for node in nodes
            for part in expansions(node, node.start_byte, node.end_byte)
            if part.type in ("simple_expansion", "expansion")
            for name in unknowns(self.value(part))
        ]
        self.state = outer
        return next((name for name in names if name.isidentifier() and name not in self.missing), "")

    def _choose(self, branches: list[tuple[list[Node] | None, list[Node]]]) -> _Status:
        if not branches:
            return True
        condition, body = branches[0]
        if condition is None:
            return self.sequence(body)
        verdict = self.sequence(condition)
        if self.state.flow is not None:
            return verdict
        if verdict is None:
            cause = self.cause(condition)
            self.fork(lambda: self.sequence(body), lambda: self._choose(branches[1:]), cause=cause)
            return None
        return self.sequence(body) if verdict else self._choose(branches[1:])

    def _for(self, node: Node) -> _Status:
        variable = node.child_by_field_name("variable")
        body = node.child_by_field_name("body")
        if variable is None or body is None:
            return None
        if any(child.type == "in" for child in node.children):
            values = [f for index, child in enumerate(node.children)
                      if node.field_name_for_child(index) == "value" for f in self.fields(child)]  # fmt: skip
        else:
            values = list(self.state.arguments or [])
        name = self.text_of(variable)
        for value in values:
            self.state.set(name, value)
            if not is_known(value):
                # It may stand for any number of values: the body may run, or not.
                self.fork(lambda: None, lambda: self.run(body))
            else:
                self.run(body)
            if self._leaves_loop():
                break
        return True

    def _leaves_loop(self) -> bool:
        flow = self.state.flow
        if flow in (Flow.BREAK, Flow.CONTINUE):
            self.state.flow = None
        return flow is not None and flow is not Flow.CONTINUE

    def _c_for(self, node: Node) -> _Status:
        header = self.text_of(node).partition("((")[2].partition("))")[0]
        parts = header.split(";")
        body = node.child_by_field_name("body")
        if len(parts) != 3 or body is None:
            return None
        self.calculated(self._expanded_text(node, parts[0]))
        for _ in range(MAX_ITERATIONS):
            condition = self.calculated(parts[1]) if parts[1].strip() else "1"
            if not is_known(condition):
                self.fork(lambda: None, lambda: self.run(body))
                return None
            if condition == "0":
                return True
            self.run(body)
            if self._leaves_loop():
                return True
            self.calculated(parts[2])
        return self._endless(node)

    def _endless(self, node: Node) -> _Status:
        message = f"a loop of more than {MAX_ITERATIONS:,} rounds is left after these"
        self.find(self.place(node), Severity.NOTE, message)
        return None

    def _expanded_text(self, node: Node, text: str) -> str:
        return text if "$" not in text else mark("$((...))")

    def _while(self, node: Node) -> _Status:
        body = node.child_by_field_name("body")
        condition = [child for index, child in enumerate(node.children)
                     if node.field_name_for_child(index) == "condition"]  # fmt: skip
        wants = node.children[0].type != "until"
        if body is None:
            return None
        for _ in range(MAX_ITERATIONS):
            verdict = self.sequence(condition)
            if verdict is None:
                self.fork(lambda: None, lambda: self.run(body))
                self._leaves_loop()
                return None
            if verdict is not wants or self.state.flow is not None:
                return True
            self.run(body)
            if self._leaves_loop():
                return True
        return self._endless(node)

    def _case(self, node: Node) -> _Status:
        subject = self.value(node.child_by_field_name("value"))
        items = [child for child in node.children if child.type == "case_item"]
        open_branches: list[list[Node]] = []
        for item in items:
            values = [child for index, child in enumerate(item.children)
                      if item.field_name_for_child(index) == "value"]  # fmt: skip
            end = values[-1].end_byte if values else item.start_byte
            body = [child for child in item.named_children if child.start_byte >= end and child not in values]
            verdicts = [matches(subject, self.value(value)) for value in values]
            if True in verdicts or any(self.text_of(value) == "*" for value in values):
                if not open_branches:
                    return self.sequence(body)
                open_branches.append(body)
                break
            if None in verdicts:
                open_branches.append(body)
        else:
            open_branches.append([])
        if len(open_branches) == 1:
            return self.sequence(open_branches[0])
        self.fork(*[_later(self, body) for body in open_branches], cause=(unknowns(subject) or ("",))[0])
        return None

    def _function(self, node: Node) -> _Status:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.state.functions[self.text_of(name)] = Function(body=body, source=self.source, file=self.file)
        return True

    def _subshell(self, node: Node) -> _Status:
        outer = self.state
        self.state = outer.copy(output=outer.output)
        status = self.sequence(node.children)
        self.state = outer
        return status

    def _compound(self, node: Node) -> _Status:
        if node.children and node.children[0].type == "((":
            value = self.number(node, node.start_byte + 2, node.end_byte - 2)
            return None if not is_known(value) else value != "0"
        return self.sequence(node.children)

    def _negated(self, node: Node) -> _Status:
        status = self.run(node.named_children[-1])
        return None if status is None else not status

    def _declaration(self, node: Node) -> _Status:
        return builtin.declare(self, node)

    def _unset(self, node: Node) -> _Status:
        for child in node.named_children:
            name = self.value(child)
            self.state.variables.pop(name, None)
            self.state.functions.pop(name, None)
        return True

    def _test(self, node: Node) -> _Status:
        return test_node(self, node)

    def _broken(self, node: Node) -> _Status:
        self.find(
            self.place(node), Severity.WARNING, f"no shell syntax: {self.text_of(node).strip().splitlines()[:1]}",
            "check the quotes and brackets before this place",
        )  # fmt: skip
        return self.sequence(node.children)

    def substituted(self, node: Node) -> str:
        """What a command substitution prints, as far as builtins and functions print it."""
        outer, output = self.state, []  # type: ignore[var-annotated]
        self.state = outer.copy(output=output)
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise InvalidInputError(f"statements nest deeper than {MAX_NESTING} levels", where=self.place(node))
        self.sequence(node.children)
        self.nesting -= 1
        self.state = outer
        return "".join(output).rstrip("\n")


def heredoc_argument(node: Node) -> bool:
    return node.is_named and node.type not in (
        "heredoc_start", "heredoc_body", "heredoc_end", "file_redirect", "file_descriptor", "pipeline", "list",
        "comment", "herestring_redirect",
    )  # fmt: skip


def _later(shell: Shell, body: list[Node]) -> Callable[[], object]:
    return lambda: shell.sequence(body)


def _branches(node: Node) -> list[tuple[list[Node] | None, list[Node]]]:
    """Conditions and bodies of an `if`, in order; the condition of `else` is None."""
    condition: list[Node] = []
    body: list[Node] = []
    rest: list[tuple[list[Node] | None, list[Node]]] = []
    seen_then = False
    for child in node.children:
        if child.type == "then":
            seen_then = True
        elif child.type == "elif_clause":
            rest += _branches(child)
        elif child.type == "else_clause":
            rest.append((None, [c for c in child.children if c.is_named]))
        elif child.is_named:
            (body if seen_then else condition).append(child)
    return [(condition, body), *rest]


_HANDLERS: dict[str, Callable[[Shell, Node], _Status]] = {
    "command": Shell._command,
    "variable_assignment": Shell._assignment,
    "variable_assignments": lambda shell, node: shell.sequence(node.children),
    "declaration_command": Shell._declaration,
    "unset_command": Shell._unset,
    "test_command": Shell._test,
    "list": Shell._list,
    "pipeline": Shell._pipeline,
    "redirected_statement": Shell._redirected,
    "if_statement": Shell._if,
    "for_statement": Shell._for,
    "c_style_for_statement": Shell._c_for,
    "while_statement": Shell._while,
    "case_statement": Shell._case,
    "function_definition": Shell._function,
    "compound_statement": Shell._compound,
    "do_group": lambda shell, node: shell.sequence(node.children),
    "subshell": Shell._subshell,
    "negated_command": Shell._negated,
    "ERROR": Shell._broken,
    "program": lambda shell, node: shell.sequence(node.children),
    "string": lambda shell, node: shell.start(node, shell.fields(node)),
    "word": lambda shell, node: shell.start(node, shell.fields(node)),
    "concatenation": lambda shell, node: shell.start(node, shell.fields(node)),
    "file_redirect": lambda shell, node: True,
    "arithmetic_expansion": lambda shell, node: None if not is_known(n := shell.value(node)) else n != "0",
}
