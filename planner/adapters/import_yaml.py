"""YAML that frameworks read with OmegaConf: aliases are allowed, `1e-6` is a number, and `00:03:45:00` is text.

Workload files of the planner's own are read more strictly (`planner.files.yaml_text`). What can hurt is refused here
too: aliases that multiply, duplicate keys, deep nesting, tags that build objects.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from planner.errors import InvalidInputError
from planner.files.atomic import read_limited

MAX_BYTES = 4 * 2**20
MAX_DEPTH = 32
MAX_NODES = 100_000
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+"
    r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)"
)
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)")


def read_foreign_yaml(path: Path, *, kind: str = "configuration") -> dict[str, object]:
    """The mapping that a YAML file holds; raises InvalidInputError with file and reason."""
    text = read_limited(path, MAX_BYTES, kind=kind)
    where = str(path)
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return {}
            _check(node, where)
            value = loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark is not None else ""
        reason = str(getattr(error, "problem", None) or error).splitlines()[0]
        raise InvalidInputError(f"{line}is not YAML: {reason}", where=where) from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise InvalidInputError(f"holds a value that cannot be read: {str(error)[:80]}", where=where) from None
    if not isinstance(value, dict):
        raise InvalidInputError("holds no keys and values", where=where, accepted=f"a {kind}")
    return {str(key): item for key, item in value.items()}


class _Loader(yaml.CSafeLoader):
    """The safe loader with the scalars of YAML 1.2, as OmegaConf takes them."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":int", ":float", ":timestamp"))]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(rf"^(?:{_INTEGER.pattern})$"), list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"^(?:{_FLOAT.pattern})$"), list("-+.0123456789"))


def _float(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = node.value.replace("_", "").lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


_Loader.add_constructor("tag:yaml.org,2002:float", _float)


def _check(root: yaml.Node, where: str) -> None:
    """Refuses what would be expensive before any value is built: the size counts every use of an alias."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node, depth: int, above: frozenset[int]) -> int:
        if depth > MAX_DEPTH or id(node) in above:
            line = node.start_mark.line + 1
            raise InvalidInputError(f"line {line}: nested deeper than {MAX_DEPTH} levels", where=where)
        known = sizes.get(id(node))
        if known is not None:
            return known
        inside = above | {id(node)}
        total = 1
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if key.value != "<<" and str(key.value) in seen:
                    line = key.start_mark.line + 1
                    raise InvalidInputError(
                        f"line {line}: key {str(key.value)[:60]!r} is given twice", where=where,
                        accepted="each key once",
                    )  # fmt: skip
                seen.add(str(key.value))
                total += size(key, depth + 1, inside) + size(value, depth + 1, inside)
        elif isinstance(node, yaml.SequenceNode):
            total += sum(size(item, depth + 1, inside) for item in node.value)
        if total > MAX_NODES:
            raise InvalidInputError(f"more than {MAX_NODES} values, aliases counted", where=where)
        sizes[id(node)] = total
        return total

    size(root, 0, frozenset())
