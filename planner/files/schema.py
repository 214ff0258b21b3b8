"""Readable messages from pydantic errors, and the published JSON Schemas (docs/schemas).

`python -m planner.files.schema DIRECTORY` writes the schemas.
"""

from __future__ import annotations

import json
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
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if detail["type"] == "value_error":
        return InvalidInputError(message, where=place)
    return InvalidInputError(f"{shown} is not accepted", where=place, accepted=message.removeprefix("a valid "))


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
