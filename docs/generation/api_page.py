"""The page of the Python API, from its docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass

from planner import api
from planner.api.shown import Shown

HEAD = """# Python API

A typed function for everything that the command line does:

```python
from planner import plan, workload, budget

best = plan("qwen3-32b", gpus="32xh100", response_mean=3000, framework="verl")
print(best.time_s, best.num_gpus, best.usd)
print(best)
```

`print` shows what the command line prints, `repr` one line; in a notebook a plan or a sweep is the page of
`rlplan report`, other results are tables, and rich consoles show them in their own width. The values are in the
result's fields, in SI units: seconds, bytes, FLOP, USD.

A `workload` is asked about more than once; `plan` takes the same arguments directly:

```python
work = workload("qwen3-32b", response_mean=3000, steps=500)
sweep = budget(work, sizes="32,64", types="h100,h200")
for entry in sweep.view.choice.front:
    print(entry.point.kind, entry.point.num_gpus, entry.run.time_s / 3600)
```

Arguments are named after the values that they give (`num_prompts` is `--prompts`, `lora_rank` is `--lora`); messages
about wrong values name the flag. Errors are `InvalidInputError` (exit code 2 of the command line), `InfeasibleError`
(3) and `NoPlanFoundError` (4), all of them `RlplanError`. `import planner` imports nothing else; a function imports
what it needs when it is called.

Where a function takes a `ModelLike`, that is a model by id, alias or path, the path of a workload file, or a workload;
a `PlanLike` is a plan, a result with one, or the path of a saved plan.

Made from docstrings by `make docs`.
"""

_QUOTED = re.compile(r": '([^']*)'")
"""Annotations are texts in these modules."""


def api_page() -> str:
    """The page as Markdown."""
    objects = {name: getattr(api, name) for name in api.__all__}
    functions = {name: item for name, item in objects.items() if inspect.isfunction(item)}
    results = {name: item for name, item in objects.items() if _is_result(item)}
    others = [name for name in objects if name not in functions and name not in results]
    parts = [HEAD, "## Functions\n"]
    parts += [_function(name, item) for name, item in functions.items()]
    parts += ["## Results\n", (inspect.getdoc(Shown) or "") + "\n"]
    parts += [_class(name, item) for name, item in results.items()]
    parts += ["## Also in `planner`\n", *(f"- `{name}`: {_first_line(objects[name])}" for name in others)]
    return "\n".join(parts) + "\n"


def _is_result(item: object) -> bool:
    return isinstance(item, type) and issubclass(item, Shown)


def _function(name: str, function: Callable[..., object]) -> str:
    return f"### {name}\n\n```python\n{_signature(name, function)}\n```\n\n{inspect.getdoc(function)}\n"


def _signature(name: str, function: Callable[..., object]) -> str:
    """One line where it fits, else as many arguments per line as do."""
    found = inspect.signature(function)
    parts = []
    has_star = False
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            parts.append("*")
            has_star = True
        parts.append(_QUOTED.sub(r": \1", str(parameter)))
    returned = f" -> {found.return_annotation}"
    line = f"{name}({', '.join(parts)}){returned}"
    if len(line) <= 100:
        return line
    rows, row = [], ""
    for part in parts:
        if row and len(row) + len(part) > 94:
            rows.append(row)
            row = ""
        row += f"{part}, "
    rows.append(row)
    return "\n".join([f"{name}(", *(f"    {text.rstrip()}" for text in rows), f"){returned}"])


def _class(name: str, item: type) -> str:
    lines = [f"### {name}", "", inspect.getdoc(item) or "", "", "| | |", "|---|---|"]
    assert is_dataclass(item)
    lines += [f"| `{field.name}: {_plain(str(field.type))}` | |" for field in fields(item)]
    for member_name, member in vars(item).items():
        if member_name.startswith("_") or any(field.name == member_name for field in fields(item)):
            continue
        if isinstance(member, property):
            returned = inspect.signature(member.fget).return_annotation if member.fget else ""
            lines.append(f"| `{member_name}: {_plain(str(returned))}` | {_first_line(member)} |")
        elif inspect.isfunction(member):
            lines.append(f"| `{_method(member_name, member)}` | {_first_line(member)} |")
    return "\n".join(lines) + "\n"


def _method(name: str, function: Callable[..., object]) -> str:
    found = inspect.signature(function)
    shown = found.replace(parameters=[p for p in found.parameters.values() if p.name != "self"])
    return _plain(_QUOTED.sub(r": \1", f"{name}{shown}".replace("-> '", "-> ").removesuffix("'")))


def _plain(text: str) -> str:
    return text.replace("|", "\\|")


def _first_line(item: object) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((inspect.getdoc(item) or "").split("\n\n")[0].split())
