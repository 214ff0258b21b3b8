"""A small independent JSON Schema checker: the keywords that the published schemas use, and no others."""

from __future__ import annotations

from collections.abc import Mapping

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,), "null": (type(None),),
    "integer": (int,), "number": (int, float),
}  # fmt: skip
_ANNOTATIONS = {"title", "description", "default", "$schema", "$defs", "discriminator"}
_KNOWN = {
    "$ref", "anyOf", "oneOf", "enum", "const", "type", "properties", "required", "additionalProperties", "items",
    "prefixItems", "minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum",
}  # fmt: skip


def violations(value: object, root: Mapping[str, object]) -> list[str]:
    """Places where `value` breaks the schema `root`; AssertionError for a keyword that is not understood here."""
    return _check(value, root, root, "$")


def _check(value: object, schema: object, root: Mapping[str, object], place: str) -> list[str]:
    assert isinstance(schema, dict)
    unknown = schema.keys() - _ANNOTATIONS - _KNOWN
    assert not unknown, f"keywords {unknown} at {place} are not checked"
    if "$ref" in schema:
        definitions = root["$defs"]
        assert isinstance(definitions, dict)
        return _check(value, definitions[str(schema["$ref"]).removeprefix("#/$defs/")], root, place)
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            results = [_check(value, option, root, place) for option in schema[keyword]]
            return [] if any(not result for result in results) else min(results, key=len)
    if "enum" in schema and value not in schema["enum"]:
        return [f"{place}: {value!r} not in {schema['enum']}"]
    if "const" in schema and value != schema["const"]:
        return [f"{place}: {value!r} is not {schema['const']!r}"]
    if "type" in schema and (
        not isinstance(value, _TYPES[schema["type"]]) or (isinstance(value, bool) and schema["type"] != "boolean")
    ):
        return [f"{place}: {value!r} is no {schema['type']}"]
    return [*_limits(value, schema, place), *_children(value, schema, root, place)]


def _limits(value: object, schema: dict[str, float], place: str) -> list[str]:
    if isinstance(value, int | float):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        above = "exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"]
        return [] if low <= value <= high and above else [f"{place}: {value} out of range"]
    if isinstance(value, list):
        size, low, high = len(value), schema.get("minItems", 0), schema.get("maxItems", 10**9)
        return [] if low <= size <= high else [f"{place}: {size} items"]
    return []


def _children(value: object, schema: dict[str, object], root: Mapping[str, object], place: str) -> list[str]:
    found: list[str] = []
    if isinstance(value, dict):
        properties, extra = schema.get("properties", {}), schema.get("additionalProperties", True)
        assert isinstance(properties, dict)
        required = schema.get("required", [])
        assert isinstance(required, list)
        found += [f"{place}.{key}: missing" for key in required if key not in value]
        for key, item in value.items():
            if key in properties:
                found += _check(item, properties[key], root, f"{place}.{key}")
            elif isinstance(extra, dict):
                found += _check(item, extra, root, f"{place}.{key}")
            elif extra is False:
                found.append(f"{place}.{key}: unknown")
    if isinstance(value, list):
        prefix = schema.get("prefixItems", [])
        assert isinstance(prefix, list)
        for index, item in enumerate(value):
            child = prefix[index] if index < len(prefix) else schema.get("items", {})
            found += _check(item, child, root, f"{place}[{index}]")
    return found
