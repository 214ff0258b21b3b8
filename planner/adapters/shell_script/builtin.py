"""Shell builtins and the few harmless programs whose output follows from their arguments."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from planner.adapters.shell_script.conditions import test_words
from planner.adapters.shell_script.marks import is_known, mark, shown
from planner.adapters.shell_script.state import MAX_ELEMENTS, Flow, Value

if TYPE_CHECKING:
    from tree_sitter import Node

    from planner.adapters.shell_script.evaluate import Shell

_Status = bool | None
Builtin = Callable[["Shell", "Node", list[str], str | None], _Status]
_FORMAT = re.compile(r"%(?:(-?0?\d{0,2})([sdiq])|%)")


def _nothing(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    return True


def _false(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    return False


def _unknown(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    return None


def _write(shell: Shell, text: str) -> None:
    if shell.state.output is not None:
        shell.state.output.append(text)


def _echo(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    ends = "\n"
    while words and re.fullmatch("-[neE]+", words[0]):
        ends = "" if "n" in words[0] else ends
        words = words[1:]
    _write(shell, " ".join(words) + ends)
    return True


def _printf(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    variable = ""
    if len(words) > 2 and words[0] == "-v":
        variable, words = words[1], words[2:]
    text = _formatted(words[0].replace("\\n", "\n").replace("\\t", "\t"), words[1:]) if words else ""
    if variable:
        shell.state.set(variable, text if text is not None else mark(variable))
    else:
        _write(shell, text if text is not None else mark("$(printf)"))
    return True


def _formatted(form: str, values: list[str]) -> str | None:
    """`printf` for %s, %d and %q with small widths; None for anything else."""
    if "%" in _FORMAT.sub("", form) or len(values) > MAX_ELEMENTS:
        return None
    result: list[str] = []
    rest = list(values)
    while True:
        before = len(rest)

        def one(match: re.Match[str]) -> str:
            if match[2] is None:
                return "%"
            value = rest.pop(0) if rest else ""
            if match[2] in "di":
                if not is_known(value):
                    return value
                value = str(int(value)) if re.fullmatch(r"-?\d{1,18}", value) else "0"
            width = match[1]
            if width.startswith("-"):
                return value.ljust(int(width[1:] or 0))
            return value.rjust(int(width or 0), "0" if width.startswith("0") else " ")

        result.append(_FORMAT.sub(one, form))
        if not rest or len(rest) == before:
            return "".join(result)


def declare(shell: Shell, node: Node) -> _Status:
    """export, declare, local, readonly, typeset."""
    keyword = shell.text_of(node.children[0])
    words = [shell.value(c) for c in node.named_children if c.type not in ("variable_assignment", "variable_name")]
    options = "".join(word for word in words if word.startswith(("-", "+")))
    exports = keyword == "export" or "x" in options

    def keep(name: str) -> None:
        if shell.locals is not None and keyword in ("local", "declare", "typeset") and "g" not in options:
            shell.locals.setdefault(name, shell.state.variables.get(name))

    for child in node.named_children:
        name = ""
        if child.type == "variable_assignment":
            name = shell.assign(child, is_local=keep)
        elif child.type == "variable_name" or (child.type == "word" and not shell.text_of(child).startswith("-")):
            name = shell.text_of(child)
            _declare_bare(shell, name, options, keep, is_export=keyword == "export")
        elif child.type in ("concatenation", "string"):
            name = _assign_word(shell, shell.value(child), keep)
        if exports and name and "n" not in options:
            shell.state.exported.add(name)
    return True


def _declare_bare(shell: Shell, name: str, options: str, keep: Callable[[str], None], *, is_export: bool) -> None:
    if is_export:
        return
    keep(name)
    empty: Value = {} if "a" in options.lower() else ""
    if name not in shell.state.variables and name not in shell.given:
        shell.state.set(name, empty)


def _assign_word(shell: Shell, text: str, keep: Callable[[str], None]) -> str:
    """`export "NAME=value"`."""
    name, equals, value = text.partition("=")
    if not name.isidentifier():
        return ""
    if equals:
        keep(name)
        shell.state.set(name, value)
    return name


def _export(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    for word in words:
        name = _assign_word(shell, word, lambda _: None)
        if name:
            shell.state.exported.add(name)
    return True


def _set(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    if "--" in words:
        shell.state.arguments = words[words.index("--") + 1 :]
    return True


def _shift(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    arguments = shell.state.arguments
    if arguments is None:
        return None
    count = int(words[0]) if words and words[0].isdigit() and len(words[0]) < 5 else 1
    if count > len(arguments):
        return False
    shell.state.arguments = arguments[count:]
    return True


def _cd(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    target = next((word for word in words if not word.startswith("-")), "")
    current = shell.state.directory
    if target.startswith("/") or (is_known(current) and is_known(target) and target):
        shell.state.directory = posixpath.normpath(posixpath.join(current, target))
    else:
        shell.state.directory = mark("PWD")
    # A directory that is missing would end most scripts.
    return True


def _pwd(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    _write(shell, shell.state.directory + "\n")
    return True


def _source(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    if not words:
        return False
    file = shell.resolve(words[0], shell.place(node))
    if file is None:
        return None
    outer = shell.state.arguments
    if words[1:]:
        shell.state.arguments = words[1:]
    shell.run_file(file)
    shell.state.arguments = outer
    if shell.state.flow is Flow.RETURN:
        shell.state.flow = None
    return True


def _eval(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    """`eval` parses its text as script, which is evaluated like the rest: it is data here, too."""
    shell.run_text(" ".join(words), shell.place(node))
    return None


def _leave(flow: Flow) -> Builtin:
    def leave(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
        shell.state.flow = flow
        status = words[0] if words else shell.state.status
        return None if not is_known(status) else status == "0"

    return leave


def _test(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    return test_words(shell, words[:-1] if words and words[-1] == "]" else words)


def _let(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    value = "0"
    for word in words:
        value = shell.calculated(word)
    return None if not is_known(value) else value != "0"


def _read(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    names = [word for word in words if word.isidentifier()]
    is_whole = "-d" in words
    delimiter = words.index("-d") if is_whole else -1
    names = [n for i, n in enumerate(words) if n.isidentifier() and i != delimiter + 1] if is_whole else names
    is_array = any(re.fullmatch("-[a-z]*a", word) for word in words)
    for index, name in enumerate(names):
        if heredoc is None:
            shell.state.set(name, mark(name))
        elif is_array:
            shell.state.set(name, {str(i): part for i, part in enumerate(heredoc.split())})
        elif is_whole or len(names) == 1:
            shell.state.set(name, heredoc.strip() if is_whole else heredoc.split("\n")[0].strip())
        else:
            parts = heredoc.split("\n")[0].split(None, len(names) - 1)
            shell.state.set(name, parts[index] if index < len(parts) else "")
    return None


def _mapfile(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    for name in (word for word in words if word.isidentifier()):
        shell.state.set(name, mark(name))
    return None


def _cat(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    _write(shell, heredoc if heredoc is not None and not words else mark(f"$(cat {shown(' '.join(words))[:40]})"))
    return None


def _dirname(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    path = next((word for word in words if word != "--"), "")
    if not is_known(path) and "/" not in path.rpartition("\ue001")[2]:
        _write(shell, mark("$(dirname)"))
    else:
        _write(shell, (path.rstrip("/").rpartition("/")[0] or ("/" if path.startswith("/") else ".")) + "\n")
    return True


def _basename(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    words = [word for word in words if word != "--"]
    name = (words[0] if words else "").rstrip("/").rpartition("/")[2]
    if len(words) > 1 and name.endswith(words[1]) and name != words[1]:
        name = name[: len(name) - len(words[1])]
    _write(shell, name + "\n")
    return True


def _realpath(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    path = words[-1] if words else ""
    current = shell.state.directory
    if path.startswith("/"):
        _write(shell, posixpath.normpath(path) + "\n")
    elif is_known(current) and is_known(path):
        _write(shell, posixpath.normpath(posixpath.join(current, path)) + "\n")
    else:
        _write(shell, mark("$(realpath)"))
    return True


def _seq(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    if not words or not all(re.fullmatch(r"-?\d{1,9}", word) for word in words):
        _write(shell, mark("$(seq)"))
        return None
    numbers = [int(word) for word in words]
    first, step, last = {1: (1, 1, numbers[-1]), 2: (numbers[0], 1, numbers[-1])}.get(
        len(numbers), (numbers[0], numbers[1 % len(numbers)], numbers[-1])
    )
    values = range(first, last + (1 if step > 0 else -1), step or 1)
    if len(values) > MAX_ELEMENTS:
        _write(shell, mark("$(seq)"))
        return None
    _write(shell, "".join(f"{value}\n" for value in values))
    return True


def _expr(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    _write(shell, shell.calculated(" ".join(words)) + "\n")
    return None


def _command(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    while words and words[0] in ("-p", "--"):
        words = words[1:]
    if words and words[0].startswith("-"):
        return None
    return shell.start(node, words, (), heredoc)


def _getopts(shell: Shell, node: Node, words: list[str], heredoc: str | None) -> _Status:
    if shell.state.arguments == []:
        return False
    return None


BUILTINS: dict[str, Builtin] = {
    ":": _nothing, "true": _nothing, "false": _false, "echo": _echo, "printf": _printf, "export": _export,
    "declare": _export, "local": _export, "readonly": _export, "typeset": _export, "set": _set, "shift": _shift,
    "cd": _cd, "pushd": _cd, "popd": _nothing, "pwd": _pwd, "source": _source, ".": _source, "eval": _eval,
    "exit": _leave(Flow.EXIT), "return": _leave(Flow.RETURN), "break": _leave(Flow.BREAK),
    "continue": _leave(Flow.CONTINUE), "test": _test, "[": _test, "let": _let, "read": _read, "mapfile": _mapfile,
    "readarray": _mapfile, "cat": _cat, "dirname": _dirname, "basename": _basename, "realpath": _realpath,
    "readlink": _realpath, "seq": _seq, "expr": _expr, "command": _command, "builtin": _command,
    "getopts": _getopts, "trap": _nothing, "shopt": _nothing, "wait": _nothing, "ulimit": _nothing, "alias": _nothing,
    "umask": _nothing, "sleep": _nothing, "mkdir": _nothing, "unset": _nothing, "hash": _nothing, "type": _unknown,
    "kill": _unknown, "pkill": _unknown, "killall": _unknown, "rm": _unknown, "jobs": _unknown,
}  # fmt: skip
