"""Readable messages from pydantic errors, and the published JSON Schemas (docs/schemas).

`python -m planner.files.schema DIRECTORY` writes the schemas.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from planner.errors import InvalidInputError, nearest
from planner.files.atomic import write_atomic
from planner.files.problems import raise_all

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

MAX_SHOWN = 12


def raise_for(error: ValidationError, model: type[BaseModel], *, where: str) -> None:
    """Raises InvalidInputError with one line per problem: place, value, what is accepted."""
    messages: list[str] = []
    for detail in error.errors(include_url=False, include_context=True):
        message = str(_problem(detail, model, where))
        if message not in messages:
            messages.append(message)
    hidden = len(messages) - MAX_SHOWN
    raise_all(messages[:MAX_SHOWN] + ([f"and {hidden} more"] if hidden > 0 else []))


def _problem(detail: ErrorDetails, model: type[BaseModel], where: str) -> InvalidInputError:
    location = detail["loc"]
    path = dotted(location)
    value = repr(detail["input"])
    shown = value if len(value) <= 60 else value[:57] + "..."
    if detail["type"] == "extra_forbidden":
        known = _keys_at(model, location[:-1])
        parent = dotted(location[:-1])
        return InvalidInputError(
            f"unknown key {str(location[-1])[:60]!r}",
            where=f"{where}: {parent}" if parent else where,
            accepted=", ".join(known) if len(known) <= 16 else "",
            suggestion=nearest(str(location[-1]), known),
        )
    place = f"{where}: {path}" if path else where
    if detail["type"] == "missing":
        return InvalidInputError("is missing", where=place)
    if detail["type"] == "value_error":
        return InvalidInputError(detail["msg"].removeprefix("Value error, "), where=place)
    return InvalidInputError(f"{shown} is not accepted", where=place, accepted=_accepted(detail, model))


_KINDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "model_attributes_type": "keys and values",
    "dataclass_type": "keys and values",
}
_BOUNDS = {
    "greater_than": "more than {gt:,.15g}",
    "greater_than_equal": "at least {ge:,.15g}",
    "less_than": "less than {lt:,.15g}",
    "less_than_equal": "at most {le:,.15g}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "enum": "{expected}",
    "literal_error": "{expected}",
    "union_tag_invalid": "a kind that is one of {expected_tags}",
    "union_tag_not_found": "keys and values with {discriminator}",
}
_EXAMPLE = re.compile("such as '[^']+'")


def _accepted(detail: ErrorDetails, model: type[BaseModel]) -> str:
    """What would have been accepted, in words that do not presuppose Python; with the example of the key, if any."""
    kind = detail["type"]
    if kind in _BOUNDS:
        return _BOUNDS[kind].format_map(detail.get("ctx", {}))
    words = _KINDS.get(kind) or detail["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    example = _EXAMPLE.search(_description(model, detail["loc"]))
    return f"{words}, {example.group()}" if example is not None else words


def _description(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    """What the schema says about a key; empty where it says nothing."""
    names = [part for part in location if isinstance(part, str)]
    for name in names[:-1]:
        field = model.model_fields.get(name)
        inner = _model_in(field.annotation) if field is not None else None
        if inner is None:
            return ""
        model = inner
    last = model.model_fields.get(names[-1]) if names else None
    return (last.description or "") if last is not None else ""


def dotted(location: tuple[int | str, ...]) -> str:
    """`('pools', 0, 'gpu')` -> `'pools[0].gpu'`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _keys_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Keys that the model accepts at a place."""
    current: type[BaseModel] | None = model
    for part in location:
        if isinstance(part, int) or current is None:
            continue
        field = current.model_fields.get(part)
        current = _model_in(field.annotation) if field is not None else None
    return sorted(current.model_fields) if current is not None else []


def _model_in(annotation: object) -> type[BaseModel] | None:
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)


def schemas() -> dict[str, str]:
    """File name -> text of every published JSON Schema."""
    from planner.files.plan_file import PlanFile
    from planner.files.workload_file import ClusterFile, WorkloadFile

    published: dict[str, type[BaseModel]] = {"workload": WorkloadFile, "cluster": ClusterFile, "plan": PlanFile}
    return {f"{name}.schema.json": _schema_text(model) for name, model in published.items()}


def _schema_text(model: type[BaseModel]) -> str:
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema()}
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main(directory: Path) -> None:
    """Writes every schema into an existing directory."""
    for name, text in schemas().items():
        write_atomic(directory / name, text.encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
