"""Checks a JSON value against the part of JSON Schema that OpenAPI documents here are made of."""

from __future__ import annotations

from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}
_KNOWN = {"title", "description", "default", "type", "properties", "required", "items", "anyOf"}
_KNOWN |= {"additionalProperties", "enum", "const", "$ref"}
_KNOWN |= {"discriminator"}  # which of anyOf it is is found by trying them


def fault(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "$") -> str | None:
    """Where and why ``value`` is not of ``schema``; None if it is."""
    assert set(schema) <= _KNOWN, set(schema) - _KNOWN
    if "$ref" in schema:
        target: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        return fault(value, target, root, at)
    if "anyOf" in schema:
        found = [fault(value, each, root, at) for each in schema["anyOf"]]
        return None if None in found else f"{at}: {found}"
    if "const" in schema and value != schema["const"]:
        return f"{at}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{at}: {value!r} is not in {schema['enum']}"
    kind = schema.get("type")
    if kind is not None:
        wrong_bool = isinstance(value, bool) and kind != "boolean"
        if wrong_bool or not isinstance(value, _TYPES[kind]):
            return f"{at}: {value!r} is no {kind}"
    if isinstance(value, list):
        items = schema.get("items", {})
        faults = [fault(each, items, root, f"{at}[{i}]") for i, each in enumerate(value)]
        return next((each for each in faults if each is not None), None)
    if isinstance(value, dict):
        return _fault_of_object(value, schema, root, at)
    return None


def _fault_of_object(
    value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str
) -> str | None:
    missing = set(schema.get("required", ())) - set(value)
    if missing:
        return f"{at}: {missing} missing"
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", True)
    for key, each in value.items():
        if key in properties:
            found = fault(each, properties[key], root, f"{at}.{key}")
        elif others is False:
            found = f"{at}.{key} is unknown"
        else:
            found = None if others is True else fault(each, others, root, f"{at}.{key}")
        if found is not None:
            return found
    return None
